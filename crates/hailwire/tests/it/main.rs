//! The integration tests of the package, in one binary.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod call;
mod carrier;
mod fixtures;
mod house;
mod trust;
