//! The integration tests of the package, in one binary.

mod carrier;
mod fixtures;
