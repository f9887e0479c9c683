//! How many durable messages may wait at a node, by whose they are.
//!
//! A message waits in one of two directions, each of which has quotas of its own: it came, and its agent has not done it yet, or it is to leave. It
//! is counted four times, and finds room only where all four have some: for its sender, for the agent that is to have it, for the
//! other node, and in total. So neither an agent that sends without end, nor one that never comes, takes the room of others of its node.
//!
//! Who is refused is told when to come back: soon where room became free a moment ago, else later.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    time::{Duration, Instant},
};

use hailwire_wire::{Code, NodeId, Status};

/// When to come back where room became free within this time.
pub const COME_BACK_SOON: Duration = Duration::from_secs(1);

/// When to come back where none did.
pub const COME_BACK_LATER: Duration = Duration::from_secs(30);

/// Messages, and bytes of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageRoom {
    /// How many.
    pub messages: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What may wait in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaBounds {
    /// Of one sender: an agent of a node, or all programs of a node that have no name.
    pub sender: MessageRoom,
    /// For one agent of a node.
    pub agent: MessageRoom,
    /// Of or for one other node.
    pub peer: MessageRoom,
    /// In all.
    pub total: MessageRoom,
}

/// In which direction messages wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaDirection {
    /// They came, and are for agents of this node.
    Came,
    /// They are to leave.
    Leaving,
}

/// An agent of a node; without a name, all its programs that have none.
pub type MessageParty = (NodeId, String);

/// A message that waits, for those who count it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    /// Who sent it.
    pub sender: MessageParty,
    /// Who is to have it.
    pub receiver: MessageParty,
    /// How large its body is, in bytes.
    pub size: u64,
}

/// A message that finds no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaFull {
    whose: QuotaHolder,
    waiting: MessageRoom,
    bound: MessageRoom,
    /// After which time it may.
    pub retry_after: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum QuotaHolder {
    Sender(MessageParty),
    Agent(MessageParty),
    Peer(NodeId),
    Total,
}

impl fmt::Display for QuotaHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sender((node, name)) if name.is_empty() => {
                let node = node.short();
                write!(f, "of programs without a name at node {node}")
            }
            Self::Sender((node, name)) => write!(f, "of agent `{name}` at node {}", node.short()),
            Self::Agent((node, name)) => write!(f, "for agent `{name}` at node {}", node.short()),
            Self::Peer(node) => write!(f, "of or for node {}", node.short()),
            Self::Total => f.write_str("of and for all nodes"),
        }
    }
}

impl From<QuotaFull> for Status {
    fn from(full: QuotaFull) -> Self {
        let MessageRoom { messages, bytes } = full.waiting;
        let bound = full.bound;
        let what = format!(
            "{messages} messages {} wait here, with {bytes} bytes; {} messages and {} bytes may",
            full.whose, bound.messages, bound.bytes
        );
        let hint = format!(
            "come back in {} s; `hail inbox ls` and `hail inbox sent` list what waits",
            full.retry_after.as_secs()
        );
        Self::new(Code::ResourceExhausted, what)
            .with_hint(hint)
            .with_retry_after(full.retry_after)
    }
}

/// What waits of one, and when that last became less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waiting {
    room: MessageRoom,
    released: Option<Instant>,
}

impl Waiting {
    const fn has_room(self, bound: MessageRoom, size: u64) -> bool {
        self.room.messages < bound.messages && self.room.bytes.saturating_add(size) <= bound.bytes
    }

    const fn add(&mut self, size: u64) {
        self.room.messages += 1;
        self.room.bytes += size;
    }

    const fn release(&mut self, now: Instant, size: u64) {
        self.room.messages = self.room.messages.saturating_sub(1);
        self.room.bytes = self.room.bytes.saturating_sub(size);
        self.released = Some(now);
    }

    fn retry_after(self, now: Instant) -> Duration {
        let since = self.released.map(|at| now.saturating_duration_since(at));
        match since {
            Some(since) if since <= COME_BACK_SOON => COME_BACK_SOON,
            _ => COME_BACK_LATER,
        }
    }
}

/// The messages that wait in one direction.
#[derive(Debug)]
pub struct MessageQuotas {
    direction: QuotaDirection,
    bounds: QuotaBounds,
    senders: HashMap<MessageParty, Waiting>,
    agents: HashMap<MessageParty, Waiting>,
    peers: HashMap<NodeId, Waiting>,
    total: Waiting,
}

impl MessageQuotas {
    /// Nothing waits yet.
    #[must_use]
    pub fn new(direction: QuotaDirection, bounds: QuotaBounds) -> Self {
        Self {
            direction,
            bounds,
            senders: HashMap::new(),
            agents: HashMap::new(),
            peers: HashMap::new(),
            total: Waiting::default(),
        }
    }

    const fn peer(&self, message: &WaitingMessage) -> NodeId {
        match self.direction {
            QuotaDirection::Came => message.sender.0,
            QuotaDirection::Leaving => message.receiver.0,
        }
    }

    /// Takes room for a message.
    ///
    /// # Errors
    ///
    /// [`QuotaFull`], and nothing is taken.
    pub fn reserve(&mut self, now: Instant, message: &WaitingMessage) -> Result<(), QuotaFull> {
        let peer = self.peer(message);
        let bounds = self.bounds;
        let waiting = |found: Option<&Waiting>| found.copied().unwrap_or_default();
        let (sender, receiver) = (&message.sender, &message.receiver);
        // The narrowest first: who can do something about it is named.
        let checked = [
            (waiting(self.senders.get(sender)), bounds.sender),
            (waiting(self.agents.get(receiver)), bounds.agent),
            (waiting(self.peers.get(&peer)), bounds.peer),
            (self.total, bounds.total),
        ];
        let full = checked
            .iter()
            .position(|(waiting, bound)| !waiting.has_room(*bound, message.size));
        let Some(place) = full else {
            self.add(message);
            return Ok(());
        };
        let (waiting, bound) = checked[place];
        Err(QuotaFull {
            whose: match place {
                0 => QuotaHolder::Sender(sender.clone()),
                1 => QuotaHolder::Agent(receiver.clone()),
                2 => QuotaHolder::Peer(peer),
                _ => QuotaHolder::Total,
            },
            waiting: waiting.room,
            bound,
            retry_after: waiting.retry_after(now),
        })
    }

    /// Counts a message that is here already, whatever the bounds say.
    pub fn add(&mut self, message: &WaitingMessage) {
        let peer = self.peer(message);
        let (sender, receiver) = (message.sender.clone(), message.receiver.clone());
        self.senders.entry(sender).or_default().add(message.size);
        self.agents.entry(receiver).or_default().add(message.size);
        self.peers.entry(peer).or_default().add(message.size);
        self.total.add(message.size);
    }

    /// A message waits no more.
    pub fn release(&mut self, now: Instant, message: &WaitingMessage) {
        let (peer, size) = (self.peer(message), message.size);
        if !self.peers.contains_key(&peer) {
            return;
        }
        release(&mut self.senders, &message.sender, now, size);
        release(&mut self.agents, &message.receiver, now, size);
        release(&mut self.peers, &peer, now, size);
        self.total.release(now, size);
    }
}

/// Of whom nothing waits, nothing is kept.
fn release<K: Eq + Hash>(all: &mut HashMap<K, Waiting>, whose: &K, now: Instant, size: u64) {
    let Some(waiting) = all.get_mut(whose) else {
        return;
    };
    waiting.release(now, size);
    if waiting.room.messages == 0 {
        all.remove(whose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const BOUNDS: QuotaBounds = QuotaBounds {
        sender: MessageRoom {
            messages: 4,
            bytes: 400,
        },
        agent: MessageRoom {
            messages: 6,
            bytes: 600,
        },
        peer: MessageRoom {
            messages: 8,
            bytes: 800,
        },
        total: MessageRoom {
            messages: 12,
            bytes: 1200,
        },
    };

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    /// A message of agent `from` at node `of` for agent `to` of node 0.
    fn came(of: u8, from: &str, to: &str, size: u64) -> WaitingMessage {
        WaitingMessage {
            sender: (node(of), from.to_owned()),
            receiver: (node(0), to.to_owned()),
            size,
        }
    }

    fn refusal(quotas: &mut MessageQuotas, message: &WaitingMessage) -> String {
        let full = quotas.reserve(start(), message).unwrap_err();
        Status::from(full).message
    }

    #[test]
    fn who_has_all_that_one_may_have_leaves_room_for_others_and_all_together_have_a_bound() {
        let mut quotas = MessageQuotas::new(QuotaDirection::Came, BOUNDS);
        for _ in 0..4 {
            quotas.reserve(start(), &came(1, "a", "x", 1)).unwrap();
        }
        let of_sender = refusal(&mut quotas, &came(1, "a", "y", 1));
        assert!(of_sender.starts_with("4 messages of agent `a` at node"));
        for _ in 0..2 {
            quotas.reserve(start(), &came(1, "", "x", 1)).unwrap();
        }
        let for_agent = refusal(&mut quotas, &came(2, "a", "x", 1));
        assert!(for_agent.starts_with("6 messages for agent `x` at node"));
        for _ in 0..2 {
            quotas.reserve(start(), &came(1, "", "y", 1)).unwrap();
        }
        let of_peer = refusal(&mut quotas, &came(1, "b", "y", 1));
        assert!(
            of_peer.starts_with("8 messages of or for node"),
            "{of_peer}"
        );
        quotas.reserve(start(), &came(2, "a", "y", 400)).unwrap();
        let bytes = refusal(&mut quotas, &came(2, "a", "y", 1));
        assert!(bytes.contains("with 400 bytes; 4 messages and 400 bytes may"));
        for _ in 0..3 {
            quotas.reserve(start(), &came(3, "b", "z", 1)).unwrap();
        }
        let all = refusal(&mut quotas, &came(4, "c", "z", 1));
        assert!(all.contains("of and for all nodes"), "{all}");
    }

    #[test]
    fn what_leaves_is_counted_by_the_node_that_it_goes_to() {
        let mut quotas = MessageQuotas::new(QuotaDirection::Leaving, BOUNDS);
        let leaving = |from: &str, to: u8| WaitingMessage {
            sender: (node(0), from.to_owned()),
            receiver: (node(to), "x".to_owned()),
            size: 1,
        };
        for from in ["a", "b", "c"] {
            for _ in 0..2 {
                quotas.reserve(start(), &leaving(from, 1)).unwrap();
            }
        }
        assert!(refusal(&mut quotas, &leaving("d", 1)).contains("for agent `x`"));
        quotas.reserve(start(), &leaving("a", 2)).unwrap();
    }

    #[test]
    fn who_is_refused_may_come_back_soon_where_room_became_free_a_moment_ago() {
        let begin = start();
        let mut quotas = MessageQuotas::new(QuotaDirection::Came, BOUNDS);
        let message = came(1, "a", "x", 1);
        for _ in 0..4 {
            quotas.reserve(begin, &message).unwrap();
        }
        let after = |quotas: &mut MessageQuotas, at| {
            let full = quotas.reserve(at, &message).unwrap_err();
            (full.retry_after, Status::from(full).retry_after().unwrap())
        };
        let later = (COME_BACK_LATER, COME_BACK_LATER);
        assert_eq!(after(&mut quotas, begin), later);
        quotas.release(begin, &message);
        quotas.reserve(begin, &message).unwrap();
        let soon = (COME_BACK_SOON, COME_BACK_SOON);
        assert_eq!(after(&mut quotas, begin + COME_BACK_SOON), soon);
        let at = begin + COME_BACK_SOON + Duration::from_millis(1);
        assert_eq!(after(&mut quotas, at), later);
    }

    #[test]
    fn whatever_comes_and_goes_no_bound_is_passed_and_nothing_is_left() {
        for_each_seed(&[], 2_000, |seed| {
            let mut draw = draws(seed, 3);
            let mut quotas = MessageQuotas::new(QuotaDirection::Came, BOUNDS);
            let mut kept: Vec<WaitingMessage> = Vec::new();
            for _ in 0..200 {
                if draw(5) < 3 {
                    let name = |number: u32| ["", "a", "b", "c"][number as usize];
                    let (from, to) = (name(draw(4)), name(1 + draw(3)));
                    let message = came(draw(4) as u8, from, to, u64::from(draw(250)));
                    let sum = |same: &dyn Fn(&WaitingMessage) -> bool| {
                        let same = kept.iter().filter(|kept| same(kept));
                        same.fold(MessageRoom::default(), |sum, kept| MessageRoom {
                            messages: sum.messages + 1,
                            bytes: sum.bytes + kept.size,
                        })
                    };
                    let sums = [
                        (sum(&|kept| kept.sender == message.sender), BOUNDS.sender),
                        (sum(&|kept| kept.receiver == message.receiver), BOUNDS.agent),
                        (sum(&|kept| kept.sender.0 == message.sender.0), BOUNDS.peer),
                        (sum(&|_| true), BOUNDS.total),
                    ];
                    let fits = sums.into_iter().all(|(sum, bound)| {
                        sum.messages < bound.messages && sum.bytes + message.size <= bound.bytes
                    });
                    assert_eq!(quotas.reserve(start(), &message).is_ok(), fits);
                    if fits {
                        kept.push(message);
                    }
                } else if !kept.is_empty() {
                    let gone = kept.swap_remove(draw(kept.len() as u32) as usize);
                    quotas.release(start(), &gone);
                }
            }
            for gone in kept {
                quotas.release(start(), &gone);
            }
            // Once more changes nothing.
            quotas.release(start(), &came(1, "a", "a", 1));
            let left = [
                quotas.senders.len(),
                quotas.agents.len(),
                quotas.peers.len(),
            ];
            assert_eq!(left, [0; 3]);
            assert_eq!(quotas.total.room, MessageRoom::default());
        });
    }
}
