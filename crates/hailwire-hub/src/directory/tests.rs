use hailwire_wire::{
    directory::SearchRequest, header::AgentOffer, record::SignedRecord, signed::KeyPair,
};

use super::*;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 3600;

fn directory() -> Directory {
    listing_to(AgentVisibility::Members)
}

fn listing_to(listing: AgentVisibility) -> Directory {
    let policy = DirectoryPolicy {
        max_members: 4,
        name_hold_s: 30 * DAY,
        listing,
    };
    Directory::over(Connection::open_in_memory().unwrap(), policy).unwrap()
}

#[test]
fn open_tickets_are_listed_without_their_secret_and_revoked_one_by_one() {
    let mut directory = directory();
    let (one, other) = (ticket(&mut directory, 1, 2), ticket(&mut directory, 2, 1));
    let open = directory.open_tickets(NOW).unwrap();
    assert_eq!(open.len(), 2);
    assert!(
        open.iter()
            .all(|ticket| ticket.id.len() == TICKET_ID_LEN && ticket.expires == NOW + 600)
    );

    directory.join(key(9).id(), &other, NOW).unwrap();
    let [left] = &directory.open_tickets(NOW).unwrap()[..] else {
        panic!("one is used up");
    };
    assert_eq!(left.uses_left, 2);
    assert_eq!(directory.revoke("000000000000", NOW).unwrap(), None);
    assert_eq!(
        directory.revoke(&left.id[..4], NOW).unwrap(),
        None,
        "a part of an id names none"
    );
    assert_eq!(
        directory.revoke(&left.id, NOW).unwrap().as_ref(),
        Some(left)
    );
    assert_eq!(directory.open_tickets(NOW).unwrap(), []);
    assert!(directory.join(key(8).id(), &one, NOW).is_err());

    ticket(&mut directory, 3, 1);
    assert_eq!(
        directory.open_tickets(NOW + 600).unwrap(),
        [],
        "it has expired"
    );
}

fn key(byte: u8) -> KeyPair {
    KeyPair::from_seed(&[byte; 32])
}

fn ticket(directory: &mut Directory, byte: u8, uses_left: u32) -> TicketSecret {
    let secret = TicketSecret::from_random([byte; 16]);
    let digest = secret.digest();
    let invitation = Invitation {
        digest,
        uses_left,
        expires: NOW + 600,
        allow: vec![],
        offer: vec![],
    };
    directory.invite(&invitation, NOW).unwrap();
    secret
}

fn member(directory: &mut Directory, byte: u8) -> KeyPair {
    let secret = ticket(directory, byte, 1);
    let key = key(byte);
    directory.join(key.id(), &secret, NOW).unwrap();
    key
}

/// A directory with so many members.
fn with_members(count: usize) -> (Directory, Vec<KeyPair>) {
    let count = u16::try_from(count).unwrap();
    let policy = DirectoryPolicy {
        max_members: count.into(),
        name_hold_s: DAY,
        listing: AgentVisibility::Members,
    };
    let mut directory = Directory::over(Connection::open_in_memory().unwrap(), policy).unwrap();
    let secret = ticket(&mut directory, 1, count.into());
    let join = |i: u16| {
        let mut seed = [0; 32];
        seed[..2].copy_from_slice(&i.to_be_bytes());
        let key = KeyPair::from_seed(&seed);
        directory.join(key.id(), &secret, NOW).unwrap();
        key
    };
    let keys = (0..count).map(join).collect();
    (directory, keys)
}

fn record(name: Option<&str>, agents: &[&str], sequence: u64, issued: u64) -> NodeRecord {
    let offer = |name: &&str| AgentOffer {
        group: hailwire_wire::header::OfferedGroup::default(),
        name: name.parse().unwrap(),
        description: "x".repeat(200),
        tags: vec!["text".into()],
        version: String::new(),
    };
    NodeRecord {
        name: name.map(|name| name.parse().unwrap()),
        agents: agents.iter().map(offer).collect(),
        sequence,
        issued,
        expires: issued + 7200,
        ..NodeRecord::default()
    }
}

fn publish(
    directory: &mut Directory,
    key: &KeyPair,
    record: NodeRecord,
    now: u64,
) -> Result<PublishAnswer, RefusalReason> {
    directory
        .publish(key.id(), &record.sign(key).unwrap().into(), now)
        .map_err(reason)
}

fn reason(error: DirectoryError) -> RefusalReason {
    match error {
        DirectoryError::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn found(
    directory: &Directory,
    requester: &KeyPair,
    node: &str,
    now: u64,
) -> Result<NodeId, RefusalReason> {
    let found = directory
        .lookup(requester.id(), &node.parse().unwrap(), now)
        .map_err(reason)?;
    Ok(SignedRecord::parse(found.record.0, now).unwrap().node())
}

#[test]
fn a_ticket_admits_as_many_nodes_as_it_says() {
    let mut directory = directory();
    let secret = ticket(&mut directory, 1, 2);
    directory.join(key(1).id(), &secret, NOW).unwrap();
    directory.join(key(1).id(), &secret, NOW).unwrap();
    directory.join(key(2).id(), &secret, NOW).unwrap();
    let third = directory.join(key(3).id(), &secret, NOW).map_err(reason);
    assert_eq!(third, Err(RefusalReason::TicketUsedUp));
    assert!(!directory.is_member(key(3).id()).unwrap());
}

#[test]
fn an_unknown_or_expired_ticket_admits_nobody() {
    let mut directory = directory();
    let secret = ticket(&mut directory, 1, 1);
    let late = directory
        .join(key(1).id(), &secret, NOW + 600)
        .map_err(reason);
    assert_eq!(late, Err(RefusalReason::TicketExpired));
    let unknown = TicketSecret::from_random([9; 16]);
    let unknown = directory.join(key(1).id(), &unknown, NOW).map_err(reason);
    assert_eq!(unknown, Err(RefusalReason::TicketUnknown));
}

#[test]
fn a_full_hub_refuses_and_keeps_the_ticket_good() {
    let mut directory = directory();
    let secret = ticket(&mut directory, 1, 9);
    for byte in 0..4 {
        directory.join(key(byte).id(), &secret, NOW).unwrap();
    }
    let full = directory.join(key(4).id(), &secret, NOW).map_err(reason);
    assert_eq!(full, Err(RefusalReason::Full));
    assert!(directory.remove(key(0).id()).unwrap());
    directory.join(key(4).id(), &secret, NOW).unwrap();
}

#[test]
fn a_ticket_does_not_outlive_its_expiry_because_the_clock_is_set_back() {
    let mut directory = directory();
    let secret = ticket(&mut directory, 7, 9);
    let join = |directory: &mut Directory, byte: u8, now: u64| {
        directory.join(key(byte).id(), &secret, now).map_err(reason)
    };
    assert_eq!(join(&mut directory, 1, NOW + 599), Ok(()));
    assert_eq!(
        join(&mut directory, 2, NOW + 600),
        Err(RefusalReason::TicketExpired)
    );
    assert_eq!(
        join(&mut directory, 2, NOW),
        Err(RefusalReason::TicketExpired)
    );
    // Also in another process, and by what members publish in the meantime.
    directory.clock = LatestTime::new(0, Duration::ZERO);
    assert_eq!(
        join(&mut directory, 2, NOW),
        Err(RefusalReason::TicketExpired)
    );
}

#[test]
fn what_is_acknowledged_is_synced_records_apart() {
    let mut directory = directory();
    let synchronous = |directory: &Directory| -> i64 {
        let read = |row: &Row<'_>| row.get(0);
        directory
            .db
            .query_row("PRAGMA synchronous", [], read)
            .unwrap()
    };
    const FULL: i64 = 2;
    assert_eq!(synchronous(&directory), FULL);
    let one = member(&mut directory, 1);
    publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    assert!(
        publish(
            &mut directory,
            &one,
            record(Some("laptop"), &[], 1, NOW),
            NOW
        )
        .is_err()
    );
    assert_eq!(synchronous(&directory), FULL);
}

#[test]
fn invitations_are_bounded_and_expired_ones_make_room() {
    let mut directory = directory();
    let invitation = |i: usize| {
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&(i as u64).to_be_bytes());
        let digest = TicketSecret::from_random(secret).digest();
        Invitation {
            digest,
            uses_left: 1,
            expires: NOW + 600,
            allow: vec![],
            offer: vec![],
        }
    };
    for i in 0..limits::MAX_INVITATIONS {
        directory.invite(&invitation(i), NOW).unwrap();
    }
    let more = invitation(limits::MAX_INVITATIONS);
    assert_eq!(
        directory.invite(&more, NOW).map_err(reason),
        Err(RefusalReason::Full)
    );
    directory.invite(&more, NOW + 600).unwrap();
}

#[test]
fn non_members_see_nothing() {
    let mut directory = directory();
    let node = member(&mut directory, 1);
    publish(
        &mut directory,
        &node,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    let untrusted = key(9);
    assert_eq!(
        found(&directory, &untrusted, "laptop", NOW),
        Err(RefusalReason::NotAMember)
    );
    assert_eq!(
        found(&directory, &untrusted, "absent", NOW),
        Err(RefusalReason::NotAMember)
    );
    let search = directory
        .search(untrusted.id(), &SearchRequest::default(), NOW)
        .map_err(reason);
    assert_eq!(search, Err(RefusalReason::NotAMember));
    let members = directory.members(untrusted.id(), None, NOW).map_err(reason);
    assert_eq!(members, Err(RefusalReason::NotAMember));
    let record = publish(&mut directory, &untrusted, record(None, &[], 1, NOW), NOW);
    assert_eq!(record, Err(RefusalReason::NotAMember));
}

#[test]
fn a_member_publishes_for_itself_only() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    let record = record(None, &[], 1, NOW).sign(&two).unwrap();
    let stolen = directory
        .publish(one.id(), &record.into(), NOW)
        .map_err(reason);
    assert_eq!(stolen, Err(RefusalReason::NotYours));
}

#[test]
fn an_older_or_equal_sequence_is_refused_even_after_the_newer_record_expired() {
    let mut directory = directory();
    let node = member(&mut directory, 1);
    publish(&mut directory, &node, record(None, &[], 5, NOW), NOW).unwrap();
    for old in [5, 4, 0] {
        let replayed = publish(
            &mut directory,
            &node,
            record(None, &[], old, NOW),
            NOW + DAY,
        );
        assert_eq!(replayed, Err(RefusalReason::Replayed));
    }
    // Past the middle of the number range too.
    publish(
        &mut directory,
        &node,
        record(None, &[], u64::MAX - 1, NOW),
        NOW,
    )
    .unwrap();
    publish(&mut directory, &node, record(None, &[], u64::MAX, NOW), NOW).unwrap();
}

#[test]
fn a_record_is_found_by_key_and_name_until_it_expires() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    let id = one.id().to_string();
    assert_eq!(found(&directory, &two, "laptop", NOW), Ok(one.id()));
    assert_eq!(found(&directory, &two, &id, NOW), Ok(one.id()));
    assert_eq!(
        found(&directory, &two, "laptop", NOW + 7200),
        Err(RefusalReason::Away),
        "the name is still its holder's"
    );
    assert_eq!(
        found(&directory, &two, &id, NOW + 7200),
        Err(RefusalReason::NotFound)
    );
}

#[test]
fn a_name_is_first_come_and_free_again_after_its_time() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    let held = publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    assert_eq!(held.name_held_until, Some(NOW + 30 * DAY));
    let late = NOW + 30 * DAY;
    let taken = publish(
        &mut directory,
        &two,
        record(Some("laptop"), &[], 1, late - 1),
        late - 1,
    );
    assert_eq!(taken, Err(RefusalReason::NameTaken));
    publish(
        &mut directory,
        &two,
        record(Some("laptop"), &[], 1, late),
        late,
    )
    .unwrap();
    assert_eq!(found(&directory, &one, "laptop", late), Ok(two.id()));
    let back = publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 2, late),
        late,
    );
    assert_eq!(back, Err(RefusalReason::NameTaken));
}

#[test]
fn a_refused_name_changes_nothing() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    publish(&mut directory, &two, record(Some("desk"), &[], 1, NOW), NOW).unwrap();
    let taken = publish(
        &mut directory,
        &two,
        record(Some("laptop"), &[], 2, NOW),
        NOW,
    );
    assert_eq!(taken, Err(RefusalReason::NameTaken));
    assert_eq!(found(&directory, &one, "desk", NOW), Ok(two.id()));
    publish(&mut directory, &two, record(Some("desk"), &[], 2, NOW), NOW).unwrap();
}

#[test]
fn a_node_holds_one_name_and_another_gives_up_the_first() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    publish(&mut directory, &one, record(Some("desk"), &[], 2, NOW), NOW).unwrap();
    assert_eq!(
        found(&directory, &two, "laptop", NOW),
        Err(RefusalReason::NotFound)
    );
    publish(
        &mut directory,
        &two,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    // A record without a name keeps the name bound, but is not found by it.
    publish(&mut directory, &one, record(None, &[], 3, NOW), NOW).unwrap();
    assert_eq!(
        found(&directory, &two, "desk", NOW),
        Err(RefusalReason::Away)
    );
    let taken = publish(&mut directory, &two, record(Some("desk"), &[], 2, NOW), NOW);
    assert_eq!(taken, Err(RefusalReason::NameTaken));
}

#[test]
fn a_search_finds_live_nodes_by_their_agents() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    publish(
        &mut directory,
        &one,
        record(None, &["grep", "word-count"], 1, NOW),
        NOW,
    )
    .unwrap();
    publish(&mut directory, &two, record(None, &[], 1, NOW), NOW).unwrap();
    let count = |words: &[&str], now| {
        let words = words.iter().map(|w| (*w).to_owned()).collect();
        let search = SearchRequest {
            words,
            ..SearchRequest::default()
        };
        directory
            .search(one.id(), &search, now)
            .unwrap()
            .records
            .len()
    };
    assert_eq!(count(&[], NOW), 2);
    assert_eq!(count(&["GREP"], NOW), 1);
    assert_eq!(count(&["sha256"], NOW), 0);
    assert_eq!(count(&[], NOW + 7200), 0);
    let words = vec![String::new(); limits::MAX_SEARCH_TERMS + 1];
    let search = SearchRequest {
        words,
        ..SearchRequest::default()
    };
    let many = directory.search(one.id(), &search, NOW).map_err(reason);
    assert_eq!(many, Err(RefusalReason::Malformed));
}

#[test]
fn pages_follow_each_other_without_gap_or_repetition() {
    let (mut directory, members) = with_members(2 * PAGE_ROWS + 3);
    let mut keys = Vec::new();
    for key in members {
        publish(&mut directory, &key, record(None, &["grep"], 1, NOW), NOW).unwrap();
        keys.push(key.id());
    }
    keys.sort();
    let listed = crate::folder::all_members(&directory, NOW).unwrap();
    assert_eq!(
        listed.iter().map(|member| member.id).collect::<Vec<_>>(),
        keys
    );
    let (mut search, mut nodes) = (SearchRequest::default(), Vec::new());
    loop {
        let page = directory.search(keys[0], &search, NOW).unwrap();
        let node = |r: RecordBytes| SignedRecord::parse(r.0, NOW).unwrap().node();
        nodes.extend(page.records.into_iter().map(node));
        match page.next {
            Some(next) => search.after = Some(next),
            None => break,
        }
    }
    assert_eq!(nodes, keys);
}

#[test]
fn a_page_that_holds_the_last_member_names_no_next_one() {
    let (directory, _) = with_members(PAGE_ROWS);
    let page = directory.member_page(None, NOW).unwrap();
    assert_eq!((page.members.len(), page.next), (PAGE_ROWS, None));
}

#[test]
fn what_a_hub_knows_is_there_when_it_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let policy = || DirectoryPolicy {
        max_members: 4,
        name_hold_s: DAY,
        listing: AgentVisibility::Members,
    };
    let mut directory = Directory::open(&path, policy()).unwrap();
    assert_eq!(directory.setting("region").unwrap(), None);
    directory.set("region", "north").unwrap();
    directory.set("region", "south").unwrap();
    let (stays, goes) = (member(&mut directory, 1), member(&mut directory, 2));
    assert!(directory.remove(goes.id()).unwrap());
    drop(directory);
    let directory = Directory::open(&path, policy()).unwrap();
    assert_eq!(directory.setting("region").unwrap().unwrap(), "south");
    assert!(directory.is_member(stays.id()).unwrap());
    assert!(!directory.is_member(goes.id()).unwrap());
}

#[test]
fn large_records_make_small_pages() {
    let policy = DirectoryPolicy {
        max_members: 1000,
        name_hold_s: DAY,
        listing: AgentVisibility::Members,
    };
    let mut directory = Directory::over(Connection::open_in_memory().unwrap(), policy).unwrap();
    let secret = ticket(&mut directory, 1, 1000);
    let names: Vec<String> = (0..240).map(|i| format!("agent-{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let size = record(None, &names, 1, NOW)
        .sign(&key(0))
        .unwrap()
        .bytes()
        .len();
    let fits = listing::PAGE_BYTES / size;
    for i in 0..u8::try_from(fits + 1).unwrap() {
        directory.join(key(i).id(), &secret, NOW).unwrap();
        publish(&mut directory, &key(i), record(None, &names, 1, NOW), NOW).unwrap();
    }
    let page = directory
        .search(key(0).id(), &SearchRequest::default(), NOW)
        .unwrap();
    assert_eq!(page.records.len(), fits);
    assert!(page.next.is_some());
    assert!(serde_json::to_vec(&page).unwrap().len() < limits::MAX_HUB_ANSWER);
}

#[test]
fn a_removed_member_leaves_nothing_behind() {
    let mut directory = directory();
    let (one, two) = (member(&mut directory, 1), member(&mut directory, 2));
    publish(
        &mut directory,
        &one,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
    assert_eq!(
        directory.counts(NOW).unwrap(),
        HubCounts {
            members: 2,
            records: 1,
            names: 1
        }
    );
    assert!(directory.remove(one.id()).unwrap());
    assert!(!directory.remove(one.id()).unwrap());
    assert_eq!(
        directory.counts(NOW).unwrap(),
        HubCounts {
            members: 1,
            records: 0,
            names: 0
        }
    );
    publish(
        &mut directory,
        &two,
        record(Some("laptop"), &[], 1, NOW),
        NOW,
    )
    .unwrap();
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let db = Connection::open_in_memory().unwrap();
    db.pragma_update(None, "user_version", 3).unwrap();
    let policy = DirectoryPolicy {
        max_members: 1,
        name_hold_s: 1,
        listing: AgentVisibility::Members,
    };
    let opened = Directory::over(db, policy).map(drop);
    assert!(matches!(opened, Err(DirectoryError::Newer(3))));
}
