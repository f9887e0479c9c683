//! Conversions between Envoy's messages and Agent Protocol v2.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;

use super::proto::{
    config::core::v3::{
        HeaderMap, HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction,
    },
    service::ext_proc::v3::{
        Fields, HeaderMutation, ImmediateResponse, ProcessingResponse, Value,
        processing_response::Response, value,
    },
    r#type::v3::HttpStatus,
};
use crate::{
    event::{Metadata, RequestHeaders, ResponseHeaders},
    front::{ClientResponse, now, text},
    response::HeaderOp,
};

/// The name of what we tell Envoy's other filters.
pub(super) const NAMESPACE: &str = "hailwire";

/// A head as Envoy sends it, with its values as text.
pub(super) struct EnvoyHeaders<'a> {
    fields: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> EnvoyHeaders<'a> {
    pub(super) fn new(map: &'a HeaderMap) -> Self {
        let value = |field: &'a HeaderValue| match field.raw_value.is_empty() {
            true => Cow::Borrowed(field.value.as_str()),
            false => text(&field.raw_value),
        };
        let fields = map.headers.iter();
        Self {
            fields: fields.map(|f| (f.key.as_str(), value(f))).collect(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.fields.len()
    }

    /// The first value of a name; Envoy sends names in lower case.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut of = self.fields.iter().filter(|(known, _)| *known == name);
        of.next().map(|(_, value)| &**value)
    }

    /// The last one.
    fn last(&self, name: &str) -> Option<&str> {
        let mut of = self.fields.iter().rev().filter(|(known, _)| *known == name);
        of.next().map(|(_, value)| &**value)
    }

    /// The fields that are none of the pseudo-header fields of HTTP/2.
    fn plain(&self) -> impl Iterator<Item = (&str, &str)> {
        let plain = self
            .fields
            .iter()
            .filter(|(name, _)| !name.starts_with(':'));
        plain.map(|(name, value)| (*name, &**value))
    }

    pub(super) fn length(&self) -> Option<u64> {
        self.field("content-length")?.parse().ok()
    }

    /// The head of a request. `host` is the authority, as it is without HTTP/2.
    ///
    /// The client is Envoy's attribute `source.address`, or, where that is not sent, the last address
    /// of `x-forwarded-for`: the one that Envoy itself adds, and no client can.
    pub(super) fn request(
        &self,
        correlation_id: &str,
        attributes: &HashMap<String, Fields>,
    ) -> RequestHeaders {
        let said = |name: &str| {
            let mut all = attributes.values();
            all.find_map(|fields| match fields.fields.get(name)?.kind.as_ref()? {
                value::Kind::StringValue(text) if !text.is_empty() => Some(text.as_str()),
                _ => None,
            })
        };
        let forwarded = || self.last("x-forwarded-for")?.rsplit(',').next();
        let client = said("source.address")
            .or_else(forwarded)
            .unwrap_or_default();
        let (client_ip, client_port) = address(client.trim());
        let authority = self.field(":authority");
        let request_id = self.field("x-request-id").or_else(|| said("request.id"));
        let metadata = Metadata {
            correlation_id,
            request_id: request_id.unwrap_or(correlation_id),
            client_ip,
            client_port,
            server_name: said("connection.requested_server_name").or(authority),
            protocol: said("request.protocol").unwrap_or("HTTP"),
            tls_version: said("connection.tls_version"),
            tls_cipher: None,
            route_id: said("xds.route_name"),
            upstream_id: said("xds.cluster_name"),
            timestamp: &now(),
            traceparent: self.field("traceparent"),
        };
        let host = authority.filter(|_| self.field("host").is_none());
        RequestHeaders::new(
            &metadata,
            self.field(":method").unwrap_or_default(),
            self.field(":path").unwrap_or_default(),
            host.map(|host| ("host", host))
                .into_iter()
                .chain(self.plain()),
        )
    }

    /// The status of a response.
    pub(super) fn status(&self) -> u16 {
        let status = self.field(":status").and_then(|status| status.parse().ok());
        status.unwrap_or_default()
    }

    /// The head of a response.
    pub(super) fn response(&self, correlation_id: &str) -> ResponseHeaders {
        ResponseHeaders::new(correlation_id, self.status(), self.plain())
    }
}

/// An IP address and its port, as `192.0.2.1:80`, `[2001:db8::1]:80`, or alone.
fn address(text: &str) -> (&str, u16) {
    let split = text.rsplit_once(':').and_then(|(ip, port)| {
        let alone = ip.contains(':') && !ip.ends_with(']');
        (!alone).then_some((ip, port.parse().ok()?))
    });
    let (ip, port) = split.unwrap_or((text, 0));
    let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
    (bare.unwrap_or(ip), port)
}

/// Changes to headers. Envoy takes names out before it sets any, whatever their order here, so what a later change
/// makes void is left out.
pub(super) fn mutation(ops: &[HeaderOp]) -> Option<HeaderMutation> {
    let mut mutation = HeaderMutation::default();
    for op in ops {
        let (name, change) = match op {
            HeaderOp::Remove { name } => (name, None),
            HeaderOp::Set { name, value } => (
                name,
                Some((value, HeaderAppendAction::OverwriteIfExistsOrAdd)),
            ),
            HeaderOp::Add { name, value } => {
                (name, Some((value, HeaderAppendAction::AppendIfExistsOrAdd)))
            }
        };
        let name = name.to_ascii_lowercase();
        if !matches!(op, HeaderOp::Add { .. }) {
            let others = |of: &HeaderValueOption| of.header.as_ref().is_some_and(|h| h.key != name);
            mutation.set_headers.retain(others);
        }
        match change {
            Some((value, action)) => mutation.set_headers.push(option(name, value, action)),
            None => mutation.remove_headers.push(name),
        }
    }
    let any = !mutation.set_headers.is_empty() || !mutation.remove_headers.is_empty();
    any.then_some(mutation)
}

fn option(key: String, value: &str, action: HeaderAppendAction) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key,
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        }),
        append_action: action.into(),
    }
}

/// What the client gets instead.
pub(super) fn immediate(reply: ClientResponse) -> ProcessingResponse {
    let set = reply.headers.into_iter();
    let set = set.map(|(name, value)| HeaderOp::Set { name, value });
    let response = ImmediateResponse {
        status: Some(HttpStatus {
            code: reply.status.into(),
        }),
        headers: mutation(&set.collect::<Vec<_>>()),
        body: reply.body.into(),
        details: "hailwire".to_owned(),
    };
    ProcessingResponse {
        response: Some(Response::ImmediateResponse(response)),
        ..ProcessingResponse::default()
    }
}

/// Routing metadata, for the filters that follow.
pub(super) fn metadata(of: std::collections::BTreeMap<String, String>) -> Option<Fields> {
    if of.is_empty() {
        return None;
    }
    let value = |kind| Value { kind: Some(kind) };
    let fields = of.into_iter();
    let fields = fields.map(|(name, text)| (name, value(value::Kind::StringValue(text))));
    let inner = value::Kind::StructValue(Fields {
        fields: fields.collect(),
    });
    Some(Fields {
        fields: [(NAMESPACE.to_owned(), value(inner))].into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &[u8])]) -> HeaderMap {
        let field = |(name, value): &(&str, &[u8])| HeaderValue {
            key: (*name).to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value),
        };
        HeaderMap {
            headers: fields.iter().map(field).collect(),
        }
    }

    #[test]
    fn the_client_is_whom_envoy_names_and_not_whom_the_client_names() {
        let of = |fields: &[(&str, &[u8])], attributes: &HashMap<String, Fields>| {
            let request = EnvoyHeaders::new(&map(fields)).request("c1", attributes);
            let metadata = request.metadata();
            (metadata.client_ip.to_owned(), metadata.client_port)
        };
        let forged: &[(&str, &[u8])] = &[("x-forwarded-for", b"6.6.6.6, 192.0.2.1")];
        let none = HashMap::new();
        assert_eq!(of(forged, &none), ("192.0.2.1".to_owned(), 0));
        let kind = Some(value::Kind::StringValue("[2001:db8::1]:99".to_owned()));
        let fields = [("source.address".to_owned(), Value { kind })].into();
        let said = [("filter".to_owned(), Fields { fields })].into();
        assert_eq!(of(forged, &said), ("2001:db8::1".to_owned(), 99));
        assert_eq!(address("2001:db8::1"), ("2001:db8::1", 0));
        assert_eq!(address(""), ("", 0));
    }

    #[test]
    fn pseudo_header_fields_become_what_they_are_in_http_1() {
        let head = map(&[
            (":method", b"GET"),
            (":path", b"/a?b"),
            (":authority", b"host"),
            ("x-latin", b"\xfc"),
        ]);
        let request = EnvoyHeaders::new(&head).request("c1", &HashMap::new());
        assert_eq!((request.method(), request.uri()), ("GET", "/a?b"));
        let fields: Vec<_> = request.headers().iter().collect();
        assert_eq!(fields, [("host", "host"), ("x-latin", "ü")]);
    }

    #[test]
    fn of_changes_to_one_header_those_count_that_are_not_void() {
        let op = |verb: &str, name: &str, value: &str| {
            let (name, value) = (name.to_owned(), value.to_owned());
            match verb {
                "set" => HeaderOp::Set { name, value },
                "add" => HeaderOp::Add { name, value },
                _ => HeaderOp::Remove { name },
            }
        };
        let ops = [
            op("set", "a", "1"),
            op("del", "A", ""),
            op("set", "b", "1"),
            op("set", "B", "2"),
            op("add", "b", "3"),
            op("del", "c", ""),
            op("set", "c", "1"),
        ];
        let mutation = mutation(&ops).unwrap();
        let set = mutation.set_headers.iter().map(|of| {
            let header = of.header.as_ref().unwrap();
            (
                header.key.as_str(),
                text(&header.raw_value),
                of.append_action,
            )
        });
        let expected = [("b", "2", 2), ("b", "3", 0), ("c", "1", 2)];
        let expected = expected.map(|(name, value, action)| (name, value.into(), action));
        assert_eq!(set.collect::<Vec<_>>(), expected);
        assert_eq!(mutation.remove_headers, ["a", "c"]);
    }
}
