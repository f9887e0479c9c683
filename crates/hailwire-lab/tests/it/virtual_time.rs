//! The virtual tier: real QUIC and byte streams, in milliseconds and reproducible.

use std::{sync::Arc, time::Duration};

use hailwire::{Priority, carrier::mux};
use hailwire_lab::{Topology, virtual_net::VirtualNetwork};
use noq::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::Instant,
};

const LOSSY: &str = "host \"a\" { link { delay \"50ms\"; loss \"1%\" } }\nhost \"b\"";

fn topology(text: &str) -> Topology {
    Topology::parse(text, "test").unwrap()
}

/// A certificate that is the same in every run, so that its size is.
fn certificate() -> (CertificateDer<'static>, PrivatePkcs8KeyDer<'static>) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut params = rcgen::CertificateParams::new(["b.example".to_owned()]).unwrap();
    params.serial_number = Some(7.into());
    let certificate = params.self_signed(&key).unwrap();
    (certificate.der().clone(), key.serialize_der().into())
}

fn endpoint(network: &VirtualNetwork, host: &str, server: Option<ServerConfig>) -> Endpoint {
    let mut config = EndpointConfig::default();
    config.rng_seed(Some([host.as_bytes()[0]; 32]));
    let socket = Box::new(network.socket(host, 4433).unwrap());
    Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime)).unwrap()
}

/// Sends a megabyte over QUIC and has its length answered: (virtual time, trace).
async fn transfer(seed: u64) -> (Duration, u64) {
    let network = VirtualNetwork::up(&topology(LOSSY), seed);
    let (certificate, key) = certificate();
    let server = ServerConfig::with_single_cert(vec![certificate.clone()], key.into()).unwrap();
    let server = endpoint(&network, "b", Some(server));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = endpoint(&network, "a", None);
    client
        .set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots)).unwrap());

    let answering = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let (mut send, mut receive) = connection.accept_bi().await.unwrap();
        let body = receive.read_to_end(2 << 20).await.unwrap();
        send.write_all(&body.len().to_be_bytes()).await.unwrap();
        send.finish().unwrap();
        connection.closed().await;
    });
    let begun = Instant::now();
    let to = (network.address("b").unwrap(), 4433).into();
    let connection = client.connect(to, "b.example").unwrap().await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&vec![7; 1 << 20]).await.unwrap();
    send.finish().unwrap();
    let answer = receive.read_to_end(8).await.unwrap();
    assert_eq!(answer, (1_usize << 20).to_be_bytes());
    let took = begun.elapsed();
    assert!(network.counters().lost > 0, "something was lost on the way");
    connection.close(0_u32.into(), b"");
    answering.await.unwrap();
    (took, network.trace())
}

#[tokio::test(start_paused = true)]
async fn a_quic_transfer_over_a_lossy_wan_takes_its_round_trips_in_virtual_time() {
    let real = std::time::Instant::now();
    let (took, _) = transfer(1).await;
    // A handshake, and a slow start of a few round trips at the least.
    assert!(took > Duration::from_millis(400), "{took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    eprintln!("virtual {took:?}, real {:?}", real.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_packets_at_the_same_instants() {
    let (first, again, other) = (transfer(1).await, transfer(1).await, transfer(2).await);
    assert_eq!(first, again);
    assert_ne!(first.1, other.1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_takes_the_time_of_its_links_and_keeps_every_byte() {
    let network = VirtualNetwork::up(
        &topology(
            "host \"a\" { link { delay \"50ms\"; rate \"80 Mbit/s\"; loss \"1%\" } }\nhost \"b\"",
        ),
        3,
    );
    let (mut near, mut far) = network.connect("a", "b", 80).unwrap();
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7) as u8).collect();
    let sent = body.clone();
    let begun = Instant::now();
    let writing = tokio::spawn(async move {
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        near
    });
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    let took = begun.elapsed();
    assert!(received == body, "the bytes are others");
    assert!(
        took >= Duration::from_millis(350),
        "300 ms of rate and 50 of delay, in {took:?}"
    );
    drop(writing.await.unwrap());
    assert!(
        far.write_all(&[0; 10]).await.is_err(),
        "the near end is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn the_multiplexer_runs_over_a_stream_in_virtual_time() {
    let network = VirtualNetwork::up(&topology(LOSSY), 3);
    let (near, far) = network.connect("a", "b", 80).unwrap();
    let (client, server) = (
        mux::MuxConnection::client(near),
        mux::MuxConnection::server(far),
    );
    let echoing = tokio::spawn(async move {
        let (mut send, mut receive) = server.accept().await.unwrap();
        while let Some(chunk) = receive.read(65536).await.unwrap() {
            send.write(chunk).await.unwrap();
        }
        send.finish();
        server
    });
    let begun = Instant::now();
    let (mut send, mut receive) = client.open(Priority::Medium).await.unwrap();
    send.write("hello".into()).await.unwrap();
    send.finish();
    let answer = receive.read(100).await.unwrap().unwrap();
    assert_eq!(answer, "hello");
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_millis(100) && took < Duration::from_millis(310),
        "one round trip of 100 ms took {took:?}"
    );
    drop(echoing.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_stream_passes_only_where_a_connection_would() {
    let network = VirtualNetwork::up(&Topology::named("corporate").unwrap(), 1);
    assert!(network.connect("a", "b", 443).is_ok());
    let refused = network.connect("a", "b", 80).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut);
    let inward = network.connect("b", "a", 443).unwrap_err();
    assert_eq!(inward.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn two_hosts_behind_ordinary_nats_meet_when_both_send_first() {
    for (filtering, mapping, ports, meets) in [
        (
            "address-and-port-dependent",
            "endpoint-independent",
            "preserve",
            true,
        ),
        (
            "address-and-port-dependent",
            "address-and-port-dependent",
            "random",
            false,
        ),
    ] {
        let nat = format!("nat mapping=\"{mapping}\" filtering=\"{filtering}\" ports=\"{ports}\"");
        let network = VirtualNetwork::up(
            &topology(&format!(
                "site \"x\" {{ {nat}; host \"a\" }}\nsite \"y\" {{ {nat}; host \"b\" }}\nhost \"hub\""
            )),
            5,
        );
        let (a, b) = (
            network.socket("a", 0).unwrap(),
            network.socket("b", 0).unwrap(),
        );
        let hub = network.socket("hub", 7000).unwrap();
        a.send_to(b"here", hub.local());
        let (_, a_outside) = hub.recv_from().await;
        b.send_to(b"here", hub.local());
        let (_, b_outside) = hub.recv_from().await;
        for _ in 0..2 {
            a.send_to(b"punch", b_outside);
            b.send_to(b"punch", a_outside);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let heard = tokio::time::timeout(Duration::from_secs(1), a.recv_from()).await;
        assert_eq!(heard.is_ok(), meets, "{mapping}");
    }
}

// docs/guide/lab.md shows this one.
#[tokio::test(start_paused = true)]
async fn a_greeting_takes_half_a_round_trip() {
    let topology = Topology::named("wan-50ms").unwrap();
    let network = VirtualNetwork::up(&topology, 7);
    let a = network.socket("a", 0).unwrap();
    let b = network.socket("b", 0).unwrap();
    let begun = tokio::time::Instant::now();
    a.send_to(b"hello", b.local());
    b.recv_from().await;
    assert_eq!(begun.elapsed().as_millis(), 25);
}
