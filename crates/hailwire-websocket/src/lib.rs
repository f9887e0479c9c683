//! WebSocket (RFC 6455) for binary messages, with bounds on the memory and work that a peer can cause.
//!
//! In the usual libraries, each ping queues a pong, so a peer that never reads can grow the queue without
//! bound. Here at most one pong is being written and one waits, which answers the newest ping (RFC 6455,
//! section 5.5.3, allows that), so reading never has to wait for writing. Frames without data (pings,
//! pongs, empty messages) are limited by a token bucket: [`WebSocketLimits::control_burst`] at once and [`WebSocketLimits::control_rate`] a
//! second beyond that; the connection of a peer that sends more is closed.
//!
//! A connection holds for its peer: during the upgrade, a head of at most [`WebSocketLimits::max_head`] ; then
//! one incomplete message of [`WebSocketLimits::max_message`] one read of at most 64 KiB, two pongs of
//! 125 bytes and a close frame. All else that waits to be written was queued by the user, who has to wait
//! above [`WebSocketLimits::queue`]. An idle connection holds no buffer.
//!
//! Text messages, extensions and protocol violations end the connection with a close frame and its
//! status code.

mod error;
mod frame;
mod incoming;
mod outgoing;
mod socket;
mod token_bucket;
mod upgrade;

pub use error::WebSocketError;
pub use frame::Role;
pub use socket::WebSocket;
pub use upgrade::{accept, connect, upgrade_answer};

/// The limits of one side of a connection.
#[derive(Clone, Copy, Debug)]
pub struct WebSocketLimits {
    /// Largest message that is accepted, in bytes. A larger one ends the connection.
    pub max_message: usize,
    /// Largest HTTP head of the upgrade that is accepted, in bytes.
    pub max_head: usize,
    /// Bytes that may wait to be written before a sender has to wait.
    pub queue: usize,
    /// Frames without data that the peer may send at once.
    pub control_burst: u32,
    /// Frames without data that the peer may send each second beyond those, at least one.
    pub control_rate: u32,
}

impl Default for WebSocketLimits {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            max_head: 8192,
            queue: 8192,
            control_burst: 64,
            control_rate: 8,
        }
    }
}
