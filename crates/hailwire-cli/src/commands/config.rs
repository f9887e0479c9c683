//! `hail config show | path | check`.

use std::{fs, io};

use hailwire::config::{Config, ConfigError};
use hailwire_wire::{Code, Status};
use serde_json::json;

use super::Run;
use crate::failure::Failure;

/// Prints the file, or with `effective` every setting in force.
pub(crate) fn show(run: &Run, effective: bool) -> Result<(), Failure> {
    let config = load(run)?;
    if effective || run.output.json {
        return run.output.value(&config, Config::to_kdl);
    }
    let path = run.data.config();
    match fs::read_to_string(&path) {
        Ok(text) => run.output.text(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            run.output.note(&format!(
                "{} does not exist, so every setting has its default",
                path.display()
            ));
            run.output
                .note("see the defaults with `hail config show --effective`");
            Ok(())
        }
        Err(error) => Err(Failure::io(
            format!("cannot read {}", path.display()),
            &error,
        )),
    }
}

/// Prints where the file is, whether it exists or not.
pub(crate) fn path(run: &Run) -> Result<(), Failure> {
    let path = run.data.config();
    let value = json!({ "path": path, "exists": path.exists() });
    run.output
        .value(&value, |_| format!("{}\n", path.display()))
}

/// Says whether the file is good.
pub(crate) fn check(run: &Run) -> Result<(), Failure> {
    let path = run.data.config();
    load(run)?;
    let value = json!({ "path": path, "exists": path.exists(), "good": true });
    run.output
        .value(&value, |value| match value["exists"].as_bool() {
            Some(true) => format!("{} is good\n", path.display()),
            _ => format!("{} does not exist, which is good too\n", path.display()),
        })
}

/// The configuration of a data folder.
pub(crate) fn load(run: &Run) -> Result<Config, Failure> {
    Config::load(&run.data.config()).map_err(|error| {
        let hint = error.hint().to_owned();
        match &error {
            ConfigError::Read { source, .. } => Failure::io(&error, source).hint(hint),
            ConfigError::Invalid { .. } => {
                Failure::from(Status::new(Code::InvalidArgument, error.to_string())).hint(hint)
            }
        }
    })
}
