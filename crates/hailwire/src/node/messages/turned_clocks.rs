//! Two nodes whose clocks are turned back and forth by days in the middle of everything: nothing that has no end is forgotten, and nothing
//! comes again after its end.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::{
    rows::{self, MessageEnd, NewMessage},
    schema::SCHEMA,
    *,
};
use hailwire_core::delivery::{AttemptOutcome, SenderNews};
use hailwire_wire::messages::MessageReceipt;

const SEEDS: u64 = 300;
const STEPS: u32 = 150;

const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// The furthest that a clock is turned at once: more than ended messages are kept.
const FURTHEST: Duration = Duration::from_secs(20 * 24 * 3600);

/// Numbers below a bound (splitmix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// A node's disk and the clock that it goes by.
struct Side {
    own: NodeId,
    db: Connection,
    now: u64,
}

impl Side {
    fn new(byte: u8) -> Self {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(SCHEMA).unwrap();
        Self {
            own: NodeId::from_bytes([byte; 32]),
            db,
            now: 1_800_000_000_000,
        }
    }

    fn turn(&mut self, draws: &mut Draws) {
        let furthest = millis(FURTHEST);
        let by = draws.below(furthest);
        self.now = match draws.below(2) {
            0 => self.now.saturating_sub(by),
            _ => self.now + by,
        };
    }

    /// What a node does now and then, and at its start.
    fn clean(&self) -> Vec<u64> {
        let expired = rows::expire(&self.db, self.own, self.now).unwrap();
        rows::forget(&self.db, self.now, KEEP).unwrap();
        expired
            .came
            .into_iter()
            .map(|(number, ..)| number)
            .collect()
    }
}

fn message(own: &Side, to: NodeId, draws: &mut Draws) -> NewMessage {
    NewMessage {
        id: new_id(own.now),
        node: to,
        target: "work@laptop".to_owned(),
        agent: "work".parse().unwrap(),
        sender: String::new(),
        call: false,
        durable: header::Durability::AnyOrder,
        header: Vec::new(),
        body: b"x".to_vec(),
        key: None,
        stored_at: own.now,
        expires_at: own.now + draws.below(millis(FURTHEST)) + 1,
        keep: millis(KEEP),
        max_attempts: 0,
        number: 0,
    }
}

/// What is known of the messages, beside what the disks say.
#[derive(Default)]
struct Known {
    ids: BTreeSet<String>,
    /// Ended at their sender, where they may be forgotten later.
    ended: BTreeSet<String>,
    /// In the inbox: which number is which, and which have their end.
    numbers: BTreeMap<u64, MessageId>,
    over: BTreeSet<String>,
}

fn exchange(desk: &mut Side, laptop: &mut Side, known: &mut Known, draws: &mut Draws) {
    let next = rows::next_batch(&desk.db, laptop.own, &[], 16, 1 << 20).unwrap();
    for offer in next.messages {
        let id = offer.id;
        let mut copy = message(laptop, laptop.own, draws);
        copy.id = id;
        if let Some(number) = rows::insert_inbox(&laptop.db, desk.own, &copy).unwrap() {
            assert!(
                !known.over.contains(&id.to_string()),
                "it comes again after its end"
            );
            known.numbers.insert(number, id);
        }
        // The answer may be lost.
        if draws.below(3) > 0 {
            let end = MessageEnd::default();
            let (own, peer) = (desk.own, laptop.own);
            rows::learn(&desk.db, own, peer, id, SenderNews::Kept, &end, desk.now).unwrap();
        }
    }
    let next = rows::next_batch(&laptop.db, desk.own, &[], 16, 1 << 20).unwrap();
    for MessageReceipt { id, state, .. } in next.receipts {
        let news = SenderNews::Receipt(state);
        let end = MessageEnd {
            attempts: 1,
            ..MessageEnd::default()
        };
        let (own, peer) = (desk.own, laptop.own);
        rows::learn(&desk.db, own, peer, id, news, &end, desk.now).unwrap();
        if draws.below(3) > 0 {
            rows::note_told(&laptop.db, desk.own, &[id]).unwrap();
        }
    }
}

fn settle(laptop: &Side, number: u64, outcome: AttemptOutcome) {
    let policy = DeliveryPolicy::default();
    let end = MessageEnd::default();
    rows::settle(
        &laptop.db, laptop.own, &policy, number, outcome, &end, laptop.now,
    )
    .unwrap();
}

fn work(laptop: &Side, known: &mut Known, draws: &mut Draws) {
    let numbers: Vec<(u64, MessageId)> = known.numbers.iter().map(|(n, id)| (*n, *id)).collect();
    for (number, id) in numbers {
        if draws.below(2) == 0 {
            continue;
        }
        let Some(taken) = rows::take(&laptop.db, number).unwrap() else {
            continue;
        };
        assert_eq!(taken.id, id);
        assert!(
            !known.over.contains(&id.to_string()),
            "handed over after its end"
        );
        match draws.below(2) {
            0 => settle(laptop, number, AttemptOutcome::Refused(Code::Aborted)),
            _ => settle(laptop, number, AttemptOutcome::Done { answered: false }),
        }
        let shown = rows::show(&laptop.db, laptop.own, id).unwrap().unwrap();
        if shown.row.ended_at_ms.is_some() {
            known.over.insert(id.to_string());
        }
    }
}

#[test]
fn clocks_that_are_turned_back_and_forth_lose_nothing_and_bring_nothing_again() {
    for seed in 0..SEEDS {
        let mut draws = Draws(seed);
        let (mut desk, mut laptop) = (Side::new(1), Side::new(2));
        let mut known = Known::default();
        for _ in 0..STEPS {
            match draws.below(6) {
                0 => {
                    let new = message(&desk, laptop.own, &mut draws);
                    assert!(
                        known.ids.insert(new.id.to_string()),
                        "an id came twice, seed {seed}"
                    );
                    rows::send(&desk.db, desk.own, &new).unwrap();
                }
                1 => exchange(&mut desk, &mut laptop, &mut known, &mut draws),
                2 => work(&laptop, &mut known, &mut draws),
                3 => desk.turn(&mut draws),
                4 => laptop.turn(&mut draws),
                _ => {
                    desk.clean();
                    for number in laptop.clean() {
                        known.over.insert(known.numbers[&number].to_string());
                    }
                }
            }
            for id in &known.ids {
                let shown = rows::show(&desk.db, desk.own, id.parse().unwrap()).unwrap();
                match shown {
                    Some(found) if found.row.ended_at_ms.is_some() => {
                        known.ended.insert(id.clone());
                    }
                    Some(_) => assert!(!known.ended.contains(id), "an end undone, seed {seed}"),
                    None => assert!(known.ended.contains(id), "{id} is lost, seed {seed}"),
                }
            }
        }
        assert!(!known.ids.is_empty());
    }
}
