//! The QUIC engine by itself, in virtual time: two endpoints in memory, a seeded network that loses, reorders and stalls,
//! and several paths at once. It shows that the engine writes no frame for which a packet has no room
//! (`docs/upstream/noq-frames-without-room.md`); nothing here opens a socket.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, FourTuple, MtuDiscoveryConfig, PathStatus, ServerConfig, StreamEvent,
    StreamId, Transmit, TransportConfig, VarInt,
};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Addresses of the client, each of which can be a path.
const PATHS: u8 = 16;
/// How long a connection lives before it is closed.
const LIFE: Duration = Duration::from_secs(6);
/// Most datagrams in one batch, as the driver of noq has it.
const BATCH: NonZeroUsize = NonZeroUsize::new(10).expect("ten is more than zero");
/// More batches than this at one instant are a loop without an end; what acts here gives rise to a tenth of them.
const ENDLESS: usize = 2_000;

/// What a seed decides.
struct Draws(Pcg64Mcg);

impl Draws {
    fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// What a connection goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// Paths that stall, lose and mend, under an application that does something of everything.
    Changing,
    /// Well until one side has a connection, then cut off on every path, mended, and cut off again.
    Cut,
    /// Every path open; then half of what goes to the server is lost, and all that comes from it: each path has a long list
    /// of what came, which nobody confirms, and all are due at once.
    Holes,
}

/// One side of the connection.
struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    streams: Vec<StreamId>,
    /// Bytes of streams that came.
    read: u64,
    established: bool,
}

/// A datagram on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    arrives: Instant,
    order: u64,
    to_server: bool,
    /// The address of the client that it goes to or comes from.
    path: u8,
    bytes: Vec<u8>,
}

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
struct Outcome {
    established: bool,
    read: u64,
    paths: usize,
    /// ACK and PATH_ACK frames in all.
    acks: u64,
}

/// A whole connection over a network of this seed.
struct Net {
    draws: Draws,
    weather: Weather,
    now: Instant,
    end: Instant,
    client: Side,
    server: Side,
    flying: BinaryHeap<Reverse<Flying>>,
    order: u64,
    /// Of a thousand datagrams, how many are lost on each path to the server and from it.
    loss: [[u64; PATHS as usize]; 2],
    jitter: u64,
    paths: usize,
}

fn address(path: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + path)), 7000)
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)), 7001);

/// The settings of a Hailwire node, in so far as they are of the engine.
fn transport(draws: &mut Draws) -> Arc<TransportConfig> {
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(Duration::from_millis(1)))
        .ack_eliciting_threshold(VarInt::from_u32(1));
    let mut config = TransportConfig::default();
    config
        .keep_alive_interval(Some(Duration::from_secs(1)))
        .default_path_keep_alive_interval(Some(Duration::from_secs(1)))
        .default_path_max_idle_timeout(Some(Duration::from_secs(15)))
        .max_concurrent_multipath_paths(u32::from(PATHS))
        .max_remote_nat_traversal_addresses(32)
        .send_observed_address_reports(true)
        .receive_observed_address_reports(true)
        .ack_frequency_config((!draws.one_in(4)).then_some(acks))
        .mtu_discovery_config(draws.one_in(2).then(MtuDiscoveryConfig::default));
    Arc::new(config)
}

/// A key pair and its certificate; the more names, the longer the handshake.
fn certified(names: u64) -> rcgen::CertifiedKey<rcgen::KeyPair> {
    let names = (0..=names)
        .map(|n| format!("n{n}.example"))
        .collect::<Vec<_>>();
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let cert = rcgen::CertificateParams::new(names)
        .and_then(|params| params.self_signed(&key))
        .expect("a certificate");
    rcgen::CertifiedKey {
        cert,
        signing_key: key,
    }
}

/// Both ends of a handshake in which both sides show a certificate, as those of nodes do.
fn crypto(draws: &mut Draws) -> (ClientConfig, ServerConfig) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let [near, far] = [certified(draws.below(60)), certified(draws.below(60))];
    let roots = |of: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(of.cert.der().clone()).expect("a root");
        roots
    };
    let key = |of: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        rustls::pki_types::PrivateKeyDer::try_from(of.signing_key.serialize_der()).expect("a key")
    };
    let tls13 = &[&rustls::version::TLS13];
    let client = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(tls13)
        .expect("TLS 1.3")
        .with_root_certificates(roots(&far))
        .with_client_auth_cert(vec![near.cert.der().clone()], key(&near))
        .expect("a client");
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots(&near)),
        provider.clone(),
    )
    .build()
    .expect("a verifier");
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(tls13)
        .expect("TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![far.cert.der().clone()], key(&far))
        .expect("a server");
    let client = QuicClientConfig::try_from(client).expect("a suite");
    let server = QuicServerConfig::try_from(server).expect("a suite");
    (
        ClientConfig::new(Arc::new(client)),
        ServerConfig::with_crypto(Arc::new(server)),
    )
}

fn endpoint(draws: &mut Draws, server: Option<Arc<ServerConfig>>) -> Endpoint {
    let mut config = EndpointConfig::default();
    let mut seed = [0; 32];
    draws.0.fill_bytes(&mut seed);
    config.rng_seed(Some(seed));
    Endpoint::new(Arc::new(config), server, true)
}

impl Side {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            connection: None,
            streams: Vec::new(),
            read: 0,
            established: false,
        }
    }

    /// Hands over what the connection and its endpoint have for each other, and reads what came.
    fn settle(&mut self) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => self.established = true,
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = connection.streams().accept(dir) {
                        if dir == Dir::Bi {
                            self.streams.push(id);
                        }
                        self.read += read(connection, id);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.read += read(connection, id),
                _ => {}
            }
        }
    }

    fn timeout(&self) -> Option<Instant> {
        self.connection.as_ref()?.1.poll_timeout()
    }
}

fn read(connection: &mut Connection, id: StreamId) -> u64 {
    let mut stream = connection.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else {
        return 0;
    };
    let mut read = 0;
    while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
        read += chunk.bytes.len() as u64;
    }
    let _ = chunks.finalize();
    read
}

impl Net {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut draws = Draws::new(seed);
        let (mut client_config, mut server_config) = crypto(&mut draws);
        client_config.transport_config(transport(&mut draws));
        server_config.transport_config(transport(&mut draws));
        let now = Instant::now();
        let mut client = Side::new(endpoint(&mut draws, None));
        let server = Side::new(endpoint(&mut draws, Some(Arc::new(server_config))));
        client.connection = Some(
            client
                .endpoint
                .connect(now, client_config, SERVER, "n0.example")
                .expect("a connection"),
        );
        Self {
            draws,
            weather,
            now,
            end: now + LIFE,
            client,
            server,
            flying: BinaryHeap::new(),
            order: 0,
            loss: [[0; PATHS as usize]; 2],
            jitter: 1,
            paths: 0,
        }
    }

    /// Until the connection has lived its life and both sides have forgotten it.
    ///
    /// # Panics
    ///
    /// Where the engine does, or sends without an end.
    fn run(mut self) -> Outcome {
        let (mut weather, mut act, mut closed) = (self.now, self.now, false);
        loop {
            if self.now >= weather {
                match self.weather {
                    Weather::Changing => self.change_weather(),
                    Weather::Cut if !self.client.established && !self.server.established => {}
                    Weather::Cut => self.loss = [[1000 - self.loss[0][0]; PATHS as usize]; 2],
                    Weather::Holes if self.now + LIFE * 4 / 5 < self.end => self.jitter = 1,
                    Weather::Holes => self.loss = [[1000; PATHS as usize], [500; PATHS as usize]],
                }
                weather = self.now
                    + match self.weather {
                        Weather::Cut if self.loss[0][0] == 0 => self.draws.millis(1, 30),
                        _ => self.draws.millis(50, 900),
                    };
            }
            if self.now >= act && !closed {
                match self.weather {
                    Weather::Changing | Weather::Cut => {
                        self.act();
                        act = self.now + self.draws.millis(1, 150);
                    }
                    Weather::Holes => {
                        self.ping_every_path();
                        act = self.now + self.draws.millis(2, 8);
                    }
                }
            }
            if self.now >= self.end && !closed {
                closed = true;
                self.close();
            }
            self.send(true);
            self.send(false);
            let next = [
                self.client.timeout(),
                self.server.timeout(),
                self.flying.peek().map(|flying| flying.0.arrives),
                (!closed).then_some(weather.min(act).min(self.end)),
            ]
            .into_iter()
            .flatten()
            .min();
            let Some(next) = next else { break };
            if next > self.end + Duration::from_secs(60) {
                break;
            }
            self.now = self.now.max(next);
            self.arrive();
            for side in [&mut self.client, &mut self.server] {
                let due = side.timeout().is_some_and(|at| at <= self.now);
                if let (true, Some((_, connection))) = (due, &mut side.connection) {
                    connection.handle_timeout(self.now);
                }
                side.settle();
            }
        }
        let mut outcome = Outcome {
            established: self.client.established && self.server.established,
            read: self.client.read + self.server.read,
            paths: self.paths,
            acks: 0,
        };
        for side in [&mut self.client, &mut self.server] {
            if let Some((_, connection)) = &mut side.connection {
                let frames = connection.stats().frame_tx;
                outcome.acks += frames.acks + frames.path_acks;
            }
        }
        outcome
    }

    /// Which paths lose how much from now on: nothing, some, nearly all, or all (a stall).
    fn change_weather(&mut self) {
        for path in self.loss.iter_mut().flatten() {
            *path = match self.draws.below(8) {
                0..3 => 0,
                3 => 20,
                4 => 300,
                5 => 500,
                6 => 900,
                _ => 1000,
            };
        }
        if self.draws.one_in(4) {
            self.loss = [[1000; PATHS as usize]; 2];
        }
        self.jitter = [1, 1, 5, 40][usize::try_from(self.draws.below(4)).expect("a small number")];
    }

    /// Something that an application does, or the node for it.
    fn act(&mut self) {
        let near = self.draws.one_in(2);
        let what = self.draws.below(16);
        let [size, count, extra] = [
            self.draws.below(60_000),
            self.draws.below(40),
            self.draws.below(u64::from(PATHS)),
        ];
        let side = if near {
            &mut self.client
        } else {
            &mut self.server
        };
        let Some((_, connection)) = &mut side.connection else {
            return;
        };
        let path = u8::try_from(extra).expect("a path");
        match what {
            0..3 => {
                let paths = connection.paths();
                let over = FourTuple::new(SERVER, Some(address(path).ip()));
                if near
                    && connection
                        .open_path_ensure(over, PathStatus::Available, self.now)
                        .is_ok()
                {
                    self.paths = self.paths.max(paths.len() + 1);
                }
            }
            3 => {
                for id in connection.paths() {
                    let _ = connection.ping_path(id);
                }
            }
            4 => {
                let _ = connection.add_nat_traversal_address(address(20 + path));
            }
            5 => {
                let _ = connection.remove_nat_traversal_address(address(20 + path));
            }
            6 => {
                let size = usize::try_from(size % 1100).expect("a size");
                let _ = connection.datagrams().send(vec![7; size].into(), true);
            }
            7 => connection.handle_network_change(None, self.now),
            8 => {
                let status = if count < 20 {
                    PathStatus::Backup
                } else {
                    PathStatus::Available
                };
                if let Some(id) = connection.paths().first() {
                    let _ = connection.set_path_status(*id, status);
                }
            }
            9..12 => {
                for _ in 0..count {
                    let Some(id) = connection.streams().open(Dir::Bi) else {
                        break;
                    };
                    let _ = connection.send_stream(id).write(b"a few bytes");
                    side.streams.push(id);
                }
            }
            12 => {
                if let Some(id) = side.streams.pop() {
                    let _ = connection.send_stream(id).reset(VarInt::from_u32(7));
                    let _ = connection.recv_stream(id).stop(VarInt::from_u32(7));
                }
            }
            _ => {
                let id = side
                    .streams
                    .last()
                    .copied()
                    .or_else(|| connection.streams().open(Dir::Bi));
                if let Some(id) = id {
                    let size = usize::try_from(size).expect("a size");
                    let _ = connection.send_stream(id).write(&vec![3; size]);
                    side.streams.push(id);
                }
            }
        }
    }

    /// Opens the paths that are missing, and asks on all of them for an answer.
    fn ping_every_path(&mut self) {
        let Some((_, connection)) = &mut self.client.connection else {
            return;
        };
        for path in 0..PATHS {
            let over = FourTuple::new(SERVER, Some(address(path).ip()));
            let _ = connection.open_path_ensure(over, PathStatus::Available, self.now);
        }
        let paths = connection.paths();
        self.paths = self.paths.max(paths.len());
        for id in paths {
            let _ = connection.ping_path(id);
        }
    }

    /// Closes on one side; in changing weather with any code and a reason that may be longer than a datagram.
    fn close(&mut self) {
        let (code, reason) = match self.weather {
            Weather::Changing => (1 << self.draws.below(61), self.draws.below(3000)),
            Weather::Cut | Weather::Holes => (1, 20),
        };
        let code = VarInt::from_u64(code).expect("below 2^62");
        let reason = vec![b'r'; usize::try_from(reason).expect("a size")];
        let side = if self.draws.one_in(2) {
            &mut self.client
        } else {
            &mut self.server
        };
        if let Some((_, connection)) = &mut side.connection {
            connection.close(self.now, code, Bytes::from(reason));
        }
    }

    /// Sends what one side has to send.
    fn send(&mut self, near: bool) {
        let side = if near {
            &mut self.client
        } else {
            &mut self.server
        };
        side.settle();
        let Some((_, connection)) = &mut side.connection else {
            return;
        };
        let mut batches = Vec::new();
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(self.now, BATCH, &mut buffer) {
            assert!(batches.len() < ENDLESS, "sends without an end");
            batches.push((transmit, std::mem::take(&mut buffer)));
        }
        side.settle();
        for (transmit, buffer) in batches {
            self.fly(near, &transmit, &buffer);
        }
    }

    fn fly(&mut self, to_server: bool, transmit: &Transmit, buffer: &[u8]) {
        let local = if to_server {
            transmit.src_ip
        } else {
            Some(transmit.destination.ip())
        };
        let path = match local {
            None => 0,
            Some(IpAddr::V4(ip)) if ip.octets()[3] <= PATHS => ip.octets()[3] - 1,
            // Towards a candidate of NAT traversal where nobody is.
            Some(_) => return,
        };
        if to_server && transmit.destination != SERVER {
            return;
        }
        let size = transmit.segment_size.unwrap_or(transmit.size).max(1);
        for bytes in buffer[..transmit.size].chunks(size) {
            if self.draws.below(1000) < self.loss[usize::from(to_server)][usize::from(path)] {
                continue;
            }
            self.order += 1;
            let delay = match self.weather {
                Weather::Changing | Weather::Cut => 5 + u64::from(path) * 3,
                Weather::Holes => 5,
            };
            self.flying.push(Reverse(Flying {
                arrives: self.now + self.draws.millis(delay, delay + self.jitter),
                order: self.order,
                to_server,
                path,
                bytes: bytes.to_vec(),
            }));
        }
    }

    /// Delivers what has arrived by now.
    fn arrive(&mut self) {
        while self
            .flying
            .peek()
            .is_some_and(|next| next.0.arrives <= self.now)
        {
            let Some(Reverse(flying)) = self.flying.pop() else {
                return;
            };
            let (side, over) = if flying.to_server {
                (
                    &mut self.server,
                    FourTuple::new(address(flying.path), Some(SERVER.ip())),
                )
            } else {
                (
                    &mut self.client,
                    FourTuple::new(SERVER, Some(address(flying.path).ip())),
                )
            };
            let mut answer = Vec::new();
            let bytes = BytesMut::from(flying.bytes.as_slice());
            match side
                .endpoint
                .handle(self.now, over, None, bytes, &mut answer)
            {
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    if let Some((_, connection)) = &mut side.connection {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) if side.connection.is_none() => {
                    side.connection = side
                        .endpoint
                        .accept(incoming, self.now, &mut answer, None)
                        .ok();
                }
                Some(DatagramEvent::NewConnection(incoming)) => side.endpoint.ignore(incoming),
                Some(DatagramEvent::Response(_)) | None => {}
            }
            side.settle();
        }
    }
}

#[test]
fn engine_closes_with_any_code_and_reason_over_paths_that_come_and_go() {
    let seeds = 400;
    let (mut established, mut read) = (0, 0);
    for seed in 0..seeds {
        let outcome = watched(seed, Weather::Changing);
        established += u64::from(outcome.established);
        read += outcome.read;
    }
    assert!(
        established > seeds / 2,
        "{established} of {seeds} came to be"
    );
    assert!(read > 100_000 * seeds, "{read} bytes came through");
}

#[test]
fn engine_survives_a_cut_that_takes_the_end_of_the_handshake() {
    let seeds = 400;
    let established = (0..seeds)
        .filter(|seed| watched(*seed, Weather::Cut).established)
        .count();
    assert!(established > 300, "{established} of {seeds} came to be");
}

#[test]
fn engine_acknowledges_many_paths_with_holes_in_several_datagrams() {
    for seed in 0..5 {
        let outcome = watched(seed, Weather::Holes);
        assert!(outcome.established, "seed {seed}: {outcome:?}");
        assert!(outcome.acks > 2_000, "seed {seed}: {outcome:?}");
        assert_eq!(
            outcome.paths,
            usize::from(PATHS),
            "seed {seed}: {outcome:?}"
        );
    }
}

/// Runs a seed, which it names where the engine panics.
fn watched(seed: u64, weather: Weather) -> Outcome {
    match std::panic::catch_unwind(|| Net::new(seed, weather).run()) {
        Ok(outcome) => outcome,
        Err(panic) => {
            eprintln!("seed {seed}, {weather:?}");
            std::panic::resume_unwind(panic)
        }
    }
}
