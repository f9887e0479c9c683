//! What a far side can do that is not ours: each ends in a stated way, and what it can hold is bounded.

use std::future::poll_fn;

use ::h2::{Reason, client, server};
use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::carrier::{ReadError, RecvStream, WriteError};

const REMOTE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 443);

/// An untrusted peer's side of both connections, by the library alone, and the node that it is connected to.
struct UntrustedH2Peer {
    node: H2Connection,
    opener: client::SendRequest<Bytes>,
    control: ::h2::SendStream<Bytes>,
    /// What the node opens arrives here.
    _serving: tokio::task::JoinSet<()>,
}

impl UntrustedH2Peer {
    /// Dials a node.
    async fn new() -> Self {
        let (near, far) = duplex(1 << 20);
        let (near_reverse, far_reverse) = duplex(1 << 20);
        let mut serving = tokio::task::JoinSet::new();
        let node = tokio::spawn(H2Connection::server(far, REMOTE, |token| {
            assert_eq!(token, [0xab; 16]);
            async { Ok(far_reverse) }
        }));
        let (mut opener, connection) = client::handshake(near).await.unwrap();
        serving.spawn(async {
            let mut connection = server::handshake(near_reverse).await.unwrap();
            while let Some(Ok(_)) = connection.accept().await {}
        });
        let request = ask(&format!("{CONTROL}{}", "ab".repeat(16)));
        let (_, control) = opener.send_request(request, false).unwrap();
        serving.spawn(async { drop(connection.await) });
        Self {
            node: node.await.unwrap().unwrap(),
            opener,
            control,
            _serving: serving,
        }
    }

    async fn open(&self, path: &str) -> (client::ResponseFuture, ::h2::SendStream<Bytes>) {
        let mut opener = self.opener.clone().ready().await.unwrap();
        opener.send_request(ask(path), false).unwrap()
    }

    /// A stream that works, from its request to its answer.
    async fn is_served(&self) {
        let (answer, mut send) = self.open(path().path()).await;
        send.send_data(Bytes::from_static(b"question"), true)
            .unwrap();
        let (mut far_send, far_recv) = self.node.accept().await.unwrap();
        let mut far_recv = RecvStream::H2(far_recv);
        assert_eq!(far_recv.read(100).await.unwrap().unwrap(), "question");
        far_send.write(Bytes::from_static(b"answer")).await.unwrap();
        far_send.finish();
        let mut body = answer.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "answer");
    }
}

fn ask(path: &str) -> Request<()> {
    let uri = format!("https://hailwire.invalid{path}");
    Request::builder()
        .method(Method::POST)
        .uri(uri)
        .body(())
        .unwrap()
}

/// Why a node refuses one who writes these bytes.
async fn refusal(bytes: &[u8]) -> String {
    let (mut near, far) = duplex(1 << 20);
    near.write_all(bytes).await.unwrap();
    near.shutdown().await.unwrap();
    let made = H2Connection::server(far, REMOTE, |_| async {
        Err::<DuplexStream, _>(TcpError::TimedOut)
    });
    made.await.err().unwrap().to_string()
}

#[tokio::test]
async fn garbage_in_place_of_the_preface_is_refused() {
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 100],
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        assert!(refusal(garbage).await.contains("h2"));
    }
}

#[tokio::test]
async fn a_first_request_that_is_not_the_control_stream_is_refused() {
    for first in [
        "/",
        "/hailwire/stream",
        "/hailwire/control/",
        "/hailwire/control/abcd",
    ] {
        let (near, far) = duplex(1 << 20);
        let (mut opener, connection) = client::handshake(near).await.unwrap();
        let driving = tokio::spawn(connection);
        let _request = opener.send_request(ask(first), false).unwrap();
        let made = H2Connection::server(far, REMOTE, |_| async {
            Err::<DuplexStream, _>(TcpError::TimedOut)
        });
        let error = made.await.err().unwrap().to_string();
        assert!(error.contains(first), "{error}");
        driving.abort();
    }
}

#[tokio::test]
async fn a_second_connection_that_does_not_come_ends_the_first() {
    let (near, far) = duplex(1 << 20);
    let second = |_| async { Err::<DuplexStream, _>(TcpError::TimedOut) };
    let dialled = H2Connection::client(near, REMOTE, [1; 16], std::future::pending());
    let (dialled, listened) = tokio::join!(dialled, H2Connection::server(far, REMOTE, second));
    for connection in [dialled.unwrap(), listened.unwrap()] {
        let ended = connection.closed().await;
        assert!(matches!(&ended, ConnectionError::Lost(_)), "{ended}");
        assert_eq!(connection.open(Priority::Low).await.err(), Some(ended));
    }
}

#[tokio::test]
async fn a_request_for_anything_else_is_not_found_and_the_rest_goes_on() {
    let untrusted = UntrustedH2Peer::new().await;
    let (answer, _send) = untrusted.open("/etc/passwd").await;
    assert_eq!(answer.await.unwrap().status(), 404);
    let (answer, _send) = untrusted.open(CONTROL).await;
    assert_eq!(answer.await.unwrap().status(), 404);
    untrusted.is_served().await;
}

#[tokio::test]
async fn a_head_past_its_bound_is_refused_and_the_rest_goes_on() {
    let untrusted = UntrustedH2Peer::new().await;
    let mut request = ask(path().path());
    let long = http::HeaderValue::from_bytes(&vec![b'x'; H2_MAX_HEAD]).unwrap();
    request.headers_mut().insert("x", long);
    let mut opener = untrusted.opener.clone().ready().await.unwrap();
    let (answer, _send) = opener.send_request(request, false).unwrap();
    assert_eq!(answer.await.unwrap().status(), 431);
    untrusted.is_served().await;
}

/// An HTTP/2 frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let head = [&len[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// The head of a POST, by static names and literal values (RFC 7541, 6).
fn head(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x87, 0x04, path.len() as u8];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b'h']);
    block
}

/// Reads frames until one of these kinds has come so many times, and gives the payload of the last.
async fn frames(from: &mut DuplexStream, kind: u8, count: usize) -> Vec<u8> {
    let mut seen = 0;
    loop {
        let mut head = [0; 9];
        from.read_exact(&mut head).await.unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        from.read_exact(&mut payload).await.unwrap();
        seen += usize::from(head[3] == kind);
        if seen == count {
            return payload;
        }
    }
}

#[tokio::test]
async fn more_streams_than_the_bound_are_refused_and_the_rest_goes_on() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    // A peer that does not heed what it is told.
    let (mut near, far) = duplex(1 << 20);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    let control = format!("{CONTROL}{}", "ab".repeat(16));
    bytes.extend(frame(HEADERS, 0x4, 1, &head(&control)));
    for index in 1..=H2_MAX_STREAMS as u32 + 10 {
        bytes.extend(frame(HEADERS, 0x4, 1 + 2 * index, &head(path().path())));
    }
    near.write_all(&bytes).await.unwrap();
    let second = |_| std::future::pending();
    let node = H2Connection::server(far, REMOTE, second).await.unwrap();
    let mut held = Vec::new();
    while held.len() < H2_MAX_STREAMS {
        held.push(node.accept().await.unwrap());
    }
    let refusal = frames(&mut near, RST_STREAM, 10).await;
    assert_eq!(refusal, 7_u32.to_be_bytes(), "REFUSED_STREAM");
    let (send, _recv) = held.last_mut().unwrap();
    send.write(Bytes::from_static(b"answer")).await.unwrap();
    assert_eq!(frames(&mut near, 0, 1).await, b"answer");
}

#[tokio::test]
async fn an_untrusted_peer_has_few_streams_accepted_and_little_read_until_it_becomes_a_peer() {
    let untrusted = UntrustedH2Peer::new().await;
    untrusted.node.narrow();
    let mut streams = Vec::new();
    for _ in 0..2 * ConnectionLimits::UNTRUSTED.streams {
        let (answer, mut send) = untrusted.open(path().path()).await;
        send.reserve_capacity(1 << 20);
        streams.push((answer, send));
    }
    let mut held = Vec::new();
    for _ in 0..ConnectionLimits::UNTRUSTED.streams {
        held.push(untrusted.node.accept().await.unwrap());
    }
    poll_fn(|cx| {
        assert!(untrusted.node.shared().poll_accept(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    let credit: usize = streams.iter().map(|(_, send)| send.capacity()).sum();
    assert!(
        credit <= ConnectionLimits::UNTRUSTED.unread as usize,
        "{credit}"
    );
    // One that is over makes room for another.
    drop(held.pop());
    held.push(untrusted.node.accept().await.unwrap());
    untrusted.node.widen();
    while held.len() < streams.len() - 1 {
        held.push(untrusted.node.accept().await.unwrap());
    }
}

#[tokio::test]
async fn streams_reset_as_fast_as_they_are_opened_end_the_connection() {
    let untrusted = UntrustedH2Peer::new().await;
    for _ in 0..10_000 {
        let Ok(mut opener) = untrusted.opener.clone().ready().await else {
            break;
        };
        let Ok((_, mut send)) = opener.send_request(ask(path().path()), false) else {
            break;
        };
        // The node sees it opened, then reset (CVE-2023-44487).
        tokio::task::yield_now().await;
        send.send_reset(Reason::CANCEL);
    }
    match untrusted.node.closed().await {
        ConnectionError::Protocol(why) => assert!(why.contains("resets"), "{why}"),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn capsules_that_cannot_be_end_the_connection_and_the_peer_is_told() {
    for (bytes, part) in [
        (&[0x00, 0x44, 0x4d][..], "1101"),
        (&[0xa8, 0x68, 0x77, 0x01, 0x03], "3 bytes"),
    ] {
        let mut untrusted = UntrustedH2Peer::new().await;
        let sent = untrusted
            .control
            .send_data(Bytes::copy_from_slice(bytes), false);
        sent.unwrap();
        match untrusted.node.closed().await {
            ConnectionError::Protocol(why) => assert!(why.contains(part), "{why}"),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_control_stream_that_ends_is_a_lost_connection() {
    let mut untrusted = UntrustedH2Peer::new().await;
    untrusted.control.send_data(Bytes::new(), true).unwrap();
    assert!(matches!(
        untrusted.node.closed().await,
        ConnectionError::Lost(_)
    ));
    let mut untrusted = UntrustedH2Peer::new().await;
    untrusted.control.send_reset(Reason::CANCEL);
    assert!(matches!(
        untrusted.node.closed().await,
        ConnectionError::Lost(_)
    ));
}

#[tokio::test]
async fn a_stop_for_no_stream_is_ignored() {
    let mut untrusted = UntrustedH2Peer::new().await;
    let mut bytes = BytesMut::new();
    for stream in [0, 1, 2, 999, u32::MAX] {
        for connection in [ConnectionHalf::Forward, ConnectionHalf::Reverse] {
            let code = Code::Cancelled;
            Capsule::Stop {
                connection,
                stream,
                code,
            }
            .encode(&mut bytes);
        }
    }
    untrusted.control.send_data(bytes.freeze(), false).unwrap();
    untrusted.is_served().await;
}

#[tokio::test]
async fn a_reset_of_both_directions_is_a_reset_and_a_stop() {
    let untrusted = UntrustedH2Peer::new().await;
    for (reason, code) in [
        (Reason::CANCEL, Code::Cancelled),
        (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
        (Reason::from(0x1234), Code::Internal),
    ] {
        let (_answer, mut send) = untrusted.open(path().path()).await;
        send.send_data(Bytes::from_static(b"x"), false).unwrap();
        let (mut far_send, far_recv) = untrusted.node.accept().await.unwrap();
        let mut far_recv = RecvStream::H2(far_recv);
        assert_eq!(far_recv.read(1).await.unwrap().unwrap(), "x");
        send.send_reset(reason);
        assert_eq!(far_recv.read(1).await, Err(ReadError::Reset(code)));
        assert_eq!(far_send.stopped().await, Some(code));
        let written = far_send.write(Bytes::from_static(b"y")).await;
        assert_eq!(written, Err(WriteError::Stopped(code)));
    }
    untrusted.is_served().await;
}

#[tokio::test]
async fn a_peer_that_reads_nothing_makes_this_side_hold_little() {
    let (near, far) = duplex(64 * 1024);
    let (near_reverse, far_reverse) = duplex(64 * 1024);
    let dialled = H2Connection::client(near, REMOTE, [1; 16], async { Ok(near_reverse) });
    let dialled = dialled.await.unwrap();
    // Nobody reads `far`.
    let mut written = 0;
    let (mut send, _recv) = dialled.open(Priority::Medium).await.unwrap();
    poll_fn(|cx| {
        loop {
            let mut write = std::pin::pin!(send.write(Bytes::from_static(&[0; 4096])));
            if write.as_mut().poll(cx).is_pending() {
                return std::task::Poll::Ready(());
            }
            written += 4096;
        }
    })
    .await;
    assert!(written <= SEND_BUFFER + 64 * 1024, "{written}");
    drop((far, far_reverse));
    assert!(matches!(dialled.closed().await, ConnectionError::Lost(_)));
}

/// Bytes of these frames that a node takes from a peer that never reads, before it waits or ends. Time
/// moves only while nobody has anything to do.
async fn taken(many: &[u8]) -> usize {
    let (mut near, far) = duplex(64 * 1024);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    let control = format!("{CONTROL}{}", "ab".repeat(16));
    bytes.extend(frame(1, 0x4, 1, &head(&control)));
    near.write_all(&bytes).await.unwrap();
    let second = |_| std::future::pending();
    let _node = H2Connection::server(far, REMOTE, second).await.unwrap();
    let mut taken = 0;
    let flood = async {
        while let Ok(count) = near.write(many).await {
            taken += count;
            assert!(taken < 64 << 20, "the node reads on");
        }
    };
    // It waits, and so does the test; or the connection has ended.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), flood).await;
    taken
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_frames_that_want_an_answer_is_not_read_while_no_answer_is() {
    const RESET_OF_NO_STREAM: u32 = 1 << 20 | 1;
    for frame in [
        frame(6, 0, 0, &[0; 8]),                          // PING
        frame(4, 0, 0, &[]),                              // SETTINGS
        frame(3, 0, RESET_OF_NO_STREAM, &[0; 4]),         // RST_STREAM
        frame(1, 0x5, 1 << 20 | 2, &head(path().path())), // a head with an even number
    ] {
        let taken = taken(&frame.repeat(1000)).await;
        assert!(taken < 8 << 20, "{taken} bytes of {:?}", &frame[..9]);
    }
}
