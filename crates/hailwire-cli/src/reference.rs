//! The reference of commands in `docs/reference` is this program's own help, held to it by tests.
//! `HAIL_BLESS=1 cargo test -p hailwire-cli reference` writes `cli.md` anew.

use std::{fmt::Write as _, fs, path::PathBuf};

use clap::CommandFactory as _;
use hailwire::Code;

use crate::{args::Cli, failure::exit};

fn document(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    PathBuf::from(root).join(name)
}

fn reference() -> String {
    let mut out = String::from(
        "# Commands\n\nThis is what `hail COMMAND --help` prints, for every command; the global options \
         stand under `hail` alone. Do not edit: \
         `HAIL_BLESS=1 cargo test -p hailwire-cli reference` writes it. See also \
         [exit codes](exit-codes.md), [JSON](json.md) and [configuration](config.md).\n",
    );
    let mut root = Cli::command().term_width(100);
    root.build();
    write(&mut root, "hail", &mut out);
    out
}

fn write(command: &mut clap::Command, name: &str, out: &mut String) {
    let help = command.render_long_help().to_string();
    let own = |line: &&str| name == "hail" || *line != "Global options:";
    let help: Vec<&str> = help.lines().map(str::trim_end).take_while(own).collect();
    let _ = write!(
        out,
        "\n## {name}\n\n```text\n{}\n```\n",
        help.join("\n").trim_end()
    );
    for inner in command
        .get_subcommands_mut()
        .filter(|inner| !inner.is_hide_set())
    {
        let name = format!("{name} {}", inner.get_name());
        write(inner, &name, out);
    }
}

#[test]
fn the_reference_of_commands_is_what_the_program_says() {
    let path = document("cli.md");
    let now = reference();
    if std::env::var_os("HAIL_BLESS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(
        written == now,
        "docs/reference/cli.md is stale: run HAIL_BLESS=1 cargo test -p hailwire-cli reference"
    );
}

#[test]
fn the_reference_of_exit_codes_lists_every_status() {
    let written = fs::read_to_string(document("exit-codes.md")).unwrap();
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
fn the_reference_of_json_names_every_command() {
    let written = fs::read_to_string(document("json.md")).unwrap();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(
            written.contains(&format!("`hail {name}")),
            "hail {name} is missing"
        );
    }
}
