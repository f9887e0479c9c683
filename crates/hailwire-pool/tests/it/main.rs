//! What the pool promises, from the outside.

#![expect(
    clippy::unwrap_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod affine;
mod chance;
mod health;
mod pick;
mod slots;
mod threads;
mod together;
