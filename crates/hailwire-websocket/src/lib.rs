//! WebSocket (RFC 6455) of binary messages, whose peer cannot make it hold or do more than stated.
//!
//! What a peer can ask of the usual libraries without reading the answers has no bound there: each ping
//! queues a pong. Here one pong is on its way and one waits, which answers the newest ping (RFC 6455,
//! 5.5.3, allows that), so reading never has to wait for writing. Frames that bring nothing (pings,
//! pongs, empty data) have an allowance: [`Terms::control_burst`] at once and [`Terms::control_rate`] a
//! second beyond that; a peer that sends more has lost the connection.
//!
//! What one connection holds for its peer: a head of at most [`Terms::max_head`] while it begins; then
//! one message of [`Terms::max_message`] that is not whole yet, one read of at most 64 KiB, two pongs of
//! 125 bytes and a close. What waits to be written beyond that is what this side's user put there, who
//! is asked to wait above [`Terms::queue`]. A connection at rest holds no buffer.
//!
//! It refuses text, extensions and whatever RFC 6455 forbids: the connection ends with a close frame
//! that says why.

mod allowance;
mod error;
mod frame;
mod incoming;
mod outgoing;
mod socket;
mod upgrade;

pub use error::Error;
pub use frame::Role;
pub use socket::WebSocket;
pub use upgrade::{accept, connect};

/// What a side holds a connection to.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Longest message that is taken, in bytes. Longer ones end the connection.
    pub max_message: usize,
    /// Longest HTTP head of the upgrade that is taken, in bytes.
    pub max_head: usize,
    /// Bytes that wait to be written before a sender is asked to wait.
    pub queue: usize,
    /// Frames without data that the peer may send at once.
    pub control_burst: u32,
    /// Frames without data that the peer may send each second beyond those, at least one.
    pub control_rate: u32,
}

impl Default for Terms {
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
