//! Metrics in the text format of OpenMetrics, encoded by `prometheus-client`.
//!
//! What counts are plain atomics, and nothing here is touched between two scrapes: at a scrape whoever has counters adds their
//! values to [`MetricFamilies`], which are written then. The samples that several agents have of one metric stand together,
//! under one description. Our own names begin with `hailwire_`; what agents report of themselves keeps its names, none of
//! which may.
//!
//! The library writes help texts and the values of labels as they are; what would end them is escaped here.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
    fmt::{self, Write as _},
    mem::discriminant,
};

use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeLabelValue, EncodeMetric as _, LabelValueEncoder, MetricEncoder,
        NoLabelSet, text,
    },
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What our own names begin with, before an underscore.
const PREFIX: &str = "hailwire";

/// What a metric is said to be whose agent does not say it.
const NO_HELP: &str = "Reported by an agent.";

/// Whether a name is one that only we give.
pub(crate) fn is_reserved(name: &str) -> bool {
    let rest = name.strip_prefix(PREFIX);
    rest.is_some_and(|rest| rest.starts_with('_'))
}

/// The values of one scrape.
#[derive(Debug, Default)]
pub(crate) struct MetricFamilies {
    own: FamilyMap,
    reported: FamilyMap,
}

/// The samples of one metric.
#[derive(Debug)]
pub(crate) struct MetricFamily {
    kind: MetricType,
    help: Cow<'static, str>,
    unit: Option<Unit>,
    samples: Vec<MetricSample>,
}

#[derive(Debug)]
struct MetricSample {
    labels: Vec<(Cow<'static, str>, LabelText)>,
    value: MetricValue,
}

/// The value of one sample.
#[derive(Debug)]
pub(crate) enum MetricValue {
    Counter(u64),
    Gauge(i64),
    Measure(f64),
    Histogram(HistogramValue),
}

/// What a histogram holds.
#[derive(Debug)]
pub(crate) struct HistogramValue {
    sum: f64,
    count: u64,
    /// Upper bounds, and how many values lie between each and the one before. The last bound is [`f64::MAX`], which stands
    /// for infinity.
    buckets: Vec<(f64, u64)>,
}

impl HistogramValue {
    /// Of upper bounds and how many values are not greater, in any order; what does not fit together is made to.
    pub(crate) fn from_cumulative(sum: f64, count: u64, mut up_to: Vec<(f64, u64)>) -> Self {
        up_to.retain(|(bound, _)| bound.is_finite() && *bound < f64::MAX);
        up_to.sort_by(|a, b| a.0.total_cmp(&b.0));
        up_to.dedup_by_key(|(bound, _)| *bound);
        up_to.push((f64::MAX, count));
        let mut below = 0;
        for (_, values) in &mut up_to {
            let all = (*values).clamp(below, count.max(below));
            *values = all - below;
            below = all;
        }
        Self {
            sum,
            count,
            buckets: up_to,
        }
    }
}

impl MetricValue {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(value) => ConstCounter::new(*value).encode(encoder),
            Self::Gauge(value) => ConstGauge::new(*value).encode(encoder),
            Self::Measure(value) => ConstGauge::new(*value).encode(encoder),
            Self::Histogram(histogram) => encoder.encode_histogram::<NoLabelSet>(
                histogram.sum,
                histogram.count,
                &histogram.buckets,
                None,
            ),
        }
    }
}

impl MetricFamilies {
    /// One of our own families; a unit is appended to its name.
    pub(crate) fn own(
        &mut self,
        name: &'static str,
        kind: MetricType,
        help: &'static str,
        unit: Option<Unit>,
    ) -> &mut MetricFamily {
        let family = self.own.0.entry(full_name(name, kind));
        family.or_insert_with(|| MetricFamily::new(kind, help.into(), unit))
    }

    /// A family that an agent reports; `None` where another has that name for something of another kind.
    pub(crate) fn reported(
        &mut self,
        name: &str,
        kind: MetricType,
        help: Option<&str>,
    ) -> Option<&mut MetricFamily> {
        match self.reported.0.entry(full_name(name, kind)) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                (discriminant(&known.kind) == discriminant(&kind)).then_some(known)
            }
            Entry::Vacant(new) => {
                let help = help.unwrap_or(NO_HELP);
                let help = help.replace('\\', "\\\\").replace('\n', "\\n");
                Some(new.insert(MetricFamily::new(kind, help.into(), None)))
            }
        }
    }

    /// The text.
    pub(crate) fn encode(self) -> String {
        let mut own = Registry::with_prefix(PREFIX);
        own.register_collector(Box::new(self.own));
        let mut reported = Registry::default();
        reported.register_collector(Box::new(self.reported));
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode_registry(&mut text, &own);
        let _ = text::encode_registry(&mut text, &reported);
        let _ = text::encode_eof(&mut text);
        text
    }
}

impl MetricFamily {
    fn new(kind: MetricType, help: Cow<'static, str>, unit: Option<Unit>) -> Self {
        Self {
            kind,
            help,
            unit,
            samples: Vec::new(),
        }
    }

    /// A sample of an agent.
    pub(crate) fn sample<'a, K: Into<Cow<'static, str>>>(
        &mut self,
        agent: &str,
        labels: impl IntoIterator<Item = (K, &'a str)>,
        value: MetricValue,
    ) {
        let agent = [(Cow::Borrowed("agent"), LabelText(agent.to_owned()))];
        let others = labels.into_iter();
        let others = others.map(|(name, value)| (name.into(), LabelText(value.to_owned())));
        self.samples.push(MetricSample {
            labels: agent.into_iter().chain(others).collect(),
            value,
        });
    }
}

/// By their full names: a counter's ends with `_total`, as its samples' do, which the library appends.
#[derive(Debug, Default)]
struct FamilyMap(BTreeMap<String, MetricFamily>);

const COUNTER_SUFFIX: &str = "_total";

fn full_name(name: &str, kind: MetricType) -> String {
    match kind {
        MetricType::Counter if !name.ends_with(COUNTER_SUFFIX) => format!("{name}{COUNTER_SUFFIX}"),
        _ => name.to_owned(),
    }
}

impl Collector for FamilyMap {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, family) in &self.0 {
            let name = match family.kind {
                MetricType::Counter => name.strip_suffix(COUNTER_SUFFIX).unwrap_or(name),
                _ => name,
            };
            let unit = family.unit.as_ref();
            let mut described = encoder.encode_descriptor(name, &family.help, unit, family.kind)?;
            for sample in &family.samples {
                sample
                    .value
                    .encode(described.encode_family(&sample.labels)?)?;
            }
        }
        Ok(())
    }
}

/// The value of a label.
#[derive(Debug)]
struct LabelText(String);

impl EncodeLabelValue for LabelText {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => encoder.write_str("\\\\")?,
                '"' => encoder.write_str("\\\"")?,
                '\n' => encoder.write_str("\\n")?,
                c => encoder.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LABELS: [(&str, &str); 0] = [];

    #[test]
    fn names_of_ours_have_one_prefix_and_labels_are_escaped() {
        let mut families = MetricFamilies::default();
        families
            .own("callout_asked_total", MetricType::Counter, "Asked.", None)
            .sample("a\"b\\c\nd", [("phase", "x")], MetricValue::Counter(3));
        families
            .reported("level", MetricType::Gauge, Some("How\nmuch\\."))
            .unwrap()
            .sample("w", NO_LABELS, MetricValue::Measure(0.5));
        let text = families.encode();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "# HELP hailwire_callout_asked Asked.",
                "# TYPE hailwire_callout_asked counter",
                r#"hailwire_callout_asked_total{agent="a\"b\\c\nd",phase="x"} 3"#,
                r"# HELP level How\nmuch\\.",
                "# TYPE level gauge",
                r#"level{agent="w"} 0.5"#,
                "# EOF",
            ]
        );
    }

    #[test]
    fn one_name_is_one_kind_also_where_the_suffix_of_counters_makes_it_so() {
        let mut families = MetricFamilies::default();
        assert!(
            families
                .reported("hits", MetricType::Counter, None)
                .is_some()
        );
        let same = families.reported("hits_total", MetricType::Counter, None);
        assert!(same.is_some());
        let other = families.reported("hits_total", MetricType::Gauge, None);
        assert!(other.is_none());
        assert_eq!(families.encode().matches("# TYPE").count(), 1);
    }

    #[test]
    fn buckets_add_up_to_the_count_whatever_was_said() {
        let values = |count, up_to: &[(f64, u64)]| {
            let made = HistogramValue::from_cumulative(1.0, count, up_to.to_vec());
            let buckets: Vec<u64> = made.buckets.iter().map(|(_, values)| *values).collect();
            assert_eq!(buckets.iter().sum::<u64>(), count);
            buckets
        };
        assert_eq!(values(5, &[(1.0, 2), (2.0, 4)]), [2, 2, 1]);
        assert_eq!(
            values(5, &[(2.0, 4), (1.0, 2), (f64::INFINITY, 5)]),
            [2, 2, 1]
        );
        assert_eq!(values(3, &[(1.0, 2), (2.0, 1), (3.0, 9)]), [2, 0, 1, 0]);
        assert_eq!(values(0, &[]), [0]);
    }

    #[test]
    fn what_begins_like_ours_is_reserved() {
        assert!(is_reserved("hailwire_callout_asked_total") && is_reserved("hailwire_"));
        assert!(!is_reserved("hailwires") && !is_reserved("waf_hits"));
    }
}
