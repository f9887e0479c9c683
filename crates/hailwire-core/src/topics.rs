//! Who gets what is published under a topic, and what becomes of those who read too slowly.
//!
//! A [`TopicTable`] knows subscribers: programs of this machine, each with one or more patterns, and peers, each with all patterns that
//! programs behind it want. Whatever is published is put once into the queue of each subscriber with a matching pattern, so a peer gets one
//! copy however many programs behind it want it. Queues have a bound in bytes and no more; where one is full, the oldest message in it is
//! lost and counted, for each of its patterns. So whoever publishes never waits, nobody who reads fast loses anything because of one who does
//! not, and memory has a bound ([`QUEUE_BYTES`], [`ALL_BYTES`]).
//!
//! Messages stay in the order in which they were published. The table gives wakes rather than calls anybody: [`TopicTable::publish`] names the
//! subscribers that have something to read where they had nothing.

mod trie;

use std::collections::{BTreeMap, VecDeque};

use foldhash::{HashMap, HashMapExt};
use hailwire_wire::{
    NodeId,
    limits::MAX_TOPIC_PATTERNS,
    topics::{Topic, TopicPattern},
};

use self::trie::PatternTrie;

/// Most bytes that wait for one subscriber. Each message counts with [`MESSAGE_COST`] more than it has.
pub const QUEUE_BYTES: usize = 4 * 1024 * 1024;

/// Most bytes that wait for all subscribers together, the newest message of each apart: where there are many, each has its share.
pub const ALL_BYTES: usize = 256 * 1024 * 1024;

/// What a message that waits costs beside its bytes.
pub const MESSAGE_COST: usize = 128;

/// Most subscriptions of one program.
pub const MAX_OF_PROGRAM: usize = 1024;

/// Most subscriptions of all programs of a machine.
pub const MAX_SUBSCRIPTIONS: usize = 4096;

/// What stands for a subscriber, never used twice.
pub type SubscriberNumber = u64;

/// What stands for a pattern of one subscriber, never used twice.
type PatternNumber = u64;

/// Who subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriberKind {
    /// A program of this machine: the key of its attachment, none for the program that embeds the node.
    Program(Option<usize>),
    /// Another node.
    Peer(NodeId),
}

/// Where a message was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedAt {
    /// At this node, so that peers get it too.
    Here,
    /// At a peer: nodes do not forward for one another.
    Peer,
}

/// Why there is no room for a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeRefusal {
    /// The program has [`MAX_OF_PROGRAM`].
    Program,
    /// All programs have [`MAX_SUBSCRIPTIONS`].
    All,
    /// All programs have [`MAX_TOPIC_PATTERNS`] different patterns, which is what peers take.
    Patterns,
}

/// To whom a message went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Programs of this machine.
    pub programs: u64,
    /// Peers.
    pub peers: u64,
    /// Who has something to read now and had nothing before.
    pub woken: Vec<SubscriberNumber>,
}

/// What a subscriber reads next.
#[derive(Debug, PartialEq, Eq)]
pub struct TakenRecords<R> {
    /// How many messages were lost before these; of a program.
    pub missed: u64,
    /// The same of a peer, for each pattern.
    pub missed_of: Vec<(TopicPattern, u64)>,
    /// Messages in their order.
    pub records: Vec<R>,
}

/// What has come of a pattern of a subscriber, or of all subscribers of this machine with this pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternUse {
    /// The pattern.
    pub pattern: TopicPattern,
    /// The peer that wants it; none for programs of this machine.
    pub peer: Option<NodeId>,
    /// How many subscribe.
    pub subscribers: u64,
    /// What became of messages.
    pub counts: PatternCounts,
}

/// What became of the messages that a pattern matched, since it is subscribed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternCounts {
    /// They were put into its subscriber's queue.
    pub published: u64,
    /// Its subscriber took them out.
    pub delivered: u64,
    /// They were lost: in its queue, or on their way here, where those are not among the published.
    pub missed: u64,
}

/// The subscribers of a node. `R` is a message as it leaves, cheap to clone.
#[derive(Debug)]
pub struct TopicTable<R> {
    trie: PatternTrie<(SubscriberNumber, PatternNumber)>,
    subscribers: HashMap<SubscriberNumber, Subscriber<R>>,
    peers: HashMap<NodeId, SubscriberNumber>,
    programs: HashMap<usize, usize>,
    /// Patterns of programs of this machine, and who has them.
    wanted: BTreeMap<TopicPattern, Vec<SubscriberNumber>>,
    next: u64,
    published: u64,
}

#[derive(Debug)]
struct Subscriber<R> {
    kind: SubscriberKind,
    patterns: HashMap<PatternNumber, PatternState>,
    numbers: HashMap<TopicPattern, PatternNumber>,
    queue: VecDeque<QueuedRecord<R>>,
    bytes: usize,
    /// Lost messages of which a program has not been told.
    missed: u64,
}

#[derive(Debug)]
struct PatternState {
    pattern: TopicPattern,
    counts: PatternCounts,
    /// Lost messages of which a peer has not been told.
    untold: u64,
}

#[derive(Debug)]
struct QueuedRecord<R> {
    record: R,
    cost: usize,
    matched: Vec<PatternNumber>,
}

impl<R> Default for TopicTable<R> {
    fn default() -> Self {
        Self {
            trie: PatternTrie::default(),
            subscribers: HashMap::new(),
            peers: HashMap::new(),
            programs: HashMap::new(),
            wanted: BTreeMap::new(),
            next: 0,
            published: 0,
        }
    }
}

impl<R: Clone> TopicTable<R> {
    /// A program subscribes.
    ///
    /// # Errors
    ///
    /// [`SubscribeRefusal`].
    pub fn subscribe(
        &mut self,
        program: Option<usize>,
        patterns: &[TopicPattern],
    ) -> Result<SubscriberNumber, SubscribeRefusal> {
        if self.subscribers.len() - self.peers.len() >= MAX_SUBSCRIPTIONS {
            return Err(SubscribeRefusal::All);
        }
        let of_program = program.and_then(|program| self.programs.get(&program));
        if of_program.is_some_and(|count| *count >= MAX_OF_PROGRAM) {
            return Err(SubscribeRefusal::Program);
        }
        let mut new: Vec<&TopicPattern> = patterns.iter().collect();
        new.sort_unstable();
        new.dedup();
        new.retain(|pattern| !self.wanted.contains_key(*pattern));
        if self.wanted.len() + new.len() > MAX_TOPIC_PATTERNS {
            return Err(SubscribeRefusal::Patterns);
        }
        if let Some(program) = program {
            *self.programs.entry(program).or_default() += 1;
        }
        let number = self.enter(SubscriberKind::Program(program));
        for pattern in patterns {
            if self.add_pattern(number, pattern) {
                let wanted = self.wanted.entry(pattern.clone()).or_default();
                wanted.push(number);
            }
        }
        Ok(number)
    }

    /// A peer wants these patterns from now on and no other; what waits for it stays.
    pub fn handle_interest(&mut self, peer: NodeId, patterns: &[TopicPattern]) -> SubscriberNumber {
        let number = match self.peers.get(&peer) {
            Some(number) => *number,
            None => {
                let number = self.enter(SubscriberKind::Peer(peer));
                self.peers.insert(peer, number);
                number
            }
        };
        let Some(subscriber) = self.subscribers.get_mut(&number) else {
            return number;
        };
        let mut sorted: Vec<&TopicPattern> = patterns.iter().collect();
        sorted.sort_unstable();
        let unwanted = subscriber
            .numbers
            .extract_if(|pattern, _| sorted.binary_search(&pattern).is_err());
        for (pattern, unwanted) in unwanted {
            subscriber.patterns.remove(&unwanted);
            self.trie.remove(&pattern, &(number, unwanted));
        }
        for pattern in patterns {
            self.add_pattern(number, pattern);
        }
        number
    }

    /// A subscriber is gone, with what waits for it.
    pub fn remove(&mut self, number: SubscriberNumber) {
        let Some(subscriber) = self.subscribers.remove(&number) else {
            return;
        };
        for (pattern, state) in subscriber.patterns {
            self.trie.remove(&state.pattern, &(number, pattern));
            if let SubscriberKind::Program(_) = subscriber.kind
                && let Some(of) = self.wanted.get_mut(&state.pattern)
            {
                of.retain(|other| *other != number);
                if of.is_empty() {
                    self.wanted.remove(&state.pattern);
                }
            }
        }
        match subscriber.kind {
            SubscriberKind::Peer(peer) => {
                self.peers.remove(&peer);
            }
            SubscriberKind::Program(Some(program)) => {
                if let Some(count) = self.programs.get_mut(&program) {
                    *count -= 1;
                    if *count == 0 {
                        self.programs.remove(&program);
                    }
                }
            }
            SubscriberKind::Program(None) => {}
        }
    }

    /// What the programs of this machine want, each pattern once, in order.
    pub fn wanted(&self) -> impl Iterator<Item = &TopicPattern> {
        self.wanted.keys()
    }

    /// Puts a message into the queues of those who want it, of the peers among them those that `may` have it. Where there is anybody, `record`
    /// makes it once, with its size in bytes; it is told how many messages were published here, this one included.
    pub fn publish(
        &mut self,
        topic: &Topic,
        at: PublishedAt,
        may: impl Fn(NodeId) -> bool,
        record: impl FnOnce(u64) -> (R, usize),
    ) -> Published {
        if at == PublishedAt::Here {
            self.published += 1;
        }
        let mut published = Published::default();
        let mut matched = Vec::new();
        self.trie
            .for_each_match(topic, |entry| matched.push(*entry));
        // Whoever has several patterns that match gets it once.
        matched.sort_unstable();
        let most = QUEUE_BYTES.min(ALL_BYTES / self.subscribers.len().max(1));
        let mut make = Some(record);
        let mut made = None;
        for of_one in matched.chunk_by(|a, b| a.0 == b.0) {
            let number = of_one[0].0;
            let Some(subscriber) = self.subscribers.get_mut(&number) else {
                continue;
            };
            match subscriber.kind {
                SubscriberKind::Program(_) => published.programs += 1,
                SubscriberKind::Peer(_) if at == PublishedAt::Peer => continue,
                SubscriberKind::Peer(peer) if !may(peer) => continue,
                SubscriberKind::Peer(_) => published.peers += 1,
            }
            if let Some(make) = make.take() {
                made = Some(make(self.published));
            }
            let Some((record, size)) = &made else { break };
            if !subscriber.has_something() {
                published.woken.push(number);
            }
            let matched = of_one.iter().map(|(_, pattern)| *pattern);
            subscriber.push(
                record.clone(),
                *size + MESSAGE_COST,
                matched.collect(),
                most,
            );
        }
        published
    }

    /// A peer says that it lost messages of a pattern on their way to this node; who has to be told.
    pub fn handle_missed(&mut self, pattern: &TopicPattern, lost: u64) -> Vec<SubscriberNumber> {
        let mut woken = Vec::new();
        for number in self.wanted.get(pattern).into_iter().flatten() {
            let Some(subscriber) = self.subscribers.get_mut(number) else {
                continue;
            };
            if !subscriber.has_something() {
                woken.push(*number);
            }
            subscriber.missed = subscriber.missed.saturating_add(lost);
            let of_pattern = subscriber.numbers.get(pattern);
            if let Some(state) = of_pattern.and_then(|number| subscriber.patterns.get_mut(number)) {
                state.counts.missed = state.counts.missed.saturating_add(lost);
            }
        }
        woken
    }

    /// What a subscriber reads next: at least one message, and further ones while they have no more than so many bytes together; nothing
    /// where nothing waits.
    pub fn take(&mut self, number: SubscriberNumber, most_bytes: usize) -> Option<TakenRecords<R>> {
        let subscriber = self.subscribers.get_mut(&number)?;
        if !subscriber.has_something() {
            return None;
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        while let Some(next) = subscriber.queue.front()
            && (records.is_empty() || bytes + next.cost <= most_bytes)
        {
            let Some(next) = subscriber.pop() else { break };
            bytes += next.cost;
            for pattern in &next.matched {
                if let Some(state) = subscriber.patterns.get_mut(pattern) {
                    state.counts.delivered += 1;
                }
            }
            records.push(next.record);
        }
        let mut missed_of = Vec::new();
        if let SubscriberKind::Peer(_) = subscriber.kind
            && subscriber.missed > 0
        {
            let states = subscriber.patterns.values_mut();
            for state in states.filter(|state| state.untold > 0) {
                missed_of.push((state.pattern.clone(), std::mem::take(&mut state.untold)));
            }
            missed_of.sort_unstable();
        }
        Some(TakenRecords {
            missed: std::mem::take(&mut subscriber.missed),
            missed_of,
            records,
        })
    }

    /// All patterns with what came of them: those of this machine first, then those of peers.
    #[must_use]
    pub fn uses(&self) -> Vec<PatternUse> {
        let mut uses: BTreeMap<(Option<NodeId>, &TopicPattern), (u64, PatternCounts)> =
            BTreeMap::new();
        for subscriber in self.subscribers.values() {
            let peer = match subscriber.kind {
                SubscriberKind::Peer(peer) => Some(peer),
                SubscriberKind::Program(_) => None,
            };
            for state in subscriber.patterns.values() {
                let (subscribers, counts) = uses.entry((peer, &state.pattern)).or_default();
                *subscribers += 1;
                counts.published += state.counts.published;
                counts.delivered += state.counts.delivered;
                counts.missed += state.counts.missed;
            }
        }
        let uses = uses.into_iter();
        uses.map(|((peer, pattern), (subscribers, counts))| PatternUse {
            pattern: pattern.clone(),
            peer,
            subscribers,
            counts,
        })
        .collect()
    }

    fn enter(&mut self, kind: SubscriberKind) -> SubscriberNumber {
        self.next += 1;
        let subscriber = Subscriber {
            kind,
            patterns: HashMap::new(),
            numbers: HashMap::new(),
            queue: VecDeque::new(),
            bytes: 0,
            missed: 0,
        };
        self.subscribers.insert(self.next, subscriber);
        self.next
    }

    /// Whether it is new.
    fn add_pattern(&mut self, number: SubscriberNumber, pattern: &TopicPattern) -> bool {
        let Some(subscriber) = self.subscribers.get_mut(&number) else {
            return false;
        };
        if subscriber.numbers.contains_key(pattern) {
            return false;
        }
        self.next += 1;
        let state = PatternState {
            pattern: pattern.clone(),
            counts: PatternCounts::default(),
            untold: 0,
        };
        subscriber.patterns.insert(self.next, state);
        subscriber.numbers.insert(pattern.clone(), self.next);
        self.trie.insert(pattern, (number, self.next));
        true
    }
}

impl<R> Subscriber<R> {
    fn has_something(&self) -> bool {
        !self.queue.is_empty() || self.missed > 0
    }

    fn push(&mut self, record: R, cost: usize, matched: Vec<PatternNumber>, most: usize) {
        for pattern in &matched {
            if let Some(state) = self.patterns.get_mut(pattern) {
                state.counts.published += 1;
            }
        }
        while self.bytes + cost > most
            && let Some(lost) = self.pop()
        {
            self.missed += 1;
            for pattern in &lost.matched {
                if let Some(state) = self.patterns.get_mut(pattern) {
                    state.counts.missed += 1;
                    state.untold += 1;
                }
            }
        }
        self.bytes += cost;
        self.queue.push_back(QueuedRecord {
            record,
            cost,
            matched,
        });
    }

    fn pop(&mut self) -> Option<QueuedRecord<R>> {
        let first = self.queue.pop_front()?;
        self.bytes -= first.cost;
        if self.queue.is_empty() {
            // A burst leaves no large queue behind.
            self.queue.shrink_to(16);
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests;
