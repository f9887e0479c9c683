use super::*;

const NOW: u64 = 1_800_000_000;

fn trust() -> (tempfile::TempDir, TrustStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = NodeStore::open(&dir.path().join("node.db")).unwrap();
    (dir, TrustStore::load(store).unwrap())
}

fn peer(byte: u8, alias: &str) -> NewPeer {
    let alias = alias.parse().ok().map(|name| (name, NamedBy::Peer));
    NewPeer {
        id: NodeId::from_bytes([byte; 32]),
        alias,
        terms: GrantTerms::Offered(Grant::All),
        bare: None,
        via: TrustOrigin::Manual,
        known: AddressOrigin::Typed,
        addresses: Vec::new(),
        tcp: Vec::new(),
        relay: None,
    }
}

#[test]
fn an_unknown_node_may_call_nothing() {
    let (_dir, trust) = trust();
    let status = trust
        .check(NodeId::from_bytes([1; 32]), &"grep".parse().unwrap())
        .unwrap_err();
    assert_eq!(status.code, Code::PermissionDenied);
}

#[test]
fn a_grant_allows_what_it_lists_and_nothing_else() {
    let (_dir, trust) = trust();
    let terms = GrantTerms::Stated(Grant::Only(vec!["grep".parse().unwrap()]));
    let row = trust
        .add(
            NewPeer {
                terms,
                ..peer(1, "a")
            },
            NOW,
        )
        .unwrap();
    assert!(trust.check(row.id, &"grep".parse().unwrap()).is_ok());
    assert!(trust.check(row.id, &"sha256".parse().unwrap()).is_err());
}

#[test]
fn two_peers_never_share_an_alias() {
    let (_dir, trust) = trust();
    trust.add(peer(1, "laptop"), NOW).unwrap();
    let second = trust.add(peer(2, "laptop"), NOW).unwrap();
    assert_eq!(second.alias.unwrap().as_str(), "laptop-2");
    // The same peer again keeps its own.
    assert_eq!(
        trust
            .add(peer(1, "laptop"), NOW)
            .unwrap()
            .alias
            .unwrap()
            .as_str(),
        "laptop"
    );
}

#[test]
fn a_name_that_a_peer_gives_itself_never_displaces_one_that_this_user_gave() {
    let (dir, trust) = trust();
    let by_user = |byte, alias: &str| NewPeer {
        alias: Some((alias.parse().unwrap(), NamedBy::User)),
        ..peer(byte, alias)
    };
    let alias = |row: TrustRow| row.alias.unwrap().to_string();
    assert_eq!(alias(trust.add(peer(1, "bank"), NOW).unwrap()), "bank");
    // The name goes to whom this user means; who had taken it gets another.
    assert_eq!(alias(trust.add(by_user(2, "bank"), NOW).unwrap()), "bank");
    let bank = "bank".parse().unwrap();
    let kept = |trust: &TrustStore| {
        assert_eq!(trust.named(&bank), Some((peer(2, "").id, NamedBy::User)));
        assert_eq!(trust.alias(peer(1, "").id).unwrap().as_str(), "bank-2");
    };
    kept(&trust);
    // Neither comes back by calling itself so again, nor does a peer rename itself.
    trust.add(peer(1, "bank"), NOW).unwrap();
    trust.add(peer(2, "other"), NOW).unwrap();
    trust.add(peer(3, "bank"), NOW).unwrap();
    kept(&trust);
    drop(trust);
    kept(&TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap());
}

#[test]
fn a_ticket_is_used_as_often_as_it_says_also_across_a_restart() {
    let (dir, trust) = trust();
    let secret = TicketSecret::from_random([7; 16]);
    let invitation = Invitation {
        digest: secret.digest(),
        uses_left: 1,
        expires: NOW + 60,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    trust.invite(&invitation, NOW).unwrap();
    assert!(
        trust
            .redeem(&TicketSecret::from_random([8; 16]), NOW)
            .is_err()
    );
    assert!(trust.redeem(&secret, NOW).is_ok());
    assert!(
        trust
            .redeem(&secret, NOW)
            .unwrap_err()
            .message
            .contains("used up")
    );
    drop(trust);
    let trust = TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap();
    assert!(
        trust
            .redeem(&secret, NOW)
            .unwrap_err()
            .message
            .contains("used up")
    );
}

#[test]
fn an_expired_ticket_is_refused_with_its_reason() {
    let (_dir, trust) = trust();
    let secret = TicketSecret::from_random([7; 16]);
    let invitation = Invitation {
        digest: secret.digest(),
        uses_left: 9,
        expires: NOW,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    trust.invite(&invitation, NOW - 60).unwrap();
    assert!(
        trust
            .redeem(&secret, NOW)
            .unwrap_err()
            .message
            .contains("expired")
    );
}

#[test]
fn a_ticket_does_not_outlive_its_expiry_because_the_clock_is_set_back() {
    let (dir, trust) = trust();
    let open = |byte: u8| {
        let secret = TicketSecret::from_random([byte; 16]);
        let invitation = Invitation {
            digest: secret.digest(),
            uses_left: 9,
            expires: NOW + 60,
            allow: Vec::new(),
            offer: Vec::new(),
        };
        (secret, invitation)
    };
    let (secret, invitation) = open(7);
    trust.invite(&invitation, NOW).unwrap();
    assert!(trust.redeem(&secret, NOW - 3600).is_ok());
    trust.keep_time(NOW + 61);
    let refused = |trust: &TrustStore, now| trust.redeem(&secret, now).unwrap_err().message;
    assert!(refused(&trust, NOW - 3600).contains("expired"));
    drop(trust);
    // Also across a restart: what was tried late was written down.
    let trust = TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap();
    assert!(refused(&trust, NOW).contains("expired"));
}

#[test]
fn the_time_is_written_down_while_a_ticket_is_open() {
    let (dir, trust) = trust();
    let secret = TicketSecret::from_random([7; 16]);
    let invitation = Invitation {
        digest: secret.digest(),
        uses_left: 9,
        expires: NOW + 600,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    trust.invite(&invitation, NOW).unwrap();
    trust.keep_time(NOW + 599);
    drop(trust);
    let trust = TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap();
    assert!(trust.latest(NOW) >= NOW + 599);
}

#[test]
fn a_hub_does_not_bring_back_whom_the_operator_removed_and_a_ticket_does() {
    let (dir, trust) = trust();
    let hub = || NewPeer {
        via: TrustOrigin::Hub,
        ..peer(1, "a")
    };
    assert!(trust.add_vouched(hub(), NOW).unwrap());
    assert!(trust.remove(hub().id, NOW).unwrap());
    assert!(!trust.add_vouched(hub(), NOW).unwrap());
    drop(trust);
    let trust = TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap();
    assert!(!trust.add_vouched(hub(), NOW).unwrap() && !trust.is_trusted(hub().id));
    trust.add(peer(1, "a"), NOW).unwrap();
    assert!(trust.is_trusted(hub().id) && !trust.was_removed(hub().id));
    drop(trust);
    let trust = TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap();
    assert!(!trust.was_removed(hub().id));
}

#[test]
fn removed_peers_are_remembered_up_to_a_bound_and_the_oldest_goes_first() {
    let (dir, trust) = trust();
    let id = |i: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&i.to_be_bytes());
        NodeId::from_bytes(bytes)
    };
    for i in 0..=MAX_REMOVED {
        trust.remove(id(i), NOW).unwrap();
    }
    let as_kept = |trust: &TrustStore| {
        assert!(!trust.was_removed(id(0)));
        assert!(trust.was_removed(id(1)) && trust.was_removed(id(MAX_REMOVED)));
        assert_eq!(trust.read().removed.len(), MAX_REMOVED);
    };
    as_kept(&trust);
    drop(trust);
    as_kept(&TrustStore::load(NodeStore::open(&dir.path().join("node.db")).unwrap()).unwrap());
}
