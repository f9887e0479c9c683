//! What every carrier promises, proved on each.
//!
//! A claim is one function over a [`Pair`]; the macro at the end makes a test of it for each carrier.
//! Nothing here knows which carrier it runs on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use hailwire::carrier::{
    CarrierConnection, ConnectionError, DatagramError, ReadError, RecvStream, SendStream,
    WriteError,
};
use hailwire_wire::limits::MAX_DATAGRAM;
use hailwire_wire::{Code, Priority};
use tokio::task::JoinSet;

use crate::fixtures::{Carrier, Mortal, Pair};

const MIB: usize = 1024 * 1024;

async fn read_all(recv: &mut RecvStream) -> Result<Bytes, ReadError> {
    let mut all = BytesMut::new();
    while let Some(chunk) = recv.read(MIB).await? {
        assert!(!chunk.is_empty(), "an empty chunk is no chunk");
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}

/// Opens a stream and writes its first bytes, so that the far side sees it.
async fn open(connection: &CarrierConnection, first: &'static [u8]) -> (SendStream, RecvStream) {
    let (mut send, recv) = connection.open(Priority::Medium).await.unwrap();
    send.write(Bytes::from_static(first)).await.unwrap();
    (send, recv)
}

/// Reads up to `count` bytes.
async fn take(recv: &mut RecvStream, count: usize) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    while bytes.len() < count
        && let Some(chunk) = recv.read(count - bytes.len()).await?
    {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Bytes that tell where in a stream they belong.
fn pattern(offset: usize, len: usize) -> Bytes {
    (offset..offset + len)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect()
}

async fn a_stream_carries_bytes_both_ways_and_ends_each_way_by_itself(pair: Pair) {
    let (mut send, mut recv) = open(&pair.client, b"question").await;
    send.finish();
    let (mut far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(read_all(&mut far_recv).await.unwrap(), "question");
    far_send.write(Bytes::from_static(b"ans")).await.unwrap();
    let mut parts = [
        Bytes::from_static(b"w"),
        Bytes::new(),
        Bytes::from_static(b"er"),
    ];
    far_send.write_many(&mut parts).await.unwrap();
    far_send.finish();
    assert_eq!(read_all(&mut recv).await.unwrap(), "answer");
    assert_eq!(recv.read(1).await, Ok(None), "the end stays the end");
    assert_eq!(
        send.write(Bytes::from_static(b"more")).await,
        Err(WriteError::Ended)
    );
}

async fn both_sides_open_streams_and_they_are_accepted_in_order(pair: Pair) {
    for (near, far) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let mut held = Vec::new();
        for name in [&b"1"[..], b"2", b"3"] {
            held.push(open(near, name).await);
        }
        for name in ["1", "2", "3"] {
            let (_send, mut recv) = far.accept().await.unwrap();
            assert_eq!(take(&mut recv, 1).await.unwrap(), name.as_bytes());
        }
    }
}

async fn an_empty_stream_that_is_finished_is_seen(pair: Pair) {
    let (mut send, _recv) = pair.client.open(Priority::Low).await.unwrap();
    send.finish();
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(far_recv.read(1).await, Ok(None));
}

async fn a_read_gives_no_more_than_was_asked_for(pair: Pair) {
    let (_send, _recv) = open(&pair.client, b"0123456789").await;
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 10 {
        let chunk = far_recv.read(3).await.unwrap().unwrap();
        assert!(chunk.len() <= 3);
        seen.extend_from_slice(&chunk);
    }
    assert_eq!(seen, b"0123456789");
}

async fn a_reset_reaches_the_reader_with_its_code_in_either_direction(pair: Pair) {
    let (mut send, mut recv) = open(&pair.client, b"x").await;
    let (mut far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(take(&mut far_recv, 1).await.unwrap(), b"x");
    send.reset(Code::DeadlineExceeded);
    assert_eq!(
        far_recv.read(1).await,
        Err(ReadError::Reset(Code::DeadlineExceeded))
    );
    assert_eq!(
        send.write(Bytes::from_static(b"y")).await,
        Err(WriteError::Ended)
    );
    // The other direction is not touched by that.
    far_send.write(Bytes::from_static(b"z")).await.unwrap();
    assert_eq!(take(&mut recv, 1).await.unwrap(), b"z");
    far_send.reset(Code::Internal);
    assert_eq!(recv.read(1).await, Err(ReadError::Reset(Code::Internal)));
}

async fn a_stop_reaches_the_writer_with_its_code(pair: Pair) {
    let (mut send, mut recv) = open(&pair.client, b"x").await;
    let (mut far_send, mut far_recv) = pair.server.accept().await.unwrap();
    far_recv.stop(Code::ResourceExhausted);
    assert_eq!(send.stopped().await, Some(Code::ResourceExhausted));
    assert_eq!(
        send.write(Bytes::from_static(b"y")).await,
        Err(WriteError::Stopped(Code::ResourceExhausted))
    );
    assert_eq!(far_recv.read(1).await, Err(ReadError::Stopped));
    far_send.write(Bytes::from_static(b"z")).await.unwrap();
    assert_eq!(take(&mut recv, 1).await.unwrap(), b"z");
}

async fn a_stop_ends_a_write_that_waits(pair: Pair) {
    let (mut send, _recv) = open(&pair.client, b"x").await;
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    let writer = tokio::spawn(async move {
        loop {
            if let Err(error) = send.write(Bytes::from(vec![0; MIB])).await {
                return error;
            }
        }
    });
    take(&mut far_recv, MIB).await.unwrap();
    far_recv.stop(Code::Cancelled);
    assert_eq!(writer.await.unwrap(), WriteError::Stopped(Code::Cancelled));
}

async fn a_finished_direction_was_not_stopped(pair: Pair) {
    let (mut send, _recv) = open(&pair.client, b"x").await;
    send.finish();
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(read_all(&mut far_recv).await.unwrap(), "x");
    assert_eq!(send.stopped().await, None);
}

async fn a_dropped_half_cancels_its_direction(pair: Pair) {
    let (send, recv) = open(&pair.client, b"x").await;
    let (far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(take(&mut far_recv, 1).await.unwrap(), b"x");
    drop(send);
    assert_eq!(
        far_recv.read(1).await,
        Err(ReadError::Reset(Code::Cancelled))
    );
    drop(recv);
    assert_eq!(far_send.stopped().await, Some(Code::Cancelled));
}

async fn a_half_dropped_after_its_end_still_delivers(pair: Pair) {
    let (mut send, recv) = pair.client.open(Priority::Medium).await.unwrap();
    let body = pattern(0, 3 * MIB);
    let writer = tokio::spawn({
        let body = body.clone();
        async move {
            send.write(body).await.unwrap();
            send.finish();
        }
    });
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(read_all(&mut far_recv).await.unwrap(), body);
    writer.await.unwrap();
    drop(recv);
}

async fn a_thousand_streams_run_at_once(pair: Pair) {
    const STREAMS: usize = 1000;
    let server = pair.server.clone();
    let echo = tokio::spawn(async move {
        // All are open before the first is answered.
        let mut open = Vec::new();
        while open.len() < STREAMS {
            open.push(server.accept().await.unwrap());
        }
        let mut tasks = JoinSet::new();
        for (mut send, mut recv) in open {
            tasks.spawn(async move {
                send.write(read_all(&mut recv).await.unwrap())
                    .await
                    .unwrap();
                send.finish();
                send
            });
        }
        tasks.join_all().await
    });
    let mut tasks = JoinSet::new();
    for index in 0..STREAMS {
        let client = pair.client.clone();
        tasks.spawn(async move {
            let body = pattern(index * 31, 2000 + index);
            let (mut send, mut recv) = client.open(Priority::Medium).await.unwrap();
            send.write(body.clone()).await.unwrap();
            send.finish();
            assert_eq!(read_all(&mut recv).await.unwrap(), body, "stream {index}");
        });
    }
    tasks.join_all().await;
    assert_eq!(echo.await.unwrap().len(), STREAMS);
}

async fn many_thousands_of_streams_run_one_after_another(pair: Pair) {
    let server = pair.server.clone();
    let echo = tokio::spawn(async move {
        while let Ok((mut send, mut recv)) = server.accept().await {
            let body = read_all(&mut recv).await.unwrap();
            send.write(body).await.unwrap();
            send.finish();
        }
    });
    for index in 0..10_000 {
        let (mut send, mut recv) = pair.client.open(Priority::Medium).await.unwrap();
        send.write(pattern(index, 10)).await.unwrap();
        send.finish();
        assert_eq!(read_all(&mut recv).await.unwrap(), pattern(index, 10));
    }
    pair.client.close(Code::Ok, "");
    echo.await.unwrap();
}

async fn a_hundred_mebibytes_arrive_whole_through_one_stream(pair: Pair) {
    const TOTAL: usize = 100 * MIB;
    let block = pattern(0, 256 * 1024);
    let expected = block.clone();
    let (mut send, _recv) = pair.client.open(Priority::Medium).await.unwrap();
    let writer = tokio::spawn(async move {
        for _ in 0..TOTAL / block.len() {
            send.write(block.clone()).await.unwrap();
        }
        send.finish();
        send
    });
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    let mut total = 0;
    while let Some(chunk) = far_recv.read(MIB).await.unwrap() {
        let mut chunk = &chunk[..];
        while !chunk.is_empty() {
            let at = total % expected.len();
            let len = chunk.len().min(expected.len() - at);
            assert!(
                chunk[..len] == expected[at..at + len],
                "wrong bytes near {total}"
            );
            total += len;
            chunk = &chunk[len..];
        }
    }
    assert_eq!(total, TOTAL);
    drop(writer.await.unwrap());
}

async fn a_slow_reader_stops_its_writer_and_no_other_stream(pair: Pair) {
    let (mut send, _recv) = open(&pair.client, b"x").await;
    let (_far_send, mut slow) = pair.server.accept().await.unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let writer = tokio::spawn({
        let accepted = accepted.clone();
        async move {
            for _ in 0..64 * 16 {
                send.write(Bytes::from(vec![7; MIB / 16])).await.unwrap();
                accepted.fetch_add(MIB / 16, Ordering::Relaxed);
            }
            send.finish();
            send
        }
    });
    // Nobody reads `slow`. Meanwhile others move far more than any buffer on the way can hold.
    for _ in 0..20 {
        let (mut other, mut back) = open(&pair.client, b"").await;
        let sending = tokio::spawn(async move {
            other.write(Bytes::from(vec![1; MIB])).await.unwrap();
            other.finish();
            other
        });
        let (mut far_other, mut far_back) = pair.server.accept().await.unwrap();
        assert_eq!(read_all(&mut far_back).await.unwrap().len(), MIB);
        far_other.finish();
        assert_eq!(read_all(&mut back).await.unwrap().len(), 0);
        drop(sending.await.unwrap());
    }
    let ahead = accepted.load(Ordering::Relaxed);
    assert!(
        ahead <= 16 * MIB,
        "the writer ran {ahead} bytes ahead of a reader that never read"
    );
    assert_eq!(read_all(&mut slow).await.unwrap().len(), 64 * MIB + 1);
    drop(writer.await.unwrap());
}

async fn a_critical_stream_overtakes_queued_low_ones(pair: Pair) {
    const LOW: usize = 32;
    let arrived = Arc::new(AtomicUsize::new(0));
    let mut low = JoinSet::new();
    for _ in 0..LOW {
        let (mut send, recv) = pair.client.open(Priority::Low).await.unwrap();
        low.spawn(async move {
            send.write(Bytes::from(vec![b'l'; 4 * MIB])).await.unwrap();
            send.finish();
            (send, recv)
        });
    }
    let mut readers = JoinSet::new();
    let mut held = Vec::new();
    let mut overtaken = None;
    let mut critical = None;
    while readers.len() < LOW + 1 {
        let (send, mut recv) = pair.server.accept().await.unwrap();
        held.push(send);
        let (arrived, total) = (arrived.clone(), LOW * 4 * MIB);
        readers.spawn(async move {
            let mut left = None;
            while let Some(chunk) = recv.read(MIB).await.unwrap() {
                if chunk.starts_with(b"c") {
                    left = Some(total - arrived.load(Ordering::Relaxed));
                } else {
                    arrived.fetch_add(chunk.len(), Ordering::Relaxed);
                }
            }
            left
        });
        if readers.len() == LOW {
            // Every low stream is under way; now something urgent comes up.
            let (mut send, recv) = pair.client.open(Priority::Critical).await.unwrap();
            send.write(Bytes::from_static(b"critical")).await.unwrap();
            send.finish();
            critical = Some((send, recv));
        }
    }
    while let Some(left) = readers.join_next().await {
        overtaken = overtaken.max(left.unwrap());
    }
    let overtaken = overtaken.expect("the critical stream arrived");
    assert!(overtaken >= LOW * MIB, "it overtook only {overtaken} bytes");
    drop((low.join_all().await, critical));
}

async fn an_answer_has_the_priority_of_its_question(pair: Pair) {
    // The far side fills the wire with low answers, then answers a critical question.
    const LOW: usize = 16;
    /// Long enough that a busy machine does not move all of it while the question travels.
    const LONG: usize = 8 * MIB;
    let server = pair.server.clone();
    let answering = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        while let Ok((mut send, mut recv)) = server.accept().await {
            tasks.spawn(async move {
                let size = if take(&mut recv, 1).await.unwrap() == b"c" {
                    1
                } else {
                    LONG
                };
                send.write(Bytes::from(vec![0; size])).await.unwrap();
                send.finish();
                send
            });
        }
        tasks.join_all().await.len()
    });
    let arrived = Arc::new(AtomicUsize::new(0));
    let asked = Arc::new(AtomicBool::new(false));
    let mut questions = JoinSet::new();
    for _ in 0..LOW {
        let (mut send, mut recv) = pair.client.open(Priority::Low).await.unwrap();
        send.write(Bytes::from_static(b"l")).await.unwrap();
        let (arrived, asked, client) = (arrived.clone(), asked.clone(), pair.client.clone());
        questions.spawn(async move {
            let mut left = None;
            while let Some(chunk) = recv.read(MIB).await.unwrap() {
                let so_far = arrived.fetch_add(chunk.len(), Ordering::Relaxed);
                // Once the low answers are well under way, whoever notices first asks.
                if so_far > MIB && !asked.swap(true, Ordering::Relaxed) {
                    let (mut send, mut recv) = client.open(Priority::Critical).await.unwrap();
                    send.write(Bytes::from_static(b"c")).await.unwrap();
                    send.finish();
                    assert_eq!(read_all(&mut recv).await.unwrap().len(), 1);
                    left = Some(LOW * LONG - arrived.load(Ordering::Relaxed));
                }
            }
            (left, send)
        });
    }
    let left = questions
        .join_all()
        .await
        .into_iter()
        .find_map(|(left, _)| left)
        .unwrap();
    assert!(left >= LOW * MIB, "the answer overtook only {left} bytes");
    pair.client.close(Code::Ok, "");
    assert_eq!(answering.await.unwrap(), LOW + 1);
}

async fn a_datagram_arrives_and_a_large_one_is_refused(pair: Pair) {
    let body = pattern(0, MAX_DATAGRAM);
    pair.client.send_datagram(body.clone()).unwrap();
    assert_eq!(pair.server.read_datagram().await.unwrap(), body);
    pair.server
        .send_datagram(Bytes::from_static(b"back"))
        .unwrap();
    assert_eq!(pair.client.read_datagram().await.unwrap(), "back");
    let huge = Bytes::from(vec![0; 128 * 1024]);
    assert_eq!(
        pair.client.send_datagram(huge),
        Err(DatagramError::TooLarge)
    );
}

async fn datagrams_are_dropped_rather_than_queued_without_bound(pair: Pair) {
    for index in 0..10_000_u32 {
        pair.client
            .send_datagram(Bytes::copy_from_slice(&index.to_be_bytes()))
            .unwrap();
    }
    // Whatever was kept, the connection lives and its streams do.
    let (mut send, _recv) = open(&pair.client, b"alive").await;
    send.finish();
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(read_all(&mut far_recv).await.unwrap(), "alive");
}

async fn a_close_ends_everything_on_both_sides_with_its_code_and_reason(pair: Pair) {
    let (mut send, _recv) = open(&pair.client, b"x").await;
    let (far_send, mut far_recv) = pair.server.accept().await.unwrap();
    take(&mut far_recv, 1).await.unwrap();
    pair.client.close(Code::Unavailable, "going to sleep");
    let why = ConnectionError::Closed {
        code: Code::Unavailable,
        reason: "going to sleep".into(),
    };
    assert_eq!(
        far_recv.read(1).await,
        Err(ReadError::Connection(why.clone()))
    );
    assert_eq!(far_send.stopped().await, None);
    assert_eq!(pair.server.accept().await.err(), Some(why.clone()));
    assert_eq!(
        pair.server.open(Priority::Low).await.err(),
        Some(why.clone())
    );
    assert_eq!(pair.server.read_datagram().await.err(), Some(why.clone()));
    assert_eq!(pair.server.closed().await, why);
    assert_eq!(pair.client.closed().await, ConnectionError::LocallyClosed);
    assert_eq!(
        send.write(Bytes::from_static(b"y")).await,
        Err(WriteError::Connection(ConnectionError::LocallyClosed))
    );
    assert_eq!(
        pair.client.accept().await.err(),
        Some(ConnectionError::LocallyClosed)
    );
}

async fn a_close_wakes_whoever_waits_here(pair: Pair) {
    let client = pair.client.clone();
    let accepting = tokio::spawn(async move { client.accept().await.err() });
    let (send, mut recv) = open(&pair.client, b"x").await;
    let reading = tokio::spawn(async move { recv.read(1).await });
    let stopping = tokio::spawn(async move { send.stopped().await });
    let _far = pair.server.accept().await.unwrap();
    pair.client.close(Code::Ok, "");
    assert_eq!(
        accepting.await.unwrap(),
        Some(ConnectionError::LocallyClosed)
    );
    let error = ReadError::Connection(ConnectionError::LocallyClosed);
    assert_eq!(reading.await.unwrap(), Err(error));
    assert_eq!(stopping.await.unwrap(), None);
}

async fn a_peer_that_vanishes_ends_every_pending_operation(mut mortal: Mortal) {
    let (mut send, mut recv) = open(&mortal.near, b"x").await;
    let (_far_send, mut far_recv) = mortal.far.accept().await.unwrap();
    take(&mut far_recv, 1).await.unwrap();
    let (watched, _watched_recv) = open(&mortal.near, b"x").await;
    let mut pending = JoinSet::new();
    pending.spawn(async move { recv.read(1).await.map(drop).map_err(|e| format!("{e:?}")) });
    pending.spawn(async move {
        loop {
            let written = send.write(Bytes::from(vec![0; MIB])).await;
            written.map_err(|e| format!("{e:?}"))?;
        }
    });
    for accepting in [true, false] {
        let near = mortal.near.clone();
        pending.spawn(async move {
            let error = if accepting {
                near.accept().await.map(drop)
            } else {
                near.read_datagram().await.map(drop)
            };
            error.map_err(|e| format!("{e:?}"))
        });
    }
    mortal.vanish();
    while let Some(result) = pending.join_next().await {
        let error = result.unwrap().unwrap_err();
        assert!(error.contains("Lost"), "{error}");
    }
    assert_eq!(watched.stopped().await, None);
    assert!(matches!(
        mortal.near.closed().await,
        ConnectionError::Lost(_)
    ));
    assert!(matches!(
        mortal.near.open(Priority::Low).await,
        Err(ConnectionError::Lost(_))
    ));
}

async fn bytes_are_counted(pair: Pair) {
    let (mut send, _recv) = pair.client.open(Priority::Medium).await.unwrap();
    send.write(Bytes::from(vec![0; 100_000])).await.unwrap();
    send.finish();
    let (_far_send, mut far_recv) = pair.server.accept().await.unwrap();
    assert_eq!(read_all(&mut far_recv).await.unwrap().len(), 100_000);
    assert!(pair.server.stats().received_bytes >= 100_000);
    assert!(pair.client.stats().sent_bytes >= 100_000);
}

/// One module of tests for each carrier.
macro_rules! contract {
    ($($carrier:ident => $name:ident),* $(,)?) => {
        $(mod $name {
            use super::*;
            claims! { flavor = "multi_thread", $carrier:
                a_stream_carries_bytes_both_ways_and_ends_each_way_by_itself,
                both_sides_open_streams_and_they_are_accepted_in_order,
                an_empty_stream_that_is_finished_is_seen,
                a_read_gives_no_more_than_was_asked_for,
                a_reset_reaches_the_reader_with_its_code_in_either_direction,
                a_stop_reaches_the_writer_with_its_code,
                a_stop_ends_a_write_that_waits,
                a_finished_direction_was_not_stopped,
                a_dropped_half_cancels_its_direction,
                a_half_dropped_after_its_end_still_delivers,
                a_thousand_streams_run_at_once,
                many_thousands_of_streams_run_one_after_another,
                a_hundred_mebibytes_arrive_whole_through_one_stream,
                a_slow_reader_stops_its_writer_and_no_other_stream,
                a_datagram_arrives_and_a_large_one_is_refused,
                datagrams_are_dropped_rather_than_queued_without_bound,
                a_close_ends_everything_on_both_sides_with_its_code_and_reason,
                a_close_wakes_whoever_waits_here,
                bytes_are_counted,
            }
            // Who overtakes whom must not depend on which thread the machine favours.
            claims! { flavor = "current_thread", $carrier:
                a_critical_stream_overtakes_queued_low_ones,
                an_answer_has_the_priority_of_its_question,
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_peer_that_vanishes_ends_every_pending_operation() {
                let mortal = Mortal::new(Carrier::$carrier).await;
                super::a_peer_that_vanishes_ends_every_pending_operation(mortal).await;
            }
        })*
    };
}

macro_rules! claims {
    (flavor = $flavor:literal, $carrier:ident: $($claim:ident),* $(,)?) => {
        $(#[tokio::test(flavor = $flavor)]
        async fn $claim() {
            super::$claim(Carrier::$carrier.pair().await).await;
        })*
    };
}

contract! {
    UnixPair => unix_pair,
    UnixListener => unix_listener,
    Memory => memory,
    Quic => quic,
    Http2 => http2,
    WebSocket => web_socket,
}
