//! The plots of a folder: a pure function from lines to [`ChartData`]s.

use std::collections::BTreeMap;

use super::{
    cell_index::{CellIndex, CellKey},
    figure,
    plot::{ChartData, ChartSeries},
    subjects,
};
use crate::{measure::Spread, result::MeasuredRepeat};

/// Points of one distribution that are drawn at most.
const POINTS_PER_LINE: usize = 150;
/// The quantiles at which a line has a marker.
const MARKED_QUANTILES: &[f64] = &[0.5, 0.9, 0.99];

/// Latency distributions: one chart for each row, form and network that has distributions. Of several repeats
/// the one with the median p50 is drawn.
#[must_use]
pub(crate) fn latency(cells: &CellIndex<'_>) -> Vec<ChartData> {
    let mut charts: Vec<(CellKey<'_>, Vec<ChartSeries>)> = Vec::new();
    for cell_key in cells.measured() {
        let Some(points) = median_distribution(cells.lines(cell_key)) else {
            continue;
        };
        let series = ChartSeries {
            name: cell_key.subject.to_owned(),
            marks: MARKED_QUANTILES
                .iter()
                .filter_map(|share| at_share(&points, *share))
                .collect(),
            points: thinned(&points),
        };
        let at = cell_key.with("");
        match charts.iter_mut().find(|(of, _)| *of == at) {
            Some((_, all)) => all.push(series),
            None => charts.push((at, vec![series])),
        }
    }
    charts
        .into_iter()
        .map(|(cell_key, mut series)| {
            in_order(&mut series);
            ChartData {
                title: format!("Latency: {}", name(cell_key)),
                desc: quantiles(&series),
                x: ("latency, logarithmic".into(), "p50_us".into()),
                y: ("share at or below".into(), "share".into()),
                series,
            }
        })
        .collect()
}

/// Messages a second against the number of agents: one chart for each table, form and network.
#[must_use]
pub(crate) fn throughput(cells: &CellIndex<'_>) -> Vec<ChartData> {
    let counts = ["agents"];
    // Q5 and Q8 repeat the rates of Q2.
    let about = |cell_key: &CellKey<'_>| !["Q5", "Q8"].contains(&cell_key.table);
    against(cells, about, &counts, "agents", |name| {
        name == "messages_per_s"
    })
}

/// Resident memory against the number of peers: one chart for each table, form, network and figure.
#[must_use]
pub(crate) fn memory(cells: &CellIndex<'_>) -> Vec<ChartData> {
    let counts = ["peers", "connections", "agents"];
    against(
        cells,
        |_| true,
        &counts,
        "peers",
        |name| name.ends_with("rss_bytes") && !name.contains("peak"),
    )
}

/// A chart for each table, form and network, and each figure that `wanted` accepts, where a subject
/// has two counts or more.
fn against(
    cells: &CellIndex<'_>,
    about: impl Fn(&CellKey<'_>) -> bool,
    counts: &[&str],
    word: &str,
    wanted: impl Fn(&str) -> bool,
) -> Vec<ChartData> {
    type At<'a> = (CellKey<'a>, String);
    let mut order: Vec<At<'_>> = Vec::new();
    let mut found: BTreeMap<(usize, &str), BTreeMap<u64, Spread>> = BTreeMap::new();
    for cell_key in cells.measured().filter(about) {
        let Some(count) = count(cells.lines(cell_key), counts) else {
            continue;
        };
        for figure in cells
            .figures(cell_key)
            .into_iter()
            .filter(|name| wanted(name))
        {
            let chart = CellKey {
                row: "",
                subject: "",
                ..cell_key
            };
            let at = (chart, figure.to_owned());
            let index = order
                .iter()
                .position(|known| *known == at)
                .unwrap_or_else(|| {
                    order.push(at.clone());
                    order.len() - 1
                });
            if let Some((spread, _)) = cells.spread(cell_key, figure) {
                let points = found.entry((index, cell_key.subject)).or_default();
                points.insert(count, spread);
            }
        }
    }
    let chart = |(index, (cell_key, figure)): (usize, &At<'_>)| {
        let of = found.iter().filter(|((at, _), _)| *at == index);
        let mut series: Vec<ChartSeries> = of
            .filter(|(_, points)| points.len() > 1)
            .map(|((_, subject), points)| line(subject, points))
            .collect();
        in_order(&mut series);
        let label = figure::label(figure);
        (!series.is_empty()).then(|| ChartData {
            title: format!("{} against {word}: {}", capital(&label), name(*cell_key)),
            desc: ends(&series, figure, word),
            x: (format!("{word}, logarithmic"), "count".into()),
            y: (label, figure.clone()),
            series,
        })
    };
    order.iter().enumerate().filter_map(chart).collect()
}

fn line(subject: &str, points: &BTreeMap<u64, Spread>) -> ChartSeries {
    let points: Vec<(f64, f64)> = points
        .iter()
        .map(|(count, spread)| (*count as f64, spread.median))
        .collect();
    ChartSeries {
        name: subject.to_owned(),
        marks: points.clone(),
        points,
    }
}

fn in_order(series: &mut [ChartSeries]) {
    series.sort_by_key(|one| subjects::order(&one.name));
}

/// `Q2 · pooled · wan-50ms`.
fn name(cell_key: CellKey<'_>) -> String {
    let parts = [
        cell_key.table,
        cell_key.row,
        cell_key.form,
        cell_key.network,
    ];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" · ")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| {
        first.to_uppercase().collect::<String>() + chars.as_str()
    })
}

/// The number of agents or peers: from the parameters of the work, or from the beginning of the row's name.
fn count(lines: &[&MeasuredRepeat], names: &[&str]) -> Option<u64> {
    let line = lines.first()?;
    let asked = names
        .iter()
        .find_map(|name| line.asked.get(*name).and_then(serde_json::Value::as_u64));
    asked
        .or_else(|| {
            let (number, rest) = line.cell.row.split_once(' ')?;
            let named = names.iter().any(|name| rest.starts_with(name));
            let number = named.then(|| number.replace(',', ""))?;
            number.parse().ok()
        })
        .filter(|count| *count > 0)
}

/// The distribution of the repeat whose p50 is the median of all, as (µs, share).
fn median_distribution(lines: &[&MeasuredRepeat]) -> Option<Vec<(f64, f64)>> {
    let mut all: Vec<(f64, Vec<(f64, f64)>)> = lines
        .iter()
        .filter(|line| line.repeat > 0 && line.distribution.len() > 1)
        .map(|line| {
            let points = line.distribution.iter();
            let points = points.filter(|(share, us)| share.is_finite() && *us > 0.0);
            let points: Vec<(f64, f64)> = points.map(|(share, us)| (*us, *share)).collect();
            (at_share(&points, 0.5).map_or(f64::MAX, |at| at.0), points)
        })
        .filter(|(_, points)| points.len() > 1)
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = all.len().checked_sub(1)? / 2;
    all.into_iter().nth(middle).map(|(_, points)| points)
}

fn at_share(points: &[(f64, f64)], share: f64) -> Option<(f64, f64)> {
    points.iter().copied().find(|point| point.1 >= share)
}

/// At most [`POINTS_PER_LINE`] of them, the last always among them.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(POINTS_PER_LINE).max(1);
    let mut thin: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    if let Some(last) = points.last()
        && thin.last() != Some(last)
    {
        thin.push(*last);
    }
    thin
}

fn quantiles(series: &[ChartSeries]) -> String {
    let one = |series: &ChartSeries| {
        let marks = series.marks.iter().zip(MARKED_QUANTILES);
        let marks: Vec<String> = marks
            .map(|((us, _), share)| {
                format!("p{:.0} {}", share * 100.0, figure::text("p50_us", *us))
            })
            .collect();
        format!("{}: {}", subjects::words(&series.name), marks.join(", "))
    };
    series.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn ends(series: &[ChartSeries], name: &str, word: &str) -> String {
    let one = |series: &ChartSeries| {
        let points: Vec<String> = series
            .points
            .iter()
            .map(|(x, y)| {
                format!(
                    "{} with {} {word}",
                    figure::text(name, *y),
                    figure::number(*x)
                )
            })
            .collect();
        format!("{}: {}", subjects::words(&series.name), points.join(", "))
    };
    series.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{fixture, result_folder::ResultFolder};

    fn folder() -> (tempfile::TempDir, ResultFolder) {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        let folder = ResultFolder::read(dir.path()).unwrap();
        (dir, folder)
    }

    #[test]
    fn a_row_with_distributions_gives_one_chart_with_all_its_subjects() {
        let (_dir, folder) = folder();
        let charts = latency(&CellIndex::of(&folder));
        assert_eq!(charts.len(), 2);
        assert_eq!(charts[0].series.len(), 6);
        assert!(
            charts[0].desc.contains("Hailwire over QUIC: p50 "),
            "{}",
            charts[0].desc
        );
        assert!(
            charts[0]
                .series
                .iter()
                .all(|s| s.points.len() <= POINTS_PER_LINE + 1)
        );
    }

    #[test]
    fn agents_and_peers_are_read_from_what_was_asked_or_from_the_row() {
        let (_dir, mut folder) = folder();
        let with = throughput(&CellIndex::of(&folder));
        for line in &mut folder.lines {
            line.asked.clear();
        }
        let without = throughput(&CellIndex::of(&folder));
        assert_eq!(with, without);
        assert_eq!(with.len(), 6);
        assert_eq!(with[0].series[0].points.len(), 3);
        assert_eq!(memory(&CellIndex::of(&folder)).len(), 2);
    }

    #[test]
    fn one_count_alone_is_no_line() {
        let (_dir, mut folder) = folder();
        folder
            .lines
            .retain(|line| line.cell.row.starts_with("10 agents"));
        assert_eq!(throughput(&CellIndex::of(&folder)), Vec::new());
    }
}
