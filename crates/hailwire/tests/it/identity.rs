//! Who calls: the carrier says so, and nothing that is written on it.

use std::sync::{Arc, Mutex};

use hailwire::{Agent, Caller, Code, NodeId, Request, Response, ServeHandle, Status};
use hailwire_wire::{
    AgentName,
    frame::FrameKind,
    header::{self, RegisterHeader, VERSION},
};
use serde::Serialize;

use crate::{
    hostile::{Guest, Way, frame_of},
    test_node::TestNode,
};

/// What a handler was told of its callers.
type Seen = Arc<Mutex<Vec<(Option<AgentName>, Caller)>>>;

/// A header whose `from` may be anything.
#[derive(Serialize)]
struct Written<'a> {
    to: &'a str,
    from: &'a str,
}

/// An agent of an embedded program and one of an attached program that note who calls.
async fn witnesses(host: &TestNode, seen: &Seen) -> [ServeHandle; 2] {
    let note = |seen: Seen| {
        move |request: Request| {
            let from = request.header().from.agent.clone();
            seen.lock().unwrap().push((from, *request.caller()));
            async { Ok::<_, Status>(Response::default()) }
        }
    };
    let agent = |name: &str| Agent::new(name).unwrap();
    let (inside, beside) = (host.client(), host.attach().await);
    let inside = inside.serve(agent("inside"), note(seen.clone())).await;
    let beside = beside.serve(agent("beside"), note(seen.clone())).await;
    [inside.unwrap(), beside.unwrap()]
}

#[tokio::test]
async fn a_peer_never_passes_for_a_caller_of_this_machine() {
    let host = TestNode::named("alice").await;
    let seen = Seen::default();
    let _serving = witnesses(&host, &seen).await;
    let key = NodeId::from_bytes([7; 32]).to_string();
    let forged = [
        "admin@".to_owned(),
        "@".to_owned(),
        "admin@@".to_owned(),
        "admin@alice".to_owned(),
        format!("admin@{}", host.node.id()),
        format!("admin@{key}"),
        format!("@{key}"),
        format!("admin@{}", &key[1..]),
        "Admin".to_owned(),
        "admin\n".to_owned(),
        "a".repeat(65),
    ];
    for way in Way::BOTH {
        let guest = Guest::of(&host, way).await;
        let _control = guest.greet(vec![VERSION.into()]).await;
        for kind in [FrameKind::CALL, FrameKind::SEND, FrameKind::STREAM] {
            for to in ["inside", "beside"] {
                for from in &forged {
                    let header = header::encode(&Written { to, from });
                    let status = guest.ask(&frame_of(kind, &header)).await;
                    let case = format!("{way:?} {kind:?} {to} {from:?}: {status}");
                    assert_eq!(status.code, Code::InvalidArgument, "{case}");
                }
                let from = "editor";
                let header = header::encode(&Written { to, from });
                let honest = guest.ask(&frame_of(kind, &header)).await;
                assert_eq!(honest, Status::ok(), "{way:?} {kind:?} {to}");
                let (agent, caller) = seen.lock().unwrap().pop().unwrap();
                assert_eq!(agent.unwrap().as_str(), from);
                let real = match way {
                    Way::Socket => Caller::Local,
                    Way::Tunnel => Caller::Peer(guest.id()),
                };
                assert_eq!(caller, real, "{way:?} {kind:?} {to}");
                assert!(seen.lock().unwrap().is_empty(), "a forged call arrived");
            }
        }
    }
}

#[tokio::test]
async fn a_peer_registers_no_agent() {
    let host = TestNode::named("alice").await;
    let guest = Guest::of(&host, Way::Tunnel).await;
    let _control = guest.greet(vec![VERSION.into()]).await;
    let register = RegisterHeader {
        priority: 0,
        overflow: 0,
        pinned_ms: 0,
        slow_start_ms: 0,
        max_waiting: None,
        name: "grep".parse().unwrap(),
        description: String::new(),
        tags: Vec::new(),
        version: String::new(),
        max_concurrency: 0,
        socket: String::new(),
        schema: String::new(),
    };
    let refused = guest
        .ask(&frame_of(FrameKind::REGISTER, &header::encode(&register)))
        .await;
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
}
