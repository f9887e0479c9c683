//! A client that speaks the protocol of a node by hand: for honest new peers and for attackers.
//!
//! Everything goes through the public carriers of the library and frames written by hand, so that it
//! can also break the rules of a session.

use std::{fs, io::Read as _, net::SocketAddr, os::unix::fs::OpenOptionsExt as _, sync::Arc};

use bytes::{Bytes, BytesMut};
use hailwire::{
    Code, NodeId, Priority, Status,
    carrier::{
        CarrierConnection, RecvStream, SendStream, quic,
        tcp::{self, TcpCarrier, TlsIdentity, name_of},
    },
    key::NodeKey,
};
use hailwire_wire::{
    CallHeader,
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    header::{self, Hello, VERSION},
    signed::KeyPair,
    ticket::TicketSecret,
};
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMode, SecretKey, TransportAddr, endpoint::presets,
};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::BenchError;

/// The protocol of QUIC connections between nodes.
pub(super) const ALPN: &[u8] = b"hailwire";

/// Largest answer that is read.
const MAX_READ: usize = 1 << 20;

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], BenchError> {
    let mut bytes = [0; N];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(BenchError::io("reading /dev/urandom"))?;
    Ok(bytes)
}

/// A secret key, in 64 hex digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct KeySeed(String);

impl KeySeed {
    pub(super) fn draw() -> Result<Self, BenchError> {
        let bytes = random::<32>()?;
        Ok(Self(data_encoding::HEXLOWER.encode(&bytes)))
    }

    fn bytes(&self) -> [u8; 32] {
        let bytes = data_encoding::HEXLOWER.decode(self.0.as_bytes());
        bytes
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or_default()
    }

    pub(super) fn pair(&self) -> KeyPair {
        KeyPair::from_seed(&self.bytes())
    }

    pub(super) fn id(&self) -> NodeId {
        self.pair().id()
    }

    pub(super) fn iroh(&self) -> SecretKey {
        SecretKey::from_bytes(&self.bytes())
    }

    /// For TCP. The library reads keys from files only.
    pub(super) fn identity(&self) -> Result<TlsIdentity, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::io("creating a temporary folder"))?;
        let path = folder.path().join("key");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(BenchError::io("writing a key"))?;
        writeln!(file, "{}", self.0).map_err(BenchError::io("writing a key"))?;
        let key = NodeKey::load(&path).map_err(BenchError::failed("reading a key"))?;
        Ok(TlsIdentity::new(&key))
    }

    /// For QUIC.
    pub(super) async fn endpoint(&self) -> Result<Endpoint, BenchError> {
        let bound = Endpoint::builder(presets::Minimal)
            .secret_key(self.iroh())
            .relay_mode(RelayMode::Disabled)
            .clear_ip_transports()
            .bind_addr(SocketAddr::from(([127, 0, 0, 1], 0)))
            .map_err(BenchError::failed("binding"))?;
        Box::pin(bound.bind())
            .await
            .map_err(BenchError::failed("binding"))
    }
}

/// The key and the addresses of a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct NodeAddress {
    pub(super) node: NodeId,
    pub(super) udp: SocketAddr,
    pub(super) tcp: SocketAddr,
}

impl NodeAddress {
    /// Connects over QUIC.
    pub(super) async fn quic(&self, endpoint: &Endpoint) -> Result<CarrierConnection, BenchError> {
        let id = EndpointId::from_bytes(self.node.as_bytes())
            .map_err(BenchError::failed("parsing the key"))?;
        let address = EndpointAddr::from_parts(id, [TransportAddr::Ip(self.udp)]);
        let connection = endpoint.connect(address, ALPN).await;
        let connection = connection.map_err(BenchError::failed("connecting"))?;
        Ok(CarrierConnection::Quic(quic::QuicConnection::new(
            connection,
        )))
    }

    /// Connects over WebSocket.
    pub(super) async fn ws(&self, identity: &TlsIdentity) -> Result<CarrierConnection, BenchError> {
        let made = tcp::connect(identity, self.node, self.tcp, &[TcpCarrier::Ws]);
        Box::pin(made)
            .await
            .map_err(BenchError::failed("connecting"))
    }

    /// Connects over TLS; what is spoken on it is left to the caller.
    pub(super) async fn tls(
        &self,
        identity: &TlsIdentity,
        protocol: &[u8],
    ) -> Result<TlsStream<TcpStream>, BenchError> {
        let io = TcpStream::connect(self.tcp)
            .await
            .map_err(BenchError::io("connecting"))?;
        let _ = io.set_nodelay(true);
        let config = identity.dialling(vec![protocol.to_vec()]);
        TlsConnector::from(config)
            .connect(name_of(&self.node), io)
            .await
            .map_err(BenchError::io("the TLS handshake"))
    }
}

/// An encoded frame.
pub(super) fn frame_of(kind: FrameKind, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    frame::put(&mut bytes, kind, payload);
    bytes.freeze()
}

/// The first frame of a call.
pub(super) fn call(to: &str, method: &str) -> Bytes {
    let header = CallHeader {
        to: to.to_owned(),
        method: method.to_owned(),
        ..CallHeader::default()
    };
    frame_of(FrameKind::CALL, &header::encode(&header))
}

/// Sends HELLO and returns the control stream.
pub(super) async fn greet(
    connection: &CarrierConnection,
) -> Result<(SendStream, RecvStream), BenchError> {
    let hello = Hello {
        versions: vec![VERSION],
        software: "siege".to_owned(),
        instance: u64::from_le_bytes(random::<8>()?),
        ..Hello::default()
    };
    let opened = connection.open(Priority::Critical).await;
    let (mut send, recv) = opened.map_err(BenchError::failed("sending HELLO"))?;
    let greeting = frame_of(FrameKind::HELLO, &header::encode(&hello));
    send.write(greeting)
        .await
        .map_err(BenchError::failed("sending HELLO"))?;
    Ok((send, recv))
}

/// Makes a call and returns the answer's body.
pub(super) async fn ask(
    connection: &CarrierConnection,
    to: &str,
    method: &str,
    body: Bytes,
) -> Result<Bytes, BenchError> {
    let opened = connection.open(Priority::Medium).await;
    let (mut send, mut recv) = opened.map_err(BenchError::failed("the call"))?;
    let mut chunks = [call(to, method), frame_of(FrameKind::DATA, &body)];
    let written = send.write_many(&mut chunks).await;
    send.finish();
    let (status, body) = answer(&mut recv).await?;
    match status.code {
        Code::Ok => {
            written.map_err(BenchError::failed("the call"))?;
            Ok(body)
        }
        code => Err(BenchError::Reported(format!("{code}: {}", status.message))),
    }
}

/// Reads an answer to its end.
pub(super) async fn answer(recv: &mut RecvStream) -> Result<(Status, Bytes), BenchError> {
    let mut decoder = FrameDecoder::new();
    let mut body = BytesMut::new();
    loop {
        while let Some(event) = decoder
            .next_event()
            .map_err(BenchError::failed("reading the answer"))?
        {
            match event {
                FrameEvent::Data(part) => body.extend_from_slice(&part),
                FrameEvent::Frame(FrameKind::END, payload) if payload.is_empty() => {
                    return Ok((Status::ok(), body.freeze()));
                }
                FrameEvent::Frame(FrameKind::END, payload) => {
                    let status = header::decode(&payload)
                        .map_err(BenchError::failed("decoding the status"))?;
                    return Ok((status, body.freeze()));
                }
                FrameEvent::Frame(..) => {}
            }
        }
        if body.len() > MAX_READ {
            return Err(BenchError::Invalid(
                "the answer is longer than 1 MiB".into(),
            ));
        }
        match recv
            .read(1 << 16)
            .await
            .map_err(BenchError::failed("reading the answer"))?
        {
            Some(chunk) => decoder.push(chunk),
            None => return Err(BenchError::Invalid("the answer was cut short".into())),
        }
    }
}

/// The request with which a peer joins by a ticket.
#[derive(Debug, Serialize)]
struct TicketRedemption {
    secret: TicketSecret,
}

/// Redeems the ticket of a node.
pub(super) async fn redeem(
    connection: &CarrierConnection,
    secret: TicketSecret,
) -> Result<Bytes, BenchError> {
    let body = header::encode(&TicketRedemption { secret });
    ask(connection, "node", "join", body.into()).await
}

/// Pseudo-random bytes (xorshift64*).
pub(super) struct XorshiftBytes(u64);

impl XorshiftBytes {
    pub(super) fn new() -> Result<Self, BenchError> {
        Ok(Self(u64::from_le_bytes(random::<8>()?) | 1))
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Less than `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.number() >> 33) as usize % end
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.number() >> 56) as u8).collect()
    }
}

/// The TLS settings for a hub: pinned to the key in its ticket.
pub(super) fn hub_tls(host: &str, key: NodeId) -> Result<rustls::ClientConfig, BenchError> {
    let pins = hailwire::hub::tls::HubPins::default();
    pins.pin(host, key);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = pins.verifier(provider.clone());
    let verifier = verifier.map_err(BenchError::io("the TLS handshake"))?;
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(BenchError::failed("setting up TLS"))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}
