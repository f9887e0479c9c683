//! What a ticket, a joiner or a record can make a node contact: nothing of its own machine, no relay that
//! it did not join.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, UdpSocket},
};

use bytes::BytesMut;
use hailwire::{Code, Config, DataDir, Node, NodeId, Status, admin, admin::method};
use hailwire_wire::{
    CallHeader,
    frame::{self, FrameKind},
    header::{self, VERSION},
    ticket::{NodeTicket, Ticket, TicketSecret},
};
use serde::Serialize;

use crate::{
    hostile::Guest,
    test_node::{TestNode, call, invite, join},
};

/// Services of this machine that listen on loopback alone, and what came to them.
struct Services {
    udp: UdpSocket,
    tcp: TcpListener,
    relay: TcpListener,
}

impl Services {
    fn start() -> Self {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let tcp = || {
            let listener = TcpListener::bind(loopback).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let udp = UdpSocket::bind(loopback).unwrap();
        udp.set_nonblocking(true).unwrap();
        Self {
            udp,
            tcp: tcp(),
            relay: tcp(),
        }
    }

    /// What somebody who wants them contacted says.
    fn named(&self) -> (Vec<SocketAddr>, Vec<SocketAddr>, String) {
        let relay = self.relay.local_addr().unwrap();
        (
            vec![self.udp.local_addr().unwrap()],
            vec![self.tcp.local_addr().unwrap()],
            format!("http://{relay}/"),
        )
    }

    fn heard_nothing(&self) {
        let udp = self.udp.recv(&mut [0; 2000]).unwrap_err();
        assert_eq!(udp.kind(), ErrorKind::WouldBlock);
        for listener in [&self.tcp, &self.relay] {
            let tcp = listener.accept().map(drop).unwrap_err();
            assert_eq!(tcp.kind(), ErrorKind::WouldBlock);
        }
    }
}

/// A node on every interface, in a network.
async fn at_large() -> Option<TestNode> {
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_err() {
        hailwire_skip::skipped("this machine is in no network");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.node.name = Some("alice".parse().unwrap());
    config.listen.udp = vec![SocketAddr::from(([0, 0, 0, 0], 0))];
    let data = DataDir::new(dir.path());
    let node = Node::builder().data_dir(data).config(config).start();
    let node = node.await.unwrap();
    Some(TestNode { node, dir })
}

fn unreachable(status: &Status) {
    assert_eq!(status.code, Code::Unavailable, "{status}");
    assert!(status.message.contains("cannot be reached"), "{status}");
}

#[tokio::test]
async fn a_ticket_makes_a_node_contact_nothing_of_its_own_machine() {
    let Some(host) = at_large().await else {
        return;
    };
    let services = Services::start();
    let (addresses, tcp, relay) = services.named();
    let ticket = Ticket::Node(NodeTicket {
        node: NodeId::from_bytes([7; 32]),
        secret: TicketSecret::from_random([7; 16]),
        expires: u64::MAX,
        name: None,
        addresses,
        tcp,
        relay: Some(relay),
        hub_key: None,
    });
    let text = ticket.to_text().unwrap();
    let refused = join(&host.client(), &text).await.map(drop).unwrap_err();
    unreachable(&refused);
    assert!(!refused.hint.is_empty());
    services.heard_nothing();
}

/// What a joiner says of itself.
#[derive(Serialize)]
struct Redeem {
    secret: TicketSecret,
    name: String,
    addresses: Vec<SocketAddr>,
    tcp: Vec<SocketAddr>,
    relay: String,
}

#[tokio::test]
async fn a_joiner_makes_a_node_contact_nothing_of_its_own_machine() {
    let Some(host) = at_large().await else {
        return;
    };
    let services = Services::start();
    let (addresses, tcp, relay) = services.named();
    let text = invite(&host.client(), 1, &[]).await;
    let Ok(Ticket::Node(ticket)) = text.parse() else {
        panic!("not a node's ticket");
    };
    let guest = Guest::by_tunnel(&host, false).await;
    let control = guest.greet(vec![VERSION.into()]).await;
    let redeem = Redeem {
        secret: ticket.secret,
        name: "mallory".into(),
        addresses,
        tcp,
        relay,
    };
    let header = CallHeader {
        to: admin::AGENT.into(),
        method: method::JOIN.into(),
        ..CallHeader::default()
    };
    let mut bytes = BytesMut::new();
    frame::put(&mut bytes, FrameKind::CALL, &header::encode(&header));
    frame::put(&mut bytes, FrameKind::DATA, &header::encode(&redeem));
    assert_eq!(guest.ask(&bytes).await, Status::ok());
    drop(control);
    // Gone, and looked for where it said that it is: on loopback only where it was found.
    guest.connection.close(Code::Ok, "bye");
    while !host.status().await.tunnels.is_empty() {
        tokio::task::yield_now().await;
    }
    let lost = call(&host.client(), "echo@mallory", "x").await.unwrap_err();
    assert_eq!(lost.code, Code::Unavailable, "{lost}");
    services.heard_nothing();
}
