use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Uri};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::{accept, connect};

const CONTROL_BURST: u32 = 64;

const TERMS: WebSocketLimits = WebSocketLimits {
    max_message: 65_536,
    max_head: 8192,
    queue: 65_536,
    control_burst: CONTROL_BURST,
    control_rate: 8,
};

/// Two sides of one connection with so much room between them.
async fn pair(room: usize) -> (WebSocket<DuplexStream>, WebSocket<DuplexStream>) {
    let (near, far) = duplex(room);
    let uri = Uri::from_static("wss://192.0.2.7:4443/hailwire");
    let headers = HeaderMap::new();
    let (client, server) = tokio::join!(
        connect(near, &uri, &headers, TERMS),
        accept(far, &headers, TERMS)
    );
    (client.unwrap().0, server.unwrap().1)
}

/// A side of a connection whose far side writes raw bytes.
fn raw() -> (DuplexStream, WebSocket<DuplexStream>) {
    let (near, far) = duplex(1 << 20);
    (near, WebSocket::over(far, Role::Server, TERMS))
}

/// A frame masked with zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    frame.extend(payload);
    frame
}

#[tokio::test]
async fn messages_of_all_lengths_cross_both_ways() {
    let (mut client, mut server) = pair(10_000).await;
    for len in [0, 1, 125, 126, 2048, 2049, 16_384, 65_535, 65_536] {
        let message: Bytes = (0..=255).cycle().take(len).collect();
        for turn in 0..2 {
            let (from, to) = if turn == 0 {
                (&mut client, &mut server)
            } else {
                (&mut server, &mut client)
            };
            let (sent, came) = tokio::join!(from.send(message.clone()), to.next());
            sent.unwrap();
            assert!(came.unwrap().unwrap() == message, "{len}");
        }
    }
}

#[tokio::test]
async fn two_sides_that_write_at_once_and_ping_each_other_do_not_wait_for_ever() {
    let (client, server) = pair(4096).await;
    let side = |socket: WebSocket<DuplexStream>| async {
        let (mut sink, mut stream) = socket.split();
        let write = async {
            for _ in 0..100 {
                sink.send(Bytes::from(vec![7; 60_000])).await.unwrap();
            }
            sink
        };
        let read = async {
            for _ in 0..100 {
                assert_eq!(stream.next().await.unwrap().unwrap().len(), 60_000);
            }
            stream
        };
        tokio::join!(write, read)
    };
    let both = async { tokio::join!(side(client), side(server)) };
    let both = tokio::time::timeout(Duration::from_secs(60), both).await;
    drop(both.expect("they wait for each other"));
}

#[tokio::test]
async fn pings_whose_pongs_nobody_reads_hold_two_pongs_and_no_more() {
    // Room for less than one pong, which nobody reads.
    let (near, far) = duplex(100);
    let (mut reads, mut writes) = tokio::io::split(near);
    let mut server = WebSocket::over(far, Role::Server, TERMS);
    let ping = masked(0x89, &[b'x'; 125]);
    let write = async {
        for _ in 0..CONTROL_BURST {
            writes.write_all(&ping).await.unwrap();
        }
        writes.write_all(&masked(0x82, b"done")).await.unwrap();
    };
    let (message, ()) = tokio::join!(server.next(), write);
    assert_eq!(&message.unwrap().unwrap()[..], b"done");
    assert!(server.queued() <= 2 * 139, "{}", server.queued());
    // Somebody who reads in the end gets the first and the last.
    drop(tokio::spawn(async move {
        while server.next().await.is_some() {}
    }));
    let mut pongs = vec![0; 2 * 127];
    reads.read_exact(&mut pongs).await.unwrap();
    assert_eq!((pongs[0], pongs[127]), (0x8a, 0x8a));
}

#[tokio::test]
async fn a_flood_of_frames_that_bring_nothing_ends_the_connection() {
    for frame in [masked(0x89, b"p"), masked(0x8a, b""), masked(0x82, b"")] {
        let (mut near, mut server) = raw();
        near.write_all(&frame.repeat(CONTROL_BURST as usize))
            .await
            .unwrap();
        near.write_all(&masked(0x82, b"still there")).await.unwrap();
        let mut next = server.next().await.unwrap().unwrap();
        while next.is_empty() {
            next = server.next().await.unwrap().unwrap();
        }
        assert_eq!(&next[..], b"still there");
        near.write_all(&frame.repeat(1000)).await.unwrap();
        let ended = loop {
            match server.next().await.unwrap() {
                Ok(message) => assert!(message.is_empty()),
                Err(error) => break error,
            }
        };
        assert!(matches!(ended, WebSocketError::Flood), "{ended}");
        assert!(server.next().await.is_none());
        drop(server);
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(&[0x88, 2, 0x03, 0xf0]), "{answer:?}");
    }
}

#[tokio::test]
async fn parts_of_a_message_are_put_together_around_a_ping() {
    let (mut near, mut server) = raw();
    for frame in [
        masked(0x02, b"one "),
        masked(0x89, b"ping"),
        masked(0x00, b"two "),
        masked(0x80, b"three"),
    ] {
        near.write_all(&frame).await.unwrap();
    }
    let message = server.next().await.unwrap().unwrap();
    assert_eq!(&message[..], b"one two three");
}

#[tokio::test]
async fn a_close_is_answered_and_ends_both_sides() {
    let (mut client, mut server) = pair(1000).await;
    let (closed, next) = tokio::join!(client.close(), server.next());
    closed.unwrap();
    assert!(next.is_none());
    assert!(matches!(
        client.send(Bytes::new()).await,
        Err(WebSocketError::Closed)
    ));
}

#[tokio::test]
async fn what_the_rfc_forbids_ends_the_connection_with_its_code() {
    for (frames, code) in [
        (vec![masked(0x81, b"text")], 1003),
        (vec![masked(0x80, b"a part of nothing")], 1002),
        (vec![masked(0x02, b"a"), masked(0x82, b"b")], 1002),
        (vec![masked(0x88, b"x")], 1002),
        (vec![vec![0x82, 1, b'x']], 1002),
        (
            vec![vec![0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]],
            1009,
        ),
    ] {
        let (mut near, mut server) = raw();
        near.write_all(&frames.concat()).await.unwrap();
        assert!(server.next().await.unwrap().is_err());
        assert!(server.next().await.is_none());
        drop(server);
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        let [high, low] = u16::to_be_bytes(code);
        assert_eq!(answer, [0x88, 2, high, low], "{frames:?}");
    }
}

#[tokio::test]
async fn an_idle_connection_holds_no_buffer() {
    let (mut client, mut server) = pair(100_000).await;
    client.send(Bytes::from(vec![1; 60_000])).await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap().len(), 60_000);
    assert!(futures_util::poll!(server.next()).is_pending());
    assert_eq!(server.incoming.held(), 0);
}

#[tokio::test]
async fn noise_ends_the_connection_or_waits_for_more_and_nothing_else() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let byte = |_| {
            // xorshift64*, the same at each run.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
        };
        (0..len).map(byte).collect()
    };
    for round in 0..5000 {
        let mut bytes = noise(200);
        // Half of them begin well, so that the noise comes to where messages are put together.
        if round % 2 == 0 {
            bytes.splice(..0, masked(0x02, b"part"));
            bytes[10] &= 0x8f;
            bytes[11] |= 0x80;
        }
        let (mut near, mut server) = raw();
        near.write_all(&bytes).await.unwrap();
        drop(near);
        for _ in 0..100 {
            match server.next().await {
                None | Some(Err(_)) => break,
                Some(Ok(message)) => assert!(message.len() <= bytes.len()),
            }
        }
        assert!(server.queued() <= 1000);
    }
}
