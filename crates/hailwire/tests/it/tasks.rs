//! Tasks between nodes: withdrawn wherever they are, followed while an agent works on them, and carried through the end of a node in the middle.

use std::{sync::Arc, time::Duration};

use hailwire::{
    Agent, Body, Client, Code, Request, Response, ServeHandle, Status,
    admin::{
        MessageDetail, MessageQuery, MessageRow, MessageSeen, MessageSelector, MessageTake,
        MessageVerdict, MessageWait, method,
    },
};
use hailwire_wire::{
    header, limits,
    messages::{MessageBatch, MessageId, MessageProgress},
};
use tokio::sync::{Notify, mpsc};

use crate::{
    child::{Helper, Role},
    messages::{batch_answer, ended, offered, send, shown},
    nested::{Seen, serve_hold},
    test_node::{self, PATIENCE, TestNode},
};

async fn submit(client: &Client, to: &str, body: &str) -> String {
    let call = client.call(to).body(body.to_owned());
    call.submit(true).await.unwrap().id
}

async fn until(client: &Client, id: &str, state: &str) -> MessageDetail {
    let wait = MessageWait {
        id: id.to_owned(),
        state: state.to_owned(),
        timeout_ms: 20_000,
        ..MessageWait::default()
    };
    client.admin(method::MESSAGE_WAIT, &wait).await.unwrap()
}

/// An agent that notes what it is handed and answers it.
async fn serve_noting(
    client: &Client,
    name: &str,
) -> (ServeHandle, mpsc::UnboundedReceiver<String>) {
    let (tell, told) = mpsc::unbounded_channel();
    let handler = move |request: Request| {
        let tell = tell.clone();
        async move {
            let body = request.into_body().bytes(1 << 20).await?;
            let _ = tell.send(String::from_utf8_lossy(&body).into_owned());
            Ok(Response::new(body))
        }
    };
    let agent = Agent::new(name).unwrap();
    (client.serve(agent, handler).await.unwrap(), told)
}

async fn next<T>(told: &mut mpsc::UnboundedReceiver<T>) -> T {
    let next = tokio::time::timeout(PATIENCE, told.recv()).await;
    next.unwrap().unwrap()
}

fn is_cancelled(detail: &MessageDetail, attempts: u32) {
    let row = &detail.row;
    let what = (row.state.as_str(), row.task.as_str(), row.code.as_str());
    assert_eq!(what, ("cancelled", "cancelled", "cancelled"), "{row:?}");
    assert_eq!(row.attempts, attempts);
    assert!(row.withdrawn_at_ms.is_some() && row.ended_at_ms.is_some());
}

#[tokio::test]
async fn a_task_that_never_left_ends_at_once_and_one_that_waits_there_ends_there() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let waits = submit(&client, "later@bob", "waits").await;
    until(&client, &waits, "delivered").await;
    let waits_here = submit(&client, "later@alice", "waits here").await;
    bob.node.shutdown(Duration::ZERO).await;
    let never_left = submit(&client, "later@bob", "never leaves").await;
    let goes = submit(&client, "later@bob", "goes").await;
    let row = client.cancel_task(&never_left).await.unwrap();
    assert_eq!(row.state, "cancelled");
    is_cancelled(&shown(&client, &never_left).await, 0);
    client.cancel_task(&waits_here).await.unwrap();
    is_cancelled(&shown(&client, &waits_here).await, 0);
    // The other node is away: the wish is kept, through a restart of this one too.
    let row = client.cancel_task(&waits).await.unwrap();
    assert_eq!(
        (row.state.as_str(), row.task.as_str()),
        ("delivered", "submitted")
    );
    let alice = alice.restart("alice").await;
    let node = test_node::start(bob.dir.path(), "bob").await.unwrap();
    let bob = TestNode { node, dir: bob.dir };
    let client = alice.client();
    is_cancelled(&ended(&client, &waits).await, 0);
    let (_later, mut told) = serve_noting(&bob.client(), "later").await;
    assert_eq!(next(&mut told).await, "goes");
    let end = ended(&client, &goes).await;
    assert_eq!(
        (end.row.task.as_str(), end.answer.text.as_str()),
        ("completed", "goes")
    );
}

#[tokio::test]
async fn the_handler_of_a_withdrawn_task_is_dropped_and_what_came_after_it_goes_on() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let (_hold, mut seen) = serve_hold(&bob.attach().await).await;
    let first = submit(&client, "hold@bob", "1").await;
    let second = submit(&client, "hold@bob", "2").await;
    for id in [first, second] {
        assert!(matches!(next(&mut seen).await, Seen::Begun(_)));
        client.cancel_task(&id).await.unwrap();
        // Again changes nothing, before its end and after.
        client.cancel_task(&id).await.unwrap();
        assert_eq!(next(&mut seen).await, Seen::Dropped);
        is_cancelled(&ended(&client, &id).await, 1);
        let row = client.cancel_task(&id).await.unwrap();
        assert_eq!(row.state, "cancelled");
    }
    // At the same node too, and out of the hands of whoever took it.
    let id = submit(&client, "script@alice", "x").await;
    let take = MessageTake {
        agent: "script".to_owned(),
        most: 1,
        lease_ms: 0,
    };
    let taken: Vec<MessageDetail> = client.admin(method::MESSAGE_TAKE, &take).await.unwrap();
    assert_eq!(taken[0].row.id, id);
    client.cancel_task(&id).await.unwrap();
    is_cancelled(&ended(&client, &id).await, 1);
    let verdict = MessageVerdict {
        id,
        ..MessageVerdict::default()
    };
    let late = client.admin::<_, MessageRow>(method::MESSAGE_ACK, &verdict);
    assert_eq!(late.await.unwrap_err().code, Code::FailedPrecondition);
}

#[tokio::test]
async fn what_has_another_end_or_is_not_known_cannot_be_withdrawn() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let (_echo, _told) = serve_noting(&bob.client(), "echo").await;
    let done = submit(&client, "echo@bob", "x").await;
    assert_eq!(ended(&client, &done).await.row.task, "completed");
    let late = client.cancel_task(&done).await.unwrap_err();
    assert_eq!(late.code, Code::FailedPrecondition, "{late}");
    // The receiver's node did not send it.
    let others = bob.client().cancel_task(&done).await.unwrap_err();
    assert_eq!(others.code, Code::NotFound, "{others}");
    let nonsense = client.cancel_task("x").await.unwrap_err();
    assert_eq!(nonsense.code, Code::InvalidArgument, "{nonsense}");
}

#[tokio::test]
async fn a_message_that_comes_after_its_withdrawal_is_not_handed_over_and_nobody_withdraws_for_another()
 {
    let (alice, bob) = TestNode::pair().await;
    let (_echo, mut told) = serve_noting(&bob.client(), "echo").await;
    let (withdrawn, kept) = (offered(1, "echo", |_| {}), offered(2, "echo", |_| {}));
    let wish = MessageBatch {
        withdrawals: vec![withdrawn.id],
        ..MessageBatch::default()
    };
    let wish = header::encode(&wish);
    for _ in 0..2 {
        let answer = batch_answer(&alice.client(), "bob", wish.clone())
            .await
            .unwrap();
        assert_eq!(answer.withdrawals, [Status::ok()]);
    }
    let carol = TestNode::named("carol").await;
    carol.befriend(&bob).await;
    let others = MessageBatch {
        withdrawals: vec![kept.id],
        ..MessageBatch::default()
    };
    batch_answer(&carol.client(), "bob", header::encode(&others))
        .await
        .unwrap();
    let both = MessageBatch {
        messages: vec![withdrawn.clone(), kept],
        ..MessageBatch::default()
    };
    let answer = batch_answer(&alice.client(), "bob", header::encode(&both))
        .await
        .unwrap();
    assert_eq!(
        answer.messages,
        [Status::ok(), Status::ok()],
        "both are known"
    );
    next(&mut told).await;
    let id = withdrawn.id.to_string();
    assert_eq!(shown(&bob.client(), &id).await.row.state, "cancelled");
    let id = MessageId::from_bytes([2; 16]).to_string();
    assert_eq!(ended(&bob.client(), &id).await.row.attempts, 1);
    assert!(told.is_empty(), "one was handed over");
}

#[tokio::test]
async fn withdrawals_of_what_never_came_are_remembered_up_to_a_bound_and_nothing_overtakes_one_that_was_not()
 {
    let (alice, _bob) = TestNode::pair().await;
    let mut number = 0u128;
    let mut remembered = 0;
    loop {
        let withdrawals = (0..limits::MAX_BATCH).map(|_| {
            number += 1;
            MessageId::from_bytes(number.to_be_bytes())
        });
        let batch = MessageBatch {
            withdrawals: withdrawals.collect(),
            messages: vec![offered(255, "echo", |_| {})],
            ..MessageBatch::default()
        };
        let answer = batch_answer(&alice.client(), "bob", header::encode(&batch))
            .await
            .unwrap();
        let noted = answer
            .withdrawals
            .iter()
            .filter(|status| status.code == Code::Ok);
        let noted = noted.count();
        remembered += noted;
        let all = noted == limits::MAX_BATCH;
        assert_eq!(answer.messages[0].code == Code::Ok, all);
        if !all {
            let refused = answer.withdrawals.last().unwrap();
            assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
            break;
        }
    }
    assert_eq!(remembered, 10_000);
}

/// Asks until what is known of a task satisfies `wanted`.
async fn news(client: &Client, id: &str, wanted: impl Fn(&MessageDetail) -> bool) -> MessageDetail {
    let found = async {
        let mut seen = MessageSeen::default();
        loop {
            let detail = client.task_news(id, seen).await.unwrap();
            if wanted(&detail) {
                return detail;
            }
            let row = &detail.row;
            assert!(row.ended_at_ms.is_none(), "it ended: {row:?}");
            seen = MessageSeen {
                attempts: row.attempts,
                progress_at_ms: row.progress.as_ref().map_or(0, |progress| progress.at_ms),
                partial_bytes: detail.partial_bytes,
            };
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("news")
}

#[tokio::test]
async fn progress_and_the_beginning_of_an_answer_are_seen_and_another_attempt_begins_anew() {
    let (alice, bob) = TestNode::pair().await;
    for to in ["slow@bob", "slow@alice"] {
        let node = if to.ends_with("bob") { &bob } else { &alice };
        let agent = node.attach().await;
        let go = Arc::new(Notify::new());
        let (reporter, gate) = (agent.clone(), go.clone());
        let handler = move |request: Request| {
            let (reporter, gate) = (reporter.clone(), gate.clone());
            async move {
                let header = request.header().clone();
                let first = header.field("hail-message-attempt") == Some("1");
                let (sender, body) = Body::channel(4);
                tokio::spawn(async move {
                    let (done, text) = if first { (1, "wrong") } else { (2, "right") };
                    reporter
                        .report_progress(&header, done, 3, text)
                        .await
                        .unwrap();
                    sender.send(format!("{text} so far, ")).await.unwrap();
                    gate.notified().await;
                    // Whoever is gone with an answer half given is tried again.
                    if !first {
                        sender.send("and done").await.unwrap();
                        sender.finish().await.unwrap();
                    }
                });
                Ok(Response::new(body))
            }
        };
        let slow = Agent::new("slow").unwrap();
        let _slow = agent.serve(slow, handler).await.unwrap();
        let client = alice.client();
        let id = submit(&client, to, "").await;
        for (attempt, done, text) in [(1, 1, "wrong"), (2, 2, "right")] {
            let detail = news(&client, &id, |detail| {
                detail.row.attempts == attempt
                    && detail.row.progress.is_some()
                    && detail.partial_bytes > 0
            })
            .await;
            let row = &detail.row;
            let progress = row.progress.as_ref().unwrap();
            assert_eq!(
                (progress.done, progress.total, progress.text.as_str()),
                (done, 3, text)
            );
            assert_eq!(detail.partial.text, format!("{text} so far, "));
            assert!(
                row.started_at_ms.is_some() && row.task == "working",
                "{row:?}"
            );
            let working = client.tasks(&["working"]).await.unwrap();
            assert_eq!(working.iter().map(|row| &row.id).collect::<Vec<_>>(), [&id]);
            go.notify_one();
        }
        let end = ended(&client, &id).await;
        assert_eq!(end.answer.text, "right so far, and done");
        assert_eq!((end.row.attempts, end.partial_bytes), (2, 0));
        assert_eq!(client.tasks(&["working", "submitted"]).await.unwrap(), []);
    }
}

#[tokio::test]
async fn progress_counts_only_from_the_node_that_has_the_task_and_the_attempt_that_is_under_way() {
    let (alice, bob) = TestNode::pair().await;
    let carol = TestNode::named("carol").await;
    alice.befriend(&carol).await;
    let client = alice.client();
    let id = submit(&client, "away@bob", "x").await;
    until(&client, &id, "delivered").await;
    let told = |attempt, offset, partial: &str| {
        let progress = vec![MessageProgress {
            id: id.parse().unwrap(),
            attempt,
            done: 1,
            total: 2,
            text: String::new(),
            offset,
            partial: partial.into(),
        }];
        header::encode(&MessageBatch {
            progress,
            ..MessageBatch::default()
        })
    };
    batch_answer(&carol.client(), "alice", told(1, 0, "forged"))
        .await
        .unwrap();
    assert_eq!(shown(&client, &id).await.partial_bytes, 0);
    // Repeated, overlapping, with a gap, and of an attempt that is over.
    for (attempt, offset, partial) in [
        (2, 0, "abc"),
        (2, 0, "abc"),
        (2, 1, "bcd"),
        (2, 9, "gap"),
        (1, 4, "old"),
        (0, 4, "none"),
    ] {
        let bytes = told(attempt, offset, partial);
        batch_answer(&bob.client(), "alice", bytes).await.unwrap();
    }
    let detail = shown(&client, &id).await;
    assert_eq!(
        (detail.partial.text.as_str(), detail.row.attempts),
        ("abcd", 2)
    );
    // Nor is a message of that node with the same id this one.
    let forged = MessageBatch {
        withdrawals: vec![id.parse().unwrap()],
        ..MessageBatch::default()
    };
    batch_answer(&bob.client(), "alice", header::encode(&forged))
        .await
        .unwrap();
    assert_eq!(shown(&client, &id).await.row.state, "delivered");
    // Nobody has it in hand.
    let header = hailwire_wire::CallHeader {
        headers: vec![("hail-message-id".to_owned(), id.clone())],
        ..hailwire_wire::CallHeader::default()
    };
    let refused = bob.client().report_progress(&header, 1, 2, "").await;
    assert_eq!(refused.unwrap_err().code, Code::FailedPrecondition);
    // A send has no answer, and so no beginning of one.
    let sent = send(&client, "away@bob", "y").await.id;
    until(&client, &sent, "delivered").await;
    let progress = vec![MessageProgress {
        id: sent.parse().unwrap(),
        attempt: 1,
        done: 0,
        total: 0,
        text: String::new(),
        offset: 0,
        partial: b"x".to_vec(),
    }];
    let batch = MessageBatch {
        progress,
        ..MessageBatch::default()
    };
    batch_answer(&bob.client(), "alice", header::encode(&batch))
        .await
        .unwrap();
    let detail = shown(&client, &sent).await;
    assert_eq!((detail.partial_bytes, detail.row.attempts), (0, 1));
}

#[tokio::test]
async fn a_message_asks_for_fewer_attempts_and_to_be_kept_for_longer() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let failing = |request: Request| async move {
        let names = request
            .header()
            .headers
            .iter()
            .map(|(name, _)| name.clone());
        let names: Vec<String> = names.collect();
        assert_eq!(names, ["hail-message-id", "hail-message-attempt", "mine"]);
        Err(Status::new(Code::Aborted, "no"))
    };
    let agent = Agent::new("failing").unwrap();
    let _failing = bob.client().serve(agent, failing).await.unwrap();
    for to in ["failing@bob", "failing@alice"] {
        let agent = Agent::new("failing").unwrap();
        let _here = alice.client().serve(agent, failing).await.unwrap();
        let keep = Duration::from_secs(20 * 24 * 3600);
        let call = client.call(to).header("mine", "1").attempts(1).keep(keep);
        let id = call.submit(true).await.unwrap().id;
        let row = ended(&client, &id).await.row;
        assert_eq!(
            (row.state.as_str(), row.attempts, row.reason.as_str()),
            ("dead", 1, "no")
        );
        let kept = row.kept_until_ms.unwrap() - row.ended_at_ms.unwrap();
        assert_eq!(u128::from(kept), keep.as_millis());
    }
    let month = Duration::from_secs(31 * 24 * 3600);
    for call in [
        client.call("failing@bob").attempts(0),
        client
            .call("failing@bob")
            .attempts(limits::MAX_MESSAGE_ATTEMPTS + 1),
        client.call("failing@bob").keep(month),
    ] {
        let refused = call.submit(true).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    }
}

#[tokio::test]
async fn a_message_removed_while_its_agent_has_it_in_hand_is_taken_from_it() {
    let (alice, bob) = TestNode::pair().await;
    let (_hold, mut seen) = serve_hold(&bob.client()).await;
    let id = submit(&alice.client(), "hold@bob", "x").await;
    assert!(matches!(next(&mut seen).await, Seen::Begun(_)));
    let selector = MessageSelector { id: id.clone() };
    let _: MessageRow = bob
        .client()
        .admin(method::MESSAGE_DROP, &selector)
        .await
        .unwrap();
    assert_eq!(next(&mut seen).await, Seen::Dropped);
    assert_eq!(ended(&alice.client(), &id).await.row.state, "dropped");
    let query = MessageQuery {
        states: vec!["delivered".to_owned(), "taken".to_owned()],
        ..MessageQuery::default()
    };
    let rows: Vec<MessageRow> = bob
        .client()
        .admin(method::MESSAGE_LIST, &query)
        .await
        .unwrap();
    assert_eq!(rows, []);
}

#[tokio::test]
async fn the_deadline_and_the_cancel_of_a_task_reach_the_third_node_also_once_the_second_was_killed()
 {
    let (desk, middle, last) = tokio::join!(
        TestNode::named("desk"),
        TestNode::named("middle"),
        TestNode::named("last")
    );
    desk.befriend(&middle).await;
    middle.befriend(&last).await;
    middle.node.shutdown(Duration::ZERO).await;
    let mut process = Helper::start(Role::MiddleNode, middle.dir.path(), "middle");
    let (_hold, mut seen) = serve_hold(&last.client()).await;
    let client = desk.client();
    let begun = |seen: Seen| match seen {
        Seen::Begun(left) => left.expect("a deadline"),
        Seen::Dropped => panic!("dropped before it was begun"),
    };
    let worth = Duration::from_secs(600);
    let call = client.call("middle@middle").deadline(worth);
    let id = call.submit(true).await.unwrap().id;
    let first = begun(next(&mut seen).await);
    assert!(first > 500_000 && first <= 600_000, "{first}");
    process.kill();
    let mut process = Helper::start(Role::MiddleNode, middle.dir.path(), "middle");
    // The call of the killed node ends at the third, and another one comes with what is left.
    let mut again = None;
    let mut dropped = 0;
    while again.is_none() || dropped == 0 {
        match next(&mut seen).await {
            Seen::Begun(left) => again = left,
            Seen::Dropped => dropped += 1,
        }
    }
    assert!(again.unwrap() < first, "{again:?} after {first}");
    client.cancel_task(&id).await.unwrap();
    assert_eq!(next(&mut seen).await, Seen::Dropped);
    is_cancelled(&ended(&client, &id).await, 2);
    process.kill();
}
