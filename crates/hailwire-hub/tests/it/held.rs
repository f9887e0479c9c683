//! Messages that a hub holds: sender and receiver are never awake at the same time.

use std::{path::Path, time::Duration};

use hailwire::{
    Agent, Client, Config, DataDir, Node, Request, Response, ServeHandle, admin, admin::method,
};
use hailwire_wire::directory::{HoldRequest, RecordBytes, RefusalReason, path};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::time::{interval, timeout};

use crate::test_hub::{TestHub, reason};

const TIMEOUT: Duration = Duration::from_secs(60);

/// What a node may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// A word that stands in the message, one in its answer, and the name of the agent.
const WORDS: [&str; 3] = ["marzipan", "MARZIPAN", "secretagent"];

async fn start(folder: &TempDir, name: &str) -> (Node, Client) {
    let mut config = Config::default();
    config.node.name = Some(name.parse().unwrap());
    config.listen.udp = vec![([127, 0, 0, 1], 0).into()];
    let node = Node::builder()
        .data_dir(DataDir::new(folder.path()))
        .config(config)
        .start()
        .await
        .unwrap();
    let client = node.client();
    (node, client)
}

async fn join(hub: &TestHub, client: &Client) {
    let join = admin::JoinRequest {
        ticket: hub.hub.invite(1, TIMEOUT).await.unwrap(),
        yes: true,
        ..admin::JoinRequest::default()
    };
    let _: admin::JoinAnswer = client.admin(method::JOIN, &join).await.unwrap();
}

async fn trust(client: &Client, other: hailwire_wire::NodeId, alias: &str, allow: &[&str]) {
    let add = admin::TrustAdd {
        id: other,
        alias: alias.into(),
        allow: allow.iter().map(ToString::to_string).collect(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: Vec::new(),
    };
    let _: admin::TrustedPeer = client.admin(method::TRUST_ADD, &add).await.unwrap();
}

async fn serve(client: &Client) -> ServeHandle {
    let agent = Agent::new(WORDS[2]).unwrap();
    let answer = |request: Request| async move {
        let body = request.into_body().bytes(1 << 20).await?;
        let text = String::from_utf8_lossy(&body).to_uppercase();
        Ok(Response::new(text))
    };
    client.serve(agent, answer).await.unwrap()
}

/// The end of a message, waited for.
async fn ended(client: &Client, id: &str) -> admin::MessageDetail {
    let wait = admin::MessageWait {
        id: id.to_owned(),
        timeout_ms: u64::try_from(TIMEOUT.as_millis()).unwrap(),
        ..admin::MessageWait::default()
    };
    client.admin(method::MESSAGE_WAIT, &wait).await.unwrap()
}

/// Waits until the hub's database of held batches shows this.
async fn until(folder: &Path, sql: &str, expected: i64) {
    let db = Connection::open(folder.join("held.db")).unwrap();
    let mut looks = interval(Duration::from_millis(20));
    let seen = async {
        loop {
            looks.tick().await;
            let found: i64 = db.query_row(sql, [], |row| row.get(0)).unwrap();
            if found == expected {
                return;
            }
        }
    };
    timeout(TIMEOUT, seen).await.unwrap();
}

/// What the sender's node says of a message, once it says what is awaited.
async fn shown(
    client: &Client,
    id: &str,
    is_so: impl Fn(&admin::MessageRow) -> bool,
) -> admin::MessageRow {
    let mut looks = interval(Duration::from_millis(20));
    let seen = async {
        loop {
            looks.tick().await;
            let select = admin::MessageSelector { id: id.to_owned() };
            let detail: admin::MessageDetail =
                client.admin(method::MESSAGE_SHOW, &select).await.unwrap();
            if is_so(&detail.row) {
                return detail.row;
            }
        }
    };
    timeout(TIMEOUT, seen).await.unwrap()
}

/// Nothing of a message is readable in any file of the hub, nor in those of held batches the name of the agent, which its node publishes
/// in its record.
fn nothing_is_readable(folder: &Path) {
    let db = Connection::open(folder.join("held.db")).unwrap();
    let columns = db.prepare("SELECT * FROM held").unwrap();
    let names: Vec<&str> = columns.column_names().collect();
    assert_eq!(
        names,
        ["number", "sender", "receiver", "size", "at", "sealed"]
    );
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let is_of_held = file
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("held.db");
        let bytes = std::fs::read(&file).unwrap();
        read += bytes.len();
        for word in WORDS
            .into_iter()
            .filter(|word| is_of_held || *word != WORDS[2])
        {
            let found = bytes
                .windows(word.len())
                .any(|window| window == word.as_bytes());
            assert!(!found, "{word} in {}", file.display());
        }
    }
    assert!(read > 4096);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_and_its_answer_go_through_the_hub_while_never_both_are_awake() {
    let hub = TestHub::https().await;
    let (alice_folder, bob_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (alice, alice_client) = start(&alice_folder, "alice").await;
    let (bob, bob_client) = start(&bob_folder, "bob").await;
    let bob_id = bob.id();
    join(&hub, &alice_client).await;
    join(&hub, &bob_client).await;
    trust(&alice_client, bob.id(), "bob", &[]).await;
    trust(&bob_client, alice.id(), "alice", &[]).await;
    bob.shutdown(GRACE).await;

    let to = format!("{}@bob", WORDS[2]);
    let call = alice_client.call(&to).body(WORDS[0].to_owned());
    let sent = call.durable(true, true).await.unwrap();
    let folder = hub.folder.path();
    until(folder, "SELECT count(*) FROM held", 1).await;
    let row = shown(&alice_client, &sent.id, |row| row.held_at_ms.is_some()).await;
    assert_eq!(row.state, "stored", "it waits here all the same");
    assert!(row.held_at_ms.unwrap() >= row.stored_at_ms);
    nothing_is_readable(folder);
    let counts = hub.hub.held().await.unwrap();
    assert_eq!((counts.batches, counts.bytes), (1, 4096 + 49));
    let held = Connection::open(folder.join("held.db")).unwrap();
    let (sender, receiver): ([u8; 32], [u8; 32]) = held
        .query_row("SELECT sender, receiver FROM held", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(
        (&sender, &receiver),
        (alice.id().as_bytes(), bob_id.as_bytes())
    );
    alice.shutdown(GRACE).await;

    // Bob gets it from the hub alone, and leaves its answer there.
    let (bob, bob_client) = start(&bob_folder, "bob").await;
    let _serving = serve(&bob_client).await;
    let hex: String = receiver.iter().map(|byte| format!("{byte:02x}")).collect();
    let of_bob = format!("SELECT count(*) FROM held WHERE lower(hex(sender)) = '{hex}'");
    until(folder, &of_bob, 1).await;
    until(folder, "SELECT count(*) FROM held", 1).await;
    nothing_is_readable(folder);
    bob.shutdown(GRACE).await;

    let (alice, alice_client) = start(&alice_folder, "alice").await;
    let end = ended(&alice_client, &sent.id).await;
    assert_eq!(end.row.state, "answered");
    until(folder, "SELECT count(*) FROM held", 0).await;
    alice.shutdown(GRACE).await;
    hub.hub.shutdown().await;
}

/// Hands a batch out as if it had been left now.
fn hand_out(folder: &Path, sender: &[u8; 32], receiver: &[u8; 32], sealed: &[u8]) {
    let db = Connection::open(folder.join("held.db")).unwrap();
    let size = i64::try_from(sealed.len()).unwrap();
    db.execute(
        "INSERT INTO held (sender, receiver, size, at, sealed) VALUES (?1, ?2, ?3, unixepoch(), ?4)",
        rusqlite::params![sender, receiver, size, sealed],
    )
    .unwrap();
}

/// What a hub holds, if that is one batch.
fn sealed_by_now(folder: &Path) -> Vec<u8> {
    let db = Connection::open(folder.join("held.db")).unwrap();
    db.query_row("SELECT sealed FROM held", [], |row| row.get(0))
        .unwrap()
}

fn counted(column: &str, node: &[u8; 32]) -> String {
    let hex: String = node.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("SELECT count(*) FROM held WHERE lower(hex({column})) = '{hex}'")
}

async fn inbox(client: &Client) -> Vec<(String, u32)> {
    let query = admin::MessageQuery::default();
    let rows: Vec<admin::MessageRow> = client.admin(method::MESSAGE_LIST, &query).await.unwrap();
    rows.into_iter()
        .map(|row| (row.state, row.attempts))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_alters_forges_or_hands_out_again_has_nothing_done_and_its_copies_are_deleted() {
    let hub = TestHub::https().await;
    let (alice_folder, bob_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (alice, alice_client) = start(&alice_folder, "alice").await;
    let (bob, bob_client) = start(&bob_folder, "bob").await;
    join(&hub, &alice_client).await;
    join(&hub, &bob_client).await;
    trust(&alice_client, bob.id(), "bob", &[]).await;
    trust(&bob_client, alice.id(), "alice", &[]).await;
    bob.shutdown(GRACE).await;
    let to = format!("{}@bob", WORDS[2]);
    let call = alice_client.call(&to).body(WORDS[0].to_owned());
    call.durable(true, true).await.unwrap();
    let folder = hub.folder.path();
    until(folder, "SELECT count(*) FROM held", 1).await;
    let sealed = sealed_by_now(folder);
    let alice_id = *alice.id().as_bytes();
    alice.shutdown(GRACE).await;

    let (bob, bob_client) = start(&bob_folder, "bob").await;
    let bob_id = *bob.id().as_bytes();
    let serving = serve(&bob_client).await;
    until(folder, &counted("sender", &bob_id), 1).await;
    drop(serving);
    bob.shutdown(GRACE).await;

    // In turn: the same again, an altered one, and one in the name of somebody who is not trusted, or who did not write it.
    let mut altered = sealed.clone();
    *altered.last_mut().unwrap() ^= 1;
    let mut seen = Vec::new();
    for (sender, blob) in [
        (alice_id, &sealed),
        (alice_id, &altered),
        ([7; 32], &sealed),
        (bob_id, &sealed),
    ] {
        hand_out(folder, &sender, &bob_id, blob);
        let (bob, bob_client) = start(&bob_folder, "bob").await;
        until(folder, &counted("receiver", &bob_id), 0).await;
        seen.push(inbox(&bob_client).await);
        bob.shutdown(GRACE).await;
    }
    assert_eq!(seen, vec![vec![("answered".to_owned(), 1)]; 4]);
    hub.hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_receiver_refuses_for_good_is_dead_by_way_of_the_hub_and_stays_so_when_it_is_allowed()
 {
    let hub = TestHub::https().await;
    let (alice_folder, bob_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (alice, alice_client) = start(&alice_folder, "alice").await;
    let (bob, bob_client) = start(&bob_folder, "bob").await;
    join(&hub, &alice_client).await;
    join(&hub, &bob_client).await;
    trust(&alice_client, bob.id(), "bob", &[]).await;
    trust(&bob_client, alice.id(), "alice", &["another"]).await;
    bob.shutdown(GRACE).await;
    let to = format!("{}@bob", WORDS[2]);
    let call = alice_client.call(&to).body(WORDS[0].to_owned());
    let sent = call.durable(true, true).await.unwrap();
    let folder = hub.folder.path();
    until(folder, "SELECT count(*) FROM held", 1).await;
    let sealed = sealed_by_now(folder);
    alice.shutdown(GRACE).await;

    let (bob, bob_client) = start(&bob_folder, "bob").await;
    until(folder, &counted("sender", bob.id().as_bytes()), 1).await;
    // Allowed meanwhile; the hub hands the old copy out again.
    let (alice, alice_client) = start(&alice_folder, "alice").await;
    assert_eq!(ended(&alice_client, &sent.id).await.row.state, "dead");
    trust(&bob_client, alice.id(), "alice", &[WORDS[2]]).await;
    hand_out(folder, alice.id().as_bytes(), bob.id().as_bytes(), &sealed);
    bob.shutdown(GRACE).await;
    let (bob, bob_client) = start(&bob_folder, "bob").await;
    let _serving = serve(&bob_client).await;
    until(folder, "SELECT count(*) FROM held", 0).await;
    let states: Vec<String> = inbox(&bob_client)
        .await
        .into_iter()
        .map(|(state, _)| state)
        .collect();
    assert_eq!(states, ["dead"]);
    assert_eq!(ended(&alice_client, &sent.id).await.row.state, "dead");
    alice.shutdown(GRACE).await;
    bob.shutdown(GRACE).await;
    hub.hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hub_brought_and_was_done_is_not_dead_because_its_sender_is_allowed_no_more_when_it_offers_it()
 {
    let hub = TestHub::https().await;
    let (alice_folder, bob_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (alice, alice_client) = start(&alice_folder, "alice").await;
    let (bob, bob_client) = start(&bob_folder, "bob").await;
    join(&hub, &alice_client).await;
    join(&hub, &bob_client).await;
    trust(&alice_client, bob.id(), "bob", &[]).await;
    trust(&bob_client, alice.id(), "alice", &[WORDS[2]]).await;
    bob.shutdown(GRACE).await;
    let to = format!("{}@bob", WORDS[2]);
    let call = alice_client.call(&to).body(WORDS[0].to_owned());
    let sent = call.durable(true, true).await.unwrap();
    let folder = hub.folder.path();
    until(folder, "SELECT count(*) FROM held", 1).await;
    let alice_id = alice.id();
    alice.shutdown(GRACE).await;

    let (bob, bob_client) = start(&bob_folder, "bob").await;
    let _serving = serve(&bob_client).await;
    let mut looks = interval(Duration::from_millis(20));
    let done = async {
        while inbox(&bob_client).await != [("answered".to_owned(), 1)] {
            looks.tick().await;
        }
    };
    timeout(TIMEOUT, done).await.unwrap();
    trust(&bob_client, alice_id, "alice", &["another"]).await;
    let (alice, alice_client) = start(&alice_folder, "alice").await;
    assert_eq!(ended(&alice_client, &sent.id).await.row.state, "answered");
    alice.shutdown(GRACE).await;
    bob.shutdown(GRACE).await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn what_is_held_from_a_member_and_for_it_goes_with_its_membership() {
    let hub = TestHub::plain().await;
    let (one, two, three) = (
        hub.member(1).await,
        hub.member(2).await,
        hub.member(3).await,
    );
    let sealed = || bytes::Bytes::from_static(b"sealed");
    let ways = [(&one, &two), (&two, &one), (&one, &three), (&three, &one)];
    for (from, to) in ways {
        from.client.hold(to.key.id(), sealed()).await.unwrap();
    }
    assert_eq!(hub.hub.held().await.unwrap().batches, 4);
    assert!(two.client.leave().await.unwrap().left);
    let left = hub.hub.held().await.unwrap();
    assert_eq!((left.batches, left.bytes), (2, 12));
    assert!(hub.hub.remove(three.key.id()).await.unwrap());
    assert_eq!(hub.hub.held().await.unwrap().batches, 0);

    // Another process removes it: the hub has room for as much again.
    let four = hub.member(4).await;
    one.client.hold(four.key.id(), sealed()).await.unwrap();
    let who = hailwire_wire::address::NodeRef::Id(four.key.id());
    hailwire_hub::folder::remove_member(hub.folder.path(), &who).unwrap();
    assert_eq!(hub.hub.held().await.unwrap().batches, 0);
    let status = hailwire_hub::folder::status(hub.folder.path()).unwrap();
    assert_eq!((status.running, status.held.batches), (true, 0));
}

#[tokio::test]
async fn a_hub_holds_for_members_from_members_and_gives_each_its_own() {
    let hub = TestHub::plain().await;
    let (one, two, three) = (
        hub.member(1).await,
        hub.member(2).await,
        hub.member(3).await,
    );
    let stranger = hub.unjoined_node(4);
    let sealed = || bytes::Bytes::from_static(b"sealed");
    one.client.hold(two.key.id(), sealed()).await.unwrap();
    let refused = stranger.client.hold(two.key.id(), sealed()).await;
    assert_eq!(reason(refused.unwrap_err()), RefusalReason::NotAMember);
    let refused = one.client.hold(stranger.key.id(), sealed()).await;
    assert_eq!(reason(refused.unwrap_err()), RefusalReason::NotFound);
    let refused = stranger.client.next_held(0).await;
    assert_eq!(reason(refused.unwrap_err()), RefusalReason::NotAMember);

    assert_eq!(three.client.next_held(0).await.unwrap(), None);
    let held = two.client.next_held(0).await.unwrap().unwrap();
    assert_eq!(
        (held.from, held.sealed.0.as_ref()),
        (one.key.id(), &b"sealed"[..])
    );
    assert!(!three.client.delete_held(held.number).await.unwrap());
    assert!(two.client.delete_held(held.number).await.unwrap());
    assert_eq!(two.client.next_held(0).await.unwrap(), None);
}

#[tokio::test]
async fn a_sealed_batch_past_its_bound_is_refused() {
    let hub = TestHub::plain().await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    let largest = vec![1; hailwire_wire::limits::MAX_HELD];
    let body = HoldRequest {
        to: two.key.id(),
        sealed: RecordBytes(largest.clone().into()),
    };
    let body = serde_json::to_vec(&body).unwrap();
    assert!(
        body.len() <= hailwire_wire::limits::MAX_HELD_REQUEST && path::HELD.starts_with("/v1/")
    );
    one.client
        .hold(two.key.id(), largest.clone().into())
        .await
        .unwrap();
    assert!(two.client.next_held(0).await.unwrap().is_some());
    let beyond = [&largest[..], &[1]].concat();
    let refused = one.client.hold(two.key.id(), beyond.into()).await;
    assert_eq!(reason(refused.unwrap_err()), RefusalReason::TooLarge);
}
