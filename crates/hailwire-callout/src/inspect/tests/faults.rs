//! Every phase with every fault and policy.

use super::*;

/// Every phase, with how many events come before the one that goes wrong.
const PHASES: [(EventKind, bool, usize); 6] = [
    (EventKind::RequestHeaders, false, 0),
    (EventKind::RequestBody, false, 1),
    (EventKind::RequestBody, true, 2),
    (EventKind::ResponseHeaders, false, 3),
    (EventKind::ResponseBody, false, 4),
    (EventKind::ResponseBody, true, 5),
];

#[tokio::test(start_paused = true)]
async fn every_fault_in_every_phase_has_the_outcome_that_is_configured() {
    for (kind, mid_body, before) in PHASES {
        for (does, fault) in faults() {
            for (action, expected) in [
                (FallbackAction::Block(418), blocked(418)),
                (FallbackAction::Allow, Decision::Allow),
            ] {
                let script = std::iter::repeat_n(allows(), before).chain([does.clone()]);
                let agent = Scripted::new(script, allows());
                let inspector = inspector([("a", rule(action), &agent)]);
                let mut exchange = inspector.exchange();
                let what = format!("{kind:?} {mid_body} {fault:?} {action:?}");
                let begin = Instant::now();
                assert_eq!(run(&mut exchange, kind, mid_body).await, expected, "{what}");
                assert!(begin.elapsed() <= Duration::from_millis(51), "{what}");
                let tally = inspector.counters("a").unwrap();
                let counts = (tally.blocked(kind, fault), tally.bypassed(kind, fault));
                let expected = match action {
                    FallbackAction::Allow => (0, 1),
                    FallbackAction::Block(_) => (1, 0),
                };
                assert_eq!(counts, expected, "{what}");
                assert_eq!(tally.bypasses(), counts.1, "{what}");
                let over = exchange.stopped().is_some();
                assert_eq!(over, action != FallbackAction::Allow, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_holds_in_one_phase_holds_in_no_other() {
    for (kind, mid_body, before) in PHASES {
        let mut rule = rule(FallbackAction::Block(503));
        rule.phase_mut(kind).unwrap().on[AgentFault::Timeout as usize] = FallbackAction::Allow;
        let script = std::iter::repeat_n(allows(), before);
        let agent = Scripted::new(script, Does::Hangs);
        let inspector = inspector([("a", rule, &agent)]);
        let mut exchange = inspector.exchange();
        assert_eq!(
            run(&mut exchange, kind, mid_body).await,
            Decision::Allow,
            "{kind:?}"
        );
        if kind != EventKind::ResponseBody {
            let last = run(&mut inspector.exchange(), EventKind::ResponseBody, true).await;
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
            let observes = AgentRule {
                observe: true,
                ..rule(FallbackAction::Block(503))
            };
            let inspector = inspector([("a", observes, &agent)]);
            let mut exchange = inspector.exchange();
            let passes = run(&mut exchange, EventKind::ResponseBody, true).await;
            assert_eq!(passes, Decision::Allow);
            let tally = inspector.counters("a").unwrap();
            assert_eq!(tally.observed(kind), 1, "{kind:?} {mid_body}");
            assert_eq!(tally.bypasses(), 0);
        }
    }
    let changes = Response {
        request_headers: vec![set("a", "b")],
        ..mutated("changed")
    };
    let observes = AgentRule {
        observe: true,
        ..AgentRule::default()
    };
    let agent = Scripted::always(answers(changes));
    let mut exchange = inspector([("a", observes, &agent)]).exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict, Verdict::default());
    let body = exchange.request_body(chunk("c", "as it was", true)).await;
    assert_eq!(body.data, "as it was");
}
