//! Kept topics between embedded nodes: replay that goes over to what is new without gap or repetition, subscribers that get everything at least once, state
//! that many share, and what becomes of those who ask for too much.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use hailwire::{
    AgentName, Body, Client, Code, NodeId, ReplayStart, StateEvent, StateValue, StateWatch, Status,
    Subscription, TopicEvent, TopicMessage,
    admin::{KeepRequest, KeptTopicRow, TopicList, method},
};
use hailwire_wire::{
    limits::{MAX_REPLAY_LAST, MAX_REPLAY_PATTERNS, MAX_TOPIC_RECORD},
    topics::{RecordReader, TopicInterest, TopicRecord, TopicReplay, put_record},
};

use crate::{
    carriers::{both, introduce, near_of_wire, until},
    test_node::{PATIENCE, TestNode},
    wire::Wire,
};

async fn keep(client: &Client, pattern: &str) -> KeptTopicRow {
    let request = KeepRequest {
        pattern: pattern.to_owned(),
        ..KeepRequest::default()
    };
    client.admin(method::TOPIC_KEEP, &request).await.unwrap()
}

async fn publish(client: &Client, topic: &str, body: impl Into<Vec<u8>>) -> u64 {
    let receipt = client.publish(topic).body(body).send().await.unwrap();
    assert_eq!((receipt.published, receipt.kept), (1, 1));
    receipt.last
}

/// Until the clock says another millisecond, by which it is told what was before.
async fn tick() {
    let now = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap().as_millis()
    };
    let begun = now();
    while now() == begun {
        tokio::task::yield_now().await;
    }
}

async fn event(subscription: &mut Subscription) -> TopicEvent {
    let next = tokio::time::timeout(PATIENCE, subscription.next()).await;
    next.expect("something comes").unwrap().expect("it goes on")
}

/// The next message, whatever is told before it but that some are lost.
async fn message(subscription: &mut Subscription) -> TopicMessage {
    loop {
        match event(subscription).await {
            TopicEvent::Message(message) => return message,
            TopicEvent::Missed(missed) => panic!("{missed} are missed"),
            _ => {}
        }
    }
}

async fn texts(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let body = message(subscription).await.body.to_vec();
        texts.push(String::from_utf8(body).unwrap());
    }
    texts
}

/// Whether all nodes have said what they had kept, without a message.
async fn settled(subscription: &mut Subscription) {
    loop {
        match event(subscription).await {
            TopicEvent::Settled => return,
            TopicEvent::Reached(_) | TopicEvent::Away(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn list(client: &Client) -> TopicList {
    client.admin(method::TOPIC_LIST, &()).await.unwrap()
}

fn name(text: &str) -> AgentName {
    text.parse().unwrap()
}

#[tokio::test]
async fn what_is_kept_is_replayed_from_where_it_is_asked_for_and_goes_on() {
    let (alice, bob) = TestNode::pair().await;
    let (here, there) = (alice.client(), bob.client());
    let row = keep(&here, "build.>").await;
    assert_eq!((row.max_bytes, row.messages), (1 << 30, 0));
    for number in 1..=5 {
        assert_eq!(
            publish(&here, "build.web", number.to_string()).await,
            number
        );
    }
    let other = here.publish("chat").body("not kept").send().await.unwrap();
    assert_eq!((other.published, other.kept, other.last), (1, 0, 0));
    for client in [&here, &there] {
        for (start, expected) in [
            (ReplayStart::From(1), &["1", "2", "3", "4", "5"][..]),
            (
                ReplayStart::Since(Duration::from_secs(600)),
                &["1", "2", "3", "4", "5"],
            ),
            (ReplayStart::Last(2), &["4", "5"]),
            (ReplayStart::From(3), &["3", "4", "5"]),
            (ReplayStart::Last(0), &[]),
            (ReplayStart::From(99), &[]),
        ] {
            let mut replay = client.replay(["build.*", ">"], start).await.unwrap();
            assert_eq!(
                texts(&mut replay, expected.len()).await,
                expected,
                "{start:?}"
            );
            settled(&mut replay).await;
        }
    }
    let (mut near, mut far) = (
        here.replay(["*.web"], ReplayStart::Now).await.unwrap(),
        there.replay(["*.web"], ReplayStart::Last(1)).await.unwrap(),
    );
    assert_eq!(texts(&mut far, 1).await, ["5"]);
    settled(&mut near).await;
    publish(&here, "build.api", "other").await;
    publish(&here, "build.web", "6").await;
    let near = message(&mut near).await;
    assert_eq!((near.kept, near.node, &near.body[..]), (7, None, &b"6"[..]));
    let far = message(&mut far).await;
    assert_eq!((far.kept, far.node), (7, Some(alice.node.id())));
    // It is still there after a restart, with its numbers.
    let alice = alice.restart("alice").await;
    let mut all = alice
        .client()
        .replay([">"], ReplayStart::From(5))
        .await
        .unwrap();
    assert_eq!(texts(&mut all, 3).await, ["5", "other", "6"]);
    assert_eq!(publish(&alice.client(), "build.web", "7").await, 8);
    assert_eq!(texts(&mut all, 1).await, ["7"]);
}

/// Readers begin at any moment while messages are published, near and far: each gets every message once, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_replay_and_what_is_new_there_is_neither_gap_nor_repetition() {
    const MESSAGES: u64 = 3000;
    let (alice, bob) = TestNode::pair().await;
    let here = alice.client();
    keep(&here, "load.>").await;
    let mut live = here.subscribe(["load.>"]).await.unwrap();
    let publishing = tokio::spawn({
        let client = here.clone();
        async move {
            let mut publisher = client.publisher();
            for number in 1..=MESSAGES {
                let one = client.publish("load.a").body(number.to_string());
                publisher.publish(one).await.unwrap();
                if number % 50 == 0 {
                    // Something that is not kept goes in its place among the others.
                    publisher.publish(client.publish("other")).await.unwrap();
                }
            }
            publisher.finish().await.unwrap()
        }
    });
    let mut reading = tokio::task::JoinSet::new();
    for number in 0..24_u64 {
        let client = if number % 2 == 0 {
            here.clone()
        } else {
            bob.client()
        };
        // As the publishing is under way, each at another moment.
        let begin = number * MESSAGES / 30;
        while list(&here).await.kept[0].last < begin {}
        reading.spawn(async move {
            let start = match number % 3 {
                0 => ReplayStart::From(1),
                1 => ReplayStart::Last(MAX_REPLAY_LAST),
                _ => ReplayStart::Since(Duration::from_secs(3600)),
            };
            let mut replay = client.replay(["load.*"], start).await.unwrap();
            for expected in 1..=MESSAGES {
                let message = message(&mut replay).await;
                assert_eq!(message.kept, expected);
                assert_eq!(message.body, expected.to_string());
            }
        });
    }
    let receipt = tokio::time::timeout(PATIENCE * 3, publishing)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((receipt.kept, receipt.last), (MESSAGES, MESSAGES));
    assert_eq!(receipt.published, MESSAGES + MESSAGES / 50);
    while let Some(read) = reading.join_next().await {
        read.unwrap();
    }
    // Who is subscribed at that moment gets them in the same order.
    for expected in 1..=MESSAGES {
        match event(&mut live).await {
            TopicEvent::Message(message) => assert_eq!(message.kept, expected),
            other => panic!("{other:?}"),
        }
    }
}

/// The same cut as in `topics`, where some are lost: what is kept is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_loses_nothing_when_its_tunnel_moves_to_tcp_and_back() {
    let (far, near) = (both("far", |_| {}).await, near_of_wire().await);
    let wire = Wire::to(far.node.sockets()[0]).await;
    introduce(&far, &near, "near", &[], &[]).await;
    introduce(&near, &far, "far", &[wire.address], &far.node.tcp_sockets()).await;
    keep(&far.client(), "tick").await;
    let mut replay = near
        .client()
        .replay(["tick"], ReplayStart::Now)
        .await
        .unwrap();
    settled(&mut replay).await;
    until(&near, "quic").await;
    let client = far.client();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let ticking = tokio::spawn(async move {
        while !*stopped.borrow_and_update() {
            publish(&client, "tick", "").await;
        }
        publish(&client, "tick", "last").await
    });
    let mut last = 0;
    let mut next = async |replay: &mut Subscription| {
        let message = message(replay).await;
        assert_eq!(message.kept, last + 1, "each once and in order");
        last = message.kept;
        message.body == "last"
    };
    for _ in 0..20 {
        next(&mut replay).await;
    }
    wire.cut(true);
    until(&near, "h2").await;
    for _ in 0..20 {
        next(&mut replay).await;
    }
    wire.cut(false);
    until(&near, "quic").await;
    for _ in 0..20 {
        next(&mut replay).await;
    }
    stop.send(true).unwrap();
    while !next(&mut replay).await {}
    assert_eq!(ticking.await.unwrap(), last);
}

#[tokio::test]
async fn a_replay_goes_on_when_the_node_that_keeps_is_restarted() {
    let (alice, bob) = TestNode::pair().await;
    keep(&alice.client(), "a.>").await;
    publish(&alice.client(), "a.b", "1").await;
    let mut replay = bob
        .client()
        .replay(["a.>"], ReplayStart::From(1))
        .await
        .unwrap();
    assert_eq!(texts(&mut replay, 1).await, ["1"]);
    let alice = alice.restart("alice").await;
    publish(&alice.client(), "a.b", "2").await;
    assert_eq!(texts(&mut replay, 1).await, ["2"]);
}

#[tokio::test]
async fn a_named_subscriber_gets_again_what_it_has_not_confirmed_whoever_was_killed() {
    let (alice, bob) = TestNode::pair().await;
    keep(&alice.client(), "a.>").await;
    keep(&bob.client(), "a.>").await;
    publish(&alice.client(), "a.b", "before").await;
    tick().await;
    let audit = name("audit");
    let mut first = bob
        .client()
        .subscribe_as(&audit, ["a.>"], ReplayStart::Now)
        .await
        .unwrap();
    settled(&mut first).await;
    for number in 1..=4 {
        publish(&alice.client(), "a.b", number.to_string()).await;
    }
    publish(&bob.client(), "a.b", "own").await;
    let mut own = None;
    let mut of_alice = Vec::new();
    for _ in 0..5 {
        let message = message(&mut first).await;
        match message.node {
            None => own = Some(message),
            Some(node) => {
                assert_eq!(node, alice.node.id());
                of_alice.push(message);
            }
        }
    }
    let bodies: Vec<&[u8]> = of_alice.iter().map(|message| &message.body[..]).collect();
    assert_eq!(bodies, [b"1", b"2", b"3", b"4"]);
    first.confirm(&of_alice[1]).await.unwrap();
    first.confirm(&own.unwrap()).await.unwrap();
    // Late ones take nothing back, and what did not come is not confirmed.
    first.confirm(&of_alice[0]).await.unwrap();
    let beyond = TopicMessage {
        kept: of_alice[3].kept + 1,
        ..of_alice[3].clone()
    };
    let refused = first.confirm(&beyond).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    // The program dies; another goes on.
    drop(first);
    let mut second = bob
        .client()
        .subscribe_as(&audit, ["a.>"], ReplayStart::Now)
        .await
        .unwrap();
    assert_eq!(texts(&mut second, 2).await, ["3", "4"]);
    // A second program takes the place of the first.
    let mut third = bob
        .client()
        .subscribe_as(&audit, ["a.>"], ReplayStart::Now)
        .await
        .unwrap();
    let ended = loop {
        match second.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it says why"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code, Code::Aborted, "{ended}");
    assert_eq!(texts(&mut third, 2).await, ["3", "4"]);
    let row = list(&bob.client()).await.named.remove(0);
    assert_eq!(
        (row.name.as_str(), row.reading, row.positions.len()),
        ("audit", true, 2)
    );
    // Both nodes are restarted, and messages come while nobody reads.
    let bob = bob.restart("bob").await;
    assert!(!list(&bob.client()).await.named[0].reading);
    publish(&alice.client(), "a.b", "5").await;
    let alice = alice.restart("alice").await;
    let mut fourth = bob
        .client()
        .subscribe_as(&audit, ["a.>"], ReplayStart::Now)
        .await
        .unwrap();
    assert_eq!(texts(&mut fourth, 3).await, ["3", "4", "5"]);
    settled(&mut fourth).await;
    let other = bob
        .client()
        .subscribe_as(&audit, ["a.b"], ReplayStart::Now)
        .await;
    assert_eq!(other.unwrap_err().code, Code::FailedPrecondition);
    let unnamed = bob
        .client()
        .replay(["a.>"], ReplayStart::From(1))
        .await
        .unwrap();
    let refused = unnamed.confirm(&of_alice[0]).await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    let forget = async || {
        bob.client()
            .admin::<_, ()>(method::TOPIC_FORGET, &"audit")
            .await
    };
    forget().await.unwrap();
    assert_eq!(forget().await.unwrap_err().code, Code::NotFound);
    let ended = loop {
        match fourth.next().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code, Code::NotFound);
    drop(alice);
}

#[tokio::test]
async fn a_subscriber_that_was_away_too_long_is_told_exactly_how_many_it_missed() {
    let (alice, bob) = TestNode::pair().await;
    let here = alice.client();
    let request = KeepRequest {
        pattern: "a.>".to_owned(),
        max_messages: Some(10),
        ..KeepRequest::default()
    };
    let _: KeptTopicRow = here.admin(method::TOPIC_KEEP, &request).await.unwrap();
    let audit = name("audit");
    for client in [&here, &bob.client()] {
        let mut first = client
            .subscribe_as(&audit, ["a.x"], ReplayStart::Now)
            .await
            .unwrap();
        settled(&mut first).await;
    }
    for number in 0..40 {
        let topic = if number % 4 == 0 { "a.y" } else { "a.x" };
        publish(&here, topic, number.to_string()).await;
    }
    let row = list(&here).await.kept.remove(0);
    assert_eq!((row.messages, row.removed, row.first), (10, 30, 31));
    for client in [&here, &bob.client()] {
        let mut again = client
            .subscribe_as(&audit, ["a.x"], ReplayStart::Now)
            .await
            .unwrap();
        // Of the 30 that went, those under the other topic were not for it.
        let missed = loop {
            match event(&mut again).await {
                TopicEvent::Missed(missed) => break missed,
                TopicEvent::Message(message) => panic!("{message:?}"),
                _ => {}
            }
        };
        assert_eq!(missed, 22);
        let left = ["30", "31", "33", "34", "35", "37", "38", "39"];
        assert_eq!(texts(&mut again, left.len()).await, left);
    }
}

#[tokio::test]
async fn who_reads_a_replay_slowly_loses_nothing_and_slows_nobody() {
    let (alice, bob) = TestNode::pair().await;
    let here = alice.client();
    keep(&here, "load").await;
    let mut slow = vec![
        here.replay(["load"], ReplayStart::From(1)).await.unwrap(),
        bob.client()
            .replay(["load"], ReplayStart::From(1))
            .await
            .unwrap(),
    ];
    let mut fast = here.replay(["load"], ReplayStart::From(1)).await.unwrap();
    let count = 600;
    // More than any queue of a subscriber takes.
    for number in 1..=count {
        assert_eq!(publish(&here, "load", vec![7; 64 * 1024]).await, number);
        assert_eq!(message(&mut fast).await.kept, number);
    }
    for slow in &mut slow {
        for number in 1..=count {
            assert_eq!(message(slow).await.kept, number);
        }
    }
}

/// What a program that plays a peer is answered first.
async fn ask(client: &Client, to: &str, name: &str, body: Vec<u8>) -> Result<TopicRecord, Status> {
    let call = client.call(to).method(name).body(body);
    let mut answer = call.deadline(PATIENCE).send().await?;
    let chunk = answer.chunk().await?.expect("a first record");
    Ok(hailwire_wire::header::decode(&chunk[4..]).unwrap())
}

fn replay(patterns: &[&str]) -> TopicReplay {
    TopicReplay {
        patterns: patterns.iter().map(ToString::to_string).collect(),
        from: Some(1),
        ..TopicReplay::default()
    }
}

fn encoded(replay: &TopicReplay) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_record(&mut out, replay);
    out.to_vec()
}

#[tokio::test]
async fn a_peer_that_asks_for_what_it_may_not_or_too_much_is_refused() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    bob.join(&alice.invite(1, &["build"]).await).await.unwrap();
    let (here, there) = (alice.client(), bob.client());
    keep(&here, ">").await;
    for topic in ["build.web", "chat.web", "node.secret", "build.api"] {
        publish(&here, topic, topic).await;
    }
    // What it may is said, and what it may not.
    let mut granted = there
        .replay(["build.>", ">"], ReplayStart::From(1))
        .await
        .unwrap();
    assert_eq!(texts(&mut granted, 2).await, ["build.web", "build.api"]);
    let first = ask(
        &there,
        "node@alice",
        method::TOPIC_REPLAY,
        encoded(&replay(&["build.web", "chat.>", "node.>"])),
    );
    assert_eq!(first.await.unwrap().refused, ["chat.>", "node.>"]);
    let many: Vec<String> = (0..=MAX_REPLAY_PATTERNS)
        .map(|n| format!("build.a{n}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let last = TopicReplay {
        from: None,
        last: Some(MAX_REPLAY_LAST + 1),
        ..replay(&["build.>"])
    };
    let mut two = encoded(&replay(&["build.>"]));
    two.extend_from_slice(&encoded(&replay(&["build.>"])));
    for (bad, code) in [
        (encoded(&replay(&["chat.>", "*"])), Code::PermissionDenied),
        (encoded(&replay(&["node.>"])), Code::PermissionDenied),
        (encoded(&replay(&[])), Code::InvalidArgument),
        (encoded(&replay(&["build.>.x"])), Code::InvalidArgument),
        (encoded(&replay(&many)), Code::InvalidArgument),
        (encoded(&last), Code::InvalidArgument),
        (two, Code::InvalidArgument),
        (vec![0xff; 8], Code::InvalidArgument),
        (Vec::new(), Code::InvalidArgument),
        (vec![0; MAX_TOPIC_RECORD], Code::ResourceExhausted),
    ] {
        let refused = ask(&there, "node@alice", method::TOPIC_REPLAY, bad).await;
        assert_eq!(refused.unwrap_err().code, code);
    }
    // One peer has so many at once and no more; one that ends makes room.
    let mut open = Vec::new();
    let refused = loop {
        let body = encoded(&replay(&["build.>"]));
        let call = there
            .call("node@alice")
            .method(method::TOPIC_REPLAY)
            .body(body);
        match call.send().await {
            Ok(mut answer) => {
                assert!(answer.chunk().await.unwrap().is_some());
                open.push(answer);
            }
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert!((60..=64).contains(&open.len()), "{}", open.len());
    // A program of that machine is not in the way of its own.
    let mut own = here
        .replay(["build.>"], ReplayStart::Last(1))
        .await
        .unwrap();
    assert_eq!(texts(&mut own, 1).await, ["build.api"]);
    open.clear();
    let again = async {
        let body = || encoded(&replay(&["build.>"]));
        while ask(&there, "node@alice", method::TOPIC_REPLAY, body())
            .await
            .is_err()
        {}
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
    // What is for programs is for no peer, and the other way round.
    for name in [
        method::TOPIC_KEEP,
        method::TOPIC_UNKEEP,
        method::TOPIC_CONFIRM,
        method::TOPIC_FORGET,
    ] {
        let refused = ask(&there, "node@alice", name, b"{}".to_vec()).await;
        assert_eq!(refused.unwrap_err().code, Code::PermissionDenied, "{name}");
    }
    let local = ask(
        &here,
        "node",
        method::TOPIC_REPLAY,
        encoded(&replay(&["a"])),
    )
    .await;
    assert_eq!(local.unwrap_err().code, Code::Unimplemented);
}

#[tokio::test]
async fn what_cannot_be_kept_or_replayed_says_why() {
    let alice = TestNode::named("alice").await;
    let client = alice.client();
    keep(&client, "build.>").await;
    let keeping = async |request: KeepRequest| {
        let kept = client
            .admin::<_, KeptTopicRow>(method::TOPIC_KEEP, &request)
            .await;
        kept.unwrap_err().code
    };
    let of = |pattern: &str| KeepRequest {
        pattern: pattern.to_owned(),
        ..KeepRequest::default()
    };
    assert_eq!(keeping(of("build.web")).await, Code::AlreadyExists);
    assert_eq!(keeping(of("state.>")).await, Code::InvalidArgument);
    assert_eq!(keeping(of("a..b")).await, Code::InvalidArgument);
    let nothing = KeepRequest {
        max_bytes: Some(0),
        ..of("chat")
    };
    assert_eq!(keeping(nothing).await, Code::InvalidArgument);
    let huge = KeepRequest {
        max_bytes: Some(1 << 50),
        ..of("chat")
    };
    assert_eq!(keeping(huge).await, Code::ResourceExhausted);
    let values = KeepRequest {
        last_per_topic: true,
        ..of("build.>")
    };
    assert_eq!(keeping(values).await, Code::FailedPrecondition);
    let unkeep = async |pattern: &str| {
        client
            .admin::<_, KeptTopicRow>(method::TOPIC_UNKEEP, &pattern)
            .await
    };
    assert_eq!(unkeep("build.web").await.unwrap_err().code, Code::NotFound);
    assert_eq!(
        unkeep("state.>").await.unwrap_err().code,
        Code::InvalidArgument
    );
    for publication in [
        client.publish("build.web").deleted(),
        client.publish("build.web").if_kept(1),
        client.publish("chat").if_kept(0),
    ] {
        assert_eq!(
            publication.send().await.unwrap_err().code,
            Code::InvalidArgument
        );
    }
    let many = (0..=MAX_REPLAY_PATTERNS).map(|n| format!("a{n}"));
    let refused = client.replay(many, ReplayStart::Now).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    let refused = client
        .replay(["a"], ReplayStart::Last(MAX_REPLAY_LAST + 1))
        .await;
    assert_eq!(refused.unwrap_err().code, Code::InvalidArgument);
    // What is kept no more is gone, and a reader is told.
    for _ in 0..3000 {
        client.publish("build.web").send().await.unwrap();
    }
    let mut replay = client
        .replay(["build.>"], ReplayStart::From(1))
        .await
        .unwrap();
    assert_eq!(unkeep("build.>").await.unwrap().messages, 3000);
    let (mut got, mut missed) = (0, 0);
    while got + missed < 3000 {
        match event(&mut replay).await {
            TopicEvent::Message(_) => got += 1,
            TopicEvent::Missed(lost) => missed += lost,
            _ => {}
        }
    }
    assert_eq!(got + missed, 3000);
    assert_eq!(list(&client).await.kept, []);
}

/// Values as they are watched, until all of these keys have these values.
async fn watched(watch: &mut StateWatch, expected: &[(&str, &str)]) {
    let mut values = BTreeMap::new();
    while !expected.iter().all(|(key, value)| {
        values
            .get(*key)
            .is_some_and(|found: &Vec<u8>| found == value.as_bytes())
    }) {
        let next = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
        if let Some(StateEvent::Value(value)) = next.unwrap() {
            values.insert(value.key, value.value.to_vec());
        }
    }
}

async fn value(client: &Client, key: &str) -> Option<StateValue> {
    let (value, away) = client.state_get(key, PATIENCE).await.unwrap();
    assert_eq!(away, []);
    value
}

#[tokio::test]
async fn state_is_shared_and_the_last_who_puts_a_value_wins() {
    let (alice, bob) = TestNode::pair().await;
    let (here, there) = (alice.client(), bob.client());
    assert_eq!(value(&here, "build.web").await, None);
    let mut watch = there.watch_state(">", PATIENCE).await.unwrap();
    let put = here.state_put("build.web").body("red").if_kept(0);
    let revision = put.send().await.unwrap().last;
    watched(&mut watch, &[("build.web", "red")]).await;
    let read = value(&there, "build.web").await.unwrap();
    assert_eq!(
        (&read.value[..], read.revision, read.node),
        (&b"red"[..], revision, Some(alice.node.id()))
    );
    // Compare and set: one of two who read the same wins.
    let put = |body: &'static str| here.state_put("build.web").body(body).if_kept(revision);
    assert!(put("green").send().await.is_ok());
    let refused = put("blue").send().await.unwrap_err();
    assert_eq!(refused.code, Code::Aborted);
    assert!(
        refused
            .message
            .contains("revision of `state.build.web` is 2"),
        "{refused}"
    );
    watched(&mut watch, &[("build.web", "green")]).await;
    // The other node puts it later, by a clock that is the same here.
    until_later_than(&there, "build.web").await;
    there
        .state_put("build.web")
        .body("yellow")
        .send()
        .await
        .unwrap();
    there
        .state_put("build.api")
        .body("up")
        .send()
        .await
        .unwrap();
    let mut all = here.watch_state("build.*", PATIENCE).await.unwrap();
    watched(&mut all, &[("build.web", "yellow"), ("build.api", "up")]).await;
    for client in [&here, &there] {
        assert_eq!(value(client, "build.web").await.unwrap().value, "yellow");
        let (values, _) = client.state_values("build.*", PATIENCE).await.unwrap();
        let keys: Vec<&str> = values.iter().map(|value| value.key.as_str()).collect();
        assert_eq!(keys, ["build.api", "build.web"]);
    }
    until_later_than(&here, "build.web").await;
    here.state_put("build.web").deleted().send().await.unwrap();
    loop {
        let next = tokio::time::timeout(PATIENCE, watch.next())
            .await
            .unwrap()
            .unwrap();
        if let Some(StateEvent::Value(StateValue {
            deleted: true, key, ..
        })) = next
        {
            assert_eq!(key, "build.web");
            break;
        }
    }
    for client in [&here, &there] {
        assert_eq!(value(client, "build.web").await, None);
    }
    // It outlives its node, and one that is away is named.
    let id = bob.node.id();
    bob.node.shutdown(Duration::ZERO).await;
    let (api, away) = here
        .state_get("build.api", Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!((api, away[0].0), (None, id));
    let wildcard = here.state_get("build.*", PATIENCE).await.unwrap_err();
    assert_eq!(wildcard.code, Code::InvalidArgument);
}

/// Until the clock is past the time of a key's value.
async fn until_later_than(client: &Client, key: &str) {
    let at = Duration::from_millis(value(client, key).await.unwrap().at_ms);
    let now = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
    };
    while now() <= at + Duration::from_millis(1) {
        tokio::task::yield_now().await;
    }
}

/// A peer that subscribes over its tunnel and does not read: its node's queue for it overflows, it is told how many it lost of each pattern, and nobody else
/// loses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_whose_queue_overflows_over_a_tunnel_is_told_what_it_lost() {
    let (alice, bob) = TestNode::pair().await;
    let (here, there) = (alice.client(), bob.client());
    let (sender, body) = Body::channel(1);
    let mut interest = BytesMut::new();
    let patterns = vec!["load.>".to_owned(), "load.a".to_owned()];
    put_record(&mut interest, &TopicInterest { patterns });
    sender.send(interest.freeze()).await.unwrap();
    let call = there.call("node@alice").method(method::TOPICS).body(body);
    let mut answer = call.send().await.unwrap();
    let mut fast = here.subscribe(["load.>"]).await.unwrap();
    let peer: NodeId = bob.node.id();
    // Whatever buffers there are on the way, in the end the queue is full.
    let (mut published, mut lost) = (0, 0);
    while lost < 100 {
        let topic = if published % 2 == 0 {
            "load.a"
        } else {
            "load.b"
        };
        let receipt = here
            .publish(topic)
            .body(vec![7; 64 * 1024])
            .send()
            .await
            .unwrap();
        assert_eq!((receipt.programs, receipt.peers), (1, 1));
        published += 1;
        assert_eq!(message(&mut fast).await.sequence, published);
        let rows = list(&here).await.topics;
        let row = rows
            .iter()
            .find(|row| row.node == Some(peer) && row.pattern == "load.>");
        lost = row.unwrap().missed;
        assert!(published < 10_000, "it never overflows");
    }
    here.publish("load.end").send().await.unwrap();
    let (mut reader, mut missed, mut of) = (RecordReader::default(), 0, BTreeMap::new());
    let mut got = Vec::new();
    while got.last() != Some(&(published + 1)) {
        let chunk = tokio::time::timeout(PATIENCE, answer.chunk())
            .await
            .unwrap();
        reader.handle_chunk(&chunk.unwrap().expect("it goes on"));
        while let Some(record) = reader.poll_record::<TopicRecord>().unwrap() {
            if !record.topic.is_empty() {
                assert!(got.last().is_none_or(|last| *last < record.sequence));
                got.push(record.sequence);
            }
            missed += record.missed;
            for (pattern, count) in record.missed_of {
                *of.entry(pattern).or_insert(0) += count;
            }
        }
    }
    assert_eq!(got.len() as u64 + missed, published + 1);
    assert!(missed >= 100);
    assert_eq!(of["load.>"], missed);
    let of_a = (1..=published)
        .step_by(2)
        .filter(|number| !got.contains(number))
        .count() as u64;
    assert_eq!(of["load.a"], of_a);
}
