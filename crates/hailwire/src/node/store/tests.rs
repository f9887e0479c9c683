use super::*;

fn row(byte: u8) -> TrustRow {
    TrustRow {
        id: NodeId::from_bytes([byte; 32]),
        alias: Some("laptop".parse().unwrap()),
        named_by: NamedBy::User,
        allow: Grant::Only(vec!["grep".parse().unwrap(), "sha256".parse().unwrap()]),
        bare: BareCalls::Named(vec!["grep".parse().unwrap()]),
        via: TrustOrigin::Ticket,
        since: 1_800_000_000,
        addresses: vec!["127.0.0.1:7".parse().unwrap(), "[::1]:9".parse().unwrap()],
        typed: vec!["127.0.0.1:8".parse().unwrap()],
        told: vec!["127.0.0.1:10".parse().unwrap()],
        tcp: vec!["127.0.0.1:443".parse().unwrap()],
        told_tcp: vec!["127.0.0.1:444".parse().unwrap()],
        relay: Some("https://hub".into()),
    }
}

#[test]
fn trust_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.db");
    let store = NodeStore::open(&path).unwrap();
    store.put_trust(&row(1)).unwrap();
    store.put_trust(&row(2)).unwrap();
    store.commit(&[TrustChange::Distrust(row(2).id)]).unwrap();
    drop(store);
    assert_eq!(
        NodeStore::open(&path).unwrap().trust().unwrap(),
        vec![row(1)]
    );
}

#[test]
fn a_database_of_before_gets_what_came_later_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.db");
    let old = "CREATE TABLE trust (
            id BLOB PRIMARY KEY, alias TEXT, allow TEXT NOT NULL, via TEXT NOT NULL,
            since INTEGER NOT NULL, addresses TEXT NOT NULL, relay TEXT) STRICT;
        CREATE TABLE invitation (
            digest BLOB PRIMARY KEY, uses_left INTEGER NOT NULL, expires INTEGER NOT NULL,
            allow TEXT NOT NULL) STRICT;
        INSERT INTO trust VALUES (zeroblob(32), 'desk', 'grep', 'manual', 7, '10.0.0.1:7', NULL);
        INSERT INTO trust VALUES (x'0101010101010101010101010101010101010101010101010101010101010101', 'z', '', 'ticket', 7, '127.0.0.1:7', NULL);
        INSERT INTO invitation VALUES (zeroblob(32), 1, 9, 'grep');";
    Connection::open(&path).unwrap().execute_batch(old).unwrap();
    for _ in 0..2 {
        let store = NodeStore::open(&path).unwrap();
        store.put_trust(&row(2)).unwrap();
        let rows = store.trust().unwrap();
        assert_eq!(rows.len(), 3);
        let named = |alias: &str| {
            let found = rows
                .iter()
                .find(|row| row.alias.as_ref().unwrap().as_str() == alias);
            found.unwrap().clone()
        };
        let desk = named("desk");
        assert_eq!(desk.allow, Grant::Only(vec!["grep".parse().unwrap()]));
        assert_eq!(
            (desk.named_by, desk.bare.clone()),
            (NamedBy::User, BareCalls::ByGrant)
        );
        let z = named("z");
        assert_eq!((z.named_by, z.allow), (NamedBy::Peer, Grant::All));
        // What somebody said of itself does not become what this user said.
        assert_eq!((desk.typed.len(), desk.told.len()), (1, 0));
        assert_eq!((z.addresses.len(), z.typed.len(), z.told.len()), (0, 0, 1));
        assert_eq!(named("laptop"), row(2));
        assert_eq!(store.invitations().unwrap().len(), 1);
    }
}

#[test]
fn terms_that_cannot_be_read_are_no_terms_that_are_wider() {
    let dir = tempfile::tempdir().unwrap();
    let store = NodeStore::open(&dir.path().join("node.db")).unwrap();
    store.put_trust(&row(1)).unwrap();
    let damage = "UPDATE trust SET allow = 'GREP', bare = '?';
        INSERT INTO invitation VALUES (zeroblob(32), 1, 9, 'GREP', '');";
    store.lock().execute_batch(damage).unwrap();
    let kept = &store.trust().unwrap()[0];
    assert_eq!(kept.allow, Grant::Only(Vec::new()));
    assert_eq!(kept.bare, BareCalls::Named(Vec::new()));
    assert!(store.invitations().unwrap().is_empty());
    store.put_trust(&kept.clone()).unwrap();
    assert_eq!(store.trust().unwrap()[0], *kept);
}

#[test]
fn what_is_acknowledged_is_synced_and_what_may_be_lost_does_not_change_that() {
    let dir = tempfile::tempdir().unwrap();
    let store = NodeStore::open(&dir.path().join("node.db")).unwrap();
    let synchronous = || -> i64 {
        let read = |row: &Row<'_>| row.get(0);
        store
            .lock()
            .query_row("PRAGMA synchronous", [], read)
            .unwrap()
    };
    const FULL: i64 = 2;
    assert_eq!(synchronous(), FULL);
    store.put_setting("udp", "0.0.0.0:1").unwrap();
    store.put_place(&row(1)).unwrap();
    assert!(store.execute_loosely("no such statement", []).is_err());
    assert_eq!(synchronous(), FULL);
}

#[test]
fn settings_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.db");
    NodeStore::open(&path)
        .unwrap()
        .put_setting("udp", "0.0.0.0:4242")
        .unwrap();
    let store = NodeStore::open(&path).unwrap();
    assert_eq!(
        store.setting("udp").unwrap().as_deref(),
        Some("0.0.0.0:4242")
    );
    assert_eq!(store.setting("none").unwrap(), None);
}
