//! Bad input on the local socket and on a tunnel: a clear error there, and nobody else notices.

use std::{net::SocketAddr, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire::{
    Agent, Body, Client, Code, NodeId, Priority, Request, Response, Status, admin,
    admin::method,
    carrier::{CarrierConnection, ConnectionError, RecvStream, SendStream, mux, quic},
};
use hailwire_wire::{
    CallHeader,
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    header::{self, AgentOffer, AgentOffers, Hello, VERSION},
    limits,
    mux::{MuxRole, PREFACE, preface},
};
use iroh::{Endpoint, EndpointAddr, RelayMap, RelayMode, TransportAddr, endpoint::presets};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::oneshot,
};

use crate::test_node::{PATIENCE, TestNode, serve_echo};

/// A call that goes on while others misbehave, and must end well.
struct Bystander {
    end: oneshot::Sender<()>,
    call: tokio::task::JoinHandle<Result<Bytes, Status>>,
    _serving: hailwire::ServeHandle,
}

impl Bystander {
    async fn call(callee: &Client, caller: Client, to: &'static str) -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let slot = std::sync::Mutex::new(Some((begun, ended)));
        let wait = move |_: Request| {
            let slot = slot.lock().unwrap().take();
            async move {
                let (begun, ended) = slot.unwrap();
                begun.send(()).unwrap();
                ended.await.unwrap();
                Ok(Response::new("undisturbed"))
            }
        };
        let serving = callee
            .serve(Agent::new("wait").unwrap(), wait)
            .await
            .unwrap();
        let call = tokio::spawn(async move {
            let mut answer = caller.call(to).deadline(2 * PATIENCE).send().await?;
            answer.bytes(100).await
        });
        has_begun.await.unwrap();
        Self {
            end,
            call,
            _serving: serving,
        }
    }

    async fn ends_well(self) {
        self.end.send(()).unwrap();
        assert_eq!(self.call.await.unwrap().unwrap(), "undisturbed");
    }
}

/// What a node writes to one who sends it `bytes`, until it ends the connection.
async fn answer_to(host: &TestNode, bytes: &[u8]) -> Vec<u8> {
    let mut socket = UnixStream::connect(host.data().socket()).await.unwrap();
    // The node may hang up before everything is written.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
    // A reset, where the node left bytes unread, is an end too.
    let _ = read.expect("the node ends the connection");
    answer
}

/// Bytes without a pattern, the same at each run (xorshift64*).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut byte = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..len).map(|_| byte()).collect()
}

#[tokio::test]
async fn noise_on_the_local_socket_ends_that_connection_alone() {
    let host = TestNode::named("alice").await;
    let bystander = Bystander::call(&host.client(), host.attach().await, "wait").await;
    for seed in 1..50 {
        let answer = answer_to(&host, &noise(seed, 20_000)).await;
        assert_eq!(answer, preface(MuxRole::Server), "noise was answered");
        // The same behind a preface that is in order.
        let mut bytes = preface(MuxRole::Client).to_vec();
        bytes.extend(noise(seed, 200_000));
        let answer = answer_to(&host, &bytes).await;
        assert!(answer.starts_with(&preface(MuxRole::Server)));
    }
    bystander.ends_well().await;
}

#[tokio::test]
async fn another_major_version_of_the_multiplexer_is_refused_and_told_this_one() {
    let host = TestNode::named("alice").await;
    let mut other = preface(MuxRole::Client);
    other[8] = 9;
    assert_eq!(answer_to(&host, &other).await, preface(MuxRole::Server));
}

#[tokio::test]
async fn an_oversized_length_is_answered_with_a_reason() {
    let host = TestNode::named("alice").await;
    let mut bytes = preface(MuxRole::Client).to_vec();
    // DATA on stream 1, of 65,535 bytes.
    bytes.extend([0x01, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1]);
    let answer = answer_to(&host, &bytes).await;
    let close = &answer[PREFACE..];
    assert_eq!(close[0], 0x09, "a CLOSE frame");
    let reason = String::from_utf8_lossy(&close[12 + 4..]);
    assert!(reason.contains("65535"), "{reason}");
}

/// A connection to a node whose far side is this test.
pub(crate) struct Guest {
    pub(crate) connection: CarrierConnection,
    /// The same, as the engine has it, where it is by a tunnel.
    quic: Option<iroh::endpoint::Connection>,
    endpoint: Option<Endpoint>,
}

/// How a guest comes in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Socket,
    Tunnel,
}

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::Socket, Self::Tunnel];
}

impl Guest {
    /// Connects, as a trusted peer where it is by a tunnel.
    pub(crate) async fn of(host: &TestNode, way: Way) -> Self {
        match way {
            Way::Socket => {
                let socket = UnixStream::connect(host.data().socket()).await.unwrap();
                Self {
                    connection: CarrierConnection::Mux(mux::MuxConnection::client(socket)),
                    quic: None,
                    endpoint: None,
                }
            }
            Way::Tunnel => Self::by_tunnel(host, true).await,
        }
    }

    pub(crate) async fn by_tunnel(host: &TestNode, trusted: bool) -> Self {
        let endpoint = Endpoint::builder(presets::Minimal)
            .relay_mode(RelayMode::Custom(RelayMap::empty()))
            .clear_ip_transports()
            .bind_addr(SocketAddr::from(([127, 0, 0, 1], 0)))
            .unwrap()
            .bind()
            .await
            .unwrap();
        let add = admin::TrustAdd {
            id: NodeId::from_bytes(*endpoint.id().as_bytes()),
            alias: String::new(),
            allow: Vec::new(),
            offer: Vec::new(),
            addresses: Vec::new(),
            tcp: Vec::new(),
        };
        if trusted {
            let _: admin::TrustedPeer = host.client().admin(method::TRUST_ADD, &add).await.unwrap();
        }
        let id = iroh::EndpointId::from_bytes(host.node.id().as_bytes()).unwrap();
        let sockets = host.node.sockets().into_iter().map(|mut socket| {
            if socket.ip().is_unspecified() {
                socket.set_ip([127, 0, 0, 1].into());
            }
            TransportAddr::Ip(socket)
        });
        let address = EndpointAddr::from_parts(id, sockets);
        let connection = endpoint.connect(address, b"hailwire").await.unwrap();
        Self {
            connection: CarrierConnection::Quic(quic::QuicConnection::new(connection.clone())),
            quic: Some(connection),
            endpoint: Some(endpoint),
        }
    }

    /// The key of one that came by a tunnel.
    pub(crate) fn id(&self) -> NodeId {
        let endpoint = self.endpoint.as_ref().unwrap();
        NodeId::from_bytes(*endpoint.id().as_bytes())
    }

    /// Greets with a list of versions.
    pub(crate) async fn greet(&self, versions: Vec<u32>) -> (SendStream, RecvStream) {
        let hello = Hello {
            versions: versions
                .into_iter()
                .map(|version| version.try_into().unwrap())
                .collect(),
            ..Hello::default()
        };
        let mut bytes = BytesMut::new();
        frame::put(&mut bytes, FrameKind::HELLO, &header::encode(&hello));
        self.open(&bytes).await
    }

    /// Opens a stream and writes its first bytes.
    async fn open(&self, bytes: &[u8]) -> (SendStream, RecvStream) {
        let (mut send, recv) = self.connection.open(Priority::Medium).await.unwrap();
        send.write(Bytes::copy_from_slice(bytes)).await.unwrap();
        (send, recv)
    }

    /// Opens a stream, writes to it, ends it, and gives the status with which it is answered.
    pub(crate) async fn ask(&self, bytes: &[u8]) -> Status {
        let (mut send, mut recv) = self.open(bytes).await;
        send.finish();
        status(&mut recv).await
    }
}

/// The status in the END frame that a stream brings.
async fn status(recv: &mut RecvStream) -> Status {
    let mut decoder = FrameDecoder::new();
    let read = async {
        loop {
            while let Some(event) = decoder.next_event().unwrap() {
                match event {
                    FrameEvent::Frame(FrameKind::END, payload) if payload.is_empty() => {
                        return Status::ok();
                    }
                    FrameEvent::Frame(FrameKind::END, payload) => {
                        return header::decode(&payload).unwrap();
                    }
                    _ => {}
                }
            }
            decoder.push(recv.read(1 << 16).await.unwrap().expect("a status"));
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}

pub(crate) fn frame_of(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    frame::put(&mut bytes, kind, payload);
    bytes.to_vec()
}

#[tokio::test]
async fn versions_without_a_common_one_are_refused_with_both() {
    let host = TestNode::named("alice").await;
    for way in Way::BOTH {
        let guest = Guest::of(&host, way).await;
        let _control = guest.greet(vec![9]).await;
        let ConnectionError::Closed { code, reason } = guest.connection.closed().await else {
            panic!("it was not closed");
        };
        assert_eq!(code, Code::FailedPrecondition, "{way:?}");
        let ours = format!("[{VERSION}]");
        assert!(reason.contains("[9]") && reason.contains(&ours), "{reason}");
    }
}

#[tokio::test]
async fn bad_streams_are_refused_one_by_one_and_their_connection_goes_on() {
    let (alice, host) = TestNode::pair().await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let bystander = Bystander::call(&host.client(), alice.client(), "wait@bob").await;
    let call = |to: &str| {
        let header = CallHeader {
            to: to.to_owned(),
            ..CallHeader::default()
        };
        frame_of(FrameKind::CALL, &header::encode(&header))
    };
    for way in Way::BOTH {
        let guest = Guest::of(&host, way).await;
        let _control = guest.greet(vec![VERSION.into()]).await;

        // A header that is none, one past its bound, one cut short, a kind nobody knows.
        let nonsense = guest.ask(&frame_of(FrameKind::CALL, &noise(7, 40))).await;
        assert_eq!(nonsense.code, Code::InvalidArgument, "{way:?} {nonsense}");
        let oversized = guest
            .ask(&[FrameKind::CALL.0, 0xff, 0xff, 0xff, 1, 2, 3])
            .await;
        assert_eq!(oversized.code, Code::InvalidArgument, "{way:?} {oversized}");
        let truncated = guest.ask(&call("echo")[..6]).await;
        assert_eq!(truncated.code, Code::InvalidArgument, "{way:?} {truncated}");
        let unknown = guest.ask(&frame_of(FrameKind(0x0e), b"x")).await;
        assert_eq!(unknown.code, Code::Unimplemented, "{way:?} {unknown}");
        let misnamed = guest.ask(&call("No Such Name")).await;
        assert_eq!(misnamed.code, Code::InvalidArgument, "{way:?} {misnamed}");
        for seed in 1..50 {
            let (mut send, mut recv) = guest.open(&noise(seed, 100)).await;
            send.finish();
            let end = async { while let Ok(Some(_)) = recv.read(1 << 16).await {} };
            tokio::time::timeout(PATIENCE, end).await.unwrap();
        }
        assert_eq!(guest.ask(&call("echo")).await, Status::ok(), "{way:?}");
    }
    bystander.ends_well().await;
}

#[tokio::test]
async fn unidirectional_streams_are_stopped_one_by_one_and_their_tunnel_lives() {
    let (alice, host) = TestNode::pair().await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let bystander = Bystander::call(&host.client(), alice.client(), "wait@bob").await;
    let guest = Guest::of(&host, Way::Tunnel).await;
    let _control = guest.greet(vec![VERSION.into()]).await;
    let quic = guest.quic.as_ref().unwrap();
    let most = hailwire::config::QuicSettings::default().uni_streams as usize;
    for _ in 0..3 {
        // As many as it may have at once, each of which makes room for another when it is gone.
        let mut streams = Vec::new();
        for _ in 0..most {
            let opened = tokio::time::timeout(PATIENCE, quic.open_uni()).await;
            let mut stream = opened.expect("there is room again").unwrap();
            // It may be stopped by now.
            let _ = stream.write_all(b"\x54from the future").await;
            streams.push(stream);
        }
        for stream in streams {
            let stopped = tokio::time::timeout(PATIENCE, stream.stopped()).await;
            let code = stopped.unwrap().unwrap().expect("it is stopped");
            assert_eq!(code.into_inner(), u64::from(Code::Unimplemented.number()));
        }
    }
    let header = CallHeader {
        to: "echo".to_owned(),
        ..CallHeader::default()
    };
    let call = frame_of(FrameKind::CALL, &header::encode(&header));
    assert_eq!(guest.ask(&call).await, Status::ok());
    bystander.ends_well().await;
}

#[tokio::test]
async fn an_untrusted_peer_may_open_no_unidirectional_stream() {
    let host = TestNode::named("alice").await;
    let guest = Guest::by_tunnel(&host, false).await;
    let _control = guest.greet(vec![VERSION.into()]).await;
    let header = CallHeader {
        to: "echo".to_owned(),
        ..CallHeader::default()
    };
    let call = frame_of(FrameKind::CALL, &header::encode(&header));
    assert_eq!(guest.ask(&call).await.code, Code::PermissionDenied);
    // Whatever it was granted came before that answer.
    let opened = guest.quic.as_ref().unwrap().open_uni();
    let opened = tokio::time::timeout(Duration::ZERO, opened).await;
    assert!(opened.is_err(), "{opened:?}");
}

#[tokio::test]
async fn a_second_greeting_ends_the_connection() {
    let host = TestNode::named("alice").await;
    for way in Way::BOTH {
        let guest = Guest::of(&host, way).await;
        let _first = guest.greet(vec![VERSION.into()]).await;
        let _second = guest.greet(vec![VERSION.into()]).await;
        let why = guest.connection.closed().await;
        assert!(
            matches!(
                &why,
                ConnectionError::Closed {
                    code: Code::InvalidArgument,
                    ..
                }
            ),
            "{why:?}"
        );
    }
}

#[tokio::test]
async fn an_offer_past_a_bound_ends_the_connection_and_says_which() {
    let host = TestNode::named("alice").await;
    let offer = || AgentOffer {
        group: hailwire_wire::header::OfferedGroup::default(),
        name: "grep".parse().unwrap(),
        description: String::new(),
        tags: Vec::new(),
        version: String::new(),
    };
    let described = AgentOffer {
        description: "x".repeat(limits::MAX_DESCRIPTION + 1),
        ..offer()
    };
    let tagged = AgentOffer {
        tags: vec![String::new(); limits::MAX_TAGS + 1],
        ..offer()
    };
    let versioned = AgentOffer {
        version: "1".repeat(limits::MAX_NAME + 1),
        ..offer()
    };
    let many = vec![offer(); limits::MAX_AGENTS_PER_NODE + 1];
    for (agents, bound) in [
        (vec![offer(), described], "description"),
        (vec![tagged], "tags"),
        (vec![versioned], "version"),
        (many, "1024"),
    ] {
        let guest = Guest::of(&host, Way::Tunnel).await;
        let (mut control, _recv) = guest.greet(vec![VERSION.into()]).await;
        let offers = frame_of(
            FrameKind::OFFERS,
            &header::encode(&AgentOffers {
                agents,
                ..AgentOffers::default()
            }),
        );
        control.write(offers.into()).await.unwrap();
        let closed = tokio::time::timeout(PATIENCE, guest.connection.closed());
        let ConnectionError::Closed { code, reason } = closed.await.unwrap() else {
            panic!("it was not closed");
        };
        assert_eq!(code, Code::InvalidArgument);
        assert!(reason.contains(bound), "{reason}");
    }
}

#[tokio::test]
async fn whoever_says_nothing_is_let_go_after_ten_seconds() {
    let host = TestNode::named("alice").await;
    let bystander = Bystander::call(&host.client(), host.attach().await, "wait").await;
    let mut silent = tokio::task::JoinSet::new();
    for way in Way::BOTH {
        let mute = Guest::of(&host, way).await;
        silent.spawn(async move {
            let guest = mute;
            let why = guest.connection.closed().await;
            assert!(
                matches!(&why, ConnectionError::Closed { .. }),
                "{way:?} {why:?}"
            );
        });
        let stuttering = Guest::of(&host, way).await;
        silent.spawn(async move {
            let guest = stuttering;
            let _control = guest.greet(vec![VERSION.into()]).await;
            let (_send, mut recv) = guest.open(&[FrameKind::CALL.0, 0]).await;
            assert_eq!(
                status(&mut recv).await.code,
                Code::DeadlineExceeded,
                "{way:?}"
            );
        });
    }
    // A program that connects and does not even write a preface.
    let bare = UnixStream::connect(host.data().socket()).await.unwrap();
    silent.spawn(async move {
        let mut bare = bare;
        let _ = bare.read_to_end(&mut Vec::new()).await;
    });
    let all = async {
        while let Some(ended) = silent.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(15), all)
        .await
        .unwrap();
    bystander.ends_well().await;
}

#[tokio::test]
async fn a_body_that_nobody_reads_stops_its_writer() {
    let (alice, bob) = TestNode::pair().await;
    let (tell, mut told) = tokio::sync::mpsc::channel::<Request>(1);
    let keep = move |request: Request| {
        let tell = tell.clone();
        async move {
            tell.send(request).await.unwrap();
            std::future::pending().await
        }
    };
    let callee = bob.attach().await;
    let _serving = callee
        .serve(Agent::new("keep").unwrap(), keep)
        .await
        .unwrap();
    let _echo = serve_echo(&bob.client(), "echo").await;
    let caller = alice.attach().await;
    let (sender, body) = Body::channel(1);
    let call = tokio::spawn(caller.call("keep@bob").body(body).send());
    let _unread = told.recv().await.unwrap();
    let chunk = Bytes::from(vec![0; 64 * 1024]);
    let mut written = 0;
    // It is stuck once ten calls go there and back while not one more chunk is taken.
    loop {
        let write = async {
            sender.send(chunk.clone()).await.unwrap();
            true
        };
        let others = async {
            for _ in 0..10 {
                crate::test_node::call(&caller, "echo@bob", "x")
                    .await
                    .unwrap();
            }
            false
        };
        if !tokio::select! { biased; went = write => went, stuck = others => stuck } {
            break;
        }
        written += chunk.len();
    }
    assert!(written <= 8 << 20, "{written} bytes were taken");
    call.abort();
}
