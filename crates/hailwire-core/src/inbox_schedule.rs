//! Which of the messages that wait at a node is handed to which agent next.
//!
//! Messages of one sender to one agent form a *lane*: they are handed over in the order in which they came, each after the one before it has its end. A
//! message that may come in any order has a lane of its own. An agent has as many messages in hand at once as its
//! members take, and [`AT_ONCE`] at most; lanes take turns by how long their first message waits. Agents that are not here are handed nothing.
//!
//! Messages are numbers; what they say, and their states on disk, is for whoever drives this.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Instant,
};

use hailwire_wire::{AgentName, NodeId};

/// Messages that one agent has in hand at once.
pub const AT_ONCE: usize = 64;

/// The number of a message at its receiver's node, in the order in which they came.
pub type MessageNumber = u64;

/// Whose messages come in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageLane {
    /// Those of an agent, or of a program without a name, of a node.
    Sender(NodeId, String),
    /// This message alone.
    Alone(MessageNumber),
}

/// What waits, and what is in hand.
#[derive(Debug, Default)]
pub struct InboxSchedule {
    agents: HashMap<AgentName, AgentInbox>,
    /// Of each message the agent and the lane.
    messages: HashMap<MessageNumber, (AgentName, MessageLane)>,
    /// Agents that have room for another message and have one: when it is due, and its number. So a look costs what is due, however
    /// many agents have messages that wait.
    next: BTreeMap<(Instant, MessageNumber), AgentName>,
    /// Agents of which somebody wants to know what waits.
    watched: HashMap<AgentName, WatchedInbox>,
    /// Those of them of which something has changed.
    changed: Vec<AgentName>,
}

/// What waits for an agent, and what is in hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxBacklog {
    /// Messages that can be taken by hand now, as many as may be in hand beside those that are.
    pub ready: usize,
    /// Messages that are not in hand.
    pub waiting: usize,
    /// Messages in hand.
    pub in_hand: usize,
    /// Messages that were handed over or taken since it is watched.
    pub taken: u64,
    /// When more can be taken, unless something else happens before.
    pub next_due: Option<Instant>,
}

#[derive(Debug, Default)]
struct WatchedInbox {
    taken: u64,
    changed: bool,
}

#[derive(Debug, Default)]
struct AgentInbox {
    /// Messages that wait or are in hand.
    messages: usize,
    /// How many messages its members take at once; 0 while it has none here.
    capacity: usize,
    in_hand: usize,
    lanes: HashMap<MessageLane, LaneQueue>,
    /// Lanes whose first message is not in hand: when it is due, and its number.
    ready: BTreeSet<(Instant, MessageNumber, MessageLane)>,
    /// Where it stands in [`InboxSchedule::next`].
    next: Option<(Instant, MessageNumber)>,
}

#[derive(Debug, Default)]
struct LaneQueue {
    waiting: VecDeque<(Instant, MessageNumber)>,
    /// The first one is in hand.
    busy: bool,
}

impl AgentInbox {
    fn wait(&mut self, lane: &MessageLane) {
        if let Some(queue) = self.lanes.get(lane)
            && !queue.busy
            && let Some((due, number)) = queue.waiting.front()
        {
            self.ready.insert((*due, *number, lane.clone()));
        }
    }

    /// The next message that may be handed over.
    fn free_next(&self) -> Option<(Instant, MessageNumber)> {
        let has_room = self.in_hand < self.capacity;
        let first = self.ready.first().filter(|_| has_room);
        first.map(|(due, number, _)| (*due, *number))
    }

    fn wait_no_more(&mut self, lane: &MessageLane) {
        if let Some((due, number)) = self.lanes.get(lane).and_then(|queue| queue.waiting.front()) {
            self.ready.remove(&(*due, *number, lane.clone()));
        }
    }

    /// Marks the first message of a lane as in hand.
    fn hand_over(&mut self, lane: &MessageLane) {
        self.wait_no_more(lane);
        if let Some(queue) = self.lanes.get_mut(lane) {
            queue.busy = true;
            self.in_hand += 1;
        }
    }
}

impl InboxSchedule {
    /// From now on it is noted when something changes of this agent, until [`InboxSchedule::unwatch`].
    pub fn watch(&mut self, agent: &AgentName) {
        self.watched.entry(agent.clone()).or_default();
    }

    /// Nobody wants to know of it any more.
    pub fn unwatch(&mut self, agent: &AgentName) {
        self.watched.remove(agent);
    }

    /// The next agent that is watched and of which something has changed since it was given here before.
    pub fn poll_changed(&mut self) -> Option<AgentName> {
        let agent = self.changed.pop()?;
        if let Some(watched) = self.watched.get_mut(&agent) {
            watched.changed = false;
        }
        Some(agent)
    }

    /// What waits for an agent now. It costs what can be taken, 64 at most.
    #[must_use]
    pub fn backlog(&self, now: Instant, agent: &AgentName) -> InboxBacklog {
        let taken = self.watched.get(agent).map_or(0, |watched| watched.taken);
        let Some(inbox) = self.agents.get(agent) else {
            return InboxBacklog {
                taken,
                ..InboxBacklog::default()
            };
        };
        let room = AT_ONCE.saturating_sub(inbox.in_hand);
        let due = inbox.ready.iter().take(room + 1);
        let ready = due.take_while(|(due, ..)| *due <= now).count().min(room);
        let later = inbox.ready.iter().nth(ready).map(|(due, ..)| *due);
        InboxBacklog {
            ready,
            waiting: inbox.messages.saturating_sub(inbox.in_hand),
            in_hand: inbox.in_hand,
            taken,
            next_due: later.filter(|due| *due > now),
        }
    }

    fn note_change(&mut self, agent: &AgentName) {
        if let Some(watched) = self.watched.get_mut(agent)
            && !std::mem::replace(&mut watched.changed, true)
        {
            self.changed.push(agent.clone());
        }
    }

    fn note_taken(&mut self, agent: &AgentName) {
        if let Some(watched) = self.watched.get_mut(agent) {
            watched.taken += 1;
        }
    }

    /// Has an agent stand where its next message says, after any change to it.
    fn stand(&mut self, agent: &AgentName) {
        self.note_change(agent);
        let Some(inbox) = self.agents.get_mut(agent) else {
            return;
        };
        let next = inbox.free_next();
        let before = std::mem::replace(&mut inbox.next, next);
        if before != next {
            if let Some(before) = before {
                self.next.remove(&before);
            }
            if let Some(next) = next {
                self.next.insert(next, agent.clone());
            }
        }
    }

    /// A message is on disk; it is due at once, or at `due`. One that is known already is left as it is.
    pub fn handle_stored(
        &mut self,
        due: Instant,
        number: MessageNumber,
        agent: &AgentName,
        lane: MessageLane,
    ) {
        if self.messages.contains_key(&number) {
            return;
        }
        let inbox = self.agents.entry(agent.clone()).or_default();
        inbox.wait_no_more(&lane);
        let queue = inbox.lanes.entry(lane.clone()).or_default();
        queue.waiting.push_back((due, number));
        inbox.messages += 1;
        inbox.wait(&lane);
        self.messages.insert(number, (agent.clone(), lane));
        self.stand(agent);
    }

    /// How many messages the members of an agent that are here take at once, up to [`AT_ONCE`]; 0 where none is here. It is forgotten
    /// with the agent's last message.
    pub fn handle_agent(&mut self, agent: &AgentName, capacity: usize) {
        if let Some(inbox) = self.agents.get_mut(agent) {
            inbox.capacity = capacity.min(AT_ONCE);
        }
        self.stand(agent);
    }

    /// The agents for which something waits or is in hand.
    pub fn agents(&self) -> impl Iterator<Item = &AgentName> {
        self.agents.keys()
    }

    /// The next message to hand to an agent that is here, if one is due; it is in hand from then on, until
    /// [`InboxSchedule::handle_end`] or [`InboxSchedule::handle_again`].
    pub fn poll_delivery(&mut self, now: Instant) -> Option<MessageNumber> {
        let ((due, number), agent) = self.next.first_key_value()?;
        if *due > now {
            return None;
        }
        let (number, agent) = (*number, agent.clone());
        let inbox = self.agents.get_mut(&agent)?;
        let (.., lane) = inbox.ready.first()?.clone();
        inbox.hand_over(&lane);
        self.note_taken(&agent);
        self.stand(&agent);
        Some(number)
    }

    /// As [`InboxSchedule::poll_delivery`], for somebody who takes messages of one agent by hand, whether it is here or not.
    pub fn take(&mut self, now: Instant, agent: &AgentName) -> Option<MessageNumber> {
        let inbox = self.agents.get_mut(agent)?;
        if inbox.in_hand >= AT_ONCE {
            return None;
        }
        let (due, number, lane) = inbox.ready.first()?.clone();
        if due > now {
            return None;
        }
        inbox.hand_over(&lane);
        self.note_taken(agent);
        self.stand(agent);
        Some(number)
    }

    /// A message has its end, in hand or not: it is forgotten, and the next one of its lane may go.
    pub fn handle_end(&mut self, number: MessageNumber) {
        let Some((agent, lane)) = self.messages.remove(&number) else {
            return;
        };
        let Some(inbox) = self.agents.get_mut(&agent) else {
            return;
        };
        inbox.wait_no_more(&lane);
        inbox.messages = inbox.messages.saturating_sub(1);
        let Some(queue) = inbox.lanes.get_mut(&lane) else {
            return;
        };
        let first = queue
            .waiting
            .front()
            .is_some_and(|(_, first)| *first == number);
        if first && std::mem::take(&mut queue.busy) {
            inbox.in_hand -= 1;
        }
        queue.waiting.retain(|(_, other)| *other != number);
        if !queue.waiting.is_empty() {
            inbox.wait(&lane);
            return self.stand(&agent);
        }
        inbox.lanes.remove(&lane);
        if inbox.lanes.is_empty() {
            let before = self.agents.remove(&agent).and_then(|inbox| inbox.next);
            before.map(|before| self.next.remove(&before));
            self.note_change(&agent);
        } else {
            self.stand(&agent);
        }
    }

    /// A message that was in hand, or waits, is due again at `due`, before those that came after it.
    pub fn handle_again(&mut self, due: Instant, number: MessageNumber) {
        let Some((agent, lane)) = self.messages.get(&number).cloned() else {
            return;
        };
        let Some(inbox) = self.agents.get_mut(&agent) else {
            return;
        };
        inbox.wait_no_more(&lane);
        let Some(queue) = inbox.lanes.get_mut(&lane) else {
            return;
        };
        if let Some(first) = queue.waiting.front_mut()
            && first.1 == number
        {
            first.0 = due;
            if std::mem::take(&mut queue.busy) {
                inbox.in_hand -= 1;
            }
        }
        inbox.wait(&lane);
        self.stand(&agent);
    }

    /// When [`InboxSchedule::poll_delivery`] has something that it has not now, unless it is told of something new.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next.first_key_value().map(|((due, _), _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    /// As [`InboxSchedule::poll_timeout`], by looking at all agents.
    fn plain_timeout(inbox: &InboxSchedule) -> Option<Instant> {
        let agents = inbox.agents.values();
        agents
            .filter_map(|inbox| inbox.free_next().map(|(due, _)| due))
            .min()
    }

    fn agent(name: &str) -> AgentName {
        name.parse().unwrap()
    }

    fn lane(sender: u8) -> MessageLane {
        MessageLane::Sender(NodeId::from_bytes([sender; 32]), String::new())
    }

    #[test]
    fn one_lane_waits_for_a_message_that_failed_and_others_do_not() {
        let (now, mut inbox) = (start(), InboxSchedule::default());
        let a = agent("a");
        for (number, lane) in [
            (1, lane(1)),
            (2, lane(1)),
            (3, lane(2)),
            (4, MessageLane::Alone(4)),
        ] {
            inbox.handle_stored(now, number, &a, lane);
        }
        assert_eq!(inbox.poll_delivery(now), None, "nobody is here");
        inbox.handle_agent(&a, AT_ONCE);
        assert_eq!(inbox.poll_delivery(now), Some(1));
        assert_eq!(inbox.poll_delivery(now), Some(3));
        assert_eq!(inbox.poll_delivery(now), Some(4));
        assert_eq!(inbox.poll_delivery(now), None);
        let later = now + Duration::from_secs(1);
        inbox.handle_again(later, 1);
        assert_eq!(inbox.poll_delivery(now), None);
        assert_eq!(inbox.poll_timeout(), Some(later));
        assert_eq!(inbox.poll_delivery(later), Some(1));
        inbox.handle_end(1);
        assert_eq!(inbox.poll_delivery(later), Some(2));
    }

    #[test]
    fn what_is_removed_while_it_waits_frees_its_lane() {
        let (now, mut inbox) = (start(), InboxSchedule::default());
        let a = agent("a");
        for number in 1..=3 {
            inbox.handle_stored(now, number, &a, lane(1));
        }
        inbox.handle_end(2);
        inbox.handle_end(1);
        assert_eq!(inbox.take(now, &a), Some(3));
        assert_eq!(inbox.take(now, &a), None);
        inbox.handle_end(3);
        assert_eq!(inbox.agents().count(), 0);
        assert!(inbox.messages.is_empty() && inbox.agents.is_empty());
    }

    #[test]
    fn whoever_watches_an_agent_is_told_of_each_change_and_of_what_can_be_taken() {
        let (now, mut inbox) = (start(), InboxSchedule::default());
        let (a, b) = (agent("a"), agent("b"));
        inbox.handle_stored(now, 1, &a, lane(1));
        inbox.watch(&a);
        assert_eq!(inbox.poll_changed(), None);
        let counts = |inbox: &InboxSchedule, now| {
            let backlog = inbox.backlog(now, &a);
            (
                (backlog.ready, backlog.waiting),
                (backlog.in_hand, backlog.taken),
                backlog.next_due,
            )
        };
        assert_eq!(counts(&inbox, now), ((1, 1), (0, 0), None));
        inbox.handle_stored(now, 2, &a, lane(1));
        inbox.handle_stored(now, 3, &b, lane(1));
        assert_eq!(inbox.poll_changed(), Some(a.clone()));
        assert_eq!(inbox.poll_changed(), None);
        assert_eq!(counts(&inbox, now), ((1, 2), (0, 0), None));
        assert_eq!(inbox.take(now, &a), Some(1));
        assert_eq!(counts(&inbox, now), ((0, 1), (1, 1), None));
        let later = now + Duration::from_secs(9);
        inbox.handle_again(later, 1);
        assert_eq!(inbox.poll_changed(), Some(a.clone()));
        assert_eq!(counts(&inbox, now), ((0, 2), (0, 1), Some(later)));
        assert_eq!(counts(&inbox, later), ((1, 2), (0, 1), None));
        inbox.handle_end(1);
        inbox.handle_end(2);
        assert_eq!(inbox.poll_changed(), Some(a.clone()));
        assert_eq!(counts(&inbox, later), ((0, 0), (0, 1), None));
        for number in 10..200 {
            inbox.handle_stored(now, number, &a, MessageLane::Alone(number));
        }
        assert_eq!(counts(&inbox, now), ((AT_ONCE, 190), (0, 1), None));
        inbox.unwatch(&a);
        inbox.handle_end(10);
        assert_eq!(inbox.poll_changed(), Some(a.clone()), "from before");
        assert_eq!(inbox.poll_changed(), None);
    }

    /// Against what must hold whatever happens: order in a lane, one in hand for each lane, the bound of each agent, nothing forgotten.
    fn follow(seed: u64) {
        let mut below = draws(seed, 5);
        let mut inbox = InboxSchedule::default();
        let mut now = start();
        let agents = [agent("a"), agent("b")];
        let mut capacity = [0; 2];
        let mut next = 0;
        let mut of: HashMap<u64, (usize, MessageLane)> = HashMap::new();
        let (mut in_hand, mut waiting) = (HashSet::new(), BTreeSet::new());
        for _ in 0..300 {
            match below(6) {
                0 | 1 => {
                    next += 1;
                    let which = below(2) as usize;
                    let lane = match below(3) {
                        0 => MessageLane::Alone(next),
                        sender => lane(sender as u8),
                    };
                    of.insert(next, (which, lane.clone()));
                    waiting.insert(next);
                    inbox.handle_stored(now, next, &agents[which], lane);
                }
                2 => {
                    let which = below(2) as usize;
                    capacity[which] = below(4) as usize;
                    inbox.handle_agent(&agents[which], capacity[which]);
                }
                3 => {
                    while let Some(number) = inbox.poll_delivery(now) {
                        assert!(waiting.remove(&number), "twice in hand");
                        let earlier = waiting.iter().chain(&in_hand);
                        let before =
                            earlier.filter(|other| **other < number && of[other] == of[&number]);
                        assert_eq!(before.count(), 0, "out of order");
                        in_hand.insert(number);
                        let same = in_hand.iter().filter(|other| of[other].0 == of[&number].0);
                        assert!(same.count() <= capacity[of[&number].0].max(1));
                    }
                }
                4 => {
                    if let Some(number) = in_hand.iter().copied().next() {
                        in_hand.remove(&number);
                        match below(2) {
                            0 => inbox.handle_end(number),
                            _ => {
                                inbox.handle_again(
                                    now + Duration::from_secs(u64::from(below(3))),
                                    number,
                                );
                                waiting.insert(number);
                            }
                        }
                    }
                }
                _ => now += Duration::from_millis(u64::from(below(1500))),
            }
            assert_eq!(inbox.poll_timeout(), plain_timeout(&inbox));
            for (which, agent) in agents.iter().enumerate() {
                let count = |numbers: &mut dyn Iterator<Item = &u64>| {
                    numbers.filter(|number| of[number].0 == which).count()
                };
                let backlog = inbox.backlog(now, agent);
                let counted = (count(&mut waiting.iter()), count(&mut in_hand.iter()));
                assert_eq!((backlog.waiting, backlog.in_hand), counted);
            }
        }
        // Everything comes to its end once the agents are here.
        for agent in &agents {
            inbox.handle_agent(agent, AT_ONCE);
        }
        now += Duration::from_secs(10);
        for number in in_hand.drain() {
            inbox.handle_end(number);
        }
        while let Some(number) = inbox.poll_delivery(now) {
            assert!(waiting.remove(&number));
            inbox.handle_end(number);
        }
        assert!(waiting.is_empty() && inbox.messages.is_empty() && inbox.next.is_empty());
    }

    #[test]
    fn messages_of_a_lane_come_in_order_and_none_is_forgotten_whatever_happens() {
        for_each_seed(&[], 10_000, follow);
    }
}
