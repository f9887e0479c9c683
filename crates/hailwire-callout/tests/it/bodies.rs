//! Bodies that stream.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::join_all,
    stream::{self, FuturesOrdered},
};
use hailwire_callout::{
    Event,
    agent::ServeOptions,
    host::{self, ConnectOptions, Connection},
    wire::Encoding,
};

use crate::support::{Raw, Seen, Served, Told, blocks, next, piece, until};

const PIECE: usize = 64 << 10;

/// Sends a body as fast as it goes, and returns what takes its place.
async fn through(connection: &Connection, id: &str, body: &Bytes) -> Vec<u8> {
    let pieces: Vec<Bytes> = (0..body.len())
        .step_by(PIECE)
        .map(|at| body.slice(at..body.len().min(at + PIECE)))
        .collect();
    let last = pieces.len() - 1;
    let mut answers = FuturesOrdered::new();
    for (index, data) in pieces.iter().enumerate() {
        let piece = piece(id, index as u32, data.clone(), index == last);
        answers.push_back(connection.request(Event::RequestBody(piece)));
    }
    let mut passed = Vec::new();
    let mut sent = pieces.iter();
    while let Some(answer) = answers.next().await {
        let sent = sent.next().unwrap();
        match answer.unwrap().request_body {
            None => passed.extend_from_slice(sent),
            Some(mutation) => passed.extend_from_slice(&mutation.data.unwrap()),
        }
    }
    passed
}

fn body(size: usize) -> Bytes {
    (0..size).map(|at| b'a' + (at % 23) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_passes_whole_and_in_order_also_where_it_is_changed_on_the_way() {
    let (mut told, _seen) = Told::new();
    told.limits.max_body_size = 1 << 30;
    let served = Served::new(told, ServeOptions::default());
    let body = body((10 << 20) + 7);
    for (encoding, extensions) in [
        (Encoding::MessagePack, true),
        (Encoding::Json, true),
        (Encoding::Json, false),
        (Encoding::MessagePack, false),
    ] {
        let options = ConnectOptions {
            encodings: vec![encoding],
            extensions,
            ..ConnectOptions::default()
        };
        let connection = host::uds::connect(served.path(), &options).await.unwrap();
        let (same, upper) = tokio::join!(
            through(&connection, "same", &body),
            through(&connection, "upper", &body),
        );
        assert!(same == body);
        assert!(upper == body.to_ascii_uppercase());
    }
}

#[tokio::test]
async fn a_slow_agent_pauses_one_request_and_no_other() {
    let (mut told, mut seen) = Told::new();
    told.limits.max_body_size = 1 << 30;
    let served = Served::new(told, ServeOptions::default());
    let options = ConnectOptions::default();
    let connection = host::uds::connect(served.path(), &options).await.unwrap();
    let slow_body = body(4 << 20);
    let slow = tokio::spawn({
        let (connection, body) = (connection.clone(), slow_body.clone());
        async move { through(&connection, "slow", &body).await }
    });
    until("it waits", || {
        served.agent.running.load(Ordering::SeqCst) == 1
    })
    .await;
    let quick_body = body(10 << 20);
    assert!(through(&connection, "quick", &quick_body).await == quick_body);
    assert!(!slow.is_finished());
    // Of the slow one the agent has begun with one piece.
    let mut slow_pieces = 0;
    while let Ok(seen) = seen.try_recv() {
        slow_pieces += usize::from(matches!(seen, Seen::Piece(id) if id == "slow"));
    }
    assert_eq!(slow_pieces, 1);
    served.agent.permits.add_permits(1000);
    assert!(slow.await.unwrap() == slow_body);
}

#[tokio::test]
async fn no_more_of_a_body_is_under_way_than_the_window_holds() {
    let (listener, path, _dir) = Raw::listen();
    let window = 100_000_u64;
    let options = ConnectOptions::default();
    for ours in [true, false] {
        let agent = async {
            let mut agent = Raw(listener.accept().await.unwrap().0);
            let extensions = serde_json::json!({"raw_bodies": ours, "window": window});
            agent.welcome(extensions).await;
            agent
        };
        let (mut agent, connection) = tokio::join!(agent, host::uds::connect(&path, &options));
        let connection = connection.unwrap();
        let of = |id: &str| -> Vec<_> {
            let piece = |index| Event::RequestBody(piece(id, index, vec![0; 30_000], false));
            (0..100)
                .map(piece)
                .map(|event| connection.request(event))
                .collect()
        };
        let (_a, _b) = (of("a"), of("b"));
        let pinging = tokio::spawn({
            let connection = connection.clone();
            async move { connection.ping().await }
        });
        let mut pieces = 0;
        loop {
            match agent.read().await.unwrap().0 {
                0x41 => break,
                0x52 | 0x11 => pieces += 1,
                other => panic!("{other:#x}"),
            }
        }
        // Three of each request to one of ours, one of each to others.
        assert_eq!(pieces, if ours { 6 } else { 2 });
        pinging.abort();
    }
}

#[tokio::test]
async fn a_decision_comes_while_the_body_is_still_coming() {
    let (told, _seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    let options = ConnectOptions::default();
    let connection = host::uds::connect(served.path(), &options).await.unwrap();
    let pieces = stream::iter(0..u32::MAX)
        .then(|index| connection.request(Event::RequestBody(piece("early", index, "data", false))));
    let mut pieces = std::pin::pin!(pieces);
    let mut asked = 0;
    while let Some(answer) = pieces.next().await {
        asked += 1;
        if blocks(&answer.unwrap(), 413) {
            break;
        }
    }
    assert_eq!(asked, 3);
}

#[tokio::test]
async fn pieces_that_nobody_waits_for_give_their_window_back() {
    let (told, mut seen) = Told::new();
    let served = Served::new(told, ServeOptions::default());
    let options = ConnectOptions::default();
    let connection = host::uds::connect(served.path(), &options).await.unwrap();
    for _ in 0..10 {
        let pieces: Vec<_> = (0..20)
            .map(|index| {
                connection.request(Event::RequestBody(piece(
                    "slow",
                    index,
                    vec![0; 65536],
                    false,
                )))
            })
            .collect();
        until("it waits", || {
            served.agent.running.load(Ordering::SeqCst) == 1
        })
        .await;
        drop(pieces);
        assert_eq!(connection.in_flight(), 0);
        until("it is dropped", || {
            served.agent.running.load(Ordering::SeqCst) == 0
        })
        .await;
    }
    while !matches!(next(&mut seen).await, Seen::Dropped) {}
    served.agent.permits.add_permits(100);
    let pieces = (0..20).map(|index| {
        connection.request(Event::RequestBody(piece(
            "slow",
            index,
            vec![0; 1024],
            false,
        )))
    });
    for answer in join_all(pieces).await {
        answer.unwrap();
    }
}
