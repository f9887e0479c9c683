//! `hail help` and `hail version`: other ways to write `--help` and `--version`.

use std::{env, ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use hailwire_terminal::{failure::CommandFailure, output::Output};

/// Starts this program again in its own place with `--help` after the command, so that the help is the same one, also of a
/// command that a companion program executes. Returns only on failure.
pub(super) fn replace_this(command: Vec<OsString>) -> CommandFailure {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return CommandFailure::io("cannot find this program", &error),
    };
    let error = Command::new(&program).args(command).arg("--help").exec();
    CommandFailure::io(format!("cannot start {}", program.display()), &error)
}

/// Prints what `--version` prints.
pub(super) fn version(output: Output) -> Result<(), CommandFailure> {
    output.text(concat!("hail ", env!("CARGO_PKG_VERSION"), "\n"))
}
