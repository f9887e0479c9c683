//! The integration tests of the package, in one binary.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod asked;
mod blame;
mod byte_stream;
mod call;
mod carrier;
mod carriers;
mod child;
mod faults;
mod fixtures;
mod h2_bridge;
mod h2spec;
mod grants;
mod hostile;
mod house;
mod identity;
mod pool;
mod port;
mod reach;
mod resources;
mod socket;
mod synced;
mod tcp;
mod trust;
mod wire;
