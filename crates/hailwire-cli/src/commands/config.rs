//! `hail config show | path | check`.

use std::{fs, io, path::Path};

use hailwire::config::{Config, ConfigError, FILE_NAME};
use hailwire_wire::{Code, Status};
use serde_json::json;

use crate::{failure::Failure, output::Output};

/// Prints the file, or with `effective` every setting in force.
pub(crate) fn show(output: Output, data: &Path, effective: bool) -> Result<(), Failure> {
    let config = load(data)?;
    if effective || output.json {
        return output.value(&config, Config::to_kdl);
    }
    let path = data.join(FILE_NAME);
    match fs::read_to_string(&path) {
        Ok(text) => output.text(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            output.note(&format!(
                "{} does not exist, so every setting has its default",
                path.display()
            ));
            output.note("see the defaults with `hail config show --effective`");
            Ok(())
        }
        Err(error) => Err(Failure::io(
            format!("cannot read {}", path.display()),
            &error,
        )),
    }
}

/// Prints where the file is, whether it exists or not.
pub(crate) fn path(output: Output, data: &Path) -> Result<(), Failure> {
    let path = data.join(FILE_NAME);
    let value = json!({ "path": path, "exists": path.exists() });
    output.value(&value, |_| format!("{}\n", path.display()))
}

/// Says whether the file is good.
pub(crate) fn check(output: Output, data: &Path) -> Result<(), Failure> {
    let path = data.join(FILE_NAME);
    load(data)?;
    let value = json!({ "path": path, "exists": path.exists(), "good": true });
    output.value(&value, |value| match value["exists"].as_bool() {
        Some(true) => format!("{} is good\n", path.display()),
        _ => format!("{} does not exist, which is good too\n", path.display()),
    })
}

/// The configuration of a data folder.
pub(crate) fn load(data: &Path) -> Result<Config, Failure> {
    Config::load(&data.join(FILE_NAME)).map_err(|error| {
        let hint = error.hint().to_owned();
        match &error {
            ConfigError::Read { source, .. } => Failure::io(&error, source).hint(hint),
            ConfigError::Invalid { .. } => {
                Failure::from(Status::new(Code::InvalidArgument, error.to_string())).hint(hint)
            }
        }
    })
}
