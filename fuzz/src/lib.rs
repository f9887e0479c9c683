//! What every parser of stranger's bytes must hold to, whatever the bytes.
//!
//! Each function takes arbitrary input, feeds it to one parser and panics if a promise is broken:
//! that it returns at all, that what it accepts survives being written and read again, that the cuts
//! between reads do not matter. The fuzz targets beside this file call them with the inputs that a
//! fuzzer finds, and `hailwire-wire`'s tests call the very same ones with seeded random inputs.

use std::task::Poll;

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Address, AgentName, NodeId, NodeName, Status,
    capsule::{Capsule, CapsuleDecoder, CapsuleError},
    frame::{self, FrameDecoder, FrameError, FrameEvent, FrameKind},
    header::{self, AgentOffers, AnswerHead, GoingAway, Hello, RegisterHeader},
    limits,
    messages::{BatchAnswer, decode_batch},
    mux::{ConnectionEnd, Mux, MuxError, MuxOutput, MuxRole, PREFACE, preface},
    record::{NodeRecord, SignedRecord},
    signed::KeyPair,
    stun::{MAX_MESSAGE, StunAnswer, StunRequest},
    ticket::{HubTicket, NodeTicket, Ticket},
    topics::{RecordReader, Topic, TopicInterest, TopicPattern, TopicRecord, TopicReplay},
};
use serde::{Serialize, de::DeserializeOwned};

/// One parser's promises, as a function of its input.
pub type Entry = fn(&[u8]);

/// Every entry by the name of its fuzz target.
pub const ENTRIES: [(&str, Entry); 8] = [
    ("frame", frame),
    ("header", header),
    ("address", address),
    ("record", record),
    ("ticket", ticket),
    ("mux", mux),
    ("capsule", capsule),
    ("stun", stun),
];

/// A reader's clock: unix seconds.
const NOW: u64 = 1_800_000_000;

/// The frame decoder: the first byte says how the rest is cut.
///
/// # Panics
///
/// If the decoder breaks a promise.
pub fn frame(input: &[u8]) {
    let Some((step, stream)) = input.split_first() else {
        return;
    };
    let whole = decode_frames(stream, stream.len().max(1));
    assert_eq!(
        decode_frames(stream, usize::from(*step).max(1)),
        whole,
        "cuts matter"
    );
    let Ok(frames) = whole else { return };
    let mut out = BytesMut::new();
    for (kind, payload) in &frames {
        frame::put(&mut out, *kind, payload);
    }
    assert_eq!(decode_frames(&out, 7), Ok(frames), "written and read again");
}

/// Every frame of a stream, with neighbouring data joined.
fn decode_frames(stream: &[u8], step: usize) -> Result<Vec<(FrameKind, Vec<u8>)>, FrameError> {
    let mut decoder = FrameDecoder::new();
    let mut frames: Vec<(FrameKind, Vec<u8>)> = Vec::new();
    for part in stream.chunks(step) {
        decoder.push(Bytes::copy_from_slice(part));
        while let Some(event) = decoder.next_event()? {
            match (event, frames.last_mut()) {
                (FrameEvent::Frame(kind, payload), _) => {
                    assert!(payload.len() <= limits::MAX_HEADER);
                    frames.push((kind, payload.to_vec()));
                }
                (FrameEvent::Data(part), last) => {
                    assert!(!part.is_empty());
                    match last {
                        Some((FrameKind::DATA, body)) => body.extend_from_slice(&part),
                        _ => frames.push((FrameKind::DATA, part.to_vec())),
                    }
                }
            }
        }
    }
    decoder.finish()?;
    Ok(frames)
}

/// Every header.
///
/// # Panics
///
/// If what was read is not what is read again after it was written.
pub fn header(input: &[u8]) {
    if let Ok(header) = header::decode_call(&Bytes::copy_from_slice(input)) {
        assert!(header.method.len() <= limits::MAX_METHOD);
        assert!(header.affinity.len() <= limits::MAX_AFFINITY);
        assert!(header.headers.len() <= limits::MAX_HEADER_FIELDS);
        survives(&header);
    }
    decode_and_check::<AnswerHead>(input);
    decode_and_check::<Hello>(input);
    decode_and_check::<RegisterHeader>(input);
    decode_and_check::<AgentOffers>(input);
    decode_and_check::<GoingAway>(input);
    decode_and_check::<Status>(input);
    decode_and_check::<TopicInterest>(input);
    decode_and_check::<TopicReplay>(input);
    decode_and_check::<BatchAnswer>(input);
    if let Ok(batch) = decode_batch(input) {
        for told in &batch.progress {
            assert!(told.text.len() <= limits::MAX_PROGRESS_TEXT);
            assert!(told.partial.len() <= limits::MAX_PARTIAL);
        }
        survives(&batch);
    }
    if let Ok(record) = header::decode::<TopicRecord>(input) {
        survives(&record);
        if let Ok(topic) = record.check() {
            assert!(topic.as_str() == record.topic && record.body.len() <= limits::MAX_TOPIC_BODY);
        }
    }
    let whole = records(input, input.len().max(1));
    assert_eq!(records(input, 3), whole, "cut anywhere");
}

/// The records of a body that comes in chunks of this size, up to one that cannot be read.
fn records(input: &[u8], size: usize) -> (Vec<TopicRecord>, bool) {
    let (mut reader, mut read) = (RecordReader::default(), Vec::new());
    for chunk in input.chunks(size) {
        reader.handle_chunk(chunk);
        loop {
            match reader.poll_record() {
                Ok(Some(record)) => read.push(record),
                Ok(None) => break,
                Err(_) => return (read, false),
            }
        }
    }
    (read, true)
}

fn decode_and_check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(input: &[u8]) {
    if let Ok(header) = header::decode::<T>(input) {
        survives(&header);
    }
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(header: &T) {
    let again = header::decode::<T>(&header::encode(header));
    assert_eq!(
        again.as_ref().ok(),
        Some(header),
        "written and read again: {again:?}"
    );
}

/// Addresses, names and keys.
///
/// # Panics
///
/// If a text that was accepted is not what its value prints, or an error shows control characters.
pub fn address(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    prints_as_read::<Address>(&text);
    prints_as_read::<AgentName>(&text);
    prints_as_read::<NodeName>(&text);
    prints_as_read::<NodeId>(&text);
    prints_as_read::<Topic>(&text);
    prints_as_read::<TopicPattern>(&text);
    if let (Ok(pattern), Ok(topic)) = (text.parse::<TopicPattern>(), text.parse::<Topic>()) {
        // What is a topic is the pattern of itself alone.
        assert!(pattern.matches(&topic) && pattern.overlaps(&pattern));
    }
}

fn prints_as_read<T>(text: &str)
where
    T: std::str::FromStr + ToString,
    T::Err: ToString,
{
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string(), text),
        Err(error) => {
            let error = error.to_string();
            assert!(
                !error.chars().any(char::is_control) && error.len() < 512,
                "{error:?}"
            );
        }
    }
}

/// Signed records: as they stand, and with a good signature around the same content.
///
/// # Panics
///
/// If a record that may be signed is not read again as it was.
pub fn record(input: &[u8]) {
    if let Ok(signed) = SignedRecord::parse(Bytes::copy_from_slice(input), NOW) {
        assert_eq!(signed.bytes(), input);
    }
    let Ok(record) = header::decode::<NodeRecord>(input) else {
        return;
    };
    let key = KeyPair::from_seed(&[7; 32]);
    let Ok(signed) = record.clone().sign(&key) else {
        return;
    };
    assert!(signed.bytes().len() <= limits::MAX_RECORD);
    if let Ok(read) = SignedRecord::parse(signed.bytes().clone(), record.issued) {
        assert_eq!((read.node(), read.record()), (key.id(), &record));
    }
}

/// Tickets: as text, and as the content of a good text.
///
/// # Panics
///
/// If a ticket that may be written is not read again as it was.
pub fn ticket(input: &[u8]) {
    if let Ok(ticket) = String::from_utf8_lossy(input).parse::<Ticket>() {
        is_read_again(&ticket);
    }
    if let Ok(ticket) = header::decode::<NodeTicket>(input) {
        is_read_again(&Ticket::Node(ticket));
    }
    if let Ok(ticket) = header::decode::<HubTicket>(input) {
        is_read_again(&Ticket::Hub(ticket));
    }
}

fn is_read_again(ticket: &Ticket) {
    let Ok(text) = ticket.to_text() else { return };
    assert!(text.len() <= limits::MAX_TICKET);
    assert_eq!(
        text.parse::<Ticket>().as_ref(),
        Ok(ticket),
        "written and read again"
    );
}

/// One side of a multiplexed connection: the first byte says how the rest is cut, and whether it
/// begins with a good preface.
///
/// # Panics
///
/// If cuts matter, or what is kept for the peer passes its bound.
pub fn mux(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    let mut stream = Vec::with_capacity(PREFACE + rest.len());
    if first & 1 == 0 {
        stream.extend_from_slice(&preface(MuxRole::Client));
    }
    stream.extend_from_slice(rest);
    let whole = fed(&stream, stream.len().max(1));
    let mut cut = fed(&stream, usize::from(first >> 1).max(1));
    assert_eq!(why(&whole), why(&cut), "cuts matter");
    assert_eq!(
        (whole.live_streams(), whole.unread()),
        (cut.live_streams(), cut.unread())
    );
    assert!(cut.live_streams() <= limits::MUX_MAX_STREAMS);
    drain(&mut cut);
    assert!(cut.unread() == 0 || cut.ended().is_some());
}

/// Why a connection is over; without the first bytes of a stranger, which are shown as they came.
fn why(mux: &Mux) -> Option<ConnectionEnd> {
    match mux.ended() {
        Some(ConnectionEnd::Protocol(MuxError::NotMux { .. })) => {
            Some(ConnectionEnd::Protocol(MuxError::NotMux {
                began: Vec::new(),
            }))
        }
        ended => ended.cloned(),
    }
}

fn fed(stream: &[u8], step: usize) -> Mux {
    let mut mux = Mux::new(MuxRole::Server);
    for part in stream.chunks(step) {
        if mux.handle_input(Bytes::copy_from_slice(part)).is_err() {
            break;
        }
    }
    mux
}

/// Does what an owner does: accepts, reads, answers, writes out.
fn drain(mux: &mut Mux) {
    let mut out = MuxOutput::new();
    while mux.poll_event().is_some() {}
    while let Poll::Ready(Ok(key)) = mux.accept() {
        while let Poll::Ready(Ok(Some(part))) = mux.read(key, 1000) {
            assert!(!part.is_empty() && part.len() <= 1000);
        }
        let _ = mux.write(key, &mut Bytes::from_static(b"answer"));
        mux.finish(key);
        mux.drop_send(key);
        mux.drop_recv(key);
    }
    while let Poll::Ready(Ok(datagram)) = mux.datagram() {
        assert!(datagram.len() <= limits::MAX_DATAGRAM);
    }
    mux.poll_output(&mut out);
    while mux.poll_event().is_some() {}
}

/// Capsules: the first byte says how the rest is cut.
///
/// # Panics
///
/// If cuts matter, or what was read is not read again after it was written.
pub fn capsule(input: &[u8]) {
    let Some((step, stream)) = input.split_first() else {
        return;
    };
    let whole = decode_capsules(stream, stream.len().max(1));
    let cut = decode_capsules(stream, usize::from(*step).max(1));
    assert_eq!(cut, whole, "cuts matter");
    let Ok(capsules) = whole else { return };
    let mut out = BytesMut::new();
    for capsule in &capsules {
        capsule.encode(&mut out);
    }
    let again = decode_capsules(&out, 7);
    // A reason that is not UTF-8 may grow when it is read, past what may be written.
    if out.len() <= stream.len() {
        assert_eq!(again, Ok(capsules), "written and read again");
    }
}

fn decode_capsules(stream: &[u8], step: usize) -> Result<Vec<Capsule>, CapsuleError> {
    let mut decoder = CapsuleDecoder::new();
    let mut capsules = Vec::new();
    for part in stream.chunks(step) {
        decoder.push(Bytes::copy_from_slice(part));
        while let Some(capsule) = decoder.next_capsule()? {
            if let Capsule::Datagram(payload) = &capsule {
                assert!(payload.len() <= limits::MAX_DATAGRAM);
            }
            capsules.push(capsule);
        }
    }
    decoder.finish()?;
    Ok(capsules)
}

/// Datagrams of STUN, as a hub and a node read them.
///
/// # Panics
///
/// If a parser breaks a promise.
pub fn stun(input: &[u8]) {
    let (request, answer) = (StunRequest::parse(input), StunAnswer::parse(input));
    assert!(
        request.is_none() || answer.is_none(),
        "a message is one of both"
    );
    if let Some(request) = request {
        for length in [0, input.len(), usize::MAX] {
            let message = request.encode(length);
            assert!(message.len() <= MAX_MESSAGE);
            // RFC 5780, 7.5: what is to be answered at another port is not padded.
            let padded = message.len() > request.encode(0).len();
            let refused = padded && request.response_port.is_some();
            assert_eq!(
                StunRequest::parse(&message),
                Some(request).filter(|_| !refused)
            );
        }
    }
    if let Some(answer) = answer {
        assert_eq!(StunAnswer::parse(&answer.encode()), Some(answer));
    }
}
