use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::{
    super::proto::service::ext_proc::v3::{body_mutation, processing_response},
    *,
};
use crate::{
    Event, Response as Answer,
    capabilities::Capabilities,
    control::CancelReason,
    inspect::{AgentClient, AgentRule, CallError, Checkpoint, Inspector},
};

/// How long the agent takes, however much it is asked at once.
const TIME: Duration = Duration::from_millis(40);

/// Allows everything but a chunk that says `attack`.
struct Far;

impl AgentClient for Far {
    fn request(&self, event: Event, _: Duration) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            sleep(TIME).await;
            Ok(match event {
                Event::RequestBody(piece) if piece.data == "attack" => Answer::block(403),
                _ => Answer::allow(),
            })
        })
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        None
    }

    fn cancel(&self, _: &str, _: CancelReason) {}
}

/// A request whose head has been told.
async fn begun(mode: BodySendMode) -> ExtProcRequest {
    let point = Checkpoint {
        name: Text::from("far"),
        rule: AgentRule::default(),
        endpoints: vec![Arc::new(Far)],
    };
    let exchange = Inspector::new(vec![point]).exchange();
    let mut call = ExtProcRequest::new(exchange, FallbackAction::Block(503));
    let mut config = ProtocolConfiguration::default();
    config.set_request_body_mode(mode);
    let head = ProcessingRequest {
        request: Some(Request::RequestHeaders(HttpHeaders::default())),
        protocol_config: Some(config),
        ..ProcessingRequest::default()
    };
    assert_eq!(call.told(head).await.unwrap().len(), 1);
    call
}

fn body(data: &'static str, end_of_stream: bool) -> ProcessingRequest {
    let body = HttpBody {
        body: Bytes::from(data),
        end_of_stream,
    };
    ProcessingRequest {
        request: Some(Request::RequestBody(body)),
        ..ProcessingRequest::default()
    }
}

/// What goes on of an answer to a body, and whether it ends there.
fn streamed(answer: ProcessingResponse) -> (Bytes, bool) {
    let Some(processing_response::Response::RequestBody(body)) = answer.response else {
        panic!("{answer:?}");
    };
    let mutation = body.response.unwrap().body_mutation.unwrap().mutation;
    let Some(body_mutation::Mutation::StreamedResponse(streamed)) = mutation else {
        panic!("{mutation:?}");
    };
    (streamed.body, streamed.end_of_stream)
}

#[tokio::test(start_paused = true)]
async fn what_envoy_streams_takes_the_way_to_an_agent_once() {
    for mode in [BodySendMode::FullDuplexStreamed, BodySendMode::Streamed] {
        let mut call = begun(mode).await;
        let begin = Instant::now();
        for data in ["0", "1", "2", "3"] {
            assert!(call.has_room());
            assert!(call.told(body(data, data == "3")).await.unwrap().is_empty());
        }
        let mut answers = VecDeque::new();
        while call.is_under_way() {
            answers.append(&mut call.shown().await);
        }
        assert!(begin.elapsed() < TIME * 2, "{:?}", begin.elapsed());
        assert_eq!(answers.len(), 4, "one for each");
        if mode == BodySendMode::FullDuplexStreamed {
            let gone: Vec<_> = answers.into_iter().map(streamed).collect();
            let sent = [("0", false), ("1", false), ("2", false), ("3", true)];
            assert_eq!(gone, sent.map(|(data, end)| (Bytes::from(data), end)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_are_answered_after_what_came_before_them() {
    let mut call = begun(BodySendMode::FullDuplexStreamed).await;
    for data in ["0", "1"] {
        assert!(call.told(body(data, false)).await.unwrap().is_empty());
    }
    let trailers = ProcessingRequest {
        request: Some(Request::RequestTrailers(Default::default())),
        ..ProcessingRequest::default()
    };
    let mut answers = call.told(trailers).await.unwrap();
    let last = answers.pop_back().unwrap().response;
    assert!(matches!(
        last,
        Some(processing_response::Response::RequestTrailers(_))
    ));
    let gone: Vec<_> = answers.into_iter().map(|a| streamed(a).0).collect();
    assert_eq!(gone, ["0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn a_block_in_the_middle_of_a_stream_ends_the_request_at_once() {
    let mut call = begun(BodySendMode::FullDuplexStreamed).await;
    for data in ["0", "attack", "2", "3"] {
        call.told(body(data, false)).await.unwrap();
    }
    let first = call.shown().await;
    assert_eq!(first.len(), 1);
    let second = call.shown().await;
    assert!(call.is_over());
    assert!(matches!(
        second[0].response,
        Some(processing_response::Response::ImmediateResponse(_))
    ));
}
