//! What connections between hosts and agents promise, over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod bodies;
mod connection;
mod dialects;
mod faults;
mod foreign;
mod grpc;
mod memory;
mod pipelined;
mod reverse;
mod support;
