//! Bodies, chunk by chunk: passed on, held back, too large.

use super::*;

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
        ("first", AgentRule::default(), &first),
        ("second", AgentRule::default(), &second),
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
    let inspector = inspector([("a", AgentRule::default(), &agent)]);
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
    let mut exchange = super::tests::inspector([("a", AgentRule::default(), &agent)]).exchange();
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
    let mut exchange = inspector([("a", AgentRule::default(), &agent)]).exchange();
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
    let mut exchange = inspector([("a", AgentRule::default(), &agent)]).exchange();
    let verdict = exchange.request_headers(head("c")).await;
    assert_eq!(verdict.decision, blocked(403), "no body may come");
}

#[tokio::test]
async fn more_is_held_back_than_may_be_and_the_rule_decides() {
    for (action, mode) in [
        (FallbackAction::Block(413), BodyMode::Stream),
        (FallbackAction::Allow, BodyMode::Stream),
        (FallbackAction::Block(413), BodyMode::Buffer),
        (FallbackAction::Allow, BodyMode::Buffer),
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
        let tally = inspector.counters("a").unwrap();
        let counts = (
            tally.blocked(EventKind::RequestBody, AgentFault::BodyTooLarge),
            tally.bypasses(),
        );
        match action {
            FallbackAction::Block(status) => {
                assert_eq!(second.verdict.decision, blocked(status));
                assert!(second.data.is_empty() && third.data.is_empty());
                assert_eq!(counts, (1, 0));
            }
            FallbackAction::Allow => {
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
    let mut rule = AgentRule::default();
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
    let limits = AgentLimits {
        max_body_size: 5,
        ..AgentLimits::default()
    };
    for (action, announced) in [
        (FallbackAction::Block(413), false),
        (FallbackAction::Block(413), true),
        (FallbackAction::Allow, false),
        (FallbackAction::Allow, true),
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
        assert_eq!(gone[1].verdict.passes(), action == FallbackAction::Allow);
        let bypasses = inspector.counters("a").unwrap().bypasses();
        assert_eq!(bypasses, u64::from(action == FallbackAction::Allow));
        if action == FallbackAction::Allow {
            assert_eq!(
                (&gone[0].data[..], &gone[1].data[..]),
                (&b"12345"[..], &b"6"[..])
            );
        }
    }
    let agent = Scripted::stating([], allows(), Some(limits));
    let mut own = rule(FallbackAction::Block(413));
    own.request_body.max = Some(6);
    let mut exchange = inspector([("a", own, &agent)]).exchange();
    let body = exchange.request_body(chunk("c", "123456", true)).await;
    assert!(body.verdict.passes(), "the operator's word counts");
}

#[tokio::test]
async fn a_large_piece_is_shown_in_the_pieces_that_an_agent_prefers() {
    let limits = AgentLimits {
        preferred_chunk_size: 1 << 10,
        ..AgentLimits::default()
    };
    let script = [allows(), answers(mutated("-")), allows()];
    let agent = Scripted::stating(script, allows(), Some(limits));
    let mut exchange = inspector([("a", AgentRule::default(), &agent)]).exchange();
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
    let script = [allows(), Does::Fails(CallError::Overload)];
    let agent = Scripted::new(script, answers(Response::block(403)));
    let inspector = inspector([("a", rule(FallbackAction::Allow), &agent)]);
    let mut exchange = inspector.exchange();
    for (data, is_last) in [("1", false), ("2", false), ("3", true)] {
        let out = exchange.request_body(chunk("c", data, is_last)).await;
        assert!(out.verdict.passes());
        assert_eq!(out.data, data);
    }
    assert_eq!(agent.bodies(), ["1", "2"]);
    assert_eq!(inspector.counters("a").unwrap().bypasses(), 1);
    let response = exchange.response_headers(answer("c")).await;
    assert_eq!(
        response.decision,
        blocked(403),
        "other phases are asked about"
    );
}
