//! Pairs that need a relay, and hubs that die: how soon calls go again. Sockets of one family each, so that no direct path exists.

use std::{net::SocketAddr, time::Duration};

use hailwire_hub::{Hub, MemberTrust};
use tokio::time::{Instant, timeout};

use crate::{
    nodes::{Member, trusting},
    test_hub::{self, TestHub},
};

/// How soon a call goes again.
const SOON: Duration = Duration::from_secs(5);

/// Two members that only a relay joins.
async fn relayed_pair(hub: &TestHub) -> Option<(Member, Member)> {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        hailwire_skip::skipped("this machine has no IPv6");
        return None;
    }
    let alice = Member::at(
        hub,
        "alice",
        SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0)),
    )
    .await;
    Some((alice, Member::of(hub, "bob").await))
}

/// Calls until one is answered, and says how long that took.
async fn until_answered(member: &Member, to: &str) -> Duration {
    let begun = Instant::now();
    loop {
        let call = timeout(Duration::from_secs(1), member.call(to)).await;
        if matches!(call, Ok(Ok(()))) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {call:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn members_of_two_hubs_call_by_the_other_one_when_one_dies() {
    let one = trusting(MemberTrust::Members).await;
    let other = trusting(MemberTrust::Members).await;
    let Some((alice, bob)) = relayed_pair(&one).await else {
        return;
    };
    for member in [&alice, &bob] {
        member.join(&other).await;
        assert_eq!(member.status().await.hubs.len(), 2);
        timeout(SOON, member.registered(true)).await.unwrap();
    }
    let _echo = bob.serve_echo("echo").await;
    alice.call("echo@bob").await.unwrap();
    one.hub.shutdown().await;
    let took = until_answered(&alice, "echo@bob").await;
    assert!(took < SOON, "{took:?}");
    // And those that meet only now.
    let carol = Member::of(&other, "carol").await;
    let begun = Instant::now();
    alice.call("echo@bob").await.unwrap();
    carol.call("echo@bob").await.unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for member in [alice, bob, carol] {
        member.stop().await;
    }
    other.hub.shutdown().await;
}

#[tokio::test]
async fn a_relayed_pair_calls_again_soon_after_its_hub_is_back() {
    let hub = trusting(MemberTrust::Members).await;
    let Some((alice, bob)) = relayed_pair(&hub).await else {
        return;
    };
    let _echo = bob.serve_echo("echo").await;
    alice.call("echo@bob").await.unwrap();
    let (tcp, udp) = (hub.hub.tcp_addr(), hub.hub.udp_addr());
    let TestHub { hub, folder } = hub;
    hub.shutdown().await;
    // As long as an outage is that lets every pause between attempts grow.
    let away = timeout(Duration::from_secs(12), async {
        loop {
            let _ = alice.call("echo@bob").await;
            tokio::task::yield_now().await;
        }
    });
    let _: Result<(), _> = away.await;
    let mut config = test_hub::config(folder.path());
    config.trust = MemberTrust::Members;
    config.listen = tcp;
    config.udp_port = Some(udp.port());
    let hub = Hub::start(config).await.unwrap();
    let took = until_answered(&alice, "echo@bob").await;
    assert!(took < SOON, "{took:?}");
    alice.stop().await;
    bob.stop().await;
    hub.shutdown().await;
}
