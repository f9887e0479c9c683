//! The relay and address discovery, used by the overlay as nodes use it.

use std::{sync::Arc, time::Duration};

use hailwire_hub::folder;
use hailwire_wire::{address::NodeRef, signed::KeyPair};
use http::{HeaderMap, HeaderValue, header::SEC_WEBSOCKET_PROTOCOL};
use iroh::{
    Endpoint, EndpointAddr, RelayConfig, RelayMap, RelayMode, SecretKey, TransportAddr,
    Watcher as _, endpoint::presets, tls::CaTlsConfig,
};
use iroh_relay::{RelayQuicConfig, quic::QuicClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::test_hub::{TestHub, TestNode};

pub(crate) const ALPN: &[u8] = b"test";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// An endpoint that reaches others through the hub's relay alone.
pub(crate) async fn endpoint(hub: &TestHub, node: &TestNode, seed: u8) -> Endpoint {
    assert_eq!(node.key.id(), KeyPair::from_seed(&[seed; 32]).id());
    let url = hub.hub.url().to_string().parse().unwrap();
    let discovery = RelayQuicConfig::new(hub.hub.udp_addr().port());
    let pins = node.pins.clone();
    let verifier = CaTlsConfig::custom_server_cert_verifier(Arc::new(move |p| pins.verifier(p)));
    Endpoint::builder(presets::Minimal)
        .secret_key(SecretKey::from_bytes(&[seed; 32]))
        .alpns(vec![ALPN.to_vec()])
        .relay_mode(RelayMode::Custom(RelayMap::from(RelayConfig::new(
            url,
            Some(discovery),
        ))))
        .ca_tls_config(verifier)
        .clear_ip_transports()
        .bind()
        .await
        .unwrap()
}

async fn echo_through_the_relay(hub: TestHub) {
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    let (caller, callee) = (endpoint(&hub, &one, 1).await, endpoint(&hub, &two, 2).await);
    timeout(TIMEOUT, callee.online()).await.unwrap();
    timeout(TIMEOUT, caller.online()).await.unwrap();

    let url = hub.hub.url().to_string().parse().unwrap();
    let address = EndpointAddr::from_parts(callee.id(), [TransportAddr::Relay(url)]);
    let answering = tokio::spawn(async move {
        let connection = callee.accept().await.unwrap().await.unwrap();
        let (mut send, mut recv) = connection.accept_bi().await.unwrap();
        let body = recv.read_to_end(100).await.unwrap();
        send.write_all(&body).await.unwrap();
        send.finish().unwrap();
        connection.closed().await;
        callee.close().await;
    });
    let connection = timeout(TIMEOUT, caller.connect(address, ALPN))
        .await
        .unwrap()
        .unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(b"through the relay").await.unwrap();
    send.finish().unwrap();
    assert_eq!(recv.read_to_end(100).await.unwrap(), b"through the relay");
    assert!(connection.paths().iter().all(|path| path.is_relay()));
    connection.close(0u32.into(), b"");
    caller.close().await;
    answering.await.unwrap();
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn members_reach_each_other_through_the_relay_over_https() {
    echo_through_the_relay(TestHub::https().await).await;
}

#[tokio::test]
async fn members_reach_each_other_through_the_relay_over_plain_http() {
    echo_through_the_relay(TestHub::with(|config| config.tls = hailwire_hub::TlsMode::Plain).await)
        .await;
}

#[tokio::test]
async fn the_relay_refuses_a_node_that_is_not_a_member() {
    let hub = TestHub::https().await;
    let untrusted = hub.unjoined_node(1);
    let endpoint = endpoint(&hub, &untrusted, 1).await;
    let mut status = endpoint.home_relay_status();
    let refused = async {
        loop {
            for relay in status.get() {
                assert!(!relay.is_connected());
                if let Some(error) = relay.last_error() {
                    return format!("{error:#}");
                }
            }
            status.updated().await.unwrap();
        }
    };
    let error = timeout(TIMEOUT, refused).await.unwrap();
    assert!(error.contains("not a member of this hub"), "{error}");
    endpoint.close().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_member_that_another_process_removes_loses_its_relay_connection() {
    let hub = TestHub::https().await;
    let one = hub.member(1).await;
    let connected = endpoint(&hub, &one, 1).await;
    timeout(TIMEOUT, connected.online()).await.unwrap();
    let open = async |count: &str| {
        let reached = async {
            while !hub.hub.to_openmetrics().await.unwrap().contains(count) {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, reached).await.unwrap();
    };
    open("relay_connections 1\n").await;
    // As `hail hub members rm` does.
    folder::remove_member(hub.folder.path(), &NodeRef::Id(one.key.id())).unwrap();
    open("relay_connections 0\n").await;
    connected.close().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn address_discovery_tells_a_node_its_address_and_proves_the_hubs_key() {
    for hub in [TestHub::https().await, TestHub::plain().await] {
        let node = hub.unjoined_node(1);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(node.pins.verifier(provider).unwrap())
            .with_no_client_auth();
        let socket = noq::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let own = socket.local_addr().unwrap();
        let client = QuicClient::new(socket.clone(), tls);
        let asking = client.create_conn(hub.hub.udp_addr(), "127.0.0.1");
        let connection = timeout(TIMEOUT, asking).await.unwrap().unwrap();
        let mut observed = std::pin::pin!(connection.observed_external_addr());
        let next =
            std::future::poll_fn(|cx| futures_core::Stream::poll_next(observed.as_mut(), cx));
        assert_eq!(timeout(TIMEOUT, next).await.unwrap(), Some(own));
        connection.close(0u32.into(), b"");
        socket.wait_idle().await;
        hub.hub.shutdown().await;
    }
}

#[tokio::test]
async fn a_hub_stops_while_relay_connections_are_open_and_others_are_being_made() {
    let hub = TestHub::https().await;
    let mut endpoints = Vec::new();
    for seed in 1..=4 {
        let node = hub.member(seed).await;
        let endpoint = endpoint(&hub, &node, seed).await;
        timeout(TIMEOUT, endpoint.online()).await.unwrap();
        endpoints.push(endpoint);
    }
    // Four more are somewhere between TCP and the relay's admission.
    for seed in 5..=8 {
        let node = hub.member(seed).await;
        endpoints.push(endpoint(&hub, &node, seed).await);
    }
    timeout(TIMEOUT, hub.hub.shutdown()).await.unwrap();
    for endpoint in endpoints {
        endpoint.close().await;
    }
}

/// What a hostile relay does with a node that asks it for a WebSocket.
#[derive(Clone, Copy, Debug)]
enum HostileRelay {
    /// It pings and never reads.
    Pings,
    /// Its answer's head has no end.
    Head,
}

/// Accepts a node that requests a WebSocket; all its other requests succeed.
async fn asking(listener: &TcpListener) -> TcpStream {
    loop {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut begin = [0; 10];
        while (1..begin.len()).contains(&tcp.peek(&mut begin).await.unwrap_or(0)) {}
        if &begin == b"GET /relay" {
            return tcp;
        }
        let well = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        tcp.write_all(well).await.unwrap();
        let _ = tcp.shutdown().await;
        let _ = tcp.read(&mut [0; 4096]).await;
    }
}

/// Bytes that a node took from a hostile relay before it hung up.
async fn taken(listener: &TcpListener, hostile: HostileRelay) -> usize {
    let mut tcp = asking(listener).await;
    let many = match hostile {
        HostileRelay::Pings => {
            let protocol = HeaderValue::from_static("iroh-relay-v2");
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, protocol)]);
            let terms = hailwire_websocket::WebSocketLimits::default();
            hailwire_websocket::accept(&mut tcp, &headers, terms)
                .await
                .unwrap();
            let ping = [&[0x89, 125][..], &[0; 125]].concat();
            ping.repeat(500)
        }
        HostileRelay::Head => {
            tcp.write_all(b"HTTP/1.1 101 Switching Protocols\r\nx: ")
                .await
                .unwrap();
            vec![b'a'; 64 * 1024]
        }
    };
    let mut written = 0;
    while let Ok(count) = tcp.write(&many).await {
        written += count;
        assert!(written < 32 << 20, "the node reads on");
    }
    written
}

#[tokio::test]
async fn a_hostile_relay_that_pings_or_never_ends_its_answer_has_soon_lost_the_node() {
    for hostile in [HostileRelay::Pings, HostileRelay::Head] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let relay = RelayConfig::new(url.parse().unwrap(), None);
        let endpoint = Endpoint::builder(presets::Minimal)
            .relay_mode(RelayMode::Custom(RelayMap::from(relay)))
            .clear_ip_transports()
            .bind()
            .await
            .unwrap();
        // The node has to reach a peer through the relay, so it connects to the relay again and again.
        let far = SecretKey::from_bytes(&[9; 32]).public();
        let address = EndpointAddr::from_parts(far, [TransportAddr::Relay(url.parse().unwrap())]);
        let caller = endpoint.clone();
        let dialling =
            tokio::spawn(
                async move { while caller.connect(address.clone(), ALPN).await.is_err() {} },
            );
        for _ in 0..2 {
            let taken = timeout(3 * TIMEOUT, taken(&listener, hostile)).await;
            taken.unwrap_or_else(|_| panic!("the node holds on to it: {hostile:?}"));
        }
        dialling.abort();
        endpoint.close().await;
    }
}
