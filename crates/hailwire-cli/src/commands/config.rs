//! `hail config show | path | check`.

use std::{fs, io};

use hailwire::{
    admin::method,
    config::{Config, InForce},
};
use hailwire_terminal::{failure::CommandFailure, table::TextTable};
use serde_json::json;

use super::{CommandContext, connect};
use crate::serve::agents_file::{self, AgentsFile};

/// Prints the file, or with `effective` every setting with its value and source.
pub(crate) async fn show(run: &CommandContext, effective: bool) -> Result<(), CommandFailure> {
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
        Err(error) => Err(CommandFailure::io(
            format!("cannot read {}", path.display()),
            &error,
        )),
    }
}

/// Of the running node, including its flags; if none runs, of the file.
async fn show_effective(run: &CommandContext) -> Result<(), CommandFailure> {
    let rows: Vec<InForce> = match connect::attach(run).await {
        Ok(client) => client.admin(method::CONFIG, &()).await?,
        Err(_) => {
            run.output
                .note("no node is running; these are the settings that `hail up` would use");
            load(run)?.in_force()
        }
    };
    let table = |rows: &[InForce]| {
        let mut table = TextTable::new(["SETTING", "VALUE", "WHY"]);
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
    run.output.rows(&rows, table, "no settings")
}

/// Prints the path of the file, whether it exists or not.
pub(crate) fn path(run: &CommandContext) -> Result<(), CommandFailure> {
    let path = run.data.config();
    let value = json!({ "path": path, "exists": path.exists() });
    run.output
        .value(&value, |_| format!("{}\n", path.display()))
}

/// Checks the file, and `agents.kdl` beside it, if that is there.
pub(crate) fn check(run: &CommandContext) -> Result<(), CommandFailure> {
    let path = run.data.config();
    load(run)?;
    let agents = run.data.root().join(agents_file::FILE_NAME);
    let declared = match agents.exists() {
        true => {
            let file = AgentsFile::check(&agents).map_err(|error| CommandFailure::file(&error))?;
            Some(file.agents.len())
        }
        false => None,
    };
    let value = json!({
        "path": path, "exists": path.exists(), "good": true, "agents_path": agents, "agents": declared,
    });
    run.output.value(&value, |_| {
        let mut text = match path.exists() {
            true => format!("{} is valid\n", path.display()),
            false => format!("{} does not exist, so the defaults apply\n", path.display()),
        };
        if let Some(declared) = declared {
            text += &format!("{} is valid: {declared} agents\n", agents.display());
        }
        text
    })
}

/// The configuration of a data folder.
pub(crate) fn load(run: &CommandContext) -> Result<Config, CommandFailure> {
    Config::load(&run.data.config()).map_err(|error| CommandFailure::file(&error))
}
