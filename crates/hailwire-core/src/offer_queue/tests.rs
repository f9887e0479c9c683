use bytes::Bytes;
use hailwire_wire::{
    frame::FrameKind,
    header::{self, AgentOffer, AgentOffers},
    limits, offers,
};

use super::*;
use crate::testing::start;

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn offer(name: &str) -> AgentOffer {
    AgentOffer {
        group: hailwire_wire::header::OfferedGroup::default(),
        name: name.parse().unwrap(),
        description: "d".repeat(200),
        tags: Vec::new(),
        version: String::new(),
    }
}

/// A list of one page with one agent that is named after it.
fn page(number: u64) -> OfferPage {
    let frames = offers::pages(vec![offer(&format!("list-{number}"))], number);
    let (kind, payload) = frames.into_iter().next().unwrap();
    OfferPage::parse(kind, payload).unwrap()
}

fn pages(number: u64) -> Vec<OfferPage> {
    let agents = (0..limits::MAX_AGENTS_PER_NODE).map(|i| offer(&format!("a{i}")));
    let frames = offers::pages(agents.collect(), number).into_iter();
    let pages: Vec<_> = frames
        .map(|(kind, payload)| OfferPage::parse(kind, payload).unwrap())
        .collect();
    assert!(pages.len() > 2);
    pages
}

/// What is entered until nothing has its turn, with the time of each.
fn entered(waiting: &mut OfferQueue<()>, now: &mut Instant) -> Vec<(NodeId, String, Instant)> {
    let mut all = Vec::new();
    loop {
        match waiting.turn(*now) {
            OfferTurn::Now(id, list) => {
                let agents = list.agents().unwrap();
                all.push((id, agents[0].name.to_string(), *now));
            }
            OfferTurn::At(later) => *now = (*now).max(later),
            OfferTurn::Idle => return all,
        }
    }
}

#[test]
fn of_a_flood_a_few_lists_a_second_are_entered_and_the_last_one_always() {
    let begin = start();
    let mut now = begin;
    let mut waiting = OfferQueue::new();
    waiting.open(id(1), now);
    let mut all = Vec::new();
    // 445 lists a second for ten seconds.
    for number in 1..=4450 {
        waiting.heard(id(1), 7, page(number), &(), now);
        let next = now + Duration::from_secs(1) / 445;
        while let OfferTurn::Now(_, list) = waiting.turn(now) {
            all.push(list.pages.number());
        }
        now = next;
    }
    assert!((40..=44).contains(&all.len()), "{}", all.len());
    let rest = entered(&mut waiting, &mut now);
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].1, "list-4450");
    assert!(now - begin <= Duration::from_millis(10_300));
}

#[test]
fn a_flood_by_one_peer_holds_up_no_list_of_another() {
    let mut now = start();
    let mut waiting = OfferQueue::new();
    for byte in 1..=60 {
        waiting.open(id(byte), now);
    }
    for number in 1..=100 {
        for byte in 1..=59 {
            waiting.heard(id(byte), 7, page(number), &(), now);
        }
    }
    waiting.heard(id(60), 7, page(1), &(), now);
    let start = now;
    let order = entered(&mut waiting, &mut now);
    assert_eq!(order.len(), 60, "one list of each");
    assert!(order.iter().all(|(_, _, at)| *at == start));
    // All of them at once, again and again: what is entered is bounded for all together.
    let mut all = 0;
    for number in 101..=200 {
        for byte in 1..=60 {
            waiting.heard(id(byte), 7, page(number), &(), now);
        }
        now += Duration::from_millis(10);
        while let OfferTurn::Now(..) = waiting.turn(now) {
            all += 1;
        }
    }
    assert!(all <= 64 + 1000 / 16, "{all} in a second");
}

#[test]
fn the_pages_of_a_list_may_come_on_any_connection_and_older_ones_are_ignored() {
    let mut now = start();
    let mut waiting = OfferQueue::new();
    waiting.open(id(1), now);
    let (old, new) = (pages(5), pages(6));
    waiting.heard(id(1), 7, old[0].clone(), &(), now);
    waiting.heard(id(1), 7, new[1].clone(), &(), now);
    for page in &old {
        assert!(!waiting.heard(id(1), 7, page.clone(), &(), now));
    }
    assert!(entered(&mut waiting, &mut now).is_empty());
    for page in &new {
        waiting.heard(id(1), 7, page.clone(), &(), now);
    }
    assert_eq!(entered(&mut waiting, &mut now).len(), 1);
    for page in new.iter().chain(&old) {
        waiting.heard(id(1), 7, page.clone(), &(), now);
    }
    assert!(entered(&mut waiting, &mut now).is_empty(), "it is known");
    // Another start of the peer counts anew.
    waiting.heard(id(1), 8, page(1), &(), now);
    assert_eq!(entered(&mut waiting, &mut now)[0].1, "list-1");
}

#[test]
fn a_peer_that_numbers_no_lists_is_heard_each_time() {
    let mut now = start();
    let mut waiting = OfferQueue::new();
    waiting.open(id(1), now);
    for name in ["first", "second"] {
        let offers = AgentOffers {
            agents: vec![offer(name)],
            ..AgentOffers::default()
        };
        let payload = Bytes::from(header::encode(&offers));
        let page = OfferPage::parse(FrameKind::OFFERS, payload).unwrap();
        waiting.heard(id(1), 7, page, &(), now);
        assert_eq!(entered(&mut waiting, &mut now)[0].1, name);
    }
}

#[test]
fn a_list_waits_for_its_tunnel_and_goes_with_it() {
    let mut now = start();
    let mut waiting = OfferQueue::new();
    waiting.heard(id(1), 7, page(1), &(), now);
    assert!(entered(&mut waiting, &mut now).is_empty());
    waiting.open(id(1), now);
    assert_eq!(entered(&mut waiting, &mut now).len(), 1);
    waiting.heard(id(1), 7, page(2), &(), now);
    waiting.forget(id(1));
    assert!(entered(&mut waiting, &mut now).is_empty());
    assert!(waiting.peers.is_empty() && waiting.turns.is_empty());
}

#[test]
fn lists_of_peers_that_never_have_a_tunnel_are_bounded() {
    let now = start();
    let mut waiting = OfferQueue::new();
    waiting.open(id(255), now);
    for byte in 0..=200 {
        waiting.heard(id(byte), 7, page(1), &(), now);
    }
    assert_eq!(waiting.peers.len(), MAX_CLOSED + 1);
    assert!(waiting.peers.contains_key(&id(255)) && waiting.peers.contains_key(&id(200)));
}

#[test]
fn a_list_waits_until_it_was_entered() {
    let now = start();
    let mut waiting = OfferQueue::new();
    waiting.open(id(1), now);
    assert!(waiting.waiting().is_empty() && waiting.waiting_list(id(1)).is_none());
    waiting.heard(id(1), 7, page(3), &(), now);
    assert_eq!(waiting.waiting(), HashSet::from([id(1)]));
    let list = waiting.waiting_list(id(1)).unwrap();
    assert_eq!(list.agents().unwrap()[0].name.as_str(), "list-3");
    assert!(matches!(waiting.turn(now), OfferTurn::Now(..)));
    assert!(waiting.waiting_list(id(1)).is_none());
    assert_eq!(
        waiting.waiting(),
        HashSet::from([id(1)]),
        "it is being entered"
    );
    waiting.entered();
    assert!(waiting.waiting().is_empty());
}
