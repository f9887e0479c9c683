//! Every management method: who may call it, what it refuses in which words, and what it answers.

use std::time::Duration;

use hailwire_core::names::NamedBy;
use tokio::time::Instant;

use super::*;
use crate::{
    Agent, AgentSchema,
    admin::{AgentDescription, DescribeRequest},
    node::hand_played::{LoneNode, key, nobody},
};

const METHODS: [&str; 15] = [
    method::STATUS,
    method::AGENTS,
    method::DESCRIBE,
    method::INVITE,
    method::JOIN,
    method::TRUST_LIST,
    method::TRUST_ADD,
    method::TRUST_REMOVE,
    method::TRUST_PENDING,
    method::TRUST_APPROVE,
    method::PING,
    method::RESOLVE,
    method::CONFIG,
    method::SHUTDOWN,
    "of-a-later-version",
];

/// What a refusal says, apart from its hint.
fn said(status: &Status) -> (Code, &str) {
    (status.code, &status.message)
}

async fn serve(host: &LoneNode, agent: Agent) -> crate::ServeHandle {
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    host.client().serve(agent, echo).await.unwrap()
}

fn agent(name: &str) -> Agent {
    Agent::new(name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_trusted_peer_may_ask_for_agents_and_show_a_ticket_and_nothing_else() {
    let host = LoneNode::named("desk").await;
    let peer = host.friend(key(7), "laptop").await;
    for method in METHODS {
        let answer = peer.manage(method, "").await;
        match method {
            method::AGENTS => assert_eq!(answer.unwrap(), "[]"),
            method::JOIN | method::DESCRIBE => {
                assert_eq!(answer.unwrap_err().code, Code::InvalidArgument);
            }
            _ => {
                let what = format!("`{method}` is only for programs on the node's own machine");
                let denied = Status::new(Code::PermissionDenied, what);
                assert_eq!(answer.unwrap_err(), denied);
            }
        }
    }
    let stop = std::pin::pin!(host.node.stop_requested());
    assert!(!crate::node::hand_played::is_ready(stop));
}

#[tokio::test(start_paused = true)]
async fn an_untrusted_peer_may_show_a_ticket_and_is_noted_each_time_it_asks_for_more() {
    let host = LoneNode::named("desk").await;
    let stranger = host.peer(key(9)).await;
    let mut refused = 0;
    for method in METHODS {
        let status = stranger.manage(method, "").await.unwrap_err();
        if method == method::JOIN {
            assert_eq!(status.code, Code::InvalidArgument);
            continue;
        }
        refused += 1;
        assert_eq!(status, crate::node::trust::untrusted(key(9)), "{method}");
    }
    let pending: Vec<admin::UntrustedPeer> = host.admin(method::TRUST_PENDING, &()).await.unwrap();
    let [row] = &pending[..] else {
        panic!("{pending:?}");
    };
    assert_eq!((row.id, &row.claims[..]), (key(9), "far"));
    assert_eq!(
        (&row.from[..], row.attempts),
        ("198.18.0.1:443", refused),
        "{row:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_program_asks_for_a_method_that_is_there_in_json() {
    let host = LoneNode::named("desk").await;
    let unknown = host.asked("of-a-later-version", "").await.unwrap_err();
    let what = "the node has no method `of-a-later-version`";
    assert_eq!(said(&unknown), (Code::Unimplemented, what));
    assert!(
        unknown.hint.contains("restart the node"),
        "{}",
        unknown.hint
    );
    for (method, bodies) in [
        (method::STATUS, &["[]7", "{\"measure\": 7}"][..]),
        (method::AGENTS, &["[]7", "{\"tags\": 7}"]),
        (method::INVITE, &["", "{\"uses\": -1, \"expires_s\": 1}"]),
        (method::JOIN, &["", "{\"ticket\": 7}"]),
        (method::TRUST_ADD, &["", "{\"id\": \"nobody\"}"]),
        (method::TRUST_APPROVE, &["", "{\"id\": 7}"]),
        (method::TRUST_REMOVE, &["", "{\"who\": 7}"]),
        (method::PING, &["nonsense", "{\"who\": 7}"]),
        (method::RESOLVE, &["", "{\"who\": null}"]),
        (method::SHUTDOWN, &["", "{\"grace_ms\": -1}"]),
    ] {
        for body in bodies {
            let status = host.asked(method, body).await.unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{method} {body}");
            let begins = status.message.starts_with("malformed request: ");
            assert!(begins, "{method} {body}: {status}");
        }
    }
    // What is not read does not matter, and an empty body is an empty request.
    for method in [method::TRUST_LIST, method::CONFIG] {
        assert!(host.asked(method, "nonsense").await.is_ok(), "{method}");
    }
    assert_eq!(host.asked(method::AGENTS, "").await.unwrap(), "[]");
}

#[tokio::test(start_paused = true)]
async fn a_request_past_its_bound_or_its_time_is_refused() {
    let host = LoneNode::named("desk").await;
    let peer = host.friend(key(7), "laptop").await;
    let padded = |size: usize| format!("{{}}{}", " ".repeat(size - 2));
    let program = host.program().await;
    for (far, most) in [(&program, MAX_REQUEST), (&peer, MAX_PEER_REQUEST)] {
        assert!(far.manage(method::AGENTS, &padded(most)).await.is_ok());
        let refused = far.manage(method::AGENTS, &padded(most + 1)).await;
        let what = format!("the body is longer than {most} bytes");
        assert_eq!(
            said(&refused.unwrap_err()),
            (Code::ResourceExhausted, &what[..])
        );
    }
    // A peer's body that does not end.
    let begun = Instant::now();
    let header = CallHeader {
        to: admin::AGENT.to_owned(),
        method: method::AGENTS.to_owned(),
        ..CallHeader::default()
    };
    let head = hailwire_wire::header::encode_call(&header);
    let opening = crate::session::tests::frames(&[(FrameKind::CALL, &head)]);
    let mut unfinished = peer.raw.open(opening).await;
    assert_eq!(unfinished.status().await, deadline_exceeded());
    assert_eq!(begun.elapsed(), PEER_PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_status_says_who_the_node_is_and_what_it_holds() {
    let host = LoneNode::named("desk").await;
    let _echo = serve(&host, agent("echo").describe("says it again")).await;
    let _again = serve(&host, agent("echo")).await;
    host.client().call("echo").body("x").send().await.unwrap();
    let _peer = host.friend(key(7), "laptop").await;
    tokio::time::advance(Duration::from_millis(1234)).await;
    let status: admin::NodeStatus = host.admin(method::STATUS, &()).await.unwrap();
    assert_eq!((status.id, &status.name[..]), (host.node.id(), "desk"));
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(status.pid, std::process::id());
    assert!(status.uptime_ms >= 1234 && status.rss_bytes > 1 << 20);
    let folder = host.inner().setup.data.root().display().to_string();
    assert_eq!(status.data_dir, folder);
    assert_eq!(status.calls, 1, "what is asked of the node is no call");
    assert!(status.hubs.is_empty() && status.tcp_sockets.is_empty());
    let [row] = &status.agents[..] else {
        panic!("{:?}", status.agents);
    };
    assert_eq!((&row.name[..], row.members, row.local), ("echo", 2, true));
    assert_eq!(row.bare, BareCalls::First);
    assert_eq!(row.description, "says it again");
    let [tunnel] = &status.tunnels[..] else {
        panic!("{:?}", status.tunnels);
    };
    assert_eq!((tunnel.peer, &tunnel.name[..]), (key(7), "laptop"));
    assert_eq!((&tunnel.carrier[..], tunnel.connections), ("ws", 1));
    let path = (&tunnel.path.kind[..], &tunnel.path.remote[..]);
    assert_eq!(path, ("direct", "198.18.0.1:443"));
    assert!(tunnel.carries && tunnel.up_ms >= 1234 && tunnel.received_bytes > 0);
}

#[tokio::test(start_paused = true)]
async fn agents_of_this_node_and_of_peers_are_listed_with_who_gets_a_bare_call() {
    let host = LoneNode::named("desk").await;
    let _echo = serve(&host, agent("echo").tag("near").describe("Says it again")).await;
    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["echo", "grep"]).await;
    let listed = async |query: AgentsQuery| -> Vec<String> {
        let rows: Vec<AgentRow> = host.admin(method::AGENTS, &query).await.unwrap();
        let text = |row: &AgentRow| format!("{}@{} {:?}", row.name, row.node_name, row.bare);
        rows.iter().map(text).collect()
    };
    let all = AgentsQuery::default();
    let [own, next, first] = ["echo@desk First", "echo@laptop Next", "grep@laptop First"];
    assert_eq!(listed(all.clone()).await, [own, next, first]);
    let query = |tags: &[&str], words: &[&str], local_only| AgentsQuery {
        tags: tags.iter().map(ToString::to_string).collect(),
        words: words.iter().map(ToString::to_string).collect(),
        local_only,
    };
    assert_eq!(listed(query(&[], &[], true)).await, [own]);
    assert_eq!(listed(query(&["far"], &[], false)).await, [next, first]);
    assert_eq!(listed(query(&[], &["AGAIN"], false)).await, [own]);
    assert!(listed(query(&["far"], &["again"], false)).await.is_empty());
    // A peer that may not call everything takes no bare call.
    let add = admin::TrustAdd {
        allow: vec!["echo".to_owned()],
        ..nobody(key(7))
    };
    let _: admin::TrustedPeer = host.admin(method::TRUST_ADD, &add).await.unwrap();
    let never = ["echo@desk First", "echo@laptop Never", "grep@laptop Never"];
    assert_eq!(listed(all).await, never);
    // And is shown what it may call.
    let _shut = serve(&host, agent("shut")).await;
    let shown = peer.manage(method::AGENTS, "{}").await.unwrap();
    let shown: Vec<AgentRow> = serde_json::from_slice(&shown).unwrap();
    let names: Vec<_> = shown.iter().map(|row| &row.name[..]).collect();
    assert_eq!(names, ["echo"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_described_by_its_own_node_to_whoever_may_call_it() {
    let host = LoneNode::named("desk").await;
    let schema = AgentSchema::parse(r#"{"methods": [{"name": "say"}]}"#).unwrap();
    let _echo = serve(&host, agent("echo").version("1.2").schema(&schema)).await;
    let _second = serve(&host, agent("echo")).await;
    let _plain = serve(&host, agent("plain")).await;
    let _private = serve(&host, agent("node.supervisor")).await;
    let describe = async |who: &str| -> Result<AgentDescription, Status> {
        let who = who.to_owned();
        host.admin(method::DESCRIBE, &DescribeRequest { who }).await
    };
    for who in ["echo", "echo@desk"] {
        let echo = describe(who).await.unwrap();
        assert_eq!((&echo.name[..], echo.node), ("echo", host.node.id()));
        assert_eq!((&echo.node_name[..], echo.members), ("desk", 2));
        assert_eq!((&echo.version[..], &echo.schema), ("1.2", &schema));
    }
    assert_eq!(
        describe("plain").await.unwrap().schema,
        AgentSchema::default()
    );
    assert_eq!(describe("none").await.unwrap_err().code, Code::NotFound);
    assert_eq!(
        describe("No Name").await.unwrap_err().code,
        Code::InvalidArgument
    );

    // A peer is told of what it may call.
    let peer = host.friend(key(7), "laptop").await;
    let asked = async |who: &str| {
        let request = DescribeRequest {
            who: who.to_owned(),
        };
        peer.manage(method::DESCRIBE, &serde_json::to_string(&request).unwrap())
            .await
    };
    let echo: AgentDescription = serde_json::from_slice(&asked("echo").await.unwrap()).unwrap();
    assert_eq!((echo.node, echo.schema), (host.node.id(), schema));
    for (who, code) in [
        ("none", Code::NotFound),
        ("node.supervisor", Code::NotFound),
        ("echo@desk", Code::InvalidArgument),
    ] {
        assert_eq!(asked(who).await.unwrap_err().code, code, "{who}");
    }
    host.trust(key(7), "laptop", &["plain"]).await;
    assert_eq!(
        asked("echo").await.unwrap_err().code,
        Code::PermissionDenied
    );
    assert!(asked("plain").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_says_of_its_agent_is_bounded_and_told_with_the_peers_name_here() {
    let host = LoneNode::named("desk").await;
    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["grep"]).await;
    let honest = |name: &str| {
        format!(
            r#"{{"name":"{name}","node":"{}","node_name":"desk","methods":[{{"name":"find"}}]}}"#,
            key(9)
        )
    };
    for (who, answer, outcome) in [
        ("grep", honest("grep"), Ok("find")),
        ("grep@laptop", honest("grep"), Ok("find")),
        ("grep", honest("other"), Err(Code::Internal)),
        ("grep", "[]".to_owned(), Err(Code::Internal)),
        ("grep", " ".repeat(300 * 1024), Err(Code::ResourceExhausted)),
    ] {
        let request = DescribeRequest {
            who: who.to_owned(),
        };
        let asking = host.admin::<AgentDescription>(method::DESCRIBE, &request);
        let answering = async {
            let (kind, header, mut stream) = peer.called().await;
            assert_eq!(
                (kind, &header.to[..], &header.method[..]),
                (FrameKind::CALL, "node", "describe")
            );
            let answer = [
                (FrameKind::DATA, answer.as_bytes()),
                (FrameKind::END, &b""[..]),
            ];
            stream.write(&answer).await;
            stream.send.finish();
            stream
        };
        let (description, _stream) = tokio::join!(asking, answering);
        match outcome {
            Ok(method) => {
                let description = description.unwrap();
                assert_eq!(
                    (description.node, &description.node_name[..]),
                    (key(7), "laptop")
                );
                assert_eq!(description.schema.methods[0].name, method);
            }
            Err(code) => assert_eq!(description.unwrap_err().code, code, "{who}"),
        }
    }
    // One that does not answer keeps nobody waiting for ever.
    let request = DescribeRequest {
        who: "grep".to_owned(),
    };
    let late = host
        .admin::<AgentDescription>(method::DESCRIBE, &request)
        .await;
    assert_eq!(late.unwrap_err().code, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn an_invitation_past_a_bound_is_refused_and_one_within_says_what_it_gives() {
    let host = LoneNode::named("desk").await;
    let invite = |uses, expires_s, allow: &[&str], offer: &[&str]| admin::InviteRequest {
        uses,
        expires_s,
        allow: allow.iter().map(ToString::to_string).collect(),
        offer: offer.iter().map(ToString::to_string).collect(),
    };
    let month = 30 * 24 * 3600;
    let (uses, life) = (
        "a ticket has 1 to 10000 uses",
        "a ticket lives between a second and 30 days",
    );
    for (request, what) in [
        (invite(0, 60, &[], &[]), uses),
        (invite(10_001, 60, &[], &[]), uses),
        (invite(1, 0, &[], &[]), life),
        (invite(1, month + 1, &[], &[]), life),
        (
            invite(1, 60, &["*", "echo"], &[]),
            "`*` allows every agent and stands alone",
        ),
    ] {
        let refused: Result<admin::InviteAnswer, _> = host.admin(method::INVITE, &request).await;
        let refused = refused.unwrap_err();
        assert_eq!(said(&refused), (Code::InvalidArgument, what));
    }
    for names in [
        invite(1, 60, &["No Name"], &[]),
        invite(1, 60, &[], &["No Name"]),
    ] {
        let refused: Result<admin::InviteAnswer, _> = host.admin(method::INVITE, &names).await;
        assert_eq!(refused.unwrap_err().code, Code::InvalidArgument);
    }
    let most = invite(10_000, month, &["echo", "grep", "echo"], &[]);
    let before = now_unix();
    let invited: admin::InviteAnswer = host.admin(method::INVITE, &most).await.unwrap();
    assert_eq!(
        (invited.uses, &invited.allow[..]),
        (10_000, &["echo".to_owned(), "grep".to_owned()][..])
    );
    let expires = invited.expires_at;
    assert!((before + month..=now_unix() + month).contains(&expires));
    let hailwire_wire::ticket::Ticket::Node(ticket) = invited.ticket.parse().unwrap() else {
        panic!("{}", invited.ticket);
    };
    assert_eq!((ticket.node, ticket.expires), (host.node.id(), expires));
    assert_eq!(ticket.name.unwrap().as_str(), "desk");
}

#[tokio::test(start_paused = true)]
async fn a_join_that_cannot_be_is_refused_before_anybody_is_asked() {
    let host = LoneNode::named("desk").await;
    let invite = r#"{"uses": 1, "expires_s": 60}"#;
    let invited = host.asked(method::INVITE, invite).await.unwrap();
    let invited: admin::InviteAnswer = serde_json::from_str(&invited).unwrap();
    let join = async |join: admin::JoinRequest| -> Status {
        let joined: Result<admin::JoinAnswer, _> = host.admin(method::JOIN, &join).await;
        joined.unwrap_err()
    };
    let with = |ticket: &str| admin::JoinRequest {
        ticket: ticket.to_owned(),
        ..admin::JoinRequest::default()
    };
    let none = join(with("hello")).await;
    assert_eq!(none.code, Code::InvalidArgument);
    assert!(none.hint.contains("copy the ticket whole"), "{}", none.hint);
    // A ticket that was copied with what is around it is read all the same.
    let own = join(with(&format!("  {}\n", invited.ticket))).await;
    let what = "this ticket is this node's own";
    assert_eq!(said(&own), (Code::InvalidArgument, what));
    assert_eq!(own.hint, "give it to the other node");
    for (alias, allow, offer) in [
        ("No Name", "", ""),
        ("", "No Name", ""),
        ("", "", "No Name"),
    ] {
        let texts = |text: &str| match text {
            "" => Vec::new(),
            text => vec![text.to_owned()],
        };
        let refused = join(admin::JoinRequest {
            alias: alias.to_owned(),
            allow: texts(allow),
            offer: texts(offer),
            ..with(&invited.ticket)
        });
        let refused = refused.await;
        assert_eq!(refused.code, Code::InvalidArgument);
        assert_ne!(refused.message, what, "it is looked at first");
    }
    assert!(host.inner().trust.rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn trust_is_added_as_it_was_said_and_refused_with_what_is_wrong() {
    let host = LoneNode::named("desk").await;
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let add = async |add: admin::TrustAdd| -> Result<admin::TrustedPeer, Status> {
        host.admin(method::TRUST_ADD, &add).await
    };
    let own = add(nobody(host.node.id())).await.unwrap_err();
    assert_eq!(
        said(&own),
        (Code::InvalidArgument, "this is the node's own key")
    );
    let place = |udp: &[&str], tcp: &[&str]| admin::TrustAdd {
        addresses: texts(udp),
        tcp: texts(tcp),
        ..nobody(key(7))
    };
    for (wrong, what) in [
        (
            place(&["127.0.0.1:1", "laptop:7"], &[]),
            "`laptop:7` is not IP:PORT",
        ),
        (place(&[], &["127.0.0.1"]), "`127.0.0.1` is not IP:PORT"),
        (
            admin::TrustAdd {
                allow: texts(&["*", "echo"]),
                ..nobody(key(7))
            },
            "`*` allows every agent and stands alone",
        ),
    ] {
        let refused = add(wrong).await.unwrap_err();
        assert_eq!(said(&refused), (Code::InvalidArgument, what));
    }
    for wrong in [
        admin::TrustAdd {
            alias: "No Name".to_owned(),
            ..nobody(key(7))
        },
        admin::TrustAdd {
            allow: texts(&["No Name"]),
            ..nobody(key(7))
        },
        admin::TrustAdd {
            offer: texts(&["No Name"]),
            ..nobody(key(7))
        },
    ] {
        assert_eq!(add(wrong).await.unwrap_err().code, Code::InvalidArgument);
    }
    assert!(host.inner().trust.rows().is_empty(), "nothing was changed");

    let said = admin::TrustAdd {
        alias: "laptop".to_owned(),
        allow: texts(&["echo"]),
        offer: texts(&["grep"]),
        ..place(&["198.18.0.7:1"], &["198.18.0.7:443"])
    };
    let row = add(said).await.unwrap();
    assert_eq!(
        (row.id, &row.alias[..], &row.named_by[..]),
        (key(7), "laptop", NamedBy::User.name())
    );
    assert_eq!((row.allow, row.offer), (texts(&["echo"]), texts(&["grep"])));
    assert_eq!(
        (&row.via[..], row.connected),
        (TrustOrigin::Manual.name(), false)
    );
    let kept = host.inner().trust.row(key(7)).unwrap();
    assert_eq!(texts_of(&kept.typed), ["198.18.0.7:1"]);
    assert_eq!(texts_of(&kept.tcp), ["198.18.0.7:443"]);
    // A second one is not given the same name, and the list is in the order of names.
    add(nobody(key(1))).await.unwrap();
    let taken = add(admin::TrustAdd {
        alias: "laptop".to_owned(),
        ..nobody(key(8))
    });
    assert_eq!(taken.await.unwrap().alias, "laptop-2");
    let rows: Vec<admin::TrustedPeer> = host.admin(method::TRUST_LIST, &()).await.unwrap();
    let listed: Vec<_> = rows.iter().map(|row| (&row.alias[..], row.id)).collect();
    assert_eq!(
        listed,
        [("", key(1)), ("laptop", key(7)), ("laptop-2", key(8))]
    );
    assert_eq!(rows[0].named_by, "", "nobody named it");
}

fn texts_of<T: ToString>(items: &[T]) -> Vec<String> {
    texts(items)
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_approved_under_the_name_that_it_claims_unless_that_is_this_nodes() {
    for (own, alias, claimed) in [
        ("desk", "", "far"),
        ("far", "", ""),
        ("desk", "mine", "mine"),
    ] {
        let host = LoneNode::named(own).await;
        let approve = admin::TrustAdd {
            alias: alias.to_owned(),
            ..nobody(key(9))
        };
        let missing: Result<admin::TrustedPeer, _> =
            host.admin(method::TRUST_APPROVE, &approve).await;
        let missing = missing.unwrap_err();
        let what = "no node with this key is waiting";
        assert_eq!(said(&missing), (Code::NotFound, what));
        assert!(missing.hint.contains("hail trust pending"));

        let stranger = host.peer(key(9)).await;
        stranger.manage(method::AGENTS, "").await.unwrap_err();
        let row: admin::TrustedPeer = host.admin(method::TRUST_APPROVE, &approve).await.unwrap();
        assert_eq!(row.alias, claimed);
        assert_eq!(row.via, TrustOrigin::Approved.name());
        let named_by = match (alias, claimed) {
            (_, "") => "",
            ("", _) => NamedBy::Peer.name(),
            _ => NamedBy::User.name(),
        };
        assert_eq!(row.named_by, named_by);
        let pending: Vec<admin::UntrustedPeer> =
            host.admin(method::TRUST_PENDING, &()).await.unwrap();
        assert!(pending.is_empty(), "{pending:?}");
        assert!(stranger.manage(method::AGENTS, "").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_peer_is_told_so_and_what_it_offered_is_gone() {
    let host = LoneNode::named("desk").await;
    let remove = async |who: &str| -> Result<(), Status> {
        let who = admin::PeerSelector {
            who: who.to_owned(),
        };
        host.admin(method::TRUST_REMOVE, &who).await
    };
    let missing = remove("laptop").await.unwrap_err();
    let what = "`laptop` is not a trusted peer";
    assert_eq!(said(&missing), (Code::NotFound, what));
    assert_eq!(missing.hint, "`hail trust ls` lists them");
    let wrong = remove("No Name").await.unwrap_err();
    assert_eq!(wrong.code, Code::InvalidArgument);

    let mut peer = host.friend(key(7), "laptop").await;
    let other = host.friend(key(8), "tower").await;
    peer.offer(&host, 1, &["grep"]).await;
    remove("laptop").await.unwrap();
    assert!(!host.inner().registry.knows(&"grep".parse().unwrap()));
    let (code, reason) = peer.raw.closed().await;
    assert_eq!(code, Code::PermissionDenied);
    assert_eq!(reason, "this node no longer trusts yours");
    assert_eq!(remove("laptop").await.unwrap_err(), missing);
    assert!(other.manage(method::AGENTS, "").await.is_ok());
    // By its key as well.
    remove(&key(8).to_string()).await.unwrap();
    assert!(host.inner().trust.rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ping_says_what_it_found_and_what_it_could_not_ask() {
    let host = LoneNode::named("desk").await;
    let ping = async |who: &str, carrier: &str| -> Result<admin::PingAnswer, Status> {
        let (who, carrier) = (who.to_owned(), carrier.to_owned());
        let ping = admin::PingRequest { who, carrier };
        host.admin(method::PING, &ping).await
    };
    let unknown = ping("laptop", "").await.unwrap_err();
    assert_eq!(
        said(&unknown),
        (Code::NotFound, "no node `laptop` is known here")
    );
    let untrusted = ping(&key(9).to_string(), "").await.unwrap_err();
    assert_eq!(untrusted.code, Code::PermissionDenied);
    assert_eq!(
        untrusted.message,
        format!("{} is not a trusted peer", key(9))
    );
    host.trust(key(8), "tower", &[]).await;
    assert_eq!(
        ping("tower", "smoke").await.unwrap_err().code,
        Code::InvalidArgument
    );
    let nowhere = ping("tower", "").await.unwrap_err();
    assert_eq!(nowhere.code, Code::Unavailable);
    assert!(
        nowhere.message.contains("no address of it is known"),
        "{nowhere}"
    );
    let by_quic = ping("tower", "quic").await.unwrap_err();
    assert!(
        by_quic.message.contains("no UDP address of it is known"),
        "{by_quic}"
    );

    let mut peer = host.friend(key(7), "laptop").await;
    for (carrier, why, answer, trusted) in [
        ("", "", Status::ok(), true),
        ("ws", "asked for", Status::ok(), true),
        (
            "ws",
            "asked for",
            Status::new(Code::PermissionDenied, "no"),
            false,
        ),
    ] {
        let played = async {
            // The ping, on the control stream, and the question whether it trusts this node.
            loop {
                let (kind, payload) = peer.control.frame().await.unwrap();
                if kind == FrameKind::PING {
                    tokio::time::sleep(Duration::from_millis(7)).await;
                    peer.control.write(&[(FrameKind::PONG, &payload)]).await;
                    break;
                }
            }
            let mut stream = peer.raw.accept().await;
            let (_, head) = stream.frame().await.unwrap();
            let head = hailwire_wire::header::decode_call(&head).unwrap();
            assert_eq!((&head.to[..], &head.method[..]), ("node", method::AGENTS));
            let end = hailwire_wire::header::encode(&answer);
            stream.write(&[(FrameKind::END, &end)]).await;
            stream.send.finish();
        };
        let (found, ()) = tokio::join!(ping("laptop", carrier), played);
        let found = found.unwrap();
        assert_eq!((found.id, &found.name[..]), (key(7), "laptop"));
        assert_eq!((&found.carrier[..], found.trusted), ("ws", trusted));
        assert_eq!(
            (found.rtt_us, found.connect_us, found.reused),
            (7000, 0, true)
        );
        if !why.is_empty() {
            assert_eq!(found.why, why);
        } else {
            assert_ne!(found.why, "asked for");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resolving_says_where_a_call_would_go() {
    let host = LoneNode::named("desk").await;
    let _echo = serve(&host, agent("echo")).await;
    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["echo", "grep"]).await;
    let resolve = async |who: &str, carrier: &str| -> Result<admin::ResolveAnswer, Status> {
        let (who, carrier) = (who.to_owned(), carrier.to_owned());
        let ask = admin::ResolveRequest { who, carrier };
        host.admin(method::RESOLVE, &ask).await
    };
    for (who, node, name, carrier) in [
        ("echo", host.node.id(), "", ""),
        ("echo@desk", host.node.id(), "", ""),
        ("grep", key(7), "laptop", "ws"),
        ("grep@laptop", key(7), "laptop", "ws"),
        // A peer is asked when it is called, and not before.
        ("unheard-of@laptop", key(7), "laptop", "ws"),
    ] {
        let found = resolve(who, "").await.unwrap();
        assert_eq!((found.node, &found.name[..]), (node, name), "{who}");
        assert_eq!(found.local, node == host.node.id(), "{who}");
        assert_eq!((&found.carrier[..], found.reused), (carrier, true), "{who}");
        assert_eq!(found.path.kind.is_empty(), found.local, "{who}");
    }
    for (who, carrier, code, message) in [
        ("No Name", "", Code::InvalidArgument, None),
        (
            "echo",
            "smoke",
            Code::InvalidArgument,
            Some("`smoke` is not a carrier: "),
        ),
        (
            "sum",
            "",
            Code::NotFound,
            Some("no agent `sum` is known here"),
        ),
        (
            "sum@desk",
            "",
            Code::NotFound,
            Some("no agent `sum` is known here"),
        ),
        (
            "echo@tower",
            "",
            Code::NotFound,
            Some("no node `tower` is known here"),
        ),
        ("grep@laptop", "quic", Code::Unavailable, Some("node ")),
    ] {
        let refused = resolve(who, carrier).await.unwrap_err();
        assert_eq!(refused.code, code, "{who} {carrier}: {refused}");
        if let Some(begin) = message {
            assert!(refused.message.starts_with(begin), "{refused}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_settings_in_force_are_listed_and_a_stop_is_passed_on_with_its_grace() {
    let host = LoneNode::named("desk").await;
    let rows: Vec<serde_json::Value> = host.admin(method::CONFIG, &()).await.unwrap();
    let text = serde_json::to_string(&rows).unwrap();
    assert!(rows.len() > 10 && text.contains("desk"), "{text}");
    let stop = admin::ShutdownRequest { grace_ms: 2500 };
    let () = host.admin(method::SHUTDOWN, &stop).await.unwrap();
    let asked = host.node.stop_requested();
    let grace = tokio::time::timeout(Duration::from_secs(9), asked)
        .await
        .unwrap();
    assert_eq!(grace, Duration::from_millis(2500));
    // It goes on until whoever started it says so.
    assert!(host.asked(method::STATUS, "").await.is_ok());
}
