//! A node of two hubs, one of them private, and a peer that is a member of the other alone: what that peer could learn.

use hailwire::admin::{self, DiagnosisRequest, method};
use hailwire_hub::MemberTrust;
use hailwire_wire::address::NodeRef;

use crate::{
    nodes::{Member, trusting},
    test_hub::TestHub,
};

/// How the hub could be told from another one: the port in its URL, and its key.
fn marks(hub: &TestHub) -> [String; 2] {
    [
        format!(":{}", hub.hub.tcp_addr().port()),
        hub.hub.id().to_string(),
    ]
}

#[tokio::test]
async fn a_peer_outside_a_private_hub_learns_nothing_of_it_from_a_member() {
    let private = trusting(MemberTrust::Members).await;
    let public = trusting(MemberTrust::Members).await;
    // The private one is the first, so its relay is the node's own before the other one's.
    let alice = Member::of(&private, "alice").await;
    alice.join(&public).await;
    let bob = Member::of(&public, "bob").await;
    let _echo = (alice.serve_echo("echo").await, bob.serve_echo("echo").await);
    bob.call("echo@alice").await.unwrap();
    alice.call("echo@bob").await.unwrap();
    alice.registered(true).await;
    assert_eq!(alice.status().await.hubs.len(), 2);

    // Her record at the public hub, as any member reads it.
    let reader = public.member(9).await;
    let found = reader.client.lookup(&NodeRef::Id(alice.node.id())).await;
    let record = found.unwrap().unwrap().record().clone();
    let relay = record.relay.as_deref().unwrap();
    assert_eq!(relay.trim_end_matches('/'), public.hub.url().to_string());
    let mut learnt = vec![format!("{record:?}")];

    // All that bob's node knows after calls both ways, and what hers answers when his asks why a path is as it is.
    learnt.push(serde_json::to_string(&bob.status().await).unwrap());
    let trusted: Vec<admin::TrustedPeer> = bob.client.admin(method::TRUST_LIST, &()).await.unwrap();
    learnt.push(serde_json::to_string(&trusted).unwrap());
    let asked = DiagnosisRequest {
        who: "alice".into(),
        ..DiagnosisRequest::default()
    };
    let diagnosis: admin::Diagnosis = bob.client.admin(method::DIAGNOSE, &asked).await.unwrap();
    learnt.push(serde_json::to_string(&diagnosis).unwrap());

    let [port, key] = marks(&public);
    assert!(
        learnt
            .iter()
            .any(|text| text.contains(&port) || text.contains(&key))
    );
    for text in &learnt {
        for mark in marks(&private) {
            assert!(!text.contains(&mark), "{mark} in {text}");
        }
    }
    alice.stop().await;
    bob.stop().await;
    private.hub.shutdown().await;
    public.hub.shutdown().await;
}
