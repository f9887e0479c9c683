//! Durable messages between embedded nodes: kept, handed over, acknowledged, and told to their sender.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use hailwire::{
    Agent, Client, Code, Request, Response, ServeHandle, Status,
    admin::{
        MessageDetail, MessageQuery, MessageRow, MessageSelector, MessageTake, MessageVerdict,
        MessageWait, SendReceipt, method,
    },
};
use hailwire_wire::{
    CallHeader, header,
    header::Durability,
    limits,
    messages::{
        BatchAnswer, MessageBatch, MessageId, MessageReceipt, MessageState, OfferedMessage,
    },
};

use crate::test_node::{PATIENCE, TestNode, serve_echo};

pub(crate) async fn send(client: &Client, to: &str, body: &str) -> SendReceipt {
    client
        .call(to)
        .body(body.to_owned())
        .durable(false, true)
        .await
        .unwrap()
}

pub(crate) async fn ended(client: &Client, id: &str) -> MessageDetail {
    let wait = MessageWait {
        id: id.to_owned(),
        timeout_ms: u64::try_from(PATIENCE.as_millis()).unwrap(),
        ..MessageWait::default()
    };
    client.admin(method::MESSAGE_WAIT, &wait).await.unwrap()
}

pub(crate) async fn shown(client: &Client, id: &str) -> MessageDetail {
    let id = id.to_owned();
    client
        .admin(method::MESSAGE_SHOW, &MessageSelector { id })
        .await
        .unwrap()
}

/// What an agent was handed: id, attempt and text of each message.
type Handed = Arc<Mutex<Vec<(String, String, String)>>>;

/// An agent that notes what it is handed, and ends as `answer` says.
async fn noting(
    client: &Client,
    name: &str,
    answer: impl Fn(&str, usize) -> Result<String, Status> + Send + Sync + 'static,
) -> (ServeHandle, Handed) {
    let handed = Handed::default();
    let noted = handed.clone();
    let answer = Arc::new(answer);
    let handler = move |request: Request| {
        let (noted, answer) = (noted.clone(), answer.clone());
        async move {
            let field = |name: &str| request.header().field(name).unwrap_or_default().to_owned();
            let (id, attempt) = (field("hail-message-id"), field("hail-message-attempt"));
            let body = request.into_body().bytes(1 << 20).await?;
            let text = String::from_utf8(body.to_vec()).unwrap();
            let count = {
                let mut noted = noted.lock().unwrap();
                noted.push((id, attempt, text.clone()));
                noted.len()
            };
            answer(&text, count).map(Response::new)
        }
    };
    let served = client
        .serve(Agent::new(name).unwrap(), handler)
        .await
        .unwrap();
    (served, handed)
}

fn texts(handed: &Handed) -> Vec<String> {
    handed
        .lock()
        .unwrap()
        .iter()
        .map(|(_, _, text)| text.clone())
        .collect()
}

#[tokio::test]
async fn a_message_is_acknowledged_here_and_at_a_peer_and_a_call_is_answered() {
    let (alice, bob) = TestNode::pair().await;
    let (_here, here) = noting(&alice.client(), "near", |_, _| Ok(String::new())).await;
    let (_there, there) = noting(&bob.client(), "far", |text, _| Ok(text.to_uppercase())).await;
    let near = send(&alice.client(), "near", "one").await;
    assert_eq!((near.state.as_str(), near.known), ("delivered", false));
    let far = send(&alice.client(), "far@bob", "two").await;
    assert_eq!(far.state, "stored");
    for (receipt, handed, text) in [(near, here, "one"), (far, there.clone(), "two")] {
        let end = ended(&alice.client(), &receipt.id).await;
        assert_eq!(
            (end.row.state.as_str(), end.row.attempts),
            ("acknowledged", 1)
        );
        let stored = end.row.stored_at_ms;
        assert!(
            end.row.delivered_at_ms.unwrap() >= stored && end.row.ended_at_ms.unwrap() >= stored
        );
        let expected = (receipt.id, "1".to_owned(), text.to_owned());
        assert_eq!(*handed.lock().unwrap(), [expected]);
    }
    // Also from a program beside the node.
    let program = alice.attach().await;
    let asked = program
        .call("far@bob")
        .body("three")
        .durable(true, true)
        .await
        .unwrap();
    let end = ended(&program, &asked.id).await;
    assert_eq!(
        (end.row.state.as_str(), end.answer.text.as_str()),
        ("answered", "THREE")
    );
    assert_eq!(texts(&there), ["two", "three"]);
    // Nothing waits any more, at neither end.
    for node in [&alice, &bob] {
        let query = MessageQuery {
            states: vec![
                "stored".to_owned(),
                "delivered".to_owned(),
                "taken".to_owned(),
            ],
            ..MessageQuery::default()
        };
        for sent in [false, true] {
            let query = MessageQuery {
                sent,
                ..query.clone()
            };
            let rows: Vec<MessageRow> = node
                .client()
                .admin(method::MESSAGE_LIST, &query)
                .await
                .unwrap();
            assert_eq!(rows, []);
        }
    }
}

#[tokio::test]
async fn what_was_accepted_survives_restarts_of_both_nodes_and_the_order_of_a_sender_is_kept() {
    let (alice, bob) = TestNode::pair().await;
    let mut ids = Vec::new();
    bob.node.shutdown(Duration::ZERO).await;
    for number in 0..20 {
        ids.push(
            send(&alice.client(), "later@bob", &number.to_string())
                .await
                .id,
        );
    }
    assert_eq!(shown(&alice.client(), &ids[0]).await.row.state, "stored");
    let alice = alice.restart("alice").await;
    assert_eq!(shown(&alice.client(), &ids[0]).await.body.text, "0");
    let node = crate::test_node::start(bob.dir.path(), "bob")
        .await
        .unwrap();
    let bob = TestNode { node, dir: bob.dir };
    // They arrive, and wait for their agent, which is not there; also through another restart.
    let arrived = MessageWait {
        id: ids[19].clone(),
        state: "delivered".to_owned(),
        timeout_ms: 20_000,
        ..MessageWait::default()
    };
    let detail: MessageDetail = alice
        .client()
        .admin(method::MESSAGE_WAIT, &arrived)
        .await
        .unwrap();
    assert_eq!(detail.row.state, "delivered");
    let bob = bob.restart("bob").await;
    let (_later, handed) = noting(&bob.client(), "later", |_, _| Ok(String::new())).await;
    for id in &ids {
        assert_eq!(ended(&alice.client(), id).await.row.state, "acknowledged");
    }
    let in_order: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(texts(&handed), in_order);
}

#[tokio::test]
async fn an_agent_that_fails_is_tried_again_before_what_comes_after_and_one_that_refuses_is_not() {
    let (alice, bob) = TestNode::pair().await;
    let (_agent, handed) = noting(&bob.client(), "picky", |text, count| match text {
        "first" if count == 1 => Err(Status::new(Code::Aborted, "not yet")),
        "never" => Err(Status::new(Code::InvalidArgument, "I do not do that")),
        _ => Ok(String::new()),
    })
    .await;
    let client = alice.client();
    let first = send(&client, "picky@bob", "first").await.id;
    let never = send(&client, "picky@bob", "never").await.id;
    let last = send(&client, "picky@bob", "last").await.id;
    let end = ended(&client, &last).await;
    assert_eq!(end.row.state, "acknowledged");
    let end = ended(&client, &first).await.row;
    assert_eq!((end.state.as_str(), end.attempts), ("acknowledged", 2));
    let end = ended(&client, &never).await.row;
    assert_eq!(
        (end.state.as_str(), end.code.as_str()),
        ("dead", "invalid_argument")
    );
    assert_eq!(end.reason, "I do not do that");
    assert_eq!(texts(&handed), ["first", "first", "never", "last"]);
    // It lies among the dead letters, whole, and may be tried again.
    let dead = MessageQuery {
        states: vec!["dead".to_owned()],
        ..MessageQuery::default()
    };
    let rows: Vec<MessageRow> = bob
        .client()
        .admin(method::MESSAGE_LIST, &dead)
        .await
        .unwrap();
    assert_eq!(rows.iter().map(|row| &row.id).collect::<Vec<_>>(), [&never]);
    assert_eq!(shown(&bob.client(), &never).await.body.text, "never");
    let again = MessageSelector { id: never.clone() };
    let _: MessageRow = bob
        .client()
        .admin(method::MESSAGE_RETRY, &again)
        .await
        .unwrap();
    assert_eq!(ended(&bob.client(), &never).await.row.state, "dead");
    assert_eq!(texts(&handed).len(), 5);
}

#[tokio::test]
async fn any_order_lets_several_be_worked_on_at_once_and_order_does_not() {
    let alice = TestNode::named("alice").await;
    let (begun, mut beginnings) = tokio::sync::mpsc::unbounded_channel();
    let (go, gone) = tokio::sync::watch::channel(false);
    let handler = move |request: Request| {
        let (begun, mut gone) = (begun.clone(), gone.clone());
        async move {
            begun.send(request.header().durable).unwrap();
            gone.wait_for(|go| *go).await.unwrap();
            Ok(Response::new(""))
        }
    };
    let slow = Agent::new("slow").unwrap();
    let _slow = alice.client().serve(slow, handler).await.unwrap();
    let mut ids = Vec::new();
    for in_order in [true, true, false, false, false] {
        let sent = alice
            .client()
            .call("slow")
            .durable(false, in_order)
            .await
            .unwrap();
        ids.push(sent.id);
    }
    let mut at_once = Vec::new();
    while at_once.len() < 4 {
        at_once.push(beginnings.recv().await.unwrap());
    }
    let in_order = at_once.iter().filter(|one| **one == Durability::InOrder);
    assert_eq!(in_order.count(), 1, "{at_once:?}");
    assert_eq!(shown(&alice.client(), &ids[1]).await.row.state, "delivered");
    go.send(true).unwrap();
    for id in ids {
        assert_eq!(ended(&alice.client(), &id).await.row.state, "acknowledged");
    }
}

#[tokio::test]
async fn a_second_send_with_the_same_key_is_the_first() {
    let (alice, bob) = TestNode::pair().await;
    let (_agent, handed) = noting(&bob.client(), "once", |_, _| Ok(String::new())).await;
    let client = alice.client();
    let send = |to: &str, key: &str| {
        let call = client.call(to).body("x").idempotency_key(key);
        call.durable(false, true)
    };
    let first = send("once@bob", "k").await.unwrap();
    let second = send("once@bob", "k").await.unwrap();
    assert_eq!((first.known, second.known), (false, true));
    assert_eq!(first.id, second.id);
    let other = send("once@bob", "another").await.unwrap();
    ended(&client, &other.id).await;
    assert_eq!(handed.lock().unwrap().len(), 2);
    let third = send("once@bob", "k").await.unwrap();
    assert_eq!((third.known, third.state.as_str()), (true, "acknowledged"));
}

#[tokio::test]
async fn a_message_expires_where_no_agent_comes_and_can_be_taken_back_where_it_has_not_left() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let brief = client
        .call("nobody@bob")
        .deadline(Duration::from_millis(300));
    let brief = brief.durable(false, true).await.unwrap();
    assert_eq!(ended(&client, &brief.id).await.row.state, "expired");
    bob.node.shutdown(Duration::ZERO).await;
    let late = send(&client, "nobody@bob", "x").await;
    let id = MessageSelector { id: late.id };
    let row: MessageRow = client.admin(method::MESSAGE_DROP, &id).await.unwrap();
    assert_eq!(row.state, "dropped");
    let gone = client
        .admin::<_, MessageDetail>(method::MESSAGE_SHOW, &id)
        .await;
    assert_eq!(gone.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn messages_are_taken_by_hand_and_come_again_where_no_verdict_comes() {
    let (alice, bob) = TestNode::pair().await;
    let (client, bob) = (alice.client(), bob.client());
    let one = client
        .call("script@bob")
        .body("one")
        .durable(true, true)
        .await
        .unwrap()
        .id;
    let two = send(&client, "script@bob", "two").await.id;
    let take = |lease_ms| MessageTake {
        agent: "script".to_owned(),
        most: 8,
        lease_ms,
    };
    let taken = async |lease_ms| -> Vec<String> {
        let taken = bob.admin(method::MESSAGE_TAKE, &take(lease_ms)).await;
        let taken: Vec<MessageDetail> = taken.unwrap();
        taken.into_iter().map(|detail| detail.row.id).collect()
    };
    let arrived = async {
        let wait = MessageWait {
            id: two.clone(),
            state: "delivered".to_owned(),
            timeout_ms: 20_000,
            ..MessageWait::default()
        };
        client
            .admin::<_, MessageDetail>(method::MESSAGE_WAIT, &wait)
            .await
            .unwrap()
    };
    arrived.await;
    // In order: the second waits for the first.
    assert_eq!(taken(200).await, std::slice::from_ref(&one));
    assert_eq!(taken(200).await, <[String; 0]>::default());
    let verdict = |id: &str, failed: Option<&str>, answer: &str| MessageVerdict {
        id: id.to_owned(),
        failed: failed.map(ToOwned::to_owned),
        retry: false,
        answer: answer.to_owned(),
    };
    let late = tokio::time::timeout(PATIENCE, async {
        loop {
            let taken = taken(60_000).await;
            if !taken.is_empty() {
                return taken;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(
        late.await.unwrap(),
        std::slice::from_ref(&one),
        "it comes again"
    );
    let done = verdict(&one, None, "fine");
    let row: MessageRow = bob.admin(method::MESSAGE_ACK, &done).await.unwrap();
    assert_eq!((row.state.as_str(), row.attempts), ("answered", 2));
    let twice = bob.admin::<_, MessageRow>(method::MESSAGE_ACK, &done).await;
    assert_eq!(twice.unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(ended(&client, &one).await.answer.text, "fine");
    assert_eq!(taken(60_000).await, std::slice::from_ref(&two));
    let failed = verdict(&two, Some("it is broken"), "");
    let _: MessageRow = bob.admin(method::MESSAGE_ACK, &failed).await.unwrap();
    let end = ended(&client, &two).await.row;
    assert_eq!(
        (end.state.as_str(), end.reason.as_str()),
        ("dead", "it is broken")
    );
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_and_says_why() {
    let (alice, bob) = TestNode::pair().await;
    let client = alice.client();
    let refused = async |to: &str| {
        let sent = client.call(to).durable(false, true).await;
        sent.unwrap_err()
    };
    assert_eq!(refused("nobody").await.code, Code::NotFound);
    assert_eq!(refused("x@nowhere").await.code, Code::NotFound);
    assert_eq!(refused("node@bob").await.code, Code::InvalidArgument);
    let stranger = hailwire::NodeId::from_bytes([7; 32]);
    let unknown = refused(&format!("x@{stranger}")).await;
    assert_eq!(unknown.code, Code::PermissionDenied, "{unknown}");
    let large = vec![0; limits::MAX_SEND_BODY + 1];
    let large = client.call("x@bob").body(large).durable(false, true).await;
    assert_eq!(large.unwrap_err().code, Code::ResourceExhausted);
    // What a peer may not call it may not send either, and its sender learns that.
    drop(bob);
    let carol = TestNode::named("carol").await;
    alice.join(&carol.invite(1, &["open"]).await).await.unwrap();
    let _shut = serve_echo(&carol.client(), "shut").await;
    let id = send(&client, "shut@carol", "x").await.id;
    let end = ended(&client, &id).await.row;
    assert_eq!(
        (end.state.as_str(), end.code.as_str()),
        ("dead", "permission_denied")
    );
}

/// What a peer says that plays by no rules: a batch of its own making.
async fn batch(peer: &Client, to: &str, body: Vec<u8>) -> Result<Vec<Status>, Status> {
    Ok(batch_answer(peer, to, body).await?.messages)
}

/// What a node answers to a batch, however it was made.
pub(crate) async fn batch_answer(
    peer: &Client,
    to: &str,
    body: Vec<u8>,
) -> Result<BatchAnswer, Status> {
    let call = peer.call(format!("node@{to}")).method(method::MESSAGES);
    let mut answer = call.body(body).deadline(PATIENCE).send().await?;
    let bytes = answer.bytes(1 << 20).await?;
    Ok(header::decode(&bytes).unwrap())
}

pub(crate) fn offered(id: u8, to: &str, set: impl FnOnce(&mut CallHeader)) -> OfferedMessage {
    let mut header = CallHeader {
        to: to.to_owned(),
        ..CallHeader::default()
    };
    set(&mut header);
    OfferedMessage {
        id: MessageId::from_bytes([id; 16]),
        call: false,
        header: header::encode_call(&header),
        body: b"x".to_vec(),
        attempts: 0,
        number: 0,
    }
}

async fn in_inbox(client: &Client) -> Vec<String> {
    let query = MessageQuery::default();
    let rows: Vec<MessageRow> = client.admin(method::MESSAGE_LIST, &query).await.unwrap();
    rows.into_iter().map(|row| row.to).collect()
}

#[tokio::test]
async fn a_peer_sends_nothing_in_the_name_of_another_and_nothing_to_the_node_itself() {
    let (alice, bob) = TestNode::pair().await;
    let messages = vec![
        offered(1, "node", |_| {}),
        offered(2, "node.supervisor", |_| {}),
        offered(3, "", |_| {}),
        offered(4, "echo", |header| header.from.node = Some(alice.node.id())),
        OfferedMessage {
            header: b"\xc1".to_vec(),
            ..offered(5, "echo", |_| {})
        },
        offered(6, "echo@elsewhere", |_| {}),
    ];
    let body = header::encode(&MessageBatch {
        messages,
        ..MessageBatch::default()
    });
    let statuses = batch(&alice.client(), "bob", body).await.unwrap();
    let codes: Vec<Code> = statuses.iter().map(|status| status.code).collect();
    let bad = Code::InvalidArgument;
    // An address is cut to the agent's name, as on a call.
    assert_eq!(
        codes,
        [Code::NotFound, Code::NotFound, bad, bad, bad, Code::Ok]
    );
    assert_eq!(in_inbox(&bob.client()).await, ["echo"]);
    // Only a node gives out batches: a durable header from a peer is refused, and so is a stranger's batch.
    let direct = alice.client().call("echo@bob").durable(false, true);
    direct.await.unwrap();
    let stranger = TestNode::named("stranger").await;
    let empty = header::encode(&MessageBatch::default());
    let refused = batch(&stranger.client(), "bob", empty).await.unwrap_err();
    assert_ne!(refused.code, Code::Ok);
}

#[tokio::test]
async fn a_batch_past_its_bound_is_refused_and_nothing_of_it_is_kept() {
    let (alice, bob) = TestNode::pair().await;
    let many = MessageBatch {
        messages: vec![offered(1, "echo", |_| {}); limits::MAX_BATCH + 1],
        ..MessageBatch::default()
    };
    let refused = batch(&alice.client(), "bob", header::encode(&many)).await;
    assert_eq!(refused.unwrap_err().code, Code::InvalidArgument);
    let large = vec![0x80; limits::MAX_BATCH_BYTES + 1];
    let refused = batch(&alice.client(), "bob", large).await;
    assert_eq!(refused.unwrap_err().code, Code::ResourceExhausted);
    let whole = OfferedMessage {
        body: vec![7; limits::MAX_SEND_BODY + 1],
        ..offered(2, "echo", |_| {})
    };
    let batch_of_one = MessageBatch {
        messages: vec![whole],
        ..MessageBatch::default()
    };
    let statuses = batch(&alice.client(), "bob", header::encode(&batch_of_one))
        .await
        .unwrap();
    assert_eq!(statuses[0].code, Code::InvalidArgument);
    assert_eq!(in_inbox(&bob.client()).await, <[String; 0]>::default());
}

#[tokio::test]
async fn a_receipt_counts_only_from_the_node_that_has_the_message() {
    let (alice, bob) = TestNode::pair().await;
    let carol = TestNode::named("carol").await;
    alice.befriend(&carol).await;
    let client = alice.client();
    let id = send(&client, "away@bob", "x").await.id;
    let forged = MessageBatch {
        receipts: vec![MessageReceipt {
            id: id.parse().unwrap(),
            state: MessageState::Acknowledged,
            attempts: 1,
            status: None,
            head: Vec::new(),
            answer: Vec::new(),
        }],
        ..MessageBatch::default()
    };
    let bytes = header::encode(&forged);
    batch(&carol.client(), "alice", bytes.clone())
        .await
        .unwrap();
    let state = shown(&client, &id).await.row.state;
    assert!(["stored", "delivered"].contains(&state.as_str()), "{state}");
    batch(&bob.client(), "alice", bytes).await.unwrap();
    assert_eq!(shown(&client, &id).await.row.state, "acknowledged");
}

#[tokio::test]
async fn the_same_message_twice_is_kept_once_and_done_once() {
    let (alice, bob) = TestNode::pair().await;
    let (_agent, handed) = noting(&bob.client(), "echo", |_, _| Ok(String::new())).await;
    let message = offered(9, "echo", |_| {});
    let bytes = header::encode(&MessageBatch {
        messages: vec![message.clone(), message],
        ..MessageBatch::default()
    });
    for _ in 0..3 {
        let statuses = batch(&alice.client(), "bob", bytes.clone()).await.unwrap();
        assert!(
            statuses.iter().all(|status| status.code == Code::Ok),
            "{statuses:?}"
        );
    }
    let id = MessageId::from_bytes([9; 16]).to_string();
    assert_eq!(ended(&bob.client(), &id).await.row.state, "acknowledged");
    assert_eq!(handed.lock().unwrap().len(), 1);
}
