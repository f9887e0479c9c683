//! Fuzzes what the firewall's readers of bodies must hold to.
#![no_main]

#[path = "../src/waf.rs"]
mod promises;

libfuzzer_sys::fuzz_target!(|input: &[u8]| promises::waf(input));
