//! What a node must remember: trust and its withdrawal, aliases, addresses, invitations, hubs and
//! its UDP ports.
//!
//! One SQLite file in WAL mode. Everything is small and changes rarely, so the node reads it all at
//! start, keeps it in memory, and writes each change through before it takes effect.

use std::{net::SocketAddr, path::Path, sync::Mutex};

use hailwire_core::{
    grants::{BareCalls, Grant},
    names::{HubAnswer, NamedBy},
};
use hailwire_wire::{
    AgentName, NodeId, NodeName,
    ticket::{Invitation, SecretDigest},
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use thiserror::Error;

/// The database of one node.
#[derive(Debug)]
pub(crate) struct NodeStore {
    connection: Mutex<Connection>,
}

/// A write or read failed: a full disk, a read-only folder, a damaged file.
#[derive(Debug, Error)]
#[error("the node's database cannot be used")]
pub struct StoreError(#[from] rusqlite::Error);

/// A trusted peer as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrustRow {
    pub(crate) id: NodeId,
    pub(crate) alias: Option<NodeName>,
    pub(crate) named_by: NamedBy,
    /// Agents that it may call.
    pub(crate) allow: Grant,
    /// BareCalls calls of this node that it may take.
    pub(crate) bare: BareCalls,
    pub(crate) via: TrustOrigin,
    /// Unix seconds.
    pub(crate) since: u64,
    /// Where it was found last, newest first.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where it is by this user's word.
    pub(crate) typed: Vec<SocketAddr>,
    /// Where it is by its own word.
    pub(crate) told: Vec<SocketAddr>,
    /// Where it listens on TCP, by this user's word.
    pub(crate) tcp: Vec<SocketAddr>,
    /// Where it listens on TCP, by its own word.
    pub(crate) told_tcp: Vec<SocketAddr>,
    pub(crate) relay: Option<String>,
}

/// How trust came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrustOrigin {
    Ticket,
    Approved,
    Manual,
    Hub,
}

impl TrustOrigin {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ticket => "ticket",
            Self::Approved => "approved",
            Self::Manual => "manual",
            Self::Hub => "hub",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "ticket" => Self::Ticket,
            "approved" => Self::Approved,
            "hub" => Self::Hub,
            _ => Self::Manual,
        }
    }
}

/// A hub that the node belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HubRow {
    pub(crate) url: String,
    /// The hub's key, where it has no public certificate.
    pub(crate) key: Option<NodeId>,
    /// URL of its relay, as it said when this node joined.
    pub(crate) relay: Option<String>,
    /// UDP port of its address discovery.
    pub(crate) discovery_port: Option<u16>,
    /// Whether its members trust each other.
    pub(crate) trust_members: bool,
}

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS trust (
        id BLOB PRIMARY KEY, alias TEXT, allow TEXT NOT NULL, via TEXT NOT NULL,
        since INTEGER NOT NULL, addresses TEXT NOT NULL, relay TEXT,
        tcp TEXT NOT NULL DEFAULT '', named_by TEXT NOT NULL DEFAULT '',
        bare TEXT NOT NULL DEFAULT '', typed TEXT NOT NULL DEFAULT '',
        told TEXT NOT NULL DEFAULT '', told_tcp TEXT NOT NULL DEFAULT '') STRICT;
    CREATE TABLE IF NOT EXISTS removed (id BLOB PRIMARY KEY, at INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS invitation (
        digest BLOB PRIMARY KEY, uses_left INTEGER NOT NULL, expires INTEGER NOT NULL,
        allow TEXT NOT NULL, bare TEXT NOT NULL DEFAULT '') STRICT;
    CREATE TABLE IF NOT EXISTS heard (name TEXT PRIMARY KEY, holder BLOB) STRICT;
    CREATE TABLE IF NOT EXISTS hub (
        url TEXT PRIMARY KEY, key BLOB, relay TEXT, discovery_port INTEGER,
        trust_members INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS connected (id BLOB PRIMARY KEY, at INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
";

/// Columns that came later: a database of before gets them when it is opened.
const ADDED: [(&str, &str); 7] = [
    ("trust", "told"),
    ("trust", "told_tcp"),
    ("trust", "tcp"),
    ("trust", "named_by"),
    ("trust", "bare"),
    ("invitation", "bare"),
    ("trust", TYPED),
];

/// The last column that came.
const TYPED: &str = "typed";

/// A database of before does not say who said where a peer is: by hand only what was typed came.
const SORTED: &str = "
    UPDATE trust SET typed = addresses WHERE via = 'manual';
    UPDATE trust SET told = addresses, told_tcp = tcp, tcp = '' WHERE via <> 'manual';
    UPDATE trust SET addresses = '';
";

fn add_columns(connection: &Connection) -> Result<(), StoreError> {
    for (table, column) in ADDED {
        let known = connection
            .prepare("SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2")?
            .exists([table, column])?;
        if !known {
            connection.execute_batch(&format!(
                "ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT ''"
            ))?;
            if column == TYPED {
                connection.execute_batch(SORTED)?;
            }
        }
    }
    Ok(())
}

impl NodeStore {
    /// Opens the database at `path`, making it if need be.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // What is acknowledged is on the disk: in WAL mode only FULL syncs at each commit.
        connection.pragma_update(None, "synchronous", "FULL")?;
        // The defaults keep up to 2 MiB of pages; this database has a handful.
        connection.pragma_update(None, "cache_size", -128)?;
        connection.execute_batch(SCHEMA)?;
        add_columns(&connection)?;
        Ok(Self {
            connection: Mutex::new(connection),
        })
    }

    pub(crate) fn trust(&self) -> Result<Vec<TrustRow>, StoreError> {
        self.all(
            "SELECT id, alias, allow, via, since, addresses, relay, tcp, named_by, bare, \
             typed, told, told_tcp FROM trust",
            trust_row,
        )
    }

    #[cfg(test)]
    pub(crate) fn put_trust(&self, row: &TrustRow) -> Result<(), StoreError> {
        self.commit(&[TrustChange::Trust(row)])
    }

    /// Writes where a peer was found. A crash may undo it, which loses only time later.
    pub(crate) fn put_place(&self, row: &TrustRow) -> Result<(), StoreError> {
        self.loosely(|connection| TrustChange::Trust(row).write(connection))
    }

    /// Makes all of these changes or none; they are on the disk when it returns.
    pub(crate) fn commit(&self, changes: &[TrustChange<'_>]) -> Result<(), StoreError> {
        let connection = self.lock();
        let together = connection.unchecked_transaction()?;
        for change in changes {
            change.write(&together)?;
        }
        Ok(together.commit()?)
    }

    /// Peers that were removed, the longest removed first.
    pub(crate) fn removed(&self) -> Result<Vec<NodeId>, StoreError> {
        self.all("SELECT id FROM removed ORDER BY at, rowid", |row| {
            Ok(NodeId::from_bytes(row.get(0)?))
        })
    }

    /// The open invitations, without those whose terms cannot be read: a grant that lost a name would
    /// be another.
    pub(crate) fn invitations(&self) -> Result<Vec<Invitation>, StoreError> {
        let rows = self.all(
            "SELECT digest, uses_left, expires, allow, bare FROM invitation",
            |row| {
                let terms: (String, String) = (row.get(3)?, row.get(4)?);
                let (Some(allow), Some(offer)) = (whole(&terms.0), whole(&terms.1)) else {
                    return Ok(None);
                };
                Ok(Some(Invitation {
                    digest: SecretDigest::from_bytes(row.get(0)?),
                    uses_left: row.get(1)?,
                    expires: row.get::<_, i64>(2)?.cast_unsigned(),
                    allow,
                    offer,
                }))
            },
        )?;
        Ok(rows.into_iter().flatten().collect())
    }

    pub(crate) fn put_invitation(&self, invitation: &Invitation) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO invitation (digest, uses_left, expires, allow, bare) \
             VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                invitation.digest.as_bytes(),
                invitation.uses_left,
                invitation.expires.cast_signed(),
                list(&invitation.allow),
                list(&invitation.offer),
            ],
        )
    }

    /// Forgets invitations that expired before `now_unix`.
    pub(crate) fn expire_invitations(&self, now_unix: u64) -> Result<(), StoreError> {
        self.execute(
            "DELETE FROM invitation WHERE expires <= ?1",
            params![now_unix.cast_signed()],
        )
    }

    /// What the hubs said of names: the holder's key, no bytes for one that is away, nothing for nobody.
    pub(crate) fn hub_answers(&self) -> Result<Vec<(NodeName, HubAnswer)>, StoreError> {
        let rows = self.all("SELECT name, holder FROM heard", |row| {
            let name = row.get::<_, String>(0)?.parse().ok();
            let said = match row.get::<_, Option<Vec<u8>>>(1)? {
                None => HubAnswer::Nobody,
                Some(key) => key.try_into().map_or(HubAnswer::Away, |key| {
                    HubAnswer::Holder(NodeId::from_bytes(key))
                }),
            };
            Ok(name.map(|name| (name, said)))
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    pub(crate) fn put_hub_answer(
        &self,
        name: &NodeName,
        said: HubAnswer,
    ) -> Result<(), StoreError> {
        let holder: Option<&[u8]> = match &said {
            HubAnswer::Nobody => None,
            HubAnswer::Away => Some(&[]),
            HubAnswer::Holder(id) => Some(id.as_bytes()),
        };
        self.execute_loosely(
            "INSERT OR REPLACE INTO heard VALUES (?1, ?2)",
            params![name.as_str(), holder],
        )
    }

    pub(crate) fn forget_hub_answer(&self, name: &NodeName) -> Result<(), StoreError> {
        self.execute_loosely("DELETE FROM heard WHERE name = ?1", [name.as_str()])
    }

    pub(crate) fn hubs(&self) -> Result<Vec<HubRow>, StoreError> {
        self.all(
            "SELECT url, key, relay, discovery_port, trust_members FROM hub",
            |row| {
                Ok(HubRow {
                    url: row.get(0)?,
                    key: row.get::<_, Option<[u8; 32]>>(1)?.map(NodeId::from_bytes),
                    relay: row.get(2)?,
                    discovery_port: row.get(3)?,
                    trust_members: row.get(4)?,
                })
            },
        )
    }

    pub(crate) fn put_hub(&self, hub: &HubRow) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO hub VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                hub.url,
                hub.key.as_ref().map(NodeId::as_bytes),
                hub.relay,
                hub.discovery_port,
                hub.trust_members,
            ],
        )
    }

    /// Notes that there is a tunnel to a peer since this unix time.
    pub(crate) fn put_connected(&self, id: NodeId, since: u64) -> Result<(), StoreError> {
        self.execute_loosely(
            "INSERT OR REPLACE INTO connected VALUES (?1, ?2)",
            params![id.as_bytes(), since.cast_signed()],
        )
    }

    pub(crate) fn forget_connected(&self, id: NodeId) -> Result<(), StoreError> {
        self.execute_loosely("DELETE FROM connected WHERE id = ?1", [id.as_bytes()])
    }

    /// Peers to which there was a tunnel when the node ended, the newest `most` of them; none of them is noted any more.
    pub(crate) fn take_connected(&self, most: u32) -> Result<Vec<NodeId>, StoreError> {
        let sql = format!("SELECT id FROM connected ORDER BY at DESC, id LIMIT {most}");
        let ids = self.all(&sql, |row| Ok(NodeId::from_bytes(row.get(0)?)))?;
        if !ids.is_empty() {
            self.execute_loosely("DELETE FROM connected", [])?;
        }
        Ok(ids)
    }

    pub(crate) fn remove_hub(&self, url: &str) -> Result<(), StoreError> {
        self.execute("DELETE FROM hub WHERE url = ?1", [url])
    }

    pub(crate) fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let connection = self.lock();
        let mut query = connection.prepare_cached("SELECT value FROM setting WHERE name = ?1")?;
        Ok(query.query_row([name], |row| row.get(0)).optional()?)
    }

    /// A crash may undo it.
    pub(crate) fn put_setting(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.execute_loosely(
            "INSERT OR REPLACE INTO setting VALUES (?1, ?2)",
            params![name, value],
        )
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), StoreError> {
        self.lock().prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    /// As [`NodeStore::execute`], for what may be lost in a crash: no disk is waited for.
    fn execute_loosely(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), StoreError> {
        self.loosely(|connection| connection.prepare_cached(sql)?.execute(values).map(drop))
    }

    fn loosely(
        &self,
        write: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let connection = self.lock();
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let written = write(&connection);
        connection.pragma_update(None, "synchronous", "FULL")?;
        Ok(written?)
    }

    fn all<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let connection = self.lock();
        let mut query = connection.prepare_cached(sql)?;
        Ok(query.query_map([], read)?.collect::<Result<_, _>>()?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A change of whom this node trusts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrustChange<'a> {
    /// A peer as it is from now on.
    Trust(&'a TrustRow),
    /// It is trusted no longer.
    Distrust(NodeId),
    /// It was removed, as the newest of those.
    Removed(NodeId, u64),
    /// That it was removed is forgotten.
    Forgiven(NodeId),
}

impl TrustChange<'_> {
    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let row = match *self {
            Self::Trust(row) => row,
            Self::Distrust(id) => {
                return run(
                    connection,
                    "DELETE FROM trust WHERE id = ?1",
                    [id.as_bytes()],
                );
            }
            Self::Removed(id, at) => {
                let values = params![id.as_bytes(), at.cast_signed()];
                return run(
                    connection,
                    "INSERT OR REPLACE INTO removed VALUES (?1, ?2)",
                    values,
                );
            }
            Self::Forgiven(id) => {
                return run(
                    connection,
                    "DELETE FROM removed WHERE id = ?1",
                    [id.as_bytes()],
                );
            }
        };
        run(
            connection,
            "INSERT OR REPLACE INTO trust \
             (id, alias, allow, via, since, addresses, relay, tcp, named_by, bare, typed, told, told_tcp) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            params![
                row.id.as_bytes(),
                row.alias.as_ref().map(NodeName::as_str),
                grant_text(&row.allow),
                row.via.name(),
                row.since.cast_signed(),
                list(&row.addresses),
                row.relay,
                list(&row.tcp),
                row.named_by.name(),
                bare_text(&row.bare),
                list(&row.typed),
                list(&row.told),
                list(&row.told_tcp),
            ],
        )
    }
}

fn run(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

fn trust_row(row: &Row<'_>) -> rusqlite::Result<TrustRow> {
    let via = TrustOrigin::from_name(&row.get::<_, String>(3)?);
    Ok(TrustRow {
        id: NodeId::from_bytes(row.get(0)?),
        alias: row
            .get::<_, Option<String>>(1)?
            .and_then(|alias| alias.parse().ok()),
        named_by: named_by(&row.get::<_, String>(8)?, via),
        allow: grant(&row.get::<_, String>(2)?),
        bare: bare(&row.get::<_, String>(9)?),
        via,
        since: row.get::<_, i64>(4)?.cast_unsigned(),
        addresses: parsed(&row.get::<_, String>(5)?),
        relay: row.get(6)?,
        tcp: parsed(&row.get::<_, String>(7)?),
        typed: parsed(&row.get::<_, String>(10)?),
        told: parsed(&row.get::<_, String>(11)?),
        told_tcp: parsed(&row.get::<_, String>(12)?),
    })
}

/// Stands for no name at all, where no text stands for all.
const NOTHING: &str = "-";

fn grant_text(grant: &Grant) -> String {
    names_text(grant.names(), *grant == Grant::All)
}

fn bare_text(bare: &BareCalls) -> String {
    names_text(bare.names(), *bare == BareCalls::ByGrant)
}

fn names_text(names: &[AgentName], unsaid: bool) -> String {
    if !unsaid && names.is_empty() {
        return NOTHING.to_owned();
    }
    list(names)
}

/// A grant of which no name can be read is none: what was written was not "all".
fn grant(text: &str) -> Grant {
    if text.is_empty() {
        return Grant::All;
    }
    Grant::Only(parsed(text))
}

fn bare(text: &str) -> BareCalls {
    if text.is_empty() {
        return BareCalls::ByGrant;
    }
    BareCalls::Named(parsed(text))
}

/// Who named a peer; a database of before does not say, and only what was typed came by hand.
fn named_by(text: &str, via: TrustOrigin) -> NamedBy {
    match (text, via) {
        ("user", _) | ("", TrustOrigin::Manual) => NamedBy::User,
        _ => NamedBy::Peer,
    }
}

/// A list of which every item can be read.
fn whole<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split_whitespace()
        .map(|item| item.parse().ok())
        .collect()
}

/// A list as space-separated text: names and socket addresses have no spaces.
fn list<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

fn parsed<T: std::str::FromStr>(text: &str) -> Vec<T> {
    text.split_whitespace()
        .filter_map(|item| item.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
