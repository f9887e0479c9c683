//! The peers of the SDKs go through every case, where Python and Node.js are there to run them.
//!
//! `HAILWIRE_PYTHON` and `HAILWIRE_NODE` name other interpreters than `python3` and `node`.

use std::{env, process::Command};

use crate::{driver_with, failures, lines, repository};

#[test]
fn the_python_sdk_goes_through_every_case() {
    let source = repository().join("sdk/python/src").display().to_string();
    let environment = [
        ("PYTHONPATH", source.as_str()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ];
    let script = "sdk/python/tests/conformance_peer.py";
    goes_through(("HAILWIRE_PYTHON", "python3"), &[script], &environment);
}

#[test]
fn the_typescript_sdk_goes_through_every_case() {
    // As `npm test` compiles it.
    let script = "sdk/typescript/build/test/conformance_peer.js";
    goes_through(
        ("HAILWIRE_NODE", "node"),
        &["sdk/typescript/dist", script],
        &[],
    );
}

/// Runs all cases against the last of these files, which all have to be there, with an interpreter that a variable names.
fn goes_through(
    (variable, interpreter): (&str, &str),
    files: &[&str],
    environment: &[(&str, &str)],
) {
    let program = env::var(variable).unwrap_or_else(|_| interpreter.to_owned());
    if Command::new(&program).arg("--version").output().is_err() {
        return hailwire_skip::skipped(format_args!("{program} is missing"));
    }
    if let Some(missing) = files.iter().find(|file| !repository().join(file).exists()) {
        return hailwire_skip::skipped(format_args!("{missing} is missing"));
    }
    let script = files.last().copied().unwrap_or_default();
    let output = driver_with(&["--json", "--", &program, script], environment);
    let lines = lines(&output);
    assert!(!lines.is_empty(), "{output:?}");
    let failures = failures(&lines);
    let stderr = lines
        .iter()
        .find(|line| line.failure.is_some())
        .map(|line| &line.stderr);
    assert!(
        failures.is_empty(),
        "{failures:#?}\n{}",
        stderr.map_or("", String::as_str)
    );
}
