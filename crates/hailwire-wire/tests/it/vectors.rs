//! The golden vectors of `spec/vectors`, read by this implementation and by the one in Python.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    process::{Command, Stdio},
};

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use hailwire_wire::{
    Address, AgentName, Code, NodeId, NodeName, Status,
    address::{AddressError, NodeRef},
    capsule::{Capsule, CapsuleDecoder, CapsuleError, ConnectionHalf},
    frame::{self, FrameDecoder, FrameError, FrameEvent, FrameKind},
    header::{self, AgentOffers, AnswerHead, GoingAway, HeaderError, Hello, RegisterHeader},
    held::{HeldContent, HeldError},
    lease::{LeaseAnswer, LeaseList, LeaseRelease, LeaseReleased, LeaseRequest},
    messages::{BatchAnswer, MessageBatch, decode_batch},
    signed::KeyPair,
    topics::{RecordReader, TopicInterest, TopicRecord, TopicReplay, put_record},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

fn load<T: DeserializeOwned>(name: &str) -> T {
    let path = format!("spec/vectors/{name}");
    serde_json::from_str(&crate::read(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Bytes that stand as hex in the file.
#[derive(Clone, PartialEq, Eq)]
struct Hex(Vec<u8>);

impl Debug for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        HEXLOWER
            .decode(text.as_bytes())
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

#[derive(Deserialize)]
struct Addresses {
    keys: Vec<Key>,
    addresses: Vec<GoodAddress>,
    refused: Vec<RefusedAddress>,
}

#[derive(Deserialize)]
struct Key {
    name: String,
    bytes: Hex,
    text: String,
}

#[derive(Deserialize)]
struct GoodAddress {
    name: String,
    text: String,
    parts: Parts,
}

#[derive(Deserialize)]
struct Parts {
    agent: String,
    node_name: Option<String>,
    node_id: Option<Hex>,
}

#[derive(Deserialize)]
struct RefusedAddress {
    name: String,
    kind: String,
    text: String,
    error: String,
}

#[test]
fn keys_and_addresses_are_as_the_vectors_say() {
    let file: Addresses = load("addresses.json");
    for Key { name, bytes, text } in file.keys {
        let id: NodeId = text.parse().expect(&name);
        assert_eq!(id.as_bytes().as_slice(), bytes.0, "{name}");
        assert_eq!(id.to_string(), text, "{name}");
    }
    for GoodAddress { name, text, parts } in file.addresses {
        let address: Address = text.parse().expect(&name);
        assert_eq!(address.to_string(), text, "{name}");
        assert_eq!(address.agent.as_str(), parts.agent, "{name}");
        let (by_name, by_id) = match address.node {
            None => (None, None),
            Some(NodeRef::Name(node)) => (Some(node.to_string()), None),
            Some(NodeRef::Id(id)) => (None, Some(Hex(id.as_bytes().to_vec()))),
        };
        assert_eq!((by_name, by_id), (parts.node_name, parts.node_id), "{name}");
    }
    for RefusedAddress {
        name,
        kind,
        text,
        error,
    } in file.refused
    {
        let got = match kind.as_str() {
            "address" => text.parse::<Address>().map(drop),
            "agent" => text.parse::<AgentName>().map(drop),
            "node_name" => text.parse::<NodeName>().map(drop),
            "node_id" => text.parse::<NodeId>().map(drop),
            other => panic!("{name}: kind {other}"),
        };
        let got = match got {
            Ok(()) => panic!("{name}: accepted"),
            Err(AddressError::NodeId(_)) => "node_id",
            Err(AddressError::Name {
                what: "an agent", ..
            }) => "agent_name",
            Err(AddressError::Name { .. }) => "node_name",
            Err(AddressError::NameIsKey(_)) => "name_is_key",
        };
        assert_eq!(got, error, "{name}");
    }
}

#[derive(Deserialize)]
struct Headers {
    vectors: Vec<GoodHeader>,
    readable: Vec<GoodHeader>,
    refused: Vec<RefusedHeader>,
}

#[derive(Deserialize)]
struct GoodHeader {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    fields: Value,
    bytes: Hex,
    /// Of a status: how people read it.
    display: Option<String>,
}

#[derive(Deserialize)]
struct RefusedHeader {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    bytes: Hex,
    error: String,
}

/// Decodes a header as a receiver does; on success what it says, encoded again.
fn reencode(kind: &str, bytes: &[u8], fields: Option<&Value>) -> Result<Vec<u8>, HeaderError> {
    fn one<T>(
        header: Result<T, HeaderError>,
        fields: Option<&Value>,
    ) -> Result<Vec<u8>, HeaderError>
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug,
    {
        let header = header?;
        if let Some(fields) = fields {
            let expected: T = serde_json::from_value(fields.clone()).expect("fields of a vector");
            assert_eq!(header, expected);
        }
        Ok(header::encode(&header))
    }
    match kind {
        "call" => one(header::decode_call(&Bytes::copy_from_slice(bytes)), fields),
        "answer_head" => one(header::decode::<AnswerHead>(bytes), fields),
        "hello" => one(header::decode::<Hello>(bytes), fields),
        "register" => one(header::decode::<RegisterHeader>(bytes), fields),
        "offers" => one(header::decode::<AgentOffers>(bytes), fields),
        "going_away" => one(header::decode::<GoingAway>(bytes), fields),
        "status" => one(header::decode::<Status>(bytes), fields),
        "topic_record" => one(header::decode::<TopicRecord>(bytes), fields),
        "topic_interest" => one(header::decode::<TopicInterest>(bytes), fields),
        "topic_replay" => one(header::decode::<TopicReplay>(bytes), fields),
        "batch" => one(decode_batch(bytes), fields),
        "batch_answer" => one(header::decode::<BatchAnswer>(bytes), fields),
        other => panic!("type {other}"),
    }
}

fn check_headers(file: Headers) {
    for GoodHeader {
        name,
        kind,
        fields,
        bytes,
        display,
    } in file.vectors
    {
        let again = reencode(&kind, &bytes.0, Some(&fields)).expect(&name);
        assert_eq!(Hex(again), bytes, "{kind} {name}");
        if let Some(display) = display {
            let status: Status = header::decode(&bytes.0).expect(&name);
            assert_eq!(status.to_string(), display, "{name}");
        }
    }
    for GoodHeader {
        name,
        kind,
        fields,
        bytes,
        ..
    } in file.readable
    {
        let again = reencode(&kind, &bytes.0, Some(&fields)).expect(&name);
        assert_ne!(Hex(again), bytes, "{kind} {name}: no writer writes it so");
    }
    for RefusedHeader {
        name,
        kind,
        bytes,
        error,
    } in file.refused
    {
        let got = match reencode(&kind, &bytes.0, None) {
            Ok(again) => panic!("{kind} {name}: read as {:?}", Hex(again)),
            Err(HeaderError::Malformed(_)) => "malformed",
            Err(HeaderError::Bound(_)) => "bound",
        };
        assert_eq!(got, error, "{kind} {name}");
    }
}

/// Fields of a vector with bytes, which stand there as `{"hex": …}`, as lists of numbers.
fn with_bytes(value: Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get("hex") {
            Some(Value::String(hex)) if fields.len() == 1 => {
                let bytes = HEXLOWER.decode(hex.as_bytes()).expect("hex");
                Value::Array(bytes.into_iter().map(Value::from).collect())
            }
            _ => {
                let fields = fields.into_iter();
                Value::Object(
                    fields
                        .map(|(key, inner)| (key, with_bytes(inner)))
                        .collect(),
                )
            }
        },
        Value::Array(values) => Value::Array(values.into_iter().map(with_bytes).collect()),
        other => other,
    }
}

#[derive(Deserialize)]
struct Batches {
    vectors: Vec<GoodHeader>,
    refused: Vec<RefusedHeader>,
}

#[test]
fn batches_of_messages_are_byte_for_byte_as_the_vectors_say() {
    let file: Batches = load("messages.json");
    let vectors = file.vectors.into_iter().map(|vector| GoodHeader {
        fields: with_bytes(vector.fields),
        ..vector
    });
    check_headers(Headers {
        vectors: vectors.collect(),
        readable: Vec::new(),
        refused: file.refused,
    });
}

#[derive(Deserialize)]
struct HeldBatches {
    vectors: Vec<GoodHeld>,
    refused: Vec<RefusedHeld>,
}

#[derive(Deserialize)]
struct GoodHeld {
    name: String,
    sender_seed: Hex,
    receiver_seed: Hex,
    sender: Hex,
    receiver: Hex,
    random: Hex,
    sealed_ms: u64,
    batch: Value,
    sealed: Hex,
}

/// A vector after it was cut or altered: at these places the highest bit is the other.
#[derive(Deserialize)]
struct RefusedHeld {
    name: String,
    of: String,
    cut: Option<usize>,
    #[serde(default)]
    altered: Vec<usize>,
    error: String,
}

fn seed(hex: &Hex) -> [u8; 32] {
    hex.0.as_slice().try_into().expect("32 bytes")
}

#[test]
fn what_a_hub_holds_is_sealed_byte_for_byte_as_the_vectors_say() {
    let file: HeldBatches = load("held.json");
    let find = |name: &str| {
        let found = file.vectors.iter().find(|vector| vector.name == name);
        found.unwrap_or_else(|| panic!("no vector {name}"))
    };
    for vector in &file.vectors {
        let name = &vector.name;
        let sender = KeyPair::from_seed(&seed(&vector.sender_seed));
        let receiver = KeyPair::from_seed(&seed(&vector.receiver_seed));
        assert_eq!(sender.id().as_bytes()[..], vector.sender.0, "{name}");
        assert_eq!(receiver.id().as_bytes()[..], vector.receiver.0, "{name}");
        let batch: MessageBatch = serde_json::from_value(with_bytes(vector.batch.clone()))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let content = HeldContent::new(receiver.id(), vector.sealed_ms, &batch);
        let sealed = content.seal(&sender, seed(&vector.random)).expect(name);
        assert_eq!(Hex(sealed), vector.sealed, "{name}");
        let opened = HeldContent::open(&receiver, sender.id(), &vector.sealed.0).expect(name);
        assert_eq!(opened, content, "{name}");
        assert_eq!(opened.batch().expect(name), batch, "{name}");
    }
    for refused in &file.refused {
        let of = find(&refused.of);
        let mut bytes = of.sealed.0.clone();
        bytes.truncate(refused.cut.unwrap_or(bytes.len()));
        for at in &refused.altered {
            bytes[*at] ^= 0x80;
        }
        let receiver = KeyPair::from_seed(&seed(&of.receiver_seed));
        let sender = KeyPair::from_seed(&seed(&of.sender_seed)).id();
        let error = match HeldContent::open(&receiver, sender, &bytes) {
            Ok(_) => "none",
            Err(HeldError::TooLarge) => "too_large",
            Err(HeldError::Key) => "key",
            Err(HeldError::Version(_)) => "version",
            Err(HeldError::Sealed) => "sealed",
            Err(HeldError::Forged) => "forged",
            Err(HeldError::Malformed) => "malformed",
        };
        assert_eq!(error, refused.error, "{}", refused.name);
    }
}

#[test]
fn headers_are_byte_for_byte_as_the_vectors_say() {
    check_headers(load("headers.json"));
}

#[test]
fn statuses_are_byte_for_byte_as_the_vectors_say() {
    check_headers(load("status.json"));
}

#[derive(Deserialize)]
struct TopicBodies {
    bodies: Vec<GoodBody>,
    refused_bodies: Vec<RefusedHeader>,
}

#[derive(Deserialize)]
struct GoodBody {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    records: Vec<Value>,
    bytes: Hex,
}

/// The records of a body that comes in chunks of `step` bytes, each encoded again.
fn topic_records<T: Serialize + DeserializeOwned>(
    bytes: &[u8],
    step: usize,
) -> Result<Vec<T>, HeaderError> {
    let (mut reader, mut records) = (RecordReader::default(), Vec::new());
    for chunk in bytes.chunks(step) {
        reader.handle_chunk(chunk);
        while let Some(record) = reader.poll_record()? {
            records.push(record);
        }
    }
    assert!(!reader.is_amid_record());
    Ok(records)
}

fn check_body<T>(body: &GoodBody)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let expected = body
        .records
        .iter()
        .cloned()
        .map(serde_json::from_value::<T>);
    let expected: Vec<T> = expected.collect::<Result<_, _>>().expect(&body.name);
    let mut written = BytesMut::new();
    expected
        .iter()
        .for_each(|record| put_record(&mut written, record));
    assert_eq!(Hex(written.to_vec()), body.bytes, "{}", body.name);
    for step in [1, 3, 1000] {
        let read = topic_records::<T>(&body.bytes.0, step).expect(&body.name);
        assert_eq!(read, expected, "{} in pieces of {step}", body.name);
    }
}

#[test]
fn records_of_topics_are_byte_for_byte_as_the_vectors_say() {
    check_headers(load("topics.json"));
    let TopicBodies {
        bodies,
        refused_bodies,
    } = load("topics.json");
    for body in &bodies {
        match body.kind.as_str() {
            "topic_record" => check_body::<TopicRecord>(body),
            "topic_replay" => check_body::<TopicReplay>(body),
            other => panic!("type {other}"),
        }
    }
    for RefusedHeader {
        name, bytes, error, ..
    } in refused_bodies
    {
        let got = match topic_records::<TopicRecord>(&bytes.0, 1) {
            Ok(_) => panic!("{name} is read"),
            Err(HeaderError::Malformed(_)) => "malformed",
            Err(HeaderError::Bound(_)) => "bound",
        };
        assert_eq!(got, error, "{name}");
    }
}

#[derive(Deserialize)]
struct Codes {
    codes: Vec<NamedCode>,
}

#[derive(Deserialize)]
struct NamedCode {
    number: u8,
    name: String,
}

#[test]
fn codes_have_the_numbers_and_names_of_the_vectors() {
    let file: Codes = load("status.json");
    let listed: Vec<_> = file
        .codes
        .into_iter()
        .map(|code| (code.number, code.name))
        .collect();
    let known: Vec<_> = Code::ALL
        .iter()
        .map(|code| (code.number(), code.name().to_owned()))
        .collect();
    assert_eq!(listed, known);
}

#[derive(Deserialize)]
struct Frames {
    kinds: BTreeMap<String, u8>,
    frames: Vec<GoodFrame>,
    streams: Vec<GoodStream>,
    refused: Vec<RefusedStream>,
}

#[derive(Deserialize)]
struct GoodFrame {
    name: String,
    kind: String,
    payload: Hex,
    bytes: Hex,
}

#[derive(Deserialize)]
struct GoodStream {
    name: String,
    bytes: Hex,
    events: Vec<Seen>,
}

#[derive(Deserialize)]
struct RefusedStream {
    name: String,
    bytes: Hex,
    error: String,
}

/// One event of a stream, with neighbouring data joined.
#[derive(Debug, PartialEq, Deserialize)]
struct Seen {
    kind: u8,
    payload: Hex,
}

fn decode_stream(bytes: &[u8], step: usize) -> Result<Vec<Seen>, FrameError> {
    let mut decoder = FrameDecoder::new();
    let mut seen: Vec<Seen> = Vec::new();
    for part in bytes.chunks(step) {
        decoder.push(Bytes::copy_from_slice(part));
        while let Some(event) = decoder.next_event()? {
            match (event, seen.last_mut()) {
                (FrameEvent::Data(part), Some(last)) if last.kind == FrameKind::DATA.0 => {
                    last.payload.0.extend_from_slice(&part);
                }
                (FrameEvent::Data(part), _) => {
                    seen.push(Seen {
                        kind: FrameKind::DATA.0,
                        payload: Hex(part.to_vec()),
                    });
                }
                (FrameEvent::Frame(kind, payload), _) => {
                    seen.push(Seen {
                        kind: kind.0,
                        payload: Hex(payload.to_vec()),
                    });
                }
            }
        }
    }
    decoder.finish()?;
    Ok(seen)
}

#[test]
fn frames_are_byte_for_byte_as_the_vectors_say_whatever_the_cuts() {
    let file: Frames = load("frames.json");
    for number in 0..=u8::MAX {
        let named = file
            .kinds
            .iter()
            .find(|(_, kind)| **kind == number)
            .map(|(name, _)| &**name);
        assert_eq!(FrameKind(number).name(), named, "kind {number:#04x}");
    }
    for GoodFrame {
        name,
        kind,
        payload,
        bytes,
    } in file.frames
    {
        let mut out = BytesMut::new();
        frame::put(&mut out, FrameKind(file.kinds[&kind]), &payload.0);
        assert_eq!(Hex(out.to_vec()), bytes, "{name}");
    }
    for GoodStream {
        name,
        bytes,
        events,
    } in file.streams
    {
        for step in 1..=bytes.0.len().max(1) {
            assert_eq!(
                decode_stream(&bytes.0, step).as_ref(),
                Ok(&events),
                "{name}, by {step}"
            );
        }
    }
    for RefusedStream { name, bytes, error } in file.refused {
        for step in 1..=bytes.0.len() {
            let got = match decode_stream(&bytes.0, step) {
                Ok(seen) => panic!("{name}, by {step}: read as {seen:?}"),
                Err(FrameError::HeaderTooLarge { .. }) => "header_too_large",
                Err(FrameError::Truncated) => "truncated",
            };
            assert_eq!(got, error, "{name}, by {step}");
        }
    }
}

#[derive(Deserialize)]
struct Leases {
    messages: Vec<LeaseVector>,
    refused: Vec<RefusedLease>,
}

#[derive(Deserialize)]
struct LeaseVector {
    name: String,
    r#type: String,
    json: String,
    fields: Value,
}

#[derive(Deserialize)]
struct RefusedLease {
    name: String,
    json: String,
    error: String,
}

/// What a type reads from a text and writes again, with its fields.
fn rewritten<T: Serialize + DeserializeOwned>(text: &str) -> (String, Value) {
    let read: T = serde_json::from_str(text).expect("a message");
    let written = serde_json::to_string(&read).expect("JSON");
    (written, serde_json::to_value(&read).expect("JSON"))
}

#[test]
fn leases_are_byte_for_byte_as_the_vectors_say() {
    let file: Leases = load("leases.json");
    for v in &file.messages {
        let (json, fields) = match v.r#type.as_str() {
            "request" => rewritten::<LeaseRequest>(&v.json),
            "answer" => rewritten::<LeaseAnswer>(&v.json),
            "release" => rewritten::<LeaseRelease>(&v.json),
            "released" => rewritten::<LeaseReleased>(&v.json),
            "list" => rewritten::<LeaseList>(&v.json),
            other => panic!("no type {other}"),
        };
        assert_eq!((&json, &fields), (&v.json, &v.fields), "{}", v.name);
    }
    for v in &file.refused {
        let error = match serde_json::from_str::<LeaseRequest>(&v.json) {
            Err(_) => "malformed",
            Ok(request) if request.ttl().is_none() => "bound",
            Ok(_) => "",
        };
        assert_eq!(error, v.error, "{}", v.name);
    }
}

#[test]
fn a_second_implementation_agrees_with_the_vectors() {
    let found = Command::new("python3")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        hailwire_skip::skipped("python3 is not installed");
        return;
    }
    let output = Command::new("python3")
        .arg("-B")
        .arg(crate::repository("spec/check.py"))
        .output()
        .expect("python3 runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[derive(Deserialize)]
struct Capsules {
    capsules: Vec<GoodCapsule>,
    readable: Vec<ReadableCapsules>,
    refused: Vec<RefusedCapsule>,
}

#[derive(Deserialize)]
struct GoodCapsule {
    name: String,
    bytes: Hex,
    capsule: CapsuleFields,
}

#[derive(Deserialize)]
struct ReadableCapsules {
    name: String,
    bytes: Hex,
    capsules: Vec<CapsuleFields>,
}

#[derive(Deserialize)]
struct RefusedCapsule {
    name: String,
    bytes: Hex,
    error: String,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "UPPERCASE")]
enum CapsuleFields {
    Datagram {
        payload: Hex,
    },
    Stop {
        connection: u8,
        stream: u32,
        code: Code,
    },
    Close {
        code: Code,
        reason: String,
    },
}

impl From<CapsuleFields> for Capsule {
    fn from(fields: CapsuleFields) -> Self {
        match fields {
            CapsuleFields::Datagram { payload } => Self::Datagram(payload.0.into()),
            CapsuleFields::Stop {
                connection,
                stream,
                code,
            } => Self::Stop {
                connection: [ConnectionHalf::Forward, ConnectionHalf::Reverse]
                    [usize::from(connection)],
                stream,
                code,
            },
            CapsuleFields::Close { code, reason } => Self::Close { code, reason },
        }
    }
}

/// Reads capsules from pieces of `step` bytes.
fn read_capsules(bytes: &[u8], step: usize) -> Result<Vec<Capsule>, CapsuleError> {
    let mut decoder = CapsuleDecoder::new();
    let mut capsules = Vec::new();
    for part in bytes.chunks(step) {
        decoder.push(Bytes::copy_from_slice(part));
        while let Some(capsule) = decoder.next_capsule()? {
            capsules.push(capsule);
        }
    }
    decoder.finish()?;
    Ok(capsules)
}

#[test]
fn capsules_are_byte_for_byte_as_the_vectors_say() {
    let file: Capsules = load("capsules.json");
    for GoodCapsule {
        name,
        bytes,
        capsule,
    } in file.capsules
    {
        let capsule = Capsule::from(capsule);
        let mut out = BytesMut::new();
        capsule.encode(&mut out);
        assert_eq!(Hex(out.to_vec()), bytes, "{name}");
        for step in [1, 2, usize::MAX] {
            assert_eq!(
                read_capsules(&bytes.0, step),
                Ok(vec![capsule.clone()]),
                "{name}"
            );
        }
    }
    for ReadableCapsules {
        name,
        bytes,
        capsules,
    } in file.readable
    {
        let capsules: Vec<Capsule> = capsules.into_iter().map(Capsule::from).collect();
        for step in [1, usize::MAX] {
            assert_eq!(
                read_capsules(&bytes.0, step).as_ref(),
                Ok(&capsules),
                "{name}"
            );
        }
    }
    for RefusedCapsule { name, bytes, error } in file.refused {
        let got = match read_capsules(&bytes.0, 1) {
            Err(CapsuleError::Length { .. }) => "length",
            Err(CapsuleError::Connection(_)) => "connection",
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(got, error, "{name}");
    }
}
