//! BBR as the engine has it, kept from what it would take for a short round trip.
//!
//! BBR allows in flight what fits into the least round trip that it has seen in ten seconds. If it believes in one that
//! is too short, a path moves a tenth of what it could, and stays there as long as calls are short. The engine's
//! (noq-proto 1.4) comes to that in two ways, both at the very beginning of a path:
//!
//! - The first acknowledgement comes before the first round trip is computed, and it then takes the one that
//!   is assumed (`initial_rtt`) for measured. So it is told of what has arrived once there is a measured one.
//! - It is told packet numbers without the space they belong to, and each of the three spaces of a handshake counts from
//!   0 (RFC 9000, 12.3). Where a packet of the handshake was sent again, the acknowledgement of an early one
//!   finds the late one of the same number, and the round trip lacks the time between. So it is told only of packets whose number
//!   is larger than any before: what a number finds is then never later than what was acknowledged.
//!
//! The few packets that it does not hear of are the first ones of a connection, and what is in flight it is told anew with each
//! acknowledgement.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use iroh::endpoint::{Controller, ControllerFactory, ControllerMetrics, RttEstimator};
use noq::congestion::Bbr3Config;

/// The engine's BBR, told what it can bear.
#[derive(Debug)]
pub(super) struct BoundedBbr {
    engine: Box<dyn Controller>,
    input: BbrInput,
}

impl BoundedBbr {
    /// Begins with a window, or with its own, on a path whose round trip is taken for `assumed` until one is measured.
    pub(super) fn new(now: Instant, mtu: u16, window: Option<u64>, assumed: Duration) -> Self {
        let mut config = Bbr3Config::default();
        if let Some(window) = window {
            config.initial_window(window);
        }
        Self {
            engine: Arc::new(config).build(now, mtu),
            input: BbrInput {
                assumed,
                largest: None,
            },
        }
    }
}

/// What it is told of.
#[derive(Clone, Debug)]
struct BbrInput {
    /// The round trip that is no measured one.
    assumed: Duration,
    /// The largest packet number so far.
    largest: Option<u64>,
}

impl BbrInput {
    /// Of a packet that was sent?
    fn sent(&mut self, number: u64) -> bool {
        let new = self.largest.is_none_or(|largest| number > largest);
        if new {
            self.largest = Some(number);
        }
        new
    }

    /// Of one that has arrived, while this is the round trip?
    fn arrived(&self, round_trip: Duration) -> bool {
        round_trip != self.assumed
    }
}

impl Controller for BoundedBbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.engine.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if self.input.sent(pn) {
            self.engine.on_packet_sent(now, bytes, pn);
        }
    }

    fn on_cwnd_limited(&mut self) {
        self.engine.on_cwnd_limited();
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
        if self.input.arrived(rtt.get()) {
            self.engine.on_ack(now, sent, bytes, pn, app_limited, rtt);
        }
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.engine
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
        self.engine.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            largest_lost_pn,
        );
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        self.engine.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.engine.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.engine.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, threshold: u64, requested_max_ack_delay: Duration) {
        self.engine
            .on_ack_frequency_update(threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.engine.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.engine.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            engine: self.engine.clone_box(),
            input: self.input.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.engine.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.engine.into_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSUMED: Duration = Duration::from_millis(30);

    fn input() -> BbrInput {
        BbrInput {
            assumed: ASSUMED,
            largest: None,
        }
    }

    #[test]
    fn a_number_that_was_used_in_another_space_means_the_packet_that_was_sent_first() {
        let mut told = input();
        // Two of the first space, two of the second, one of the first sent again, and data.
        let sent = [0, 1, 0, 1, 2, 0, 1, 2, 3, 4];
        let heard: Vec<u64> = sent.into_iter().filter(|pn| told.sent(*pn)).collect();
        assert_eq!(heard, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_assumed_round_trip_is_not_taken_for_a_measured_one() {
        let told = input();
        assert!(!told.arrived(ASSUMED));
        assert!(told.arrived(ASSUMED * 3));
        assert!(told.arrived(ASSUMED / 3));
    }

    #[test]
    fn it_begins_with_the_window_that_it_is_given() {
        let now = Instant::now();
        assert_eq!(
            BoundedBbr::new(now, 1200, Some(90_000), ASSUMED).window(),
            90_000
        );
        assert!(BoundedBbr::new(now, 1200, None, ASSUMED).window() < 15_000);
    }
}
