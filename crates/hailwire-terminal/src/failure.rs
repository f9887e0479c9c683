//! The error of a command: what happened, a stable code, what to try.
//!
//! On a terminal a failure is shown as
//!
//! ```text
//! error: no agent `grep` is known here (not_found)
//! hint: list what can be called with `hail agents`
//! ```
//!
//! and with `--json` it is one line on stderr: `{"error":{"code":…,"message":…,"hint":…}}`. The exit
//! code follows from the status code by one rule, kept in `docs/reference/exit-codes.md`.

use std::{error::Error, fmt::Display, io, time::Duration};

use hailwire_kdl::FileError;
use hailwire_wire::{Code, Status};
use serde_json::json;

use crate::text;

/// Why a command failed.
#[derive(Debug)]
pub struct CommandFailure {
    /// Code, message, hint and details.
    pub status: Status,
    exit: u8,
}

impl CommandFailure {
    /// The arguments are invalid. Exit code 2, as for every other usage error.
    #[must_use]
    pub fn usage(message: impl Display) -> Self {
        Self {
            status: Status::new(Code::InvalidArgument, message.to_string()),
            exit: exit::USAGE,
        }
    }

    /// An operation on this machine failed. Exit code 1.
    #[must_use]
    pub fn general(message: impl Display) -> Self {
        Self {
            status: Status::new(Code::Unknown, message.to_string()),
            exit: exit::FAILURE,
        }
    }

    /// An operation on this machine failed with an I/O error. What is missing, may not be touched or has no room has the
    /// code that says so, whatever was to be done; every other error has exit code 1.
    #[must_use]
    pub fn io(what: impl Display, error: &io::Error) -> Self {
        let message = format!("{what}: {}", text::lower_first(&error.to_string()));
        match Self::code_of_io(error.kind()) {
            None => Self::general(message),
            Some(code) => Self {
                status: Status::new(code, message),
                exit: exit::of(code),
            },
        }
    }

    /// The code of an I/O error that has one.
    #[must_use]
    pub fn code_of_io(kind: io::ErrorKind) -> Option<Code> {
        match kind {
            io::ErrorKind::NotFound => Some(Code::NotFound),
            io::ErrorKind::AlreadyExists => Some(Code::AlreadyExists),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Some(Code::PermissionDenied)
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some(Code::ResourceExhausted)
            }
            _ => None,
        }
    }

    /// A configuration file is missing, cannot be read, or is invalid.
    #[must_use]
    pub fn file(error: &FileError) -> Self {
        let failure = match error {
            FileError::Invalid { .. } => Self::caused(Code::InvalidArgument, error),
            FileError::Read { source, .. } => Self::io(error, source),
        };
        failure.hint(error.hint())
    }

    /// The user pressed Ctrl-C.
    #[must_use]
    pub fn interrupted() -> Self {
        Self {
            status: Status::new(Code::Cancelled, "interrupted"),
            exit: exit::INTERRUPTED,
        }
    }

    /// Whether the user pressed Ctrl-C.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.exit == exit::INTERRUPTED
    }

    /// The time that `--timeout` allowed has passed.
    #[must_use]
    pub fn timed_out(limit: Duration) -> Self {
        let message = format!("no answer within {}", text::time(limit));
        Status::new(Code::DeadlineExceeded, message).into()
    }

    /// An error with its causes on one line, under a status code.
    #[must_use]
    pub fn caused(code: Code, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            message.push_str(": ");
            message.push_str(&text::lower_first(&cause.to_string()));
            next = cause.source();
        }
        Status::new(code, message).into()
    }

    /// The reader of stdout is gone; nothing is printed, as usual for a program in a pipe.
    #[must_use]
    pub fn broken_pipe() -> Self {
        Self {
            status: Status::new(Code::Cancelled, ""),
            exit: exit::BROKEN_PIPE,
        }
    }

    /// A program that was run for the user ended with this code and has printed its own error; nothing
    /// more is printed.
    #[must_use]
    pub fn of_program(exit: u8) -> Self {
        Self {
            status: Status::new(Code::Unknown, ""),
            exit,
        }
    }

    /// The same failure with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.status = self.status.with_hint(hint);
        self
    }

    /// The process's exit code.
    #[must_use]
    pub fn exit(&self) -> u8 {
        self.exit
    }

    /// Whether nothing is to be printed.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.exit == exit::BROKEN_PIPE || self.status == Status::new(Code::Unknown, "")
    }

    /// The failure for people, without a newline at its end. Details that a remote agent wrote are
    /// indented and without control characters.
    #[must_use]
    pub fn for_people(&self, colour: bool) -> String {
        let Status {
            code,
            message,
            hint,
            details,
            retry_after_ms: _,
        } = &self.status;
        let (red, bold, plain) = if colour {
            (text::BOLD_RED, text::BOLD, text::PLAIN)
        } else {
            ("", "", "")
        };
        let message = text::one_line(message);
        let mut out = format!(
            "{red}error:{plain} {message}{}({code})",
            if message.is_empty() { "" } else { " " }
        );
        for line in details.trim_end().lines() {
            out.push_str("\n    ");
            out.push_str(&text::one_line(line));
        }
        if !hint.is_empty() {
            out.push_str(&format!("\n{bold}hint:{plain} {}", text::one_line(hint)));
        }
        out
    }

    /// The failure that another `hail` wrote with `--json`.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let error = value.get("error")?;
        let text = |key: &str| error.get(key).and_then(|v| v.as_str()).unwrap_or_default();
        let code = Code::ALL
            .into_iter()
            .find(|code| code.name() == text("code"))?;
        let status = Status::new(code, text("message"))
            .with_hint(text("hint"))
            .with_details(text("details"));
        let after = error.get("retry_after_ms");
        let after = after.and_then(serde_json::Value::as_u64).unwrap_or(0);
        let status = status.with_retry_after(Duration::from_millis(after));
        let exit = error.get("exit").and_then(serde_json::Value::as_u64);
        let exit = exit
            .and_then(|exit| u8::try_from(exit).ok())
            .unwrap_or(exit::of(code));
        Some(Self { status, exit })
    }

    /// The failure for programs, on one line.
    #[must_use]
    pub fn for_programs(&self) -> String {
        let Status {
            code,
            message,
            hint,
            details,
            retry_after_ms,
        } = &self.status;
        let mut value = json!({ "error": {
            "code": code.name(), "message": message, "hint": hint, "details": details,
            "exit": self.exit,
        }});
        if *retry_after_ms > 0 {
            value["error"]["retry_after_ms"] = json!(retry_after_ms);
        }
        text::json(&value.to_string())
    }
}

impl From<Status> for CommandFailure {
    fn from(status: Status) -> Self {
        let exit = exit::of(status.code);
        let status = match default_hint(status.code) {
            Some(hint) if status.hint.is_empty() => status.with_hint(hint),
            _ => status,
        };
        Self { status, exit }
    }
}

/// The default hint for a code.
fn default_hint(code: Code) -> Option<&'static str> {
    match code {
        Code::DeadlineExceeded => Some("allow more time with --timeout"),
        Code::NotFound => Some("list what can be called with `hail agents`"),
        Code::PermissionDenied => {
            Some("ask the peer's operator for trust: `hail invite` there, `hail join` here")
        }
        Code::ResourceExhausted => Some("try again in a moment, or call another member"),
        Code::Unavailable => Some("see `hail status` and `hail peers`, then try again"),
        _ => None,
    }
}

/// Exit codes, as in `docs/reference/exit-codes.md`.
pub mod exit {
    use hailwire_wire::Code;

    /// A failure without a code of its own.
    pub const FAILURE: u8 = 1;
    /// A usage error.
    pub const USAGE: u8 = 2;
    /// Added to a status code's number.
    pub const STATUS_BASE: u8 = 64;
    /// Ctrl-C, as shells report it.
    pub const INTERRUPTED: u8 = 130;
    /// The reader of stdout is gone, as shells report it.
    pub const BROKEN_PIPE: u8 = 141;

    /// The exit code for a status.
    pub const fn of(code: Code) -> u8 {
        match code {
            Code::Ok => 0,
            _ => STATUS_BASE + code.number(),
        }
    }

    /// The status code that an exit code means, where it means one.
    pub fn code(exit: i32) -> Option<Code> {
        let number = u8::try_from(exit).ok()?.checked_sub(STATUS_BASE)?;
        Code::ALL
            .into_iter()
            .find(|code| code.number() == number && *code != Code::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_what_happened_the_code_and_a_hint() {
        let failure = CommandFailure::from(Status::new(Code::NotFound, "no agent `x`"));
        assert_eq!(
            failure.for_people(false),
            "error: no agent `x` (not_found)\nhint: list what can be called with `hail agents`"
        );
        assert_eq!(failure.exit(), 69);
    }

    #[test]
    fn one_mistake_with_a_file_has_one_code_wherever_it_is_made() {
        let failure = |kind: io::ErrorKind| {
            let failure = CommandFailure::io("cannot read x", &kind.into());
            (failure.status.code, failure.exit())
        };
        assert_eq!(failure(io::ErrorKind::NotFound), (Code::NotFound, 69));
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem,
        ] {
            assert_eq!(failure(kind), (Code::PermissionDenied, 71));
        }
        assert_eq!(
            failure(io::ErrorKind::StorageFull),
            (Code::ResourceExhausted, 72)
        );
        assert_eq!(failure(io::ErrorKind::IsADirectory), (Code::Unknown, 1));
    }

    #[test]
    fn a_hint_of_the_far_side_is_kept() {
        let status = Status::new(Code::NotFound, "no").with_hint("look elsewhere");
        assert!(
            CommandFailure::from(status)
                .for_people(false)
                .ends_with("hint: look elsewhere")
        );
    }

    #[test]
    fn what_a_far_agent_wrote_cannot_steer_the_terminal() {
        let status =
            Status::new(Code::Internal, "a\x1b[2Jb\nc").with_details("x\x07\ny\r\x1b]0;z\n");
        let text = CommandFailure::from(status).for_people(false);
        assert!(!text.contains(['\x1b', '\x07', '\r']), "{text:?}");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn exit_codes_and_status_codes_map_both_ways() {
        for code in Code::ALL.into_iter().filter(|c| *c != Code::Ok) {
            assert_eq!(exit::code(i32::from(exit::of(code))), Some(code));
        }
        for other in [-1, 0, 1, 2, 64, 81, 127, 130, 137, 256] {
            assert_eq!(exit::code(other), None, "{other}");
        }
    }

    #[test]
    fn the_reference_of_exit_codes_lists_every_status() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/exit-codes.md"
        );
        let written = std::fs::read_to_string(path).unwrap();
        for code in Code::ALL.into_iter().filter(|code| *code != Code::Ok) {
            let row = format!("| {} | `{code}` |", exit::of(code));
            assert!(written.contains(&row), "{row} is missing");
        }
        for fixed in [
            exit::FAILURE,
            exit::USAGE,
            exit::INTERRUPTED,
            exit::BROKEN_PIPE,
        ] {
            assert!(
                written.contains(&format!("| {fixed} |")),
                "{fixed} is missing"
            );
        }
    }

    #[test]
    fn a_program_that_failed_has_spoken_for_itself() {
        let failure = CommandFailure::of_program(3);
        assert!(failure.is_silent() && failure.exit() == 3);
        assert!(!CommandFailure::general("no").is_silent());
    }

    #[test]
    fn a_failure_for_programs_is_one_line_of_json() {
        let line = CommandFailure::usage("bad\nthing").for_programs();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(value["error"]["code"], "invalid_argument");
        assert_eq!(value["error"]["exit"], 2);
    }
}
