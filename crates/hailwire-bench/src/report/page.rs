//! The contents of a report, before it is HTML, Markdown or JSON: a pure function of a folder.

use std::{
    collections::HashSet,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::Value as Json;

use super::{
    baseline_comparison::{self, BaselineComparison},
    cell_index::CellIndex,
    charts, figure,
    networks::{self, CheckedPath},
    plot::{self, SvgPlot},
    published,
    result_folder::ResultFolder,
    scores,
    spread::DifferenceVerdict,
    subjects,
    table::{self, TableGrid},
    timings::{self, TableTime},
};
use crate::{
    measure::Spread,
    tables::grouped,
    targets::{PerformanceTarget, TARGETS, TargetOutcome},
};

/// The contents of a report.
#[derive(Clone, Debug)]
pub(crate) struct ReportPage {
    /// `coordination on A processor × 2`.
    pub(crate) title: String,
    /// What was compared with what, in words.
    pub(crate) sentence: String,
    /// The day and time of the run.
    pub(crate) when: String,
    /// The environment of the run: name and value.
    pub(crate) environment: Vec<(String, String)>,
    /// The exact command; empty where it is not known.
    pub(crate) command: String,
    /// The rows at the top: the published tables' own questions, then where we lose.
    pub(crate) first: Vec<BaselineComparison>,
    /// Each target.
    pub(crate) targets: Vec<JudgedTarget>,
    /// Rows in which we are behind a baseline, the furthest first.
    pub(crate) losses: Vec<BaselineComparison>,
    /// Rows in which we are ahead, the furthest first.
    pub(crate) wins: Vec<BaselineComparison>,
    /// Rows whose spread hides a difference.
    pub(crate) hidden: usize,
    /// Rows with too few repeats to say.
    pub(crate) too_few: usize,
    /// How many rows chance alone would put among the losses and wins.
    pub(crate) by_chance: f64,
    /// Checks of networks.
    pub(crate) networks: Vec<CheckedPath>,
    /// Tables with a measurement, published ones first.
    pub(crate) tables: Vec<TableGrid>,
    /// Published tables without a measurement.
    pub(crate) unmeasured: Vec<TableGrid>,
    /// Plots by kind: a heading, and its plots.
    pub(crate) plots: Vec<(String, Vec<SvgPlot>)>,
    /// Every figure of every cell.
    pub(crate) figures: Vec<PageFigure>,
    /// Every cell that was skipped.
    pub(crate) skipped: Vec<SkippedCell>,
    /// What could not be read or drawn.
    pub(crate) warnings: Vec<String>,
    /// Files of the folder: name, and what it holds.
    pub(crate) files: Vec<(String, String)>,
    /// Repeats that count, and warm-ups.
    pub(crate) repeats: (usize, usize),
    /// Where the time went.
    pub(crate) times: Vec<TableTime>,
}

/// A target and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JudgedTarget {
    /// In words.
    pub(crate) name: String,
    /// The formula.
    pub(crate) formula: String,
    /// `None` where it was not measured.
    pub(crate) met: Option<bool>,
    /// The value with its spread, or why there is none.
    pub(crate) value: String,
}

/// One figure of one cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PageFigure {
    /// Table, row, subject, form, network.
    pub(crate) cell_key: [String; 5],
    /// The figure's name.
    pub(crate) name: String,
    /// Its spread.
    pub(crate) spread: Spread,
    /// Counted repeats.
    pub(crate) repeats: usize,
}

/// A cell that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SkippedCell {
    /// Table, row, subject, form.
    pub(crate) cell_key: [String; 4],
    /// Why.
    pub(crate) reason: String,
}

impl ReportPage {
    /// Builds it from a folder.
    #[must_use]
    pub(crate) fn of(mut folder: ResultFolder) -> Self {
        let suites = folder.suites();
        let targets = TARGETS
            .iter()
            .filter(|target| suites.iter().any(|suite| suite == target.of.suite))
            .map(|target| judge(target, &folder))
            .collect();
        scores::add(&mut folder);
        let cells = CellIndex::of(&folder);
        let all = baseline_comparison::all(&cells);
        let (losses, wins) = (
            baseline_comparison::losses(&all),
            baseline_comparison::wins(&all),
        );
        let of = |verdict| all.iter().filter(|one| one.verdict == verdict).count();
        let (tables, unmeasured) = tables(&cells, &suites);
        let mut warnings = folder.warnings.clone();
        warnings.extend(timings::warning(&folder.timings));
        let plots = plots(&cells, &mut warnings);
        let counted = folder.lines.iter().filter(|line| line.repeat > 0).count();
        Self {
            title: title(&folder, &suites),
            sentence: sentence(&cells, &suites),
            when: when(&folder),
            environment: environment(&folder),
            command: folder.fact("command").unwrap_or_default(),
            first: baseline_comparison::first_rows(&all)
                .into_iter()
                .cloned()
                .collect(),
            targets,
            hidden: of(DifferenceVerdict::NoDifference),
            too_few: of(DifferenceVerdict::TooFew),
            by_chance: baseline_comparison::by_chance(&all),
            losses: losses.into_iter().cloned().collect(),
            wins: wins.into_iter().cloned().collect(),
            networks: folder.networks.iter().flat_map(networks::checked).collect(),
            tables,
            unmeasured,
            plots,
            figures: figures(&cells),
            skipped: skips(&cells),
            warnings,
            files: folder.files.clone(),
            repeats: (counted, folder.lines.len() - counted),
            times: timings::by_table(&folder.timings),
        }
    }
}

fn title(folder: &ResultFolder, suites: &[String]) -> String {
    let suites = if suites.is_empty() {
        "nothing measured".to_owned()
    } else {
        suites.join(", ")
    };
    match folder.fact("cpu") {
        Some(cpu) => format!("{suites} on {cpu}"),
        None => suites,
    }
}

/// What was compared with what, on what: one sentence for someone who has never seen a report.
fn sentence(cells: &CellIndex<'_>, suites: &[String]) -> String {
    let (mut hailwire, mut others, mut networks) = (Vec::new(), Vec::new(), Vec::new());
    let mut rows = HashSet::new();
    for cell_key in cells.measured().filter(|cell_key| cell_key.table != "Q12") {
        rows.insert(cell_key.with(""));
        let side = if subjects::is_hailwire(cell_key.subject) {
            &mut hailwire
        } else {
            &mut others
        };
        // Variants, `quic bbr`, are named where they are shown.
        let (subject, _) = subjects::variant(cell_key.subject);
        for (list, one) in [(side, subject), (&mut networks, cell_key.network)] {
            if !list.contains(&one) {
                list.push(one);
            }
        }
    }
    if rows.is_empty() {
        return "Nothing was measured.".to_owned();
    }
    let named = |mut subjects: Vec<&str>| {
        subjects.sort_by_key(|subject| subjects::order(subject));
        list(
            &subjects
                .into_iter()
                .map(subjects::words)
                .collect::<Vec<_>>(),
        )
    };
    let who = match (hailwire.is_empty(), others.is_empty()) {
        (false, false) => format!(
            "{}, beside {} doing the same work in the same run",
            named(hailwire),
            named(others)
        ),
        (false, true) => format!("{}, with nothing beside it", named(hailwire)),
        (true, _) => format!("{}, without Hailwire", named(others)),
    };
    let rows = plural(rows.len(), "row");
    let at = networks.iter().position(|network| *network == "loopback");
    let simulated = networks.len() - usize::from(at.is_some());
    let on = match (at, simulated) {
        (Some(_), 0) => "all on this machine's loopback".to_owned(),
        (None, _) => format!("on {}", plural(simulated, "simulated network")),
        (Some(_), _) => format!(
            "on loopback and on {}",
            plural(simulated, "simulated network")
        ),
    };
    format!(
        "Compared: {who}, in {rows} of the suite {}, {on}.",
        list(suites)
    )
}

/// `1 row`, `1,200 rows`.
fn plural(count: usize, word: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {word}{s}", grouped(count as u64))
}

/// `a; b and c`: names may hold commas.
fn list(names: &[String]) -> String {
    let comma = names.iter().any(|name| name.contains(','));
    let between = if comma { "; " } else { ", " };
    match names.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, front)) => format!("{} and {last}", front.join(between)),
    }
}

pub(crate) fn when(folder: &ResultFolder) -> String {
    let at = folder.environment.get("at").and_then(Json::as_u64);
    // The year 9999 is as far as the formatter goes.
    let at = at.filter(|at| *at < 253_402_300_800);
    at.map_or("at an unknown time".into(), |at| {
        let time = UNIX_EPOCH + Duration::from_secs(at);
        let text = humantime::format_rfc3339_seconds(time).to_string();
        text.replace('T', " ").replace('Z', " UTC")
    })
}

fn environment(folder: &ResultFolder) -> Vec<(String, String)> {
    let known = |name: &str| match name {
        "cpu" => "machine".to_owned(),
        "version" => "hailwire".to_owned(),
        "memory_bytes" => "memory".to_owned(),
        "seconds" => "took".to_owned(),
        other => other.replace('_', " "),
    };
    let shown = folder
        .environment
        .iter()
        .filter(|(name, _)| *name != "at" && *name != "command");
    shown
        .map(|(name, value)| (known(name), networks::fact(name, value)))
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

pub(crate) fn judge(target: &PerformanceTarget, folder: &ResultFolder) -> JudgedTarget {
    let (met, value) = match target.judge(&folder.lines) {
        TargetOutcome::Judged {
            met,
            median,
            min,
            max,
        } => {
            let spread = Spread { median, min, max };
            let text = if !target.over.is_empty() {
                let [median, min, max] = [median, min, max].map(|ratio| format!("{ratio:.2}"));
                format!("{median} × ({min} – {max})")
            } else {
                figure::spread(target.of.name, &spread)
            };
            (Some(met), text)
        }
        TargetOutcome::NotMeasured => (None, format!("not measured: {}", why(target, folder))),
    };
    JudgedTarget {
        name: target.name.to_owned(),
        formula: target.formula.to_owned(),
        met,
        value,
    }
}

/// Why a target has no figure: the first reason that the run gave for one of its cells.
fn why(target: &PerformanceTarget, folder: &ResultFolder) -> String {
    let cells = target.figures();
    let mut reasons = cells.clone().filter_map(|figure| {
        let mut skipped = folder.skipped.iter();
        skipped
            .find(|one| figure.is_of(&one.cell))
            .map(|one| one.reason.clone())
    });
    reasons.next().unwrap_or_else(|| {
        let lacks = |figure: &crate::targets::TargetFigure| {
            !folder.lines.iter().any(|line| {
                line.repeat > 0
                    && figure.is_of(&line.cell)
                    && line.figures.contains_key(figure.name)
            })
        };
        let lacking: Vec<String> = cells
            .filter(lacks)
            .map(|f| {
                format!(
                    "{} of {} in {} “{}”",
                    figure::label(f.name),
                    subjects::words(f.subject),
                    f.table,
                    f.row
                )
            })
            .collect();
        match lacking.is_empty() {
            true => "its subjects have no repeat in common".into(),
            false => format!("this run has no {}", lacking.join(", nor ")),
        }
    })
}

fn tables(cells: &CellIndex<'_>, suites: &[String]) -> (Vec<TableGrid>, Vec<TableGrid>) {
    let grids = published::tables().map(|of| table::published(of, cells, suites));
    let (mut tables, unmeasured): (Vec<TableGrid>, Vec<TableGrid>) =
        grids.partition(|grid| grid.measured);
    let mut own: Vec<&str> = Vec::new();
    for cell_key in cells.measured().chain(cells.skipped()) {
        let known = published::tables().any(|of| of.id == cell_key.table);
        if !known && !own.contains(&cell_key.table) {
            own.push(cell_key.table);
        }
    }
    tables.extend(own.into_iter().map(|id| table::own(id, cells)));
    (tables, unmeasured)
}

fn plots(cells: &CellIndex<'_>, warnings: &mut Vec<String>) -> Vec<(String, Vec<SvgPlot>)> {
    let kinds = [
        ("Latency", charts::latency(cells)),
        ("Throughput against agents", charts::throughput(cells)),
        ("Memory against peers", charts::memory(cells)),
    ];
    let mut plots = Vec::new();
    for (kind, charts) in kinds {
        let mut drawn = Vec::new();
        for chart in &charts {
            match plot::draw(chart) {
                Ok(plot) => drawn.push(plot),
                Err(reason) => warnings.push(format!("“{}” was not drawn: {reason}", chart.title)),
            }
        }
        plots.push((kind.to_owned(), drawn));
    }
    plots
}

fn figures(cells: &CellIndex<'_>) -> Vec<PageFigure> {
    let of = |cell_key| {
        cells
            .figures(cell_key)
            .into_iter()
            .map(move |name| (cell_key, name))
    };
    cells
        .measured()
        .flat_map(of)
        .filter_map(|(cell_key, name)| {
            let (spread, repeats) = cells.spread(cell_key, name)?;
            let cell_key = [
                cell_key.table,
                cell_key.row,
                cell_key.subject,
                cell_key.form,
                cell_key.network,
            ];
            Some(PageFigure {
                cell_key: cell_key.map(ToOwned::to_owned),
                name: name.to_owned(),
                spread,
                repeats,
            })
        })
        .collect()
}

fn skips(cells: &CellIndex<'_>) -> Vec<SkippedCell> {
    cells
        .skipped()
        .map(|cell_key| SkippedCell {
            cell_key: [
                cell_key.table,
                cell_key.row,
                cell_key.subject,
                cell_key.form,
            ]
            .map(ToOwned::to_owned),
            reason: cells.reason(cell_key).unwrap_or_default().to_owned(),
        })
        .collect()
}
