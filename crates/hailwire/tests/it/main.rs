//! The integration tests of the package, in one binary.

mod call;
mod carrier;
mod child;
mod faults;
mod fixtures;
mod hostile;
mod house;
mod resources;
mod trust;
