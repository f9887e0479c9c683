//! Publish and subscribe between embedded nodes: who gets what, once and in order, and what becomes of those who are slow, restarted, not
//! granted, or hostile.

use std::time::Duration;

use bytes::BytesMut;
use hailwire::{
    Body, Client, Code, NodeId, Status, Subscription, TopicEvent, TopicMessage,
    admin::{SubscribeRequest, TopicList, TopicPeer, TopicRow, TrustAdd, TrustedPeer, method},
};
use hailwire_wire::{
    limits::{MAX_TOPIC, MAX_TOPIC_BODY, MAX_TOPIC_PATTERNS, MAX_TOPIC_RECORD, MAX_TOPIC_TOKENS},
    topics::{TopicInterest, TopicRecord, put_record},
};

use crate::{
    carriers::{both, introduce, near_of_wire, until},
    test_node::{PATIENCE, TestNode},
    wire::Wire,
};

async fn list(client: &Client) -> TopicList {
    client.admin(method::TOPIC_LIST, &()).await.unwrap()
}

/// What `find` finds in the list of a node, once it does. Nobody is told of changes of that list, so it is asked again.
async fn once<T>(client: &Client, find: impl Fn(TopicList) -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = find(list(client).await) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    found.expect("what is waited for")
}

/// The row of a pattern that a peer wants, once it does.
async fn wanted_by(client: &Client, peer: NodeId, pattern: &str) -> TopicRow {
    once(client, |list| {
        let mut rows = list.topics.into_iter();
        rows.find(|row| row.node == Some(peer) && row.pattern == pattern)
    })
    .await
}

/// What a peer says of the patterns that this node wants, once `find` finds it.
async fn asked(client: &Client, find: impl Fn(&TopicPeer) -> bool) -> TopicPeer {
    once(client, |list| list.peers.into_iter().find(&find)).await
}

async fn event(subscription: &mut Subscription) -> TopicEvent {
    let next = tokio::time::timeout(PATIENCE, subscription.next()).await;
    next.expect("something comes").unwrap().expect("it goes on")
}

async fn message(subscription: &mut Subscription) -> TopicMessage {
    match event(subscription).await {
        TopicEvent::Message(message) => message,
        other => panic!("{other:?} is no message"),
    }
}

async fn text(subscription: &mut Subscription) -> String {
    let message = message(subscription).await;
    String::from_utf8(message.body.to_vec()).unwrap()
}

async fn publish(client: &Client, topic: &str, body: &str) -> (u64, u64) {
    let receipt = client.publish(topic).body(body).send().await.unwrap();
    assert_eq!(receipt.published, 1);
    (receipt.programs, receipt.peers)
}

#[tokio::test]
async fn programs_of_one_machine_get_what_their_patterns_match_each_message_once() {
    let alice = TestNode::named("alice").await;
    let (client, program) = (alice.client(), alice.attach().await);
    let mut all = program.subscribe([">", "build.*", "*.web"]).await.unwrap();
    let mut done = client.subscribe(["build.*.done"]).await.unwrap();
    assert_eq!(publish(&client, "build.web", "one").await, (1, 0));
    assert_eq!(publish(&program, "build.web.done", "two").await, (2, 0));
    let editor = "editor".parse().unwrap();
    let publication = client
        .publish("build.api.done")
        .body("{}")
        .content_type("application/json")
        .header("commit", "abc");
    let receipt = publication.from(&editor).send().await.unwrap();
    assert_eq!((receipt.programs, receipt.peers), (2, 0));
    assert_eq!(text(&mut all).await, "one");
    assert_eq!(text(&mut all).await, "two");
    assert_eq!(text(&mut done).await, "two");
    let last = message(&mut done).await;
    assert_eq!(
        (last.topic.as_str(), &last.body[..]),
        ("build.api.done", &b"{}"[..])
    );
    assert_eq!(last.headers, [("commit".to_owned(), "abc".to_owned())]);
    assert_eq!((last.from.as_str(), last.node), ("editor", None));
    assert_eq!(
        (last.content_type.as_str(), last.sequence),
        ("application/json", 3)
    );
    assert!(last.at_ms > 0);
    assert_eq!(message(&mut all).await, last);
    drop(all);
    let rows = once(&client, |list| {
        (list.topics.len() == 1).then_some(list.topics)
    })
    .await;
    assert_eq!(
        (rows[0].pattern.as_str(), rows[0].delivered),
        ("build.*.done", 2)
    );
    assert_eq!(publish(&client, "nobody.wants.it", "").await, (0, 0));
}

#[tokio::test]
async fn a_peer_gets_one_copy_in_order_however_many_subscribe_behind_it() {
    let (alice, bob) = TestNode::pair().await;
    let (here, there) = (alice.client(), bob.client());
    let program = bob.attach().await;
    let mut subscriptions = Vec::new();
    for client in [&there, &there, &program, &program] {
        subscriptions.push(client.subscribe(["build.>", "build.*"]).await.unwrap());
    }
    wanted_by(&here, bob.node.id(), "build.>").await;
    let mut publisher = here.publisher();
    for number in 0..1000 {
        let one = here.publish("build.web").body(number.to_string());
        publisher.publish(one).await.unwrap();
    }
    let receipt = publisher.finish().await.unwrap();
    assert_eq!(
        (receipt.published, receipt.programs, receipt.peers),
        (1000, 0, 1000)
    );
    for subscription in &mut subscriptions {
        for number in 0..1000 {
            let message = message(subscription).await;
            assert_eq!(message.body, number.to_string());
            assert_eq!(
                (message.node, message.sequence),
                (Some(alice.node.id()), number + 1)
            );
        }
    }
    let row = wanted_by(&here, bob.node.id(), "build.>").await;
    assert_eq!((row.published, row.delivered, row.missed), (1000, 1000, 0));
    assert_eq!((row.subscribers, row.node_name.as_str()), (1, "bob"));
    // Nodes do not forward: what bob publishes goes to alice, and back to nobody.
    let mut back = here.subscribe(["build.web"]).await.unwrap();
    wanted_by(&there, alice.node.id(), "build.web").await;
    assert_eq!(publish(&there, "build.web", "from bob").await, (4, 1));
    assert_eq!(message(&mut back).await.node, Some(bob.node.id()));
    assert_eq!(message(&mut subscriptions[0]).await.node, None);
    assert_eq!(publish(&here, "build.web", "last").await, (1, 1));
    assert_eq!(text(&mut subscriptions[0]).await, "last");
    // A pattern that nobody wants any more is told too.
    drop(subscriptions);
    once(&here, |list| {
        list.topics
            .iter()
            .all(|row| row.node.is_none())
            .then_some(())
    })
    .await;
    assert_eq!(publish(&here, "build.web", "").await, (1, 0));
}

#[tokio::test]
async fn a_slow_subscriber_is_told_how_many_it_missed_and_a_fast_one_loses_nothing() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let slow_program = alice.attach().await;
    let mut slow = slow_program.subscribe(["load"]).await.unwrap();
    let mut fast = client.subscribe(["load"]).await.unwrap();
    let mut slow_there = bob.client().subscribe(["load"]).await.unwrap();
    let mut fast_there = bob.client().subscribe(["load"]).await.unwrap();
    wanted_by(&client, bob.node.id(), "load").await;
    let count = 600_u64;
    let body = vec![7; 64 * 1024];
    for number in 1..=count {
        let receipt = client
            .publish("load")
            .body(body.clone())
            .send()
            .await
            .unwrap();
        assert_eq!((receipt.programs, receipt.peers), (2, 1));
        assert_eq!(message(&mut fast).await.sequence, number);
        assert_eq!(message(&mut fast_there).await.sequence, number);
    }
    for slow in [&mut slow, &mut slow_there] {
        let (mut missed, mut got, mut last) = (0, 0, 0);
        while last < count {
            match event(slow).await {
                TopicEvent::Missed(lost) => missed += lost,
                TopicEvent::Message(message) => {
                    assert!(message.sequence > last, "in order");
                    last = message.sequence;
                    got += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(missed + got, count);
        assert!(missed > count / 3, "{missed} of {count}");
    }
    let rows = list(&client).await.topics;
    let here = rows.iter().find(|row| row.node.is_none()).unwrap();
    assert_eq!(here.delivered + here.missed, 2 * count);
}

#[tokio::test]
async fn what_is_wanted_is_told_anew_after_a_restart_of_either_node() {
    let (alice, bob) = TestNode::pair().await;
    let mut subscription = bob.client().subscribe(["a.*"]).await.unwrap();
    let id = bob.node.id();
    wanted_by(&alice.client(), id, "a.*").await;
    publish(&alice.client(), "a.b", "before").await;
    assert_eq!(text(&mut subscription).await, "before");
    // The publisher's node: its subscriber's finds it again, where it listens now.
    let alice = alice.restart("alice").await;
    wanted_by(&alice.client(), id, "a.*").await;
    assert_eq!(publish(&alice.client(), "a.b", "after").await, (0, 1));
    let after = message(&mut subscription).await;
    assert_eq!((&after.body[..], after.sequence), (&b"after"[..], 1));
    // The subscriber's node: the subscription ends with it, and is forgotten at the publisher's.
    let bob = bob.restart("bob").await;
    let ended = tokio::time::timeout(PATIENCE, subscription.next())
        .await
        .unwrap();
    assert_eq!(ended.unwrap_err().code, Code::Unavailable);
    once(&alice.client(), |list| list.topics.is_empty().then_some(())).await;
    let mut subscription = bob.client().subscribe(["a.*"]).await.unwrap();
    wanted_by(&alice.client(), id, "a.*").await;
    assert_eq!(publish(&alice.client(), "a.b", "again").await, (0, 1));
    assert_eq!(text(&mut subscription).await, "again");
}

/// Messages move to another carrier as calls do. On the way back both still move, so nothing is lost and nothing comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_move_to_tcp_when_udp_is_cut_and_return_without_loss() {
    let (far, near) = (both("far", |_| {}).await, near_of_wire().await);
    let wire = Wire::to(far.node.sockets()[0]).await;
    introduce(&far, &near, "near", &[], &[]).await;
    introduce(&near, &far, "far", &[wire.address], &far.node.tcp_sockets()).await;
    let mut subscription = near.client().subscribe(["tick"]).await.unwrap();
    wanted_by(&far.client(), near.node.id(), "tick").await;
    until(&near, "quic").await;
    let client = far.client();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let ticking = tokio::spawn(async move {
        while !*stopped.borrow_and_update() {
            client.publish("tick").send().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.publish("tick").body("last").send().await.unwrap();
    });
    let mut last = message(&mut subscription).await.sequence;
    wire.cut(true);
    until(&near, "h2").await;
    // What was under way over UDP is left behind; what is published from now on comes once the other stream is there.
    let moved = std::time::SystemTime::now() + Duration::from_millis(500);
    let moved = moved.duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut at = Duration::ZERO;
    while at < moved {
        let message = message(&mut subscription).await;
        assert!(message.sequence > last, "in order and once");
        (last, at) = (message.sequence, Duration::from_millis(message.at_ms));
    }
    wire.cut(false);
    until(&near, "quic").await;
    for _ in 0..200 {
        let message = message(&mut subscription).await;
        assert_eq!(message.sequence, last + 1);
        last = message.sequence;
    }
    stop.send(true).unwrap();
    loop {
        let message = message(&mut subscription).await;
        assert_eq!(message.sequence, last + 1);
        last = message.sequence;
        if message.body == "last" {
            break;
        }
    }
    ticking.await.unwrap();
}

#[tokio::test]
async fn a_node_that_ends_waits_for_no_subscriber() {
    let (alice, bob) = TestNode::pair().await;
    let program = alice.attach().await;
    let mut near = program.subscribe([">"]).await.unwrap();
    let mut far = bob.client().subscribe([">"]).await.unwrap();
    wanted_by(&alice.client(), bob.node.id(), ">").await;
    wanted_by(&bob.client(), alice.node.id(), ">").await;
    let long = Duration::from_secs(3600);
    tokio::time::timeout(PATIENCE, alice.node.shutdown(long))
        .await
        .expect("it does not wait");
    let ended = tokio::time::timeout(PATIENCE, near.next()).await.unwrap();
    assert_eq!(ended.unwrap_err().code, Code::Unavailable);
    publish(&bob.client(), "a", "still here").await;
    assert_eq!(text(&mut far).await, "still here");
}

#[tokio::test]
async fn who_may_publish_and_subscribe_is_granted_as_calls_are() {
    let (alice, bob) = tokio::join!(TestNode::named("alice"), TestNode::named("bob"));
    bob.join(&alice.invite(1, &["build"]).await).await.unwrap();
    let (here, there) = (alice.client(), bob.client());
    // To alice's topics bob may subscribe as far as he may call her agents.
    let mut granted = there.subscribe(["build.>", "build"]).await.unwrap();
    let mut other = there.subscribe(["chat.>", "*.web", ">"]).await.unwrap();
    let peer = asked(&there, |peer| peer.refused.len() == 3).await;
    assert!(peer.subscribed);
    assert_eq!(peer.refused, ["*.web", ">", "chat.>"]);
    wanted_by(&here, bob.node.id(), "build.>").await;
    assert_eq!(publish(&here, "build.web", "yes").await, (0, 1));
    assert_eq!(publish(&here, "chat.web", "no").await, (0, 0));
    assert_eq!(text(&mut granted).await, "yes");
    // It reached bob, and there whoever wants it gets it.
    assert_eq!(text(&mut other).await, "yes");
    // Into alice's subscriptions bob may publish as far as he may call her agents.
    let mut all = here.subscribe([">"]).await.unwrap();
    wanted_by(&there, alice.node.id(), ">").await;
    assert_eq!(publish(&there, "chat.web", "no").await, (1, 1));
    assert_eq!(publish(&there, "build.web", "yes").await, (2, 1));
    assert_eq!(text(&mut all).await, "yes");
    let peer = asked(&here, |peer| peer.dropped > 0).await;
    assert_eq!((peer.dropped, peer.node_name.as_str()), (1, "bob"));
    // A grant that changes holds from then on, also for patterns that were granted before.
    let grant = |allow: &[&str]| TrustAdd {
        id: bob.node.id(),
        allow: allow.iter().map(ToString::to_string).collect(),
        ..serde_json::from_value(serde_json::json!({ "id": bob.node.id() })).unwrap()
    };
    let _: TrustedPeer = here
        .admin(method::TRUST_ADD, &grant(&["chat"]))
        .await
        .unwrap();
    assert_eq!(publish(&here, "build.web", "no more").await, (1, 0));
}

#[tokio::test]
async fn topics_of_the_node_itself_never_leave_the_machine() {
    let (alice, bob) = TestNode::pair().await;
    let (here, there) = (alice.client(), bob.client());
    let mut near = here.subscribe(["node.>"]).await.unwrap();
    let mut far = there.subscribe([">", "node.*"]).await.unwrap();
    wanted_by(&here, bob.node.id(), ">").await;
    assert_eq!(publish(&here, "node.secret", "here").await, (1, 0));
    assert_eq!(publish(&here, "other", "there").await, (0, 1));
    assert_eq!(text(&mut near).await, "here");
    assert_eq!(text(&mut far).await, "there");
    let rows = list(&here).await.topics;
    assert!(
        rows.iter()
            .all(|row| row.node.is_none() || row.pattern == ">"),
        "{rows:?}"
    );
}

/// What a program that plays a peer gets for what it says that it wants.
async fn want(client: &Client, to: &str, body: impl Into<Body>) -> Result<TopicRecord, Status> {
    let call = client.call(to).method(method::TOPICS).body(body);
    let mut answer = call.deadline(PATIENCE).send().await?;
    let chunk = answer.chunk().await?.expect("a first record");
    Ok(hailwire_wire::header::decode(&chunk[4..]).unwrap())
}

fn interest(patterns: &[String]) -> Vec<u8> {
    let mut out = BytesMut::new();
    let patterns = patterns.to_vec();
    put_record(&mut out, &TopicInterest { patterns });
    out.to_vec()
}

#[tokio::test]
async fn a_peer_that_wants_too_much_is_refused_and_one_call_takes_the_place_of_another() {
    let (alice, bob) = TestNode::pair().await;
    let (here, there) = (alice.client(), bob.client());
    let many: Vec<String> = (0..=MAX_TOPIC_PATTERNS).map(|n| format!("a{n}")).collect();
    let long = vec!["x".repeat(65); 1];
    let deep = vec![["a"; MAX_TOPIC_TOKENS + 1].join("."); 1];
    let too_large = vec![0xff; 8];
    let bad = [
        interest(&many),
        interest(&long),
        interest(&deep),
        too_large,
        Vec::new(),
    ];
    for bad in bad {
        let refused = want(&there, "node@alice", bad).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    }
    assert_eq!(list(&here).await.topics, []);
    let most = &many[..MAX_TOPIC_PATTERNS];
    let (sender, body) = Body::channel(2);
    sender.send(interest(most)).await.unwrap();
    let call = there.call("node@alice").method(method::TOPICS).body(body);
    let mut first = call.send().await.unwrap();
    assert!(first.chunk().await.unwrap().is_some());
    assert_eq!(list(&here).await.topics.len(), MAX_TOPIC_PATTERNS);
    // Another call of the same peer goes on with its queue, and the first one ends.
    let (other, body) = Body::channel(2);
    other.send(interest(&most[..2])).await.unwrap();
    let call = there.call("node@alice").method(method::TOPICS).body(body);
    let mut second = call.send().await.unwrap();
    assert!(second.chunk().await.unwrap().is_some());
    assert_eq!(first.chunk().await.unwrap(), None);
    assert_eq!(publish(&here, "a1", "x").await, (0, 1));
    assert!(second.chunk().await.unwrap().is_some());
    assert_eq!(list(&here).await.topics.len(), 2);
    // What cannot be read ends it, and nothing stays.
    other.send(interest(&many)).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, second.chunk())
        .await
        .unwrap();
    assert_eq!(ended.unwrap_err().code, Code::Aborted);
    assert_eq!(list(&here).await.topics, []);
}

#[tokio::test]
async fn a_peer_neither_publishes_nor_subscribes_as_a_program() {
    let (alice, bob) = TestNode::pair().await;
    let there = bob.client();
    for name in [
        method::TOPIC_PUBLISH,
        method::TOPIC_SUBSCRIBE,
        method::TOPIC_LIST,
    ] {
        let call = there.call("node@alice").method(name).body("{}");
        let refused = call.deadline(PATIENCE).send().await.unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied, "{name}");
    }
    // What is for peers is for no program.
    let local = want(&alice.client(), "node", interest(&["a".to_owned()])).await;
    assert_eq!(local.unwrap_err().code, Code::Unimplemented);
}

#[tokio::test]
async fn what_is_no_message_is_not_published_and_says_why() {
    let alice = TestNode::named("alice").await;
    let (client, program) = (alice.client(), alice.attach().await);
    let mut all = program.subscribe([">"]).await.unwrap();
    let raw = async |record: &TopicRecord| {
        let mut out = BytesMut::new();
        put_record(&mut out, record);
        let call = program.call("node").method(method::TOPIC_PUBLISH);
        call.body(out.to_vec()).send().await.unwrap_err()
    };
    let good = TopicRecord {
        topic: "a".to_owned(),
        ..TopicRecord::default()
    };
    let bad = [
        TopicRecord {
            topic: "a.*".to_owned(),
            ..good.clone()
        },
        TopicRecord {
            topic: "a".repeat(MAX_TOPIC + 1),
            ..good.clone()
        },
        TopicRecord {
            topic: String::new(),
            ..good.clone()
        },
        TopicRecord {
            body: vec![0; MAX_TOPIC_BODY + 1],
            ..good.clone()
        },
        TopicRecord {
            body: vec![0; MAX_TOPIC_RECORD + 1],
            ..good.clone()
        },
        TopicRecord {
            node: Some(alice.node.id()),
            ..good.clone()
        },
        TopicRecord {
            from: "No Name".to_owned(),
            ..good.clone()
        },
    ];
    for record in &bad {
        let refused = raw(record).await;
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    }
    for topic in ["", "a.*", ">", "A", "a..b"] {
        let refused = client.publish(topic).send().await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{topic}");
    }
    let half = program
        .call("node")
        .method(method::TOPIC_PUBLISH)
        .body(vec![0, 0, 0, 9, 1]);
    assert_eq!(half.send().await.unwrap_err().code, Code::InvalidArgument);
    // A mistake does not end what others are published with.
    let mut publisher = client.publisher();
    publisher
        .publish(client.publish("a").body("one"))
        .await
        .unwrap();
    assert!(publisher.publish(client.publish("A")).await.is_err());
    let largest = vec![1; MAX_TOPIC_BODY];
    publisher
        .publish(client.publish("a").body(largest))
        .await
        .unwrap();
    assert_eq!(publisher.finish().await.unwrap().published, 2);
    assert_eq!(text(&mut all).await, "one");
    assert_eq!(message(&mut all).await.body.len(), MAX_TOPIC_BODY);
    let refused = async |patterns: Vec<String>| {
        let refused = client.subscribe(patterns).await;
        refused.unwrap_err().code
    };
    assert_eq!(refused(Vec::new()).await, Code::InvalidArgument);
    assert_eq!(refused(vec![">.a".to_owned()]).await, Code::InvalidArgument);
    let many = (0..MAX_TOPIC_PATTERNS).map(|n| format!("a{n}")).collect();
    assert_eq!(
        refused(many).await,
        Code::ResourceExhausted,
        "with `>` those are too many"
    );
    let request = SubscribeRequest {
        patterns: vec!["x".repeat(600 * 1024)],
        ..SubscribeRequest::default()
    };
    let large = client
        .admin::<_, ()>(method::TOPIC_SUBSCRIBE, &request)
        .await;
    assert_eq!(large.unwrap_err().code, Code::ResourceExhausted);
}
