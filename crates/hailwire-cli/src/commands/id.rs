//! `hail id`: read from the key file, so that no node need run.

use std::io;

use hailwire::{
    Code, Status,
    key::{KeyError, NodeKey},
};
use serde_json::json;

use super::Run;
use hailwire_terminal::failure::Failure;

pub(super) fn run(run: &Run) -> Result<(), Failure> {
    let key = NodeKey::load(&run.data.key()).map_err(|error| failure(run, &error))?;
    let id = key.pair().id().to_string();
    run.output
        .value(&json!({ "id": id }), |_| format!("{id}\n"))
}

fn failure(run: &Run, error: &KeyError) -> Failure {
    match error {
        KeyError::Io(source) if source.kind() == io::ErrorKind::NotFound => {
            let message = format!("there is no key in {} yet", run.data.root().display());
            Status::new(Code::NotFound, message)
                .with_hint("the first `hail up` makes it")
                .into()
        }
        error => Failure::caused(Code::FailedPrecondition, error),
    }
}
