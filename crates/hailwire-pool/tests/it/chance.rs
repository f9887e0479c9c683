//! The strategies in which chance decides, for groups whose members come and go.

use std::{collections::BTreeMap, time::Duration};

use hailwire_pool::{MemberConfig, Outcome, Pool, PoolConfig, Strategy};

fn pool(strategy: Strategy) -> Pool<&'static str, ()> {
    let pool = Pool::new(PoolConfig {
        strategy,
        ..PoolConfig::default()
    });
    for key in ["a", "b", "c", "d"] {
        pool.insert(key, (), MemberConfig::default());
    }
    pool
}

fn shares(pool: &Pool<&'static str, ()>, now: Duration) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..4_000 {
        *counts.entry(*pool.pick(now).unwrap().key()).or_default() += 1;
    }
    counts
}

#[test]
fn chance_spreads_calls_evenly() {
    for strategy in [
        Strategy::Random,
        Strategy::HealthWeighted,
        Strategy::TwoChoices,
    ] {
        let counts = shares(&pool(strategy), Duration::ZERO);
        let even = counts.values().all(|count| (850..=1_150).contains(count));
        assert!(even && counts.len() == 4, "{strategy:?}: {counts:?}");
    }
}

#[test]
fn a_member_that_failed_of_late_is_drawn_less_often() {
    let pool = pool(Strategy::HealthWeighted);
    let member = pool.member(&"b").unwrap();
    member.report(Outcome::Failure, Duration::ZERO);
    member.report(Outcome::Failure, Duration::ZERO);
    // After its back-off it takes part again, and is not yet trusted.
    let counts = shares(&pool, Duration::from_secs(5));
    assert!((1..500).contains(&counts["b"]), "{counts:?}");
}

#[test]
fn two_choices_keep_calls_in_flight_nearly_even() {
    let pool = pool(Strategy::TwoChoices);
    let held: Vec<_> = (0..400)
        .map(|_| pool.pick(Duration::ZERO).unwrap())
        .collect();
    for member in pool.members().iter() {
        assert!(
            member.in_flight().abs_diff(100) <= 4,
            "{}",
            member.in_flight()
        );
    }
    drop(held);
}
