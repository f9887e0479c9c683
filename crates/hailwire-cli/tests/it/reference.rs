//! The reference of commands in `docs/reference` is what the programs print, held to it by tests.
//! `HAIL_BLESS=1 cargo test -p hailwire-cli --test it reference` writes `cli.md` anew.

use std::{fmt::Write as _, fs, path::PathBuf, process::Command};

use crate::companion_programs::hail;

fn document(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    PathBuf::from(root).join(name)
}

fn reference() -> String {
    let mut out = String::from(
        "# Commands\n\nThis is what `hail COMMAND --help` prints, for every command; the global options \
         stand under `hail` alone. Do not edit: \
         `HAIL_BLESS=1 cargo test -p hailwire-cli --test it reference` writes it. See also \
         [exit codes](exit-codes.md), [JSON](json.md) and [configuration](config.md).\n",
    );
    write(&[], &mut out);
    out
}

fn write(path: &[&str], out: &mut String) {
    let name = ["hail"]
        .iter()
        .chain(path)
        .copied()
        .collect::<Vec<_>>()
        .join(" ");
    let help = help(path);
    let own = |line: &&str| path.is_empty() || *line != "Global options:";
    let shown: Vec<&str> = help.lines().map(str::trim_end).take_while(own).collect();
    let _ = write!(
        out,
        "\n## {name}\n\n```text\n{}\n```\n",
        shown.join("\n").trim_end()
    );
    for inner in commands(&help) {
        write(&[path, &[inner]].concat(), out);
    }
}

/// What `hail COMMAND --help` prints on a terminal of 100 columns.
fn help(path: &[&str]) -> String {
    let mut command = Command::new(hail());
    let ran = command
        .args(path)
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{path:?}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

/// The commands that a help lists.
fn commands(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = lines.take_while(|line| !line.is_empty());
    // The rest of a long description is indented further.
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next())
}

#[test]
fn the_reference_of_commands_is_what_the_programs_say() {
    let path = document("cli.md");
    let now = reference();
    if std::env::var_os("HAIL_BLESS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(
        written == now,
        "docs/reference/cli.md is stale: run HAIL_BLESS=1 cargo test -p hailwire-cli --test it reference"
    );
}

#[test]
fn the_reference_of_json_names_every_command() {
    let written = fs::read_to_string(document("json.md")).unwrap();
    for name in commands(&help(&[])) {
        assert!(
            written.contains(&format!("`hail {name}")),
            "hail {name} is missing"
        );
    }
}
