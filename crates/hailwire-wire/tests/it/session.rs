//! `spec/session.md` against the code: its tables and its examples in hex.

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use hailwire_wire::{
    Code, Status,
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    header::{self, AgentOffers, AnswerHead, GoingAway, Hello, VERSION},
};
use serde_json::Value;

#[test]
fn the_page_is_of_this_version() {
    assert!(page().starts_with(&format!("# The session protocol, version {VERSION}\n")));
}

#[test]
fn every_frame_kind_stands_in_the_table() {
    let table = table("Frames");
    for number in 0..=u8::MAX {
        let row = table.iter().find(|row| row[0] == format!("{number:#04x}"));
        let named = row.map(|row| row[1].as_str());
        assert_eq!(named, FrameKind(number).name(), "kind {number:#04x}");
    }
}

#[test]
fn every_code_stands_in_the_table() {
    let rows = table("Status and codes");
    let codes: Vec<_> = rows
        .iter()
        .filter(|row| row[0].parse::<u8>().is_ok())
        .collect();
    assert_eq!(codes.len(), Code::ALL.len());
    for (row, code) in codes.iter().zip(Code::ALL) {
        assert_eq!(
            (&row[0], row[1].as_str()),
            (&code.number().to_string(), code.name())
        );
    }
}

#[test]
fn every_header_field_stands_in_its_table_in_the_order_of_writing() {
    for (section, file, kind) in [
        ("Call header", "headers", "call"),
        ("Answer head", "headers", "answer_head"),
        ("Hello", "headers", "hello"),
        ("Register", "headers", "register"),
        ("Going away", "headers", "going_away"),
        ("Status and codes", "status", "status"),
    ] {
        let bytes = fullest(file, kind);
        let rows = table(section);
        let keys: Vec<_> = rows
            .iter()
            .filter(|row| row[0].parse::<u8>().is_err())
            .collect();
        assert_eq!(
            usize::from(bytes[0] & 0x0f),
            keys.len(),
            "{section}: number of fields"
        );
        let mut at = 0;
        for row in keys {
            let key = [&[0xa0 | row[0].len() as u8], row[0].as_bytes()].concat();
            let found = bytes[at..]
                .windows(key.len())
                .position(|window| window == key);
            at += found.unwrap_or_else(|| panic!("{section}: `{}` is not next", row[0]));
        }
    }
}

#[test]
fn the_examples_in_hex_are_what_this_crate_writes() {
    let mut count = 0;
    for block in page().split("```hex\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        for line in block.lines() {
            let hex: String = line.chars().filter(|c| !c.is_whitespace()).collect();
            check_frame(&HEXLOWER.decode(hex.as_bytes()).expect("hex"));
            count += 1;
        }
    }
    assert!(count >= 9, "only {count} examples");
}

/// Reads one frame and writes it again.
fn check_frame(bytes: &[u8]) {
    let mut decoder = FrameDecoder::new();
    decoder.push(Bytes::copy_from_slice(bytes));
    let event = decoder
        .next_event()
        .expect("a good frame")
        .expect("a whole frame");
    assert_eq!(decoder.finish(), Ok(()));
    let (kind, payload) = match event {
        FrameEvent::Data(part) => (FrameKind::DATA, part.to_vec()),
        FrameEvent::Frame(kind, payload) => (kind, again(kind, &payload).expect("a good header")),
    };
    let mut out = BytesMut::new();
    frame::put(&mut out, kind, &payload);
    assert_eq!(out, bytes);
}

fn again(kind: FrameKind, payload: &Bytes) -> Result<Vec<u8>, header::HeaderError> {
    Ok(match kind {
        FrameKind::HELLO => header::encode(&header::decode::<Hello>(payload)?),
        FrameKind::CALL => header::encode(&header::decode_call(payload)?),
        FrameKind::HEAD => header::encode(&header::decode::<AnswerHead>(payload)?),
        FrameKind::END if payload.is_empty() => Vec::new(),
        FrameKind::END => header::encode(&header::decode::<Status>(payload)?),
        FrameKind::OFFERS | FrameKind::MORE_OFFERS => {
            header::encode(&header::decode::<AgentOffers>(payload)?)
        }
        FrameKind::GOING_AWAY => header::encode(&header::decode::<GoingAway>(payload)?),
        _ => payload.to_vec(),
    })
}

fn page() -> String {
    crate::read("spec/session.md")
}

/// The rows of a section's tables whose first cell is code or a number, without the backquotes.
fn table(section: &str) -> Vec<Vec<String>> {
    let page = page();
    let mut lines = page
        .lines()
        .skip_while(|line| line.trim_start_matches('#').trim() != section);
    assert!(lines.next().is_some(), "no section {section}");
    lines
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with("| `") || is_number_row(line))
        .map(|line| {
            line.split('|')
                .skip(1)
                .map(|c| c.trim().trim_matches('`').to_owned())
                .collect()
        })
        .collect()
}

fn is_number_row(line: &str) -> bool {
    line.strip_prefix("| ")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The bytes of the vector that has the most fields of its kind.
fn fullest(file: &str, kind: &str) -> Vec<u8> {
    let text = crate::read(&format!("spec/vectors/{file}.json"));
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let vectors = file["vectors"].as_array().expect("an array").iter();
    vectors
        .filter(|vector| vector["type"] == kind)
        .map(|vector| HEXLOWER.decode(vector["bytes"].as_str().expect("hex").as_bytes()))
        .map(|bytes| bytes.expect("hex"))
        .max_by_key(|bytes| bytes[0])
        .expect("a vector of this kind")
}
