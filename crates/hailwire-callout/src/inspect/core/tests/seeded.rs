//! Requests in random orders of events, in virtual time.
//!
//! Agents and their endpoints are drawn from a seed: some answer late, twice, out of order or never, some refuse, some say what
//! cannot be meant. A proxy shows a request, waits for one part or another, and may give up at any moment.

use super::{
    seeds::{Draws, for_each_seed},
    *,
};
use crate::inspect::BodyMode;

/// Seeds that once failed, each with what was wrong.
const KEPT: &[u64] = &[];

const PARTS: [RequestPart; 3] = [
    RequestPart::Whole,
    RequestPart::RequestBody,
    RequestPart::ResponseBody,
];

/// The status of answers that nobody waits for.
const STRAY: u16 = 599;

/// A call that is under way.
struct PendingCall {
    call: CallId,
    kind: EventKind,
    /// When its time begins, if it has.
    begun: Option<Instant>,
    deadline: Duration,
    /// The longest that its endpoint may take.
    longest: Duration,
    /// When the agent answers.
    ready: Instant,
    answer: Result<Response, CallError>,
    /// Its endpoint does not say when the time is over.
    silent: bool,
}

impl PendingCall {
    /// When its endpoint says something, and what; `None` where that is never.
    fn outcome(&self) -> Option<(Instant, Result<Response, CallError>)> {
        let timeout = self.begun.map(|begun| begun + self.deadline);
        match timeout {
            _ if self.silent => None,
            Some(timeout) if timeout < self.ready => Some((timeout, Err(CallError::Timeout))),
            _ => Some((self.ready, self.answer.clone())),
        }
    }

    /// Whether the core is to give up on it.
    fn is_overdue(&self, now: Instant) -> bool {
        let due = |begun| begun + self.longest + Duration::from_secs(1);
        self.begun.is_some_and(|begun| due(begun) <= now)
    }
}

/// What was shown of a body, what came of it, and what agents were asked of it.
#[derive(Default)]
struct BodyLedger {
    shown: Vec<u8>,
    chunks: usize,
    passed: Vec<u8>,
    verdicts: usize,
    stopped: bool,
    ended: bool,
    /// By agent: the next index and bytes so far, and what it was shown.
    asked: Vec<(u32, Vec<u8>)>,
    /// By agent.
    faults: Vec<u32>,
}

/// A request, and all that is around it.
struct RequestWorld {
    draws: Draws,
    now: Instant,
    core: TestCore,
    pending: Vec<PendingCall>,
    /// Calls whose answers nobody waits for any more.
    late: Vec<CallId>,
    bodies: [BodyLedger; 2],
    /// How often something goes wrong, in a hundred.
    wrong: u32,
    /// The first decision against the request.
    decision: Option<Decision>,
    /// How often it was reported that there is no answer to an event that stands for itself.
    reports: u32,
    /// Another endpoint was asked last.
    again: bool,
    /// An agent took something out of a body.
    changed: bool,
    completing: bool,
}

const BODIES: [EventKind; 2] = [EventKind::RequestBody, EventKind::ResponseBody];

fn body_of(kind: EventKind) -> Option<usize> {
    BODIES.iter().position(|body| *body == kind)
}

/// An agent with a rule that is drawn.
fn agent(draws: &mut Draws) -> TestAgent {
    let mut rule = AgentRule {
        observe: draws.percent(15),
        buffer_size: draws.one_of(&[0, 8, 40, 64 << 10]),
        ..AgentRule::default()
    };
    for phase in &mut rule.phases {
        phase.timeout = Duration::from_millis(u64::from(1 + draws.below(60)));
        for action in &mut phase.on {
            if draws.percent(50) {
                *action = FallbackAction::Allow;
            }
        }
    }
    for body in [&mut rule.request_body, &mut rule.response_body] {
        if draws.percent(20) {
            body.mode = BodyMode::Buffer;
        }
        if draws.percent(10) {
            body.max = Some(u64::from(draws.below(60)));
        }
    }
    let endpoints = draws.one_of(&[0, 1, 1, 1, 2, 3]);
    let mut agent = TestAgent::new(rule).at_endpoints(endpoints);
    agent.stretch = 1 + draws.below(3);
    if draws.percent(50) {
        let limits = AgentLimits {
            preferred_chunk_size: 1,
            ..AgentLimits::default()
        };
        agent = agent.stating(limits);
    }
    agent
}

impl RequestWorld {
    fn new(seed: u64) -> Self {
        let mut draws = Draws::new(seed, 1);
        let agents: Vec<TestAgent> = (0..1 + draws.below(3)).map(|_| agent(&mut draws)).collect();
        let ledger = || BodyLedger {
            asked: vec![(0, Vec::new()); agents.len()],
            faults: vec![0; agents.len()],
            ..BodyLedger::default()
        };
        Self {
            now: start(),
            bodies: [ledger(), ledger()],
            core: RequestCore::new(agents),
            pending: Vec::new(),
            late: Vec::new(),
            wrong: draws.one_of(&[0, 2, 10, 40]),
            draws,
            decision: None,
            reports: 0,
            again: false,
            changed: false,
            completing: false,
        }
    }

    /// What an agent answers to an event.
    fn answer(&mut self, event: &Event) -> Result<Response, CallError> {
        let failed = CallError::Failed("gone".to_owned());
        let wrong = self.draws.percent(self.wrong);
        if wrong {
            return match self.draws.below(7) {
                0 => Err(CallError::Down),
                1 => Err(CallError::Overload),
                2 => Err(CallError::TooLarge),
                3 => Err(failed),
                4 => block(7),
                _ => block(403),
            };
        }
        let Some(chunk) = shown(event) else {
            return allow();
        };
        match self.draws.below(8) {
            0 => wants_more(),
            1 => mutation(chunk.data.clone()),
            2 if self.wrong > 0 => {
                self.changed = true;
                mutation(Bytes::new())
            }
            _ => allow(),
        }
    }

    /// Carries out what is to be done, and holds it against what was done before.
    fn carry_out(&mut self, asks: bool) {
        while let Some(action) = self.core.poll_action() {
            match action {
                RequestAction::Ask(ask) => {
                    assert!(asks, "asked after the end: {ask:?}");
                    self.ask(&ask);
                }
                RequestAction::StartDeadline(call) => {
                    let mut calls = self.pending.iter_mut();
                    let pending = calls.find(|pending| pending.call == call);
                    let pending = pending.expect("only what is under way is waited for");
                    assert_eq!(pending.begun.replace(self.now), None, "it begins once");
                }
                RequestAction::Abandon { agent, part } => {
                    let gone = |call: CallId| call.agent == agent && call.part == part;
                    let calls = self.pending.extract_if(.., |pending| gone(pending.call));
                    self.late.extend(calls.map(|pending| pending.call));
                }
                RequestAction::Cancel { .. } | RequestAction::Forget { .. } => {}
                RequestAction::Report {
                    agent,
                    kind,
                    report,
                } => self.report(agent, kind, &report),
            }
        }
        let stopped = self.core.stopped();
        assert_ne!(stopped, Some(&blocked(STRAY)), "nobody waits for it");
        match (&self.decision, stopped) {
            (Some(first), now) => assert_eq!(Some(first), now, "a decision is final"),
            (None, now) => self.decision = now.cloned(),
        }
    }

    fn ask(&mut self, ask: &AgentAsk) {
        self.again = ask.again;
        let kind = ask.event.kind();
        if let (Some(body), Some(chunk), false) = (body_of(kind), shown(&ask.event), ask.again) {
            let (index, seen) = &mut self.bodies[body].asked[ask.call.agent];
            seen.extend_from_slice(&chunk.data);
            assert_eq!(
                (chunk.index, chunk.transferred),
                (*index, seen.len() as u64)
            );
            *index += 1;
        }
        let TestAgent { rule, stretch, .. } = &self.core.agents()[ask.call.agent];
        let longest = ask.deadline * *stretch;
        assert!(ask.deadline <= rule.phase(kind).timeout);
        let known = self.pending.iter().any(|pending| pending.call == ask.call);
        assert!(!known, "asked twice: {ask:?}");
        let answer = self.answer(&ask.event);
        let slow = self.draws.percent(self.wrong / 2);
        let takes = self.draws.below(if slow { 200 } else { 8 });
        self.pending.push(PendingCall {
            call: ask.call,
            kind,
            longest,
            begun: (!ask.queued).then_some(self.now),
            deadline: ask.deadline,
            ready: self.now + Duration::from_millis(u64::from(takes)),
            answer,
            silent: self.draws.percent(self.wrong / 4),
        });
    }

    fn report(&mut self, agent: usize, kind: EventKind, report: &AgentReport) {
        let fault = matches!(
            report,
            AgentReport::Blocked(..) | AgentReport::Bypassed(..) | AgentReport::WouldBlock(..)
        );
        match body_of(kind) {
            Some(body) if fault => {
                let faults = &mut self.bodies[body].faults[agent];
                *faults += 1;
                assert_eq!(*faults, 1, "the rule is applied once to a body");
            }
            None if fault || matches!(report, AgentReport::Untold(_)) => self.reports += 1,
            _ => {}
        }
    }

    /// Something happens: an answer comes, a timer goes off, each perhaps late.
    fn step(&mut self, part: RequestPart) {
        if self.draws.percent(10) {
            self.stray();
        }
        let outcomes = self.pending.iter().enumerate();
        let next = outcomes.filter_map(|(n, pending)| Some((pending.outcome()?.0, n)));
        let next = next.min();
        let late = Duration::from_millis(u64::from(self.draws.below(3) * self.draws.below(300)));
        let timer = self.core.poll_timeout(part).map(|due| due + late);
        match (next, timer) {
            (Some((when, n)), timer) if timer.is_none_or(|timer| when <= timer) => {
                self.now = self.now.max(when);
                let pending = self.pending.remove(n);
                let (_, answer) = pending.outcome().expect("it is there");
                self.deliver(&pending, answer);
            }
            (_, Some(timer)) => {
                self.now = self.now.max(timer);
                self.time_out(part);
            }
            (_, None) => panic!("{part:?} waits for nothing"),
        }
    }

    fn may_ask(&self) -> bool {
        self.decision.is_none() || self.completing
    }

    fn deliver(&mut self, pending: &PendingCall, answer: Result<Response, CallError>) {
        let (before, may_ask) = (self.reports, self.may_ask());
        let expected = self.expected_reports(pending, &answer);
        self.again = false;
        self.core.handle_answer(self.now, pending.call, answer);
        self.late.push(pending.call);
        self.carry_out(may_ask);
        if pending.call.part == RequestPart::Whole && !self.again {
            assert_eq!(self.reports - before, expected, "{:?}", pending.call);
        }
    }

    /// How often the absence of an answer to an event that stands for itself is reported.
    fn expected_reports(&self, pending: &PendingCall, answer: &Result<Response, CallError>) -> u32 {
        let rule = &self.core.agents()[pending.call.agent].rule;
        let fault = match answer {
            Ok(_) if *answer != block(7) => return 0,
            Ok(_) | Err(CallError::Down | CallError::Failed(_)) => AgentFault::Error,
            Err(CallError::Timeout) => AgentFault::Timeout,
            Err(CallError::Overload) => AgentFault::Overload,
            Err(CallError::TooLarge) => AgentFault::BodyTooLarge,
        };
        match pending.kind {
            EventKind::RequestComplete => u32::from(answer.is_err()),
            kind => {
                let passes = rule.on(kind, fault) == FallbackAction::Allow;
                u32::from(!(passes && rule.observe))
            }
        }
    }

    fn time_out(&mut self, part: RequestPart) {
        let (before, may_ask, now) = (self.reports, self.may_ask(), self.now);
        let overdue = |pending: &mut PendingCall| {
            pending.call.part == RequestPart::Whole
                && part == RequestPart::Whole
                && pending.is_overdue(now)
        };
        let overdue: Vec<_> = self.pending.extract_if(.., overdue).collect();
        let expected = overdue.iter().map(|pending| {
            let timeout = Err(CallError::Timeout);
            self.expected_reports(pending, &timeout)
        });
        let expected: u32 = expected.sum();
        self.late.extend(overdue.iter().map(|pending| pending.call));
        self.core.handle_timeout(now, part);
        self.carry_out(may_ask);
        assert_eq!(self.reports - before, expected);
        let mut left = self.pending.iter();
        let kept = left.find(|pending| pending.call.part == part && pending.is_overdue(now));
        assert!(
            kept.is_none(),
            "still waited for: {:?}",
            kept.map(|kept| kept.call)
        );
    }

    /// An answer that nobody waits for, or a timer that is too early: nothing changes.
    fn stray(&mut self) {
        let dues = |core: &TestCore| PARTS.map(|part| core.poll_timeout(part));
        let before = dues(&self.core);
        // Another endpoint of an agent is asked under the number of the one before it.
        let pending = |call: &CallId| self.pending.iter().any(|pending| pending.call == *call);
        let late: Vec<_> = self
            .late
            .iter()
            .filter(|call| !pending(call))
            .copied()
            .collect();
        if !late.is_empty() {
            let call = self.draws.one_of(&late);
            self.core.handle_answer(self.now, call, block(STRAY));
        }
        if before[0].is_none_or(|due| due > self.now) {
            self.core.handle_timeout(self.now, RequestPart::Whole);
        }
        assert_eq!(dues(&self.core), before);
        assert!(self.core.poll_action().is_none(), "something changed");
        assert_eq!(self.core.stopped(), self.decision.as_ref());
    }

    /// Shows an event that stands for itself, and waits for what becomes of it.
    fn round(&mut self, event: Event) {
        let stopped = self.decision.clone();
        self.core.handle_event(self.now, event);
        self.carry_out(stopped.is_none());
        let out = loop {
            if let Some(out) = self.core.poll_round() {
                break out;
            }
            self.step(RequestPart::Whole);
        };
        match self.core.stopped() {
            Some(decision) => assert_eq!(&out.verdict.decision, decision),
            None => assert!(out.verdict.passes()),
        }
        assert_eq!(self.core.poll_round(), None);
    }

    /// Shows a chunk of a body, and does not wait.
    fn show(&mut self, body: usize, last: bool) {
        let length = self.draws.one_of(&[0, 1, 7, 30, 1500]);
        let ledger = &mut self.bodies[body];
        let from = ledger.shown.len();
        let data: Vec<u8> = (from..from + length).map(|at| (at % 251) as u8).collect();
        ledger.shown.extend_from_slice(&data);
        ledger.chunks += 1;
        ledger.ended = last;
        let stopped = self.decision.is_some();
        self.core
            .handle_chunk(self.now, BODIES[body], chunk(data, last));
        self.carry_out(!stopped);
    }

    /// Waits for the verdict on the next chunk of a body. False where none is under way.
    fn verdict(&mut self, body: usize) -> bool {
        let (kind, part) = (BODIES[body], RequestPart::of(BODIES[body]));
        let out = loop {
            if let Some(out) = self.core.poll_verdict(kind) {
                break out;
            }
            if !self.core.is_under_way(kind) {
                return false;
            }
            let stopped = self.decision.is_some();
            self.core.decide(self.now, part);
            self.carry_out(!stopped);
            if let Some(out) = self.core.poll_verdict(kind) {
                break out;
            }
            self.step(part);
        };
        let ledger = &mut self.bodies[body];
        ledger.verdicts += 1;
        if out.verdict.passes() {
            assert!(!ledger.stopped, "nothing passes after a stop");
        } else {
            assert_eq!(Some(&out.verdict.decision), self.decision.as_ref());
            assert!(out.data.is_empty());
            ledger.stopped = true;
        }
        ledger.passed.extend_from_slice(&out.data);
        true
    }

    /// Tells agents that the request has ended, and waits until all have heard it.
    fn complete(&mut self) {
        self.completing = true;
        self.core.handle_complete(self.now, &complete());
        self.carry_out(true);
        while self.core.is_asking() {
            self.step(RequestPart::Whole);
        }
    }

    /// The request is over, or its client is gone.
    fn end(&mut self) {
        self.core.handle_end();
        self.carry_out(false);
        for pending in std::mem::take(&mut self.pending) {
            self.core
                .handle_answer(self.now, pending.call, block(STRAY));
        }
        self.now += Duration::from_secs(60);
        for part in PARTS {
            self.core.decide(self.now, part);
            self.core.handle_timeout(self.now, part);
            assert_eq!(self.core.poll_timeout(part), None);
        }
        assert!(self.core.poll_action().is_none(), "something after the end");
        assert!(!self.core.is_asking());
    }

    /// What agents were asked of a body, and what of it has passed: in order, and nothing twice.
    fn check(&self, body: usize) {
        let ledger = &self.bodies[body];
        let agents = self.core.agents();
        assert_eq!(ledger.verdicts, ledger.chunks, "a verdict for each chunk");
        let whole = ledger.ended && !ledger.stopped;
        if !self.changed {
            assert!(ledger.shown.starts_with(&ledger.passed), "in order");
            assert!(
                !whole || ledger.shown == ledger.passed,
                "nothing is kept back"
            );
        }
        for (agent, (_, asked)) in ledger.asked.iter().enumerate() {
            if self.changed && agent > 0 {
                continue;
            }
            assert!(ledger.shown.starts_with(asked), "in order");
            // What an agent that observes may miss is not always reported.
            let sure = whole && ledger.faults[agent] == 0 && !agents[agent].rule.observe;
            assert!(
                !sure || *asked == ledger.shown,
                "the agent has seen all of it"
            );
        }
    }
}

/// A proxy shows a request, in the order of the protocol or nearly so.
fn follow(seed: u64) {
    let mut world = RequestWorld::new(seed);
    if world.draws.percent(70) {
        world.round(head());
    }
    for body in 0..BODIES.len() {
        let chunks = world.draws.below(10);
        for n in 1..=chunks {
            let last = n == chunks && world.draws.percent(80);
            world.show(body, last);
            while world.draws.percent(30) && world.verdict(body) {}
            if world.draws.percent(8) {
                let event = world.draws.one_of(&[head(), text("text"), frame()]);
                world.round(event);
            }
            if world.draws.percent(2) {
                return world.end();
            }
        }
        while world.draws.percent(90) && world.verdict(body) {}
    }
    for body in 0..BODIES.len() {
        while world.verdict(body) {}
        world.check(body);
    }
    if world.draws.percent(70) {
        world.complete();
    }
    world.end();
}

#[test]
fn whatever_agents_answer_and_when_a_request_is_decided_once_and_in_order() {
    for_each_seed(KEPT, 20_000, follow);
}

/// One agent is shown a body, with all chunks under way at once or one after the other. Gives what passes, and the decision.
fn shown_to_one(seed: u64, together: bool) -> (Vec<u8>, Option<Decision>) {
    let mut draws = Draws::new(seed, 2);
    let mut agent = agent(&mut draws);
    agent.endpoints = 1;
    let mut core = RequestCore::new(vec![agent]);
    let wrong = draws.one_of(&[0, 5, 20]);
    let chunks: Vec<usize> = (0..1 + draws.below(12))
        .map(|_| draws.one_of(&[0, 1, 7, 30, 1500]))
        .collect();
    // What the agent says to each fragment, whenever it is shown.
    let script: Vec<_> = (0..64)
        .map(|_| match (draws.percent(wrong), draws.below(6)) {
            (true, 0) => block(403),
            (true, 1) => Err(CallError::Overload),
            (true, 2) => mutated(""),
            (false, 0 | 1) => wants_more(),
            (false, 2) => mutated("changed"),
            _ => allow(),
        })
        .collect();
    let (mut passed, mut order) = (Vec::new(), Draws::new(seed, 3));
    for (n, length) in chunks.iter().enumerate() {
        let data = vec![b'a' + n as u8; *length];
        core.handle_chunk(start(), BODIES[0], chunk(data, n + 1 == chunks.len()));
        if !together || n + 1 == chunks.len() {
            take_all(&mut core, &script, &mut order, &mut passed);
        }
    }
    (passed, core.stopped().cloned())
}

/// The agent answers what it is asked, in any order.
fn take_all(
    core: &mut TestCore,
    script: &[Result<Response, CallError>],
    order: &mut Draws,
    passed: &mut Vec<u8>,
) {
    let mut asked = Vec::new();
    while core.is_under_way(BODIES[0]) {
        asked.append(&mut asks(core));
        if !asked.is_empty() {
            let ask = asked.swap_remove(order.below(asked.len() as u32) as usize);
            let index = shown(&ask.event).unwrap().index as usize;
            core.handle_answer(start(), ask.call, script[index].clone());
        }
        core.decide(start(), RequestPart::RequestBody);
        while let Some(out) = core.poll_verdict(BODIES[0]) {
            passed.extend_from_slice(&out.data);
        }
    }
}

#[test]
fn what_is_under_way_together_is_decided_as_if_it_came_one_after_the_other() {
    for_each_seed(KEPT, 5_000, |seed| {
        assert_eq!(shown_to_one(seed, true), shown_to_one(seed, false));
    });
}

fn mutation(data: Bytes) -> Result<Response, CallError> {
    let mutation = Some(BodyMutation {
        index: 0,
        data: Some(data),
    });
    Ok(Response {
        request_body: mutation.clone(),
        response_body: mutation,
        ..Response::allow()
    })
}
