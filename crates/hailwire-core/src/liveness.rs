//! Whether a peer still lives, seen from connections with calls in flight.
//!
//! QUIC's own idle time-out is longer than a caller likes to wait, and a connection over TCP has none. So connections that
//! carry calls are looked at once a second. One on which nothing arrives is asked (`PING`) after [`PING_AFTER`]; after
//! [`REDIAL_AFTER`] its peer is dialled anew, once for each silence, because one that was killed and is back answers at
//! once; after [`DEAD_AFTER`] it is closed, and its calls end with `unavailable`. Connections without calls cost nothing
//! and are not judged.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::{Duration, Instant},
};

use hailwire_wire::NodeId;

/// How often connections with calls in flight are looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Silence after which the peer is asked whether it lives, at each look.
pub const PING_AFTER: Duration = Duration::from_secs(1);

/// Silence after which the peer is dialled anew. One that was merely slow has two tunnels for a moment.
pub const REDIAL_AFTER: Duration = Duration::from_secs(2);

/// Silence after which the connection is closed.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);

/// A connection with calls in flight, as it was found at a look.
#[derive(Clone, Copy, Debug)]
pub struct BusyConnection<K> {
    /// Which one; not given to another while it is looked at.
    pub connection: K,
    /// With whom.
    pub peer: NodeId,
    /// All bytes received on it.
    pub received: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessAction<K> {
    /// Ask the far side whether it lives.
    Ping(K),
    /// Dial the peer anew, beside the connection that is silent.
    Redial(NodeId),
    /// The peer is gone: close the connection.
    Close(K),
}

/// Watches connections for silence.
#[derive(Debug)]
pub struct LivenessMonitor<K> {
    last: HashMap<K, LastHeard>,
    looked: Option<Instant>,
    actions: VecDeque<LivenessAction<K>>,
}

/// What is known of a connection since it was heard last.
#[derive(Clone, Copy, Debug)]
struct LastHeard {
    received: u64,
    at: Instant,
    redialled: bool,
}

impl<K> Default for LivenessMonitor<K> {
    fn default() -> Self {
        Self {
            last: HashMap::new(),
            looked: None,
            actions: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> LivenessMonitor<K> {
    /// Looks at all connections that carry calls now. One that is missing is forgotten: when it carries calls
    /// again, its silence begins anew.
    pub fn handle_look(&mut self, now: Instant, busy: impl IntoIterator<Item = BusyConnection<K>>) {
        self.looked = Some(now);
        let mut last = HashMap::new();
        for BusyConnection {
            connection,
            peer,
            received,
        } in busy
        {
            let unchanged = |last: &LastHeard| last.received == received;
            let mut heard = self.last.remove(&connection).filter(unchanged);
            let heard = heard.get_or_insert(LastHeard {
                received,
                at: now,
                redialled: false,
            });
            let silence = now.saturating_duration_since(heard.at);
            if silence >= REDIAL_AFTER && !heard.redialled {
                heard.redialled = true;
                self.actions.push_back(LivenessAction::Redial(peer));
            }
            if silence >= DEAD_AFTER {
                self.actions.push_back(LivenessAction::Close(connection));
            } else if silence >= PING_AFTER {
                self.actions.push_back(LivenessAction::Ping(connection));
            }
            last.insert(connection, *heard);
        }
        self.last = last;
    }

    /// What is to be done next; nothing where all was given.
    pub fn poll_action(&mut self) -> Option<LivenessAction<K>> {
        self.actions.pop_front()
    }

    /// When to look next. At once where nothing was looked at yet.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.looked.map(|looked| looked + LOOK_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const MILLI: Duration = Duration::from_millis(1);

    fn peer(number: usize) -> NodeId {
        NodeId::from_bytes([number as u8 + 1; 32])
    }

    fn busy(connection: usize, received: u64) -> BusyConnection<usize> {
        BusyConnection {
            connection,
            peer: peer(connection),
            received,
        }
    }

    fn actions(monitor: &mut LivenessMonitor<usize>) -> Vec<LivenessAction<usize>> {
        std::iter::from_fn(|| monitor.poll_action()).collect()
    }

    #[test]
    fn a_silent_peer_is_asked_dialled_anew_once_and_given_up() {
        let begin = start();
        let mut monitor = LivenessMonitor::default();
        assert_eq!(monitor.poll_timeout(), None);
        let mut all = Vec::new();
        for second in 0..=6 {
            let now = begin + second * LOOK_EVERY;
            monitor.handle_look(now, [busy(0, 7)]);
            assert_eq!(monitor.poll_timeout(), Some(now + LOOK_EVERY));
            all.push(actions(&mut monitor));
        }
        let (ping, redial) = (LivenessAction::Ping(0), LivenessAction::Redial(peer(0)));
        let close = LivenessAction::Close(0);
        let expected = [
            vec![],
            vec![ping],
            vec![redial, ping],
            vec![ping],
            vec![ping],
            vec![close],
            vec![close],
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_connection_that_carried_nothing_for_a_while_begins_anew() {
        let begin = start();
        let mut monitor = LivenessMonitor::default();
        monitor.handle_look(begin, [busy(0, 7)]);
        monitor.handle_look(begin + LOOK_EVERY, []);
        monitor.handle_look(begin + 20 * LOOK_EVERY, [busy(0, 7)]);
        assert_eq!(actions(&mut monitor), []);
    }

    /// One connection of a random run.
    #[derive(Clone, Copy)]
    struct Model {
        busy: bool,
        received: u64,
        /// When a look first found what has been received by now, with calls in flight ever since.
        seen: Option<(u64, Instant)>,
        redials: u32,
    }

    /// Looks come late or are lost, connections fall silent, speak and rest at random.
    fn follow(seed: u64) {
        let mut below = draws(seed, 3);
        let mut monitor = LivenessMonitor::default();
        let mut now = start();
        let mut all = [Model {
            busy: false,
            received: 0,
            seen: None,
            redials: 0,
        }; 4];
        for step in 0..60 {
            for one in &mut all {
                match below(8) {
                    0 => one.busy = !one.busy,
                    1 => one.received += 1,
                    _ => {}
                }
            }
            now += match below(10) {
                0 => MILLI * below(9_000),
                1 => Duration::ZERO,
                _ => LOOK_EVERY,
            };
            for one in &mut all {
                let same = one.seen.filter(|(received, _)| *received == one.received);
                let seen = same.unwrap_or_else(|| {
                    one.redials = 0;
                    (one.received, now)
                });
                one.seen = one.busy.then_some(seen);
            }
            let found = all.iter().enumerate().filter(|(_, one)| one.busy);
            monitor.handle_look(now, found.map(|(at, one)| busy(at, one.received)));
            let done = actions(&mut monitor);
            for (at, one) in all.iter_mut().enumerate() {
                let silence = one.seen.map(|(_, since)| now - since);
                let is = |action| done.contains(&action);
                let context = format!("seed {seed}, step {step}: {done:?} after {silence:?}");
                let dead = silence.is_some_and(|silence| silence >= DEAD_AFTER);
                assert_eq!(is(LivenessAction::Close(at)), dead, "{context}");
                let asked = silence.is_some_and(|silence| silence >= PING_AFTER) && !dead;
                assert_eq!(is(LivenessAction::Ping(at)), asked, "{context}");
                let late = silence.is_some_and(|silence| silence >= REDIAL_AFTER);
                let redial = late && one.redials == 0;
                assert_eq!(is(LivenessAction::Redial(peer(at))), redial, "{context}");
                one.redials += u32::from(redial);
            }
        }
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn whoever_speaks_is_never_closed_and_whoever_is_silent_always_however_late_looks_come() {
        for_each_seed(KEPT, 10_000, follow);
    }
}
