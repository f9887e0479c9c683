//! When a program that answers line for line may be asked, and whose its answer is.
//!
//! One question is outstanding at a time. A line is an answer only while one is, and only if nothing
//! follows it: output that nobody asked for ends the dialogue, and with it the process, because from
//! then on every answer would go to the wrong caller.
//!
//! A line too many that comes late looks like the answer to the next question. So an answer is handed over,
//! and the next question asked, only once the program has come to [`Rest`]:
//!
//! | seen | then |
//! |---|---|
//! | it waits for input, with all of the last question read and nothing written since | it can write nothing that nobody asks for: at rest |
//! | it sleeps in some other way | at rest after [`SILENCE`] without output |
//! | it works | not at rest, for at most [`LIMIT`] after an answer and [`START_LIMIT`] after its start |
//!
//! Where the late line does come after the next question, the answer proper is then the line too many, and both
//! callers get an error, unless the program rests before it gives that, too: then the late line is taken for it. For certainty there are keys: each
//! question begins with one that cannot be foretold, and the answer must begin with the same; then nothing is
//! waited for.
//!
//! Decides only; [`lines`](super::lines) reads, writes and looks.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

/// Longest line, to and from the program, in bytes.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// Silence after which a program that sleeps, but not for input, counts as at rest.
pub(crate) const SILENCE: Duration = Duration::from_millis(5);

/// How long a program that goes on working after an answer is waited for.
pub(crate) const LIMIT: Duration = Duration::from_millis(100);

/// How long a program that goes on working after its start is waited for.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(1);

/// What a program is seen to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It waits for more input and has read all there is.
    Waiting,
    /// It waits for something else, or cannot be looked at.
    Asleep,
    /// It works.
    Busy,
}

/// Why a dialogue cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There was output while no question was open.
    Unasked,
    /// The answer was complete before the question was.
    Early,
    /// The answer does not begin with the question's key.
    OtherKey,
    /// The line of the answer is longer than [`MAX_LINE`].
    TooLong,
}

/// What was decided when the program came to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It has started and may be asked.
    Started,
    /// This is the answer to what was asked last; it may be asked again.
    Answer(Bytes),
}

/// The dialogue with one process.
#[derive(Debug)]
pub(crate) struct Dialogue {
    state: State,
    /// What came of the answer so far.
    line: BytesMut,
}

#[derive(Debug)]
enum State {
    /// It has started, or has answered, and is watched until it rests.
    Settling {
        since: Instant,
        /// When it last worked.
        busy: Instant,
        answer: Option<Bytes>,
    },
    Ready,
    Asked {
        /// Whether the program has been given the whole question.
        written: bool,
        /// What the answer must begin with; empty without keys.
        key: Bytes,
    },
}

impl Dialogue {
    /// A process was started.
    pub(crate) fn started(now: Instant) -> Self {
        Self {
            state: State::settling(now, None),
            line: BytesMut::new(),
        }
    }

    /// Whether a question may be asked now.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether an answer, or the end of a start, waits for the program's rest.
    pub(crate) fn is_settling(&self) -> bool {
        matches!(self.state, State::Settling { .. })
    }

    /// The line to write for `question`, to which the answer must bear `key` where that is not empty.
    ///
    /// Only when [`is_ready`](Self::is_ready).
    pub(crate) fn ask(&mut self, question: &[u8], key: Bytes) -> Bytes {
        debug_assert!(self.is_ready());
        let line = Bytes::from([&key, question, b"\n"].concat());
        let written = false;
        self.state = State::Asked { written, key };
        self.line.clear();
        line
    }

    /// The whole question has been written.
    pub(crate) fn question_written(&mut self) {
        if let State::Asked { written, .. } = &mut self.state {
            *written = true;
        }
    }

    /// The program has written `bytes`, not empty. The answer, where it is certain at once.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the process must end, and the open question is answered with an error.
    pub(crate) fn output(&mut self, bytes: &[u8], now: Instant) -> Result<Option<Bytes>, Fault> {
        let State::Asked { written, key } = &self.state else {
            return Err(Fault::Unasked);
        };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.map_or(bytes.len(), |end| end + 1)];
        if self.line.len() + part.len() > MAX_LINE {
            return Err(Fault::TooLong);
        }
        self.line.extend_from_slice(part);
        let begins = self.line.len().min(key.len());
        if self.line[..begins] != key[..begins] {
            return Err(Fault::OtherKey);
        }
        let Some(end) = end else { return Ok(None) };
        if end + 1 < bytes.len() {
            return Err(Fault::Unasked);
        }
        if self.line.len() < key.len() {
            return Err(Fault::OtherKey);
        }
        if !written {
            return Err(Fault::Early);
        }
        let answer = self.line.split().freeze().slice(key.len()..);
        if key.is_empty() {
            self.state = State::settling(now, Some(answer));
            return Ok(None);
        }
        self.state = State::Ready;
        Ok(Some(answer))
    }

    /// What the program was seen to do while [settling](Self::is_settling), with nothing in its pipe that was not
    /// passed to [`output`](Self::output). `None` while it has to be looked at again.
    pub(crate) fn looked(&mut self, rest: Rest, now: Instant) -> Option<Settled> {
        let State::Settling {
            since,
            busy,
            answer,
        } = &mut self.state
        else {
            return None;
        };
        if rest == Rest::Busy {
            *busy = now;
        }
        let limit = match answer {
            Some(_) => LIMIT,
            None => START_LIMIT,
        };
        let quiet = now.saturating_duration_since(*busy) >= SILENCE;
        let long = now.saturating_duration_since(*since) >= limit;
        if rest != Rest::Waiting && !quiet && !long {
            return None;
        }
        self.ended()
    }

    /// The program has closed its output, after which nothing can come out of turn: the answer that was
    /// waiting for that. For a process that has just started, that it did; then asking finds out.
    pub(crate) fn ended(&mut self) -> Option<Settled> {
        let State::Settling { answer, .. } = &mut self.state else {
            return None;
        };
        let answer = answer.take();
        self.state = State::Ready;
        Some(answer.map_or(Settled::Started, Settled::Answer))
    }
}

impl State {
    fn settling(now: Instant, answer: Option<Bytes>) -> Self {
        Self::Settling {
            since: now,
            busy: now,
            answer,
        }
    }
}

#[cfg(test)]
mod tests;
