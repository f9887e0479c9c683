//! Every parser under random and altered input, on the stable toolchain.
//!
//! The promises are those of the fuzz targets (`fuzz/src/lib.rs`). Inputs are drawn from a seed,
//! which is printed with the input when one fails; `HAILWIRE_SEED` repeats or changes it, and
//! `HAILWIRE_ROUNDS` says how many inputs each parser gets.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use hailwire_wire::{
    Code, NodeId, Priority,
    header::{self, AgentOffer},
    mux::MuxFrame,
    record::NodeRecord,
    signed::KeyPair,
    ticket::{HubTicket, NodeTicket, Ticket, TicketSecret},
};
use serde_json::Value;

use crate::{kept, promises::ENTRIES, repository};

const SEED: u64 = 0x6861_696c;
const ROUNDS: u64 = 20_000;

#[test]
fn every_parser_keeps_its_promises_on_random_and_altered_input() {
    let seed = from_environment("HAILWIRE_SEED").unwrap_or(SEED);
    let rounds = from_environment("HAILWIRE_ROUNDS").unwrap_or(ROUNDS);
    let good = good_inputs();
    for (name, entry) in ENTRIES {
        let mut random = Random(seed);
        for round in 0..rounds {
            let input = random.input(&good);
            let _told = Told {
                name,
                seed,
                round,
                input: &input,
            };
            entry(&input);
        }
    }
}

#[test]
fn every_parser_keeps_its_promises_on_good_input() {
    for (name, entry) in ENTRIES {
        for input in good_inputs() {
            let _told = Told {
                name,
                seed: 0,
                round: 0,
                input: &input,
            };
            entry(&input);
        }
    }
}

#[test]
fn every_parser_keeps_its_promises_on_what_is_kept_for_its_fuzz_target() {
    for (name, entry) in ENTRIES {
        for input in kept::inputs(name, 5_000) {
            entry(&input);
        }
    }
}

#[test]
fn inputs_are_kept_for_each_fuzz_target_and_no_other() {
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = std::fs::read_dir(repository(folder)).expect("a folder of fuzz");
        entries
            .map(|entry| {
                let name = entry.expect("an entry").file_name();
                name.to_string_lossy().trim_end_matches(".rs").to_owned()
            })
            .collect()
    };
    assert_eq!(names("fuzz/corpus-kept"), names("fuzz/fuzz_targets"));
}

#[test]
fn deep_nesting_and_huge_claims_are_survived() {
    let nested = |marker: &[u8]| [b"\x81\xa1x".as_slice(), &marker.repeat(60_000)].concat();
    for input in [
        nested(b"\x91"),
        nested(b"\x81\xa0"),
        nested(b"\xdc\x00\x01"),
        b"\x91".repeat(65_536),
        b"\x81\xa7headers\xdd\xff\xff\xff\xff".to_vec(),
        b"\x81\xa6agents\xdd\xff\xff\xff\xff\x81".to_vec(),
        b"\x81\xa8versions\xdd\xff\xff\xff\xff\x01".to_vec(),
        b"\x81\xa2to\xdb\xff\xff\xff\xff".to_vec(),
        b"\xdf\xff\xff\xff\xff".to_vec(),
        b"\x81\xa1x\xc9\xff\xff\xff\xff\x00".to_vec(),
    ] {
        for (name, entry) in ENTRIES {
            let _told = Told {
                name,
                seed: 0,
                round: 0,
                input: &input,
            };
            entry(&input);
        }
    }
}

/// Says what was tried, if the test fails while it lives.
struct Told<'a> {
    name: &'a str,
    seed: u64,
    round: u64,
    input: &'a [u8],
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self {
                name,
                seed,
                round,
                input,
            } = self;
            eprintln!(
                "{name}: seed {seed}, round {round}, input {}",
                HEXLOWER.encode(input)
            );
        }
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// What parsers accept, to begin altering from: all golden vectors, a record, two tickets.
fn good_inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for file in [
        "addresses",
        "headers",
        "topics",
        "frames",
        "status",
        "capsules",
    ] {
        let text = crate::read(&format!("spec/vectors/{file}.json"));
        collect(&serde_json::from_str(&text).expect("JSON"), &mut inputs);
    }
    let key = KeyPair::from_seed(&[7; 32]);
    let record = record();
    inputs.push(header::encode(&record));
    inputs.push(record.sign(&key).expect("within bounds").bytes().to_vec());
    for ticket in tickets(key.id()) {
        inputs.push(ticket.to_text().expect("within bounds").into_bytes());
        inputs.push(match ticket {
            Ticket::Node(ticket) => header::encode(&ticket),
            Ticket::Hub(ticket) => header::encode(&ticket),
        });
    }
    inputs.push(mux_frames());
    inputs
}

/// One of each frame of the multiplexer, cut into pieces of seven behind a good preface.
fn mux_frames() -> Vec<u8> {
    let (priority, code) = (Priority::High, Code::Cancelled);
    let data = |stream, fin, body: &'static [u8]| MuxFrame::Data {
        stream,
        priority,
        fin,
        body: Bytes::from_static(body),
    };
    let mut out = BytesMut::from(&[14][..]);
    for frame in [
        data(1, false, b"some body"),
        data(3, true, b"all"),
        MuxFrame::Window {
            stream: 1,
            priority,
            credit: 1000,
        },
        MuxFrame::Stop {
            stream: 3,
            priority,
            code,
        },
        MuxFrame::Reset {
            stream: 5,
            priority,
            code,
        },
        MuxFrame::Streams(2),
        MuxFrame::Ping(*b"12345678"),
        MuxFrame::Pong(*b"12345678"),
        MuxFrame::Datagram(Bytes::from_static(b"small")),
        data(1, true, b""),
        MuxFrame::Close {
            code,
            reason: "done".to_owned(),
        },
    ] {
        frame.encode(&mut out);
    }
    out.to_vec()
}

fn collect(value: &Value, inputs: &mut Vec<Vec<u8>>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, inputs)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("bytes", Value::String(hex)) => {
                        let bytes = HEXLOWER.decode(hex.as_bytes()).expect("hex");
                        // For the frame decoder: cut into pieces of three.
                        inputs.push([&[3], bytes.as_slice()].concat());
                        inputs.push(bytes);
                    }
                    ("text", Value::String(text)) => inputs.push(text.clone().into_bytes()),
                    _ => collect(value, inputs),
                }
            }
        }
        _ => {}
    }
}

fn record() -> NodeRecord {
    NodeRecord {
        name: Some("laptop".parse().expect("a name")),
        addresses: addresses(),
        tcp: addresses(),
        relay: Some("https://hub.example:443".to_owned()),
        agents: vec![AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: "grep".parse().expect("a name"),
            description: "finds lines".to_owned(),
            tags: vec!["text".to_owned()],
            version: "1".to_owned(),
        }],
        sequence: 7,
        issued: 1_800_000_000,
        expires: 1_800_007_200,
    }
}

fn tickets(node: NodeId) -> [Ticket; 2] {
    let secret = TicketSecret::from_random([9; 16]);
    [
        Ticket::Node(NodeTicket {
            node,
            secret: secret.clone(),
            expires: 1_800_000_600,
            name: Some("laptop".parse().expect("a name")),
            addresses: addresses(),
            tcp: addresses(),
            relay: None,
            hub_key: Some(node),
        }),
        Ticket::Hub(HubTicket {
            url: "https://hub.example".parse().expect("a URL"),
            key: None,
            secret,
            expires: 1_800_000_600,
            trust: hailwire_wire::directory::MemberTrust::Members,
        }),
    ]
}

fn addresses() -> Vec<std::net::SocketAddr> {
    ["192.0.2.1:7440", "[2001:db8::1]:7440"]
        .map(|text| text.parse().expect("an address"))
        .to_vec()
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        // Markers, bounds and separators are where parsers decide.
        const TELLING: &[u8] =
            b"\x00\x01\x7f\x80\x81\x8f\x90\x91\xa0\xbf\xc0\xc1\xc4\xd9\xdc\xdf\xe0\xff@-.";
        match self.below(3) {
            0 => TELLING[self.below(TELLING.len())],
            _ => self.next() as u8,
        }
    }

    fn input(&mut self, good: &[Vec<u8>]) -> Vec<u8> {
        if self.below(4) == 0 {
            let len = self.below(200);
            return (0..len).map(|_| self.byte()).collect();
        }
        let mut input = good[self.below(good.len())].clone();
        for _ in 0..=self.below(4) {
            self.alter(&mut input, good);
        }
        input
    }

    fn alter(&mut self, input: &mut Vec<u8>, good: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let to = (at + self.below(16)).min(input.len());
        match self.below(6) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.byte(),
            2 => input.insert(at, self.byte()),
            3 => drop(input.drain(at..to)),
            4 => input.truncate(at),
            _ => {
                let other = &good[self.below(good.len())];
                let from = self.below(other.len() + 1);
                let part = &other[from..(from + self.below(64)).min(other.len())];
                input.splice(at..to, part.iter().copied());
            }
        }
    }
}
