//! Endpoints that break their promise: they do not answer and do not say that the time is over.

use super::*;

/// An endpoint that never says anything, from its second event on.
#[derive(Default)]
struct Silent(AtomicBool);

impl AgentClient for Silent {
    fn request(&self, _: Event, _: Duration) -> BoxFuture<'_, Result<Response, CallError>> {
        match self.0.swap(true, SeqCst) {
            false => Box::pin(async { Ok(Response::allow()) }),
            true => Box::pin(std::future::pending()),
        }
    }

    fn request_queued(
        &self,
        event: Event,
        deadline: Duration,
        _: StartSignal,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        self.request(event, deadline)
    }

    fn longest_wait(&self, deadline: Duration) -> Duration {
        deadline * 2
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        None
    }

    fn cancel(&self, _: &str, _: CancelReason) {}
}

/// A second after the longest that it may take by [`rule`].
const GIVEN_UP: Duration = Duration::from_millis(1100);

/// A request whose first event the agent has answered.
async fn begun() -> Exchange {
    let silent = Arc::new(Silent::default());
    let inspector = Inspector::new(vec![Checkpoint {
        name: Text::from("a"),
        rule: rule(FallbackAction::Block(504)),
        endpoints: vec![silent as Arc<dyn AgentClient>],
    }]);
    let mut exchange = inspector.exchange();
    assert!(exchange.request_headers(head("c")).await.passes());
    exchange
}

#[tokio::test(start_paused = true)]
async fn a_head_is_decided_a_second_after_the_longest_wait() {
    let mut exchange = begun().await;
    let begin = Instant::now();
    let verdict = exchange.response_headers(answer("c")).await;
    assert_eq!(verdict.decision, blocked(504));
    assert_eq!(begin.elapsed(), GIVEN_UP);
}

#[tokio::test(start_paused = true)]
async fn so_are_the_chunks_of_both_bodies_however_they_are_waited_for() {
    let mut exchange = begun().await;
    let begin = Instant::now();
    exchange.show_response_body(chunk("c", "r", false));
    sleep(Duration::from_millis(300)).await;
    exchange.show_request_body(chunk("c", "0", false));
    exchange.show_request_body(chunk("c", "1", true));
    let mut kinds = Vec::new();
    while let Some((kind, out)) = exchange.shown().await {
        assert_eq!(out.verdict.decision, blocked(504));
        assert_eq!(begin.elapsed(), GIVEN_UP, "the first of them");
        kinds.push(kind);
    }
    assert_eq!(kinds.len(), 3);
    assert!(!exchange.is_under_way(EventKind::RequestBody));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_request_is_not_held_up() {
    let mut exchange = begun().await;
    let begin = Instant::now();
    exchange.complete(complete("c")).await;
    assert_eq!(begin.elapsed(), GIVEN_UP);
    assert!(exchange.stopped().is_none());
}
