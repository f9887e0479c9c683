//! Leases on disk. What is decided is in [`LeaseTable`]; here it is written before it is said.
//!
//! A lease that is given or given back costs a commit that is synced, a renewal none: a hub that starts gives each lease its whole time
//! again. The last token is written with each lease. The table stands in every database, whatever its version: a hub of an earlier version
//! does not look at it.

use std::time::{Duration, Instant};

use hailwire_core::lease_table::{KeptLease, LeaseDecision, LeaseTable, LeaseWish};
use hailwire_wire::{
    NodeId,
    directory::RefusalReason,
    lease::{CandidateId, LeaseAnswer, LeaseList, LeaseRelease, LeaseReleased},
    limits,
};
use rusqlite::params;

use super::{Directory, DirectoryError, refused, seconds};

/// Where the last token is kept.
const LAST_TOKEN: &str = "lease-token";

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS lease (
        name TEXT PRIMARY KEY, node BLOB NOT NULL, candidate BLOB NOT NULL,
        token INTEGER NOT NULL, ttl_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
";

impl Directory {
    /// Takes up the leases that the database has, each for its whole time from `at` on.
    pub(super) fn restore_leases(&mut self, at: Instant) -> Result<(), DirectoryError> {
        self.db.execute_batch(SCHEMA)?;
        let last = self.setting(LAST_TOKEN)?;
        let last = last.and_then(|last| last.parse().ok()).unwrap_or(0);
        let mut select = self.db.prepare(
            "SELECT name, node, candidate, token, ttl_ms FROM lease ORDER BY token DESC",
        )?;
        let rows = select.query_map([], |row| {
            let name: String = row.get(0)?;
            let (node, candidate): ([u8; 32], [u8; 16]) = (row.get(1)?, row.get(2)?);
            let (token, ttl): (i64, i64) = (row.get(3)?, row.get(4)?);
            Ok(name.parse().ok().map(|name| KeptLease {
                name,
                node: NodeId::from_bytes(node),
                candidate: CandidateId::from_random(candidate),
                token: token.cast_unsigned(),
                ttl: Duration::from_millis(ttl.cast_unsigned().min(limits::MAX_LEASE_MS)),
            }))
        })?;
        let kept = rows.collect::<Result<Vec<_>, _>>()?;
        self.leases = LeaseTable::restore(kept.into_iter().flatten(), last, at);
        Ok(())
    }

    /// Gives a member's program a lease, or more time on it, or says who holds it. `at` is the hub's clock that nobody sets, `now` the
    /// time of day.
    pub(crate) fn ask_lease(
        &mut self,
        wish: &LeaseWish,
        at: Instant,
        now: u64,
    ) -> Result<LeaseAnswer, DirectoryError> {
        self.admit(wish.node)?;
        let held = match self.leases.ask(wish, at, now) {
            LeaseDecision::Given(lease) => {
                if let Err(error) = self.write_lease(&lease) {
                    self.leases.take_back(&lease);
                    return Err(error);
                }
                true
            }
            LeaseDecision::Renewed => true,
            LeaseDecision::NotHeld => false,
            LeaseDecision::MemberFull => {
                let full = "the programs of this node hold as many leases as they may";
                return Err(refused(RefusalReason::Full, full));
            }
            LeaseDecision::HubFull => {
                let full = "the hub has as many leases as it may";
                return Err(refused(RefusalReason::Full, full));
            }
        };
        let lease = self.leases.lease(&wish.name, at);
        Ok(LeaseAnswer { held, lease })
    }

    fn write_lease(&mut self, lease: &KeptLease) -> Result<(), DirectoryError> {
        let change = self.db.transaction()?;
        let ttl = u64::try_from(lease.ttl.as_millis()).unwrap_or(limits::MAX_LEASE_MS);
        change.execute(
            "INSERT OR REPLACE INTO lease VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                lease.name.as_str(),
                lease.node.as_bytes(),
                lease.candidate.as_bytes(),
                lease.token.cast_signed(),
                seconds(ttl),
            ],
        )?;
        change.execute(
            "INSERT OR REPLACE INTO setting VALUES (?1, ?2)",
            [LAST_TOKEN, &lease.token.to_string()],
        )?;
        // Those that ran out unseen: more than this are never held.
        change.execute(
            "DELETE FROM lease WHERE token NOT IN (SELECT token FROM lease ORDER BY token DESC LIMIT ?1)",
            [limits::MAX_LEASES as i64 * 2],
        )?;
        Ok(change.commit()?)
    }

    /// Ends a lease of a member's program.
    pub(crate) fn release_lease(
        &mut self,
        requester: NodeId,
        release: &LeaseRelease,
        at: Instant,
    ) -> Result<LeaseReleased, DirectoryError> {
        self.admit(requester)?;
        let LeaseRelease {
            name,
            candidate,
            token,
        } = release;
        // Where the row cannot be deleted the lease is over all the same: a hub that starts again finds it held for its time, no more.
        let released = self.leases.release(name, requester, *candidate, *token, at);
        if released {
            self.db.execute(
                "DELETE FROM lease WHERE name = ?1 AND token = ?2",
                params![name.as_str(), token.cast_signed()],
            )?;
        }
        Ok(LeaseReleased { released })
    }

    /// All leases, for a member.
    pub(crate) fn leases(
        &mut self,
        requester: NodeId,
        at: Instant,
    ) -> Result<LeaseList, DirectoryError> {
        self.admit(requester)?;
        let leases = self.leases.leases(at);
        Ok(LeaseList { leases })
    }
}

#[cfg(test)]
mod tests;
