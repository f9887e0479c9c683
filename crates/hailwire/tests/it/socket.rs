//! Raw streams that a node connects to a program's socket by itself.

use std::{
    io::ErrorKind,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use hailwire::{
    Agent, Client, Code, Request, RequestKind, Response, ServeHandle, Status, StreamIo,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use crate::test_node::{PATIENCE, TestNode, call, start};

/// A socket, and a program that has said that its raw streams go there.
struct Offered {
    listener: UnixListener,
    path: PathBuf,
    /// Raw streams that came to the program all the same.
    handled: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

impl Offered {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        Self {
            listener: UnixListener::bind(&path).unwrap(),
            path,
            handled: Arc::default(),
            _folder: folder,
        }
    }

    async fn serve(&self, client: &Client) -> ServeHandle {
        let handled = self.handled.clone();
        let handler = move |request: Request| {
            let streams = u64::from(request.kind() == RequestKind::Stream);
            handled.fetch_add(streams, SeqCst);
            async move {
                match request.kind() {
                    RequestKind::Stream => {
                        Err(Status::new(Code::Aborted, "it came to the program"))
                    }
                    _ => Ok(Response::new("called")),
                }
            }
        };
        let path = self.path.to_str().unwrap();
        let agent = Agent::new("waf").unwrap().streams_to(path);
        client.serve(agent, handler).await.unwrap()
    }

    /// A stream, and the connection that it has become.
    async fn stream(&self, client: &Client, to: &str) -> (StreamIo, UnixStream) {
        let opened = async { client.stream(to).open().await.unwrap() };
        let accepted = async { self.listener.accept().await.unwrap() };
        let both = async { tokio::join!(opened, accepted) };
        let (stream, (socket, _)) = timeout(PATIENCE, both).await.unwrap();
        (stream.into_io(), socket)
    }
}

/// That the other side gets the end, after nothing.
async fn ended(socket: &mut UnixStream) {
    let mut rest = Vec::new();
    let read = timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
    read.unwrap().unwrap();
    assert_eq!(rest, b"");
}

/// Why reading fails.
async fn broken(io: &mut StreamIo) -> Code {
    let error = timeout(PATIENCE, io.read_u8()).await.unwrap().unwrap_err();
    let status = error.get_ref().unwrap().downcast_ref::<Status>().unwrap();
    status.code
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_way_ends_by_itself() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let _serving = offered.serve(&program).await;
    for (client, to) in [
        (alice.attach().await, "waf@bob"),
        (bob.attach().await, "waf"),
    ] {
        let (mut io, mut socket) = offered.stream(&client, to).await;
        // Whoever likes speaks first.
        socket.write_all(b"hello").await.unwrap();
        let mut hello = [0; 5];
        io.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        io.write_all(b"a question").await.unwrap();
        io.shutdown().await.unwrap();
        let mut asked = Vec::new();
        socket.read_to_end(&mut asked).await.unwrap();
        assert_eq!(asked, b"a question");
        socket.write_all(b"an answer").await.unwrap();
        drop(socket);
        let mut answer = Vec::new();
        io.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"an answer");
        // What is no raw stream comes to the program.
        assert_eq!(call(&client, to, "").await.unwrap(), b"called");
    }
    assert_eq!(offered.handled.load(SeqCst), 0);
}

#[tokio::test]
async fn bytes_beyond_every_window_come_back_as_they_were() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let _serving = offered.serve(&program).await;
    let all: Vec<u8> = (0..9_000_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    let (io, mut socket) = offered.stream(&alice.attach().await, "waf@bob").await;
    // Nothing is sent back before all has come, and nothing read before all is on its way.
    let agent = tokio::spawn(async move {
        let mut came = Vec::new();
        socket.read_to_end(&mut came).await.unwrap();
        socket.write_all(&came).await.unwrap();
    });
    let (mut read, mut write) = tokio::io::split(io);
    let exchange = async {
        write.write_all(&all).await.unwrap();
        write.shutdown().await.unwrap();
        let mut back = Vec::new();
        read.read_to_end(&mut back).await.unwrap();
        back
    };
    let back = timeout(PATIENCE, exchange).await.unwrap();
    assert!(back == all, "{} bytes", back.len());
    agent.await.unwrap();
}

#[tokio::test]
async fn an_agent_that_does_not_read_holds_back_its_caller_and_nobody_else() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let _serving = offered.serve(&program).await;
    let client = alice.attach().await;
    let (mut slow, mut unread) = offered.stream(&client, "waf@bob").await;
    let chunk = vec![7; 64 << 10];
    let mut written = 0;
    // Until everything on the way is full.
    while let Ok(done) = timeout(Duration::from_millis(500), slow.write(&chunk)).await {
        written += done.unwrap();
        assert!(written < 64 << 20, "nothing holds the caller back");
    }
    let (mut other, mut socket) = offered.stream(&client, "waf@bob").await;
    other.write_all(b"x").await.unwrap();
    assert_eq!(
        timeout(PATIENCE, socket.read_u8()).await.unwrap().unwrap(),
        b'x'
    );
    // What was held back comes when it is read.
    drop(other);
    let mut came = vec![0; written];
    let read = timeout(PATIENCE, unread.read_exact(&mut came)).await;
    read.unwrap().unwrap();
    assert!(came.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_caller_that_gives_up_ends_the_connection() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let _serving = offered.serve(&program).await;
    let (io, mut socket) = offered.stream(&alice.attach().await, "waf@bob").await;
    drop(io);
    ended(&mut socket).await;
}

#[tokio::test]
async fn an_agent_that_goes_ends_the_stream_and_the_next_one_finds_its_successor() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let mut offered = Offered::new();
    let _serving = offered.serve(&program).await;
    let client = alice.attach().await;
    let (mut io, mut socket) = offered.stream(&client, "waf@bob").await;
    // With something unread the connection is not ended but broken.
    io.write_all(b"half read").await.unwrap();
    assert_eq!(socket.read_u8().await.unwrap(), b'h');
    drop(socket);
    let error = timeout(PATIENCE, io.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");

    std::fs::remove_file(&offered.path).unwrap();
    offered.listener = UnixListener::bind(&offered.path).unwrap();
    let (mut io, mut socket) = offered.stream(&client, "waf@bob").await;
    socket.write_all(b"n").await.unwrap();
    assert_eq!(io.read_u8().await.unwrap(), b'n');
    assert_eq!(offered.handled.load(SeqCst), 0);
}

#[tokio::test]
async fn where_nothing_listens_the_program_says_so() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let _serving = offered.serve(&program).await;
    std::fs::remove_file(&offered.path).unwrap();
    let opened = alice.client().stream("waf@bob").open().await;
    let mut stream = opened.unwrap();
    let status = timeout(PATIENCE, stream.recv.chunk()).await.unwrap();
    assert_eq!(status.unwrap_err().message, "it came to the program");
    assert_eq!(offered.handled.load(SeqCst), 1);
}

#[tokio::test]
async fn a_program_that_goes_takes_its_name_and_its_streams_with_it() {
    let (alice, bob) = TestNode::pair().await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let serving = offered.serve(&program).await;
    let client = alice.attach().await;
    let (mut io, mut socket) = offered.stream(&client, "waf@bob").await;
    drop((serving, program));
    assert_eq!(broken(&mut io).await, Code::Unavailable);
    ended(&mut socket).await;
    let gone = client.stream("waf@bob").open().await.unwrap_err();
    assert_eq!(gone.code, Code::NotFound);
}

#[tokio::test]
async fn a_node_that_stops_ends_its_connections_and_one_that_comes_back_makes_new_ones() {
    let bob = TestNode::named("bob").await;
    let offered = Offered::new();
    let program = bob.attach().await;
    let serving = offered.serve(&program).await;
    let (mut io, mut socket) = offered.stream(&bob.attach().await, "waf").await;
    bob.node.shutdown(Duration::ZERO).await;
    ended(&mut socket).await;
    assert_eq!(broken(&mut io).await, Code::Unavailable);
    drop((serving, program));

    let node = start(bob.dir.path(), "bob").await.unwrap();
    let bob = TestNode { node, dir: bob.dir };
    let program = bob.attach().await;
    let _serving = offered.serve(&program).await;
    let (mut io, mut socket) = offered.stream(&bob.attach().await, "waf").await;
    socket.write_all(b"n").await.unwrap();
    assert_eq!(io.read_u8().await.unwrap(), b'n');
}

#[tokio::test]
async fn a_deadline_ends_a_stream_and_its_connection_in_time() {
    let bob = TestNode::named("bob").await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let _serving = offered.serve(&program).await;
    let client = bob.attach().await;
    let opening = client.stream("waf").deadline(Duration::from_millis(300));
    let opened = async { opening.open().await.unwrap() };
    let accepted = async { offered.listener.accept().await.unwrap() };
    let (stream, (mut socket, _)) = tokio::join!(opened, accepted);
    let mut io = stream.into_io();
    assert_eq!(broken(&mut io).await, Code::DeadlineExceeded);
    ended(&mut socket).await;
}

#[tokio::test]
async fn as_many_streams_as_the_program_takes_are_connected() {
    let bob = TestNode::named("bob").await;
    let program = bob.attach().await;
    let offered = Offered::new();
    let path = offered.path.to_str().unwrap();
    let agent = Agent::new("waf")
        .unwrap()
        .max_concurrency(1)
        .max_waiting(0)
        .streams_to(path);
    let handler = |_: Request| async { Ok(Response::default()) };
    let _serving = program.serve(agent, handler).await.unwrap();
    let client = bob.attach().await;
    let (io, mut socket) = offered.stream(&client, "waf").await;
    let full = client.stream("waf").open().await.unwrap_err();
    assert_eq!(full.code, Code::ResourceExhausted);
    let agents: Vec<hailwire::admin::AgentRow> = client
        .admin(
            hailwire::admin::method::AGENTS,
            &hailwire::admin::AgentsQuery::default(),
        )
        .await
        .unwrap();
    assert_eq!(agents.iter().map(|agent| agent.in_flight).sum::<u64>(), 1);
    drop(io);
    ended(&mut socket).await;
}

#[tokio::test]
async fn a_socket_that_is_no_absolute_path_is_refused() {
    let bob = TestNode::named("bob").await;
    let handler = |_: Request| async { Ok(Response::default()) };
    let long = format!("/{}", "x".repeat(hailwire_wire::limits::MAX_SOCKET_PATH));
    for path in ["agent.sock", "./agent.sock", "@abstract", "/a\0b", &long] {
        for client in [bob.client(), bob.attach().await] {
            let agent = Agent::new("waf").unwrap().streams_to(path);
            let refused = client.serve(agent, handler).await.unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{path:?}");
            assert!(refused.message.contains("107"), "{refused}");
        }
    }
    let longest = format!(
        "/{}",
        "x".repeat(hailwire_wire::limits::MAX_SOCKET_PATH - 1)
    );
    let agent = Agent::new("waf").unwrap().streams_to(longest);
    let _serving = bob.attach().await.serve(agent, handler).await.unwrap();
}
