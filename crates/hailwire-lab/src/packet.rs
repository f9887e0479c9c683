//! What the model knows of a packet: where it comes from, where it goes, how large it is. The bytes
//! belong to the tier.

use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Serialize};

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// RFC 768.
    Udp,
    /// RFC 9293.
    Tcp,
    /// An ICMP echo or its reply (RFC 792, RFC 4443). The identifier stands for the port of whoever
    /// asks; the other port is 0.
    Echo,
    /// Anything else, and fragments of any packet. The ports are 0.
    Other,
}

/// Between whom a packet travels; both ends are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// What it carries.
    pub protocol: Protocol,
    /// From.
    pub source: SocketAddr,
    /// To.
    pub destination: SocketAddr,
}

impl Flow {
    /// The way back.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            protocol: self.protocol,
            source: self.destination,
            destination: self.source,
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {} → {}",
            self.protocol, self.source, self.destination
        )
    }
}

/// How a buffer divides into packets on the wire. A host's kernel hands over up to 64 KiB at once,
/// to be cut into segments that share one header (segmentation offload); the model treats each
/// segment as the packet that it is on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSegments {
    /// Bytes of headers before the payload, repeated in every segment.
    pub header: u32,
    /// Bytes of payload in each segment but the last.
    pub size: u32,
    /// Bytes of payload in all.
    pub payload: u32,
}

impl PacketSegments {
    /// A single packet of this many bytes, headers included.
    #[must_use]
    pub const fn one(bytes: u32) -> Self {
        Self {
            header: 0,
            size: bytes,
            payload: bytes,
        }
    }

    /// How many packets.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.payload.div_ceil(self.size.max(1)).max(1)
    }

    /// Bytes of packet `index`, headers included.
    #[must_use]
    pub fn bytes(&self, index: u32) -> u32 {
        let before = index * self.size;
        self.header + self.payload.saturating_sub(before).min(self.size.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_share_the_payload_and_each_has_the_header() {
        let segments = PacketSegments {
            header: 40,
            size: 1000,
            payload: 2500,
        };
        assert_eq!(segments.count(), 3);
        let bytes: Vec<_> = (0..3).map(|i| segments.bytes(i)).collect();
        assert_eq!(bytes, [1040, 1040, 540]);
    }

    #[test]
    fn a_packet_without_payload_is_one_packet() {
        let bare = PacketSegments {
            header: 40,
            size: 0,
            payload: 0,
        };
        assert_eq!((bare.count(), bare.bytes(0)), (1, 40));
        assert_eq!(
            (
                PacketSegments::one(1500).count(),
                PacketSegments::one(1500).bytes(0)
            ),
            (1, 1500)
        );
    }
}
