//! `hail id`: reads the key file, so that no node has to run.

use std::io;

use hailwire::{
    Code, Status,
    key::{KeyError, NodeKey},
};
use serde_json::json;

use super::CommandContext;
use hailwire_terminal::failure::CommandFailure;

pub(super) fn run(run: &CommandContext) -> Result<(), CommandFailure> {
    let key = NodeKey::load(&run.data.key()).map_err(|error| failure(run, &error))?;
    let id = key.pair().id().to_string();
    run.output
        .value(&json!({ "id": id }), |_| format!("{id}\n"))
}

fn failure(run: &CommandContext, error: &KeyError) -> CommandFailure {
    match error {
        KeyError::Io(source) if source.kind() == io::ErrorKind::NotFound => {
            let message = format!("there is no key in {} yet", run.data.root().display());
            Status::new(Code::NotFound, message)
                .with_hint("the first `hail up` creates it")
                .into()
        }
        error => CommandFailure::caused(Code::FailedPrecondition, error),
    }
}
