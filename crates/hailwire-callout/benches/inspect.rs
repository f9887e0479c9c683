//! What deciding about a request costs, with agents that answer at once: the inspector alone, without connections.
//!
//! A row is a whole request: its head, a body of some chunks, and its end, at one agent or at three.

#![expect(
    clippy::expect_used,
    reason = "a measurement of something broken must stop"
)]

use std::{hint::black_box, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::BoxFuture;
use hailwire_callout::{
    Event, EventKind, Response, Text,
    capabilities::Capabilities,
    control::CancelReason,
    event::{BodyChunk, Metadata, RequestComplete, RequestHeaders},
    inspect::{AgentClient, AgentRule, CallError, Checkpoint, Inspector},
};

/// An agent that lets everything pass.
struct PassingAgent;

impl AgentClient for PassingAgent {
    fn request(&self, event: Event, _: Duration) -> BoxFuture<'_, Result<Response, CallError>> {
        black_box(event);
        Box::pin(std::future::ready(Ok(Response::allow())))
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        None
    }

    fn cancel(&self, _: &str, _: CancelReason) {}
}

fn inspector(agents: usize) -> Inspector {
    let checkpoint = |number: usize| Checkpoint {
        name: Text::from(format!("agent-{number}").as_str()),
        rule: AgentRule {
            events: Some(
                [
                    EventKind::RequestHeaders,
                    EventKind::RequestBody,
                    EventKind::RequestComplete,
                ]
                .into_iter()
                .collect(),
            ),
            ..AgentRule::default()
        },
        endpoints: vec![Arc::new(PassingAgent)],
    };
    Inspector::new((0..agents).map(checkpoint).collect())
}

fn chunk(index: u32, chunks: u32, data: &Bytes) -> BodyChunk {
    BodyChunk {
        correlation_id: "bench".into(),
        data: data.clone(),
        is_last: index + 1 == chunks,
        total_size: None,
        index,
        transferred: u64::from(index + 1) * data.len() as u64,
    }
}

/// One request at an inspector.
async fn request(inspector: &Inspector, chunks: u32, data: &Bytes) {
    let mut exchange = inspector.exchange();
    let metadata = Metadata {
        correlation_id: "bench",
        ..Metadata::default()
    };
    let head = RequestHeaders::new(&metadata, "POST", "/", [("host", "a")]);
    assert!(exchange.request_headers(head).await.passes());
    for index in 0..chunks {
        black_box(exchange.request_body(chunk(index, chunks, data)).await);
    }
    let complete = RequestComplete {
        correlation_id: "bench".into(),
        ..RequestComplete::default()
    };
    exchange.complete(complete).await;
}

fn requests(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let data = Bytes::from(vec![7; 1_024]);
    let mut group = criterion.benchmark_group("a request");
    group.throughput(Throughput::Elements(1));
    for (agents, chunks) in [(1, 0), (1, 4), (3, 0), (3, 4), (3, 64)] {
        let inspector = inspector(agents);
        group.bench_function(format!("{agents} agents, {chunks} chunks"), |b| {
            b.iter(|| runtime.block_on(request(&inspector, chunks, &data)));
        });
    }
    group.finish();
}

criterion_group!(benches, requests);
criterion_main!(benches);
