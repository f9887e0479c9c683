//! Fuzzes [`hailwire_fuzz::frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::frame(input));
