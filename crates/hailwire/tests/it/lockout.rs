//! Whoever floods a node keeps nobody else out.

use std::{net::SocketAddr, time::Duration};

use hailwire::{
    Code,
    carrier::{
        CarrierConnection, ConnectionError,
        tcp::{self, TcpCarrier},
    },
};
use tokio::{net::TcpStream, time::timeout};

use crate::{
    fixtures::identity,
    initial::{Initial, client_hello, crypto},
    packet::{PING, answer, forge_until_retry, node_of, untrusted_socket},
    test_node::{self, PATIENCE, TestNode, call, serve_echo},
};

/// A node that listens on TCP too.
async fn with_tcp() -> TestNode {
    let mut config = test_node::config("alice");
    config.listen.tcp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    node_of(config).await
}

async fn connect(host: &TestNode, which: TcpCarrier) -> CarrierConnection {
    let address = host.node.tcp_sockets()[0];
    let (_, own) = identity();
    let which = [which];
    let connection = tcp::connect(&own, host.node.id(), address, &which);
    timeout(PATIENCE, connection).await.unwrap().unwrap()
}

/// Another node joins and calls.
async fn joins(host: &TestNode) {
    let newcomer = TestNode::named("newcomer").await;
    let ticket = host.invite(1, &[]).await;
    timeout(PATIENCE, newcomer.join(&ticket))
        .await
        .unwrap()
        .unwrap();
    let said = call(&newcomer.client(), "echo@alice", "x").await;
    assert_eq!(said.unwrap(), b"x");
    newcomer.node.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn handshakes_begun_from_proved_addresses_keep_nobody_out_for_long() {
    let host = TestNode::named("alice").await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let socket = untrusted_socket(&host).await;
    forge_until_retry(&socket).await;
    for n in 0_u64..200 {
        let begun = Initial::new(&n.to_le_bytes(), PING).datagram();
        socket.send(&begun).await.unwrap();
        // Answers to the handshakes before may come between.
        let retry = loop {
            let answer = answer(&socket).await;
            if answer[0] & 0xf0 == 0xf0 {
                break answer;
            }
        };
        let source_at = 6 + usize::from(retry[5]);
        let token_at = source_at + 1 + usize::from(retry[source_at]);
        let source = &retry[source_at + 1..token_at];
        let token = &retry[token_at..retry.len() - 16];
        let proved = Initial::new(source, PING).with_token(token).datagram();
        socket.send(&proved).await.unwrap();
    }
    joins(&host).await;
}

#[tokio::test]
async fn silent_tcp_connections_from_one_address_keep_neither_http2_nor_websocket_out() {
    let host = with_tcp().await;
    let address = host.node.tcp_sockets()[0];
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for which in TcpCarrier::ALL {
        let connection = connect(&host, which).await;
        assert_eq!(connection.carrier(), which.name());
    }
    drop(silent);
}

#[tokio::test]
async fn tcp_connections_that_stop_in_their_first_words_keep_other_addresses_in() {
    use tokio::io::AsyncWriteExt;

    let host = with_tcp().await;
    let address = host.node.tcp_sockets()[0];
    let mut stuck = Vec::new();
    for n in 0..300_u32 {
        // Whole loopback is this machine's: ten networks of thirty addresses.
        let [_, _, low, high] = n.to_be_bytes();
        let from = SocketAddr::from(([127, 9, (n / 30) as u8 + low, high], 0));
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(from).unwrap();
        let mut io = socket.connect(address).await.unwrap();
        io.write_all(b"\x16\x03\x01\x02").await.unwrap();
        stuck.push(io);
    }
    for which in TcpCarrier::ALL {
        let connection = connect(&host, which).await;
        assert_eq!(connection.carrier(), which.name());
    }
    drop(stuck);
}

#[tokio::test]
async fn untrusted_peers_who_stay_stop_no_join_and_the_oldest_is_told_why_it_goes() {
    let host = with_tcp().await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let mut untrusted = Vec::new();
    for _ in 0..40 {
        untrusted.push(connect(&host, TcpCarrier::Ws).await);
    }
    joins(&host).await;
    let oldest = timeout(PATIENCE, untrusted[0].closed()).await.unwrap();
    let ConnectionError::Closed { code, .. } = &oldest else {
        panic!("{oldest:?}");
    };
    assert_eq!(*code, Code::ResourceExhausted);
    joins(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_get_through_a_flood_of_untrusted_peers_from_their_own_address() {
    let host = with_tcp().await;
    let _echo = serve_echo(&host.client(), "echo").await;
    let (id, address) = (host.node.id(), host.node.tcp_sockets()[0]);
    let mut flood = tokio::task::JoinSet::new();
    let (begun, mut flooded) = tokio::sync::mpsc::channel(1);
    for _ in 0..4 {
        let begun = begun.clone();
        flood.spawn(async move {
            let mut last = std::collections::VecDeque::new();
            loop {
                let (_, own) = identity();
                // It may be turned away itself.
                last.extend(tcp::connect(&own, id, address, &[TcpCarrier::Ws]).await);
                if last.len() > 8 {
                    last.pop_front();
                    let _ = begun.try_send(());
                }
            }
        });
    }
    timeout(PATIENCE, flooded.recv()).await.unwrap();
    for _ in 0..8 {
        joins(&host).await;
    }
    flood.abort_all();
    while let Some(ended) = flood.join_next().await {
        assert!(ended.unwrap_err().is_cancelled(), "the flood went on");
    }
}

/// Bytes that a node sends to somebody whose address is not proved, for those that it got.
async fn amplified(frames: &[u8], padded: usize) -> (usize, usize) {
    let host = TestNode::named("alice").await;
    let socket = untrusted_socket(&host).await;
    let mut begun = Initial::new(b"begun-01", frames);
    begun.padded = padded;
    let datagram = begun.datagram();
    socket.send(&datagram).await.unwrap();
    let mut got = vec![0; 4096];
    let mut bytes = 0;
    // Longer than a handshake may take, which is when the node gives it up.
    let all = async {
        loop {
            let length = socket.recv(&mut got).await.unwrap();
            bytes += length;
        }
    };
    let _ = timeout(Duration::from_secs(12), all).await;
    (datagram.len(), bytes)
}

#[tokio::test]
async fn an_address_that_is_not_proved_gets_no_more_than_three_times_what_came_from_it() {
    let hello = crypto(0, &client_hello());
    let tries = [(hello.clone(), 1200), (hello, 1300), (PING.to_vec(), 1200)];
    let mut asked = tokio::task::JoinSet::new();
    for (frames, padded) in tries {
        asked.spawn(async move { amplified(&frames, padded).await });
    }
    while let Some(ended) = asked.join_next().await {
        let (sent, got) = ended.unwrap();
        assert!(got <= 3 * sent, "{got} bytes for {sent}");
    }
}
