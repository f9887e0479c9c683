use hailwire_wire::{header::AgentOffer, signed::KeyPair};

use super::*;
use crate::directory::DirectoryPolicy;

const NOW: u64 = 1_800_000_000;

fn directory(listing: AgentVisibility) -> Directory {
    let policy = DirectoryPolicy {
        max_members: 100,
        name_hold_s: 3600,
        listing,
    };
    Directory::over(Connection::open_in_memory().unwrap(), policy).unwrap()
}

fn key(byte: u8) -> KeyPair {
    KeyPair::from_seed(&[byte; 32])
}

fn member(directory: &Directory, byte: u8) -> KeyPair {
    let key = key(byte);
    enter(directory, key.id());
    key
}

fn enter(directory: &Directory, id: NodeId) {
    let insert = "INSERT INTO member (id, joined) VALUES (?1, 0)";
    directory.db.execute(insert, [id.as_bytes()]).unwrap();
}

fn record(name: &str, agents: &[&str], sequence: u64) -> NodeRecord {
    let offer = |name: &&str| AgentOffer {
        group: hailwire_wire::header::OfferedGroup::default(),
        name: name.parse().unwrap(),
        description: "Finds Lines".into(),
        tags: vec!["Text".into()],
        version: String::new(),
    };
    NodeRecord {
        name: Some(name.parse().unwrap()),
        agents: agents.iter().map(offer).collect(),
        sequence,
        issued: NOW,
        expires: NOW + 7200,
        ..NodeRecord::default()
    }
}

fn bytes(record: &NodeRecord, key: &KeyPair) -> RecordBytes {
    RecordBytes(record.clone().sign(key).unwrap().bytes().clone())
}

fn request(record: &NodeRecord, key: &KeyPair, shown_to: &[&KeyPair]) -> PublishRequest {
    let bare = NodeRecord {
        agents: Vec::new(),
        ..record.clone()
    };
    PublishRequest {
        record: bytes(record, key),
        whereabouts: Some(bytes(&bare, key)),
        shown_to: shown_to.iter().map(|key| ShownTo::of(key.id())).collect(),
    }
}

fn publish(directory: &mut Directory, record: &NodeRecord, key: &KeyPair, shown_to: &[&KeyPair]) {
    let publication = CheckedPublication::parse(request(record, key, shown_to), NOW).unwrap();
    directory.publish(key.id(), &publication, NOW).unwrap();
}

fn search(words: &[&str]) -> SearchRequest {
    SearchRequest {
        words: words.iter().map(ToString::to_string).collect(),
        ..SearchRequest::default()
    }
}

/// The nodes whose records a member finds.
fn found(directory: &Directory, requester: &KeyPair, search: &SearchRequest) -> Vec<NodeId> {
    let page = directory.search(requester.id(), search, NOW).unwrap();
    let node = |bytes: RecordBytes| SignedRecord::parse(bytes.0, NOW).unwrap().node();
    page.records.into_iter().map(node).collect()
}

/// How many agents a look-up shows.
fn looked_up(directory: &Directory, requester: &KeyPair, node: &str) -> usize {
    let found = directory.lookup(requester.id(), &node.parse().unwrap(), NOW);
    let record = SignedRecord::parse(found.unwrap().record.0, NOW).unwrap();
    assert!(record.record().name.is_some(), "the rest is there");
    record.record().agents.len()
}

#[test]
fn a_member_sees_the_agents_of_those_that_show_them_to_it_and_no_others() {
    let mut directory = directory(AgentVisibility::Trusted);
    let keys: Vec<KeyPair> = (1..=3).map(|byte| member(&directory, byte)).collect();
    let (one, two, three) = (&keys[0], &keys[1], &keys[2]);
    publish(&mut directory, &record("one", &["grep"], 1), one, &[two]);
    let by_key = one.id().to_string();
    for all in [
        search(&["lines"]),
        SearchRequest::default(),
        search(&["grep", "text"]),
    ] {
        assert_eq!(found(&directory, two, &all), [one.id()]);
        assert_eq!(found(&directory, one, &all), [one.id()], "its own");
        assert!(found(&directory, three, &all).is_empty());
    }
    for node in ["one", &by_key] {
        assert_eq!(looked_up(&directory, two, node), 1);
        assert_eq!(looked_up(&directory, one, node), 1);
        assert_eq!(
            looked_up(&directory, three, node),
            0,
            "where it is, without its agents"
        );
    }
    // Trust changes.
    publish(&mut directory, &record("one", &["grep"], 2), one, &[three]);
    assert!(found(&directory, two, &SearchRequest::default()).is_empty());
    assert_eq!(
        found(&directory, three, &SearchRequest::default()),
        [one.id()]
    );
    assert_eq!(
        (
            looked_up(&directory, two, "one"),
            looked_up(&directory, three, "one")
        ),
        (0, 1)
    );
    // Another one's agents tell nothing of these.
    publish(
        &mut directory,
        &record("two", &["sha256"], 1),
        two,
        &[one, three],
    );
    assert!(found(&directory, three, &search(&["sha256", "grep"])).is_empty());
    assert_eq!(found(&directory, three, &search(&["sha256"])), [two.id()]);
    directory.remove(one.id()).unwrap();
    assert_eq!(
        found(&directory, three, &SearchRequest::default()),
        [two.id()]
    );
    let shown = "SELECT count(*) FROM shown WHERE node = ?1";
    let left: i64 = directory
        .db
        .query_row(shown, [one.id().as_bytes()], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
}

#[test]
fn a_hub_that_lists_to_members_shows_all_to_all() {
    let mut directory = directory(AgentVisibility::Members);
    let (one, two) = (member(&directory, 1), member(&directory, 2));
    publish(&mut directory, &record("one", &["grep"], 1), &one, &[]);
    assert_eq!(found(&directory, &two, &search(&["grep"])), [one.id()]);
    assert_eq!(looked_up(&directory, &two, "one"), 1);
}

#[test]
fn a_record_that_comes_alone_is_not_listed_by_trust_and_is_found_by_name() {
    let mut directory = directory(AgentVisibility::Trusted);
    let (one, two) = (member(&directory, 1), member(&directory, 2));
    let signed = record("one", &["grep"], 1).sign(&one).unwrap();
    directory.publish(one.id(), &signed.into(), NOW).unwrap();
    assert!(found(&directory, &two, &search(&["grep"])).is_empty());
    assert_eq!(looked_up(&directory, &two, "one"), 1);
}

#[test]
fn a_record_is_shown_to_so_many_and_no_more() {
    let one = key(1);
    let mut publish = request(&record("one", &[], 1), &one, &[]);
    let someone = |index: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(index as u64).to_be_bytes());
        ShownTo::of(NodeId::from_bytes(bytes))
    };
    publish.shown_to = (0..limits::MAX_SHOWN_TO).map(someone).collect();
    assert!(CheckedPublication::parse(publish.clone(), NOW).is_ok());
    let request = serde_json::to_vec(&publish).unwrap();
    assert!(request.len() + 4 * limits::MAX_RECORD / 3 < limits::MAX_HUB_REQUEST);
    publish.shown_to.push(someone(limits::MAX_SHOWN_TO));
    assert!(matches!(
        CheckedPublication::parse(publish, NOW),
        Err(PublicationError::ShownTo)
    ));
}

#[test]
fn whereabouts_of_another_key_name_or_sequence_or_with_agents_are_refused() {
    let (one, two) = (key(1), key(2));
    let says = record("one", &["grep"], 2);
    let good = request(&says, &one, &[]);
    assert!(CheckedPublication::parse(good.clone(), NOW).is_ok());
    let bare = |name, sequence| record(name, &[], sequence);
    for whereabouts in [
        bytes(&bare("one", 2), &two),
        bytes(&bare("other", 2), &one),
        bytes(&bare("one", 3), &one),
        bytes(&says, &one),
    ] {
        let publish = PublishRequest {
            whereabouts: Some(whereabouts),
            ..good.clone()
        };
        assert!(matches!(
            CheckedPublication::parse(publish, NOW),
            Err(PublicationError::Whereabouts)
        ));
    }
}

#[test]
fn a_search_is_done_in_slices_and_one_request_is_bounded_work() {
    const ROWS: usize = 20_000;
    let mut directory = directory(AgentVisibility::Members);
    let requester = member(&directory, 1);
    let change = directory.db.transaction().unwrap();
    for index in 0..ROWS {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&(index as u64).to_be_bytes());
        id[31] = 1;
        change
            .execute("INSERT INTO member (id, joined) VALUES (?1, 0)", [id])
            .unwrap();
        let insert = "INSERT INTO listing (node, expires, text) VALUES (?1, ?2, 'hay')";
        change
            .execute(insert, params![id, seconds(NOW + 60)])
            .unwrap();
    }
    change.commit().unwrap();
    let mut search = search(&["needle"]);
    let mut requests = Vec::new();
    loop {
        let mut searching = DirectorySearch::new(requester.id(), search.clone(), NOW);
        let mut slices = 1;
        let page = loop {
            match searching.step(&directory).unwrap() {
                Some(page) => break page,
                None => slices += 1,
            }
        };
        assert!(page.records.is_empty());
        requests.push(slices);
        match page.next {
            Some(next) => search.after = Some(next),
            None => break,
        }
    }
    assert_eq!(
        requests,
        [
            MAX_REQUEST.rows / MAX_SLICE.rows,
            (ROWS - MAX_REQUEST.rows) / MAX_SLICE.rows + 1
        ]
    );
}

#[test]
fn records_of_a_database_before_there_were_searches_by_text_are_found() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(crate::directory::SCHEMA).unwrap();
    let one = key(1);
    let signed = record("one", &["grep"], 1).sign(&one).unwrap();
    let id = one.id();
    db.execute(
        "INSERT INTO member (id, joined) VALUES (?1, 0)",
        [id.as_bytes()],
    )
    .unwrap();
    let row = params![id.as_bytes(), seconds(NOW + 7200), signed.bytes().as_ref()];
    db.execute("INSERT INTO record VALUES (?1, ?2, ?3)", row)
        .unwrap();
    let policy = DirectoryPolicy {
        max_members: 1,
        name_hold_s: 1,
        listing: AgentVisibility::Members,
    };
    let directory = Directory::over(db, policy).unwrap();
    assert_eq!(found(&directory, &one, &search(&["LINES"])), [id]);
}
