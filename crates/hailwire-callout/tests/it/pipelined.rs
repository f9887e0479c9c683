//! Bodies on their way to an agent far away: in virtual time, over a link that delays what passes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hailwire_callout::{
    EventKind,
    agent::{self, ServeOptions},
    host,
    inspect::{Config, Exchange, Inspector},
    pool::connect_with,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::support::{Seen, Told, next, piece};

/// From a host to its agent and back.
const TRIP: Duration = Duration::from_millis(50);

/// How long a test may take in virtual time, with what an agent waits for.
const LONG: Duration = Duration::from_secs(60);

/// A pair of byte streams that are half a round trip apart and let pass as much as comes.
fn link() -> (DuplexStream, DuplexStream) {
    let (host, near) = duplex(1 << 20);
    let (far, agent) = duplex(1 << 20);
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    tokio::spawn(carry(near_read, far_write));
    tokio::spawn(carry(far_read, near_write));
    (host, agent)
}

async fn carry(mut from: impl AsyncRead + Unpin + Send + 'static, mut to: impl AsyncWrite + Unpin) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel();
    let departs = tokio::spawn(async move {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes).await {
            let arrives = Instant::now() + TRIP / 2;
            let bytes = Bytes::copy_from_slice(&bytes[..read]);
            if sender.send((arrives, bytes)).is_err() {
                return;
            }
        }
    });
    while let Some((arrives, bytes)) = on_the_way.recv().await {
        sleep_until(arrives).await;
        if to.write_all(&bytes).await.is_err() {
            break;
        }
    }
    departs.abort();
}

/// Agents of a configuration whose one agent is far away.
async fn far(told: Told) -> (Arc<Inspector>, Arc<Told>) {
    reached(told, true).await
}

/// The same; one that is not `ours` knows nothing that only ours speak.
async fn reached(told: Told, ours: bool) -> (Arc<Inspector>, Arc<Told>) {
    let told = Arc::new(told);
    let agent = told.clone();
    let text =
        r#"agents { agent "far" { hail "told@edge"; timeout-ms 60000; pool { connections 1 } } }"#;
    let config = Config::parse(text, "callout.kdl".as_ref()).unwrap();
    let reach = |_: &_, _: &_| {
        let agent = agent.clone();
        let connect = move |mut options: host::ConnectOptions| {
            options.extensions = ours;
            let (ours, theirs) = link();
            let agent = agent.clone();
            tokio::spawn(async move {
                let _ = agent::serve(agent, theirs, &ServeOptions::default()).await;
            });
            Box::pin(async move { host::over(ours, &options).await })
                as futures_util::future::BoxFuture<'static, _>
        };
        Some(Arc::new(connect_with("far", connect)) as Arc<dyn hailwire_callout::pool::Connector>)
    };
    let inspector = Arc::new(Inspector::from_config(&config, &reach).unwrap());
    assert!(inspector.ready(LONG).await);
    (inspector, told)
}

fn told() -> (Told, mpsc::UnboundedReceiver<Seen>) {
    let (mut told, seen) = Told::new();
    told.limits.max_body_size = 1 << 30;
    told.decides = true;
    (told, seen)
}

/// Shows a body in pieces as fast as there is room. Gives what goes on in its place, or the status that it was stopped with.
async fn through(exchange: &mut Exchange, id: &str, body: &Bytes, size: usize) -> Vec<u8> {
    let last = body.len().div_ceil(size) - 1;
    let mut pieces = (0..=last).map(|n| {
        let data = body.slice(n * size..body.len().min((n + 1) * size));
        piece(id, n as u32, data, n == last)
    });
    let mut passed = Vec::new();
    let mut more = pieces.next();
    loop {
        while exchange.has_room(EventKind::RequestBody)
            && let Some(piece) = more.take()
        {
            exchange.show_request_body(piece);
            more = pieces.next();
        }
        let Some((_, shown)) = exchange.shown().await else {
            return passed;
        };
        assert!(shown.verdict.passes(), "{:?}", shown.verdict);
        passed.extend_from_slice(&shown.data);
    }
}

fn body(size: usize) -> Bytes {
    (0..size).map(|at| b'a' + (at % 23) as u8).collect()
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_the_path_once_and_not_once_for_each_piece() {
    let (told, _seen) = told();
    let (inspector, _) = far(told).await;
    // Half a window, in 32 pieces.
    let (whole, pieces, size) = (body(256 << 10), 32_u32, 8 << 10);

    let mut exchange = inspector.exchange();
    let begin = Instant::now();
    let first = exchange
        .request_body(piece("same-1", 0, "first", false))
        .await;
    assert!(first.verdict.passes());
    let one = begin.elapsed();
    assert!(one >= TRIP && one < TRIP * 2, "{one:?}");

    // Its place is known now.
    let begin = Instant::now();
    assert!(through(&mut exchange, "same-1", &whole, size).await == whole);
    let together = begin.elapsed();
    assert!(together < TRIP + TRIP / 5, "{together:?}");

    let mut exchange = inspector.exchange();
    let begin = Instant::now();
    for n in 0..pieces {
        let data = whole.slice(n as usize * size..(n as usize + 1) * size);
        let out = exchange
            .request_body(piece("same-2", n, data, n + 1 == pieces))
            .await;
        assert!(out.verdict.passes());
    }
    let one_by_one = begin.elapsed();
    assert!(one_by_one >= TRIP * pieces, "{one_by_one:?}");
}

#[tokio::test(start_paused = true)]
async fn a_long_body_takes_a_round_trip_for_each_window_and_is_changed_on_the_way() {
    let (told, _seen) = told();
    let (inspector, _) = far(told).await;
    let whole = body(4 << 20);
    for id in ["same", "upper"] {
        let mut exchange = inspector.exchange();
        let begin = Instant::now();
        let passed = through(&mut exchange, id, &whole, 16 << 10).await;
        let took = begin.elapsed();
        let expected = match id {
            "upper" => Bytes::from(whole.to_ascii_uppercase()),
            _ => whole.clone(),
        };
        assert!(passed == expected, "{id}");
        // Eight windows, and one round trip until the place is known.
        assert!(took < TRIP * 10, "{id} {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_comes_back_while_the_body_is_still_coming() {
    let (told, mut seen) = told();
    let (inspector, _) = far(told).await;
    let mut exchange = inspector.exchange();
    let begin = Instant::now();
    let mut shown = 0;
    let status = loop {
        while exchange.has_room(EventKind::RequestBody) {
            exchange.show_request_body(piece("early", shown, vec![0; 16 << 10], false));
            shown += 1;
        }
        let (_, out) = exchange.shown().await.unwrap();
        if let hailwire_callout::Decision::Block { status, .. } = out.verdict.decision {
            break status;
        }
    };
    assert_eq!(status, 413);
    assert!(begin.elapsed() < TRIP * 5 / 2, "{:?}", begin.elapsed());
    // The rest of what is under way has the same verdict, at once.
    let begin = Instant::now();
    while let Some((_, out)) = exchange.shown().await {
        assert!(!out.verdict.passes() && out.data.is_empty());
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    while !matches!(next(&mut seen).await, Seen::Cancelled(id, _) if id == "early") {}
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_slow_with_one_request_is_not_with_others() {
    let (told, mut seen) = told();
    let (inspector, agent) = far(told).await;
    let whole = body(4 << 20);
    let slow = tokio::spawn({
        let (inspector, whole) = (inspector.clone(), whole.clone());
        async move {
            let mut exchange = inspector.exchange();
            through(&mut exchange, "slow", &whole, 16 << 10).await
        }
    });
    while !matches!(next(&mut seen).await, Seen::Piece(id) if id == "slow") {}
    let begin = Instant::now();
    let mut exchange = inspector.exchange();
    assert!(through(&mut exchange, "same", &whole, 16 << 10).await == whole);
    assert!(begin.elapsed() < TRIP * 10, "{:?}", begin.elapsed());
    assert!(!slow.is_finished());
    agent.permits.add_permits(1000);
    assert!(slow.await.unwrap() == whole);
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_exchange_had_under_way_is_dropped_by_the_agent() {
    let (told, mut seen) = told();
    let (inspector, agent) = far(told).await;
    let mut exchange = inspector.exchange();
    for n in 0..10 {
        exchange.show_request_body(piece("slow", n, "data", false));
    }
    let waits = tokio::time::timeout(TRIP * 4, exchange.shown()).await;
    assert!(waits.is_err());
    assert_eq!(agent.running.load(std::sync::atomic::Ordering::SeqCst), 1);
    drop(exchange);
    while !matches!(next(&mut seen).await, Seen::Dropped) {}
    assert_eq!(agent.running.load(std::sync::atomic::Ordering::SeqCst), 0);
    let mut exchange = inspector.exchange();
    let out = exchange.request_body(piece("same", 0, "x", true)).await;
    assert!(out.verdict.passes());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stalls_on_pieces_behind_others_opens_the_breaker_as_one_that_stalls_on_any()
{
    for ours in [true, false] {
        let (told, _seen) = told();
        let (inspector, _) = reached(told, ours).await;
        let mut under_way = Vec::new();
        // As many as open it, in a row.
        for n in 0..5 {
            let id = format!("stalls-{n}");
            let mut exchange = inspector.exchange();
            let first = exchange.request_body(piece(&id, 0, "0", false)).await;
            assert!(first.verdict.passes());
            for n in 1..4 {
                exchange.show_request_body(piece(&id, n, "data", n == 3));
            }
            let (_, second) = exchange.shown().await.unwrap();
            assert!(second.verdict.passes());
            under_way.push(exchange);
        }
        let counted = inspector.to_openmetrics();
        assert!(
            counted.contains("breaker_state{agent=\"far\"} 0"),
            "{counted}"
        );
        let begin = Instant::now();
        for mut exchange in under_way {
            while let Some((_, stalled)) = exchange.shown().await {
                assert!(!stalled.verdict.passes());
            }
        }
        // Each has its time from when its turn came, and no more.
        assert!(begin.elapsed() <= LONG, "{:?}", begin.elapsed());
        let counted = inspector.to_openmetrics();
        assert!(
            counted.contains("breaker_state{agent=\"far\"} 2"),
            "{counted}"
        );
    }
}
