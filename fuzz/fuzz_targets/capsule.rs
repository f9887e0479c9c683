//! Fuzzes [`hailwire_fuzz::capsule`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::capsule(input));
