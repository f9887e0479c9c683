use std::collections::VecDeque;

use super::*;
use crate::testing::{draws, for_each_seed, node};

fn pattern(text: &str) -> TopicPattern {
    text.parse().unwrap()
}

fn topic(text: &str) -> Topic {
    text.parse().unwrap()
}

const BOUNDS: KeptBounds = KeptBounds {
    max_bytes: 1000,
    max_messages: Some(10),
    max_age_ms: Some(100),
    last_per_topic: false,
};

fn rules(patterns: &[&str]) -> KeptRules {
    let numbered = patterns.iter().zip(1..);
    let rule = |(text, id): (&&str, i64)| KeptRule {
        id,
        pattern: pattern(text),
        bounds: BOUNDS,
    };
    KeptRules::new(numbered.map(rule).collect())
}

#[test]
fn a_message_belongs_to_one_pattern_and_state_to_its_own() {
    let rules = rules(&["state.>", "build.>", "*.price", ">"]);
    let of = |text| rules.of(&topic(text)).map(|rule| rule.id);
    assert_eq!(of("state.build.web"), Some(1));
    assert_eq!(of("state.price"), Some(1));
    assert_eq!(of("build.price"), Some(2));
    assert_eq!(of("oil.price"), Some(3));
    assert_eq!(of("other"), Some(4));
    assert_eq!(of("state"), Some(4), "it is a topic like others");
    assert_eq!(KeptRules::default().of(&topic("a")), None);
}

#[test]
fn patterns_that_overlap_are_too_many_or_too_large_are_refused() {
    let few = rules(&["state.>", "build.>"]);
    let check = |text: &str, bounds| few.check(&pattern(text), &bounds);
    assert_eq!(check("price.*", BOUNDS), Ok(()));
    assert_eq!(check("build.>", BOUNDS), Ok(()), "with other bounds");
    let overlaps = Err(KeepRefusal::Overlaps(pattern("build.>")));
    for overlapping in ["build.web", "*.done", ">", "build.*.done"] {
        assert_eq!(check(overlapping, BOUNDS), overlaps, "{overlapping}");
    }
    let alone = rules(&["state.>"]);
    assert_eq!(alone.check(&pattern(">"), &BOUNDS), Ok(()));
    for state in ["state.>", "state.a"] {
        assert_eq!(check(state, BOUNDS), Err(KeepRefusal::State));
    }
    for nothing in [
        KeptBounds {
            max_bytes: 0,
            ..BOUNDS
        },
        KeptBounds {
            max_messages: Some(0),
            ..BOUNDS
        },
        KeptBounds {
            max_age_ms: Some(0),
            ..BOUNDS
        },
    ] {
        assert_eq!(check("price", nothing), Err(KeepRefusal::Nothing));
    }
    let huge = KeptBounds {
        max_bytes: MAX_KEPT_BYTES - 1000,
        ..BOUNDS
    };
    assert_eq!(check("price", huge), Err(KeepRefusal::NoRoom));
    assert_eq!(check("build.>", huge), Ok(()));
    let many: Vec<String> = (0..MAX_KEPT_PATTERNS).map(|n| format!("a{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let many = rules(&many);
    assert_eq!(
        many.check(&pattern("b"), &BOUNDS),
        Err(KeepRefusal::TooMany)
    );
    assert_eq!(many.check(&pattern("a1"), &BOUNDS), Ok(()));
}

/// Messages come and time passes, in any order: what is kept fits, is the newest, and is no more than was necessary.
#[test]
fn what_exceeds_a_bound_goes_oldest_first_and_nothing_else_does() {
    for_each_seed(&[], 5_000, |seed| {
        let mut draw = draws(seed, 1);
        let bounds = KeptBounds {
            max_bytes: 100 + u64::from(draw(1000)),
            max_messages: (draw(2) == 0).then(|| 1 + u64::from(draw(20))),
            max_age_ms: (draw(2) == 0).then(|| 1 + u64::from(draw(200))),
            last_per_topic: false,
        };
        let mut kept: VecDeque<(u64, u64)> = VecDeque::new();
        let mut usage = KeptUsage::default();
        let mut now = 1000;
        for _ in 0..200 {
            now += u64::from(draw(20));
            let size = 1 + u64::from(draw(150));
            let comes = draw(3) > 0 && bounds.admits(usage, size);
            assert!(size <= 100 || size <= bounds.max_bytes || !comes);
            if comes {
                kept.push_back((now, size));
                usage.bytes += size;
                usage.messages += 1;
            }
            while let Some((at_ms, size)) = kept.front().copied() {
                let oldest = RemovalCandidate {
                    at_ms,
                    deleted: false,
                };
                if !bounds.removes(now, usage, oldest) {
                    break;
                }
                let too_old = bounds.max_age_ms.is_some_and(|age| at_ms + age <= now);
                let too_much = usage.bytes > bounds.max_bytes
                    || bounds
                        .max_messages
                        .is_some_and(|most| usage.messages > most);
                assert!(too_old || too_much, "it had to go");
                kept.pop_front();
                usage.bytes -= size;
                usage.messages -= 1;
            }
            assert!(usage.bytes <= bounds.max_bytes);
            assert!(
                bounds
                    .max_messages
                    .is_none_or(|most| usage.messages <= most)
            );
            if let Some(age) = bounds.max_age_ms {
                assert!(kept.iter().all(|(at, _)| at + age > now));
            }
            assert!(!comes || kept.back().is_some_and(|last| last.0 == now));
        }
    });
}

#[test]
fn a_value_is_never_the_one_that_makes_room_and_a_deletion_goes_with_age() {
    let bounds = KeptBounds::of_state();
    let full = KeptUsage {
        bytes: STATE_BYTES,
        messages: STATE_KEYS,
    };
    assert!(bounds.admits(full, 10));
    let over = KeptUsage {
        messages: STATE_KEYS + 1,
        ..full
    };
    assert!(!bounds.admits(over, 10));
    let value = RemovalCandidate {
        at_ms: 5,
        deleted: false,
    };
    let deletion = RemovalCandidate {
        deleted: true,
        ..value
    };
    assert!(!bounds.removes(u64::MAX, over, value));
    assert!(!bounds.removes(DELETED_AGE_MS + 4, full, deletion));
    assert!(bounds.removes(DELETED_AGE_MS + 5, full, deletion));
    let short = KeptBounds {
        max_age_ms: Some(10),
        ..bounds
    };
    assert_eq!(short.expires_at(value), Some(15));
    assert_eq!(short.expires_at(deletion), Some(15));
}

/// A log, a program that reads it under a name, both it and its node dying at any point, and confirmations that come late or twice: nothing is skipped,
/// and nothing comes again that was confirmed before the reading began.
#[test]
fn what_was_not_confirmed_comes_again_and_what_was_does_not() {
    for_each_seed(&[], 5_000, |seed| {
        let mut draw = draws(seed, 2);
        let (one, log) = (node(1), 7);
        let (mut head, mut reading) = (0, 0);
        // What the disk says outlives the node; what was handed out does not.
        let (mut written, mut handed) = (None, None::<u64>);
        let mut positions = NamedPositions::default();
        for _ in 0..300 {
            let done = written.map_or(0, |at: LogPosition| at.number);
            match draw(8) {
                0..=1 => head += u64::from(draw(4)),
                2..=4 if reading < head => {
                    reading += 1;
                    handed = handed.max(Some(reading));
                    let number = reading;
                    positions.handle_handed(one, LogPosition { log, number });
                }
                5 => {
                    // Late, in any order, or of what was never handed out.
                    let number = u64::from(draw(u32::try_from(head).unwrap() + 3));
                    let was_handed = handed.is_some_and(|handed| number <= handed);
                    let position = LogPosition { log, number };
                    let outcome = positions.handle_confirmed(one, position);
                    let news = (written.is_none() || number > done).then_some(position);
                    assert_eq!(
                        outcome,
                        if was_handed {
                            Ok(news)
                        } else {
                            Err(NotHandedOut)
                        }
                    );
                    written = outcome.ok().flatten().or(written);
                }
                6 => {
                    // The program dies, and perhaps the node; another goes on.
                    if draw(2) == 0 {
                        positions = NamedPositions::new(written.map(|at| (one, at)));
                        handed = None;
                    }
                    assert_eq!(positions.confirmed(one), written);
                    reading = done;
                }
                _ => {}
            }
            assert!(reading <= head);
        }
    });
}

#[test]
fn a_log_that_was_lost_is_another_one() {
    let mut positions = NamedPositions::default();
    let (old, new) = (
        LogPosition { log: 1, number: 50 },
        LogPosition { log: 2, number: 3 },
    );
    assert_eq!(positions.handle_confirmed(node(1), old), Err(NotHandedOut));
    positions.handle_handed(node(1), old);
    assert_eq!(positions.handle_confirmed(node(1), old), Ok(Some(old)));
    positions.handle_handed(node(1), new);
    assert_eq!(positions.handle_confirmed(node(1), old), Err(NotHandedOut));
    assert_eq!(positions.handle_confirmed(node(1), new), Ok(Some(new)));
    assert_eq!(positions.confirmed(node(1)), Some(new));
    assert_eq!(positions.confirmed(node(2)), None);
}
