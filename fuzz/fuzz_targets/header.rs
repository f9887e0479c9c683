//! Fuzzes [`hailwire_fuzz::header`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::header(input));
