//! How a command runs: within `--timeout`, until Ctrl-C, on one core or on all.
//!
//! Ctrl-C ends a command with exit code 130; dropping a command's future is how its call is cancelled.

use std::{future::Future, process::ExitCode};

use tokio::runtime::{Builder, Runtime};

use crate::{failure::CommandFailure, global::CommonOptions, log, output::Output};

/// Runs a short command, within `--timeout` and until Ctrl-C.
///
/// # Errors
///
/// Those of the command, and if it timed out or was interrupted.
pub fn short(
    common: &CommonOptions,
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    long(common, async {
        match common.timeout {
            None => command.await,
            Some(limit) => match tokio::time::timeout(limit, command).await {
                Ok(done) => done,
                Err(_) => Err(CommandFailure::timed_out(limit)),
            },
        }
    })
}

/// Runs a command until it ends or Ctrl-C.
///
/// # Errors
///
/// Those of the command, and if it was interrupted.
pub fn long(
    common: &CommonOptions,
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    on_one_core(common, async {
        tokio::select! {
            done = command => done,
            signal = tokio::signal::ctrl_c() => match signal {
                Ok(()) => Err(CommandFailure::interrupted()),
                Err(error) => Err(CommandFailure::io("cannot handle Ctrl-C", &error)),
            },
        }
    })
}

/// Runs a small command that handles signals itself, with the logs that `-v` selects.
///
/// # Errors
///
/// Those of the command.
pub fn on_one_core(
    common: &CommonOptions,
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    if let Some(level) = common.log {
        log::start(level, common.output.colour_errors);
    }
    block_on(Builder::new_current_thread(), command)
}

/// Runs a large command that handles signals and logs itself.
///
/// # Errors
///
/// Those of the command.
pub fn on_all_cores(
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    block_on(Builder::new_multi_thread(), command)
}

/// Prints the error of a command, if it failed, and returns the exit code.
pub fn end(done: Result<(), CommandFailure>, output: Output) -> ExitCode {
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
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    let runtime: Runtime = builder
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::io("cannot start the runtime", &error))?;
    let done = runtime.block_on(command);
    // A blocking read of stdin must not keep the process alive.
    runtime.shutdown_background();
    done
}
