//! What tests of several modules need.
//!
//! A machine that is followed through random orders of events keeps the seeds that once failed, in a list `KEPT` beside
//! its test, each with what was wrong; [`for_each_seed`] runs those first.

mod seeds;
mod tests;

use std::time::Instant;

use hailwire_wire::NodeId;
use rand_pcg::{Pcg32, rand_core::Rng as _};

pub(crate) use seeds::for_each_seed;

/// Some instant to count from.
#[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

/// A node's key, made of one byte.
pub(crate) fn node(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

/// Numbers below a bound, drawn from a seed; each kind of run has a stream of its own.
pub(crate) fn draws(seed: u64, stream: u64) -> impl FnMut(u32) -> u32 {
    let mut random = Pcg32::new(seed, stream);
    move |most| random.next_u32() % most
}
