//! The metrics that agents report of themselves.
//!
//! A report is from outside, so everything about it is bounded: so many series, each forgotten when no report has
//! named it for a while; names as Prometheus has them and not too long, what is not such a name is left out; so many buckets a
//! histogram. A report replaces what the last one said of its series.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::metrics::MetricType;

use super::metrics::Counter;
use crate::{
    control::{HistogramMetric, MetricsReport},
    exposition::{HistogramValue, MetricFamilies, MetricValue, is_reserved},
};

/// Series that are kept; more are left out and counted.
pub const MAX_SERIES: usize = 10_000;

/// How long a series is kept that no report names.
pub const SERIES_TTL: Duration = Duration::from_secs(300);

/// Bytes of a name, a label or a help text; with more, the series is left out, or the help cut off.
pub const MAX_TEXT: usize = 512;

/// Labels of a series.
pub const MAX_LABELS: usize = 32;

/// Buckets of a histogram.
pub const MAX_BUCKETS: usize = 256;

/// The collection.
#[derive(Debug, Default)]
pub struct ReportedMetrics {
    series: Mutex<HashMap<SeriesKey, ReportedSeries>>,
    /// Series of reports that were left out, since there were too many or they were not sound.
    pub left_out: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct SeriesKey {
    name: String,
    labels: BTreeMap<String, String>,
}

#[derive(Debug)]
struct ReportedSeries {
    help: Option<String>,
    value: SeriesValue,
    seen: Duration,
}

#[derive(Debug)]
enum SeriesValue {
    Counter(u64),
    Gauge(f64),
    Histogram(HistogramMetric),
}

impl SeriesValue {
    const fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }

    fn exposed(&self) -> MetricValue {
        match self {
            Self::Counter(value) => MetricValue::Counter(*value),
            Self::Gauge(value) => MetricValue::Measure(*value),
            Self::Histogram(histogram) => {
                let buckets = histogram.buckets.iter();
                // What is not a number is taken for the last bucket, which follows in any case.
                let up_to = buckets.filter_map(|bucket| Some((bucket.le.as_f64()?, bucket.count)));
                MetricValue::Histogram(HistogramValue::from_cumulative(
                    histogram.sum,
                    histogram.count,
                    up_to.collect(),
                ))
            }
        }
    }
}

impl ReportedMetrics {
    /// Takes a report in.
    pub fn record(&self, report: MetricsReport, now: Duration) {
        let mut series = self.series();
        let counters = report.counters.into_iter();
        let counters = counters.map(|m| (m.name, m.labels, m.help, SeriesValue::Counter(m.value)));
        let gauges = report.gauges.into_iter();
        let gauges = gauges.map(|m| (m.name, m.labels, m.help, SeriesValue::Gauge(m.value)));
        for (name, labels, help, value) in counters.chain(gauges) {
            self.put(&mut series, name, labels, help, value, now);
        }
        for mut histogram in report.histograms {
            let name = std::mem::take(&mut histogram.name);
            let labels = std::mem::take(&mut histogram.labels);
            let help = histogram.help.take();
            let value = SeriesValue::Histogram(histogram);
            self.put(&mut series, name, labels, help, value, now);
        }
    }

    /// How many series there are that have not expired.
    #[must_use]
    pub fn len(&self, now: Duration) -> usize {
        let mut series = self.series();
        expire(&mut series, now);
        series.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self, now: Duration) -> bool {
        self.len(now) == 0
    }

    /// Adds all series to a scrape, labelled with the agent's name. Those of one name that differ in their type from the
    /// first are left out.
    pub(super) fn expose(&self, agent: &str, now: Duration, families: &mut MetricFamilies) {
        let mut series = self.series();
        expire(&mut series, now);
        let mut sorted: Vec<_> = series.iter().collect();
        sorted.sort_by_key(|(key, _)| *key);
        for (key, series) in sorted {
            let help = series.help.as_deref();
            if let Some(family) = families.reported(&key.name, series.value.kind(), help) {
                let labels = key.labels.iter();
                let labels = labels.map(|(name, value)| (name.clone(), value.as_str()));
                family.sample(agent, labels, series.value.exposed());
            }
        }
    }

    fn put(
        &self,
        series: &mut HashMap<SeriesKey, ReportedSeries>,
        name: String,
        labels: BTreeMap<String, String>,
        help: Option<String>,
        value: SeriesValue,
        now: Duration,
    ) {
        let key = SeriesKey { name, labels };
        if !is_sound(&key, &value) {
            return self.left_out.increment();
        }
        if series.len() >= MAX_SERIES && !series.contains_key(&key) {
            expire(series, now);
            if series.len() >= MAX_SERIES {
                return self.left_out.increment();
            }
        }
        let help = help.map(|mut help| {
            help.truncate(help.floor_char_boundary(MAX_TEXT));
            help
        });
        let seen = now;
        series.insert(key, ReportedSeries { help, value, seen });
    }

    fn series(&self) -> MutexGuard<'_, HashMap<SeriesKey, ReportedSeries>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn expire(series: &mut HashMap<SeriesKey, ReportedSeries>, now: Duration) {
    series.retain(|_, series| now.saturating_sub(series.seen) <= SERIES_TTL);
}

fn is_sound(key: &SeriesKey, value: &SeriesValue) -> bool {
    let buckets = match value {
        SeriesValue::Histogram(histogram) => histogram.buckets.len(),
        SeriesValue::Counter(_) | SeriesValue::Gauge(_) => 0,
    };
    // The agent's label is the host's to give, and `le` the histogram's.
    let label = |(name, value): (&String, &String)| {
        is_name(name)
            && !name.contains(':')
            && value.len() <= MAX_TEXT
            && name != "agent"
            && name != "le"
    };
    is_name(&key.name)
        && !is_reserved(&key.name)
        && key.labels.len() <= MAX_LABELS
        && key.labels.iter().all(label)
        && buckets <= MAX_BUCKETS
}

fn is_name(name: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.len() <= MAX_TEXT
        && name.starts_with(starts)
        && name.chars().all(|c| starts(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{HistogramBucket, Metric};

    fn exposed(reports: &ReportedMetrics, now: Duration) -> String {
        let mut families = MetricFamilies::default();
        reports.expose("waf", now, &mut families);
        families.encode()
    }

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn counter(name: &str, label: &str, value: u64) -> MetricsReport {
        MetricsReport {
            counters: vec![Metric {
                name: name.to_owned(),
                labels: BTreeMap::from([("rule".to_owned(), label.to_owned())]),
                value,
                ..Metric::default()
            }],
            ..MetricsReport::default()
        }
    }

    #[test]
    fn a_later_report_replaces_an_earlier_one_and_both_are_labelled() {
        let reports = ReportedMetrics::default();
        reports.record(counter("hits", "a", 1), at(0));
        reports.record(counter("hits", "a", 5), at(1));
        reports.record(counter("hits", "b\"", 2), at(1));
        let text = exposed(&reports, at(1));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "# HELP hits Reported by an agent.",
                "# TYPE hits counter",
                "hits_total{agent=\"waf\",rule=\"a\"} 5",
                "hits_total{agent=\"waf\",rule=\"b\\\"\"} 2",
                "# EOF",
            ]
        );
    }

    #[test]
    fn there_are_at_most_ten_thousand_series_until_some_expire() {
        let reports = ReportedMetrics::default();
        for n in 0..MAX_SERIES + 10 {
            reports.record(counter("hits", &n.to_string(), 1), at(0));
        }
        assert_eq!(
            (reports.len(at(0)), reports.left_out.value()),
            (MAX_SERIES, 10)
        );
        reports.record(counter("hits", "late", 1), at(301));
        assert_eq!(reports.len(at(301)), 1);
    }

    #[test]
    fn what_would_break_the_text_is_left_out() {
        let reports = ReportedMetrics::default();
        let long = "a".repeat(MAX_TEXT + 1);
        for name in [
            "",
            "1x",
            "a b",
            "a\nb 1",
            "hailwire_callout_failures_total",
            "hailwire_anything",
            &long,
        ] {
            reports.record(counter(name, "", 1), at(0));
        }
        let mut report = counter("hits", "", 1);
        report.counters[0].labels = BTreeMap::from([("agent".to_owned(), "other".to_owned())]);
        reports.record(report, at(0));
        assert_eq!((reports.len(at(0)), reports.left_out.value()), (0, 8));
    }

    #[test]
    fn a_histogram_is_exported_with_its_last_bucket() {
        let reports = ReportedMetrics::default();
        let bucket = |le: serde_json::Value, count| HistogramBucket { le, count };
        reports.record(
            MetricsReport {
                histograms: vec![HistogramMetric {
                    name: "took".to_owned(),
                    help: Some("How\nlong.".to_owned()),
                    sum: 1.5,
                    count: 3,
                    buckets: vec![bucket(0.5.into(), 2), bucket("+Inf".into(), 3)],
                    ..HistogramMetric::default()
                }],
                ..MetricsReport::default()
            },
            at(0),
        );
        let text = exposed(&reports, at(0));
        assert!(text.contains("# HELP took How\\nlong.\n"));
        assert!(text.contains("took_bucket{le=\"0.5\",agent=\"waf\"} 2\n"));
        assert!(text.contains("took_bucket{le=\"+Inf\",agent=\"waf\"} 3\n"));
        assert_eq!(text.matches("+Inf").count(), 1);
        assert!(text.contains("took_count{agent=\"waf\"} 3\n"));
    }
}
