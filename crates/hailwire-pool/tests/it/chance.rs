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

#[test]
fn each_failure_makes_a_member_that_much_less_likely() {
    for (failures, expected) in [(0, 1_000), (1, 500), (2, 333)] {
        let pool = pool(Strategy::HealthWeighted);
        let member = pool.member(&"c").unwrap();
        (0..failures).for_each(|_| member.report(Outcome::Failure, Duration::ZERO));
        // With two failures a third of a lot has to be the least of four: a twelfth of the time.
        let counts = shares(&pool, Duration::from_secs(5));
        let near = counts["c"].abs_diff(expected) <= 100;
        assert!(near, "{counts:?} after {failures} failures");
    }
}

#[test]
fn of_two_choices_each_pair_is_as_likely() {
    let pool = pool(Strategy::TwoChoices);
    let mut held = Vec::new();
    for (key, calls) in [("b", 10), ("c", 20), ("d", 30)] {
        for _ in 0..calls {
            held.push(
                pool.pick_where(Duration::ZERO, |member| *member.key() == key)
                    .unwrap(),
            );
        }
    }
    let counts = shares(&pool, Duration::ZERO);
    // Of six pairs three have the idle one, two the next, one the third; none has only the busiest.
    for (key, expected) in [("a", 2_000_u32), ("b", 1_333), ("c", 667)] {
        assert!(counts[key].abs_diff(expected) <= 120, "{counts:?}");
    }
    assert!(!counts.contains_key("d"), "{counts:?}");
}

#[test]
fn a_draw_among_one_or_two_has_all_of_them() {
    for strategy in [Strategy::Random, Strategy::TwoChoices] {
        for keys in [&["a"][..], &["a", "b"]] {
            let pool: Pool<&str, ()> = Pool::new(PoolConfig {
                strategy,
                ..PoolConfig::default()
            });
            for key in keys {
                pool.insert(*key, (), MemberConfig::default());
            }
            let mut counts = BTreeMap::<&str, u32>::new();
            for _ in 0..1_000 {
                *counts
                    .entry(*pool.pick(Duration::ZERO).unwrap().key())
                    .or_default() += 1;
            }
            let even = 1_000 / keys.len() as u32;
            assert_eq!(counts.len(), keys.len());
            assert!(
                counts.values().all(|count| count.abs_diff(even) <= 60),
                "{strategy:?}: {counts:?}"
            );
        }
    }
}
