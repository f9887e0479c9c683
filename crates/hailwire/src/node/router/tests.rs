//! The ways of calls through a node, as programs and peers see them that are played by hand.

use std::{sync::atomic::Ordering, time::Duration};

use hailwire_wire::{
    Priority,
    limits::{MAX_DESCRIPTION, MAX_NAME, MAX_SCHEMA, MAX_SOCKET_PATH, MAX_TAGS},
};

use super::*;
use crate::{
    Agent, Body, Response, ServeHandle,
    agent::Request,
    node::hand_played::{HandPlayedPeer, LoneNode, key},
    session::tests::{ScriptedStream, frames, settled, to},
};

#[test]
fn only_a_call_that_names_itself_may_travel_in_a_first_flight() {
    let header = |to: &str, key: &str| CallHeader {
        to: to.to_owned(),
        idempotency_key: key.to_owned(),
        ..CallHeader::default()
    };
    let may = |kind, to, key| may_be_replayed(kind, &header(to, key));
    assert!(may(FrameKind::CALL, "echo", "k") && may(FrameKind::SEND, "echo", "k"));
    assert!(!may(FrameKind::CALL, "echo", "") && !may(FrameKind::SEND, "echo", ""));
    assert!(
        !may(FrameKind::STREAM, "echo", "k"),
        "bytes both ways are no single act"
    );
    assert!(
        !may(FrameKind::CALL, admin::AGENT, "k"),
        "nobody joins by a recording"
    );
}

/// An agent of the node's own process that answers with a text.
async fn serve(host: &LoneNode, agent: Agent, text: &'static str) -> ServeHandle {
    let answer = move |_: Request| async move { Ok(Response::new(text)) };
    host.client().serve(agent, answer).await.unwrap()
}

fn agent(name: &str) -> Agent {
    Agent::new(name).unwrap()
}

/// What a program says of an agent that it serves.
fn registering(name: &str) -> RegisterHeader {
    agent(name).register
}

/// Asks to be registered. The stream that was opened for it.
async fn register_at(program: &HandPlayedPeer, register: &RegisterHeader) -> ScriptedStream {
    let payload = header::encode(register);
    let frame = frames(&[(FrameKind::REGISTER, &payload)]);
    program.raw.open(frame).await
}

/// A program that serves an agent, with the stream for as long as which it does.
async fn serving(host: &LoneNode, name: &str) -> (HandPlayedPeer, ScriptedStream) {
    let program = host.program().await;
    let mut stream = register_at(&program, &registering(name)).await;
    assert_eq!(stream.frame().await.unwrap().0, FrameKind::HEAD);
    (program, stream)
}

/// Calls without a body; what is answered.
async fn call(far: &HandPlayedPeer, address: &str) -> Result<bytes::Bytes, Status> {
    far.ask(FrameKind::CALL, &to(address), b"").await
}

/// Ends an answer with a text.
async fn answer(stream: &mut ScriptedStream, text: &str) {
    let answer = [(FrameKind::DATA, text.as_bytes()), (FrameKind::END, b"")];
    stream.write(&answer).await;
    stream.send.finish();
}

#[tokio::test(start_paused = true)]
async fn a_program_that_registers_past_a_bound_is_told_which() {
    let host = LoneNode::named("desk").await;
    let program = host.program().await;
    let fits = RegisterHeader {
        description: "d".repeat(MAX_DESCRIPTION),
        tags: vec!["t".repeat(MAX_NAME); MAX_TAGS],
        version: "v".repeat(MAX_NAME),
        socket: format!("/{}", "s".repeat(MAX_SOCKET_PATH - 1)),
        schema: format!("{{}}{}", " ".repeat(MAX_SCHEMA - 2)),
        ..registering("full")
    };
    let socket = "the socket for raw streams is an absolute path of at most 107 bytes";
    let tags = "an agent has at most 16 tags of at most 64 bytes";
    let with_socket = |path: &str| RegisterHeader {
        socket: path.to_owned(),
        ..fits.clone()
    };
    for (register, what) in [
        (
            registering("node"),
            "the agent name `node` belongs to the node itself",
        ),
        (
            RegisterHeader {
                description: "d".repeat(MAX_DESCRIPTION + 1),
                ..fits.clone()
            },
            "the description is longer than 256 bytes",
        ),
        (
            RegisterHeader {
                tags: vec![String::new(); MAX_TAGS + 1],
                ..fits.clone()
            },
            tags,
        ),
        (
            RegisterHeader {
                tags: vec!["t".repeat(MAX_NAME + 1)],
                ..fits.clone()
            },
            tags,
        ),
        (
            RegisterHeader {
                version: "v".repeat(MAX_NAME + 1),
                ..fits.clone()
            },
            "the version is longer than 64 bytes",
        ),
        (with_socket("relative/path"), socket),
        (with_socket("/with\0nul"), socket),
        (
            with_socket(&format!("/{}", "s".repeat(MAX_SOCKET_PATH))),
            socket,
        ),
        (
            RegisterHeader {
                schema: " ".repeat(MAX_SCHEMA + 1),
                ..fits.clone()
            },
            "the schema has 49153 bytes, and 49152 are the most",
        ),
        (
            RegisterHeader {
                schema: "[]".to_owned(),
                ..fits.clone()
            },
            "the schema cannot be read: invalid type: sequence, expected an object with `methods` at line 1 column 0",
        ),
    ] {
        let mut refused = register_at(&program, &register).await;
        refused.send.finish();
        let status = refused.status().await;
        assert_eq!(status, Status::new(Code::InvalidArgument, what));
    }
    let garbage = frames(&[(FrameKind::REGISTER, b"\xff")]);
    let mut garbage = program.raw.open(garbage).await;
    garbage.send.finish();
    assert_eq!(garbage.status().await.code, Code::InvalidArgument);
    assert!(host.inner().registry.members().is_empty());

    let mut taken = register_at(&program, &fits).await;
    assert_eq!(taken.frame().await.unwrap().0, FrameKind::HEAD);
    let members = host.inner().registry.members();
    let full = members.get("full").unwrap().iter().next().unwrap();
    let MemberTarget::Attached { register, .. } = full.value() else {
        panic!("{:?}", full.value());
    };
    assert_eq!(register.description, fits.description);
    // Of this program nothing says that it sees the same files.
    assert_eq!(register.socket, "");
    taken.send.finish();
    let full = "full".parse().unwrap();
    settled(|| !host.inner().registry.knows(&full)).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_is_told_from_where_a_call_comes_and_how_much_time_is_left() {
    let host = LoneNode::named("desk").await;
    let (program, _registration) = serving(&host, "echo").await;
    let (other, peer) = (host.program().await, host.friend(key(7), "laptop").await);
    for (caller, from) in [(&other, None), (&peer, Some(key(7)))] {
        for kind in [FrameKind::CALL, FrameKind::SEND, FrameKind::STREAM] {
            let mut sent = CallHeader {
                to: "echo@desk".to_owned(),
                method: "say".to_owned(),
                content_type: "text/plain".to_owned(),
                headers: vec![("a".to_owned(), "b".to_owned())],
                priority: Priority::High,
                idempotency_key: "once".to_owned(),
                carrier: "ws".to_owned(),
                ..CallHeader::default()
            };
            sent.from.agent = Some("editor".parse().unwrap());
            sent.set_deadline(Duration::from_secs(5));
            let served = async {
                let (came_as, header, mut stream) = program.called().await;
                assert_eq!(came_as, kind);
                let (_, body) = stream.frame().await.unwrap();
                assert_eq!(body, "question");
                answer(&mut stream, "answer").await;
                header
            };
            let asked = caller.ask(kind, &sent, b"question");
            let (asked, header) = tokio::join!(asked, served);
            assert_eq!(asked.unwrap(), "answer");
            let mut expected = CallHeader {
                to: "echo".to_owned(),
                carrier: String::new(),
                ..sent
            };
            expected.from.node = from;
            assert_eq!(header, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_goes_on_with_the_time_that_is_left_and_without_a_key_that_is_not_for_its_reader()
{
    let deadline = Some(Instant::now() + Duration::from_secs(5));
    tokio::time::advance(Duration::from_secs(3)).await;
    let mut header = to("echo@desk");
    header.set_deadline(Duration::from_secs(5));
    set_onward(&mut header, CallOrigin::Peer(key(7)), None, deadline);
    let mut expected = to("echo");
    expected.set_deadline(Duration::from_secs(2));
    assert_eq!(header, expected);
}

#[tokio::test(start_paused = true)]
async fn a_peer_is_told_nothing_of_who_calls_but_the_agent_that_called() {
    let host = LoneNode::named("desk").await;
    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["grep"]).await;
    let program = host.program().await;
    for address in ["grep", "grep@laptop"] {
        let mut sent = to(address);
        sent.from.agent = Some("editor".parse().unwrap());
        sent.carrier = "ws".to_owned();
        let served = async {
            let (kind, header, mut stream) = peer.called().await;
            assert_eq!(kind, FrameKind::CALL);
            answer(&mut stream, "found").await;
            header
        };
        let asked = program.ask(FrameKind::CALL, &sent, b"");
        let (asked, header) = tokio::join!(asked, served);
        assert_eq!(asked.unwrap(), "found");
        let expected = CallHeader {
            to: "grep".to_owned(),
            carrier: String::new(),
            ..sent
        };
        assert_eq!(header, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_peer_goes_to_an_agent_of_this_node_or_nowhere() {
    let host = LoneNode::named("desk").await;
    let _open = serve(&host, agent("open"), "here").await;
    let _shut = serve(&host, agent("shut"), "never").await;
    let mut other = host.friend(key(8), "tower").await;
    other.offer(&host, 1, &["far"]).await;
    host.trust(key(7), "laptop", &["open", "far", "gone"]).await;
    let peer = host.peer(key(7)).await;
    // Whatever node is named: it came to this one.
    for address in ["open", "open@desk", "open@tower", "open@no-such-node"] {
        assert_eq!(call(&peer, address).await.unwrap(), "here", "{address}");
    }
    for (address, code, message) in [
        (
            "shut",
            Code::PermissionDenied,
            "this node does not let you call `shut`",
        ),
        // What may be called is not told of what may not.
        (
            "unheard-of",
            Code::PermissionDenied,
            "this node does not let you call `unheard-of`",
        ),
        ("gone", Code::NotFound, "no agent `gone` is known here"),
        ("far", Code::NotFound, "no agent `far` is known here"),
        ("far@tower", Code::NotFound, "no agent `far` is known here"),
    ] {
        let refused = call(&peer, address).await.unwrap_err();
        assert_eq!((refused.code, &refused.message[..]), (code, message));
    }
    // A carrier is this node's own business, so that no word is too strange for it.
    let header = CallHeader {
        carrier: "smoke".to_owned(),
        ..to("open")
    };
    assert!(peer.ask(FrameKind::CALL, &header, b"").await.is_ok());
    let program = host.program().await;
    let refused = program
        .ask(FrameKind::CALL, &header, b"")
        .await
        .unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn an_untrusted_caller_is_refused_in_the_same_words_whatever_it_calls() {
    let host = LoneNode::named("desk").await;
    let _echo = serve(&host, agent("echo"), "here").await;
    let stranger = host.peer(key(9)).await;
    for address in ["echo", "no-such-agent", "No Name"] {
        assert_eq!(call(&stranger, address).await, Err(untrusted(key(9))));
    }
    let rows = host.inner().trust.pending_rows();
    assert_eq!((rows.len(), rows[0].attempts), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_asked_for_is_not_listened_to() {
    let host = LoneNode::named("desk").await;
    let program = host.program().await;
    let stranger = host.peer(key(9)).await;
    let mut friend = host.friend(key(7), "laptop").await;
    let mut others = [program, stranger];
    for far in &mut others {
        let offer = crate::agent::offer(&registering("bait"));
        for (kind, payload) in hailwire_wire::offers::pages(vec![offer], 1) {
            far.control
                .write(&[(kind, &payload), (FrameKind::PING, b"")])
                .await;
        }
        // It was read, which the answer shows, and the session goes on.
        while far.control.frame().await.unwrap().0 != FrameKind::PONG {}
    }
    friend.offer(&host, 1, &["grep"]).await;
    let registry = &host.inner().registry;
    assert!(!registry.knows(&"bait".parse().unwrap()));
    assert!(registry.knows(&"grep".parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_bare_call_goes_to_this_node_first_and_then_to_a_peer_that_can_be_reached() {
    let host = LoneNode::named("desk").await;
    let mut peers = [
        host.friend(key(7), "laptop").await,
        host.friend(key(8), "tower").await,
    ];
    for peer in &mut peers {
        peer.offer(&host, 1, &["grep"]).await;
    }
    let own = serve(&host, agent("grep"), "own").await;
    let program = host.program().await;
    for _ in 0..10 {
        assert_eq!(call(&program, "grep").await.unwrap(), "own");
    }
    drop(own);
    // One of the two takes no more work, and so the other has it.
    let [laptop, mut tower] = peers;
    let farewell = header::encode(&hailwire_wire::header::GoingAway::default());
    let farewell = [
        (FrameKind::GOING_AWAY, &farewell[..]),
        (FrameKind::PING, b""),
    ];
    tower.control.write(&farewell).await;
    while tower.control.frame().await.unwrap().0 != FrameKind::PONG {}
    for _ in 0..10 {
        let served = async {
            let (_, _, mut stream) = laptop.called().await;
            answer(&mut stream, "laptop").await;
        };
        let (asked, ()) = tokio::join!(call(&program, "grep"), served);
        assert_eq!(asked.unwrap(), "laptop");
    }
    drop((laptop, tower));
    let gone = "grep".parse().unwrap();
    settled(|| !host.inner().registry.knows(&gone)).await;
    let nobody = call(&program, "grep").await.unwrap_err();
    assert_eq!(nobody, not_found(&gone));
}

#[tokio::test(start_paused = true)]
async fn a_member_is_busy_until_its_answer_has_ended_however_it_ends() {
    let host = LoneNode::named("desk").await;
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Request| {
        let (sender, body) = Body::channel(1);
        begun.send(sender).unwrap();
        async move { Ok(Response::new(body)) }
    };
    let one = agent("one").max_concurrency(1).max_waiting(0);
    let _serving = host.client().serve(one, handler).await.unwrap();
    let peer = host.friend(key(7), "laptop").await;
    let open = || {
        let head = header::encode_call(&to("one"));
        frames(&[(FrameKind::CALL, &head)])
    };
    for gives_up in [false, true] {
        let mut first = peer.raw.open(open()).await;
        let sender = begins.recv().await.unwrap();
        let busy = call(&peer, "one").await.unwrap_err();
        assert_eq!(busy.code, Code::ResourceExhausted);
        assert_eq!(
            busy.message,
            "all members of `one` are at their limit of calls"
        );
        if gives_up {
            first.reader.stop(Code::Cancelled);
            sender.closed().await;
        } else {
            sender.finish().await.unwrap();
            assert!(first.status().await.is_ok());
        }
        let members = host.inner().registry.members();
        let member = members.get("one").unwrap().iter().next().unwrap();
        settled(|| member.in_flight() == 0).await;
    }
    let mut again = peer.raw.open(open()).await;
    begins.recv().await.unwrap().finish().await.unwrap();
    assert!(again.status().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_place_until_its_deadline_and_one_without_for_a_minute() {
    let host = LoneNode::named("desk").await;
    let (client, asks) = (host.client(), host.client());
    // It calls itself, and so waits for itself.
    let handler = move |_: Request| {
        let asks = asks.clone();
        async move { asks.call("one").send().await.map(|_| Response::default()) }
    };
    let one = agent("one").max_concurrency(1);
    let _serving = client.serve(one, handler).await.unwrap();
    let begun = Instant::now();
    let circle = client.call("one").send().await.map(drop).unwrap_err();
    assert_eq!(circle.code, Code::ResourceExhausted, "{circle}");
    assert!(
        circle.message.ends_with("limit of calls for 60 s"),
        "{circle}"
    );
    assert_eq!(begun.elapsed(), Duration::from_secs(60));
    let late = client.call("one").deadline(Duration::from_secs(90));
    let late = late.send().await.map(drop).unwrap_err();
    assert_eq!(late.code, Code::DeadlineExceeded, "{late}");
    assert_eq!(begun.elapsed(), Duration::from_secs(150));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_holds_while_the_way_is_looked_for() {
    let host = LoneNode::named("desk").await;
    let away = crate::node::trust::NewPeer {
        id: key(8),
        alias: None,
        terms: hailwire_core::grants::GrantTerms::Offered(hailwire_core::grants::Grant::All),
        bare: None,
        via: crate::node::store::TrustOrigin::Manual,
        known: hailwire_core::dial_address::AddressOrigin::Typed,
        addresses: Vec::new(),
        tcp: vec![([198, 18, 0, 1], 443).into()],
        relay: None,
    };
    host.inner().trust.add(away, now_unix()).unwrap();
    let program = host.program().await;
    for address in [format!("echo@{}", key(8)), "unheard-of".to_owned()] {
        let left = Duration::from_millis(1500);
        let mut header = to(&address);
        header.set_deadline(left);
        let begun = Instant::now();
        let late = program.ask(FrameKind::CALL, &header, b"").await;
        assert_eq!(late, Err(session::deadline_exceeded()), "{address}");
        assert_eq!(begun.elapsed(), left, "{address}");
    }
    // Without one it is told that nobody answers there.
    let away = call(&program, &format!("echo@{}", key(8))).await;
    let away = away.unwrap_err();
    assert_eq!(away.code, Code::Unavailable);
    let named = format!("{} cannot be reached: ", key(8).short());
    assert!(away.message.contains(&named), "{away}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_shutting_down_takes_no_call_and_counts_those_that_came_before() {
    let host = LoneNode::named("desk").await;
    let _echo = serve(&host, agent("echo"), "here").await;
    let (program, peer) = (host.program().await, host.friend(key(7), "laptop").await);
    for caller in [&program, &peer] {
        assert_eq!(call(caller, "echo").await.unwrap(), "here");
    }
    let calls = &host.inner().programs.calls;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    host.inner().lifecycle.closing.send_replace(true);
    let status = Status::new(Code::Unavailable, "this node is shutting down");
    for caller in [&program, &peer] {
        assert_eq!(call(caller, "echo").await, Err(status.clone()));
    }
    // It can still be asked what it does.
    assert!(program.manage(admin::method::STATUS, "").await.is_ok());
    let late = host.dialled(key(7)).closed().await;
    let why = "the peer closed the connection: the node is shutting down (unavailable)";
    assert_eq!(late.to_string(), why);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_goes_in_mid_call_leaves_its_caller_an_answer() {
    let host = LoneNode::named("desk").await;
    let peer = host.friend(key(7), "laptop").await;
    let (program, _registration) = serving(&host, "echo").await;
    let asked = call(&peer, "echo");
    let leaves = async {
        let (_, _, stream) = program.called().await;
        program.raw.0.close(Code::Ok, "the program has detached");
        stream
    };
    let (asked, _stream) = tokio::join!(asked, leaves);
    let status = asked.unwrap_err();
    assert_eq!(status.code, Code::Unavailable);
    assert!(status.hint.contains("call it again"), "{}", status.hint);
    let echo = "echo".parse().unwrap();
    settled(|| !host.inner().registry.knows(&echo)).await;
    assert_eq!(call(&peer, "echo").await, Err(not_found(&echo)));
}

#[tokio::test(start_paused = true)]
async fn a_call_for_one_member_goes_to_it_alone_here_or_on_the_node_that_is_named() {
    let host = LoneNode::named("desk").await;
    let (one, _first) = serving(&host, "echo").await;
    let (two, _second) = serving(&host, "echo").await;
    let members = host.inner().registry.members();
    let numbers: Vec<u64> = members
        .get("echo")
        .unwrap()
        .iter()
        .filter_map(|member| member.key().number())
        .collect();
    let caller = host.program().await;
    let for_member = |address: &str, member| CallHeader {
        member,
        ..to(address)
    };
    for (program, number) in [(&one, numbers[0]), (&two, numbers[1])] {
        for address in ["echo", "echo@desk"] {
            let sent = for_member(address, number);
            let served = async {
                let (_, header, mut stream) = program.called().await;
                answer(&mut stream, "here").await;
                header
            };
            let asked = caller.ask(FrameKind::CALL, &sent, b"");
            let (asked, header) = tokio::join!(asked, served);
            assert_eq!(asked.unwrap(), "here");
            // The program is told no number: it was for the node.
            assert_eq!(header, to("echo"));
        }
    }
    let nobody = for_member("echo", numbers[1] + 1);
    let refused = caller.ask(FrameKind::CALL, &nobody, b"").await;
    assert_eq!(refused.unwrap_err().code, Code::NotFound);

    let mut peer = host.friend(key(7), "laptop").await;
    peer.offer(&host, 1, &["grep"]).await;
    let sent = for_member("grep@laptop", 9);
    let served = async {
        let (_, header, mut stream) = peer.called().await;
        answer(&mut stream, "there").await;
        header
    };
    let asked = caller.ask(FrameKind::CALL, &sent, b"");
    let (asked, header) = tokio::join!(asked, served);
    assert_eq!(asked.unwrap(), "there");
    assert_eq!(header, for_member("grep", 9));
}
