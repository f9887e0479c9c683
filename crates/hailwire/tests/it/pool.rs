//! Several connections between two nodes, as their users see them; and peers that want none.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use hailwire::{
    Code, Node, NodeId, Status, admin,
    admin::method,
    carrier::{CarrierConnection, RecvStream, SendStream, quic},
    config::{Carrier, InForce, TunnelPool},
};
use hailwire_wire::{
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    header::{self, ADDITIONAL_CONNECTIONS, Hello, VERSION},
    limits,
};
use iroh::{Endpoint, RelayMap, RelayMode, endpoint::presets};
use tokio::sync::watch;

use crate::test_node::{self, PATIENCE, TestNode, serve_echo};

async fn with_pool(name: &str, carrier: Carrier, pool: TunnelPool) -> TestNode {
    let dir = tempfile::tempdir().unwrap();
    let mut config = test_node::config(name);
    config.listen.tcp = vec![(Ipv4Addr::LOCALHOST, 0).into()];
    config.carrier = carrier;
    config.pool = pool;
    let node = Node::builder()
        .data_dir(hailwire::DataDir::new(dir.path()))
        .config(config)
        .start()
        .await
        .unwrap();
    TestNode { node, dir }
}

/// Waits until the one tunnel of a node has so many connections.
async fn has_connections(host: &TestNode, number: u32) -> admin::TunnelStatus {
    let with_so_many = |status: admin::NodeStatus| {
        let mut tunnels = status.tunnels;
        assert!(tunnels.len() <= 1, "one tunnel, however many connections");
        tunnels.pop().filter(|tunnel| tunnel.connections == number)
    };
    host.once(with_so_many).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_show_how_many_connections_a_tunnel_has() {
    for carrier in [Carrier::Quic, Carrier::H2, Carrier::Ws] {
        let far = with_pool("far", carrier, TunnelPool::default()).await;
        let near = with_pool("near", carrier, TunnelPool::Fixed(4)).await;
        near.join(&far.invite(1, &[]).await).await.unwrap();
        let _echo = serve_echo(&far.client(), "echo").await;
        let ours = has_connections(&near, 4).await;
        has_connections(&far, 4).await;
        assert_eq!(ours.carrier, carrier.name());
        let before = ours.sent_bytes;
        let body = vec![7; 100_000];
        for _ in 0..8 {
            let answer = test_node::call(&near.client(), "echo@far", body.clone()).await;
            assert_eq!(answer.unwrap(), body);
        }
        let tunnel = has_connections(&near, 4).await;
        assert!(tunnel.sent_bytes > before + 800_000, "the sum of all");
        let rows: Vec<InForce> = near.client().admin(method::CONFIG, &()).await.unwrap();
        let row = rows.iter().find(|row| row.setting == "pool").unwrap();
        assert_eq!(row.value, "4");
    }
}

/// The far side's bound is its own, and a dialler that asks for more has what there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialler_that_wants_more_than_the_far_side_takes_has_that() {
    let far = with_pool("far", Carrier::Ws, TunnelPool::default()).await;
    let near = with_pool("near", Carrier::Ws, TunnelPool::Fixed(70)).await;
    near.join(&far.invite(1, &[]).await).await.unwrap();
    let _echo = serve_echo(&far.client(), "echo").await;
    let most = u32::try_from(limits::MAX_CONNECTIONS).unwrap();
    has_connections(&near, most).await;
    has_connections(&far, most).await;
    // Those that are refused meanwhile take no call with them.
    for _ in 0..200 {
        test_node::call(&near.client(), "echo@far", "x")
            .await
            .unwrap();
    }
}

/// What a far side made by hand has been offered.
#[derive(Clone, Copy, Debug, Default)]
struct Offered {
    first: u32,
    additional: u32,
}

/// A far side that speaks the protocol without our node, answers every call, and refuses connections beside the
/// first.
struct ByHand {
    endpoint: Endpoint,
    offered: watch::Sender<Offered>,
}

impl ByHand {
    async fn start(features: &'static [&'static str]) -> Self {
        let endpoint = Endpoint::builder(presets::Minimal)
            .alpns(vec![b"hailwire".to_vec()])
            .relay_mode(RelayMode::Custom(RelayMap::empty()))
            .clear_ip_transports()
            .bind_addr(SocketAddr::from(([127, 0, 0, 1], 0)))
            .unwrap()
            .bind()
            .await
            .unwrap();
        let offered = watch::Sender::default();
        let (incoming, told) = (endpoint.clone(), offered.clone());
        tokio::spawn(async move {
            while let Some(connecting) = incoming.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    let connection = connecting.await.unwrap();
                    let connection = CarrierConnection::Quic(quic::QuicConnection::new(connection));
                    while let Ok((send, recv)) = connection.accept().await {
                        let (connection, told) = (connection.clone(), told.clone());
                        tokio::spawn(answer(connection, send, recv, features, told));
                    }
                });
            }
        });
        Self { endpoint, offered }
    }

    /// A node that wants four connections, and knows this far side as `far`.
    async fn dialler(&self) -> TestNode {
        let near = with_pool("near", Carrier::Quic, TunnelPool::Fixed(4)).await;
        let sockets = self.endpoint.bound_sockets().into_iter();
        let add = admin::TrustAdd {
            id: NodeId::from_bytes(*self.endpoint.id().as_bytes()),
            alias: "far".into(),
            allow: Vec::new(),
            offer: Vec::new(),
            addresses: sockets.map(|socket| socket.to_string()).collect(),
            tcp: Vec::new(),
        };
        let _: admin::TrustedPeer = near.client().admin(method::TRUST_ADD, &add).await.unwrap();
        near
    }
}

async fn answer(
    connection: CarrierConnection,
    mut send: SendStream,
    mut recv: RecvStream,
    features: &'static [&'static str],
    offered: watch::Sender<Offered>,
) {
    let Some((kind, payload)) = first_frame(&mut recv).await else {
        return;
    };
    let mut out = BytesMut::new();
    if kind != FrameKind::HELLO {
        frame::put(&mut out, FrameKind::END, &header::encode(&Status::ok()));
        let _ = send.write(out.freeze()).await;
        return send.finish();
    }
    let hello: Hello = header::decode(&payload).unwrap();
    offered.send_modify(|offered| match hello.additional {
        true => offered.additional += 1,
        false => offered.first += 1,
    });
    let ours = Hello {
        versions: vec![VERSION],
        features: features.iter().map(ToString::to_string).collect(),
        ..Hello::default()
    };
    frame::put(&mut out, FrameKind::HELLO, &header::encode(&ours));
    let _ = send.write(out.freeze()).await;
    if hello.additional {
        return connection.close(Code::ResourceExhausted, "one is enough");
    }
    // The control stream stays open as long as the session.
    while let Ok(Some(_)) = recv.read(1 << 16).await {}
}

async fn first_frame(recv: &mut RecvStream) -> Option<(FrameKind, Bytes)> {
    let mut decoder = FrameDecoder::new();
    loop {
        while let Some(event) = decoder.next_event().unwrap() {
            if let FrameEvent::Frame(kind, payload) = event {
                return Some((kind, payload));
            }
        }
        decoder.push(recv.read(1 << 16).await.ok()??);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_know_of_further_connections_is_asked_for_none() {
    let far = ByHand::start(&[]).await;
    let near = far.dialler().await;
    for _ in 0..100 {
        test_node::call(&near.client(), "any@far", "x")
            .await
            .unwrap();
    }
    has_connections(&near, 1).await;
    let Offered { first, additional } = *far.offered.borrow();
    assert_eq!((first, additional), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_refuses_further_connections_is_called_over_the_one() {
    let far = ByHand::start(&[ADDITIONAL_CONNECTIONS]).await;
    let near = far.dialler().await;
    test_node::call(&near.client(), "any@far", "x")
        .await
        .unwrap();
    let mut offered = far.offered.subscribe();
    let asked = offered.wait_for(|offered| offered.additional >= 3);
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap()
        .unwrap();
    for _ in 0..100 {
        test_node::call(&near.client(), "any@far", "x")
            .await
            .unwrap();
    }
    has_connections(&near, 1).await;
    assert_eq!(far.offered.borrow().first, 1);
}
