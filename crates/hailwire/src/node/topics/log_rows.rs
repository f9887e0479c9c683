//! The log of kept messages in its database: written in jobs of [`MessageStore`](crate::node::messages::MessageStore), read over a connection
//! beside it.
//!
//! A message's number is its place in the log, from 1 and without gaps; its time is never before that of the message ahead of it. What went because of a
//! bound leaves its number and topic behind in `gone`, so that a reader who comes back can be told exactly how many messages that it
//! wanted are no more. Of those the newest [`MAX_GONE`] are known one by one, of older ones how many there were.

use bytes::BytesMut;
use hailwire_core::kept_topics::{
    KeptBounds, KeptRule, KeptUsage, LogPosition, RemovalCandidate, STATE,
};
use hailwire_wire::{
    NodeId,
    topics::{Topic, TopicPattern, TopicRecord, put_record},
};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

/// Messages that went and that are known one by one.
const MAX_GONE: u64 = 262_144;

/// Messages that one job removes beyond what it keeps.
pub(super) const REMOVED_AT_ONCE: usize = 1024;

/// Rows that one read looks at.
const SCANNED_AT_ONCE: usize = 2048;

/// Bytes of records that one read takes, one record more than that at most.
const READ_AT_ONCE: usize = 64 * 1024;

/// Messages that are looked at for the newest of some patterns.
const MAX_SCANNED_FOR_LAST: u64 = 262_144;

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS log (
        id INTEGER NOT NULL, head INTEGER NOT NULL, at_ms INTEGER NOT NULL,
        forgotten INTEGER NOT NULL, forgotten_count INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS rule (
        id INTEGER PRIMARY KEY AUTOINCREMENT, pattern TEXT NOT NULL UNIQUE, max_bytes INTEGER NOT NULL,
        max_messages INTEGER, max_age_ms INTEGER, last_per_topic INTEGER NOT NULL,
        bytes INTEGER NOT NULL DEFAULT 0, messages INTEGER NOT NULL DEFAULT 0,
        removed INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE TABLE IF NOT EXISTS kept (
        number INTEGER PRIMARY KEY, rule INTEGER NOT NULL, topic TEXT NOT NULL, at_ms INTEGER NOT NULL,
        size INTEGER NOT NULL, keyed INTEGER NOT NULL, deleted INTEGER NOT NULL, record BLOB NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS kept_of_rule ON kept (rule, number);
    CREATE UNIQUE INDEX IF NOT EXISTS kept_value ON kept (topic) WHERE keyed = 1;
    CREATE INDEX IF NOT EXISTS kept_deletion ON kept (rule, number) WHERE deleted = 1;
    CREATE TABLE IF NOT EXISTS gone (number INTEGER PRIMARY KEY, topic TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS subscriber (
        name TEXT PRIMARY KEY, patterns TEXT NOT NULL, start TEXT NOT NULL, made_ms INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS position (
        name TEXT NOT NULL, node BLOB NOT NULL, log INTEGER NOT NULL, number INTEGER NOT NULL,
        PRIMARY KEY (name, node)) STRICT;
";

/// What became of a message that was to be kept.
#[derive(Debug)]
pub(super) enum KeepOutcome {
    /// It is kept, as the record says; how many other messages went for it.
    Kept(Box<TopicRecord>),
    /// The newest message under its topic has another number; 0 for none.
    Conflict(u64),
    /// There is no room for it, and no message goes for another here.
    NoRoom,
    /// The pattern is kept no more.
    NoRule,
}

/// What a read brings.
#[derive(Debug, Default)]
pub(super) struct LogBatch {
    /// Records as they are kept, with the topics that they are under.
    pub(super) records: Vec<KeptRecord>,
    /// Messages that the reader wanted and that are no more.
    pub(super) missed: u64,
    /// The number of the last message that was looked at.
    pub(super) position: u64,
    /// Whether that is the last of all.
    pub(super) at_end: bool,
}

/// A message in the log.
#[derive(Debug)]
pub(super) struct KeptRecord {
    pub(super) topic: Topic,
    /// With its length ahead.
    pub(super) record: Vec<u8>,
}

/// Where a reader starts that has no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStart {
    /// After what is kept.
    End,
    /// With this number.
    From(u64),
    /// With the newest so many.
    Last(u64),
    /// With what was published at this time or later, milliseconds since 1970.
    Since(u64),
}

/// A rule as it is listed.
#[derive(Debug)]
pub(super) struct RuleRow {
    pub(super) rule: KeptRule,
    pub(super) usage: KeptUsage,
    pub(super) removed: u64,
    pub(super) first: Option<(u64, u64)>,
    pub(super) last: Option<u64>,
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn uint(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn get_uint(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get(at).map(uint)
}

/// Makes the log with `id` if there is none, and the rule of state; what is known of the log and the rules.
pub(super) fn begin(db: &Connection, id: u64) -> rusqlite::Result<(LogPosition, Vec<KeptRule>)> {
    db.execute(
        "INSERT INTO log SELECT ?1, 0, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM log)",
        [int(id)],
    )?;
    #[expect(clippy::expect_used, reason = "a token and `>` are a pattern")]
    let state: TopicPattern = format!("{STATE}.>").parse().expect("a pattern");
    put_rule(db, &state, &KeptBounds::of_state())?;
    Ok((head(db)?, rules(db)?))
}

/// The log and its last number.
pub(super) fn head(db: &Connection) -> rusqlite::Result<LogPosition> {
    let mut found = db.prepare_cached("SELECT id, head FROM log")?;
    found.query_row([], |row| {
        Ok(LogPosition {
            log: get_uint(row, 0)?,
            number: get_uint(row, 1)?,
        })
    })
}

/// All rules, state first.
pub(super) fn rules(db: &Connection) -> rusqlite::Result<Vec<KeptRule>> {
    let mut found = db.prepare_cached(
        "SELECT id, pattern, max_bytes, max_messages, max_age_ms, last_per_topic FROM rule ORDER BY id",
    )?;
    let rows = found.query_map([], rule)?;
    rows.collect()
}

fn rule(row: &Row<'_>) -> rusqlite::Result<KeptRule> {
    let text: String = row.get(1)?;
    let pattern = text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(KeptRule {
        id: row.get(0)?,
        pattern,
        bounds: KeptBounds {
            max_bytes: get_uint(row, 2)?,
            max_messages: row.get::<_, Option<i64>>(3)?.map(uint),
            max_age_ms: row.get::<_, Option<i64>>(4)?.map(uint),
            last_per_topic: row.get(5)?,
        },
    })
}

/// Keeps a pattern, or changes its bounds. From "all" to "the last of each topic", or back, there is no way but to begin anew.
pub(super) fn put_rule(
    db: &Connection,
    pattern: &TopicPattern,
    bounds: &KeptBounds,
) -> rusqlite::Result<()> {
    db.execute(
        "INSERT INTO rule (pattern, max_bytes, max_messages, max_age_ms, last_per_topic) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (pattern) DO UPDATE SET max_bytes = ?2, max_messages = ?3, max_age_ms = ?4",
        params![
            pattern.as_str(),
            int(bounds.max_bytes),
            bounds.max_messages.map(int),
            bounds.max_age_ms.map(int),
            bounds.last_per_topic
        ],
    )?;
    Ok(())
}

/// Keeps a pattern no more; what is left of it goes with [`remove_left`].
pub(super) fn remove_rule(db: &Connection, id: i64) -> rusqlite::Result<()> {
    db.execute("DELETE FROM rule WHERE id = ?1", [id])?;
    Ok(())
}

/// Removes some of a rule that is no more; whether there may be further ones.
pub(super) fn remove_left(db: &Connection, id: i64) -> rusqlite::Result<bool> {
    let mut removed = 0;
    while removed < REMOVED_AT_ONCE {
        let Some(oldest) = oldest(db, id, false)? else {
            return Ok(false);
        };
        remove(db, &oldest)?;
        removed += 1;
    }
    Ok(true)
}

/// How the rules are used.
pub(super) fn rule_rows(db: &Connection) -> rusqlite::Result<Vec<RuleRow>> {
    let mut found = db.prepare_cached(
        "SELECT id, pattern, max_bytes, max_messages, max_age_ms, last_per_topic, bytes, messages, removed,
           (SELECT min(number) FROM kept WHERE rule = rule.id), (SELECT max(number) FROM kept WHERE rule = rule.id)
         FROM rule ORDER BY pattern",
    )?;
    let rows = found.query_map([], |row| {
        Ok(RuleRow {
            rule: rule(row)?,
            usage: KeptUsage {
                bytes: get_uint(row, 6)?,
                messages: get_uint(row, 7)?,
            },
            removed: get_uint(row, 8)?,
            first: row
                .get::<_, Option<i64>>(9)?
                .map(|number| (uint(number), 0)),
            last: row.get::<_, Option<i64>>(10)?.map(uint),
        })
    })?;
    let mut rows: Vec<RuleRow> = rows.collect::<Result<_, _>>()?;
    let mut at = db.prepare_cached("SELECT at_ms FROM kept WHERE number = ?1")?;
    for row in &mut rows {
        if let Some((number, at_ms)) = &mut row.first {
            *at_ms = at.query_row([int(*number)], |row| get_uint(row, 0))?;
        }
    }
    Ok(rows)
}

/// Keeps a message under a rule, and removes what exceeds the bounds then.
pub(super) fn keep(
    db: &Connection,
    rule: &KeptRule,
    mut record: Box<TopicRecord>,
    now_ms: u64,
) -> rusqlite::Result<KeepOutcome> {
    let keyed = rule.bounds.last_per_topic;
    if let Some(expected) = record.if_kept.take() {
        let newest = newest(db, &record.topic, keyed)?;
        if newest != expected {
            return Ok(KeepOutcome::Conflict(newest));
        }
    }
    let (number, at_ms) = next_of_log(db, now_ms)?;
    record.kept = number;
    record.at_ms = at_ms;
    let mut bytes = BytesMut::new();
    put_record(&mut bytes, &*record);
    let size = bytes.len() as u64;
    let Some(usage) = usage(db, rule.id)? else {
        return Ok(KeepOutcome::NoRule);
    };
    // The value that it takes the place of: nobody misses it.
    let replaced = match keyed {
        true => value_size(db, &record.topic)?,
        false => None,
    };
    let usage = KeptUsage {
        bytes: usage.bytes + size - replaced.unwrap_or(0),
        messages: usage.messages + 1 - u64::from(replaced.is_some()),
    };
    // Nothing is written before it is known that there is room.
    if !rule.bounds.admits(usage, size) {
        return Ok(KeepOutcome::NoRoom);
    }
    if replaced.is_some() {
        db.prepare_cached("DELETE FROM kept WHERE topic = ?1 AND keyed = 1")?
            .execute([&record.topic])?;
    }
    db.prepare_cached("UPDATE log SET head = ?1, at_ms = ?2")?
        .execute([int(number), int(at_ms)])?;
    db.prepare_cached("UPDATE rule SET bytes = ?2, messages = ?3 WHERE id = ?1")?
        .execute([rule.id, int(usage.bytes), int(usage.messages)])?;
    let mut insert = db.prepare_cached(
        "INSERT INTO kept (number, rule, topic, at_ms, size, keyed, deleted, record) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    insert.execute(params![
        int(number),
        rule.id,
        record.topic,
        int(at_ms),
        int(size),
        keyed,
        keyed && record.deleted,
        &bytes[..]
    ])?;
    enforce(db, rule, usage, now_ms)?;
    Ok(KeepOutcome::Kept(record))
}

fn next_of_log(db: &Connection, now_ms: u64) -> rusqlite::Result<(u64, u64)> {
    let mut next = db.prepare_cached("SELECT head + 1, max(at_ms, ?1) FROM log")?;
    next.query_row([int(now_ms)], |row| {
        Ok((get_uint(row, 0)?, get_uint(row, 1)?))
    })
}

/// The number of the newest message under a topic; 0 for none, and for a deletion.
fn newest(db: &Connection, topic: &str, keyed: bool) -> rusqlite::Result<u64> {
    let newest = match keyed {
        true => "SELECT number, deleted FROM kept WHERE topic = ?1 AND keyed = 1",
        // Only values are found by their topic.
        false => return Ok(0),
    };
    let mut newest = db.prepare_cached(newest)?;
    let newest = newest.query_row([topic], |row| {
        Ok((get_uint(row, 0)?, row.get::<_, bool>(1)?))
    });
    let newest = newest.optional()?;
    Ok(newest.map_or(0, |(number, deleted)| if deleted { 0 } else { number }))
}

/// Bytes of the value under a topic, or of its deletion.
fn value_size(db: &Connection, topic: &str) -> rusqlite::Result<Option<u64>> {
    let mut size = db.prepare_cached("SELECT size FROM kept WHERE topic = ?1 AND keyed = 1")?;
    let size = size.query_row([topic], |row| get_uint(row, 0));
    size.optional()
}

fn usage(db: &Connection, rule: i64) -> rusqlite::Result<Option<KeptUsage>> {
    let mut used = db.prepare_cached("SELECT bytes, messages FROM rule WHERE id = ?1")?;
    let usage = used.query_row([rule], |row| {
        Ok(KeptUsage {
            bytes: get_uint(row, 0)?,
            messages: get_uint(row, 1)?,
        })
    });
    usage.optional()
}

#[derive(Clone, Debug)]
struct OldestRow {
    number: u64,
    rule: i64,
    topic: String,
    size: i64,
    candidate: RemovalCandidate,
}

fn oldest(db: &Connection, rule: i64, deletion: bool) -> rusqlite::Result<Option<OldestRow>> {
    let mut oldest = db.prepare_cached(match deletion {
        true => {
            "SELECT number, topic, size, at_ms, deleted FROM kept WHERE rule = ?1 AND deleted = 1 ORDER BY number LIMIT 1"
        }
        false => "SELECT number, topic, size, at_ms, deleted FROM kept WHERE rule = ?1 ORDER BY number LIMIT 1",
    })?;
    let row = oldest.query_row([rule], |row| {
        Ok(OldestRow {
            number: get_uint(row, 0)?,
            rule,
            topic: row.get(1)?,
            size: row.get(2)?,
            candidate: RemovalCandidate {
                at_ms: get_uint(row, 3)?,
                deleted: row.get(4)?,
            },
        })
    });
    row.optional()
}

/// Removes what exceeds the bounds of a rule, at most [`REMOVED_AT_ONCE`]; whether there may be more to remove now.
fn enforce(
    db: &Connection,
    rule: &KeptRule,
    mut usage: KeptUsage,
    now_ms: u64,
) -> rusqlite::Result<bool> {
    for deletions in [true, false] {
        // Only values are deleted.
        if deletions && !rule.bounds.last_per_topic {
            continue;
        }
        for removed in 0.. {
            if removed == REMOVED_AT_ONCE {
                return Ok(true);
            }
            let Some(oldest) = oldest(db, rule.id, deletions)? else {
                break;
            };
            if !rule.bounds.removes(now_ms, usage, oldest.candidate) {
                break;
            }
            remove(db, &oldest)?;
            usage.bytes = usage.bytes.saturating_sub(uint(oldest.size));
            usage.messages = usage.messages.saturating_sub(1);
        }
    }
    Ok(false)
}

fn remove(db: &Connection, row: &OldestRow) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM kept WHERE number = ?1")?
        .execute([int(row.number)])?;
    // Nobody misses that something is deleted.
    let missed = !row.candidate.deleted;
    if missed {
        db.prepare_cached("INSERT INTO gone (number, topic) VALUES (?1, ?2)")?
            .execute(params![int(row.number), row.topic])?;
    }
    db.prepare_cached(
        "UPDATE rule SET bytes = bytes - ?2, messages = messages - 1, removed = removed + ?3 WHERE id = ?1",
    )?
    .execute(params![row.rule, row.size, missed])?;
    Ok(())
}

/// Removes what is too old, and of what is gone the oldest; when to look again, in milliseconds since 1970, which is now if there is more to do.
pub(super) fn remove_old(db: &Connection, now_ms: u64) -> rusqlite::Result<Option<u64>> {
    let mut next = forget_gone(db)?.then_some(now_ms);
    for rule in rules(db)? {
        let Some(usage) = usage(db, rule.id)? else {
            continue;
        };
        if enforce(db, &rule, usage, now_ms)? {
            next = Some(now_ms);
        }
        for deletions in [true, false] {
            let oldest = oldest(db, rule.id, deletions)?;
            let expires = oldest.and_then(|oldest| rule.bounds.expires_at(oldest.candidate));
            next = [next, expires].into_iter().flatten().min();
        }
    }
    Ok(next)
}

/// Forgets the oldest of what is gone, but for how many there were; whether there may be more.
fn forget_gone(db: &Connection) -> rusqlite::Result<bool> {
    let count = |db: &Connection| -> rusqlite::Result<u64> {
        let mut count = db.prepare_cached("SELECT count(*) FROM gone")?;
        count.query_row([], |row| get_uint(row, 0))
    };
    let over = count(db)?.saturating_sub(MAX_GONE);
    if over == 0 {
        return Ok(false);
    }
    let some = over.min(16 * REMOVED_AT_ONCE as u64);
    db.prepare_cached(
        "UPDATE log SET forgotten_count = forgotten_count + ?1,
           forgotten = max(forgotten, (SELECT number FROM gone ORDER BY number LIMIT 1 OFFSET ?1 - 1))",
    )?
    .execute([int(some)])?;
    db.prepare_cached("DELETE FROM gone WHERE number <= (SELECT forgotten FROM log)")?
        .execute([])?;
    Ok(some < over)
}

/// The position of a reader that starts: the number before the first message that it may get.
pub(super) fn start(
    db: &Connection,
    patterns: &[TopicPattern],
    start: LogStart,
) -> rusqlite::Result<u64> {
    let end = head(db)?.number;
    match start {
        LogStart::End => Ok(end),
        LogStart::From(number) => Ok(number.saturating_sub(1).min(end)),
        LogStart::Since(at_ms) => {
            // Times never go back along the log.
            let (mut before, mut first) = (0, end + 1);
            while first - before > 1 {
                let middle = before + (first - before) / 2;
                match at_or_after(db, middle)? {
                    Some((_, at)) if at < at_ms => before = middle,
                    _ => first = middle,
                }
            }
            Ok(first - 1)
        }
        LogStart::Last(0) => Ok(end),
        LogStart::Last(count) => {
            let mut found = 0;
            let mut rows =
                db.prepare_cached("SELECT number, topic FROM kept ORDER BY number DESC LIMIT ?1")?;
            let mut rows = rows.query([int(MAX_SCANNED_FOR_LAST)])?;
            let mut first = end + 1;
            while let Some(row) = rows.next()? {
                first = get_uint(row, 0)?;
                let topic: String = row.get(1)?;
                found += u64::from(matches(patterns, &topic).is_some());
                if found == count {
                    break;
                }
            }
            Ok(first - 1)
        }
    }
}

fn at_or_after(db: &Connection, number: u64) -> rusqlite::Result<Option<(u64, u64)>> {
    let mut next = db.prepare_cached(
        "SELECT number, at_ms FROM kept WHERE number >= ?1 ORDER BY number LIMIT 1",
    )?;
    let next = next.query_row([int(number)], |row| {
        Ok((get_uint(row, 0)?, get_uint(row, 1)?))
    });
    next.optional()
}

fn matches(patterns: &[TopicPattern], topic: &str) -> Option<Topic> {
    let topic: Topic = topic.parse().ok()?;
    let wanted = patterns.iter().any(|pattern| pattern.matches(&topic));
    wanted.then_some(topic)
}

/// What a reader reads next after a number.
pub(super) fn read(
    db: &Connection,
    patterns: &[TopicPattern],
    after: u64,
) -> rusqlite::Result<LogBatch> {
    // One snapshot for all of it.
    let together = db.unchecked_transaction()?;
    let end = head(db)?.number;
    let mut batch = LogBatch {
        position: after,
        ..LogBatch::default()
    };
    let mut rows = db.prepare_cached(
        "SELECT number, topic, record FROM kept WHERE number > ?1 ORDER BY number LIMIT ?2",
    )?;
    let mut rows = rows.query([int(after), int(SCANNED_AT_ONCE as u64)])?;
    let (mut scanned, mut bytes) = (0, 0);
    while bytes < READ_AT_ONCE {
        let Some(row) = rows.next()? else { break };
        scanned += 1;
        batch.position = get_uint(row, 0)?;
        let topic: String = row.get(1)?;
        if let Some(topic) = matches(patterns, &topic) {
            let record: Vec<u8> = row.get(2)?;
            bytes += record.len();
            batch.records.push(KeptRecord { topic, record });
        }
    }
    if bytes < READ_AT_ONCE && scanned < SCANNED_AT_ONCE {
        batch.position = end.max(after);
    }
    batch.at_end = batch.position >= end;
    batch.missed = missed(db, patterns, after, batch.position)?;
    drop(together);
    Ok(batch)
}

/// How many messages between two numbers are gone that these patterns match.
fn missed(
    db: &Connection,
    patterns: &[TopicPattern],
    after: u64,
    upto: u64,
) -> rusqlite::Result<u64> {
    let mut gone = db.prepare_cached(
        "SELECT topic, count(*) FROM gone WHERE number > ?1 AND number <= ?2 GROUP BY topic",
    )?;
    let mut gone = gone.query([int(after), int(upto)])?;
    let mut missed = 0;
    while let Some(row) = gone.next()? {
        let topic: String = row.get(0)?;
        if matches(patterns, &topic).is_some() {
            missed += get_uint(row, 1)?;
        }
    }
    let mut older = db.prepare_cached("SELECT forgotten, forgotten_count FROM log")?;
    let (forgotten, count) =
        older.query_row([], |row| Ok((get_uint(row, 0)?, get_uint(row, 1)?)))?;
    Ok(missed + forgotten.min(upto).saturating_sub(after).min(count))
}

/// A named subscriber: its patterns and where it starts in a log that it never read, as JSON, and since when there is one, milliseconds since 1970.
pub(super) type SubscriberRow = (String, String, u64);

/// What is known of a named subscriber.
pub(super) fn subscriber(db: &Connection, name: &str) -> rusqlite::Result<Option<SubscriberRow>> {
    let mut found =
        db.prepare_cached("SELECT patterns, start, made_ms FROM subscriber WHERE name = ?1")?;
    let found = found.query_row([name], |row| {
        Ok((row.get(0)?, row.get(1)?, get_uint(row, 2)?))
    });
    found.optional()
}

/// All named subscribers, by name.
pub(super) fn subscribers(db: &Connection) -> rusqlite::Result<Vec<(String, SubscriberRow)>> {
    let mut found =
        db.prepare_cached("SELECT name, patterns, start, made_ms FROM subscriber ORDER BY name")?;
    let rows = found.query_map([], |row| {
        Ok((row.get(0)?, (row.get(1)?, row.get(2)?, get_uint(row, 3)?)))
    })?;
    rows.collect()
}

/// Makes a named subscriber, unless there are so many.
pub(super) fn put_subscriber(
    db: &Connection,
    name: &str,
    (patterns, start, made_ms): &SubscriberRow,
    most: u64,
) -> rusqlite::Result<bool> {
    let made = db.execute(
        "INSERT INTO subscriber SELECT ?1, ?2, ?3, ?4 WHERE (SELECT count(*) FROM subscriber) < ?5",
        params![name, patterns, start, int(*made_ms), int(most)],
    )?;
    Ok(made > 0)
}

/// Forgets a named subscriber; whether there was one.
pub(super) fn remove_subscriber(db: &Connection, name: &str) -> rusqlite::Result<bool> {
    db.execute("DELETE FROM position WHERE name = ?1", [name])?;
    Ok(db.execute("DELETE FROM subscriber WHERE name = ?1", [name])? > 0)
}

/// How far a named subscriber has come in the logs of nodes.
pub(super) fn positions(
    db: &Connection,
    name: &str,
) -> rusqlite::Result<Vec<(NodeId, LogPosition)>> {
    let mut found = db.prepare_cached("SELECT node, log, number FROM position WHERE name = ?1")?;
    let rows = found.query_map([name], |row| {
        let position = LogPosition {
            log: get_uint(row, 1)?,
            number: get_uint(row, 2)?,
        };
        Ok((NodeId::from_bytes(row.get(0)?), position))
    })?;
    rows.collect()
}

/// A named subscriber has come so far.
pub(super) fn put_position(
    db: &Connection,
    name: &str,
    node: NodeId,
    position: LogPosition,
) -> rusqlite::Result<()> {
    let mut put = db.prepare_cached(
        "INSERT INTO position SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM subscriber WHERE name = ?1)
         ON CONFLICT (name, node) DO UPDATE SET number = CASE log WHEN ?3 THEN max(number, ?4) ELSE ?4 END, log = ?3",
    )?;
    put.execute(params![
        name,
        node.as_bytes(),
        int(position.log),
        int(position.number)
    ])?;
    Ok(())
}

#[cfg(test)]
mod tests;
