//! Events other than heads.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{
    Encoding, json,
    pack::{self, PackSource},
    sink::ValueSink,
    source::{ParseError, ParseResult, ValueShape, ValueSource},
};
use crate::{
    Text,
    event::{
        BodyChunk, Configure, Guardrail, GuardrailCheck, Opcode, RequestComplete, WebSocketFrame,
    },
};

/// Writes a chunk of a request's body or, with `false`, of a response's.
pub(super) fn put_chunk(chunk: &BodyChunk, request: bool, encoding: Encoding, out: &mut BytesMut) {
    let id = &chunk.correlation_id;
    let length = base64_simd::STANDARD.encoded_length(chunk.data.len());
    out.reserve(192 + id.len() + length);
    match encoding {
        Encoding::Json => {
            out.put_slice(b"{\"correlation_id\":");
            json::put_text(id.as_bytes(), out);
            out.put_slice(b",\"data\":");
            json::put_base64(&chunk.data, out);
            out.put_slice(b",\"is_last\":");
            json::put_bool(chunk.is_last, out);
            out.put_slice(b",\"total_size\":");
            match chunk.total_size {
                Some(size) => json::put_uint(size, out),
                None => out.put_slice(b"null"),
            }
            out.put_slice(b",\"chunk_index\":");
            json::put_uint(u64::from(chunk.index), out);
            out.put_slice(if request {
                b",\"bytes_received\":"
            } else {
                b",\"bytes_sent\":"
            });
            json::put_uint(chunk.transferred, out);
            out.put_u8(b'}');
        }
        Encoding::MessagePack => {
            out.put_slice(b"\x86\xaecorrelation_id");
            pack::put_text(id, out);
            out.put_slice(b"\xa4data");
            pack::put_text_length(length, out);
            json::put_bare_base64(&chunk.data, out);
            out.put_slice(b"\xa7is_last");
            pack::put_bool(chunk.is_last, out);
            out.put_slice(b"\xaatotal_size");
            match chunk.total_size {
                Some(size) => pack::put_uint(size, out),
                None => out.put_u8(0xc0),
            }
            out.put_slice(b"\xabchunk_index");
            pack::put_uint(u64::from(chunk.index), out);
            out.put_slice(if request {
                b"\xaebytes_received"
            } else {
                b"\xaabytes_sent"
            });
            pack::put_uint(chunk.transferred, out);
        }
    }
}

/// Reads a chunk of a body that is MessagePack with its fields in their order; `None` for any other, and for what is
/// wrong, which [`chunk`] then says.
pub(super) fn chunk_in_order(frame: &Bytes) -> Option<BodyChunk> {
    let mut source = PackSource::new(frame);
    let fields = source.map_length().ok()?;
    if !source.literal(b"\xaecorrelation_id") {
        return None;
    }
    let id = source.raw_text().ok()?.len();
    let id = frame.slice(source.position() - id..source.position());
    if !source.literal(b"\xa4data") {
        return None;
    }
    let data = source.data(frame).ok()?;
    if !source.literal(b"\xa7is_last") {
        return None;
    }
    let is_last = source.bool().ok()?;
    let (mut total_size, mut index, mut transferred, mut found) = (None, 0, 0, 3);
    if source.literal(b"\xaatotal_size") {
        total_size = source.optional(ValueSource::u64).ok()?;
        found += 1;
    }
    if source.literal(b"\xabchunk_index") {
        index = source.uint().ok()?;
        found += 1;
    }
    if source.literal(b"\xaebytes_received") || source.literal(b"\xaabytes_sent") {
        transferred = source.u64().ok()?;
        found += 1;
    }
    if found != fields || source.position() != frame.len() {
        return None;
    }
    Some(BodyChunk {
        correlation_id: Text::try_from(id).ok()?,
        data,
        is_last,
        total_size,
        index,
        transferred,
    })
}

/// Reads a chunk of a body.
pub(super) fn chunk<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<BodyChunk> {
    const FIELDS: [&str; 7] = [
        "correlation_id",
        "data",
        "is_last",
        "total_size",
        "chunk_index",
        "bytes_received",
        "bytes_sent",
    ];
    let (mut id, mut data, mut is_last) = (None, None, None);
    let (mut total_size, mut index, mut transferred) = (None, None, None);
    if source.shape()? == ValueShape::Seq {
        // An array is what versions up to 0.6.20 wrote for raw bytes, and a size that was not known moved the
        // others forward.
        let mut numbers = [None; 3];
        let mut count = 0;
        source.seq(|at, source| {
            match at {
                0 => id = Some(source.shared(frame)?),
                1 => data = Some(source.data(frame)?),
                2 => is_last = Some(source.bool()?),
                3..=5 => {
                    numbers[at - 3] = source.optional(ValueSource::u64)?;
                    count = at - 2;
                }
                _ => source.skip()?,
            }
            Ok(())
        })?;
        let at = source.at();
        [total_size, index, transferred] = match (count, numbers) {
            (3, numbers) => numbers,
            (_, [index, transferred, _]) => [None, index, transferred],
        };
        if index.is_some_and(|index| index > u64::from(u32::MAX)) {
            return Err(ParseError::new("number out of range", at).of("chunk_index"));
        }
    } else {
        source.fields(&FIELDS, |field, source| {
            match field {
                0 => id = Some(source.shared(frame)?),
                1 => data = Some(source.data(frame)?),
                2 => is_last = Some(source.bool()?),
                3 => total_size = source.optional(ValueSource::u64)?,
                4 => index = source.optional(ValueSource::uint::<u32>)?.map(u64::from),
                _ => transferred = source.optional(ValueSource::u64)?.or(transferred),
            }
            Ok(())
        })?;
    }
    Ok(BodyChunk {
        correlation_id: id.ok_or(ParseError::missing("correlation_id"))?,
        data: data.ok_or(ParseError::missing("data"))?,
        is_last: is_last.ok_or(ParseError::missing("is_last"))?,
        total_size,
        index: u32::try_from(index.unwrap_or(0)).unwrap_or(u32::MAX),
        transferred: transferred.unwrap_or(0),
    })
}

pub(super) fn put_complete(event: &RequestComplete, sink: &mut impl ValueSink) {
    sink.map(7);
    sink.key("correlation_id");
    sink.text(&event.correlation_id);
    sink.key("status");
    sink.uint(event.status.into());
    sink.key("duration_ms");
    sink.uint(event.duration_ms);
    sink.key("request_body_size");
    sink.uint(event.request_body_size);
    sink.key("response_body_size");
    sink.uint(event.response_body_size);
    sink.key("upstream_attempts");
    sink.uint(event.upstream_attempts.into());
    sink.key("error");
    sink.optional(event.error.as_deref());
    sink.end_map();
}

pub(super) fn complete<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<RequestComplete> {
    const FIELDS: [&str; 7] = [
        "correlation_id",
        "status",
        "duration_ms",
        "request_body_size",
        "response_body_size",
        "upstream_attempts",
        "error",
    ];
    let mut event = RequestComplete::default();
    let mut seen = FieldSet::default();
    source.fields(&FIELDS, |field, source| {
        seen.note(field);
        match field {
            0 => event.correlation_id = source.shared(frame)?,
            1 => event.status = source.uint()?,
            2 => event.duration_ms = source.u64()?,
            3 => event.request_body_size = source.u64()?,
            4 => event.response_body_size = source.u64()?,
            5 => event.upstream_attempts = source.uint()?,
            _ => event.error = source.optional(ValueSource::string)?,
        }
        Ok(())
    })?;
    seen.all(&FIELDS[..6])?;
    Ok(event)
}

pub(super) fn put_websocket(event: &WebSocketFrame, sink: &mut impl ValueSink) {
    sink.map(8);
    sink.key("correlation_id");
    sink.text(&event.correlation_id);
    sink.key("opcode");
    sink.text(opcode_name(event.opcode));
    sink.key("data");
    sink.base64(&event.data);
    sink.key("client_to_server");
    sink.bool(event.client_to_server);
    sink.key("frame_index");
    sink.uint(event.index);
    sink.key("fin");
    sink.bool(event.fin);
    sink.key("route_id");
    sink.optional(event.route_id.as_deref());
    sink.key("client_ip");
    sink.text(&event.client_ip);
    sink.end_map();
}

pub(super) fn websocket<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<WebSocketFrame> {
    const FIELDS: [&str; 8] = [
        "correlation_id",
        "opcode",
        "data",
        "client_to_server",
        "frame_index",
        "fin",
        "route_id",
        "client_ip",
    ];
    let mut event = WebSocketFrame::default();
    let mut seen = FieldSet::default();
    source.fields(&FIELDS, |field, source| {
        seen.note(field);
        match field {
            0 => event.correlation_id = source.shared(frame)?,
            1 => {
                let at = source.at();
                let name = source.text()?;
                event.opcode = opcode(&name).ok_or(ParseError::new("unknown opcode", at))?;
            }
            2 => event.data = source.data(frame)?,
            3 => event.client_to_server = source.bool()?,
            4 => event.index = source.u64()?,
            5 => event.fin = source.bool()?,
            6 => event.route_id = source.optional(ValueSource::string)?,
            _ => event.client_ip = source.string()?,
        }
        Ok(())
    })?;
    seen.all(&FIELDS[..6])?;
    seen.one(7, "client_ip")?;
    Ok(event)
}

const fn opcode_name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Continuation => "continuation",
        Opcode::Text => "text",
        Opcode::Binary => "binary",
        Opcode::Close => "close",
        Opcode::Ping => "ping",
        Opcode::Pong => "pong",
    }
}

fn opcode(name: &str) -> Option<Opcode> {
    Some(match name {
        "continuation" => Opcode::Continuation,
        "text" => Opcode::Text,
        "binary" => Opcode::Binary,
        "close" => Opcode::Close,
        "ping" => Opcode::Ping,
        "pong" => Opcode::Pong,
        _ => return None,
    })
}

pub(super) fn put_guardrail(event: &Guardrail, sink: &mut impl ValueSink) {
    sink.map(5 + usize::from(event.model.is_some()) + usize::from(event.route_id.is_some()));
    sink.key("correlation_id");
    sink.text(&event.correlation_id);
    sink.key("inspection_type");
    sink.text(match event.inspection_type {
        GuardrailCheck::PromptInjection => "prompt_injection",
        GuardrailCheck::PiiDetection => "pii_detection",
    });
    sink.key("content");
    sink.text(&event.content);
    if let Some(model) = &event.model {
        sink.key("model");
        sink.text(model);
    }
    sink.key("categories");
    sink.texts(&event.categories);
    if let Some(route) = &event.route_id {
        sink.key("route_id");
        sink.text(route);
    }
    sink.key("metadata");
    sink.pairs(&event.metadata);
    sink.end_map();
}

pub(super) fn guardrail<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<Guardrail> {
    const FIELDS: [&str; 7] = [
        "correlation_id",
        "inspection_type",
        "content",
        "model",
        "categories",
        "route_id",
        "metadata",
    ];
    let mut event = Guardrail::default();
    let mut seen = FieldSet::default();
    source.fields(&FIELDS, |field, source| {
        seen.note(field);
        match field {
            0 => event.correlation_id = source.shared(frame)?,
            1 => {
                let at = source.at();
                event.inspection_type = match &*source.text()? {
                    "prompt_injection" => GuardrailCheck::PromptInjection,
                    "pii_detection" => GuardrailCheck::PiiDetection,
                    _ => return Err(ParseError::new("unknown inspection type", at)),
                };
            }
            2 => event.content = source.string()?,
            3 => event.model = source.optional(ValueSource::string)?,
            4 => event.categories = source.optional(ValueSource::strings)?.unwrap_or_default(),
            5 => event.route_id = source.optional(ValueSource::string)?,
            _ => event.metadata = source.pairs()?,
        }
        Ok(())
    })?;
    seen.all(&FIELDS[..3])?;
    Ok(event)
}

pub(super) fn put_configure(event: &Configure, sink: &mut impl ValueSink) {
    sink.map(3);
    sink.key("correlation_id");
    sink.text(&event.correlation_id);
    sink.key("config");
    sink.value(&event.config);
    sink.key("config_version");
    sink.optional(event.config_version.as_deref());
    sink.end_map();
}

pub(super) fn configure<'a>(
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> ParseResult<Configure> {
    const FIELDS: [&str; 3] = ["correlation_id", "config", "config_version"];
    let mut event = Configure::default();
    let mut seen = FieldSet::default();
    source.fields(&FIELDS, |field, source| {
        seen.note(field);
        match field {
            0 => event.correlation_id = source.shared(frame)?,
            1 => event.config = source.value()?,
            _ => event.config_version = source.optional(ValueSource::string)?,
        }
        Ok(())
    })?;
    seen.all(&FIELDS[..1])?;
    Ok(event)
}

/// Which fields were there.
#[derive(Default)]
struct FieldSet(u32);

impl FieldSet {
    const fn note(&mut self, field: usize) {
        self.0 |= 1 << field;
    }

    fn all(&self, fields: &'static [&'static str]) -> ParseResult<()> {
        let mut fields = fields.iter().enumerate();
        fields.try_for_each(|(index, field)| self.one(index, field))
    }

    const fn one(&self, index: usize, field: &'static str) -> ParseResult<()> {
        if self.0 & 1 << index == 0 {
            return Err(ParseError::missing(field));
        }
        Ok(())
    }
}
