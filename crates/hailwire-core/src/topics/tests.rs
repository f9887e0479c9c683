use std::collections::HashSet;

use super::*;
use crate::testing::{draws, for_each_seed, node};

fn pattern(text: &str) -> TopicPattern {
    text.parse().unwrap()
}

fn topic(text: &str) -> Topic {
    text.parse().unwrap()
}

fn patterns(texts: &[&str]) -> Vec<TopicPattern> {
    texts.iter().map(|text| pattern(text)).collect()
}

fn all<R: Clone>(table: &mut TopicTable<R>, number: SubscriberNumber) -> Vec<R> {
    let mut records = Vec::new();
    while let Some(taken) = table.take(number, QUEUE_BYTES) {
        records.extend(taken.records);
    }
    records
}

#[test]
fn a_peer_gets_one_copy_and_what_a_peer_published_goes_to_programs_alone() {
    let mut table = TopicTable::default();
    let one = table
        .subscribe(Some(1), &patterns(&["build.>", "build.*"]))
        .unwrap();
    let two = table.subscribe(Some(2), &patterns(&["build.web"])).unwrap();
    let peer = table.handle_interest(node(1), &patterns(&["build.*", "*.web", ">"]));
    let published = table.publish(
        &topic("build.web"),
        PublishedAt::Here,
        |_| true,
        |_| ("a", 1),
    );
    assert_eq!((published.programs, published.peers), (2, 1));
    assert_eq!(published.woken, [one, two, peer]);
    let published = table.publish(
        &topic("build.web"),
        PublishedAt::Peer,
        |_| true,
        |_| ("b", 1),
    );
    assert_eq!((published.programs, published.peers), (2, 0));
    assert_eq!(published.woken, []);
    let published = table.publish(
        &topic("build.web"),
        PublishedAt::Here,
        |_| false,
        |_| ("c", 1),
    );
    assert_eq!((published.programs, published.peers), (2, 0));
    for program in [one, two] {
        assert_eq!(all(&mut table, program), ["a", "b", "c"]);
    }
    assert_eq!(all(&mut table, peer), ["a"]);
    table.publish(
        &topic("build.web"),
        PublishedAt::Here,
        |_| true,
        |count| {
            assert_eq!(count, 3);
            ("d", 1)
        },
    );
    table.publish(
        &topic("other"),
        PublishedAt::Peer,
        |_| true,
        |_| unreachable!(),
    );
    let wanted: Vec<&str> = table.wanted().map(TopicPattern::as_str).collect();
    assert_eq!(wanted, ["build.*", "build.>", "build.web"]);
}

#[test]
fn one_who_reads_too_slowly_loses_the_oldest_and_is_told_and_others_lose_nothing() {
    let mut table = TopicTable::default();
    let slow = table.subscribe(None, &patterns(&["a", "*"])).unwrap();
    let fast = table.subscribe(None, &patterns(&["a"])).unwrap();
    let peer = table.handle_interest(node(1), &patterns(&["a", ">"]));
    let size = 64 * 1024 - MESSAGE_COST;
    let kept = (QUEUE_BYTES / (size + MESSAGE_COST)) as u64;
    for number in 0..kept + 10 {
        table.publish(&topic("a"), PublishedAt::Here, |_| true, |_| (number, size));
        assert_eq!(all(&mut table, fast), [number]);
    }
    let taken = table.take(slow, 1).unwrap();
    assert_eq!((taken.missed, taken.records), (10, vec![10]));
    assert_eq!(table.take(slow, 1).unwrap().missed, 0);
    let taken = table.take(peer, usize::MAX).unwrap();
    assert_eq!(taken.missed_of, [(pattern(">"), 10), (pattern("a"), 10)]);
    assert_eq!(taken.records.len() as u64, kept);
    let counts = |table: &TopicTable<u64>, peer: Option<NodeId>, text: &str| {
        let uses = table.uses();
        let found = uses
            .iter()
            .find(|row| row.peer == peer && row.pattern.as_str() == text);
        found.unwrap().counts
    };
    let expected = PatternCounts {
        published: kept + 10,
        delivered: kept,
        missed: 10,
    };
    assert_eq!(counts(&table, Some(node(1)), "a"), expected);
    let here = counts(&table, None, "*");
    assert_eq!((here.delivered, here.missed), (2, 10));
    // What a peer lost on its way is told to those who wanted it.
    assert_eq!(table.handle_missed(&pattern("a"), 5), [fast]);
    assert_eq!(table.take(fast, 1).unwrap().missed, 5);
    assert_eq!(table.handle_missed(&pattern("b"), 5), []);
}

#[test]
fn many_who_do_not_read_have_a_share_each_of_what_all_may_hold() {
    let mut table = TopicTable::default();
    for program in 0..256 {
        table.subscribe(Some(program), &patterns(&["a"])).unwrap();
    }
    for number in 0..100 {
        table.publish(
            &topic("a"),
            PublishedAt::Here,
            |_| true,
            |_| (number, 64 * 1024),
        );
    }
    let held: usize = table.subscribers.values().map(|s| s.bytes).sum();
    assert!(held <= ALL_BYTES, "{held}");
    assert!(held > ALL_BYTES / 2, "{held}");
    // One message always has room, however large its share is not.
    let many = table.publish(
        &topic("a"),
        PublishedAt::Here,
        |_| true,
        |_| (0, QUEUE_BYTES * 2),
    );
    assert_eq!(many.programs, 256);
    assert!(table.subscribers.values().all(|s| s.queue.len() == 1));
}

#[test]
fn there_is_a_most_of_subscriptions_of_a_program_of_all_and_of_patterns() {
    let mut table = TopicTable::<()>::default();
    let mut numbers = Vec::new();
    for _ in 0..MAX_OF_PROGRAM {
        numbers.push(table.subscribe(Some(1), &patterns(&["a"])).unwrap());
    }
    let refused = table.subscribe(Some(1), &patterns(&["a"]));
    assert_eq!(refused, Err(SubscribeRefusal::Program));
    table.remove(numbers[0]);
    table.subscribe(Some(1), &patterns(&["a"])).unwrap();
    while table.subscribers.len() < MAX_SUBSCRIPTIONS {
        table.subscribe(None, &patterns(&["a"])).unwrap();
    }
    let refused = table.subscribe(None, &patterns(&["a"]));
    assert_eq!(refused, Err(SubscribeRefusal::All));
    // Peers are none of them.
    table.handle_interest(node(1), &patterns(&["a"]));
    let mut table = TopicTable::<()>::default();
    let many: Vec<TopicPattern> = (0..MAX_TOPIC_PATTERNS)
        .map(|n| pattern(&format!("a{n}")))
        .collect();
    let number = table.subscribe(None, &many).unwrap();
    table.subscribe(None, &many[..3]).unwrap();
    let refused = table.subscribe(None, &patterns(&["b"]));
    assert_eq!(refused, Err(SubscribeRefusal::Patterns));
    table.remove(number);
    table.subscribe(None, &patterns(&["b"])).unwrap();
}

/// A topic or pattern of few tokens, so that many match.
fn text(below: &mut impl FnMut(u32) -> u32, wildcards: bool) -> String {
    let depth = 1 + below(4);
    let mut tokens = Vec::new();
    for place in 0..depth {
        let last = place + 1 == depth;
        let token = match below(if wildcards { 6 } else { 3 }) {
            0 => "a",
            1 => "b",
            2 => "c",
            5 if last => ">",
            _ => "*",
        };
        tokens.push(token);
    }
    tokens.join(".")
}

/// What a subscriber should have, found by comparing each pattern with each topic.
struct Expected {
    kind: SubscriberKind,
    patterns: HashSet<TopicPattern>,
    /// What was published for it and not read or lost.
    waits: VecDeque<(u64, usize)>,
    missed: u64,
}

fn follow(seed: u64) {
    let mut below = draws(seed, 11);
    let mut table = TopicTable::default();
    let mut expected: BTreeMap<SubscriberNumber, Expected> = BTreeMap::new();
    let mut published = 0;
    for _ in 0..120 {
        match below(8) {
            0 => {
                let wanted: Vec<_> = (0..=below(3))
                    .map(|_| pattern(&text(&mut below, true)))
                    .collect();
                let program = Some(below(3) as usize);
                let number = table.subscribe(program, &wanted).unwrap();
                let one = Expected {
                    kind: SubscriberKind::Program(program),
                    patterns: wanted.into_iter().collect(),
                    waits: VecDeque::new(),
                    missed: 0,
                };
                assert!(expected.insert(number, one).is_none());
            }
            1 => {
                let peer = node(below(3) as u8);
                let wanted: Vec<_> = (0..below(4))
                    .map(|_| pattern(&text(&mut below, true)))
                    .collect();
                let number = table.handle_interest(peer, &wanted);
                let one = expected.entry(number).or_insert_with(|| Expected {
                    kind: SubscriberKind::Peer(peer),
                    patterns: HashSet::new(),
                    waits: VecDeque::new(),
                    missed: 0,
                });
                assert_eq!(one.kind, SubscriberKind::Peer(peer));
                one.patterns = wanted.into_iter().collect();
            }
            2 => {
                let gone = expected.keys().nth(below(6) as usize).copied();
                if let Some(gone) = gone {
                    table.remove(gone);
                    expected.remove(&gone);
                }
            }
            3 => {
                let reader = expected.iter_mut().nth(below(6) as usize);
                if let Some((number, one)) = reader {
                    let most = below(3) as usize * QUEUE_BYTES / 4;
                    match table.take(*number, most) {
                        None => assert!(one.waits.is_empty() && one.missed == 0),
                        Some(taken) => {
                            assert_eq!(taken.missed, std::mem::take(&mut one.missed));
                            for record in taken.records {
                                assert_eq!(one.waits.pop_front().unwrap().0, record);
                            }
                        }
                    }
                }
            }
            _ => {
                let topic = topic(&text(&mut below, false));
                let at = match below(3) {
                    0 => PublishedAt::Peer,
                    _ => PublishedAt::Here,
                };
                published += 1;
                let size = below(4) as usize * QUEUE_BYTES / 3;
                let banned = node(below(3) as u8);
                let went = table.publish(&topic, at, |peer| peer != banned, |_| (published, size));
                let (mut programs, mut peers, mut woken) = (0, 0, Vec::new());
                for (number, one) in &mut expected {
                    if !one.patterns.iter().any(|pattern| pattern.matches(&topic)) {
                        continue;
                    }
                    match one.kind {
                        SubscriberKind::Program(_) => programs += 1,
                        SubscriberKind::Peer(peer) if at == PublishedAt::Peer || peer == banned => {
                            continue;
                        }
                        SubscriberKind::Peer(_) => peers += 1,
                    }
                    if one.waits.is_empty() && one.missed == 0 {
                        woken.push(*number);
                    }
                    let cost = size + MESSAGE_COST;
                    let held =
                        |one: &Expected| one.waits.iter().map(|(_, cost)| cost).sum::<usize>();
                    while !one.waits.is_empty() && held(one) + cost > QUEUE_BYTES {
                        one.waits.pop_front();
                        one.missed += 1;
                    }
                    one.waits.push_back((published, cost));
                }
                assert_eq!((went.programs, went.peers), (programs, peers));
                assert_eq!(went.woken, woken);
            }
        }
    }
    let wanted: HashSet<&TopicPattern> = expected
        .values()
        .filter(|one| matches!(one.kind, SubscriberKind::Program(_)))
        .flat_map(|one| &one.patterns)
        .collect();
    assert_eq!(table.wanted().collect::<HashSet<_>>(), wanted);
    for number in expected.into_keys() {
        table.remove(number);
    }
    assert!(table.trie.is_empty() && table.wanted.is_empty());
    assert!(table.programs.is_empty() && table.peers.is_empty());
}

#[test]
fn whoever_wants_a_message_gets_it_once_and_in_order_or_is_told_whatever_happens() {
    for_each_seed(&[], 5_000, follow);
}
