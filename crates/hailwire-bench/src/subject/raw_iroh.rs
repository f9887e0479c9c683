//! Raw iroh: one QUIC stream for each message on a bare connection, no session protocol.
//!
//! Windows, stream limits and congestion control are those of a node unless the options say otherwise.

use std::sync::Arc;

use bytes::Bytes;
use hailwire::Priority;
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMode, TransportAddr,
    endpoint::{
        ConnectOptions, Connection, IncomingZeroRttConnection, QuicTransportConfig, VarInt, presets,
    },
};

use super::{
    CongestionControl, ReadyAddress, SubjectSetup, failed,
    pattern::{CHUNK, check_pattern, pattern},
};
use crate::{BenchError, work::ConnectionStart};

const ALPN: &[u8] = b"hailwire-bench";
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;
const SEND_WINDOW: u64 = 8 * 1024 * 1024;
const MAX_STREAMS: u32 = 1_024;
const BULK: &[u8] = b"bulk";
/// Requests how many packets the server has sent and lost on this connection.
const PACKETS: &[u8] = b"packets?";

/// The server, as the loading program knows it.
#[derive(Clone)]
pub(crate) struct IrohTarget {
    address: EndpointAddr,
    /// Keeps TLS sessions.
    known: Endpoint,
    /// Keeps none.
    forgetful: Endpoint,
    here: SubjectSetup,
}

/// What is needed to connect.
pub(crate) struct PreparedIroh {
    endpoint: Endpoint,
    early: bool,
}

/// One connection.
#[derive(Clone)]
pub(crate) struct IrohConnection {
    state: HandshakeState,
    /// A connection ends with the last handle on its endpoint.
    _endpoint: Endpoint,
}

/// Complete, or before its handshake is.
#[derive(Clone)]
enum HandshakeState {
    Whole(Connection),
    Early(iroh::endpoint::OutgoingZeroRttConnection),
}

fn transport(options: &SubjectSetup) -> QuicTransportConfig {
    let stream = options.window.unwrap_or(STREAM_WINDOW);
    let connection = match options.window {
        Some(window) => window.saturating_mul(16),
        None => CONNECTION_WINDOW,
    };
    let send = options
        .window
        .map_or(SEND_WINDOW, |window| u64::from(window) * 4);
    let mut builder = QuicTransportConfig::builder()
        .max_concurrent_bidi_streams(VarInt::from_u32(MAX_STREAMS))
        .stream_receive_window(VarInt::from_u32(stream))
        .receive_window(VarInt::from_u32(connection))
        .send_window(send);
    builder =
        match options.congestion {
            None => builder,
            Some(CongestionControl::Bbr) => builder
                .congestion_controller_factory(Arc::new(noq::congestion::Bbr3Config::default())),
            Some(CongestionControl::Cubic) => builder
                .congestion_controller_factory(Arc::new(noq::congestion::CubicConfig::default())),
        };
    builder.build()
}

async fn endpoint(options: &SubjectSetup, tickets: Option<usize>) -> Result<Endpoint, BenchError> {
    let mut builder = Endpoint::builder(presets::Minimal)
        .relay_mode(RelayMode::Disabled)
        .alpns(vec![ALPN.to_vec()])
        .transport_config(transport(options))
        .clear_ip_transports()
        .bind_addr((options.listen, 0))
        .map_err(failed("binding"))?;
    if let Some(tickets) = tickets {
        builder = builder.max_tls_tickets(tickets);
    }
    Box::pin(builder.bind()).await.map_err(failed("binding"))
}

/// Serves until the process ends.
pub(crate) async fn serve(options: &SubjectSetup) -> Result<ReadyAddress, BenchError> {
    let endpoint = endpoint(options, None).await?;
    let address = endpoint.bound_sockets().first().map(ToString::to_string);
    let id = endpoint.id().to_string();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                // Idempotent work is accepted from the first flight (0-RTT).
                if let Ok(accepting) = incoming.accept() {
                    let connection = accepting.into_0rtt();
                    while let Ok((send, recv)) = connection.accept_bi().await {
                        tokio::spawn(answer(connection.clone(), send, recv));
                    }
                }
            });
        }
    });
    Ok(ReadyAddress {
        id,
        address: address.unwrap_or_default(),
        ..ReadyAddress::default()
    })
}

async fn answer(
    connection: IncomingZeroRttConnection,
    mut send: iroh::endpoint::SendStream,
    mut recv: iroh::endpoint::RecvStream,
) {
    let Ok(Some(first)) = recv.read_chunk(usize::MAX).await else {
        return;
    };
    if let Some(count) = first.strip_prefix(BULK)
        && let Ok(count) = count.try_into().map(u64::from_be_bytes)
    {
        for chunk in pattern(count) {
            if send.write_chunk(chunk).await.is_err() {
                return;
            }
        }
    } else if first == PACKETS {
        let stats = connection.stats();
        let counted = [stats.sent_packets, stats.lost_packets].map(u64::to_be_bytes);
        let _ = send.write_chunk(Bytes::from(counted.concat())).await;
    } else {
        let _ = send.write_chunk(first).await;
        while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
            let _ = send.write_chunk(chunk).await;
        }
    }
    let _ = send.finish();
}

impl IrohTarget {
    pub(crate) async fn new(
        ready: &ReadyAddress,
        options: &SubjectSetup,
    ) -> Result<Self, BenchError> {
        let id: EndpointId = ready.id.parse().map_err(failed("parsing the key"))?;
        let address = EndpointAddr::from_parts(id, [TransportAddr::Ip(ready.socket()?)]);
        // Bound to an address from which the server can be reached.
        let here = SubjectSetup {
            listen: super::any_like(address_ip(ready)?),
            ..options.clone()
        };
        Ok(Self {
            address,
            known: endpoint(&here, None).await?,
            forgetful: endpoint(&here, Some(0)).await?,
            here,
        })
    }

    pub(crate) async fn prepare(&self, start: ConnectionStart) -> Result<PreparedIroh, BenchError> {
        let whole = |endpoint: &Endpoint, early| PreparedIroh {
            endpoint: endpoint.clone(),
            early,
        };
        match start {
            ConnectionStart::Cold => Ok(whole(&self.forgetful, false)),
            ConnectionStart::Warm => Ok(whole(&self.known, false)),
            ConnectionStart::Resumed | ConnectionStart::ZeroRtt => {
                // Each agent has a TLS session cache of its own, and has connected once before.
                let known = endpoint(&self.here, None).await?;
                let link = self.connect(whole(&known, false)).await?;
                link.echo(Priority::default(), Bytes::from_static(b"hello"))
                    .await?;
                link.close();
                Ok(whole(&known, start == ConnectionStart::ZeroRtt))
            }
        }
    }

    pub(crate) async fn connect(
        &self,
        prepared: PreparedIroh,
    ) -> Result<IrohConnection, BenchError> {
        let PreparedIroh { endpoint, early } = prepared;
        let options = ConnectOptions::new();
        let connecting = endpoint.connect_with_opts(self.address.clone(), ALPN, options);
        let connecting = Box::pin(connecting).await.map_err(failed("connecting"))?;
        let state = if early {
            let Ok(connection) = connecting.into_0rtt() else {
                return Err(BenchError::Unsupported(
                    "no TLS session was kept to send early data with",
                ));
            };
            HandshakeState::Early(connection)
        } else {
            HandshakeState::Whole(connecting.await.map_err(failed("connecting"))?)
        };
        Ok(IrohConnection {
            state,
            _endpoint: endpoint,
        })
    }
}

fn address_ip(ready: &ReadyAddress) -> Result<std::net::IpAddr, BenchError> {
    Ok(ready.socket()?.ip())
}

impl IrohConnection {
    async fn open(
        &self,
        priority: Priority,
    ) -> Result<(iroh::endpoint::SendStream, iroh::endpoint::RecvStream), BenchError> {
        let (send, recv) = match &self.state {
            HandshakeState::Whole(connection) => connection.open_bi().await,
            HandshakeState::Early(connection) => connection.open_bi().await,
        }
        .map_err(failed("opening a stream"))?;
        let ours = priority as i32 - Priority::default() as i32;
        if ours != 0 {
            let _ = send.set_priority(ours);
        }
        Ok((send, recv))
    }

    pub(crate) async fn echo(&self, priority: Priority, body: Bytes) -> Result<Bytes, BenchError> {
        let (mut send, mut recv) = self.open(priority).await?;
        send.write_chunk(body.clone())
            .await
            .map_err(failed("writing"))?;
        send.finish().map_err(failed("writing"))?;
        let first = recv
            .read_chunk(usize::MAX)
            .await
            .map_err(failed("reading"))?;
        let first = first.unwrap_or_default();
        if first.len() == body.len() {
            return Ok(first);
        }
        let mut all = first.to_vec();
        let rest = recv.read_to_end(body.len()).await;
        all.extend(rest.map_err(failed("reading"))?);
        Ok(all.into())
    }

    pub(crate) async fn bulk(
        &self,
        bytes: u64,
        got: &super::StreamProgress,
    ) -> Result<(), BenchError> {
        let (mut send, mut recv) = self.open(Priority::default()).await?;
        let ask = Bytes::from([BULK, &bytes.to_be_bytes()].concat());
        send.write_chunk(ask).await.map_err(failed("writing"))?;
        send.finish().map_err(failed("writing"))?;
        let mut at = 0;
        while let Some(chunk) = recv.read_chunk(CHUNK).await.map_err(failed("reading"))? {
            at = check_pattern(at, &chunk)?;
            got.set(at);
        }
        Ok(())
    }

    /// The packets that the server has sent on this connection, and lost.
    pub(crate) async fn packets(&self) -> Result<super::PacketCounts, BenchError> {
        let (mut send, mut recv) = self.open(Priority::default()).await?;
        send.write_chunk(Bytes::from_static(PACKETS))
            .await
            .map_err(failed("writing"))?;
        send.finish().map_err(failed("writing"))?;
        let answer = recv.read_to_end(16).await.map_err(failed("reading"))?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
        match answer
            .split_at_checked(8)
            .map(|(a, b)| (number(a), number(b)))
        {
            Some((Ok(sent), Ok(lost))) => Ok(super::PacketCounts { sent, lost }),
            _ => Err(BenchError::Invalid("two numbers were asked for".into())),
        }
    }

    pub(crate) fn close(&self) {
        match &self.state {
            HandshakeState::Whole(connection) => connection.close(VarInt::from_u32(0), b"done"),
            HandshakeState::Early(connection) => connection.close(VarInt::from_u32(0), b"done"),
        }
    }
}
