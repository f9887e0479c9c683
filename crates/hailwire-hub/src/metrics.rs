//! Metrics in the text format of OpenMetrics, encoded by `prometheus-client`. All names begin with `hailwire_hub_`.

use std::{fmt, sync::atomic::Ordering};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::{directory::HubCounts, folder::InviteError, held::HeldCounts, hub::Hub};

/// The media type of the text.
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Hub {
    /// What Prometheus reads at a scrape.
    ///
    /// # Errors
    ///
    /// As [`Hub::counts`].
    pub async fn to_openmetrics(&self) -> Result<String, InviteError> {
        let relay = &self.relay.counters;
        let relayed = RelayTotals {
            opened: relay.accepts.get(),
            closed: relay.disconnects.get(),
            received_bytes: relay.bytes_recv.get(),
            sent_bytes: relay.bytes_sent.get(),
            dropped: relay.send_packets_dropped.get(),
            over_rate: self.relay.over_rate.load(Ordering::Relaxed),
        };
        let mut out = String::new();
        // Writing to a string does not fail.
        let (counts, held) = (self.counts().await?, self.held().await?);
        let _ = write(&mut out, counts, held, &relayed);
        Ok(out)
    }
}

/// What the relay has done since the hub started.
#[derive(Clone, Copy, Debug, Default)]
struct RelayTotals {
    opened: u64,
    closed: u64,
    received_bytes: u64,
    sent_bytes: u64,
    dropped: u64,
    over_rate: u64,
}

fn write(
    out: &mut String,
    counts: HubCounts,
    held: HeldCounts,
    relay: &RelayTotals,
) -> fmt::Result {
    let mut registry = Registry::with_prefix("hailwire_hub");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge("members", "Nodes that are members", counts.members);
    gauge(
        "records",
        "Members whose record is in force",
        counts.records,
    );
    gauge("names", "Names that are held", counts.names);
    gauge(
        "held_batches",
        "Sealed batches of messages that wait for members that are away",
        held.batches,
    );
    gauge("held_bytes", "Bytes of those", held.bytes);
    let open = relay.opened.saturating_sub(relay.closed);
    gauge("relay_connections", "Open connections to the relay", open);
    let mut counter = |name: &str, help: &str, unit: Option<Unit>, value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, counter),
            None => registry.register(name, help, counter),
        }
    };
    let bytes = || Some(Unit::Bytes);
    counter(
        "relay_received",
        "Payload that members sent to the relay",
        bytes(),
        relay.received_bytes,
    );
    counter(
        "relay_sent",
        "Payload that the relay passed on",
        bytes(),
        relay.sent_bytes,
    );
    counter(
        "relay_dropped_frames",
        "Frames for members that were not connected",
        None,
        relay.dropped,
    );
    counter(
        "relay_over_rate_frames",
        "Frames dropped because their sender was over its share of the relay's rate",
        None,
        relay.over_rate,
    );
    text::encode(out, &registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_written_under_our_prefix_with_its_unit() {
        let counts = HubCounts {
            members: 3,
            records: 2,
            names: 1,
        };
        let relay = RelayTotals {
            opened: 5,
            closed: 1,
            received_bytes: 70,
            sent_bytes: 60,
            dropped: 9,
            over_rate: 4,
        };
        let mut out = String::new();
        let held = HeldCounts {
            batches: 6,
            bytes: 24_576,
        };
        write(&mut out, counts, held, &relay).unwrap();
        let samples: Vec<&str> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "hailwire_hub_members 3",
                "hailwire_hub_records 2",
                "hailwire_hub_names 1",
                "hailwire_hub_held_batches 6",
                "hailwire_hub_held_bytes 24576",
                "hailwire_hub_relay_connections 4",
                "hailwire_hub_relay_received_bytes_total 70",
                "hailwire_hub_relay_sent_bytes_total 60",
                "hailwire_hub_relay_dropped_frames_total 9",
                "hailwire_hub_relay_over_rate_frames_total 4",
            ]
        );
        assert!(out.ends_with("# EOF\n"));
    }
}
