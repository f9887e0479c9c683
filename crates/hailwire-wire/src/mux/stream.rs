//! One stream: two directions, each with its own end.

use super::chunks::ChunkQueue;
use crate::header::Priority;
use crate::limits::{MUX_INITIAL_WINDOW, MUX_SEND_QUEUE};
use crate::status::Code;

#[derive(Debug)]
pub(super) struct MuxStream {
    /// Its number on the wire; none until its first frame.
    pub(super) id: Option<u64>,
    /// Whether this side opened it.
    pub(super) local: bool,
    pub(super) priority: Priority,
    pub(super) send: SendHalf,
    pub(super) recv: RecvHalf,
    /// Whether it stands in the queue of streams with something to say besides data.
    pub(super) control_queued: bool,
    /// Whether it stands in the queue of its priority.
    pub(super) data_queued: bool,
}

impl MuxStream {
    pub(super) fn new(id: Option<u64>, priority: Priority) -> Self {
        Self {
            id,
            local: id.is_none(),
            priority,
            send: SendHalf::new(),
            recv: RecvHalf::new(),
            control_queued: false,
            data_queued: false,
        }
    }

    /// Whether no frame of it will be sent or expected any more.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.send.state, SendState::Finished | SendState::Reset)
            && !matches!(self.recv.state, RecvState::Open)
    }

    /// Whether nobody here holds a half.
    pub(super) const fn is_abandoned(&self) -> bool {
        !self.send.held && !self.recv.held
    }

    /// Whether both directions were given up here before the peer heard of the stream.
    pub(super) const fn never_was(&self) -> bool {
        self.id.is_none()
            && matches!(self.send.state, SendState::Resetting(_))
            && self.recv.stop.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    Open,
    /// FIN goes out with the last of the queue.
    Finishing,
    Finished,
    /// RESET is to be sent.
    Resetting(Code),
    Reset,
}

#[derive(Debug)]
pub(super) struct SendHalf {
    pub(super) state: SendState,
    pub(super) queue: ChunkQueue,
    /// Bytes that may wait in it.
    pub(super) most: usize,
    /// Bytes that the peer allows.
    pub(super) credit: u64,
    /// The peer's STOP.
    pub(super) stopped: Option<Code>,
    /// Somebody waits to write.
    pub(super) blocked: bool,
    /// Somebody waits for the end.
    pub(super) watched: bool,
    /// Somebody here holds this half.
    pub(super) held: bool,
}

impl SendHalf {
    fn new() -> Self {
        Self {
            state: SendState::Open,
            queue: ChunkQueue::default(),
            most: MUX_SEND_QUEUE,
            credit: u64::from(MUX_INITIAL_WINDOW),
            stopped: None,
            blocked: false,
            watched: false,
            held: true,
        }
    }

    /// Whether a data frame can go out now.
    pub(super) fn is_ready(&self) -> bool {
        match self.state {
            SendState::Open => self.queue.len() > 0 && self.credit > 0,
            SendState::Finishing => self.queue.len() == 0 || self.credit > 0,
            SendState::Finished | SendState::Resetting(_) | SendState::Reset => false,
        }
    }

    /// Bytes that wait to be written.
    pub(super) const fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Ends this direction at once, if it has not ended; whether a RESET is now to be sent.
    pub(super) fn give_up(&mut self, code: Code) -> bool {
        let open = matches!(self.state, SendState::Open | SendState::Finishing);
        if open {
            self.state = SendState::Resetting(code);
            self.queue.clear();
        }
        open
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvState {
    Open,
    Ended,
    Reset(Code),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopState {
    Pending(Code),
    Sent,
}

#[derive(Debug)]
pub(super) struct RecvHalf {
    pub(super) state: RecvState,
    pub(super) queue: ChunkQueue,
    /// Bytes that the peer may still send.
    pub(super) credit: usize,
    /// What `credit` and the unread bytes may come to together.
    pub(super) window: usize,
    /// Credit granted and not yet told.
    pub(super) grant: usize,
    pub(super) stop: Option<StopState>,
    /// Somebody waits to read.
    pub(super) blocked: bool,
    /// Somebody here holds this half.
    pub(super) held: bool,
}

impl RecvHalf {
    fn new() -> Self {
        let window = MUX_INITIAL_WINDOW as usize;
        Self {
            state: RecvState::Open,
            queue: ChunkQueue::default(),
            credit: window,
            window,
            grant: 0,
            stop: None,
            blocked: false,
            held: true,
        }
    }

    pub(super) const fn unread(&self) -> usize {
        self.queue.len()
    }
}
