//! Joins a raw stream with a Unix socket: the node's part where a program has said that its raw streams go there.
//!
//! The payloads of the caller's `DATA` are written to the socket, and what is read there becomes `DATA`, in memory that is handed
//! on as it is. Each side's flow control holds back the other's writer. Each direction ends by itself: a caller that has
//! finished shuts the socket down for writing, and the socket's end is the answer's. There are no processes and no
//! multiplexer in between.

use std::io::{self, IoSlice};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hailwire_socket::{SocketReader, SocketWriter, split};
use hailwire_wire::{
    Code, Status,
    frame::{self, FRAME_PREFIX, FrameKind},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::Instant,
};

use super::{
    FrameReader, Session, deadline_exceeded, now,
    serve::{accept, end, refuse, until, write_code},
};
use crate::{body::Body, carrier::SendStream};

/// Bytes of a buffer that is read into.
const BUFFER: usize = 64 * 1024;

/// Room below which another buffer is taken.
const LEAST: usize = 16 * 1024;

/// Most chunks written with one system call.
const TOGETHER: usize = 64;

/// And bytes, above which no further chunk is added: a program that does not read makes them wait here.
const MOST_TOGETHER: usize = 32 * 1024;

/// Moves bytes both ways until the socket has ended, its program is gone, or the caller has given up.
///
/// `moved` is called after each chunk. Returns how the stream ended as far as can be told without reading it.
///
/// # Cancel safety
///
/// A dropped future resets the stream and closes the socket.
pub(crate) async fn connect(
    (mut send, reader): (SendStream, Box<FrameReader>),
    socket: UnixStream,
    deadline: Option<Instant>,
    program: &Session,
    moved: &(impl Fn() + Sync),
) -> Code {
    let (receiving, sending) = match split(socket) {
        Ok(both) => both,
        Err(error) => {
            let what = "the node has no room for one more connection";
            let status = Status::new(Code::ResourceExhausted, what).with_details(error.to_string());
            refuse(send, reader, &status).await;
            return status.code;
        }
    };
    if let Err(error) = accept(&mut send).await {
        send.reset(write_code(&error));
        return Code::Cancelled;
    }
    let outcome = {
        let up = to_socket(Body::wire(reader), sending, moved);
        let down = from_socket(receiving, &mut send, moved);
        tokio::pin!(up, down);
        let mut up_done = None;
        loop {
            tokio::select! {
                biased;
                ended = &mut down => break ended,
                body = &mut up, if up_done.is_none() => up_done = Some(body),
                () = until(deadline) => break Err(SocketAnswerEnd::Told(deadline_exceeded())),
                _ = program.closed() => break Err(SocketAnswerEnd::Reset(Code::Unavailable)),
            }
        }
    };
    match outcome {
        Ok(()) => end(send, &Status::ok()).await,
        Err(SocketAnswerEnd::Told(status)) => end(send, &status).await,
        Err(SocketAnswerEnd::Reset(code)) => {
            send.reset(code);
            code
        }
        // The caller's code says nothing of the agent.
        Err(SocketAnswerEnd::GivenUp(code)) => {
            send.reset(code);
            Code::Cancelled
        }
    }
}

/// Why an answer ends before the socket does.
enum SocketAnswerEnd {
    /// In words.
    Told(Status),
    /// Nothing can be said.
    Reset(Code),
    /// Nobody listens.
    GivenUp(Code),
}

/// The caller's body. Returns it, so that the caller is not stopped before the answer has ended.
async fn to_socket(mut body: Body, mut socket: SocketWriter, moved: &impl Fn()) -> Body {
    let mut chunks = Vec::new();
    loop {
        let first = match body.chunk().await {
            Ok(Some(chunk)) => chunk,
            // The agent cannot be told more of a caller that has given up than that nothing comes.
            Ok(None) | Err(_) => break,
        };
        let mut bytes = first.len();
        chunks.push(first);
        // What comes over a network comes in small pieces.
        while chunks.len() < TOGETHER
            && bytes < MOST_TOGETHER
            && let Some(Ok(Some(chunk))) = now(std::pin::pin!(body.chunk()))
        {
            bytes += chunk.len();
            chunks.push(chunk);
        }
        if write_all(&mut socket, &mut chunks).await.is_err() {
            // Nobody reads there; what is still to be said comes the other way.
            return body;
        }
        moved();
    }
    body
}

/// The socket's bytes toward the caller, each read in a frame of its own.
async fn from_socket(
    mut socket: SocketReader,
    to: &mut SendStream,
    moved: &impl Fn(),
) -> Result<(), SocketAnswerEnd> {
    let mut buffer = BytesMut::new();
    loop {
        // Small reads share a buffer.
        if buffer.capacity() < LEAST {
            buffer.reserve(BUFFER);
        }
        buffer.put_bytes(0, FRAME_PREFIX);
        let read = tokio::select! {
            biased;
            read = socket.read_buf(&mut buffer) => read,
            code = to.stopped() => return Err(SocketAnswerEnd::GivenUp(code.unwrap_or(Code::Cancelled))),
        };
        let read = match read {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) => {
                let what = "the connection to the agent's socket broke";
                let status = Status::new(Code::Aborted, what).with_details(error.to_string());
                return Err(SocketAnswerEnd::Told(status));
            }
        };
        buffer[..FRAME_PREFIX].copy_from_slice(&frame::prefix(FrameKind::DATA, read));
        to.write(buffer.split().freeze())
            .await
            .map_err(|error| SocketAnswerEnd::GivenUp(write_code(&error)))?;
        moved();
    }
}

/// Writes chunks whole, in order, and takes them out.
async fn write_all(to: &mut SocketWriter, chunks: &mut Vec<Bytes>) -> io::Result<()> {
    while !chunks.is_empty() {
        let mut slices = [IoSlice::new(&[]); TOGETHER];
        let count = fill(&mut slices, chunks);
        let written = to.write_vectored(&slices[..count]).await?;
        drop_front(chunks, written);
    }
    Ok(())
}

/// As many chunks as fit.
fn fill<'a>(slices: &mut [IoSlice<'a>; TOGETHER], chunks: &'a [Bytes]) -> usize {
    let pairs = slices.iter_mut().zip(chunks);
    pairs
        .map(|(slice, chunk)| *slice = IoSlice::new(chunk))
        .count()
}

/// Takes out what was written.
fn drop_front(chunks: &mut Vec<Bytes>, mut written: usize) {
    let whole = chunks.iter().take_while(|chunk| {
        let fits = chunk.len() <= written;
        if fits {
            written -= chunk.len();
        }
        fits
    });
    let whole = whole.count();
    chunks.drain(..whole);
    if let Some(first) = chunks.first_mut() {
        first.advance(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(texts: &[&'static str]) -> Vec<Bytes> {
        let chunks = texts.iter().map(|text| Bytes::from_static(text.as_bytes()));
        chunks.collect()
    }

    #[test]
    fn what_was_written_is_taken_out_and_what_was_not_stays() {
        for (written, left) in [
            (0, &["ab", "", "cde"][..]),
            (1, &["b", "", "cde"]),
            // What is empty goes with what is before it.
            (2, &["cde"]),
            (4, &["e"]),
            (5, &[]),
        ] {
            let mut waiting = chunks(&["ab", "", "cde"]);
            drop_front(&mut waiting, written);
            assert_eq!(waiting, chunks(left), "{written}");
        }
    }

    #[test]
    fn as_many_chunks_are_written_together_as_one_call_takes() {
        let few = chunks(&["ab", "c"]);
        let mut slices = [IoSlice::new(&[]); TOGETHER];
        assert_eq!(fill(&mut slices, &few), 2);
        assert_eq!((&*slices[0], &*slices[1]), (&b"ab"[..], &b"c"[..]));
        let many = vec![Bytes::from_static(b"x"); TOGETHER + 1];
        let mut slices = [IoSlice::new(&[]); TOGETHER];
        assert_eq!(fill(&mut slices, &many), TOGETHER);
    }
}
