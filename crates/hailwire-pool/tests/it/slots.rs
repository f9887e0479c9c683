//! The choice among a fixed row of slots.

use std::{collections::HashSet, sync::Barrier, thread, time::Duration};

use hailwire_pool::{Availability, NoSlot, Outcome, SlotSet, Strategy};

fn row(count: usize, max: u32, strategy: Strategy) -> SlotSet {
    let slots = SlotSet::new(count, max, strategy);
    for slot in 0..count {
        slots.set_availability(slot, Availability::Available);
    }
    slots
}

/// As evenly spread as a good hash (splitmix64).
fn lot(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn shares(slots: &SlotSet, rounds: u64) -> Vec<u32> {
    let mut counts = vec![0; slots.count()];
    for n in 0..rounds {
        let slot = slots.choose(lot(n)).unwrap();
        counts[slot] += 1;
        slots.release(slot);
    }
    counts
}

#[test]
fn a_row_begins_with_nobody_who_can_serve() {
    let slots = SlotSet::new(4, 0, Strategy::RoundRobin);
    assert_eq!(slots.choose(0), Err(NoSlot::Unavailable));
    assert_eq!(slots.available(), 0);
}

#[test]
fn every_strategy_spreads_calls_that_do_not_overlap() {
    for strategy in [
        Strategy::RoundRobin,
        Strategy::LeastLoaded,
        Strategy::HealthWeighted,
        Strategy::Random,
        Strategy::TwoChoices,
    ] {
        for count in shares(&row(4, 0, strategy), 40_000) {
            assert!((9_000..=11_000).contains(&count), "{strategy:?}: {count}");
        }
    }
}

#[test]
fn round_robin_gives_each_its_turn_and_skips_who_is_out() {
    let slots = row(4, 0, Strategy::RoundRobin);
    slots.set_availability(2, Availability::Unavailable);
    let picks: Vec<_> = (0..6).map(|_| slots.choose(0).unwrap()).collect();
    assert_eq!(picks, [0, 1, 3, 0, 1, 3]);
}

#[test]
fn the_least_loaded_is_chosen_and_every_slot_fills_evenly() {
    let slots = row(4, 0, Strategy::LeastLoaded);
    for n in 0..400 {
        slots.choose(lot(n)).unwrap();
    }
    assert_eq!(
        (0..4).map(|slot| slots.load(slot)).collect::<Vec<_>>(),
        [100; 4]
    );
    slots.release(2);
    assert_eq!(slots.choose(lot(1)), Ok(2));
}

#[test]
fn of_two_choices_the_emptier_is_taken() {
    let two = row(2, 0, Strategy::TwoChoices);
    for n in 0..100 {
        two.choose(lot(n)).unwrap();
    }
    assert_eq!((two.load(0), two.load(1)), (50, 50));

    let many = row(64, 0, Strategy::TwoChoices);
    let chance = row(64, 0, Strategy::Random);
    for n in 0..6_400 {
        many.choose(lot(n)).unwrap();
        chance.choose(lot(n)).unwrap();
    }
    let most = |slots: &SlotSet| (0..64).map(|slot| slots.load(slot)).max().unwrap();
    assert!(most(&many) <= 106 && most(&chance) > 110);
}

#[test]
fn a_slot_whose_calls_fail_gets_fewer_and_recovers() {
    let slots = row(4, 0, Strategy::HealthWeighted);
    for _ in 0..8 {
        slots.record(1, Outcome::Failure, Duration::ZERO);
    }
    let before = shares(&slots, 40_000);
    assert!(before[1] < 2_000 && before[0] > 11_000, "{before:?}");
    for _ in 0..100 {
        slots.record(1, Outcome::Success, Duration::ZERO);
    }
    assert_eq!(slots.score(1), 255);
}

#[test]
fn a_fair_slot_serves_where_no_good_one_has_room() {
    let slots = row(2, 1, Strategy::LeastLoaded);
    slots.set_availability(0, Availability::Degraded);
    assert_eq!(slots.choose(0), Ok(1));
    assert_eq!(slots.choose(0), Ok(0));
    assert_eq!(slots.choose(0), Err(NoSlot::Full));
    slots.set_availability(0, Availability::Unavailable);
    slots.release(0);
    assert_eq!(
        slots.choose(0),
        Err(NoSlot::Full),
        "the good one is full still"
    );
}

#[test]
fn what_was_begun_goes_on_where_nothing_new_may() {
    let slots = row(1, 1, Strategy::RoundRobin);
    let slot = slots.choose(0).unwrap();
    slots.set_availability(slot, Availability::Unavailable);
    slots.close();
    assert_eq!(slots.acquire(slot), Err(NoSlot::Closed));
    slots.reacquire(slot);
    assert_eq!(slots.load(slot), 2);
    assert!(!slots.release(slot) && slots.release(slot));
}

#[test]
fn one_slot_can_be_excepted() {
    let slots = row(2, 0, Strategy::LeastLoaded);
    let picks: HashSet<_> = (0..100)
        .map(|n| slots.choose_except(lot(n), Some(1)))
        .collect();
    assert_eq!(picks, HashSet::from([Ok(0)]));
}

#[test]
fn a_closed_row_finishes_what_it_has_and_takes_nothing_new() {
    let slots = row(2, 0, Strategy::RoundRobin);
    let (first, second) = (slots.choose(0).unwrap(), slots.choose(0).unwrap());
    assert!(!slots.close());
    assert_eq!(slots.choose(0), Err(NoSlot::Closed));
    assert_eq!(slots.acquire(0), Err(NoSlot::Closed));
    assert!(!slots.release(first));
    assert!(
        slots.release(second),
        "the last one says that the row is empty"
    );
    slots.open();
    assert!(!slots.is_closed() && slots.choose(0).is_ok());
}

#[test]
fn the_time_of_the_last_sign_of_life_is_kept() {
    let slots = row(1, 0, Strategy::RoundRobin);
    assert_eq!(slots.last_seen(0), None);
    slots.seen(0, Duration::from_millis(7));
    assert_eq!(slots.last_seen(0), Some(Duration::from_millis(7)));
    slots.record(0, Outcome::Failure, Duration::from_millis(9));
    assert_eq!(slots.last_seen(0), Some(Duration::from_millis(7)));
    assert!(slots.view(1).is_none());
    let look = slots.view(0).unwrap();
    let before = look.last_seen();
    assert_eq!(before.at(), slots.last_seen(0));
    slots.seen(0, Duration::from_millis(8));
    slots.set_availability(0, Availability::Degraded);
    slots.reacquire(0);
    assert!(look.last_seen() > before);
    assert_eq!(
        (look.availability(), look.load()),
        (Availability::Degraded, 1)
    );
}

#[test]
fn the_bound_of_a_slot_holds_under_many_threads_and_every_place_comes_back() {
    for strategy in [Strategy::LeastLoaded, Strategy::TwoChoices] {
        let slots = row(3, 2, strategy);
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (slots, start) = (&slots, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 0..5_000 {
                        if let Ok(slot) = slots.choose(lot(thread << 32 | n)) {
                            assert!(slots.load(slot) <= 2);
                            slots.release(slot);
                        }
                    }
                });
            }
        });
        assert_eq!(slots.in_flight(), 0);
    }
}

#[test]
fn who_can_serve_is_what_was_said_last_of_each_slot_however_many_say_it() {
    const KINDS: [Availability; 3] = [
        Availability::Available,
        Availability::Degraded,
        Availability::Unavailable,
    ];
    let slots = row(3, 1, Strategy::RoundRobin);
    for round in 0..2_000 {
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (slots, start) = (&slots, &start);
                scope.spawn(move || {
                    start.wait();
                    for slot in 0..3 {
                        let kind = lot(round << 8 | thread << 4 | slot) % 3;
                        slots.set_availability(slot as usize, KINDS[kind as usize]);
                    }
                });
            }
        });
        let stand: Vec<_> = (0..3).map(|slot| slots.availability(slot)).collect();
        let able = stand
            .iter()
            .filter(|kind| **kind != Availability::Unavailable)
            .count();
        assert_eq!(slots.available() as usize, able, "{stand:?}");
        // The good ones first, then the fair ones, then nobody.
        let mut chosen = Vec::new();
        while let Ok(slot) = slots.choose(round) {
            chosen.push(slots.availability(slot));
            assert!(chosen.len() <= 3, "{stand:?}");
        }
        assert_eq!(chosen.len(), able, "{stand:?}");
        assert!(chosen.is_sorted(), "{stand:?}: {chosen:?}");
        (0..3)
            .filter(|slot| slots.load(*slot) > 0)
            .for_each(|slot| {
                slots.release(slot);
            });
    }
}

#[test]
fn a_row_has_from_one_to_sixty_four_slots_and_one_that_there_is_not_does_nothing() {
    assert_eq!(SlotSet::new(0, 0, Strategy::Random).count(), 1);
    assert_eq!(SlotSet::new(100, 0, Strategy::Random).count(), 64);
    let slots = row(64, 0, Strategy::RoundRobin);
    assert_eq!(slots.available(), 64);
    assert_eq!(slots.acquire(63), Ok(()));
    for missing in [64, 65, 127, 128, usize::MAX] {
        slots.set_availability(missing, Availability::Available);
        slots.record(missing, Outcome::Failure, Duration::ZERO);
        slots.seen(missing, Duration::ZERO);
        slots.set_max(missing, 1);
        slots.renew(missing);
        slots.reacquire(missing);
        assert_eq!(slots.acquire(missing), Err(NoSlot::Unavailable));
        assert!(!slots.release(missing));
        assert_eq!(slots.availability(missing), Availability::Unavailable);
        assert_eq!(slots.last_seen(missing), None);
        assert_eq!((slots.load(missing), slots.score(missing)), (0, 0));
        // Nor is any other excepted with it.
        let chosen = slots.choose_except(0, Some(missing)).unwrap();
        assert!(!slots.release(chosen), "the row is not closed");
    }
    assert_eq!((slots.available(), slots.in_flight()), (64, 1));
}

#[test]
fn a_slot_takes_as_many_calls_as_was_said_last_and_keeps_what_it_has_beyond() {
    let slots = row(1, 2, Strategy::RoundRobin);
    assert_eq!((slots.acquire(0), slots.acquire(0)), (Ok(()), Ok(())));
    assert_eq!(slots.acquire(0), Err(NoSlot::Full));
    slots.set_max(0, 3);
    assert_eq!(slots.acquire(0), Ok(()));
    slots.set_max(0, 1);
    assert_eq!((slots.acquire(0), slots.load(0)), (Err(NoSlot::Full), 3));
    slots.release(0);
    slots.release(0);
    assert_eq!(slots.acquire(0), Err(NoSlot::Full));
    for any in [0, u32::MAX] {
        slots.set_max(0, any);
        (0..1_000).for_each(|_| assert_eq!(slots.acquire(0), Ok(())));
    }
    assert_eq!(slots.in_flight(), 2_001);
}

#[test]
fn a_good_call_takes_a_score_an_eighth_of_its_way_up_and_a_failed_one_a_quarter_down() {
    let slots = row(2, 0, Strategy::HealthWeighted);
    let scores = |outcome, times| -> Vec<u32> {
        let score = |_| {
            slots.record(0, outcome, Duration::ZERO);
            slots.score(0)
        };
        (0..times).map(score).collect()
    };
    assert_eq!(
        scores(Outcome::Success, 2),
        [255, 255],
        "no better than best"
    );
    assert_eq!(scores(Outcome::Failure, 4), [192, 144, 108, 81]);
    assert_eq!(scores(Outcome::Success, 4), [102, 121, 137, 151]);
    // It always moves, and never to nothing: a slot without a score would never be tried again.
    assert_eq!(scores(Outcome::Failure, 40).last(), Some(&1));
    assert_eq!(scores(Outcome::Success, 60).last(), Some(&255));
    assert_eq!(slots.score(1), 255, "the other slot's own");
    scores(Outcome::Failure, 1);
    slots.renew(0);
    assert_eq!(slots.score(0), 255);
}

#[test]
fn slots_are_weighted_by_their_scores() {
    let slots = row(4, 0, Strategy::HealthWeighted);
    for (slot, failures) in [(1, 2), (2, 40), (3, 8)] {
        (0..failures).for_each(|_| slots.record(slot, Outcome::Failure, Duration::ZERO));
    }
    let scores: Vec<u32> = (0..4).map(|slot| slots.score(slot)).collect();
    assert_eq!(scores, [255, 144, 1, 27]);
    let counts = shares(&slots, 42_700);
    for (slot, count) in counts.iter().enumerate() {
        // A hundred for each point, but for chance.
        let expected = scores[slot] * 100;
        let near = count.abs_diff(expected) <= 60 + expected / 30;
        assert!(near, "{count} of slot {slot}, not {expected}");
    }
}

#[test]
fn of_two_choices_each_pair_is_as_likely() {
    let slots = row(4, 0, Strategy::TwoChoices);
    for slot in 0..4 {
        (0..slot * 10).for_each(|_| assert_eq!(slots.acquire(slot), Ok(())));
    }
    let counts = shares(&slots, 60_000);
    // Of six pairs three have the emptiest slot, two the next, one the third; none has only the fullest.
    for (slot, expected) in [30_000_u32, 20_000, 10_000, 0].into_iter().enumerate() {
        let near = counts[slot].abs_diff(expected) <= expected / 30;
        assert!(near, "{counts:?}");
    }
    let alone = row(1, 0, Strategy::TwoChoices);
    assert_eq!(shares(&alone, 100), [100]);
}

#[test]
fn the_least_loaded_is_found_wherever_the_search_begins() {
    for least in 0..5 {
        let slots = row(5, 0, Strategy::LeastLoaded);
        for slot in 0..5 {
            let calls = if slot == least { 3 } else { 4 + slot };
            (0..calls).for_each(|_| assert_eq!(slots.acquire(slot), Ok(())));
        }
        for n in 0..200 {
            let slot = slots.choose(lot(n)).unwrap();
            assert_eq!(slot, least);
            slots.release(slot);
        }
    }
}

#[test]
fn a_closed_row_is_empty_only_when_its_last_slot_is() {
    let slots = row(3, 0, Strategy::RoundRobin);
    assert!(slots.close() && slots.is_closed(), "it is empty already");
    slots.open();
    assert!(!slots.is_closed());
    for slot in [0, 0, 2] {
        assert_eq!(slots.acquire(slot), Ok(()));
    }
    assert!(!slots.release(2) && !slots.release(0), "it is open");
    assert_eq!(slots.acquire(2), Ok(()));
    assert!(!slots.close());
    assert_eq!((slots.load(0), slots.load(2), slots.in_flight()), (1, 1, 2));
    assert!(!slots.release(2), "slot 0 has a call still");
    assert!(slots.release(0));
}

#[test]
fn a_sign_of_life_is_kept_to_the_millisecond_and_so_is_that_of_a_good_call() {
    let slots = row(2, 0, Strategy::RoundRobin);
    slots.seen(0, Duration::ZERO);
    assert_eq!(slots.last_seen(0), Some(Duration::ZERO));
    slots.seen(0, Duration::from_micros(61_234_999));
    assert_eq!(slots.last_seen(0), Some(Duration::from_millis(61_234)));
    slots.seen(0, Duration::from_secs(1));
    assert_eq!(slots.last_seen(0), Some(Duration::from_millis(61_234)));
    assert_eq!(slots.last_seen(1), None);
    slots.record(1, Outcome::Success, Duration::from_secs(3));
    assert_eq!(slots.last_seen(1), Some(Duration::from_secs(3)));
}
