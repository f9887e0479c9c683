//! Many streams over one ordered byte stream.
//!
//! QUIC and HTTP/2 have streams of their own; a Unix socket, a pipe in memory and a WebSocket have
//! not. On those the carrier is this multiplexer: bidirectional streams with priorities, credit by
//! stream, an end for each direction (finish, reset, stop, with codes), datagrams, pings and a
//! close with a reason. `spec/mux.md` is its prose and `spec/vectors/mux.json` its proof.
//!
//! # On the wire
//!
//! Each side first writes a preface of twelve bytes, without waiting for the other's:
//!
//! ```text
//!  0                                 8       9       10     11
//! +----------------------------------+-------+-------+------+----------+
//! |  "hailmux/"                      | major | minor | role | reserved |
//! +----------------------------------+-------+-------+------+----------+
//! ```
//!
//! `role` is `C` or `S`: the client opens streams 1, 3, 5, …, the server 2, 4, 6, …. Another magic or
//! another major version ends the connection with an error that says so. Frames follow, all
//! numbers big-endian:
//!
//! ```text
//!  0       1       2               4                                   12
//! +-------+-------+---------------+-----------------------------------+------------------+
//! | kind  | flags | length (u16)  |  stream (u64)                     | payload (length) |
//! +-------+-------+---------------+-----------------------------------+------------------+
//!
//!  kind          stream  payload
//!  0x01 DATA     id      0 to 16,384 bytes; flag 0x01 (FIN) ends this direction after them
//!  0x02 RESET    id      u32 code: the writer gives this direction up
//!  0x03 STOP     id      u32 code: the reader wants no more; answered with RESET
//!  0x04 WINDOW   id      u32: the writer may send so many bytes more
//!  0x05 STREAMS  0       u32: the peer may open so many streams more
//!  0x06 PING     0       8 bytes, to be sent back in a PONG
//!  0x07 PONG     0       the 8 bytes of a PING
//!  0x08 DATAGRAM 0       at most 1,100 bytes; may be dropped by either side
//!  0x09 CLOSE    0       u32 code, then at most 1,024 bytes of UTF-8: the connection ends now
//! ```
//!
//! A frame of unknown kind is skipped. A stream has no opening frame: it exists from its first
//! frame, whichever that is, and a side's first frames come in the order of its stream ids without
//! a gap. The upper four bits of `flags` are the stream's priority (0 low to 3 critical); they are
//! read in the first frame and used by both sides from then on.
//!
//! # What it promises
//!
//! - *Priority.* The writer sends from the highest priority that has something to send and takes
//!   turns within it. A data frame has at most [`MUX_MAX_DATA`](crate::limits::MUX_MAX_DATA) bytes
//!   and is cut when it is sent, so an urgent one waits for one batch, never for a message.
//! - *A slow reader stops its own writer only.* Credit is counted by stream. Each starts with
//!   [`MUX_INITIAL_WINDOW`](crate::limits::MUX_INITIAL_WINDOW) and grows while its reader reads, out
//!   of a pool that the connection's streams share in equal parts; when many hold unread bytes, the
//!   windows of those that still read shrink again, down to the initial one and no further. There
//!   is no window for the whole connection, because one that slow readers had filled would stop
//!   all others.
//! - *Bounded memory.* What a peer can make this side hold is the sum stated at
//!   [`MUX_INITIAL_WINDOW`](crate::limits::MUX_INITIAL_WINDOW). Small payloads are copied together,
//!   so that a peer cannot pin a large read buffer with one byte of it.
//! - *No copy of large bodies*: input is sliced, and output is a list of handles for one vectored
//!   write.
//!
//! It refuses, as a [`MuxError`] that ends the connection: bytes past a window, more streams than
//! granted, ids out of order, a length that a kind cannot have. Frames for a stream that is over are
//! no error; they may have crossed its end.
//!
//! # How to drive it
//!
//! [`Mux`] does no I/O. Feed what arrives to [`Mux::handle_input`], write what
//! [`Mux::poll_output`] gives, and after any call take every [`Mux::poll_event`]. A call that answers
//! `Poll::Pending` has noted that somebody waits; the event of that name comes when it is worth
//! trying again.

mod budget;
mod chunks;
mod connection;
mod emit;
mod frame;
mod input;
mod output;
mod preface;
mod slab;
mod stream;

/// Bytes of the buffers that whoever drives a [`Mux`] reads into.
pub const READ_BUFFER: usize = 64 * 1024;

pub use connection::{ConnectionEnd, Mux, MuxEvent, MuxReadError, MuxWriteError, ReceiveLimits};
pub use frame::{DecodedItem, FrameHeader, HEADER, MuxDecoder, MuxFrame, MuxFrameKind};
pub use output::MuxOutput;
pub use preface::{MAJOR, MINOR, MuxRole, PREFACE, parse_preface, preface};
pub use slab::StreamKey;

use thiserror::Error;

/// How a peer broke the multiplexer's protocol. The connection ends with it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MuxError {
    /// The first bytes are not the preface.
    #[error("the peer does not speak the hailwire multiplexer, it began with {}", hex(.began))]
    NotMux {
        /// What it sent instead, at most a preface long.
        began: Vec<u8>,
    },
    /// The major versions differ.
    #[error("the peer speaks version {theirs} of the multiplexer, this side version {ours}")]
    Version {
        /// This side's.
        ours: u8,
        /// The peer's.
        theirs: u8,
    },
    /// Both sides are client, or both server.
    #[error("both sides took the same role")]
    SameRole,
    /// A payload has a length that its kind cannot have.
    #[error("a frame of kind {kind:?} cannot have {len} bytes")]
    Length {
        /// What the frame claimed to be.
        kind: MuxFrameKind,
        /// Its stated length.
        len: usize,
    },
    /// More bytes than the stream's window.
    #[error("stream {0} exceeded its window")]
    Window(u64),
    /// More streams than were granted.
    #[error("stream {0} exceeds the number of streams granted")]
    TooManyStreams(u64),
    /// A frame for a stream that cannot exist.
    #[error("stream {0} was never opened")]
    NoSuchStream(u64),
    /// Bytes after the end of their direction.
    #[error("stream {0} carried bytes after its end")]
    AfterEnd(u64),
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests;
