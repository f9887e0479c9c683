//! Leases over a database: what is said is on disk, and outlasts a hub.

use std::path::Path;

use hailwire_wire::{lease::LeaseRow, signed::KeyPair, ticket::TicketSecret};

use super::*;
use crate::{config::AgentVisibility, directory::DirectoryPolicy};

const NOW: u64 = 1_800_000_000;
const TTL: Duration = Duration::from_secs(10);

fn open(path: &Path) -> Directory {
    let policy = DirectoryPolicy {
        max_members: 4,
        name_hold_s: 0,
        listing: AgentVisibility::Members,
    };
    Directory::open(path, policy).unwrap()
}

fn member(directory: &mut Directory, byte: u8) -> NodeId {
    let secret = TicketSecret::from_random([byte; 16]);
    let invitation = hailwire_wire::ticket::Invitation {
        digest: secret.digest(),
        uses_left: 1,
        expires: NOW + 600,
        allow: vec![],
        offer: vec![],
    };
    directory.invite(&invitation, NOW).unwrap();
    let id = KeyPair::from_seed(&[byte; 32]).id();
    directory.join(id, &secret, NOW).unwrap();
    id
}

fn wish(node: NodeId, token: Option<u64>) -> LeaseWish {
    LeaseWish {
        name: "nightly".parse().unwrap(),
        node,
        candidate: CandidateId::from_random([1; 16]),
        ttl: TTL,
        token,
    }
}

fn held(answer: &LeaseAnswer) -> &LeaseRow {
    assert!(answer.held, "{answer:?}");
    answer.lease.as_ref().unwrap()
}

#[test]
fn a_lease_outlasts_the_hub_and_one_given_back_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory.db");
    let mut directory = open(&path);
    let (one, other) = (member(&mut directory, 1), member(&mut directory, 2));
    let at = Instant::now();
    let answer = directory.ask_lease(&wish(one, None), at, NOW).unwrap();
    let token = held(&answer).token;
    drop(directory);

    let mut directory = open(&path);
    let after = Instant::now();
    let refused = directory.ask_lease(&wish(other, None), after, NOW).unwrap();
    assert!(!refused.held);
    assert_eq!(refused.lease.unwrap().node, one);
    let renewed = directory.ask_lease(&wish(one, Some(token)), after, NOW);
    assert_eq!(held(&renewed.unwrap()).token, token);
    let release = LeaseRelease {
        name: "nightly".parse().unwrap(),
        candidate: CandidateId::from_random([1; 16]),
        token,
    };
    let not_its_own = directory.release_lease(other, &release, after).unwrap();
    assert!(!not_its_own.released);
    let released = directory.release_lease(one, &release, after).unwrap();
    assert!(released.released);
    drop(directory);

    let mut directory = open(&path);
    let at = Instant::now();
    assert_eq!(directory.leases(one, at).unwrap().leases, []);
    // The clock went back a day meanwhile.
    let next = directory.ask_lease(&wish(other, None), at, NOW - 86_400);
    assert_eq!(held(&next.unwrap()).token, token + 1);
}

#[test]
fn a_database_put_back_to_an_old_copy_gives_higher_tokens_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("db"), folder.path().join("copy"));
    let mut directory = open(&path);
    let (one, other) = (member(&mut directory, 1), member(&mut directory, 2));
    drop(directory);
    std::fs::copy(&path, &copy).unwrap();
    let mut directory = open(&path);
    let at = Instant::now();
    let lost = directory.ask_lease(&wish(one, None), at, NOW).unwrap();
    drop(directory);

    let mut directory = open(&copy);
    let given = directory.ask_lease(&wish(other, None), at, NOW + 1);
    assert!(held(&given.unwrap()).token > held(&lost).token);
    let old = directory.ask_lease(&wish(one, Some(held(&lost).token)), at, NOW + 1);
    assert!(!old.unwrap().held, "who held one before does not any more");
}

#[test]
fn only_members_take_give_back_and_see_leases_and_one_that_left_keeps_others_out_for_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut directory = open(&folder.path().join("db"));
    let (one, other) = (member(&mut directory, 1), member(&mut directory, 2));
    let stranger = NodeId::from_bytes([9; 32]);
    let at = Instant::now();
    assert!(directory.ask_lease(&wish(stranger, None), at, NOW).is_err());
    assert!(directory.leases(stranger, at).is_err());
    let answer = directory.ask_lease(&wish(one, None), at, NOW).unwrap();
    let token = held(&answer).token;
    directory.remove(one).unwrap();
    let renewal = directory.ask_lease(&wish(one, Some(token)), at, NOW);
    assert!(renewal.is_err(), "it is no member any more");
    let early = directory.ask_lease(&wish(other, None), at + TTL / 2, NOW);
    assert!(!early.unwrap().held, "its program may still lead");
    let late = directory.ask_lease(&wish(other, None), at + TTL, NOW);
    assert!(held(&late.unwrap()).token > token);
}
