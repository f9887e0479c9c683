//! How far a node has decided on the messages of each peer: the number of the last one that it took, or refused for good.
//!
//! A peer offers its messages in their order, so all with lower numbers are decided or given up; of those that were decided before something older
//! was, which found no room, the rows are kept. A hub can hand out a copy of them at any time: what is in it
//! up to that number is not looked at any more, which keeps the order, and what was refused for good refused, whatever
//! the node has forgotten or allows by then.

use hailwire_wire::NodeId;
use rusqlite::{Connection, OptionalExtension as _, Result, params};

use super::rows::Key;

/// Which way a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchWay {
    /// Over a tunnel of its sender, who gets the answer.
    Tunnel,
    /// As a copy that a hub held, of any age.
    Hub,
}

/// A number as SQLite stores it.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The number of the last message of a peer that was decided on; 0 where there was none.
pub(super) fn newest(db: &Connection, origin: NodeId) -> Result<u64> {
    let number: Option<i64> = db
        .prepare_cached("SELECT number FROM decided WHERE origin = ?1")?
        .query_row([Key(&origin)], |row| row.get(0))
        .optional()?;
    Ok(number.unwrap_or(0).cast_unsigned())
}

/// All up to this number is decided.
pub(super) fn note(db: &Connection, origin: NodeId, number: u64) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    db.prepare_cached(
        "INSERT INTO decided (origin, number) VALUES (?1, ?2) \
         ON CONFLICT (origin) DO UPDATE SET number = max(number, excluded.number)",
    )?
    .execute(params![Key(&origin), stored(number)])?;
    Ok(())
}
