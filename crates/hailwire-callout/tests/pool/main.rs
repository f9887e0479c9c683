//! What a pool of connections promises, over real Unix sockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod flow;
mod killed;
mod many;
mod process;
mod requests;
mod system;
mod trouble;
