//! What a node must remember: trust and its withdrawal, aliases, addresses, invitations, hubs and
//! its UDP ports.
//!
//! One SQLite file in WAL mode. Everything is small and changes rarely, so the node reads it all at
//! start, keeps it in memory, and writes each change through before it takes effect.

use std::{net::SocketAddr, path::Path, sync::Mutex};

use hailwire_wire::{
    AgentName, NodeId, NodeName,
    ticket::{Invitation, SecretDigest},
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use thiserror::Error;

/// The database of one node.
#[derive(Debug)]
pub(crate) struct Store {
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
    /// Agents that it may call; empty for all.
    pub(crate) allow: Vec<AgentName>,
    pub(crate) via: Via,
    /// Unix seconds.
    pub(crate) since: u64,
    /// Where it was found last, newest first.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where it listens on TCP, as it said last.
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) relay: Option<String>,
}

/// How trust came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Ticket,
    Approved,
    Manual,
    Hub,
}

impl Via {
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
        tcp TEXT NOT NULL DEFAULT '') STRICT;
    CREATE TABLE IF NOT EXISTS removed (id BLOB PRIMARY KEY, at INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS invitation (
        digest BLOB PRIMARY KEY, uses_left INTEGER NOT NULL, expires INTEGER NOT NULL,
        allow TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS hub (
        url TEXT PRIMARY KEY, key BLOB, relay TEXT, discovery_port INTEGER,
        trust_members INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
";

/// A database of before has no place for TCP addresses.
fn add_tcp(connection: &Connection) -> Result<(), StoreError> {
    let known = connection
        .prepare("SELECT 1 FROM pragma_table_info('trust') WHERE name = 'tcp'")?
        .exists([])?;
    if !known {
        connection.execute_batch("ALTER TABLE trust ADD COLUMN tcp TEXT NOT NULL DEFAULT ''")?;
    }
    Ok(())
}

impl Store {
    /// Opens the database at `path`, making it if need be.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        // The defaults keep up to 2 MiB of pages; this database has a handful.
        connection.pragma_update(None, "cache_size", -128)?;
        connection.execute_batch(SCHEMA)?;
        add_tcp(&connection)?;
        Ok(Self {
            connection: Mutex::new(connection),
        })
    }

    pub(crate) fn trust(&self) -> Result<Vec<TrustRow>, StoreError> {
        self.all(
            "SELECT id, alias, allow, via, since, addresses, relay, tcp FROM trust",
            trust_row,
        )
    }

    pub(crate) fn put_trust(&self, row: &TrustRow) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO trust \
             (id, alias, allow, via, since, addresses, relay, tcp) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                row.id.as_bytes(),
                row.alias.as_ref().map(NodeName::as_str),
                list(&row.allow),
                row.via.name(),
                row.since.cast_signed(),
                list(&row.addresses),
                row.relay,
                list(&row.tcp),
            ],
        )
    }

    pub(crate) fn remove_trust(&self, id: NodeId) -> Result<(), StoreError> {
        self.execute("DELETE FROM trust WHERE id = ?1", params![id.as_bytes()])
    }

    /// Peers that were removed, the longest removed first.
    pub(crate) fn removed(&self) -> Result<Vec<NodeId>, StoreError> {
        self.all("SELECT id FROM removed ORDER BY at, rowid", |row| {
            Ok(NodeId::from_bytes(row.get(0)?))
        })
    }

    /// Marks a peer as removed, as the newest of them.
    pub(crate) fn put_removed(&self, id: NodeId, now_unix: u64) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO removed VALUES (?1, ?2)",
            params![id.as_bytes(), now_unix.cast_signed()],
        )
    }

    pub(crate) fn forget_removed(&self, id: NodeId) -> Result<(), StoreError> {
        self.execute("DELETE FROM removed WHERE id = ?1", params![id.as_bytes()])
    }

    pub(crate) fn invitations(&self) -> Result<Vec<Invitation>, StoreError> {
        self.all(
            "SELECT digest, uses_left, expires, allow FROM invitation",
            |row| {
                Ok(Invitation {
                    digest: SecretDigest::from_bytes(row.get(0)?),
                    uses_left: row.get(1)?,
                    expires: row.get::<_, i64>(2)?.cast_unsigned(),
                    allow: parsed(&row.get::<_, String>(3)?),
                })
            },
        )
    }

    pub(crate) fn put_invitation(&self, invitation: &Invitation) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO invitation VALUES (?1, ?2, ?3, ?4)",
            params![
                invitation.digest.as_bytes(),
                invitation.uses_left,
                invitation.expires.cast_signed(),
                list(&invitation.allow),
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

    pub(crate) fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let connection = self.lock();
        let mut query = connection.prepare_cached("SELECT value FROM setting WHERE name = ?1")?;
        Ok(query.query_row([name], |row| row.get(0)).optional()?)
    }

    pub(crate) fn put_setting(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO setting VALUES (?1, ?2)",
            params![name, value],
        )
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), StoreError> {
        self.lock().prepare_cached(sql)?.execute(values)?;
        Ok(())
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

fn trust_row(row: &Row<'_>) -> rusqlite::Result<TrustRow> {
    Ok(TrustRow {
        id: NodeId::from_bytes(row.get(0)?),
        alias: row
            .get::<_, Option<String>>(1)?
            .and_then(|alias| alias.parse().ok()),
        allow: parsed(&row.get::<_, String>(2)?),
        via: Via::from_name(&row.get::<_, String>(3)?),
        since: row.get::<_, i64>(4)?.cast_unsigned(),
        addresses: parsed(&row.get::<_, String>(5)?),
        relay: row.get(6)?,
        tcp: parsed(&row.get::<_, String>(7)?),
    })
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
mod tests {
    use super::*;

    fn row(byte: u8) -> TrustRow {
        TrustRow {
            id: NodeId::from_bytes([byte; 32]),
            alias: Some("laptop".parse().unwrap()),
            allow: vec!["grep".parse().unwrap(), "sha256".parse().unwrap()],
            via: Via::Ticket,
            since: 1_800_000_000,
            addresses: vec!["127.0.0.1:7".parse().unwrap(), "[::1]:9".parse().unwrap()],
            tcp: vec!["127.0.0.1:443".parse().unwrap()],
            relay: Some("https://hub".into()),
        }
    }

    #[test]
    fn trust_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.db");
        let store = Store::open(&path).unwrap();
        store.put_trust(&row(1)).unwrap();
        store.put_trust(&row(2)).unwrap();
        store.remove_trust(row(2).id).unwrap();
        drop(store);
        assert_eq!(Store::open(&path).unwrap().trust().unwrap(), vec![row(1)]);
    }

    #[test]
    fn a_database_of_before_gets_a_place_for_tcp_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.db");
        let old = SCHEMA.replace(",\n        tcp TEXT NOT NULL DEFAULT ''", "");
        assert!(!old.contains("tcp"));
        Connection::open(&path)
            .unwrap()
            .execute_batch(&old)
            .unwrap();
        for _ in 0..2 {
            let store = Store::open(&path).unwrap();
            store.put_trust(&row(1)).unwrap();
            assert_eq!(store.trust().unwrap(), [row(1)]);
        }
    }

    #[test]
    fn settings_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.db");
        Store::open(&path)
            .unwrap()
            .put_setting("udp", "0.0.0.0:4242")
            .unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!(
            store.setting("udp").unwrap().as_deref(),
            Some("0.0.0.0:4242")
        );
        assert_eq!(store.setting("none").unwrap(), None);
    }
}
