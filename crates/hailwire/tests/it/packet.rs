//! Whatever an untrusted peer puts into a datagram, a node lives and takes calls.

use std::{net::SocketAddr, time::Duration};

use hailwire::{Config, DataDir, Node, config::TlsCipher};
use tokio::{net::UdpSocket, time::timeout};

use crate::{
    datagrams,
    initial::{self, Initial},
    kept, strange_tcp,
    test_node::{self, PATIENCE, TestNode, call, serve_echo},
};

const CIPHERS: [TlsCipher; 4] = [
    TlsCipher::Auto,
    TlsCipher::Aes128,
    TlsCipher::Aes256,
    TlsCipher::Chacha20,
];

/// A frame that wants to be acknowledged and says nothing.
pub(crate) const PING: &[u8] = &[0x01];

/// The type of a Retry packet (RFC 9000, 17.2.5), in its first byte.
const RETRY: u8 = 0xf0;

/// A node that prefers this cipher.
async fn node_with(cipher: TlsCipher) -> TestNode {
    let mut config = test_node::config("under-fire");
    config.quic.cipher = cipher;
    node_of(config).await
}

pub(crate) async fn node_of(config: Config) -> TestNode {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder()
        .data_dir(DataDir::new(dir.path()))
        .config(config)
        .start()
        .await
        .unwrap();
    TestNode { node, dir }
}

/// A socket of somebody who knows nothing but the node's address.
pub(crate) async fn untrusted_socket(host: &TestNode) -> UdpSocket {
    untrusted_socket_to(host.node.sockets()[0]).await
}

pub(crate) async fn untrusted_socket_to(node: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(node).await.unwrap();
    socket
}

/// What the node sends next.
pub(crate) async fn answer(socket: &UdpSocket) -> Vec<u8> {
    let mut answer = vec![0; 2048];
    let received = timeout(PATIENCE, socket.recv(&mut answer)).await;
    answer.truncate(received.expect("an answer").unwrap());
    answer
}

/// Sends Initials that begin a handshake and never go on with it, until the node asks for a proof of the
/// address; how many it took.
pub(crate) async fn forge_until_retry(socket: &UdpSocket) -> usize {
    for sent in 1_u64.. {
        let forged = Initial::new(&sent.to_be_bytes(), PING).datagram();
        socket.send(&forged).await.unwrap();
        if answer(socket).await[0] & 0xf0 == RETRY {
            return usize::try_from(sent).unwrap();
        }
        assert!(sent < 1000, "no address has to be proved");
    }
    unreachable!()
}

/// A peer's call arrives on the tunnel that is up, and another node can still join.
async fn takes_calls(friend: &TestNode, host: &TestNode) {
    assert_eq!(
        call(&friend.client(), "echo@under-fire", "x")
            .await
            .unwrap(),
        b"x"
    );
    let newcomer = TestNode::named("newcomer").await;
    newcomer.join(&host.invite(1, &[]).await).await.unwrap();
    assert_eq!(
        call(&newcomer.client(), "echo@under-fire", "y")
            .await
            .unwrap(),
        b"y"
    );
    newcomer.node.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_datagram_with_a_token_ends_no_node_whatever_its_cipher() {
    for cipher in CIPHERS {
        let (friend, host) = tokio::join!(TestNode::named("friend"), node_with(cipher));
        friend.befriend(&host).await;
        let _echo = serve_echo(&host.client(), "echo").await;
        let socket = untrusted_socket(&host).await;
        let hello = initial::crypto(0, &initial::client_hello());
        for length in (0..=80).chain([200, 900]) {
            let token = vec![7; length];
            let begun = [length as u8; 8];
            for frames in [PING, &hello] {
                let packet = Initial::new(&begun, frames).with_token(&token);
                socket.send(&packet.datagram()).await.unwrap();
            }
        }
        takes_calls(&friend, &host).await;
    }
}

#[tokio::test]
async fn a_flood_of_handshakes_is_answered_with_retry_and_ends_no_node_whatever_its_cipher() {
    for cipher in CIPHERS {
        let (friend, host) = tokio::join!(TestNode::named("friend"), node_with(cipher));
        friend.befriend(&host).await;
        let _echo = serve_echo(&host.client(), "echo").await;
        let socket = untrusted_socket(&host).await;
        let sent = forge_until_retry(&socket).await;
        assert!(sent > 100, "only {sent} handshakes may be under way");
        takes_calls(&friend, &host).await;
    }
}

/// A small generator (SplitMix64), so that a seed says everything.
struct Draw(u64);

impl Draw {
    /// From `HAILWIRE_SEED`, or the same each time.
    fn new() -> Self {
        let seed = std::env::var("HAILWIRE_SEED").ok();
        Self(seed.and_then(|seed| seed.parse().ok()).unwrap_or(1))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.byte()).collect()
    }

    /// One of `begun` with some bytes altered, taken out or put in.
    fn altered(&mut self, begun: &[&[u8]]) -> Vec<u8> {
        let mut bytes = begun[self.below(begun.len())].to_vec();
        for _ in 0..self.below(6) {
            let at = self.below(bytes.len() + 1);
            match self.below(3) {
                0 => bytes.insert(at, self.byte()),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ if at < bytes.len() => bytes[at] = self.byte(),
                _ => {}
            }
        }
        bytes
    }
}

fn rounds(usual: usize) -> usize {
    let asked = std::env::var("HAILWIRE_ROUNDS").ok();
    asked
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(usual)
}

/// The promises are those of the fuzz target.
#[tokio::test]
async fn whatever_datagrams_come_a_node_answers_the_next_one_and_takes_calls() {
    let (friend, host) = tokio::join!(TestNode::named("friend"), node_with(TlsCipher::Auto));
    friend.befriend(&host).await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let mut sender = datagrams::Sender::to(host.node.sockets()[0]).await;
    let mut draw = Draw::new();
    let begun: [&[u8]; 6] = [
        b"\x00\0\x01\x01\0",
        b"\x04\0\0\0\0\0",
        b"\x04\0\x03\0\x05\x01\0\0\0\x10\0\x01\x01\x01",
        b"\x01\0\x10ABCDEFGHIJKLMNOP\0\x01\x01\0",
        b"\x06\0\0\0\0\0\x12\0\x01\x01\x01",
        b"\x20\0\x05\x02\0\0\0\0\0\x70\0\x01\x01\0",
    ];
    for _ in 0..rounds(400) {
        let mut input = draw.altered(&begun);
        if draw.below(4) == 0 {
            input = draw.bytes(400);
        }
        sender.feed(&input).await;
    }
    takes_calls(&friend, &host).await;
}

#[tokio::test]
async fn whatever_is_kept_for_the_fuzz_target_datagrams_a_node_answers_and_takes_calls() {
    let (friend, host) = tokio::join!(TestNode::named("friend"), node_with(TlsCipher::Auto));
    friend.befriend(&host).await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let mut sender = datagrams::Sender::to(host.node.sockets()[0]).await;
    for input in kept::inputs("datagrams", 200) {
        sender.feed(&input).await;
    }
    takes_calls(&friend, &host).await;
}

/// Found by fuzzing: a library that reads the upgrade took a target that is no URI for impossible, and panicked.
#[tokio::test]
async fn an_upgrade_whose_target_is_no_uri_costs_its_sender_one_connection_and_nobody_else() {
    let mut config = test_node::config("under-fire");
    config.listen.tcp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let (friend, host) = tokio::join!(TestNode::named("friend"), node_of(config));
    friend.befriend(&host).await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let caller = strange_tcp::Caller::of(host.node.tcp_sockets()[0]);
    for target in ["Gah/Tilwire", "", "//", "http://[", "/%"] {
        let upgrade = format!(
            "\x04GET {target} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        caller.feed(upgrade.as_bytes()).await;
    }
    takes_calls(&friend, &host).await;
}

/// The promises are those of the fuzz target.
#[tokio::test]
async fn whatever_comes_over_tcp_a_node_takes_the_next_connection_and_calls() {
    let mut config = test_node::config("under-fire");
    config.listen.tcp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let (friend, host) = tokio::join!(TestNode::named("friend"), node_of(config));
    friend.befriend(&host).await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let caller = strange_tcp::Caller::of(host.node.tcp_sockets()[0]);
    let mut draw = Draw::new();
    let begun: [&[u8]; 7] = [
        b"\x00\x16\x03\x01\0\x05\x01\0\0\x01\0",
        b"\x03\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64",
        b"\x03\0\0\x08\x01\x04\0\0\0\x01\x83\x84\x87\x41\x01\x7f\0\0",
        b"\x05\x82\x8a\0\0\0\0hailwire\0\x01",
        b"\x05\x89\x85\0\0\0\0hello\x88\x80\0\0\0\0",
        b"\x04GET /hailwire HTTP/1.1\r\n\r\n",
        b"\x07ABCDEFGHIJKLMNOP",
    ];
    for _ in 0..rounds(60) {
        let mut input = draw.altered(&begun);
        if draw.below(4) == 0 {
            input = draw.bytes(400);
        }
        caller.feed(&input).await;
    }
    takes_calls(&friend, &host).await;
}

#[tokio::test]
async fn whatever_is_kept_for_the_fuzz_target_tcp_listener_a_node_takes_calls() {
    let mut config = test_node::config("under-fire");
    config.listen.tcp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let (friend, host) = tokio::join!(TestNode::named("friend"), node_of(config));
    friend.befriend(&host).await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let caller = strange_tcp::Caller::of(host.node.tcp_sockets()[0]);
    for input in kept::inputs("tcp_listener", 40) {
        caller.feed(&input).await;
    }
    takes_calls(&friend, &host).await;
}
