//! The integration tests of the package, in one binary.

mod call;
mod carrier;
mod fixtures;
mod house;
mod trust;
