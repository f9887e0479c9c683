//! Which messages under topics a node keeps, for how long, and how far a named subscriber has come.
//!
//! A node keeps what is published at it under patterns that its user named ([`KeptRules`]); patterns do not overlap, so each message belongs to
//! one of them. All of them share a log, in which each message has a number. A pattern either keeps what comes, and then the oldest goes where it
//! exceeds [`KeptBounds`], or the last message of each topic, and then what would exceed them is refused, since each message is a value
//! that somebody relies on. Topics under [`STATE`] always keep their last message.
//!
//! Whoever reads the log has a position in it, and nothing else: what is published meanwhile is read from the log as well, so there is no
//! seam between replay and what is new. [`NamedPositions`] is what a subscriber's node remembers of one that is to get each message at
//! least once.

use foldhash::{HashMap, HashMapExt};
use hailwire_wire::{
    NodeId,
    topics::{Topic, TopicPattern},
};

/// Most patterns that a node keeps, that of state included.
pub const MAX_KEPT_PATTERNS: usize = 64;

/// Most bytes that all patterns together may be allowed to take: what their bounds add up to.
pub const MAX_KEPT_BYTES: u64 = 256 * 1024 * 1024 * 1024;

/// First token of the topics that hold state: one value for each.
pub const STATE: &str = "state";

/// Most bytes of all values of state that a node keeps.
pub const STATE_BYTES: u64 = 64 * 1024 * 1024;

/// Most keys of state that a node keeps.
pub const STATE_KEYS: u64 = 65_536;

/// For how long it is known that a value was deleted: seven days.
pub const DELETED_AGE_MS: u64 = 7 * 24 * 3600 * 1000;

/// How much of what is published under a pattern is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBounds {
    /// Most bytes of records.
    pub max_bytes: u64,
    /// Most messages; none for as many as fit.
    pub max_messages: Option<u64>,
    /// Longest time, in milliseconds; none for as long as they fit.
    pub max_age_ms: Option<u64>,
    /// Only the last message of each topic.
    pub last_per_topic: bool,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptUsage {
    /// Bytes of records.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// A message that may have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalCandidate {
    /// When it was published, milliseconds since 1970.
    pub at_ms: u64,
    /// Whether it says that a value is deleted.
    pub deleted: bool,
}

impl KeptBounds {
    /// What state is kept with.
    #[must_use]
    pub const fn of_state() -> Self {
        Self {
            max_bytes: STATE_BYTES,
            max_messages: Some(STATE_KEYS),
            max_age_ms: None,
            last_per_topic: true,
        }
    }

    fn fits(&self, usage: KeptUsage) -> bool {
        usage.bytes <= self.max_bytes && self.max_messages.is_none_or(|most| usage.messages <= most)
    }

    /// Whether a message may be kept that makes the usage this, once what it replaces has gone. Where only the last of each topic is kept nothing else makes
    /// room; elsewhere the oldest go, so that only what is larger than all that may be kept has no room.
    #[must_use]
    pub fn admits(&self, usage: KeptUsage, size: u64) -> bool {
        match self.last_per_topic {
            true => self.fits(usage),
            false => size <= self.max_bytes,
        }
    }

    /// Whether the oldest message, or the oldest deletion, has to go.
    #[must_use]
    pub fn removes(&self, now_ms: u64, usage: KeptUsage, oldest: RemovalCandidate) -> bool {
        let no_room = !self.last_per_topic && !self.fits(usage);
        no_room || self.expires_at(oldest).is_some_and(|at| at <= now_ms)
    }

    /// When a message has to go because of its age, in milliseconds since 1970.
    #[must_use]
    pub fn expires_at(&self, message: RemovalCandidate) -> Option<u64> {
        let deleted = message.deleted.then_some(DELETED_AGE_MS);
        let age = match (self.max_age_ms, deleted) {
            (Some(age), Some(deleted)) => Some(age.min(deleted)),
            (age, deleted) => age.or(deleted),
        };
        age.map(|age| message.at_ms.saturating_add(age))
    }
}

/// A pattern that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRule {
    /// Its number in the database.
    pub id: i64,
    /// What is kept.
    pub pattern: TopicPattern,
    /// How much of it.
    pub bounds: KeptBounds,
}

/// Why a pattern is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepRefusal {
    /// There are [`MAX_KEPT_PATTERNS`].
    TooMany,
    /// Topics match this one, which is kept, too.
    Overlaps(TopicPattern),
    /// All of them would be allowed more than [`MAX_KEPT_BYTES`].
    NoRoom,
    /// It is [`STATE`], which is always kept.
    State,
    /// A bound is 0.
    Nothing,
}

/// What a node keeps.
#[derive(Clone, Debug, Default)]
pub struct KeptRules {
    rules: Vec<KeptRule>,
}

impl KeptRules {
    /// What the database says. The first is state.
    #[must_use]
    pub fn new(rules: Vec<KeptRule>) -> Self {
        Self { rules }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[KeptRule] {
        &self.rules
    }

    /// Which rule keeps a topic, if any does.
    #[must_use]
    pub fn of(&self, topic: &Topic) -> Option<&KeptRule> {
        let state = is_state(topic.as_str());
        let mut rules = self.rules.iter();
        rules.find(|rule| is_state(rule.pattern.as_str()) == state && rule.pattern.matches(topic))
    }

    /// Whether a pattern may be kept with these bounds; what it is kept with today is in the way of nothing.
    ///
    /// # Errors
    ///
    /// [`KeepRefusal`].
    pub fn check(&self, pattern: &TopicPattern, bounds: &KeptBounds) -> Result<(), KeepRefusal> {
        if is_state(pattern.as_str()) {
            return Err(KeepRefusal::State);
        }
        if bounds.max_bytes == 0 || bounds.max_messages == Some(0) || bounds.max_age_ms == Some(0) {
            return Err(KeepRefusal::Nothing);
        }
        let others = || self.rules.iter().filter(|rule| rule.pattern != *pattern);
        let overlapping = others()
            .filter(|rule| !is_state(rule.pattern.as_str()))
            .find(|rule| rule.pattern.overlaps(pattern));
        if let Some(rule) = overlapping {
            return Err(KeepRefusal::Overlaps(rule.pattern.clone()));
        }
        if others().count() >= MAX_KEPT_PATTERNS {
            return Err(KeepRefusal::TooMany);
        }
        let all = others().fold(bounds.max_bytes, |all, rule| {
            all.saturating_add(rule.bounds.max_bytes)
        });
        match all <= MAX_KEPT_BYTES {
            true => Ok(()),
            false => Err(KeepRefusal::NoRoom),
        }
    }
}

/// Whether a topic or a pattern is of state alone.
fn is_state(text: &str) -> bool {
    text.strip_prefix(STATE)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// A place in the log of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Which log: a node whose files are lost begins another.
    pub log: u64,
    /// The number of the last message before it.
    pub number: u64,
}

/// Why something is not confirmed: it was not handed out, or is of a log that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHandedOut;

/// How far a named subscriber has come in the log of each node. What it has confirmed comes no more; what it was handed and has not confirmed comes
/// again to whoever reads next under its name.
#[derive(Debug, Default)]
pub struct NamedPositions {
    confirmed: HashMap<NodeId, LogPosition>,
    handed: HashMap<NodeId, LogPosition>,
}

impl NamedPositions {
    /// What the database says.
    #[must_use]
    pub fn new(confirmed: impl IntoIterator<Item = (NodeId, LogPosition)>) -> Self {
        let mut positions = Self {
            confirmed: HashMap::new(),
            handed: HashMap::new(),
        };
        positions.confirmed.extend(confirmed);
        positions
    }

    /// Where to begin in the log of a node; none where nothing of it was ever read.
    #[must_use]
    pub fn confirmed(&self, node: NodeId) -> Option<LogPosition> {
        self.confirmed.get(&node).copied()
    }

    /// Messages up to this one were handed to the program, or are none that it wants.
    pub fn handle_handed(&mut self, node: NodeId, position: LogPosition) {
        let handed = self.handed.entry(node).or_default();
        if handed.log != position.log || handed.number < position.number {
            *handed = position;
        }
    }

    /// The program has confirmed all up to this one; what is to be written, if it is news.
    ///
    /// # Errors
    ///
    /// [`NotHandedOut`].
    pub fn handle_confirmed(
        &mut self,
        node: NodeId,
        position: LogPosition,
    ) -> Result<Option<LogPosition>, NotHandedOut> {
        let handed = self.handed.get(&node).ok_or(NotHandedOut)?;
        if handed.log != position.log || handed.number < position.number {
            return Err(NotHandedOut);
        }
        let confirmed = self.confirmed.get(&node);
        let known = confirmed
            .is_some_and(|before| before.log == position.log && before.number >= position.number);
        if known {
            return Ok(None);
        }
        self.confirmed.insert(node, position);
        Ok(Some(position))
    }
}

#[cfg(test)]
mod tests;
