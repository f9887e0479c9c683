//! Networks to test in, in two tiers with one model of links, NATs and firewalls.
#![forbid(unsafe_code)]
pub mod check;
pub mod discover;
pub mod fabric;
pub mod firewall;
pub mod link;
pub mod nat;
pub mod packet;
pub mod real;
pub mod topology;
pub mod virtual_net;

pub use check::{Checked, check};
pub use topology::{Topology, TopologyError};
