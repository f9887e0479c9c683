//! Fuzzes [`hailwire_fuzz::address`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::address(input));
