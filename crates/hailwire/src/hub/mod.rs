//! A node's side of a hub: the directory's client, and the check of the hub's certificate.
//!
//! [`HubClient`] joins, publishes and looks up over HTTPS. It believes nothing that a hub says
//! about another node: every record is checked against the key that signed it. [`tls::HubPins`]
//! holds the keys of hubs that have no public certificate; the overlay's endpoint shares it, so
//! that the relay and address discovery of a hub are reached with the same trust as its directory.
//!
//! This module depends on `hailwire-wire` alone and on nothing else of this crate.

mod client;
pub mod tls;

pub use client::{HubClient, HubError, NameHolder};
