//! The promises of the fuzz targets hold for the golden vectors, which are where those targets begin.

use std::{fs, path::Path};

use serde_json::Value;

use crate::promises;

#[test]
fn the_golden_vectors_hold_to_the_promises_of_any_bytes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors/callout");
    let mut tried = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        for vector in file["vectors"].as_array().into_iter().flatten() {
            let json = vector["json"].as_str().unwrap_or_default();
            let packed = bytes(vector["msgpack"].as_str().unwrap_or_default()).unwrap();
            // As each event, since a peer may say what it likes.
            for kind in 0..8 {
                promises::callout(&[&[kind], json.as_bytes()].concat());
                promises::callout(&[&[kind | 8], packed.as_slice()].concat());
                tried += 1;
            }
        }
    }
    assert!(tried > 300, "{tried}");
}

#[test]
fn json_is_utf_8_also_in_what_nobody_reads() {
    let event =
        b"\x04{\"correlation_id\":\"c\",\"status\":200,\"duration_ms\":0,\"request_body_size\":0,\
        \"response_body_size\":0,\"upstream_attempts\":0,\"x\":\"\xff\"}";
    promises::callout(event);
}

/// The bytes that hexadecimal digits stand for.
fn bytes(digits: &str) -> Result<Vec<u8>, std::num::ParseIntError> {
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16))
        .collect()
}
