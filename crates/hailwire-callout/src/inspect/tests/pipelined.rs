//! Chunks of a body that are under way together.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Callers keep it across threads and in what they share.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Exchange>();
};

/// An exchange whose agents know of the request.
async fn begun(inspector: &Inspector) -> Exchange {
    let mut exchange = inspector.exchange();
    assert!(exchange.request_headers(head("c")).await.passes());
    exchange
}

/// Shows all chunks at once; the last one ends the body.
fn show(exchange: &mut Exchange, pieces: &[&'static str]) {
    for (n, data) in pieces.iter().enumerate() {
        exchange.show_request_body(chunk("c", *data, n + 1 == pieces.len()));
    }
}

async fn all(exchange: &mut Exchange) -> Vec<BodyVerdict> {
    let mut all = Vec::new();
    while let Some((kind, verdict)) = exchange.shown().await {
        assert_eq!(kind, EventKind::RequestBody);
        all.push(verdict);
    }
    assert!(!exchange.is_under_way(EventKind::RequestBody));
    all
}

fn data(verdicts: &[BodyVerdict]) -> Vec<&[u8]> {
    verdicts.iter().map(|verdict| &verdict.data[..]).collect()
}

#[tokio::test(start_paused = true)]
async fn pieces_leave_while_verdicts_on_earlier_ones_are_on_the_way() {
    let agents = [(); 2].map(|()| Scripted::new([allows()], Does::Takes(40 * MS)));
    let inspector = inspector([
        ("first", rule(FallbackAction::Block(503)), &agents[0]),
        ("second", rule(FallbackAction::Block(503)), &agents[1]),
    ]);
    let mut exchange = begun(&inspector).await;
    let begin = Instant::now();
    let pieces = ["0", "1", "2", "3", "4", "5", "6", "7"];
    show(&mut exchange, &pieces);
    assert_eq!(agents[0].bodies(), pieces, "all of them, at once");
    let verdicts = all(&mut exchange).await;
    assert_eq!(data(&verdicts), pieces.map(str::as_bytes));
    assert_eq!(agents[1].bodies(), pieces);
    let took = begin.elapsed();
    assert!(
        took < 82 * MS,
        "once for each agent, not for each piece: {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_place_is_not_known_one_piece_finds_it_for_all() {
    let (near, far) = (
        Scripted::always(Does::Fails(CallError::Down)),
        Scripted::always(Does::Takes(10 * MS)),
    );
    let mut point = point("a", rule(FallbackAction::Block(503)), &near);
    point
        .endpoints
        .push(Arc::clone(&far) as Arc<dyn AgentClient>);
    let mut exchange = Inspector::new(vec![point]).exchange();
    show(&mut exchange, &["0", "1", "2"]);
    assert_eq!(data(&all(&mut exchange).await), [b"0", b"1", b"2"]);
    assert_eq!((near.bodies().len(), far.bodies().len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn agents_that_answer_at_once_are_not_waited_for() {
    let agents = [(); 3].map(|()| Scripted::always(allows()));
    let inspector = inspector([
        ("first", rule(FallbackAction::Block(503)), &agents[0]),
        ("second", rule(FallbackAction::Block(503)), &agents[1]),
        ("third", rule(FallbackAction::Block(503)), &agents[2]),
    ]);
    // The endpoints are known, or found by the first chunk.
    for mut exchange in [begun(&inspector).await, inspector.exchange()] {
        let begin = Instant::now();
        let pieces = ["0", "1", "2", "3"];
        show(&mut exchange, &pieces);
        let verdicts = all(&mut exchange).await;
        assert_eq!(data(&verdicts), pieces.map(str::as_bytes));
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_body_is_still_coming_stops_all_that_is_under_way() {
    let script = [allows(), allows(), answers(Response::block(403))];
    let first = Scripted::new(script, Does::Takes(20 * MS));
    let second = Scripted::new([allows()], Does::Takes(20 * MS));
    let inspector = inspector([
        ("first", rule(FallbackAction::Block(503)), &first),
        ("second", rule(FallbackAction::Block(503)), &second),
    ]);
    let mut exchange = begun(&inspector).await;
    let begin = Instant::now();
    for piece in ["0", "1", "2", "3"] {
        exchange.show_request_body(chunk("c", piece, false));
    }
    let verdicts = all(&mut exchange).await;
    // The second agent has not answered to the first chunk, which need not be waited for.
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(verdicts.len(), 4);
    for verdict in &verdicts {
        assert_eq!(verdict.verdict.decision, blocked(403));
        assert!(verdict.data.is_empty());
    }
    assert_eq!(
        inspector
            .counters("first")
            .unwrap()
            .stopped(EventKind::RequestBody),
        1
    );
    let by_agent = CancelReason::BlockedByAgent;
    assert_eq!(
        (first.cancels(), second.cancels()),
        (vec![by_agent], vec![by_agent])
    );
    // What comes after is shown to nobody, and has the same verdict.
    exchange.show_request_body(chunk("c", "4", true));
    let late = all(&mut exchange).await;
    assert_eq!(late[0].verdict.decision, blocked(403));
    assert_eq!(first.bodies().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn pieces_are_changed_and_dropped_while_others_are_under_way() {
    let script = [
        allows(),
        Does::Takes(30 * MS),
        answers(mutated("one")),
        answers(mutated("")),
        answers(mutated("three")),
    ];
    let first = Scripted::new(script, allows());
    let second = Scripted::always(allows());
    let inspector = inspector([
        ("first", rule(FallbackAction::Block(503)), &first),
        ("second", rule(FallbackAction::Block(503)), &second),
    ]);
    let mut exchange = begun(&inspector).await;
    show(&mut exchange, &["0", "1", "2", "3", "4"]);
    let verdicts = all(&mut exchange).await;
    let changed: [&[u8]; 5] = [b"0", b"one", b"", b"three", b"4"];
    assert_eq!(data(&verdicts), changed);
    assert_eq!(second.bodies(), ["0", "one", "three", "4"]);
}

#[tokio::test(start_paused = true)]
async fn the_rule_for_a_fault_is_applied_once_however_much_is_under_way() {
    for (does, fault) in faults() {
        for action in [FallbackAction::Block(418), FallbackAction::Allow] {
            let script = [allows(), allows(), does.clone()];
            let agent = Scripted::new(script, does.clone());
            let inspector = inspector([("a", rule(action), &agent)]);
            let mut exchange = begun(&inspector).await;
            let begin = Instant::now();
            show(&mut exchange, &["0", "1", "2", "3", "4"]);
            let verdicts = all(&mut exchange).await;
            let what = format!("{fault:?} {action:?}");
            assert!(begin.elapsed() <= 102 * MS, "{what} {:?}", begin.elapsed());
            let tally = inspector.counters("a").unwrap();
            let kind = EventKind::RequestBody;
            let counts = (tally.blocked(kind, fault), tally.bypassed(kind, fault));
            assert_eq!(verdicts[0].data, "0");
            match action {
                FallbackAction::Block(status) => {
                    assert_eq!(counts, (1, 0), "{what}");
                    for verdict in &verdicts[1..] {
                        assert_eq!(verdict.verdict.decision, blocked(status), "{what}");
                        assert!(verdict.data.is_empty());
                    }
                }
                FallbackAction::Allow => {
                    assert_eq!(counts, (0, 1), "{what}");
                    assert_eq!(data(&verdicts), [b"0", b"1", b"2", b"3", b"4"], "{what}");
                    assert!(!exchange.wants(kind), "the rest is not shown");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_piece_has_its_time_from_the_answer_before_it() {
    // One after the other, 40 ms each, where 50 are allowed.
    let serial = (1..=6).map(|n| Does::Takes(n * 40 * MS));
    let agent = Scripted::new([allows()].into_iter().chain(serial), allows());
    let inspector = inspector([("a", rule(FallbackAction::Block(503)), &agent)]);
    let mut exchange = begun(&inspector).await;
    show(&mut exchange, &["0", "1", "2", "3", "4", "5"]);
    assert!(all(&mut exchange).await.iter().all(|v| v.verdict.passes()));

    // The same, and the fourth hangs.
    let serial = (1..=3).map(|n| Does::Takes(n * 40 * MS));
    let agent = Scripted::new([allows()].into_iter().chain(serial), Does::Hangs);
    let inspector = super::inspector([("a", rule(FallbackAction::Block(503)), &agent)]);
    let mut exchange = begun(&inspector).await;
    let begin = Instant::now();
    show(&mut exchange, &["0", "1", "2", "3", "4", "5"]);
    let verdicts = all(&mut exchange).await;
    let passed = verdicts.iter().filter(|v| v.verdict.passes()).count();
    assert_eq!(passed, 3);
    let took = begin.elapsed();
    assert!(took < 172 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_undecided_is_held_back_also_while_more_is_under_way() {
    let script = [
        allows(),
        answers(wants_more()),
        answers(wants_more()),
        allows(),
        answers(wants_more()),
    ];
    let agent = Scripted::new(script, answers(wants_more()));
    let inspector = inspector([("a", AgentRule::default(), &agent)]);
    let mut exchange = begun(&inspector).await;
    show(&mut exchange, &["0", "1", "2", "3", "4"]);
    let verdicts = all(&mut exchange).await;
    let held: [&[u8]; 5] = [b"", b"", b"012", b"", b"34"];
    assert_eq!(data(&verdicts), held);
}

#[tokio::test(start_paused = true)]
async fn too_large_a_piece_waits_for_those_before_it_and_is_counted_once() {
    let limits = AgentLimits {
        max_body_size: 3,
        ..AgentLimits::default()
    };
    for (action, undecided) in [
        (FallbackAction::Block(413), false),
        (FallbackAction::Allow, false),
        (FallbackAction::Allow, true),
    ] {
        let each = match undecided {
            true => answers(wants_more()),
            false => Does::Takes(10 * MS),
        };
        let agent = Scripted::stating([allows()], each, Some(limits));
        let inspector = inspector([("a", rule(action), &agent)]);
        let mut exchange = begun(&inspector).await;
        show(&mut exchange, &["0", "1", "2", "3", "4"]);
        let verdicts = all(&mut exchange).await;
        assert_eq!(agent.bodies(), ["0", "1", "2"]);
        let tally = inspector.counters("a").unwrap();
        let kind = EventKind::RequestBody;
        match action {
            FallbackAction::Block(_) => {
                assert_eq!(data(&verdicts[..3]), [b"0", b"1", b"2"]);
                assert_eq!(verdicts[3].verdict.decision, blocked(413));
                assert_eq!(tally.blocked(kind, AgentFault::BodyTooLarge), 1);
            }
            FallbackAction::Allow => {
                let gone = verdicts.iter().flat_map(|verdict| verdict.data.to_vec());
                assert_eq!(gone.collect::<Vec<_>>(), b"01234");
                assert_eq!(
                    verdicts[2].data.is_empty(),
                    undecided,
                    "held until the rule is applied"
                );
                assert_eq!(tally.bypassed(kind, AgentFault::BodyTooLarge), 1);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_observes_lets_all_pass_and_is_counted_once() {
    let script = [allows(), allows(), answers(Response::block(403))];
    let agent = Scripted::new(script, answers(Response::block(403)));
    let observes = AgentRule {
        observe: true,
        ..rule(FallbackAction::Block(503))
    };
    let inspector = inspector([("a", observes, &agent)]);
    let mut exchange = begun(&inspector).await;
    show(&mut exchange, &["0", "1", "2", "3"]);
    assert_eq!(data(&all(&mut exchange).await), [b"0", b"1", b"2", b"3"]);
    assert_eq!(
        inspector
            .counters("a")
            .unwrap()
            .observed(EventKind::RequestBody),
        1
    );
    assert!(!exchange.wants(EventKind::ResponseHeaders));

    // So does one that would have to gather more than it may.
    let agent = Scripted::always(allows());
    let mut gathers = AgentRule {
        observe: true,
        buffer_size: 2,
        ..AgentRule::default()
    };
    gathers.request_body.mode = BodyMode::Buffer;
    let inspector = super::inspector([("a", gathers, &agent)]);
    let mut exchange = begun(&inspector).await;
    show(&mut exchange, &["0", "1", "2", "3"]);
    assert_eq!(data(&all(&mut exchange).await), [b"0", b"1", b"2", b"3"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_exchange_takes_back_what_is_under_way() {
    let agent = Scripted::new([allows()], Does::Hangs);
    let inspector = inspector([("a", rule(FallbackAction::Block(503)), &agent)]);
    let mut exchange = begun(&inspector).await;
    show(&mut exchange, &["0", "1", "2"]);
    drop(exchange);
    assert_eq!(agent.cancels(), [CancelReason::ClientDisconnect]);
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_a_window_of_each_body_and_for_few_small_pieces() {
    let agent = Scripted::new([allows()], Does::Takes(10 * MS));
    let inspector = inspector([("a", rule(FallbackAction::Block(503)), &agent)]);
    let mut exchange = begun(&inspector).await;
    let mut shown = 0;
    while exchange.has_room(EventKind::RequestBody) {
        exchange.show_request_body(chunk("c", vec![0; 64 << 10], false));
        shown += 1;
    }
    assert_eq!(shown, 8);
    assert!(exchange.has_room(EventKind::ResponseBody));
    exchange.shown().await.unwrap();
    assert!(exchange.has_room(EventKind::RequestBody));
    while exchange.has_room(EventKind::ResponseBody) {
        exchange.show_response_body(chunk("c", "x", false));
        shown += 1;
    }
    assert_eq!(shown, 8 + 128);
    let mut kinds = Vec::new();
    while let Some((kind, _)) = exchange.shown().await {
        kinds.push(kind);
    }
    let of_request = kinds.iter().filter(|kind| **kind == EventKind::RequestBody);
    assert_eq!((of_request.count(), kinds.len()), (7, 7 + 128));
}

#[tokio::test(start_paused = true)]
async fn to_wait_for_a_piece_is_to_wait_for_those_that_were_shown_before() {
    let script = [allows(), Does::Takes(10 * MS), answers(mutated("one"))];
    let agent = Scripted::new(script, Does::Takes(20 * MS));
    let inspector = inspector([("a", rule(FallbackAction::Block(503)), &agent)]);
    let mut exchange = begun(&inspector).await;
    exchange.show_request_body(chunk("c", "0", false));
    exchange.show_request_body(chunk("c", "1", false));
    let all = exchange.request_body(chunk("c", "2", true)).await;
    assert!(all.verdict.passes());
    assert_eq!(all.data, "0one2");
    assert_eq!(exchange.shown().await, None);
}
