//! Bodies: what is sent when, what the answers change, and what passes.

use super::*;
use crate::inspect::BodyMode;

const BODY: EventKind = EventKind::RequestBody;
const PART: RequestPart = RequestPart::RequestBody;

/// A request whose agents have been found, by its head.
fn begun<const N: usize>(rules: [AgentRule; N]) -> TestCore {
    let mut core = core(rules);
    core.handle_event(start(), head());
    for _ in 0..N {
        let head = ask(&mut core);
        core.handle_answer(start(), head.call, allow());
    }
    assert!(core.poll_round().unwrap().verdict.passes());
    core
}

/// Shows chunks in a row, of which none is the last.
fn show(core: &mut TestCore, data: &[&'static str]) {
    for data in data {
        core.handle_chunk(start(), BODY, chunk(*data, false));
    }
}

/// An agent answers one of its calls.
fn answers(core: &mut TestCore, agent: usize, sequence: u32, answer: Result<Response, CallError>) {
    let call = CallId {
        agent,
        part: PART,
        sequence,
    };
    core.handle_answer(at(1), call, answer);
}

/// What has come through: the data, or the status with which it was stopped.
fn through(core: &mut TestCore) -> Vec<String> {
    core.decide(at(1), PART);
    let verdicts = std::iter::from_fn(|| core.poll_verdict(BODY));
    let words = verdicts.map(|out| match out.verdict.decision {
        Decision::Allow => String::from_utf8(out.data.to_vec()).unwrap(),
        Decision::Block { status, .. } if out.data.is_empty() => status.to_string(),
        other => panic!("{other:?}"),
    });
    words.collect()
}

#[test]
fn chunks_leave_when_they_are_shown_and_come_out_in_their_order() {
    let mut core = begun([blocking()]);
    show(&mut core, &["0", "1", "2"]);
    assert_eq!(
        words(&mut core),
        ["ask 0/0 0", "ask 0/0 1 queued", "ask 0/0 2 queued"]
    );
    // The last one is answered first, and waits for those before it.
    answers(&mut core, 0, 2, allow());
    answers(&mut core, 0, 1, mutated("one"));
    assert_eq!(through(&mut core), [""; 0]);
    assert!(core.is_under_way(BODY));
    answers(&mut core, 0, 0, allow());
    assert_eq!(through(&mut core), ["0", "one", "2"]);
    assert!(!core.is_under_way(BODY));
}

#[test]
fn the_time_of_a_chunk_begins_when_it_is_the_first_that_is_unanswered() {
    let mut core = begun([blocking()]);
    show(&mut core, &["0", "1"]);
    actions(&mut core);
    let longest = DEADLINE + Duration::from_secs(1);
    assert_eq!(core.poll_timeout(PART), Some(start() + longest));
    answers(&mut core, 0, 0, allow());
    core.decide(at(90), PART);
    assert_eq!(words(&mut core), ["start 0/1"]);
    assert_eq!(core.poll_timeout(PART), Some(at(90) + longest));
    core.decide(at(95), PART);
    assert_eq!(words(&mut core), [""; 0], "it begins once");
    assert_eq!(core.poll_timeout(RequestPart::ResponseBody), None);
}

#[test]
fn while_the_endpoint_is_not_known_one_chunk_finds_it_for_all() {
    let agent = TestAgent::new(blocking()).at_endpoints(2);
    let mut core = RequestCore::new(vec![agent]);
    show(&mut core, &["0", "1", "2"]);
    assert_eq!(words(&mut core), ["ask 0/0 0"]);
    answers(&mut core, 0, 0, Err(CallError::Down));
    assert_eq!(words(&mut core), ["ask 0/1 0"], "without being waited for");
    answers(&mut core, 0, 0, allow());
    assert_eq!(through(&mut core), ["0"]);
    assert_eq!(words(&mut core), ["ask 0/1 1", "ask 0/1 2 queued"]);
    // In mid-body there is no other endpoint.
    answers(&mut core, 0, 1, Err(CallError::Down));
    assert_eq!(through(&mut core), ["503", "503"]);
}

#[test]
fn answers_decide_nothing_before_the_body_is_waited_for() {
    let mut core = begun([blocking()]);
    show(&mut core, &["0"]);
    answers(&mut core, 0, 0, block(403));
    show(&mut core, &["1"]);
    assert_eq!(core.stopped(), None);
    assert_eq!(words(&mut core), ["ask 0/0 0", "ask 0/0 1 queued"]);
    assert_eq!(through(&mut core), ["403", "403"]);
    assert_eq!(core.stopped(), Some(&blocked(403)));
}

#[test]
fn only_the_first_answer_to_a_chunk_counts() {
    let mut core = begun([blocking()]);
    show(&mut core, &["0", "1"]);
    for sequence in [0, 1] {
        answers(&mut core, 0, sequence, allow());
        answers(&mut core, 0, sequence, block(403));
    }
    answers(&mut core, 0, 2, block(403));
    assert_eq!(through(&mut core), ["0", "1"]);
}

#[test]
fn a_block_stops_all_that_is_under_way_before_every_agent_and_of_both_bodies() {
    let mut core = begun([blocking(), blocking()]);
    show(&mut core, &["0", "1", "2"]);
    core.handle_chunk(start(), EventKind::ResponseBody, chunk("r", false));
    actions(&mut core);
    answers(&mut core, 0, 0, allow());
    assert_eq!(through(&mut core), [""; 0]);
    assert_eq!(words(&mut core), ["ask 1/0 0", "start 0/1"]);
    answers(&mut core, 0, 1, block(403));
    assert_eq!(through(&mut core), ["403", "403", "403"]);
    let words = words(&mut core);
    let by_agent = |agent| format!("cancel {agent} BlockedByAgent");
    assert!(
        words.contains(&by_agent(0)) && words.contains(&by_agent(1)),
        "{words:?}"
    );
    assert!(words.contains(&"abandon 0".to_owned()) && words.contains(&"abandon 1".to_owned()));
    let response = core.poll_verdict(EventKind::ResponseBody).unwrap();
    assert_eq!(response.verdict.decision, blocked(403));
    // Answers that are on the way change nothing.
    for (agent, sequence) in [(0, 2), (1, 0), (0, 1)] {
        answers(&mut core, agent, sequence, block(500));
    }
    show(&mut core, &["3"]);
    assert_eq!(through(&mut core), ["403"]);
}

#[test]
fn what_agents_said_before_a_stop_is_told_with_the_first_chunk() {
    let mut core = begun([blocking(), blocking()]);
    show(&mut core, &["0", "1"]);
    let changes = Response {
        request_headers: vec![HeaderOp::Remove { name: "a".into() }],
        ..Response::allow()
    };
    answers(&mut core, 0, 0, Ok(changes));
    core.decide(at(1), PART);
    answers(&mut core, 1, 0, block(403));
    core.decide(at(1), PART);
    let [first, second] = [(); 2].map(|()| core.poll_verdict(BODY).unwrap().verdict);
    assert_eq!(first.request_headers.len(), 1);
    assert_eq!(second.request_headers.len(), 0);
}

#[test]
fn after_a_fault_that_may_pass_the_rest_passes_unseen() {
    let mut core = begun([rule(FallbackAction::Allow)]);
    show(&mut core, &["0", "1", "2"]);
    answers(&mut core, 0, 0, mutated("zero"));
    answers(&mut core, 0, 1, Err(CallError::Overload));
    answers(&mut core, 0, 2, block(403));
    assert_eq!(through(&mut core), ["zero", "1", "2"]);
    assert!(!core.wants(BODY) && core.wants(EventKind::ResponseBody));
    let words = words(&mut core);
    let bypass = "report 0 Bypassed(Overload, Unanswered(Overload))";
    assert_eq!(words[3..], [bypass, "abandon 0"], "{words:?}");
    show(&mut core, &["3"]);
    assert_eq!(through(&mut core), ["3"]);
}

#[test]
fn an_endpoint_that_never_answers_a_chunk_is_given_up_on() {
    for (action, expected) in [
        (FallbackAction::Block(504), ["504", "504"]),
        (FallbackAction::Allow, ["0", "1"]),
    ] {
        let mut core = begun([rule(action)]);
        show(&mut core, &["0", "1"]);
        actions(&mut core);
        let due = core.poll_timeout(PART).unwrap();
        core.handle_timeout(due - MS, PART);
        core.handle_timeout(due, RequestPart::ResponseBody);
        assert_eq!(through(&mut core), [""; 0]);
        core.handle_timeout(due, PART);
        assert_eq!(through(&mut core), expected);
        assert!(words(&mut core).contains(&"abandon 0".to_owned()));
        assert_eq!(core.poll_timeout(PART), None);
    }
}

#[test]
fn what_is_undecided_is_held_back_up_to_a_bound() {
    let mut small = rule(FallbackAction::Block(413));
    small.buffer_size = 2;
    let mut core = begun([small]);
    show(&mut core, &["0", "1"]);
    answers(&mut core, 0, 0, wants_more());
    answers(&mut core, 0, 1, allow());
    assert_eq!(through(&mut core), ["", "01"]);
    show(&mut core, &["2", "3", "4", "5"]);
    for sequence in 2..6 {
        answers(&mut core, 0, sequence, wants_more());
    }
    assert_eq!(through(&mut core), ["", "", "413", "413"]);
}

#[test]
fn a_body_that_is_gathered_is_shown_whole_and_not_at_all_where_it_is_too_large() {
    let mut gathers = rule(FallbackAction::Allow);
    gathers.request_body.mode = BodyMode::Buffer;
    gathers.buffer_size = 3;
    let mut core = begun([gathers.clone()]);
    show(&mut core, &["0", "1"]);
    assert_eq!(through(&mut core), ["", ""]);
    core.handle_chunk(start(), BODY, chunk("2", true));
    assert_eq!(words(&mut core), ["ask 0/0 012"]);
    answers(&mut core, 0, 0, allow());
    assert_eq!(through(&mut core), ["012"]);

    let mut core = begun([gathers]);
    show(&mut core, &["01", "23", "4"]);
    assert_eq!(through(&mut core), ["", "0123", "4"]);
    let bypass = "report 0 Bypassed(BodyTooLarge, TooLarge)";
    assert_eq!(words(&mut core), [bypass]);
}

#[test]
fn a_large_chunk_is_shown_in_fragments_and_goes_on_as_one() {
    let limits = AgentLimits {
        preferred_chunk_size: 1,
        ..AgentLimits::default()
    };
    let agent = TestAgent::new(blocking()).stating(limits);
    let mut core = RequestCore::new(vec![agent]);
    core.handle_event(start(), head());
    let known = ask(&mut core);
    core.handle_answer(start(), known.call, allow());
    let data = Bytes::from(vec![b'x'; 2500]);
    core.handle_chunk(start(), BODY, chunk(data, true));
    let asked = asks(&mut core);
    let fragments = asked.iter().map(|ask| {
        let chunk = shown(&ask.event).unwrap();
        (
            chunk.index,
            chunk.data.len(),
            chunk.transferred,
            chunk.is_last,
        )
    });
    let expected = [
        (0, 1024, 1024, false),
        (1, 1024, 2048, false),
        (2, 452, 2500, true),
    ];
    assert_eq!(fragments.collect::<Vec<_>>(), expected);
    for (ask, answer) in asked.iter().zip([allow(), mutated("-"), allow()]) {
        core.handle_answer(at(1), ask.call, answer);
    }
    core.decide(at(1), PART);
    assert_eq!(core.poll_verdict(BODY).unwrap().data.len(), 1024 + 1 + 452);
}

#[test]
fn there_is_room_until_a_window_is_under_way() {
    let mut core = begun([blocking()]);
    let mut shown = 0;
    while core.has_room(BODY) {
        core.handle_chunk(start(), BODY, chunk(vec![0; 128 << 10], false));
        shown += 1;
    }
    assert_eq!(shown, 4);
    assert!(core.has_room(EventKind::ResponseBody));
    let first = ask_first(&mut core);
    core.handle_answer(at(1), first, allow());
    core.handle_answer(
        at(1),
        CallId {
            sequence: 1,
            ..first
        },
        allow(),
    );
    core.decide(at(1), PART);
    assert!(core.poll_verdict(BODY).is_some() && core.has_room(BODY));
}

fn ask_first(core: &mut TestCore) -> CallId {
    asks(core)[0].call
}

#[test]
fn the_end_of_a_request_abandons_what_is_under_way() {
    let mut core = begun([blocking()]);
    show(&mut core, &["0", "1"]);
    actions(&mut core);
    core.handle_end();
    let expected = ["cancel 0 ClientDisconnect", "forget 0", "abandon 0"];
    assert_eq!(words(&mut core), expected);
    answers(&mut core, 0, 0, allow());
    core.handle_timeout(at(10_000), PART);
    assert_eq!(words(&mut core), [""; 0]);
    assert_eq!(core.poll_verdict(BODY), None);
}
