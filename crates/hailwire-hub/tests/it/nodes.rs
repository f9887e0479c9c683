//! Real nodes at a hub: names, trust, the relay, and what happens while the hub is away.

use std::{net::SocketAddr, time::Duration};

use hailwire::{
    Agent, Client, Code, DataDir, Node, Request, Response, ServeHandle, Status, admin,
    admin::method,
};
use hailwire_hub::{Hub, MemberTrust, TlsMode};
use hailwire_wire::directory::SearchRequest;
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use crate::test_hub::{self, TestHub};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A node that has joined a hub.
pub(crate) struct Member {
    pub(crate) node: Node,
    pub(crate) client: Client,
    _folder: TempDir,
}

impl Member {
    pub(crate) async fn of(hub: &TestHub, name: &str) -> Self {
        Self::at(hub, name, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// A member whose only UDP socket is at `listen`.
    pub(crate) async fn at(hub: &TestHub, name: &str, listen: SocketAddr) -> Self {
        let (member, joined) = Self::joining(hub, name, listen).await;
        let admin::JoinAnswer::Hub { name: held, .. } = joined else {
            panic!("joined a node");
        };
        assert_eq!(held, name);
        member
    }

    /// A node that joins, with what came of it.
    async fn joining(hub: &TestHub, name: &str, listen: SocketAddr) -> (Self, admin::JoinAnswer) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = hailwire::Config::default();
        config.node.name = Some(name.parse().unwrap());
        config.listen.udp = vec![listen];
        let node = Node::builder()
            .data_dir(DataDir::new(folder.path()))
            .config(config)
            .start()
            .await
            .unwrap();
        let client = node.client();
        let member = Self {
            node,
            client,
            _folder: folder,
        };
        let joined = member.join(hub).await;
        (member, joined)
    }

    /// Joins a hub by an invitation of its operator.
    pub(crate) async fn join(&self, hub: &TestHub) -> admin::JoinAnswer {
        let join = admin::JoinRequest {
            ticket: hub.hub.invite(1, TIMEOUT).await.unwrap(),
            yes: true,
            ..admin::JoinRequest::default()
        };
        self.client.admin(method::JOIN, &join).await.unwrap()
    }

    async fn trust(&self, other: &Self, alias: &str) {
        let add = admin::TrustAdd {
            id: other.node.id(),
            alias: alias.into(),
            allow: Vec::new(),
            offer: Vec::new(),
            addresses: Vec::new(),
            tcp: Vec::new(),
        };
        let _: admin::TrustedPeer = self.client.admin(method::TRUST_ADD, &add).await.unwrap();
    }

    /// The agents that this node would list.
    async fn lists(&self) -> Vec<admin::AgentRow> {
        let query = admin::AgentsQuery::default();
        self.client.admin(method::AGENTS, &query).await.unwrap()
    }

    pub(crate) async fn serve_echo(&self, name: &str) -> ServeHandle {
        let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
        let agent = Agent::new(name).unwrap();
        self.client.serve(agent, echo).await.unwrap()
    }

    pub(crate) async fn call(&self, to: &str) -> Result<(), Status> {
        let call = self.client.call(to).body("hail").deadline(TIMEOUT);
        assert_eq!(call.send().await?.bytes(100).await?, "hail");
        Ok(())
    }

    pub(crate) async fn status(&self) -> admin::NodeStatus {
        self.client.admin(method::STATUS, &()).await.unwrap()
    }

    /// Waits until the node knows whether it is registered, at each of its hubs.
    pub(crate) async fn registered(&self, expected: bool) {
        let wait = async {
            while self
                .status()
                .await
                .hubs
                .iter()
                .any(|hub| hub.connected != expected)
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, wait).await.unwrap();
    }

    /// Waits until `seen_by` finds this node's agent at the hub.
    async fn publishes(&self, agent: &str, seen_by: &Self) {
        let query = admin::AgentsQuery::default();
        let wait = async {
            loop {
                let rows: Vec<admin::AgentRow> =
                    seen_by.client.admin(method::AGENTS, &query).await.unwrap();
                if rows
                    .iter()
                    .any(|row| row.node == self.node.id() && row.name == agent)
                {
                    return;
                }
            }
        };
        timeout(TIMEOUT, wait).await.unwrap();
    }

    /// Waits until no tunnel is up.
    async fn without_tunnels(&self) {
        let wait = async {
            while !self.status().await.tunnels.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(TIMEOUT, wait).await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.node.shutdown(Duration::ZERO).await;
    }
}

pub(crate) async fn trusting(trust: MemberTrust) -> TestHub {
    TestHub::with(|config| {
        config.trust = trust;
        // Tests ask again and again until something has changed.
        config.bounds.searches_per_minute = 1_000_000;
    })
    .await
}

#[tokio::test]
async fn members_who_trust_each_other_call_by_name_without_a_ticket_between_them() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    alice.call("echo@bob").await.unwrap();
    let _echo_too = alice.serve_echo("echo").await;
    bob.call(&format!("echo@{}", alice.node.id()))
        .await
        .unwrap();
    bob.call("echo@alice").await.unwrap();
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn many_calls_at_once_to_a_name_that_was_never_asked_for_are_one_question() {
    let hub = TestHub::with(|config| {
        config.trust = MemberTrust::Members;
        config.bounds.lookups_per_minute = 20;
    })
    .await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        calls.spawn(alice.client.call("echo@bob").deadline(TIMEOUT).send());
    }
    while let Some(answered) = calls.join_next().await {
        answered.unwrap().unwrap();
    }
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn members_of_a_closed_hub_see_each_other_and_may_not_call() {
    let hub = trusting(MemberTrust::Nobody).await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    // That the call got as far as bob's key shows that his record was seen.
    let unknown = alice.call("echo@carol").await.unwrap_err();
    assert_eq!(unknown.code, Code::NotFound, "{unknown}");
    let refused = alice.call("echo@bob").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_removed_member_stays_removed_until_this_side_lets_it_in() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = alice.serve_echo("echo").await;
    let _only_bobs = bob.serve_echo("only-bobs").await;
    bob.call("echo@alice").await.unwrap();

    let who = admin::PeerSelector { who: "bob".into() };
    let () = alice
        .client
        .admin(method::TRUST_REMOVE, &who)
        .await
        .unwrap();
    bob.without_tunnels().await;
    let refused = bob.call("echo@alice").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    let refused = alice.call("only-bobs@bob").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    let unknown = alice.call("only-bobs").await.unwrap_err();
    assert_eq!(unknown.code, Code::NotFound, "{unknown}");

    let approve = admin::TrustAdd {
        id: bob.node.id(),
        alias: String::new(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: Vec::new(),
    };
    let _: admin::TrustedPeer = alice
        .client
        .admin(method::TRUST_APPROVE, &approve)
        .await
        .unwrap();
    bob.call("echo@alice").await.unwrap();
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_bare_name_finds_the_agent_of_a_member_that_was_never_met() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    // Other records offer it, too, but nobody listens at their addresses.
    for seed in 10..20 {
        let other = hub.member(seed).await;
        other.publish(&other.record(None, 1)).await.unwrap();
    }
    let bob = Member::of(&hub, "bob").await;
    let _grep = bob.serve_echo("grep").await;
    bob.publishes("grep", &alice).await;
    alice.call("grep").await.unwrap();
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_bare_name_is_looked_for_within_the_callers_deadline() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    let absent = hub.member(10).await;
    absent.publish(&absent.record(None, 1)).await.unwrap();
    let left = Duration::from_millis(300);
    let call = alice.client.call("grep").deadline(left).send();
    let late = timeout(TIMEOUT, call).await.unwrap().map(drop);
    assert_eq!(late.unwrap_err().code, Code::DeadlineExceeded);
    alice.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn agents_of_members_are_listed_before_they_are_met() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    let other = hub.member(7).await;
    other.publish(&other.record(Some("bob"), 1)).await.unwrap();
    let query = admin::AgentsQuery::default();
    let rows: Vec<admin::AgentRow> = alice.client.admin(method::AGENTS, &query).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].name.as_str(), rows[0].node),
        ("grep", other.key.id())
    );
    alice.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn tunnels_outlive_their_hub_and_nodes_register_again_when_it_is_back() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    alice.call("echo@bob").await.unwrap();

    let (tcp, udp) = (hub.hub.tcp_addr(), hub.hub.udp_addr());
    let TestHub { hub, folder } = hub;
    hub.shutdown().await;
    // A change that cannot be published shows that the hub is away.
    let _other = bob.serve_echo("other").await;
    bob.registered(false).await;
    alice
        .call(&format!("echo@{}", bob.node.id()))
        .await
        .unwrap();
    alice.call("other@bob").await.unwrap();
    let unknown = alice.call("other@carol").await.unwrap_err();
    assert_eq!(unknown.code, Code::Unavailable, "{unknown}");
    let url = format!("and the hub https://{tcp} does not answer");
    assert!(unknown.message.ends_with(&url), "{unknown}");

    let mut config = test_hub::config(folder.path());
    config.trust = MemberTrust::Members;
    config.listen = tcp;
    config.udp_port = Some(udp.port());
    let hub = Hub::start(config).await.unwrap();
    bob.registered(true).await;
    let back = TestHub { hub, folder };
    let carol = Member::of(&back, "carol").await;
    carol.call("other@bob").await.unwrap();
    for member in [alice, bob, carol] {
        member.stop().await;
    }
    back.hub.shutdown().await;
}

#[tokio::test]
async fn nodes_without_a_common_network_call_each_other_through_the_relay() {
    // A socket for IPv4 alone and one for IPv6 alone: neither can send to the other.
    let hub = trusting(MemberTrust::Members).await;
    let Ok(_probe) = std::net::UdpSocket::bind("[::1]:0") else {
        hailwire_skip::skipped("this machine has no IPv6");
        return;
    };
    let alice = Member::at(&hub, "alice", "[::1]:0".parse().unwrap()).await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    alice.call("echo@bob").await.unwrap();
    let tunnels = alice.status().await.tunnels;
    assert_eq!(tunnels.len(), 1);
    assert_eq!(tunnels[0].path.kind, "relay");
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn agents_at_a_closed_hub_are_seen_by_those_that_their_node_trusts() {
    let hub = trusting(MemberTrust::Nobody).await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let carol = hub.member(7).await;
    alice.trust(&bob, "bob").await;
    bob.trust(&alice, "alice").await;
    let _echo = bob.serve_echo("echo").await;
    // No tunnel leads to bob: what alice knows of him is from the hub.
    bob.publishes("echo", &alice).await;
    alice.call("echo").await.unwrap();

    assert_eq!(
        carol
            .client
            .search(&SearchRequest::default())
            .await
            .unwrap(),
        []
    );
    let found = carol.client.lookup(&"bob".parse().unwrap()).await.unwrap();
    let found = found.expect("whoever has a name finds the node");
    assert_eq!(found.node(), bob.node.id());
    assert!(!found.record().addresses.is_empty() && found.record().agents.is_empty());

    let who = admin::PeerSelector {
        who: "alice".into(),
    };
    let () = bob.client.admin(method::TRUST_REMOVE, &who).await.unwrap();
    let hidden = async {
        while alice.lists().await.iter().any(|row| row.name == "echo") {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, hidden).await.unwrap();
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_more_agents_than_a_record_holds_is_listed_by_their_names() {
    let hub = trusting(MemberTrust::Members).await;
    let alice = Member::of(&hub, "alice").await;
    let bob = Member::of(&hub, "bob").await;
    let mut serving = Vec::new();
    for index in 0..300 {
        let agent = Agent::new(&format!("agent-{index}")).unwrap();
        let agent = agent.describe("d".repeat(256));
        let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
        serving.push(bob.client.serve(agent, echo).await.unwrap());
    }
    bob.publishes("agent-299", &alice).await;
    alice.call("agent-299").await.unwrap();
    let state = bob.status().await.hubs.remove(0);
    assert!(state.connected, "{state:?}");
    assert_eq!(state.name, "bob");
    assert!(state.error.contains("leaves out descriptions"), "{state:?}");
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

/// Passes connections on, and while it is shut none that publishes.
async fn gate(listener: TcpListener, to: SocketAddr, open: watch::Receiver<bool>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let open = open.clone();
        tokio::spawn(async move {
            let mut first = [0; 4];
            loop {
                match near.peek(&mut first).await {
                    Ok(4) => break,
                    Ok(0) | Err(_) => return,
                    Ok(_) => tokio::task::yield_now().await,
                }
            }
            if &first == b"PUT " && !*open.borrow() {
                return;
            }
            let mut far = TcpStream::connect(to).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
    }
}

#[tokio::test]
async fn a_hub_that_was_joined_is_tried_again_until_the_node_is_registered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.url = Some(url.parse().unwrap());
    })
    .await;
    let open = watch::Sender::new(false);
    let gate = tokio::spawn(gate(listener, hub.hub.tcp_addr(), open.subscribe()));
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (alice, joined) = Member::joining(&hub, "alice", any).await;
    let admin::JoinAnswer::Hub { name, error, .. } = joined else {
        panic!("joined a node");
    };
    assert!(name.is_empty() && !error.is_empty(), "`{name}` {error}");
    alice.registered(false).await;
    open.send_replace(true);
    alice.registered(true).await;
    assert_eq!(alice.status().await.hubs[0].name, "alice");
    alice.stop().await;
    hub.hub.shutdown().await;
    gate.abort();
}
