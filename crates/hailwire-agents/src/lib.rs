//! Two agents of Agent Protocol v2 that come with Hailwire.
//!
//! | module | what |
//! |---|---|
//! | [`waf`] | a web application firewall: finds attacks in request heads, and in bodies while they arrive |
//! | [`rate_limit`] | limits the request rate by client, header, route or globally |
//!
//! Both are [`hailwire_callout::Agent`]s; [`run`] serves either of them, or any other agent, at the addresses that an operator gives.

pub mod rate_limit;
mod serve;
pub mod waf;

pub use serve::{BoundListeners, ListenAddress, ListenAddressError, RunError, run};
