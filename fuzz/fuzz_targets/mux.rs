//! Fuzzes [`hailwire_fuzz::mux`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::mux(input));
