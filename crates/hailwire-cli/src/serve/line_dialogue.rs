//! Which line of a program answers which call, and when the next line may be sent to it (`--lines`).
//!
//! One request is outstanding at a time. A line is an answer only while one is, and only if nothing
//! follows it: unrequested output ends the dialogue, and with it the process, because from then on every answer would go to the wrong caller.
//!
//! A surplus line that is written late looks like the answer to the next request. So an answer is delivered, and
//! the next request sent, only once the program is idle ([`ProgramActivity`]):
//!
//! | observed | conclusion |
//! |---|---|
//! | it waits for input, with the last request read completely and nothing written since | it cannot write anything unrequested: idle |
//! | it sleeps in some other way | idle after [`IDLE_TIME`] without output |
//! | it runs | not idle, for at most [`SETTLE_LIMIT`] after an answer and [`START_LIMIT`] after its start |
//!
//! If the late line is written after the next request, the real answer is then the surplus line, and both callers
//! get an error, unless the program is idle before it writes that one: then the late line is taken for the answer. Keys exclude this: each request begins with an unpredictable key, and its answer must begin with the same; then no waiting is needed.
//!
//! It only decides; [`lines`](super::lines) does the I/O.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

/// Longest line, to and from the program, in bytes.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// Time without output after which a program that sleeps, but not for input, counts as idle.
pub(crate) const IDLE_TIME: Duration = Duration::from_millis(5);

/// How long a program that continues to run after an answer is waited for.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_millis(100);

/// How long a program that continues to run after its start is waited for.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(1);

/// The observed activity of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramActivity {
    /// It waits for more input and has read all there is.
    Waiting,
    /// It waits for something else, or cannot be observed.
    Asleep,
    /// It runs.
    Busy,
}

/// Why a dialogue cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialogueError {
    /// There was output while no request was outstanding.
    Unrequested,
    /// The answer was complete before the request was.
    Early,
    /// The answer does not begin with the request's key.
    OtherKey,
    /// The line of the answer is longer than [`MAX_LINE`].
    TooLong,
}

/// The result of waiting until the program is idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettledState {
    /// It has started and may be sent a request.
    Started,
    /// This is the answer to the last request; the next may be sent.
    Answer(Bytes),
}

/// The dialogue with one process.
#[derive(Debug)]
pub(crate) struct LineDialogue {
    state: DialogueState,
    /// The part of the answer that has been received.
    line: BytesMut,
}

#[derive(Debug)]
enum DialogueState {
    /// It has started, or has answered, and is observed until it is idle.
    Settling {
        since: Instant,
        /// When it last ran.
        busy: Instant,
        answer: Option<Bytes>,
    },
    Ready,
    Asked {
        /// Whether the whole request has been written.
        written: bool,
        /// The key that the answer must begin with; empty without keys.
        key: Bytes,
    },
}

impl LineDialogue {
    /// A process was started.
    pub(crate) fn started(now: Instant) -> Self {
        Self {
            state: DialogueState::settling(now, None),
            line: BytesMut::new(),
        }
    }

    /// Whether a request may be sent now.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, DialogueState::Ready)
    }

    /// Whether an answer, or the end of a start, is held until the program is idle.
    pub(crate) fn is_settling(&self) -> bool {
        matches!(self.state, DialogueState::Settling { .. })
    }

    /// The line to write for `question`, whose answer must begin with `key` if that is not empty.
    ///
    /// Only when [`is_ready`](Self::is_ready).
    pub(crate) fn ask(&mut self, question: &[u8], key: Bytes) -> Bytes {
        debug_assert!(self.is_ready());
        let line = Bytes::from([&key, question, b"\n"].concat());
        let written = false;
        self.state = DialogueState::Asked { written, key };
        self.line.clear();
        line
    }

    /// The whole request has been written.
    pub(crate) fn question_written(&mut self) {
        if let DialogueState::Asked { written, .. } = &mut self.state {
            *written = true;
        }
    }

    /// The program has written `bytes`, which are not empty. Returns the answer if it is certain at once.
    ///
    /// # Errors
    ///
    /// [`DialogueError`]: the process must end, and the outstanding request is answered with an error.
    pub(crate) fn output(
        &mut self,
        bytes: &[u8],
        now: Instant,
    ) -> Result<Option<Bytes>, DialogueError> {
        let DialogueState::Asked { written, key } = &self.state else {
            return Err(DialogueError::Unrequested);
        };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.map_or(bytes.len(), |end| end + 1)];
        if self.line.len() + part.len() > MAX_LINE {
            return Err(DialogueError::TooLong);
        }
        self.line.extend_from_slice(part);
        let begins = self.line.len().min(key.len());
        if self.line[..begins] != key[..begins] {
            return Err(DialogueError::OtherKey);
        }
        let Some(end) = end else { return Ok(None) };
        if end + 1 < bytes.len() {
            return Err(DialogueError::Unrequested);
        }
        if self.line.len() < key.len() {
            return Err(DialogueError::OtherKey);
        }
        if !written {
            return Err(DialogueError::Early);
        }
        let answer = self.line.split().freeze().slice(key.len()..);
        if key.is_empty() {
            self.state = DialogueState::settling(now, Some(answer));
            return Ok(None);
        }
        self.state = DialogueState::Ready;
        Ok(Some(answer))
    }

    /// An observation of the program while [settling](Self::is_settling), with nothing in its pipe that was not passed
    /// to [`output`](Self::output). `None` while it has to be observed again.
    pub(crate) fn observed(
        &mut self,
        activity: ProgramActivity,
        now: Instant,
    ) -> Option<SettledState> {
        let DialogueState::Settling {
            since,
            busy,
            answer,
        } = &mut self.state
        else {
            return None;
        };
        if activity == ProgramActivity::Busy {
            *busy = now;
        }
        let limit = match answer {
            Some(_) => SETTLE_LIMIT,
            None => START_LIMIT,
        };
        let quiet = now.saturating_duration_since(*busy) >= IDLE_TIME;
        let long = now.saturating_duration_since(*since) >= limit;
        if activity != ProgramActivity::Waiting && !quiet && !long {
            return None;
        }
        self.ended()
    }

    /// The program has closed its output, so nothing unrequested can follow: returns the held answer. For a process
    /// that has just started, returns that it has; the next request then finds the closed pipe.
    pub(crate) fn ended(&mut self) -> Option<SettledState> {
        let DialogueState::Settling { answer, .. } = &mut self.state else {
            return None;
        };
        let answer = answer.take();
        self.state = DialogueState::Ready;
        Some(answer.map_or(SettledState::Started, SettledState::Answer))
    }
}

impl DialogueState {
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
