//! The part of STUN (RFC 8489) with which a node learns what its NAT does (RFC 5780).
//!
//! A hub answers *Binding* requests at two UDP ports. The answer says from which address and port the request came, and where the
//! other port is. A request may ask to be answered from the other port (CHANGE-REQUEST), which shows whether the NAT filters
//! by port, may ask that another port of its sender be answered (RESPONSE-PORT), which shows how long the NAT keeps a mapping, and may be
//! as long as its sender likes (PADDING), which shows how long packets may be.
//!
//! Messages have no integrity: whoever is on the path can lie. What is learnt is told to people and decides nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest message that is read.
pub const MAX_MESSAGE: usize = 1500;

/// What makes a request and its answer one: drawn by chance, so that nobody answers who has not seen the request.
pub type TransactionId = [u8; 12];

const HEADER: usize = 20;
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
const CHANGE_REQUEST: u16 = 0x0003;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const PADDING: u16 = 0x0026;
const RESPONSE_PORT: u16 = 0x0027;
const OTHER_ADDRESS: u16 = 0x802c;
const CHANGE_PORT: u8 = 0x02;

/// The lowest port that may be answered in place of the one that asked. Below are the ports of services, which take what comes for a
/// question; a NAT hands out none of them to those who ask from above.
pub const LEAST_RESPONSE_PORT: u16 = 1024;

/// A Binding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StunRequest {
    /// Its transaction.
    pub transaction: TransactionId,
    /// Whether it asks to be answered from the server's other port.
    pub change_port: bool,
    /// The port of the sender's address that is to be answered, where it is another than the sender's; at least
    /// [`LEAST_RESPONSE_PORT`].
    pub response_port: Option<u16>,
}

/// The answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StunAnswer {
    /// The request's transaction.
    pub transaction: TransactionId,
    /// Where the request came from.
    pub mapped: SocketAddr,
    /// The server's other address and port, where it has one.
    pub other: Option<SocketAddr>,
}

impl StunRequest {
    /// One that is answered to where it came from.
    #[must_use]
    pub const fn new(transaction: TransactionId) -> Self {
        Self {
            transaction,
            change_port: false,
            response_port: None,
        }
    }

    /// The message, padded to `length` bytes where that is more than it needs. At most [`MAX_MESSAGE`], in steps of four.
    #[must_use]
    pub fn encode(&self, length: usize) -> Vec<u8> {
        let mut message = header(BINDING_REQUEST, self.transaction);
        if self.change_port {
            attribute(&mut message, CHANGE_REQUEST, &[0, 0, 0, CHANGE_PORT]);
        }
        if let Some(port) = self.response_port {
            let [high, low] = port.to_be_bytes();
            attribute(&mut message, RESPONSE_PORT, &[high, low, 0, 0]);
        }
        let least = message.len() + 4;
        let padding = length.min(MAX_MESSAGE).saturating_sub(least) / 4 * 4;
        if padding > 0 {
            attribute(&mut message, PADDING, &vec![0; padding]);
        }
        finish(message)
    }

    /// The request in a datagram; `None` for everything else.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (transaction, attributes) = body(message, BINDING_REQUEST)?;
        let mut request = Self::new(transaction);
        let mut padded = false;
        for (kind, value) in attributes {
            match kind {
                CHANGE_REQUEST => request.change_port = value.get(3)? & CHANGE_PORT != 0,
                PADDING => padded = true,
                RESPONSE_PORT => {
                    let port = value.first_chunk().map(|port| u16::from_be_bytes(*port))?;
                    request.response_port = Some(port);
                }
                // RFC 8489, 14: what must be understood and is not, is refused.
                unknown if unknown < 0x8000 => return None,
                _ => {}
            }
        }
        // RFC 5780, 7.5: not both.
        match request.response_port {
            Some(port) if padded || port < LEAST_RESPONSE_PORT => None,
            _ => Some(request),
        }
    }
}

impl StunAnswer {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut message = header(BINDING_SUCCESS, self.transaction);
        let mapped = address(self.mapped, Some(&self.transaction));
        attribute(&mut message, XOR_MAPPED_ADDRESS, &mapped);
        if let Some(other) = self.other {
            attribute(&mut message, OTHER_ADDRESS, &address(other, None));
        }
        finish(message)
    }

    /// The answer in a datagram; `None` for everything else.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (transaction, attributes) = body(message, BINDING_SUCCESS)?;
        let (mut mapped, mut other) = (None, None);
        for (kind, value) in attributes {
            match kind {
                XOR_MAPPED_ADDRESS => mapped = Some(parse_address(value, Some(&transaction))?),
                OTHER_ADDRESS => other = Some(parse_address(value, None)?),
                _ => {}
            }
        }
        Some(Self {
            transaction,
            mapped: mapped?,
            other,
        })
    }
}

fn header(kind: u16, transaction: TransactionId) -> Vec<u8> {
    let mut message = Vec::with_capacity(64);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(&COOKIE);
    message.extend_from_slice(&transaction);
    message
}

/// Appends an attribute, whose value is a multiple of four bytes long.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&kind.to_be_bytes());
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(value);
}

fn finish(mut message: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(message.len() - HEADER).unwrap_or(u16::MAX);
    message[2..4].copy_from_slice(&length.to_be_bytes());
    message
}

/// The kind and the value of an attribute.
type StunAttribute<'a> = (u16, &'a [u8]);

/// The transaction and the attributes of a message of this kind.
fn body(message: &[u8], kind: u16) -> Option<(TransactionId, Vec<StunAttribute<'_>>)> {
    let (head, mut rest) = message.split_at_checked(HEADER)?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let is_this = head[..2] == kind.to_be_bytes() && head[4..8] == COOKIE;
    if !is_this || length != rest.len() || message.len() > MAX_MESSAGE {
        return None;
    }
    let transaction = head[8..].try_into().ok()?;
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(4)?;
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let (value, after) = after.split_at_checked(length)?;
        attributes.push((kind, value));
        // Values are filled up to a multiple of four bytes.
        rest = after.get(length.wrapping_neg() % 4..).unwrap_or_default();
    }
    Some((transaction, attributes))
}

/// An address as an attribute has it, hidden from middleboxes that rewrite addresses where `hide` is given.
fn address(address: SocketAddr, hide: Option<&TransactionId>) -> Vec<u8> {
    let family = if address.is_ipv4() { 1 } else { 2 };
    let mut value = vec![0, family];
    value.extend_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => value.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => value.extend_from_slice(&ip.octets()),
    }
    if let Some(transaction) = hide {
        mask(&mut value, transaction);
    }
    value
}

fn parse_address(value: &[u8], hidden: Option<&TransactionId>) -> Option<SocketAddr> {
    let mut value = value.to_vec();
    if let Some(transaction) = hidden {
        let whole = value.get(4..)?;
        if whole.is_empty() {
            return None;
        }
        mask(&mut value, transaction);
    }
    let (head, ip) = value.split_at_checked(4)?;
    let port = u16::from_be_bytes([head[2], head[3]]);
    let ip = match head[1] {
        1 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        2 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Port and address are combined with the cookie and the transaction by exclusive or (RFC 8489, 14.2). Twice is as before.
fn mask(value: &mut [u8], transaction: &TransactionId) {
    let key = COOKIE.iter().chain(transaction);
    if let Some((head, ip)) = value.split_at_mut_checked(4) {
        head[2] ^= COOKIE[0];
        head[3] ^= COOKIE[1];
        ip.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSACTION: TransactionId = [
        0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae,
    ];

    #[test]
    fn requests_and_answers_are_read_as_they_were_written() {
        for (change_port, port, length) in [
            (false, None, 0),
            (true, None, 0),
            (false, None, 48),
            (true, None, 1452),
            (false, Some(1024), 0),
            (true, Some(65_535), 0),
        ] {
            let request = StunRequest {
                change_port,
                response_port: port,
                ..StunRequest::new(TRANSACTION)
            };
            let message = request.encode(length);
            assert_eq!(StunRequest::parse(&message), Some(request));
            assert_eq!(message.len() % 4, 0);
            if length > 0 {
                assert_eq!(message.len(), length);
            }
            assert_eq!(StunAnswer::parse(&message), None);
        }
        for (mapped, other) in [
            ("192.0.2.1:32853", Some("198.51.100.7:3479")),
            ("[2001:db8:1234:5678:11:2233:4455:6677]:32853", None),
        ] {
            let answer = StunAnswer {
                transaction: TRANSACTION,
                mapped: mapped.parse().unwrap(),
                other: other.map(|other| other.parse().unwrap()),
            };
            let message = answer.encode();
            assert_eq!(StunAnswer::parse(&message), Some(answer));
            assert_eq!(StunRequest::parse(&message), None);
        }
    }

    /// The XOR-MAPPED-ADDRESS of the sample response in RFC 5769, 2.2 and 2.3.
    #[test]
    fn addresses_are_hidden_as_the_published_vectors_are() {
        let v4 = [0x00, 0x01, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43];
        let v6 = [
            0x00, 0x02, 0xa1, 0x47, 0x01, 0x13, 0xa9, 0xfa, 0xa5, 0xd3, 0xf1, 0x79, 0xbc, 0x25,
            0xf4, 0xb5, 0xbe, 0xd2, 0xb9, 0xd9,
        ];
        for (bytes, text) in [
            (&v4[..], "192.0.2.1:32853"),
            (&v6[..], "[2001:db8:1234:5678:11:2233:4455:6677]:32853"),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(parse_address(bytes, Some(&TRANSACTION)), Some(address));
            assert_eq!(super::address(address, Some(&TRANSACTION)), bytes);
        }
    }

    #[test]
    fn what_is_damaged_is_nothing_and_never_a_panic() {
        let request = StunRequest {
            change_port: true,
            ..StunRequest::new(TRANSACTION)
        };
        let answer = StunAnswer {
            transaction: TRANSACTION,
            mapped: "[2001:db8::1]:7".parse().unwrap(),
            other: Some("192.0.2.1:8".parse().unwrap()),
        };
        for whole in [request.encode(64), answer.encode()] {
            for end in 0..whole.len() {
                assert_eq!(StunRequest::parse(&whole[..end]), None);
                assert_eq!(StunAnswer::parse(&whole[..end]), None);
            }
            for at in 0..whole.len() {
                for flip in [0x01, 0x80, 0xff] {
                    let mut message = whole.clone();
                    message[at] ^= flip;
                    let _ = StunRequest::parse(&message);
                    let _ = StunAnswer::parse(&message);
                }
            }
        }
        assert_eq!(StunRequest::parse(&[0; MAX_MESSAGE + 4]), None);
        // An attribute that must be understood.
        let mut unknown = header(BINDING_REQUEST, TRANSACTION);
        attribute(&mut unknown, 0x0006, &[0; 4]);
        assert_eq!(StunRequest::parse(&finish(unknown)), None);
    }

    #[test]
    fn another_port_is_answered_only_where_no_service_is_and_nothing_is_padded() {
        let to = |port| StunRequest {
            response_port: Some(port),
            ..StunRequest::new(TRANSACTION)
        };
        for port in [0, 19, 53, 1023] {
            assert_eq!(StunRequest::parse(&to(port).encode(0)), None, "{port}");
        }
        assert_eq!(StunRequest::parse(&to(41_641).encode(200)), None);
        // As those write it who count no padding (RFC 8489, 14).
        let mut short = header(BINDING_REQUEST, TRANSACTION);
        short.extend_from_slice(&[0, 0x27, 0, 2, 0xa2, 0xa9, 0, 0]);
        assert_eq!(StunRequest::parse(&finish(short)), Some(to(41_641)));
        let mut none = header(BINDING_REQUEST, TRANSACTION);
        none.extend_from_slice(&[0, 0x27, 0, 1, 0xa2, 0, 0, 0]);
        assert_eq!(StunRequest::parse(&finish(none)), None);
    }
}
