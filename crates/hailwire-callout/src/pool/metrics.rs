//! What a pool counts, as atomics.
//!
//! Every ask ends in exactly one of: an answer (by decision), a failure (by reason), or nobody waiting any more. Each is
//! counted under its phase, the kind of its event; how many were asked is their sum, so that an ask costs one addition
//! for its outcome and one for its duration.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use super::{PoolError, histogram::Histogram};
use crate::{event::Kind, response::Decision};

/// What only grows.
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

/// What goes up and down.
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

/// What a pool counts.
#[derive(Debug, Default)]
pub struct Metrics {
    phases: [Phase; Kind::ALL.len()],
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

/// One phase.
#[derive(Debug, Default)]
pub struct Phase {
    /// How long answers took, in microseconds.
    pub duration: Histogram,
    /// Answers by decision, in the order of [`DECISIONS`].
    pub decisions: [Counter; DECISIONS.len()],
    /// Failures by reason, in the order of [`FAILURES`].
    pub failures: [Counter; FAILURES.len()],
    /// Asks whose caller stopped waiting.
    pub abandoned: Counter,
}

/// The decisions, as labels.
pub const DECISIONS: [&str; 4] = ["allow", "block", "redirect", "challenge"];

/// The reasons of failures, as labels.
pub const FAILURES: [&str; 5] = ["timeout", "overload", "down", "failed", "too_large"];

impl Metrics {
    /// Those of one phase.
    #[inline]
    #[must_use]
    pub fn phase(&self, kind: Kind) -> &Phase {
        let [first, ..] = &self.phases;
        self.phases.get(kind as usize).unwrap_or(first)
    }

    #[inline]
    pub(super) fn answered(&self, kind: Kind, decision: &Decision, took: Duration) {
        let phase = self.phase(kind);
        phase
            .duration
            .record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        let at = match decision {
            Decision::Allow => 0,
            Decision::Block { .. } => 1,
            Decision::Redirect { .. } => 2,
            Decision::Challenge { .. } => 3,
        };
        if let Some(counter) = phase.decisions.get(at) {
            counter.increment();
        }
    }

    pub(super) fn failed(&self, kind: Kind, error: &PoolError) {
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

    /// All of them, as Prometheus reads them, labelled with the agent's name.
    #[must_use]
    pub fn to_prometheus(&self, agent: &str) -> String {
        let mut text = Exposition::new(agent);
        self.phases(&mut text);
        for (name, help, counter) in [
            (
                "connections_opened_total",
                "Connections that were opened.",
                &self.connected,
            ),
            (
                "connect_failures_total",
                "Attempts to connect that failed.",
                &self.connect_failed,
            ),
            (
                "connections_ended_total",
                "Connections that ended.",
                &self.disconnected,
            ),
            (
                "pauses_total",
                "Pauses that the agent asked for.",
                &self.paused,
            ),
            ("resumes_total", "Ends of such pauses.", &self.resumed),
            (
                "displaced_total",
                "Requests that changed their connection.",
                &self.displaced,
            ),
        ] {
            text.family(name, "counter", help);
            text.sample(name, &[], counter.value());
        }
        text.gauge(
            "connections",
            "Connections that are open.",
            self.open.value(),
        );
        text.finish()
    }

    fn phases(&self, text: &mut Exposition) {
        let phases = || {
            Kind::ALL
                .into_iter()
                .map(|kind| (kind.name(), self.phase(kind)))
        };
        text.family(
            "answers_total",
            "counter",
            "Answers, by phase and decision.",
        );
        for (name, phase) in phases() {
            for (decision, counter) in DECISIONS.into_iter().zip(&phase.decisions) {
                let labels = [("phase", name), ("decision", decision)];
                text.sample("answers_total", &labels, counter.value());
            }
        }
        text.family(
            "failures_total",
            "counter",
            "Asks without an answer, by phase and reason.",
        );
        for (name, phase) in phases() {
            for (reason, counter) in FAILURES.into_iter().zip(&phase.failures) {
                let labels = [("phase", name), ("reason", reason)];
                text.sample("failures_total", &labels, counter.value());
            }
        }
        text.family(
            "abandoned_total",
            "counter",
            "Asks whose caller stopped waiting.",
        );
        for (name, phase) in phases() {
            text.sample(
                "abandoned_total",
                &[("phase", name)],
                phase.abandoned.value(),
            );
        }
        text.family(
            "duration_seconds",
            "histogram",
            "From the ask to the answer.",
        );
        for (name, phase) in phases() {
            text.histogram("duration_seconds", name, &phase.duration);
        }
    }
}

/// Text as Prometheus reads it.
pub(super) struct Exposition {
    agent: String,
    text: String,
}

const PREFIX: &str = "hailwire_callout_";

/// The bounds of exported buckets, as powers of two of a microsecond: 8 µs to 67 s.
const POWERS: std::ops::RangeInclusive<u32> = 3..=26;

impl Exposition {
    pub(super) fn new(agent: &str) -> Self {
        Self {
            agent: escape(agent),
            text: String::new(),
        }
    }

    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(self.text, "# TYPE {PREFIX}{name} {kind}");
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: i64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    pub(super) fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        let _ = write!(self.text, "{PREFIX}{name}{{agent=\"{}\"", self.agent);
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn histogram(&mut self, name: &str, phase: &str, histogram: &Histogram) {
        let count = histogram.count();
        if count == 0 {
            return;
        }
        let bucket = format!("{name}_bucket");
        for power in POWERS {
            // Whole microseconds below a power of two are those up to one less.
            let bound = ((1_u64 << power) - 1) as f64 / 1e6;
            let labels = [("phase", phase), ("le", &bound.to_string())];
            self.sample(&bucket, &labels, histogram.below_power(power));
        }
        self.sample(&bucket, &[("phase", phase), ("le", "+Inf")], count);
        let labels = [("phase", phase)];
        self.sample(
            &format!("{name}_sum"),
            &labels,
            histogram.sum() as f64 / 1e6,
        );
        self.sample(&format!("{name}_count"), &labels, count);
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A label's value, with what would end it written out.
pub(super) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_exported_under_its_phase() {
        let metrics = Metrics::default();
        let (head, body) = (Kind::RequestHeaders, Kind::RequestBody);
        metrics.answered(head, &Decision::Allow, Duration::from_micros(100));
        metrics.failed(body, &PoolError::Timeout);
        metrics.phase(body).abandoned.increment();
        metrics.open.add(4);
        let text = metrics.to_prometheus("w\"af");
        for line in [
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="allow"} 1"#,
            r#"hailwire_callout_failures_total{agent="w\"af",phase="request_body_chunk",reason="timeout"} 1"#,
            r#"hailwire_callout_abandoned_total{agent="w\"af",phase="request_body_chunk"} 1"#,
            r#"hailwire_callout_duration_seconds_bucket{agent="w\"af",phase="request_headers",le="0.000063"} 0"#,
            r#"hailwire_callout_duration_seconds_bucket{agent="w\"af",phase="request_headers",le="0.000127"} 1"#,
            r#"hailwire_callout_duration_seconds_bucket{agent="w\"af",phase="request_headers",le="+Inf"} 1"#,
            r#"hailwire_callout_duration_seconds_count{agent="w\"af",phase="request_headers"} 1"#,
            r#"hailwire_callout_connections{agent="w\"af"} 4"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_family_is_announced_once() {
        let text = Metrics::default().to_prometheus("waf");
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
