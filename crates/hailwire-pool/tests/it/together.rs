//! The breaker and the affinity table under many threads at once.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use hailwire_pool::{AffinityConfig, AffinityTable, BreakerState, CircuitBreaker};

const NOW: Duration = Duration::from_secs(100);

/// As evenly spread as a good hash (splitmix64).
fn hash(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[test]
fn threads_that_place_one_request_agree_where() {
    let mut table = AffinityTable::new(AffinityConfig::default());
    for round in 0..2_000 {
        // Every other time it is new, and has its memory still to be made.
        if round % 2 == 0 {
            table = AffinityTable::new(AffinityConfig::default());
        }
        let start = Barrier::new(4);
        let slots: Vec<u16> = thread::scope(|scope| {
            let place = |slot| {
                let (table, start) = (&table, &start);
                scope.spawn(move || {
                    start.wait();
                    table.bind(hash(round), slot, NOW)
                })
            };
            let placing: Vec<_> = (0..4).map(place).collect();
            placing
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(slots.iter().all(|slot| *slot == slots[0]), "{slots:?}");
        assert_eq!(table.slot(hash(round), NOW), Some(slots[0]));
    }
}

#[test]
fn no_thread_disturbs_the_requests_of_another() {
    let table = AffinityTable::new(AffinityConfig::default());
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let table = &table;
            scope.spawn(move || {
                for n in 0..20_000 {
                    let id = hash(thread << 32 | n);
                    let slot = u16::try_from(n % 64).unwrap();
                    assert_eq!(table.bind(id, slot, NOW), slot);
                    assert_eq!(table.slot(id, NOW), Some(slot));
                    // One of four stays, so that the table fills meanwhile.
                    if n % 4 != 0 {
                        assert!(table.remove(id));
                        assert_eq!(table.slot(id, NOW), None);
                    }
                }
            });
        }
    });
    assert_eq!(table.len(NOW), 8 * 5_000);
}

#[test]
fn exactly_one_thread_gets_the_breakers_probe() {
    for round in 0..200 {
        let breaker = CircuitBreaker::default();
        for _ in 0..5 {
            breaker.failed(breaker.enter(Duration::ZERO).unwrap(), Duration::ZERO);
        }
        let (start, probes) = (Barrier::new(4), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    if let Some(permit) = breaker.enter(NOW) {
                        assert!(permit.is_probe());
                        probes.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(probes.into_inner(), 1, "round {round}");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}
