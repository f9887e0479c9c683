//! A report, decided: everything that a page says, before it is HTML, Markdown or JSON. Pure.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value as Json;

use super::{
    cells::Cells,
    charts, figure,
    folder::Folder,
    networks::{self, Checked},
    plot::{self, Plot},
    published, scores,
    spread::Verdict,
    standing::{self, Standing},
    table::{self, Grid},
    time::{self, Took},
};
use crate::{
    aims::{AIMS, Aim, Outcome},
    measure::Spread,
};

/// Everything that a report says.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// `coordination on A processor × 2`.
    pub(crate) title: String,
    /// The day and time of the run.
    pub(crate) when: String,
    /// What the environment says, in words.
    pub(crate) environment: Vec<(String, String)>,
    /// The exact command; empty where it is not known.
    pub(crate) command: String,
    /// The three most telling rows.
    pub(crate) telling: Vec<Standing>,
    /// Each aim.
    pub(crate) aims: Vec<Judged>,
    /// Rows in which we are behind a baseline, the furthest first.
    pub(crate) losses: Vec<Standing>,
    /// Rows in which we are ahead, the furthest first.
    pub(crate) wins: Vec<Standing>,
    /// Rows whose spread hides a difference.
    pub(crate) hidden: usize,
    /// Rows with too few repeats to say.
    pub(crate) too_few: usize,
    /// How many rows chance alone would put among the losses and wins.
    pub(crate) by_chance: f64,
    /// Checks of networks.
    pub(crate) networks: Vec<Checked>,
    /// Tables that something was measured for, published ones first.
    pub(crate) tables: Vec<Grid>,
    /// Published tables that nothing was measured for.
    pub(crate) unmeasured: Vec<Grid>,
    /// Plots by kind: a heading, and its plots.
    pub(crate) plots: Vec<(String, Vec<Plot>)>,
    /// Every figure of every cell.
    pub(crate) figures: Vec<Figure>,
    /// Every cell that was skipped.
    pub(crate) skipped: Vec<Skip>,
    /// What could not be read or drawn.
    pub(crate) warnings: Vec<String>,
    /// Files of the folder: name, and what it holds.
    pub(crate) files: Vec<(String, String)>,
    /// Repeats that count, and warm-ups.
    pub(crate) repeats: (usize, usize),
    /// Where the time went.
    pub(crate) times: Vec<Took>,
}

/// An aim and how it came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// In words.
    pub(crate) name: String,
    /// What is computed and compared.
    pub(crate) formula: String,
    /// `None` where it was not measured.
    pub(crate) met: Option<bool>,
    /// The value with its spread, or why there is none.
    pub(crate) value: String,
}

/// One figure of one cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// Table, row, subject, form, network.
    pub(crate) place: [String; 5],
    /// The figure's name.
    pub(crate) name: String,
    /// Its spread.
    pub(crate) spread: Spread,
    /// Counted repeats.
    pub(crate) repeats: usize,
}

/// A cell that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    /// Table, row, subject, form.
    pub(crate) place: [String; 4],
    /// Why.
    pub(crate) reason: String,
}

impl Report {
    /// Of a folder.
    #[must_use]
    pub(crate) fn of(mut folder: Folder) -> Self {
        let suites = folder.suites();
        let aims = AIMS
            .iter()
            .filter(|aim| suites.iter().any(|suite| suite == aim.of.suite))
            .map(|aim| judge(aim, &folder))
            .collect();
        scores::add(&mut folder);
        let cells = Cells::of(&folder);
        let all = standing::all(&cells);
        let (losses, wins) = (standing::losses(&all), standing::wins(&all));
        let of = |verdict| all.iter().filter(|one| one.verdict == verdict).count();
        let (tables, unmeasured) = tables(&cells, &suites);
        let mut warnings = folder.warnings.clone();
        warnings.extend(time::warning(&folder.timings));
        let plots = plots(&cells, &mut warnings);
        let counted = folder.lines.iter().filter(|line| line.repeat > 0).count();
        Self {
            title: title(&folder, &suites),
            when: when(&folder),
            environment: environment(&folder),
            command: folder.fact("command").unwrap_or_default(),
            telling: standing::telling(&losses, &wins)
                .into_iter()
                .cloned()
                .collect(),
            aims,
            hidden: of(Verdict::NoDifference),
            too_few: of(Verdict::TooFew),
            by_chance: standing::by_chance(&all),
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
            times: time::by_table(&folder.timings),
        }
    }
}

fn title(folder: &Folder, suites: &[String]) -> String {
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

pub(crate) fn when(folder: &Folder) -> String {
    let at = folder.environment.get("at").and_then(Json::as_u64);
    // The year 9999 is as far as the formatter goes.
    let at = at.filter(|at| *at < 253_402_300_800);
    at.map_or("at a time that is not known".into(), |at| {
        let time = UNIX_EPOCH + Duration::from_secs(at);
        let text = humantime::format_rfc3339_seconds(time).to_string();
        text.replace('T', " ").replace('Z', " UTC")
    })
}

fn environment(folder: &Folder) -> Vec<(String, String)> {
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

pub(crate) fn judge(aim: &Aim, folder: &Folder) -> Judged {
    let (met, value) = match aim.judge(&folder.lines) {
        Outcome::Judged {
            met,
            median,
            min,
            max,
        } => {
            let spread = Spread { median, min, max };
            let text = if !aim.over.is_empty() {
                let [median, min, max] = [median, min, max].map(|ratio| format!("{ratio:.2}"));
                format!("{median} × ({min} – {max})")
            } else {
                figure::spread(aim.of.name, &spread)
            };
            (Some(met), text)
        }
        Outcome::NotMeasured => (None, format!("not measured: {}", why(aim, folder))),
    };
    Judged {
        name: aim.name.to_owned(),
        formula: aim.formula.to_owned(),
        met,
        value,
    }
}

/// Why an aim has no figure: the first reason that the run gave for one of its cells.
fn why(aim: &Aim, folder: &Folder) -> String {
    let cells = aim.figures();
    let mut reasons = cells.clone().filter_map(|figure| {
        let mut skipped = folder.skipped.iter();
        skipped
            .find(|one| figure.is_of(&one.cell))
            .map(|one| one.reason.clone())
    });
    reasons.next().unwrap_or_else(|| {
        let lacks = |figure: &crate::aims::Figure| {
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
                    f.subject,
                    f.table,
                    f.row
                )
            })
            .collect();
        match lacking.is_empty() {
            true => "its subjects share no repeat".into(),
            false => format!("this run has no {}", lacking.join(", nor ")),
        }
    })
}

fn tables(cells: &Cells<'_>, suites: &[String]) -> (Vec<Grid>, Vec<Grid>) {
    let grids = published::tables().map(|of| table::published(of, cells, suites));
    let (mut tables, unmeasured): (Vec<Grid>, Vec<Grid>) = grids.partition(|grid| grid.measured);
    let mut own: Vec<&str> = Vec::new();
    for place in cells.measured().chain(cells.skipped()) {
        let known = published::tables().any(|of| of.id == place.table);
        if !known && !own.contains(&place.table) {
            own.push(place.table);
        }
    }
    tables.extend(own.into_iter().map(|id| table::own(id, cells)));
    (tables, unmeasured)
}

fn plots(cells: &Cells<'_>, warnings: &mut Vec<String>) -> Vec<(String, Vec<Plot>)> {
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

fn figures(cells: &Cells<'_>) -> Vec<Figure> {
    let of = |place| {
        cells
            .figures(place)
            .into_iter()
            .map(move |name| (place, name))
    };
    cells
        .measured()
        .flat_map(of)
        .filter_map(|(place, name)| {
            let (spread, repeats) = cells.spread(place, name)?;
            let place = [
                place.table,
                place.row,
                place.subject,
                place.form,
                place.network,
            ];
            Some(Figure {
                place: place.map(ToOwned::to_owned),
                name: name.to_owned(),
                spread,
                repeats,
            })
        })
        .collect()
}

fn skips(cells: &Cells<'_>) -> Vec<Skip> {
    cells
        .skipped()
        .map(|place| Skip {
            place: [place.table, place.row, place.subject, place.form].map(ToOwned::to_owned),
            reason: cells.reason(place).unwrap_or_default().to_owned(),
        })
        .collect()
}
