//! Fuzzes what every reader of the agent protocol's bytes must hold to.
#![no_main]

#[path = "../src/callout.rs"]
mod promises;

libfuzzer_sys::fuzz_target!(|input: &[u8]| promises::callout(input));
