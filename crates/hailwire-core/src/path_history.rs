//! How connections came to their paths: what is said of each change, and the sums that a status shows.
//!
//! Between two NATs a connection begins on a relay and moves to a direct path once a hole is punched. Told which path each
//! connection uses, this says what has changed, how many ever had a direct path, how many that began on a relay got one,
//! after what time, and how much went by relays.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
    time::{Duration, Instant},
};

/// Times of which the median is taken: the last so many.
pub const KEPT_TIMES: usize = 256;

/// What a path leads over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Straight to the peer.
    Direct,
    /// Through a relay.
    Relay,
}

impl PathKind {
    /// Its word in status and log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay => "relay",
        }
    }
}

/// The path that a connection uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedPath {
    /// What it leads over.
    pub kind: PathKind,
    /// Its far end: a socket address or a relay's URL.
    pub remote: String,
}

impl fmt::Display for UsedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.remote)
    }
}

/// A connection uses another path than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// The one before; `None` for its first.
    pub from: Option<UsedPath>,
    /// The one now.
    pub to: UsedPath,
    /// Since the connection came up.
    pub after: Duration,
}

/// The sums since the node's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSums {
    /// Connections that had a path.
    pub connections: u64,
    /// Those that had a direct one at some time.
    pub direct: u64,
    /// Those whose first one led through a relay.
    pub relayed_first: u64,
    /// Those of them that got a direct one.
    pub punched: u64,
    /// The median of the time that took, of the last [`KEPT_TIMES`]; `None` where there was none.
    pub time_to_direct: Option<Duration>,
    /// Bytes sent and received through relays on connections that have ended.
    pub relayed_bytes: u64,
}

/// See the module. `K` names a connection while it lives.
#[derive(Debug)]
pub struct PathHistory<K> {
    live: HashMap<K, ConnectionPath>,
    sums: PathSums,
    times: VecDeque<Duration>,
}

#[derive(Debug)]
struct ConnectionPath {
    up: Instant,
    used: Option<UsedPath>,
    was_direct: bool,
}

impl<K> Default for PathHistory<K> {
    fn default() -> Self {
        Self {
            live: HashMap::new(),
            sums: PathSums::default(),
            times: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> PathHistory<K> {
    /// A connection uses this path now, `None` while none is chosen; it came up when it is named first. Gives what has changed.
    pub fn handle_path(
        &mut self,
        now: Instant,
        connection: K,
        used: Option<UsedPath>,
    ) -> Option<PathChange> {
        let live = self.live.entry(connection).or_insert(ConnectionPath {
            up: now,
            used: None,
            was_direct: false,
        });
        let to = used?;
        if live.used.as_ref() == Some(&to) {
            return None;
        }
        let after = now.saturating_duration_since(live.up);
        let from = live.used.replace(to.clone());
        if from.is_none() {
            self.sums.connections += 1;
            self.sums.relayed_first += u64::from(to.kind == PathKind::Relay);
        }
        if to.kind == PathKind::Direct && !live.was_direct {
            live.was_direct = true;
            self.sums.direct += 1;
            if from.is_some() {
                self.sums.punched += 1;
                self.times.push_back(after);
                if self.times.len() > KEPT_TIMES {
                    self.times.pop_front();
                }
            }
        }
        Some(PathChange { from, to, after })
    }

    /// A connection has ended, with so many bytes that went through relays.
    pub fn handle_closed(&mut self, connection: K, relayed_bytes: u64) {
        self.live.remove(&connection);
        self.sums.relayed_bytes += relayed_bytes;
    }

    /// The sums now.
    #[must_use]
    pub fn sums(&self) -> PathSums {
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        PathSums {
            time_to_direct: times.get(times.len() / 2).copied(),
            ..self.sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const STEP: Duration = Duration::from_millis(100);

    fn relay() -> Option<UsedPath> {
        Some(UsedPath {
            kind: PathKind::Relay,
            remote: "https://hub".to_owned(),
        })
    }

    fn direct(port: u32) -> Option<UsedPath> {
        Some(UsedPath {
            kind: PathKind::Direct,
            remote: format!("192.0.2.1:{port}"),
        })
    }

    #[test]
    fn a_connection_that_begins_on_a_relay_and_becomes_direct_was_punched_once() {
        let begin = start();
        let mut history = PathHistory::default();
        assert_eq!(history.handle_path(begin, 1, None), None);
        let first = history.handle_path(begin + STEP, 1, relay()).unwrap();
        assert_eq!((first.from, first.after), (None, STEP));
        assert_eq!(history.handle_path(begin + STEP, 1, relay()), None);
        let second = history.handle_path(begin + 3 * STEP, 1, direct(1)).unwrap();
        assert_eq!((second.from, second.after), (relay(), 3 * STEP));
        assert_eq!(second.to.to_string(), "direct 192.0.2.1:1");
        // Lost, and found again.
        assert!(history.handle_path(begin + 4 * STEP, 1, relay()).is_some());
        assert!(
            history
                .handle_path(begin + 5 * STEP, 1, direct(1))
                .is_some()
        );
        history.handle_closed(1, 500);
        let sums = PathSums {
            connections: 1,
            direct: 1,
            relayed_first: 1,
            punched: 1,
            time_to_direct: Some(3 * STEP),
            relayed_bytes: 500,
        };
        assert_eq!(history.sums(), sums);
    }

    #[test]
    fn one_that_was_direct_from_the_start_was_not_punched_and_one_without_a_path_does_not_count() {
        let begin = start();
        let mut history = PathHistory::default();
        history.handle_path(begin, 1, direct(1));
        history.handle_path(begin, 1, direct(2));
        history.handle_path(begin, 2, None);
        history.handle_closed(2, 0);
        history.handle_closed(3, 0);
        let sums = PathSums {
            connections: 1,
            direct: 1,
            ..PathSums::default()
        };
        assert_eq!(history.sums(), sums);
    }

    fn follow(seed: u64) {
        let mut below = draws(seed, 16);
        let begin = start();
        let mut history = PathHistory::default();
        let mut used: HashMap<u32, Option<UsedPath>> = HashMap::new();
        for step in 0..400 {
            let now = begin + STEP * step;
            let connection = below(8);
            let path = match below(4) {
                0 => None,
                1 => relay(),
                port => direct(port),
            };
            if below(6) == 0 {
                history.handle_closed(connection, 1);
                used.remove(&connection);
                continue;
            }
            let before = used.get(&connection).cloned().flatten();
            let change = history.handle_path(now, connection, path.clone());
            let news = path.is_some() && path != before;
            assert_eq!(change.is_some(), news, "seed {seed}, step {step}");
            assert_eq!(
                change.and_then(|change| change.from),
                if news { before } else { None }
            );
            if path.is_some() {
                used.insert(connection, path);
            }
            let sums = history.sums();
            assert!(sums.direct <= sums.connections, "seed {seed}");
            assert!(sums.punched <= sums.relayed_first, "seed {seed}");
            assert!(sums.punched <= sums.direct, "seed {seed}");
            assert_eq!(
                sums.time_to_direct.is_some(),
                sums.punched > 0,
                "seed {seed}"
            );
            assert!(history.live.len() <= 8 && history.times.len() <= KEPT_TIMES);
        }
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn sums_hold_whatever_paths_come_and_go() {
        for_each_seed(KEPT, 2_000, follow);
    }
}
