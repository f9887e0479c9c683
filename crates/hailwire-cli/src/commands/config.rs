//! `hail config show | path | check`.

use std::{fs, io};

use hailwire::{
    admin::method,
    config::{Config, InForce},
};
use hailwire_terminal::{failure::Failure, table::Table};
use serde_json::json;

use super::{Run, connect};

/// Prints the file, or with `effective` every setting in force and why.
pub(crate) async fn show(run: &Run, effective: bool) -> Result<(), Failure> {
    if effective {
        return show_effective(run).await;
    }
    let config = load(run)?;
    if run.output.json {
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

/// Of the running node, flags included; where none runs, of the file.
async fn show_effective(run: &Run) -> Result<(), Failure> {
    let rows: Vec<InForce> = match connect::attach(run).await {
        Ok(client) => client.admin(method::CONFIG, &()).await?,
        Err(_) => {
            run.output
                .note("no node runs here; this is what `hail up` would go by");
            load(run)?.in_force()
        }
    };
    let table = |rows: &[InForce]| {
        let mut table = Table::new(["SETTING", "VALUE", "WHY"]);
        for InForce {
            setting,
            value,
            why,
        } in rows
        {
            table.row([setting.clone(), value.clone(), why.clone()]);
        }
        table
    };
    run.output.rows(&rows, table, "there are no settings")
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
    Config::load(&run.data.config()).map_err(|error| Failure::file(&error))
}
