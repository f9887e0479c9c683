//! Fuzzes [`hailwire_fuzz::ticket`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::ticket(input));
