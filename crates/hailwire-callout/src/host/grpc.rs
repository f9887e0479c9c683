//! Connects to an agent over gRPC.
//!
//! The handshake is in the request before anything is waited for. Some servers (grpc-js, grpc-go) send the headers of
//! a response with its first message only: whoever waits for them before it greets waits for ever.
//!
//! Two Hailwire peers number their events, so that chunks of a body are pipelined; to other implementations one event of a request is
//! under way at a time. What foreign agents leave unanswered is not waited for: a configuration counts as accepted when it has been sent, and
//! a guardrail is refused by an agent that does not name it.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::Stream;
use thiserror::Error;
use tokio::sync::{Notify, mpsc};
use tonic::{
    Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Identity, Uri},
};

use super::{
    ConnectError, ConnectOptions, Connection, ConnectionLink, EventTransport, LinkSettings,
    RequestError, RequestTicket, open,
};
use crate::{
    Text, VERSION,
    control::{AgentCommand, AgentHealth, Cancel, Ping},
    event::{Configure, Event, EventKind},
    response::{Decision, Response},
    wire::grpc::{
        self as messages, CONNECTION_WINDOW, EXTENSIONS, MAX_MESSAGE, ReceivedNotice,
        STREAM_WINDOW,
        proto::{
            self, AgentControl, AgentToProxy, ProxyToAgent,
            agent_service_v2_client::AgentServiceV2Client, agent_to_proxy, proxy_control,
            proxy_to_agent::Message,
        },
    },
};

/// Bytes that may wait to be sent; what would go beyond is refused.
const MAX_QUEUED_BYTES: usize = 32 << 20;

/// Configurations that may be sent and not yet counted as accepted, toward agents that answer none.
const MAX_UNACKNOWLEDGED: usize = 16;

/// Bytes in flight of one direction of a body, toward a Hailwire agent.
const WINDOW: u64 = 256 << 10;

/// The endpoint of an agent.
#[derive(Clone, Debug)]
pub struct GrpcEndpoint {
    uri: Uri,
    max_message: usize,
    tls: Option<ClientTls>,
}

/// How a host knows the agent, and shows who it is. Everything in PEM.
#[derive(Clone)]
pub struct ClientTls {
    /// Who signs the agent's certificate.
    pub ca: Vec<u8>,
    /// A certificate to show, and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the agent's certificate, where it is not the one in the address.
    pub name: Option<String>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls")
            .field("name", &self.name)
            .field("identity", &self.identity.is_some())
            .finish_non_exhaustive()
    }
}

/// Something that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid address {0:?}; use HOST:PORT, for example agent.example:50051")]
pub struct EndpointError(String);

impl GrpcEndpoint {
    /// From `host:port`, or `http://host:port`.
    ///
    /// # Errors
    ///
    /// [`EndpointError`].
    pub fn new(address: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError(address.to_owned());
        let whole = match address.contains("://") {
            true => address.to_owned(),
            false => format!("http://{address}"),
        };
        let uri: Uri = whole.parse().map_err(|_| wrong())?;
        if uri.port().is_none() || uri.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        Ok(Self {
            uri,
            max_message: MAX_MESSAGE,
            tls: None,
        })
    }

    /// The greatest message that is read. Default 16 MiB and 64 KiB.
    #[must_use]
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Over TLS.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Only `https` is spoken to over TLS.
    fn uri(&self) -> Result<Uri, ConnectError> {
        let mut parts = self.uri.clone().into_parts();
        if self.tls.is_some() {
            parts.scheme = Some(http::uri::Scheme::HTTPS);
        }
        Uri::from_parts(parts).map_err(|error| ConnectError::Handshake(error.to_string()))
    }

    async fn client(
        &self,
        options: &ConnectOptions,
    ) -> Result<AgentServiceV2Client<Channel>, ConnectError> {
        let lost = |error: tonic::transport::Error| io::Error::other(error);
        let mut endpoint = Channel::builder(self.uri()?)
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        if let Some(tls) = &self.tls {
            let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            if let Some(name) = &tls.name {
                config = config.domain_name(name);
            }
            endpoint = endpoint.tls_config(config).map_err(lost)?;
        }
        let channel = endpoint.connect().await.map_err(lost)?;
        Ok(AgentServiceV2Client::new(channel)
            .max_decoding_message_size(self.max_message)
            .max_encoding_message_size(usize::MAX))
    }
}

/// Connects to an agent that is served over gRPC.
///
/// Runs a task until the connection ends.
///
/// # Errors
///
/// [`ConnectError`]; an agent that says nothing is given up after [`ConnectOptions::connect_timeout`].
///
/// # Cancel safety
///
/// The call is given up.
pub async fn connect(
    endpoint: &GrpcEndpoint,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    within(options, open_stream(endpoint, options)).await
}

/// Orders something of an agent, over a stream of its own, and returns how it is then.
///
/// # Errors
///
/// [`ConnectError`]; [`ConnectError::Refused`] by one that takes no orders, which are all but ours.
///
/// # Cancel safety
///
/// The order may have been heard.
pub async fn order(
    endpoint: &GrpcEndpoint,
    order: AgentCommand,
    options: &ConnectOptions,
) -> Result<AgentHealth, ConnectError> {
    let ordering = async {
        let mut client = endpoint.client(options).await?;
        let message = Some(messages::order(order));
        let said = tokio_stream::once(AgentControl { message });
        let answers = client.control_stream(said).await.map_err(refused)?;
        match answers.into_inner().message().await.map_err(refused)? {
            Some(proto::ProxyControl {
                message: Some(proxy_control::Message::Health(status)),
            }) => messages::read_health(status).map_err(|e| ConnectError::Handshake(e.to_string())),
            _ => Err(ConnectError::Refused(
                "the agent accepts no commands".to_owned(),
            )),
        }
    };
    within(options, ordering).await
}

async fn within<T>(
    options: &ConnectOptions,
    connecting: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let limit = options.connect_timeout;
    tokio::time::timeout(limit, connecting)
        .await
        .unwrap_or(Err(ConnectError::Timeout(limit)))
}

fn refused(status: Status) -> ConnectError {
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::Unknown => {
            io::Error::other(status).into()
        }
        _ => ConnectError::Refused(status.message().to_owned()),
    }
}

async fn open_stream(
    endpoint: &GrpcEndpoint,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    let mut client = endpoint.client(options).await?;
    // Bounded by `queued`: what would take it beyond MAX_QUEUED_BYTES is refused by `GrpcTransport::say`. Beside that there are
    // the handshake and one end.
    let (sender, queue) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let hello = proto::HandshakeRequest {
        supported_versions: vec![VERSION],
        proxy_id: options.host_id.clone(),
        proxy_version: options.host_version.clone(),
        config_json: options
            .config
            .as_ref()
            .map_or_else(String::new, messages::json_text),
        extensions: if options.extensions { EXTENSIONS } else { 0 },
    };
    // Before the call, and with it.
    let _ = sender.send(QueuedMessage {
        message: Some(said(Message::Handshake(hello), 0)),
        bytes: 0,
    });
    let outbound = OutboundStream {
        queue,
        queued: queued.clone(),
    };
    let mut inbound = client
        .process_stream(outbound)
        .await
        .map_err(refused)?
        .into_inner();
    let welcome = match inbound.message().await.map_err(refused)? {
        Some(AgentToProxy {
            message: Some(agent_to_proxy::Message::Handshake(welcome)),
        }) => welcome,
        Some(_) => {
            return Err(ConnectError::Handshake(
                "the first message is none".to_owned(),
            ));
        }
        None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    };
    if !welcome.success {
        return Err(ConnectError::Refused(welcome.error.unwrap_or_default()));
    }
    let capabilities = messages::capabilities_of(welcome.capabilities.unwrap_or_default());
    let numbered = options.extensions && welcome.extensions >= EXTENSIONS;
    let (accepted, accepts) = mpsc::channel(MAX_UNACKNOWLEDGED);
    let closing = Arc::new(Notify::new());
    let names_guardrails =
        capabilities.features.guardrails || capabilities.events.contains(EventKind::Guardrail);
    let outlet = GrpcTransport {
        sender,
        queued,
        numbered,
        names_guardrails,
        accepted,
        closing: closing.clone(),
    };
    let settings = LinkSettings {
        capabilities,
        numbered,
        window: WINDOW,
        overload: options.overload,
        late: options.late,
        notices: options.notices.clone(),
    };
    let (connection, link) = open(outlet, settings);
    let driver = GrpcDriver {
        link,
        inbound,
        numbered,
        accepts,
        closing,
    };
    // It ends with the last clone of the connection, or with the stream.
    tokio::spawn(driver.run());
    configure(&connection, options).await?;
    Ok(connection)
}

/// Gives the agent its configuration, if there is one and it takes one.
async fn configure(connection: &Connection, options: &ConnectOptions) -> Result<(), ConnectError> {
    let capabilities = connection.capabilities();
    let takes =
        capabilities.features.config_push || capabilities.events.contains(EventKind::Configure);
    let Some(config) = options.config.clone().filter(|_| takes) else {
        return Ok(());
    };
    let event = Event::Configure(Configure {
        correlation_id: "hailwire-configure".into(),
        config,
        config_version: options.config_version.clone(),
    });
    match connection
        .request(event)
        .await
        .map(|answer| answer.decision)
    {
        Ok(Decision::Allow) => Ok(()),
        Ok(Decision::Block { body, status, .. }) => Err(ConnectError::Configuration(
            body.unwrap_or_else(|| status.to_string()),
        )),
        Ok(other) => Err(ConnectError::Configuration(format!("{other:?}"))),
        Err(error) => Err(ConnectError::Configuration(error.to_string())),
    }
}

fn said(message: Message, ticket: u64) -> ProxyToAgent {
    ProxyToAgent {
        message: Some(message),
        ticket,
    }
}

/// What is to be sent; nothing ends the stream.
struct QueuedMessage {
    message: Option<ProxyToAgent>,
    bytes: usize,
}

/// The body of the request.
struct OutboundStream {
    queue: mpsc::UnboundedReceiver<QueuedMessage>,
    queued: Arc<AtomicUsize>,
}

impl Stream for OutboundStream {
    type Item = ProxyToAgent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let said = std::task::ready!(self.queue.poll_recv(context));
        Poll::Ready(said.and_then(|said| {
            self.queued.fetch_sub(said.bytes, Ordering::Relaxed);
            said.message
        }))
    }
}

/// Turns requests into gRPC messages.
struct GrpcTransport {
    sender: mpsc::UnboundedSender<QueuedMessage>,
    /// Bytes that wait, about.
    queued: Arc<AtomicUsize>,
    numbered: bool,
    names_guardrails: bool,
    /// Configurations that have been sent and will not be answered.
    accepted: mpsc::Sender<Text>,
    closing: Arc<Notify>,
}

impl GrpcTransport {
    fn say(&self, message: ProxyToAgent, size: usize) -> Result<(), RequestError> {
        // What the smallest message takes here.
        const MESSAGE_OVERHEAD: usize = 512;
        let bytes = size + MESSAGE_OVERHEAD;
        if self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_QUEUED_BYTES {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
            return Err(RequestError::Full);
        }
        let message = Some(message);
        self.sender
            .send(QueuedMessage { message, bytes })
            .map_err(|_| RequestError::Closed)
    }
}

impl EventTransport for GrpcTransport {
    fn event(&self, ticket: RequestTicket, event: Event, _: bool) -> Result<(), RequestError> {
        let size = match &event {
            Event::RequestBody(chunk) | Event::ResponseBody(chunk) => chunk.data.len(),
            Event::WebSocketFrame(frame) => frame.data.len(),
            Event::Guardrail(event) => event.content.len(),
            _ => 0,
        };
        let unanswered = match &event {
            Event::Guardrail(_) if !self.names_guardrails => {
                let why = "the agent does not support guardrails";
                return Err(RequestError::Refused(why.to_owned()));
            }
            Event::Configure(event) if !self.numbered => {
                let slot = self
                    .accepted
                    .try_reserve()
                    .map_err(|_| RequestError::Full)?;
                Some((slot, event.correlation_id.clone()))
            }
            _ => None,
        };
        let ticket = if self.numbered { ticket.number() } else { 0 };
        self.say(said(messages::message(event, self.numbered), ticket), size)?;
        if let Some((slot, id)) = unanswered {
            slot.send(id);
        }
        Ok(())
    }

    fn cancel(&self, cancel: Cancel) {
        let message = Message::Cancel(proto::CancelRequest {
            correlation_id: cancel.correlation_id.to_string(),
            reason: messages::reason_code(cancel.reason),
            timestamp_ms: cancel.timestamp_ms,
            blocking_agent_id: None,
            manual_reason: None,
        });
        // An agent that reads so little has not begun with it.
        let _ = self.say(said(message, 0), 0);
    }

    fn ping(&self, ping: Ping) -> bool {
        let message = Message::Ping(proto::Ping {
            sequence: ping.sequence,
            timestamp_ms: ping.timestamp_ms,
        });
        self.say(said(message, 0), 0).is_ok()
    }

    fn close(&self) {
        let end = QueuedMessage {
            message: None,
            bytes: 0,
        };
        let _ = self.sender.send(end);
        self.closing.notify_one();
    }
}

/// Reads what the agent says.
struct GrpcDriver {
    link: ConnectionLink,
    inbound: Streaming<AgentToProxy>,
    numbered: bool,
    accepts: mpsc::Receiver<Text>,
    closing: Arc<Notify>,
}

impl GrpcDriver {
    async fn run(mut self) {
        let closing = self.closing.clone();
        let link = self.link.clone();
        let agent = self.link.capabilities().agent_id.clone();
        tokio::select! {
            ended = self.listen() => match ended {
                Ok(()) => tracing::debug!(agent, "connection to an agent ended"),
                Err(status) => tracing::info!(agent, %status, "connection to an agent lost"),
            },
            () = closing.notified() => {}
            () = link.overdue() => {}
        }
        self.link.end();
    }

    async fn listen(&mut self) -> Result<(), Status> {
        loop {
            tokio::select! {
                biased;
                message = self.inbound.message() => match message? {
                    Some(AgentToProxy { message: Some(message) }) => self.heard(message),
                    Some(AgentToProxy { message: None }) => {}
                    None => return Ok(()),
                },
                Some(id) = self.accepts.recv() => {
                    self.link.answer_request(&id, Ok(Response::allow()));
                }
            }
        }
    }

    fn heard(&self, message: agent_to_proxy::Message) {
        match message {
            agent_to_proxy::Message::Response(answer) => {
                let ticket = answer.ticket;
                let (id, response) = messages::response(answer);
                let response = response.map_err(|e| RequestError::Malformed(e.to_string()));
                if self.numbered {
                    self.link
                        .answer(RequestTicket::from_number(ticket), response);
                } else {
                    self.link.answer_request(&id, response);
                }
            }
            agent_to_proxy::Message::Pong(pong) => self.link.pong(Ping {
                sequence: pong.sequence,
                timestamp_ms: pong.ping_timestamp_ms,
            }),
            message => match messages::notified(message) {
                Some(Ok(ReceivedNotice::Notice(notice))) => self.link.notice(notice),
                Some(Ok(ReceivedNotice::Nothing)) | None => {}
                Some(Err(error)) => {
                    tracing::warn!(agent = self.link.capabilities().agent_id, %error, "notice could not be decoded");
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{control::CancelReason, event::BodyChunk};

    fn transport(
        numbered: bool,
    ) -> (
        GrpcTransport,
        mpsc::UnboundedReceiver<QueuedMessage>,
        mpsc::Receiver<Text>,
    ) {
        let (sender, queue) = mpsc::unbounded_channel();
        let (accepted, accepts) = mpsc::channel(MAX_UNACKNOWLEDGED);
        let transport = GrpcTransport {
            sender,
            queued: Arc::default(),
            numbered,
            names_guardrails: false,
            accepted,
            closing: Arc::default(),
        };
        (transport, queue, accepts)
    }

    fn chunk(data: Bytes) -> Event {
        Event::RequestBody(BodyChunk {
            correlation_id: "c".into(),
            transferred: data.len() as u64,
            data,
            is_last: false,
            total_size: None,
            index: 0,
        })
    }

    #[tokio::test]
    async fn what_waits_to_be_sent_is_bounded_and_what_has_left_makes_room() {
        const CHUNK: usize = 4 << 20;
        let (transport, queue, _accepts) = transport(true);
        let data = Bytes::from(vec![0; CHUNK]);
        let ticket = RequestTicket::from_number(0);
        let mut sent = 0;
        while transport.event(ticket, chunk(data.clone()), false).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, MAX_QUEUED_BYTES / CHUNK - 1, "each has a head, too");
        // The rest is filled up by what is small, which is bounded as well.
        let cancel = || Cancel {
            correlation_id: "c".into(),
            reason: CancelReason::Timeout,
            timestamp_ms: 0,
        };
        for _ in 0..2 * MAX_QUEUED_BYTES / 512 {
            transport.cancel(cancel());
        }
        let full = transport.event(ticket, chunk(Bytes::new()), false);
        assert_eq!(full, Err(RequestError::Full));
        let waiting = queue.len();
        assert!(waiting <= MAX_QUEUED_BYTES / 512, "{waiting}");
        let mut leaves = OutboundStream {
            queue,
            queued: transport.queued.clone(),
        };
        let first = std::future::poll_fn(|context| Pin::new(&mut leaves).poll_next(context)).await;
        assert!(first.is_some());
        assert_eq!(transport.event(ticket, chunk(Bytes::new()), false), Ok(()));
    }

    #[tokio::test]
    async fn configurations_that_no_agent_answers_are_bounded() {
        let (transport, _queue, mut accepts) = transport(false);
        let configure = || {
            Event::Configure(Configure {
                correlation_id: "c".into(),
                config: serde_json::Value::Null,
                config_version: None,
            })
        };
        let ticket = RequestTicket::from_number(0);
        for _ in 0..MAX_UNACKNOWLEDGED {
            assert_eq!(transport.event(ticket, configure(), false), Ok(()));
        }
        let full = transport.event(ticket, configure(), false);
        assert_eq!(full, Err(RequestError::Full));
        assert!(accepts.recv().await.is_some());
        assert_eq!(transport.event(ticket, configure(), false), Ok(()));
    }
}
