//! Calls as a program prepares them, agents as it serves them, and raw streams as bytes.

use std::{
    sync::Mutex,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hailwire_wire::{CallHeader, NodeId, Priority, frame::FrameKind};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::*;
use crate::{
    BodySender, Request, Response,
    agent::{Caller, RequestKind},
    config::Carrier,
    node::hand_played::{LoneNode, key},
    session::{
        Answer,
        tests::{RawPeer, connected, frames, to},
    },
};

fn agent(name: &str) -> Agent {
    Agent::new(name).unwrap()
}

/// What a handler was given.
type HeardCall = (RequestKind, CallHeader, Caller);

/// A handler that tells what it is given, and answers with the body.
fn telling() -> (impl Handler, mpsc::UnboundedReceiver<HeardCall>) {
    let (tell, told) = mpsc::unbounded_channel();
    let handler = move |request: Request| {
        let kind = request.kind();
        let (header, caller, body) = request.into_parts();
        tell.send((kind, header, caller)).unwrap();
        async move { Ok(Response::new(body).content_type("text/plain")) }
    };
    (handler, told)
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_a_call_or_a_stream_reaches_its_handler() {
    let host = LoneNode::named("desk").await;
    let (handler, mut heard) = telling();
    let _serving = host.client().serve(agent("echo"), handler).await.unwrap();
    let client = host.client();
    let expected = CallHeader {
        to: "echo".to_owned(),
        method: "say".to_owned(),
        content_type: "text/html".to_owned(),
        deadline_ms: Some(1500),
        priority: Priority::Critical,
        idempotency_key: "once".to_owned(),
        headers: vec![
            ("a".to_owned(), "1".to_owned()),
            ("a".to_owned(), "2".to_owned()),
        ],
        ..CallHeader::default()
    };
    let left = Duration::from_millis(1500);
    let call = client.call("echo").method("say").content_type("text/html");
    let call = call.header("a", "1").header("a", "2").deadline(left);
    let call = call.priority(Priority::Critical).idempotency_key("once");
    let traced = call.carrier(Carrier::Auto).traceparent("00-ab-cd-01");
    let mut answer = traced.body("hello").send().await.unwrap();
    assert_eq!(answer.head().content_type, "text/plain");
    assert_eq!(answer.deadline(), Some(Instant::now() + left));
    assert_eq!(answer.bytes(10).await.unwrap(), "hello");
    let (kind, header, caller) = heard.recv().await.unwrap();
    let traced = CallHeader {
        traceparent: "00-ab-cd-01".to_owned(),
        ..expected.clone()
    };
    assert_eq!((kind, caller), (RequestKind::Call, Caller::Local));
    assert_eq!(header, traced);

    let stream = client
        .stream("echo")
        .method("say")
        .content_type("text/html");
    let stream = stream.header("a", "1").header("a", "2").deadline(left);
    let stream = stream.priority(Priority::Critical).idempotency_key("once");
    let stream = stream.carrier(Carrier::Auto).open().await.unwrap();
    let (kind, header, _) = heard.recv().await.unwrap();
    assert_eq!((kind, header), (RequestKind::Stream, expected));
    drop(stream);

    client.send("echo", "noted").await.unwrap();
    assert_eq!(heard.recv().await.unwrap().0, RequestKind::Send);
}

#[tokio::test(start_paused = true)]
async fn a_call_within_the_process_ends_in_time_and_takes_its_handler_with_it() {
    let host = LoneNode::named("desk").await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let hang = move |_: Request| {
        let (tell, dropped) = oneshot::channel::<()>();
        begun.send(dropped).unwrap();
        async move {
            let _tell = tell;
            std::future::pending().await
        }
    };
    let _hang = host.client().serve(agent("hang"), hang).await.unwrap();
    let left = Duration::from_secs(3);
    let begun = Instant::now();
    let late = host.client().call("hang").deadline(left).send().await;
    assert_eq!(late.unwrap_err(), session::deadline_exceeded());
    assert_eq!(begun.elapsed(), left);
    let dropped = begins.recv().await.unwrap();
    let dropped = tokio::time::timeout(left, dropped).await;
    assert!(dropped.unwrap().is_err(), "its handler is gone");

    let panics = |_: Request| async { panic!("a test's handler panics") };
    let _panics = host.client().serve(agent("panics"), panics).await.unwrap();
    let status = host.client().call("panics").send().await.unwrap_err();
    assert_eq!(status, session::panicked());
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_this_process_is_late_where_its_body_is() {
    let host = LoneNode::named("desk").await;
    let (sender, body) = Body::channel(1);
    let body = Mutex::new(Some(body));
    let handler = move |_: Request| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok(Response::new(body)) }
    };
    let _slow = host.client().serve(agent("slow"), handler).await.unwrap();
    let left = Duration::from_secs(3);
    let answer = host.client().call("slow").deadline(left).send().await;
    let mut answer = answer.unwrap();
    sender.send("begun").await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "begun");
    let late = answer.chunk().await.unwrap_err();
    assert_eq!(late, session::deadline_exceeded());
    sender.closed().await;
    assert_eq!(answer.chunk().await.unwrap_err(), late);
}

#[tokio::test]
async fn a_name_is_served_once_by_each_program_and_again_when_it_was_taken_back() {
    let host = LoneNode::named("desk").await;
    let attached = Client::attach(&host.data()).await.unwrap();
    let (one, _heard) = telling();
    let (two, _heard) = telling();
    let serving = attached.serve(agent("echo"), one).await.unwrap();
    assert_eq!(serving.name().as_str(), "echo");
    let taken = attached.serve(agent("echo"), two).await.unwrap_err();
    assert_eq!(taken.code, Code::AlreadyExists);
    assert_eq!(taken.message, "this program serves `echo` already");
    assert!(taken.hint.contains("second client"), "{}", taken.hint);
    drop(serving);
    let (again, _heard) = telling();
    let mut serving = attached.serve(agent("echo"), again).await.unwrap();
    // What the node refuses is taken back as well.
    for _ in 0..2 {
        let (handler, _heard) = telling();
        let own = attached.serve(agent("node"), handler).await.unwrap_err();
        assert_eq!(
            own.message,
            "the agent name `node` belongs to the node itself"
        );
    }
    host.node.shutdown(Duration::ZERO).await;
    assert_eq!(serving.closed().await.code, Code::Unavailable);
    assert_eq!(attached.closed().await.code, Code::Unavailable);
}

#[tokio::test]
async fn a_program_that_attaches_where_no_node_is_says_which_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = DataDir::new(folder.path().join("none"));
    let missing = Client::attach(&data).await.unwrap_err();
    assert!(matches!(missing, AttachError::NotRunning { .. }));
    let text = missing.to_string();
    assert!(text.contains(&data.root().display().to_string()), "{text}");
    // A socket that nobody listens at any more, as a killed node leaves it.
    let data = DataDir::new(folder.path());
    data.create().unwrap();
    drop(tokio::net::UnixListener::bind(data.socket()).unwrap());
    let killed = Client::attach(&data).await.unwrap_err();
    assert!(matches!(killed, AttachError::NotRunning { .. }), "{killed}");
}

#[tokio::test]
async fn a_program_serves_what_it_has_and_hears_from_its_node_who_calls() {
    let (near, far) = connected();
    let agents = Arc::new(ServedAgents::default());
    let hello = Hello {
        versions: vec![VERSION],
        ..Hello::default()
    };
    let _session = Session::start(near, true, hello.clone(), agents.clone());
    let attached = AttachedSession {
        session: _session,
        agents,
        retry_budget: Mutex::default(),
    };
    let node = RawPeer(far);
    let mut control = node.accept().await;
    assert_eq!(control.frame().await.unwrap().0, FrameKind::HELLO);
    let greeting = hailwire_wire::header::encode(&hello);
    control.write(&[(FrameKind::HELLO, &greeting)]).await;

    let attached = Arc::new(attached);
    let (handler, mut heard) = telling();
    let registering = serve_attached(&attached, agent("echo"), Arc::new(handler));
    let accepting = async {
        let mut registration = node.accept().await;
        assert_eq!(registration.frame().await.unwrap().0, FrameKind::REGISTER);
        registration.write(&[(FrameKind::HEAD, &[0x80])]).await;
        registration
    };
    let (serving, mut registration) = tokio::join!(registering, accepting);
    let mut serving = serving.unwrap();
    let from = |from: Option<NodeId>| {
        let mut header = to("echo");
        header.from.node = from;
        header.from.agent = Some("editor".parse().unwrap());
        header
    };
    for (caller, stated) in [(Caller::Local, None), (Caller::Peer(key(7)), Some(key(7)))] {
        assert!(node.call(&from(stated)).await.status().await.is_ok());
        let (_, header, heard) = heard.recv().await.unwrap();
        assert_eq!(heard, caller);
        // It is said once, and not where an agent of before would take it for part of a name.
        assert_eq!(header, from(None));
    }
    let missing = node.call(&to("grep")).await.status().await;
    let what = "`grep` is no longer served here";
    assert_eq!(missing, Status::new(Code::NotFound, what));
    let bytes = frames(&[(FrameKind::CALL, b"\xff")]);
    let mut garbage = node.open(bytes).await;
    garbage.send.finish();
    assert_eq!(garbage.status().await.code, Code::InvalidArgument);

    // The node ends the registration with a reason.
    let why = Status::new(Code::ResourceExhausted, "no more of you");
    let end = hailwire_wire::header::encode(&why);
    registration.write(&[(FrameKind::END, &end)]).await;
    assert_eq!(serving.closed().await, why);
}

/// A raw stream whose far end is a pair of channels.
fn raw_stream() -> (RawStream, BodySender, Body) {
    let (send, heard) = Body::channel(16);
    let (say, body) = Body::channel(16);
    let task = session::AbortOnDrop(tokio::spawn(std::future::pending::<()>()).abort_handle());
    let recv = Answer::local(Default::default(), body, task, None);
    (RawStream { send, recv }, say, heard)
}

#[tokio::test]
async fn a_write_travels_as_one_chunk_of_at_most_68_kib_and_so_many_wait() {
    let (stream, _say, mut heard) = raw_stream();
    let mut io = stream.into_io();
    assert_eq!(io.write(b"").await.unwrap(), 0);
    let large = vec![7; 100 * 1024];
    assert_eq!(io.write(&large).await.unwrap(), 68 * 1024);
    assert_eq!(heard.chunk().await.unwrap().unwrap().len(), 68 * 1024);
    let mut written = 0;
    let full = loop {
        let mut context = Context::from_waker(Waker::noop());
        match std::pin::Pin::new(&mut io).poll_write(&mut context, b"x") {
            Poll::Ready(one) => written += one.unwrap(),
            Poll::Pending => break written,
        }
    };
    assert_eq!(full, 16);
    // One that is read makes room for one.
    let (wrote, read) = tokio::join!(io.write(b"y"), heard.chunk());
    assert_eq!(
        (wrote.unwrap(), &read.unwrap().unwrap()[..]),
        (1, &b"x"[..])
    );
    let rest = async {
        let mut rest = Vec::new();
        while let Some(chunk) = heard.chunk().await.unwrap() {
            rest.extend_from_slice(&chunk);
        }
        rest
    };
    let (ended, rest) = tokio::join!(io.shutdown(), rest);
    ended.unwrap();
    assert_eq!(rest, b"xxxxxxxxxxxxxxxy");
    // It has ended: no more is written, and ending it again is nothing.
    let late = io.write(b"z").await.unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::BrokenPipe);
    io.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_did_not_end_well_is_an_error_of_a_kind_that_fits() {
    for (code, kind) in [
        (Code::DeadlineExceeded, io::ErrorKind::TimedOut),
        (Code::PermissionDenied, io::ErrorKind::PermissionDenied),
        (Code::Cancelled, io::ErrorKind::ConnectionAborted),
        (Code::Aborted, io::ErrorKind::ConnectionAborted),
        (Code::Unavailable, io::ErrorKind::ConnectionReset),
        (Code::Internal, io::ErrorKind::Other),
    ] {
        let (stream, say, _heard) = raw_stream();
        let mut io = stream.into_io();
        say.send("abc").await.unwrap();
        let why = Status::new(code, "so it is");
        say.abort(why.clone()).await;
        let mut read = [0; 2];
        io.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ab");
        let mut rest = Vec::new();
        let error = io.read_to_end(&mut rest).await.unwrap_err();
        assert_eq!((rest, error.kind()), (b"c".to_vec(), kind), "{code}");
        let inner = error.into_inner().unwrap().downcast::<Status>().unwrap();
        assert_eq!(*inner, why);
    }
    let (stream, say, heard) = raw_stream();
    let mut io = stream.into_io();
    say.finish().await.unwrap();
    assert_eq!(io.read(&mut [0; 2]).await.unwrap(), 0);
    // Nobody reads any more, which writing notices and ending does not mind.
    drop(heard);
    let gone = io.write(b"x").await.unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    io.shutdown().await.unwrap();
}
