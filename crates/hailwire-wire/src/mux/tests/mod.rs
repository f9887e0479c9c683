//! The multiplexer in virtual time: two sides joined by two queues of bytes.

mod bounds;
mod claims;
mod hostile;
mod random;
mod vectors;

use std::task::Poll;

use bytes::{Buf, Bytes, BytesMut};

use super::*;
use crate::header::Priority;

/// A little random numbers (splitmix64), the same for the same seed.
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn bytes(&mut self, len: usize) -> Bytes {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A client and a server that have not yet exchanged anything.
pub(super) fn sides() -> (Mux, Mux) {
    (Mux::new(MuxRole::Client), Mux::new(MuxRole::Server))
}

/// Everything that `from` has to say, as one piece.
pub(super) fn output(from: &mut Mux) -> Bytes {
    let mut all = BytesMut::new();
    while from.has_output() {
        let mut out = MuxOutput::new();
        from.poll_output(&mut out);
        let len = out.remaining();
        all.extend_from_slice(&out.copy_to_bytes(len));
    }
    all.freeze()
}

/// Moves everything both ways until neither has more to say.
pub(super) fn exchange(a: &mut Mux, b: &mut Mux) {
    while a.has_output() || b.has_output() {
        let _ = b.handle_input(output(a));
        let _ = a.handle_input(output(b));
    }
}

pub(super) fn opened(mux: &mut Mux, priority: Priority) -> StreamKey {
    match mux.open(priority) {
        Poll::Ready(Ok(key)) => key,
        other => panic!("{other:?}"),
    }
}

pub(super) fn accepted(mux: &mut Mux) -> StreamKey {
    match mux.accept() {
        Poll::Ready(Ok(key)) => key,
        other => panic!("{other:?}"),
    }
}

/// Writes as much of `bytes` as is taken, and returns how much that was.
pub(super) fn write(mux: &mut Mux, key: StreamKey, bytes: &[u8]) -> usize {
    let mut chunk = Bytes::copy_from_slice(bytes);
    match mux.write(key, &mut chunk) {
        Poll::Ready(Err(error)) => panic!("{error}"),
        _ => bytes.len() - chunk.len(),
    }
}

/// Reads what is there.
pub(super) fn read(mux: &mut Mux, key: StreamKey) -> Vec<u8> {
    let mut all = Vec::new();
    while let Poll::Ready(Ok(Some(chunk))) = mux.read(key, usize::MAX) {
        all.extend_from_slice(&chunk);
    }
    all
}

pub(super) fn encoded(frames: &[MuxFrame]) -> Bytes {
    let mut out = BytesMut::new();
    frames.iter().for_each(|frame| frame.encode(&mut out));
    out.freeze()
}

/// A server that has read a client's preface.
pub(super) fn greeted_server() -> Mux {
    let mut server = Mux::new(MuxRole::Server);
    server
        .handle_input(Bytes::copy_from_slice(&preface(MuxRole::Client)))
        .unwrap();
    server
}

pub(super) fn data(stream: u64, body: &[u8], fin: bool) -> MuxFrame {
    let body = Bytes::copy_from_slice(body);
    MuxFrame::Data {
        stream,
        priority: Priority::Medium,
        fin,
        body,
    }
}
