//! Leases of a hub: asked over HTTP, by strangers, and by programs that want to lead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use hailwire::{
    Code,
    coordination::{LeadError, lead},
};
use hailwire_hub::{HubBounds, TlsMode};
use hailwire_wire::{
    directory::{RefusalReason, SignedRequest},
    lease::{CandidateId, LeaseRequest, path},
    limits::{MAX_LEASE_MS, MAX_MEMBER_LEASES, MIN_LEASE_MS},
    signed::KeyPair,
};
use tokio::{sync::Notify, time::timeout};

use crate::{
    nodes::Member,
    test_hub::{TestHub, key, permit, reason, refusal},
};

const PATIENCE: Duration = Duration::from_secs(20);

fn request(name: &str, candidate: u8, token: Option<u64>) -> LeaseRequest {
    LeaseRequest {
        name: name.parse().unwrap(),
        candidate: CandidateId::from_random([candidate; 16]),
        ttl_ms: 60_000,
        token,
    }
}

async fn asked(
    hub: &TestHub,
    key: &KeyPair,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, RefusalReason) {
    let name = hub.hub.id().to_string();
    let asked = SignedRequest {
        hub: &name,
        method,
        path,
        body: body.as_bytes(),
    };
    refusal(&hub.hub, &asked, Some(&permit(&asked, key))).await
}

#[tokio::test]
async fn a_lease_is_given_to_one_candidate_of_one_member_and_listed_for_all() {
    let hub = TestHub::plain().await;
    let (one, other) = (hub.member(1).await, hub.member(2).await);
    let answer = one
        .client
        .ask_lease(&request("nightly", 1, None))
        .await
        .unwrap();
    assert!(answer.held);
    let lease = answer.lease.unwrap();
    assert_eq!(lease.node, key(1).id());
    // Another program of the same node, and the same bytes of another node.
    for (member, candidate) in [(&one, 2), (&other, 1)] {
        for token in [None, Some(lease.token)] {
            let refused = request("nightly", candidate, token);
            let refused = member.client.ask_lease(&refused).await.unwrap();
            assert!(!refused.held);
            assert_eq!(refused.lease.unwrap().token, lease.token);
        }
    }
    let rows = other.client.leases().await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].node, rows[0].token), (lease.node, lease.token));
}

#[tokio::test]
async fn strangers_and_what_is_past_a_bound_are_refused() {
    let hub = TestHub::plain().await;
    let member = hub.member(1).await;
    let good = serde_json::to_string(&request("nightly", 1, None)).unwrap();
    let release = r#"{"name":"nightly","candidate":"AAAAAAAAAAAAAAAAAAAAAA==","token":1}"#;
    for (method, path, body) in [
        ("POST", path::LEASE, good.as_str()),
        ("POST", path::RELEASE, release),
        ("GET", path::LEASES, ""),
    ] {
        let refused = asked(&hub, &key(9), method, path, body).await;
        assert_eq!(refused, (403, RefusalReason::NotAMember), "{path}");
        let unsigned = SignedRequest {
            hub: "",
            method,
            path,
            body: body.as_bytes(),
        };
        let unsigned = refusal(&hub.hub, &unsigned, None).await;
        assert_eq!(unsigned, (401, RefusalReason::Unsigned), "{path}");
    }
    let long = "n".repeat(65);
    for (from, to) in [
        ("60000", &(MIN_LEASE_MS - 1).to_string()[..]),
        ("60000", &(MAX_LEASE_MS + 1).to_string()),
        ("60000", "-1"),
        ("60000", "1e99"),
        ("nightly", "../x"),
        ("nightly", &long),
        ("nightly", ""),
        ("AQEB", "AQE"),
        ("{", "["),
    ] {
        let body = good.replacen(from, to, 1);
        let refused = asked(&hub, &member.key, "POST", path::LEASE, &body).await;
        assert_eq!(refused, (400, RefusalReason::Malformed), "{body}");
    }
    assert_eq!(member.client.leases().await.unwrap(), []);
}

#[tokio::test]
async fn one_member_takes_so_many_leases_and_asks_so_often_and_others_are_not_held_up() {
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.bounds = HubBounds {
            lease_requests_per_minute: 66,
            ..HubBounds::default()
        };
    })
    .await;
    let (greedy, other) = (hub.member(1).await, hub.member(2).await);
    for i in 0..MAX_MEMBER_LEASES {
        let one = request(&format!("lease-{i}"), 1, None);
        assert!(greedy.client.ask_lease(&one).await.unwrap().held);
    }
    let over = greedy.client.ask_lease(&request("one-more", 1, None)).await;
    assert_eq!(over.map_err(reason), Err(RefusalReason::Full));
    let renewed = greedy.client.ask_lease(&request("lease-0", 1, None)).await;
    assert!(renewed.unwrap().held, "a full member renews what it has");
    let often = greedy.client.ask_lease(&request("lease-0", 1, None)).await;
    assert_eq!(often.map_err(reason), Err(RefusalReason::TooOften));
    let free = other.client.ask_lease(&request("one-more", 1, None)).await;
    assert!(free.unwrap().held);
}

#[tokio::test]
async fn of_many_programs_one_leads_at_a_time_and_each_later_one_has_a_higher_token() {
    let hub = TestHub::https().await;
    let (desk, laptop) = (
        Member::of(&hub, "desk").await,
        Member::of(&hub, "laptop").await,
    );
    let leading = Arc::new(AtomicU32::new(0));
    let mut candidates = tokio::task::JoinSet::new();
    for member in [&desk, &laptop, &desk, &laptop] {
        let (client, leading) = (member.client.clone(), leading.clone());
        let candidate = async move {
            let work = async |tenure: hailwire::coordination::Tenure| {
                assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                assert_eq!(leading.fetch_sub(1, Ordering::SeqCst), 1);
                tenure.token
            };
            lead(&client, "nightly").run(work).await.unwrap()
        };
        // The futures of `lead` are not all `Send`, since the work need not be.
        candidates.spawn(candidate);
    }
    let mut tokens = Vec::new();
    while let Some(token) = timeout(PATIENCE, candidates.join_next()).await.unwrap() {
        tokens.push(token.unwrap());
    }
    assert_eq!(tokens.len(), 4);
    assert!(
        tokens.is_sorted_by(|earlier, later| earlier < later),
        "{tokens:?}"
    );
}

#[tokio::test]
async fn a_leader_whose_hub_goes_away_stops_before_its_lease_ends_and_drops_its_work() {
    let hub = TestHub::plain().await;
    let member = Member::of(&hub, "desk").await;
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let leading = {
        let (begun, guard) = (begun.clone(), Dropped(dropped.clone()));
        lead(&member.client, "nightly")
            .ttl(Duration::from_secs(1))
            .run(async move |_| {
                let _guard = guard;
                begun.notify_one();
                std::future::pending::<()>().await;
            })
    };
    let stop = async {
        begun.notified().await;
        hub.hub.shutdown().await;
    };
    let (led, ()) = timeout(PATIENCE, async { tokio::join!(leading, stop) })
        .await
        .unwrap();
    assert!(matches!(led, Err(LeadError::Lost { token }) if token > 0));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn who_can_lead_nowhere_is_told_why() {
    let hub = TestHub::plain().await;
    let member = Member::of(&hub, "desk").await;
    let code = |error: LeadError| match error {
        LeadError::Refused(status) => status.code,
        LeadError::Lost { .. } => panic!("it never led"),
    };
    let work = async |_| unreachable!("nobody leads");
    let name = lead(&member.client, "Not A Name").run(work).await;
    assert_eq!(name.map_err(code), Err::<(), _>(Code::InvalidArgument));
    let ttl = lead(&member.client, "nightly").ttl(Duration::from_millis(10));
    let ttl = ttl.run(work).await;
    assert_eq!(ttl.map_err(code), Err::<(), _>(Code::InvalidArgument));
    let elsewhere = lead(&member.client, "nightly").hub("https://other.example");
    let elsewhere = elsewhere.run(work).await;
    assert_eq!(elsewhere.map_err(code), Err::<(), _>(Code::NotFound));
}

#[test]
fn the_example_of_a_leader_runs_to_its_end() {
    // Beside this binary's folder, where Cargo builds it for a test of the package.
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples/leader");
    let ran = std::process::Command::new(&path).output();
    let ran = ran.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(
        said,
        "both led, one after the other\nthe tokens differ: true\n"
    );
}
