//! One stream of a link: what came and was not read, what is to be sent, and the credit of both.

use std::collections::VecDeque;

use bytes::Bytes;
use hailwire_wire::{Code, Priority, frame::FrameDecoder, limits::MUX_INITIAL_WINDOW};

/// How the peer ended its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectionEnd {
    /// With FIN.
    Finished,
    /// With RESET.
    Reset(Code),
}

/// A stream, seen from the node.
#[derive(Debug)]
pub(crate) struct LinkStream {
    pub(super) priority: Priority,
    /// The flags' upper bits of every frame that the peer sent, as a set.
    pub(super) priorities_seen: u16,

    // From the peer.
    pub(super) chunks: VecDeque<Bytes>,
    pub(super) unread: u64,
    /// Bytes that the peer may still send.
    pub(super) credit_in: u64,
    pub(super) received: u64,
    pub(super) ended_in: Option<DirectionEnd>,
    /// The node has told the peer to stop.
    pub(super) stopped_here: bool,
    pub(super) frames: FrameDecoder,

    // To the peer.
    pub(super) queue: VecDeque<Bytes>,
    pub(super) credit_out: u64,
    pub(super) sent: u64,
    pub(super) finishing: bool,
    /// It is among those that have something to send.
    pub(super) scheduled: bool,
    pub(super) ended_out: bool,
    /// The code with which the peer told the node to stop.
    pub(super) stop: Option<Code>,
}

impl LinkStream {
    pub(super) fn new(priority: Priority) -> Self {
        Self {
            priority,
            priorities_seen: 0,
            chunks: VecDeque::new(),
            unread: 0,
            credit_in: u64::from(MUX_INITIAL_WINDOW),
            received: 0,
            ended_in: None,
            stopped_here: false,
            frames: FrameDecoder::new(),
            queue: VecDeque::new(),
            credit_out: u64::from(MUX_INITIAL_WINDOW),
            sent: 0,
            finishing: false,
            scheduled: false,
            ended_out: false,
            stop: None,
        }
    }

    /// Whether something can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ended_out
            && match self.queue.is_empty() {
                true => self.finishing,
                false => self.credit_out > 0,
            }
    }

    /// The next bytes to send, at most `most`, and whether they are the last.
    pub(super) fn next_data(&mut self, most: usize) -> (Bytes, bool) {
        let credit = usize::try_from(self.credit_out).unwrap_or(usize::MAX);
        let most = most.min(credit);
        let body = match self.queue.front_mut() {
            Some(front) if front.len() > most => front.split_to(most),
            Some(_) => self.queue.pop_front().unwrap_or_default(),
            None => Bytes::new(),
        };
        self.credit_out -= body.len() as u64;
        self.sent += body.len() as u64;
        let fin = self.finishing && self.queue.is_empty();
        (body, fin)
    }
}
