//! Envoy's side by hand: what real configurations hardly bring about.

use std::{io, net::SocketAddr, sync::Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    proto::{
        config::core::v3::{HeaderMap, HeaderValue},
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            HttpBody, HttpHeaders, HttpTrailers, ProtocolConfiguration, body_mutation::Mutation,
            external_processor_client::ExternalProcessorClient,
            processing_request::Request as Tells, processing_response::Response as Says,
        },
    },
    *,
};
use crate::{
    Event, EventKind, Text,
    capabilities::Capabilities,
    control::CancelReason,
    event::BodyChunk,
    front::FrontListener,
    inspect::{
        AgentClient, AgentRule, BodyMode, CallError, Checkpoint, FallbackAction,
        config::ListenAddress,
    },
    response::BodyMutation,
};

const BOTH: [EventKind; 2] = [EventKind::RequestBody, EventKind::ResponseBody];

/// An agent that writes in capitals what it is shown, and remembers it.
#[derive(Default)]
struct Loud(Mutex<Vec<(Bytes, bool)>>);

impl AgentClient for Loud {
    fn request(
        &self,
        event: Event,
        _: std::time::Duration,
    ) -> BoxFuture<'_, Result<crate::Response, CallError>> {
        let mutation = |chunk: &BodyChunk| {
            let mut seen = self.0.lock().unwrap();
            seen.push((chunk.data.clone(), chunk.is_last));
            Some(BodyMutation {
                index: chunk.index,
                data: Some(chunk.data.to_ascii_uppercase().into()),
            })
        };
        let mut response = crate::Response::allow();
        match &event {
            Event::RequestBody(chunk) => response.request_body = mutation(chunk),
            Event::ResponseBody(chunk) => response.response_body = mutation(chunk),
            _ => {}
        }
        Box::pin(std::future::ready(Ok(response)))
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        Some(Arc::new(Capabilities {
            events: EventKind::ALL.into_iter().collect(),
            ..Capabilities::default()
        }))
    }

    fn cancel(&self, _: &str, _: CancelReason) {}
}

/// One request of an Envoy, whose head and, for bodies of responses, whole request have been told.
struct Envoy {
    agent: Arc<Loud>,
    kind: EventKind,
    tells: mpsc::Sender<ProcessingRequest>,
    said: Streaming<ProcessingResponse>,
    /// Dropped, the front stops.
    stop: Option<oneshot::Sender<()>>,
    serving: JoinSet<io::Result<()>>,
    at: SocketAddr,
}

impl Envoy {
    async fn new(
        kind: EventKind,
        mode: BodySendMode,
        shown: BodyMode,
        unseen: FallbackAction,
        length: Option<usize>,
    ) -> Self {
        let agent = Arc::new(Loud::default());
        let mut rule = AgentRule::default();
        rule.request_body.mode = shown;
        rule.response_body.mode = shown;
        let inspector = Inspector::new(vec![Checkpoint {
            name: Text::from("loud"),
            rule,
            endpoints: vec![Arc::clone(&agent) as Arc<dyn AgentClient>],
        }]);
        let socket = FrontListener::bind(&"127.0.0.1:0".parse().unwrap()).await;
        let socket = socket.unwrap();
        let Ok(ListenAddress::Tcp(at)) = socket.local_address() else {
            panic!("it is TCP");
        };
        let front = ExtProcServer::new(Arc::new(inspector), unseen);
        let (stop, stopped) = oneshot::channel();
        let mut serving = JoinSet::new();
        serving.spawn(front.serve_at(socket, stopped.map(|_: Result<(), _>| ())));
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{at}")).unwrap();
        let channel = channel.connect().await.unwrap();
        let mut client = ExternalProcessorClient::new(channel);
        let (tells, told) = mpsc::channel(8);
        let head = |fields: &[(&str, &str)], end| HttpHeaders {
            headers: Some(map(fields)),
            end_of_stream: end,
        };
        let length = length.map(|length| length.to_string());
        let length = length.as_deref().map(|length| ("content-length", length));
        let is_request = kind == EventKind::RequestBody;
        let mut fields = vec![(":method", "POST"), (":path", "/")];
        fields.extend(length.filter(|_| is_request));
        let mut config = ProtocolConfiguration::default();
        config.set_request_body_mode(mode);
        config.set_response_body_mode(mode);
        let first = ProcessingRequest {
            request: Some(Tells::RequestHeaders(head(&fields, !is_request))),
            protocol_config: Some(config),
            ..ProcessingRequest::default()
        };
        tells.send(first).await.unwrap();
        let said = client.process(ReceiverStream::new(told)).await.unwrap();
        let mut envoy = Self {
            agent,
            kind,
            tells,
            said: said.into_inner(),
            stop: Some(stop),
            serving,
            at,
        };
        assert!(matches!(envoy.hears().await, Says::RequestHeaders(_)));
        if !is_request {
            let fields: Vec<_> = [(":status", "200")].into_iter().chain(length).collect();
            let head = head(&fields, false);
            envoy.tell(Tells::ResponseHeaders(head)).await;
            assert!(matches!(envoy.hears().await, Says::ResponseHeaders(_)));
        }
        envoy
    }

    async fn tell(&self, request: Tells) {
        let request = ProcessingRequest {
            request: Some(request),
            ..ProcessingRequest::default()
        };
        self.tells.send(request).await.unwrap();
    }

    async fn body(&self, text: &'static str, end_of_stream: bool) {
        let body = HttpBody {
            body: Bytes::from_static(text.as_bytes()),
            end_of_stream,
        };
        self.tell(match self.kind {
            EventKind::ResponseBody => Tells::ResponseBody(body),
            _ => Tells::RequestBody(body),
        })
        .await;
    }

    async fn trailers(&self) {
        let trailers = HttpTrailers {
            trailers: Some(map(&[("x-sum", "1")])),
        };
        self.tell(match self.kind {
            EventKind::ResponseBody => Tells::ResponseTrailers(trailers),
            _ => Tells::RequestTrailers(trailers),
        })
        .await;
    }

    async fn hears(&mut self) -> Says {
        let said = self.said.message().await.unwrap();
        said.unwrap().response.unwrap()
    }

    /// What is forwarded instead of a chunk of a body.
    async fn goes_on(&mut self) -> GoesOn {
        let response = match self.hears().await {
            Says::RequestBody(said) | Says::ResponseBody(said) => said.response.unwrap(),
            Says::RequestTrailers(_) | Says::ResponseTrailers(_) => return GoesOn::Trailers,
            Says::ImmediateResponse(said) => {
                let status = said.status.unwrap().code;
                return GoesOn::Ends(status);
            }
            other => panic!("{other:?}"),
        };
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        match response.body_mutation.and_then(|of| of.mutation) {
            None => GoesOn::Same,
            Some(Mutation::Body(data)) => GoesOn::Other(text(&data)),
            Some(Mutation::ClearBody(_)) => GoesOn::Other(String::new()),
            Some(Mutation::StreamedResponse(of)) => GoesOn::Piece(text(&of.body), of.end_of_stream),
        }
    }

    /// The chunks that the agent was shown, and whether each was the last.
    fn shown(&self) -> Vec<(String, bool)> {
        let seen = self.agent.0.lock().unwrap();
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        seen.iter()
            .map(|(data, last)| (text(data), *last))
            .collect()
    }
}

fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| HeaderValue {
        key: (*name).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap {
        headers: fields.iter().map(field).collect(),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum GoesOn {
    Same,
    Other(String),
    Piece(String, bool),
    Trailers,
    Ends(i32),
}

fn other(text: &str) -> GoesOn {
    GoesOn::Other(text.to_owned())
}

fn shown(chunks: &[(&str, bool)]) -> Vec<(String, bool)> {
    let own = |(text, last): &(&str, bool)| ((*text).to_owned(), *last);
    chunks.iter().map(own).collect()
}

#[tokio::test]
async fn a_buffered_body_is_whole_also_where_trailers_follow() {
    for kind in BOTH {
        for mode in [BodyMode::Stream, BodyMode::Buffer] {
            let block = FallbackAction::Block(413);
            let mut envoy = Envoy::new(kind, BodySendMode::Buffered, mode, block, None).await;
            envoy.body("body", false).await;
            assert_eq!(envoy.goes_on().await, other("BODY"));
            envoy.trailers().await;
            assert_eq!(envoy.goes_on().await, GoesOn::Trailers);
            assert_eq!(envoy.shown(), shown(&[("body", true)]));
        }
    }
}

#[tokio::test]
async fn trailers_end_a_body_that_streams() {
    for kind in BOTH {
        let block = FallbackAction::Block(413);
        let streamed = BodySendMode::Streamed;
        let mut envoy = Envoy::new(kind, streamed, BodyMode::Stream, block, None).await;
        for text in ["one", "two"] {
            envoy.body(text, false).await;
            assert_eq!(envoy.goes_on().await, other(&text.to_ascii_uppercase()));
        }
        envoy.trailers().await;
        assert_eq!(envoy.goes_on().await, GoesOn::Trailers);
        let chunks = [("one", false), ("two", false), ("", true)];
        assert_eq!(envoy.shown(), shown(&chunks));

        // What is held back until then cannot go on: it does not pass.
        let mut envoy = Envoy::new(kind, streamed, BodyMode::Buffer, block, None).await;
        envoy.body("one", false).await;
        assert_eq!(envoy.goes_on().await, other(""));
        envoy.trailers().await;
        assert_eq!(envoy.goes_on().await, GoesOn::Ends(500));
        assert_eq!(envoy.shown(), shown(&[("one", true)]));

        // Unless both directions stream.
        let duplex = BodySendMode::FullDuplexStreamed;
        let mut envoy = Envoy::new(kind, duplex, BodyMode::Buffer, block, None).await;
        envoy.body("one", false).await;
        envoy.body("two", false).await;
        envoy.trailers().await;
        let piece = GoesOn::Piece("ONETWO".to_owned(), false);
        assert_eq!(envoy.goes_on().await, piece);
        assert_eq!(envoy.goes_on().await, GoesOn::Trailers);
        assert_eq!(envoy.shown(), shown(&[("onetwo", true)]));
    }
}

#[tokio::test]
async fn of_a_body_that_comes_in_part_agents_see_all_or_nothing() {
    let partial = BodySendMode::BufferedPartial;
    for (kind, mode) in BOTH
        .into_iter()
        .flat_map(|kind| [BodyMode::Stream, BodyMode::Buffer].map(|mode| (kind, mode)))
    {
        // Whole, and Envoy says so; or as long as its length says, and trailers follow.
        for (end, length) in [(true, None), (true, Some(4)), (false, Some(4))] {
            let mut envoy =
                Envoy::new(kind, partial, mode, FallbackAction::Block(413), length).await;
            envoy.body("body", end).await;
            assert_eq!(envoy.goes_on().await, other("BODY"));
            if !end {
                envoy.trailers().await;
                assert_eq!(envoy.goes_on().await, GoesOn::Trailers);
            }
            assert_eq!(envoy.shown(), shown(&[("body", true)]));
        }
        // Not whole, or nobody knows: as the operator says.
        for length in [None, Some(5), Some(3)] {
            let mut envoy =
                Envoy::new(kind, partial, mode, FallbackAction::Block(413), length).await;
            envoy.body("body", false).await;
            assert_eq!(envoy.goes_on().await, GoesOn::Ends(413));
            assert_eq!(envoy.shown(), []);

            let mut envoy = Envoy::new(kind, partial, mode, FallbackAction::Allow, length).await;
            envoy.body("body", false).await;
            assert_eq!(
                envoy.goes_on().await,
                GoesOn::Same,
                "as it is, and all of it"
            );
            envoy.trailers().await;
            assert_eq!(envoy.goes_on().await, GoesOn::Trailers);
            assert_eq!(envoy.shown(), []);
        }
    }
}

#[tokio::test]
async fn of_a_body_that_is_not_sent_agents_do_not_see_an_end_either() {
    for kind in BOTH {
        let none = BodySendMode::None;
        let mut envoy = Envoy::new(kind, none, BodyMode::Stream, FallbackAction::Allow, None).await;
        envoy.trailers().await;
        assert_eq!(envoy.goes_on().await, GoesOn::Trailers);
        assert_eq!(envoy.shown(), []);
    }
}

#[tokio::test]
async fn when_its_socket_goes_what_is_under_way_comes_to_its_end() {
    let (kind, streamed) = (EventKind::RequestBody, BodySendMode::Streamed);
    let block = FallbackAction::Block(413);
    let mut envoy = Envoy::new(kind, streamed, BodyMode::Stream, block, None).await;
    drop(envoy.stop.take());
    while TcpStream::connect(envoy.at).await.is_ok() {
        tokio::task::yield_now().await;
    }
    envoy.body("one", true).await;
    assert_eq!(envoy.goes_on().await, other("ONE"));
    let Envoy {
        tells,
        said,
        mut serving,
        ..
    } = envoy;
    drop((tells, said));
    let ended = serving.join_next().await;
    assert!(matches!(ended, Some(Ok(Ok(())))), "{ended:?}");
}
