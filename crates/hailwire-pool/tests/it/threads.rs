//! The pool under many threads at once.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use hailwire_pool::{MemberConfig, NoMember, Outcome, Pool, PoolConfig, Strategy};

const NOW: Duration = Duration::from_secs(1);
const THREADS: usize = 8;

#[test]
fn the_bound_of_a_member_holds_and_every_slot_comes_back() {
    const MAX: u32 = 3;
    let pool: Pool<usize, AtomicU32> = Pool::default();
    for key in 0..2 {
        let config = MemberConfig {
            max_concurrency: MAX,
            ..MemberConfig::default()
        };
        pool.insert(key, AtomicU32::new(0), config);
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..2_000 {
                    let lease = match pool.pick(NOW) {
                        Ok(lease) => lease,
                        Err(NoMember::Full) => continue,
                        Err(other) => panic!("{other}"),
                    };
                    assert!(lease.value().fetch_add(1, Ordering::SeqCst) < MAX);
                    lease.value().fetch_sub(1, Ordering::SeqCst);
                    if (thread + round) % 3 == 0 {
                        drop(lease);
                    } else {
                        lease.finish(Outcome::Success, NOW);
                    }
                }
            });
        }
    });
    assert!(pool.members().iter().all(|member| member.in_flight() == 0));
}

#[test]
fn threads_that_pick_together_share_the_members_evenly() {
    const MAX_RETRIES: u32 = 1_000;
    let pool: Pool<usize, AtomicU32> = Pool::new(PoolConfig {
        strategy: Strategy::RoundRobin,
        ..PoolConfig::default()
    });
    for key in 0..THREADS {
        pool.insert(key, AtomicU32::new(0), MemberConfig::default());
    }
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..MAX_RETRIES {
                    pool.pick(NOW)
                        .unwrap()
                        .value()
                        .fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    // A thread that was interrupted between its turn and its pick may displace others by one.
    for member in pool.members().iter() {
        let picks = member.value().load(Ordering::Relaxed);
        assert!(
            picks.abs_diff(MAX_RETRIES) <= MAX_RETRIES / 10,
            "{picks} picks"
        );
    }
}

#[test]
fn exactly_one_thread_gets_the_probe() {
    for round in 0..200 {
        let pool: Pool<(), ()> = Pool::default();
        let member = pool.insert((), (), MemberConfig::default());
        for _ in 0..3 {
            member.report(Outcome::Failure, Duration::ZERO);
        }
        let start = Barrier::new(4);
        let probes = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    match pool.pick(NOW) {
                        Ok(lease) => {
                            assert!(lease.is_probe());
                            probes.fetch_add(1, Ordering::SeqCst);
                            lease.finish(Outcome::Failure, NOW);
                        }
                        Err(reason) => assert!(matches!(reason, NoMember::Down { .. })),
                    }
                });
            }
        });
        assert_eq!(probes.into_inner(), 1, "round {round}");
    }
}

#[test]
fn members_come_and_go_while_others_pick() {
    let pool: Pool<u32, ()> = Pool::default();
    pool.insert(0, (), MemberConfig::default());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    // Member 0 never leaves, so that there is always somebody.
                    pool.pick(NOW).unwrap().finish(Outcome::Success, NOW);
                }
            });
        }
        for round in 0..500 {
            pool.insert(1 + round % 7, (), MemberConfig::default());
            pool.remove(&(1 + (round + 3) % 7));
        }
        done.store(true, Ordering::Release);
    });
    assert!(pool.members().iter().all(|member| member.in_flight() == 0));
}
