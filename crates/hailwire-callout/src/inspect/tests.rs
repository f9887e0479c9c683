mod bodies;
mod faults;
mod pipelined;
mod real;
mod silent;
mod texts;

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use tokio::time::{Instant, sleep};

use super::*;
use crate::{
    EventKind,
    capabilities::AgentLimits,
    event::{
        BodyChunk, Metadata, RequestComplete, RequestHeaders, ResponseHeaders, WebSocketFrame,
    },
    response::BodyMutation,
};

/// What an agent does when it is asked.
#[derive(Clone)]
enum Does {
    Answers(Box<Response>),
    Hangs,
    Takes(Duration),
    Fails(CallError),
}

/// An agent that does what it was told, and remembers what it was asked.
struct Scripted {
    script: Mutex<VecDeque<Does>>,
    then: Does,
    capabilities: Option<Arc<Capabilities>>,
    asked: Mutex<Vec<Event>>,
    cancelled: Mutex<Vec<(String, CancelReason)>>,
    down: AtomicBool,
}

impl Scripted {
    fn new(script: impl IntoIterator<Item = Does>, then: Does) -> Arc<Self> {
        Self::stating(script, then, None)
    }

    fn stating(
        script: impl IntoIterator<Item = Does>,
        then: Does,
        limits: Option<AgentLimits>,
    ) -> Arc<Self> {
        let capabilities = limits.map(|limits| {
            Arc::new(Capabilities {
                events: EventKind::ALL.into_iter().collect(),
                limits,
                ..Capabilities::default()
            })
        });
        Arc::new(Self {
            script: Mutex::new(script.into_iter().collect()),
            then,
            capabilities,
            asked: Mutex::default(),
            cancelled: Mutex::default(),
            down: AtomicBool::new(false),
        })
    }

    fn always(does: Does) -> Arc<Self> {
        Self::new([], does)
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.asked.lock().unwrap().iter().map(Event::kind).collect()
    }

    fn bodies(&self) -> Vec<Bytes> {
        let asked = self.asked.lock().unwrap();
        let data = asked.iter().filter_map(|event| match event {
            Event::RequestBody(chunk) | Event::ResponseBody(chunk) => Some(chunk.data.clone()),
            _ => None,
        });
        data.collect()
    }

    fn cancels(&self) -> Vec<CancelReason> {
        let cancelled = self.cancelled.lock().unwrap();
        cancelled.iter().map(|(_, reason)| *reason).collect()
    }
}

impl AgentClient for Scripted {
    fn request(
        &self,
        event: Event,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        if self.down.load(SeqCst) {
            return Box::pin(async { Err(CallError::Down) });
        }
        self.asked.lock().unwrap().push(event);
        let next = self.script.lock().unwrap().pop_front();
        let does = next.unwrap_or_else(|| self.then.clone());
        Box::pin(async move {
            let wait = match &does {
                Does::Hangs => Duration::MAX,
                Does::Takes(time) => *time,
                _ => Duration::ZERO,
            };
            if wait > deadline {
                sleep(deadline).await;
                return Err(CallError::Timeout);
            }
            sleep(wait).await;
            match does {
                Does::Answers(response) => Ok(*response),
                Does::Fails(why) => Err(why),
                Does::Hangs | Does::Takes(_) => Ok(Response::allow()),
            }
        })
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        self.capabilities.clone()
    }

    fn cancel(&self, id: &str, reason: CancelReason) {
        let mut cancelled = self.cancelled.lock().unwrap();
        cancelled.push((id.to_owned(), reason));
    }
}

fn point(name: &'static str, rule: AgentRule, agent: &Arc<Scripted>) -> Checkpoint {
    Checkpoint {
        name: Text::from(name),
        rule,
        endpoints: vec![Arc::clone(agent) as Arc<dyn AgentClient>],
    }
}

fn inspector<const N: usize>(agents: [(&'static str, AgentRule, &Arc<Scripted>); N]) -> Inspector {
    let points = agents.map(|(name, rule, agent)| point(name, rule, agent));
    Inspector::new(points.into())
}

fn head(id: &str) -> RequestHeaders {
    let metadata = Metadata {
        correlation_id: id,
        request_id: "req-1",
        ..Metadata::default()
    };
    RequestHeaders::new(&metadata, "POST", "/", [("host", "a")])
}

fn answer(id: &str) -> ResponseHeaders {
    ResponseHeaders::new(id, 200, [("server", "a")])
}

fn chunk(id: &str, data: impl Into<Bytes>, is_last: bool) -> BodyChunk {
    let data = data.into();
    BodyChunk {
        correlation_id: Text::from(id),
        transferred: data.len() as u64,
        data,
        is_last,
        total_size: None,
        index: 0,
    }
}

fn complete(id: &str) -> RequestComplete {
    RequestComplete {
        correlation_id: Text::from(id),
        ..RequestComplete::default()
    }
}

fn blocked(status: u16) -> Decision {
    Response::block(status).decision
}

fn set(name: &str, value: &str) -> HeaderOp {
    HeaderOp::Set {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

fn mutated(data: &'static str) -> Response {
    Response {
        request_body: Some(BodyMutation {
            index: 0,
            data: Some(Bytes::from(data)),
        }),
        ..Response::allow()
    }
}

fn wants_more() -> Response {
    Response {
        needs_more: true,
        ..Response::allow()
    }
}

fn answers(response: Response) -> Does {
    Does::Answers(Box::new(response))
}

fn allows() -> Does {
    answers(Response::allow())
}

/// A rule that says the same at every fault.
fn rule(action: FallbackAction) -> AgentRule {
    let mut rule = AgentRule::default();
    for phase in &mut rule.phases {
        phase.on = [action; 4];
        phase.timeout = Duration::from_millis(50);
    }
    rule
}

/// Runs an exchange up to a phase and gives what that one said; bodies have two chunks, `first` and `second`.
async fn run(exchange: &mut Exchange, phase: EventKind, mid_body: bool) -> Decision {
    let id = "c1";
    let verdict = exchange.request_headers(head(id)).await;
    if phase == EventKind::RequestHeaders || !verdict.passes() {
        return verdict.decision;
    }
    for (data, is_last) in [("first", false), ("second", true)] {
        let verdict = exchange
            .request_body(chunk(id, data, is_last))
            .await
            .verdict;
        let asked = phase == EventKind::RequestBody && mid_body == is_last;
        if asked || !verdict.passes() {
            return verdict.decision;
        }
    }
    let verdict = exchange.response_headers(answer(id)).await;
    if phase == EventKind::ResponseHeaders || !verdict.passes() {
        return verdict.decision;
    }
    for (data, is_last) in [("first", false), ("second", true)] {
        let verdict = exchange.response_body(chunk(id, data, is_last)).await;
        let asked = phase == EventKind::ResponseBody && mid_body == is_last;
        if asked || !verdict.verdict.passes() {
            return verdict.verdict.decision;
        }
    }
    Decision::Allow
}

/// Every way to go wrong, and what it is taken for.
fn faults() -> [(Does, AgentFault); 9] {
    let header = |name: &str, value: &str| {
        answers(Response {
            request_headers: vec![set(name, value)],
            ..Response::allow()
        })
    };
    [
        (Does::Hangs, AgentFault::Timeout),
        (Does::Takes(Duration::from_millis(51)), AgentFault::Timeout),
        (Does::Fails(CallError::Down), AgentFault::Error),
        (
            Does::Fails(CallError::Failed("the connection ended".to_owned())),
            AgentFault::Error,
        ),
        (Does::Fails(CallError::Overload), AgentFault::Overload),
        (Does::Fails(CallError::TooLarge), AgentFault::BodyTooLarge),
        (answers(Response::block(7)), AgentFault::Error),
        (header("x", "a\r\nset-cookie: b"), AgentFault::Error),
        (header("x y", "a"), AgentFault::Error),
    ]
}

#[tokio::test]
async fn agents_are_asked_in_order_and_the_first_that_stops_decides() {
    let op = |name: &str| {
        answers(Response {
            request_headers: vec![set(name, "1")],
            ..Response::allow()
        })
    };
    let (first, second) = (Scripted::always(op("a")), Scripted::always(op("b")));
    let mut exchange = inspector([
        ("first", AgentRule::default(), &first),
        ("second", AgentRule::default(), &second),
    ])
    .exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict.request_headers, [set("a", "1"), set("b", "1")]);

    let redirect = Decision::Redirect {
        url: "https://a.b".to_owned(),
        status: 302,
    };
    let stops = Scripted::always(answers(Response {
        decision: redirect.clone(),
        audit: Audit {
            tags: vec!["x".to_owned()],
            ..Audit::default()
        },
        ..Response::allow()
    }));
    let unasked = Scripted::always(answers(Response::block(403)));
    let all = inspector([
        ("first", AgentRule::default(), &first),
        ("stops", AgentRule::default(), &stops),
        ("unasked", AgentRule::default(), &unasked),
    ]);
    let mut exchange = all.exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict.decision, redirect);
    assert_eq!(verdict.request_headers, [set("a", "1")]);
    assert_eq!(verdict.audits[0].0, "stops");
    assert!(unasked.kinds().is_empty());
    assert_eq!(
        all.counters("stops")
            .unwrap()
            .stopped(EventKind::RequestHeaders),
        1
    );

    // What comes after is not shown to anybody.
    assert!(!exchange.wants(EventKind::RequestBody));
    let body = exchange.request_body(chunk("c", "x", true)).await;
    assert_eq!(body.verdict.decision, redirect);
    assert!(body.data.is_empty());
    drop(exchange);
    assert_eq!(first.cancels(), [CancelReason::BlockedByAgent]);
    assert!(stops.cancels().is_empty(), "it knows");
}

#[tokio::test]
async fn an_agent_is_asked_only_what_it_wants() {
    let agent = Scripted::always(allows());
    let rule = AgentRule {
        events: Some(
            [EventKind::RequestBody, EventKind::ResponseHeaders]
                .into_iter()
                .collect(),
        ),
        ..AgentRule::default()
    };
    let mut exchange = inspector([("a", rule, &agent)]).exchange();
    assert!(exchange.wants(EventKind::RequestBody) && !exchange.wants(EventKind::RequestHeaders));
    assert_eq!(
        run(&mut exchange, EventKind::ResponseBody, true).await,
        Decision::Allow
    );
    exchange.complete(complete("c1")).await;
    let (body, head) = (EventKind::RequestBody, EventKind::ResponseHeaders);
    assert_eq!(agent.kinds(), [body, body, head]);
}

#[tokio::test]
async fn the_next_place_is_asked_where_one_is_full_down_or_fails_but_not_in_mid_body() {
    let failures = [
        CallError::Down,
        CallError::Overload,
        CallError::Failed("gone".to_owned()),
    ];
    for why in failures {
        let (near, far) = (
            Scripted::new([allows(), allows()], Does::Fails(why)),
            Scripted::always(allows()),
        );
        let mut point = point("a", AgentRule::default(), &near);
        point
            .endpoints
            .push(Arc::clone(&far) as Arc<dyn AgentClient>);
        let inspector = Inspector::new(vec![point]);
        let mut exchange = inspector.exchange();
        assert!(exchange.request_headers(head("c")).await.passes());
        assert!(
            exchange
                .request_body(chunk("c", "1", false))
                .await
                .verdict
                .passes()
        );
        assert!(far.kinds().is_empty(), "near first");
        let mid_body = exchange.request_body(chunk("c", "2", true)).await;
        assert_eq!(mid_body.verdict.decision, blocked(503));
        assert!(far.kinds().is_empty());

        let mut exchange = inspector.exchange();
        assert!(exchange.request_headers(head("d")).await.passes());
        assert!(
            exchange
                .request_body(chunk("d", "1", true))
                .await
                .verdict
                .passes()
        );
        assert_eq!(
            far.kinds(),
            [EventKind::RequestHeaders, EventKind::RequestBody]
        );
    }
    let (near, far) = (Scripted::always(Does::Hangs), Scripted::always(allows()));
    let mut point = point("a", rule(FallbackAction::Block(504)), &near);
    point
        .endpoints
        .push(Arc::clone(&far) as Arc<dyn AgentClient>);
    let mut exchange = Inspector::new(vec![point]).exchange();
    let late = exchange.request_headers(head("c")).await;
    assert_eq!(late.decision, blocked(504), "a deadline is one deadline");
    assert!(far.kinds().is_empty());
}

#[tokio::test]
async fn an_exchange_keeps_the_agents_that_it_began_with() {
    let (old, new) = (
        Scripted::always(allows()),
        Scripted::always(answers(Response::block(403))),
    );
    let inspector = inspector([("a", AgentRule::default(), &old)]);
    let mut begun = inspector.exchange();
    assert!(begun.request_headers(head("c")).await.passes());
    inspector.replace(vec![point("a", AgentRule::default(), &new)]);
    assert!(
        begun
            .request_body(chunk("c", "1", true))
            .await
            .verdict
            .passes()
    );
    assert_eq!(
        old.kinds(),
        [EventKind::RequestHeaders, EventKind::RequestBody]
    );
    let verdict = inspector.exchange().request_headers(head("d")).await;
    assert_eq!(verdict.decision, blocked(403));
    let tally = inspector.counters("a").unwrap();
    assert_eq!(tally.asked(EventKind::RequestHeaders), 2, "counters go on");
}

#[tokio::test]
async fn a_dropped_exchange_is_cancelled_and_a_complete_one_is_not() {
    let agent = Scripted::always(allows());
    let unasked = Scripted::always(allows());
    let nothing = AgentRule {
        events: Some([EventKind::ResponseBody].into_iter().collect()),
        ..AgentRule::default()
    };
    let inspector = inspector([
        ("a", AgentRule::default(), &agent),
        ("b", nothing, &unasked),
    ]);
    let mut exchange = inspector.exchange();
    exchange.request_headers(head("c")).await;
    drop(exchange);
    assert_eq!(agent.cancels(), [CancelReason::ClientDisconnect]);
    assert_eq!(agent.cancelled.lock().unwrap()[0].0, "c");
    assert!(unasked.cancels().is_empty(), "it knows nothing of it");

    let mut exchange = inspector.exchange();
    exchange.request_headers(head("d")).await;
    exchange.complete(complete("d")).await;
    drop(exchange);
    assert_eq!(agent.cancels().len(), 1);
    assert_eq!(agent.kinds().last(), Some(&EventKind::RequestComplete));
}

#[tokio::test(start_paused = true)]
async fn websocket_frames_pass_are_dropped_or_close() {
    let frame = || WebSocketFrame {
        correlation_id: Text::from("c"),
        ..WebSocketFrame::default()
    };
    let says = |decision| {
        answers(Response {
            websocket: Some(decision),
            ..Response::allow()
        })
    };
    let code = |does: Does| async move {
        let agent = Scripted::always(does);
        let mut exchange = inspector([("a", rule(FallbackAction::Block(503)), &agent)]).exchange();
        match exchange.websocket(frame()).await.decision {
            WebSocketDecision::Allow => 0,
            WebSocketDecision::Drop => 1,
            WebSocketDecision::Close { code, .. } => code,
        }
    };
    assert_eq!(code(allows()).await, 0);
    assert_eq!(code(says(WebSocketDecision::Drop)).await, 1);
    let close = WebSocketDecision::Close {
        code: 1003,
        reason: "no".to_owned(),
    };
    assert_eq!(code(says(close)).await, 1003);
    assert_eq!(code(answers(Response::block(403))).await, 1008);
    assert_eq!(code(Does::Hangs).await, 1011);
}

#[test]
fn counters_are_written_for_prometheus() {
    let agent = Scripted::always(allows());
    let inspector = inspector([("a\"b", AgentRule::default(), &agent)]);
    let tally = inspector.counters("a\"b").unwrap();
    tally.count_bypassed(EventKind::RequestBody, AgentFault::Timeout);
    let text = inspector.to_openmetrics();
    let line = "hailwire_callout_bypassed_total{agent=\"a\\\"b\",phase=\"request_body_chunk\",fault=\"timeout\"} 1";
    assert!(text.lines().any(|l| l == line), "{text}");
    assert!(text.contains("# TYPE hailwire_callout_observed counter"));
    assert!(text.ends_with("# EOF\n"));
}
