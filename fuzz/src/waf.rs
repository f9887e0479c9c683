//! The properties of the firewall that hold for every input.
//!
//! In a file of its own, as `callout.rs` beside it: `hailwire-agents`' tests call it too, with inputs drawn from a seed.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use hailwire_agents::waf::{UnreadSet, Waf, WafSettings};
use hailwire_callout::{
    Response,
    event::{BodyChunk, Metadata, RequestHeaders},
};

const TYPES: [&str; 8] = [
    "application/x-www-form-urlencoded",
    "application/json",
    "text/xml",
    "multipart/form-data; boundary=b",
    "text/plain",
    "application/json; charset=utf-16",
    "multipart/mixed; boundary=\"b\"",
    "",
];

/// The size of a body beyond which nothing is repeated: a few windows of a reader.
const MAX_REPEATED_BODY: usize = 80 << 10;

/// The most chunks of a body.
const MAX_CHUNKS: usize = 1_000;

/// Checks a body: the first byte chooses its type, the second the size of its chunks. In the rest, 0xf5 (which no
/// text of UTF-8 has) repeats the byte before it, as often as 256 times what comes after it: so a short input fills every buffer.
///
/// # Panics
///
/// If the decision depends on how the body is divided.
pub(crate) fn waf(input: &[u8]) {
    static WAF: OnceLock<Option<Waf>> = OnceLock::new();
    let settings = || WafSettings {
        // Everything that is found or unread is reported, and nothing ends the inspection.
        threshold: u32::MAX,
        may_be_unread: UnreadSet::ALL,
        ..WafSettings::default()
    };
    let Some(waf) = WAF.get_or_init(|| Waf::new(settings()).ok()) else {
        return;
    };
    let [kind, size, body @ ..] = input else {
        return;
    };
    let body = &long(body)[..];
    let kind = TYPES[usize::from(*kind) % TYPES.len()];
    let whole = judged(waf, kind, body, body.len().max(1));
    // A long body arrives in at most this many chunks; more would take a second.
    let size = (usize::from(*size) % 64 + 1).max(body.len() / MAX_CHUNKS);
    let chunked = judged(waf, kind, body, size);
    assert_eq!(whole, chunked, "the decision does not depend on the chunks");
}

/// The body that a short input stands for.
fn long(mut input: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some((&byte, rest)) = input.split_first() {
        input = rest;
        match (byte, body.last().copied(), rest.split_first()) {
            (0xf5, Some(last), Some((&times, rest))) if body.len() < MAX_REPEATED_BODY => {
                body.resize(body.len() + (usize::from(times) << 8), last);
                input = rest;
            }
            _ => body.push(byte),
        }
    }
    body
}

/// The findings in a body that arrives in chunks of this size, in any order.
fn judged(waf: &Waf, kind: &str, body: &[u8], size: usize) -> (Vec<String>, Vec<String>) {
    // Tests that run side by side share the firewall, and none must take another's request for its own.
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let id = format!("c{}", REQUESTS.fetch_add(1, Ordering::Relaxed));
    let metadata = Metadata {
        correlation_id: &id,
        client_ip: "192.0.2.1",
        protocol: "HTTP/1.1",
        ..Metadata::default()
    };
    let headers = [("host", "example.com"), ("content-type", kind)];
    let head = RequestHeaders::new(&metadata, "POST", "/", headers);
    let now = Instant::now();
    let _ = waf.head(&head, now);
    let piece = |data: &[u8], is_last| BodyChunk {
        correlation_id: id.as_str().into(),
        data: bytes::Bytes::copy_from_slice(data),
        is_last,
        total_size: None,
        index: 0,
        transferred: 0,
    };
    for data in body.chunks(size) {
        let _ = waf.chunk(&piece(data, false), now);
    }
    let Response { audit, .. } = waf.chunk(&piece(b"", true), now);
    let (mut rules, tags) = (audit.rule_ids, audit.tags);
    rules.sort();
    (rules, tags)
}
