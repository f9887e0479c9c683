//! How a command runs: within `--timeout`, until Ctrl-C, on one core or on all.
//!
//! Ctrl-C ends a command with exit code 130; dropping a command's future is how its call is cancelled.

use std::{future::Future, process::ExitCode};

use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use crate::{
    failure::{self, CommandFailure},
    global::CommonOptions,
    log,
    output::Output,
};

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
        log::start(level, common.output.log_style());
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

/// Parses the arguments of this process. A mistake ends the process with exit code 2: for people as clap writes it, with
/// `--json` on one line as every other failure; so does a request for help, with exit code 0.
pub fn parse<C: Parser>() -> C {
    C::try_parse().unwrap_or_else(|error| {
        let json = std::env::args_os()
            .skip(1)
            .take_while(|arg| arg != "--")
            .any(|arg| arg == "--json");
        if json && error.use_stderr() {
            eprintln!("{}", usage_failure(&error).for_programs());
            std::process::exit(i32::from(failure::exit::USAGE));
        }
        error.exit()
    })
}

/// What clap says of a mistake, its tips and the usage as the hint.
fn usage_failure(error: &clap::Error) -> CommandFailure {
    let text = error.render().to_string();
    let mut parts = text.split("\n\n").map(|part| {
        let lines: Vec<&str> = part.lines().map(str::trim).collect();
        lines.join(" ")
    });
    let message = parts.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let hints: Vec<String> = parts
        .filter(|part| !part.is_empty() && !part.starts_with("For more information"))
        .collect();
    CommandFailure::usage(message).hint(hints.join("; "))
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
