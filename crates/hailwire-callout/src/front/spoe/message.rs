//! Turns the arguments of HAProxy's messages into the events of Agent Protocol v2.
//!
//! Two messages, by their names, with arguments by theirs; those marked * must be there:
//!
//! | message | argument | sample of HAProxy |
//! |---|---|---|
//! | `hail-request` | `id` | `unique-id`: the request's name in logs |
//! | | `method` * | `method` |
//! | | `uri` * | `pathq`; or `path` and `query` |
//! | | `version` | `req.ver` |
//! | | `headers` * | `req.hdrs_bin`, or `req.hdrs` |
//! | | `body` | `req.body`, with `option http-buffer-request` |
//! | | `src`, `src_port` | `src`, `src_port` |
//! | | `sni`, `tls`, `cipher` | `ssl_fc_sni`, `ssl_fc_protocol`, `ssl_fc_cipher` |
//! | | `route` | `fe_name` |
//! | `hail-response` | `id` | `unique-id`: which request it answers |
//! | | `status` * | `status` |
//! | | `headers` * | `res.hdrs_bin`, or `res.hdrs` |
//!
//! A body that does not fit HAProxy's buffer reaches us in part. It counts as whole only where its length is the
//! `content-length`, or, without one, where head and body together fill less than half of a frame, so that the buffer
//! was not full ([`SpoeRequest::is_whole`]).

use std::borrow::Cow;

use bytes::Bytes;

use super::frame::{FrameReader, SpoeMessage, SpopValue};
use crate::{
    event::{Metadata, RequestHeaders, ResponseHeaders},
    front::{now, text},
};

/// The name of the message that tells of a request.
pub const REQUEST: &[u8] = b"hail-request";

/// The name of the message that tells of a response.
pub const RESPONSE: &[u8] = b"hail-response";

/// Header fields of a request or response that are taken; HAProxy's own bound, `tune.http.maxhdr`, is 101 by default.
pub const MAX_FIELDS: usize = 1024;

/// A request as HAProxy tells of it.
#[derive(Debug, PartialEq, Eq)]
pub struct SpoeRequest {
    /// Its head.
    pub head: RequestHeaders,
    /// As much of its body as there is.
    pub body: Bytes,
    /// The `content-length`.
    pub length: Option<u64>,
    /// Head and body were far from filling a frame.
    small: bool,
    /// There is a `transfer-encoding`.
    coded: bool,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// An argument is missing, or of a type that it cannot have.
    #[error("argument {0} is missing or has the wrong type")]
    Argument(&'static str),
    /// The headers are not in the form of `req.hdrs_bin` or `req.hdrs`.
    #[error("unknown header encoding, or too many headers")]
    Headers,
}

impl SpoeRequest {
    /// Reads a message; `frame` is the agreed size of a frame.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(
        message: &SpoeMessage,
        correlation_id: &str,
        frame: u32,
    ) -> Result<Self, MessageError> {
        let text = |name| bytes_of(message, name).map(|bytes| text(bytes));
        let method = text("method").ok_or(MessageError::Argument("method"))?;
        let uri = match text("uri") {
            Some(uri) => uri,
            None => joined(
                text("path").ok_or(MessageError::Argument("uri"))?,
                text("query"),
            ),
        };
        let raw = bytes_of(message, "headers").ok_or(MessageError::Argument("headers"))?;
        let fields = fields(raw)?;
        let field = |name: &str| {
            let mut of = fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            of.next().map(|(_, value)| &**value)
        };
        let request_id = text("id").filter(|id| !id.is_empty());
        let protocol = match text("version") {
            Some(version) => format!("HTTP/{}", version.trim_end_matches(".0")),
            None => "HTTP".to_owned(),
        };
        let protocol = match protocol.as_str() {
            "HTTP/1" => "HTTP/1.0".to_owned(),
            _ => protocol,
        };
        let (sni, tls, cipher) = (text("sni"), text("tls"), text("cipher"));
        let route = text("route");
        let client_ip = message.arg("src").map(address).unwrap_or_default();
        let client_port = message.arg("src_port").and_then(SpopValue::number);
        let metadata = Metadata {
            correlation_id,
            request_id: request_id.as_deref().unwrap_or(correlation_id),
            client_ip: &client_ip,
            client_port: client_port.and_then(|p| p.try_into().ok()).unwrap_or(0),
            server_name: sni.as_deref().or_else(|| field("host")),
            protocol: &protocol,
            tls_version: tls.as_deref(),
            tls_cipher: cipher.as_deref(),
            route_id: route.as_deref(),
            upstream_id: None,
            timestamp: &now(),
            traceparent: field("traceparent"),
        };
        let body = bytes_of(message, "body").cloned().unwrap_or_default();
        let length = field("content-length").and_then(|l| l.parse().ok());
        let coded = field("transfer-encoding").is_some();
        let pairs = fields.iter().map(|(name, value)| (&**name, &**value));
        Ok(Self {
            head: RequestHeaders::new(&metadata, &method, &uri, pairs),
            small: raw.len() + body.len() < frame as usize / 2,
            body,
            length,
            coded,
        })
    }

    /// Whether there is a body.
    #[must_use]
    pub fn has_body(&self) -> bool {
        !self.body.is_empty() || self.length.is_some_and(|l| l > 0) || self.coded
    }

    /// Whether all of the body is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self.length {
            Some(length) => length == self.body.len() as u64,
            None if self.coded => self.small && !self.body.is_empty(),
            None => self.small,
        }
    }
}

/// Reads the message of a response.
///
/// # Errors
///
/// What is wrong with it.
pub fn response(
    message: &SpoeMessage,
    correlation_id: &str,
) -> Result<ResponseHeaders, MessageError> {
    let status = message.arg("status").and_then(|value| {
        let text = || text(value.bytes()?).parse().ok();
        value.number().or_else(text)
    });
    let status = status
        .and_then(|status| status.try_into().ok())
        .ok_or(MessageError::Argument("status"))?;
    let raw = bytes_of(message, "headers").ok_or(MessageError::Argument("headers"))?;
    let fields = fields(raw)?;
    let pairs = fields.iter().map(|(name, value)| (&**name, &**value));
    Ok(ResponseHeaders::new(correlation_id, status, pairs))
}

fn bytes_of<'a>(message: &'a SpoeMessage, name: &str) -> Option<&'a Bytes> {
    message.arg(name).and_then(SpopValue::bytes)
}

fn joined<'a>(path: Cow<'a, str>, query: Option<Cow<'a, str>>) -> Cow<'a, str> {
    match query.filter(|query| !query.is_empty()) {
        Some(query) => format!("{path}?{query}").into(),
        None => path,
    }
}

fn address(value: &SpopValue) -> String {
    match value {
        SpopValue::V4(address) => address.to_string(),
        SpopValue::V6(address) => address.to_string(),
        _ => value
            .bytes()
            .map(|b| text(b).into_owned())
            .unwrap_or_default(),
    }
}

type FieldPair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Header fields in either form: only the binary one ends with two zero bytes, an empty name and an empty value.
fn fields(raw: &Bytes) -> Result<Vec<FieldPair<'_>>, MessageError> {
    let binary = raw.ends_with(&[0, 0]);
    if binary {
        return binary_fields(raw);
    }
    let lines = raw.split(|b| *b == b'\n');
    let lines = lines.map(<[u8]>::trim_ascii_end).filter(|l| !l.is_empty());
    let field = |line: &'_ [u8]| line.iter().position(|b| *b == b':');
    let fields = lines.map(|line| {
        let colon = field(line).ok_or(MessageError::Headers)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        Ok((text(name), text(value)))
    });
    let fields = fields.take(MAX_FIELDS + 1).collect::<Result<Vec<_>, _>>()?;
    match fields.len() <= MAX_FIELDS {
        true => Ok(fields),
        false => Err(MessageError::Headers),
    }
}

/// Names and values, each after its length, up to an empty name with an empty value.
fn binary_fields(raw: &Bytes) -> Result<Vec<FieldPair<'_>>, MessageError> {
    let mut rest = FrameReader(raw.clone());
    let mut at = 0;
    let mut next = || {
        let part = rest.text().map_err(|_| MessageError::Headers)?;
        at = raw.len() - rest.0.len();
        raw.get(at - part.len()..at).ok_or(MessageError::Headers)
    };
    let mut fields = Vec::with_capacity(16);
    loop {
        let (name, value) = (next()?, next()?);
        if name.is_empty() && value.is_empty() {
            return Ok(fields);
        }
        if fields.len() == MAX_FIELDS {
            return Err(MessageError::Headers);
        }
        fields.push((text(name), text(value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(args: &[(&str, SpopValue)]) -> SpoeMessage {
        let own =
            |(name, value): &(&str, SpopValue)| (Bytes::from((*name).to_owned()), value.clone());
        SpoeMessage {
            name: Bytes::from_static(REQUEST),
            args: args.iter().map(own).collect(),
        }
    }

    fn value(text: &str) -> SpopValue {
        SpopValue::Text(text.to_owned().into())
    }

    fn request(headers: &'static [u8], body: &'static [u8]) -> Result<SpoeRequest, MessageError> {
        let args = [
            ("method", value("POST")),
            ("uri", value("/a?b")),
            ("version", value("1.1")),
            ("headers", SpopValue::Binary(headers.into())),
            ("body", SpopValue::Binary(body.into())),
            ("src", SpopValue::V4([192, 0, 2, 7].into())),
            ("src_port", SpopValue::Int64(4711)),
        ];
        SpoeRequest::read(&message(&args), "c1", 16380)
    }

    #[test]
    fn headers_are_read_in_both_forms() {
        let binary = request(b"\x04host\x01h\x05x-one\x01\xfc\0\0", b"").unwrap();
        let text = request(b"host: h\r\nx-one:  \xfc \r\n\r\n", b"").unwrap();
        assert_eq!(binary.head.headers(), text.head.headers());
        assert_eq!(binary.head.headers().get("x-one"), Some("ü"));
        let metadata = binary.head.metadata();
        assert_eq!(
            (metadata.client_ip, metadata.client_port),
            ("192.0.2.7", 4711)
        );
        assert_eq!(
            (metadata.protocol, metadata.server_name),
            ("HTTP/1.1", Some("h"))
        );
        assert!(!binary.has_body() && binary.is_whole());
    }

    #[test]
    fn a_path_and_a_query_are_a_uri() {
        let with = |query| {
            let args = [
                ("method", value("GET")),
                ("path", value("/a")),
                ("query", query),
                ("headers", value("\r\n")),
            ];
            let request = SpoeRequest::read(&message(&args), "c1", 16380).unwrap();
            request.head.uri().to_owned()
        };
        assert_eq!(with(value("b=1")), "/a?b=1");
        assert_eq!(with(SpopValue::Null), "/a");
    }

    #[test]
    fn a_body_is_whole_only_where_that_is_certain() {
        let whole = |headers, body| {
            let request = request(headers, body).unwrap();
            request.has_body().then(|| request.is_whole())
        };
        assert_eq!(whole(b"content-length: 2\r\n\r\n", b"ab"), Some(true));
        assert_eq!(whole(b"content-length: 3\r\n\r\n", b"ab"), Some(false));
        assert_eq!(whole(b"content-length: 3\r\n\r\n", b""), Some(false));
        assert_eq!(
            whole(b"transfer-encoding: chunked\r\n\r\n", b"ab"),
            Some(true)
        );
        assert_eq!(
            whole(b"transfer-encoding: chunked\r\n\r\n", b""),
            Some(false)
        );
        static FULL: [u8; 9000] = [b'x'; 9000];
        assert_eq!(
            whole(b"transfer-encoding: chunked\r\n\r\n", &FULL),
            Some(false)
        );
        assert_eq!(whole(b"\r\n", b""), None);
    }

    #[test]
    fn what_is_missing_is_said() {
        let without = message(&[("method", value("GET")), ("uri", value("/"))]);
        let wrong = SpoeRequest::read(&without, "c1", 16380);
        assert_eq!(wrong, Err(MessageError::Argument("headers")));
        assert_eq!(request(b"\x04hos", b""), Err(MessageError::Headers));
        assert_eq!(request(b"no colon\r\n", b""), Err(MessageError::Headers));
    }

    #[test]
    fn more_fields_than_the_bound_are_refused() {
        let most = "a:b\r\n".repeat(MAX_FIELDS);
        let with = |headers: String| {
            let args = [
                ("method", value("GET")),
                ("uri", value("/")),
                ("headers", value(&headers)),
            ];
            SpoeRequest::read(&message(&args), "c1", 16380).map(|_| ())
        };
        assert_eq!(with(most.clone()), Ok(()));
        assert_eq!(with(most + "a:b\r\n"), Err(MessageError::Headers));
    }
}
