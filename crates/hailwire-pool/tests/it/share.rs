//! How many calls a member gets beside the others: by its weight, in its slow start, by its policy.

use std::time::Duration;

use hailwire_pool::{
    Lease, MemberConfig, MemberState, NoMember, Outcome, Pool, PoolConfig, PriorityPolicy,
    Strategy, Tier,
};

use crate::affine::draws;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How many of so many calls, with so many under way at once, each of these gets.
fn shares(pool: &Pool<usize, ()>, now: Duration, calls: usize, at_once: usize) -> Vec<usize> {
    let mut had = vec![0; pool.len()];
    let mut under_way = std::collections::VecDeque::new();
    for _ in 0..calls {
        let lease = pool.pick(now).unwrap();
        had[*lease.key()] += 1;
        under_way.push_back(lease);
        if under_way.len() >= at_once {
            under_way.pop_front();
        }
    }
    had
}

fn add(pool: &Pool<usize, ()>, key: usize, config: MemberConfig) {
    pool.insert(key, (), config);
}

#[test]
fn a_member_that_stands_for_four_gets_the_calls_of_four_busy_or_idle() {
    // Turns are whole, so that shares by turns alone are a tenth off.
    for (strategy, at_once, off) in [
        (Strategy::LeastLoaded, 1, 450),
        (Strategy::LeastLoaded, 50, 250),
        (Strategy::RoundRobin, 1, 450),
    ] {
        let pool = Pool::new(PoolConfig {
            strategy,
            ..PoolConfig::default()
        });
        for (key, stands_for) in [(0, 4), (1, 1), (2, 0)] {
            let config = MemberConfig {
                tier: Tier::Remote,
                stands_for,
                ..MemberConfig::default()
            };
            add(&pool, key, config);
        }
        let had = shares(&pool, at(0), 6_000, at_once);
        for (got, expected) in had.iter().zip([4_000, 1_000, 1_000]) {
            assert!(
                got.abs_diff(expected) <= off,
                "{strategy:?} {at_once}: {had:?}"
            );
        }
        pool.member(&0).unwrap().set_stands_for(1);
        let had = shares(&pool, at(0), 6_000, at_once);
        assert!(had.iter().all(|got| got.abs_diff(2_000) <= 120), "{had:?}");
    }
}

#[test]
fn a_member_in_its_slow_start_gets_a_growing_share_from_a_tenth_to_the_whole() {
    for at_once in [1, 40] {
        let pool = Pool::default();
        for key in 0..3 {
            add(&pool, key, MemberConfig::default());
        }
        let config = MemberConfig {
            slow_start: at(10_000),
            joined: at(1_000),
            ..MemberConfig::default()
        };
        add(&pool, 3, config);
        let mut got = Vec::new();
        for step in 0..=10 {
            let now = at(1_000 + step * 1_000);
            // The first of a step still pays for what the last one left.
            shares(&pool, now, 200, at_once);
            got.push(shares(&pool, now, 4_000, at_once)[3]);
        }
        assert!(got.windows(2).all(|two| two[1] + 60 >= two[0]), "{got:?}");
        assert!((60..=200).contains(&got[0]), "{got:?}");
        assert!(got[10].abs_diff(1_000) <= 60, "{got:?}");
        let state = pool.member(&3).unwrap().state(at(11_000));
        assert_eq!(state, MemberState::Healthy);
    }
}

#[test]
fn one_that_is_alone_gets_all_calls_in_its_slow_start_too() {
    let pool = Pool::default();
    let config = MemberConfig {
        slow_start: at(10_000),
        ..MemberConfig::default()
    };
    add(&pool, 0, config);
    assert_eq!(shares(&pool, at(1), 100, 1), [100]);
}

#[test]
fn a_member_that_was_down_starts_slowly_again() {
    let pool = Pool::default();
    let config = MemberConfig {
        slow_start: at(10_000),
        ..MemberConfig::default()
    };
    add(&pool, 0, config);
    let member = pool.member(&0).unwrap();
    assert_eq!(member.state(at(20_000)), MemberState::Healthy);
    for _ in 0..3 {
        member.report(Outcome::Failure, at(20_000));
    }
    assert_eq!(member.state(at(20_000)), MemberState::Down);
    let probe = pool.pick(at(30_000)).unwrap();
    assert!(probe.is_probe());
    probe.finish(Outcome::Success, at(30_000));
    assert_eq!(member.state(at(30_000)), MemberState::SlowStart);
}

fn of_policy(policy: PriorityPolicy, max_concurrency: u32) -> MemberConfig {
    MemberConfig {
        policy,
        max_concurrency,
        ..MemberConfig::default()
    }
}

#[test]
fn a_higher_number_is_called_only_where_no_lower_one_has_room() {
    let pool = Pool::default();
    add(&pool, 0, of_policy(PriorityPolicy::Prioritised(1), 0));
    add(&pool, 1, of_policy(PriorityPolicy::Prioritised(0), 2));
    add(&pool, 2, of_policy(PriorityPolicy::Prioritised(2), 0));
    let picked: Vec<Lease<usize, ()>> = (0..5).map(|_| pool.pick(at(1)).unwrap()).collect();
    let keys: Vec<usize> = picked.iter().map(|lease| *lease.key()).collect();
    assert_eq!(keys, [1, 1, 0, 0, 0]);
    for _ in 0..3 {
        pool.member(&0).unwrap().report(Outcome::Failure, at(1));
    }
    assert_eq!(*pool.pick(at(1)).unwrap().key(), 2, "0 is down and 1 full");
}

#[test]
fn an_overflow_member_is_called_once_all_others_have_so_many() {
    let pool = Pool::default();
    add(&pool, 0, MemberConfig::default());
    add(&pool, 1, MemberConfig::default());
    add(
        &pool,
        2,
        of_policy(PriorityPolicy::Overflow { above: 3 }, 0),
    );
    let mut picked: Vec<Lease<usize, ()>> = (0..6).map(|_| pool.pick(at(1)).unwrap()).collect();
    assert!(picked.iter().all(|lease| *lease.key() != 2));
    picked.extend((0..3).map(|_| pool.pick(at(1)).unwrap()));
    assert!(picked[6..].iter().all(|lease| *lease.key() == 2));
    drop(picked);
    assert_ne!(*pool.pick(at(1)).unwrap().key(), 2);
    pool.remove(&0);
    pool.remove(&1);
    assert_eq!(*pool.pick(at(1)).unwrap().key(), 2, "nobody else is there");
}

#[test]
fn of_pinned_members_one_has_all_calls_until_it_is_gone_down_or_idle() {
    let policy = PriorityPolicy::Pinned { idle: at(1_000) };
    let pool = Pool::default();
    for key in 0..3 {
        add(&pool, key, of_policy(policy, 0));
    }
    add(&pool, 9, MemberConfig::default());
    let first = *pool.pick(at(1)).unwrap().key();
    for ms in 2..500 {
        assert_eq!(*pool.pick(at(ms)).unwrap().key(), first);
    }
    let long = pool.pick(at(500)).unwrap();
    assert_eq!(*pool.pick(at(9_000)).unwrap().key(), first, "it is busy");
    drop(long);
    let second = *pool.pick(at(11_000)).unwrap().key();
    assert_ne!(second, first, "it was idle, and another's turn has come");
    for _ in 0..3 {
        pool.member(&second)
            .unwrap()
            .report(Outcome::Failure, at(11_000));
    }
    let third = *pool.pick(at(11_001)).unwrap().key();
    assert!(third != second && third != 9);
    pool.remove(&third);
    let fourth = *pool.pick(at(11_002)).unwrap().key();
    assert!(fourth != third && fourth != second && fourth != 9);
    pool.remove(&fourth);
    assert_eq!(
        *pool.pick(at(11_003)).unwrap().key(),
        9,
        "no pinned one is in service"
    );
}

#[test]
fn a_pinned_member_that_is_full_is_waited_for() {
    let policy = PriorityPolicy::Pinned { idle: at(1_000) };
    let pool = Pool::default();
    add(&pool, 0, of_policy(policy, 1));
    add(&pool, 1, of_policy(policy, 1));
    let held = pool.pick(at(1)).unwrap();
    assert_eq!(pool.pick(at(2)).unwrap_err(), NoMember::Full);
    drop(held);
    assert!(pool.pick(at(3)).is_ok());
}

#[test]
fn whatever_happens_policies_hold() {
    for seed in 0..3_000 {
        let mut draw = draws(seed);
        let pool: Pool<usize, ()> = Pool::default();
        let members = 2 + draw(5) as usize;
        for key in 0..members {
            let policy = match draw(3) {
                0 => PriorityPolicy::Overflow { above: 1 + draw(3) },
                _ => PriorityPolicy::Prioritised(draw(3) as u8),
            };
            add(&pool, key, of_policy(policy, draw(4)));
        }
        let mut under_way: Vec<Lease<usize, ()>> = Vec::new();
        for step in 0..200 {
            if draw(3) == 0 && !under_way.is_empty() {
                drop(under_way.swap_remove(draw(under_way.len() as u32) as usize));
                continue;
            }
            let regular = |policy| matches!(policy, PriorityPolicy::Prioritised(_));
            let list = pool.members();
            let others: Vec<u32> = list
                .iter()
                .filter(|m| regular(m.policy()))
                .map(|m| m.in_flight())
                .collect();
            let room = |m: &hailwire_pool::Member<usize, ()>| {
                m.max_concurrency() == 0 || m.in_flight() < m.max_concurrency()
            };
            let Ok(lease) = pool.pick(at(step)) else {
                // Nobody has room that may be called.
                let may = |m: &hailwire_pool::Member<usize, ()>| regular(m.policy()) && room(m);
                assert!(!list.iter().any(|m| may(m)), "seed {seed}");
                continue;
            };
            match lease.member().policy() {
                PriorityPolicy::Overflow { above } => {
                    assert!(others.iter().all(|calls| *calls >= above), "seed {seed}");
                }
                PriorityPolicy::Prioritised(number) => {
                    let lower = list.iter().filter(|m| match m.policy() {
                        PriorityPolicy::Prioritised(other) => other < number,
                        _ => false,
                    });
                    let lower: Vec<_> = lower.filter(|m| room(m)).collect();
                    assert!(lower.is_empty(), "seed {seed}: {lower:?}");
                }
                PriorityPolicy::Pinned { .. } => unreachable!("there is none"),
            }
            under_way.push(lease);
        }
    }
}
