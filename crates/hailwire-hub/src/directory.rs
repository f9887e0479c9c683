//! The members of a hub, their records and their names.
//!
//! The core of the hub: it makes all decisions, on SQLite, and is told the time. One thread owns it
//! ([`crate::queue`]), so all operations are serial, and of two nodes that want one name at the same time
//! only one gets it.
//!
//! - A **member** has joined with a ticket and remains a member until the operator removes it.
//! - A **record** replaces the previous one if its sequence is higher; the sequence is stored
//!   with the member, so that an old record is refused even after the newer one has expired.
//! - A **name** belongs to the first key that publishes it, until some time after that key's last
//!   record. A member holds one name; taking another releases the first.

mod leases;
pub(crate) mod listing;

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire_core::lease_table::LeaseTable;
use hailwire_wire::{
    NodeId, NodeName,
    address::NodeRef,
    directory::{HubMember, HubMembers, LookupAnswer, PublishAnswer, RecordBytes, RefusalReason},
    header,
    latest_time::LatestTime,
    limits,
    record::NodeRecord,
    signed,
    ticket::{Invitation, RedeemError, SecretDigest, TicketSecret},
};
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use thiserror::Error;

use crate::{config::AgentVisibility, identity::private_database};
use listing::CheckedPublication;

/// The setting that stores the latest time seen.
const LATEST_TIME: &str = "latest-time";

/// Most records or members in one answer.
const PAGE_ROWS: usize = 256;

/// Times are unix seconds; sequences are unsigned 64-bit numbers, stored as the same bits.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS setting (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS invitation (
        digest BLOB PRIMARY KEY, uses_left INTEGER NOT NULL, expires INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS member (
        id BLOB PRIMARY KEY, joined INTEGER NOT NULL, seen INTEGER, sequence INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS record (
        node BLOB PRIMARY KEY REFERENCES member ON DELETE CASCADE,
        expires INTEGER NOT NULL, bytes BLOB NOT NULL
    );
    CREATE TABLE IF NOT EXISTS name (
        name TEXT PRIMARY KEY,
        node BLOB NOT NULL UNIQUE REFERENCES member ON DELETE CASCADE,
        held_until INTEGER NOT NULL
    ) WITHOUT ROWID;
    PRAGMA user_version = 1;
";

/// The operator's policy.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryPolicy {
    pub(crate) max_members: u32,
    pub(crate) name_hold_s: u64,
    pub(crate) listing: AgentVisibility,
}

/// Hexadecimal digits of a ticket's id.
const TICKET_ID_LEN: usize = 12;

/// A ticket with which nodes can join, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OpenTicket {
    /// The first digits of the digest of its secret, which names it and lets nobody in.
    pub id: String,
    /// How many nodes can still join with it.
    pub uses_left: u32,
    /// Unix seconds from which on it is refused.
    pub expires: u64,
}

impl OpenTicket {
    fn of(invitation: &Invitation) -> Self {
        let digest = invitation.digest.as_bytes().iter();
        let digits = digest.map(|byte| format!("{byte:02x}"));
        let mut id: String = digits.collect();
        id.truncate(TICKET_ID_LEN);
        Self {
            id,
            uses_left: invitation.uses_left,
            expires: invitation.expires,
        }
    }
}

/// How many members, records and names a hub has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubCounts {
    /// Members.
    pub members: u64,
    /// Records in force.
    pub records: u64,
    /// Names held.
    pub names: u64,
}

#[derive(Debug)]
pub(crate) struct Directory {
    db: Connection,
    policy: DirectoryPolicy,
    /// The clock by which tickets expire.
    clock: LatestTime,
    started: Instant,
    /// Who holds which lease; what of it must outlast this process is in the database too.
    leases: LeaseTable,
}

impl Directory {
    /// Opens the database, or creates it. Another process may have it open too.
    pub(crate) fn open(path: &Path, policy: DirectoryPolicy) -> Result<Self, DirectoryError> {
        private_database(path).map_err(DirectoryError::File)?;
        Self::over(Connection::open(path)?, policy)
    }

    fn over(mut db: Connection, policy: DirectoryPolicy) -> Result<Self, DirectoryError> {
        // Another process may write too; a transaction that takes the lock first cannot fail half-way.
        db.set_transaction_behavior(TransactionBehavior::Immediate);
        db.busy_timeout(std::time::Duration::from_secs(5))?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        // What is acknowledged is on the disk: in WAL mode only FULL syncs at each commit.
        db.pragma_update(None, "synchronous", "FULL")?;
        db.pragma_update(None, "foreign_keys", true)?;
        let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match version {
            0 => db.execute_batch(SCHEMA)?,
            1 | 2 => {}
            version => return Err(DirectoryError::Newer(version)),
        }
        if version < 2 {
            listing::migrate(&mut db)?;
        }
        let mut directory = Self {
            db,
            policy,
            clock: LatestTime::new(0, Duration::ZERO),
            started: Instant::now(),
            leases: LeaseTable::default(),
        };
        let latest = directory.setting(LATEST_TIME)?;
        let latest = latest.and_then(|latest| latest.parse().ok()).unwrap_or(0);
        directory.clock = LatestTime::new(latest, Duration::ZERO);
        directory.restore_leases(Instant::now())?;
        Ok(directory)
    }

    /// The time by which tickets expire: never earlier than a time seen before, here or in another
    /// process. It is stored with the next change.
    pub(crate) fn latest(&mut self, now: u64) -> u64 {
        self.clock.now(now, self.started.elapsed())
    }

    pub(crate) fn setting(&self, key: &str) -> Result<Option<String>, DirectoryError> {
        let mut select = self
            .db
            .prepare_cached("SELECT value FROM setting WHERE key = ?1")?;
        Ok(select.query_row([key], |row| row.get(0)).optional()?)
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), DirectoryError> {
        self.db.execute(
            "INSERT OR REPLACE INTO setting VALUES (?1, ?2)",
            [key, value],
        )?;
        Ok(())
    }

    /// Stores an invitation, and deletes expired ones.
    pub(crate) fn invite(
        &mut self,
        invitation: &Invitation,
        now: u64,
    ) -> Result<(), DirectoryError> {
        let now = self.latest(now);
        let change = self.db.transaction()?;
        let now = record_time(&change, now)?;
        change.execute("DELETE FROM invitation WHERE expires <= ?1", [seconds(now)])?;
        if count(&change, "SELECT count(*) FROM invitation")? >= limits::MAX_INVITATIONS as u64 {
            return Err(refused(
                RefusalReason::Full,
                "too many invitations are open already",
            ));
        }
        change.execute(
            "INSERT INTO invitation VALUES (?1, ?2, ?3)",
            params![
                invitation.digest.as_bytes(),
                invitation.uses_left,
                seconds(invitation.expires)
            ],
        )?;
        Ok(change.commit()?)
    }

    /// The tickets that a node can join with at this time, those that expire first before the others.
    pub(crate) fn open_tickets(&mut self, now: u64) -> Result<Vec<OpenTicket>, DirectoryError> {
        let now = self.latest(now);
        let mut select = self.db.prepare_cached(
            "SELECT digest, uses_left, expires FROM invitation \
             WHERE expires > ?1 AND uses_left > 0 ORDER BY expires, digest",
        )?;
        let rows = select.query_map([seconds(now)], invitation)?;
        let open = rows.map(|row| row.map(|invitation| OpenTicket::of(&invitation)));
        Ok(open.collect::<Result<_, _>>()?)
    }

    /// Ends the one open ticket with this id, of which nobody can join with it any more; `None` where there is none.
    pub(crate) fn revoke(
        &mut self,
        id: &str,
        now: u64,
    ) -> Result<Option<OpenTicket>, DirectoryError> {
        let mut open = self.open_tickets(now)?;
        open.retain(|ticket| ticket.id == id);
        let Some(ticket) = open.pop() else {
            return Ok(None);
        };
        let sql = "DELETE FROM invitation WHERE lower(hex(digest)) LIKE ?1 || '%'";
        self.db.execute(sql, [&ticket.id])?;
        Ok(Some(ticket))
    }

    /// Makes a node a member. A member that joins again uses up nothing.
    pub(crate) fn join(
        &mut self,
        node: NodeId,
        secret: &TicketSecret,
        now: u64,
    ) -> Result<(), DirectoryError> {
        let latest = self.latest(now);
        let change = self.db.transaction()?;
        if is_member(&change, node)? {
            return Ok(());
        }
        let latest = record_time(&change, latest)?;
        let digest = secret.digest();
        let mut invitation = change
            .query_row(
                "SELECT digest, uses_left, expires FROM invitation WHERE digest = ?1",
                [digest.as_bytes()],
                invitation,
            )
            .optional()?
            .ok_or_else(|| redeem_refused(RedeemError::Unknown))?;
        if let Err(error) = invitation.redeem(latest) {
            // The time is stored, though nothing else changes.
            change.commit()?;
            return Err(redeem_refused(error));
        }
        if count(&change, "SELECT count(*) FROM member")? >= u64::from(self.policy.max_members) {
            return Err(refused(
                RefusalReason::Full,
                "the hub has the maximum number of members",
            ));
        }
        change.execute(
            "UPDATE invitation SET uses_left = ?2 WHERE digest = ?1",
            params![digest.as_bytes(), invitation.uses_left],
        )?;
        change.execute(
            "INSERT INTO member (id, joined) VALUES (?1, ?2)",
            params![node.as_bytes(), seconds(now)],
        )?;
        Ok(change.commit()?)
    }

    /// Ends a membership; returns whether the node was a member.
    pub(crate) fn remove(&mut self, node: NodeId) -> Result<bool, DirectoryError> {
        Ok(self
            .db
            .execute("DELETE FROM member WHERE id = ?1", [node.as_bytes()])?
            > 0)
    }

    /// A number that changes whenever another connection has changed the database, as that of another process.
    pub(crate) fn data_version(&mut self) -> Result<i64, DirectoryError> {
        Ok(self
            .db
            .pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    /// Whether a node is a member.
    pub(crate) fn is_member(&self, node: NodeId) -> Result<bool, DirectoryError> {
        is_member(&self.db, node)
    }

    /// Replaces the record of a node by a newer one, already checked.
    pub(crate) fn publish(
        &mut self,
        publisher: NodeId,
        publication: &CheckedPublication,
        now: u64,
    ) -> Result<PublishAnswer, DirectoryError> {
        // Members publish periodically, so a crash may undo this, and it need not wait for the disk.
        self.db.pragma_update(None, "synchronous", "NORMAL")?;
        let published = self.publish_without_sync(publisher, publication, now);
        self.db.pragma_update(None, "synchronous", "FULL")?;
        published
    }

    fn publish_without_sync(
        &mut self,
        publisher: NodeId,
        publication: &CheckedPublication,
        now: u64,
    ) -> Result<PublishAnswer, DirectoryError> {
        let signed = &publication.record;
        let latest = self.latest(now);
        let change = self.db.transaction()?;
        record_time(&change, latest)?;
        let known = change
            .query_row(
                "SELECT sequence FROM member WHERE id = ?1",
                [publisher.as_bytes()],
                |row| row.get::<_, Option<i64>>(0),
            )
            .optional()?
            .ok_or_else(not_a_member)?;
        if signed.node() != publisher {
            return Err(refused(
                RefusalReason::NotYours,
                "the record is signed by another key",
            ));
        }
        if let Some(known) = known {
            signed
                .supersedes(known.cast_unsigned())
                .map_err(|error| refused(RefusalReason::Replayed, error))?;
        }
        let record = signed.record();
        let held_until = now.saturating_add(self.policy.name_hold_s);
        // Without a name, the name that it held stays bound to its key for the promised time.
        if let Some(name) = &record.name {
            hold(&change, publisher, name, held_until, now)?;
        }
        change.execute(
            "UPDATE member SET sequence = ?2, seen = ?3 WHERE id = ?1",
            params![
                publisher.as_bytes(),
                record.sequence.cast_signed(),
                seconds(now)
            ],
        )?;
        change.execute(
            "INSERT OR REPLACE INTO record VALUES (?1, ?2, ?3)",
            params![
                publisher.as_bytes(),
                seconds(record.expires),
                signed.bytes().as_ref()
            ],
        )?;
        publication.list(&change, publisher)?;
        change.commit()?;
        let name_held_until = record.name.as_ref().map(|_| held_until);
        Ok(PublishAnswer {
            sequence: record.sequence,
            name_held_until,
        })
    }

    /// The live record of a node, by key or by the name in the record.
    pub(crate) fn lookup(
        &self,
        requester: NodeId,
        node: &NodeRef,
        now: u64,
    ) -> Result<LookupAnswer, DirectoryError> {
        self.admit(requester)?;
        let id = match node {
            NodeRef::Id(id) => Some(*id),
            NodeRef::Name(name) => self.holder(name, now)?,
        };
        let bytes = match id {
            Some(id) => self.record_for(requester, id, now)?,
            None => None,
        };
        let bytes = bytes.filter(|bytes| match node {
            NodeRef::Id(_) => true,
            NodeRef::Name(name) => decode(bytes).is_some_and(|r| r.name.as_ref() == Some(name)),
        });
        // Whether a name is taken is reported even while its holder has no live record.
        let reason = match (node, id) {
            (NodeRef::Name(_), Some(_)) => RefusalReason::Away,
            _ => RefusalReason::NotFound,
        };
        let missing = || refused(reason, format_args!("no live record of `{node}`"));
        bytes
            .map(|bytes| LookupAnswer {
                record: RecordBytes(bytes),
            })
            .ok_or_else(missing)
    }

    /// One page of live records with a matching agent, in one step, for tests.
    #[cfg(test)]
    pub(crate) fn search(
        &self,
        requester: NodeId,
        search: &hailwire_wire::directory::SearchRequest,
        now: u64,
    ) -> Result<hailwire_wire::directory::SearchPage, DirectoryError> {
        let mut searching = listing::DirectorySearch::new(requester, search.clone(), now);
        loop {
            if let Some(page) = searching.step(self)? {
                return Ok(page);
            }
        }
    }

    /// One page of members, for a member.
    pub(crate) fn members(
        &self,
        requester: NodeId,
        after: Option<NodeId>,
        now: u64,
    ) -> Result<HubMembers, DirectoryError> {
        self.admit(requester)?;
        self.member_page(after, now)
    }

    /// One page of members, for the operator.
    pub(crate) fn member_page(
        &self,
        from: Option<NodeId>,
        now: u64,
    ) -> Result<HubMembers, DirectoryError> {
        let mut select = self.db.prepare_cached(
            "SELECT id, joined, seen, record.expires > ?2,
                 CASE WHEN held_until > ?2 THEN name.name END
             FROM member
             LEFT JOIN record ON record.node = id LEFT JOIN name ON name.node = id
             WHERE id > ?1 ORDER BY id LIMIT ?3",
        )?;
        let limit = i64::try_from(PAGE_ROWS + 1).unwrap_or(i64::MAX);
        let rows = select.query_map(params![after(from), seconds(now), limit], member)?;
        let mut members = rows.collect::<Result<Vec<_>, _>>()?;
        let mut next = None;
        if members.len() > PAGE_ROWS {
            members.truncate(PAGE_ROWS);
            next = members.last().map(|member| member.id);
        }
        Ok(HubMembers { members, next })
    }

    pub(crate) fn counts(&self, now: u64) -> Result<HubCounts, DirectoryError> {
        let live = |sql| {
            self.db
                .query_row(sql, [seconds(now)], |row| row.get::<_, i64>(0))
        };
        Ok(HubCounts {
            members: count(&self.db, "SELECT count(*) FROM member")?,
            records: live("SELECT count(*) FROM record WHERE expires > ?1")?.cast_unsigned(),
            names: live("SELECT count(*) FROM name WHERE held_until > ?1")?.cast_unsigned(),
        })
    }

    fn admit(&self, requester: NodeId) -> Result<(), DirectoryError> {
        if is_member(&self.db, requester)? {
            Ok(())
        } else {
            Err(not_a_member())
        }
    }

    fn holder(&self, name: &NodeName, now: u64) -> Result<Option<NodeId>, DirectoryError> {
        let mut select = self
            .db
            .prepare_cached("SELECT node FROM name WHERE name = ?1 AND held_until > ?2")?;
        let holder = select.query_row(params![name.as_str(), seconds(now)], |row| row.get(0));
        Ok(holder.optional()?.map(NodeId::from_bytes))
    }

    fn live_record(&self, node: NodeId, now: u64) -> Result<Option<Bytes>, DirectoryError> {
        let mut select = self
            .db
            .prepare_cached("SELECT bytes FROM record WHERE node = ?1 AND expires > ?2")?;
        let bytes = select.query_row(params![node.as_bytes(), seconds(now)], |row| row.get(0));
        Ok(bytes.optional()?.map(|bytes: Vec<u8>| bytes.into()))
    }
}

/// Stores the time, unless a later one is stored. Returns the later one.
fn record_time(change: &Transaction<'_>, now: u64) -> Result<u64, DirectoryError> {
    let kept = change
        .query_row(
            "SELECT value FROM setting WHERE key = ?1",
            [LATEST_TIME],
            |row| row.get::<_, String>(0),
        )
        .optional()?
        .and_then(|kept| kept.parse().ok())
        .unwrap_or(0);
    if now > kept {
        change.execute(
            "INSERT OR REPLACE INTO setting VALUES (?1, ?2)",
            params![LATEST_TIME, now.to_string()],
        )?;
    }
    Ok(now.max(kept))
}

/// Binds a name to a key, unless another key holds it.
fn hold(
    change: &Transaction<'_>,
    node: NodeId,
    name: &NodeName,
    held_until: u64,
    now: u64,
) -> Result<(), DirectoryError> {
    let holder = change
        .query_row(
            "SELECT node FROM name WHERE name = ?1 AND held_until > ?2",
            params![name.as_str(), seconds(now)],
            |row| row.get(0),
        )
        .optional()?
        .map(NodeId::from_bytes);
    if holder.is_some_and(|holder| holder != node) {
        let taken = format_args!("the name `{name}` is held by another node").to_string();
        return Err(refused(RefusalReason::NameTaken, taken));
    }
    change.execute(
        "DELETE FROM name WHERE name = ?1 OR node = ?2",
        params![name.as_str(), node.as_bytes()],
    )?;
    change.execute(
        "INSERT INTO name VALUES (?1, ?2, ?3)",
        params![name.as_str(), node.as_bytes(), seconds(held_until)],
    )?;
    Ok(())
}

fn is_member(db: &Connection, node: NodeId) -> Result<bool, DirectoryError> {
    let mut select = db.prepare_cached("SELECT 1 FROM member WHERE id = ?1")?;
    Ok(select.exists([node.as_bytes()])?)
}

fn count(db: &Connection, sql: &str) -> Result<u64, DirectoryError> {
    Ok(db
        .query_row(sql, [], |row| row.get::<_, i64>(0))?
        .cast_unsigned())
}

fn invitation(row: &Row<'_>) -> rusqlite::Result<Invitation> {
    Ok(Invitation {
        digest: SecretDigest::from_bytes(row.get(0)?),
        uses_left: row.get(1)?,
        expires: row.get::<_, i64>(2)?.cast_unsigned(),
        allow: Vec::new(),
        offer: Vec::new(),
    })
}

fn member(row: &Row<'_>) -> rusqlite::Result<HubMember> {
    let name: Option<String> = row.get(4)?;
    Ok(HubMember {
        id: NodeId::from_bytes(row.get(0)?),
        name: name.and_then(|name| name.parse().ok()),
        joined: row.get::<_, i64>(1)?.cast_unsigned(),
        seen: row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
        live: row.get::<_, Option<bool>>(3)?.unwrap_or(false),
    })
}

/// The lower bound of a page; every key is greater than the empty blob.
fn after(key: Option<NodeId>) -> Vec<u8> {
    key.map_or_else(Vec::new, |key| key.as_bytes().to_vec())
}

/// Decodes a stored record, which was checked when it was published.
fn decode(bytes: &[u8]) -> Option<NodeRecord> {
    header::decode(bytes.get(signed::ENVELOPE..)?).ok()
}

/// Unix seconds as SQLite stores them.
fn seconds(unix: u64) -> i64 {
    i64::try_from(unix).unwrap_or(i64::MAX)
}

fn not_a_member() -> DirectoryError {
    refused(
        RefusalReason::NotAMember,
        "this node is not a member of the hub",
    )
}

fn redeem_refused(error: RedeemError) -> DirectoryError {
    let reason = match error {
        RedeemError::Unknown => RefusalReason::TicketUnknown,
        RedeemError::Expired => RefusalReason::TicketExpired,
        RedeemError::UsedUp => RefusalReason::TicketUsedUp,
    };
    refused(reason, error)
}

fn refused(reason: RefusalReason, message: impl std::fmt::Display) -> DirectoryError {
    DirectoryError::Refused {
        reason,
        message: message.to_string(),
    }
}

/// Why the directory does not carry out a request.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The request is refused.
    #[error("{message}")]
    Refused {
        /// The reason for programs.
        reason: RefusalReason,
        /// The reason for people.
        message: String,
    },
    /// The database's file cannot be created, or made private.
    #[error("the hub's database cannot be used")]
    File(#[source] io::Error),
    /// The database failed.
    #[error("the hub's database failed")]
    Store(#[from] rusqlite::Error),
    /// The database was written by a newer version.
    #[error("the hub's database has version {0}, which is newer than this program supports")]
    Newer(i64),
}

#[cfg(test)]
mod tests;
