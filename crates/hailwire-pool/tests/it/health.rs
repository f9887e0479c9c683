//! Failing members, in virtual time.

use std::time::Duration;

use hailwire_pool::{
    HealthConfig, MemberConfig, MemberHealth, NoMember, Outcome, Pool, PoolConfig, Strategy, Tier,
};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Down after two failures, for 100 ms, then 200, then 400 at most.
fn pool(keys: &[&'static str]) -> Pool<&'static str, ()> {
    let health = HealthConfig {
        failures_to_down: 2,
        backoff: at(100),
        backoff_max: at(400),
    };
    let pool = Pool::new(PoolConfig {
        strategy: Strategy::RoundRobin,
        health,
        ..PoolConfig::default()
    });
    for key in keys {
        pool.insert(*key, (), MemberConfig::default());
    }
    pool
}

#[test]
fn a_failed_member_is_passed_over_for_a_while_and_then_takes_its_turn() {
    let pool = pool(&["a", "b"]);
    let lease = pool.pick(at(0)).unwrap();
    assert_eq!(*lease.key(), "a");
    lease.finish(Outcome::Failure, at(0));
    let member = pool.member(&"a").unwrap();
    assert_eq!(
        (member.health(), member.failures()),
        (MemberHealth::Suspect { until: at(100) }, 1)
    );
    for _ in 0..3 {
        assert_eq!(*pool.pick(at(99)).unwrap().key(), "b");
    }
    assert_eq!(*pool.pick(at(100)).unwrap().key(), "a");
}

#[test]
fn a_suspect_still_serves_where_nobody_else_can() {
    let pool = pool(&["a"]);
    pool.pick(at(0)).unwrap().finish(Outcome::Failure, at(0));
    pool.pick(at(1)).unwrap().finish(Outcome::Success, at(2));
    let member = pool.member(&"a").unwrap();
    assert_eq!(
        (member.health(), member.failures()),
        (MemberHealth::Healthy, 0)
    );
    assert_eq!(member.last_seen(), Some(at(2)));
}

#[test]
fn a_healthy_remote_is_preferred_to_a_suspect_local() {
    let pool = pool(&["near"]);
    pool.insert(
        "far",
        (),
        MemberConfig {
            tier: Tier::Remote,
            ..MemberConfig::default()
        },
    );
    pool.pick(at(0)).unwrap().finish(Outcome::Failure, at(0));
    assert_eq!(*pool.pick(at(1)).unwrap().key(), "far");
}

#[test]
fn a_member_that_is_down_gets_one_probe_per_back_off_until_it_succeeds() {
    let pool = pool(&["a"]);
    for _ in 0..2 {
        pool.pick(at(0)).unwrap().finish(Outcome::Failure, at(0));
    }
    assert_eq!(
        pool.pick(at(99)).unwrap_err(),
        NoMember::Down { until: at(100) }
    );

    let probe = pool.pick(at(100)).unwrap();
    assert!(probe.is_probe());
    assert_eq!(
        pool.pick(at(100)).unwrap_err(),
        NoMember::Down { until: at(200) }
    );
    probe.finish(Outcome::Failure, at(110));
    assert_eq!(
        pool.pick(at(309)).unwrap_err(),
        NoMember::Down { until: at(310) }
    );

    pool.pick(at(310))
        .unwrap()
        .finish(Outcome::Success, at(311));
    let lease = pool.pick(at(312)).unwrap();
    assert!(!lease.is_probe());
    assert_eq!(lease.member().health(), MemberHealth::Healthy);
}

#[test]
fn a_probe_takes_its_turn_beside_healthy_members() {
    let pool = pool(&["a", "b"]);
    let down = pool.member(&"a").unwrap();
    down.report(Outcome::Failure, at(0));
    down.report(Outcome::Failure, at(0));
    assert_eq!(*pool.pick(at(50)).unwrap().key(), "b");
    let probe = pool.pick(at(100)).unwrap();
    assert!(probe.is_probe());
    for _ in 0..3 {
        assert_eq!(*pool.pick(at(100)).unwrap().key(), "b");
    }
}

#[test]
fn an_abandoned_probe_says_nothing_and_is_let_through_again() {
    let pool = pool(&["a"]);
    let member = pool.member(&"a").unwrap();
    member.report(Outcome::Failure, at(0));
    member.report(Outcome::Failure, at(0));
    drop(pool.pick(at(100)).unwrap());
    assert_eq!(member.in_flight(), 0);
    assert!(pool.pick(at(100)).unwrap().is_probe());
}

#[test]
fn a_group_that_is_partly_down_and_otherwise_full_is_full() {
    let pool = pool(&["a"]);
    let down = pool.member(&"a").unwrap();
    down.report(Outcome::Failure, at(0));
    down.report(Outcome::Failure, at(0));
    pool.insert(
        "b",
        (),
        MemberConfig {
            max_concurrency: 1,
            ..MemberConfig::default()
        },
    );
    let _held = pool.pick(at(1)).unwrap();
    assert_eq!(pool.pick(at(1)).unwrap_err(), NoMember::Full);
}

#[test]
fn a_sign_of_life_is_noted_and_does_not_heal() {
    let pool = pool(&["a"]);
    let member = pool.member(&"a").unwrap();
    assert_eq!(member.last_seen(), None);
    member.report(Outcome::Failure, at(1));
    member.seen(at(9));
    member.seen(at(5));
    assert_eq!(member.last_seen(), Some(at(9)));
    assert!(matches!(member.health(), MemberHealth::Suspect { .. }));
}

#[test]
fn a_group_that_is_down_says_when_the_first_of_it_may_be_tried_again() {
    for order in [["soon", "late"], ["late", "soon"]] {
        let pool = pool(&order);
        for (key, now) in [("soon", at(10)), ("late", at(70))] {
            let member = pool.member(&key).unwrap();
            member.report(Outcome::Failure, now);
            member.report(Outcome::Failure, now);
        }
        let down = NoMember::Down { until: at(110) };
        assert_eq!(pool.pick(at(80)).unwrap_err(), down, "{order:?}");
        // Those that are left out are not spoken of.
        let late = NoMember::Down { until: at(170) };
        assert_eq!(pool.pick_excluding(at(80), &["soon"]).unwrap_err(), late);
        assert_eq!(*pool.pick(at(110)).unwrap().key(), "soon");
    }
}

#[test]
fn a_probe_that_was_begun_before_the_member_recovered_says_nothing_when_it_is_dropped() {
    let pool = pool(&["a"]);
    let member = pool.member(&"a").unwrap();
    (0..2).for_each(|_| member.report(Outcome::Failure, at(0)));
    let probe = pool.pick(at(100)).unwrap();
    member.report(Outcome::Success, at(120));
    drop(probe);
    assert_eq!(member.health(), MemberHealth::Healthy);
    assert_eq!(member.last_seen(), Some(at(120)));
}

#[test]
fn a_member_that_is_full_gives_its_probe_to_nobody() {
    let pool = pool(&[]);
    let config = MemberConfig {
        max_concurrency: 1,
        ..MemberConfig::default()
    };
    let member = pool.insert("a", (), config);
    assert_eq!(member.max_concurrency(), 1);
    let held = pool.pick(at(0)).unwrap();
    (0..2).for_each(|_| member.report(Outcome::Failure, at(0)));
    assert_eq!(pool.pick(at(100)).unwrap_err(), NoMember::Full);
    drop(held);
    assert!(pool.pick(at(100)).unwrap().is_probe());
}

#[test]
fn what_says_why_nobody_was_picked_is_told_apart() {
    let texts = [
        NoMember::Empty,
        NoMember::Down { until: at(1) },
        NoMember::Full,
    ]
    .map(|why| why.to_string());
    assert!(texts[0].contains("no eligible member"), "{texts:?}");
    assert!(texts[1].contains("down"), "{texts:?}");
    assert!(texts[2].contains("concurrency limit"), "{texts:?}");
}

#[test]
fn a_lease_is_shown_with_its_key_and_whether_it_is_a_probe() {
    let pool = pool(&["a"]);
    let shown = format!("{:?}", pool.pick(at(0)).unwrap());
    assert!(
        shown.contains("\"a\"") && shown.contains("is_probe: false"),
        "{shown}"
    );
}
