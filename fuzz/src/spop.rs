//! What every reader of what HAProxy sends must hold to, whatever the bytes.
//!
//! In a file of its own, as `callout.rs` beside it: `hailwire-callout`'s tests call it too, with inputs drawn from a seed.

use bytes::BytesMut;
use hailwire_callout::front::spoe::{
    answer,
    frame::{self, MAX_FRAME, MAX_MESSAGES, NotifyFrame, SpoeMessage, VarScope},
    message::{self, SpoeRequest},
    session::SpopSession,
};

/// A greeting of HAProxy.
const HELLO: &[u8] =
    b"\0\0\0\x4b\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xf0\xf1\0\
\x0ccapabilities\x08\x0apipelining";

/// A connection: the first byte says in pieces of how many bytes it comes, and whether it begins with a greeting.
///
/// # Panics
///
/// If it matters where it was cut, or what is written is no frame or a larger one than was agreed.
pub fn spop(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let hello: &[u8] = if first & 1 == 0 { HELLO } else { b"" };
    let bytes = [hello, bytes].concat();
    let whole = told(&bytes, bytes.len().max(1));
    let pieces = told(&bytes, usize::from(first >> 1) + 1);
    assert_eq!(whole, pieces, "it does not matter where it is cut");
}

/// What came of a connection whose bytes came in pieces: the questions, what was written, and whether it is over.
fn told(bytes: &[u8], piece: usize) -> (Vec<NotifyFrame>, BytesMut, bool) {
    let mut session = SpopSession::default();
    let mut questions = Vec::new();
    for piece in bytes.chunks(piece) {
        session.buffers().0.extend_from_slice(piece);
        while let Some(question) = session.question() {
            answered(&mut session, &question);
            questions.push(question);
        }
    }
    let over = session.is_over();
    let written = session.output().clone();
    let agreed = session
        .agreed()
        .map_or(MAX_FRAME, |agreed| agreed.max_frame);
    let mut rest = written.clone();
    while let Ok(Some(frame)) = frame::cut(&mut rest, agreed) {
        assert!(frame[0] > 100, "a frame of an agent");
    }
    assert!(
        rest.is_empty(),
        "frames, none larger than was agreed, and nothing else"
    );
    (questions, written, over)
}

fn answered(session: &mut SpopSession, question: &NotifyFrame) {
    assert!(question.messages.len() <= MAX_MESSAGES);
    let frame = session.agreed().map_or(0, |agreed| agreed.max_frame);
    for message in &question.messages {
        read(message, frame);
    }
    for scope in [VarScope::Transaction, VarScope::Response] {
        let before = session.output().len();
        let vars = answer::blocked(scope, 403);
        let fits = session.answer(question.stream, question.frame, &vars);
        assert!(
            fits || session.output().len() == before,
            "all of it or nothing"
        );
        assert!(fits, "a block fits into the smallest frame");
    }
}

fn read(message: &SpoeMessage, frame: u32) {
    if let Ok(request) = SpoeRequest::read(message, "c1", frame) {
        assert_eq!(request.head.id(), "c1");
        assert!(request.has_body() || request.body.is_empty());
        let _ = request.is_whole();
    }
    if let Ok(head) = message::response(message, "c1") {
        assert_eq!(head.id(), "c1");
    }
}
