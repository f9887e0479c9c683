//! What the pool promises, from the outside.

#![expect(
    clippy::unwrap_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod affine;
mod chance;
mod ejection;
mod health;
mod pick;
mod share;
mod slots;
mod threads;
mod together;
