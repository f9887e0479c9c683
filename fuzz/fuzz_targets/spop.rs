//! Fuzzes what every reader of HAProxy's bytes must hold to.
#![no_main]

#[path = "../src/spop.rs"]
mod promises;

libfuzzer_sys::fuzz_target!(|input: &[u8]| promises::spop(input));
