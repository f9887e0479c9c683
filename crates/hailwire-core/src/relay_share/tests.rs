//! A relay's share in virtual time: members that send all they can beside members that send little.

use super::*;
use crate::testing::{draws, for_each_seed, start};

/// Seeds that once failed, each with what was wrong.
const KEPT: &[u64] = &[];

/// The largest frame that is sent here.
const FRAME: u32 = 60_000;

/// Everybody runs for so long.
const RUN: Duration = Duration::from_secs(4);

fn rate(bytes: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(bytes)
}

fn whole(bytes: u32) -> RelayRates {
    RelayRates {
        whole: rate(bytes),
        each: None,
    }
}

/// One who always has a frame to send.
#[derive(Debug)]
struct Greedy {
    member: u32,
    frame: u32,
    asks: Instant,
    until: Instant,
    carried: u64,
    /// What of it was carried after half of the time.
    late: u64,
}

/// One who sends small frames at even distances.
#[derive(Debug)]
struct Light {
    member: u32,
    frame: u32,
    every: Duration,
    next: Instant,
}

#[test]
fn those_that_send_all_they_can_get_equal_parts_and_those_that_send_little_never_wait() {
    for_each_seed(KEPT, 100, |seed| {
        let mut draw = draws(seed, 1);
        let begin = start();
        let end = begin + RUN;
        let all = 200_000 + draw(20_000_000);
        let mut share = RelayShare::new(whole(all));
        let greedy = 1 + draw(5);
        let light = draw(6);
        let members = greedy + light + 1;
        let mut greedy: Vec<Greedy> = (0..greedy)
            .map(|member| Greedy {
                member,
                frame: 1 + draw(FRAME),
                asks: begin,
                until: end,
                carried: 0,
                late: 0,
            })
            .collect();
        // One of them comes late, and one more leaves early.
        let half = begin + RUN / 2;
        greedy[0].asks = half;
        greedy.push(Greedy {
            member: 100,
            frame: 1 + draw(FRAME),
            asks: begin,
            until: half,
            carried: 0,
            late: 0,
        });
        let mut light: Vec<Light> = (0..light)
            .map(|number| {
                let frame = 1 + draw(1500);
                // At most nine tenths of an equal part.
                let every = time(u128::from(frame * (members + 1)), rate(all).unwrap()) * 10 / 9;
                Light {
                    member: 200 + number,
                    frame,
                    every,
                    next: begin + Duration::from_micros(draw(10_000).into()),
                }
            })
            .collect();
        let mut carried = 0u64;
        loop {
            let of_greedy = greedy.iter().map(|one| one.asks).min().unwrap();
            let of_light = light.iter().map(|one| one.next).min().unwrap_or(end);
            let now = of_greedy.min(of_light);
            if now >= end {
                break;
            }
            for one in light.iter_mut().filter(|one| one.next == now) {
                let passed = share.pass(one.member, one.frame as usize, now);
                assert_eq!(passed, Ok(()), "one that sends little waits");
                carried += u64::from(one.frame);
                one.next += one.every;
            }
            for one in greedy.iter_mut().filter(|one| one.asks == now) {
                if now >= one.until {
                    one.asks = end;
                    continue;
                }
                match share.pass(one.member, one.frame as usize, now) {
                    Ok(()) => {
                        carried += u64::from(one.frame);
                        one.carried += u64::from(one.frame);
                        one.late += if now >= half { one.frame.into() } else { 0 };
                    }
                    Err(again) => {
                        assert!(again > now && again <= now + ASK_AGAIN);
                        one.asks = again;
                    }
                }
            }
            let passed = now - begin;
            let most = passed.as_nanos() * u128::from(all) / UNIT;
            let ahead = u64::from(members + 1) * u64::from(FRAME).max(1500)
                + u64::from(members + 1) * burst(rate(all).unwrap());
            assert!(
                u128::from(carried) <= most + u128::from(ahead),
                "more than the rate allows"
            );
        }
        let slack = burst(rate(all).unwrap()) + 2 * u64::from(FRAME);
        // All that was there was used, but for a moment when somebody has left.
        let possible = RUN.as_nanos() * u128::from(all) / UNIT;
        let lost = u128::from(all) * 2 * ASK_AGAIN.as_millis() / 1000;
        if greedy.len() > 2 {
            assert!(
                u128::from(carried) + lost + u128::from(slack) >= possible,
                "too little"
            );
        }
        // Whoever was there all the time got as much as any other, and the one that came late no more from then on.
        let always = greedy
            .iter()
            .filter(|one| one.member != 0 && one.until == end);
        let got: Vec<u64> = always.clone().map(|one| one.carried).collect();
        let late: Vec<u64> = always.map(|one| one.late).collect();
        if let (Some(least), Some(most)) = (got.iter().min(), got.iter().max()) {
            assert!(most - least <= slack, "{got:?}");
            let of_late = greedy[0].late;
            assert!(late.iter().all(|one| one.abs_diff(of_late) <= 2 * slack));
        }
    });
}

/// What somebody gets who sends all that passes for a second.
fn second(share: &mut RelayShare<u8>, member: u8, begin: Instant) -> u64 {
    let (mut now, mut carried) = (begin, 0);
    while now < begin + Duration::from_secs(1) {
        match share.pass(member, 1000, now) {
            Ok(()) => carried += 1000,
            Err(again) => now = again,
        }
    }
    carried
}

#[test]
fn one_that_sends_alone_gets_the_whole_and_quiet_time_saves_up_nothing() {
    let begin = start();
    let mut share = RelayShare::new(whole(1_000_000));
    let first = second(&mut share, 1, begin);
    assert!((1_000_000..=1_000_000 + BURST + 1000).contains(&first));
    let later = begin + Duration::from_secs(3600);
    let again = second(&mut share, 1, later);
    assert!((1_000_000..=1_000_000 + BURST + 1000).contains(&again));
}

#[test]
fn a_members_own_rate_holds_though_the_relay_has_more() {
    let begin = start();
    let each = rate(200_000);
    for whole in [None, rate(10_000_000)] {
        let mut share = RelayShare::new(RelayRates { whole, each });
        for member in [1, 2] {
            let got = second(
                &mut share,
                member,
                begin + Duration::from_secs(member.into()),
            );
            assert!((200_000..=200_000 + BURST + 1000).contains(&got), "{got}");
        }
    }
}

#[test]
fn without_rates_everything_passes() {
    let begin = start();
    let rates = RelayRates::default();
    assert!(rates.unlimited() && !whole(1).unlimited());
    let mut share = RelayShare::new(rates);
    for _ in 0..1000 {
        assert_eq!(share.pass(1, usize::MAX, begin), Ok(()));
    }
    assert_eq!(share.worth_keeping(1), usize::MAX);
}

#[test]
fn what_is_worth_keeping_is_a_tenth_of_a_second_of_the_part() {
    let begin = start();
    let mut share = RelayShare::new(whole(1_000_000));
    assert_eq!(share.worth_keeping(1), 100_000);
    for member in 1..=4 {
        share.pass(member, 60_000, begin).unwrap();
    }
    assert_eq!(share.worth_keeping(1), 25_000);
    assert_eq!(share.worth_keeping(9), 20_000);
    let rates = RelayRates {
        whole: rate(1_000_000),
        each: rate(50_000),
    };
    assert_eq!(RelayShare::new(rates).worth_keeping(1), 5000);
}

#[test]
fn who_is_within_the_rates_is_forgotten() {
    let begin = start();
    let rates = RelayRates {
        whole: rate(1_000_000),
        each: rate(1_000_000),
    };
    let mut share = RelayShare::new(rates);
    for member in 0..100_000u32 {
        let now = begin + Duration::from_millis(10) * member;
        share.pass(member, 1000, now).unwrap();
        assert!(share.debts.len() <= 2 && share.order.len() == share.debts.len());
        assert!(share.own.len() <= 2 * REMEMBERED);
    }
}
