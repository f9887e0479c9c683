//! What connections between hosts and agents promise, over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod bodies;
mod connection;
mod faults;
mod foreign;
mod reverse;
mod support;
