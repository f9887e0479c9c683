//! Why a connection ended.

use std::io;

use thiserror::Error;

/// Why a connection ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// What is beneath failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A message was sent after the close.
    #[error("the connection is closed")]
    Closed,
    /// The peer broke RFC 6455.
    #[error("{0}")]
    Protocol(&'static str),
    /// The peer sent text, and only binary messages are taken.
    #[error("the peer sent a text message")]
    Text,
    /// A message is longer than [`Terms::max_message`](crate::Terms::max_message).
    #[error("a message of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// How long it would be, as far as is known.
        len: u64,
        /// What is taken.
        max: usize,
    },
    /// More frames without data than the allowance.
    #[error("the peer sent too many frames without data")]
    Flood,
    /// The far side does not upgrade its connection.
    #[error("{0}")]
    Upgrade(String),
}

impl Error {
    /// The code of the close frame that tells the peer (RFC 6455, 7.4.1).
    pub(crate) const fn close_code(&self) -> u16 {
        match self {
            Self::Text => 1003,
            Self::Flood => 1008,
            Self::TooLong { .. } => 1009,
            _ => 1002,
        }
    }
}
