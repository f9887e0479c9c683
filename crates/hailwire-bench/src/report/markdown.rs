//! The same report as Markdown, for places where HTML is not shown. Plots are in the page only.

use std::fmt::Write as _;

use hailwire_wire::shown::one_line;

use super::{
    baseline_comparison::BaselineComparison,
    figure, html,
    page::ReportPage,
    scores, subjects,
    table::{GridValue, TableGrid},
    timings,
};

/// The whole report.
#[must_use]
pub(crate) fn page(report: &ReportPage) -> String {
    let mut out = format!(
        "# Hailwire bench: {}\n\n{}\n\n{}",
        safe(&report.title),
        safe(&report.sentence),
        report.when
    );
    for (name, value) in &report.environment {
        let _ = write!(out, " · {} {}", safe(name), safe(value));
    }
    out += "\n\nPlots are in [report.html](report.html).\n\n## The tables' own questions, then where we lose\n\n";
    if report.first.is_empty() {
        out += "No figure of ours can be compared with a baseline's in this folder.\n";
    }
    for one in &report.first {
        let _ = writeln!(out, "- {}", safe(&one.sentence()));
    }
    let _ = writeln!(out, "\n{}", html::FIRST_RULE);
    if !report.warnings.is_empty() {
        out += "\n## Warnings\n\n";
        for warning in &report.warnings {
            let _ = writeln!(out, "- {}", safe(warning));
        }
    }
    targets(&mut out, report);
    comparisons(&mut out, "Where we lose", &report.losses);
    comparisons(&mut out, "Where we win", &report.wins);
    let _ = writeln!(
        out,
        "\nIn {} rows the spread hides a difference, if there is one; {} rows have too few repeats to say. \
         Chance alone would put about {:.0} rows among the losses and wins, most of them with ratios near 1.",
        report.hidden, report.too_few, report.by_chance
    );
    networks(&mut out, report);
    out += "\n## Tables\n\nPublished columns are as published, from other machines: nothing is computed from \
            them. Measured cells are the median of the counted repeats (least – most).\n";
    for grid in &report.tables {
        table(&mut out, grid);
    }
    if !report.unmeasured.is_empty() {
        out += "\n## Published tables without a measurement in this folder\n";
        for grid in &report.unmeasured {
            table(&mut out, grid);
        }
    }
    method(&mut out, report);
    out
}

fn targets(out: &mut String, report: &ReportPage) {
    *out += "\n## Targets\n\n";
    row(
        out,
        &["target", "result", "value", "formula"].map(String::from),
    );
    rule(out, 4);
    for target in &report.targets {
        let met = match target.met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not measured",
        };
        row(
            out,
            &[
                safe(&target.name),
                met.into(),
                safe(&target.value),
                safe(&target.formula),
            ],
        );
    }
}

fn comparisons(out: &mut String, title: &str, all: &[BaselineComparison]) {
    let _ = write!(out, "\n## {title}\n\n");
    if all.is_empty() {
        *out += "In no row of this folder.\n";
        return;
    }
    let head = [
        "row",
        "network",
        "figure",
        "Hailwire",
        "baseline",
        "ratio, paired",
        "Hailwire is",
    ];
    row(out, &head.map(String::from));
    rule(out, head.len());
    for one in all {
        row(
            out,
            &[
                safe(&one.cell_key()),
                safe(&one.network),
                safe(&figure::label(&one.figure)),
                format!(
                    "{}: {}",
                    safe(&subjects::words(&one.ours)),
                    figure::spread(&one.figure, &one.our)
                ),
                format!(
                    "{}: {}",
                    safe(&subjects::words(&one.theirs)),
                    figure::spread(&one.figure, &one.their)
                ),
                one.ratio.text(),
                one.verdict.text().into(),
            ],
        );
    }
}

fn networks(out: &mut String, report: &ReportPage) {
    *out += "\n## Networks, checked before they were used\n\n";
    if report.networks.is_empty() {
        *out += "No network was simulated, or none was checked.\n";
        return;
    }
    row(
        out,
        &["network", "as labelled", "measured"].map(String::from),
    );
    rule(out, 3);
    for network in &report.networks {
        let within = match network.within {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "the check does not say",
        };
        let facts = network
            .facts
            .iter()
            .map(|(name, value)| format!("{name}: {value}"));
        let facts = facts.collect::<Vec<_>>().join("; ");
        row(out, &[safe(&network.name), within.into(), safe(&facts)]);
    }
}

fn table(out: &mut String, grid: &TableGrid) {
    let _ = write!(out, "\n### {} · {}\n\n", safe(&grid.id), safe(&grid.title));
    if !grid.source.is_empty() {
        let _ = write!(out, "Published by: {}\n\n", safe(&grid.source));
    }
    let formula = (grid.id == "Q12").then_some(scores::FORMULA);
    for note in grid.notes.iter().map(String::as_str).chain(formula) {
        let _ = write!(out, "> {note}\n\n");
    }
    let mut head = vec!["row".to_owned(), "figure".to_owned()];
    head.extend(grid.columns.iter().map(|column| safe(&column.words())));
    row(out, &head);
    rule(out, head.len());
    let notes = grid.footnotes();
    for one in &grid.rows {
        let name = if one.measured_as.is_empty() {
            safe(&one.name)
        } else {
            format!("{} ({})", safe(&one.name), safe(&one.measured_as))
        };
        let mut cells = vec![name, safe(&one.figure)];
        cells.extend(one.cells.iter().map(|value| cell(value, &notes)));
        row(out, &cells);
    }
    if !notes.is_empty() {
        out.push('\n');
    }
    for (n, reason) in (1..).zip(&notes) {
        let _ = writeln!(out, "{n}. not measured: {}", safe(reason));
    }
}

/// `notes` are those that stand below the table.
fn cell(value: &GridValue, notes: &[&str]) -> String {
    match value {
        GridValue::Published(text) => safe(text),
        GridValue::Unpublished => "none published".into(),
        GridValue::Missing(reason) if notes.contains(&reason.as_str()) => {
            let n = notes.iter().take_while(|note| *note != reason).count() + 1;
            format!("not measured ({n})")
        }
        GridValue::Missing(reason) => format!("not measured: {}", safe(reason)),
        GridValue::Measured {
            text,
            range,
            repeats,
            against,
        } => {
            let mut cell = format!("{text} ({range})");
            if *repeats < 3 {
                let _ = write!(cell, ", repeats: {repeats}");
            }
            if let Some(against) = against {
                let _ = write!(
                    cell,
                    "; {} of {}, {}",
                    against.ratio,
                    safe(&subjects::words(&against.baseline)),
                    against.verdict.text()
                );
            }
            cell
        }
    }
}

fn method(out: &mut String, report: &ReportPage) {
    *out += "\n## Environment and method\n\n";
    if !report.command.is_empty() {
        let _ = write!(out, "The exact command: {}\n\n", safe(&report.command));
    }
    let _ = writeln!(
        out,
        "- Drawn from {} counted repeats and {} warm-ups, which are kept and not summed up.",
        report.repeats.0, report.repeats.1
    );
    for rule in html::METHOD {
        let _ = writeln!(out, "- {rule}");
    }
    if !report.times.is_empty() {
        *out += "\n### Where the time went\n\n";
        row(out, &timings::HEAD.map(String::from));
        rule(out, timings::HEAD.len());
        for one in &report.times {
            let mut cells = vec![safe(&one.table)];
            cells.extend(one.cells());
            row(out, &cells);
        }
    }
    *out += "\nFiles:\n\n";
    for (name, what) in &report.files {
        let _ = writeln!(out, "- [{}]({}): {what}", safe(name), html::address(name));
    }
}

pub(crate) fn row(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

pub(crate) fn rule(out: &mut String, columns: usize) {
    let _ = writeln!(out, "|{}", "---|".repeat(columns));
}

/// Text from a file as Markdown shows it: no element, link, code, emphasis or further cell begins in
/// it, and it stays on its line.
pub(crate) fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '|' | '[' | ']' | '`' | '*' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_stays_text_on_its_line() {
        assert_eq!(
            safe("a|b\n<script> [x](y) `c`"),
            "a\\|b &lt;script&gt; \\[x\\](y) \\`c\\`"
        );
    }
}
