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
    Kind,
    capabilities::Limits,
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
    Fails(Unanswered),
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
        limits: Option<Limits>,
    ) -> Arc<Self> {
        let capabilities = limits.map(|limits| {
            Arc::new(Capabilities {
                events: Kind::ALL.into_iter().collect(),
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

    fn kinds(&self) -> Vec<Kind> {
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

impl Ask for Scripted {
    fn ask(&self, event: Event, deadline: Duration) -> BoxFuture<'_, Result<Response, Unanswered>> {
        if self.down.load(SeqCst) {
            return Box::pin(async { Err(Unanswered::Down) });
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
                return Err(Unanswered::Timeout);
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

fn point(name: &'static str, rule: Rule, agent: &Arc<Scripted>) -> Checkpoint {
    Checkpoint {
        name: Text::from(name),
        rule,
        places: vec![Arc::clone(agent) as Arc<dyn Ask>],
    }
}

fn inspector<const N: usize>(agents: [(&'static str, Rule, &Arc<Scripted>); N]) -> Inspector {
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
fn rule(action: Action) -> Rule {
    let mut rule = Rule::default();
    for phase in &mut rule.phases {
        phase.on = [action; 4];
        phase.timeout = Duration::from_millis(50);
    }
    rule
}

/// Runs an exchange up to a phase and gives what that one said; bodies have two pieces, `first` and `second`.
async fn run(exchange: &mut Exchange, phase: Kind, mid_body: bool) -> Decision {
    let id = "c1";
    let verdict = exchange.request_headers(head(id)).await;
    if phase == Kind::RequestHeaders || !verdict.passes() {
        return verdict.decision;
    }
    for (data, is_last) in [("first", false), ("second", true)] {
        let verdict = exchange
            .request_body(chunk(id, data, is_last))
            .await
            .verdict;
        let asked = phase == Kind::RequestBody && mid_body == is_last;
        if asked || !verdict.passes() {
            return verdict.decision;
        }
    }
    let verdict = exchange.response_headers(answer(id)).await;
    if phase == Kind::ResponseHeaders || !verdict.passes() {
        return verdict.decision;
    }
    for (data, is_last) in [("first", false), ("second", true)] {
        let verdict = exchange.response_body(chunk(id, data, is_last)).await;
        let asked = phase == Kind::ResponseBody && mid_body == is_last;
        if asked || !verdict.verdict.passes() {
            return verdict.verdict.decision;
        }
    }
    Decision::Allow
}

/// Every phase, with how many events come before the one that goes wrong.
const PHASES: [(Kind, bool, usize); 6] = [
    (Kind::RequestHeaders, false, 0),
    (Kind::RequestBody, false, 1),
    (Kind::RequestBody, true, 2),
    (Kind::ResponseHeaders, false, 3),
    (Kind::ResponseBody, false, 4),
    (Kind::ResponseBody, true, 5),
];

/// Every way to go wrong, and what it is taken for.
fn faults() -> [(Does, Fault); 9] {
    let header = |name: &str, value: &str| {
        answers(Response {
            request_headers: vec![set(name, value)],
            ..Response::allow()
        })
    };
    [
        (Does::Hangs, Fault::Timeout),
        (Does::Takes(Duration::from_millis(51)), Fault::Timeout),
        (Does::Fails(Unanswered::Down), Fault::Error),
        (
            Does::Fails(Unanswered::Failed("the connection ended".to_owned())),
            Fault::Error,
        ),
        (Does::Fails(Unanswered::Overload), Fault::Overload),
        (Does::Fails(Unanswered::TooLarge), Fault::BodyTooLarge),
        (answers(Response::block(7)), Fault::Error),
        (header("x", "a\r\nset-cookie: b"), Fault::Error),
        (header("x y", "a"), Fault::Error),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_fault_in_every_phase_has_the_outcome_that_is_configured() {
    for (kind, mid_body, before) in PHASES {
        for (does, fault) in faults() {
            for (action, expected) in [
                (Action::Block(418), blocked(418)),
                (Action::Allow, Decision::Allow),
            ] {
                let script = std::iter::repeat_n(allows(), before).chain([does.clone()]);
                let agent = Scripted::new(script, allows());
                let inspector = inspector([("a", rule(action), &agent)]);
                let mut exchange = inspector.exchange();
                let what = format!("{kind:?} {mid_body} {fault:?} {action:?}");
                let begin = Instant::now();
                assert_eq!(run(&mut exchange, kind, mid_body).await, expected, "{what}");
                assert!(begin.elapsed() <= Duration::from_millis(51), "{what}");
                let tally = inspector.tally("a").unwrap();
                let counts = (tally.blocked(kind, fault), tally.bypassed(kind, fault));
                let expected = match action {
                    Action::Allow => (0, 1),
                    Action::Block(_) => (1, 0),
                };
                assert_eq!(counts, expected, "{what}");
                assert_eq!(tally.bypasses(), counts.1, "{what}");
                let over = exchange.stopped().is_some();
                assert_eq!(over, action != Action::Allow, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_holds_in_one_phase_holds_in_no_other() {
    for (kind, mid_body, before) in PHASES {
        let mut rule = rule(Action::Block(503));
        rule.phase_mut(kind).unwrap().on[Fault::Timeout as usize] = Action::Allow;
        let script = std::iter::repeat_n(allows(), before);
        let agent = Scripted::new(script, Does::Hangs);
        let inspector = inspector([("a", rule, &agent)]);
        let mut exchange = inspector.exchange();
        assert_eq!(
            run(&mut exchange, kind, mid_body).await,
            Decision::Allow,
            "{kind:?}"
        );
        if kind != Kind::ResponseBody {
            let last = run(&mut inspector.exchange(), Kind::ResponseBody, true).await;
            assert_eq!(last, blocked(503), "{kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_observes_changes_nothing_and_what_it_would_do_is_counted() {
    let wrong = faults().map(|(does, _)| does);
    let blocks = answers(Response::block(403));
    for (kind, mid_body, before) in PHASES {
        for does in wrong.iter().chain([&blocks]) {
            let script = std::iter::repeat_n(allows(), before).chain([does.clone()]);
            let agent = Scripted::new(script, allows());
            let observes = Rule {
                observe: true,
                ..rule(Action::Block(503))
            };
            let inspector = inspector([("a", observes, &agent)]);
            let mut exchange = inspector.exchange();
            let passes = run(&mut exchange, Kind::ResponseBody, true).await;
            assert_eq!(passes, Decision::Allow);
            let tally = inspector.tally("a").unwrap();
            assert_eq!(tally.observed(kind), 1, "{kind:?} {mid_body}");
            assert_eq!(tally.bypasses(), 0);
        }
    }
    let changes = Response {
        request_headers: vec![set("a", "b")],
        ..mutated("changed")
    };
    let observes = Rule {
        observe: true,
        ..Rule::default()
    };
    let agent = Scripted::always(answers(changes));
    let mut exchange = inspector([("a", observes, &agent)]).exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict, Verdict::default());
    let body = exchange.request_body(chunk("c", "as it was", true)).await;
    assert_eq!(body.data, "as it was");
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
        ("first", Rule::default(), &first),
        ("second", Rule::default(), &second),
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
        ("first", Rule::default(), &first),
        ("stops", Rule::default(), &stops),
        ("unasked", Rule::default(), &unasked),
    ]);
    let mut exchange = all.exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict.decision, redirect);
    assert_eq!(verdict.request_headers, [set("a", "1")]);
    assert_eq!(verdict.audits[0].0, "stops");
    assert!(unasked.kinds().is_empty());
    assert_eq!(all.tally("stops").unwrap().stopped(Kind::RequestHeaders), 1);

    // What comes after is not shown to anybody.
    assert!(!exchange.wants(Kind::RequestBody));
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
    let rule = Rule {
        events: Some(
            [Kind::RequestBody, Kind::ResponseHeaders]
                .into_iter()
                .collect(),
        ),
        ..Rule::default()
    };
    let mut exchange = inspector([("a", rule, &agent)]).exchange();
    assert!(exchange.wants(Kind::RequestBody) && !exchange.wants(Kind::RequestHeaders));
    assert_eq!(
        run(&mut exchange, Kind::ResponseBody, true).await,
        Decision::Allow
    );
    exchange.complete(complete("c1")).await;
    let (body, head) = (Kind::RequestBody, Kind::ResponseHeaders);
    assert_eq!(agent.kinds(), [body, body, head]);
}

#[tokio::test]
async fn a_body_goes_from_one_agent_to_the_next_as_the_one_before_left_it() {
    let script = [
        answers(mutated("one")),
        answers(mutated("")),
        answers(Response::allow()),
    ];
    let first = Scripted::new(script, allows());
    let second = Scripted::always(allows());
    let mut exchange = inspector([
        ("first", Rule::default(), &first),
        ("second", Rule::default(), &second),
    ])
    .exchange();
    let mut gone = Vec::new();
    for (data, is_last) in [("1", false), ("2", false), ("3", true)] {
        let chunk = BodyChunk {
            total_size: Some(3),
            ..chunk("c", data, is_last)
        };
        gone.push(exchange.request_body(chunk).await.data);
    }
    assert_eq!(gone, ["one", "", "3"]);
    assert_eq!(first.bodies(), ["1", "2", "3"]);
    assert_eq!(second.bodies(), ["one", "3"]);
    let asked = second.asked.lock().unwrap();
    let Event::RequestBody(last) = &asked[1] else {
        panic!("{asked:?}");
    };
    assert_eq!((last.index, last.transferred), (1, 4));
}

#[tokio::test]
async fn what_an_agent_has_not_decided_on_is_held_back() {
    let script = [
        answers(wants_more()),
        answers(Response {
            needs_more: true,
            ..Response::block(403)
        }),
        allows(),
        answers(wants_more()),
        answers(wants_more()),
    ];
    let agent = Scripted::new(script, allows());
    let inspector = inspector([("a", Rule::default(), &agent)]);
    let mut exchange = inspector.exchange();
    let mut gone = Vec::new();
    for (data, is_last) in [
        ("1", false),
        ("2", false),
        ("3", false),
        ("4", false),
        ("5", true),
    ] {
        gone.push(exchange.request_body(chunk("c", data, is_last)).await.data);
    }
    assert_eq!(gone, ["", "", "123", "", "45"], "nothing stays at the end");

    let decides = [answers(wants_more()), answers(Response::block(403))];
    let agent = Scripted::new(decides, allows());
    let mut exchange = super::tests::inspector([("a", Rule::default(), &agent)]).exchange();
    assert!(
        exchange
            .request_body(chunk("c", "1", false))
            .await
            .data
            .is_empty()
    );
    let early = exchange.request_body(chunk("c", "2", false)).await;
    assert_eq!(early.verdict.decision, blocked(403));
    assert!(early.data.is_empty());
}

#[tokio::test]
async fn a_provisional_block_at_the_end_of_a_body_is_a_block() {
    let agent = Scripted::always(answers(Response {
        needs_more: true,
        ..Response::block(403)
    }));
    let mut exchange = inspector([("a", Rule::default(), &agent)]).exchange();
    assert!(
        exchange
            .request_body(chunk("c", "1", false))
            .await
            .verdict
            .passes()
    );
    let last = exchange.request_body(chunk("c", "2", true)).await;
    assert_eq!(last.verdict.decision, blocked(403));
    assert!(last.data.is_empty());
    let mut exchange = inspector([("a", Rule::default(), &agent)]).exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict.decision, blocked(403), "no body may come");
}

#[tokio::test]
async fn more_is_held_back_than_may_be_and_the_rule_decides() {
    for (action, mode) in [
        (Action::Block(413), BodyMode::Stream),
        (Action::Allow, BodyMode::Stream),
        (Action::Block(413), BodyMode::Buffer),
        (Action::Allow, BodyMode::Buffer),
    ] {
        let agent = Scripted::always(answers(wants_more()));
        let mut rule = rule(action);
        rule.buffer_size = 5;
        rule.request_body.mode = mode;
        let inspector = inspector([("a", rule, &agent)]);
        let mut exchange = inspector.exchange();
        let first = exchange.request_body(chunk("c", "12345", false)).await;
        assert!(first.data.is_empty() && first.verdict.passes());
        let second = exchange.request_body(chunk("c", "6", false)).await;
        let third = exchange.request_body(chunk("c", "7", true)).await;
        let tally = inspector.tally("a").unwrap();
        let counts = (
            tally.blocked(Kind::RequestBody, Fault::BodyTooLarge),
            tally.bypasses(),
        );
        match action {
            Action::Block(status) => {
                assert_eq!(second.verdict.decision, blocked(status));
                assert!(second.data.is_empty() && third.data.is_empty());
                assert_eq!(counts, (1, 0));
            }
            Action::Allow => {
                assert_eq!(
                    (&second.data[..], &third.data[..]),
                    (&b"123456"[..], &b"7"[..])
                );
                assert_eq!(counts, (0, 1), "once for the body");
            }
        }
    }
}

#[tokio::test]
async fn a_buffered_body_is_shown_whole() {
    let agent = Scripted::always(allows());
    let mut rule = Rule::default();
    rule.request_body.mode = BodyMode::Buffer;
    let mut exchange = inspector([("a", rule, &agent)]).exchange();
    let mut gone = Vec::new();
    for (data, is_last) in [("1", false), ("2", false), ("", true)] {
        gone.push(exchange.request_body(chunk("c", data, is_last)).await.data);
    }
    assert_eq!(gone, ["", "", "12"]);
    assert_eq!(agent.bodies(), ["12"]);
}

#[tokio::test]
async fn a_body_larger_than_what_an_agent_takes_is_not_shown_to_it() {
    let limits = Limits {
        max_body_size: 5,
        ..Limits::default()
    };
    for (action, announced) in [
        (Action::Block(413), false),
        (Action::Block(413), true),
        (Action::Allow, false),
        (Action::Allow, true),
    ] {
        let agent = Scripted::stating([], allows(), Some(limits));
        let inspector = inspector([("a", rule(action), &agent)]);
        let mut exchange = inspector.exchange();
        let total = announced.then_some(6);
        let mut gone = Vec::new();
        for (data, is_last) in [("12345", false), ("6", true)] {
            let chunk = BodyChunk {
                total_size: total,
                ..chunk("c", data, is_last)
            };
            gone.push(exchange.request_body(chunk).await);
        }
        let shown: usize = agent.bodies().iter().map(Bytes::len).sum();
        assert_eq!(shown, if announced { 0 } else { 5 });
        assert_eq!(gone[1].verdict.passes(), action == Action::Allow);
        let bypasses = inspector.tally("a").unwrap().bypasses();
        assert_eq!(bypasses, u64::from(action == Action::Allow));
        if action == Action::Allow {
            assert_eq!(
                (&gone[0].data[..], &gone[1].data[..]),
                (&b"12345"[..], &b"6"[..])
            );
        }
    }
    let agent = Scripted::stating([], allows(), Some(limits));
    let mut own = rule(Action::Block(413));
    own.request_body.max = Some(6);
    let mut exchange = inspector([("a", own, &agent)]).exchange();
    let body = exchange.request_body(chunk("c", "123456", true)).await;
    assert!(body.verdict.passes(), "the operator's word counts");
}

#[tokio::test]
async fn a_large_piece_is_shown_in_the_pieces_that_an_agent_prefers() {
    let limits = Limits {
        preferred_chunk_size: 1 << 10,
        ..Limits::default()
    };
    let script = [allows(), answers(mutated("-")), allows()];
    let agent = Scripted::stating(script, allows(), Some(limits));
    let mut exchange = inspector([("a", Rule::default(), &agent)]).exchange();
    let data = Bytes::from(vec![b'x'; 2500]);
    let out = exchange.request_body(chunk("c", data, true)).await;
    assert_eq!(out.data.len(), 1024 + 1 + 452);
    let asked = agent.asked.lock().unwrap();
    let parts: Vec<_> = asked
        .iter()
        .map(|event| match event {
            Event::RequestBody(c) => (c.index, c.data.len(), c.transferred, c.is_last),
            _ => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(
        parts,
        [
            (0, 1024, 1024, false),
            (1, 1024, 2048, false),
            (2, 452, 2500, true)
        ]
    );
}

#[tokio::test]
async fn after_a_bypass_in_mid_body_the_rest_is_not_shown() {
    let script = [allows(), Does::Fails(Unanswered::Overload)];
    let agent = Scripted::new(script, answers(Response::block(403)));
    let inspector = inspector([("a", rule(Action::Allow), &agent)]);
    let mut exchange = inspector.exchange();
    for (data, is_last) in [("1", false), ("2", false), ("3", true)] {
        let out = exchange.request_body(chunk("c", data, is_last)).await;
        assert!(out.verdict.passes());
        assert_eq!(out.data, data);
    }
    assert_eq!(agent.bodies(), ["1", "2"]);
    assert_eq!(inspector.tally("a").unwrap().bypasses(), 1);
    let response = exchange.response_headers(answer("c")).await;
    assert_eq!(
        response.decision,
        blocked(403),
        "other phases are asked about"
    );
}

#[tokio::test]
async fn the_next_place_is_asked_where_one_is_full_down_or_fails_but_not_in_mid_body() {
    let failures = [
        Unanswered::Down,
        Unanswered::Overload,
        Unanswered::Failed("gone".to_owned()),
    ];
    for why in failures {
        let (near, far) = (
            Scripted::new([allows(), allows()], Does::Fails(why)),
            Scripted::always(allows()),
        );
        let mut point = point("a", Rule::default(), &near);
        point.places.push(Arc::clone(&far) as Arc<dyn Ask>);
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
        assert_eq!(far.kinds(), [Kind::RequestHeaders, Kind::RequestBody]);
    }
    let (near, far) = (Scripted::always(Does::Hangs), Scripted::always(allows()));
    let mut point = point("a", rule(Action::Block(504)), &near);
    point.places.push(Arc::clone(&far) as Arc<dyn Ask>);
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
    let inspector = inspector([("a", Rule::default(), &old)]);
    let mut begun = inspector.exchange();
    assert!(begun.request_headers(head("c")).await.passes());
    inspector.replace(vec![point("a", Rule::default(), &new)]);
    assert!(
        begun
            .request_body(chunk("c", "1", true))
            .await
            .verdict
            .passes()
    );
    assert_eq!(old.kinds(), [Kind::RequestHeaders, Kind::RequestBody]);
    let verdict = inspector.exchange().request_headers(head("d")).await;
    assert_eq!(verdict.decision, blocked(403));
    let tally = inspector.tally("a").unwrap();
    assert_eq!(tally.asked(Kind::RequestHeaders), 2, "counters go on");
}

#[tokio::test]
async fn a_dropped_exchange_is_cancelled_and_a_complete_one_is_not() {
    let agent = Scripted::always(allows());
    let unasked = Scripted::always(allows());
    let nothing = Rule {
        events: Some([Kind::ResponseBody].into_iter().collect()),
        ..Rule::default()
    };
    let inspector = inspector([("a", Rule::default(), &agent), ("b", nothing, &unasked)]);
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
    assert_eq!(agent.kinds().last(), Some(&Kind::RequestComplete));
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
        let mut exchange = inspector([("a", rule(Action::Block(503)), &agent)]).exchange();
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
    let inspector = inspector([("a\"b", Rule::default(), &agent)]);
    let tally = inspector.tally("a\"b").unwrap();
    tally.bypass(Kind::RequestBody, Fault::Timeout);
    let text = inspector.to_prometheus();
    let line = "hail_callout_bypassed_total{agent=\"a\\\"b\",phase=\"request_body_chunk\",fault=\"timeout\"} 1";
    assert!(text.lines().any(|l| l == line), "{text}");
    assert!(text.contains("# TYPE hail_callout_observed_total counter"));
}

mod pipelined;

/// With real agents: what they cost, and what becomes of a configuration that changes.
mod real {
    use std::path::Path;

    use super::*;
    use crate::{Agent, agent, event};

    /// Long enough for any step of a test on a busy machine; reaching it is a failure.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// An agent that adds its name to what passes.
    struct Named(&'static str);

    impl Agent for Named {
        fn name(&self) -> &str {
            self.0
        }

        async fn request_headers(&self, _: event::RequestHeaders) -> Response {
            Response {
                request_headers: vec![set("x-agent", self.0)],
                ..Response::allow()
            }
        }
    }

    fn served(name: &'static str, socket: &Path) -> tokio::task::JoinHandle<()> {
        let listener = agent::uds::Listener::bind(socket).unwrap();
        tokio::spawn(async move {
            let options = agent::ServeOptions::default();
            let _ = agent::uds::serve(Arc::new(Named(name)), listener, &options).await;
        })
    }

    fn configured(text: &str) -> Config {
        Config::parse(text, Path::new("callout.kdl")).unwrap()
    }

    async fn asked(inspector: &Inspector, id: &str) -> Vec<String> {
        let verdict = inspector.exchange().request_headers(head(id)).await;
        assert!(verdict.passes(), "{verdict:?}");
        let values = verdict.request_headers.iter().map(|op| match op {
            HeaderOp::Set { value, .. } => value.clone(),
            other => panic!("{other:?}"),
        });
        values.collect()
    }

    #[tokio::test]
    async fn a_reload_under_load_drops_no_request_and_keeps_pools_that_did_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        let _served = (served("one", &one), served("two", &two));
        let agents = |names: &[(&str, &Path, u32)]| {
            let agents: String = names
                .iter()
                .map(|(name, socket, timeout)| {
                    format!("agent {name:?} {{ binary-uds {socket:?}; timeout-ms {timeout} }}\n")
                })
                .collect();
            configured(&format!("agents {{ {agents} }}"))
        };
        let first = agents(&[("a", &one, 10_000)]);
        let inspector = Arc::new(Inspector::from_config(&first, &|_, _| None).unwrap());
        assert!(inspector.ready(PATIENCE).await);
        let asking = Arc::clone(&inspector);
        let load = tokio::spawn(async move {
            let mut seen = std::collections::BTreeSet::new();
            for n in 0..2_000 {
                seen.insert(asked(&asking, &format!("load-{n}")).await);
            }
            seen
        });
        for n in 0..20_u32 {
            let (timeout, both) = (10_000 + n, n % 2 == 0);
            let second = agents(&[("a", &one, timeout), ("b", &two, timeout)]);
            let config = match both {
                true => second,
                false => agents(&[("a", &one, timeout)]),
            };
            let kept = Arc::clone(&inspector.pools.lock().unwrap()[0]);
            inspector.reload(&config, &|_, _| None).unwrap();
            let now = Arc::clone(&inspector.pools.lock().unwrap()[0]);
            assert!(Arc::ptr_eq(&kept, &now), "what did not change");
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }
        let seen = load.await.unwrap();
        assert!(seen.len() <= 2, "{seen:?}");
        for agent in ["a", "b"] {
            let Some(tally) = inspector.tally(agent) else {
                continue;
            };
            for fault in Fault::ALL {
                assert_eq!(tally.blocked(Kind::RequestHeaders, fault), 0, "{agent}");
            }
        }
        let elsewhere = agents(&[("a", &two, 10_000)]);
        inspector.reload(&elsewhere, &|_, _| None).unwrap();
        assert_eq!(asked(&inspector, "later").await, ["two"]);
    }

    #[tokio::test]
    async fn a_place_that_cannot_be_reached_is_told_and_changes_nothing() {
        let far = configured("agents { agent \"a\" { hail \"waf@edge-2\" } }");
        let inspector = Inspector::from_config(&Config::default(), &|_, _| None).unwrap();
        let error = inspector.reload(&far, &|_, _| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`a` is at a place that cannot be reached from here: hail waf@edge-2"
        );
        assert!(inspector.exchange().points_are_empty());
    }

    #[tokio::test]
    async fn agents_that_connect_by_themselves_are_asked_as_many_as_are_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("arrivals");
        let config = configured(&format!(
            "agents {{ agent \"dials\" {{ reverse; timeout-ms 10000; pool {{ connections 2 }} }} }}\n\
             listen {{ reverse {socket:?} }}"
        ));
        let arrivals = Arrivals::default();
        let reach = |_: &config::AgentConfig, place: &config::Place| match place {
            config::Place::Reverse(id) => Some(arrivals.of(id)),
            _ => None,
        };
        let inspector = Inspector::from_config(&config, &reach).unwrap();
        let (listens, at) = (arrivals.clone(), socket.clone());
        let _listening = tokio::spawn(async move {
            let options = crate::host::reverse::ReverseOptions {
                shared_tokens: vec!["sesame-open".to_owned()],
                ..Default::default()
            };
            let socket = agent::uds::Listener::bind(at).unwrap();
            listens.listen(&socket, options).await
        });
        let dial = |token: &str| {
            let options = agent::reverse::DialOptions {
                token: Some(token.to_owned()),
                least_pause: Duration::from_millis(1),
                longest_pause: Duration::from_millis(20),
                ..Default::default()
            };
            let socket = socket.clone();
            tokio::spawn(async move {
                let _ = agent::reverse::dial(Arc::new(Named("dials")), socket, &options).await;
            })
        };
        let _wrong = dial("sesame-shut");
        assert!(!inspector.ready(Duration::from_millis(200)).await);
        let _dialled = (
            dial("sesame-open"),
            dial("sesame-open"),
            dial("sesame-open"),
        );
        assert!(inspector.ready(PATIENCE).await);
        assert_eq!(asked(&inspector, "c").await, ["dials"]);
    }
}
