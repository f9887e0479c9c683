//! The head of a request, taken apart into values.

use hailwire_callout::event::RequestHeaders;

use super::{
    body::{Form, Sink},
    rules::Value,
    seclang::Variable,
    transform::Transform,
    unread::{Unread, UnreadSet},
};

/// Gives every value of a head.
pub(super) fn values(head: &RequestHeaders, sink: &mut Sink<'_>) {
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
    // No client sends a fragment. Some servers cut it off, and others take it for more of the path or the query.
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
        // An empty one says something, too.
        sink(header(name, value.as_bytes()));
        if name.eq_ignore_ascii_case("cookie") {
            cookies(value, sink);
        } else if name.to_ascii_lowercase().ends_with("authorization") {
            credentials(name, value, sink);
        }
    }
}

/// What of a request's body is not read, as its head says.
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
        [Unread::ContentEncoding].into_iter().collect()
    }
}

/// A path with its query.
fn target(target: &str, sink: &mut Sink<'_>) {
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

fn query(query: &str, sink: &mut Sink<'_>) {
    if !query.is_empty() {
        let mut form = Form::query();
        form.feed(query.as_bytes(), sink);
        form.finish(sink);
    }
}

/// Each cookie, and besides one in quotes as those read it to whom a semicolon in quotes is part of the value.
fn cookies(cookies: &str, sink: &mut Sink<'_>) {
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

/// Name and password of `Basic` (RFC 7617), as the server reads them.
fn credentials(name: &str, value: &str, sink: &mut Sink<'_>) {
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

fn field(name: &str, value: &str, sink: &mut Sink<'_>) {
    if !value.is_empty() {
        sink(header(name, value.as_bytes()));
    }
}

fn header<'a>(name: &'a str, bytes: &'a [u8]) -> Value<'a> {
    Value {
        variable: Variable::RequestHeaders,
        name: name.as_bytes(),
        bytes,
        first: true,
    }
}

/// Whether a body may follow: one is announced, or the method is one that has one.
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

/// Whether a body does follow.
pub(super) fn has_body(head: &RequestHeaders) -> bool {
    let length = head.headers().get("content-length").map(str::trim);
    length.is_some_and(|length| length != "0") || head.headers().get("transfer-encoding").is_some()
}

/// The authority, and path and query, of `http://host/path?query`; or what there is.
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

fn one(variable: Variable, text: &str, sink: &mut Sink<'_>) {
    give(variable, b"", text.as_bytes(), sink);
}

fn give(variable: Variable, name: &[u8], bytes: &[u8], sink: &mut Sink<'_>) {
    if !bytes.is_empty() {
        sink(Value {
            variable,
            name,
            bytes,
            first: true,
        });
    }
}
