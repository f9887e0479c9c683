//! Pairs of connections to test with, one constructor for each carrier.

use std::{net::SocketAddr, time::Duration};

use hailwire::{
    carrier::{
        CarrierConnection, mux, quic,
        tcp::{self, CarrierListener, TcpCarrier, TcpError, TlsIdentity},
    },
    key::NodeKey,
};
use hailwire_wire::NodeId;
use iroh::{
    Endpoint, EndpointAddr, RelayMap, RelayMode, TransportAddr,
    endpoint::{QuicTransportConfig, VarInt, presets},
};
use tokio::net::{UnixListener, UnixStream};
use tokio::{runtime::Runtime, sync::mpsc, task::JoinSet};

/// Two ends of one connection: `client` connected, `server` listened.
pub(crate) struct Pair {
    pub(crate) client: CarrierConnection,
    pub(crate) server: CarrierConnection,
    /// What must live as long as the connection, such as a socket's folder or an endpoint.
    pub(crate) _keep: Vec<Box<dyn std::any::Any + Send>>,
}

/// The carriers under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// The multiplexer over a pair of Unix sockets.
    UnixPair,
    /// The multiplexer over a Unix socket that was bound, connected and accepted.
    UnixListener,
    /// The multiplexer over a pipe in memory.
    Memory,
    /// QUIC between two endpoints on loopback.
    Quic,
    /// HTTP/2, over a pair of TLS connections between two nodes on loopback.
    Http2,
    /// The multiplexer over WebSocket, over TLS between two nodes on loopback.
    WebSocket,
}

impl Carrier {
    pub(crate) async fn pair(self) -> Pair {
        match self {
            Self::UnixPair => unix_pair(),
            Self::UnixListener => unix_listener_pair().await,
            Self::Memory => memory_pair(),
            Self::Quic => Box::pin(quic_pair()).await,
            Self::Http2 => Box::pin(tcp_pair(TcpCarrier::H2)).await,
            Self::WebSocket => Box::pin(tcp_pair(TcpCarrier::Ws)).await,
        }
    }
}

/// A connection whose far side runs on a runtime of its own, which can be stopped in mid-flight: as
/// when a process is killed, the far side's tasks are gone and say nothing.
pub(crate) struct Mortal {
    pub(crate) near: CarrierConnection,
    pub(crate) far: CarrierConnection,
    runtime: Option<Runtime>,
    /// Alive for as long as the connections are.
    _endpoints: Vec<Endpoint>,
}

impl Mortal {
    pub(crate) async fn new(carrier: Carrier) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut endpoints = Vec::new();
        let _arrivals;
        let (near, far) = match carrier {
            Carrier::UnixPair | Carrier::UnixListener => {
                let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
                a.set_nonblocking(true).unwrap();
                b.set_nonblocking(true).unwrap();
                let near = mux::MuxConnection::client(UnixStream::from_std(a).unwrap());
                let _far_runtime = runtime.enter();
                let far = mux::MuxConnection::server(UnixStream::from_std(b).unwrap());
                (CarrierConnection::Mux(near), CarrierConnection::Mux(far))
            }
            Carrier::Memory => {
                let (a, b) = tokio::io::duplex(64 * 1024);
                let near = mux::MuxConnection::client(a);
                let _far_runtime = runtime.enter();
                let far = mux::MuxConnection::server(b);
                (CarrierConnection::Mux(near), CarrierConnection::Mux(far))
            }
            Carrier::Quic => {
                let far = runtime.spawn(loopback(QUIC_SILENCE)).await.unwrap();
                let near = loopback(QUIC_SILENCE).await;
                let accept = runtime.spawn(accept(far.clone()));
                let connections = (connect(&near, &far).await, accept.await.unwrap());
                endpoints = vec![near, far];
                connections
            }
            Carrier::Http2 | Carrier::WebSocket => {
                let which = if carrier == Carrier::Http2 {
                    TcpCarrier::H2
                } else {
                    TcpCarrier::Ws
                };
                let (peer, listener) = runtime.spawn(listen()).await.unwrap();
                let address = listener.local_addr().unwrap();
                let _far_runtime = runtime.enter();
                let mut arrivals = Arrivals::of(listener);
                let (near, far) = tokio::join!(dial(peer, address, which), arrivals.next());
                _arrivals = arrivals;
                (near, far.unwrap().1)
            }
        };
        Self {
            near,
            far,
            runtime: Some(runtime),
            _endpoints: endpoints,
        }
    }

    /// Kills the far side.
    pub(crate) fn vanish(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.vanish();
    }
}

fn unix_pair() -> Pair {
    let (a, b) = UnixStream::pair().unwrap();
    pair(
        mux::MuxConnection::client(a),
        mux::MuxConnection::server(b),
        Vec::new(),
    )
}

async fn unix_listener_pair() -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let (a, b) = tokio::join!(UnixStream::connect(&path), listener.accept());
    let (client, server) = (a.unwrap(), b.unwrap().0);
    let keep: Vec<Box<dyn std::any::Any + Send>> = vec![Box::new(folder)];
    pair(
        mux::MuxConnection::client(client),
        mux::MuxConnection::server(server),
        keep,
    )
}

fn memory_pair() -> Pair {
    let (client, server) = mux::MuxConnection::pair();
    pair(client, server, Vec::new())
}

/// How long a vanished peer goes unnoticed where the test does not want to wait.
const QUIC_SILENCE: Duration = Duration::from_secs(1);

const ALPN: &[u8] = b"hailwire";

async fn quic_pair() -> Pair {
    let (near, far) = tokio::join!(
        loopback(Duration::from_secs(30)),
        loopback(Duration::from_secs(30))
    );
    let (client, server) = tokio::join!(connect(&near, &far), accept(far.clone()));
    Pair {
        client,
        server,
        _keep: vec![Box::new((near, far))],
    }
}

/// An endpoint with the bounds of a node's, which gives up a silent peer after `silence`.
async fn loopback(silence: Duration) -> Endpoint {
    let transport = QuicTransportConfig::builder()
        .max_concurrent_bidi_streams(VarInt::from_u32(1024))
        .stream_receive_window(VarInt::from_u32(2 << 20))
        .receive_window(VarInt::from_u32(8 << 20))
        .send_window(8 << 20)
        .max_idle_timeout(Some(silence.try_into().unwrap()))
        .default_path_max_idle_timeout(silence)
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

async fn connect(near: &Endpoint, far: &Endpoint) -> CarrierConnection {
    let sockets = far.bound_sockets().into_iter().map(TransportAddr::Ip);
    let address = EndpointAddr::from_parts(far.id(), sockets);
    CarrierConnection::Quic(quic::QuicConnection::new(
        near.connect(address, ALPN).await.unwrap(),
    ))
}

async fn accept(far: Endpoint) -> CarrierConnection {
    let incoming = far.accept().await.unwrap();
    CarrierConnection::Quic(quic::QuicConnection::new(incoming.await.unwrap()))
}

/// A node's key and its identity on TCP.
pub(crate) fn identity() -> (NodeId, TlsIdentity) {
    let folder = tempfile::tempdir().unwrap();
    let key = NodeKey::load_or_create(&folder.path().join("key")).unwrap();
    (key.pair().id(), TlsIdentity::new(&key))
}

/// A listener of a new node on loopback.
pub(crate) async fn listen() -> (NodeId, CarrierListener) {
    let (id, identity) = identity();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    (id, CarrierListener::bind(address, &identity).await.unwrap())
}

async fn dial(peer: NodeId, address: SocketAddr, which: TcpCarrier) -> CarrierConnection {
    tcp::connect(&identity().1, peer, address, &[which])
        .await
        .unwrap()
}

/// What a listener brings, of however many TCP connections each is made.
pub(crate) struct Arrivals {
    made: mpsc::UnboundedReceiver<Result<(NodeId, CarrierConnection), TcpError>>,
    /// Listens for as long as this lives.
    _listening: JoinSet<()>,
}

impl Arrivals {
    pub(crate) fn of(listener: CarrierListener) -> Self {
        let (tell, made) = mpsc::unbounded_channel();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut handshakes = JoinSet::new();
            loop {
                let (incoming, tell) = (listener.accept().await, tell.clone());
                handshakes.spawn(async move {
                    if let Some(made) = incoming.handshake().await.transpose() {
                        let _ = tell.send(made);
                    }
                });
            }
        });
        Self {
            made,
            _listening: listening,
        }
    }

    pub(crate) async fn next(&mut self) -> Result<(NodeId, CarrierConnection), TcpError> {
        self.made.recv().await.unwrap()
    }
}

async fn tcp_pair(which: TcpCarrier) -> Pair {
    let (peer, listener) = listen().await;
    let address = listener.local_addr().unwrap();
    let mut arrivals = Arrivals::of(listener);
    let (client, server) = tokio::join!(dial(peer, address, which), arrivals.next());
    Pair {
        client,
        server: server.unwrap().1,
        _keep: vec![Box::new(arrivals)],
    }
}

fn pair(
    client: mux::MuxConnection,
    server: mux::MuxConnection,
    keep: Vec<Box<dyn std::any::Any + Send>>,
) -> Pair {
    Pair {
        client: CarrierConnection::Mux(client),
        server: CarrierConnection::Mux(server),
        _keep: keep,
    }
}
