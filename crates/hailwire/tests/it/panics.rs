//! What a panic of the QUIC engine costs, while it holds a connection's lock: that connection, and nothing else.
//!
//! The panic comes from a congestion controller, which the engine calls as it handles what a peer sent.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use iroh::{
    Endpoint, EndpointAddr, RelayMap, RelayMode, TransportAddr,
    endpoint::{
        Connection, Controller, ControllerFactory, QuicTransportConfig, RttEstimator, presets,
    },
};
use tokio::{task::JoinSet, time::timeout};

const ALPN: &[u8] = b"hailwire-test";

/// How long anything may take that is to happen.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes controllers, of which one panics at the next acknowledgement when it is told to.
#[derive(Debug, Default)]
struct Controllers {
    made: AtomicUsize,
    /// The number of the one that panics; 0 is none.
    doomed: AtomicUsize,
}

impl ControllerFactory for Controllers {
    fn build(self: Arc<Self>, _now: Instant, _mtu: u16) -> Box<dyn Controller> {
        let number = 1 + self.made.fetch_add(1, Ordering::SeqCst);
        Box::new(Numbered {
            number,
            all: self.clone(),
        })
    }
}

#[derive(Clone, Debug)]
struct Numbered {
    number: usize,
    all: Arc<Controllers>,
}

impl Controller for Numbered {
    fn on_ack(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _bytes: u64,
        _number: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        let doomed = self.all.doomed.load(Ordering::SeqCst);
        assert!(doomed != self.number, "this panic is part of a test");
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        _persistent: bool,
        _ecn: bool,
        _bytes: u64,
        _number: u64,
    ) {
    }

    fn on_mtu_update(&mut self, _mtu: u16) {}

    fn window(&self) -> u64 {
        1 << 20
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        1 << 20
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

async fn endpoint(controllers: Arc<Controllers>) -> Endpoint {
    let transport = QuicTransportConfig::builder()
        .congestion_controller_factory(controllers)
        .build();
    Endpoint::builder(presets::Minimal)
        .alpns(vec![ALPN.to_vec()])
        .relay_mode(RelayMode::Custom(RelayMap::empty()))
        .transport_config(transport)
        .clear_ip_transports()
        .bind_addr(SocketAddr::from(([127, 0, 0, 1], 0)))
        .unwrap()
        .bind()
        .await
        .unwrap()
}

/// A connection of a client to a server, and the server's end.
async fn connected(client: &Endpoint, server: &Endpoint) -> (Connection, Connection) {
    let sockets = server.bound_sockets().into_iter().map(TransportAddr::Ip);
    let address = EndpointAddr::from_parts(server.id(), sockets);
    let accepted = async { server.accept().await.unwrap().await.unwrap() };
    let dialled = async { client.connect(address, ALPN).await.unwrap() };
    timeout(PATIENCE, async { tokio::join!(dialled, accepted) })
        .await
        .unwrap()
}

/// Sends a word and has it sent back.
async fn echo(near: &Connection, far: &Connection) {
    let there = async {
        let (mut send, mut recv) = near.open_bi().await.unwrap();
        send.write_all(b"word").await.unwrap();
        send.finish().unwrap();
        assert_eq!(recv.read_to_end(64).await.unwrap(), b"word");
    };
    let back = async {
        let (mut send, mut recv) = far.accept_bi().await.unwrap();
        let word = recv.read_to_end(64).await.unwrap();
        send.write_all(&word).await.unwrap();
        send.finish().unwrap();
        send.stopped().await.unwrap();
    };
    timeout(PATIENCE, async { tokio::join!(there, back) })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_engine_under_a_connections_lock_costs_that_connection_alone() {
    let controllers = Arc::new(Controllers::default());
    let server = endpoint(controllers.clone()).await;
    // From different places, so that each is a connection of its own.
    let first = endpoint(Arc::default()).await;
    let other = endpoint(Arc::default()).await;
    let (first_near, first_far) = connected(&first, &server).await;
    echo(&first_near, &first_far).await;
    let doomed = controllers.made.load(Ordering::SeqCst);
    let (other_near, other_far) = connected(&other, &server).await;
    echo(&other_near, &other_far).await;

    // Streams are open both ways while it panics; they end with the connection, and dropping them ends nothing else.
    let mut open = Vec::new();
    for _ in 0..8 {
        let (mut send, recv) = first_far.open_bi().await.unwrap();
        send.write_all(&[0; 64]).await.unwrap();
        open.push((send, recv));
    }
    let mut reading = JoinSet::new();
    for (mut send, mut recv) in open {
        reading.spawn(async move {
            let read = recv.read_to_end(64).await;
            assert!(read.is_err(), "{read:?}");
            assert!(send.write_all(b"more").await.is_err());
        });
    }
    controllers.doomed.store(doomed, Ordering::SeqCst);
    let mut send = first_far.open_uni().await.unwrap();
    let _ = send.write_all(&[0; 4096]).await;
    let why = timeout(PATIENCE, first_far.closed()).await.unwrap();
    assert!(why.to_string().contains("the engine panicked"), "{why}");
    while let Some(read) = timeout(PATIENCE, reading.join_next()).await.unwrap() {
        read.unwrap();
    }
    drop(send);
    assert!(first_far.open_uni().await.is_err());
    first_far.close(1u32.into(), b"closing what is broken is harmless");
    drop(first_far);

    echo(&other_near, &other_far).await;
    let (again_near, again_far) = connected(&first, &server).await;
    echo(&again_near, &again_far).await;
    // The endpoint has counted it out: closing waits for nobody who is gone.
    timeout(PATIENCE, server.close()).await.unwrap();
}
