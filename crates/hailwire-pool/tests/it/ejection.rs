//! Members that fail more often than the others are ejected, in virtual time.

use std::time::Duration;

use hailwire_pool::{
    HealthConfig, Lease, Member, MemberConfig, MemberState, NoMember, Outcome, OutlierConfig, Pool,
    PoolConfig,
};

use crate::affine::draws;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A group whose members are never down, so that what is seen is ejection alone.
fn group(members: usize) -> Pool<usize, ()> {
    let pool = Pool::new(PoolConfig {
        health: HealthConfig {
            failures_to_down: 255,
            backoff: at(1),
            backoff_max: at(1),
        },
        ..PoolConfig::default()
    });
    for key in 0..members {
        pool.insert(key, (), MemberConfig::default());
    }
    pool
}

/// Calls one after the other, a millisecond each; member 0 fails every `nth`. Returns how many each had.
fn call(pool: &Pool<usize, ()>, now: &mut Duration, calls: usize, nth: usize) -> Vec<usize> {
    let mut had = vec![0_usize; pool.len()];
    for _ in 0..calls {
        let lease = pool.pick(*now).unwrap();
        let key = *lease.key();
        had[key] += 1;
        let outcome = match key == 0 && had[0].is_multiple_of(nth) {
            true => Outcome::Failure,
            false => Outcome::Success,
        };
        *now += at(1);
        lease.finish(outcome, *now);
    }
    had
}

#[test]
fn a_member_that_fails_every_second_call_is_ejected_and_comes_back() {
    let (pool, mut now) = (group(3), at(1));
    call(&pool, &mut now, 10_001, 2);
    let had = call(&pool, &mut now, 1_000, 2);
    assert_eq!(had[0], 0, "{had:?}");
    assert_eq!(pool.member(&0).unwrap().state(now), MemberState::Ejected);
    now += OutlierConfig::default().ejection;
    let had = call(&pool, &mut now, 900, usize::MAX);
    assert_eq!(had[0], 300, "{had:?}");
}

#[test]
fn what_all_have_in_common_ejects_nobody() {
    let (pool, mut now) = (group(3), at(1));
    for call in 0..40_000 {
        let lease = pool.pick(now).unwrap();
        now += at(1);
        let outcome = match call % 4 {
            0 => Outcome::Success,
            _ => Outcome::Failure,
        };
        lease.finish(outcome, now);
    }
    let states: Vec<_> = pool.members().iter().map(|m| m.state(now)).collect();
    assert!(!states.contains(&MemberState::Ejected), "{states:?}");
}

fn in_service(member: &Member<usize, ()>, now: Duration) -> bool {
    !matches!(member.state(now), MemberState::Ejected | MemberState::Down)
}

#[test]
fn no_ejected_member_is_picked_while_another_is_in_service_and_never_all_are_ejected() {
    let (mut ejections, mut refused) = (0, 0);
    for seed in 0..3_000 {
        let mut draw = draws(seed);
        let members = 2 + draw(6) as usize;
        let pool: Pool<usize, ()> = Pool::new(PoolConfig {
            outliers: OutlierConfig {
                interval: at(2_000),
                min_calls: 5,
                ..OutlierConfig::default()
            },
            ..PoolConfig::default()
        });
        // How often each fails, of ten calls, and how many it takes at once.
        let mut fails: Vec<u32> = Vec::new();
        for key in 0..members {
            let config = MemberConfig {
                max_concurrency: draw(4),
                slow_start: at(u64::from(draw(3)) * 5_000),
                ..MemberConfig::default()
            };
            pool.insert(key, (), config);
            fails.push(draw(11));
        }
        let mut now = at(1);
        let mut under_way: Vec<Lease<usize, ()>> = Vec::new();
        for _ in 0..400 {
            now += at(u64::from(draw(300)));
            match draw(3) {
                0 => fails[draw(members as u32) as usize] = draw(11),
                1 if !under_way.is_empty() => {
                    let lease = under_way.swap_remove(draw(under_way.len() as u32) as usize);
                    let outcome = match draw(10) < fails[*lease.key()] {
                        true => Outcome::Failure,
                        false => Outcome::Success,
                    };
                    lease.finish(outcome, now);
                }
                _ => match pool.pick(now) {
                    Ok(lease) => {
                        if lease.member().state(now) == MemberState::Ejected {
                            let other = pool.members().iter().any(|m| in_service(m, now));
                            assert!(!other, "seed {seed}: an ejected one was picked");
                        }
                        under_way.push(lease);
                    }
                    Err(NoMember::Full) => refused += 1,
                    Err(NoMember::Down { .. } | NoMember::Empty) => {}
                },
            }
            let ejected =
                |m: &&std::sync::Arc<Member<usize, ()>>| m.state(now) == MemberState::Ejected;
            let out = pool.members().iter().filter(ejected).count();
            assert!(out < members && out <= (members / 2).max(1), "seed {seed}");
            ejections += out;
        }
    }
    assert!(
        ejections > 1_000 && refused > 1_000,
        "{ejections} {refused}"
    );
}
