//! The congestion control of a path (`quic { congestion "auto" }`), and its first window.
//!
//! A packet is lost because a queue ran over, or by chance, as on a radio link. CUBIC backs off at each loss, which is
//! right for the first kind; where packets are lost by chance it hardly moves anything, and BBR, which models the path,
//! keeps its rate. On a clean path CUBIC is at least as fast, and cheaper. So `auto` begins with CUBIC and goes over to
//! BBR for good when a few losses came soon after one another and no queue stood at any of them. A queue shows in
//! the round trip, and not in that of single packets, which has other reasons to wander: where one stands, even the
//! quickest packet of a round is late (BBR and Copa look for the least of a time in the same way). Within a
//! building the round trip is too short to show anything, a loss means that a buffer ran over, and CUBIC stays.
//!
//! Each path of a connection has a controller of its own and chooses for itself. Whichever
//! controls, a flight after quiet may be larger than it says ([`super::opening`]).

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use iroh::endpoint::{Controller, ControllerFactory, ControllerMetrics, RttEstimator};
use noq::congestion::CubicConfig;

use super::bbr::BoundedBbr;
use crate::config::CongestionControl;
use hailwire_core::first_flight::FirstFlight;

/// Round trip from which a loss may be told from a buffer's.
const LONG: Duration = Duration::from_millis(5);

/// Losses without a queue after which BBR controls.
const BY_CHANCE: u32 = 3;

/// Losses that are further apart have nothing to do with one another.
const SOON: Duration = Duration::from_secs(10);

/// Part of the least round trip by which even the quickest packet of a round is late where a queue stands.
const QUEUE_PART: u32 = 4;

/// Makes a controller for each path.
#[derive(Debug)]
pub(crate) struct ForEachPath {
    /// Who controls.
    pub(crate) congestion: CongestionControl,
    /// Bytes that may be in flight after quiet.
    pub(crate) initial_window: u64,
    /// What a round trip is taken for before there is one.
    pub(crate) initial_rtt: Duration,
}

impl ControllerFactory for ForEachPath {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let kept: Box<dyn Controller> = match self.congestion {
            CongestionControl::Auto | CongestionControl::Cubic => {
                Arc::new(CubicConfig::default()).build(now, current_mtu)
            }
            CongestionControl::Bbr => {
                Box::new(BoundedBbr::new(now, current_mtu, None, self.initial_rtt))
            }
        };
        Box::new(PathController {
            kept,
            losses: (self.congestion == CongestionControl::Auto).then(RandomLosses::default),
            mtu: current_mtu,
            acks: None,
            initial_rtt: self.initial_rtt,
            first_flight: FirstFlight::new(self.initial_window, self.initial_rtt),
        })
    }
}

/// Who controls a path, and what may still make it BBR.
#[derive(Debug)]
struct PathController {
    kept: Box<dyn Controller>,
    /// What was lost, while it is open who controls.
    losses: Option<RandomLosses>,
    /// The largest packet.
    mtu: u16,
    /// What the peer was asked for: packets and time that may go by unanswered.
    acks: Option<(u64, Duration)>,
    initial_rtt: Duration,
    first_flight: FirstFlight,
}

/// Losses that no queue explains.
#[derive(Clone, Debug, Default)]
struct RandomLosses {
    /// When this round began, and how long its quickest packet took.
    round: Option<(Instant, Duration)>,
    /// How long the quickest of the round before took.
    before: Option<Duration>,
    /// The shortest round trip of the path.
    least: Duration,
    /// How many there were, soon after one another and at least a round trip apart.
    count: u32,
    /// When the last one was noticed.
    last: Option<Instant>,
    /// The window at the first of them.
    window: u64,
}

impl RandomLosses {
    /// A packet that was sent at `sent` has arrived; `least` is the shortest round trip so far.
    fn on_ack(&mut self, now: Instant, sent: Instant, least: Duration) {
        let took = now.saturating_duration_since(sent);
        self.least = least;
        self.round = match self.round {
            Some((begun, quickest)) if sent < begun => Some((begun, quickest.min(took))),
            ended => {
                self.before = ended.map(|(_, quickest)| quickest);
                Some((now, took))
            }
        };
    }

    /// What was sent at `sent` is lost, with `window` bytes allowed in flight. The window at which BBR is to begin, if
    /// that was one loss too many.
    fn on_loss(&mut self, now: Instant, sent: Instant, window: u64) -> Option<u64> {
        let (_, quickest) = self.round?;
        let quickest = self.before?.min(quickest);
        let queue = quickest > self.least + self.least / QUEUE_PART;
        if queue || self.least < LONG || self.last.is_some_and(|last| sent <= last) {
            return None;
        }
        let soon = |last| now.saturating_duration_since(last) < SOON;
        if !self.last.is_some_and(soon) {
            self.count = 0;
            self.window = window;
        }
        self.count += 1;
        self.last = Some(now);
        (self.count >= BY_CHANCE).then_some(self.window)
    }
}

impl PathController {
    /// Has BBR control from now on, beginning with a window.
    fn take_bbr(&mut self, now: Instant, window: u64) {
        let mut bbr = BoundedBbr::new(now, self.mtu, Some(window), self.initial_rtt);
        if let Some((threshold, delay)) = self.acks {
            bbr.on_ack_frequency_update(threshold, delay);
        }
        self.kept = Box::new(bbr);
        self.losses = None;
        tracing::debug!(window, "losses without a queue: BBR controls the path");
    }
}

impl Controller for PathController {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.kept.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.first_flight.on_packet_sent(now, bytes);
        self.kept.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
        self.first_flight.on_limited();
        self.kept.on_cwnd_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.first_flight.on_ack(now, sent, (rtt.get(), rtt.min()));
        if let Some(losses) = &mut self.losses {
            losses.on_ack(now, sent, rtt.min());
        }
        self.kept.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.kept
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        self.first_flight.on_loss(now);
        let window = self.kept.window();
        self.kept.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            largest_lost_pn,
        );
        if let Some(losses) = &mut self.losses
            && !is_ecn
            && let Some(window) = losses.on_loss(now, sent, window)
        {
            self.take_bbr(now, window);
        }
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        self.kept.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.first_flight.on_spurious_loss();
        self.kept.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.kept.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, threshold: u64, requested_max_ack_delay: Duration) {
        self.acks = Some((threshold, requested_max_ack_delay));
        self.kept
            .on_ack_frequency_update(threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        let window = self.kept.window();
        self.first_flight
            .beyond(window, false)
            .map_or(window, |(window, _)| window)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.kept.metrics();
        let paced = metrics.pacing_rate.is_some();
        if let Some((window, rate)) = self.first_flight.beyond(metrics.congestion_window, paced) {
            // A window that sets no rate of its own goes out within the round trip: slower than this.
            let rate = metrics.pacing_rate.unwrap_or(0).max(rate);
            metrics.congestion_window = window;
            metrics.pacing_rate = Some(rate);
            // What leaves in a millisecond is handed over at once (draft-ietf-ccwg-bbr, 5.6.3).
            metrics.send_quantum = metrics.send_quantum.map(|q| q.max(rate / 1000));
        }
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            kept: self.kept.clone_box(),
            losses: self.losses.clone(),
            mtu: self.mtu,
            acks: self.acks,
            initial_rtt: self.initial_rtt,
            first_flight: self.first_flight.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.kept.initial_window().max(self.window())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.kept.into_any()
    }
}

#[cfg(test)]
mod tests {
    use noq::congestion::{Bbr3, Cubic};

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ROUND_TRIP: Duration = Duration::from_millis(80);

    fn controller(congestion: CongestionControl, now: Instant) -> Box<dyn Controller> {
        let factory = ForEachPath {
            congestion,
            initial_window: 1 << 16,
            initial_rtt: ROUND_TRIP,
        };
        Arc::new(factory).build(now, 1200)
    }

    fn chosen(now: Instant) -> PathController {
        PathController {
            kept: Arc::new(CubicConfig::default()).build(now, 1200),
            losses: Some(RandomLosses::default()),
            mtu: 1200,
            acks: Some((1, MS)),
            initial_rtt: ROUND_TRIP,
            first_flight: FirstFlight::new(1 << 16, ROUND_TRIP),
        }
    }

    /// A path: what the round trips of its packets are, the shortest of all, and when this was.
    struct PathRoundTrips {
        losses: RandomLosses,
        least: Duration,
        now: Instant,
    }

    impl PathRoundTrips {
        fn new(least: Duration) -> Self {
            Self {
                losses: RandomLosses::default(),
                least,
                now: Instant::now(),
            }
        }

        /// Packets arrive that took so long, all sent since the last round.
        fn round(&mut self, took: &[Duration]) {
            let begun = self.now;
            for took in took {
                self.now = self.now.max(begun + *took);
                self.losses.on_ack(self.now, self.now - *took, self.least);
            }
        }

        /// Whether BBR takes over at a loss of a packet that was sent a round trip ago.
        fn lose(&mut self, window: u64) -> Option<u64> {
            self.losses.on_loss(self.now, self.now - self.least, window)
        }
    }

    #[test]
    fn whoever_is_named_controls_and_auto_begins_with_cubic() {
        let now = Instant::now();
        let control = |congestion| controller(congestion, now).into_any();
        assert!(control(CongestionControl::Bbr).is::<Bbr3>());
        assert!(control(CongestionControl::Cubic).is::<Cubic>());
        assert!(control(CongestionControl::Auto).is::<Cubic>());
    }

    #[test]
    fn bbr_takes_over_after_losses_by_chance_with_the_window_of_before() {
        let mut path = PathRoundTrips::new(ROUND_TRIP);
        // The round trip wanders, but its quickest packets are as quick as ever.
        let wander = [ROUND_TRIP, ROUND_TRIP * 2, ROUND_TRIP * 3 / 2];
        path.round(&wander);
        path.round(&wander);
        assert_eq!(path.lose(90_000), None);
        path.round(&wander);
        assert_eq!(path.lose(60_000), None);
        path.round(&wander);
        assert_eq!(path.lose(40_000), Some(90_000));
    }

    #[test]
    fn losses_from_a_queue_leave_cubic_in_control() {
        let mut path = PathRoundTrips::new(ROUND_TRIP);
        path.round(&[ROUND_TRIP]);
        for _ in 0..20 {
            // The queue fills within a round; then even the quickest packet has stood in it.
            path.round(&[ROUND_TRIP * 3 / 2, ROUND_TRIP * 2]);
            path.round(&[ROUND_TRIP * 3 / 2, ROUND_TRIP * 2]);
            assert_eq!(path.lose(90_000), None);
        }
    }

    #[test]
    fn losses_of_one_round_trip_count_once_and_old_ones_not_at_all() {
        let mut path = PathRoundTrips::new(ROUND_TRIP);
        path.round(&[ROUND_TRIP]);
        path.round(&[ROUND_TRIP]);
        for _ in 0..9 {
            assert_eq!(path.lose(90_000), None, "sent before the first was noticed");
        }
        for _ in 0..9 {
            path.now += SOON;
            path.round(&[ROUND_TRIP]);
            assert_eq!(path.lose(50_000), None);
        }
    }

    #[test]
    fn within_a_building_a_loss_is_a_buffers() {
        let mut path = PathRoundTrips::new(LONG / 2);
        for _ in 0..20 {
            path.round(&[LONG / 2]);
            assert_eq!(path.lose(90_000), None);
        }
    }

    #[test]
    fn once_taken_bbr_stays() {
        let now = Instant::now();
        let mut chosen = chosen(now);
        chosen.take_bbr(now, 90_000);
        assert!(chosen.losses.is_none());
        assert_eq!(chosen.kept.window(), 90_000);
        assert!(Box::new(chosen).into_any().is::<Bbr3>());
    }

    #[test]
    fn the_first_window_is_open_at_a_rate_of_its_own_until_something_is_lost() {
        let now = Instant::now();
        let mut controller = chosen(now);
        let control = controller.kept.window();
        assert!(control < 1 << 16);
        assert_eq!(controller.window(), 1 << 16);
        let metrics = controller.metrics();
        assert_eq!(metrics.congestion_window, 1 << 16);
        assert_eq!(metrics.pacing_rate, Some(200 << 16));
        controller.on_packet_sent(now, 1200, 0);
        controller.on_congestion_event(now, now, false, false, 1200, 0);
        assert!(controller.window() < 1 << 16);
    }
}
