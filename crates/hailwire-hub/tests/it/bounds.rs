//! Bounds on everything that a peer can make grow.

use std::time::Duration;

use hailwire::hub::{HubClient, HubError, tls::HubPins};
use hailwire_hub::TlsMode;
use hailwire_wire::{
    directory::{RefusalReason, SearchRequest, SignedRequest, path},
    limits,
    ticket::TicketSecret,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::test_hub::{TestHub, key, permit, raw, reason, refusal};

#[tokio::test]
async fn a_body_past_its_bound_is_refused() {
    let hub = TestHub::plain().await;
    let node = hub.member(1).await;
    let body = vec![b' '; limits::MAX_HUB_REQUEST + 1];
    let id = hub.hub.id().to_string();
    let asked = SignedRequest {
        hub: &id,
        method: "PUT",
        path: path::RECORD,
        body: &body,
    };
    let refused = refusal(&hub.hub, &asked, Some(&permit(&asked, &node.key))).await;
    assert_eq!(refused, (413, RefusalReason::TooLarge));
}

#[tokio::test]
async fn guessing_tickets_is_slowed_down_even_for_the_right_one() {
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.bounds.bad_tickets_per_minute = 3;
    })
    .await;
    let good = hub.ticket(1).await.secret;
    let node = hub.unjoined_node(1);
    let guess = |byte| node.client.join(TicketSecret::from_random([byte; 16]));
    for byte in 0..3 {
        assert_eq!(
            guess(byte).await.map(drop).map_err(reason),
            Err(RefusalReason::TicketUnknown)
        );
    }
    assert_eq!(
        guess(3).await.map(drop).map_err(reason),
        Err(RefusalReason::TooOften)
    );
    let late = node.client.join(good).await;
    assert_eq!(late.map(drop).map_err(reason), Err(RefusalReason::TooOften));
}

#[tokio::test]
async fn a_member_cannot_publish_without_end() {
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.bounds.records_per_minute = 2;
    })
    .await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    one.publish(&one.record(None, 1)).await.unwrap();
    one.publish(&one.record(None, 2)).await.unwrap();
    assert_eq!(
        one.publish(&one.record(None, 3)).await,
        Err(RefusalReason::TooOften)
    );
    two.publish(&two.record(None, 1)).await.unwrap();
}

#[tokio::test]
async fn searches_and_look_ups_of_a_member_have_quotas_of_their_own() {
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.bounds.searches_per_minute = 2;
        config.bounds.lookups_per_minute = 3;
    })
    .await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    let all = SearchRequest::default();
    for _ in 0..2 {
        one.client.search(&all).await.unwrap();
    }
    let refused = one.client.search(&all).await.map(drop).map_err(reason);
    assert_eq!(refused, Err(RefusalReason::TooOften));
    let name = "absent".parse().unwrap();
    for _ in 0..2 {
        assert_eq!(one.client.lookup(&name).await.unwrap(), None);
    }
    assert_eq!(one.client.members().await.unwrap().len(), 2);
    let refused = one.client.lookup(&name).await.map(drop).map_err(reason);
    assert_eq!(refused, Err(RefusalReason::TooOften));
    two.client.search(&all).await.unwrap();
    let member = two.client.member(one.key.id()).await.unwrap();
    assert_eq!(member.map(|member| member.id), Some(one.key.id()));
    assert_eq!(two.client.member(key(9).id()).await.unwrap(), None);
}

#[tokio::test]
async fn connections_from_one_address_are_bounded_and_free_again() {
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.bounds.connections_per_address = 2;
    })
    .await;
    let node = hub.unjoined_node(1);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut tcp = TcpStream::connect(hub.hub.tcp_addr()).await.unwrap();
        // An answer shows that the connection has its slot.
        tcp.write_all(b"GET /ping HTTP/1.1\r\nhost: hub\r\n\r\n")
            .await
            .unwrap();
        assert!(tcp.read(&mut [0; 1024]).await.unwrap() > 0);
        held.push(tcp);
    }
    assert!(node.client.health().await.is_err());
    drop(held);
    let free = async { while node.client.health().await.is_err() {} };
    timeout(Duration::from_secs(20), free).await.unwrap();
}

/// A hub with short timeouts.
async fn with_short_timeouts(tls: TlsMode) -> TestHub {
    TestHub::with(|config| {
        config.tls = tls;
        config.bounds.handshake = Duration::from_millis(200);
    })
    .await
}

#[tokio::test]
async fn a_silent_peer_is_disconnected() {
    for tls in [TlsMode::Plain, TlsMode::OwnKey] {
        let hub = with_short_timeouts(tls).await;
        let mut silent = TcpStream::connect(hub.hub.tcp_addr()).await.unwrap();
        let mut rest = Vec::new();
        let closed = timeout(Duration::from_secs(10), silent.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "the hub waits for ever");
    }
}

/// A connection that asks for the relay and then proves no key.
async fn keyless(hub: &TestHub) -> TcpStream {
    let mut silent = TcpStream::connect(hub.hub.tcp_addr()).await.unwrap();
    let upgrade = "GET /relay HTTP/1.1\r\nhost: hub\r\nconnection: upgrade\r\n\
        upgrade: websocket\r\nsec-websocket-version: 13\r\n\
        sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
        sec-websocket-protocol: iroh-relay-v1, iroh-relay-v2\r\n\r\n";
    silent.write_all(upgrade.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    silent.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    silent
}

#[tokio::test]
async fn a_relay_connection_that_proves_no_key_is_closed() {
    let hub = with_short_timeouts(TlsMode::Plain).await;
    let mut silent = keyless(&hub).await;
    let mut rest = Vec::new();
    let closed = timeout(Duration::from_secs(10), silent.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the relay waits for ever");
}

#[tokio::test]
async fn a_relay_connection_that_pings_and_never_reads_is_soon_closed() {
    let hub = TestHub::plain().await;
    let mut near = keyless(&hub).await;
    // Masked with zeros (RFC 6455, 5.2), with as much as a ping may carry.
    let mut ping = vec![0x89, 0x80 | 125, 0, 0, 0, 0];
    ping.extend([0; 125]);
    let many = ping.repeat(500);
    let mut written = 0;
    let flood = async {
        while let Ok(count) = near.write(&many).await {
            written += count;
            // What the kernel holds on both sides is no more than this.
            assert!(written < 32 << 20, "the relay reads on");
        }
    };
    let flood = timeout(Duration::from_secs(60), flood);
    flood.await.expect("the relay holds on to it");
    assert_eq!(raw(&hub.hub, "GET", "/ping", None, b"").await.0, 200);
}

#[tokio::test]
async fn a_hub_stops_while_a_relay_connection_has_proved_no_key() {
    let hub = TestHub::plain().await;
    let mut silent = keyless(&hub).await;
    timeout(Duration::from_secs(10), hub.hub.shutdown())
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn a_hub_stops_while_connections_are_idle() {
    let hub = TestHub::plain().await;
    let mut idle = TcpStream::connect(hub.hub.tcp_addr()).await.unwrap();
    idle.write_all(b"GET /ping HTTP/1.1\r\n").await.unwrap();
    timeout(Duration::from_secs(10), hub.hub.shutdown())
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn an_answer_past_its_bound_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        assert!(tcp.read(&mut [0; 4096]).await.unwrap() > 0);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
        tcp.write_all(head.as_bytes()).await.unwrap();
        // White space may stand ahead of JSON without end.
        let blank = vec![b' '; limits::MAX_HUB_ANSWER + 1];
        // The client hangs up as soon as it has had enough.
        let _ = tcp.write_all(&blank).await;
    });
    let client = HubClient::new(url.parse().unwrap(), None, key(1), &HubPins::default()).unwrap();
    let answer = timeout(Duration::from_secs(20), client.members()).await;
    let error = answer.unwrap().unwrap_err();
    assert!(
        matches!(error, HubError::Answer("cut short or too long")),
        "{error:?}"
    );
    answering.await.unwrap();
}
