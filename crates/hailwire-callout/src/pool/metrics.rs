//! The metrics of a pool, as atomics.
//!
//! Every request ends in exactly one of: an answer (by decision), a failure (by reason), or an abandoned wait. Each is
//! counted under its phase, the kind of its event; how many were asked is their sum. How long answers took is kept by
//! decision, and how many there were is the sum of that, so that a request costs one addition.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Write as _},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use super::{PoolError, histogram::LatencyHistogram};
use crate::{event::EventKind, response::Decision};

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

    /// All of them, as Prometheus reads them, labelled with the agent's name.
    #[must_use]
    pub fn to_prometheus(&self, agent: &str) -> String {
        let mut text = PrometheusText::default();
        self.expose(agent, &mut text);
        text.finish()
    }

    pub(super) fn expose(&self, agent: &str, text: &mut PrometheusText) {
        self.expose_phases(agent, text);
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
            let family = text.family(name, MetricType::Counter, help);
            family.sample(agent, "", &[], counter.value());
        }
        text.family(
            "connections",
            MetricType::Gauge,
            "Connections that are open.",
        )
        .sample(agent, "", &[], self.open.value());
    }

    fn expose_phases(&self, agent: &str, text: &mut PrometheusText) {
        let phases = || {
            EventKind::ALL
                .into_iter()
                .map(|kind| (kind.name(), self.phase(kind)))
        };
        let family = text.family(
            "answers_total",
            MetricType::Counter,
            "Answers, by phase and decision.",
        );
        for (name, phase) in phases() {
            for (decision, answers) in DECISIONS.into_iter().zip(&phase.answers) {
                let labels = [("phase", name), ("decision", decision)];
                family.sample(agent, "", &labels, answers.count());
            }
        }
        let family = text.family(
            "failures_total",
            MetricType::Counter,
            "Requests without an answer, by phase and reason.",
        );
        for (name, phase) in phases() {
            for (reason, counter) in FAILURES.into_iter().zip(&phase.failures) {
                let labels = [("phase", name), ("reason", reason)];
                family.sample(agent, "", &labels, counter.value());
            }
        }
        let family = text.family(
            "abandoned_total",
            MetricType::Counter,
            "Requests whose caller stopped waiting.",
        );
        for (name, phase) in phases() {
            family.sample(agent, "", &[("phase", name)], phase.abandoned.value());
        }
        let family = text.family(
            "duration_seconds",
            MetricType::Histogram,
            "From the request to the answer.",
        );
        for (name, phase) in phases() {
            family.histogram(agent, name, &phase.answers);
        }
    }
}

/// The text format of Prometheus: the samples that several pools have of one metric stand together, under one header.
#[derive(Debug, Default)]
pub struct PrometheusText(BTreeMap<String, MetricFamily>);

/// The samples of one metric name.
#[derive(Debug)]
pub(super) struct MetricFamily {
    name: String,
    kind: MetricType,
    help: String,
    samples: String,
}

/// The type of a metric, as its `# TYPE` line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

impl Display for MetricType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// What the names of everything that pools count themselves begin with; nothing that an agent reports may.
pub const PREFIX: &str = "hailwire_callout_";

/// The bounds of exported buckets, as powers of two of a microsecond: 8 µs to 67 s.
const BUCKET_POWERS: std::ops::RangeInclusive<u32> = 3..=26;

impl PrometheusText {
    /// One of the pool's own families.
    pub(super) fn family(&mut self, name: &str, kind: MetricType, help: &str) -> &mut MetricFamily {
        self.0
            .entry(format!("{PREFIX}{name}"))
            .or_insert_with_key(|name| MetricFamily::new(name, kind, help))
    }

    /// A family that an agent reports; `None` where another has that name for something of another kind.
    pub(super) fn reported(
        &mut self,
        name: &str,
        kind: MetricType,
        help: &str,
    ) -> Option<&mut MetricFamily> {
        let family = self
            .0
            .entry(name.to_owned())
            .or_insert_with_key(|name| MetricFamily::new(name, kind, help));
        (family.kind == kind).then_some(family)
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        let mut text = String::new();
        for family in self.0.into_values() {
            if family.samples.is_empty() {
                continue;
            }
            if !family.help.is_empty() {
                let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
                let _ = writeln!(text, "# HELP {} {help}", family.name);
            }
            let _ = writeln!(text, "# TYPE {} {}", family.name, family.kind);
            text.push_str(&family.samples);
        }
        text
    }
}

impl MetricFamily {
    fn new(name: &str, kind: MetricType, help: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            help: help.to_owned(),
            samples: String::new(),
        }
    }

    pub(super) fn sample(
        &mut self,
        agent: &str,
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        let text = &mut self.samples;
        let _ = write!(text, "{}{suffix}{{agent=\"{}\"", self.name, escape(agent));
        for (label, value) in labels {
            let _ = write!(text, ",{label}=\"{}\"", escape(value));
        }
        let _ = writeln!(text, "}} {value}");
    }

    /// Several histograms as one.
    fn histogram(&mut self, agent: &str, phase: &str, histograms: &[LatencyHistogram]) {
        let all =
            |figure: &dyn Fn(&LatencyHistogram) -> u64| histograms.iter().map(figure).sum::<u64>();
        let count = all(&LatencyHistogram::count);
        if count == 0 {
            return;
        }
        for power in BUCKET_POWERS {
            // Whole microseconds below a power of two are those up to one less.
            let bound = ((1_u64 << power) - 1) as f64 / 1e6;
            let labels = [("phase", phase), ("le", &bound.to_string())];
            let below = all(&|histogram| histogram.below_power(power));
            self.sample(agent, "_bucket", &labels, below);
        }
        self.sample(agent, "_bucket", &[("phase", phase), ("le", "+Inf")], count);
        let labels = [("phase", phase)];
        self.sample(
            agent,
            "_sum",
            &labels,
            all(&LatencyHistogram::sum) as f64 / 1e6,
        );
        self.sample(agent, "_count", &labels, count);
    }
}

/// A label's value, with what would end it written out.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
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
        let text = metrics.to_prometheus("w\"af");
        for line in [
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="allow"} 1"#,
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="redirect"} 1"#,
            r#"hailwire_callout_answers_total{agent="w\"af",phase="request_headers",decision="block"} 0"#,
            r#"hailwire_callout_failures_total{agent="w\"af",phase="request_body_chunk",reason="timeout"} 1"#,
            r#"hailwire_callout_abandoned_total{agent="w\"af",phase="request_body_chunk"} 1"#,
            r#"hailwire_callout_duration_seconds_bucket{agent="w\"af",phase="request_headers",le="0.000063"} 1"#,
            r#"hailwire_callout_duration_seconds_bucket{agent="w\"af",phase="request_headers",le="0.000127"} 2"#,
            r#"hailwire_callout_duration_seconds_bucket{agent="w\"af",phase="request_headers",le="+Inf"} 2"#,
            r#"hailwire_callout_duration_seconds_count{agent="w\"af",phase="request_headers"} 2"#,
            r#"hailwire_callout_connections{agent="w\"af"} 4"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_family_is_announced_once() {
        let mut text = PrometheusText::default();
        for agent in ["waf", "limit"] {
            let metrics = PoolMetrics::default();
            metrics.answered(EventKind::Guardrail, &Decision::Allow, Duration::ZERO);
            metrics.expose(agent, &mut text);
        }
        let text = text.finish();
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
