//! Serving an agent over gRPC: all three calls of `AgentServiceV2`.
//!
//! `ProcessStream` is where requests are looked at: the headers of the response leave at once, so that a host which waits for them before it
//! says anything is not waited for in turn. One task reads, runs what answers at once, and writes the answers to what
//! one read brought together; it reads on when they have left, so that a host which does not read slows down nobody but itself.
//!
//! `ControlStream` carries orders ([`crate::control::AgentCommand`]): a drain is told to the agent and, as its health, to every host that is connected; a
//! shutdown is told to the agent. `ProcessEvent` is one event without a stream.
//!
//! What cannot be read of an event is answered with a block; what is no message at all ends the stream.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use thiserror::Error;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::Sleep,
};
use tonic::{
    Request, Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use super::{Agent, EventDispatcher, HostHandle, ReplySink, serve::capabilities};
use crate::{
    Text, VERSION,
    control::{AgentCommand, AgentHealth, HealthState, Notice, Ping},
    event::{Configure, Event},
    guarded_io::GuardedIo,
    response::{Decision, Response},
    wire::grpc::{
        self as messages, CONNECTION_WINDOW, EXTENSIONS, MAX_MESSAGE, ReceivedEvent, STREAM_WINDOW,
        now_ms,
        proto::{
            self, AgentControl, AgentToProxy, ProxyControl, ProxyToAgent, agent_control,
            agent_service_v2_server::{AgentServiceV2, AgentServiceV2Server},
            agent_to_proxy::Message,
            proxy_control,
        },
    },
};

/// How an agent is served over gRPC.
#[derive(Clone, Debug)]
pub struct GrpcServeOptions {
    /// The greatest message that is read. Default 16 MiB and 64 KiB.
    pub max_message: usize,
    /// Whether what only Hailwire reads is agreed to. Default true.
    pub extensions: bool,
    /// How long a host may take to greet. Default 10 s.
    pub handshake_timeout: Duration,
    /// How many TCP connections there may be; more are not accepted meanwhile. Default 1,024.
    pub max_connections: usize,
    /// How many calls a TCP connection may have under way. Default 256.
    pub max_calls: u32,
    /// The certificate that is shown. Default none: without TLS.
    pub tls: Option<ServerTls>,
}

impl Default for GrpcServeOptions {
    fn default() -> Self {
        Self {
            max_message: MAX_MESSAGE,
            extensions: true,
            handshake_timeout: Duration::from_secs(10),
            max_connections: 1024,
            max_calls: 256,
            tls: None,
        }
    }
}

/// How an agent shows who it is, and whom it lets in. Everything in PEM.
#[derive(Clone)]
pub struct ServerTls {
    /// Its certificate, and those up to a root.
    pub certificate: Vec<u8>,
    /// The key to it.
    pub key: Vec<u8>,
    /// Who signs the certificates of hosts; with it, a host has to show one.
    pub client_ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("client_ca", &self.client_ca.is_some())
            .finish_non_exhaustive()
    }
}

/// Why serving has ended.
#[derive(Debug, Error)]
#[error("the gRPC server of the agent has stopped")]
pub struct GrpcServeError(#[from] tonic::transport::Error);

/// Serves an agent at a TCP port until `until` comes true; what is under way then is finished.
///
/// # Errors
///
/// [`GrpcServeError`], such as for a certificate that cannot be read.
///
/// # Cancel safety
///
/// Every connection is closed, and every handler dropped.
pub async fn serve<A: Agent>(
    agent: Arc<A>,
    listener: TcpListener,
    options: GrpcServeOptions,
    until: impl Future<Output = ()>,
) -> Result<(), GrpcServeError> {
    let mut server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(options.max_calls);
    if let Some(tls) = &options.tls {
        let mut config =
            ServerTlsConfig::new().identity(Identity::from_pem(&tls.certificate, &tls.key));
        if let Some(ca) = &tls.client_ca {
            config = config.client_ca_root(Certificate::from_pem(ca));
        }
        server = server.tls_config(config)?;
    }
    let incoming = LimitedIncoming {
        listener,
        places: Arc::new(Semaphore::new(options.max_connections)),
        place: None,
    };
    let max_message = options.max_message;
    let service = AgentServiceV2Server::new(AgentGrpcService {
        agent,
        hosts: Arc::default(),
        options,
    });
    let service = service
        .max_decoding_message_size(max_message)
        .max_encoding_message_size(usize::MAX);
    server
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, until)
        .await?;
    Ok(())
}

struct AgentGrpcService<A> {
    agent: Arc<A>,
    hosts: Arc<HostList>,
    options: GrpcServeOptions,
}

/// Those that are connected, for what concerns all of them.
#[derive(Default)]
struct HostList(Mutex<Vec<HostHandle>>);

impl HostList {
    fn add(&self, host: HostHandle) {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|host| !host.is_closed());
        hosts.push(host);
    }

    fn tell(&self, notice: &Notice) {
        let hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for host in hosts.iter() {
            host.notify(notice.clone());
        }
    }
}

impl<A: Agent> AgentGrpcService<A> {
    fn welcome(&self, hello: &proto::HandshakeRequest) -> proto::HandshakeResponse {
        let spoken =
            hello.supported_versions.is_empty() || hello.supported_versions.contains(&VERSION);
        let ours = spoken && self.options.extensions;
        proto::HandshakeResponse {
            protocol_version: VERSION,
            capabilities: Some(messages::capabilities(&capabilities(&*self.agent))),
            success: spoken,
            error: (!spoken).then(|| format!("version {VERSION} is spoken")),
            extensions: if ours {
                hello.extensions.min(EXTENSIONS)
            } else {
                0
            },
        }
    }
}

#[tonic::async_trait]
impl<A: Agent> AgentServiceV2 for AgentGrpcService<A> {
    type ProcessStreamStream = ProcessSession<A>;
    type ControlStreamStream = ControlSession<A>;

    async fn process_stream(
        &self,
        request: Request<Streaming<ProxyToAgent>>,
    ) -> Result<tonic::Response<Self::ProcessStreamStream>, Status> {
        // Bounded by the events that were read and are not answered, which `EventDispatcher::has_room` bounds: an event leaves at
        // most one answer here, and no event is read before all answers that are here have left.
        let (sender, answers) = mpsc::unbounded_channel();
        Ok(tonic::Response::new(ProcessSession {
            inbound: Some(request.into_inner()),
            service: Self {
                agent: self.agent.clone(),
                hosts: self.hosts.clone(),
                options: self.options.clone(),
            },
            greeting: Some(Box::pin(tokio::time::sleep(self.options.handshake_timeout))),
            dispatch: EventDispatcher::new(self.agent.clone()),
            sender: Some(sender),
            answers,
            notices: None,
        }))
    }

    async fn control_stream(
        &self,
        request: Request<Streaming<AgentControl>>,
    ) -> Result<tonic::Response<Self::ControlStreamStream>, Status> {
        Ok(tonic::Response::new(ControlSession {
            inbound: request.into_inner(),
            agent: self.agent.clone(),
            hosts: self.hosts.clone(),
            configuring: None,
        }))
    }

    async fn process_event(
        &self,
        request: Request<ProxyToAgent>,
    ) -> Result<tonic::Response<AgentToProxy>, Status> {
        let message = request.into_inner();
        let ticket = message.ticket;
        let message = match messages::to_agent(message) {
            ReceivedEvent::Handshake(hello) => Message::Handshake(self.welcome(&hello)),
            ReceivedEvent::Ping(ping) => pong(ping),
            ReceivedEvent::Event(event) => {
                let id = event.id().to_owned();
                let (sender, answer) = oneshot::channel();
                // Its handler ends with this call.
                let dispatch = EventDispatcher::new(self.agent.clone());
                dispatch.event(*event, OneshotReply(sender));
                let response = answer.await.unwrap_or_else(|_| Response::block(500));
                Message::Response(messages::answer(id, ticket, response))
            }
            ReceivedEvent::Undecodable(id, kind, error) => {
                tracing::warn!(?kind, %error, "event could not be decoded; its request is blocked");
                let response = Response::block(500);
                Message::Response(messages::answer(id.to_string(), ticket, response))
            }
            ReceivedEvent::Cancel(_) | ReceivedEvent::Unknown => {
                return Err(Status::invalid_argument("neither an event nor a ping"));
            }
        };
        Ok(tonic::Response::new(said(message)))
    }
}

fn said(message: Message) -> AgentToProxy {
    AgentToProxy {
        message: Some(message),
    }
}

fn pong(ping: Ping) -> Message {
    Message::Pong(proto::Pong {
        sequence: ping.sequence,
        ping_timestamp_ms: ping.timestamp_ms,
        timestamp_ms: now_ms(),
    })
}

/// The answer to one event, where it is all that is waited for.
struct OneshotReply(oneshot::Sender<Response>);

impl ReplySink for OneshotReply {
    fn answer(self, response: Response) {
        let _ = self.0.send(response);
    }
}

/// Where the answer to one event of a stream goes.
struct GrpcReply {
    id: Text,
    ticket: u64,
    to: mpsc::UnboundedSender<AgentToProxy>,
}

impl ReplySink for GrpcReply {
    fn answer(self, response: Response) {
        let answer = messages::answer(self.id.to_string(), self.ticket, response);
        let _ = self.to.send(said(Message::Response(answer)));
    }
}

/// One `ProcessStream`: what it yields is what the agent says.
struct ProcessSession<A: Agent> {
    /// Until the host has said all.
    inbound: Option<Streaming<ProxyToAgent>>,
    service: AgentGrpcService<A>,
    /// Until the host has greeted.
    greeting: Option<Pin<Box<Sleep>>>,
    dispatch: EventDispatcher<A, GrpcReply>,
    /// Dropped when the host has said all: the answers end with the last of those that are still to come.
    sender: Option<mpsc::UnboundedSender<AgentToProxy>>,
    answers: mpsc::UnboundedReceiver<AgentToProxy>,
    notices: Option<mpsc::Receiver<Notice>>,
}

impl<A: Agent> Stream for ProcessSession<A> {
    type Item = Result<AgentToProxy, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Messages that are read without anything to say in between.
        const TURN: usize = 256;
        let this = &mut *self;
        for _ in 0..TURN {
            if let Poll::Ready(answer) = this.answers.poll_recv(context) {
                return Poll::Ready(answer.map(Ok));
            }
            if let Some(notices) = &mut this.notices
                && let Poll::Ready(Some(notice)) = notices.poll_recv(context)
            {
                let notice = messages::notice(notice, this.service.agent.name());
                return Poll::Ready(Some(Ok(said(notice))));
            }
            if let Some(greeting) = &mut this.greeting
                && greeting.as_mut().poll(context).is_ready()
            {
                let late = Status::deadline_exceeded("no handshake came");
                return Poll::Ready(Some(Err(late)));
            }
            let Some(inbound) = this.inbound.as_mut().filter(|_| this.dispatch.has_room()) else {
                // The next answer comes through the queue that was looked at above.
                return Poll::Pending;
            };
            match std::task::ready!(Pin::new(inbound).poll_next(context)) {
                Some(Ok(message)) => this.heard(message)?,
                Some(Err(status)) => {
                    tracing::debug!(%status, "stream from a host ended");
                    return Poll::Ready(None);
                }
                None => this.finish(),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<A: Agent> ProcessSession<A> {
    fn heard(&mut self, message: ProxyToAgent) -> Result<(), Status> {
        let Some(sender) = &self.sender else {
            return Ok(());
        };
        let ticket = message.ticket;
        let heard = messages::to_agent(message);
        if self.greeting.is_some() != matches!(heard, ReceivedEvent::Handshake(_)) {
            return Err(Status::failed_precondition(
                "the handshake is the first message, and no other",
            ));
        }
        match heard {
            ReceivedEvent::Handshake(hello) => {
                self.greeting = None;
                let welcome = self.service.welcome(&hello);
                let welcomed = welcome.success;
                let _ = sender.send(said(Message::Handshake(welcome)));
                if !welcomed {
                    self.finish();
                    return Ok(());
                }
                let (host, notices) = HostHandle::new(hello.proxy_id, hello.proxy_version);
                self.notices = Some(notices);
                self.service.hosts.add(host.clone());
                self.service.agent.connected(host);
            }
            ReceivedEvent::Event(event) => {
                let reply = GrpcReply {
                    id: Text::from(event.id()),
                    ticket,
                    to: sender.clone(),
                };
                self.dispatch.event(*event, reply);
            }
            ReceivedEvent::Undecodable(id, kind, error) => {
                tracing::warn!(?kind, %error, "event could not be decoded; its request is blocked");
                let answer = messages::answer(id.to_string(), ticket, Response::block(500));
                let _ = sender.send(said(Message::Response(answer)));
            }
            ReceivedEvent::Cancel(cancel) => {
                self.dispatch.cancel(&cancel.correlation_id, cancel.reason);
            }
            ReceivedEvent::Ping(ping) => {
                let _ = sender.send(said(pong(ping)));
            }
            ReceivedEvent::Unknown => tracing::debug!("unknown message type ignored"),
        }
        Ok(())
    }

    /// Nothing more is read; what is under way is answered.
    fn finish(&mut self) {
        self.inbound = None;
        self.sender = None;
    }
}

/// One `ControlStream`.
struct ControlSession<A: Agent> {
    inbound: Streaming<AgentControl>,
    agent: Arc<A>,
    hosts: Arc<HostList>,
    configuring: Option<ConfigFuture>,
}

type ConfigFuture = Pin<Box<dyn Future<Output = proto::ConfigUpdateResponse> + Send>>;

impl<A: Agent> Stream for ControlSession<A> {
    type Item = Result<ProxyControl, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(configuring) = &mut this.configuring {
                let done = std::task::ready!(configuring.as_mut().poll(context));
                this.configuring = None;
                return Poll::Ready(Some(Ok(controlled(
                    proxy_control::Message::ConfigResponse(done),
                ))));
            }
            let message = match std::task::ready!(Pin::new(&mut this.inbound).poll_next(context)) {
                Some(Ok(message)) => message.message,
                Some(Err(_)) | None => return Poll::Ready(None),
            };
            if let Some(answer) = this.heard(message) {
                return Poll::Ready(Some(Ok(controlled(answer))));
            }
        }
    }
}

fn controlled(message: proxy_control::Message) -> ProxyControl {
    ProxyControl {
        message: Some(message),
    }
}

impl<A: Agent> ControlSession<A> {
    fn heard(&mut self, message: Option<agent_control::Message>) -> Option<proxy_control::Message> {
        let order = match message? {
            agent_control::Message::Drain(request) => messages::drain(&request),
            agent_control::Message::Shutdown(request) => messages::shutdown(&request),
            agent_control::Message::Configure(request) => {
                self.configuring = Some(configure(self.agent.clone(), request));
                return None;
            }
            agent_control::Message::ConfigUpdate(update) => {
                // On the wire an agent says this. Whoever says it to an agent waits for an answer all the same.
                return Some(proxy_control::Message::ConfigResponse(
                    proto::ConfigUpdateResponse {
                        request_id: update.request_id,
                        accepted: false,
                        error: Some("this is the agent".to_owned()),
                        timestamp_ms: now_ms(),
                    },
                ));
            }
            agent_control::Message::Health(_)
            | agent_control::Message::Metrics(_)
            | agent_control::Message::Log(_)
            | agent_control::Message::ConfigResponse(_) => return None,
        };
        let (AgentCommand::Drain { within, .. } | AgentCommand::Shutdown { within, .. }) = order;
        let health = if self.agent.ordered(order) {
            let health = AgentHealth {
                state: HealthState::Draining,
                drain_eta_ms: u64::try_from(within.as_millis()).ok(),
                ..AgentHealth::default()
            };
            self.hosts.tell(&Notice::Health(health.clone()));
            health
        } else {
            tracing::warn!(?order, "command of a host ignored");
            AgentHealth {
                message: Some("this agent accepts no commands".to_owned()),
                ..AgentHealth::default()
            }
        };
        let status = messages::health_status(health, self.agent.name());
        Some(proxy_control::Message::Health(status))
    }
}

fn configure<A: Agent>(agent: Arc<A>, request: proto::ConfigureEvent) -> ConfigFuture {
    Box::pin(async move {
        let error = match messages::json(&request.config_json) {
            Err(error) => Some(error.to_string()),
            Ok(config) => {
                let event = Configure {
                    correlation_id: request.correlation_id.clone().into(),
                    config,
                    config_version: request.config_version,
                };
                let (sender, answer) = oneshot::channel();
                let dispatch = EventDispatcher::new(agent);
                dispatch.event(Event::Configure(event), OneshotReply(sender));
                match answer.await.map(|answer| answer.decision) {
                    Ok(Decision::Allow) => None,
                    Ok(Decision::Block { body, .. }) => Some(body.unwrap_or_default()),
                    _ => Some(String::new()),
                }
            }
        };
        proto::ConfigUpdateResponse {
            request_id: request.correlation_id,
            accepted: error.is_none(),
            error,
            timestamp_ms: now_ms(),
        }
    })
}

/// Accepts TCP connections, at most `max_connections` at once.
struct LimitedIncoming {
    listener: TcpListener,
    places: Arc<Semaphore>,
    place: Option<Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>>,
}

impl Stream for LimitedIncoming {
    /// Each holds a permit for as long as it is open.
    type Item = io::Result<GuardedIo<TcpStream, OwnedSemaphorePermit>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let places = self.places.clone();
        let waiting = self
            .place
            .get_or_insert_with(|| Box::pin(async move { places.acquire_owned().await.ok() }));
        let Some(place) = std::task::ready!(waiting.as_mut().poll(context)) else {
            return Poll::Ready(None);
        };
        // Given back where nobody is there yet.
        self.place = None;
        match self.listener.poll_accept(context) {
            Poll::Ready(Ok((stream, _))) => {
                let _ = stream.set_nodelay(true);
                Poll::Ready(Some(Ok(GuardedIo::new(stream, place))))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{agent::dispatch::MAX_WAITING, event::WebSocketFrame, stream::MAX_WINDOW_CHUNKS};

    /// Answers nothing before the gate is open, and runs two at a time.
    struct Gated {
        gate: Semaphore,
        answered: AtomicUsize,
    }

    impl Agent for Gated {
        fn name(&self) -> &str {
            "gated"
        }

        fn limits(&self) -> crate::capabilities::AgentLimits {
            crate::capabilities::AgentLimits {
                max_concurrency: 2,
                ..crate::capabilities::AgentLimits::default()
            }
        }

        async fn websocket_frame(&self, _: WebSocketFrame) -> Response {
            let open = self.gate.acquire().await;
            drop(open);
            self.answered.fetch_add(1, Ordering::Relaxed);
            Response::allow()
        }
    }

    #[tokio::test]
    async fn answers_that_have_not_left_are_bounded_by_the_events_that_were_read() {
        let agent = Arc::new(Gated {
            gate: Semaphore::new(0),
            answered: AtomicUsize::new(0),
        });
        let (sender, mut answers) = mpsc::unbounded_channel();
        let dispatch = EventDispatcher::new(agent.clone());
        let mut read = 0;
        while dispatch.has_room() {
            let id = Text::from(read.to_string());
            let frame = WebSocketFrame {
                correlation_id: id.clone(),
                ..WebSocketFrame::default()
            };
            let reply = GrpcReply {
                id,
                ticket: 0,
                to: sender.clone(),
            };
            dispatch.event(Event::WebSocketFrame(frame), reply);
            read += 1;
        }
        let bound = MAX_WAITING + 2 * MAX_WINDOW_CHUNKS + 2;
        assert_eq!(read, bound, "two run, the others wait");
        assert!(answers.try_recv().is_err());
        agent.gate.add_permits(1);
        // Nobody takes one before all are there.
        while agent.answered.load(Ordering::Relaxed) < bound {
            tokio::task::yield_now().await;
        }
        for _ in 0..bound {
            assert!(answers.recv().await.is_some());
        }
        assert!(answers.try_recv().is_err());
    }
}
