//! Fuzzes [`hailwire_fuzz::record`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::record(input));
