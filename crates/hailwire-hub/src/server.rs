//! The TCP port: accepts connections, terminates TLS, and routes requests.
//!
//! | path | handled by |
//! |---|---|
//! | `/v1/…` | the directory ([`crate::api`]) |
//! | `/relay` | the relay, as a WebSocket |
//! | `/ping`, `/generate_204` | this module; nodes use them to measure latency and detect captive portals |
//!
//! A connection that is not yet an established relay connection is bounded in number, in all and
//! per address, and in time.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::{IpAddr, Shutdown, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use iroh_relay::server::{http_server::BytesBody, streams::MaybeTlsStream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{api::DirectoryApi, config::HubBounds, relay::Relay, throttle::client_network};

/// Maximum lifetime of a connection that does not become a relay connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time for requests in flight to finish once the hub shuts down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Longest challenge of a captive portal check.
const MAX_CHALLENGE: usize = 64;

/// What every connection shares.
pub(crate) struct ServerContext {
    pub(crate) api: DirectoryApi,
    pub(crate) relay: Relay,
    pub(crate) tls: Option<TlsAcceptor>,
    /// [`HubBounds::handshake`].
    pub(crate) handshake: Duration,
    /// Turns true when the hub shuts down.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Serves until the hub shuts down, then waits for the connections.
pub(crate) async fn serve(listener: TcpListener, port: Arc<ServerContext>, bounds: HubBounds) {
    let permits = Arc::new(Semaphore::new(bounds.connections));
    let addresses = ConnectionsPerAddress::new(bounds.connections_per_address);
    let mut stop = port.stop.clone();
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        let (Ok(permit), Ok((tcp, peer))) = (permit, accepted) else {
            tracing::warn!("no connection can be accepted now");
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(slot) = addresses.acquire(peer.ip(), permit) else {
            tracing::debug!(%peer, "refused: too many connections from one address");
            continue;
        };
        let port = port.clone();
        connections.spawn(async move {
            if let Err(error) = connection(tcp, peer, &port).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(slot);
        });
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_GRACE, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves one connection, until it ends or the relay has taken it over.
async fn connection(tcp: TcpStream, peer: SocketAddr, port: &ServerContext) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    // The relay takes the stream over, in a task of its own, and waits for the client's handshake
    // without a timeout. This second handle closes the connection of a peer that never completes it,
    // also if this task is aborted.
    let tcp = tcp.into_std()?;
    let pending = PendingStream(Some(tcp.try_clone()?));
    let tcp = TcpStream::from_std(tcp)?;
    let stream = match &port.tls {
        None => MaybeTlsStream::Plain(tcp),
        Some(tls) => MaybeTlsStream::Tls(timeout(port.handshake, tls.accept(tcp)).await??),
    };
    let (relaying, mut relay_decided) = mpsc::channel::<Infallible>(1);
    let service = hyper::service::service_fn(|mut request: Request<Incoming>| {
        let relaying = relaying.clone();
        async move {
            // The relay drops the request once it has admitted or refused the peer.
            request.extensions_mut().insert(relaying);
            Ok::<_, Infallible>(route(request, peer.ip(), port).await)
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(port.handshake)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(serving);
    let mut stop = port.stop.clone();
    let served = timeout(CONNECTION_TIMEOUT, async {
        tokio::select! {
            served = &mut serving => served,
            () = stopped(&mut stop) => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    });
    served.await?.map_err(io::Error::other)?;
    drop(relaying);
    tokio::select! {
        _ = relay_decided.recv() => pending.hand_over(),
        () = sleep(port.handshake) => {}
        () = stopped(&mut stop) => {}
    }
    Ok(())
}

/// A stream that the relay has not admitted yet. Dropping it shuts the stream down, whoever else holds it.
#[derive(Debug)]
struct PendingStream(Option<std::net::TcpStream>);

impl PendingStream {
    /// Leaves the stream to the relay.
    fn hand_over(mut self) {
        self.0 = None;
    }
}

impl Drop for PendingStream {
    fn drop(&mut self) {
        if let Some(tcp) = &self.0 {
            // The peer may have closed it already.
            let _ = tcp.shutdown(Shutdown::Both);
        }
    }
}

/// Waits until the hub shuts down or is dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the hub was dropped.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn route(
    request: Request<Incoming>,
    address: IpAddr,
    port: &ServerContext,
) -> Response<BytesBody> {
    let path = request.uri().path();
    match (request.method(), path) {
        (&Method::GET, "/relay") => port.relay.upgrade(request).unwrap_or_else(|error| {
            tracing::debug!(%error, "the relay refused a request");
            status(StatusCode::BAD_REQUEST)
        }),
        (&Method::GET, "/ping") => {
            let mut response = status(StatusCode::OK);
            let any = HeaderValue::from_static("*");
            response
                .headers_mut()
                .insert(http::header::ACCESS_CONTROL_ALLOW_ORIGIN, any);
            response
        }
        (&Method::GET, "/generate_204") => {
            let mut response = status(StatusCode::NO_CONTENT);
            let challenge = request.headers().get("x-iroh-challenge");
            if let Some(proof) = challenge.and_then(answer_challenge) {
                response.headers_mut().insert("x-iroh-response", proof);
            }
            response
        }
        (_, path) if path.starts_with("/v1/") => boxed(port.api.answer(request, address).await),
        _ => boxed(port.api.no_such_path()),
    }
}

/// The response to a captive portal check, which a portal cannot produce.
fn answer_challenge(challenge: &HeaderValue) -> Option<HeaderValue> {
    let text = challenge.to_str().ok()?;
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if text.is_empty() || text.len() >= MAX_CHALLENGE || !text.bytes().all(good) {
        return None;
    }
    HeaderValue::try_from(format!("response {text}")).ok()
}

fn status(status: StatusCode) -> Response<BytesBody> {
    let mut response = boxed(Response::new(Full::new(Bytes::new())));
    *response.status_mut() = status;
    response
}

fn boxed(response: Response<Full<Bytes>>) -> Response<BytesBody> {
    response.map(|body| Box::new(body) as BytesBody)
}

/// Counts the connections of each address.
#[derive(Clone, Debug)]
struct ConnectionsPerAddress {
    max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl ConnectionsPerAddress {
    fn new(max: usize) -> Self {
        Self {
            max,
            open: Arc::default(),
        }
    }

    /// Takes a slot for a connection, unless its address has none left.
    fn acquire(&self, address: IpAddr, permit: OwnedSemaphorePermit) -> Option<ConnectionSlot> {
        let address = client_network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(ConnectionSlot {
            address,
            open: self.open.clone(),
            _permit: permit,
        })
    }
}

/// The slot of one connection; released when dropped.
#[derive(Debug)]
struct ConnectionSlot {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}
