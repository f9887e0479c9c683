//! Fuzzes [`hailwire_fuzz::stun`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hailwire_fuzz::stun(input));
