//! Sealed batches of messages that wait for members that are away (`spec/held.md`).
//!
//! In a database of its own, so that what is written here, each time until the disk has it, holds no look-up up. There is one batch at most of each
//! sender for each receiver: a newer one takes its place, which is why a sender's next one contains what the last one did. Of a batch
//! the hub knows sender, receiver, size and time.

mod requests;

use std::{path::Path, time::Duration};

use bytes::Bytes;
use hailwire_wire::{
    NodeId,
    directory::{HeldBatch, RecordBytes, RefusalReason},
};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use crate::{config::HoldBounds, directory::DirectoryError, identity::private_database};

pub(crate) use requests::{HeldBatches, HeldTurn};

/// Its file in the data folder.
pub(crate) const DATABASE: &str = "held.db";

/// How long another process may have the database; it only counts, or removes a member.
const BUSY: Duration = Duration::from_secs(5);

/// `number` names one batch for ever: SQLite gives an AUTOINCREMENT number once.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS held (
        number INTEGER PRIMARY KEY AUTOINCREMENT, sender BLOB NOT NULL, receiver BLOB NOT NULL,
        size INTEGER NOT NULL, at INTEGER NOT NULL, sealed BLOB NOT NULL, UNIQUE (sender, receiver)
    );
    CREATE INDEX IF NOT EXISTS held_sender ON held (sender, size);
    CREATE INDEX IF NOT EXISTS held_receiver ON held (receiver, number, size);
    CREATE INDEX IF NOT EXISTS held_at ON held (at);
";

/// How much a hub holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounts {
    /// Sealed batches.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What the hub with this data folder holds, also where another process has the folder; nothing where it never held anything.
pub(crate) fn counts_in(data_dir: &Path) -> Result<HeldCounts, DirectoryError> {
    match open_existing(data_dir)? {
        Some(db) => counts(&db),
        None => Ok(HeldCounts::default()),
    }
}

/// Deletes what is held from a node and for it in a data folder, also where another process has the folder.
pub(crate) fn forget_in(data_dir: &Path, node: NodeId) -> Result<(), DirectoryError> {
    if let Some(db) = open_existing(data_dir)? {
        forget(&db, node)?;
    }
    Ok(())
}

fn open_existing(data_dir: &Path) -> Result<Option<Connection>, DirectoryError> {
    let path = data_dir.join(DATABASE);
    if !path.exists() {
        return Ok(None);
    }
    let db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    Ok(Some(db))
}

fn counts(db: &Connection) -> Result<HeldCounts, DirectoryError> {
    let counts = db
        .prepare_cached("SELECT count(*), coalesce(sum(size), 0) FROM held")?
        .query_row([], |row| {
            Ok(HeldCounts {
                batches: row.get::<_, i64>(0)?.cast_unsigned(),
                bytes: row.get::<_, i64>(1)?.cast_unsigned(),
            })
        })?;
    Ok(counts)
}

fn forget(db: &Connection, node: NodeId) -> rusqlite::Result<u64> {
    deleted(
        db,
        "DELETE FROM held WHERE sender = ?1 OR receiver = ?1 RETURNING size",
        [node.as_bytes()],
    )
}

/// The batches on disk.
#[derive(Debug)]
pub(crate) struct HeldStore {
    db: Connection,
    bounds: HoldBounds,
    /// Bytes of all that is held, so that they need not be added up each time.
    total: u64,
}

impl HeldStore {
    /// Opens the database, or creates it.
    pub(crate) fn open(path: &Path, bounds: HoldBounds) -> Result<Self, DirectoryError> {
        private_database(path).map_err(DirectoryError::File)?;
        let mut db = Connection::open(path)?;
        db.set_transaction_behavior(TransactionBehavior::Immediate);
        db.pragma_update(None, "journal_mode", "WAL")?;
        // `held` is said once the disk has it: in WAL mode only FULL syncs at each commit.
        db.pragma_update(None, "synchronous", "FULL")?;
        db.busy_timeout(BUSY)?;
        db.execute_batch(SCHEMA)?;
        let total = sum(&db, "SELECT coalesce(sum(size), 0) FROM held", [])?;
        Ok(Self { db, bounds, total })
    }

    /// Holds a batch in place of the sender's earlier one for this receiver. Returns the unix second until which it is held.
    pub(crate) fn put(
        &mut self,
        sender: NodeId,
        receiver: NodeId,
        sealed: &[u8],
        now: u64,
    ) -> Result<u64, DirectoryError> {
        let HoldBounds {
            bytes,
            bytes_of_one,
            seconds,
        } = self.bounds;
        self.expire(now)?;
        let size = sealed.len() as u64;
        let change = self.db.transaction()?;
        let freed = deleted(
            &change,
            "DELETE FROM held WHERE sender = ?1 AND receiver = ?2 RETURNING size",
            params![sender.as_bytes(), receiver.as_bytes()],
        )?;
        let from = "SELECT coalesce(sum(size), 0) FROM held WHERE sender = ?1";
        if sum(&change, from, [sender.as_bytes()])? + size > bytes_of_one {
            return Err(full("the hub holds as much from this node as it may"));
        }
        let to = "SELECT coalesce(sum(size), 0) FROM held WHERE receiver = ?1";
        if sum(&change, to, [receiver.as_bytes()])? + size > bytes_of_one {
            return Err(full("the hub holds as much for that node as it may"));
        }
        let mut total = self.total.saturating_sub(freed) + size;
        if total > bytes {
            // Another process may have removed a member.
            total = sum(&change, "SELECT coalesce(sum(size), 0) FROM held", [])? + size;
        }
        if total > bytes {
            return Err(full("the hub holds as many messages as it may"));
        }
        change.execute(
            "INSERT INTO held (sender, receiver, size, at, sealed) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                sender.as_bytes(),
                receiver.as_bytes(),
                signed(size),
                signed(now),
                sealed
            ],
        )?;
        change.commit()?;
        self.total = total;
        Ok(now.saturating_add(seconds))
    }

    /// Deletes what has been held for as long as it may be.
    fn expire(&mut self, now: u64) -> Result<(), DirectoryError> {
        let oldest = signed(now.saturating_sub(self.bounds.seconds));
        let change = self.db.transaction()?;
        let sql = "DELETE FROM held WHERE at < ?1 RETURNING size";
        let freed = deleted(&change, sql, [oldest])?;
        change.commit()?;
        self.total = self.total.saturating_sub(freed);
        Ok(())
    }

    /// Deletes what is held from a node and for it, which is no member any more.
    pub(crate) fn forget(&mut self, node: NodeId) -> Result<(), DirectoryError> {
        let change = self.db.transaction()?;
        let freed = forget(&change, node)?;
        change.commit()?;
        self.total = self.total.saturating_sub(freed);
        Ok(())
    }

    /// How much is held.
    pub(crate) fn counts(&self) -> Result<HeldCounts, DirectoryError> {
        counts(&self.db)
    }

    /// The first batch for a receiver whose number is above `after`.
    pub(crate) fn next(
        &mut self,
        receiver: NodeId,
        after: u64,
        now: u64,
    ) -> Result<Option<HeldBatch>, DirectoryError> {
        self.expire(now)?;
        let mut select = self.db.prepare_cached(
            "SELECT number, sender, sealed FROM held \
             WHERE receiver = ?1 AND number > ?2 ORDER BY number LIMIT 1",
        )?;
        let next = select.query_row(params![receiver.as_bytes(), signed(after)], |row| {
            Ok(HeldBatch {
                number: row.get::<_, i64>(0)?.cast_unsigned(),
                from: NodeId::from_bytes(row.get(1)?),
                sealed: RecordBytes(Bytes::from(row.get::<_, Vec<u8>>(2)?)),
            })
        });
        Ok(next.optional()?)
    }

    /// Deletes a batch that its receiver has; returns whether it was there.
    pub(crate) fn delete(&mut self, receiver: NodeId, number: u64) -> Result<bool, DirectoryError> {
        let change = self.db.transaction()?;
        let freed = deleted(
            &change,
            "DELETE FROM held WHERE receiver = ?1 AND number = ?2 RETURNING size",
            params![receiver.as_bytes(), signed(number)],
        )?;
        change.commit()?;
        self.total = self.total.saturating_sub(freed);
        Ok(freed > 0)
    }
}

/// Deletes rows; returns the sum of their sizes.
fn deleted(db: &Connection, sql: &str, of: impl rusqlite::Params) -> rusqlite::Result<u64> {
    let mut delete = db.prepare_cached(sql)?;
    let sizes = delete.query_map(of, |row| row.get::<_, i64>(0))?;
    sizes.map(|size| size.map(i64::cast_unsigned)).sum()
}

fn sum(db: &Connection, sql: &str, of: impl rusqlite::Params) -> rusqlite::Result<u64> {
    let sum: i64 = db.prepare_cached(sql)?.query_row(of, |row| row.get(0))?;
    Ok(sum.cast_unsigned())
}

fn full(message: &str) -> DirectoryError {
    DirectoryError::Refused {
        reason: RefusalReason::Full,
        message: message.to_owned(),
    }
}

/// As SQLite stores it; what no clock and no count reaches is the largest.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
