//! gRPC at both ends.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire_callout::{
    Agent, Decision, Event, Response,
    agent::{HostHandle, grpc as serve},
    capabilities::AgentLimits,
    control::{
        AgentCommand, AgentHealth, CancelReason, DrainReason, FlowControl, HealthState, LogLine,
        MetricsReport, Notice, ShutdownReason,
    },
    event::{
        BodyChunk, Configure, Guardrail, Metadata, RequestComplete, RequestHeaders,
        ResponseHeaders, WebSocketFrame,
    },
    host::{
        ConnectError, ConnectOptions, Connection, ConnectionState, RequestError,
        grpc::{self, GrpcEndpoint},
    },
    response::{Audit, BodyMutation, HeaderOp, WebSocketDecision},
};
use proto::{
    AgentToProxy, ProxyToAgent, agent_response,
    agent_service_v2_client::AgentServiceV2Client,
    agent_service_v2_server::{AgentServiceV2, AgentServiceV2Server},
    agent_to_proxy, proxy_to_agent,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdout, Command},
    sync::{Barrier, mpsc},
    task::JoinHandle,
};
use tonic::{Request, Status, Streaming, transport::Channel};

#[expect(clippy::all, unreachable_pub, reason = "generated")]
mod proto {
    tonic::include_proto!("zentinel.agent.v2");
}

const LONG: Duration = Duration::from_secs(30);

/// Does what the uri says, and for bodies what the id begins with.
struct Told {
    together: Barrier,
    seen: mpsc::UnboundedSender<Seen>,
    pieces: AtomicUsize,
}

#[derive(Debug)]
enum Seen {
    Connected(HostHandle),
    Cancelled(String, CancelReason),
    Dropped,
    Ordered(AgentCommand),
    Head,
}

impl Told {
    fn new(together: usize) -> (Self, mpsc::UnboundedReceiver<Seen>) {
        let (seen, sees) = mpsc::unbounded_channel();
        let told = Self {
            together: Barrier::new(together),
            seen,
            pieces: AtomicUsize::new(0),
        };
        (told, sees)
    }
}

impl Agent for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn limits(&self) -> AgentLimits {
        AgentLimits {
            max_body_size: 1 << 40,
            ..AgentLimits::default()
        }
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        struct Waits<'a>(&'a Told);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                let _ = self.0.seen.send(Seen::Dropped);
            }
        }
        let _ = self.seen.send(Seen::Head);
        match event.uri() {
            "/block" => Response::block(403),
            "/together" => {
                self.together.wait().await;
                Response::allow()
            }
            "/wait" => {
                let _waits = Waits(self);
                std::future::pending().await
            }
            "/everything" => everything(&event),
            _ => Response::allow(),
        }
    }

    async fn request_body(&self, event: BodyChunk) -> Response {
        self.pieces.fetch_add(1, Ordering::SeqCst);
        if event.correlation_id.starts_with("together") {
            self.together.wait().await;
        }
        Response {
            request_body: Some(BodyMutation {
                index: event.index,
                data: Some(Bytes::from(event.data.to_ascii_uppercase())),
            }),
            needs_more: !event.is_last,
            ..Response::allow()
        }
    }

    async fn response_headers(&self, event: ResponseHeaders) -> Response {
        Response::block(event.status())
    }

    async fn response_body(&self, event: BodyChunk) -> Response {
        Response {
            response_body: Some(BodyMutation {
                index: event.index,
                data: Some(Bytes::new()),
            }),
            ..Response::allow()
        }
    }

    async fn request_complete(&self, _: RequestComplete) -> Response {
        Response::allow()
    }

    async fn websocket_frame(&self, event: WebSocketFrame) -> Response {
        Response {
            websocket: Some(WebSocketDecision::Close {
                code: 1008,
                reason: event.client_ip,
            }),
            ..Response::allow()
        }
    }

    async fn guardrail(&self, event: Guardrail) -> Response {
        Response {
            routing_metadata: event.metadata,
            ..Response::allow()
        }
    }

    async fn configure(&self, event: Configure) -> Response {
        if event.config.get("refuse").is_some() {
            Response::block(500)
        } else {
            Response::allow()
        }
    }

    fn connected(&self, host: HostHandle) {
        let _ = self.seen.send(Seen::Connected(host));
    }

    fn ordered(&self, order: AgentCommand) -> bool {
        let _ = self.seen.send(Seen::Ordered(order));
        true
    }

    fn cancelled(&self, id: &str, reason: CancelReason) {
        let _ = self.seen.send(Seen::Cancelled(id.to_owned(), reason));
    }
}

/// An answer that says all that one can, from what the head said.
fn everything(head: &RequestHeaders) -> Response {
    let metadata = head.metadata();
    let owned = |text: Option<&str>| text.unwrap_or("none").to_owned();
    Response {
        decision: Decision::Redirect {
            url: "/elsewhere".to_owned(),
            status: 307,
        },
        request_headers: head
            .headers()
            .iter()
            .map(|(name, value)| HeaderOp::Add {
                name: name.to_owned(),
                value: value.to_owned(),
            })
            .collect(),
        response_headers: vec![HeaderOp::Remove {
            name: "server".to_owned(),
        }],
        routing_metadata: BTreeMap::from([
            ("cipher".to_owned(), owned(metadata.tls_cipher)),
            ("time".to_owned(), metadata.timestamp.to_owned()),
            ("trace".to_owned(), owned(metadata.traceparent)),
        ]),
        audit: Audit {
            tags: vec!["t".to_owned()],
            custom: BTreeMap::from([("n".to_owned(), serde_json::json!({"deep": [1]}))]),
            ..Audit::default()
        },
        ..Response::default()
    }
}

/// An agent that is served until this is dropped.
struct Served {
    agent: Arc<Told>,
    seen: mpsc::UnboundedReceiver<Seen>,
    address: String,
    serving: JoinHandle<()>,
}

impl Served {
    async fn new() -> Self {
        Self::with(16, serve::GrpcServeOptions::default()).await
    }

    async fn with(together: usize, options: serve::GrpcServeOptions) -> Self {
        let (told, seen) = Told::new(together);
        let agent = Arc::new(told);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = agent.clone();
        let serving = tokio::spawn(async move {
            serve::serve(served, listener, options, std::future::pending())
                .await
                .unwrap();
        });
        Self {
            agent,
            seen,
            address,
            serving,
        }
    }

    fn endpoint(&self) -> GrpcEndpoint {
        GrpcEndpoint::new(&self.address).unwrap()
    }

    async fn connect(&self) -> Connection {
        grpc::connect(&self.endpoint(), &ConnectOptions::default())
            .await
            .unwrap()
    }

    /// One that speaks without our help.
    async fn client(&self) -> AgentServiceV2Client<Channel> {
        let address = format!("http://{}", self.address);
        let channel = Channel::from_shared(address).unwrap().connect().await;
        AgentServiceV2Client::new(channel.unwrap())
    }

    async fn sees(&mut self) -> Seen {
        let seen = tokio::time::timeout(LONG, self.seen.recv()).await;
        seen.expect("something is seen").unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn head(id: &str, uri: &str) -> Event {
    let metadata = Metadata {
        correlation_id: id,
        request_id: id,
        client_ip: "192.0.2.7",
        client_port: 40000,
        protocol: "HTTP/2",
        tls_cipher: Some("TLS_AES_256_GCM_SHA384"),
        timestamp: "2026-01-01T00:00:00.123456789+01:00",
        traceparent: Some("00-1-2-03"),
        ..Metadata::default()
    };
    let headers = [("host", "a"), ("x-two", "1"), ("x-two", "2")];
    Event::RequestHeaders(RequestHeaders::new(&metadata, "GET", uri, headers))
}

fn chunk(id: &str, index: u32, data: impl Into<Bytes>, is_last: bool) -> BodyChunk {
    let data = data.into();
    BodyChunk {
        correlation_id: id.into(),
        transferred: data.len() as u64,
        data,
        is_last,
        total_size: None,
        index,
    }
}

fn status(response: &Response) -> Option<u16> {
    match response.decision {
        Decision::Block { status, .. } => Some(status),
        _ => None,
    }
}

async fn ask(connection: &Connection, event: Event) -> Result<Response, RequestError> {
    tokio::time::timeout(LONG, connection.request(event))
        .await
        .expect("an answer")
}

async fn until(connection: &Connection, holds: impl Fn(ConnectionState) -> bool) {
    let waiting = async {
        while !holds(connection.state()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("a state");
}

#[tokio::test]
async fn every_event_is_answered_and_nothing_is_lost_between_two_of_ours() {
    let served = Served::new().await;
    let connection = served.connect().await;
    let answer = ask(&connection, head("c1", "/everything")).await.unwrap();
    let Event::RequestHeaders(sent) = head("c1", "/everything") else {
        unreachable!()
    };
    assert_eq!(answer, everything(&sent));
    assert_eq!(
        answer.routing_metadata["time"],
        "2026-01-01T00:00:00.123456789+01:00"
    );
    let piece = Event::RequestBody(chunk("c1", 3, "abc", false));
    let answer = ask(&connection, piece).await.unwrap();
    let mutation = answer.request_body.unwrap();
    assert_eq!(
        (mutation.index, mutation.data.unwrap()),
        (3, Bytes::from("ABC"))
    );
    assert!(answer.needs_more);
    let dropped = ask(
        &connection,
        Event::ResponseBody(chunk("c1", 0, "abc", true)),
    )
    .await;
    assert_eq!(
        dropped.unwrap().response_body.unwrap().data,
        Some(Bytes::new())
    );
    let heads = ResponseHeaders::new("c1", 418, [("a", "b")]);
    let answer = ask(&connection, Event::ResponseHeaders(heads))
        .await
        .unwrap();
    assert_eq!(status(&answer), Some(418));
    let frame = WebSocketFrame {
        correlation_id: "c1".into(),
        client_ip: "192.0.2.9".to_owned(),
        ..WebSocketFrame::default()
    };
    let answer = ask(&connection, Event::WebSocketFrame(frame))
        .await
        .unwrap();
    let closes = WebSocketDecision::Close {
        code: 1008,
        reason: "192.0.2.9".to_owned(),
    };
    assert_eq!(answer.websocket, Some(closes));
    let guardrail = Guardrail {
        correlation_id: "c1".into(),
        metadata: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        ..Guardrail::default()
    };
    let answer = ask(&connection, Event::Guardrail(guardrail)).await.unwrap();
    assert_eq!(answer.routing_metadata["k"], "v");
    let complete = RequestComplete {
        correlation_id: "c1".into(),
        ..RequestComplete::default()
    };
    let answer = ask(&connection, Event::RequestComplete(complete)).await;
    assert_eq!(answer, Ok(Response::allow()));
    tokio::time::timeout(LONG, connection.ping())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_configuration_is_acknowledged_or_there_is_no_connection() {
    let served = Served::new().await;
    let with = |config| ConnectOptions {
        config: Some(config),
        ..ConnectOptions::default()
    };
    let good = with(serde_json::json!({"mode": "strict"}));
    grpc::connect(&served.endpoint(), &good).await.unwrap();
    let bad = with(serde_json::json!({"refuse": true}));
    let refused = grpc::connect(&served.endpoint(), &bad).await;
    assert!(
        matches!(refused, Err(ConnectError::Configuration(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn handlers_of_one_connection_run_side_by_side() {
    let served = Served::new().await;
    let connection = served.connect().await;
    // Each waits for all sixteen.
    let asks = (0..16).map(|n| {
        let connection = connection.clone();
        async move { ask(&connection, head(&format!("c{n}"), "/together")).await }
    });
    for answer in futures_util::future::join_all(asks).await {
        assert_eq!(answer, Ok(Response::allow()));
    }
}

#[tokio::test]
async fn pieces_of_a_body_are_under_way_together_and_changed_in_their_order() {
    let served = Served::with(2, serve::GrpcServeOptions::default()).await;
    let connection = served.connect().await;
    // The first is not answered until the test comes too, and the others have left by then.
    let asks = (0..8).map(|index| {
        let connection = connection.clone();
        let piece = chunk("c1", index, format!("piece {index};"), index == 7);
        async move { ask(&connection, Event::RequestBody(piece)).await }
    });
    let mut whole = Vec::new();
    for answer in futures_util::future::join_all(asks).await {
        let mutation = answer.unwrap().request_body.unwrap();
        whole.extend_from_slice(&mutation.data.unwrap());
    }
    let expected: String = (0..8).map(|index| format!("PIECE {index};")).collect();
    assert_eq!(whole, expected.as_bytes());
    assert_eq!(served.agent.pieces.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn an_ask_that_is_given_up_ends_its_handler() {
    let mut served = Served::new().await;
    let connection = served.connect().await;
    assert!(matches!(served.sees().await, Seen::Connected(_)));
    {
        let asking = connection.request(head("c1", "/wait"));
        tokio::pin!(asking);
        tokio::select! {
            _ = &mut asking => panic!("it waits"),
            seen = served.sees() => assert!(matches!(seen, Seen::Head)),
        }
    }
    let seen = [served.sees().await, served.sees().await];
    assert!(
        seen.iter().any(|seen| matches!(seen, Seen::Dropped)),
        "{seen:?}"
    );
    let cancelled =
        |seen: &Seen| matches!(seen, Seen::Cancelled(id, CancelReason::Timeout) if id == "c1");
    assert!(seen.iter().any(cancelled), "{seen:?}");
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test]
async fn what_an_agent_tells_moves_the_connection_and_reaches_whoever_wants_to_know() {
    let mut served = Served::new().await;
    let (notices, mut told) = mpsc::channel(16);
    let options = ConnectOptions {
        notices: Some(notices),
        ..ConnectOptions::default()
    };
    let connection = grpc::connect(&served.endpoint(), &options).await.unwrap();
    let Seen::Connected(host) = served.sees().await else {
        panic!("it is connected first");
    };
    assert_eq!(host.id(), "hailwire");
    let given = [
        Notice::Flow(FlowControl::Pause(None)),
        Notice::Metrics(MetricsReport {
            agent_id: "told".to_owned(),
            ..MetricsReport::default()
        }),
        Notice::Log(LogLine {
            level: 3,
            message: "m".to_owned(),
            correlation_id: None,
        }),
        Notice::Flow(FlowControl::Resume(None)),
        Notice::Health(AgentHealth {
            state: HealthState::Degraded,
            ..AgentHealth::default()
        }),
    ];
    for notice in &given {
        assert!(host.notify(notice.clone()));
    }
    for notice in given {
        let came = tokio::time::timeout(LONG, told.recv()).await.unwrap();
        assert_eq!(came, Some(notice));
    }
    let degraded = ConnectionState::Open {
        health: HealthState::Degraded,
        paused: false,
    };
    until(&connection, |state| state == degraded).await;
}

#[tokio::test]
async fn orders_to_drain_and_to_end_reach_the_agent_and_every_host_hears_of_it() {
    let mut served = Served::new().await;
    let connection = served.connect().await;
    assert!(matches!(served.sees().await, Seen::Connected(_)));
    let orders = [
        AgentCommand::Drain {
            within: Duration::from_secs(7),
            reason: DrainReason::Maintenance,
        },
        AgentCommand::Shutdown {
            within: Duration::from_secs(3),
            reason: ShutdownReason::Upgrade,
        },
    ];
    for order in orders {
        let health = grpc::order(&served.endpoint(), order, &ConnectOptions::default()).await;
        assert_eq!(health.unwrap().state, HealthState::Draining);
        assert!(matches!(served.sees().await, Seen::Ordered(seen) if seen == order));
    }
    until(&connection, |state| state == ConnectionState::Draining).await;
    assert_eq!(
        ask(&connection, head("c1", "/")).await,
        Err(RequestError::Paused)
    );
}

#[tokio::test]
async fn a_message_may_be_as_large_as_was_said_and_no_larger() {
    let served = Served::new().await;
    let connection = served.connect().await;
    for size in [4 << 20, 5 << 20, 16 << 20] {
        let piece = Event::RequestBody(chunk("c1", 0, vec![b'a'; size], true));
        let answer = ask(&connection, piece).await.unwrap();
        assert_eq!(answer.request_body.unwrap().data.unwrap().len(), size);
    }
    let small = serve::GrpcServeOptions {
        max_message: 1 << 20,
        ..serve::GrpcServeOptions::default()
    };
    let served = Served::with(1, small).await;
    let connection = served.connect().await;
    let piece = Event::RequestBody(chunk("c1", 0, vec![b'a'; 2 << 20], true));
    assert_eq!(ask(&connection, piece).await, Err(RequestError::Closed));
}

#[tokio::test]
async fn a_connection_ends_with_its_agent_and_when_it_is_closed() {
    let served = Served::new().await;
    let connection = served.connect().await;
    connection.close();
    tokio::time::timeout(LONG, connection.closed())
        .await
        .unwrap();
    assert_eq!(
        ask(&connection, head("c1", "/")).await,
        Err(RequestError::Closed)
    );
    let connection = served.connect().await;
    let waiting = {
        let connection = connection.clone();
        tokio::spawn(async move { ask(&connection, head("c1", "/wait")).await })
    };
    while connection.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    drop(connection);
    // The task holds it still.
    assert!(!waiting.is_finished());
    waiting.abort();
}

/// A client that waits for the headers of the answer before it says anything.
#[tokio::test]
async fn the_headers_of_an_answer_leave_before_anything_was_said() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let (sender, messages) = mpsc::channel(4);
    let messages = futures_util::stream::unfold(messages, |mut messages| async move {
        messages.recv().await.map(|message| (message, messages))
    });
    let answers = tokio::time::timeout(LONG, client.process_stream(messages)).await;
    let mut answers = answers.expect("headers").unwrap().into_inner();
    sender.send(hello()).await.unwrap();
    let welcome = answers.message().await.unwrap().unwrap();
    assert!(matches!(
        welcome.message,
        Some(agent_to_proxy::Message::Handshake(_))
    ));
    // What cannot be read is blocked, whosever it is.
    let strange = proxy_to_agent::Message::ResponseHeaders(proto::ResponseHeadersEvent {
        correlation_id: "c9".to_owned(),
        status_code: 70_000,
        headers: Vec::new(),
    });
    sender.send(said(strange)).await.unwrap();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(agent_to_proxy::Message::Response(answer)) = answer.message else {
        panic!("{answer:?}");
    };
    assert_eq!(answer.correlation_id, "c9");
    let blocked = matches!(answer.decision, Some(agent_response::Decision::Block(block)) if block.status == 500);
    assert!(blocked);
}

#[tokio::test]
async fn whoever_asks_before_the_handshake_gets_no_answer() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let first = futures_util::stream::iter([said(ping())]);
    let mut answers = client.process_stream(first).await.unwrap().into_inner();
    let refused = answers.message().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    let old = proto::HandshakeRequest {
        supported_versions: vec![99],
        ..proto::HandshakeRequest::default()
    };
    let first = futures_util::stream::iter([said(proxy_to_agent::Message::Handshake(old))]);
    let mut answers = client.process_stream(first).await.unwrap().into_inner();
    let welcome = answers.message().await.unwrap().unwrap().message;
    assert!(
        matches!(welcome, Some(agent_to_proxy::Message::Handshake(welcome)) if !welcome.success)
    );
    assert_eq!(answers.message().await.unwrap(), None);
}

#[tokio::test]
async fn one_event_is_answered_without_a_stream() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let head = proxy_to_agent::Message::RequestHeaders(proto::RequestHeadersEvent {
        metadata: Some(proto::RequestMetadata {
            correlation_id: "c1".to_owned(),
            ..proto::RequestMetadata::default()
        }),
        uri: "/block".to_owned(),
        ..proto::RequestHeadersEvent::default()
    });
    let answer = client.process_event(said(head)).await.unwrap().into_inner();
    let Some(agent_to_proxy::Message::Response(answer)) = answer.message else {
        panic!("{answer:?}");
    };
    let blocked = matches!(answer.decision, Some(agent_response::Decision::Block(block)) if block.status == 403);
    assert!(blocked);
    let pong = client
        .process_event(said(ping()))
        .await
        .unwrap()
        .into_inner();
    assert!(
        matches!(pong.message, Some(agent_to_proxy::Message::Pong(pong)) if pong.sequence == 7)
    );
    let none = client.process_event(ProxyToAgent::default()).await;
    assert_eq!(none.unwrap_err().code(), tonic::Code::InvalidArgument);
}

fn hello() -> ProxyToAgent {
    said(proxy_to_agent::Message::Handshake(
        proto::HandshakeRequest {
            supported_versions: vec![2],
            ..proto::HandshakeRequest::default()
        },
    ))
}

fn ping() -> proxy_to_agent::Message {
    proxy_to_agent::Message::Ping(proto::Ping {
        sequence: 7,
        timestamp_ms: 1,
    })
}

fn said(message: proxy_to_agent::Message) -> ProxyToAgent {
    ProxyToAgent {
        message: Some(message),
        ..ProxyToAgent::default()
    }
}

/// A server whose headers leave with its first message, and which does what its mode says.
struct Late(Mode);

#[derive(Clone, Copy)]
enum Mode {
    Answers,
    Undecided,
    Silent,
}

type Messages =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<AgentToProxy, Status>> + Send>>;

#[tonic::async_trait]
impl AgentServiceV2 for Late {
    type ProcessStreamStream = Messages;
    type ControlStreamStream = futures_util::stream::Empty<Result<proto::ProxyControl, Status>>;

    async fn process_stream(
        &self,
        request: Request<Streaming<ProxyToAgent>>,
    ) -> Result<tonic::Response<Messages>, Status> {
        use futures_util::StreamExt as _;
        let mut inbound = request.into_inner();
        let mode = self.0;
        // Nothing of the answer leaves before this came.
        let first = inbound.message().await?.unwrap();
        assert!(matches!(
            first.message,
            Some(proxy_to_agent::Message::Handshake(_))
        ));
        if let Mode::Silent = mode {
            std::future::pending::<()>().await;
        }
        let welcome = agent_to_proxy::Message::Handshake(proto::HandshakeResponse {
            protocol_version: 2,
            success: true,
            capabilities: Some(proto::AgentCapabilities::default()),
            ..proto::HandshakeResponse::default()
        });
        let answers = inbound.filter_map(move |message| async move {
            let decision = match mode {
                Mode::Undecided => None,
                _ => Some(agent_response::Decision::Allow(proto::AllowDecision {})),
            };
            let id = match message.ok()?.message? {
                proxy_to_agent::Message::RequestHeaders(head) => head.metadata?.correlation_id,
                proxy_to_agent::Message::RequestBodyChunk(chunk) => chunk.correlation_id,
                _ => return None,
            };
            Some(Ok(AgentToProxy {
                message: Some(agent_to_proxy::Message::Response(proto::AgentResponse {
                    correlation_id: id,
                    decision,
                    ..proto::AgentResponse::default()
                })),
            }))
        });
        let welcome = AgentToProxy {
            message: Some(welcome),
        };
        let all = futures_util::stream::iter([Ok(welcome)]).chain(answers);
        Ok(tonic::Response::new(Box::pin(all)))
    }

    async fn control_stream(
        &self,
        _: Request<Streaming<proto::AgentControl>>,
    ) -> Result<tonic::Response<Self::ControlStreamStream>, Status> {
        Ok(tonic::Response::new(futures_util::stream::empty()))
    }

    async fn process_event(
        &self,
        _: Request<ProxyToAgent>,
    ) -> Result<tonic::Response<AgentToProxy>, Status> {
        Err(Status::unimplemented("only a stream"))
    }
}

async fn late(mode: Mode) -> (GrpcEndpoint, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let serving = tokio::spawn(async move {
        tonic::transport::Server::builder()
            .add_service(AgentServiceV2Server::new(Late(mode)))
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    });
    (GrpcEndpoint::new(&address).unwrap(), serving)
}

#[tokio::test]
async fn a_server_that_sends_its_headers_late_is_not_waited_for() {
    let (endpoint, serving) = late(Mode::Answers).await;
    let connection = grpc::connect(&endpoint, &ConnectOptions::default())
        .await
        .unwrap();
    // It named no limit and no event: the defaults hold.
    assert_eq!(connection.capabilities().limits, AgentLimits::default());
    assert_eq!(
        ask(&connection, head("c1", "/")).await,
        Ok(Response::allow())
    );
    // Nobody of theirs answers a configuration, and nobody waits for it.
    let configure = Event::Configure(Configure {
        correlation_id: "k".into(),
        ..Configure::default()
    });
    assert_eq!(ask(&connection, configure).await, Ok(Response::allow()));
    let refused = grpc::order(
        &endpoint,
        AgentCommand::Drain {
            within: Duration::ZERO,
            reason: DrainReason::Manual,
        },
        &ConnectOptions::default(),
    )
    .await;
    assert!(
        matches!(refused, Err(ConnectError::Refused(_))),
        "{refused:?}"
    );
    serving.abort();
}

#[tokio::test]
async fn an_answer_that_decides_nothing_is_no_allow() {
    let (endpoint, serving) = late(Mode::Undecided).await;
    let connection = grpc::connect(&endpoint, &ConnectOptions::default())
        .await
        .unwrap();
    let answer = ask(&connection, head("c1", "/")).await;
    assert!(
        matches!(answer, Err(RequestError::Malformed(_))),
        "{answer:?}"
    );
    serving.abort();
}

#[tokio::test]
async fn an_agent_that_says_nothing_is_given_up() {
    let (endpoint, serving) = late(Mode::Silent).await;
    let options = ConnectOptions {
        connect_timeout: Duration::from_millis(200),
        ..ConnectOptions::default()
    };
    let failed = grpc::connect(&endpoint, &options).await;
    assert!(
        matches!(failed, Err(ConnectError::Timeout(_))),
        "{failed:?}"
    );
    serving.abort();
}

#[tokio::test]
async fn over_tls_each_side_shows_who_it_is() {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let issue = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (
            certificate.pem().into_bytes(),
            key.serialize_pem().into_bytes(),
        )
    };
    let (certificate, key) = issue("agent.test");
    let options = serve::GrpcServeOptions {
        tls: Some(serve::ServerTls {
            certificate,
            key,
            client_ca: Some(ca_pem.clone().into_bytes()),
        }),
        ..serve::GrpcServeOptions::default()
    };
    let served = Served::with(1, options).await;
    let tls = |identity| grpc::ClientTls {
        ca: ca_pem.clone().into_bytes(),
        identity,
        name: Some("agent.test".to_owned()),
    };
    let known = served.endpoint().tls(tls(Some(issue("host.test"))));
    let connection = grpc::connect(&known, &ConnectOptions::default())
        .await
        .unwrap();
    assert_eq!(
        status(&ask(&connection, head("c1", "/block")).await.unwrap()),
        Some(403)
    );
    let options = ConnectOptions {
        connect_timeout: Duration::from_secs(2),
        ..ConnectOptions::default()
    };
    for stranger in [served.endpoint().tls(tls(None)), served.endpoint()] {
        let failed = grpc::connect(&stranger, &options).await;
        assert!(failed.is_err(), "{failed:?}");
    }
}

/// A program that says lines.
struct Program {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            _child: child,
        }
    }

    async fn line(&mut self) -> Option<String> {
        let line = tokio::time::timeout(LONG, self.lines.next_line()).await;
        line.expect("a line").unwrap()
    }
}

/// The program on the published crate; `None`, said as a skip, where it cannot be built.
async fn peer() -> Option<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/zentinel/build");
    let built = match Command::new(build).output().await {
        Ok(built) => built,
        Err(error) => {
            hailwire_skip::skipped(error);
            return None;
        }
    };
    if !built.status.success() {
        hailwire_skip::skipped(String::from_utf8_lossy(&built.stderr));
        return None;
    }
    let path = String::from_utf8(built.stdout).unwrap();
    Some(PathBuf::from(path.trim()))
}

#[tokio::test]
async fn their_agent_answers_ours() {
    let Some(program) = peer().await else {
        return;
    };
    let args = ["serve", "--grpc", "127.0.0.1:0"];
    let mut agent = Program::start(Command::new(program).args(args));
    let ready: serde_json::Value = serde_json::from_str(&agent.line().await.unwrap()).unwrap();
    let endpoint = GrpcEndpoint::new(ready["ready"].as_str().unwrap()).unwrap();
    let options = ConnectOptions {
        config: Some(serde_json::json!({"mode": "strict"})),
        ..ConnectOptions::default()
    };
    let connection = grpc::connect(&endpoint, &options).await.unwrap();
    assert_eq!(connection.capabilities().name, "Peer");
    let blocked = ask(&connection, head("c1", "/block")).await.unwrap();
    let Decision::Block {
        status: 403,
        body,
        headers,
    } = &blocked.decision
    else {
        panic!("{blocked:?}");
    };
    assert_eq!(
        (body.as_deref(), headers["x-why"].as_str()),
        (Some("blocked"), "uri")
    );
    let audited = ask(&connection, head("c2", "/headers/audit"))
        .await
        .unwrap();
    assert_eq!(audited.audit.rule_ids, ["1001"]);
    assert_eq!(audited.audit.custom["headers"], 2);
    assert_eq!(audited.request_headers.len(), 3);
    // Each piece is answered before the next leaves, in whatever order they are asked.
    ask(&connection, head("c3", "/late-block")).await.unwrap();
    let pieces = (0..4).map(|index| {
        let piece = chunk("c3", index, "data", index == 3);
        ask(&connection, Event::RequestBody(piece))
    });
    let answers = futures_util::future::join_all(pieces).await;
    let statuses: Vec<Option<u16>> = answers
        .into_iter()
        .map(|answer| status(&answer.unwrap()))
        .collect();
    assert_eq!(statuses, [None, None, None, Some(413)]);
    let guardrail = Event::Guardrail(Guardrail {
        correlation_id: "c4".into(),
        ..Guardrail::default()
    });
    let waiting = tokio::time::timeout(Duration::from_millis(300), connection.request(guardrail));
    // They leave it unanswered, or are known to: never an allow.
    assert!(!matches!(waiting.await, Ok(Ok(_))));
    tokio::time::timeout(LONG, connection.ping())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn their_proxy_is_answered_by_ours() {
    let Some(program) = peer().await else {
        return;
    };
    let mut served = Served::new().await;
    let args = ["drive", "--grpc", &served.address, "--uri", "/block"];
    let mut proxy = Program::start(Command::new(program).args(args));
    let mut answers = Vec::new();
    while let Some(line) = proxy.line().await {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(line["error"].is_null(), "{line}");
        if let Some(sent) = line["sent"].as_str() {
            answers.push((sent.to_owned(), line["answer"]["decision"].clone()));
        }
    }
    let of = |kind: &str| {
        let found = answers.iter().find(|(sent, _)| sent == kind);
        found
            .unwrap_or_else(|| panic!("{kind} {answers:?}"))
            .1
            .clone()
    };
    assert_eq!(of("request_headers")["block"]["status"], 403);
    assert_eq!(of("request_body_chunk"), "allow");
    assert_eq!(of("response_headers")["block"]["status"], 200);
    assert_eq!(of("response_body_chunk"), "allow");
    let Seen::Connected(host) = served.sees().await else {
        panic!("it is connected first");
    };
    assert_eq!(host.id(), "zentinel-proxy");
    loop {
        if let Seen::Cancelled(id, CancelReason::Timeout) = served.sees().await {
            assert_eq!(id, "d-1");
            break;
        }
    }
}

/// One installation for all tests of a run; `None`, said as a skip, where there is no Node or no registry.
async fn grpc_js() -> Option<PathBuf> {
    static PLACE: Mutex<Option<Arc<tempfile::TempDir>>> = Mutex::new(None);
    let dir = PLACE
        .lock()
        .unwrap()
        .get_or_insert_with(|| Arc::new(tempfile::tempdir().unwrap()))
        .clone();
    let install = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--prefix"])
        .arg(dir.path())
        .args(["@grpc/grpc-js@1.14.0", "@grpc/proto-loader@0.8.0"])
        .output()
        .await;
    match install {
        Ok(done) if done.status.success() => Some(dir.path().to_owned()),
        Ok(done) => {
            hailwire_skip::skipped(String::from_utf8_lossy(&done.stderr));
            None
        }
        Err(error) => {
            hailwire_skip::skipped(format!("npm: {error}"));
            None
        }
    }
}

#[tokio::test]
async fn an_agent_on_grpc_js_answers_ours() {
    let Some(modules) = grpc_js().await else {
        return;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("node");
    command
        .arg(here.join("tests/it/late.js"))
        .arg(here.join("proto/agent_v2.proto"))
        .env("NODE_PATH", modules.join("node_modules"));
    let mut agent = Program::start(&mut command);
    let port = agent.line().await.unwrap();
    let endpoint = GrpcEndpoint::new(&format!("127.0.0.1:{port}")).unwrap();
    let options = ConnectOptions {
        config: Some(serde_json::json!({"mode": "strict"})),
        ..ConnectOptions::default()
    };
    let connection = grpc::connect(&endpoint, &options).await.unwrap();
    assert_eq!(connection.capabilities().limits.max_concurrency, 10);
    let blocked = ask(&connection, head("c1", "/block")).await.unwrap();
    assert_eq!(status(&blocked), Some(403));
    assert_eq!(blocked.audit.tags, ["js"]);
    assert_eq!(blocked.audit.custom["uri"], "/block");
    let whole = Event::RequestBody(chunk("c1", 0, "an attack", true));
    assert_eq!(status(&ask(&connection, whole).await.unwrap()), Some(406));
    tokio::time::timeout(LONG, connection.ping())
        .await
        .unwrap()
        .unwrap();
}
