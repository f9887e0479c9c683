//! The golden vectors of records, permissions and tickets.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use hailwire_wire::{
    NodeId,
    directory::{PERMIT_LIFETIME_S, PermitError, RequestPermit, SignedRequest},
    record::{NodeRecord, RecordError, SignedRecord},
    signed::KeyPair,
    ticket::{HubTicket, NodeTicket, Ticket, TicketError},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

fn load<T: DeserializeOwned>(name: &str) -> T {
    let path = format!("spec/vectors/{name}");
    serde_json::from_str(&crate::read(&path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn unhex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.as_bytes()).expect("hex")
}

fn key(seed: &str) -> KeyPair {
    KeyPair::from_seed(&unhex(seed).try_into().expect("32 bytes"))
}

#[derive(Deserialize)]
struct Records {
    records: Vec<GoodRecord>,
    refused: Vec<RefusedRecord>,
    permits: Vec<GoodPermit>,
}

#[derive(Deserialize)]
struct GoodRecord {
    name: String,
    seed: String,
    key: NodeId,
    fields: NodeRecord,
    bytes: String,
    now: u64,
}

#[derive(Deserialize)]
struct RefusedRecord {
    name: String,
    bytes: String,
    now: u64,
    error: String,
}

#[derive(Deserialize)]
struct GoodPermit {
    name: String,
    seed: String,
    hub: String,
    method: String,
    path: String,
    body: String,
    now: u64,
    authorization: String,
}

#[test]
fn records_are_byte_for_byte_as_the_vectors_say() {
    for vector in load::<Records>("records.json").records {
        let name = &vector.name;
        let signed = vector.fields.clone().sign(&key(&vector.seed)).expect(name);
        assert_eq!(HEXLOWER.encode(signed.bytes()), vector.bytes, "{name}");
        let bytes = Bytes::from(unhex(&vector.bytes));
        let read = SignedRecord::parse(bytes, vector.now).expect(name);
        assert_eq!(read.node(), vector.key, "{name}");
        assert_eq!(read.record(), &vector.fields, "{name}");
    }
}

#[test]
fn bad_records_are_refused_as_the_vectors_say() {
    for vector in load::<Records>("records.json").refused {
        let error = SignedRecord::parse(unhex(&vector.bytes).into(), vector.now);
        let error = match error.expect_err(&vector.name) {
            RecordError::TooLarge(_) => "too_large",
            RecordError::Malformed => "malformed",
            RecordError::BadSignature => "bad_signature",
            RecordError::Expired { .. } => "expired",
            RecordError::NotYetValid { .. } => "not_yet_valid",
            RecordError::Bound(_) => "bound",
        };
        assert_eq!(error, vector.error, "{}", vector.name);
    }
}

#[test]
fn permissions_are_byte_for_byte_as_the_vectors_say() {
    for vector in load::<Records>("records.json").permits {
        let (name, key) = (&vector.name, key(&vector.seed));
        let asked = SignedRequest {
            hub: &vector.hub,
            method: &vector.method,
            path: &vector.path,
            body: vector.body.as_bytes(),
        };
        let made = RequestPermit::new(&asked, vector.now).sign(&key);
        assert_eq!(made, vector.authorization, "{name}");
        let verify = |now| RequestPermit::verify(&made, &asked, &[&vector.hub], now);
        assert_eq!(verify(vector.now), Ok(key.id()), "{name}");
        let late = verify(vector.now + PERMIT_LIFETIME_S);
        assert_eq!(late, Err(PermitError::Clock), "{name}");
    }
}

#[derive(Deserialize)]
struct Tickets {
    tickets: Vec<GoodTicket>,
    readable: Vec<ReadableTicket>,
    refused: Vec<RefusedTicket>,
}

#[derive(Deserialize)]
struct GoodTicket {
    name: String,
    kind: String,
    fields: Value,
    text: String,
}

#[derive(Deserialize)]
struct ReadableTicket {
    name: String,
    text: String,
    same_as: String,
}

#[derive(Deserialize)]
struct RefusedTicket {
    name: String,
    text: String,
    error: String,
}

fn fields<T: DeserializeOwned>(vector: &GoodTicket) -> T {
    serde_json::from_value(vector.fields.clone()).expect(&vector.name)
}

#[test]
fn tickets_are_character_for_character_as_the_vectors_say() {
    let file: Tickets = load("tickets.json");
    for vector in &file.tickets {
        let name = &vector.name;
        let ticket = match vector.kind.as_str() {
            "node" => Ticket::Node(fields::<NodeTicket>(vector)),
            "hub" => Ticket::Hub(fields::<HubTicket>(vector)),
            kind => panic!("{name}: {kind}"),
        };
        assert_eq!(ticket.to_text().as_ref(), Ok(&vector.text), "{name}");
        assert_eq!(vector.text.parse(), Ok(ticket), "{name}");
    }
    for vector in file.readable {
        let same: Ticket = vector.same_as.parse().expect(&vector.name);
        assert_eq!(vector.text.parse(), Ok(same), "{}", vector.name);
    }
    for vector in file.refused {
        let error = match vector.text.parse::<Ticket>().expect_err(&vector.name) {
            TicketError::NotATicket => "not_a_ticket",
            TicketError::Damaged => "damaged",
            TicketError::UnknownKind(_) => "unknown_kind",
            TicketError::Malformed => "malformed",
            TicketError::Bound(_) => "bound",
        };
        assert_eq!(error, vector.error, "{}", vector.name);
    }
}
