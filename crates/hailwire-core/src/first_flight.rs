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
//! - Not in one burst, but over a sixteenth of the round trip. So does the beginning of a flight for which the congestion
//!   control allows more by itself; what goes beyond leaves at the control's own pace.
//! - Not on a path that has lost something within the last ten seconds.
//!
//! Losses come from full queues and from chance, and a queue shows in the round trip (as in TCP Veno). A thin
//! stream of calls over a radio link loses a packet now and then in a round of ten, which looks like a tenth lost: CUBIC and
//! BBR take the window back to a few packets, and then what is due waits, for seconds. So after a
//! loss while the round trip is about as short as it ever was, ten packets, the first window of RFC 9002, may
//! still be in flight, unless the stream waits for the window round after round: then it is not thin.

use std::time::{Duration, Instant};

/// The part of a round trip over which a first flight is spread.
const SPREAD_PART: u32 = 16;

/// How long a path has to go without a loss.
const LOSS_FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// What may be in flight after a loss by chance: the first window of RFC 9002, 7.2.
const MIN_AFTER_LOSS: u64 = 14_720;

/// Part of the least round trip by which a longer one shows a queue.
const QUEUE_SHOWN_BY_PART: u32 = 4;

/// Rounds in a row that wait for the window, after which a stream is not thin but has as much as the path takes.
/// BBR, which looks at times how short the round trip is with little in flight, has to be let.
const BUSY_ROUNDS: u32 = 8;

/// Whether a path's next flight may be a first flight.
#[derive(Clone, Debug)]
pub struct FirstFlight {
    /// Bytes that may be in flight.
    window: u64,
    /// The last round trip in mind, to spread the flight.
    round_trip: Duration,
    /// When the first packet of this round was sent.
    round: Option<Instant>,
    /// Bytes sent in this round.
    sent: u64,
    /// Whether something waited for the window in this round.
    waited: bool,
    /// Whether the round before was quiet, and nothing was lost lately.
    open: bool,
    /// Rounds without a break in which something waited.
    busy: u32,
    /// The last loss.
    lost: Option<Instant>,
    /// Whether the round trip shows a queue.
    queued: bool,
}

impl FirstFlight {
    /// On a new path, whose round trip is taken for `round_trip` until there is one.
    pub fn new(window: u64, round_trip: Duration) -> Self {
        Self {
            window,
            round_trip,
            round: None,
            sent: 0,
            waited: false,
            open: true,
            busy: 0,
            lost: None,
            queued: false,
        }
    }

    /// A packet of so many bytes was sent.
    pub fn on_packet_sent(&mut self, now: Instant, bytes: u16) {
        self.round.get_or_insert(now);
        self.sent += u64::from(bytes);
    }

    /// Something waited for the window.
    pub fn on_limited(&mut self) {
        self.waited = true;
    }

    /// A packet that was sent at `sent` has arrived. The round ends with the first one of its own.
    /// `round_trip` is the smoothed one and the least.
    pub fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        (round_trip, least): (Duration, Duration),
    ) {
        self.round_trip = round_trip;
        self.queued = round_trip > least + least / QUEUE_SHOWN_BY_PART;
        if self.round.is_some_and(|round| sent >= round) {
            let well = |lost| now.saturating_duration_since(lost) >= LOSS_FORGOTTEN_AFTER;
            self.open = !self.waited && self.lost.is_none_or(well);
            self.busy = if self.waited {
                self.busy.saturating_add(1)
            } else {
                0
            };
            self.waited = false;
            self.round = None;
            self.sent = 0;
        }
    }

    /// Packets were lost, or marked by a queue that grows.
    pub fn on_loss(&mut self, now: Instant) {
        self.open = false;
        self.lost = Some(now);
    }

    /// They had only been late.
    pub fn on_spurious_loss(&mut self) {
        self.lost = None;
    }

    /// The bytes that may be in flight, and the least bytes a second at which they may leave, where the congestion
    /// control's `window` is smaller. After quiet the rate is also for one that is not smaller: for the whole flight where the
    /// control has a rate of its own (`paced`), since it measured a path on which little was to be sent, and else
    /// for as much of it as this window has.
    pub fn beyond(&self, window: u64, paced: bool) -> Option<(u64, u64)> {
        let thin = self.lost.is_some() && !self.queued && self.busy < BUSY_ROUNDS;
        let most = match (self.open, thin) {
            (true, _) => self.window,
            (false, true) => self.window.min(MIN_AFTER_LOSS),
            (false, false) => 0,
        };
        // A window that is larger still leaves about as fast by itself.
        let begins = self.sent < self.window && window < self.window * u64::from(SPREAD_PART / 2);
        let slow = self.open && self.window > 0 && (paced || begins);
        (window < most || slow).then(|| {
            let rate = rate(most, self.round_trip / SPREAD_PART);
            (window.max(most), rate)
        })
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
    use crate::testing::start;

    const WINDOW: u64 = 64 << 10;
    const ROUND_TRIP: Duration = Duration::from_millis(80);

    /// Sends a packet, has it acknowledged a round trip later, and returns when that was.
    fn round(flight: &mut FirstFlight, sent: Instant, waited: bool) -> Instant {
        flight.on_packet_sent(sent, 1200);
        if waited {
            flight.on_limited();
        }
        flight.on_ack(sent + ROUND_TRIP, sent, (ROUND_TRIP, ROUND_TRIP));
        sent + ROUND_TRIP
    }

    #[test]
    fn a_quiet_path_lets_a_flight_leave_within_a_part_of_the_round_trip() {
        let flight = FirstFlight::new(WINDOW, ROUND_TRIP);
        // 5 ms for 64 KiB.
        assert_eq!(flight.beyond(12_000, false), Some((WINDOW, WINDOW * 200)));
        assert_eq!(FirstFlight::new(0, ROUND_TRIP).beyond(12_000, false), None);
    }

    #[test]
    fn whoever_fills_the_window_has_it_for_one_round_trip() {
        let mut flight = FirstFlight::new(WINDOW, ROUND_TRIP);
        let now = round(&mut flight, start(), true);
        assert_eq!(flight.beyond(12_000, false), None);
        let now = round(&mut flight, now, true);
        assert_eq!(flight.beyond(12_000, false), None);
        round(&mut flight, now, false);
        assert!(flight.beyond(12_000, false).is_some(), "quiet again");
    }

    #[test]
    fn after_quiet_the_rate_is_not_that_of_who_had_little_to_send() {
        let mut flight = FirstFlight::new(WINDOW, ROUND_TRIP);
        let now = round(&mut flight, start(), false);
        let wide = 2 * WINDOW;
        assert_eq!(flight.beyond(wide, true), Some((wide, WINDOW * 200)));
        assert_eq!(flight.beyond(wide, false), Some((wide, WINDOW * 200)));
        assert_eq!(
            flight.beyond(WINDOW * 16, false),
            None,
            "the window is quicker"
        );
        assert_eq!(FirstFlight::new(0, ROUND_TRIP).beyond(wide, true), None);
        (0..WINDOW / 1024).for_each(|_| flight.on_packet_sent(now, 1024));
        assert_eq!(
            flight.beyond(wide, false),
            None,
            "what goes beyond is paced by the window"
        );
        assert!(flight.beyond(wide, true).is_some());
        round(&mut flight, now, true);
        assert_eq!(flight.beyond(wide, true), None);
    }

    #[test]
    fn the_round_ends_with_a_packet_of_its_own() {
        let mut flight = FirstFlight::new(WINDOW, ROUND_TRIP);
        let start = start();
        flight.on_packet_sent(start, 1200);
        flight.on_limited();
        let both = (ROUND_TRIP, ROUND_TRIP);
        flight.on_ack(start + ROUND_TRIP / 2, start - ROUND_TRIP / 2, both);
        assert!(flight.beyond(12_000, false).is_some());
        flight.on_ack(start + ROUND_TRIP, start, both);
        assert_eq!(flight.beyond(12_000, false), None);
    }

    #[test]
    fn after_a_loss_a_thin_stream_keeps_ten_packets_while_no_queue_stands() {
        let mut flight = FirstFlight::new(WINDOW, ROUND_TRIP);
        let now = start();
        flight.on_loss(now);
        let few = |flight: &FirstFlight| flight.beyond(5_000, false).map(|(window, _)| window);
        assert_eq!(few(&flight), Some(MIN_AFTER_LOSS));
        // A window that is waited for is not taken away below that.
        let later = round(&mut flight, now, true);
        assert_eq!(few(&flight), Some(MIN_AFTER_LOSS));
        flight.on_ack(later, now, (ROUND_TRIP * 2, ROUND_TRIP));
        assert_eq!(few(&flight), None, "a queue stands");
        let mut later = round(&mut flight, later, false);
        assert_eq!(few(&flight), Some(MIN_AFTER_LOSS));
        for _ in 0..BUSY_ROUNDS {
            later = round(&mut flight, later, true);
        }
        assert_eq!(few(&flight), None, "it is not thin");
        round(&mut flight, now + LOSS_FORGOTTEN_AFTER, false);
        assert_eq!(few(&flight), Some(WINDOW));
    }

    #[test]
    fn packets_that_were_only_late_are_no_loss() {
        let mut flight = FirstFlight::new(WINDOW, ROUND_TRIP);
        let now = start();
        flight.on_loss(now);
        flight.on_spurious_loss();
        round(&mut flight, now, false);
        assert_eq!(
            flight.beyond(12_000, false).map(|(window, _)| window),
            Some(WINDOW)
        );
    }
}
