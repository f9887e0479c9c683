//! The tables of durable messages: what was sent from this node, and what came to it.
//!
//! The numbers of sent messages begin with the time at which the table was made: should the file be lost, those that follow are higher than all that
//! a peer has seen (see [`super::decided`]).

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS sent (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE, node BLOB NOT NULL,
        target TEXT NOT NULL, agent TEXT NOT NULL, sender TEXT NOT NULL, call INTEGER NOT NULL, header BLOB NOT NULL, body BLOB NOT NULL,
        size INTEGER NOT NULL, key TEXT, state INTEGER NOT NULL, offered INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0, stored_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        held_at INTEGER, delivered_at INTEGER, ended_at INTEGER, status BLOB, head BLOB, answer BLOB,
        max_attempts INTEGER NOT NULL DEFAULT 0, keep INTEGER NOT NULL, started_at INTEGER,
        progress_at INTEGER, done INTEGER NOT NULL DEFAULT 0, total INTEGER NOT NULL DEFAULT 0,
        progress_text TEXT NOT NULL DEFAULT '', partial BLOB NOT NULL DEFAULT x'',
        withdrawn_at INTEGER, withdrawal_told INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE UNIQUE INDEX IF NOT EXISTS sent_key ON sent (key) WHERE key IS NOT NULL;
    CREATE INDEX IF NOT EXISTS sent_waiting ON sent (node, seq) WHERE state = 0;
    CREATE INDEX IF NOT EXISTS sent_awaiting ON sent (node) WHERE state = 1;
    CREATE INDEX IF NOT EXISTS sent_expiring ON sent (expires_at) WHERE state = 0;
    CREATE INDEX IF NOT EXISTS sent_forgotten ON sent (ended_at + keep) WHERE ended_at IS NOT NULL;
    CREATE INDEX IF NOT EXISTS sent_withdrawn ON sent (node, seq)
        WHERE withdrawn_at IS NOT NULL AND withdrawal_told = 0;
    CREATE TABLE IF NOT EXISTS inbox (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, origin BLOB NOT NULL, id BLOB NOT NULL,
        agent TEXT NOT NULL, sender TEXT NOT NULL, in_order INTEGER NOT NULL, call INTEGER NOT NULL,
        header BLOB NOT NULL, body BLOB NOT NULL, size INTEGER NOT NULL, state INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0, stored_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        ended_at INTEGER, status BLOB, head BLOB, answer BLOB, told INTEGER NOT NULL DEFAULT 0,
        max_attempts INTEGER NOT NULL DEFAULT 0, withdrawn INTEGER NOT NULL DEFAULT 0,
        remembered INTEGER NOT NULL DEFAULT 0, number INTEGER NOT NULL DEFAULT 0,
        UNIQUE (origin, id)) STRICT;
    CREATE TABLE IF NOT EXISTS decided (origin BLOB PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS sent_body (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS inbox_body (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS inbox_open ON inbox (agent, seq) WHERE state IN (1, 2);
    CREATE INDEX IF NOT EXISTS inbox_expiring ON inbox (expires_at) WHERE state = 1;
    CREATE INDEX IF NOT EXISTS inbox_untold ON inbox (origin, seq) WHERE told = 0 AND ended_at IS NOT NULL;
    CREATE INDEX IF NOT EXISTS inbox_ended ON inbox (ended_at) WHERE told = 1;
    CREATE INDEX IF NOT EXISTS inbox_remembered ON inbox (origin) WHERE remembered = 1;
    INSERT INTO sqlite_sequence (name, seq) SELECT 'sent', unixepoch() * 1000
        WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'sent');
";
