//! `hail completions SHELL`.

use clap::CommandFactory as _;
use clap_complete::Shell;
use hailwire_terminal::{failure::CommandFailure, outline, output::Output};

use crate::args::Cli;

pub(crate) fn print(output: Output, shell: Shell) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    // Without the companion programs, only the commands of `hail` itself are completed.
    let mut table = outline::graft(Cli::command(), |_| {})?;
    clap_complete::generate(shell, &mut table, "hail", &mut script);
    output.text(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_every_command() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::Elvish,
            Shell::PowerShell,
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hail", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(
                    script.contains(command.get_name()),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }
}
