//! What follows from a figure's name: its unit, how it is printed, and which way is better.
//!
//! Names are those of [`crate::result::MeasuredRepeat::figures`] and end with the unit: `p50_us`,
//! `client_rss_bytes`, `messages_per_s`, `cpu_us_per_message`. A name whose unit says nothing about
//! better or worse (a count, a requested length of time) is printed and never judged.

use crate::{measure::Spread, tables::grouped};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BetterDirection {
    /// Times, memory, processor, loss.
    Less,
    /// Rates, shares that should be high, scores.
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FigureUnit {
    None,
    Seconds,
    Bytes,
    Bits,
    Percent,
}

/// The parts of a figure's name.
struct FigureNameParts<'a> {
    /// `p50`, `client_rss`; may be empty.
    base: &'a str,
    unit: FigureUnit,
    /// What one of the name's unit is in seconds, bytes, bits or percent.
    scale: f64,
    /// `s`, `message`; empty where the name has no `_per_`.
    per: &'a str,
}

const UNITS: &[(&str, FigureUnit, f64)] = &[
    ("ns", FigureUnit::Seconds, 1e-9),
    ("us", FigureUnit::Seconds, 1e-6),
    ("ms", FigureUnit::Seconds, 1e-3),
    ("s", FigureUnit::Seconds, 1.0),
    ("seconds", FigureUnit::Seconds, 1.0),
    ("bytes", FigureUnit::Bytes, 1.0),
    ("megabytes", FigureUnit::Bytes, 1e6),
    ("gibibytes", FigureUnit::Bytes, 1_073_741_824.0),
    ("mbit", FigureUnit::Bits, 1e6),
    ("megabits", FigureUnit::Bits, 1e6),
    ("percent", FigureUnit::Percent, 1.0),
    ("share", FigureUnit::Percent, 100.0),
];

fn parts(name: &str) -> FigureNameParts<'_> {
    let (front, per) = name.rsplit_once("_per_").unwrap_or((name, ""));
    let (base, last) = front.rsplit_once('_').unwrap_or(("", front));
    match UNITS.iter().find(|(unit, ..)| *unit == last) {
        Some((_, unit, scale)) => FigureNameParts {
            base,
            unit: *unit,
            scale: *scale,
            per,
        },
        None => FigureNameParts {
            base: front,
            unit: FigureUnit::None,
            scale: 1.0,
            per,
        },
    }
}

/// Shares of which more is better.
const MORE_IS_BETTER: &[&str] = &["reuse", "reused", "delivered", "gain"];
/// Shares that are neither good nor bad.
const NEUTRAL: &[&str] = &["", "share"];

/// Which way is better, where the name implies it.
#[must_use]
pub(crate) fn better(name: &str) -> Option<BetterDirection> {
    let FigureNameParts {
        base, unit, per, ..
    } = parts(name);
    match (unit, per) {
        (_, "s") => Some(BetterDirection::More),
        (FigureUnit::None, "") => (name == "score").then_some(BetterDirection::More),
        (FigureUnit::Percent, "") if MORE_IS_BETTER.contains(&base) => Some(BetterDirection::More),
        (FigureUnit::Percent, "") if NEUTRAL.contains(&base) => None,
        // The length of a run and the bytes that it moved are parameters, not results.
        (_, "") if base.is_empty() => None,
        (_, _) => Some(BetterDirection::Less),
    }
}

/// Whether a name ends with a unit.
#[must_use]
pub(crate) fn has_unit(name: &str) -> bool {
    let FigureNameParts { unit, per, .. } = parts(name);
    unit != FigureUnit::None || !per.is_empty()
}

/// Redundant figures, and the figure that makes them so: bandwidth beside messages of the same size,
/// quantiles between the middle and the tail, other ways to read the same memory.
const SAME_MEASUREMENT: &[(&str, &[&str])] = &[
    (
        "messages_per_s",
        &[
            "bytes_per_s",
            "megabytes_per_s",
            "megabits_per_s",
            "mbit_per_s",
        ],
    ),
    ("megabytes_per_s", &["bytes_per_s", "megabits_per_s"]),
    ("gibibytes_per_s", &["ns_per_op"]),
    ("p99_us", &["p90_us", "p95_us", "p999_us"]),
    (
        "cpu_us_per_message",
        &[
            "cpu_s",
            "client_cpu_s",
            "server_cpu_s",
            "node_cpu_s",
            "cpu_percent",
            "cpu_ns_per_byte",
        ],
    ),
    (
        "cpu_ns_per_byte",
        &["cpu_s", "client_cpu_s", "server_cpu_s", "cpu_percent"],
    ),
    (
        "client_rss_bytes",
        &[
            "client_peak_rss_bytes",
            "client_pss_bytes",
            "client_idle_rss_bytes",
            "client_added_rss_bytes",
        ],
    ),
    (
        "server_rss_bytes",
        &[
            "server_peak_rss_bytes",
            "server_pss_bytes",
            "server_idle_rss_bytes",
            "server_added_rss_bytes",
        ],
    ),
];

/// The figures among `names` by which subjects are compared: judged ones, without those that are
/// redundant.
pub(crate) fn distinct<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let again = |name: &&&str| {
        let mut said = SAME_MEASUREMENT
            .iter()
            .filter(|(first, _)| names.contains(first));
        said.any(|(_, again)| again.contains(*name))
    };
    let all = names.iter().filter(|name| judged(name) && !again(name));
    all.copied().collect()
}

/// Whether subjects are compared by it: it has a better and a worse, and it is not a single outlier, not the peak of a
/// process that did other work before, and not a difference, which has no ratio.
#[must_use]
pub(crate) fn judged(name: &str) -> bool {
    let base = parts(name).base;
    better(name).is_some() && !["max", "min", "gain"].contains(&base) && !base.contains("peak")
}

/// The name for people: `p50`, `client RSS`, `messages a second`.
#[must_use]
pub(crate) fn label(name: &str) -> String {
    let FigureNameParts {
        base, unit, per, ..
    } = parts(name);
    let words: Vec<&str> = base.split('_').map(word).collect();
    let mut out = words.join(" ").trim().to_owned();
    if out.is_empty() {
        out = match unit {
            FigureUnit::Seconds => "time",
            FigureUnit::Bytes | FigureUnit::Bits if per == "s" => "bandwidth",
            FigureUnit::Bytes | FigureUnit::Bits => "bytes",
            _ => "share",
        }
        .to_owned();
    }
    match per {
        "" => out,
        "s" if unit == FigureUnit::None => out + " a second",
        "s" => out,
        per => format!("{out} for each {}", per.replace('_', " ")),
    }
}

fn word(word: &str) -> &str {
    match word {
        "all" => "until the last",
        "rss" => "RSS",
        "pss" => "PSS",
        "cpu" => "CPU",
        "p999" => "p99.9",
        other => other,
    }
}

/// One value with its unit: `12.3 ms`.
#[must_use]
pub(crate) fn text(name: &str, value: f64) -> String {
    let (divisor, unit) = unit(name, value);
    format!("{}{unit}", number(value / divisor))
}

/// A spread: `12.3 ms (11.9 – 13.0)`.
#[must_use]
pub(crate) fn spread(name: &str, spread: &Spread) -> String {
    format!("{} ({})", text(name, spread.median), range(name, spread))
}

/// The ends of a spread in the unit of its median: `11.9 – 13.0`.
#[must_use]
pub(crate) fn range(name: &str, spread: &Spread) -> String {
    let (divisor, _) = unit(name, spread.median);
    let [min, max] = [spread.min, spread.max].map(|end| number(end / divisor));
    format!("{min} – {max}")
}

/// By what to divide a value of this name before printing it, and what to print after it; chosen
/// so that `like` reads well.
#[must_use]
pub(crate) fn unit(name: &str, like: f64) -> (f64, String) {
    let FigureNameParts {
        unit, scale, per, ..
    } = parts(name);
    let size = (like * scale).abs();
    let steps: &[(f64, &str)] = match unit {
        FigureUnit::None => &[(1.0, "")],
        FigureUnit::Percent => &[(1.0, " %")],
        FigureUnit::Seconds => &[(1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")],
        FigureUnit::Bytes => &[(1e9, " GB"), (1e6, " MB"), (1e3, " KB"), (1.0, " B")],
        FigureUnit::Bits => &[(1e6, " Mbit")],
    };
    let last = steps.last().copied().unwrap_or((1.0, ""));
    let fits = |step: &&(f64, &str)| size >= step.0;
    let (step, mut text) = match steps.iter().find(fits) {
        Some(step) => (step.0, step.1.to_owned()),
        // Zero is printed in the middle unit, so that it does not read `0 ns`.
        None if size == 0.0 => steps
            .get(steps.len() / 3)
            .map_or((last.0, last.1.to_owned()), |s| (s.0, s.1.to_owned())),
        None => (last.0, last.1.to_owned()),
    };
    match per {
        "" => {}
        "s" if unit == FigureUnit::None => text += " /s",
        per => text += &format!("/{}", per.replace('_', " ")),
    }
    (step / scale, text)
}

/// Three significant digits, thousands apart: `0.052`, `1.23`, `45.6`, `12,346`.
#[must_use]
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let digits = if !value.is_finite() {
        return "not a number".to_owned();
    } else if size >= 99.95 {
        let sign = if value < 0.0 { "−" } else { "" };
        return format!("{sign}{}", grouped(size.round() as u64));
    } else if size >= 9.995 {
        1
    } else if size >= 0.9995 || size == 0.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_printed_in_the_unit_that_reads_well() {
        for (name, value, printed) in [
            ("p50_us", 12_345.0, "12.3 ms"),
            ("p999_us", 0.5, "500 ns"),
            ("all_ms", 8_750.0, "8.75 s"),
            ("client_rss_bytes", 23_400_000.0, "23.4 MB"),
            ("messages_per_s", 12_456.0, "12,456 /s"),
            ("bytes_per_s", 41e6, "41.0 MB/s"),
            ("megabytes_per_s", 1_071.0, "1.07 GB/s"),
            ("mbit_per_s", 3_113.6, "3,114 Mbit/s"),
            ("cpu_us_per_message", 9.5, "9.50 µs/message"),
            ("loss_share", 0.0012, "0.120 %"),
            ("count", 64.0, "64.0"),
            ("added_us", -7_000.0, "−7.00 ms"),
            ("seconds", 0.0, "0.00 ms"),
        ] {
            assert_eq!(text(name, value), printed, "{name}");
        }
    }

    #[test]
    fn a_spread_keeps_the_unit_of_its_median() {
        let of = Spread {
            median: 900.0,
            min: 850.0,
            max: 1_200.0,
        };
        assert_eq!(spread("p50_us", &of), "900 µs (850 – 1,200)");
    }

    #[test]
    fn the_name_says_which_way_is_better() {
        for name in [
            "p50_us",
            "client_rss_bytes",
            "cpu_us_per_message",
            "loss_percent",
            "cpu_s",
        ] {
            assert_eq!(better(name), Some(BetterDirection::Less), "{name}");
        }
        for name in [
            "messages_per_s",
            "bytes_per_s",
            "reuse_percent",
            "score",
            "delivered_share",
        ] {
            assert_eq!(better(name), Some(BetterDirection::More), "{name}");
        }
        for name in ["count", "seconds", "bytes", "share_percent"] {
            assert_eq!(better(name), None, "{name}");
        }
        assert!(judged("p99_us") && !judged("max_us"));
    }

    #[test]
    fn figures_that_say_the_same_again_are_compared_once() {
        let names = [
            "cpu_s",
            "cpu_us_per_message",
            "count",
            "p50_us",
            "p90_us",
            "p99_us",
            "max_us",
        ];
        assert_eq!(distinct(&names), ["cpu_us_per_message", "p50_us", "p99_us"]);
        assert_eq!(distinct(&["cpu_s", "p90_us"]), ["cpu_s", "p90_us"]);
    }

    #[test]
    fn a_label_is_the_name_without_its_unit() {
        assert_eq!(label("p999_us"), "p99.9");
        assert_eq!(label("client_rss_bytes"), "client RSS");
        assert_eq!(label("messages_per_s"), "messages a second");
        assert_eq!(label("bytes_per_s"), "bandwidth");
        assert_eq!(label("cpu_us_per_message"), "CPU for each message");
    }
}
