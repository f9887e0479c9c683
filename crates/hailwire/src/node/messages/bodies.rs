//! Bodies of messages on disk. A small one is in its message's row. A large one is in a table of its own, because SQLite writes a row
//! anew, with all that is in it, whenever one of its columns changes, and a message changes its state several times.

use rusqlite::{Connection, OptionalExtension as _, Result, params};

/// Largest body that is in its message's row, in bytes: what fits into a page of the database with the rest of the row.
const INLINE_BODY: usize = 2048;

/// Where a message's row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyOf {
    /// In `sent`.
    Sent,
    /// In `inbox`.
    Inbox,
}

impl BodyOf {
    const fn insert(self) -> &'static str {
        match self {
            Self::Sent => "INSERT INTO sent_body (seq, body) VALUES (?1, ?2)",
            Self::Inbox => "INSERT INTO inbox_body (seq, body) VALUES (?1, ?2)",
        }
    }

    const fn select(self) -> &'static str {
        match self {
            Self::Sent => "SELECT body FROM sent_body WHERE seq = ?1",
            Self::Inbox => "SELECT body FROM inbox_body WHERE seq = ?1",
        }
    }

    const fn delete(self) -> &'static str {
        match self {
            Self::Sent => "DELETE FROM sent_body WHERE seq = ?1",
            Self::Inbox => "DELETE FROM inbox_body WHERE seq = ?1",
        }
    }
}

/// What of a body is in the row: all of it, or nothing.
pub(super) fn in_row(body: &[u8]) -> &[u8] {
    match body.len() <= INLINE_BODY {
        true => body,
        false => &[],
    }
}

/// Keeps the body of the row `seq` where it is a large one.
pub(super) fn keep(db: &Connection, of: BodyOf, seq: i64, body: &[u8]) -> Result<()> {
    if body.len() > INLINE_BODY {
        db.prepare_cached(of.insert())?
            .execute(params![seq, body])?;
    }
    Ok(())
}

/// The body of the row `seq`, in which this is: empty once it was removed.
pub(super) fn read(db: &Connection, of: BodyOf, seq: i64, in_row: Vec<u8>) -> Result<Vec<u8>> {
    if !in_row.is_empty() {
        return Ok(in_row);
    }
    let large = db
        .prepare_cached(of.select())?
        .query_row([seq], |row| row.get(0))
        .optional()?;
    Ok(large.unwrap_or_default())
}

/// Removes the body of the row `seq`, which had `size` bytes, where it is a large one.
pub(super) fn remove(db: &Connection, of: BodyOf, seq: i64, size: u64) -> Result<()> {
    if size > INLINE_BODY as u64 {
        db.prepare_cached(of.delete())?.execute([seq])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hailwire_core::delivery::{DeliveryPolicy, SenderNews};
    use hailwire_wire::{
        NodeId,
        header::Durability,
        messages::{MessageId, MessageState},
    };

    use super::{
        super::{
            rows::{self, MessageEnd, NewMessage},
            schema::SCHEMA,
        },
        *,
    };

    const HERE: NodeId = NodeId::from_bytes([1; 32]);
    const PEER: NodeId = NodeId::from_bytes([2; 32]);

    fn message(id: u8, node: NodeId, body: &[u8]) -> NewMessage {
        NewMessage {
            id: MessageId::new(u64::from(id), [id; 10]),
            node,
            target: "a".to_owned(),
            agent: "a".parse().unwrap(),
            sender: String::new(),
            call: false,
            durable: Durability::InOrder,
            header: Vec::new(),
            body: body.to_vec(),
            key: None,
            stored_at: 1,
            expires_at: 1000,
            keep: 1000,
            max_attempts: 0,
            number: 0,
        }
    }

    fn bodies_left(db: &Connection) -> u32 {
        let count = "SELECT (SELECT count(*) FROM sent_body) + (SELECT count(*) FROM inbox_body)";
        db.query_row(count, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_body_of_any_size_is_handed_over_as_it_was_and_none_is_left_after_the_end() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(SCHEMA).unwrap();
        let sizes = [0, 1, INLINE_BODY, INLINE_BODY + 1, 100_000];
        for (id, size) in (1..).zip(sizes) {
            let body = vec![id; size];
            let here = message(id, HERE, &body);
            let number = rows::send(&db, HERE, &here).unwrap().number.unwrap();
            let taken = rows::take(&db, number).unwrap().unwrap();
            assert_eq!(taken.body, body);
            let shown = rows::show(&db, HERE, here.id).unwrap().unwrap();
            assert_eq!(shown.body, body);
            // Given up it is kept, for another try.
            let end = MessageEnd::default();
            let dead = MessageState::Dead;
            rows::end_message(&db, HERE, number, dead, &end, 2).unwrap();
            rows::retry(&db, HERE, here.id, 3).unwrap().unwrap();
            assert_eq!(rows::take(&db, number).unwrap().unwrap().body, body);
            let done = MessageState::Acknowledged;
            rows::end_message(&db, HERE, number, done, &end, 4).unwrap();

            let leaves = message(100 + id, PEER, &body);
            rows::send(&db, HERE, &leaves).unwrap();
            let batch = rows::next_batch(&db, PEER, &[], 10, 1 << 20).unwrap();
            assert_eq!(batch.messages.last().unwrap().body, body);
            rows::learn(&db, HERE, PEER, leaves.id, SenderNews::Kept, &end, 5).unwrap();
        }
        assert_eq!(bodies_left(&db), 0);
    }

    #[test]
    fn what_is_dropped_or_forgotten_takes_its_body_along() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(SCHEMA).unwrap();
        let body = [7; INLINE_BODY + 1];
        let end = MessageEnd::default();
        let dead = |id| {
            let message = message(id, HERE, &body);
            let number = rows::send(&db, HERE, &message).unwrap().number.unwrap();
            let dead = MessageState::Dead;
            rows::end_message(&db, HERE, number, dead, &end, 2).unwrap();
            message.id
        };
        rows::remove(&db, HERE, dead(1)).unwrap();
        assert_eq!(bodies_left(&db), 0);
        let leaves = message(2, PEER, &body);
        rows::send(&db, HERE, &leaves).unwrap();
        assert!(rows::remove(&db, HERE, leaves.id).unwrap().0);
        assert_eq!(bodies_left(&db), 0);
        dead(3);
        assert_eq!(bodies_left(&db), 1, "it may be tried again");
        rows::forget(&db, 10_000, std::time::Duration::ZERO).unwrap();
        assert_eq!(bodies_left(&db), 0);
        rows::begin(&db, HERE, &DeliveryPolicy::default(), 10_000).unwrap();
    }
}
