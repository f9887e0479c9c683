//! A connection over a pair of byte streams: the handshake, and the driver.

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    ConnectError, ConnectOptions, Connection, ConnectionLink, EventTransport, LinkSettings,
    RequestError, RequestTicket, open,
};
use crate::{
    capabilities::Capabilities,
    control::{Cancel, Ping},
    event::{Configure, Event, EventKind},
    response::{Decision, Response},
    stream::{self, FrameReceiver, FrameSender, WINDOW},
    wire::{
        self, Encoding,
        frame::{FrameError, FrameType},
        handshake::{self, HandshakeRequest, HandshakeResponse, WireExtensions},
        raw, salvage,
    },
};

/// Opens a connection over a pair of byte streams at whose other end an agent listens.
///
/// Runs a task until the connection ends.
///
/// # Errors
///
/// [`ConnectError`].
///
/// # Cancel safety
///
/// The streams are dropped.
pub async fn over<T>(io: T, options: &ConnectOptions) -> Result<Connection, ConnectError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    within(options, halves(read, write, options)).await
}

/// A future that has as long as a connection may take.
pub(super) async fn within<T>(
    options: &ConnectOptions,
    connecting: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let limit = options.connect_timeout;
    tokio::time::timeout(limit, connecting)
        .await
        .unwrap_or(Err(ConnectError::Timeout(limit)))
}

/// [`over`], without a limit of time.
pub(super) async fn halves<R, W>(
    read: R,
    write: W,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let greeted = greet(read, write, &hello(options)).await?;
    welcomed(greeted, options).await
}

/// What a host says first.
pub(super) fn hello(options: &ConnectOptions) -> HandshakeRequest {
    HandshakeRequest {
        proxy_id: options.host_id.clone(),
        proxy_version: options.host_version.clone(),
        config: options.config.clone().unwrap_or_default(),
        supported_encodings: options.encodings.clone(),
        extensions: options.extensions.then(|| WireExtensions {
            raw_bodies: true,
            window: WINDOW,
            ..WireExtensions::default()
        }),
        ..HandshakeRequest::default()
    }
}

/// A handshake that has been answered.
pub(super) struct HandshakeReply<R, W> {
    pub(super) incoming: FrameReceiver<R>,
    pub(super) outgoing: FrameSender<W>,
    pub(super) answer: Bytes,
}

/// Says hello, and returns what was answered.
pub(super) async fn greet<R, W>(
    read: R,
    write: W,
    hello: &impl serde::Serialize,
) -> Result<HandshakeReply<R, W>, ConnectError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut incoming = FrameReceiver::new(read);
    let outgoing = FrameSender::new(write);
    let code = FrameType::Handshake.code();
    outgoing
        .frame(code, |out| handshake::encode(hello, out))
        .map_err(frame_error)?;
    poll_fn(|context| outgoing.poll_write(context)).await?;
    let (code, answer) = stream::frame(&mut incoming).await?;
    if code != FrameType::HandshakeAnswer.code() {
        let said = format!("expected a handshake answer, got frame type {code:#04x}");
        return Err(ConnectError::Handshake(said));
    }
    Ok(HandshakeReply {
        incoming,
        outgoing,
        answer,
    })
}

/// Goes on after the answer.
pub(super) async fn welcomed<R, W>(
    greeted: HandshakeReply<R, W>,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let HandshakeReply {
        incoming,
        outgoing,
        answer: payload,
    } = greeted;
    let welcome: HandshakeResponse =
        handshake::decode(&payload).map_err(|error| ConnectError::Handshake(error.to_string()))?;
    if !welcome.success {
        return Err(ConnectError::Refused(welcome.error.unwrap_or_default()));
    }
    let offered = |encoding| options.encodings.contains(&encoding) || encoding == Encoding::Json;
    if welcome.protocol_version != crate::VERSION || !offered(welcome.encoding) {
        let version = welcome.protocol_version;
        let said = format!(
            "version {version} in {:?} was not offered",
            welcome.encoding
        );
        return Err(ConnectError::Handshake(said));
    }
    let ours = welcome.extensions.filter(|_| options.extensions);
    let settled = StreamParams {
        capabilities: welcome.capabilities,
        encoding: welcome.encoding,
        window: ours
            .filter(|ours| ours.raw_bodies)
            .map(|ours| ours.window.min(WINDOW)),
    };
    let connection = start(incoming, outgoing, settled, options);
    configure(&connection, options).await?;
    Ok(connection)
}

/// The parameters that a handshake agreed on.
pub(super) struct StreamParams {
    pub(super) capabilities: Capabilities,
    pub(super) encoding: Encoding,
    /// The window, where both sides are Hailwire.
    pub(super) window: Option<u32>,
}

/// Begins after the handshake.
pub(super) fn start<R, W>(
    incoming: FrameReceiver<R>,
    outgoing: FrameSender<W>,
    settled: StreamParams,
    options: &ConnectOptions,
) -> Connection
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let outgoing = Arc::new(outgoing);
    let outlet = FrameTransport {
        outgoing: outgoing.clone(),
        encoding: settled.encoding,
        numbered: settled.window.is_some(),
    };
    let settings = LinkSettings {
        capabilities: settled.capabilities,
        numbered: settled.window.is_some(),
        window: settled.window.unwrap_or(0).into(),
        overload: options.overload,
        late: options.late,
        notices: options.notices.clone(),
    };
    let (connection, link) = open(outlet, settings);
    let driver = StreamDriver {
        link,
        incoming,
        outgoing,
        encoding: settled.encoding,
        gathers: false,
    };
    // It ends with the last clone of the connection, or with the stream.
    tokio::spawn(driver.run());
    connection
}

/// Gives the agent its configuration, if there is one and it takes one.
pub(super) async fn configure(
    connection: &Connection,
    options: &ConnectOptions,
) -> Result<(), ConnectError> {
    let Some(config) = &options.config else {
        return Ok(());
    };
    let capabilities = connection.capabilities();
    if !capabilities.features.config_push && !capabilities.events.contains(EventKind::Configure) {
        return Ok(());
    }
    let event = Configure {
        correlation_id: "hailwire-configure".into(),
        config: config.clone(),
        config_version: options.config_version.clone(),
    };
    let answer = connection.request(Event::Configure(event)).await;
    match answer.map(|response| response.decision) {
        Ok(Decision::Allow) => Ok(()),
        Ok(Decision::Block { body, status, .. }) => Err(ConnectError::Configuration(
            body.unwrap_or_else(|| status.to_string()),
        )),
        Ok(other) => Err(ConnectError::Configuration(format!("{other:?}"))),
        Err(error) => Err(ConnectError::Configuration(error.to_string())),
    }
}

/// Turns requests into frames.
struct FrameTransport<W> {
    outgoing: Arc<FrameSender<W>>,
    encoding: Encoding,
    numbered: bool,
}

impl<W: AsyncWrite + Unpin + Send + 'static> EventTransport for FrameTransport<W> {
    fn event(&self, ticket: RequestTicket, event: Event, alone: bool) -> Result<(), RequestError> {
        let kind = event.kind();
        let number = ticket.number();
        let put = match event {
            Event::RequestBody(mut piece) | Event::ResponseBody(mut piece) if self.numbered => {
                if piece.correlation_id.len() > raw::MAX_ID {
                    return Err(RequestError::TooLarge);
                }
                let data = std::mem::take(&mut piece.data);
                let head = |out: &mut _| raw::put_chunk_head(number, kind, &piece, out);
                self.outgoing.frame_with(raw::CHUNK, head, data)
            }
            event if self.numbered => self.outgoing.frame(raw::EVENT, |out| {
                raw::put_event_head(number, kind, out);
                wire::encode_event(&event, self.encoding, out);
            }),
            event => self.outgoing.frame(FrameType::Event(kind).code(), |out| {
                wire::encode_event(&event, self.encoding, out);
            }),
        };
        put.map_err(|_| RequestError::TooLarge)?;
        if alone {
            self.outgoing.write();
        } else {
            self.outgoing.wake_driver();
        }
        Ok(())
    }

    fn cancel(&self, cancel: Cancel) {
        let put = |out: &mut _| wire::encode_cancel(&cancel, out);
        if self.outgoing.frame(FrameType::Cancel.code(), put).is_ok() {
            self.outgoing.wake_driver();
        }
    }

    fn ping(&self, ping: Ping) -> bool {
        let put = |out: &mut _| wire::encode_ping(&ping, out);
        let put = self.outgoing.frame(FrameType::Ping.code(), put);
        self.outgoing.wake_driver();
        put.is_ok()
    }

    fn close(&self) {
        self.outgoing.close();
    }
}

/// Reads what the agent says, and writes what [`FrameTransport`] gathered.
struct StreamDriver<R, W> {
    link: ConnectionLink,
    incoming: FrameReceiver<R>,
    outgoing: Arc<FrameSender<W>>,
    encoding: Encoding,
    /// It was woken, and lets whoever runs next add to what it will write.
    gathers: bool,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> StreamDriver<R, W> {
    async fn run(mut self) {
        let link = self.link.clone();
        let driving = poll_fn(|context| self.poll(context));
        let ended = if link.is_numbered() {
            driving.await
        } else {
            tokio::select! {
                ended = driving => ended,
                () = link.overdue() => Err(io::ErrorKind::TimedOut.into()),
            }
        };
        // Whoever still holds the connection does not hold the socket open: the agent is to hear of it.
        poll_fn(|context| {
            let _ = self.outgoing.poll_shutdown(context);
            Poll::Ready(())
        })
        .await;
        let agent = &self.link.capabilities().agent_id;
        match ended {
            Ok(()) => tracing::debug!(agent, "connection to an agent ended"),
            Err(error) => tracing::info!(agent, %error, "connection to an agent lost"),
        }
        self.link.end();
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.attach(context.waker());
        loop {
            match self.incoming.poll_fill(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => self.frames()?,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        let woken = self.outgoing.was_woken();
        let closing = self.outgoing.is_closing();
        if woken && !self.gathers && !closing && !self.outgoing.is_flush_due() {
            self.gathers = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.gathers = false;
        let written = self.outgoing.poll_write(context);
        if closing {
            // What fits is said; an agent that does not read is not waited for.
            let _ = self.outgoing.poll_shutdown(context);
            return Poll::Ready(Ok(()));
        }
        match written {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }

    fn frames(&mut self) -> io::Result<()> {
        while let Some((code, payload)) = self.incoming.next().map_err(invalid)? {
            self.frame(code, payload)?;
        }
        Ok(())
    }

    fn frame(&self, code: u8, mut payload: Bytes) -> io::Result<()> {
        let numbered = self.link.is_numbered();
        if numbered && matches!(code, raw::ANSWER | raw::ANSWER_DATA) {
            let number = raw::take_number(&mut payload).map_err(invalid)?;
            let answer = if code == raw::ANSWER {
                raw::take_answer(payload, self.encoding)
            } else {
                raw::take_answer_data(payload, self.encoding)
            };
            let answer = answer.map_err(|error| RequestError::Malformed(error.to_string()));
            self.link.answer(RequestTicket::from_number(number), answer);
            return Ok(());
        }
        let Some(kind) = FrameType::from_code(code) else {
            return Err(invalid(format!("unknown frame type {code:#04x}")));
        };
        match kind {
            FrameType::Response => self.response(&payload)?,
            FrameType::Health | FrameType::Metrics | FrameType::ConfigUpdate | FrameType::Flow => {
                match wire::decode_notice(kind, &payload, self.encoding) {
                    Ok(notice) => self.link.notice(notice),
                    Err(error) => {
                        tracing::warn!(agent = self.link.capabilities().agent_id, ?kind, %error, "notice could not be decoded");
                    }
                }
            }
            FrameType::Pong => {
                if let Ok(pong) = wire::decode_ping(&payload) {
                    self.link.pong(pong);
                }
            }
            other => {
                tracing::debug!(agent = self.link.capabilities().agent_id, kind = ?other, "frame for the other direction ignored");
            }
        }
        Ok(())
    }

    fn response(&self, payload: &Bytes) -> io::Result<()> {
        match wire::decode_response(payload.clone(), self.encoding) {
            Ok((id, response)) => {
                self.answer(&id, Ok(response));
                Ok(())
            }
            Err(error) => match salvage::answer_id(payload, self.encoding) {
                Some(id) => {
                    self.answer(&id, Err(RequestError::Malformed(error.to_string())));
                    Ok(())
                }
                None => Err(invalid(error)),
            },
        }
    }

    fn answer(&self, id: &str, answer: Result<Response, RequestError>) {
        self.link.answer_request(id, answer);
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn frame_error(error: FrameError) -> ConnectError {
    ConnectError::Handshake(error.to_string())
}
