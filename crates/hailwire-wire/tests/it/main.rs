//! The wire format against its documents, its golden vectors and hostile input.

#![expect(
    clippy::expect_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod dependencies;
mod errors;
mod files;
mod hostile;
#[path = "../../../../fuzz/src/kept.rs"]
mod kept;
mod limits;
mod links;
mod modules;
#[path = "../../../../fuzz/src/lib.rs"]
pub mod promises;
mod records;
mod session;
mod vectors;

use std::path::PathBuf;

/// A path from the root of the repository.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
