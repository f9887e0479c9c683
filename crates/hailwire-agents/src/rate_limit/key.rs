//! The keys that a request is counted under, in canonical form.
//!
//! A client may write a key in several ways, each of which would get a count of its own: in capitals, with extra white
//! space, in several fields of one name, with other values in a list, an address as IPv6 or with a port. Therefore:
//!
//! - Addresses are parsed: an IPv4 address is the same key however it is embedded in IPv6, an IPv6 address is reduced to
//!   its network. All values that are not addresses share one key.
//! - A header field is counted under each of its values, whether they are in several fields or in a list (RFC 9110,
//!   section 5.3), in lower case, with single spaces between words. Fields whose text may contain commas are not split.
//!   Host fields lose ports and trailing dots, address fields are parsed as addresses. Empty values are ignored.
//! - Beyond [`MAX_HEADER_VALUES`] values, the rest share one key.

use std::{net::IpAddr, str::FromStr as _};

use hailwire_callout::event::RequestHeaders;

use super::KeySource;

/// Values of a header field that are keys of their own.
pub(super) const MAX_HEADER_VALUES: usize = 8;

/// A key that a request is counted under, in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RequestKey {
    Everyone,
    Address(ClientNetwork),
    Text(String),
    Route(Option<String>),
    /// A request without the field, or with an invalid address.
    Unknown,
    /// The values beyond [`MAX_HEADER_VALUES`].
    Many,
}

/// An IPv4 address, or an IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientNetwork {
    V4(u32),
    V6(u128),
}

/// Fields that are not lists: a comma is part of the value.
const FREE_TEXT_FIELDS: [&str; 12] = [
    "authorization",
    "cookie",
    "date",
    "from",
    "if-modified-since",
    "if-range",
    "if-unmodified-since",
    "origin",
    "proxy-authorization",
    "range",
    "referer",
    "user-agent",
];
/// Fields that contain addresses.
const ADDRESS_FIELDS: [&str; 9] = [
    "cf-connecting-ip",
    "fastly-client-ip",
    "forwarded-for",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded-for",
    "x-original-forwarded-for",
    "x-real-ip",
];
/// Fields that contain host names.
const HOST_FIELDS: [&str; 4] = [":authority", "host", "x-forwarded-host", "x-original-host"];

/// The keys that a request is counted under.
pub(super) fn of(per: &KeySource, event: &RequestHeaders) -> Vec<RequestKey> {
    match per {
        KeySource::Everyone => vec![RequestKey::Everyone],
        KeySource::Route => vec![RequestKey::Route(
            event.metadata().route_id.map(str::to_owned),
        )],
        KeySource::ClientIp(prefix) => vec![address(event.metadata().client_ip, *prefix)],
        KeySource::Header(name) => {
            let fields = event.headers().get_all(name);
            let split = !FREE_TEXT_FIELDS.contains(&name.as_str());
            let values = fields.flat_map(|field| members(field, split));
            several(values.filter_map(|value| value_of(name, value)))
        }
        KeySource::ExactHeader(name) => {
            let fields = event.headers().get_all(name).map(str::trim);
            let some = fields.filter(|field| !field.is_empty());
            several(some.map(|field| RequestKey::Text(field.to_owned())))
        }
    }
}

/// Each key once, at most [`MAX_HEADER_VALUES`] of them.
fn several(some: impl Iterator<Item = RequestKey>) -> Vec<RequestKey> {
    let mut all = Vec::new();
    for who in some {
        if all.contains(&who) {
            continue;
        }
        if all.len() == MAX_HEADER_VALUES {
            all.push(RequestKey::Many);
            return all;
        }
        all.push(who);
    }
    if all.is_empty() {
        all.push(RequestKey::Unknown);
    }
    all
}

fn members(field: &str, split: bool) -> impl Iterator<Item = &str> {
    field.split(move |c| split && c == ',')
}

fn value_of(name: &str, value: &str) -> Option<RequestKey> {
    let value = value.trim();
    if value.is_empty() {
        return None;
    }
    Some(if ADDRESS_FIELDS.contains(&name) {
        address(value, KeySource::DEFAULT_IPV6_PREFIX)
    } else if HOST_FIELDS.contains(&name) {
        match parsed(value) {
            Some(address) => RequestKey::Address(network(address, 128)),
            None => RequestKey::Text(host(value)),
        }
    } else {
        let mut text = String::with_capacity(value.len());
        for word in value.split_whitespace() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.extend(word.chars().flat_map(char::to_lowercase));
        }
        RequestKey::Text(text)
    })
}

fn address(text: &str, prefix: u8) -> RequestKey {
    parsed(text).map_or(RequestKey::Unknown, |address| {
        RequestKey::Address(network(address, prefix))
    })
}

/// Parses an address that may have a port, brackets, quotes, a zone or white space around it.
fn parsed(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"').trim();
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        // One colon precedes a port; more than one is IPv6.
        None => match text.split_once(':') {
            Some((address, port)) if !port.contains(':') => address,
            _ => text,
        },
    };
    let inner = inner.split('%').next().unwrap_or_default().trim();
    IpAddr::from_str(inner.trim_end_matches('.')).ok()
}

fn network(address: IpAddr, prefix: u8) -> ClientNetwork {
    match address {
        IpAddr::V4(address) => ClientNetwork::V4(address.to_bits()),
        IpAddr::V6(six) => {
            let bits = six.to_bits();
            // Mapped (RFC 4291), compatible, translated (RFC 6052) and 6to4 (RFC 3056) addresses contain an IPv4 address.
            match (six.to_ipv4_mapped(), bits >> 32, bits >> 112) {
                (Some(four), _, _) => ClientNetwork::V4(four.to_bits()),
                (_, 0x0064_ff9b_0000_0000_0000_0000, _) => ClientNetwork::V4(bits as u32),
                (_, 0, _) if bits > 0xffff => ClientNetwork::V4(bits as u32),
                (_, _, 0x2002) => ClientNetwork::V4((bits >> 80) as u32),
                _ => {
                    let host = 128 - u32::from(prefix.clamp(1, 128));
                    ClientNetwork::V6(bits >> host << host)
                }
            }
        }
    }
}

/// A host name without its port and trailing dots.
fn host(text: &str) -> String {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => text,
    };
    name.trim_end_matches('.').to_lowercase()
}

#[cfg(test)]
mod tests {
    use hailwire_callout::event::Metadata;

    use super::*;

    fn who(per: &str, ip: &str, headers: &[(&str, &str)]) -> Vec<RequestKey> {
        let metadata = Metadata {
            correlation_id: "c",
            client_ip: ip,
            ..Metadata::default()
        };
        let event = RequestHeaders::new(&metadata, "GET", "/", headers.iter().copied());
        of(&per.parse().unwrap(), &event)
    }

    #[test]
    fn every_spelling_of_an_address_is_the_same_key() {
        let table: [&[&str]; 5] = [
            &[
                "192.0.2.1",
                " 192.0.2.1 ",
                "192.0.2.1:80",
                "::ffff:192.0.2.1",
                "::FFFF:c000:201",
                "0:0:0:0:0:ffff:192.0.2.1",
                "[::ffff:192.0.2.1]:443",
                "::192.0.2.1",
                "64:ff9b::192.0.2.1",
                "2002:c000:201::7",
                "\"192.0.2.1\"",
            ],
            &["192.0.2.2", "2002:c000:202::"],
            &[
                "2001:db8::1",
                "2001:DB8:0:0:0:0:0:1",
                "2001:0db8::0001",
                "[2001:db8::1]:443",
                "2001:db8::1%eth0",
                "2001:db8::ffff:1:2:3",
            ],
            &["2001:db8:0:1::1"],
            &["", "unknown", "_hidden", "999.1.1.1"],
        ];
        let mut seen = Vec::new();
        for same in table {
            let first = who("client-ip", same[0], &[]);
            for text in same {
                assert_eq!(who("client-ip", text, &[]), first, "{text}");
                if !text.is_empty() {
                    assert_eq!(
                        who("header:x-real-ip", "", &[("X-Real-IP", text)]),
                        first,
                        "{text}"
                    );
                }
            }
            assert!(!seen.contains(&first), "{same:?}");
            seen.push(first);
        }
        assert_eq!(
            who("client-ip", "::1", &[]),
            who("client-ip", "0:0:0:0:0:0:0:1", &[])
        );
        assert_eq!(
            who("client-ip/48", "2001:db8:0:1::1", &[]),
            who("client-ip/48", "2001:db8:0:2::", &[])
        );
        assert_ne!(
            who("client-ip/128", "2001:db8::1", &[]),
            who("client-ip/128", "2001:db8::2", &[])
        );
    }

    #[test]
    fn every_spelling_of_a_header_field_is_the_same_key() {
        let key = |fields: &[&str]| {
            let fields: Vec<(&str, &str)> = fields.iter().map(|value| ("X-Key", *value)).collect();
            who("header:x-key", "", &fields)
        };
        let alone = key(&["abc def"]);
        for same in [
            "ABC def",
            " abc def ",
            "abc \t def",
            "abc def,",
            ", abc def",
            "abc def, ABC DEF",
        ] {
            assert_eq!(key(&[same]), alone, "{same:?}");
        }
        assert_eq!(key(&["abc def", "Abc  Def", ""]), alone);
        // The value is counted whatever other values the field has.
        for beside in [&["x", "abc def"][..], &["abc def", "x"], &["x, abc def, y"]] {
            assert!(key(beside).contains(&alone[0]), "{beside:?}");
        }
        assert_eq!(key(&[]), [RequestKey::Unknown]);
        assert_eq!(
            key(&["", " , "]),
            [RequestKey::Unknown],
            "empty values are ignored"
        );
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let many = key(&[&many.join(",")]);
        assert_eq!(
            (many.len(), many.last()),
            (MAX_HEADER_VALUES + 1, Some(&RequestKey::Many))
        );
        let agent = "Mozilla/5.0 (X11; Linux) AppleWebKit/537.36 (KHTML, like Gecko)";
        assert_eq!(
            who("header:user-agent", "", &[("user-agent", agent)]).len(),
            1
        );
        let exact = |value| who("exact-header:x-key", "", &[("X-Key", value)]);
        assert_ne!(exact("a"), exact("A"));
        assert_eq!(exact(" a "), exact("a"));
    }

    #[test]
    fn a_host_with_a_port_or_trailing_dot_is_the_same_key() {
        let host = |value| who("header:host", "", &[("host", value)]);
        for same in [
            "Example.com",
            "example.com.",
            "example.com:443",
            "EXAMPLE.COM.:8080",
            "example.com..",
        ] {
            assert_eq!(host(same), host("example.com"), "{same}");
        }
        assert_ne!(host("a.example.com"), host("example.com"));
        for same in ["[::1]:80", "[0:0::1]", "::1"] {
            assert_eq!(host(same), host("[::1]"), "{same}");
        }
    }
}
