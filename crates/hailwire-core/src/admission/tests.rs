//! The table of slots in virtual time.

use std::{collections::HashMap, net::IpAddr};

use super::*;
use crate::testing::{for_each_seed, start};

const SHARES: AdmissionShares = AdmissionShares {
    all: 16,
    per_host: 6,
    per_network: 10,
    spared_new: Duration::from_millis(100),
    spared_busy: Duration::from_secs(3),
};

fn address(network: u8, host: u8) -> IpAddr {
    IpAddr::from([10, 0, network, host])
}

fn enter(
    slots: &mut AdmissionTable,
    now: Instant,
    address: IpAddr,
) -> Option<(AdmissionSlotId, Option<AdmissionSlotId>)> {
    match slots.enter(now, RemoteSource::address(address)) {
        Admission::Granted { slot, displaced } => Some((slot, displaced)),
        Admission::Full => None,
    }
}

#[test]
fn a_host_at_its_bound_displaces_its_own_oldest_and_nobody_else() {
    let now = start();
    let mut slots = AdmissionTable::new(SHARES);
    let (other, _) = enter(&mut slots, now, address(1, 1)).unwrap();
    let first: Vec<_> = (0..6)
        .map(|_| enter(&mut slots, now, address(2, 1)).unwrap().0)
        .collect();
    assert_eq!(enter(&mut slots, now, address(2, 1)), None, "all spared");
    let later = now + SHARES.spared_new;
    for (n, expected) in first.iter().enumerate() {
        let (_, displaced) = enter(&mut slots, later, address(2, 1)).unwrap();
        assert_eq!(displaced, Some(*expected), "the {n}th");
    }
    slots.leave(other);
    assert_eq!(slots.len(), 6);
}

#[test]
fn who_goes_on_is_spared_once_and_not_for_ever() {
    let now = start();
    let mut slots = AdmissionTable::new(AdmissionShares {
        spared_new: Duration::ZERO,
        ..SHARES
    });
    let (busy, _) = enter(&mut slots, now, address(1, 1)).unwrap();
    slots.goes_on(now, busy);
    for _ in 0..100 {
        let (_, displaced) = enter(&mut slots, now, address(1, 1)).unwrap();
        assert_ne!(displaced, Some(busy));
    }
    slots.goes_on(now + Duration::from_secs(2), busy);
    let later = now + SHARES.spared_busy;
    let (_, displaced) = enter(&mut slots, later, address(1, 1)).unwrap();
    assert_eq!(displaced, Some(busy));
}

#[test]
fn a_newcomer_displaces_the_network_that_has_most_even_one_that_is_spared() {
    let now = start();
    let mut slots = AdmissionTable::new(SHARES);
    for host in 0..10 {
        enter(&mut slots, now, address(1, host)).unwrap();
    }
    for host in 0..6 {
        enter(&mut slots, now, address(2, host)).unwrap();
    }
    let (slot, displaced) = enter(&mut slots, now, address(3, 1)).unwrap();
    assert!(displaced.is_some() && slots.len() == SHARES.all);
    slots.leave(slot);
}

/// A small generator (SplitMix64), so that a seed says everything.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// What a table of slots must hold to, followed by a plain count beside it.
fn follow(seed: u64) {
    let mut draw = Draw(seed);
    let mut now = start();
    let mut slots = AdmissionTable::new(SHARES);
    let mut here: HashMap<AdmissionSlotId, IpAddr> = HashMap::new();
    let network = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.octets()[2],
        IpAddr::V6(_) => unreachable!(),
    };
    for step in 0..300 {
        now += Duration::from_millis(draw.below(80));
        // Network 0 is where most come from.
        let at = if draw.below(4) == 0 { draw.below(9) } else { 0 };
        let from = address(at as u8, draw.below(4) as u8);
        let held = |here: &HashMap<AdmissionSlotId, IpAddr>, at: u8| {
            here.values().filter(|other| network(other) == at).count()
        };
        match draw.below(4) {
            0 | 1 => {
                let own = held(&here, network(&from));
                let most = (0..9).map(|at| held(&here, at)).max().unwrap_or(0);
                match enter(&mut slots, now, from) {
                    Some((slot, displaced)) => {
                        if let Some(displaced) = displaced {
                            let lost = here.remove(&displaced).expect("somebody who was here");
                            let of_lost = held(&here, network(&lost)) + 1;
                            let fair = network(&lost) == network(&from)
                                || of_lost == most
                                || most <= own + 1;
                            assert!(fair, "seed {seed}, step {step}: {lost} for {from}");
                        }
                        here.insert(slot, from);
                    }
                    None => assert!(
                        own > 0 || most <= 1,
                        "seed {seed}, step {step}: {from} has nothing and {most} are of one network"
                    ),
                }
            }
            2 => {
                let slot = here.keys().min_by_key(|_| draw.below(100)).copied();
                if let Some(slot) = slot {
                    slots.goes_on(now, slot);
                }
            }
            _ => {
                if let Some(slot) = here.keys().min().copied() {
                    here.remove(&slot);
                    slots.leave(slot);
                }
            }
        }
        assert_eq!(slots.len(), here.len(), "seed {seed}, step {step}");
        assert!(here.len() <= SHARES.all);
        for at in 0..9 {
            assert!(held(&here, at) <= SHARES.per_network);
            for host in 0..4 {
                let same = here.values().filter(|other| **other == address(at, host));
                assert!(same.count() <= SHARES.per_host, "seed {seed}, step {step}");
            }
        }
    }
    for slot in here.into_keys() {
        slots.leave(slot);
    }
    assert_eq!(slots.len(), 0);
}

/// Seeds that once failed, each with what was wrong.
const KEPT: &[u64] = &[];

#[test]
fn whoever_has_no_slot_gets_one_from_a_network_that_has_several_whatever_comes() {
    for_each_seed(KEPT, 2_000, follow);
}
