//! Published tables with our measurements beside them: where each cell is shown, and what is shown for
//! a cell without a figure. Pure.
//!
//! A measured row belongs to the published row of which it contains all words, the one with most words first; its
//! form counts as part of its name. `1,000 agents × 100 KB, 50 ms` holds `1000 agents, 100 KB`:
//! a number and its unit are one word. Measured rows that belong to none follow as rows of our own.

use super::{
    cell_index::{CellIndex, CellKey},
    figure,
    published::{PublishedRow, PublishedTable},
    spread::{DifferenceVerdict, RatioSpread},
    subjects,
};

/// A table ready to be printed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableGrid {
    /// `Q1`, or a word of our own.
    pub(crate) id: String,
    /// What it is about.
    pub(crate) title: String,
    /// Who published it; empty for a table of our own.
    pub(crate) source: String,
    /// Notes for the reader.
    pub(crate) notes: Vec<String>,
    /// The columns after the row's name and its figure.
    pub(crate) columns: Vec<GridColumn>,
    /// The rows.
    pub(crate) rows: Vec<GridRow>,
    /// Whether anything was measured for it.
    pub(crate) measured: bool,
}

/// A reason of more characters than this stands below its table, numbered, and not in its cell.
const LONGEST_IN_CELL: usize = 32;

impl TableGrid {
    /// The reasons that stand below the table, each once, in the order in which cells have them.
    #[must_use]
    pub(crate) fn footnotes(&self) -> Vec<&str> {
        let mut notes: Vec<&str> = Vec::new();
        for cell in self.rows.iter().flat_map(|row| &row.cells) {
            if let GridValue::Missing(reason) = cell
                && reason.chars().count() > LONGEST_IN_CELL
                && !notes.contains(&reason.as_str())
            {
                notes.push(reason);
            }
        }
        notes
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GridColumn {
    /// The published system that it stands for; `others` for the rest.
    pub(crate) group: String,
    /// The subject; empty for the published column.
    pub(crate) subject: String,
}

impl GridColumn {
    /// Its name for people: a subject, or whose published figures it has.
    #[must_use]
    pub(crate) fn words(&self) -> String {
        match self.subject.as_str() {
            "" if self.group.contains("published") => self.group.clone(),
            "" => format!("{}, published", self.group),
            subject => subjects::words(subject),
        }
    }
}

/// A row: one figure of one measured or published row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GridRow {
    /// In words.
    pub(crate) name: String,
    /// The name of the measured row where it differs, with form and network.
    pub(crate) measured_as: String,
    /// The figure, for people.
    pub(crate) figure: String,
    /// One for each column.
    pub(crate) cells: Vec<GridValue>,
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GridValue {
    /// A published figure.
    Published(String),
    /// None was published.
    Unpublished,
    /// A measured one.
    Measured {
        /// The median with its unit.
        text: String,
        /// The least and the most in the same unit.
        range: String,
        /// Counted repeats.
        repeats: usize,
        /// Against the baseline that does the same work over the same protocol.
        against: Option<BaselineRatio>,
    },
    /// Not measured; the reason follows "not measured: ".
    Missing(String),
}

/// One of our subjects beside its baseline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BaselineRatio {
    /// The baseline.
    pub(crate) baseline: String,
    /// The ratio with its spread.
    pub(crate) ratio: String,
    /// Ours is…
    pub(crate) verdict: DifferenceVerdict,
}

/// A published table with what a folder has for it. `ran` says which suites the folder holds.
#[must_use]
pub(crate) fn published(
    table: &PublishedTable,
    cells: &CellIndex<'_>,
    ran: &[String],
) -> TableGrid {
    let found = found(table.id, cells);
    let measured = found.iter().any(|one| !one.network.is_empty());
    let columns = columns(table, cells);
    let builder = GridBuilder {
        columns: &columns,
        groups: table.groups.iter().map(|group| group.name).collect(),
        cells,
    };
    let mut rows = Vec::new();
    let mut placed = vec![false; found.len()];
    for (words, entry) in entries(table.rows) {
        let here: Vec<usize> = (0..found.len())
            .filter(|i| found.get(*i).and_then(|m| best(table.rows, *m)) == Some(words))
            .collect();
        if here.is_empty() {
            let reason = missing_row(table, ran);
            rows.extend(entry.iter().map(|row| builder.unmeasured(row, &reason)));
        }
        for i in here {
            if let (Some(one), Some(flag)) = (found.get(i), placed.get_mut(i)) {
                *flag = true;
                rows.extend(builder.measured(*one, &entry, table.also));
            }
        }
    }
    let every = table.figures();
    for (one, placed) in found.iter().zip(&placed) {
        if !placed {
            rows.extend(builder.measured(*one, &[], &every));
        }
    }
    TableGrid {
        id: table.id.to_owned(),
        title: table.title.to_owned(),
        source: table.source.to_owned(),
        notes: table.notes.iter().map(|note| (*note).to_owned()).collect(),
        columns,
        rows,
        measured,
    }
}

/// A table of our own: every subject a column, every judged figure a row.
#[must_use]
pub(crate) fn own(id: &str, cells: &CellIndex<'_>) -> TableGrid {
    let found = found(id, cells);
    let columns: Vec<GridColumn> = seen(id, cells)
        .into_iter()
        .map(|subject| GridColumn {
            group: "measured".into(),
            subject: subject.to_owned(),
        })
        .collect();
    let builder = GridBuilder {
        columns: &columns,
        groups: Vec::new(),
        cells,
    };
    TableGrid {
        id: id.to_owned(),
        title: "rows of our own".into(),
        source: String::new(),
        notes: Vec::new(),
        rows: found
            .iter()
            .flat_map(|one| builder.measured(*one, &[], &[]))
            .collect(),
        columns,
        measured: true,
    }
}

/// Rows with the same words, in the order of the table.
fn entries(rows: &'static [PublishedRow]) -> Vec<(&'static str, Vec<&'static PublishedRow>)> {
    let mut entries: Vec<(&str, Vec<&PublishedRow>)> = Vec::new();
    for row in rows {
        match entries.iter_mut().find(|(words, _)| *words == row.words) {
            Some((_, entry)) => entry.push(row),
            None => entries.push((row.words, vec![row])),
        }
    }
    entries
}

/// The words of the published row that a measured one belongs to.
fn best(rows: &'static [PublishedRow], measured: CellKey<'_>) -> Option<&'static str> {
    let mut has = words(measured.row);
    has.extend(words(measured.form));
    rows.iter()
        .filter(|row| words(row.words).iter().all(|word| has.contains(word)))
        // The first of those with the most words; `max_by_key` would take the last.
        .rev()
        .max_by_key(|row| words(row.words).len())
        .map(|row| row.words)
}

/// Whether a measured row belongs to a published one.
#[must_use]
pub(crate) fn belongs(
    rows: &'static [PublishedRow],
    row: &PublishedRow,
    name: &str,
    form: &str,
) -> bool {
    let measured = CellKey {
        table: "",
        row: name,
        subject: "",
        form,
        network: "",
    };
    best(rows, measured) == Some(row.words)
}

/// The words of a row's name: small letters, no thousands separator, a number together with its unit.
fn words(name: &str) -> Vec<String> {
    let plain = name.to_lowercase().replace('×', " ");
    let mut words: Vec<String> = Vec::new();
    for word in plain.split_whitespace() {
        let word = word.trim_end_matches([',', ':', ';']).replace(',', "");
        let number = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
        match words.last_mut() {
            Some(last) if number(last) && !number(&word) => last.push_str(&word),
            _ => words.push(word),
        }
    }
    // One agent is still of the unit `agents`.
    words.retain(|word| !word.is_empty());
    words
}

/// The measured rows of a table, as keys without a subject, and those that were skipped as a whole.
fn found<'a>(id: &str, cells: &CellIndex<'a>) -> Vec<CellKey<'a>> {
    let mut found: Vec<CellKey<'_>> = Vec::new();
    for cell_key in cells.measured().filter(|cell_key| cell_key.table == id) {
        let one = cell_key.with("");
        if !found.contains(&one) {
            found.push(one);
        }
    }
    for cell_key in cells.skipped().filter(|cell_key| cell_key.table == id) {
        let same = |one: &CellKey<'_>| one.row == cell_key.row && one.form == cell_key.form;
        if !found.iter().any(same) {
            found.push(cell_key.with(""));
        }
    }
    found
}

/// The subjects that a table has a line or a reason for.
fn seen<'a>(id: &str, cells: &CellIndex<'a>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    let cell_keys = cells.measured().chain(cells.skipped());
    for cell_key in cell_keys.filter(|cell_key| cell_key.table == id) {
        if !seen.contains(&cell_key.subject) {
            seen.push(cell_key.subject);
        }
    }
    seen.sort_by_key(|subject| subjects::order(subject));
    seen
}

fn columns(table: &PublishedTable, cells: &CellIndex<'_>) -> Vec<GridColumn> {
    let seen = seen(table.id, cells);
    let mut columns = Vec::new();
    let column = |group: &str, subject: &str| GridColumn {
        group: group.to_owned(),
        subject: subject.to_owned(),
    };
    for group in table.groups {
        columns.push(column(group.name, ""));
        for (i, subject) in group.subjects.iter().enumerate() {
            if i == 0 || seen.contains(subject) {
                columns.push(column(group.name, subject));
            }
        }
    }
    for subject in seen {
        if !columns.iter().any(|column| column.subject == subject) {
            columns.push(column("others", subject));
        }
    }
    columns
}

fn missing_row(table: &PublishedTable, ran: &[String]) -> String {
    if ran.iter().any(|suite| suite == table.suite) {
        "this run has no row for it".into()
    } else {
        format!("the suite {} is not in this folder", table.suite)
    }
}

/// Builds the rows of one table.
struct GridBuilder<'a> {
    columns: &'a [GridColumn],
    groups: Vec<&'static str>,
    cells: &'a CellIndex<'a>,
}

impl GridBuilder<'_> {
    /// A published row for which nothing was measured.
    fn unmeasured(&self, row: &PublishedRow, reason: &str) -> GridRow {
        let cell = |column: &GridColumn| match column.subject.as_str() {
            "" => self.published(row, column),
            _ => GridValue::Missing(reason.to_owned()),
        };
        GridRow {
            name: row.name.to_owned(),
            measured_as: String::new(),
            figure: row
                .figures
                .first()
                .map_or(String::new(), |f| figure::label(f)),
            cells: self.columns.iter().map(cell).collect(),
        }
    }

    fn published(&self, row: &PublishedRow, column: &GridColumn) -> GridValue {
        let group = self.groups.iter().position(|name| *name == column.group);
        match group.and_then(|group| row.published.get(group)) {
            Some(text) if !text.is_empty() => GridValue::Published((*text).to_owned()),
            _ => GridValue::Unpublished,
        }
    }

    /// A measured row: a line for each published figure, then for the others that were measured.
    fn measured(&self, one: CellKey<'_>, entry: &[&PublishedRow], also: &[&str]) -> Vec<GridRow> {
        let has = |figure: &str| {
            let subjects = self.columns.iter().filter(|c| !c.subject.is_empty());
            subjects
                .into_iter()
                .any(|column| self.cells.has(one.with(&column.subject), figure))
        };
        let mut rows = Vec::new();
        let mut shown: Vec<&str> = Vec::new();
        for row in entry {
            let figure = row.figures.iter().find(|figure| has(figure));
            let Some(figure) = figure.or(row.figures.first()) else {
                continue;
            };
            shown.push(figure);
            rows.push(self.row(one, row.name, figure, Some(row)));
        }
        let name = entry.first().map_or(one.row, |row| row.name);
        let judged = self.judged(one);
        let more: Vec<&str> = if also.is_empty() && entry.is_empty() {
            judged.iter().map(String::as_str).collect()
        } else {
            also.to_vec()
        };
        for figure in more {
            if !shown.contains(&figure) && has(figure) {
                shown.push(figure);
                rows.push(self.row(one, name, figure, None));
            }
        }
        if rows.is_empty() {
            // A row of our own in a published table, with none of that table's figures, or skipped.
            match judged.first() {
                Some(figure) => rows.push(self.row(one, name, figure, None)),
                None => rows.push(self.row(one, name, "", None)),
            }
        }
        rows
    }

    /// Every judged figure of a row, in the order of their names.
    fn judged(&self, one: CellKey<'_>) -> Vec<String> {
        let mut names = std::collections::BTreeSet::new();
        for column in self.columns {
            let cell_key = one.with(&column.subject);
            let figures = self.cells.figures(cell_key);
            names.extend(
                figure::distinct(&figures)
                    .into_iter()
                    .map(ToOwned::to_owned),
            );
        }
        names.into_iter().collect()
    }

    fn row(
        &self,
        one: CellKey<'_>,
        name: &str,
        figure_name: &str,
        published: Option<&PublishedRow>,
    ) -> GridRow {
        let cell = |column: &GridColumn| match (column.subject.as_str(), published) {
            ("", Some(row)) => self.published(row, column),
            ("", None) => GridValue::Unpublished,
            (subject, _) => self.value(one.with(subject), figure_name),
        };
        let (name, measured_as) = named(one, name);
        GridRow {
            name,
            measured_as,
            figure: if figure_name.is_empty() {
                "any".into()
            } else {
                figure::label(figure_name)
            },
            cells: self.columns.iter().map(cell).collect(),
        }
    }

    fn value(&self, cell_key: CellKey<'_>, figure_name: &str) -> GridValue {
        if let Some((spread, repeats)) = self.cells.spread(cell_key, figure_name) {
            return GridValue::Measured {
                text: figure::text(figure_name, spread.median),
                range: figure::range(figure_name, &spread),
                repeats,
                against: self.against(cell_key, figure_name),
            };
        }
        let lines = self.cells.lines(cell_key);
        let reason = match self.cells.reason(cell_key) {
            Some(reason) => reason.to_owned(),
            None if lines.is_empty() => "this run has no line for it".into(),
            None if lines.iter().all(|line| line.repeat == 0) => {
                "the run ended after its warm-up".into()
            }
            None => format!("its lines have no {}", figure::label(figure_name)),
        };
        GridValue::Missing(reason)
    }

    fn against(&self, cell_key: CellKey<'_>, figure: &str) -> Option<BaselineRatio> {
        let better = figure::better(figure)?;
        let ours = self.cells.values(cell_key, figure);
        subjects::baselines(cell_key.subject)
            .iter()
            .find_map(|name| {
                let theirs = self.cells.values(cell_key.with(name), figure);
                let ratio = RatioSpread::paired(&ours, &theirs)?;
                Some(BaselineRatio {
                    baseline: (*name).to_owned(),
                    ratio: ratio.text(),
                    verdict: ratio.verdict(better),
                })
            })
    }
}

/// The name of a measured row, and further details. Where its own name holds all that the
/// published one says, its own is enough.
fn named(one: CellKey<'_>, published: &str) -> (String, String) {
    let own = words(one.row);
    let enough = words(published).iter().all(|word| own.contains(word));
    let (name, row) = if enough {
        (one.row, "")
    } else {
        (published, one.row)
    };
    let parts = [row, one.form, one.network];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    (name.to_owned(), parts.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_a_note_below_the_table_once_and_a_short_one_stands_in_its_cell() {
        let missing = |reason: &str| GridValue::Missing(reason.to_owned());
        let long = "a reason that would make a cell of ten lines out of one";
        let row = GridRow {
            name: "row".into(),
            measured_as: String::new(),
            figure: "p50".into(),
            cells: vec![missing(long), missing("needs root"), missing(long)],
        };
        let grid = TableGrid {
            id: "Q1".into(),
            title: String::new(),
            source: String::new(),
            notes: Vec::new(),
            columns: Vec::new(),
            rows: vec![row.clone(), row],
            measured: true,
        };
        assert_eq!(grid.footnotes(), [long]);
    }
    use crate::{
        report::{fixture, published, result_folder::ResultFolder},
        result::MeasuredRepeat,
    };

    fn table(id: &str) -> &'static PublishedTable {
        published::tables().find(|table| table.id == id).unwrap()
    }

    fn row_of(id: &str, name: &str, form: &str) -> Option<&'static str> {
        let cell_key = CellKey {
            table: id,
            row: name,
            subject: "",
            form,
            network: "",
        };
        best(table(id).rows, cell_key)
    }

    fn folder(lines: Vec<MeasuredRepeat>) -> ResultFolder {
        ResultFolder {
            lines,
            ..ResultFolder::default()
        }
    }

    fn line(row: &str, subject: &str, repeat: u32, figures: &[(&str, f64)]) -> MeasuredRepeat {
        let cell = fixture::cell("Q1", row, subject, "cold");
        fixture::line(cell, "loopback", repeat, figures)
    }

    fn cell<'a>(grid: &'a TableGrid, row: &str, subject: &str) -> &'a GridValue {
        let row = grid.rows.iter().find(|of| of.name == row).unwrap();
        let column = grid.columns.iter().position(|of| of.subject == subject);
        &row.cells[column.unwrap()]
    }

    #[test]
    fn a_number_and_its_unit_are_one_word() {
        assert_eq!(
            words("1,000 agents × 100 KB, 50 ms, 1 % loss"),
            ["1000agents", "100kb", "50ms", "1%", "loss"]
        );
    }

    #[test]
    fn a_row_belongs_to_the_published_one_with_the_most_words() {
        let found = row_of("Q2", "1,000 agents × 100 KB, 50 ms", "pooled");
        assert_eq!(found, Some("1000 agents, 100 KB"));
        assert_eq!(row_of("Q2", "100 agents × 100 KB, 50 ms", ""), None);
        assert_eq!(
            row_of("P", "echo 1 MB, 20 ms", ""),
            Some("echo 1 MB, 20 ms")
        );
        assert_eq!(row_of("P", "echo 1 MB", ""), Some("echo 1 MB"));
        assert_eq!(
            row_of("O1", "first answer", "cold"),
            Some("first answer, cold")
        );
        assert_eq!(row_of("O1", "first answer", "0-rtt"), Some("first answer"));
    }

    #[test]
    fn each_row_that_a_suite_promises_stands_at_a_published_one_or_is_our_own() {
        // Rows of our own, without a published figure.
        let own = [
            "1,000 peers",
            "head of line",
            "1 % loss",
            "direct",
            "relayed",
        ];
        for (id, row) in crate::tables::PUBLISHED {
            let forms = [
                "",
                "cold",
                "warm",
                "10 connections",
                "2 connections",
                "50 connections",
            ];
            let found = forms.iter().any(|form| row_of(id, row, form).is_some());
            assert!(
                found || own.iter().any(|word| row.contains(word)),
                "{id}: {row}"
            );
        }
    }

    #[test]
    fn what_was_measured_stands_beside_what_was_published_with_its_baseline() {
        let mut lines = Vec::new();
        for repeat in 0..=3 {
            let us = 1000.0 + f64::from(repeat);
            lines.push(line("10 agents, 0 ms", "quic", repeat, &[("p50_us", us)]));
            lines.push(line(
                "10 agents, 0 ms",
                "plain h2",
                repeat,
                &[("p50_us", us * 2.0)],
            ));
        }
        let folder = folder(lines);
        let grid = published(table("Q1"), &CellIndex::of(&folder), &folder.suites());
        let GridValue::Measured {
            text,
            range,
            repeats,
            against,
        } = cell(&grid, "10 agents, 0 ms", "quic")
        else {
            panic!("not measured");
        };
        assert_eq!(
            (text.as_str(), range.as_str(), *repeats),
            ("1.00 ms", "1.00 – 1.00", 3)
        );
        let against = against.as_ref().unwrap();
        assert_eq!(
            (against.baseline.as_str(), against.verdict),
            ("plain h2", DifferenceVerdict::Better)
        );
        assert_eq!(
            *cell(&grid, "10 agents, 0 ms", ""),
            GridValue::Published("12.3 ms".into())
        );
    }

    #[test]
    fn a_cell_without_a_figure_says_which_of_the_reasons_it_is() {
        let mut folder = folder(vec![
            line("10 agents, 0 ms", "quic", 1, &[("p50_us", 1.0)]),
            line("10 agents, 0 ms", "plain h2", 0, &[("p50_us", 1.0)]),
            line("10 agents, 0 ms", "h2", 1, &[("count", 1.0)]),
        ]);
        folder.skipped.push(crate::result::SkippedEntry {
            cell: fixture::cell("Q1", "10 agents, 0 ms", "plain ws", "cold"),
            reason: "it fell over".into(),
        });
        let grid = published(table("Q1"), &CellIndex::of(&folder), &folder.suites());
        for (row, subject, reason) in [
            (
                "10 agents, 0 ms",
                "plain h2",
                "the run ended after its warm-up",
            ),
            ("10 agents, 0 ms", "h2", "its lines have no p50"),
            ("10 agents, 0 ms", "plain ws", "it fell over"),
            ("100 agents, 50 ms", "quic", "this run has no row for it"),
        ] {
            assert_eq!(
                *cell(&grid, row, subject),
                GridValue::Missing(reason.into()),
                "{row}, {subject}"
            );
        }
        let overlay = published(table("O3"), &CellIndex::of(&folder), &folder.suites());
        let reason = "the suite overlay is not in this folder";
        assert_eq!(
            *cell(&overlay, "1 KB", "quic"),
            GridValue::Missing(reason.into())
        );
    }

    #[test]
    fn a_foreign_subject_has_a_column_of_its_own() {
        let folder = folder(vec![line(
            "10 agents, 0 ms",
            "pilot",
            1,
            &[("p50_us", 1.0)],
        )]);
        let grid = published(table("Q1"), &CellIndex::of(&folder), &folder.suites());
        let last = grid.columns.last().unwrap();
        assert_eq!(
            (last.group.as_str(), last.subject.as_str()),
            ("others", "pilot")
        );
    }
}
