//! What a hub's relay could tell, were it captured: everything that passes it is recorded.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use hailwire::admin::{self, InviteRequest, method};
use hailwire_hub::{MemberTrust, TlsMode};
use hailwire_wire::ticket::Ticket;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    nodes::{Member, trusting},
    test_hub::TestHub,
};

/// A word that is in no protocol.
const WORD: &str = "zwetschgenknödel";

type Recorded = Arc<Mutex<Vec<u8>>>;

/// Passes connections on, and keeps what passes.
async fn record(listener: TcpListener, to: SocketAddr, kept: Recorded) {
    while let Ok((near, _)) = listener.accept().await {
        let far = TcpStream::connect(to).await.unwrap();
        let ((near_read, near_write), (far_read, far_write)) =
            (near.into_split(), far.into_split());
        tokio::spawn(pass(near_read, far_write, Arc::clone(&kept)));
        tokio::spawn(pass(far_read, near_write, Arc::clone(&kept)));
    }
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, kept: Recorded) {
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        kept.lock().unwrap().extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

fn count(kept: &Recorded, word: &str) -> usize {
    let kept = kept.lock().unwrap();
    let windows = kept.windows(word.len());
    windows.filter(|window| *window == word.as_bytes()).count()
}

#[tokio::test]
async fn a_relay_without_tls_that_keeps_all_that_passes_has_no_word_of_a_call() {
    let Ok(_probe) = std::net::UdpSocket::bind("[::1]:0") else {
        hailwire_skip::skipped("this machine has no IPv6");
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let hub = TestHub::with(|config| {
        config.trust = MemberTrust::Members;
        config.tls = TlsMode::Plain;
        config.url = Some(url.parse().unwrap());
    })
    .await;
    let kept = Recorded::default();
    let recorder = tokio::spawn(record(listener, hub.hub.tcp_addr(), Arc::clone(&kept)));
    // Sockets of one family each: only the relay joins the two.
    let alice = Member::at(&hub, "alice", "[::1]:0".parse().unwrap()).await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    let call = alice.client.call("echo@bob").header("topic", WORD);
    let mut answer = Box::pin(call.body(WORD.repeat(100)).send()).await.unwrap();
    let answer = answer.bytes(1 << 20).await.unwrap();
    assert_eq!(answer, WORD.repeat(100).as_bytes());
    let tunnel = alice.status().await.tunnels.remove(0);
    assert_eq!(tunnel.path.kind, "relay");
    // It saw who joined, and the call both ways, and read neither name of an agent nor words.
    assert!(kept.lock().unwrap().len() > 2 * answer.len());
    assert_eq!(count(&kept, WORD), 0);
    assert!(count(&kept, "/relay") > 0, "it was recorded");
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
    recorder.abort();
}

#[tokio::test]
async fn a_ticket_of_a_member_names_no_hub_and_leads_a_member_by_the_relay_all_the_same() {
    let Ok(_probe) = std::net::UdpSocket::bind("[::1]:0") else {
        hailwire_skip::skipped("this machine has no IPv6");
        return;
    };
    // Its members do not trust each other, so they need a ticket.
    let hub = trusting(MemberTrust::Nobody).await;
    let alice = Member::at(&hub, "alice", "[::1]:0".parse().unwrap()).await;
    let bob = Member::of(&hub, "bob").await;
    let _echo = bob.serve_echo("echo").await;
    let invite = InviteRequest {
        uses: 1,
        expires_s: 600,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    let invited = bob.client.admin(method::INVITE, &invite).await;
    let invited: admin::InviteAnswer = invited.unwrap();
    let Ticket::Node(ticket) = invited.ticket.parse().unwrap() else {
        panic!("a hub's ticket");
    };
    assert_eq!((ticket.relay, ticket.hub_key), (None, None));
    let join = serde_json::json!({ "ticket": invited.ticket });
    let _: admin::JoinAnswer = alice.client.admin(method::JOIN, &join).await.unwrap();
    alice.call("echo@bob").await.unwrap();
    assert_eq!(alice.status().await.tunnels.remove(0).path.kind, "relay");
    alice.stop().await;
    bob.stop().await;
    hub.hub.shutdown().await;
}
