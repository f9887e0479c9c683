//! The bytes that a TUN device gives and takes: a virtio header (`IFF_VNET_HDR`) and an IP packet.
//!
//! ```text
//! 0      flags        1: the checksum field holds the pseudo-header's sum only
//! 1      gso type     0 none, 1 TCP over IPv4, 4 over IPv6, 5 UDP; what follows is then many in one
//! 2..4   header bytes
//! 4..6   gso size     payload bytes of each packet
//! 6..8   where the checksum begins, 8..10 where it stands from there
//! 10..   IPv4 or IPv6
//! ```
//!
//! Numbers of the virtio header are in the machine's byte order (virtio 1.2, section 5.1.6, legacy).
//! [`TunFrame::read`] says what the model needs to know of a buffer. [`TunFrame::write`] makes the buffer
//! that carries some of its packets, with the addresses that the model gave them, so that a packet
//! lost from the middle of a buffer is missing and all others are as the sender's kernel would have
//! cut them (RFC 9293 for TCP; UDP datagrams of one size). Checksums that the sender completed are
//! updated (RFC 1624), those that it left to the device stay so. A packet that travels on as one of the
//! other family gets another IP header (RFC 7915); the checksums of TCP and UDP cover addresses,
//! length and protocol of both families by the same sum, so that only the addresses make a difference.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use bytes::Bytes;

use crate::packet::{Flow, PacketSegments, Protocol};

/// Bytes of the virtio header.
pub(super) const VNET_HEADER: usize = 10;

/// Largest buffer: the virtio header and the largest packet, which is one of IPv6 without options.
pub(super) const MAX_FRAME: usize = VNET_HEADER + IPV6_HEADER + 65_535;

/// Bytes of an IPv4 header without options.
const IPV4_HEADER: usize = 20;

/// Bytes of an IPv6 header.
const IPV6_HEADER: usize = 40;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;

/// A mark of the gso type: the segments' congestion notification.
const GSO_ECN: u8 = 0x80;

/// TCP flags that belong to the last, respectively the first, of several segments.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// One buffer with what was read of it.
#[derive(Clone, Debug)]
pub(super) struct TunFrame {
    bytes: Bytes,
    flow: Flow,
    segments: PacketSegments,
    /// Where the transport header begins, from the buffer's start.
    transport: usize,
}

impl TunFrame {
    /// Reads a buffer; `None` for what is neither IPv4 nor IPv6, or is malformed.
    pub(super) fn read(bytes: Bytes) -> Option<Self> {
        match bytes.get(VNET_HEADER)? >> 4 {
            4 => Self::read_ipv4(bytes),
            6 => Self::read_ipv6(bytes),
            _ => None,
        }
    }

    /// Extension headers are not looked behind: what has them is [`Protocol::Other`].
    fn read_ipv6(bytes: Bytes) -> Option<Self> {
        let ip = bytes.get(VNET_HEADER..)?;
        let total = IPV6_HEADER + usize::from(number(ip, 4)?);
        if total > ip.len() {
            return None;
        }
        let ports = |protocol| Some((protocol, number(ip, 40)?, number(ip, 42)?));
        let (protocol, from, to) = match ip[6] {
            6 => ports(Protocol::Tcp)?,
            17 => ports(Protocol::Udp)?,
            58 => match ip.get(IPV6_HEADER)? {
                128 => (Protocol::Echo, number(ip, 44)?, 0),
                129 => (Protocol::Echo, 0, number(ip, 44)?),
                _ => (Protocol::Other, 0, 0),
            },
            _ => (Protocol::Other, 0, 0),
        };
        let address = |at: usize| {
            let octets: [u8; 16] = ip.get(at..at + 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets))
        };
        let flow = Flow {
            protocol,
            source: (address(8)?, from).into(),
            destination: (address(24)?, to).into(),
        };
        let segments = segments(&bytes, IPV6_HEADER, total)?;
        Some(Self {
            bytes,
            flow,
            segments,
            transport: VNET_HEADER + IPV6_HEADER,
        })
    }

    fn read_ipv4(bytes: Bytes) -> Option<Self> {
        let ip = bytes.get(VNET_HEADER..)?;
        let header = usize::from(ip.first()? & 0x0f) * 4;
        let total = usize::from(number(ip, 2)?);
        if header < IPV4_HEADER || total < header || total > ip.len() {
            return None;
        }
        let fragment = number(ip, 6)? & 0x3fff != 0;
        let transport = VNET_HEADER + header;
        let (protocol, from, to) = match (fragment, ip[9]) {
            (false, 6) => (Protocol::Tcp, number(ip, header)?, number(ip, header + 2)?),
            (false, 17) => (Protocol::Udp, number(ip, header)?, number(ip, header + 2)?),
            (false, 1) => match ip.get(header)? {
                8 => (Protocol::Echo, number(ip, header + 4)?, 0),
                0 => (Protocol::Echo, 0, number(ip, header + 4)?),
                _ => (Protocol::Other, 0, 0),
            },
            _ => (Protocol::Other, 0, 0),
        };
        let flow = Flow {
            protocol,
            source: (address(ip, 12)?, from).into(),
            destination: (address(ip, 16)?, to).into(),
        };
        let segments = segments(&bytes, header, total)?;
        Some(Self {
            bytes,
            flow,
            segments,
            transport,
        })
    }

    pub(super) fn flow(&self) -> Flow {
        self.flow
    }

    pub(super) fn segments(&self) -> PacketSegments {
        self.segments
    }

    /// Puts the packets of `range`, travelling as `flow`, into `out`.
    pub(super) fn write(&self, flow: Flow, range: Range<u32>, out: &mut Vec<u8>) {
        out.clear();
        if range == (0..self.segments.count()) {
            out.extend_from_slice(&self.bytes);
        } else {
            self.cut(range, out);
        }
        let mut transport = self.transport;
        if flow != self.flow {
            transport = self.readdress(flow, out);
        }
        if out[0] & NEEDS_CHECKSUM != 0 {
            sum_pseudo_header(flow.protocol, transport, out);
        }
        if flow.source.is_ipv4() {
            let ip = &mut out[VNET_HEADER..transport];
            put(ip, 10, 0);
            let sum = !folded(sum(ip));
            put(ip, 10, sum);
        }
    }

    /// Some of the packets of a buffer that holds many.
    fn cut(&self, range: Range<u32>, out: &mut Vec<u8>) {
        let PacketSegments {
            header,
            size,
            payload,
        } = self.segments;
        let (first, last) = (range.start * size, (range.end * size).min(payload));
        let headers = VNET_HEADER + header as usize;
        let body = headers + first as usize..headers + last as usize;
        out.extend_from_slice(&self.bytes[..headers]);
        out.extend_from_slice(&self.bytes[body]);
        let single = range.end - range.start == 1;
        if single {
            out[1] = GSO_NONE;
            out[4..6].fill(0);
        }
        let length = out.len() - VNET_HEADER;
        if self.flow.source.is_ipv4() {
            let id = number(out, VNET_HEADER + 4)
                .unwrap_or(0)
                .wrapping_add(range.start as u16);
            put(out, VNET_HEADER + 2, length as u16);
            put(out, VNET_HEADER + 4, id);
        } else {
            put(out, VNET_HEADER + 4, (length - IPV6_HEADER) as u16);
        }
        let transport = self.transport;
        if self.flow.protocol == Protocol::Udp {
            let length = out.len() - transport;
            put(out, transport + 4, length as u16);
            return;
        }
        let sequence = u32::from_be_bytes([
            out[transport + 4],
            out[transport + 5],
            out[transport + 6],
            out[transport + 7],
        ]);
        out[transport + 4..transport + 8]
            .copy_from_slice(&sequence.wrapping_add(first).to_be_bytes());
        if last < payload {
            out[transport + 13] &= !FIN_PSH;
        }
        if first > 0 {
            out[transport + 13] &= !CWR;
        }
    }

    /// Other addresses and ports, and where the family is another one, another header; a checksum that
    /// is complete is kept right. Says where the transport header begins then.
    fn readdress(&self, flow: Flow, out: &mut Vec<u8>) -> usize {
        let complete = out[0] & NEEDS_CHECKSUM == 0;
        let before = sum(addresses(out));
        let mut transport = self.transport;
        if flow.source.is_ipv4() != self.flow.source.is_ipv4() {
            transport = translate(flow, transport, out);
        }
        let place = addresses_mut(out);
        match (flow.source.ip(), flow.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                place[..4].copy_from_slice(&source.octets());
                place[4..].copy_from_slice(&destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                place[..16].copy_from_slice(&source.octets());
                place[16..].copy_from_slice(&destination.octets());
            }
            // The model's flows are of one family.
            _ => return transport,
        }
        // An echo's checksum covers the addresses in IPv6 only (RFC 792, RFC 4443).
        let covered = flow.protocol != Protocol::Echo || flow.source.is_ipv6();
        let mut change = match covered {
            true => u32::from(!folded(before)) + sum(addresses(out)),
            false => 0,
        };
        let mut replace = |at: usize, new: u16| {
            change += u32::from(!number(out, at).unwrap_or(0)) + u32::from(new);
            put(out, at, new);
        };
        let (source, destination) = (flow.source.port(), flow.destination.port());
        let checksum = match flow.protocol {
            Protocol::Other => return transport,
            Protocol::Echo => {
                // Whoever asks has the port that is not 0.
                replace(transport + 4, source.max(destination));
                transport + 2
            }
            Protocol::Udp | Protocol::Tcp => {
                replace(transport, source);
                replace(transport + 2, destination);
                transport + checksum_offset(flow.protocol)
            }
        };
        let old = number(out, checksum).unwrap_or(0);
        let none = flow.protocol == Protocol::Udp && old == 0;
        if complete && !none {
            put(out, checksum, !folded(u32::from(!old) + change));
        }
        transport
    }

    /// The ICMP message that tells the sender what the link carries (RFC 792 and 1191, RFC 4443), as a
    /// buffer for its device.
    pub(super) fn too_large(&self, mtu: u16, out: &mut Vec<u8>) {
        let ip = &self.bytes[VNET_HEADER..];
        out.clear();
        match self.flow.source.ip() {
            IpAddr::V4(sender) => {
                let quoted = &ip[..ip.len().min(self.transport - VNET_HEADER + 8)];
                fragmentation_needed(sender, mtu, quoted, out);
            }
            IpAddr::V6(sender) => {
                // Not more than fits the smallest MTU; the kernel looks at the first packet only.
                let first = self.segments.bytes(0) as usize;
                let quoted = &ip[..ip.len().min(first).min(1280 - IPV6_HEADER - 8)];
                packet_too_big(sender, mtu, quoted, out);
            }
        }
    }
}

/// Who says that a packet is too large: an address of the lab that no host has.
const INTERNET: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 1);

/// The same of IPv6.
const INTERNET6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0xffff, 0, 0, 0, 1);

fn fragmentation_needed(sender: Ipv4Addr, mtu: u16, quoted: &[u8], out: &mut Vec<u8>) {
    out.resize(VNET_HEADER + IPV4_HEADER + 8, 0);
    out.extend_from_slice(quoted);
    let length = out.len() - VNET_HEADER;
    let head = &mut out[VNET_HEADER..];
    head[..2].copy_from_slice(&[0x45, 0]);
    put(head, 2, length as u16);
    head[8] = 64;
    head[9] = 1;
    head[12..16].copy_from_slice(&INTERNET.octets());
    head[16..20].copy_from_slice(&sender.octets());
    let ip_sum = !folded(sum(&head[..20]));
    put(head, 10, ip_sum);
    head[20..22].copy_from_slice(&[3, 4]);
    put(head, 26, mtu);
    let icmp_sum = !folded(sum(&head[20..]));
    put(head, 22, icmp_sum);
}

fn packet_too_big(sender: Ipv6Addr, mtu: u16, quoted: &[u8], out: &mut Vec<u8>) {
    out.resize(VNET_HEADER + IPV6_HEADER + 8, 0);
    out.extend_from_slice(quoted);
    let length = out.len() - VNET_HEADER - IPV6_HEADER;
    let head = &mut out[VNET_HEADER..];
    head[0] = 0x60;
    put(head, 4, length as u16);
    head[6] = 58;
    head[7] = 64;
    head[8..24].copy_from_slice(&INTERNET6.octets());
    head[24..40].copy_from_slice(&sender.octets());
    head[40] = 2;
    put(head, 46, mtu);
    let pseudo = sum(&head[8..40]) + 58 + length as u32;
    let icmp_sum = !folded(sum(&head[40..]) + pseudo);
    put(head, 42, icmp_sum);
}

/// Replaces the IP header by one of the other family, still without addresses; says where the
/// transport header begins now (RFC 7915, 4.1 and 5.1).
fn translate(flow: Flow, transport: usize, out: &mut Vec<u8>) -> usize {
    let payload = out.len() - transport;
    let old = &out[VNET_HEADER..transport];
    let mut header = match flow.source.is_ipv4() {
        true => vec![0; IPV4_HEADER],
        false => vec![0; IPV6_HEADER],
    };
    if flow.source.is_ipv4() {
        let class = old[0] << 4 | old[1] >> 4;
        header[..2].copy_from_slice(&[0x45, class]);
        put(&mut header, 2, (IPV4_HEADER + payload) as u16);
        // Not to be fragmented.
        header[6] = 0x40;
        (header[8], header[9]) = (old[7], old[6]);
    } else {
        let class = old[1];
        (header[0], header[1]) = (0x60 | class >> 4, class << 4);
        put(&mut header, 4, payload as u16);
        (header[6], header[7]) = (old[9], old[8]);
    }
    let begins = VNET_HEADER + header.len();
    out.splice(VNET_HEADER..transport, header);
    out[1] = match out[1] & !GSO_ECN {
        GSO_TCP4 | GSO_TCP6 if flow.source.is_ipv4() => GSO_TCP4,
        GSO_TCP4 | GSO_TCP6 => GSO_TCP6,
        other => other,
    } | out[1] & GSO_ECN;
    // The bytes of headers, and where the checksum begins.
    for at in [2, 6] {
        let old = u16::from_ne_bytes([out[at], out[at + 1]]);
        if usize::from(old) + VNET_HEADER >= transport {
            let new = usize::from(old) + begins - transport;
            out[at..at + 2].copy_from_slice(&(new as u16).to_ne_bytes());
        }
    }
    begins
}

/// Both addresses of a buffer's packet, the source first.
fn addresses(buffer: &[u8]) -> &[u8] {
    &buffer[address_range(buffer)]
}

fn addresses_mut(buffer: &mut [u8]) -> &mut [u8] {
    let range = address_range(buffer);
    &mut buffer[range]
}

fn address_range(buffer: &[u8]) -> Range<usize> {
    match buffer[VNET_HEADER] >> 4 {
        4 => VNET_HEADER + 12..VNET_HEADER + 20,
        _ => VNET_HEADER + 8..VNET_HEADER + 40,
    }
}

/// Where the checksum stands in the header of TCP or UDP.
const fn checksum_offset(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Udp => 6,
        _ => 16,
    }
}

/// The part of the checksum that the device expects to find.
fn sum_pseudo_header(protocol: Protocol, transport: usize, out: &mut [u8]) {
    let number = match protocol {
        Protocol::Tcp => 6_u32,
        Protocol::Udp => 17,
        Protocol::Echo | Protocol::Other => return,
    };
    let length = (out.len() - transport) as u32;
    let addresses = sum(addresses(out));
    let at = transport + checksum_offset(protocol);
    put(out, at, folded(addresses + number + length));
}

fn segments(bytes: &[u8], header: usize, total: usize) -> Option<PacketSegments> {
    let ip = bytes.get(VNET_HEADER..)?;
    let whole = PacketSegments::one(u32::try_from(total).ok()?);
    let transport = match bytes.get(1)? & !GSO_ECN {
        GSO_TCP4 | GSO_TCP6 => usize::from(ip.get(header + 12)? >> 4) * 4,
        GSO_UDP => 8,
        _ => return Some(whole),
    };
    let size = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let headers = header + transport;
    if size == 0 || headers >= total {
        return Some(whole);
    }
    Some(PacketSegments {
        header: u32::try_from(headers).ok()?,
        size: u32::from(size),
        payload: u32::try_from(total - headers).ok()?,
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(octets.into())
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of 16-bit words, not folded (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words
        .map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)])))
        .sum()
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer: IPv4 and then `transport`, addressed 198.18.0.1 → 198.18.1.1.
    fn buffer(protocol: u8, gso: (u8, u16), flags: u8, transport: &[u8]) -> Bytes {
        let mut out = vec![0; VNET_HEADER + 20];
        out[0] = flags;
        out[1] = gso.0;
        out[4..6].copy_from_slice(&gso.1.to_ne_bytes());
        out.extend_from_slice(transport);
        let length = out.len() - VNET_HEADER;
        let ip = &mut out[VNET_HEADER..];
        ip[0] = 0x45;
        put(ip, 2, length as u16);
        put(ip, 4, 700);
        ip[9] = protocol;
        ip[12..16].copy_from_slice(&[198, 18, 0, 1]);
        ip[16..20].copy_from_slice(&[198, 18, 1, 1]);
        out.into()
    }

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 8];
        put(&mut out, 0, 5000);
        put(&mut out, 2, 80);
        put(&mut out, 4, (8 + payload.len()) as u16);
        out.extend_from_slice(payload);
        out
    }

    fn tcp(payload: &[u8], flags: u8) -> Vec<u8> {
        let mut out = vec![0; 20];
        put(&mut out, 0, 5000);
        put(&mut out, 2, 80);
        out[4..8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
        out[12] = 0x50;
        out[13] = flags;
        out.extend_from_slice(payload);
        out
    }

    /// Whether IP and transport checksums are right.
    fn sums_hold(packet: &[u8]) -> bool {
        let ip = &packet[VNET_HEADER..];
        let transport = &ip[20..];
        let pseudo = sum(&ip[12..20]) + u32::from(ip[9]) + transport.len() as u32;
        let transport = match ip[9] {
            1 => folded(sum(transport)),
            _ => folded(sum(transport) + pseudo),
        };
        folded(sum(&ip[..20])) == 0xffff && transport == 0xffff
    }

    fn complete(protocol: u8, transport: &[u8], at: usize) -> Bytes {
        let mut out = buffer(protocol, (0, 0), 0, transport).to_vec();
        let ip = &out[VNET_HEADER..];
        let pseudo = match protocol {
            1 => 0,
            _ => sum(&ip[12..20]) + u32::from(protocol) + transport.len() as u32,
        };
        let checksum = !folded(sum(&ip[20..]) + pseudo);
        put(&mut out, VNET_HEADER + 20 + at, checksum);
        out.into()
    }

    fn written(frame: &TunFrame, flow: Flow, range: Range<u32>) -> Vec<u8> {
        let mut out = Vec::new();
        frame.write(flow, range, &mut out);
        out
    }

    #[test]
    fn complete_checksums_stay_right_under_other_addresses_and_ports() {
        let echo = [8, 0, 0, 0, 0x12, 0x34, 0, 1, 9, 9, 9];
        let packets = [
            complete(17, &udp(b"hello"), 6),
            complete(6, &tcp(b"hello!!", 0x18), 16),
            complete(1, &echo, 2),
        ];
        for packet in packets {
            let frame = TunFrame::read(packet).unwrap();
            let mut flow = frame.flow();
            flow.source = (Ipv4Addr::new(10, 99, 255, 7), 61_234).into();
            let out = written(&frame, flow, 0..1);
            assert!(sums_hold(&out), "{flow}");
            let again = TunFrame::read(out.into()).unwrap();
            assert_eq!(again.flow(), flow);
        }
    }

    /// As `sums_hold`, for IPv6.
    fn sums_hold_ipv6(packet: &[u8]) -> bool {
        let ip = &packet[VNET_HEADER..];
        let transport = &ip[40..];
        let pseudo = sum(&ip[8..40]) + u32::from(ip[6]) + transport.len() as u32;
        folded(sum(transport) + pseudo) == 0xffff
    }

    fn six(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 2, 0, last, 0, 0, 0, last)
    }

    #[test]
    fn packets_become_those_of_the_other_family_and_back_with_right_checksums() {
        let packets = [
            complete(17, &udp(b"hello"), 6),
            complete(6, &tcp(b"hello!!", 0x18), 16),
        ];
        for packet in packets {
            let frame = TunFrame::read(packet.clone()).unwrap();
            let there = Flow {
                source: (six(1), 61_234).into(),
                destination: (six(2), 443).into(),
                ..frame.flow()
            };
            let out = written(&frame, there, 0..1);
            assert_eq!(out.len(), packet.len() + 20);
            assert!(sums_hold_ipv6(&out), "{there}");
            let frame = TunFrame::read(out.into()).unwrap();
            assert_eq!(frame.flow(), there);
            let other = Flow {
                source: (six(3), 7).into(),
                ..there
            };
            assert!(sums_hold_ipv6(&written(&frame, other, 0..1)), "{other}");
            let back = TunFrame::read(packet.clone()).unwrap().flow();
            let out = written(&frame, back, 0..1);
            assert!(sums_hold(&out));
            assert_eq!(out[VNET_HEADER + 20..], packet[VNET_HEADER + 20..]);
        }
    }

    #[test]
    fn segments_of_ipv6_are_cut_and_change_their_family() {
        let payload: Vec<u8> = (0..250).map(|i| i as u8).collect();
        let four = TunFrame::read(buffer(
            6,
            (GSO_TCP4, 100),
            NEEDS_CHECKSUM,
            &tcp(&payload, 0x10),
        ))
        .unwrap();
        let there = Flow {
            source: (six(1), 61_234).into(),
            destination: (six(2), 443).into(),
            ..four.flow()
        };
        let whole = written(&four, there, 0..3);
        assert_eq!(
            (whole[1], number(&whole, VNET_HEADER + 4)),
            (GSO_TCP6, Some(270))
        );
        let frame = TunFrame::read(whole.into()).unwrap();
        assert_eq!((frame.segments().count(), frame.segments().header), (3, 60));
        let mut joined = Vec::new();
        for index in 0..3_u32 {
            let mut out = written(&frame, there, index..index + 1);
            let at = VNET_HEADER + IPV6_HEADER;
            let checksum = !folded(sum(&out[at..]));
            put(&mut out, at + 16, checksum);
            assert!(sums_hold_ipv6(&out));
            joined.extend_from_slice(&out[at + 20..]);
        }
        assert_eq!(joined, payload);
    }

    #[test]
    fn the_message_about_the_mtu_of_ipv6_quotes_the_packet() {
        let four = TunFrame::read(complete(17, &udp(b"hello"), 6)).unwrap();
        let flow = Flow {
            source: (six(1), 5).into(),
            destination: (six(2), 6).into(),
            ..four.flow()
        };
        let frame = TunFrame::read(written(&four, flow, 0..1).into()).unwrap();
        let mut out = Vec::new();
        frame.too_large(1400, &mut out);
        assert!(sums_hold_ipv6(&out));
        let icmp = &out[VNET_HEADER + 40..];
        assert_eq!((icmp[0], icmp[1], number(icmp, 6)), (2, 0, Some(1400)));
        assert_eq!(&icmp[8..], &frame.bytes[VNET_HEADER..]);
    }

    #[test]
    fn a_udp_checksum_that_was_left_out_stays_so() {
        let frame = TunFrame::read(buffer(17, (0, 0), 0, &udp(b"x"))).unwrap();
        let mut flow = frame.flow();
        flow.source.set_port(1);
        let out = written(&frame, flow, 0..1);
        assert_eq!(number(&out, VNET_HEADER + 20 + 6), Some(0));
    }

    /// Finishes what the device would: the checksum that was left to it.
    fn finished(mut out: Vec<u8>, at: usize) -> Vec<u8> {
        assert_eq!(out[0], NEEDS_CHECKSUM);
        let checksum = !folded(sum(&out[VNET_HEADER + 20..]));
        put(&mut out, VNET_HEADER + 20 + at, checksum);
        out
    }

    #[test]
    fn tcp_packets_cut_from_a_buffer_are_as_the_kernel_would_have_cut_them() {
        let payload: Vec<u8> = (0..250).map(|i| i as u8).collect();
        let frame = TunFrame::read(buffer(
            6,
            (GSO_TCP4, 100),
            NEEDS_CHECKSUM,
            &tcp(&payload, 0x99),
        ))
        .unwrap();
        assert_eq!(frame.segments().count(), 3);
        let mut joined = Vec::new();
        for index in 0..3_u32 {
            let out = finished(written(&frame, frame.flow(), index..index + 1), 16);
            assert!(sums_hold(&out));
            assert_eq!((out[1], &out[4..6]), (GSO_NONE, &[0, 0][..]));
            let at = VNET_HEADER + 20;
            let sequence = u32::from_be_bytes(out[at + 4..at + 8].try_into().unwrap());
            assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(index * 100));
            assert_eq!(
                out[at + 13] & FIN_PSH != 0,
                index == 2,
                "FIN and PSH on the last"
            );
            assert_eq!(out[at + 13] & CWR != 0, index == 0, "CWR on the first");
            assert_eq!(number(&out, VNET_HEADER + 4), Some(700 + index as u16));
            joined.extend_from_slice(&out[at + 20..]);
        }
        assert_eq!(joined, payload);
    }

    #[test]
    fn several_packets_cut_from_a_buffer_stay_one_buffer() {
        let payload = [7; 1000];
        let frame =
            TunFrame::read(buffer(17, (GSO_UDP, 100), NEEDS_CHECKSUM, &udp(&payload))).unwrap();
        assert_eq!(frame.segments().count(), 10);
        let out = written(&frame, frame.flow(), 3..7);
        assert_eq!(
            (out[1], number(&out, VNET_HEADER + 2)),
            (GSO_UDP, Some(428))
        );
        assert_eq!(
            number(&out, VNET_HEADER + 24),
            Some(408),
            "the length of UDP"
        );
        let again = TunFrame::read(out.into()).unwrap();
        assert_eq!(again.segments().count(), 4);
    }

    #[test]
    fn what_a_host_cannot_have_meant_is_refused() {
        let good = complete(17, &udp(b"hello"), 6);
        for (at, value) in [
            (VNET_HEADER, 0x65),
            (VNET_HEADER, 0x41),
            (VNET_HEADER + 2, 0xff),
        ] {
            let mut bad = good.to_vec();
            bad[at] = value;
            assert!(TunFrame::read(bad.into()).is_none(), "{at} {value}");
        }
        for length in 0..VNET_HEADER + 20 {
            assert!(TunFrame::read(good.slice(..length)).is_none());
        }
    }

    #[test]
    fn fragments_have_no_ports() {
        let mut fragment = complete(17, &udp(b"hello"), 6).to_vec();
        fragment[VNET_HEADER + 6] = 0x20;
        let flow = TunFrame::read(fragment.into()).unwrap().flow();
        assert_eq!((flow.protocol, flow.source.port()), (Protocol::Other, 0));
    }

    #[test]
    fn the_message_about_the_mtu_quotes_the_packet() {
        let frame = TunFrame::read(complete(17, &udp(b"hello"), 6)).unwrap();
        let mut out = Vec::new();
        frame.too_large(1400, &mut out);
        let icmp = &out[VNET_HEADER + 20..];
        assert_eq!((icmp[0], icmp[1], number(icmp, 6)), (3, 4, Some(1400)));
        assert_eq!(folded(sum(icmp)), 0xffff);
        assert_eq!(&icmp[8..36], &frame.bytes[VNET_HEADER..VNET_HEADER + 28]);
    }
}
