//! What connections between hosts and agents promise, over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod dialects;
mod grpc;
