//! Events that stand for themselves: who is asked, and what the answers mean.

use super::*;
use crate::{
    guardrail::Findings,
    response::{Audit, WebSocketDecision},
};

fn set(name: &str) -> Response {
    Response {
        request_headers: vec![HeaderOp::Remove {
            name: name.to_owned(),
        }],
        ..Response::allow()
    }
}

/// Answers what is asked, and gives whom that was.
#[track_caller]
fn answers(core: &mut TestCore, answer: Result<Response, CallError>) -> (usize, usize) {
    let ask = ask(core);
    core.handle_answer(at(1), ask.call, answer);
    (ask.call.agent, ask.endpoint)
}

fn round(core: &mut TestCore) -> RoundVerdict {
    core.poll_round().expect("the round is over")
}

#[test]
fn agents_are_asked_one_after_the_other_and_what_they_change_is_put_together() {
    let mut core = core([blocking(), blocking()]);
    core.handle_event(start(), head());
    assert_eq!(answers(&mut core, Ok(set("a"))), (0, 0));
    assert_eq!(core.poll_round(), None);
    assert_eq!(answers(&mut core, Ok(set("b"))), (1, 0));
    let verdict = round(&mut core).verdict;
    let changes = [set("a"), set("b")].map(|answer| answer.request_headers[0].clone());
    assert!(verdict.passes());
    assert_eq!(verdict.request_headers, changes);
    assert_eq!(core.poll_round(), None, "it is taken once");
    assert_eq!(core.id(), "c");
}

#[test]
fn the_first_agent_that_stops_the_request_ends_the_round_and_every_later_one() {
    let mut core = core([blocking(), blocking(), blocking()]);
    core.handle_event(start(), head());
    answers(&mut core, allow());
    let audited = Response {
        audit: Audit {
            tags: vec!["sqli".to_owned()],
            ..Audit::default()
        },
        ..Response::block(403)
    };
    answers(&mut core, Ok(audited));
    let verdict = round(&mut core).verdict;
    assert_eq!(verdict.decision, blocked(403));
    assert_eq!(verdict.audits.len(), 1);
    assert_eq!(words(&mut core), ["report 1 Stopped"]);
    assert!(!core.wants(EventKind::RequestBody));

    core.handle_event(at(5), head());
    assert_eq!(round(&mut core).verdict.decision, blocked(403));
    core.handle_chunk(at(5), EventKind::RequestBody, chunk("0", true));
    let late = core.poll_verdict(EventKind::RequestBody).unwrap();
    assert_eq!(late.verdict.decision, blocked(403));
    assert_eq!(words(&mut core), [""; 0], "nobody is asked any more");
}

#[test]
fn what_is_not_answered_is_decided_by_the_rule_for_its_fault() {
    let cases = [
        (Err(CallError::Timeout), AgentFault::Timeout),
        (Err(CallError::Overload), AgentFault::Overload),
        (Err(CallError::Down), AgentFault::Error),
        (Err(CallError::Failed("gone".to_owned())), AgentFault::Error),
        (Err(CallError::TooLarge), AgentFault::BodyTooLarge),
        (block(7), AgentFault::Error),
    ];
    for (answer, fault) in cases {
        let mut lenient = blocking();
        for phase in &mut lenient.phases {
            phase.on[fault as usize] = FallbackAction::Allow;
        }
        let observing = AgentRule {
            observe: true,
            ..blocking()
        };
        for (rule, passes, report) in [
            (blocking(), false, "Blocked"),
            (lenient, true, "Bypassed"),
            (observing, true, "WouldBlock"),
        ] {
            let mut core = core([rule]);
            core.handle_event(start(), head());
            answers(&mut core, answer.clone());
            let verdict = round(&mut core).verdict;
            assert_eq!(verdict.passes(), passes, "{fault:?}");
            assert_eq!(core.stopped().is_none(), passes, "{fault:?}");
            let words = words(&mut core);
            let expected = format!("report 0 {report}({fault:?}");
            assert!(
                words.len() == 1 && words[0].starts_with(&expected),
                "{words:?}"
            );
        }
    }
}

#[test]
fn an_agent_that_observes_and_would_have_stopped_is_not_asked_any_more() {
    let observing = AgentRule {
        observe: true,
        ..blocking()
    };
    let mut core = core([observing, blocking()]);
    core.handle_event(start(), head());
    assert_eq!(answers(&mut core, block(403)).0, 0);
    assert_eq!(words(&mut core), ["report 0 WouldStop", "ask 1/0 "]);
    let call = CallId {
        agent: 1,
        part: RequestPart::Whole,
        sequence: 2,
    };
    core.handle_answer(at(1), call, allow());
    assert!(round(&mut core).verdict.passes());
    core.handle_event(at(2), head());
    assert_eq!(answers(&mut core, allow()).0, 1);
}

#[test]
fn another_endpoint_is_asked_within_the_same_deadline_and_what_follows_goes_there() {
    let agent = TestAgent::new(blocking()).at_endpoints(3);
    let mut core = RequestCore::new(vec![agent]);
    core.handle_event(start(), head());
    let first = ask(&mut core);
    assert_eq!(
        (first.endpoint, first.deadline, first.again),
        (0, DEADLINE, false)
    );
    core.handle_answer(at(40), first.call, Err(CallError::Overload));
    let second = ask(&mut core);
    assert_eq!((second.endpoint, second.again), (1, true));
    assert_eq!(second.deadline, DEADLINE - 40 * MS);
    // What the first one says now is late.
    core.handle_answer(at(41), first.call, block(403));
    assert_eq!((core.poll_round(), core.stopped()), (None, None));
    core.handle_answer(at(50), second.call, allow());
    assert!(round(&mut core).verdict.passes());

    core.handle_event(at(60), head());
    assert_eq!(ask(&mut core).endpoint, 1);
    core.handle_end();
    assert_eq!(words(&mut core), ["cancel 0 ClientDisconnect", "forget 0"]);
}

#[test]
fn an_endpoint_that_never_answers_is_given_up_on_a_second_after_its_longest_wait() {
    let mut agent = TestAgent::new(blocking());
    agent.stretch = 3;
    let mut core = RequestCore::new(vec![agent]);
    core.handle_event(start(), head());
    let hangs = ask(&mut core);
    let due = start() + 3 * DEADLINE + Duration::from_secs(1);
    assert_eq!(core.poll_timeout(RequestPart::Whole), Some(due));
    core.handle_timeout(due - MS, RequestPart::Whole);
    assert_eq!(core.poll_round(), None, "too early");
    core.handle_timeout(due, RequestPart::Whole);
    assert_eq!(round(&mut core).verdict.decision, blocked(503));
    assert_eq!(core.poll_timeout(RequestPart::Whole), None);
    let words = words(&mut core);
    assert_eq!(words, ["report 0 Blocked(Timeout, Unanswered(Timeout))"]);
    core.handle_answer(due + MS, hangs.call, allow());
    core.handle_timeout(due + MS, RequestPart::Whole);
    assert_eq!(core.stopped(), Some(&blocked(503)), "it is final");
}

#[test]
fn websocket_frames_close_with_the_code_of_what_went_wrong() {
    let closes = |answer: Result<Response, CallError>, rule| {
        let mut core = core([rule]);
        core.handle_event(start(), frame());
        answers(&mut core, answer);
        let stopped = core.stopped().is_some();
        (round(&mut core).websocket, stopped)
    };
    let says = |decision| {
        Ok(Response {
            websocket: Some(decision),
            ..Response::allow()
        })
    };
    let close = |code| WebSocketDecision::Close {
        code,
        reason: String::new(),
    };
    let drops = WebSocketDecision::Drop;
    assert_eq!(
        closes(allow(), blocking()),
        (WebSocketDecision::Allow, false)
    );
    assert_eq!(
        closes(says(drops.clone()), blocking()),
        (drops.clone(), false)
    );
    assert_eq!(closes(block(403), blocking()), (close(1008), true));
    assert_eq!(
        closes(Err(CallError::Down), blocking()),
        (close(1011), true)
    );
    let observing = AgentRule {
        observe: true,
        ..blocking()
    };
    assert_eq!(
        closes(says(drops), observing),
        (WebSocketDecision::Allow, false)
    );
}

#[test]
fn a_text_goes_to_the_next_agent_as_the_one_before_left_it() {
    let found = |redacted: Option<&str>| {
        Ok(Findings {
            detected: true,
            confidence: 1.0,
            findings: Vec::new(),
            redacted: redacted.map(str::to_owned),
        }
        .answer())
    };
    let mut core = core([blocking(), blocking()]);
    core.handle_event(start(), text("my 123"));
    answers(&mut core, found(Some("my *")));
    let second = ask(&mut core);
    assert!(matches!(&second.event, Event::Guardrail(text) if text.content == "my *"));
    core.handle_answer(at(1), second.call, allow());
    let out = round(&mut core);
    assert_eq!(out.content.as_deref(), Some("my *"));
    assert_eq!(out.findings.len(), 1);

    core.handle_event(at(2), text("my 456"));
    answers(&mut core, found(None));
    assert_eq!(round(&mut core).verdict.decision, blocked(403));
}

#[test]
fn all_agents_are_told_of_the_end_at_once_and_decide_nothing() {
    let mut core = core([blocking(), blocking(), blocking()]);
    core.handle_event(start(), head());
    answers(&mut core, block(403));
    round(&mut core);
    actions(&mut core);
    core.handle_complete(at(10), &complete());
    let told = asks(&mut core);
    assert_eq!(
        told.iter().map(|ask| ask.call.agent).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    let answers = [block(500), Err(CallError::Timeout), allow()];
    for (ask, answer) in told.iter().zip(answers) {
        assert!(core.is_asking());
        core.handle_answer(at(11), ask.call, answer);
    }
    assert!(!core.is_asking());
    assert_eq!(core.stopped(), Some(&blocked(403)));
    assert_eq!(words(&mut core), ["report 1 Untold(Timeout)"]);
    core.handle_end();
    assert_eq!(
        words(&mut core),
        ["forget 0"],
        "the others know of no request"
    );
}

#[test]
fn agents_are_cancelled_when_a_request_ends_unless_they_decided_or_were_told() {
    let mut core = core([blocking(), blocking(), blocking()]);
    core.handle_event(start(), head());
    answers(&mut core, allow());
    answers(&mut core, block(403));
    actions(&mut core);
    core.handle_end();
    let expected = ["cancel 0 BlockedByAgent", "forget 0", "forget 1"];
    assert_eq!(words(&mut core), expected);
    core.handle_end();
    core.handle_event(at(2), head());
    core.handle_chunk(at(2), EventKind::RequestBody, chunk("0", true));
    core.handle_complete(at(2), &complete());
    assert_eq!(words(&mut core), [""; 0], "it has ended");
}
