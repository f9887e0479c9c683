//! How a command runs: within `--timeout`, until Ctrl-C, on one core or on all.
//!
//! Ctrl-C ends a command with exit code 130; dropping a command's future is how its call is cancelled.

use std::{future::Future, process::ExitCode};

use tokio::runtime::{Builder, Runtime};

use crate::{failure::Failure, global::Common, log, output::Output};

/// Runs a command that asks and prints, within `--timeout` and until Ctrl-C.
///
/// # Errors
///
/// Those of the command, and where its time is over or it was interrupted.
pub fn short(
    common: &Common,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    long(common, async {
        match common.timeout {
            None => command.await,
            Some(limit) => match tokio::time::timeout(limit, command).await {
                Ok(done) => done,
                Err(_) => Err(Failure::timed_out(limit)),
            },
        }
    })
}

/// Runs a command until it ends or Ctrl-C.
///
/// # Errors
///
/// Those of the command, and where it was interrupted.
pub fn long(
    common: &Common,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    on_one_core(common, async {
        tokio::select! {
            done = command => done,
            signal = tokio::signal::ctrl_c() => match signal {
                Ok(()) => Err(Failure::interrupted()),
                Err(error) => Err(Failure::io("Ctrl-C cannot be noticed", &error)),
            },
        }
    })
}

/// Runs a small command that minds signals itself; with the logs that `-v` asks for.
///
/// # Errors
///
/// Those of the command.
pub fn on_one_core(
    common: &Common,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    if let Some(level) = common.log {
        log::start(level, common.output.colour_errors);
    }
    block_on(Builder::new_current_thread(), command)
}

/// Runs a large command that minds signals and logs itself.
///
/// # Errors
///
/// Those of the command.
pub fn on_all_cores(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    block_on(Builder::new_multi_thread(), command)
}

/// Prints why a program's command failed, if it did, and gives the program's exit code.
pub fn end(done: Result<(), Failure>, output: Output) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit())
        }
    }
}

fn block_on(
    mut builder: Builder,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let runtime: Runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::io("the runtime cannot start", &error))?;
    let done = runtime.block_on(command);
    // A read of stdin that nobody waits for any more must not keep the process.
    runtime.shutdown_background();
    done
}
