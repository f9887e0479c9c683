//! A relay whose rate is bounded, and members that want more than that.

use std::{
    cell::Cell,
    num::NonZeroU32,
    pin::pin,
    time::{Duration, Instant},
};

use hailwire_hub::RelayRates;
use iroh::{
    Endpoint, EndpointAddr, TransportAddr,
    endpoint::{Connection, RecvStream},
};
use tokio::{
    task::JoinHandle,
    time::{interval, timeout},
};

use crate::{
    relay::{ALPN, TIMEOUT, endpoint},
    test_hub::TestHub,
};

/// Bytes a second for all.
const WHOLE: u32 = 2_000_000;

/// How much each reader of bulk takes before it looks at the clock.
const CHUNK: usize = 256 * 1024;

async fn limited(whole: Option<u32>, each: Option<u32>) -> TestHub {
    TestHub::with(|config| {
        config.bounds.relay_rates = RelayRates {
            whole: whole.and_then(NonZeroU32::new),
            each: each.and_then(NonZeroU32::new),
        };
    })
    .await
}

/// Two members with a connection from the first to the second, by the relay.
struct RelayedPair {
    near: Connection,
    far: Connection,
    endpoints: [Endpoint; 2],
}

impl RelayedPair {
    async fn of(hub: &TestHub, seed: u8) -> Self {
        let (one, two) = (hub.member(seed).await, hub.member(seed + 1).await);
        let near = endpoint(hub, &one, seed).await;
        let far = endpoint(hub, &two, seed + 1).await;
        timeout(TIMEOUT, near.online()).await.unwrap();
        timeout(TIMEOUT, far.online()).await.unwrap();
        let url = hub.hub.url().to_string().parse().unwrap();
        let address = EndpointAddr::from_parts(far.id(), [TransportAddr::Relay(url)]);
        let accepting = async { far.accept().await.unwrap().await.unwrap() };
        let connecting = async { near.connect(address, ALPN).await.unwrap() };
        let (near_end, far_end) = timeout(TIMEOUT, async { tokio::join!(connecting, accepting) })
            .await
            .unwrap();
        Self {
            near: near_end,
            far: far_end,
            endpoints: [near, far],
        }
    }

    /// The near one sends without end; what the far one reads.
    async fn bulk(&self) -> (JoinHandle<()>, RecvStream) {
        let mut send = self.near.open_uni().await.unwrap();
        let sending = tokio::spawn(async move {
            let bytes = vec![7; 64 * 1024];
            while send.write_all(&bytes).await.is_ok() {}
        });
        let reading = self.far.accept_uni().await.unwrap();
        (sending, reading)
    }

    async fn close(self) {
        for endpoint in self.endpoints {
            endpoint.close().await;
        }
    }
}

/// Reads that many chunks.
async fn read(stream: &mut RecvStream, chunks: usize) {
    let mut buffer = vec![0; CHUNK];
    for _ in 0..chunks {
        let read = stream.read_exact(&mut buffer);
        timeout(TIMEOUT, read).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn members_that_send_bulk_share_the_relay_and_small_datagrams_of_another_arrive_at_once() {
    let hub = limited(Some(WHOLE), None).await;
    let (first, second) = (
        RelayedPair::of(&hub, 1).await,
        RelayedPair::of(&hub, 3).await,
    );
    let quiet = RelayedPair::of(&hub, 5).await;
    let (sending, mut one) = first.bulk().await;
    let (sending_too, mut two) = second.bulk().await;
    // Both have found their rates.
    tokio::join!(read(&mut one, 4), read(&mut two, 4));

    let begin = Instant::now();
    let (of_one, of_two) = (Cell::new(0), Cell::new(0));
    let mut reading =
        pin!(async { tokio::join!(count(&mut one, &of_one), count(&mut two, &of_two)) });
    let mut slowest = Duration::ZERO;
    // Far less than a member's part.
    let mut pace = interval(Duration::from_millis(20));
    while of_one.get() + of_two.get() < 32 * CHUNK {
        tokio::select! {
            _ = &mut reading => panic!("a stream has ended"),
            _ = pace.tick() => {}
        }
        tokio::select! {
            _ = &mut reading => panic!("a stream has ended"),
            took = ping(&quiet) => slowest = slowest.max(took),
        }
    }
    let took = begin.elapsed();
    let (of_one, of_two) = (of_one.get(), of_two.get());
    println!("{of_one} and {of_two} bytes in {took:?}, the slowest ping {slowest:?}");
    let all = of_one + of_two;
    assert!(of_one.min(of_two) > all * 4 / 10, "{of_one} and {of_two}");
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
    // It used most of the rate, and no more than that with what was under way before.
    let least = Duration::from_secs(1) * u32::try_from(all).unwrap() / WHOLE;
    assert!(
        took > least * 8 / 10 && took < least * 2,
        "{took:?}, {least:?}"
    );
    let metrics = hub.hub.to_openmetrics().await.unwrap();
    assert!(!metrics.contains("relay_over_rate_frames_total 0\n"));

    sending.abort();
    sending_too.abort();
    for pair in [first, second, quiet] {
        pair.close().await;
    }
    hub.hub.shutdown().await;
}

/// Reads, and counts the bytes, for ever.
async fn count(stream: &mut RecvStream, bytes: &Cell<usize>) {
    let mut buffer = vec![0; CHUNK];
    while let Some(read) = stream.read(&mut buffer).await.unwrap() {
        bytes.set(bytes.get() + read);
    }
}

/// How long a small datagram takes there and back.
async fn ping(pair: &RelayedPair) -> Duration {
    let begin = Instant::now();
    pair.near.send_datagram(vec![1; 100].into()).unwrap();
    let arrived = timeout(TIMEOUT, pair.far.read_datagram()).await.unwrap();
    pair.far.send_datagram(arrived.unwrap()).unwrap();
    let back = timeout(TIMEOUT, pair.near.read_datagram()).await.unwrap();
    back.unwrap();
    begin.elapsed()
}

#[tokio::test]
async fn a_member_gets_the_whole_relay_while_nobody_else_sends() {
    let hub = limited(Some(WHOLE), None).await;
    let pair = RelayedPair::of(&hub, 1).await;
    let (sending, mut reading) = pair.bulk().await;
    read(&mut reading, 2).await;
    let begin = Instant::now();
    read(&mut reading, 12).await;
    let took = begin.elapsed();
    let least = Duration::from_secs(1) * u32::try_from(12 * CHUNK).unwrap() / WHOLE;
    println!("{took:?}, {least:?}");
    assert!(
        took > least * 8 / 10 && took < least * 2,
        "{took:?}, {least:?}"
    );
    sending.abort();
    pair.close().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_member_keeps_its_own_rate_though_nobody_else_sends() {
    let each = WHOLE / 2;
    let hub = limited(None, Some(each)).await;
    let pair = RelayedPair::of(&hub, 1).await;
    let (sending, mut reading) = pair.bulk().await;
    read(&mut reading, 2).await;
    let begin = Instant::now();
    read(&mut reading, 6).await;
    let took = begin.elapsed();
    let least = Duration::from_secs(1) * u32::try_from(6 * CHUNK).unwrap() / each;
    println!("{took:?}, {least:?}");
    assert!(
        took > least * 8 / 10 && took < least * 2,
        "{took:?}, {least:?}"
    );
    sending.abort();
    pair.close().await;
    hub.hub.shutdown().await;
}
