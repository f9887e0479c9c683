//! The congestion control of a path (`quic { congestion "auto" }`), and its first window.
//!
//! On a path of some length a lost packet is mostly chance or a competitor, and BBR, which models the path,
//! keeps its rate; CUBIC halves it again and again. Within a building a loss means that a buffer ran
//! over, and CUBIC, which backs off at once, wins. So where the round trip is to choose, both are told of everything
//! until a few round trips were measured, which is about as long as the handshake; then one of them stays.
//! Each path of a connection has a controller of its own and chooses for itself. Whichever
//! controls, a flight after quiet may be larger than it says ([`super::opening`]).

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use iroh::endpoint::{Controller, ControllerFactory, ControllerMetrics, RttEstimator};
use noq::congestion::CubicConfig;

use super::{bbr::Bbr, opening::Opening};
use crate::config::Congestion;

/// Round trip from which a path counts as long.
const LONG: Duration = Duration::from_millis(5);

/// Long round trips, with no short one among them, after which it does.
const LONG_ONES: u32 = 4;

/// Makes a controller for each path.
#[derive(Debug)]
pub(crate) struct ForEachPath {
    /// Who controls.
    pub(crate) congestion: Congestion,
    /// Bytes that may be in flight after quiet.
    pub(crate) initial_window: u64,
    /// What a round trip is taken for before there is one.
    pub(crate) initial_rtt: Duration,
}

impl ControllerFactory for ForEachPath {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = || Arc::new(CubicConfig::default()).build(now, current_mtu);
        let bbr = || -> Box<dyn Controller> {
            Box::new(Bbr::new(now, current_mtu, None, self.initial_rtt))
        };
        let (kept, other) = match self.congestion {
            Congestion::Auto => (cubic(), Some(bbr())),
            Congestion::Cubic => (cubic(), None),
            Congestion::Bbr => (bbr(), None),
        };
        Box::new(Chosen {
            kept,
            other,
            long: 0,
            opening: Opening::new(self.initial_window, self.initial_rtt),
        })
    }
}

/// One controller, or CUBIC with BBR beside it until one of them is chosen.
#[derive(Debug)]
struct Chosen {
    kept: Box<dyn Controller>,
    /// BBR, until the choice is made.
    other: Option<Box<dyn Controller>>,
    /// Long round trips seen so far.
    long: u32,
    opening: Opening,
}

impl Chosen {
    fn both(&mut self, mut tell: impl FnMut(&mut dyn Controller)) {
        tell(self.kept.as_mut());
        if let Some(other) = &mut self.other {
            tell(other.as_mut());
        }
    }

    /// One short round trip shows that the path is short; a long one may have other reasons.
    fn choose(&mut self, round_trip: Duration) {
        if round_trip < LONG {
            self.other = None;
            return;
        }
        self.long += 1;
        if self.long >= LONG_ONES
            && let Some(bbr) = self.other.take()
        {
            self.kept = bbr;
        }
    }
}

impl Controller for Chosen {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.both(|c| c.on_sent(now, bytes, largest_pn));
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.opening.on_packet_sent(now);
        self.both(|c| c.on_packet_sent(now, bytes, pn));
    }

    fn on_cwnd_limited(&mut self) {
        self.opening.on_limited();
        self.both(|c| c.on_cwnd_limited());
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
        self.opening.on_ack(now, sent, (rtt.get(), rtt.min()));
        self.both(|c| c.on_ack(now, sent, bytes, pn, app_limited, rtt));
        if self.other.is_some() {
            self.choose(now.saturating_duration_since(sent));
        }
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.both(|c| c.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked));
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
        self.opening.on_loss(now);
        self.both(|c| {
            c.on_congestion_event(
                now,
                sent,
                is_persistent_congestion,
                is_ecn,
                lost_bytes,
                largest_lost_pn,
            );
        });
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        self.both(|c| c.on_packet_lost(lost_bytes, pn, now));
    }

    fn on_spurious_congestion_event(&mut self) {
        self.opening.on_spurious_loss();
        self.both(|c| c.on_spurious_congestion_event());
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.both(|c| c.on_mtu_update(new_mtu));
    }

    fn on_ack_frequency_update(&mut self, threshold: u64, requested_max_ack_delay: Duration) {
        self.both(|c| c.on_ack_frequency_update(threshold, requested_max_ack_delay));
    }

    fn window(&self) -> u64 {
        let window = self.kept.window();
        self.opening
            .beyond(window, false)
            .map_or(window, |(window, _)| window)
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.kept.metrics();
        let paced = metrics.pacing_rate.is_some();
        if let Some((window, rate)) = self.opening.beyond(metrics.congestion_window, paced) {
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
            other: self.other.as_ref().map(|other| other.clone_box()),
            long: self.long,
            opening: self.opening.clone(),
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

    fn chosen(round_trips: &[Duration]) -> Box<dyn Any> {
        let now = Instant::now();
        let mut controller = controller(now);
        controller.on_packet_sent(now, 1200, 0);
        for round_trip in round_trips {
            controller.choose(*round_trip);
        }
        assert!(controller.other.is_none() && controller.window() > 0);
        Box::new(controller).into_any()
    }

    fn controller(now: Instant) -> Chosen {
        Chosen {
            kept: Arc::new(CubicConfig::default()).build(now, 1200),
            other: Some(Box::new(Bbr::new(now, 1200, None, LONG))),
            long: 0,
            opening: Opening::new(1 << 16, Duration::from_millis(80)),
        }
    }

    #[test]
    fn a_short_path_keeps_cubic_and_a_long_one_takes_bbr() {
        let short = Duration::from_micros(300);
        assert!(chosen(&[short]).is::<Cubic>());
        assert!(chosen(&[LONG * 4, LONG, short, LONG, LONG, LONG]).is::<Cubic>());
        assert!(chosen(&[LONG; 4]).is::<Bbr3>());
    }

    #[test]
    fn the_first_window_is_open_at_a_rate_of_its_own_until_something_is_lost() {
        let now = Instant::now();
        let mut controller = controller(now);
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
