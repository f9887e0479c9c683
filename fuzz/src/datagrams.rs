//! What a node must hold to, whatever datagrams reach its UDP socket: it lives, and answers the next one.
//!
//! An input is a list of packets. Most of them are Initials that are encrypted as they ought to be, so that
//! what an input says gets past header protection: frames of any kind, ClientHellos with bytes altered,
//! tokens, connection ids of any length. Others are bytes as they come. Behind them goes a packet of a
//! version that does not exist: its answer says that everything before was taken in.
//!
//! In files of their own, this one and `initial.rs`: `hailwire`'s tests call it too, with inputs drawn from
//! a seed.

use std::{net::SocketAddr, sync::LazyLock, time::Duration};

use tokio::{net::UdpSocket, time::timeout};

use crate::initial::{Initial, client_hello, crypto};

/// Packets of one input; what is more is not read.
const MAX_PACKETS: usize = 24;

/// How long a node may take for an input.
const PATIENCE: Duration = Duration::from_secs(10);

static HELLO: LazyLock<Vec<u8>> = LazyLock::new(client_hello);

/// Somebody who sends datagrams to a node.
#[derive(Debug)]
pub struct Sender {
    socket: UdpSocket,
    /// The token of the last Retry.
    token: Vec<u8>,
    /// Of markers and of connection ids.
    count: u64,
}

impl Sender {
    /// From a socket of its own to `node`.
    pub async fn to(node: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        socket.connect(node).await.expect("an address");
        Self {
            socket,
            token: Vec::new(),
            count: 0,
        }
    }

    /// Sends what an input says, and waits until the node has taken it in.
    ///
    /// # Panics
    ///
    /// If the node does not answer what comes behind it.
    pub async fn feed(&mut self, input: &[u8]) {
        let mut input = Input(input);
        let mut ready: Vec<u8> = Vec::new();
        for _ in 0..MAX_PACKETS {
            let Some(flags) = input.byte() else { break };
            let packet = self.packet(flags, &mut input);
            if flags & COALESCED == 0 {
                self.send(&ready).await;
                ready.clear();
            }
            ready.extend(packet);
        }
        self.send(&ready).await;
        self.settle().await;
    }

    fn packet(&mut self, flags: u8, input: &mut Input<'_>) -> Vec<u8> {
        if flags & RAW != 0 {
            return input.bytes().to_vec();
        }
        if flags & AGAIN == 0 {
            self.count += 1;
        }
        let token = match flags & (TOKEN | RETRIED) {
            TOKEN => input.bytes(),
            RETRIED => &self.token,
            _ => b"",
        };
        let mut id = self.count.to_be_bytes().to_vec();
        if flags & ODD != 0 {
            id.resize(usize::from(input.byte().unwrap_or(0)), 1);
        }
        let mut frames = Vec::new();
        if flags & GREETING != 0 {
            let mut hello = HELLO.clone();
            for patch in input.bytes().chunks_exact(3) {
                let at = usize::from(u16::from_be_bytes([patch[0], patch[1]])) % hello.len();
                hello[at] ^= patch[2];
            }
            frames = crypto(0, &hello);
        }
        frames.extend(input.bytes());
        let mut packet = Initial::new(&id, &frames).with_token(token);
        packet.number = u32::from(input.byte().unwrap_or(0));
        if flags & SHORT != 0 {
            packet.padded = 0;
        }
        packet.datagram()
    }

    async fn send(&self, datagram: &[u8]) {
        if !datagram.is_empty() {
            // Too large for the network is no finding.
            let _ = self
                .socket
                .send(&datagram[..datagram.len().min(60_000)])
                .await;
        }
    }

    /// Asks something of which the node keeps nothing, and reads until its answer.
    async fn settle(&mut self) {
        self.count += 1;
        let mark = self.count.to_be_bytes();
        let mut question = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
        question.extend(mark);
        question.push(8);
        question.extend(mark);
        question.resize(1200, 0);
        self.socket
            .send(&question)
            .await
            .expect("the node's socket");
        let mut answer = vec![0; 65_536];
        loop {
            let received = timeout(PATIENCE, self.socket.recv(&mut answer)).await;
            let length = received
                .expect("the node answers")
                .expect("its socket is open");
            let answer = &answer[..length];
            // Version 0 means negotiation, and the ids come back the other way round.
            if answer.len() > 14 && answer[1..5] == [0; 4] && answer[6..14] == mark {
                return;
            }
            self.note_retry(answer);
        }
    }

    /// Keeps a Retry's token (RFC 9000, 17.2.5): what stands between the ids and the integrity tag.
    fn note_retry(&mut self, answer: &[u8]) {
        if answer.first().is_none_or(|first| first & 0xf0 != 0xf0) || answer.len() < 7 + 16 {
            return;
        }
        let to = 6 + usize::from(answer[5]);
        let from = answer
            .get(to)
            .map_or(usize::MAX, |length| to + 1 + usize::from(*length));
        if let Some(token) = answer.get(from..answer.len() - 16) {
            self.token = token.to_vec();
        }
    }
}

/// A token follows.
const TOKEN: u8 = 0x01;
/// The token of the last Retry.
const RETRIED: u8 = 0x02;
/// A ClientHello leads the frames, with bytes altered as follows.
const GREETING: u8 = 0x04;
/// A connection id of the length that follows.
const ODD: u8 = 0x08;
/// To the connection id of the packet before.
const AGAIN: u8 = 0x10;
/// Not padded to the size that RFC 9000, 14.1 asks for.
const SHORT: u8 = 0x20;
/// In one datagram with the packet before.
const COALESCED: u8 = 0x40;
/// No Initial: bytes as they are.
const RAW: u8 = 0x80;

/// The rest of an input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// As many as the next two bytes say, or what is left.
    fn bytes(&mut self) -> &'a [u8] {
        let length = u16::from_be_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)]);
        let (taken, rest) = self
            .0
            .split_at(self.0.len().min(usize::from(length & 0x07ff)));
        self.0 = rest;
        taken
    }
}
