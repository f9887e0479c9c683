//! The performance targets, as data: which figures of a run are judged, by which formula, against
//! which bound. A report prints each as met, missed or not measured; nothing here is a test.

use std::collections::BTreeMap;

use crate::{
    measure::Spread,
    result::{CellId, MeasuredRepeat},
    tables::{self, callout, form, sdk, subject},
};

/// One figure of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetFigure {
    /// The suite.
    pub suite: &'static str,
    /// The table.
    pub table: &'static str,
    /// The row.
    pub row: &'static str,
    /// The subject.
    pub subject: &'static str,
    /// The form; empty where there is one only.
    pub form: &'static str,
    /// The figure's name in [`MeasuredRepeat::figures`].
    pub name: &'static str,
}

impl TargetFigure {
    /// Whether a line is of this cell.
    #[must_use]
    pub fn is_of(&self, cell: &CellId) -> bool {
        (self.suite, self.table, self.row, self.subject, self.form)
            == (
                cell.suite.as_str(),
                cell.table.as_str(),
                cell.row.as_str(),
                cell.subject.as_str(),
                cell.form.as_str(),
            )
    }

    /// Its value in each counted repeat.
    fn values(&self, lines: &[MeasuredRepeat]) -> BTreeMap<u32, f64> {
        lines
            .iter()
            .filter(|line| line.repeat > 0 && self.is_of(&line.cell))
            .filter_map(|line| Some((line.repeat, *line.figures.get(self.name)?)))
            .collect()
    }
}

/// The bound that a value is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetBound {
    /// It is this or less.
    AtMost(f64),
    /// It is this or more.
    AtLeast(f64),
    /// It is more than these two together, repeat by repeat, by this at most.
    AtMostAbove([TargetFigure; 2], f64),
}

/// One target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerformanceTarget {
    /// The target as text.
    pub name: &'static str,
    /// The formula as text: what is computed and compared.
    pub formula: &'static str,
    /// The figure that is judged.
    pub of: TargetFigure,
    /// What it is divided by, repeat by repeat: the greatest of these. Empty where the figure itself is
    /// judged.
    pub over: &'static [TargetFigure],
    /// The bound of the value.
    pub bound: TargetBound,
}

/// Whether a target was met.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetOutcome {
    /// It was measured.
    Judged {
        /// Whether the median keeps the bound.
        met: bool,
        /// Median of the value over the repeats.
        median: f64,
        /// Least.
        min: f64,
        /// Most.
        max: f64,
    },
    /// A figure that it needs is missing.
    NotMeasured,
}

impl PerformanceTarget {
    /// Every figure that it needs.
    pub fn figures(&self) -> impl Iterator<Item = TargetFigure> + Clone {
        let above: &[TargetFigure] = match &self.bound {
            TargetBound::AtMostAbove(others, _) => others,
            _ => &[],
        };
        let others = self.over.iter().chain(above).copied();
        [self.of].into_iter().chain(others)
    }

    /// Judges the lines of a run: the median over the repeats, of ratios paired repeat by repeat.
    #[must_use]
    pub fn judge(&self, lines: &[MeasuredRepeat]) -> TargetOutcome {
        let of = self.of.values(lines);
        let over: Vec<BTreeMap<u32, f64>> = self
            .over
            .iter()
            .map(|figure| figure.values(lines))
            .collect();
        let greatest = |repeat: &u32| {
            let values: Option<Vec<f64>> = over.iter().map(|of| of.get(repeat).copied()).collect();
            values?.into_iter().reduce(f64::max)
        };
        let values: Vec<f64> = if let TargetBound::AtMostAbove(others, _) = self.bound {
            let others: Vec<_> = others.iter().map(|figure| figure.values(lines)).collect();
            of.into_iter()
                .filter_map(|(repeat, value)| {
                    let others: Option<f64> =
                        others.iter().map(|of| of.get(&repeat).copied()).sum();
                    Some(value - others?)
                })
                .collect()
        } else if over.is_empty() {
            of.into_values().collect()
        } else {
            of.into_iter()
                .filter_map(|(repeat, value)| Some(value / greatest(&repeat)?))
                .collect()
        };
        let Some(spread) = Spread::of(values) else {
            return TargetOutcome::NotMeasured;
        };
        let met = match self.bound {
            TargetBound::AtMost(most) | TargetBound::AtMostAbove(_, most) => spread.median <= most,
            TargetBound::AtLeast(least) => spread.median >= least,
        };
        TargetOutcome::Judged {
            met,
            median: spread.median,
            min: spread.min,
            max: spread.max,
        }
    }
}

const fn figure(
    suite: &'static str,
    table: &'static str,
    row: &'static str,
    (subject, form): (&'static str, &'static str),
    name: &'static str,
) -> TargetFigure {
    TargetFigure {
        suite,
        table,
        row,
        subject,
        form,
        name,
    }
}

const fn q(
    table: &'static str,
    row: &'static str,
    who: (&'static str, &'static str),
    name: &'static str,
) -> TargetFigure {
    figure("coordination", table, row, who, name)
}

/// All targets.
pub const TARGETS: &[PerformanceTarget] = &[
    PerformanceTarget {
        name: "a cold QUIC call at 50 ms RTT takes at most 2 RTT + 5 ms",
        formula: "p50 of connect and answer, in µs ≤ 2 × 50,000 + 5,000",
        of: q(
            "Q1",
            tables::ONE_AGENT,
            (subject::QUIC, form::COLD),
            "p50_us",
        ),
        over: &[],
        bound: TargetBound::AtMost(105_000.0),
    },
    PerformanceTarget {
        name: "a cold QUIC call at 50 ms RTT takes a third less than HTTP/2 over TLS 1.3",
        formula: "p50 of connect and answer, QUIC ÷ plain HTTP/2 ≤ (2 RTT + 5 ms) ÷ 3 RTT",
        of: q(
            "Q1",
            tables::ONE_AGENT,
            (subject::QUIC, form::COLD),
            "p50_us",
        ),
        over: &[q(
            "Q1",
            tables::ONE_AGENT,
            (subject::PLAIN_H2, form::COLD),
            "p50_us",
        )],
        bound: TargetBound::AtMost(0.7),
    },
    PerformanceTarget {
        name: "a 0-RTT QUIC call at 50 ms RTT takes at most 1 RTT + 5 ms",
        formula: "p50 of connect and answer, in µs ≤ 50,000 + 5,000",
        of: q(
            "Q1",
            tables::ONE_AGENT,
            (subject::QUIC, form::ZERO_RTT),
            "p50_us",
        ),
        over: &[],
        bound: TargetBound::AtMost(55_000.0),
    },
    PerformanceTarget {
        name: "dispatch to 50 known agents takes at most 1 RTT + 10 ms",
        formula: "time until the last of 50 answers at 85 ms RTT, in µs ≤ 85,000 + 10,000",
        of: figure(
            "overlay",
            "O2",
            tables::CONCURRENT,
            (subject::QUIC, form::WARM),
            "all_us",
        ),
        over: &[],
        bound: TargetBound::AtMost(95_000.0),
    },
    PerformanceTarget {
        name: "64 calls of 1 KB in flight: QUIC does at least 2.5 times the plain HTTP/2 rate",
        formula: "messages a second, QUIC ÷ plain HTTP/2 ≥ 2.5",
        of: q(
            "Q2",
            tables::SMALL_CALLS,
            (subject::QUIC, form::POOLED),
            "messages_per_s",
        ),
        over: &[q(
            "Q2",
            tables::SMALL_CALLS,
            (subject::PLAIN_H2, form::POOLED),
            "messages_per_s",
        )],
        bound: TargetBound::AtLeast(2.5),
    },
    PerformanceTarget {
        name: "under 1 % loss the p99 of QUIC is at most half of HTTP/2's",
        formula: "p99 of 1 KB at 50 ms RTT, QUIC ÷ plain HTTP/2 ≤ 0.5",
        of: q(
            "Q6",
            tables::UNDER_LOSS,
            (subject::QUIC, form::POOLED),
            "p99_us",
        ),
        over: &[q(
            "Q6",
            tables::UNDER_LOSS,
            (subject::PLAIN_H2, form::POOLED),
            "p99_us",
        )],
        bound: TargetBound::AtMost(0.5),
    },
    PerformanceTarget {
        name: "1,000 pooled agents add at most a tenth of the memory that 1,000 HTTP/2 connections add",
        formula: "RSS above idle of client and server, QUIC pooled ÷ plain HTTP/2 per agent ≤ 0.1",
        of: q(
            "Q4",
            "1,000 agents",
            (subject::QUIC, form::POOLED),
            "added_rss_bytes",
        ),
        over: &[q(
            "Q4",
            "1,000 agents",
            (subject::PLAIN_H2, form::PER_AGENT),
            "added_rss_bytes",
        )],
        bound: TargetBound::AtMost(0.1),
    },
    PerformanceTarget {
        name: "bulk over the HTTP/2 carrier is at least 0.9 of plain hyper",
        formula: "megabytes a second, HTTP/2 carrier ÷ plain HTTP/2 ≥ 0.9",
        of: q(
            "Q2",
            tables::BULK,
            (subject::H2, form::POOLED),
            "megabytes_per_s",
        ),
        over: &[q(
            "Q2",
            tables::BULK,
            (subject::PLAIN_H2, form::POOLED),
            "megabytes_per_s",
        )],
        bound: TargetBound::AtLeast(0.9),
    },
    PerformanceTarget {
        name: "auto is at least 0.95 of the faster of QUIC and HTTP/2 on bulk, on loopback",
        formula: "megabytes a second, carrier chosen ÷ the greater of QUIC and the HTTP/2 carrier ≥ 0.95",
        of: chosen(tables::BULK_CHOSEN, subject::AUTO),
        over: &[
            chosen(tables::BULK_CHOSEN, subject::QUIC),
            chosen(tables::BULK_CHOSEN, subject::H2),
        ],
        bound: TargetBound::AtLeast(0.95),
    },
    PerformanceTarget {
        name: "auto is at least 0.95 of the faster of QUIC and HTTP/2 on bulk, over packets of 1,500 bytes",
        formula: "megabytes a second, carrier chosen ÷ the greater of QUIC and the HTTP/2 carrier ≥ 0.95",
        of: chosen(tables::BULK_CHOSEN_LAN, subject::AUTO),
        over: &[
            chosen(tables::BULK_CHOSEN_LAN, subject::QUIC),
            chosen(tables::BULK_CHOSEN_LAN, subject::H2),
        ],
        bound: TargetBound::AtLeast(0.95),
    },
    PerformanceTarget {
        name: "choosing an agent's connection and writing a small request takes at most 100 ns",
        formula: "ns of the selection path, MessagePack, one thread ≤ 100",
        of: c(
            "C12",
            "selection path, MessagePack",
            (callout::OURS, callout::ALONE),
            "ns_per_op",
        ),
        over: &[],
        bound: TargetBound::AtMost(100.0),
    },
    PerformanceTarget {
        name: "one callout at a time takes at most 1.1 times what its bytes take on an event loop, both programs on one CPU",
        formula: "p50, Hailwire to Hailwire in MessagePack ÷ bytes over a Unix socket on an event loop ≤ 1.1 (the published factors, 1.13 to 1.44, are of bytes \
            that take 15.7 µs, which is an event loop's figure)",
        of: ce(callout::ONE, (callout::OURS_OURS, "msgpack"), "p50_us"),
        over: &[ce(callout::ONE, (callout::RAW, callout::EVENTED), "p50_us")],
        bound: TargetBound::AtMost(1.1),
    },
    PerformanceTarget {
        name: "one callout at a time takes at most 1.1 times what its bytes take with blocking calls, both programs on one CPU",
        formula: "p50, Hailwire to Hailwire in MessagePack ÷ bytes over a Unix socket with blocking calls ≤ 1.1",
        of: ce(callout::ONE, (callout::OURS_OURS, "msgpack"), "p50_us"),
        over: &[ce(
            callout::ONE,
            (callout::RAW, callout::BLOCKING),
            "p50_us",
        )],
        bound: TargetBound::AtMost(1.1),
    },
    PerformanceTarget {
        name: "64 callouts in flight: ours does at least 2.5 times the foreign crate's rate over a Unix socket",
        formula: "answers a second, Hailwire to Hailwire ÷ zentinel to zentinel, MessagePack ≥ 2.5",
        of: ce(
            callout::MANY,
            (callout::OURS_OURS, "msgpack"),
            "messages_per_s",
        ),
        over: &[ce(
            callout::MANY,
            (callout::THEIRS_THEIRS, "msgpack"),
            "messages_per_s",
        )],
        bound: TargetBound::AtLeast(2.5),
    },
    PerformanceTarget {
        name: "64 callouts in flight: ours over a Unix socket is ahead of the foreign crate's gRPC",
        formula: "answers a second, Hailwire to Hailwire in MessagePack ÷ zentinel to zentinel over gRPC ≥ 1",
        of: ce(
            callout::MANY,
            (callout::OURS_OURS, "msgpack"),
            "messages_per_s",
        ),
        over: &[ce(
            callout::GRPC,
            (callout::THEIRS_THEIRS, "grpc"),
            "messages_per_s",
        )],
        bound: TargetBound::AtLeast(1.0),
    },
    PerformanceTarget {
        name: "bodies of 64 KiB pass at 4 GiB/s and more",
        formula: "GiB a second, Hailwire to Hailwire ≥ 4",
        of: ce(
            callout::BODY[0],
            (callout::OURS_OURS, "msgpack"),
            "gibibytes_per_s",
        ),
        over: &[],
        bound: TargetBound::AtLeast(4.0),
    },
    PerformanceTarget {
        name: "bodies of 10 MiB pass at 4 GiB/s and more",
        formula: "GiB a second, Hailwire to Hailwire ≥ 4",
        of: ce(
            callout::BODY[1],
            (callout::OURS_OURS, "msgpack"),
            "gibibytes_per_s",
        ),
        over: &[],
        bound: TargetBound::AtLeast(4.0),
    },
    PerformanceTarget {
        name: "an agent that is shown bodies of 10 MiB holds less than 32 MiB",
        formula: "peak RSS of our agent's process ≤ 32 × 1,048,576 bytes",
        of: ce(
            callout::BODY[1],
            (callout::OURS_OURS, "msgpack"),
            "server_peak_rss_bytes",
        ),
        over: &[],
        bound: TargetBound::AtMost(33_554_432.0),
    },
    PerformanceTarget {
        name: "64 calls in flight: the SDK for Python does at least 60,000 a second, from program to program through a node",
        formula: "calls of 1 KiB a second, asyncio ≥ 60,000",
        of: py(sdk::MANY, sdk::PYTHON, "messages_per_s"),
        over: &[],
        bound: TargetBound::AtLeast(60_000.0),
    },
    PerformanceTarget {
        name: "one call at a time: the SDK for Python has its answer within 120 µs, from program to program through a node",
        formula: "p50 of 1 KiB, asyncio, in µs ≤ 120",
        of: py(sdk::ONE, sdk::PYTHON, "p50_us"),
        over: &[],
        bound: TargetBound::AtMost(120.0),
    },
    PerformanceTarget {
        name: "64 calls in flight: the SDK for Python does at least ten times the rate of grpc.aio",
        formula: "calls of 1 KiB a second, SDK ÷ grpc.aio, asyncio ≥ 10",
        of: py(sdk::MANY, sdk::PYTHON, "messages_per_s"),
        over: &[py(sdk::MANY, sdk::GRPC_AIO, "messages_per_s")],
        bound: TargetBound::AtLeast(10.0),
    },
    PerformanceTarget {
        name: "64 calls in flight: the SDK for TypeScript does at least 80,000 a second, from program to program through a node",
        formula: "calls of 1 KiB a second ≥ 80,000",
        of: ts(sdk::TYPESCRIPT),
        over: &[],
        bound: TargetBound::AtLeast(80_000.0),
    },
    PerformanceTarget {
        name: "64 calls in flight: the SDK for TypeScript does at least four times the rate of grpc-js",
        formula: "calls of 1 KiB a second, SDK ÷ grpc-js ≥ 4",
        of: ts(sdk::TYPESCRIPT),
        over: &[ts(sdk::GRPC_JS)],
        bound: TargetBound::AtLeast(4.0),
    },
    remote(
        0,
        "an agent on another node answers within the round trip + 0.3 ms of one here, on loopback",
    ),
    remote(
        1,
        "an agent on another node answers within the round trip + 0.3 ms of one here, at 50 ms",
    ),
    remote(
        2,
        "an agent on another node answers within the round trip + 0.3 ms of one here, from home to home",
    ),
];

/// An agent on another node, on one of the networks of [`callout::BETWEEN`].
const fn remote(network: usize, name: &'static str) -> PerformanceTarget {
    PerformanceTarget {
        name,
        formula: "p50 of the far agent − p50 of UDP back and forth − p50 of the near agent, in µs ≤ 300",
        of: cf(network, callout::FAR),
        over: &[],
        bound: TargetBound::AtMostAbove(
            [cf(network, callout::UDP), cf(network, callout::NEAR)],
            300.0,
        ),
    }
}

#[expect(clippy::indexing_slicing, reason = "computed when it is compiled")]
const fn cf(network: usize, who: &'static str) -> TargetFigure {
    c(
        "CF",
        callout::BETWEEN[network].1,
        (who, "msgpack"),
        "p50_us",
    )
}

const fn c(
    table: &'static str,
    row: &'static str,
    who: (&'static str, &'static str),
    name: &'static str,
) -> TargetFigure {
    figure("callout", table, row, who, name)
}

const fn ce(
    row: &'static str,
    who: (&'static str, &'static str),
    name: &'static str,
) -> TargetFigure {
    c("CE", row, who, name)
}

/// A figure of a program in Python on the event loop that comes with it.
const fn py(row: &'static str, subject: &'static str, name: &'static str) -> TargetFigure {
    figure("sdk", sdk::PYTHON_TABLE, row, (subject, sdk::ASYNCIO), name)
}

/// The rate of a program in TypeScript.
const fn ts(subject: &'static str) -> TargetFigure {
    let who = (subject, sdk::TIMEOUT);
    figure(
        "sdk",
        sdk::TYPESCRIPT_TABLE,
        sdk::MANY,
        who,
        "messages_per_s",
    )
}

const fn chosen(row: &'static str, who: &'static str) -> TargetFigure {
    q("Q2", row, (who, form::POOLED), "megabytes_per_s")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(figure: TargetFigure, repeat: u32, value: f64) -> MeasuredRepeat {
        MeasuredRepeat {
            cell: CellId {
                suite: figure.suite.into(),
                table: figure.table.into(),
                row: figure.row.into(),
                subject: figure.subject.into(),
                form: figure.form.into(),
            },
            network: "loopback".into(),
            repeat,
            figures: BTreeMap::from([(figure.name.to_owned(), value)]),
            distribution: Vec::new(),
            asked: BTreeMap::new(),
        }
    }

    #[test]
    fn a_ratio_is_paired_repeat_by_repeat_and_the_warm_up_does_not_count() {
        let target = TARGETS
            .iter()
            .find(|target| target.formula.contains("2.5"))
            .unwrap();
        let over = target.over[0];
        assert_eq!(
            target.judge(&[line(target.of, 1, 3.0)]),
            TargetOutcome::NotMeasured
        );
        let lines = [
            line(target.of, 0, 1.0),
            line(over, 0, 1000.0),
            line(target.of, 1, 26.0),
            line(over, 1, 10.0),
            line(target.of, 2, 80.0),
            line(over, 2, 20.0),
        ];
        let judged = target.judge(&lines);
        let expected = TargetOutcome::Judged {
            met: true,
            median: 3.3,
            min: 2.6,
            max: 4.0,
        };
        assert_eq!(judged, expected);
    }

    #[test]
    fn what_is_above_others_is_the_difference_of_each_repeat() {
        let above =
            |target: &&PerformanceTarget| matches!(target.bound, TargetBound::AtMostAbove(..));
        let target = TARGETS.iter().find(above).unwrap();
        let figures: Vec<TargetFigure> = target.figures().collect();
        let mut lines = Vec::new();
        for (repeat, values) in [
            (1, [50_400.0, 50_000.0, 30.0]),
            (2, [50_300.0, 50_000.0, 80.0]),
        ] {
            assert!(matches!(target.judge(&lines), TargetOutcome::NotMeasured) == lines.is_empty());
            let of_repeat = figures.iter().zip(values);
            lines.extend(of_repeat.map(|(figure, value)| line(*figure, repeat, value)));
        }
        let expected = TargetOutcome::Judged {
            met: true,
            median: 295.0,
            min: 220.0,
            max: 370.0,
        };
        assert_eq!(target.judge(&lines), expected);
    }

    #[test]
    fn of_several_the_greatest_is_what_a_figure_is_divided_by() {
        let target = TARGETS
            .iter()
            .find(|target| target.over.len() == 2)
            .unwrap();
        let mut lines = vec![line(target.of, 1, 95.0), line(target.over[0], 1, 50.0)];
        assert_eq!(target.judge(&lines), TargetOutcome::NotMeasured);
        lines.push(line(target.over[1], 1, 100.0));
        assert!(
            matches!(target.judge(&lines), TargetOutcome::Judged { met: true, median, .. } if median == 0.95)
        );
    }
}
