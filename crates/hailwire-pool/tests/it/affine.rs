//! Affinity: where the calls of one key go.

use std::{collections::HashMap, time::Duration};

use hailwire_pool::{
    AffinityKey, Lease, Member, MemberConfig, MemberHealth, MemberPlace, NoMember, Outcome, Pool,
    Tier,
};

const NOW: Duration = Duration::from_secs(1);
const KEYS: u32 = 4000;

/// A member's node and its place there.
type Where = (u8, u64);

fn place((node, number): Where) -> MemberPlace {
    MemberPlace::new(&[node; 32], number)
}

fn join(pool: &Pool<Where, ()>, at: Where, max_concurrency: u32) {
    let config = MemberConfig {
        max_concurrency,
        place: place(at),
        ..MemberConfig::default()
    };
    pool.insert(at, (), config);
}

fn pool(members: impl IntoIterator<Item = Where>) -> Pool<Where, ()> {
    let pool = Pool::default();
    for member in members {
        join(&pool, member, 0);
    }
    pool
}

fn key(number: u32) -> AffinityKey {
    AffinityKey::of(format!("user-{number}").as_bytes())
}

fn pick(pool: &Pool<Where, ()>, number: u32, now: Duration) -> Result<Lease<Where, ()>, NoMember> {
    pool.pick_affine(now, key(number), |_| true)
}

/// Where each key goes.
fn owners(pool: &Pool<Where, ()>) -> Vec<Where> {
    (0..KEYS)
        .map(|number| *pick(pool, number, NOW).unwrap().key())
        .collect()
}

/// Numbers of a linear congruential generator (Knuth's MMIX), of which the upper half is used.
pub(crate) fn draws(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed;
    move |most| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % most
    }
}

#[test]
fn a_member_that_joins_takes_one_nth_of_the_keys_and_no_other_key_moves() {
    for nodes in 1..16_u8 {
        let pool = pool((0..nodes).map(|node| (node, 0)));
        let before = owners(&pool);
        let new = (nodes, 0);
        join(&pool, new, 0);
        let mut moved = 0;
        for (old, now) in before.iter().zip(owners(&pool)) {
            if *old != now {
                assert_eq!(now, new, "a key moved between two that were there");
                moved += 1;
            }
        }
        // Five standard deviations of as many throws of a die with that many sides.
        let share = f64::from(KEYS) / (f64::from(nodes) + 1.0);
        let most = share + 5.0 * share.sqrt();
        let least = share - 5.0 * share.sqrt();
        let moved = f64::from(moved);
        assert!(moved <= most && moved >= least, "{moved} of {share}");
    }
}

#[test]
fn only_the_keys_of_a_member_that_leaves_move_and_they_spread_over_the_others() {
    let pool = pool((0..5).map(|number| (1, number)));
    let before = owners(&pool);
    pool.remove(&(1, 2)).unwrap();
    let mut heirs: HashMap<Where, u32> = HashMap::new();
    for (old, now) in before.iter().zip(owners(&pool)) {
        match *old == (1, 2) {
            true => *heirs.entry(now).or_default() += 1,
            false => assert_eq!(*old, now),
        }
    }
    assert_eq!(heirs.len(), 4, "{heirs:?}");
    assert!(heirs.values().all(|keys| *keys > KEYS / 5 / 8), "{heirs:?}");
    // Whoever takes its place has its keys.
    join(&pool, (1, 2), 0);
    assert_eq!(owners(&pool), before);
}

/// The node of `here` sees its own members and the other node; from there it is the other way round.
#[test]
fn two_nodes_that_see_only_each_other_and_their_own_members_choose_the_same() {
    let here = pool([(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]);
    let there = pool([(1, 0), (2, 0), (2, 1), (3, 0)]);
    for (mine, theirs) in owners(&here).into_iter().zip(owners(&there)) {
        assert_eq!(mine.0, theirs.0);
    }
}

#[test]
fn neither_nearness_nor_load_moves_a_key() {
    let pool = pool([(1, 0), (1, 1)]);
    let config = MemberConfig {
        tier: Tier::Remote,
        place: place((2, 0)),
        ..MemberConfig::default()
    };
    pool.insert((2, 0), (), config);
    let before = owners(&pool);
    assert!(before.contains(&(2, 0)), "the remote one has keys too");
    let _held: Vec<_> = (0..100).map(|n| pick(&pool, n, NOW).unwrap()).collect();
    assert_eq!(owners(&pool), before);
}

#[test]
fn a_full_member_passes_a_key_on_and_gets_it_back() {
    let pool = Pool::default();
    join(&pool, (1, 0), 1);
    join(&pool, (1, 1), 1);
    let first = pick(&pool, 7, NOW).unwrap();
    let second = pick(&pool, 7, NOW).unwrap();
    assert_ne!(first.key(), second.key());
    assert_eq!(pick(&pool, 7, NOW).unwrap_err(), NoMember::Full);
    let own = *first.key();
    drop((first, second));
    assert_eq!(*pick(&pool, 7, NOW).unwrap().key(), own);
}

/// Whether a plain or an affine call may go to a member, by its health as anybody can read it.
fn is_in_service(member: &Member<Where, ()>, now: Duration) -> bool {
    !matches!(member.health(), MemberHealth::Down { until } if now < until)
}

/// In any order of joins, leaves, answers, failures and passing time, each call goes to a member that is in service and has room, and a
/// key's goes to the first of those in its own order, which is what a pool of them alone says.
#[test]
fn no_ejected_or_full_member_is_picked_while_another_can_take_the_call() {
    for seed in 0..3000 {
        let mut draw = draws(seed);
        let pool = Pool::default();
        let mut held: Vec<Lease<Where, ()>> = Vec::new();
        let mut now = NOW;
        for _ in 0..120 {
            match draw(10) {
                0 => join(&pool, (draw(3) as u8, u64::from(draw(3))), draw(3)),
                1 => drop(pool.remove(&(draw(3) as u8, u64::from(draw(3))))),
                2 => now += Duration::from_millis(u64::from(draw(900))),
                3 | 4 if !held.is_empty() => {
                    let lease = held.swap_remove(draw(held.len() as u32) as usize);
                    let outcome = match draw(3) {
                        0 => Outcome::Success,
                        _ => Outcome::Failure,
                    };
                    lease.finish(outcome, now);
                }
                _ => held.extend(picked_rightly(&pool, draw(50), now, seed)),
            }
        }
    }
}

/// A call of a key, held to what may be said of it from outside.
fn picked_rightly(
    pool: &Pool<Where, ()>,
    number: u32,
    now: Duration,
    seed: u64,
) -> Option<Lease<Where, ()>> {
    let members = pool.members();
    let able = |member: &Member<Where, ()>| {
        let bound = member.max_concurrency();
        is_in_service(member, now) && (bound == 0 || member.in_flight() < bound)
    };
    let able: Vec<Where> = members
        .iter()
        .filter(|member| able(member))
        .map(|member| *member.key())
        .collect();
    let expected = match able.is_empty() {
        true => None,
        false => {
            let alone = self::pool(able.iter().copied());
            Some(*pick(&alone, number, now).unwrap().key())
        }
    };
    let picked = pick(pool, number, now);
    let got = picked.as_ref().ok().map(|lease| *lease.key());
    assert_eq!(got, expected, "seed {seed}, key {number}, able {able:?}");
    picked.ok()
}
