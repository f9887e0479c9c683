//! A program that runs in place of this process: it gets the signals, and its exit code becomes ours.

use std::{io::IsTerminal as _, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use crate::failure::CommandFailure;
use crate::stop::{StopRequest, StopSignals};

/// Waits for the program, and forwards signals to it.
pub async fn wait(child: &mut Child) -> Result<ExitStatus, CommandFailure> {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    let mut stop = StopSignals::new()?;
    loop {
        let signal = tokio::select! {
            status = child.wait() => {
                return status.map_err(|error| CommandFailure::io("cannot wait for the program", &error));
            }
            asked = stop.asked() => match asked {
                StopRequest::Interrupt => Signal::INT,
                StopRequest::Terminate => Signal::TERM,
            },
        };
        // A terminal sends Ctrl-C to the program as well.
        let already = signal == Signal::INT && std::io::stdin().is_terminal();
        if let Some(pid) = pid.filter(|_| !already) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Exits as the program has exited.
pub fn passed_on(status: ExitStatus) -> Result<(), CommandFailure> {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(CommandFailure::of_program(code)),
        None => Err(CommandFailure::general(
            "the program ended in an unknown way",
        )),
    }
}
