//! Heads of requests and responses: built, read and written as they are kept.
//!
//! They are kept as MessagePack of the form that travels: `metadata`, `method`, `uri` and `headers` under their names, the
//! metadata in the order in which the protocol declares it. What comes in just this form is checked and indexed where
//! it lies; what comes in another (JSON, other orders, arrays) is written anew, once. Sending is copying.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{
    DecodeError, Encoding,
    json::{self, FixedBuffer, JsonSource, JsonWrite},
    pack::{self, PackSource},
    source::{ParseError, ParseResult, ValueShape, ValueSource},
};
use crate::{
    event::{METADATA, METHOD, Metadata, RequestHeaders, RequestIndex, ResponseHeaders, URI},
    headers::{self, DuplicateFilter, HeaderWriter, Headers, MapExtent, offset},
};

const PORT: usize = 3;
const TRACEPARENT: usize = 11;

/// What may be missing.
const fn is_optional(index: usize) -> bool {
    matches!(index, 4 | 6..=9 | TRACEPARENT)
}

impl RequestHeaders {
    /// The head of a request, to be sent.
    #[must_use]
    pub fn new<'a>(
        metadata: &Metadata<'_>,
        method: &str,
        uri: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let fields = headers.into_iter();
        let mut out = Vec::with_capacity(320 + uri.len() + 48 * fields.size_hint().0);
        out.push(0x84);
        let at = put_fields(&RequestParts::of(metadata, method, uri), &mut out);
        out.extend_from_slice(b"\xa7headers");
        let extent = headers::write(fields, &mut out);
        Self::within(Headers::within(out.into(), extent), at)
    }
}

impl ResponseHeaders {
    /// The head of a response, to be sent.
    #[must_use]
    pub fn new<'a>(
        correlation_id: &str,
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let fields = headers.into_iter();
        let mut out = Vec::with_capacity(64 + correlation_id.len() + 48 * fields.size_hint().0);
        let id = put_response_fields(correlation_id, status, &mut out);
        let extent = headers::write(fields, &mut out);
        Self::within(Headers::within(out.into(), extent), id, status)
    }
}

pub(super) fn encode_request(head: &RequestHeaders, encoding: Encoding, out: &mut BytesMut) {
    let (arena, at) = (head.headers().arena(), head.index());
    let packed = head.headers().packed();
    match encoding {
        Encoding::MessagePack => {
            let fields = arena.get(at.fields.0 as usize..at.fields.1 as usize);
            let fields = fields.unwrap_or_default();
            out.reserve(9 + fields.len() + packed.len());
            out.put_u8(0x84);
            out.put_slice(fields);
            out.put_slice(b"\xa7headers");
            out.put_slice(packed);
        }
        Encoding::Json => {
            let bound = 512 + arena.len() + json_overhead(head.headers());
            put_json(
                bound,
                out,
                |out| request_json(head, out),
                |out| request_json(head, out),
            );
        }
    }
}

/// Writes JSON into a buffer that it should fit, and if it does not, or needs escapes, once more without one.
fn put_json(
    bound: usize,
    out: &mut BytesMut,
    quick: impl FnOnce(&mut FixedBuffer<'_>),
    slow: impl FnOnce(&mut BytesMut),
) {
    let start = out.len();
    out.resize(start + bound, 0);
    let mut place = FixedBuffer::new(out.get_mut(start..).unwrap_or_default());
    quick(&mut place);
    let written = place.written();
    out.truncate(start + written.unwrap_or(0));
    if written.is_none() {
        slow(out);
    }
}

/// How much larger headers are in JSON, without escapes.
const fn json_overhead(headers: &Headers) -> usize {
    8 * headers.len() + 4 * headers.iter_len()
}

fn request_json(head: &RequestHeaders, out: &mut impl JsonWrite) {
    let text = |index| head.bytes(index).unwrap_or_default();
    out.put(b"{\"correlation_id\":");
    out.text(text(0));
    out.put(b",\"metadata\":{\"correlation_id\":");
    out.text(text(0));
    out.put(b",\"request_id\":");
    out.text(text(1));
    out.put(b",\"client_ip\":");
    out.text(text(2));
    out.put(b",\"client_port\":");
    json::put_uint(head.index().client_port, out);
    out.put(b",\"server_name\":");
    put_optional_json(head.bytes(4), out);
    out.put(b",\"protocol\":");
    out.text(text(5));
    out.put(b",\"tls_version\":");
    put_optional_json(head.bytes(6), out);
    out.put(b",\"tls_cipher\":");
    put_optional_json(head.bytes(7), out);
    out.put(b",\"route_id\":");
    put_optional_json(head.bytes(8), out);
    out.put(b",\"upstream_id\":");
    put_optional_json(head.bytes(9), out);
    out.put(b",\"timestamp\":");
    out.text(text(10));
    if let Some(traceparent) = head.bytes(TRACEPARENT) {
        out.put(b",\"traceparent\":");
        out.text(traceparent);
    }
    out.put(b"},\"method\":");
    out.text(text(METHOD));
    out.put(b",\"uri\":");
    out.text(text(URI));
    out.put(b",\"headers\":");
    put_headers_json(head.headers(), out);
    out.put(b"}");
}

pub(super) fn encode_response(head: &ResponseHeaders, encoding: Encoding, out: &mut BytesMut) {
    let (id, packed) = (head.id_bytes(), head.headers().packed());
    match encoding {
        Encoding::MessagePack => {
            out.reserve(48 + id.len() + packed.len());
            out.put_slice(b"\x83\xaecorrelation_id");
            pack::put_text_length(id.len(), out);
            out.put_slice(id);
            out.put_slice(b"\xa6status");
            pack::put_uint(u64::from(head.status()), out);
            out.put_slice(b"\xa7headers");
            out.put_slice(packed);
        }
        Encoding::Json => {
            let bound = 96 + id.len() + packed.len() + json_overhead(head.headers());
            put_json(
                bound,
                out,
                |out| response_json(head, out),
                |out| response_json(head, out),
            );
        }
    }
}

fn response_json(head: &ResponseHeaders, out: &mut impl JsonWrite) {
    out.put(b"{\"correlation_id\":");
    out.text(head.id_bytes());
    out.put(b",\"status\":");
    json::put_uint(head.status(), out);
    out.put(b",\"headers\":");
    put_headers_json(head.headers(), out);
    out.put(b"}");
}

pub(super) fn decode_request(
    frame: Bytes,
    encoding: Encoding,
) -> Result<RequestHeaders, DecodeError> {
    Ok(match encoding {
        Encoding::MessagePack => match index_request(&frame) {
            Some((at, extent)) => RequestHeaders::within(Headers::within(frame, extent), at),
            None => {
                let mut source = PackSource::new(&frame);
                let head = rewrite_request(&mut source)?;
                source.end()?;
                head
            }
        },
        Encoding::Json => {
            let mut source = JsonSource::new(&frame)?;
            let head = rewrite_request(&mut source)?;
            source.end()?;
            head
        }
    })
}

pub(super) fn decode_response(
    frame: Bytes,
    encoding: Encoding,
) -> Result<ResponseHeaders, DecodeError> {
    Ok(match encoding {
        Encoding::MessagePack => match index_response(&frame) {
            Some((id, status, extent)) => {
                ResponseHeaders::within(Headers::within(frame, extent), id, status)
            }
            None => {
                let mut source = PackSource::new(&frame);
                let head = rewrite_response(&mut source)?;
                source.end()?;
                head
            }
        },
        Encoding::Json => {
            let mut source = JsonSource::new(&frame)?;
            let head = rewrite_response(&mut source)?;
            source.end()?;
            head
        }
    })
}

/// Checks and indexes a request's head that is of the form that is kept; `None` for any other, and for what is
/// wrong, which the longer way then says.
fn index_request(frame: &[u8]) -> Option<(RequestIndex, MapExtent)> {
    let mut source = PackSource::new(frame);
    let mut at = RequestIndex::default();
    if !source.literal(b"\x84") {
        return None;
    }
    let first = offset(source.position());
    if !source.literal(b"\xa8metadata") {
        return None;
    }
    let traced = source.literal(b"\x8c");
    if !traced && !source.literal(b"\x8b") {
        return None;
    }
    macro_rules! text {
        ($key:literal, $index:expr) => {
            if !source.literal($key) {
                return None;
            }
            at.texts[$index] = offset(source.position());
            source.raw_text().ok()?;
        };
    }
    macro_rules! optional {
        ($key:literal, $index:expr) => {
            if !source.literal($key) {
                return None;
            }
            if !source.literal(b"\xc0") {
                at.texts[$index] = offset(source.position());
                source.raw_text().ok()?;
            }
        };
    }
    text!(b"\xaecorrelation_id", 0);
    text!(b"\xaarequest_id", 1);
    text!(b"\xa9client_ip", 2);
    if !source.literal(b"\xabclient_port") {
        return None;
    }
    at.client_port = source.uint().ok()?;
    optional!(b"\xabserver_name", 4);
    text!(b"\xa8protocol", 5);
    optional!(b"\xabtls_version", 6);
    optional!(b"\xaatls_cipher", 7);
    optional!(b"\xa8route_id", 8);
    optional!(b"\xabupstream_id", 9);
    text!(b"\xa9timestamp", 10);
    if traced {
        optional!(b"\xabtraceparent", TRACEPARENT);
    }
    text!(b"\xa6method", METHOD);
    text!(b"\xa3uri", URI);
    at.fields = (first, offset(source.position()));
    let extent = index_headers(&mut source)?;
    (extent.end as usize == frame.len()).then_some((at, extent))
}

fn index_response(frame: &[u8]) -> Option<(u32, u16, MapExtent)> {
    let mut source = PackSource::new(frame);
    if !source.literal(b"\x83\xaecorrelation_id") {
        return None;
    }
    let id = offset(source.position());
    source.raw_text().ok()?;
    if !source.literal(b"\xa6status") {
        return None;
    }
    let status = source.uint().ok()?;
    let extent = index_headers(&mut source)?;
    (extent.end as usize == frame.len()).then_some((id, status, extent))
}

/// Checks the headers.
fn index_headers(source: &mut PackSource<'_>) -> Option<MapExtent> {
    if !source.literal(b"\xa7headers") {
        return None;
    }
    let start = offset(source.position());
    let mut seen = DuplicateFilter::default();
    let mut all = 0;
    let names = source.map_length().ok()?;
    for _ in 0..names {
        seen.add(source.raw_text().ok()?);
        let values = source.seq_length().ok()?;
        for _ in 0..values {
            source.raw_text().ok()?;
        }
        all += values;
    }
    let end = offset(source.position());
    // Of two fields of one name a peer might see only the last.
    if seen.perhaps_twice && headers::has_twice(source.between(start, end)) {
        return None;
    }
    Some(MapExtent {
        start,
        end,
        names: offset(names),
        values: offset(all),
    })
}

/// A request's head in chunks.
#[derive(Default)]
struct RequestParts<'a> {
    texts: [Option<Cow<'a, str>>; URI + 1],
    client_port: Option<u16>,
}

impl<'a> RequestParts<'a> {
    fn of(metadata: &Metadata<'a>, method: &'a str, uri: &'a str) -> Self {
        let some = |text| Some(Cow::Borrowed(text));
        let maybe = |text: Option<&'a str>| text.map(Cow::Borrowed);
        Self {
            texts: [
                some(metadata.correlation_id),
                some(metadata.request_id),
                some(metadata.client_ip),
                None,
                maybe(metadata.server_name),
                some(metadata.protocol),
                maybe(metadata.tls_version),
                maybe(metadata.tls_cipher),
                maybe(metadata.route_id),
                maybe(metadata.upstream_id),
                some(metadata.timestamp),
                maybe(metadata.traceparent),
                some(method),
                some(uri),
            ],
            client_port: Some(metadata.client_port),
        }
    }

    /// Takes the metadata.
    fn metadata(&mut self, source: &mut impl ValueSource<'a>) -> ParseResult<()> {
        source.fields(&METADATA, |index, source| {
            if index == PORT {
                self.client_port = Some(source.uint()?);
            } else {
                let text = if is_optional(index) {
                    source.optional(ValueSource::text)?
                } else {
                    Some(source.text()?)
                };
                if let Some(place) = self.texts.get_mut(index) {
                    *place = text;
                }
            }
            Ok(())
        })
    }

    fn complete(&self) -> ParseResult<()> {
        for (index, text) in self.texts.iter().enumerate() {
            if text.is_none() && index != PORT && !is_optional(index) {
                return Err(ParseError::missing(match index {
                    METHOD => "method",
                    URI => "uri",
                    index => METADATA[index],
                }));
            }
        }
        match self.client_port {
            Some(_) => Ok(()),
            None => Err(ParseError::missing("client_port")),
        }
    }
}

/// Writes everything but the headers.
fn put_fields(parts: &RequestParts<'_>, out: &mut Vec<u8>) -> RequestIndex {
    let mut at = RequestIndex {
        client_port: parts.client_port.unwrap_or_default(),
        ..RequestIndex::default()
    };
    let [
        id,
        request_id,
        ip,
        _,
        server,
        protocol,
        version,
        cipher,
        route,
        upstream,
        time,
        trace,
        method,
        uri,
    ] = &parts.texts;
    let first = offset(out.len());
    out.extend_from_slice(if trace.is_some() {
        b"\xa8metadata\x8c\xaecorrelation_id"
    } else {
        b"\xa8metadata\x8b\xaecorrelation_id"
    });
    at.put(0, id, b"\xaarequest_id", out);
    at.put(1, request_id, b"\xa9client_ip", out);
    at.put(2, ip, b"\xabclient_port", out);
    pack::put_uint(u64::from(at.client_port), out);
    out.extend_from_slice(b"\xabserver_name");
    at.put(4, server, b"\xa8protocol", out);
    at.put(5, protocol, b"\xabtls_version", out);
    at.put(6, version, b"\xaatls_cipher", out);
    at.put(7, cipher, b"\xa8route_id", out);
    at.put(8, route, b"\xabupstream_id", out);
    at.put(9, upstream, b"\xa9timestamp", out);
    if trace.is_some() {
        at.put(10, time, b"\xabtraceparent", out);
        at.put(TRACEPARENT, trace, b"\xa6method", out);
    } else {
        at.put(10, time, b"\xa6method", out);
    }
    at.put(METHOD, method, b"\xa3uri", out);
    at.put(URI, uri, b"", out);
    at.fields = (first, offset(out.len()));
    at
}

impl RequestIndex {
    /// Writes a text, or nothing, and what comes after it.
    #[inline]
    fn put(&mut self, index: usize, text: &Option<Cow<'_, str>>, next: &[u8], out: &mut Vec<u8>) {
        match text {
            Some(text) => {
                self.texts[index] = offset(out.len());
                pack::put_text(text, out);
            }
            None => out.push(0xc0),
        }
        out.extend_from_slice(next);
    }
}

/// Writes everything of a response but the headers: where the id is.
fn put_response_fields(id: &str, status: u16, out: &mut Vec<u8>) -> u32 {
    out.extend_from_slice(b"\x83\xaecorrelation_id");
    let at = offset(out.len());
    pack::put_text(id, out);
    out.extend_from_slice(b"\xa6status");
    pack::put_uint(u64::from(status), out);
    out.extend_from_slice(b"\xa7headers");
    at
}

/// Reads a request's head of any form into the one that is kept.
fn rewrite_request<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<RequestHeaders> {
    const FIELDS: [&str; 4] = ["metadata", "method", "uri", "headers"];
    let mut parts = RequestParts::default();
    let mut out = Vec::with_capacity(1024);
    let mut headers = None;
    source.fields(&FIELDS, |index, source| {
        match index {
            0 => parts.metadata(source)?,
            1 => parts.texts[METHOD] = Some(source.text()?),
            2 => parts.texts[URI] = Some(source.text()?),
            _ => headers = Some(rewrite_headers(source, &mut out)?),
        }
        Ok(())
    })?;
    parts.complete()?;
    let extent = headers.ok_or(ParseError::missing("headers"))?;
    let at = put_fields(&parts, &mut out);
    Ok(RequestHeaders::within(
        Headers::within(out.into(), extent),
        at,
    ))
}

fn rewrite_response<'a>(source: &mut impl ValueSource<'a>) -> ParseResult<ResponseHeaders> {
    const FIELDS: [&str; 3] = ["correlation_id", "status", "headers"];
    let (mut id, mut status, mut headers) = (None, None, None);
    let mut out = Vec::with_capacity(1024);
    source.fields(&FIELDS, |index, source| {
        match index {
            0 => id = Some(source.text()?),
            1 => status = Some(source.uint()?),
            _ => headers = Some(rewrite_headers(source, &mut out)?),
        }
        Ok(())
    })?;
    let id = id.ok_or(ParseError::missing("correlation_id"))?;
    let status = status.ok_or(ParseError::missing("status"))?;
    let extent = headers.ok_or(ParseError::missing("headers"))?;
    let at = put_response_fields(&id, status, &mut out);
    Ok(ResponseHeaders::within(
        Headers::within(out.into(), extent),
        at,
        status,
    ))
}

/// Reads headers into the form in which they are kept.
fn rewrite_headers<'a>(
    source: &mut impl ValueSource<'a>,
    out: &mut Vec<u8>,
) -> ParseResult<MapExtent> {
    // Offset 0 means that something is not there.
    if out.is_empty() {
        out.push(0);
    }
    let mut writer = HeaderWriter::new(None, out);
    source.map(|name, source| {
        writer.name(name.as_bytes());
        if source.shape()? == ValueShape::Text {
            writer.value(source.text()?.as_bytes());
            return Ok(());
        }
        source.seq(|_, source| {
            writer.value(source.text()?.as_bytes());
            Ok(())
        })
    })?;
    Ok(writer.finish())
}

fn put_optional_json(text: Option<&[u8]>, out: &mut impl JsonWrite) {
    match text {
        Some(text) => out.text(text),
        None => out.put(b"null"),
    }
}

fn put_headers_json(headers: &Headers, out: &mut impl JsonWrite) {
    out.put(b"{");
    let mut comma = false;
    for (name, mut values) in headers.packed_names() {
        if comma {
            out.put(b",");
        }
        comma = true;
        out.text(name);
        out.put(b":[");
        if let Some(first) = values.next_bytes() {
            out.text(first);
        }
        while let Some(value) = values.next_bytes() {
            out.put(b",");
            out.text(value);
        }
        out.put(b"]");
    }
    out.put(b"}");
}
