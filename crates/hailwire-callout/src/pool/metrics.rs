//! The metrics of a pool, as atomics.
//!
//! Every request ends in exactly one of: an answer (by decision), a failure (by reason), or an abandoned wait. Each is
//! counted under its phase, the kind of its event; how many were asked is their sum. How long answers took is kept by
//! decision, and how many there were is the sum of that, so that a request costs one addition.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use prometheus_client::{metrics::MetricType, registry::Unit};

use super::{PoolError, histogram::LatencyHistogram};
use crate::{
    event::EventKind,
    exposition::{HistogramValue, MetricFamilies, MetricValue},
    response::Decision,
};

/// A counter: it only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// So many more.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How many.
    #[inline]
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A gauge: it goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets it.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// So many more, or fewer.
    #[inline]
    pub fn add(&self, count: i64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// What it is.
    #[inline]
    #[must_use]
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The metrics of a pool.
#[derive(Debug, Default)]
pub struct PoolMetrics {
    phases: [PhaseMetrics; EventKind::ALL.len()],
    /// Connections that were opened.
    pub connected: Counter,
    /// Attempts to open one that failed.
    pub connect_failed: Counter,
    /// Connections that ended.
    pub disconnected: Counter,
    /// How often the agent has paused a connection.
    pub paused: Counter,
    /// How often it went on.
    pub resumed: Counter,
    /// Requests that had to go on over another connection than the one they began on.
    pub displaced: Counter,
    /// Connections that are open.
    pub open: Gauge,
}

/// One phase, whose counters no other phase's share a cache line with.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PhaseMetrics {
    /// How long answers took, in microseconds, and by that how many there were: by decision, in the order of [`DECISIONS`].
    pub answers: [LatencyHistogram; DECISIONS.len()],
    /// Failures by reason, in the order of [`FAILURES`].
    pub failures: [Counter; FAILURES.len()],
    /// Requests whose caller stopped waiting.
    pub abandoned: Counter,
}

/// The decisions, as labels.
pub const DECISIONS: [&str; 4] = ["allow", "block", "redirect", "challenge"];

/// The reasons of failures, as labels.
pub const FAILURES: [&str; 5] = ["timeout", "overload", "down", "failed", "too_large"];

impl PoolMetrics {
    /// Those of one phase.
    #[inline]
    #[must_use]
    pub fn phase(&self, kind: EventKind) -> &PhaseMetrics {
        let [first, ..] = &self.phases;
        self.phases.get(kind as usize).unwrap_or(first)
    }

    #[inline]
    pub(super) fn answered(&self, kind: EventKind, decision: &Decision, took: Duration) {
        let [allow, block, redirect, challenge] = &self.phase(kind).answers;
        let answers = match decision {
            Decision::Allow => allow,
            Decision::Block { .. } => block,
            Decision::Redirect { .. } => redirect,
            Decision::Challenge { .. } => challenge,
        };
        answers.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn failed(&self, kind: EventKind, error: &PoolError) {
        let at = match error {
            PoolError::Timeout => 0,
            PoolError::Overload => 1,
            PoolError::Down => 2,
            PoolError::Failed(_) => 3,
            PoolError::TooLarge => 4,
        };
        if let Some(counter) = self.phase(kind).failures.get(at) {
            counter.increment();
        }
    }

    /// Adds all of them to a scrape, labelled with the agent's name.
    pub(super) fn expose(&self, agent: &str, families: &mut MetricFamilies) {
        self.expose_phases(agent, families);
        for (name, help, counter) in [
            (
                "callout_connections_opened_total",
                "Connections that were opened.",
                &self.connected,
            ),
            (
                "callout_connect_failures_total",
                "Attempts to connect that failed.",
                &self.connect_failed,
            ),
            (
                "callout_connections_ended_total",
                "Connections that ended.",
                &self.disconnected,
            ),
            (
                "callout_pauses_total",
                "Pauses that the agent asked for.",
                &self.paused,
            ),
            (
                "callout_resumes_total",
                "Ends of such pauses.",
                &self.resumed,
            ),
            (
                "callout_displaced_total",
                "Requests that changed their connection.",
                &self.displaced,
            ),
        ] {
            let value = MetricValue::Counter(counter.value());
            let family = families.own(name, MetricType::Counter, help, None);
            family.sample(agent, NO_LABELS, value);
        }
        let open = MetricValue::Gauge(self.open.value());
        families
            .own(
                "callout_connections",
                MetricType::Gauge,
                "Connections that are open.",
                None,
            )
            .sample(agent, NO_LABELS, open);
    }

    fn expose_phases(&self, agent: &str, families: &mut MetricFamilies) {
        let phases = || {
            EventKind::ALL
                .into_iter()
                .map(|kind| (("phase", kind.name()), self.phase(kind)))
        };
        let family = families.own(
            "callout_answers_total",
            MetricType::Counter,
            "Answers, by phase and decision.",
            None,
        );
        for (name, phase) in phases() {
            for (decision, answers) in DECISIONS.into_iter().zip(&phase.answers) {
                let answers = MetricValue::Counter(answers.count());
                family.sample(agent, [name, ("decision", decision)], answers);
            }
        }
        let family = families.own(
            "callout_failures_total",
            MetricType::Counter,
            "Requests without an answer, by phase and reason.",
            None,
        );
        for (name, phase) in phases() {
            for (reason, counter) in FAILURES.into_iter().zip(&phase.failures) {
                let failures = MetricValue::Counter(counter.value());
                family.sample(agent, [name, ("reason", reason)], failures);
            }
        }
        let family = families.own(
            "callout_abandoned_total",
            MetricType::Counter,
            "Requests whose caller stopped waiting.",
            None,
        );
        for (name, phase) in phases() {
            let abandoned = MetricValue::Counter(phase.abandoned.value());
            family.sample(agent, [name], abandoned);
        }
        let family = families.own(
            "callout_duration",
            MetricType::Histogram,
            "From the request to the answer.",
            Some(Unit::Seconds),
        );
        for (name, phase) in phases() {
            if let Some(durations) = durations(&phase.answers) {
                family.sample(agent, [name], MetricValue::Histogram(durations));
            }
        }
    }
}

/// For metrics that an agent has once.
pub(super) const NO_LABELS: [(&str, &str); 0] = [];

/// The bounds of exported buckets, as powers of two of a microsecond: 8 µs to 67 s.
const BUCKET_POWERS: std::ops::RangeInclusive<u32> = 3..=26;

/// Several histograms of microseconds as one of seconds; `None` where they are empty.
fn durations(histograms: &[LatencyHistogram]) -> Option<HistogramValue> {
    let all =
        |figure: &dyn Fn(&LatencyHistogram) -> u64| histograms.iter().map(figure).sum::<u64>();
    let up_to = BUCKET_POWERS.map(|power| {
        // Whole microseconds below a power of two are those up to one less.
        let bound = ((1_u64 << power) - 1) as f64 / 1e6;
        (bound, all(&|histogram| histogram.below_power(power)))
    });
    let up_to = up_to.collect();
    // Read after the buckets, so that it is not less than what they hold.
    let count = all(&LatencyHistogram::count);
    let sum = all(&LatencyHistogram::sum) as f64 / 1e6;
    (count > 0).then(|| HistogramValue::from_cumulative(sum, count, up_to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_exported_under_its_phase() {
        let metrics = PoolMetrics::default();
        let (head, body) = (EventKind::RequestHeaders, EventKind::RequestBody);
        metrics.answered(head, &Decision::Allow, Duration::from_micros(100));
        let redirect = Decision::Redirect {
            url: String::new(),
            status: 302,
        };
        metrics.answered(head, &redirect, Duration::from_micros(10));
        metrics.failed(body, &PoolError::Timeout);
        metrics.phase(body).abandoned.increment();
        metrics.open.add(4);
        let mut families = MetricFamilies::default();
        metrics.expose("w\"af", &mut families);
        let text = families.encode();
        for line in [
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="allow"} 1"#,
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="redirect"} 1"#,
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="block"} 0"#,
            r#"hailwire_callout_failures_total{agent="w\"af",phase="request_body_chunk",reason="timeout"} 1"#,
            r#"hailwire_callout_abandoned_total{agent="w\"af",phase="request_body_chunk"} 1"#,
            r#"hailwire_callout_duration_seconds_bucket{le="0.000063",agent="w\"af",phase="request_headers"} 1"#,
            r#"hailwire_callout_duration_seconds_bucket{le="0.000127",agent="w\"af",phase="request_headers"} 2"#,
            r#"hailwire_callout_duration_seconds_bucket{le="+Inf",agent="w\"af",phase="request_headers"} 2"#,
            r#"hailwire_callout_duration_seconds_count{agent="w\"af",phase="request_headers"} 2"#,
            r#"hailwire_callout_connections{agent="w\"af"} 4"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_family_is_announced_once() {
        let mut families = MetricFamilies::default();
        for agent in ["waf", "limit"] {
            let metrics = PoolMetrics::default();
            metrics.answered(EventKind::Guardrail, &Decision::Allow, Duration::ZERO);
            metrics.expose(agent, &mut families);
        }
        let text = families.encode();
        let mut types: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        let all = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!((types.len(), all), (11, 11));
    }
}
