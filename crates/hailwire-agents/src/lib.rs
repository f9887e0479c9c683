//! Two agents of Agent Protocol v2 that come with the house.
//!
//! | module | what |
//! |---|---|
//! | [`waf`] | attacks in requests, found in heads and in bodies while they come |
//! | [`rate_limit`] | so many requests in so long, by client, header, route or for all |
//!
//! Both are [`hailwire_callout::Agent`]s; [`run`] serves them, or any other, wherever an operator says.

pub mod rate_limit;
mod serve;
pub mod waf;

pub use serve::{Listen, ListenError, Places, RunError, run};
