//! How much may leave at once on a path that was quiet (`quic { initial-window "64KiB" }`).
//!
//! RFC 9002, 7.2, lets a sender begin with ten packets, and a window that is not filled does not grow
//! (7.8). A tunnel that has carried a call now and then for days is thus as narrow as a new one, and 50 calls that are
//! made at once wait a round trip for one another, where 50 connections would have had 50 windows
//! and not have waited. So a flight after a quiet round trip may be as large as this setting, whatever
//! the congestion control would have allowed. It is a larger initial window (RFC 6928) that comes back after
//! quiet, with the cautions of careful resume (RFC 9959):
//!
//! - For one round trip, no more: if something waited for the window in it, then the congestion control alone decides
//!   about the next, and by then it has measured the path.
//! - Not in one burst, but over a sixteenth of the round trip.
//! - Not on a path that has lost something within the last ten seconds.

use std::time::{Duration, Instant};

/// The part of a round trip over which a first flight is spread.
const PART: u32 = 16;

/// How long a path has to go without a loss.
const WELL_AGAIN: Duration = Duration::from_secs(10);

/// Whether a path's next flight may be an opening one.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    /// Bytes that may be in flight.
    window: u64,
    /// The last round trip in mind, to spread the flight.
    round_trip: Duration,
    /// When the first packet of this round was sent.
    round: Option<Instant>,
    /// Whether something waited for the window in this round.
    waited: bool,
    /// Whether the round before was quiet, and nothing was lost lately.
    open: bool,
    /// The last loss.
    lost: Option<Instant>,
}

impl Opening {
    /// On a new path, whose round trip is taken for `round_trip` until there is one.
    pub(super) fn new(window: u64, round_trip: Duration) -> Self {
        Self {
            window,
            round_trip,
            round: None,
            waited: false,
            open: true,
            lost: None,
        }
    }

    pub(super) fn on_packet_sent(&mut self, now: Instant) {
        self.round.get_or_insert(now);
    }

    /// Something waited for the window.
    pub(super) fn on_limited(&mut self) {
        self.waited = true;
    }

    /// A packet that was sent at `sent` has arrived. The round ends with the first one of its own.
    pub(super) fn on_ack(&mut self, now: Instant, sent: Instant, round_trip: Duration) {
        self.round_trip = round_trip;
        if self.round.is_some_and(|round| sent >= round) {
            let well = |lost| now.saturating_duration_since(lost) >= WELL_AGAIN;
            self.open = !self.waited && self.lost.is_none_or(well);
            self.waited = false;
            self.round = None;
        }
    }

    /// Packets were lost, or marked by a queue that grows.
    pub(super) fn on_loss(&mut self, now: Instant) {
        self.open = false;
        self.lost = Some(now);
    }

    /// They had only been late.
    pub(super) fn on_spurious_loss(&mut self) {
        self.lost = None;
    }

    /// The bytes that may be in flight, and the least bytes a second at which they may leave, where the congestion
    /// control's `window` is smaller.
    pub(super) fn beyond(&self, window: u64) -> Option<(u64, u64)> {
        let open = self.open && window < self.window;
        open.then(|| (self.window, rate(self.window, self.round_trip / PART)))
    }
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 64 << 10;
    const ROUND_TRIP: Duration = Duration::from_millis(80);

    /// Sends a packet, has it acknowledged a round trip later, and returns when that was.
    fn round(opening: &mut Opening, sent: Instant, waited: bool) -> Instant {
        opening.on_packet_sent(sent);
        if waited {
            opening.on_limited();
        }
        opening.on_ack(sent + ROUND_TRIP, sent, ROUND_TRIP);
        sent + ROUND_TRIP
    }

    #[test]
    fn a_quiet_path_lets_a_flight_leave_within_a_part_of_the_round_trip() {
        let opening = Opening::new(WINDOW, ROUND_TRIP);
        // 5 ms for 64 KiB.
        assert_eq!(opening.beyond(12_000), Some((WINDOW, WINDOW * 200)));
        assert_eq!(opening.beyond(WINDOW), None, "the control allows as much");
        assert_eq!(Opening::new(0, ROUND_TRIP).beyond(12_000), None);
    }

    #[test]
    fn whoever_fills_the_window_has_it_for_one_round_trip() {
        let mut opening = Opening::new(WINDOW, ROUND_TRIP);
        let now = round(&mut opening, Instant::now(), true);
        assert_eq!(opening.beyond(12_000), None);
        let now = round(&mut opening, now, true);
        assert_eq!(opening.beyond(12_000), None);
        round(&mut opening, now, false);
        assert!(opening.beyond(12_000).is_some(), "quiet again");
    }

    #[test]
    fn the_round_ends_with_a_packet_of_its_own() {
        let mut opening = Opening::new(WINDOW, ROUND_TRIP);
        let start = Instant::now();
        opening.on_packet_sent(start);
        opening.on_limited();
        opening.on_ack(start + ROUND_TRIP / 2, start - ROUND_TRIP / 2, ROUND_TRIP);
        assert!(opening.beyond(12_000).is_some());
        opening.on_ack(start + ROUND_TRIP, start, ROUND_TRIP);
        assert_eq!(opening.beyond(12_000), None);
    }

    #[test]
    fn a_loss_ends_it_for_ten_seconds_unless_it_was_none() {
        let mut opening = Opening::new(WINDOW, ROUND_TRIP);
        let now = Instant::now();
        opening.on_loss(now);
        assert_eq!(opening.beyond(12_000), None);
        round(&mut opening, now + WELL_AGAIN / 2, false);
        assert_eq!(opening.beyond(12_000), None);
        let now = round(&mut opening, now + WELL_AGAIN, false);
        assert!(opening.beyond(12_000).is_some());
        opening.on_loss(now);
        opening.on_spurious_loss();
        round(&mut opening, now, false);
        assert!(opening.beyond(12_000).is_some());
    }
}
