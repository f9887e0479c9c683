//! What holds of every message, not of chosen ones.

#[path = "../../../../fuzz/src/kept.rs"]
mod kept;
#[path = "../../../../fuzz/src/callout.rs"]
#[expect(unreachable_pub, reason = "the fuzz target calls it too")]
mod promises;
mod spop;
mod vectors;

use bytes::{BufMut as _, Bytes, BytesMut};
use hailwire_callout::{
    Decision, Event, EventKind, Response,
    event::{
        BodyChunk, Configure, Guardrail, GuardrailCheck, Metadata, Opcode, RequestComplete,
        RequestHeaders, ResponseHeaders, WebSocketFrame,
    },
    response::{Audit, BodyMutation, HeaderOp, WebSocketDecision},
    wire::{self, Encoding, plain, salvage},
};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng as _, SeedableRng as _},
};
use serde_json::{Value, json};

const BOTH: [Encoding; 2] = [Encoding::Json, Encoding::MessagePack];
const SEED: u64 = 4;

#[test]
fn any_event_survives_both_encodings_and_the_plainest_reader_agrees() {
    let mut any = Any::new(SEED);
    for round in 0..4000 {
        let event = any.event(EventKind::ALL[round % 8]);
        for encoding in BOTH {
            let mut out = BytesMut::new();
            wire::encode_event(&event, encoding, &mut out);
            let plain = plain::decode_event(event.kind(), &out, encoding);
            assert_eq!(plain.as_ref().ok(), Some(&event), "{plain:?}");
            let read = wire::decode_event(event.kind(), out.freeze(), encoding);
            assert_eq!(read.as_ref().ok(), Some(&event), "{read:?}");
            // And the other way about.
            let mut out = BytesMut::new();
            plain::encode_event(&event, encoding, &mut out);
            assert_eq!(
                salvage::event_id(&out, encoding).unwrap_or_default(),
                event.id()
            );
            let read = wire::decode_event(event.kind(), out.freeze(), encoding);
            assert_eq!(read.as_ref().ok(), Some(&event), "{read:?}");
        }
    }
}

#[test]
fn any_answer_survives_both_encodings_and_the_plainest_reader_agrees() {
    let mut any = Any::new(SEED);
    for _ in 0..3000 {
        let (id, response) = (any.text(), any.response());
        for encoding in BOTH {
            let mut out = BytesMut::new();
            wire::encode_response(&id, &response, encoding, &mut out);
            let expected = (id.as_str().into(), response.clone());
            let plain = plain::decode_response(&out, encoding);
            assert_eq!(plain.as_ref().ok(), Some(&expected), "{plain:?}");
            assert_eq!(
                salvage::answer_id(&out, encoding).as_deref(),
                Some(id.as_str())
            );
            let read = wire::decode_response(out.freeze(), encoding);
            assert_eq!(read.as_ref().ok(), Some(&expected), "{read:?}");
            let mut out = BytesMut::new();
            plain::encode_response(&id, &response, encoding, &mut out);
            let read = wire::decode_response(out.freeze(), encoding);
            assert_eq!(read.as_ref().ok(), Some(&expected), "{read:?}");
        }
    }
}

/// The promises are those of the fuzz target.
#[test]
fn any_bytes_are_a_message_or_an_error() {
    let mut any = Any::new(SEED);
    for round in 0..20_000usize {
        let kind = EventKind::ALL[round % 8];
        let encoding = BOTH[round / 8 % 2];
        let mut out = BytesMut::new();
        out.put_u8((round % 16) as u8);
        match round % 3 {
            0 => wire::encode_event(&any.event(kind), encoding, &mut out),
            1 => plain::encode_event(&any.event(kind), encoding, &mut out),
            _ => wire::encode_response(&any.text(), &any.response(), encoding, &mut out),
        }
        promises::callout(&any.spoilt(out.to_vec()));
    }
}

#[test]
fn what_is_kept_for_the_fuzz_target_callout_is_a_message_or_an_error() {
    for input in kept::inputs("callout", 10_000) {
        promises::callout(&input);
    }
}

#[test]
fn values_far_too_deep_are_refused_and_cost_no_stack() {
    let deep = |n: usize| {
        let text = format!(
            "{{\"correlation_id\":\"c1\",\"x\":{}{}}}",
            "[".repeat(n),
            "]".repeat(n)
        );
        let mut packed = b"\x82\xaecorrelation_id\xa2c1\xa1x".to_vec();
        packed.extend(std::iter::repeat_n(0x91, n));
        packed.push(0xc0);
        [
            (text.into_bytes(), Encoding::Json),
            (packed, Encoding::MessagePack),
        ]
    };
    for kind in EventKind::ALL {
        for (bytes, encoding) in deep(1_000_000) {
            let error = wire::decode_event(kind, bytes.clone().into(), encoding).unwrap_err();
            assert!(error.to_string().contains("too deep"), "{error}");
            assert_eq!(salvage::event_id(&bytes, encoding).as_deref(), Some("c1"));
        }
    }
    for (bytes, encoding) in deep(100) {
        let read = wire::decode_event(EventKind::Configure, bytes.into(), encoding).unwrap();
        assert_eq!(read.id(), "c1");
    }
}

#[test]
fn lengths_that_are_not_there_cost_no_memory() {
    for head in [
        b"\xdf\xff\xff\xff\xff".as_slice(),
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
    ] {
        for kind in EventKind::ALL {
            let frame = Bytes::copy_from_slice(head);
            assert!(wire::decode_event(kind, frame, Encoding::MessagePack).is_err());
        }
    }
}

#[test]
fn an_error_says_what_is_wrong_and_where() {
    let read = |text: &str| {
        wire::decode_event(
            EventKind::ResponseHeaders,
            Bytes::from(text.to_owned()),
            Encoding::Json,
        )
        .unwrap_err()
        .to_string()
    };
    assert_eq!(
        read(r#"{"correlation_id":"c","headers":{}}"#),
        "missing field status"
    );
    assert_eq!(
        read(r#"{"correlation_id":"c","status":70000,"headers":{}}"#),
        "number out of range at byte 31, in status"
    );
    assert_eq!(
        read(r#"{"correlation_id":"c","status":200,"headers":{"a":["b",1]}}"#),
        "expected a text at byte 55, in headers"
    );
    assert_eq!(read("{"), "unexpected end of input at byte 1");
}

#[test]
fn the_id_of_what_cannot_be_read_is_found() {
    let json = br#"{"headers":{"correlation_id":["x"]},"metadata":{"client_ip":7,"correlation_id":"c1"},"method":5}"#;
    assert!(
        wire::decode_event(
            EventKind::RequestHeaders,
            Bytes::from_static(json),
            Encoding::Json
        )
        .is_err()
    );
    assert_eq!(
        salvage::event_id(json, Encoding::Json).as_deref(),
        Some("c1")
    );
    // Raw bytes where none are known, and the end missing.
    let packed = b"\x83\xaecorrelation_id\xa2c2\xa4data\xc4\x02\xff\xff\xa7is_last";
    assert_eq!(
        salvage::event_id(packed, Encoding::MessagePack).as_deref(),
        Some("c2")
    );
    let answer = br#"{"decision":"maybe","audit":{"custom":{"correlation_id":"c3"}},"#;
    assert_eq!(
        salvage::answer_id(answer, Encoding::Json).as_deref(),
        Some("c3")
    );
}

#[test]
fn raw_data_is_not_copied() {
    let mut packed = b"\x83\xaecorrelation_id\xa2c2\xa4data\xc5\x10\x00".to_vec();
    let at = packed.len();
    packed.extend([7; 4096]);
    packed.extend(b"\xa7is_last\xc3");
    let frame = Bytes::from(packed);
    let event =
        wire::decode_event(EventKind::RequestBody, frame.clone(), Encoding::MessagePack).unwrap();
    let Event::RequestBody(chunk) = event else {
        panic!("{event:?}")
    };
    assert_eq!(chunk.data.as_ptr(), frame.slice(at..).as_ptr());
    assert_eq!(
        (chunk.data.len(), chunk.is_last, chunk.index),
        (4096, true, 0)
    );
}

#[test]
fn a_name_that_comes_twice_is_sent_once() {
    // A peer that keeps the last of two would not see the first.
    let json = br#"{"correlation_id":"c","status":200,"headers":{"a":["1"],"b":[],"A":["2"]}}"#;
    let packed = b"\x83\xaecorrelation_id\xa1c\xa6status\xcc\xc8\xa7headers\x83\xa1a\x91\xa11\xa1b\x90\xa1A\x91\xa12";
    for (bytes, encoding) in [
        (json.as_slice(), Encoding::Json),
        (packed, Encoding::MessagePack),
    ] {
        let frame = Bytes::copy_from_slice(bytes);
        let event = wire::decode_event(EventKind::ResponseHeaders, frame, encoding).unwrap();
        let Event::ResponseHeaders(head) = &event else {
            panic!("{event:?}")
        };
        let values: Vec<_> = head.headers().get_all("a").collect();
        assert_eq!(
            (values.as_slice(), head.headers().len()),
            (&["1", "2"][..], 2)
        );
    }
}

/// Makes messages up.
struct Any {
    rng: Pcg64Mcg,
}

impl Any {
    fn new(seed: u64) -> Self {
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    fn text(&mut self) -> String {
        const PARTS: [&str; 16] = [
            "a",
            "Z9",
            "-",
            "\"",
            "\\",
            "\n",
            "\u{1}",
            "ü",
            "\u{1f600}",
            "/",
            "é",
            "\u{7f}",
            " ",
            "host",
            "application/json",
            "0123456789012345678901234567890123456789",
        ];
        let parts = match self.below(20) {
            0 => 40,
            n => n % 6,
        };
        (0..parts).map(|_| PARTS[self.below(16) as usize]).collect()
    }

    fn maybe(&mut self) -> Option<String> {
        self.chance().then(|| self.text())
    }

    fn texts(&mut self) -> Vec<String> {
        (0..self.below(3)).map(|_| self.text()).collect()
    }

    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.rng.next_u64(),
            1 => self.rng.next_u64() >> 32,
            2 => self.below(70_000),
            _ => self.below(200),
        }
    }

    fn data(&mut self) -> Bytes {
        let length = match self.below(10) {
            0 => 3000,
            n => 3 * n,
        };
        (0..length).map(|_| self.rng.next_u64() as u8).collect()
    }

    fn fields(&mut self) -> Vec<(String, String)> {
        let count = match self.below(12) {
            0 => 40,
            n => n,
        };
        (0..count).map(|_| (self.text(), self.text())).collect()
    }

    fn event(&mut self, kind: EventKind) -> Event {
        let id = self.text();
        let fields = self.fields();
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        match kind {
            EventKind::RequestHeaders => {
                let texts: Vec<String> = (0..6).map(|_| self.text()).collect();
                let maybe: Vec<Option<String>> = (0..6).map(|_| self.maybe()).collect();
                let metadata = Metadata {
                    correlation_id: &id,
                    request_id: &texts[0],
                    client_ip: &texts[1],
                    client_port: self.number() as u16,
                    server_name: maybe[0].as_deref(),
                    protocol: &texts[2],
                    tls_version: maybe[1].as_deref(),
                    tls_cipher: maybe[2].as_deref(),
                    route_id: maybe[3].as_deref(),
                    upstream_id: maybe[4].as_deref(),
                    timestamp: &texts[3],
                    traceparent: maybe[5].as_deref(),
                };
                Event::RequestHeaders(RequestHeaders::new(&metadata, &texts[4], &texts[5], fields))
            }
            EventKind::RequestBody => Event::RequestBody(self.chunk(id)),
            EventKind::ResponseBody => Event::ResponseBody(self.chunk(id)),
            EventKind::ResponseHeaders => {
                Event::ResponseHeaders(ResponseHeaders::new(&id, self.number() as u16, fields))
            }
            EventKind::RequestComplete => Event::RequestComplete(RequestComplete {
                correlation_id: id.into(),
                status: self.number() as u16,
                duration_ms: self.number(),
                request_body_size: self.number(),
                response_body_size: self.number(),
                upstream_attempts: self.number() as u32,
                error: self.maybe(),
            }),
            EventKind::WebSocketFrame => Event::WebSocketFrame(WebSocketFrame {
                correlation_id: id.into(),
                opcode: [Opcode::Text, Opcode::Binary, Opcode::Close][self.below(3) as usize],
                data: self.data(),
                client_to_server: self.chance(),
                index: self.number(),
                fin: self.chance(),
                route_id: self.maybe(),
                client_ip: self.text(),
            }),
            EventKind::Guardrail => Event::Guardrail(Guardrail {
                correlation_id: id.into(),
                inspection_type: GuardrailCheck::PiiDetection,
                content: self.text(),
                model: self.maybe(),
                categories: self.texts(),
                route_id: self.maybe(),
                metadata: self.fields().into_iter().collect(),
            }),
            EventKind::Configure => Event::Configure(Configure {
                correlation_id: id.into(),
                config: self.value(),
                config_version: self.maybe(),
            }),
        }
    }

    fn chunk(&mut self, id: String) -> BodyChunk {
        BodyChunk {
            correlation_id: id.into(),
            data: self.data(),
            is_last: self.chance(),
            total_size: self.chance().then(|| self.number()),
            index: self.number() as u32,
            transferred: self.number(),
        }
    }

    fn value(&mut self) -> Value {
        match self.below(4) {
            0 => Value::Null,
            1 => json!([self.number(), -1, 2.5, self.chance()]),
            2 => json!({"name": self.text(), "nested": {"list": [[], {}]}}),
            _ => json!(self.text()),
        }
    }

    fn response(&mut self) -> Response {
        if self.below(4) == 0 {
            return Response::allow();
        }
        let decision = match self.below(4) {
            0 => Decision::Allow,
            1 => Decision::Block {
                status: self.number() as u16,
                body: self.maybe(),
                headers: self.fields().into_iter().collect(),
            },
            2 => Decision::Redirect {
                url: self.text(),
                status: 302,
            },
            _ => Decision::Challenge {
                challenge_type: self.text(),
                params: self.fields().into_iter().collect(),
            },
        };
        let ops = |any: &mut Self| -> Vec<HeaderOp> {
            (0..any.below(4))
                .map(|_| {
                    let (name, value) = (any.text(), any.text());
                    match any.below(3) {
                        0 => HeaderOp::Set { name, value },
                        1 => HeaderOp::Add { name, value },
                        _ => HeaderOp::Remove { name },
                    }
                })
                .collect()
        };
        let mutation = |any: &mut Self| {
            any.chance().then(|| BodyMutation {
                index: any.number() as u32,
                data: any.chance().then(|| any.data()),
            })
        };
        Response {
            decision,
            request_headers: ops(self),
            response_headers: ops(self),
            routing_metadata: self.fields().into_iter().collect(),
            audit: Audit {
                tags: self.texts(),
                rule_ids: self.texts(),
                confidence: self.chance().then_some(0.1),
                reason_codes: self.texts(),
                custom: (0..self.below(3))
                    .map(|_| (self.text(), self.value()))
                    .collect(),
            },
            needs_more: self.chance(),
            request_body: mutation(self),
            response_body: mutation(self),
            websocket: match self.below(4) {
                0 => None,
                1 => Some(WebSocketDecision::Allow),
                2 => Some(WebSocketDecision::Drop),
                _ => Some(WebSocketDecision::Close {
                    code: 1008,
                    reason: self.text(),
                }),
            },
        }
    }

    /// Cut, changed, repeated or wholly made up; sometimes left as it was.
    fn spoilt(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len() as u64 + 1) as usize;
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = self.rng.next_u64() as u8;
                    }
                }
                2 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
                3 => bytes.insert(at, self.rng.next_u64() as u8),
                _ => {
                    let again = bytes[at..].to_vec();
                    bytes.extend(again);
                }
            }
        }
        if self.below(50) == 0 {
            let length = self.below(64);
            return (0..length).map(|_| self.rng.next_u64() as u8).collect();
        }
        bytes
    }
}
