//! The status of a call, from how its program ended.
//!
//! | end | status |
//! |---|---|
//! | exit 0 | `ok` |
//! | exit 65 to 80 | the status code with this number less 64, as `hail` itself exits |
//! | any other exit | `internal` |
//! | killed by a signal | `internal` |
//!
//! So a script can choose its status with `exit`, and the failure of a `hail call` inside a script
//! passes through unchanged. The tail of stderr goes along as details.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

use hailwire_terminal::failure::exit;
use hailwire_wire::{Code, Status};

use crate::serve::tail::TailBuffer;

/// The status of a call whose program ended with `exit`.
pub(crate) fn status(exit: ExitStatus, stderr: &TailBuffer) -> Status {
    let status = match (exit.code(), exit.signal()) {
        (Some(0), _) => return Status::ok(),
        (Some(number), _) => {
            let code = exit::code(number).unwrap_or(Code::Internal);
            Status::new(
                code,
                format!("the agent's program failed with exit status {number}"),
            )
        }
        (None, Some(signal)) => Status::new(
            Code::Internal,
            format!("the agent's program was killed by signal {signal}"),
        ),
        (None, None) => Status::new(Code::Internal, "the agent's program failed"),
    };
    status.with_details(stderr.text())
}

/// How a program ended, for its operator.
pub(crate) fn ended(exit: ExitStatus) -> String {
    match (exit.code(), exit.signal()) {
        (Some(number), _) => format!("exit status {number}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "it failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(number: i32) -> ExitStatus {
        ExitStatus::from_raw(number << 8)
    }

    #[test]
    fn success_is_ok_whatever_stderr_says() {
        let mut tail = TailBuffer::default();
        tail.push(b"a warning");
        assert!(status(exited(0), &tail).is_ok());
    }

    #[test]
    fn a_failure_carries_the_tail_of_stderr() {
        let mut tail = TailBuffer::default();
        tail.push(b"no such file\n");
        let status = status(exited(3), &tail);
        assert_eq!(status.code, Code::Internal);
        assert_eq!(
            status.message,
            "the agent's program failed with exit status 3"
        );
        assert_eq!(status.details, "no such file");
    }

    #[test]
    fn a_program_chooses_its_status_by_the_exit_codes_of_hail() {
        let none = TailBuffer::default();
        assert_eq!(status(exited(69), &none).code, Code::NotFound);
        assert_eq!(status(exited(80), &none).code, Code::Unauthenticated);
        assert_eq!(status(exited(64), &none).code, Code::Internal);
        assert_eq!(status(ExitStatus::from_raw(9), &none).code, Code::Internal);
    }
}
