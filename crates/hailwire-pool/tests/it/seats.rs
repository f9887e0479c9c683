//! The choice among a fixed row of seats.

use std::{collections::HashSet, sync::Barrier, thread, time::Duration};

use hailwire_pool::{Availability, NoSlot, Outcome, SlotSet, Strategy};

fn row(count: usize, max: u32, strategy: Strategy) -> SlotSet {
    let seats = SlotSet::new(count, max, strategy);
    for seat in 0..count {
        seats.set_standing(seat, Availability::Good);
    }
    seats
}

/// As evenly spread as a good hash (splitmix64).
fn lot(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn shares(seats: &SlotSet, rounds: u64) -> Vec<u32> {
    let mut counts = vec![0; seats.count()];
    for n in 0..rounds {
        let seat = seats.choose(lot(n)).unwrap();
        counts[seat] += 1;
        seats.leave(seat);
    }
    counts
}

#[test]
fn a_row_begins_with_nobody_who_can_serve() {
    let seats = SlotSet::new(4, 0, Strategy::RoundRobin);
    assert_eq!(seats.choose(0), Err(NoSlot::Out));
    assert_eq!(seats.able(), 0);
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
    let seats = row(4, 0, Strategy::RoundRobin);
    seats.set_standing(2, Availability::Out);
    let picks: Vec<_> = (0..6).map(|_| seats.choose(0).unwrap()).collect();
    assert_eq!(picks, [0, 1, 3, 0, 1, 3]);
}

#[test]
fn the_least_loaded_is_chosen_and_every_seat_fills_evenly() {
    let seats = row(4, 0, Strategy::LeastLoaded);
    for n in 0..400 {
        seats.choose(lot(n)).unwrap();
    }
    assert_eq!(
        (0..4).map(|seat| seats.load(seat)).collect::<Vec<_>>(),
        [100; 4]
    );
    seats.leave(2);
    assert_eq!(seats.choose(lot(1)), Ok(2));
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
    let most = |seats: &SlotSet| (0..64).map(|seat| seats.load(seat)).max().unwrap();
    assert!(most(&many) <= 106 && most(&chance) > 110);
}

#[test]
fn a_seat_whose_calls_fail_gets_fewer_and_recovers() {
    let seats = row(4, 0, Strategy::HealthWeighted);
    for _ in 0..8 {
        seats.settle(1, Outcome::Failure, Duration::ZERO);
    }
    let before = shares(&seats, 40_000);
    assert!(before[1] < 2_000 && before[0] > 11_000, "{before:?}");
    for _ in 0..100 {
        seats.settle(1, Outcome::Success, Duration::ZERO);
    }
    assert_eq!(seats.score(1), 255);
}

#[test]
fn a_fair_seat_serves_where_no_good_one_has_room() {
    let seats = row(2, 1, Strategy::LeastLoaded);
    seats.set_standing(0, Availability::Fair);
    assert_eq!(seats.choose(0), Ok(1));
    assert_eq!(seats.choose(0), Ok(0));
    assert_eq!(seats.choose(0), Err(NoSlot::Full));
    seats.set_standing(0, Availability::Out);
    seats.leave(0);
    assert_eq!(
        seats.choose(0),
        Err(NoSlot::Full),
        "the good one is full still"
    );
}

#[test]
fn what_was_begun_goes_on_where_nothing_new_may() {
    let seats = row(1, 1, Strategy::RoundRobin);
    let seat = seats.choose(0).unwrap();
    seats.set_standing(seat, Availability::Out);
    seats.close();
    assert_eq!(seats.enter(seat), Err(NoSlot::Closed));
    seats.rejoin(seat);
    assert_eq!(seats.load(seat), 2);
    assert!(!seats.leave(seat) && seats.leave(seat));
}

#[test]
fn one_seat_can_be_excepted() {
    let seats = row(2, 0, Strategy::LeastLoaded);
    let picks: HashSet<_> = (0..100)
        .map(|n| seats.choose_but(lot(n), Some(1)))
        .collect();
    assert_eq!(picks, HashSet::from([Ok(0)]));
}

#[test]
fn a_closed_row_finishes_what_it_has_and_takes_nothing_new() {
    let seats = row(2, 0, Strategy::RoundRobin);
    let (first, second) = (seats.choose(0).unwrap(), seats.choose(0).unwrap());
    assert!(!seats.close());
    assert_eq!(seats.choose(0), Err(NoSlot::Closed));
    assert_eq!(seats.enter(0), Err(NoSlot::Closed));
    assert!(!seats.leave(first));
    assert!(
        seats.leave(second),
        "the last one says that the row is empty"
    );
    seats.open();
    assert!(!seats.is_closed() && seats.choose(0).is_ok());
}

#[test]
fn the_time_of_the_last_sign_of_life_is_kept() {
    let seats = row(1, 0, Strategy::RoundRobin);
    assert_eq!(seats.last_seen(0), None);
    seats.seen(0, Duration::from_millis(7));
    assert_eq!(seats.last_seen(0), Some(Duration::from_millis(7)));
    seats.settle(0, Outcome::Failure, Duration::from_millis(9));
    assert_eq!(seats.last_seen(0), Some(Duration::from_millis(7)));
    assert!(seats.look(1).is_none());
    let look = seats.look(0).unwrap();
    let before = look.last_seen();
    assert_eq!(before.at(), seats.last_seen(0));
    seats.seen(0, Duration::from_millis(8));
    seats.set_standing(0, Availability::Fair);
    seats.rejoin(0);
    assert!(look.last_seen() > before);
    assert_eq!((look.standing(), look.load()), (Availability::Fair, 1));
}

#[test]
fn the_bound_of_a_seat_holds_under_many_threads_and_every_place_comes_back() {
    for strategy in [Strategy::LeastLoaded, Strategy::TwoChoices] {
        let seats = row(3, 2, strategy);
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (seats, start) = (&seats, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 0..5_000 {
                        if let Ok(seat) = seats.choose(lot(thread << 32 | n)) {
                            assert!(seats.load(seat) <= 2);
                            seats.leave(seat);
                        }
                    }
                });
            }
        });
        assert_eq!(seats.in_flight(), 0);
    }
}

#[test]
fn who_can_serve_is_what_was_said_last_of_each_seat_however_many_say_it() {
    const KINDS: [Availability; 3] = [Availability::Good, Availability::Fair, Availability::Out];
    let seats = row(3, 1, Strategy::RoundRobin);
    for round in 0..2_000 {
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (seats, start) = (&seats, &start);
                scope.spawn(move || {
                    start.wait();
                    for seat in 0..3 {
                        let kind = lot(round << 8 | thread << 4 | seat) % 3;
                        seats.set_standing(seat as usize, KINDS[kind as usize]);
                    }
                });
            }
        });
        let stand: Vec<_> = (0..3).map(|seat| seats.standing(seat)).collect();
        let able = stand
            .iter()
            .filter(|kind| **kind != Availability::Out)
            .count();
        assert_eq!(seats.able() as usize, able, "{stand:?}");
        // The good ones first, then the fair ones, then nobody.
        let mut chosen = Vec::new();
        while let Ok(seat) = seats.choose(round) {
            chosen.push(seats.standing(seat));
            assert!(chosen.len() <= 3, "{stand:?}");
        }
        assert_eq!(chosen.len(), able, "{stand:?}");
        assert!(chosen.is_sorted(), "{stand:?}: {chosen:?}");
        (0..3)
            .filter(|seat| seats.load(*seat) > 0)
            .for_each(|seat| {
                seats.leave(seat);
            });
    }
}
