//! `hail completions SHELL`, and what the shell asks for as the user types.
//!
//! The script that a shell loads asks this program for each word (with the variable `COMPLETE` set), so that it knows the
//! agents and peers of the running node ([`crate::known_names`]) besides commands and flags.

use clap::{Command, CommandFactory as _};
use clap_complete::{CompleteEnv, Shell, env::Shells};
use hailwire_terminal::{failure::CommandFailure, outline, output::Output, programs};

use crate::args::Cli;

/// The variable by which a shell asks for completions.
const VARIABLE: &str = "COMPLETE";

/// Answers a shell that asks for completions and ends the process then; returns at once otherwise.
pub(crate) fn answer_shell() {
    if std::env::var_os(VARIABLE).is_some() {
        CompleteEnv::with_factory(table).var(VARIABLE).complete();
    }
}

/// The table of commands, with those of a companion program where its commands are being typed.
fn table() -> Command {
    let typed: Vec<_> = std::env::args_os().collect();
    let companion = programs::ALL
        .iter()
        .flat_map(|program| program.commands)
        .filter_map(|command| command.path.first())
        .any(|first| typed.iter().any(|word| word == first));
    let all = match companion {
        true => outline::graft(Cli::command(), |_| {}).ok(),
        false => None,
    };
    all.unwrap_or_else(Cli::command)
}

/// What the script for zsh ends with. zsh loads it from `fpath` when the first completion of `hail` is asked for, and that
/// one is still to be answered then.
const ZSH_FIRST: &str = r#"
if [[ "${funcstack[1]}" == _hail ]]; then
    _clap_dynamic_completer_hail "$@"
fi
"#;

/// Prints the script that a shell loads.
pub(crate) fn print(output: Output, shell: Shell) -> Result<(), CommandFailure> {
    output.text(&script(shell)?)
}

fn script(shell: Shell) -> Result<String, CommandFailure> {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&shell.to_string()) else {
        let message = format!("there are no completions for {shell}");
        return Err(CommandFailure::usage(message));
    };
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "hail", "hail", "hail", &mut script)
        .map_err(|error| CommandFailure::io("cannot write the completions", &error))?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Zsh {
        script += ZSH_FIRST;
    }
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_asks_this_program() {
        for shell in [
            Shell::Bash,
            Shell::Zsh,
            Shell::Fish,
            Shell::Elvish,
            Shell::PowerShell,
        ] {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE), "{shell}: {script}");
            assert!(script.contains("hail"), "{shell}: {script}");
            let first = script.contains("\n    _clap_dynamic_completer_hail ");
            assert_eq!(first, shell == Shell::Zsh, "{shell}: {script}");
        }
    }
}
