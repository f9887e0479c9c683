//! A program that runs in this process's stead: it gets the signals, and its exit code is ours.

use std::{io::IsTerminal as _, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use crate::failure::Failure;
use crate::stop::{Asked, Stop};

/// Waits for the program, and hands signals on to it.
pub async fn wait(child: &mut Child) -> Result<ExitStatus, Failure> {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    let mut stop = Stop::new()?;
    loop {
        let signal = tokio::select! {
            status = child.wait() => {
                return status.map_err(|error| Failure::io("the program is lost", &error));
            }
            asked = stop.asked() => match asked {
                Asked::Interrupt => Signal::INT,
                Asked::Terminate => Signal::TERM,
            },
        };
        // A terminal has sent its Ctrl-C to the program too.
        let already = signal == Signal::INT && std::io::stdin().is_terminal();
        if let Some(pid) = pid.filter(|_| !already) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Ends this process as the program has ended.
pub fn passed_on(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::of_program(code)),
        None => Err(Failure::general("the program ended in an unknown way")),
    }
}
