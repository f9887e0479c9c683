//! One connection from HAProxy: a greeting, then questions and answers. No I/O.
//!
//! ```text
//! HAPROXY-HELLO  → AGENT-HELLO            the smaller maximum of both; pipelining where HAProxy has it
//! NOTIFY         → ACK                    in any order where pipelining is agreed; the shell holds questions
//! HAPROXY-DISCONNECT, or a fault → AGENT-DISCONNECT with its number, and the end
//! ```
//!
//! The shell reads into and writes from [`SpopSession::buffers`], takes questions from [`SpopSession::question`] until there
//! is none, and hands answers to [`SpopSession::answer`], until [`SpopSession::is_over`].

use bytes::{Bytes, BytesMut};

use super::frame::{self, MAX_FRAME, NotifyFrame, SetVar, SpopError, SpopFrame};

/// A connection.
#[derive(Debug, Default)]
pub struct SpopSession {
    input: BytesMut,
    output: BytesMut,
    agreed: Option<HelloParams>,
    over: bool,
}

/// The parameters that the greeting agreed on.
#[derive(Clone, Debug)]
pub struct HelloParams {
    /// Bytes of a frame, in both directions.
    pub max_frame: u32,
    /// Answers may come in any order.
    pub pipelining: bool,
    /// HAProxy's name for this engine.
    pub engine: Bytes,
}

impl SpopSession {
    /// Where the shell puts what it reads, and from whose front it takes what it writes.
    pub fn buffers(&mut self) -> (&mut BytesMut, &mut BytesMut) {
        (&mut self.input, &mut self.output)
    }

    /// The next question in what was read; none also when the connection is over.
    pub fn question(&mut self) -> Option<NotifyFrame> {
        while !self.over {
            let max = self.agreed.as_ref().map_or(MAX_FRAME, |a| a.max_frame);
            match frame::cut(&mut self.input, max)
                .and_then(|bytes| bytes.map(frame::read).transpose())
            {
                Ok(None) => return None,
                Ok(Some(SpopFrame::Notify(notify))) if self.agreed.is_some() => {
                    return Some(notify);
                }
                Ok(Some(frame)) => self.other(frame),
                Err(fault) => self.end(fault),
            }
        }
        None
    }

    fn other(&mut self, frame: SpopFrame) {
        match frame {
            SpopFrame::Hello(hello) if self.agreed.is_none() => {
                frame::write_hello(&mut self.output, hello.max_frame, hello.pipelining);
                self.over = hello.healthcheck;
                self.agreed = Some(HelloParams {
                    max_frame: hello.max_frame,
                    pipelining: hello.pipelining,
                    engine: hello.engine,
                });
            }
            SpopFrame::Disconnect { code, message } => {
                if code != 0 {
                    let message = String::from_utf8_lossy(&message);
                    tracing::debug!(code, %message, "HAProxy ends the connection");
                }
                self.end(SpopError::Normal);
            }
            SpopFrame::Hello(_) | SpopFrame::Notify(_) => self.end(SpopError::Invalid),
            SpopFrame::Other(kind) => {
                tracing::debug!(kind, "a frame of an unknown type is skipped");
            }
        }
    }

    /// Ends the connection.
    pub fn end(&mut self, fault: SpopError) {
        if !self.over {
            frame::write_disconnect(&mut self.output, fault);
            self.over = true;
        }
    }

    /// Answers a question. False, and nothing is sent, if the answer does not fit into a frame.
    #[must_use]
    pub fn answer(&mut self, stream: u64, frame: u64, vars: &[SetVar]) -> bool {
        let max = self.agreed.as_ref().map_or(0, |a| a.max_frame);
        self.over || frame::write_ack(&mut self.output, stream, frame, vars, max)
    }

    /// The parameters of the greeting, once it is done.
    #[must_use]
    pub const fn agreed(&self) -> Option<&HelloParams> {
        self.agreed.as_ref()
    }

    /// What is to be written.
    #[must_use]
    pub const fn output(&self) -> &BytesMut {
        &self.output
    }

    /// Nothing more is read; what is to be written still goes.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;

    use super::*;

    /// A frame of HAProxy: its type, and what follows the stream and the frame, which are 0.
    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len() + 7).unwrap();
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend([kind, 0, 0, 0, 1, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    fn hello(healthcheck: bool) -> Vec<u8> {
        let mut payload =
            b"\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xf0\x01".to_vec();
        payload.extend(b"\x0ccapabilities\x08\x0apipelining\x0bhealthcheck");
        payload.push(if healthcheck { 0x11 } else { 1 });
        frame(1, &payload)
    }

    /// The types of the frames that were written, with the status of a disconnect.
    fn written(session: &mut SpopSession) -> Vec<(u8, Option<u8>)> {
        let (_, output) = session.buffers();
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = frame::cut(output, MAX_FRAME) {
            let end = frame[0] == 102;
            frames.push((frame[0], end.then(|| frame[20])));
        }
        frames
    }

    fn told(bytes: &[u8]) -> SpopSession {
        let mut session = SpopSession::default();
        session.buffers().0.put_slice(bytes);
        assert!(session.question().is_none());
        session
    }

    #[test]
    fn a_greeting_is_answered_with_the_smaller_size() {
        let mut session = told(&hello(false));
        assert!(!session.is_over());
        let agreed = session.agreed().unwrap();
        assert_eq!((agreed.max_frame, agreed.pipelining), (256, true));
        assert_eq!(written(&mut session), [(101, None)]);
    }

    #[test]
    fn a_health_check_ends_with_the_greeting() {
        let mut session = told(&hello(true));
        assert!(session.is_over());
        assert_eq!(written(&mut session), [(101, None)]);
    }

    #[test]
    fn what_is_wrong_ends_the_connection_with_its_number() {
        let cases: [(Vec<u8>, SpopError); 7] = [
            (frame(3, b""), SpopError::Invalid),
            (frame(1, b""), SpopError::NoVersion),
            (
                frame(1, b"\x12supported-versions\x08\x031.0"),
                SpopError::UnsupportedVersion,
            ),
            (
                frame(1, b"\x12supported-versions\x08\x032.0"),
                SpopError::NoMaxFrameSize,
            ),
            ([hello(false), vec![0, 1, 0, 0]].concat(), SpopError::TooBig),
            (
                [hello(false), frame(3, b"\xff")].concat(),
                SpopError::Invalid,
            ),
            ([hello(false), frame(2, b"")].concat(), SpopError::Normal),
        ];
        for (bytes, fault) in cases {
            let mut session = told(&bytes);
            assert!(session.is_over());
            let last = written(&mut session).pop().unwrap();
            assert_eq!(last, (102, Some(fault as u8)), "{fault}");
        }
    }

    #[test]
    fn frames_of_unknown_types_are_skipped() {
        let session = told(&[hello(false), frame(77, b"what")].concat());
        assert!(!session.is_over());
    }
}
