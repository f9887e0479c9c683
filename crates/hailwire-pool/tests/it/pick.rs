//! The choice among members that are well.

use std::{sync::Arc, time::Duration};

use hailwire_pool::{MemberConfig, NoMember, Pool, PoolConfig, Strategy, Tier};

const NOW: Duration = Duration::from_secs(1);

fn pool(strategy: Strategy, keys: &[&'static str]) -> Pool<&'static str, ()> {
    let pool = Pool::new(PoolConfig {
        strategy,
        ..PoolConfig::default()
    });
    for key in keys {
        pool.insert(*key, (), MemberConfig::default());
    }
    pool
}

fn picks(pool: &Pool<&'static str, ()>, count: usize) -> Vec<&'static str> {
    (0..count)
        .map(|_| pool.pick(NOW).map_or("nobody", |lease| *lease.key()))
        .collect()
}

#[test]
fn an_empty_group_has_nobody_to_pick() {
    let pool = pool(Strategy::LeastLoaded, &[]);
    assert!(pool.is_empty());
    assert_eq!(pool.pick(NOW).unwrap_err(), NoMember::Empty);
}

#[test]
fn round_robin_gives_each_its_turn() {
    let pool = pool(Strategy::RoundRobin, &["a", "b", "c"]);
    assert_eq!(picks(&pool, 7), ["a", "b", "c", "a", "b", "c", "a"]);
}

#[test]
fn round_robin_stays_even_while_a_member_is_excluded() {
    let pool = pool(Strategy::RoundRobin, &["a", "b", "c"]);
    let picks: Vec<_> = (0..6)
        .map(|_| *pool.pick_excluding(NOW, &["b"]).unwrap().key())
        .collect();
    assert_eq!(picks, ["a", "c", "a", "c", "a", "c"]);
}

#[test]
fn the_least_loaded_is_picked_and_equals_take_turns() {
    let pool = pool(Strategy::LeastLoaded, &["a", "b", "c"]);
    let held: Vec<_> = (0..3).map(|_| pool.pick(NOW).unwrap()).collect();
    let keys: Vec<_> = held.iter().map(|lease| *lease.key()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    let mut held = held;
    drop(held.remove(1));
    assert_eq!(picks(&pool, 3), ["b", "b", "b"], "the only idle one");
    drop(held);
    assert_eq!(
        picks(&pool, 3),
        ["a", "c", "b"],
        "all idle, longest unpicked first"
    );
}

#[test]
fn a_lease_counts_as_in_flight_until_it_is_dropped() {
    let pool = pool(Strategy::LeastLoaded, &["a"]);
    let member = pool.member(&"a").unwrap();
    let lease = pool.pick(NOW).unwrap();
    assert_eq!(member.in_flight(), 1);
    assert!(!lease.is_probe());
    drop(lease);
    assert_eq!(member.in_flight(), 0);
}

#[test]
fn a_full_member_is_passed_over_and_a_full_group_says_so() {
    let pool: Pool<&str, ()> = Pool::default();
    pool.insert(
        "one",
        (),
        MemberConfig {
            max_concurrency: 1,
            ..MemberConfig::default()
        },
    );
    pool.insert(
        "two",
        (),
        MemberConfig {
            max_concurrency: 2,
            ..MemberConfig::default()
        },
    );
    let held: Vec<_> = (0..3).map(|_| pool.pick(NOW).unwrap()).collect();
    assert_eq!(held.iter().filter(|lease| *lease.key() == "two").count(), 2);
    assert_eq!(pool.pick(NOW).unwrap_err(), NoMember::Full);
    drop(held);
    assert!(pool.pick(NOW).is_ok());
}

#[test]
fn the_local_go_first_and_the_remote_take_what_is_left_over() {
    let pool: Pool<&str, ()> = Pool::default();
    pool.insert(
        "far",
        (),
        MemberConfig {
            tier: Tier::Remote,
            ..MemberConfig::default()
        },
    );
    pool.insert(
        "near",
        (),
        MemberConfig {
            tier: Tier::Local,
            max_concurrency: 2,
            ..MemberConfig::default()
        },
    );
    let held: Vec<_> = (0..4).map(|_| pool.pick(NOW).unwrap()).collect();
    let keys: Vec<_> = held.iter().map(|lease| *lease.key()).collect();
    assert_eq!(keys, ["near", "near", "far", "far"]);
    let only_far = pool
        .pick_where(NOW, |member| member.tier() == Tier::Remote)
        .unwrap();
    assert_eq!(*only_far.key(), "far");
}

#[test]
fn excluding_everybody_leaves_nobody() {
    let pool = pool(Strategy::RoundRobin, &["a", "b"]);
    assert_eq!(*pool.pick_excluding(NOW, &["a"]).unwrap().key(), "b");
    assert_eq!(
        pool.pick_excluding(NOW, &["a", "b"]).unwrap_err(),
        NoMember::Empty
    );
}

#[test]
fn a_removed_member_finishes_what_it_has_and_gets_no_more() {
    let pool = pool(Strategy::RoundRobin, &["a", "b"]);
    let lease = pool.pick(NOW).unwrap();
    let removed = pool.remove(&"a").unwrap();
    assert_eq!((*lease.key(), removed.in_flight()), ("a", 1));
    assert_eq!(picks(&pool, 2), ["b", "b"]);
    drop(lease);
    assert_eq!(removed.in_flight(), 0);
    assert!(pool.remove(&"a").is_none());
    assert!(pool.member(&"a").is_none());
}

#[test]
fn a_member_that_joins_again_starts_afresh() {
    let pool: Pool<&str, u32> = Pool::default();
    pool.insert("a", 1, MemberConfig::default());
    let old = pool.pick(NOW).unwrap();
    let fresh = pool.insert("a", 2, MemberConfig::default());
    assert_eq!(pool.len(), 1);
    assert_eq!((*old.value(), fresh.in_flight()), (1, 0));
    assert!(Arc::ptr_eq(pool.pick(NOW).unwrap().member(), &fresh));
}

#[test]
fn a_group_knows_its_members_in_the_order_in_which_they_joined() {
    let pool: Pool<&str, u32> = Pool::default();
    for (value, key) in ["a", "b", "c"].into_iter().enumerate() {
        pool.insert(key, value as u32, MemberConfig::default());
    }
    // Whoever joins again keeps its place.
    pool.insert("b", 7, MemberConfig::default());
    let members = pool.members();
    let both: Vec<_> = members
        .iter()
        .map(|one| (*one.key(), *one.value()))
        .collect();
    assert_eq!(both, [("a", 0), ("b", 7), ("c", 2)]);
    assert_eq!((pool.len(), pool.is_empty()), (3, false));
    assert_eq!(pool.member(&"c").map(|one| *one.value()), Some(2));
    assert!(pool.member(&"d").is_none());
}

#[test]
fn a_member_without_a_bound_takes_any_number() {
    let pool = pool(Strategy::RoundRobin, &["a"]);
    let held: Vec<_> = (0..10_000).map(|_| pool.pick(NOW).unwrap()).collect();
    let member = pool.member(&"a").unwrap();
    assert_eq!((member.in_flight(), member.max_concurrency()), (10_000, 0));
    drop(held);
    assert_eq!(member.in_flight(), 0);
}
