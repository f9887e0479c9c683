//! The driver run against programs: the peer over this repository's client, peers that are broken on purpose, and the peers of the SDKs.

#![expect(
    clippy::expect_used,
    reason = "what all tests share may fail them as they may themselves"
)]

mod broken_peers;
mod page;
mod rust_peer;
mod sdks;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

/// The repository's folder.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An example of this crate, which `cargo test` builds.
fn example(name: &str) -> String {
    let driver = Path::new(env!("CARGO_BIN_EXE_hail-conformance"));
    let example = driver.with_file_name("examples").join(name);
    assert!(
        example.is_file(),
        "cargo builds the example {name} with the tests of its crate"
    );
    example.display().to_string()
}

/// What the driver says.
fn driver(arguments: &[&str]) -> Output {
    driver_with(arguments, &[])
}

fn driver_with(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hail-conformance"));
    command.args(arguments).current_dir(repository());
    command.envs(environment.iter().copied());
    command.output().expect("the driver runs")
}

/// A case that the driver ran.
#[derive(Debug)]
struct CaseLine {
    name: String,
    failure: Option<String>,
    note: String,
    stderr: String,
}

/// The lines of `--json`.
fn lines(output: &Output) -> Vec<CaseLine> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("a line of JSON");
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        CaseLine {
            name: text("case").expect("a name"),
            failure: text("failure"),
            note: text("note").unwrap_or_default(),
            stderr: text("stderr").unwrap_or_default(),
        }
    };
    text.lines().map(line).collect()
}

/// Names and reasons of the cases that failed.
fn failures(lines: &[CaseLine]) -> Vec<(&str, &str)> {
    lines
        .iter()
        .filter_map(|line| Some((line.name.as_str(), line.failure.as_deref()?)))
        .collect()
}
