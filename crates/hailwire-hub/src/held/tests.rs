use super::*;

const NOW: u64 = 1_800_000_000;

fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

fn store(bounds: HoldBounds) -> (tempfile::TempDir, HeldStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = HeldStore::open(&folder.path().join(DATABASE), bounds).unwrap();
    (folder, store)
}

fn is_full(put: &Result<u64, DirectoryError>) -> bool {
    matches!(put, Err(DirectoryError::Refused { reason, .. }) if *reason == RefusalReason::Full)
}

#[test]
fn a_batch_is_given_to_its_receiver_alone_and_deleted_by_it_alone() {
    let (_folder, mut store) = store(HoldBounds::default());
    store.put(node(1), node(2), b"sealed", NOW).unwrap();
    assert_eq!(store.next(node(1), 0, NOW).unwrap(), None);
    assert_eq!(store.next(node(3), 0, NOW).unwrap(), None);
    let held = store.next(node(2), 0, NOW).unwrap().unwrap();
    assert_eq!(
        (held.from, held.sealed.0.as_ref()),
        (node(1), &b"sealed"[..])
    );
    assert_eq!(store.next(node(2), held.number, NOW).unwrap(), None);
    assert!(!store.delete(node(1), held.number).unwrap());
    assert!(!store.delete(node(3), held.number).unwrap());
    assert!(store.delete(node(2), held.number).unwrap());
    assert_eq!(store.next(node(2), 0, NOW).unwrap(), None);
}

#[test]
fn a_newer_batch_takes_the_place_of_the_last_one_and_outlives_its_deletion() {
    let (_folder, mut store) = store(HoldBounds::default());
    store.put(node(1), node(2), b"one", NOW).unwrap();
    let first = store.next(node(2), 0, NOW).unwrap().unwrap();
    store
        .put(node(1), node(2), b"one and two", NOW + 1)
        .unwrap();
    // The receiver, which was given the first one, deletes that.
    assert!(!store.delete(node(2), first.number).unwrap());
    let second = store.next(node(2), first.number, NOW).unwrap().unwrap();
    assert_eq!(second.sealed.0.as_ref(), b"one and two");
    assert_eq!(store.next(node(2), second.number, NOW).unwrap(), None);
}

#[test]
fn what_is_held_from_one_for_one_and_in_all_is_bounded_and_a_refusal_takes_nothing_away() {
    let bounds = HoldBounds {
        bytes: 1000,
        bytes_of_one: 400,
        seconds: 100,
    };
    let (_folder, mut store) = store(bounds);
    let blob = [7; 200];
    assert_eq!(store.put(node(1), node(2), &blob, NOW).unwrap(), NOW + 100);
    store.put(node(1), node(3), &blob, NOW).unwrap();
    assert!(
        is_full(&store.put(node(1), node(4), &blob, NOW)),
        "from one"
    );
    store.put(node(5), node(2), &blob, NOW).unwrap();
    assert!(is_full(&store.put(node(6), node(2), &blob, NOW)), "for one");
    store.put(node(6), node(7), &blob, NOW).unwrap();
    store.put(node(6), node(8), &blob, NOW).unwrap();
    assert!(is_full(&store.put(node(9), node(9), &blob, NOW)), "in all");
    assert!(
        is_full(&store.put(node(1), node(2), &[7; 201], NOW)),
        "one that grew"
    );
    assert!(
        store.next(node(2), 0, NOW).unwrap().is_some(),
        "the last one is still held"
    );
    // Time makes room.
    store.put(node(9), node(9), &blob, NOW + 101).unwrap();
    assert_eq!(store.next(node(2), 0, NOW + 101).unwrap(), None);
    assert_eq!(store.total, 200);
}

#[test]
fn ten_thousand_junk_batches_of_one_member_take_no_more_than_its_share() {
    let bounds = HoldBounds {
        bytes: 100_000,
        bytes_of_one: 10_000,
        seconds: 100,
    };
    let (_folder, mut store) = store(bounds);
    // One synced commit each is not what this is about.
    store.db.pragma_update(None, "synchronous", "OFF").unwrap();
    let mut taken = 0;
    for number in 0..10_000_u32 {
        let mut receiver = [0; 32];
        receiver[..4].copy_from_slice(&number.to_be_bytes());
        let put = store.put(node(1), NodeId::from_bytes(receiver), &[1; 100], NOW);
        match put {
            Ok(_) => taken += 1,
            refused => assert!(is_full(&refused)),
        }
    }
    assert_eq!(taken, 100);
    store.put(node(2), node(3), &[1; 100], NOW).unwrap();
}

#[test]
fn nothing_is_held_where_there_is_room_for_nothing() {
    let bounds = HoldBounds {
        bytes: 0,
        ..HoldBounds::default()
    };
    let (_folder, mut store) = store(bounds);
    assert!(is_full(&store.put(node(1), node(2), b"x", NOW)));
}

#[test]
fn what_is_counted_is_what_is_there_whatever_came_went_or_was_refused() {
    let bounds = HoldBounds {
        bytes: 2_000,
        bytes_of_one: 700,
        seconds: 50,
    };
    let (folder, mut store) = store(bounds);
    store.db.pragma_update(None, "synchronous", "OFF").unwrap();
    let mut state = 36_u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let mut now = NOW;
    let mut refused = 0;
    for _ in 0..2_000 {
        let (one, other) = (node(draw(6) as u8), node(draw(6) as u8));
        match draw(4) {
            0 => now += draw(10),
            1 => {
                if let Some(held) = store.next(one, 0, now).unwrap() {
                    store.delete(one, held.number).unwrap();
                }
            }
            _ => {
                let put = store.put(one, other, &vec![1; 1 + draw(500) as usize], now);
                refused += usize::from(is_full(&put));
            }
        }
        let all = "SELECT coalesce(sum(size), 0) FROM held";
        assert_eq!(sum(&store.db, all, []).unwrap(), store.total);
        assert!(store.total <= bounds.bytes);
    }
    assert!(refused > 10, "{refused}");
    let before = store.total;
    drop(store);
    let again = HeldStore::open(&folder.path().join(DATABASE), bounds).unwrap();
    assert_eq!(again.total, before);
}
