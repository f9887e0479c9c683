//! The log in SQLite beside a naive model of it, through random orders of events.

use std::collections::BTreeMap;

use rand_pcg::{Pcg32, rand_core::Rng as _};

use super::*;

/// Orders of events that are followed.
const SEEDS: u64 = 1_000;

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(SCHEMA).unwrap();
    begin(&db, 7).unwrap();
    db
}

fn pattern(text: &str) -> TopicPattern {
    text.parse().unwrap()
}

fn add_rule(db: &Connection, text: &str, bounds: KeptBounds) -> KeptRule {
    put_rule(db, &pattern(text), &bounds).unwrap();
    let mut rules = rules(db).unwrap().into_iter();
    rules.find(|rule| rule.pattern.as_str() == text).unwrap()
}

fn message(topic: &str, body: usize) -> Box<TopicRecord> {
    Box::new(TopicRecord {
        topic: topic.to_owned(),
        body: vec![7; body],
        ..TopicRecord::default()
    })
}

fn kept(outcome: KeepOutcome) -> TopicRecord {
    match outcome {
        KeepOutcome::Kept(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn decoded(record: &KeptRecord) -> TopicRecord {
    hailwire_wire::header::decode(&record.record[4..]).unwrap()
}

const ALL: KeptBounds = KeptBounds {
    max_bytes: 1 << 30,
    max_messages: None,
    max_age_ms: None,
    last_per_topic: false,
};

/// What was ever published and is or is not kept, as a list.
#[derive(Debug, Default)]
struct ModelLog {
    /// Number, topic, size and time of what is kept.
    kept: Vec<(u64, String, u64, u64)>,
    /// Number and topic of what went.
    gone: Vec<(u64, String)>,
}

impl ModelLog {
    fn enforce(&mut self, bounds: &KeptBounds, of: &TopicPattern, now_ms: u64) {
        loop {
            let of_rule = || self.kept.iter().filter(|row| is_of(of, &row.1));
            let usage: u64 = of_rule().map(|row| row.2).sum();
            let count = of_rule().count() as u64;
            let Some(oldest) = of_rule().next().cloned() else {
                return;
            };
            let too_much = usage > bounds.max_bytes
                || bounds.max_messages.is_some_and(|most| count > most)
                || bounds
                    .max_age_ms
                    .is_some_and(|age| oldest.3 + age <= now_ms);
            if !too_much {
                return;
            }
            self.kept.retain(|row| row.0 != oldest.0);
            self.gone.push((oldest.0, oldest.1));
        }
    }

    fn between(&self, patterns: &[TopicPattern], after: u64, upto: u64) -> (Vec<u64>, u64) {
        let wanted = |number: u64, topic: &str| {
            number > after && number <= upto && patterns.iter().any(|one| is_of(one, topic))
        };
        let kept = self.kept.iter().filter(|row| wanted(row.0, &row.1));
        let gone = self.gone.iter().filter(|row| wanted(row.0, &row.1));
        (kept.map(|row| row.0).collect(), gone.count() as u64)
    }
}

fn is_of(pattern: &TopicPattern, topic: &str) -> bool {
    pattern.matches(&topic.parse().unwrap())
}

/// A reader that reads now and then, and what it was given.
struct ModelReader {
    patterns: Vec<TopicPattern>,
    position: u64,
}

/// Messages come under two patterns with bounds, time passes, and readers read at their pace: each gets, in order, exactly what it wants of what
/// is still there, and is told exactly how many are not, whenever it starts and stops.
#[test]
fn every_reader_gets_what_is_kept_once_and_is_told_how_many_are_gone() {
    for seed in 0..SEEDS {
        let mut random = Pcg32::new(seed, 1);
        let mut draw = move |most: u32| random.next_u32() % most;
        let db = database();
        let mut bounds = || KeptBounds {
            max_bytes: 300 + u64::from(draw(3000)),
            max_messages: (draw(2) == 0).then(|| 2 + u64::from(draw(20))),
            max_age_ms: (draw(2) == 0).then(|| 5 + u64::from(draw(100))),
            last_per_topic: false,
        };
        let one = add_rule(&db, "a.>", bounds());
        let two = add_rule(&db, "b.*", bounds());
        let mut model = ModelLog::default();
        let all = ["a.>", "a.x", "*.y", ">"];
        let mut readers: Vec<ModelReader> = all
            .iter()
            .map(|text| ModelReader {
                patterns: vec![pattern(text), pattern("b.x")],
                position: 0,
            })
            .collect();
        let (mut now, mut last) = (1000, 0);
        for _ in 0..80 {
            match draw(8) {
                0..=3 => {
                    let (rule, topic) = match draw(4) {
                        0 => (&one, "a.x"),
                        1 => (&one, "a.y"),
                        2 => (&two, "b.x"),
                        _ => (&two, "b.y"),
                    };
                    let record = message(topic, draw(150) as usize);
                    // The clock is set back now and then; the log's time is not.
                    let clock = now - u64::from(draw(30));
                    let record = kept(keep(&db, rule, record, clock).unwrap());
                    last = record.kept;
                    let mut bytes = BytesMut::new();
                    put_record(&mut bytes, &record);
                    let at = record.at_ms;
                    assert!(
                        model
                            .kept
                            .last()
                            .is_none_or(|row| row.3 <= at && row.0 < last)
                    );
                    model
                        .kept
                        .push((last, topic.to_owned(), bytes.len() as u64, at));
                    model.enforce(&rule.bounds, &rule.pattern, clock);
                }
                4 => {
                    now += u64::from(draw(40));
                    remove_old(&db, now).unwrap();
                    for rule in [&one, &two] {
                        model.enforce(&rule.bounds, &rule.pattern, now);
                    }
                }
                5 => {
                    // Its start is anywhere; from there on it is as others.
                    let at = draw(4) as usize;
                    let patterns = &readers[at].patterns;
                    let how = match draw(4) {
                        0 => LogStart::End,
                        1 => LogStart::From(u64::from(draw(60))),
                        2 => LogStart::Last(u64::from(draw(10))),
                        _ => LogStart::Since(now - u64::from(draw(60))),
                    };
                    let position = start(&db, patterns, how).unwrap();
                    let (follows, _) = model.between(patterns, position, last);
                    match how {
                        LogStart::End => assert_eq!(position, last),
                        LogStart::From(from) => {
                            assert_eq!(position, from.saturating_sub(1).min(last));
                        }
                        LogStart::Last(count) => {
                            let (all, _) = model.between(patterns, 0, last);
                            assert_eq!(follows.len() as u64, count.min(all.len() as u64));
                        }
                        LogStart::Since(at) => {
                            let young = model.kept.iter().filter(|row| row.3 >= at);
                            let first = young.map(|row| row.0).next();
                            assert!(first.is_none_or(|first| position < first));
                            let follows = model.kept.iter().filter(|row| row.0 > position);
                            assert!(follows.clone().all(|row| row.3 >= at), "seed {seed}");
                        }
                    }
                    readers[at].position = position;
                }
                _ => {
                    let reader = &mut readers[draw(4) as usize];
                    let batch = read(&db, &reader.patterns, reader.position).unwrap();
                    assert!(batch.at_end, "so little is read at once");
                    assert_eq!(batch.position, last.max(reader.position));
                    let (expected, missed) =
                        model.between(&reader.patterns, reader.position, batch.position);
                    let numbers: Vec<u64> = batch
                        .records
                        .iter()
                        .map(|record| decoded(record).kept)
                        .collect();
                    assert_eq!((numbers, batch.missed), (expected, missed), "seed {seed}");
                    reader.position = batch.position;
                }
            }
        }
        for row in rule_rows(&db).unwrap() {
            let of_rule = model
                .kept
                .iter()
                .filter(|kept| is_of(&row.rule.pattern, &kept.1));
            let (count, bytes) = of_rule.fold((0, 0), |sum, kept| (sum.0 + 1, sum.1 + kept.2));
            assert_eq!((row.usage.messages, row.usage.bytes), (count, bytes));
        }
    }
}

#[test]
fn a_read_has_a_bound_and_goes_on_where_it_ended() {
    let db = database();
    let rule = add_rule(&db, "a.>", ALL);
    for number in 0..SCANNED_AT_ONCE + 100 {
        let topic = if number % 1000 == 7 { "a.b" } else { "a.c" };
        keep(&db, &rule, message(topic, 10), 5).unwrap();
    }
    for _ in 0..3 {
        keep(&db, &rule, message("a.b", READ_AT_ONCE), 5).unwrap();
    }
    let patterns = [pattern("a.b")];
    let (mut position, mut reads) = (0, Vec::new());
    loop {
        let batch = read(&db, &patterns, position).unwrap();
        reads.push((batch.records.len(), batch.position));
        position = batch.position;
        if batch.at_end {
            break;
        }
    }
    let scanned = SCANNED_AT_ONCE as u64;
    let expected = [
        // As many rows as one read looks at; then one large record at a time.
        (3, scanned),
        (1, scanned + 101),
        (1, scanned + 102),
        (1, scanned + 103),
    ];
    assert_eq!(reads, expected);
}

#[test]
fn a_value_is_replaced_only_at_the_revision_that_was_read() {
    let db = database();
    let rule = rules(&db).unwrap().remove(0);
    let put = |topic: &str, if_kept: Option<u64>, deleted: bool, at| {
        let record = TopicRecord {
            if_kept,
            deleted,
            ..*message(topic, 3)
        };
        keep(&db, &rule, Box::new(record), at).unwrap()
    };
    assert_eq!(kept(put("state.a", Some(0), false, 5)).kept, 1);
    assert!(matches!(
        put("state.a", Some(0), false, 5),
        KeepOutcome::Conflict(1)
    ));
    assert!(matches!(
        put("state.b", Some(1), false, 5),
        KeepOutcome::Conflict(0)
    ));
    assert_eq!(kept(put("state.a", Some(1), false, 5)).kept, 2);
    assert_eq!(kept(put("state.a", None, true, 6)).kept, 3);
    assert!(matches!(
        put("state.a", Some(2), false, 6),
        KeepOutcome::Conflict(0)
    ));
    let batch = read(&db, &[pattern(">")], 0).unwrap();
    assert_eq!(
        (batch.records.len(), batch.missed),
        (1, 0),
        "nobody misses what was replaced"
    );
    assert!(decoded(&batch.records[0]).deleted);
    assert_eq!(kept(put("state.a", Some(0), false, 7)).kept, 4);
    assert_eq!(kept(put("state.b", None, true, 8)).kept, 5);
    // What is deleted is known for as long as the bound says.
    let age = hailwire_core::kept_topics::DELETED_AGE_MS;
    assert_eq!(remove_old(&db, age + 7).unwrap(), Some(age + 8));
    assert_eq!(read(&db, &[pattern(">")], 0).unwrap().records.len(), 2);
    assert_eq!(remove_old(&db, age + 8).unwrap(), None);
    let batch = read(&db, &[pattern(">")], 0).unwrap();
    assert_eq!((batch.records.len(), batch.missed), (1, 0));
}

#[test]
fn values_that_exceed_their_bound_are_refused_and_change_nothing() {
    let db = database();
    let bounds = KeptBounds {
        max_messages: Some(2),
        last_per_topic: true,
        ..ALL
    };
    let rule = add_rule(&db, "price.*", bounds);
    for topic in ["price.a", "price.b", "price.a"] {
        kept(keep(&db, &rule, message(topic, 3), 5).unwrap());
    }
    let before = head(&db).unwrap();
    let refused = keep(&db, &rule, message("price.c", 3), 5).unwrap();
    assert!(matches!(refused, KeepOutcome::NoRoom));
    assert_eq!(head(&db).unwrap(), before);
    kept(keep(&db, &rule, message("price.b", 300), 5).unwrap());
    let small = KeptBounds {
        max_bytes: 100,
        ..ALL
    };
    let small = add_rule(&db, "small", small);
    let refused = keep(&db, &small, message("small", 200), 5).unwrap();
    assert!(matches!(refused, KeepOutcome::NoRoom));
    // A pattern that is kept no more keeps nothing, and what it kept is missed.
    remove_rule(&db, rule.id).unwrap();
    let late = keep(&db, &rule, message("price.b", 3), 5).unwrap();
    assert!(matches!(late, KeepOutcome::NoRule));
    assert!(!remove_left(&db, rule.id).unwrap());
    let batch = read(&db, &[pattern("price.*")], 0).unwrap();
    assert_eq!((batch.records.len(), batch.missed), (0, 2));
}

#[test]
fn of_what_went_long_ago_only_the_number_is_known() {
    let db = database();
    let rule = add_rule(&db, "a.*", ALL);
    kept(keep(&db, &rule, message("a.x", 1), 5).unwrap());
    let mut insert = db
        .prepare("INSERT INTO gone (number, topic) VALUES (?1, 'a.y')")
        .unwrap();
    let over = 10;
    db.execute_batch("BEGIN").unwrap();
    for number in 0..MAX_GONE + over {
        insert.execute([int(number + 2)]).unwrap();
    }
    let end = MAX_GONE + over + 1;
    db.execute("UPDATE log SET head = ?1", [int(end)]).unwrap();
    db.execute_batch("COMMIT").unwrap();
    remove_old(&db, 5).unwrap();
    let missed = |text: &str, after| read(&db, &[pattern(text)], after).unwrap();
    let mut total = BTreeMap::new();
    for (text, after) in [("a.y", 1), ("a.z", 1), ("a.z", over + 1), ("a.y", end - 3)] {
        let mut position = after;
        loop {
            let batch = missed(text, position);
            *total.entry((text, after)).or_insert(0) += batch.missed;
            position = batch.position;
            if batch.at_end {
                break;
            }
        }
    }
    assert_eq!(total[&("a.y", 1)], MAX_GONE + over);
    assert_eq!(total[&("a.z", 1)], over, "it may have wanted those");
    assert_eq!(total[&("a.z", over + 1)], 0);
    assert_eq!(total[&("a.y", end - 3)], 3);
}

#[test]
fn names_and_positions_are_found_again() {
    let db = database();
    let row = |start: &str| ("a.> b".to_owned(), start.to_owned(), 9);
    assert!(put_subscriber(&db, "audit", &row("{}"), 1).unwrap());
    assert!(!put_subscriber(&db, "other", &row("{}"), 1).unwrap());
    assert_eq!(subscriber(&db, "audit").unwrap(), Some(row("{}")));
    assert_eq!(subscribers(&db).unwrap(), [("audit".to_owned(), row("{}"))]);
    let node = |byte| NodeId::from_bytes([byte; 32]);
    let at = |log, number| LogPosition { log, number };
    put_position(&db, "audit", node(1), at(1, 5)).unwrap();
    put_position(&db, "audit", node(1), at(1, 3)).unwrap();
    put_position(&db, "audit", node(2), at(4, 9)).unwrap();
    put_position(&db, "nobody", node(2), at(4, 9)).unwrap();
    let mut found = positions(&db, "audit").unwrap();
    found.sort_by_key(|(_, position)| position.log);
    assert_eq!(found, [(node(1), at(1, 5)), (node(2), at(4, 9))]);
    put_position(&db, "audit", node(1), at(2, 1)).unwrap();
    assert!(
        positions(&db, "audit")
            .unwrap()
            .contains(&(node(1), at(2, 1)))
    );
    assert_eq!(positions(&db, "nobody").unwrap(), []);
    assert!(remove_subscriber(&db, "audit").unwrap());
    assert!(!remove_subscriber(&db, "audit").unwrap());
    assert_eq!(positions(&db, "audit").unwrap(), []);
}

#[test]
fn a_disk_that_is_full_takes_nothing_of_a_message_and_keeps_those_before() {
    let db = database();
    let rule = add_rule(&db, "a.>", ALL);
    let pages: i64 = db
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .unwrap();
    db.pragma_update(None, "max_page_count", pages + 20)
        .unwrap();
    // As a job of the store is done: whole or not at all.
    let put = || {
        db.execute_batch("SAVEPOINT job").unwrap();
        let outcome = keep(&db, &rule, message("a.b", 5000), 5);
        let full = outcome
            .map(kept)
            .map_err(crate::node::messages::MessageStoreError::from);
        match (&full, db.is_autocommit()) {
            // SQLite has ended the transaction itself.
            (Err(_), true) => {}
            (Err(_), false) => db.execute_batch("ROLLBACK TO job; RELEASE job").unwrap(),
            (Ok(_), _) => db.execute_batch("RELEASE job").unwrap(),
        }
        full
    };
    let mut accepted = 0;
    let error = loop {
        match put() {
            Ok(record) => accepted = record.kept,
            Err(error) => break error,
        }
    };
    assert!(error.full && accepted > 3, "{error} after {accepted}");
    let mut position = 0;
    while position < accepted {
        let batch = read(&db, &[pattern(">")], position).unwrap();
        assert!(batch.position > position && batch.missed == 0);
        position = batch.position;
    }
    assert_eq!(position, accepted);
    assert_eq!(rule_rows(&db).unwrap()[0].usage.messages, accepted);
    // With room again, the next has the next number.
    db.pragma_update(None, "max_page_count", pages + 200)
        .unwrap();
    assert_eq!(put().unwrap().kept, accepted + 1);
}
