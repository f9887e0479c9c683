//! Durable messages while the disk of one node or the other is full: who sends is told, what was accepted is delivered once there is room.

use std::{
    collections::BTreeSet,
    fs::OpenOptions,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use hailwire::{
    Agent, Client, Code, Node, Request, Response,
    admin::{MessageDetail, MessageTake, MessageWait, SendReceipt, method},
};

use crate::{
    resources::SmallDisk,
    test_node::{self, PATIENCE},
};

/// More than the log of the database has in store.
const LARGE: usize = 48 * 1024;

/// A node on a disk of its own, which can be filled.
struct NodeOnDisk {
    disk: SmallDisk,
    node: Node,
}

impl NodeOnDisk {
    async fn start(name: &str) -> Option<Self> {
        let disk = SmallDisk::mount("size=24m")?;
        let node = test_node::start(&disk.path().join("node"), name).await;
        Some(Self {
            disk,
            node: node.unwrap(),
        })
    }

    fn filler(&self) -> std::path::PathBuf {
        self.disk.path().join("filler")
    }

    fn fill(&self) {
        fill(&self.filler());
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

/// Writes until there is no room at all.
fn fill(path: &Path) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    for size in [64 * 1024, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

async fn send(
    client: &Client,
    number: u32,
    in_order: bool,
) -> Result<SendReceipt, hailwire::Status> {
    let mut body = format!("{number} ").into_bytes();
    body.resize(LARGE, b'x');
    let call = client.call("work@bob").body(body);
    call.durable(false, in_order).await
}

async fn acknowledged(client: &Client, id: &str) -> bool {
    let wait = MessageWait {
        id: id.to_owned(),
        timeout_ms: u64::try_from(PATIENCE.as_millis()).unwrap(),
        ..MessageWait::default()
    };
    let ended: MessageDetail = client.admin(method::MESSAGE_WAIT, &wait).await.unwrap();
    ended.row.state == "acknowledged"
}

/// Serves `work`, and notes the numbers of what it is handed.
async fn noting(client: &Client) -> (hailwire::ServeHandle, Arc<Mutex<Vec<u32>>>) {
    let numbers = Arc::new(Mutex::new(Vec::new()));
    let noted = numbers.clone();
    let handler = move |request: Request| {
        let noted = noted.clone();
        async move {
            let body = request.into_body().bytes(1 << 20).await?;
            let text = String::from_utf8_lossy(&body);
            let number = text.split(' ').next().unwrap().parse().unwrap();
            noted.lock().unwrap().push(number);
            Ok(Response::new(""))
        }
    };
    let served = client.serve(Agent::new("work").unwrap(), handler).await;
    (served.unwrap(), numbers)
}

/// Sends until the disk is full, and says which were accepted. Whoever is refused is told that there is no room.
async fn send_until_refused(client: &Client, next: &mut u32) -> Vec<(u32, String)> {
    let mut accepted = Vec::new();
    for _ in 0..400 {
        let number = *next;
        *next += 1;
        match send(client, number, true).await {
            Ok(receipt) => accepted.push((number, receipt.id)),
            Err(refused) => {
                assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
                assert!(refused.hint.contains("make room"), "{refused}");
                return accepted;
            }
        }
    }
    panic!("a full disk takes everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_accepted_outlives_a_full_disk_at_its_sender_and_at_its_receiver() {
    let (Some(alice), Some(bob)) = (
        NodeOnDisk::start("alice").await,
        NodeOnDisk::start("bob").await,
    ) else {
        return;
    };
    let client = alice.node.client();
    let ticket = test_node::invite(&bob.node.client(), 1, &[]).await;
    test_node::join(&client, &ticket).await.unwrap();
    let (_work, handed) = noting(&bob.node.client()).await;
    let (mut next, mut accepted) = (0, Vec::new());

    for _ in 0..2 {
        // Full at the sender: some are refused, and all others go on.
        alice.fill();
        accepted.extend(send_until_refused(&client, &mut next).await);
        let at_once = stream::iter(next..next + 8).map(|number| {
            let client = client.clone();
            async move { (number, send(&client, number, false).await) }
        });
        for (number, sent) in at_once.buffer_unordered(8).collect::<Vec<_>>().await {
            match sent {
                Ok(receipt) => accepted.push((number, receipt.id)),
                Err(refused) => assert_eq!(refused.code, Code::ResourceExhausted, "{refused}"),
            }
        }
        next += 8;
        alice.make_room();
        let sent = send(&client, next, true).await.unwrap();
        accepted.push((next, sent.id.clone()));
        next += 1;
        assert!(acknowledged(&client, &sent.id).await);

        // Full at the receiver: it takes none, and the sender keeps them.
        bob.fill();
        let mut kept = Vec::new();
        for _ in 0..20 {
            let sent = send(&client, next, true).await.unwrap();
            kept.push((next, sent.id));
            next += 1;
        }
        let there = test_node::status(&bob.node.client()).await;
        assert_eq!(there.name.to_string(), "bob");
        bob.make_room();
        for (_, id) in &kept {
            assert!(acknowledged(&client, id).await);
        }
        accepted.extend(kept);
    }
    for (_, id) in &accepted {
        assert!(acknowledged(&client, id).await);
    }
    let handed: BTreeSet<u32> = handed.lock().unwrap().iter().copied().collect();
    let accepted: BTreeSet<u32> = accepted.into_iter().map(|(number, _)| number).collect();
    assert_eq!(
        handed, accepted,
        "what was refused never came, what was accepted did"
    );
    for node in [alice, bob] {
        node.node.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_message_that_a_full_disk_kept_from_its_taker_can_be_taken_later() {
    let Some(bob) = NodeOnDisk::start("bob").await else {
        return;
    };
    let client = bob.node.client();
    let call = client.call("hand@bob").body("x");
    let sent = call.durable(false, true).await.unwrap();
    let take = MessageTake {
        agent: "hand".to_owned(),
        most: 1,
        ..MessageTake::default()
    };
    bob.fill();
    // A log that begins anew has room of its own: whichever happens, nothing is lost.
    let first: Result<Vec<MessageDetail>, _> = client.admin(method::MESSAGE_TAKE, &take).await;
    bob.make_room();
    let taken = match first {
        Ok(taken) => taken,
        Err(refused) => {
            assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
            let again = async {
                loop {
                    let taken: Vec<MessageDetail> =
                        client.admin(method::MESSAGE_TAKE, &take).await.unwrap();
                    if !taken.is_empty() {
                        return taken;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, again).await.unwrap()
        }
    };
    assert_eq!(taken[0].row.id, sent.id);
    bob.node.shutdown(Duration::ZERO).await;
}
