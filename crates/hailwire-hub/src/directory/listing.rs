//! Visibility of agents, and searches for them.
//!
//! Each record is stored with its search text, the text of its agents in lower case, and, if the hub lists agents by
//! trust, with the members that its node shows them to. A search scans the search texts and decodes only records in which
//! all terms occur, in the order of their keys. It is run in slices, so that look-ups need not wait for it
//! ([`crate::queue`]), and ends after a maximum number of rows with the position to continue from, so that the work of one
//! request is bounded however large the hub is.

use bytes::Bytes;
use hailwire_wire::{
    NodeId,
    directory::{PublishRequest, RecordBytes, RefusalReason, SearchPage, SearchRequest, ShownTo},
    limits,
    record::{NodeRecord, RecordError, SignedRecord},
};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Directory, DirectoryError, PAGE_ROWS, after, decode, refused, seconds};
use crate::config::AgentVisibility;

/// Most bytes of records in one answer, before base64.
pub(super) const PAGE_BYTES: usize = limits::MAX_HUB_ANSWER / 2;

/// The most work of one slice of a search.
const MAX_SLICE: SearchCost = SearchCost {
    rows: 512,
    bytes: 512 * 1024,
};

/// The most work of one request; the client requests the next page for more.
const MAX_REQUEST: SearchCost = SearchCost {
    rows: 16 * 1024,
    bytes: 32 * 1024 * 1024,
};

const SCHEMA: &str = "
    CREATE TABLE listing (
        node BLOB PRIMARY KEY REFERENCES member ON DELETE CASCADE,
        expires INTEGER NOT NULL, text TEXT NOT NULL, whereabouts BLOB
    ) WITHOUT ROWID;
    CREATE TABLE shown (
        peer BLOB NOT NULL, node BLOB NOT NULL REFERENCES member ON DELETE CASCADE,
        PRIMARY KEY (peer, node)
    ) WITHOUT ROWID;
    CREATE INDEX shown_by ON shown (node, peer);
    PRAGMA user_version = 2;
";

/// Adds the tables for searches to a database that only has records.
pub(super) fn migrate(db: &mut Connection) -> Result<(), DirectoryError> {
    let change = db.transaction()?;
    change.execute_batch(SCHEMA)?;
    {
        let mut select = change.prepare("SELECT node, expires, bytes FROM record")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (node, expires): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
            let bytes: Vec<u8> = row.get(2)?;
            let text = decode(&bytes)
                .map(|record| text_of(&record))
                .unwrap_or_default();
            change.execute(
                "INSERT INTO listing (node, expires, text) VALUES (?1, ?2, ?3)",
                params![node, expires, text],
            )?;
        }
    }
    Ok(change.commit()?)
}

/// A publication whose signatures and bounds have been checked.
#[derive(Clone, Debug)]
pub(crate) struct CheckedPublication {
    pub(crate) record: SignedRecord,
    whereabouts: Option<SignedRecord>,
    shown_to: Vec<ShownTo>,
}

impl From<SignedRecord> for CheckedPublication {
    fn from(record: SignedRecord) -> Self {
        Self {
            record,
            whereabouts: None,
            shown_to: Vec::new(),
        }
    }
}

/// Why a publication is invalid.
#[derive(Debug)]
pub(crate) enum PublicationError {
    Record(RecordError),
    Whereabouts,
    ShownTo,
}

impl CheckedPublication {
    /// Checks signatures and bounds.
    pub(crate) fn parse(publish: PublishRequest, now: u64) -> Result<Self, PublicationError> {
        if publish.shown_to.len() > limits::MAX_SHOWN_TO {
            return Err(PublicationError::ShownTo);
        }
        let record =
            SignedRecord::parse(publish.record.0, now).map_err(PublicationError::Record)?;
        let whereabouts = publish
            .whereabouts
            .map(|bytes| SignedRecord::parse(bytes.0, now));
        let whereabouts = whereabouts.transpose().map_err(PublicationError::Record)?;
        if let Some(bare) = &whereabouts {
            let (bare_says, says) = (bare.record(), record.record());
            let same = bare.node() == record.node()
                && bare_says.sequence == says.sequence
                && bare_says.name == says.name;
            if !same || !bare_says.agents.is_empty() {
                return Err(PublicationError::Whereabouts);
            }
        }
        Ok(Self {
            record,
            whereabouts,
            shown_to: publish.shown_to,
        })
    }

    /// Stores what searches need, as part of publishing the record.
    pub(super) fn list(
        &self,
        change: &Connection,
        publisher: NodeId,
    ) -> Result<(), DirectoryError> {
        let record = self.record.record();
        let bare = self.whereabouts.as_ref().map(|bare| bare.bytes().as_ref());
        change
            .prepare_cached("INSERT OR REPLACE INTO listing VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![
                publisher.as_bytes(),
                seconds(record.expires),
                text_of(record),
                bare
            ])?;
        let mut shown: Vec<[u8; 16]> = self.shown_to.iter().map(|to| *to.as_bytes()).collect();
        // A node sees its own record.
        shown.push(*ShownTo::of(publisher).as_bytes());
        shown.sort_unstable();
        shown.dedup();
        let mut select =
            change.prepare_cached("SELECT peer FROM shown WHERE node = ?1 ORDER BY peer")?;
        let before = select.query_map([publisher.as_bytes()], |row| row.get(0))?;
        if before.collect::<Result<Vec<[u8; 16]>, _>>()? == shown {
            return Ok(());
        }
        change.execute("DELETE FROM shown WHERE node = ?1", [publisher.as_bytes()])?;
        let mut insert = change.prepare_cached("INSERT INTO shown VALUES (?1, ?2)")?;
        for peer in &shown {
            insert.execute(params![peer, publisher.as_bytes()])?;
        }
        Ok(())
    }
}

impl Directory {
    /// The live record of a node as `requester` may see it.
    pub(super) fn record_for(
        &self,
        requester: NodeId,
        node: NodeId,
        now: u64,
    ) -> Result<Option<Bytes>, DirectoryError> {
        let record = self.live_record(node, now)?;
        if record.is_none() || self.policy.listing == AgentVisibility::Members {
            return Ok(record);
        }
        let mut shown = self
            .db
            .prepare_cached("SELECT 1 FROM shown WHERE peer = ?1 AND node = ?2")?;
        if shown.exists(params![ShownTo::of(requester).as_bytes(), node.as_bytes()])? {
            return Ok(record);
        }
        let mut select = self
            .db
            .prepare_cached("SELECT whereabouts FROM listing WHERE node = ?1")?;
        let bare = select.query_row([node.as_bytes()], |row| row.get(0));
        let bare: Option<Vec<u8>> = bare.optional()?.flatten();
        Ok(bare.map(Bytes::from).or(record))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct SearchCost {
    rows: usize,
    bytes: usize,
}

impl SearchCost {
    fn reaches(self, max: Self) -> bool {
        self.rows >= max.rows || self.bytes >= max.bytes
    }
}

/// A search in progress.
#[derive(Debug)]
pub(crate) struct DirectorySearch {
    requester: NodeId,
    search: SearchRequest,
    /// The terms that must occur in a record's search text, in lower case.
    terms: Vec<String>,
    now: u64,
    admitted: bool,
    /// The last node that was scanned.
    last: Option<NodeId>,
    page: SearchPage,
    page_bytes: usize,
    cost: SearchCost,
}

impl DirectorySearch {
    pub(crate) fn new(requester: NodeId, search: SearchRequest, now: u64) -> Self {
        let terms = search.words.iter().chain(&search.tags);
        Self {
            requester,
            terms: terms.map(|term| term.to_lowercase()).collect(),
            last: search.after,
            search,
            now,
            admitted: false,
            page: SearchPage::default(),
            page_bytes: 0,
            cost: SearchCost::default(),
        }
    }

    /// Runs one slice; returns the page once it is complete.
    pub(crate) fn step(
        &mut self,
        directory: &Directory,
    ) -> Result<Option<SearchPage>, DirectoryError> {
        if !self.admitted {
            directory.admit(self.requester)?;
            self.search.check_bounds().map_err(|bound| {
                let message = format_args!("the search exceeds a bound: {bound}").to_string();
                refused(RefusalReason::Malformed, message)
            })?;
            self.admitted = true;
        }
        let ended = self.slice(directory)?;
        if !ended && self.cost.reaches(MAX_REQUEST) {
            self.page.next = self.last;
        } else if !ended {
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.page)))
    }

    /// Scans the next rows; returns whether the page is complete.
    fn slice(&mut self, directory: &Directory) -> Result<bool, DirectoryError> {
        let mut select = directory
            .db
            .prepare_cached(match directory.policy.listing {
            AgentVisibility::Members => {
                "SELECT node, text FROM listing
                 WHERE node > ?1 AND expires > ?2 AND ?3 IS NOT NULL ORDER BY node LIMIT ?4"
            }
            AgentVisibility::Trusted => {
                "SELECT shown.node, text FROM shown CROSS JOIN listing ON listing.node = shown.node
                 WHERE peer = ?3 AND shown.node > ?1 AND expires > ?2 ORDER BY shown.node LIMIT ?4"
            }
        })?;
        let requester = ShownTo::of(self.requester);
        let max = i64::try_from(MAX_SLICE.rows).unwrap_or(i64::MAX);
        let from = after(self.last);
        let mut rows = select.query(params![from, seconds(self.now), requester.as_bytes(), max])?;
        let mut slice = SearchCost::default();
        while let Some(row) = rows.next()? {
            let node = NodeId::from_bytes(row.get(0)?);
            let text = row.get_ref(1)?.as_str().unwrap_or_default();
            slice.rows += 1;
            slice.bytes += text.len();
            if self.terms.iter().all(|term| text.contains(term.as_str()))
                && let Some(bytes) = self.matching(directory, node)?
            {
                if self.page.records.len() == PAGE_ROWS
                    || self.page_bytes + bytes.len() > PAGE_BYTES
                {
                    self.page.next = self.last;
                    return Ok(true);
                }
                slice.bytes += bytes.len();
                self.page_bytes += bytes.len();
                self.page.records.push(RecordBytes(bytes));
            }
            self.last = Some(node);
            if slice.reaches(MAX_SLICE) {
                break;
            }
        }
        self.cost.rows += slice.rows;
        self.cost.bytes += slice.bytes;
        Ok(!slice.reaches(MAX_SLICE))
    }

    /// A node's record, if one of its agents matches.
    fn matching(
        &self,
        directory: &Directory,
        node: NodeId,
    ) -> Result<Option<Bytes>, DirectoryError> {
        let bytes = directory.live_record(node, self.now)?;
        let wanted = |record: NodeRecord| record.agents.iter().any(|a| self.search.matches(a));
        Ok(bytes.filter(|bytes| self.search.is_empty() || decode(bytes).is_some_and(wanted)))
    }
}

/// The search text of a record.
fn text_of(record: &NodeRecord) -> String {
    let mut text = String::new();
    for agent in &record.agents {
        let parts = [agent.name.as_str(), &agent.description].into_iter();
        for part in parts.chain(agent.tags.iter().map(String::as_str)) {
            text.push_str(&part.to_lowercase());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
