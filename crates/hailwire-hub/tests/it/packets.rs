//! What a member sends through the relay to a node that does not trust it.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use futures_core::Stream;
use futures_sink::Sink;
use iroh::{EndpointAddr, EndpointId, SecretKey, TransportAddr, dns::DnsResolver};
use iroh_relay::{
    client::{Client, ClientBuilder},
    protos::relay::{ClientToRelayMsg, Datagrams, RelayToClientMsg},
};
use tokio::time::timeout;

use crate::{
    initial::{Initial, client_hello, crypto},
    nodes::Member,
    relay::endpoint,
    test_hub::TestHub,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A member that speaks to others through the relay, datagram by datagram.
struct RawMember {
    relay: Client,
    to: EndpointId,
}

impl RawMember {
    async fn connect(hub: &TestHub, seed: u8, to: EndpointId) -> Self {
        let url: iroh::RelayUrl = hub.hub.url().to_string().parse().unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let key = SecretKey::from_bytes(&[seed; 32]);
        let builder = ClientBuilder::new(url, key, DnsResolver::new()).tls_client_config(tls);
        let relay = timeout(TIMEOUT, builder.connect()).await.unwrap().unwrap();
        Self { relay, to }
    }

    async fn send(&mut self, datagram: &[u8]) {
        let message = ClientToRelayMsg::Datagrams {
            dst_endpoint_id: self.to,
            datagrams: Datagrams::from(datagram),
        };
        let mut message = Some(message);
        poll_fn(|cx| {
            let mut relay = Pin::new(&mut self.relay);
            if message.is_some() {
                std::task::ready!(relay.as_mut().poll_ready(cx)).unwrap();
                relay.as_mut().start_send(message.take().unwrap()).unwrap();
            }
            relay.poll_flush(cx)
        })
        .await
        .unwrap();
    }

    /// What the node answers next.
    async fn answer(&mut self) -> Vec<u8> {
        let next = async {
            loop {
                let next = poll_fn(|cx| Pin::new(&mut self.relay).poll_next(cx)).await;
                if let RelayToClientMsg::Datagrams { datagrams, .. } = next.unwrap().unwrap() {
                    return datagrams.contents.to_vec();
                }
            }
        };
        timeout(TIMEOUT, next).await.unwrap()
    }
}

#[tokio::test]
async fn packets_through_the_relay_from_a_member_whom_nobody_trusts_end_no_node() {
    let hub = TestHub::plain().await;
    let (alice, bob) = (
        Member::of(&hub, "alice").await,
        Member::of(&hub, "bob").await,
    );
    let _echo = alice.serve_echo("echo").await;
    // Somebody who gets through to her says that she is there.
    let guide = endpoint(&hub, &hub.member(8).await, 8).await;
    let id = EndpointId::from_bytes(alice.node.id().as_bytes()).unwrap();
    let url = hub.hub.url().to_string().parse().unwrap();
    let address = EndpointAddr::from_parts(id, [TransportAddr::Relay(url)]);
    let guided = timeout(TIMEOUT, guide.connect(address, b"hailwire")).await;
    guided.unwrap().unwrap().close(0u32.into(), b"");
    guide.close().await;

    hub.member(9).await;
    let mut raw = RawMember::connect(&hub, 9, id).await;
    let hello = crypto(0, &client_hello());
    for length in [1, 16, 17, 32, 33, 60, 200] {
        let begun = [length as u8; 8];
        let token = vec![7; length];
        raw.send(&Initial::new(&begun, &hello).with_token(&token).datagram())
            .await;
        assert!(!raw.answer().await.is_empty(), "a handshake goes on");
    }
    // Then until she asks for a proof of where it comes from.
    for n in 0_u64.. {
        assert!(n < 1000, "nothing has to be proved");
        raw.send(&Initial::new(&n.to_be_bytes(), b"\x01").datagram())
            .await;
        if raw.answer().await[0] & 0xf0 == 0xf0 {
            break;
        }
    }
    let ticket: hailwire::admin::InviteAnswer = alice
        .client
        .admin(
            hailwire::admin::method::INVITE,
            &hailwire::admin::InviteRequest {
                uses: 1,
                expires_s: 60,
                allow: Vec::new(),
                offer: Vec::new(),
            },
        )
        .await
        .unwrap();
    let join = hailwire::admin::JoinRequest {
        ticket: ticket.ticket,
        ..Default::default()
    };
    let joined: hailwire::admin::JoinAnswer = bob
        .client
        .admin(hailwire::admin::method::JOIN, &join)
        .await
        .unwrap();
    assert!(matches!(joined, hailwire::admin::JoinAnswer::Node { .. }));
    bob.call("echo@alice").await.unwrap();
    bob.stop().await;
    alice.stop().await;
    hub.hub.shutdown().await;
}
