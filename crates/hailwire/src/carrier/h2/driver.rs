//! The task that owns the two HTTP/2 connections and the control stream.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use h2::{
    Ping, PingPong, RecvStream,
    client::{self, ResponseFuture},
    server::{self, SendResponse},
};
use hailwire_wire::{
    Code,
    capsule::{Capsule, CapsuleDecoder, ConnectionHalf},
};
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    codes,
    gathered_io::{GatheredIo, GatheredWriter},
    path,
    shared::{AcceptedStream, H2Shared, StreamCell},
};
use crate::carrier::{ConnectionError, ConnectionLimits};

/// How long a closing side tries to tell a peer that does not read, and then waits for it to hang up.
const LINGER: Duration = Duration::from_secs(1);

/// The connection on which streams are accepted.
pub(super) type ServerConnection<IO> = server::Connection<GatheredIo<IO>, Bytes>;

/// The connection on which streams are opened.
pub(super) type ClientConnection<IO> = client::Connection<GatheredIo<IO>, Bytes>;

/// The connection that comes second, once it is there; or why it does not come.
pub(super) type SecondConnection<IO> =
    Pin<Box<dyn Future<Output = Result<ReadyConnection<IO>, String>> + Send + 'static>>;

/// One of the two connections, ready for use.
pub(super) enum ReadyConnection<IO> {
    /// Streams are accepted on it.
    Serving(Box<ServerConnection<IO>>, GatheredWriter<IO>),
    /// Streams are opened on it.
    Opening(
        client::SendRequest<Bytes>,
        Box<ClientConnection<IO>>,
        GatheredWriter<IO>,
    ),
}

/// What carries capsules.
pub(super) struct CapsuleStream {
    pub(super) send: h2::SendStream<Bytes>,
    pub(super) recv: ControlRecv,
}

/// The receiving side of the control stream.
pub(super) enum ControlRecv {
    /// Its head has not come.
    Head(ResponseFuture),
    /// It has.
    Body(RecvStream),
}

pub(super) struct H2Driver<IO> {
    pub(super) shared: Arc<H2Shared>,
    pub(super) server: Option<Box<ServerConnection<IO>>>,
    pub(super) client: Option<Box<ClientConnection<IO>>>,
    pub(super) second: Option<SecondConnection<IO>>,
    /// What is beneath the connections.
    pub(super) lines: Vec<GatheredWriter<IO>>,
    pub(super) control: CapsuleStream,
    pub(super) decoder: CapsuleDecoder,
    /// Capsules that wait for credit.
    pub(super) out: BytesMut,
    pub(super) pings: Option<PingPong>,
    /// A ping without an answer so far.
    pub(super) pinged: Option<Instant>,
    /// What the peer was given.
    pub(super) limits: Option<ConnectionLimits>,
}

/// Moves bytes until the connection is over, then tells the peer if there is something to tell.
pub(super) async fn drive<IO: AsyncRead + AsyncWrite + Send + Unpin>(mut driver: H2Driver<IO>) {
    poll_fn(|cx| driver.poll(cx)).await;
    let tell = driver.take_close();
    if tell {
        // A peer that does not read in time learns it from the end of the connection.
        let _ = tokio::time::timeout(LINGER, poll_fn(|cx| driver.poll_close_sent(cx))).await;
    }
    driver.shared.set_done();
    if tell {
        // Hanging up first could overtake what was told.
        let _ = tokio::time::timeout(LINGER, poll_fn(|cx| driver.poll_hung_up(cx))).await;
    }
}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> H2Driver<IO> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.set_driver(cx);
        self.poll_second(cx);
        self.apply_limits();
        self.poll_control_send(cx);
        self.poll_ping(cx);
        let over = self.poll_connections(cx);
        self.shared.poll_lingering(cx);
        self.poll_control_recv(cx);
        if let Poll::Ready(why) = over {
            // What the peer said last has been read by now.
            self.shared.end(why, None);
        }
        if self.shared.ended().is_some() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn poll_second(&mut self, cx: &mut Context<'_>) {
        let Some(second) = &mut self.second else {
            return;
        };
        let Poll::Ready(second) = second.as_mut().poll(cx) else {
            return;
        };
        self.second = None;
        match second {
            Ok(ReadyConnection::Serving(serving, line)) => {
                self.server = Some(serving);
                self.lines.push(line);
            }
            Ok(ReadyConnection::Opening(opener, opening, line)) => {
                self.client = Some(opening);
                self.lines.push(line);
                self.shared.set_opener(opener);
            }
            Err(why) => {
                let why = format!("its second connection failed: {why}");
                self.shared.end(ConnectionError::Lost(why), None);
            }
        }
        // The new connection has not been given its room.
        self.limits = None;
    }

    /// Gives the peer the room that it may have by now.
    fn apply_limits(&mut self) {
        let room = self.shared.lock().limits;
        if room == self.limits {
            return;
        }
        self.limits = room;
        if let Some(room) = room {
            if let Some(serving) = &mut self.server {
                serving.set_target_window_size(room.unread);
            }
            if let Some(opening) = &mut self.client {
                opening.set_target_window_size(room.unread);
            }
        }
    }

    /// Moves both connections on and writes what they have to say; says why the carrier is over when
    /// one of them is.
    fn poll_connections(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        loop {
            let over = self.poll_h2(cx);
            let mut again = false;
            for line in &self.lines {
                again |= line.poll_drain(cx) == Poll::Ready(true);
            }
            if over.is_ready() || !again {
                return over;
            }
        }
    }

    fn poll_h2(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        if let Some(serving) = &mut self.server {
            loop {
                match serving.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        arrived(&self.shared, request, respond);
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(lost(&error)),
                    Poll::Ready(None) => return Poll::Ready(hung_up()),
                    Poll::Pending => break,
                }
            }
        }
        if let Some(opening) = &mut self.client
            && let Poll::Ready(ended) = Pin::new(opening).poll(cx)
        {
            return Poll::Ready(ended.err().map_or_else(hung_up, |error| lost(&error)));
        }
        Poll::Pending
    }

    fn poll_control_send(&mut self, cx: &mut Context<'_>) {
        loop {
            if self.out.is_empty() {
                let mut state = self.shared.lock();
                for stop in state.stops.drain(..) {
                    stop.encode(&mut self.out);
                }
                for payload in state.datagrams_out.drain(..) {
                    Capsule::Datagram(payload).encode(&mut self.out);
                }
            }
            if self.out.is_empty() {
                return;
            }
            let send = &mut self.control.send;
            send.reserve_capacity(self.out.len());
            let credit = send.capacity().min(self.out.len());
            if credit == 0 {
                if let Poll::Ready(Some(Ok(_))) = send.poll_capacity(cx) {
                    continue;
                }
                return;
            }
            let part = self.out.split_to(credit).freeze();
            if send.send_data(part, false).is_err() {
                return self.out.clear();
            }
        }
    }

    fn poll_control_recv(&mut self, cx: &mut Context<'_>) {
        while self.shared.ended().is_none() {
            match &mut self.control.recv {
                ControlRecv::Head(head) => match Pin::new(head).poll(cx) {
                    Poll::Ready(Ok(response)) if response.status() == StatusCode::OK => {
                        self.control.recv = ControlRecv::Body(response.into_body());
                    }
                    Poll::Ready(Ok(response)) => {
                        let why = format!("it answered {}", response.status());
                        return self.shared.end(ConnectionError::Protocol(why), None);
                    }
                    // The connection itself says more.
                    Poll::Ready(Err(_)) | Poll::Pending => return,
                },
                ControlRecv::Body(body) => match body.poll_data(cx) {
                    Poll::Ready(Some(Ok(part))) => {
                        let _ = body.flow_control().release_capacity(part.len());
                        self.read_capsules(part);
                    }
                    Poll::Ready(None) => {
                        let why = "it ended its control stream".to_owned();
                        return self.shared.end(ConnectionError::Lost(why), None);
                    }
                    Poll::Ready(Some(Err(error))) if error.is_reset() => {
                        let why = "it reset its control stream".to_owned();
                        return self.shared.end(ConnectionError::Lost(why), None);
                    }
                    Poll::Ready(Some(Err(_))) | Poll::Pending => return,
                },
            }
        }
    }

    fn read_capsules(&mut self, part: Bytes) {
        self.decoder.push(part);
        loop {
            match self.decoder.next_capsule() {
                Ok(None) => return,
                Ok(Some(Capsule::Datagram(payload))) => self.shared.datagram_arrived(payload),
                Ok(Some(Capsule::Stop {
                    connection,
                    stream,
                    code,
                })) => self.shared.stop_arrived((connection, stream), code),
                Ok(Some(Capsule::Close { code, reason })) => {
                    return self
                        .shared
                        .end(ConnectionError::Closed { code, reason }, None);
                }
                Err(error) => {
                    let close = Capsule::Close {
                        code: Code::InvalidArgument,
                        reason: error.to_string(),
                    };
                    let why = ConnectionError::Protocol(error.to_string());
                    return self.shared.end(why, Some(close));
                }
            }
        }
    }

    /// Measures the round trip when somebody has asked for it.
    fn poll_ping(&mut self, cx: &mut Context<'_>) {
        let Some(pings) = &mut self.pings else { return };
        if let Some(since) = self.pinged
            && let Poll::Ready(Ok(_)) = pings.poll_pong(cx)
        {
            self.pinged = None;
            self.shared.lock().rtt = Some(since.elapsed());
        }
        if self.pinged.is_none()
            && std::mem::take(&mut self.shared.lock().ping)
            && pings.send_ping(Ping::opaque()).is_ok()
        {
            self.pinged = Some(Instant::now());
            // Asks to be woken by the answer.
            let _ = pings.poll_pong(cx);
        }
    }

    /// Puts what is to be told last in the place of everything else, and says whether there is such.
    fn take_close(&mut self) -> bool {
        let close = self.shared.lock().close.take();
        if let Some(close) = &close {
            close.encode(&mut self.out);
        }
        close.is_some()
    }

    /// Ready once the peer was told, or cannot be.
    fn poll_close_sent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_control_send(cx);
        let over = self.poll_connections(cx).is_ready();
        if over
            || (self.out.is_empty() && self.shared.outgoing(ConnectionHalf::Forward).is_flushed())
        {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn poll_hung_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_connections(cx).map(drop)
    }
}

impl<IO> Drop for H2Driver<IO> {
    /// Also where the runtime stops in mid-flight: nobody is left waiting.
    fn drop(&mut self) {
        let why = ConnectionError::Lost("the runtime stopped".to_owned());
        self.shared.end(why, None);
        self.shared.set_done();
    }
}

/// Queues a stream that the peer has opened, or refuses it.
fn arrived(shared: &Arc<H2Shared>, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    if request.method() != Method::POST || request.uri().path() != path().path() {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::NOT_FOUND;
        let _ = respond.send_response(response, true);
        return;
    }
    let half = match shared.opens_on {
        ConnectionHalf::Forward => ConnectionHalf::Reverse,
        ConnectionHalf::Reverse => ConnectionHalf::Forward,
    };
    let key = (half, respond.stream_id().as_u32());
    let priority = codes::priority(request.headers());
    let cell = Arc::new(StreamCell::arrived(key));
    let body = request.into_body();
    shared.arrived(
        key,
        AcceptedStream {
            cell,
            priority,
            body,
            respond,
        },
    );
}

fn hung_up() -> ConnectionError {
    ConnectionError::Lost("it hung up".to_owned())
}

fn lost(error: &h2::Error) -> ConnectionError {
    if error.is_io() {
        ConnectionError::Lost(error.to_string())
    } else {
        ConnectionError::Protocol(error.to_string())
    }
}
