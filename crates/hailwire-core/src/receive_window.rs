//! How much a peer may send before this side has read it.
//!
//! A connection moves at most its window in each round trip. So the window begins at a size that
//! serves most networks and follows the bandwidth-delay product, up to the bound on the memory that
//! one peer may occupy, which its connections share: where more than half of it arrives in a round trip, it doubles. It does not
//! shrink: what was promised to the peer cannot be taken back (RFC 9000, 4.1), and an idle window
//! costs nothing.
//!
//! The window of a single stream does not follow: the engine changes it for no connection that lives, and a
//! larger one from the start lets a lossy path end the whole tunnel (decision 0015).

use std::time::Duration;

/// The receive window of each connection to a peer.
#[derive(Debug)]
pub struct ReceiveWindow {
    first: u32,
    size: u32,
    most: u32,
}

impl ReceiveWindow {
    /// With which window a connection begins, and what all to one peer may occupy.
    pub const fn new(first: u32, most: u32) -> Self {
        Self {
            first,
            size: first,
            most,
        }
    }

    /// Takes in how many bytes arrived on the busiest connection in a time, and its round trip.
    pub fn arrived(&mut self, bytes: u64, time: Duration, rtt: Duration, connections: usize) {
        let in_flight = bytes as f64 * rtt.as_secs_f64() / time.as_secs_f64().max(1e-3);
        let most = self.most_each(connections);
        if self.size < most && in_flight > f64::from(self.size) / 2.0 {
            self.size = self.size.saturating_mul(2).min(most);
        }
    }

    /// The window of one connection of so many.
    pub fn share(&self, connections: usize) -> u32 {
        self.size.min(self.most_each(connections))
    }

    /// With which window a connection begins: so much is promised before anything is known of it, also where
    /// a share would be less.
    pub const fn first(&self) -> u32 {
        self.first
    }

    fn most_each(&self, connections: usize) -> u32 {
        let connections = u32::try_from(connections.max(1)).unwrap_or(u32::MAX);
        (self.most / connections).max(self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    /// A path of this rate and round trip, and a sender that always has more.
    fn settle(rate: f64, rtt: Duration) -> (u32, Duration) {
        let mut window = ReceiveWindow::new(8 * MIB, 128 * MIB);
        let (step, mut took) = (Duration::from_millis(250), Duration::ZERO);
        for _ in 0..100 {
            let possible = f64::from(window.size) / rtt.as_secs_f64();
            let bytes = rate.min(possible) * step.as_secs_f64();
            let before = window.size;
            window.arrived(bytes as u64, step, rtt, 1);
            if window.size == before {
                break;
            }
            took += step;
        }
        (window.size, took)
    }

    #[test]
    fn a_local_network_needs_no_more_than_the_first_window() {
        assert_eq!(settle(1e9, Duration::from_micros(200)).0, 8 * MIB);
    }

    #[test]
    fn a_long_fat_pipe_is_full_within_a_second() {
        let (size, took) = settle(125e6, Duration::from_millis(200));
        assert!(f64::from(size) >= 125e6 * 0.2, "{size}");
        assert!(took <= Duration::from_secs(1), "{took:?}");
    }

    #[test]
    fn connections_share_what_one_peer_may_occupy() {
        let (second, rtt) = (Duration::from_secs(1), Duration::from_secs(1));
        let mut window = ReceiveWindow::new(8 * MIB, 128 * MIB);
        for _ in 0..10 {
            window.arrived(10_000_000_000, second, rtt, 4);
        }
        assert_eq!(window.share(4), 32 * MIB);
        assert_eq!(window.share(2), 32 * MIB, "not asked for yet");
        window.arrived(10_000_000_000, second, rtt, 2);
        assert_eq!(window.share(2), 64 * MIB);
        assert_eq!(window.share(4), 32 * MIB);
        // Each begins with as much: it was promised.
        assert_eq!(window.share(1_000), 8 * MIB);
    }

    #[test]
    fn no_peer_occupies_more_than_its_bound() {
        assert_eq!(settle(10e9, Duration::from_secs(1)).0, 128 * MIB);
    }

    #[test]
    fn a_window_grows_where_more_than_half_of_it_arrives_in_a_round_trip() {
        let (second, rtt) = (Duration::from_secs(1), Duration::from_millis(500));
        for (arrived, size) in [(8, 8), (9, 16)] {
            let mut window = ReceiveWindow::new(8 * MIB, 128 * MIB);
            // In a second, so half as much in a round trip.
            window.arrived(arrived << 20, second, rtt, 1);
            assert_eq!(window.share(1), size * MIB, "{arrived} MiB a second");
            assert_eq!(window.first(), 8 * MIB);
        }
    }

    #[test]
    fn a_window_ends_at_its_bound_also_where_that_is_no_doubling() {
        let second = Duration::from_secs(1);
        let mut window = ReceiveWindow::new(8 * MIB, 20 * MIB);
        let sizes = [16, 20, 20].map(|size| size * MIB);
        for size in sizes {
            window.arrived(u64::from(u32::MAX), second, second, 1);
            assert_eq!(window.share(1), size);
        }
        assert_eq!(window.share(0), 20 * MIB, "one that is none is as one");
        // What arrived in no time at all is as in a millisecond, and no fault.
        window.arrived(1, Duration::ZERO, second, 1);
        assert_eq!(window.share(1), 20 * MIB);
    }
}
