//! A node that is killed, and whoever has a tunnel to it: an embedded node and `hail` as a process of its own.

use std::time::{Duration, Instant};

use hailwire::{
    Client, Code, Config, DataDir, Node, Status,
    admin::{self, JoinAnswer, JoinRequest, PingAnswer, PingRequest, TunnelStatus, method},
};

use crate::{programs, test_nodes::TestNodes};

/// How long anything may take that is to happen at once.
const PATIENCE: Duration = Duration::from_secs(30);

async fn ping(client: &Client) -> Result<PingAnswer, Status> {
    let who = PingRequest {
        who: "laptop".to_owned(),
        ..PingRequest::default()
    };
    client.admin(method::PING, &who).await
}

async fn tunnel(client: &Client) -> Option<TunnelStatus> {
    let status = client.admin(method::STATUS, &()).await;
    let status: admin::NodeStatus = status.unwrap();
    status.tunnels.into_iter().next()
}

/// Waits until there is a tunnel that came up within this time, as changes of tunnels are told.
async fn new_tunnel_since(node: &Node, client: &Client, since: Instant) {
    let mut changes = node.tunnel_changes();
    let found = async {
        loop {
            let new =
                |tunnel: &TunnelStatus| Duration::from_millis(tunnel.up_ms) <= since.elapsed();
            if tunnel(client).await.as_ref().is_some_and(new) {
                return;
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap();
}

/// Kills a node, and returns once its process has ended and with it its lock.
fn kill(nodes: &TestNodes, node: &str) {
    let pid = std::fs::read_to_string(nodes.path(node).join("lock")).unwrap();
    let pid = pid.trim().parse().unwrap();
    programs::kill("-KILL", pid);
    programs::until("the node ends", || !programs::runs(pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_was_killed_says_that_it_is_back_and_one_that_is_away_is_not_waited_for() {
    let mut nodes = TestNodes::new();
    nodes.up("laptop");
    let ticket = nodes.run("laptop", &["--json", "invite"]).ok().json();
    let mut config = Config::default();
    config.listen.udp = vec!["127.0.0.1:0".parse().unwrap()];
    let node = Node::builder()
        .data_dir(DataDir::new(nodes.path("embedded")))
        .config(config)
        .start()
        .await
        .unwrap();
    let client = node.client();
    let join = JoinRequest {
        ticket: ticket["ticket"].as_str().unwrap().to_owned(),
        ..JoinRequest::default()
    };
    client
        .admin::<_, JoinAnswer>(method::JOIN, &join)
        .await
        .unwrap();
    ping(&client).await.unwrap();

    // Killed, and back: nobody calls it, and still there is a new tunnel before long.
    kill(&nodes, "laptop");
    let killed = Instant::now();
    nodes.run("laptop", &["up", "-d"]).ok();
    new_tunnel_since(&node, &client, killed).await;
    let asked = Instant::now();
    let answer = ping(&client).await.unwrap();
    assert!(answer.reused, "{answer:?}");
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );

    // Killed, and away: whoever finds that out waits, and nobody after it.
    kill(&nodes, "laptop");
    assert_eq!(ping(&client).await.unwrap_err().code, Code::Unavailable);
    let asked = Instant::now();
    let away = ping(&client).await.unwrap_err();
    assert_eq!(away.code, Code::Unavailable);
    assert!(away.message.contains("`laptop` ("), "{away}");
    assert!(away.message.contains("has not answered for"), "{away}");
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "{:?}",
        asked.elapsed()
    );

    // It is found again as soon as it is back.
    let back = Instant::now();
    nodes.run("laptop", &["up", "-d"]).ok();
    new_tunnel_since(&node, &client, back).await;
    ping(&client).await.unwrap();
    node.shutdown(Duration::ZERO).await;
}
