//! Whose request it is, in one spelling.
//!
//! A client may write what it is counted by in several ways, and each of them would have a count of its own: in capitals,
//! with blanks, in several fields of a name, with others beside it in a list, an address as IPv6, with a port. So:
//!
//! - An address is read and written anew: an IPv4 address as such however it is wrapped, an IPv6 address by its network.
//!   What is no address is counted together.
//! - A header field is counted by each of its values, whether they come in several fields or in a list (RFC 9110, 5.3), in
//!   lower case, with single blanks between its words; fields that hold one text with commas in it are not taken for lists.
//!   Fields of hosts lose ports and last dots, fields of addresses are addresses. An empty value is none.
//! - Of more than [`VALUES`] values, the others are counted together.

use std::{net::IpAddr, str::FromStr as _};

use hailwire_callout::event::RequestHeaders;

use super::Per;

/// Values of a header field that are counted by themselves.
pub(super) const VALUES: usize = 8;

/// Whose requests are counted together, in one spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Everyone,
    Address(Network),
    Text(String),
    Route(Option<String>),
    /// A request without the field, or whose address is none.
    Unknown,
    /// Those that write more values than are counted.
    Many,
}

/// An IPv4 address, or a network of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Network {
    V4(u32),
    V6(u128),
}

/// Fields that hold one text, in which a comma is a comma.
const TEXTS: [&str; 12] = [
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
/// Fields that hold addresses,
const ADDRESSES: [&str; 9] = [
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
/// and fields that hold hosts.
const HOSTS: [&str; 4] = [":authority", "host", "x-forwarded-host", "x-original-host"];

/// Those who are counted for a request.
pub(super) fn of(per: &Per, event: &RequestHeaders) -> Vec<Who> {
    match per {
        Per::Everyone => vec![Who::Everyone],
        Per::Route => vec![Who::Route(event.metadata().route_id.map(str::to_owned))],
        Per::ClientIp(prefix) => vec![address(event.metadata().client_ip, *prefix)],
        Per::Header(name) => {
            let fields = event.headers().get_all(name);
            let split = !TEXTS.contains(&name.as_str());
            let values = fields.flat_map(|field| members(field, split));
            several(values.filter_map(|value| value_of(name, value)))
        }
        Per::ExactHeader(name) => {
            let fields = event.headers().get_all(name).map(str::trim);
            let some = fields.filter(|field| !field.is_empty());
            several(some.map(|field| Who::Text(field.to_owned())))
        }
    }
}

/// Each of them once, as far as they are counted by themselves.
fn several(some: impl Iterator<Item = Who>) -> Vec<Who> {
    let mut all = Vec::new();
    for who in some {
        if all.contains(&who) {
            continue;
        }
        if all.len() == VALUES {
            all.push(Who::Many);
            return all;
        }
        all.push(who);
    }
    if all.is_empty() {
        all.push(Who::Unknown);
    }
    all
}

fn members(field: &str, split: bool) -> impl Iterator<Item = &str> {
    field.split(move |c| split && c == ',')
}

fn value_of(name: &str, value: &str) -> Option<Who> {
    let value = value.trim();
    if value.is_empty() {
        return None;
    }
    Some(if ADDRESSES.contains(&name) {
        address(value, Per::NETWORK)
    } else if HOSTS.contains(&name) {
        match parsed(value) {
            Some(address) => Who::Address(network(address, 128)),
            None => Who::Text(host(value)),
        }
    } else {
        let mut text = String::with_capacity(value.len());
        for word in value.split_whitespace() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.extend(word.chars().flat_map(char::to_lowercase));
        }
        Who::Text(text)
    })
}

fn address(text: &str, prefix: u8) -> Who {
    parsed(text).map_or(Who::Unknown, |address| {
        Who::Address(network(address, prefix))
    })
}

/// An address in any spelling: with a port, in brackets or quotes, with a zone, with blanks.
fn parsed(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"').trim();
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        // One colon is before a port, more are of IPv6.
        None => match text.split_once(':') {
            Some((address, port)) if !port.contains(':') => address,
            _ => text,
        },
    };
    let inner = inner.split('%').next().unwrap_or_default().trim();
    IpAddr::from_str(inner.trim_end_matches('.')).ok()
}

fn network(address: IpAddr, prefix: u8) -> Network {
    match address {
        IpAddr::V4(address) => Network::V4(address.to_bits()),
        IpAddr::V6(six) => {
            let bits = six.to_bits();
            // Mapped (RFC 4291), compatible, translated (RFC 6052) and 6to4 (RFC 3056) ones have an IPv4 address within.
            match (six.to_ipv4_mapped(), bits >> 32, bits >> 112) {
                (Some(four), _, _) => Network::V4(four.to_bits()),
                (_, 0x0064_ff9b_0000_0000_0000_0000, _) => Network::V4(bits as u32),
                (_, 0, _) if bits > 0xffff => Network::V4(bits as u32),
                (_, _, 0x2002) => Network::V4((bits >> 80) as u32),
                _ => {
                    let host = 128 - u32::from(prefix.clamp(1, 128));
                    Network::V6(bits >> host << host)
                }
            }
        }
    }
}

/// A host's name without its port and its last dots.
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

    fn who(per: &str, ip: &str, headers: &[(&str, &str)]) -> Vec<Who> {
        let metadata = Metadata {
            correlation_id: "c",
            client_ip: ip,
            ..Metadata::default()
        };
        let event = RequestHeaders::new(&metadata, "GET", "/", headers.iter().copied());
        of(&per.parse().unwrap(), &event)
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written() {
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
    fn a_header_field_is_the_same_however_it_is_written() {
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
        // Whatever stands beside it, the value is counted.
        for beside in [&["x", "abc def"][..], &["abc def", "x"], &["x, abc def, y"]] {
            assert!(key(beside).contains(&alone[0]), "{beside:?}");
        }
        assert_eq!(key(&[]), [Who::Unknown]);
        assert_eq!(key(&["", " , "]), [Who::Unknown], "empty is none");
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let many = key(&[&many.join(",")]);
        assert_eq!((many.len(), many.last()), (VALUES + 1, Some(&Who::Many)));
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
    fn a_host_is_the_same_with_its_port_and_a_last_dot() {
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
