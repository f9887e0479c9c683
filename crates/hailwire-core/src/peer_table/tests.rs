//! The table with connections that exist in numbers only.

use super::*;
use crate::testing::{draws, for_each_seed, node};
use std::{cell::Cell, rc::Rc};

/// One end of a connection.
#[derive(Clone, Debug)]
struct End {
    number: u32,
    carrier: Carrier,
    instance: u64,
    streams: Rc<Cell<u64>>,
    /// Whether either side has said `GOING_AWAY`, or it is closed.
    away: Rc<Cell<bool>>,
    closed: Rc<Cell<bool>>,
}

impl End {
    fn new(number: u32, carrier: Carrier) -> Self {
        Self {
            number,
            carrier,
            instance: 1,
            streams: Rc::default(),
            away: Rc::default(),
            closed: Rc::default(),
        }
    }

    fn of_start(mut self, instance: u64) -> Self {
        self.instance = instance;
        self
    }
}

impl PeerConnection for End {
    fn is(&self, other: &Self) -> bool {
        self.number == other.number
    }

    fn carrier_name(&self) -> &'static str {
        self.carrier.name()
    }

    fn transport(&self) -> Transport {
        Transport::of(self.carrier).unwrap()
    }

    fn instance(&self) -> u64 {
        self.instance
    }

    fn takes_work(&self) -> bool {
        !self.away.get() && !self.closed.get()
    }

    fn in_flight(&self) -> u64 {
        self.streams.get()
    }

    fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

const LOW: u8 = 1;
const HIGH: u8 = 2;

fn quic(number: u32) -> End {
    End::new(number, Carrier::Quic)
}

/// Does what the table says, and gives it in words.
fn act(table: &mut PeerTable<End>) -> Vec<String> {
    let actions = std::iter::from_fn(|| table.poll_action());
    let words = actions.map(|action| match action {
        PeerAction::Close(end, code, reason) => {
            end.closed.set(true);
            format!("close {} {code:?} {reason}", end.number)
        }
        PeerAction::GoAway(end, _) => {
            end.away.set(true);
            format!("away {}", end.number)
        }
        PeerAction::TunnelChanged(_, transport, size) => {
            format!("{} {} {}", transport.name(), size.connections, size.agents)
        }
        PeerAction::TunnelEnded(_, transport) => format!("{} ended", transport.name()),
    });
    words.collect()
}

fn up(table: &PeerTable<End>, id: NodeId) -> Option<u32> {
    table.up(id).map(|end| end.number)
}

#[test]
fn of_two_that_dial_at_once_both_keep_what_the_lower_key_has_dialled() {
    let (low, high) = (node(LOW), node(HIGH));
    for first_is_lows in [true, false] {
        // At the node with the lower key, and at the other one.
        for (me, peer) in [(low, high), (high, low)] {
            let mut table = PeerTable::new(me);
            let (by_low, by_high) = (quic(1), quic(2));
            let mut order = [(by_low, me == low), (by_high, me == high)];
            if !first_is_lows {
                order.reverse();
            }
            for (end, dialled) in &order {
                let _ = table.handle_connected(peer, end, *dialled, Carrier::Auto);
            }
            act(&mut table);
            assert_eq!(up(&table, peer), Some(1), "{me:?}, {first_is_lows}");
            assert_eq!(table.retired().len(), 1);
            table.close_retired();
            assert_eq!(act(&mut table), ["close 2 Ok another tunnel is up"]);
            assert!(table.retired().is_empty());
        }
    }
}

#[test]
fn what_is_superseded_ends_when_it_carries_nothing_more() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    let (old, new) = (quic(1), quic(2));
    old.streams.set(1);
    assert!(table.handle_connected(peer, &old, true, Carrier::Auto));
    assert!(table.handle_connected(peer, &new, true, Carrier::Auto));
    assert_eq!(act(&mut table), ["away 1", "udp ended"]);
    table.close_retired();
    assert_eq!(act(&mut table), Vec::<String>::new());
    // Its end takes nothing of the tunnel that is up.
    assert_eq!(table.handle_closed(peer, &old), PeerRemains::Tunnel);
    old.streams.set(0);
    table.close_retired();
    assert_eq!(act(&mut table), ["close 1 Ok another tunnel is up"]);
    assert_eq!(up(&table, peer), Some(2));
    assert_eq!(table.handle_closed(peer, &new), PeerRemains::Nothing);
    assert!(table.is_empty() && !table.has(peer));
}

#[test]
fn a_peer_that_has_restarted_loses_all_of_its_old_start_at_once() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    let tcp = End::new(2, Carrier::Ws);
    table.handle_connected(peer, &quic(1), true, Carrier::Auto);
    table.handle_connected(peer, &tcp, true, Carrier::Auto);
    table
        .handle_additional(peer, &quic(3), true, 4)
        .expect("there is room");
    act(&mut table);
    let again = quic(4).of_start(2);
    assert!(table.handle_connected(peer, &again, false, Carrier::Auto));
    let closed = |number| format!("close {number} Unavailable the peer has restarted");
    let expected = [
        closed(1),
        closed(3),
        "udp ended".to_owned(),
        closed(2),
        "tcp ended".to_owned(),
    ];
    assert_eq!(act(&mut table), expected);
    assert_eq!(up(&table, peer), Some(4));
    assert_eq!(table.connections(peer, Transport::Tcp).count(), 0);
}

#[test]
fn an_additional_connection_replaces_nothing_and_is_bounded() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    let refused = |table: &mut PeerTable<End>, end: &End| {
        let refused = table.handle_additional(peer, end, true, 2);
        refused.map_err(|status| (status.code, status.message))
    };
    let none = "there is no tunnel over quic that the connection could join".to_owned();
    let missing = Err((Code::FailedPrecondition, none));
    assert_eq!(refused(&mut table, &quic(1)), missing);
    table.handle_connected(peer, &quic(1), true, Carrier::Auto);
    let other = refused(&mut table, &quic(9).of_start(7)).unwrap_err();
    assert_eq!(other.0, Code::FailedPrecondition);
    let over_tcp = refused(&mut table, &End::new(8, Carrier::H2)).unwrap_err();
    assert_eq!(over_tcp.0, Code::FailedPrecondition);
    assert_eq!(refused(&mut table, &quic(2)), Ok(()));
    // The same one again is no other one.
    assert_eq!(refused(&mut table, &quic(2)), Ok(()));
    assert_eq!(act(&mut table), ["udp 2 0"]);
    let full = refused(&mut table, &quic(3)).unwrap_err();
    assert_eq!(full.0, Code::ResourceExhausted);
    assert_eq!(table.handle_closed(peer, &quic(1)), PeerRemains::Tunnel);
    assert_eq!(act(&mut table), ["udp 1 0"]);
    assert_eq!(up(&table, peer), Some(2), "the eldest is the first");
    let size = TunnelSize {
        connections: 1,
        agents: 0,
    };
    assert_eq!(table.size_by_first(peer, &quic(2)), Some(size));
    assert_eq!(table.size_by_first(peer, &quic(1)), None);
}

#[test]
fn the_next_call_goes_to_whoever_has_least_to_do_and_takes_work() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    let ends = [quic(1), quic(2), quic(3)];
    table.handle_connected(peer, &ends[0], true, Carrier::Auto);
    for end in &ends[1..] {
        table.handle_additional(peer, end, true, 3).unwrap();
    }
    let next = |table: &PeerTable<End>| table.up_for_call(peer).map(|end| end.number);
    assert_eq!(next(&table), Some(1), "of equals the eldest");
    ends[0].streams.set(2);
    ends[1].streams.set(1);
    assert_eq!(next(&table), Some(3));
    ends[2].away.set(true);
    assert_eq!(next(&table), Some(2));
    ends[0].away.set(true);
    ends[1].away.set(true);
    assert_eq!(next(&table), None);
    assert!(table.has(peer), "it is there still");
}

#[test]
fn calls_go_over_what_was_chosen_configured_or_is_there() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    let (udp, tcp) = (quic(1), End::new(2, Carrier::H2));
    table.handle_connected(peer, &tcp, true, Carrier::Auto);
    assert_eq!(up(&table, peer), Some(2));
    assert_eq!(table.view()[0].reason, ChoiceReason::NoUdp);
    table.handle_connected(peer, &udp, true, Carrier::Auto);
    assert_eq!(up(&table, peer), Some(1), "UDP is preferred");
    assert!(table.set_carry(peer, Transport::Tcp, ChoiceReason::NoUdp));
    assert!(!table.set_carry(peer, Transport::Tcp, ChoiceReason::NoUdp));
    assert_eq!(up(&table, peer), Some(2));
    tcp.away.set(true);
    assert_eq!(up(&table, peer), Some(1));
    tcp.away.set(false);
    let over = |carrier| table.up_over(peer, carrier).map(|end| end.number);
    assert_eq!(over(Carrier::Quic), Some(1));
    assert_eq!(over(Carrier::H2), Some(2));
    assert_eq!(over(Carrier::Ws), None);
    assert_eq!(over(Carrier::Auto), None);
    table.set_only(peer, Carrier::Ws);
    assert_eq!(up(&table, peer), None, "configured, and not there");
    table.set_only(peer, Carrier::Quic);
    assert_eq!(up(&table, peer), Some(1));
    let carrying = table.view().into_iter().filter(|tunnel| tunnel.carries);
    let carrying: Vec<_> = carrying.map(|one| (one.first.number, one.reason)).collect();
    assert_eq!(carrying, [(1, ChoiceReason::Configured)]);
}

#[test]
fn of_two_carriers_over_tcp_the_later_one_stays_and_agents_are_noted_once() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    table.handle_connected(peer, &End::new(1, Carrier::Ws), true, Carrier::Auto);
    assert!(table.handle_connected(peer, &End::new(2, Carrier::H2), false, Carrier::Auto));
    assert_eq!(act(&mut table), ["away 1", "tcp ended"]);
    assert_eq!(table.worked(peer), Some(Transport::Tcp));
    table.handle_agents(peer, 5);
    table.handle_agents(peer, 5);
    assert_eq!(act(&mut table), ["tcp 1 5"]);
    assert!(table.begin_second(peer, Transport::Udp));
    assert!(!table.begin_second(peer, Transport::Udp));
    table.end_second(peer, Transport::Udp);
    assert!(table.begin_second(peer, Transport::Udp));
}

/// Two nodes that dial each other at once, again and again. Each of two connections is entered at either end in a random
/// order, with whatever ends and streams there are in between.
fn follow(seed: u64) {
    let mut below = draws(seed, 17);
    let keys = [node(LOW), node(HIGH)];
    let mut tables = keys.map(PeerTable::new);
    let mut number = 0;
    for round in 0..6 {
        let pair = [0, 1].map(|by| {
            number += 1;
            (quic(number), by)
        });
        let alone = below(3) == 0;
        let dials = &pair[..if alone { 1 } else { 2 }];
        let mut entering: Vec<(usize, &End, usize)> = Vec::new();
        for (end, by) in dials {
            entering.push((0, end, *by));
            entering.push((1, end, *by));
        }
        while !entering.is_empty() {
            let (at, end, by) = entering.remove(below(entering.len() as u32) as usize);
            tables[at].handle_connected(keys[1 - at], end, by == at, Carrier::Auto);
            act(&mut tables[at]);
            end.streams.set(u64::from(below(2)));
        }
        // One that came alone may meet a tunnel that the other side is to keep; both then keep that.
        let kept = [0, 1].map(|at| up(&tables[at], keys[1 - at]));
        assert_eq!(kept[0], kept[1], "seed {seed}, round {round}");
        assert!(
            kept[0].is_some(),
            "seed {seed}, round {round}: none is left"
        );
        for (at, table) in tables.iter_mut().enumerate() {
            table.close_retired();
            act(table);
            let peer = keys[1 - at];
            assert_eq!(table.connections(peer, Transport::Udp).count(), 1);
            assert_eq!(table.len(), 1);
        }
        if below(2) == 0 {
            // The connection breaks at both ends.
            let first = tables[0].up(keys[1]).expect("one is up");
            first.closed.set(true);
        }
        for (at, table) in tables.iter_mut().enumerate() {
            let peer = keys[1 - at];
            let broken: Vec<End> = table
                .all()
                .map(|(_, end)| end.clone())
                .filter(End::is_closed)
                .collect();
            for end in broken {
                assert_eq!(table.handle_closed(peer, &end), PeerRemains::Nothing);
            }
            assert_eq!(act(table).is_empty(), table.has(peer), "seed {seed}");
        }
    }
}

/// Seeds that once failed, each with what was wrong.
const KEPT: &[u64] = &[];

#[test]
fn both_sides_always_keep_the_same_connection_whatever_the_order() {
    for_each_seed(KEPT, 10_000, follow);
}

#[test]
fn a_table_names_every_peer_and_every_connection_once() {
    let mut table = PeerTable::new(node(LOW));
    assert_eq!((table.len(), table.is_empty()), (0, true));
    let peers = [node(5), node(6)];
    for (number, peer) in peers.into_iter().enumerate() {
        table.handle_connected(peer, &quic(number as u32), true, Carrier::Auto);
        assert_eq!((table.len(), table.is_empty()), (number + 1, false));
        assert_eq!(table.carries(peer), None, "nothing was decided yet");
    }
    table.handle_connected(peers[0], &End::new(7, Carrier::Ws), true, Carrier::Auto);
    let mut ids: Vec<NodeId> = table.ids().collect();
    ids.sort_unstable();
    assert_eq!(ids, peers);
    let mut all: Vec<_> = table.all().map(|(id, end)| (id, end.number)).collect();
    all.sort_unstable();
    assert_eq!(all, [(peers[0], 0), (peers[0], 7), (peers[1], 1)]);
    table.set_carry(peers[0], Transport::Tcp, ChoiceReason::Back);
    assert_eq!(table.carries(peers[0]), Some(Transport::Tcp));
    let shown = table
        .view()
        .into_iter()
        .find(|tunnel| tunnel.peer == peers[0]);
    assert_eq!(shown.map(|tunnel| tunnel.reason), Some(ChoiceReason::Back));
}

#[test]
fn an_additional_connection_belongs_to_the_start_of_the_peer_that_the_tunnel_is_with() {
    let peer = node(HIGH);
    let mut table = PeerTable::new(node(LOW));
    table.handle_connected(peer, &quic(1).of_start(9), true, Carrier::Auto);
    assert!(table.handle_connected(peer, &quic(1).of_start(9), true, Carrier::Auto));
    assert_eq!(act(&mut table), Vec::<String>::new(), "the same one again");
    let older = table.handle_additional(peer, &quic(2).of_start(1), true, 4);
    assert_eq!(
        older.map_err(|status| status.code),
        Err(Code::FailedPrecondition)
    );
    assert_eq!(
        table.handle_additional(peer, &quic(3).of_start(9), true, 4),
        Ok(())
    );
    assert_eq!(act(&mut table), ["udp 2 0"]);
}
