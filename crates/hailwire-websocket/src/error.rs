//! Why a connection ended.

use std::io;

use thiserror::Error;

/// Why a connection ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WebSocketError {
    /// The underlying byte stream failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A message was sent after the connection was closed.
    #[error("the connection is closed")]
    Closed,
    /// The peer violated RFC 6455.
    #[error("{0}")]
    Protocol(&'static str),
    /// The peer sent text; only binary messages are accepted.
    #[error("the peer sent a text message")]
    Text,
    /// A message is longer than [`WebSocketLimits::max_message`](crate::Terms::max_message).
    #[error("a message of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// Its length, as far as it is known.
        len: u64,
        /// The limit.
        max: usize,
    },
    /// The peer sent more frames without data than allowed.
    #[error("the peer sent too many frames without data")]
    Flood,
    /// The peer did not complete the upgrade.
    #[error("{0}")]
    Upgrade(String),
}

impl WebSocketError {
    /// The status code of the close frame for this error (RFC 6455, section 7.4.1).
    pub(crate) const fn close_code(&self) -> u16 {
        match self {
            Self::Text => 1003,
            Self::Flood => 1008,
            Self::TooLong { .. } => 1009,
            _ => 1002,
        }
    }
}
