//! Parses the head of a request into values.

use hailwire_callout::event::RequestHeaders;

use super::{
    body::{FormReader, ValueSink},
    rules::InspectedValue,
    seclang::Variable,
    transform::Transform,
    unread::{UnreadKind, UnreadSet},
};

/// Emits every value of a head.
pub(super) fn values(head: &RequestHeaders, sink: &mut ValueSink<'_>) {
    let metadata = head.metadata();
    let uri = head.uri();
    let line = format!("{} {uri} {}", head.method(), metadata.protocol);
    one(Variable::RemoteAddr, metadata.client_ip, sink);
    one(Variable::RequestMethod, head.method(), sink);
    one(Variable::RequestProtocol, metadata.protocol, sink);
    one(Variable::RequestLine, &line, sink);
    one(Variable::RequestUriRaw, uri, sink);
    let (authority, whole) = origin_form(uri);
    field(":authority", authority, sink);
    // Clients do not send fragments. Some servers cut one off, others take it as part of the path or the query.
    match whole.split_once('#') {
        None => target(whole, sink),
        Some((cut, fragment)) => {
            target(cut, sink);
            target(whole, sink);
            query(fragment, sink);
        }
    }
    for (name, value) in head.headers().iter() {
        give(
            Variable::RequestHeadersNames,
            name.as_bytes(),
            name.as_bytes(),
            sink,
        );
        // Empty fields are judged, too.
        sink(header(name, value.as_bytes()));
        if name.eq_ignore_ascii_case("cookie") {
            cookies(value, sink);
        } else if name.to_ascii_lowercase().ends_with("authorization") {
            credentials(name, value, sink);
        }
    }
}

/// The kinds of content of the body that cannot be read, according to the head.
pub(super) fn unread(head: &RequestHeaders) -> UnreadSet {
    let headers = head.headers();
    let mut codings = headers
        .get_all("content-encoding")
        .chain(headers.get_all("transfer-encoding"))
        .flat_map(|field| field.split(','))
        .map(str::trim);
    let plain = |coding: &str| {
        let plain = ["", "identity", "chunked", "trailers"];
        plain.iter().any(|own| own.eq_ignore_ascii_case(coding))
    };
    if codings.all(plain) {
        UnreadSet::default()
    } else {
        [UnreadKind::ContentEncoding].into_iter().collect()
    }
}

/// A path with its query.
fn target(target: &str, sink: &mut ValueSink<'_>) {
    let (path, rest) = target.split_once('?').unwrap_or((target, ""));
    one(Variable::RequestUri, target, sink);
    one(Variable::QueryString, rest, sink);
    let decoded = Transform::UrlDecode.apply(path.as_bytes());
    give(Variable::RequestFilename, b"", &decoded, sink);
    let base = decoded
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    give(Variable::RequestBasename, b"", base, sink);
    query(rest, sink);
}

fn query(query: &str, sink: &mut ValueSink<'_>) {
    if !query.is_empty() {
        let mut form = FormReader::query();
        form.feed(query.as_bytes(), sink);
        form.finish(sink);
    }
}

/// Each cookie; quoted values are also emitted as servers read them that allow semicolons within quotes.
fn cookies(cookies: &str, sink: &mut ValueSink<'_>) {
    let mut pair = |pair: &str| {
        let (name, value) = pair.trim().split_once('=').unwrap_or((pair.trim(), ""));
        let name = name.as_bytes();
        give(Variable::RequestCookiesNames, name, name, sink);
        let value = Transform::UrlDecode.apply(value.as_bytes());
        give(Variable::RequestCookies, name, &value, sink);
    };
    cookies.split(';').for_each(&mut pair);
    let mut rest = cookies;
    while let Some((_, quoted)) = rest.split_once("=\"") {
        let end = quoted.find('"').unwrap_or(quoted.len());
        if quoted[..end].contains([';', '\\']) {
            let value = Transform::EscapeSeqDecode.apply(&quoted.as_bytes()[..end]);
            give(Variable::RequestCookies, b"", &value, sink);
        }
        rest = &quoted[end..];
    }
}

/// User and password of `Basic` authentication (RFC 7617), decoded.
fn credentials(name: &str, value: &str, sink: &mut ValueSink<'_>) {
    let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        let decoded = Transform::Base64Decode.apply(rest.trim().as_bytes());
        let colon = decoded.iter().position(|byte| *byte == b':');
        let (user, password) = decoded.split_at(colon.unwrap_or(decoded.len()));
        sink(header(name, &decoded));
        sink(header(name, user));
        if let Some(password) = password.get(1..) {
            sink(header(name, password));
        }
    }
}

fn field(name: &str, value: &str, sink: &mut ValueSink<'_>) {
    if !value.is_empty() {
        sink(header(name, value.as_bytes()));
    }
}

fn header<'a>(name: &'a str, bytes: &'a [u8]) -> InspectedValue<'a> {
    InspectedValue {
        variable: Variable::RequestHeaders,
        name: name.as_bytes(),
        bytes,
        first: true,
    }
}

/// Whether a body may follow: it is announced, or the method usually has one.
pub(super) fn may_have_body(head: &RequestHeaders) -> bool {
    let headers = head.headers();
    match headers.get("content-length") {
        Some(length) => length.trim() != "0",
        None => {
            headers.get("transfer-encoding").is_some()
                || headers.get("content-type").is_some()
                || matches!(head.method(), "POST" | "PUT" | "PATCH")
        }
    }
}

/// Whether a body is announced.
pub(super) fn has_body(head: &RequestHeaders) -> bool {
    let length = head.headers().get("content-length").map(str::trim);
    length.is_some_and(|length| length != "0") || head.headers().get("transfer-encoding").is_some()
}

/// The authority, and the path with query, of `http://host/path?query`; otherwise the whole text as path.
fn origin_form(uri: &str) -> (&str, &str) {
    match uri.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|b| b.is_ascii_alphabetic()) => {
            let end = rest.find(['/', '?', '#']);
            let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
            (authority, if path.is_empty() { "/" } else { path })
        }
        _ => ("", uri),
    }
}

fn one(variable: Variable, text: &str, sink: &mut ValueSink<'_>) {
    give(variable, b"", text.as_bytes(), sink);
}

fn give(variable: Variable, name: &[u8], bytes: &[u8], sink: &mut ValueSink<'_>) {
    if !bytes.is_empty() {
        sink(InspectedValue {
            variable,
            name,
            bytes,
            first: true,
        });
    }
}
