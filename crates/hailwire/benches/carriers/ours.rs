//! Our carriers, without a session above them.

use std::{hint::black_box, net::SocketAddr, sync::mpsc};

use bytes::Bytes;
use hailwire::{
    carrier::{
        CarrierConnection, mux, quic,
        tcp::{self, CarrierListener, TcpCarrier, TlsIdentity},
    },
    key::NodeKey,
};
use hailwire_wire::Priority;
use iroh::{
    Endpoint, EndpointAddr, RelayMap, RelayMode, TransportAddr,
    endpoint::{QuicTransportConfig, VarInt, presets},
};

use crate::{BULK, CHUNK, ECHO, Row, Subject, WINDOWS, runtime, unix_pair};

#[derive(Clone)]
pub(crate) struct Ours {
    connection: CarrierConnection,
    /// Alive for as long as the connection is.
    _endpoint: Option<Endpoint>,
}

impl Subject for Ours {
    async fn echo(&self, body: Bytes) -> usize {
        let (mut send, mut recv) = self.connection.open(Priority::Medium).await.unwrap();
        send.write(body).await.unwrap();
        send.finish();
        let mut len = 0;
        while let Some(chunk) = recv.read(CHUNK).await.unwrap() {
            len += black_box(chunk).len();
        }
        len
    }

    async fn bulk(&self, chunk: Bytes) -> u64 {
        let (mut send, mut recv) = self.connection.open(Priority::Medium).await.unwrap();
        for _ in 0..BULK / chunk.len() {
            send.write(chunk.clone()).await.unwrap();
        }
        send.finish();
        let answer = recv.read(8).await.unwrap().unwrap();
        u64::from_be_bytes(answer[..].try_into().unwrap())
    }
}

async fn serve(connection: CarrierConnection) {
    while let Ok((mut send, mut recv)) = connection.accept().await {
        tokio::spawn(async move {
            let (mut echo, mut total) = (None, 0);
            while let Some(chunk) = recv.read(CHUNK).await.unwrap() {
                total += chunk.len() as u64;
                if *echo.get_or_insert(chunk.starts_with(ECHO)) {
                    send.write(chunk).await.unwrap();
                } else {
                    black_box(chunk);
                }
            }
            if echo == Some(false) {
                let total = Bytes::copy_from_slice(&total.to_be_bytes());
                send.write(total).await.unwrap();
            }
            send.finish();
        });
    }
}

fn key() -> NodeKey {
    let folder = tempfile::tempdir().unwrap();
    NodeKey::load_or_create(&folder.path().join("key")).unwrap()
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub(crate) fn h2() -> Row<Ours> {
    over_tcp(TcpCarrier::H2)
}

pub(crate) fn ws() -> Row<Ours> {
    over_tcp(TcpCarrier::Ws)
}

fn over_tcp(which: TcpCarrier) -> Row<Ours> {
    let key_of_server = key();
    let peer = key_of_server.pair().id();
    let (bound, address) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let identity = TlsIdentity::new(&key_of_server);
            let listener = CarrierListener::bind(loopback(), &identity).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let incoming = listener.accept().await;
                tokio::spawn(async {
                    if let Some((_, connection)) = incoming.handshake().await.unwrap() {
                        serve(connection).await;
                    }
                });
            }
        })
    });
    let (runtime, address) = (runtime(), address.recv().unwrap());
    let identity = TlsIdentity::new(&key());
    let dial = tcp::connect(&identity, peer, address, std::slice::from_ref(&which));
    let connection = runtime.block_on(dial).unwrap();
    let _endpoint = None;
    let ours = Ours {
        connection,
        _endpoint,
    };
    (which.name(), runtime, ours)
}

pub(crate) fn quic() -> Row<Ours> {
    const ALPN: &[u8] = b"hailwire";
    async fn endpoint() -> Endpoint {
        let transport = QuicTransportConfig::builder()
            .max_concurrent_bidi_streams(VarInt::from_u32(1024))
            .stream_receive_window(VarInt::from_u32(WINDOWS.0))
            .receive_window(VarInt::from_u32(WINDOWS.1))
            .send_window(8 << 20)
            .build();
        let builder = Endpoint::builder(presets::Minimal)
            .alpns(vec![ALPN.to_vec()])
            .relay_mode(RelayMode::Custom(RelayMap::empty()))
            .transport_config(transport)
            .clear_ip_transports();
        builder.bind_addr(loopback()).unwrap().bind().await.unwrap()
    }
    let (bound, address) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let far = endpoint().await;
            let sockets = far.bound_sockets().into_iter().map(TransportAddr::Ip);
            bound
                .send(EndpointAddr::from_parts(far.id(), sockets))
                .unwrap();
            while let Some(incoming) = far.accept().await {
                let connection = incoming.await.unwrap();
                tokio::spawn(serve(CarrierConnection::Quic(quic::QuicConnection::new(
                    connection,
                ))));
            }
        });
    });
    let (runtime, address) = (runtime(), address.recv().unwrap());
    let ours = runtime.block_on(async {
        let near = endpoint().await;
        let connection = near.connect(address, ALPN).await.unwrap();
        Ours {
            connection: CarrierConnection::Quic(quic::QuicConnection::new(connection)),
            _endpoint: Some(near),
        }
    });
    ("quic", runtime, ours)
}

pub(crate) fn unix() -> Row<Ours> {
    let serve = |io| serve(CarrierConnection::Mux(mux::MuxConnection::server(io)));
    let (runtime, ours) = unix_pair(serve, |io| Ours {
        connection: CarrierConnection::Mux(mux::MuxConnection::client(io)),
        _endpoint: None,
    });
    ("unix", runtime, ours)
}
