//! Answers.
//!
//! Only what says something is written: everything but the version, the decision and the id, which lies in
//! `audit.custom`, has a default in every peer. So the answer that nearly all are, an allow, is some 70 bytes.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{
    Encoding, json, pack,
    sink::{JsonSink, PackSink, ValueSink},
    source::{ParseError, ParseResult, ValueShape, ValueSource},
};
use crate::{
    Text, VERSION,
    response::{Audit, BodyMutation, Decision, HeaderOp, Response, WebSocketDecision},
};

/// Where an answer says to what.
const ID: &str = "correlation_id";

pub(super) fn encode(id: &str, response: &Response, encoding: Encoding, out: &mut BytesMut) {
    if response.says_nothing() {
        allow(id, encoding, out);
        return;
    }
    match encoding {
        Encoding::Json => put(id, response, &mut JsonSink::new(out)),
        Encoding::MessagePack => put(id, response, &mut PackSink(out)),
    }
}

fn allow(id: &str, encoding: Encoding, out: &mut BytesMut) {
    out.reserve(80 + id.len());
    match encoding {
        Encoding::Json => {
            let (before, after) = ALLOWS_JSON[0];
            out.put_slice(before);
            json::put_text(id.as_bytes(), out);
            out.put_slice(after);
        }
        Encoding::MessagePack => {
            out.put_slice(ALLOWS_PACKED[0].0);
            pack::put_text(id, out);
        }
    }
}

/// What comes before and after the id in an allow that says no more: as written here, and as the published crate writes
/// it.
const ALLOWS_JSON: [(&[u8], &[u8]); 2] = [
    (
        b"{\"version\":2,\"decision\":\"allow\",\"audit\":{\"custom\":{\"correlation_id\":",
        b"}}}",
    ),
    (
        b"{\"version\":2,\"decision\":\"allow\",\"request_headers\":[],\"response_headers\":[],\
          \"routing_metadata\":{},\"audit\":{\"tags\":[],\"rule_ids\":[],\"confidence\":null,\
          \"reason_codes\":[],\"custom\":{\"correlation_id\":",
        b"}},\"needs_more\":false,\"request_body_mutation\":null,\
          \"response_body_mutation\":null,\"websocket_decision\":null}",
    ),
];

const ALLOWS_PACKED: [(&[u8], &[u8]); 2] = [
    (
        b"\x83\xa7version\x02\xa8decision\xa5allow\xa5audit\x81\xa6custom\x81\xaecorrelation_id",
        b"",
    ),
    (
        b"\x8a\xa7version\x02\xa8decision\xa5allow\xafrequest_headers\x90\xb0response_headers\x90\
          \xb0routing_metadata\x80\xa5audit\x85\xa4tags\x90\xa8rule_ids\x90\xaaconfidence\xc0\
          \xacreason_codes\x90\xa6custom\x81\xaecorrelation_id",
        b"\xaaneeds_more\xc2\xb5request_body_mutation\xc0\xb6response_body_mutation\xc0\
          \xb2websocket_decision\xc0",
    ),
];

/// The id of an allow that says no more, where it is written as most are; `None` for all others.
pub(super) fn allowed(frame: &Bytes, encoding: Encoding) -> Option<Text> {
    let templates = match encoding {
        Encoding::Json => &ALLOWS_JSON,
        Encoding::MessagePack => &ALLOWS_PACKED,
    };
    let (start, end) = templates.iter().find_map(|(before, after)| {
        frame.strip_prefix(*before)?.strip_suffix(*after)?;
        Some((before.len(), frame.len() - after.len()))
    })?;
    let quoted = frame.get(start..end)?;
    let length = match encoding {
        Encoding::Json => {
            let length = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
            json::is_plain(length).then_some(length.len())?
        }
        Encoding::MessagePack => {
            let mut source = pack::PackSource::new(quoted);
            let length = source.raw_text().ok()?.len();
            (source.position() == quoted.len()).then_some(length)?
        }
    };
    let end = end - usize::from(encoding == Encoding::Json);
    Text::try_from(frame.slice(end - length..end)).ok()
}

fn put(id: &str, response: &Response, sink: &mut impl ValueSink) {
    let fields = [
        !response.request_headers.is_empty(),
        !response.response_headers.is_empty(),
        !response.routing_metadata.is_empty(),
        response.needs_more,
        response.request_body.is_some(),
        response.response_body.is_some(),
        response.websocket.is_some(),
    ];
    sink.map(3 + fields.iter().filter(|there| **there).count());
    sink.key("version");
    sink.uint(VERSION.into());
    sink.key("decision");
    put_decision(&response.decision, sink);
    put_ops("request_headers", &response.request_headers, sink);
    put_ops("response_headers", &response.response_headers, sink);
    if !response.routing_metadata.is_empty() {
        sink.key("routing_metadata");
        sink.pairs(&response.routing_metadata);
    }
    sink.key("audit");
    put_audit(id, &response.audit, sink);
    if response.needs_more {
        sink.key("needs_more");
        sink.bool(true);
    }
    put_mutation(
        "request_body_mutation",
        response.request_body.as_ref(),
        sink,
    );
    put_mutation(
        "response_body_mutation",
        response.response_body.as_ref(),
        sink,
    );
    if let Some(decision) = &response.websocket {
        sink.key("websocket_decision");
        match decision {
            WebSocketDecision::Allow => sink.text("allow"),
            WebSocketDecision::Drop => sink.text("drop"),
            WebSocketDecision::Close { code, reason } => {
                sink.map(1);
                sink.key("close");
                sink.map(2);
                sink.key("code");
                sink.uint((*code).into());
                sink.key("reason");
                sink.text(reason);
                sink.end_map();
                sink.end_map();
            }
        }
    }
    sink.end_map();
}

fn put_decision(decision: &Decision, sink: &mut impl ValueSink) {
    match decision {
        Decision::Allow => {
            sink.text("allow");
            return;
        }
        Decision::Block {
            status,
            body,
            headers,
        } => {
            sink.map(1);
            sink.key("block");
            sink.map(3);
            sink.key("status");
            sink.uint((*status).into());
            sink.key("body");
            sink.optional(body.as_deref());
            sink.key("headers");
            if headers.is_empty() {
                sink.null();
            } else {
                sink.pairs(headers);
            }
        }
        Decision::Redirect { url, status } => {
            sink.map(1);
            sink.key("redirect");
            sink.map(2);
            sink.key("url");
            sink.text(url);
            sink.key("status");
            sink.uint((*status).into());
        }
        Decision::Challenge {
            challenge_type,
            params,
        } => {
            sink.map(1);
            sink.key("challenge");
            sink.map(2);
            sink.key("challenge_type");
            sink.text(challenge_type);
            sink.key("params");
            sink.pairs(params);
        }
    }
    sink.end_map();
    sink.end_map();
}

fn put_ops(key: &str, ops: &[HeaderOp], sink: &mut impl ValueSink) {
    if ops.is_empty() {
        return;
    }
    sink.key(key);
    sink.seq(ops.len());
    for op in ops {
        let (what, name, value) = match op {
            HeaderOp::Set { name, value } => ("set", name, Some(value)),
            HeaderOp::Add { name, value } => ("add", name, Some(value)),
            HeaderOp::Remove { name } => ("remove", name, None),
        };
        sink.item();
        sink.map(1);
        sink.key(what);
        sink.map(1 + usize::from(value.is_some()));
        sink.key("name");
        sink.text(name);
        if let Some(value) = value {
            sink.key("value");
            sink.text(value);
        }
        sink.end_map();
        sink.end_map();
    }
    sink.end_seq();
}

fn put_audit(id: &str, audit: &Audit, sink: &mut impl ValueSink) {
    let lists = [
        ("tags", &audit.tags),
        ("rule_ids", &audit.rule_ids),
        ("reason_codes", &audit.reason_codes),
    ];
    let there = lists.iter().filter(|(_, list)| !list.is_empty()).count();
    sink.map(1 + there + usize::from(audit.confidence.is_some()));
    for (key, list) in lists {
        if !list.is_empty() {
            sink.key(key);
            sink.texts(list);
        }
    }
    if let Some(confidence) = audit.confidence {
        sink.key("confidence");
        sink.f32(confidence);
    }
    sink.key("custom");
    let others = || audit.custom.iter().filter(|(key, _)| *key != ID);
    sink.map(1 + others().count());
    sink.key(ID);
    sink.text(id);
    for (key, value) in others() {
        sink.key(key);
        sink.value(value);
    }
    sink.end_map();
    sink.end_map();
}

fn put_mutation(key: &str, mutation: Option<&BodyMutation>, sink: &mut impl ValueSink) {
    let Some(BodyMutation { index, data }) = mutation else {
        return;
    };
    sink.key(key);
    sink.map(2);
    sink.key("data");
    match data {
        Some(data) => sink.base64(data),
        None => sink.null(),
    }
    sink.key("chunk_index");
    sink.uint((*index).into());
    sink.end_map();
}

const FIELDS: [&str; 10] = [
    "version",
    "decision",
    "request_headers",
    "response_headers",
    "routing_metadata",
    "audit",
    "needs_more",
    "request_body_mutation",
    "response_body_mutation",
    "websocket_decision",
];

/// Reads an answer, and what it says to which request.
pub(super) fn decode<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<(Option<Text>, Response)> {
    let mut response = Response::default();
    let (mut id, mut version, mut decided) = (None, false, false);
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => {
                source.uint::<u32>()?;
                version = true;
            }
            1 => {
                response.decision = decision(source)?;
                decided = true;
            }
            2 => response.request_headers = ops(source)?,
            3 => response.response_headers = ops(source)?,
            4 => response.routing_metadata = source.pairs()?,
            5 => (id, response.audit) = audit(source, frame)?,
            6 => response.needs_more = source.optional(ValueSource::bool)?.unwrap_or(false),
            7 => response.request_body = source.optional(|source| mutation(source, frame))?,
            8 => response.response_body = source.optional(|source| mutation(source, frame))?,
            _ => response.websocket = source.optional(websocket_decision)?,
        }
        Ok(())
    })?;
    if !version {
        return Err(ParseError::missing("version"));
    }
    if !decided {
        return Err(ParseError::missing("decision"));
    }
    Ok((id, response))
}

/// Takes one of several things: a name alone, or a map of the name to what more there is to say.
fn choice<'a, S: ValueSource<'a>, T>(
    source: &mut S,
    mut with: impl FnMut(&str, Option<&mut S>) -> ParseResult<Option<T>>,
) -> ParseResult<T> {
    let at = source.at();
    let mut chosen = None;
    if source.shape()? == ValueShape::Text {
        let name = source.text()?;
        chosen = with(&name, None)?;
    } else {
        let mut count = 0;
        source.map(|name, source| {
            count += 1;
            chosen = with(name, Some(source))?;
            if chosen.is_none() {
                return Err(ParseError::new("unknown variant", source.at()));
            }
            Ok(())
        })?;
        if count != 1 {
            return Err(ParseError::new("expected exactly one variant", at));
        }
    }
    chosen.ok_or(ParseError::new("unknown variant", at))
}

fn decision<'a, S: ValueSource<'a>>(source: &mut S) -> ParseResult<Decision> {
    choice(source, |name, source| {
        Ok(match (name, source) {
            ("allow", None) => Some(Decision::Allow),
            ("allow", Some(source)) => source.null()?.then_some(Decision::Allow),
            ("block", Some(source)) => Some(block(source)?),
            ("redirect", Some(source)) => Some(redirect(source)?),
            ("challenge", Some(source)) => Some(challenge(source)?),
            _ => None,
        })
    })
}

fn block<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<Decision> {
    const FIELDS: [&str; 3] = ["status", "body", "headers"];
    let (mut status, mut body, mut headers) = (None, None, Default::default());
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => status = Some(source.uint()?),
            1 => body = source.optional(ValueSource::string)?,
            _ => headers = source.pairs()?,
        }
        Ok(())
    })?;
    Ok(Decision::Block {
        status: status.ok_or(ParseError::missing("status"))?,
        body,
        headers,
    })
}

fn redirect<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<Decision> {
    const FIELDS: [&str; 2] = ["url", "status"];
    let (mut url, mut status) = (None, None);
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => url = Some(source.string()?),
            _ => status = Some(source.uint()?),
        }
        Ok(())
    })?;
    Ok(Decision::Redirect {
        url: url.ok_or(ParseError::missing("url"))?,
        status: status.ok_or(ParseError::missing("status"))?,
    })
}

fn challenge<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<Decision> {
    const FIELDS: [&str; 2] = ["challenge_type", "params"];
    let (mut kind, mut params) = (None, None);
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => kind = Some(source.string()?),
            _ => params = Some(source.pairs()?),
        }
        Ok(())
    })?;
    Ok(Decision::Challenge {
        challenge_type: kind.ok_or(ParseError::missing("challenge_type"))?,
        params: params.ok_or(ParseError::missing("params"))?,
    })
}

fn ops<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<Vec<HeaderOp>> {
    let mut ops = Vec::new();
    if source.null()? {
        return Ok(ops);
    }
    source.seq(|_, source| {
        ops.push(choice(source, |name, source| {
            Ok(match (name, source) {
                ("set", Some(source)) => {
                    let (name, value) = field(source)?;
                    let value = value.ok_or(ParseError::missing("value"))?;
                    Some(HeaderOp::Set { name, value })
                }
                ("add", Some(source)) => {
                    let (name, value) = field(source)?;
                    let value = value.ok_or(ParseError::missing("value"))?;
                    Some(HeaderOp::Add { name, value })
                }
                ("remove", Some(source)) => Some(HeaderOp::Remove {
                    name: field(source)?.0,
                }),
                _ => None,
            })
        })?);
        Ok(())
    })?;
    Ok(ops)
}

fn field<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<(String, Option<String>)> {
    const FIELDS: [&str; 2] = ["name", "value"];
    let (mut name, mut value) = (None, None);
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => name = Some(source.string()?),
            _ => value = Some(source.string()?),
        }
        Ok(())
    })?;
    Ok((name.ok_or(ParseError::missing("name"))?, value))
}

fn audit<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<(Option<Text>, Audit)> {
    const FIELDS: [&str; 5] = ["tags", "rule_ids", "confidence", "reason_codes", "custom"];
    let mut audit = Audit::default();
    let mut id = None;
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => audit.tags = source.strings()?,
            1 => audit.rule_ids = source.strings()?,
            2 => audit.confidence = source.optional(ValueSource::f32)?,
            3 => audit.reason_codes = source.strings()?,
            _ => source.map(|key, source| {
                if key != ID {
                    audit.custom.insert(key.to_owned(), source.value()?);
                } else if source.shape()? == ValueShape::Text {
                    id = Some(source.shared(frame)?);
                } else {
                    source.skip()?;
                }
                Ok(())
            })?,
        }
        Ok(())
    })?;
    Ok((id, audit))
}

fn mutation<'a>(source: &mut impl ValueSource<'a>, frame: &Bytes) -> ParseResult<BodyMutation> {
    const FIELDS: [&str; 2] = ["data", "chunk_index"];
    let mut mutation = BodyMutation {
        index: 0,
        data: None,
    };
    source.fields(&FIELDS, |field, source| {
        match field {
            0 => mutation.data = source.optional(|source| source.data(frame))?,
            _ => mutation.index = source.uint()?,
        }
        Ok(())
    })?;
    Ok(mutation)
}

fn websocket_decision<'a, S: ValueSource<'a>>(source: &mut S) -> ParseResult<WebSocketDecision> {
    const FIELDS: [&str; 2] = ["code", "reason"];
    choice(source, |name, source| {
        Ok(match (name, source) {
            ("allow", None) => Some(WebSocketDecision::Allow),
            ("drop", None) => Some(WebSocketDecision::Drop),
            ("close", Some(source)) => {
                let (mut code, mut reason) = (None, None);
                source.fields(&FIELDS, |field, source| {
                    match field {
                        0 => code = Some(source.uint()?),
                        _ => reason = Some(source.string()?),
                    }
                    Ok(())
                })?;
                Some(WebSocketDecision::Close {
                    code: code.ok_or(ParseError::missing("code"))?,
                    reason: reason.ok_or(ParseError::missing("reason"))?,
                })
            }
            _ => None,
        })
    })
}
