//! What every reader of the agent protocol's bytes must hold to, whatever the bytes.
//!
//! Beside [`crate`]'s own promises, in a file of its own: `hailwire-callout`'s tests call it too, with inputs drawn from
//! a seed.

use bytes::{Bytes, BytesMut};
use hailwire_callout::{
    Event, EventKind,
    wire::{self, Encoding, frame, frame::FrameType, handshake, plain, raw, salvage},
};

/// Events, answers, notices, handshakes and frames: the first byte says which event and which encoding.
///
/// # Panics
///
/// If what was read is not what is read again after it was written, or not what the plainest reader reads.
pub fn callout(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let kind = EventKind::ALL[usize::from(first % 8)];
    let encoding = if first & 8 == 0 {
        Encoding::Json
    } else {
        Encoding::MessagePack
    };
    event(kind, bytes, encoding);
    answer(bytes, encoding);
    let _ = salvage::event_id(bytes, encoding);
    let _ = salvage::answer_id(bytes, encoding);
    for kind in [
        FrameType::Health,
        FrameType::Metrics,
        FrameType::ConfigUpdate,
        FrameType::Flow,
    ] {
        let _ = wire::decode_notice(kind, bytes, encoding);
    }
    let _ = wire::decode_cancel(bytes);
    let _ = wire::decode_ping(bytes);
    let _ = handshake::decode::<handshake::HandshakeRequest>(bytes);
    let _ = handshake::decode::<handshake::HandshakeResponse>(bytes);
    let _ = handshake::decode::<handshake::RegistrationRequest>(bytes);
    let _ = handshake::decode::<handshake::RegistrationResponse>(bytes);
    own(bytes, encoding);
    let mut stream = BytesMut::from(bytes);
    while let Ok(Some((_, payload))) = frame::take(&mut stream) {
        assert!(payload.len() < frame::MAX_LENGTH as usize);
    }
}

fn event(kind: EventKind, bytes: &[u8], encoding: Encoding) {
    let read = wire::decode_event(kind, Bytes::copy_from_slice(bytes), encoding);
    match (plain::decode_event(kind, bytes, encoding), &read) {
        (Ok(plain), Ok(read)) => assert_eq!(*read, plain),
        (Ok(_), Err(error)) => may_be_stricter(bytes, encoding, &error.to_string()),
        (Err(_), _) => {}
    }
    let Ok(event) = read else { return };
    for encoding in [Encoding::Json, Encoding::MessagePack] {
        let mut out = BytesMut::new();
        wire::encode_event(&event, encoding, &mut out);
        let again = wire::decode_event(kind, out.freeze(), encoding);
        assert_eq!(again.ok().as_ref(), Some(&event), "written and read again");
    }
}

fn answer(bytes: &[u8], encoding: Encoding) {
    let read = wire::decode_response(Bytes::copy_from_slice(bytes), encoding);
    match (plain::decode_response(bytes, encoding), &read) {
        (Ok(plain), Ok(read)) => assert_eq!(*read, plain),
        (Ok(_), Err(error)) => may_be_stricter(bytes, encoding, &error.to_string()),
        (Err(_), _) => {}
    }
    let Ok((id, response)) = read else { return };
    // JSON has no way to write a number that is none.
    if response.audit.confidence.is_some_and(|c| !c.is_finite()) {
        return;
    }
    for encoding in [Encoding::Json, Encoding::MessagePack] {
        let mut out = BytesMut::new();
        wire::encode_response(&id, &response, encoding, &mut out);
        let again = wire::decode_response(out.freeze(), encoding);
        assert_eq!(
            again.ok(),
            Some((id.clone(), response.clone())),
            "written and read again"
        );
    }
}

/// Frames that only two of ours exchange.
fn own(bytes: &[u8], encoding: Encoding) {
    let frame = Bytes::copy_from_slice(bytes);
    let _ = raw::take_event_head(frame.clone());
    if let Ok((_, Event::RequestBody(piece) | Event::ResponseBody(piece))) =
        raw::take_chunk(frame.clone())
    {
        assert!(piece.data.len() <= bytes.len());
    }
    let _ = raw::take_answer(frame.clone(), encoding);
    let _ = raw::take_answer_data(frame, encoding);
}

/// In MessagePack the plainest reader takes as a text also bytes, and as a name what is not UTF-8. In JSON it does not look
/// at what it skips, which has to be UTF-8 too (RFC 8259, 8.1).
fn may_be_stricter(bytes: &[u8], encoding: Encoding, error: &str) {
    let known: &[&str] = match encoding {
        Encoding::MessagePack => &["text is not UTF-8", "expected a text", "number is NaN"],
        Encoding::Json if std::str::from_utf8(bytes).is_err() => &["not UTF-8"],
        Encoding::Json => &[],
    };
    assert!(known.iter().any(|known| error.contains(known)), "{error}");
}
