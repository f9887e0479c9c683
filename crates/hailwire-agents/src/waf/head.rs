//! The head of a request, taken apart into values.

use hailwire_callout::event::RequestHeaders;

use super::{
    body::{Form, Sink},
    rules::Value,
    seclang::Variable,
    transform::Transform,
};

/// Gives every value of a head.
pub(super) fn values(head: &RequestHeaders, sink: &mut Sink<'_>) {
    let metadata = head.metadata();
    let uri = head.uri();
    let target = origin_form(uri);
    let target = target.split('#').next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let line = format!("{} {uri} {}", head.method(), metadata.protocol);
    one(Variable::RemoteAddr, metadata.client_ip, sink);
    one(Variable::RequestMethod, head.method(), sink);
    one(Variable::RequestProtocol, metadata.protocol, sink);
    one(Variable::RequestLine, &line, sink);
    one(Variable::RequestUriRaw, uri, sink);
    one(Variable::RequestUri, target, sink);
    one(Variable::QueryString, query, sink);
    let decoded = Transform::UrlDecode.apply(path.as_bytes());
    give(Variable::RequestFilename, b"", &decoded, sink);
    let base = decoded
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    give(Variable::RequestBasename, b"", base, sink);
    if !query.is_empty() {
        let mut form = Form::query();
        form.feed(query.as_bytes(), sink);
        form.finish(sink);
    }
    for (name, value) in head.headers().iter() {
        give(
            Variable::RequestHeadersNames,
            name.as_bytes(),
            name.as_bytes(),
            sink,
        );
        // An empty one says something, too.
        sink(Value {
            variable: Variable::RequestHeaders,
            name: name.as_bytes(),
            bytes: value.as_bytes(),
            first: true,
        });
        if name.eq_ignore_ascii_case("cookie") {
            for pair in value.split(';') {
                let (name, value) = pair.trim().split_once('=').unwrap_or((pair.trim(), ""));
                give(
                    Variable::RequestCookiesNames,
                    name.as_bytes(),
                    name.as_bytes(),
                    sink,
                );
                let value = Transform::UrlDecode.apply(value.as_bytes());
                give(Variable::RequestCookies, name.as_bytes(), &value, sink);
            }
        }
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

/// Path and query of `http://host/path?query`, or what there is.
fn origin_form(uri: &str) -> &str {
    match uri.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|b| b.is_ascii_alphabetic()) => {
            rest.find(['/', '?']).map_or("/", |at| &rest[at..])
        }
        _ => uri,
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
