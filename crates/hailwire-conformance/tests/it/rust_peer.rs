//! The peer over this repository's client goes through every case.

use crate::{driver, example, failures, lines};

#[test]
fn the_peer_over_the_rust_client_goes_through_every_case() {
    let output = driver(&["--json", "--", &example("peer")]);
    let lines = lines(&output);
    let count = driver(&["--list"])
        .stdout
        .iter()
        .filter(|byte| **byte == b'\n')
        .count();
    assert_eq!(lines.len(), count);
    let failures = failures(&lines);
    assert!(failures.is_empty(), "{failures:#?}");
    for line in lines.iter().filter(|line| line.name.starts_with("slow-")) {
        eprintln!("{}: {}", line.name, line.note);
    }
}
