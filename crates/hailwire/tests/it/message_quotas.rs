//! How many messages may wait: of one sender, for one agent, of one peer. Who has no room holds up nobody else, and loses nothing.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use hailwire::{
    Agent, Client, Code, Request, Response, ServeHandle, Status,
    admin::{MessageQuery, MessageRow, SendReceipt, method},
    config::{ByteSize, MessageQuota},
};
use hailwire_wire::{
    header,
    messages::{MessageBatch, OfferedMessage},
};

use crate::{
    carriers::both,
    messages::{batch_answer, ended, offered, send},
    test_node::{PATIENCE, TestNode},
};

const fn room(messages: u32) -> MessageQuota {
    MessageQuota {
        messages,
        bytes: ByteSize::mib(1),
    }
}

async fn try_send(client: &Client, to: &str, body: &str) -> Result<SendReceipt, Status> {
    let call = client.call(to).body(body.to_owned());
    call.durable(false, true).await
}

/// An agent that notes what it is handed.
async fn serve_noting(client: &Client, name: &str) -> (ServeHandle, Arc<Mutex<Vec<String>>>) {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let notes = noted.clone();
    let handler = move |request: Request| {
        let notes = notes.clone();
        async move {
            let body = request.into_body().bytes(1 << 20).await?;
            let text = String::from_utf8_lossy(&body).into_owned();
            notes.lock().unwrap().push(text);
            Ok(Response::new(""))
        }
    };
    let agent = Agent::new(name).unwrap();
    (client.serve(agent, handler).await.unwrap(), noted)
}

async fn rows(client: &Client, sent: bool, agent: &str) -> Vec<MessageRow> {
    let query = MessageQuery {
        sent,
        agent: agent.to_owned(),
        ..MessageQuery::default()
    };
    client.admin(method::MESSAGE_LIST, &query).await.unwrap()
}

#[tokio::test]
async fn a_sender_and_an_agent_have_so_much_room_and_who_is_refused_is_told_when_to_come_back() {
    let host = both("desk", |config| {
        config.messages.sender_quota = room(3);
        config.messages.agent_quota = room(2);
    })
    .await;
    let client = host.client();
    let to = |agent: &str| format!("{agent}@{}", host.node.id());
    for _ in 0..2 {
        try_send(&client, &to("full"), "x").await.unwrap();
    }
    let for_agent = try_send(&client, &to("full"), "x").await.unwrap_err();
    assert_eq!(for_agent.code, Code::ResourceExhausted);
    let said = "2 messages for agent `full` at node ";
    assert!(for_agent.message.starts_with(said), "{for_agent}");
    assert_eq!(for_agent.retry_after_ms, 30_000);
    try_send(&client, &to("other"), "x").await.unwrap();
    let of_sender = try_send(&client, &to("other"), "x").await.unwrap_err();
    assert_eq!(of_sender.code, Code::ResourceExhausted);
    let said = "3 messages of programs without a name at node ";
    assert!(of_sender.message.starts_with(said), "{of_sender}");

    // An agent of this node is another sender.
    let inside = host.attach().await;
    let asks = inside.clone();
    let target = to("other");
    let handler = move |_: Request| {
        let (asks, target) = (asks.clone(), target.clone());
        async move { Ok(Response::new(try_send(&asks, &target, "y").await?.state)) }
    };
    let agent = Agent::new("writer").unwrap();
    let _writer = inside.serve(agent, handler).await.unwrap();
    let mut asked = client.call(to("writer")).send().await.unwrap();
    assert_eq!(asked.bytes(100).await.unwrap(), "delivered");

    // What is done gives its room back, and who asks just then may come back sooner.
    let (_full, noted) = serve_noting(&client, "full").await;
    for row in rows(&client, true, &to("full")).await {
        ended(&client, &row.id).await;
    }
    assert_eq!(noted.lock().unwrap().len(), 2);
    // The room is free a moment after the end is on disk.
    let begun = Instant::now();
    let mut sent = 0;
    while sent < 2 {
        sent += u32::from(try_send(&client, &to("third"), "x").await.is_ok());
        assert!(begun.elapsed() < PATIENCE);
    }
    let again = try_send(&client, &to("third"), "x").await.unwrap_err();
    assert!([1_000, 30_000].contains(&again.retry_after_ms), "{again:?}");
    assert_eq!(rows(&client, false, "").await.len(), 6);
}

#[tokio::test]
async fn a_full_inbox_at_a_peer_holds_up_no_other_and_nothing_is_lost_or_out_of_order() {
    let alice = TestNode::named("alice").await;
    let bob = both("bob", |config| config.messages.agent_quota = room(2)).await;
    bob.befriend(&alice).await;
    let client = alice.client();
    let mut stuck = Vec::new();
    for number in 0..9 {
        stuck.push(send(&client, "stuck@bob", &number.to_string()).await.id);
    }
    let (_other, noted) = serve_noting(&bob.client(), "other").await;
    for number in 0..5 {
        let id = send(&client, "other@bob", &number.to_string()).await.id;
        assert_eq!(ended(&client, &id).await.row.state, "acknowledged");
    }
    assert_eq!(*noted.lock().unwrap(), ["0", "1", "2", "3", "4"]);
    assert_eq!(rows(&bob.client(), false, "stuck").await.len(), 2);
    let waiting = rows(&client, true, "stuck@bob").await;
    let stored = waiting.iter().filter(|row| row.state == "stored").count();
    assert_eq!((waiting.len(), stored), (9, 7));

    // As soon as it works them off the rest follows: the receipts say that there is room.
    let (_stuck, noted) = serve_noting(&bob.client(), "stuck").await;
    let begun = Instant::now();
    for id in &stuck {
        assert_eq!(ended(&client, id).await.row.state, "acknowledged");
    }
    assert!(begun.elapsed() < PATIENCE);
    let expected: Vec<String> = (0..9).map(|number| number.to_string()).collect();
    assert_eq!(*noted.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_peer_that_sends_without_end_is_refused_by_lane_and_keeps_no_room_from_others() {
    let bob = both("bob", |config| {
        config.messages.agent_quota = room(4);
        config.messages.sender_quota = room(3);
        config.messages.peer_quota = room(5);
    })
    .await;
    let (mallory, carol) = (
        TestNode::named("mallory").await,
        TestNode::named("carol").await,
    );
    for peer in [&mallory, &carol] {
        bob.befriend(peer).await;
    }
    let of = |id: u8, from: &str, to: &str| {
        let from = (!from.is_empty()).then(|| from.parse().unwrap());
        OfferedMessage {
            number: id.into(),
            ..offered(id, to, |header| header.from.agent = from)
        }
    };
    let taken = async |peer: &TestNode, messages: Vec<OfferedMessage>| {
        let batch = MessageBatch {
            messages,
            ..MessageBatch::default()
        };
        let answer = batch_answer(&peer.client(), "bob", header::encode(&batch)).await;
        let statuses = answer.unwrap().messages;
        let refused = statuses.iter().filter(|status| !status.is_ok());
        assert!(refused.clone().all(|status| status.retry_after_ms > 0));
        statuses
            .iter()
            .map(|status| status.code)
            .collect::<Vec<_>>()
    };
    let (ok, full) = (Code::Ok, Code::ResourceExhausted);
    let messages = vec![
        of(1, "a", "x"),
        of(2, "a", "x"),
        of(3, "a", "x"),
        of(4, "a", "x"),
        of(5, "b", "x"),
        of(6, "b", "x"),
        of(7, "b", "y"),
        of(8, "", "z"),
    ];
    // `a` has its room, `x` then, and last the node.
    let codes = taken(&mallory, messages).await;
    assert_eq!(codes, [ok, ok, ok, full, ok, full, ok, full]);
    // Others have theirs.
    let codes = taken(&carol, vec![of(1, "a", "x"), of(2, "a", "y")]).await;
    assert_eq!(codes, [full, ok]);
    assert_eq!(rows(&bob.client(), false, "").await.len(), 6);
}
