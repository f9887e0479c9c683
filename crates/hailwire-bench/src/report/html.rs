//! The page: one HTML file without scripts, styles or pictures from elsewhere.
//!
//! Everything that comes from a file is escaped by maud. Wide tables scroll in a box of
//! their own, so that the page itself never does.

use hailwire_wire::shown;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::tables::grouped;

use super::{
    baseline_comparison::BaselineComparison,
    figure,
    networks::CheckedPath,
    page::{JudgedTarget, PageFigure, ReportPage, SkippedCell},
    plot::{self, SvgPlot},
    published, scores,
    spread::DifferenceVerdict,
    subjects,
    table::{BaselineRatio, GridRow, GridValue, TableGrid},
    timings::{self, TableTime},
};

pub(crate) const STYLE: &str = include_str!("style.css");
/// Rows of a list of losses or wins that are shown; the rest is folded.
const OPEN_TABLES: usize = 12;
/// Plots of a kind that are shown; the rest are folded.
const OPEN_PLOTS: usize = 6;

/// The whole page of a report.
#[must_use]
pub(crate) fn page(report: &ReportPage) -> String {
    let body = html! {
        header {
            p.over { "Hailwire bench" }
            h1 { (report.title) }
            p.sentence { (report.sentence) }
            p.lead { (report.when) @for (name, value) in &report.environment { " · " (name) " " (value) } }
            (contents(report))
        }
        main {
            (first(report))
            (warnings(&report.warnings))
            (targets(&report.targets))
            (losses(report))
            (wins(report))
            (networks(&report.networks))
            (plots(report))
            (tables(report))
            (method(report))
            (lines(report))
        }
    };
    whole(&format!("Hailwire bench: {}", report.title), &body)
}

/// A page around a body.
pub(crate) fn whole(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    // maud escapes elements, but not characters that change the direction of text.
    shown::lines(&page.into_string())
}

fn contents(report: &ReportPage) -> Markup {
    html! {
        nav aria-label="Contents" {
            a href="#first" { "First rows" } " "
            a href="#targets" { "Targets" } " "
            a href="#losses" { "Where we lose" } " "
            a href="#wins" { "Where we win" } " "
            a href="#networks" { "Networks" } " "
            a href="#plots" { "Plots" } " "
            @for grid in report.tables.iter().chain(&report.unmeasured) {
                a href=(format!("#table-{}", slug(&grid.id))) { (grid.id) } " "
            }
            a href="#method" { "Method" } " "
            a href="#lines" { "Lines" }
        }
    }
}

fn first(report: &ReportPage) -> Markup {
    html! {
        section id="first" {
            h2 { "The tables' own questions, then where we lose" }
            @if report.first.is_empty() {
                p { "No figure of ours can be compared with a baseline's in this folder." }
            } @else {
                (comparison_rows("First rows", &report.first, true))
                p.source { (FIRST_RULE) }
            }
        }
    }
}

/// What a published table is about.
fn title(table: &str) -> Option<&'static str> {
    published::tables()
        .find(|one| one.id == table)
        .map(|one| one.title)
}

/// `2.1 × better`: how far ahead or behind, whichever way is better for the figure.
pub(crate) fn times(one: &BaselineComparison) -> String {
    let (factor, word) = if one.lead >= 1.0 {
        (one.lead, "better")
    } else {
        (1.0 / one.lead, "worse")
    };
    let text = format!("{} × {word}", figure::number(factor));
    match one.verdict {
        DifferenceVerdict::TooFew => format!("{text}, of too few repeats"),
        DifferenceVerdict::NoDifference => format!("{} no difference", sign(one.verdict)),
        _ => format!("{} {text}", sign(one.verdict)),
    }
}

const fn sign(verdict: DifferenceVerdict) -> &'static str {
    match verdict {
        DifferenceVerdict::Better => "▲",
        DifferenceVerdict::Worse => "▼",
        DifferenceVerdict::NoDifference => "≈",
        DifferenceVerdict::TooFew => "?",
    }
}

pub(crate) const fn class(verdict: DifferenceVerdict) -> &'static str {
    match verdict {
        DifferenceVerdict::Better => "better",
        DifferenceVerdict::Worse => "worse",
        DifferenceVerdict::NoDifference => "same",
        DifferenceVerdict::TooFew => "few",
    }
}

pub(crate) fn warnings(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            section.warnings {
                h2 { "Warnings" }
                ul { @for warning in warnings { li { (warning) } } }
            }
        }
    }
}

fn targets(targets: &[JudgedTarget]) -> Markup {
    html! {
        section id="targets" {
            h2 { "Targets" }
            (scroll("Targets", &html! {
                table.stack {
                    thead { tr { th scope="col" { "target" } th scope="col" { "result" } th scope="col" { "value" } th scope="col" { "formula" } } }
                    tbody {
                        @for target in targets {
                            tr {
                                th scope="row" { (target.name) }
                                @match target.met {
                                    Some(true) => td.better data-label="result" { "▲ met" },
                                    Some(false) => td.worse data-label="result" { "▼ missed" },
                                    None => td.missing data-label="result" { "not measured" },
                                }
                                td class=(if target.met.is_some() { "value" } else { "missing" }) data-label="value" { (target.value) }
                                td.text data-label="formula" { (target.formula) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn losses(report: &ReportPage) -> Markup {
    html! {
        section id="losses" {
            h2 { "Where we lose" }
            @if report.losses.is_empty() {
                p { "In no row of this folder is a subject of ours behind a baseline beyond the spread." }
            } @else {
                p { (report.losses.len()) " rows in which a subject of ours is behind a baseline in the same run, the furthest first." }
                (comparisons("Where we lose", &report.losses))
            }
        }
    }
}

fn wins(report: &ReportPage) -> Markup {
    html! {
        section id="wins" {
            h2 { "Where we win" }
            @if report.wins.is_empty() {
                p { "In no row of this folder is a subject of ours ahead of a baseline beyond the spread." }
            } @else {
                p { (report.wins.len()) " rows in which a subject of ours is ahead of a baseline in the same run, the furthest first." }
                (comparisons("Where we win", &report.wins))
            }
            p { "In " (report.hidden) " rows the spread hides a difference, if there is one; "
                (report.too_few) " rows have too few repeats to say. Chance alone would put about "
                (figure::number(report.by_chance.round())) " rows among the losses and wins, most of them with ratios near 1." }
        }
    }
}

fn comparisons(name: &str, all: &[BaselineComparison]) -> Markup {
    let (open, folded) = all.split_at(all.len().min(OPEN_TABLES));
    html! {
        (comparison_rows(name, open, false))
        @if !folded.is_empty() {
            details {
                summary { (folded.len()) " more" }
                (comparison_rows(name, folded, false))
            }
        }
    }
}

/// `titled` says also what the published table of each row is about.
fn comparison_rows(name: &str, all: &[BaselineComparison], titled: bool) -> Markup {
    scroll(
        name,
        &html! {
            table.stack {
                thead { tr {
                    th scope="col" { "row" } th scope="col" { "figure" } th scope="col" { "Hailwire" }
                    th scope="col" { "baseline" } th scope="col" { "ratio, paired" } th scope="col" { "Hailwire is" }
                } }
                tbody {
                    @for one in all {
                        tr {
                            th scope="row" { (one.cell_key()) @if titled { @if let Some(title) = title(&one.table) { span.sub { (title) } } } span.sub { (one.network) } }
                            td.text data-label="figure" { (figure::label(&one.figure)) }
                            td.value data-label="Hailwire" { (figure::spread(&one.figure, &one.our)) span.sub { (subjects::words(&one.ours)) } }
                            td.value data-label="baseline" { (figure::spread(&one.figure, &one.their)) span.sub { (subjects::words(&one.theirs)) } }
                            td.value data-label="ratio, paired" { (one.ratio.text()) }
                            td class=(class(one.verdict)) data-label="Hailwire is" { (times(one)) }
                        }
                    }
                }
            }
        },
    )
}

fn networks(networks: &[CheckedPath]) -> Markup {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in networks.iter().flat_map(|network| &network.facts) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    html! {
        section id="networks" {
            h2 { "Networks, checked before they were used" }
            @if networks.is_empty() {
                p { "No network was simulated, or none was checked: rows on `loopback` ran on this machine's own loopback." }
            } @else {
                (scroll("Networks", &html! {
                    table.stack {
                        thead { tr { th scope="col" { "network" } th scope="col" { "as labelled" }
                            @for name in &names { th scope="col" { (name) } } } }
                        tbody {
                            @for network in networks {
                                tr {
                                    th scope="row" { (network.name) }
                                    @match network.within {
                                        Some(true) => td.better data-label="as labelled" { "▲ yes" },
                                        Some(false) => td.worse data-label="as labelled" { "▼ no" },
                                        None => td.missing data-label="as labelled" { "the check does not say" },
                                    }
                                    @for name in &names {
                                        @match network.facts.iter().find(|(of, _)| of == name) {
                                            Some((_, value)) => td.text data-label=(name) { (value) },
                                            None => td.missing data-label=(name) { "not checked" },
                                        }
                                    }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }
}

fn plots(report: &ReportPage) -> Markup {
    let mut number = 0;
    let mut next = || {
        number += 1;
        format!("plot-{number}")
    };
    html! {
        section id="plots" {
            h2 { "Plots" }
            @for (kind, plots) in &report.plots {
                h3 { (kind) }
                @if plots.is_empty() {
                    p.missing { "Nothing to draw: no lines of this folder have what this plot needs." }
                }
                @let (open, folded) = plots.split_at(plots.len().min(OPEN_PLOTS));
                div.plots { @for plot in open { (figure_of(plot, &next())) } }
                @if !folded.is_empty() {
                    details {
                        summary { (folded.len()) " more" }
                        div.plots { @for plot in folded { (figure_of(plot, &next())) } }
                    }
                }
            }
        }
    }
}

fn figure_of(plot: &SvgPlot, id: &str) -> Markup {
    html! {
        figure {
            figcaption { (plot.title) }
            (plot.markup(id))
            ul.keys { @for (style, name) in &plot.series { li { (plot::key(*style)) (name) } } }
        }
    }
}

fn tables(report: &ReportPage) -> Markup {
    html! {
        section id="tables" {
            h2 { "Tables" }
            p { "Published columns are as published, from other machines: nothing is computed from them. Measured "
                "cells are the median of the counted repeats (least – most)." }
            @for grid in &report.tables { (table(grid)) }
        }
        @if !report.unmeasured.is_empty() {
            section {
                h2 { "Published tables without a measurement in this folder" }
                @for grid in &report.unmeasured {
                    details id=(format!("table-{}", slug(&grid.id))) {
                        summary { (grid.id) " · " (grid.title) }
                        (about(grid))
                        (scroll(&grid.title, &rows(grid)))
            (footnotes(grid))
                    }
                }
            }
        }
    }
}

fn table(grid: &TableGrid) -> Markup {
    html! {
        article id=(format!("table-{}", slug(&grid.id))) {
            h3 { (grid.id) " · " (grid.title) }
            (about(grid))
            (scroll(&grid.title, &rows(grid)))
            (footnotes(grid))
        }
    }
}

fn about(grid: &TableGrid) -> Markup {
    html! {
        @if !grid.source.is_empty() { p.source { "Published by: " (grid.source) } }
        @for note in &grid.notes { p.note { (note) } }
        @if grid.id == "Q12" { p.note { (scores::FORMULA) } }
    }
}

fn rows(grid: &TableGrid) -> Markup {
    let notes = grid.footnotes();
    html! {
        table.grid.stack {
            thead {
                tr {
                    th scope="col" rowspan="2" { "row" }
                    th scope="col" rowspan="2" { "figure" }
                    @for (name, span) in groups(grid) { th.group scope="colgroup" colspan=(span) { (name) } }
                }
                tr {
                    @for column in &grid.columns {
                        @if column.subject.is_empty() { th.pub scope="col" { "published" } }
                        @else { th scope="col" { (subjects::words(&column.subject)) } }
                    }
                }
            }
            tbody {
                @for (i, row) in grid.rows.iter().enumerate() {
                    tr {
                        @if let Some(span) = span(&grid.rows, i) {
                            th scope="rowgroup" rowspan=(span) {
                                (row.name)
                                @if !row.measured_as.is_empty() { span.sub { (row.measured_as) } }
                            }
                        }
                        td.text.figure { (row.figure) }
                        (cells(grid, &row.cells, &notes))
                    }
                }
            }
        }
    }
}

fn groups(grid: &TableGrid) -> Vec<(&str, usize)> {
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for column in &grid.columns {
        match groups.last_mut() {
            Some((name, span)) if *name == column.group => *span += 1,
            _ => groups.push((&column.group, 1)),
        }
    }
    groups
}

/// How many rows share the name that begins at row `i`; `None` where it began above.
fn span(rows: &[GridRow], i: usize) -> Option<usize> {
    let same = |a: &GridRow, b: &GridRow| a.name == b.name && a.measured_as == b.measured_as;
    let row = rows.get(i)?;
    let begun = i.checked_sub(1).and_then(|above| rows.get(above));
    if begun.is_some_and(|above| same(above, row)) {
        return None;
    }
    let rest = rows.get(i..)?;
    Some(rest.iter().take_while(|other| same(other, row)).count())
}

/// The notes below a table, to which its cells point.
fn footnotes(grid: &TableGrid) -> Markup {
    let notes = grid.footnotes();
    html! {
        @if !notes.is_empty() {
            ol.footnotes { @for (n, reason) in (1..).zip(&notes) {
                li id=(note_id(grid, n)) { "not measured: " (reason) }
            } }
        }
    }
}

fn note_id(grid: &TableGrid, n: usize) -> String {
    format!("note-{}-{n}", slug(&grid.id))
}

/// The cells of a row; neighbours without a figure for the same reason are one.
fn cells(grid: &TableGrid, cells: &[GridValue], notes: &[&str]) -> Markup {
    let mut groups: Vec<(&GridValue, usize, String)> = Vec::new();
    for (column, cell) in grid.columns.iter().zip(cells) {
        let name = column.words();
        match groups.last_mut() {
            Some((last, span, names)) if *last == cell && matches!(cell, GridValue::Missing(_)) => {
                *span += 1;
                *names += "; ";
                *names += &name;
            }
            _ => groups.push((cell, 1, name)),
        }
    }
    html! {
        @for (cell, span, name) in groups {
            @match cell {
                GridValue::Published(text) => td.pub data-label=(name) { (text) },
                GridValue::Unpublished => td.pub.missing data-label=(name) { "none published" },
                GridValue::Missing(reason) => td.missing colspan=(span) data-label=(name) {
                    @if let Some(n) = notes.iter().position(|note| note == reason).map(|at| at + 1) {
                        "not measured " a href=(format!("#{}", note_id(grid, n))) { "(" (n) ")" }
                    } @else { "not measured: " (reason) }
                },
                GridValue::Measured { text, range, repeats, against } => td.value data-label=(name) {
                    (text) span.sub { (range) }
                    @if *repeats < 3 { span.sub { "of " (repeats) @if *repeats == 1 { " repeat" } @else { " repeats" } } }
                    @if let Some(against) = against { (beside(against)) }
                },
            }
        }
    }
}

fn beside(against: &BaselineRatio) -> Markup {
    html! {
        span class=(format!("sub vs {}", class(against.verdict))) {
            (sign(against.verdict)) " " (against.ratio) " of " (subjects::words(&against.baseline)) ", " (against.verdict.text())
        }
    }
}

fn method(report: &ReportPage) -> Markup {
    html! {
        section id="method" {
            h2 { "Environment and method" }
            @if report.command.is_empty() { p { "The command of this run is not known." } }
            @else { p { "The exact command:" } (scroll("Command", &html! { pre { code { (report.command) } } })) }
            dl { @for (name, value) in &report.environment { dt { (name) } dd { (value) } } }
            ul {
                li { "Drawn from " (grouped(report.repeats.0 as u64)) " counted repeats and " (grouped(report.repeats.1 as u64)) " warm-ups, which are kept and not summed up." }
                @for rule in METHOD { li { (rule) } }
            }
            (where_time_went(&report.times))
            h3 { "Files" }
            ul.files { @for (name, what) in &report.files { li { a href=(address(name)) { (name) } ": " (what) } } }
        }
    }
}

fn where_time_went(times: &[TableTime]) -> Markup {
    html! {
        @if !times.is_empty() {
            h3 { "Where the time went" }
            (scroll("Where the time went", &html! {
                table.stack {
                    thead { tr { @for name in timings::HEAD { th scope="col" { (name) } } } }
                    tbody {
                        @for one in times {
                            tr { th scope="row" { (one.table) } @for (name, cell) in timings::HEAD.iter().skip(1).zip(one.cells()) { td.value data-label=(name) { (cell) } } }
                        }
                    }
                }
            }))
        }
    }
}

/// How the first rows are chosen.
pub(crate) const FIRST_RULE: &str = "Chosen by rule: of each published table its first row that was measured beside a baseline; then, of the \
     three tables with most figures in which Hailwire is behind beyond the spread, the figure in the middle of these, sorted by how \
     far. Each stands beside the best of its baselines. Processor time counted by the tick is left out.";

/// How figures were measured and what the terms of a report mean.
pub(crate) const METHOD: &[&str] = &[
    "Every program is a process of its own on one machine; subjects are interleaved, A B C A B C, in one run. \
     The content of each answer is checked.",
    "A figure is the median of its repeats, with the least and the most.",
    "A ratio between two subjects is taken repeat by repeat. They differ when every pair lies on the same side of 1; otherwise \
     the row says no difference. Fewer than three pairs are not judged.",
    "Losses and wins compare p50 and p99 of the quantiles, resident bytes of the memory, and messages rather than \
     bytes where both are there; the tables have the rest.",
    "What is called Hailwire is ours; whatever else was measured is a baseline. \
     Only the same row in the same form on the same network is compared.",
    "Published figures come from other machines and other work. They are printed and never computed with.",
];

fn lines(report: &ReportPage) -> Markup {
    html! {
        section id="lines" {
            h2 { "Every figure" }
            details {
                summary { (grouped(report.figures.len() as u64)) " figures" }
                (scroll("Every figure", &figures(&report.figures)))
            }
            details {
                summary { (report.skipped.len()) " cells that were not measured, and why" }
                (scroll("Not measured", &skipped(&report.skipped)))
            }
        }
    }
}

fn figures(figures: &[PageFigure]) -> Markup {
    html! {
        table.stack.every {
            thead { tr { @for name in ["table", "row", "subject", "form", "network", "figure", "median (least – most)", "repeats"] { th scope="col" { (name) } } } }
            tbody { @for one in figures { tr {
                @for part in named(&one.cell_key) { td.text { (or_dash(&part)) } }
                td.text { (one.name) }
                td.value { (figure::spread(&one.name, &one.spread)) }
                td.value { (one.repeats) }
            } } }
        }
    }
}

fn skipped(skipped: &[SkippedCell]) -> Markup {
    html! {
        table.stack.unmeasured {
            thead { tr { @for name in ["table", "row", "subject", "form", "not measured"] { th scope="col" { (name) } } } }
            tbody { @for one in skipped { tr {
                @for part in named(&one.cell_key) { td.text { (or_dash(&part)) } }
                td.text { (one.reason) }
            } } }
        }
    }
}

/// The parts of a cell's name, its subject in words: the third of them.
fn named(cell_key: &[String]) -> impl Iterator<Item = String> {
    let part = |(at, part): (usize, &String)| match at {
        2 => subjects::words(part),
        _ => part.clone(),
    };
    cell_key.iter().enumerate().map(part)
}

/// A part of a name, or a dash where it does not apply.
fn or_dash(part: &str) -> &str {
    if part.is_empty() { "–" } else { part }
}

/// A cell that says on a narrow screen, where its row is a card, which column it is of.
pub(crate) fn cell(label: &str, class: &str, inside: &Markup) -> Markup {
    html! { td class=(class) data-label=(label) { (inside) } }
}

/// A box in which wide content scrolls; it can be reached and scrolled with the keyboard.
pub(crate) fn scroll(name: &str, inside: &Markup) -> Markup {
    html! { div.scroll tabindex="0" role="region" aria-label=(name) { (inside) } }
}

/// A file of the folder as a relative address: special characters are percent-encoded.
pub(crate) fn address(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes()
        .fold(String::new(), |out, byte| match plain(byte) {
            true => out + &char::from(byte).to_string(),
            false => out + &format!("%{byte:02X}"),
        })
}

/// A name as a fragment of an address.
fn slug(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    name.chars().map(safe).collect()
}
