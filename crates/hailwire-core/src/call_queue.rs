//! Calls that wait until a member of their group has a place for another one: who is next, and who may wait.
//!
//! The four priorities share the places that become free as they share a full connection ([`PriorityShares`]: critical 64, high 24, medium 9, low 3 of
//! a hundred, and nothing that others leave unused is lost), and within one priority who came first is first. As many wait as may; where no more may, a
//! call takes the place of the newest of the lowest priority below its own, so that a queue full of bulk keeps nothing urgent out. One caller may
//! fill a part of the queue alone, so that others find room.
//!
//! Time plays no part here: whoever waits leaves when its deadline is over or its caller has gone.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use hailwire_wire::{
    Priority,
    priority_shares::{LEVELS, PriorityShares},
};

/// How many calls may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRoom {
    /// In all.
    pub all: usize,
    /// Of one caller.
    pub each: usize,
}

/// A call that waits. Of one priority the lower number is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallTicket {
    priority: Priority,
    number: u64,
}

/// A call that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedCall {
    /// By which it waits.
    pub ticket: CallTicket,
    /// The call whose place it took, which waits no more.
    pub displaced: Option<CallTicket>,
}

/// No more calls may wait, and none of a lower priority does whose place could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallQueueFull {
    /// How many wait.
    pub waiting: usize,
}

/// The calls that wait for one group. `C` tells callers apart.
#[derive(Debug)]
pub struct CallQueue<C> {
    /// By priority, in their order.
    levels: [BTreeMap<u64, C>; LEVELS],
    callers: HashMap<C, usize>,
    shares: PriorityShares,
    next: u64,
}

impl<C> Default for CallQueue<C> {
    fn default() -> Self {
        Self {
            levels: Default::default(),
            callers: HashMap::new(),
            shares: PriorityShares::default(),
            next: 0,
        }
    }
}

impl<C: Clone + Eq + Hash> CallQueue<C> {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.levels.iter().map(BTreeMap::len).sum()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(BTreeMap::is_empty)
    }

    /// Lets a call wait.
    ///
    /// # Errors
    ///
    /// [`CallQueueFull`].
    pub fn enter(
        &mut self,
        room: QueueRoom,
        caller: C,
        priority: Priority,
    ) -> Result<QueuedCall, CallQueueFull> {
        let waiting = self.len();
        let of_caller = self.callers.get(&caller).copied().unwrap_or(0);
        let below = 0..priority as usize;
        let displaced = if of_caller >= room.each {
            let of = |of: &C| *of == caller;
            Some(self.newest_of(below, of))
        } else if waiting >= room.all {
            Some(self.newest_of(below, |_| true))
        } else {
            None
        };
        let displaced = match displaced {
            Some(None) => return Err(CallQueueFull { waiting }),
            Some(Some(ticket)) => Some(ticket),
            None => None,
        };
        if let Some(ticket) = displaced {
            self.leave(ticket);
        }
        let number = self.next;
        self.next += 1;
        let ticket = CallTicket { priority, number };
        self.put(ticket, caller);
        Ok(QueuedCall { ticket, displaced })
    }

    /// The newest call of the lowest of these levels that has one of such a caller.
    fn newest_of(
        &self,
        levels: std::ops::Range<usize>,
        of: impl Fn(&C) -> bool,
    ) -> Option<CallTicket> {
        levels.into_iter().find_map(|level| {
            let mut newest = self.levels[level].iter().rev();
            let (number, _) = newest.find(|(_, caller)| of(caller))?;
            Some(CallTicket {
                priority: Priority::ALL[level],
                number: *number,
            })
        })
    }

    fn put(&mut self, ticket: CallTicket, caller: C) {
        *self.callers.entry(caller.clone()).or_default() += 1;
        self.levels[ticket.priority as usize].insert(ticket.number, caller);
    }

    /// A call waits no more. Returns its caller, if it waited.
    pub fn leave(&mut self, ticket: CallTicket) -> Option<C> {
        let caller = self.levels[ticket.priority as usize].remove(&ticket.number)?;
        if let Some(count) = self.callers.get_mut(&caller) {
            *count -= 1;
            if *count == 0 {
                self.callers.remove(&caller);
            }
        }
        Some(caller)
    }

    /// There is a place: takes the call out whose turn it is.
    pub fn next_call(&mut self) -> Option<(CallTicket, C)> {
        let waits = std::array::from_fn(|level| !self.levels[level].is_empty());
        let level = self.shares.next(waits, 1)?;
        let (number, _) = self.levels[level].first_key_value()?;
        let ticket = CallTicket {
            priority: Priority::ALL[level],
            number: *number,
        };
        let caller = self.leave(ticket)?;
        self.shares.served(level, 1);
        Some((ticket, caller))
    }

    /// The place was gone before the call had it: it waits again, where it was, whatever the bounds say.
    pub fn put_back(&mut self, ticket: CallTicket, caller: C) {
        self.put(ticket, caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed};

    const ROOM: QueueRoom = QueueRoom { all: 8, each: 5 };

    #[test]
    fn of_one_priority_who_came_first_is_first_and_a_place_that_was_gone_costs_no_turn() {
        let mut queue = CallQueue::default();
        let enter =
            |queue: &mut CallQueue<u8>, priority| queue.enter(ROOM, 1, priority).unwrap().ticket;
        let first = enter(&mut queue, Priority::Medium);
        let second = enter(&mut queue, Priority::Medium);
        let third = enter(&mut queue, Priority::Medium);
        assert_eq!(queue.next_call(), Some((first, 1)));
        queue.put_back(first, 1);
        assert_eq!(queue.leave(second), Some(1));
        assert_eq!(queue.leave(second), None);
        assert_eq!(queue.next_call(), Some((first, 1)));
        let critical = enter(&mut queue, Priority::Critical);
        assert_eq!(queue.next_call(), Some((critical, 1)));
        assert_eq!(queue.next_call(), Some((third, 1)));
        assert_eq!(queue.next_call(), None);
        assert!(queue.is_empty() && queue.callers.is_empty());
    }

    #[test]
    fn every_priority_has_its_share_of_places_and_none_starves() {
        let mut queue: CallQueue<u8> = CallQueue::default();
        let room = QueueRoom {
            all: 1_000,
            each: 1_000,
        };
        let mut served = [0_u32; LEVELS];
        for _ in 0..10_000 {
            for priority in Priority::ALL {
                while queue.levels[priority as usize].len() < 3 {
                    queue.enter(room, 0, priority).unwrap();
                }
            }
            let (ticket, _) = queue.next_call().unwrap();
            served[ticket.priority as usize] += 1;
        }
        assert_eq!(
            served.map(|calls| (f64::from(calls) / 100.0).round()),
            [3.0, 9.0, 24.0, 64.0]
        );
        // Alone, low has all of it.
        queue = CallQueue::default();
        for _ in 0..100 {
            queue.enter(room, 0, Priority::Low).unwrap();
            assert!(queue.next_call().is_some());
        }
    }

    #[test]
    fn as_many_calls_wait_as_may_and_a_higher_one_takes_the_place_of_the_newest_of_the_lowest() {
        let mut queue = CallQueue::default();
        let low: Vec<CallTicket> = (0..4)
            .map(|_| queue.enter(ROOM, 1, Priority::Low).unwrap().ticket)
            .collect();
        let medium = queue.enter(ROOM, 1, Priority::Medium).unwrap().ticket;
        let full = queue.enter(ROOM, 1, Priority::Low);
        assert_eq!(
            full,
            Err(CallQueueFull { waiting: 5 }),
            "this caller has its part"
        );
        let own = queue.enter(ROOM, 1, Priority::Medium).unwrap();
        assert_eq!(own.displaced, Some(low[3]), "a caller displaces its own");
        for _ in 0..3 {
            queue.enter(ROOM, 2, Priority::Low).unwrap();
        }
        assert!(queue.enter(ROOM, 3, Priority::Low).is_err());
        let high = queue.enter(ROOM, 3, Priority::High).unwrap();
        assert_eq!(
            queue.leave(high.displaced.unwrap()),
            None,
            "it is out already"
        );
        assert_eq!(high.displaced.unwrap().priority, Priority::Low);
        assert_eq!(queue.len(), ROOM.all);
        assert!(queue.leave(medium).is_some());
    }

    #[test]
    fn whatever_comes_and_goes_bounds_hold_and_order_within_a_priority_stays() {
        for_each_seed(&[], 2_000, |seed| {
            let mut draw = draws(seed, 21);
            let mut queue: CallQueue<u32> = CallQueue::default();
            let mut waiting: Vec<(CallTicket, u32)> = Vec::new();
            for _ in 0..200 {
                match draw(6) {
                    0..=2 => {
                        let (caller, priority) = (draw(4), Priority::ALL[draw(4) as usize]);
                        let entered = queue.enter(ROOM, caller, priority);
                        let of_caller = waiting.iter().filter(|(_, of)| *of == caller).count();
                        let full = waiting.len() >= ROOM.all || of_caller >= ROOM.each;
                        let lower = waiting.iter().any(|(ticket, of)| {
                            let counts = of_caller < ROOM.each || *of == caller;
                            counts && ticket.priority < priority
                        });
                        assert_eq!(entered.is_ok(), !full || lower, "seed {seed}");
                        if let Ok(entered) = entered {
                            assert_eq!(entered.displaced.is_some(), full);
                            if let Some(out) = entered.displaced {
                                assert!(out.priority < priority);
                                waiting.retain(|(ticket, _)| *ticket != out);
                            }
                            waiting.push((entered.ticket, caller));
                        }
                    }
                    3 if !waiting.is_empty() => {
                        let place = draw(waiting.len() as u32) as usize;
                        let (ticket, caller) = waiting.remove(place);
                        assert_eq!(queue.leave(ticket), Some(caller));
                    }
                    _ => {
                        let next = queue.next_call();
                        assert_eq!(next.is_some(), !waiting.is_empty(), "seed {seed}");
                        let Some((ticket, caller)) = next else {
                            continue;
                        };
                        let earlier = waiting.iter().any(|(other, _)| {
                            other.priority == ticket.priority && other.number < ticket.number
                        });
                        assert!(!earlier, "seed {seed}: out of order");
                        match draw(3) {
                            0 => queue.put_back(ticket, caller),
                            _ => waiting.retain(|(other, _)| *other != ticket),
                        }
                    }
                }
                assert_eq!(queue.len(), waiting.len());
                assert!(queue.len() <= ROOM.all);
            }
            while let Some((ticket, _)) = queue.next_call() {
                waiting.retain(|(other, _)| *other != ticket);
            }
            assert!(waiting.is_empty() && queue.callers.is_empty());
        });
    }
}
