//! Two agents of Agent Protocol v2 that come with the house.
//!
//! | module | what |
//! |---|---|
//! | [`rate_limit`] | so many requests in so long, by client, header, route or for all |
//!
//! Both are [`hailwire_callout::Agent`]s.

pub mod rate_limit;
