//! The integration tests of the package, in one binary.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod asked;
mod byte_stream;
mod call;
mod carrier;
mod carriers;
mod child;
mod faults;
mod fixtures;
mod hostile;
mod house;
mod memory;
mod pool;
mod port;
mod resources;
mod socket;
mod tcp;
mod trust;
mod wire;
