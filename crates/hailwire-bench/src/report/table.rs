//! Published tables with what was measured beside them: which cell stands where, and what stands in a
//! cell without a figure. Pure.
//!
//! A measured row belongs to the published row whose words it all holds, the most demanding first; its
//! form counts as part of its name. `1,000 agents × 100 KB, 50 ms` holds `1000 agents, 100 KB`:
//! a number and its unit are one word. Measured rows that belong to none follow below as our own.

use super::{
    cells::{Cells, Place},
    figure,
    published::{Row, Table},
    spread::{Ratio, Verdict},
    subjects,
};

/// A table ready to be printed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    /// `Q1`, or a word of our own.
    pub(crate) id: String,
    /// What it is about.
    pub(crate) title: String,
    /// Who published it; empty for a table of our own.
    pub(crate) source: String,
    /// What to know before comparing.
    pub(crate) notes: Vec<String>,
    /// The columns after the row's name and its figure.
    pub(crate) columns: Vec<Column>,
    /// The rows.
    pub(crate) rows: Vec<GridRow>,
    /// Whether anything was measured for it.
    pub(crate) measured: bool,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// The published system that it stands for; `others` for the rest.
    pub(crate) group: String,
    /// The subject; empty for the published column.
    pub(crate) subject: String,
}

/// A row: one figure of one measured or published row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GridRow {
    /// In words.
    pub(crate) name: String,
    /// How the measured row is called, where it was found under another name; with form and network.
    pub(crate) measured_as: String,
    /// The figure, for people.
    pub(crate) figure: String,
    /// One for each column.
    pub(crate) cells: Vec<Value>,
}

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A published figure.
    Published(String),
    /// Nobody published one.
    Unpublished,
    /// A measured one.
    Measured {
        /// Median, least and most, with the unit.
        text: String,
        /// Counted repeats.
        repeats: usize,
        /// Against the baseline that does the same work over the same protocol.
        against: Option<Against>,
    },
    /// None; the reason stands behind "not measured: ".
    Missing(String),
}

/// One of our subjects beside its baseline.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Against {
    /// The baseline.
    pub(crate) baseline: String,
    /// The ratio with its spread.
    pub(crate) ratio: String,
    /// Ours is…
    pub(crate) verdict: Verdict,
}

/// A published table with what a folder has for it. `ran` says which suites the folder holds.
#[must_use]
pub(crate) fn published(table: &Table, cells: &Cells<'_>, ran: &[String]) -> Grid {
    let found = found(table.id, cells);
    let measured = found.iter().any(|one| !one.network.is_empty());
    let columns = columns(table, cells);
    let builder = Builder {
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
    let every = every_figure(table);
    for (one, placed) in found.iter().zip(&placed) {
        if !placed {
            rows.extend(builder.measured(*one, &[], &every));
        }
    }
    Grid {
        id: table.id.to_owned(),
        title: table.title.to_owned(),
        source: table.source.to_owned(),
        notes: table.notes.iter().map(|note| (*note).to_owned()).collect(),
        columns,
        rows,
        measured,
    }
}

/// A table that nobody published: every subject a column, every judged figure a row.
#[must_use]
pub(crate) fn own(id: &str, cells: &Cells<'_>) -> Grid {
    let found = found(id, cells);
    let columns: Vec<Column> = seen(id, cells)
        .into_iter()
        .map(|subject| Column {
            group: "measured".into(),
            subject: subject.to_owned(),
        })
        .collect();
    let builder = Builder {
        columns: &columns,
        groups: Vec::new(),
        cells,
    };
    Grid {
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
fn entries(rows: &'static [Row]) -> Vec<(&'static str, Vec<&'static Row>)> {
    let mut entries: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        match entries.iter_mut().find(|(words, _)| *words == row.words) {
            Some((_, entry)) => entry.push(row),
            None => entries.push((row.words, vec![row])),
        }
    }
    entries
}

/// The words of the published row that a measured one belongs to.
fn best(rows: &'static [Row], measured: Place<'_>) -> Option<&'static str> {
    let mut has = words(measured.row);
    has.extend(words(measured.form));
    rows.iter()
        .filter(|row| words(row.words).iter().all(|word| has.contains(word)))
        // The first of those with the most words; `max_by_key` would take the last.
        .rev()
        .max_by_key(|row| words(row.words).len())
        .map(|row| row.words)
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

/// The measured rows of a table, as places without a subject, and those that were skipped as a whole.
fn found<'a>(id: &str, cells: &Cells<'a>) -> Vec<Place<'a>> {
    let mut found: Vec<Place<'_>> = Vec::new();
    for place in cells.measured().filter(|place| place.table == id) {
        let one = place.with("");
        if !found.contains(&one) {
            found.push(one);
        }
    }
    for place in cells.skipped().filter(|place| place.table == id) {
        let same = |one: &Place<'_>| one.row == place.row && one.form == place.form;
        if !found.iter().any(same) {
            found.push(place.with(""));
        }
    }
    found
}

/// The subjects that a table has anything of.
fn seen<'a>(id: &str, cells: &Cells<'a>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    let places = cells.measured().chain(cells.skipped());
    for place in places.filter(|place| place.table == id) {
        if !seen.contains(&place.subject) {
            seen.push(place.subject);
        }
    }
    seen.sort_by_key(|subject| subjects::order(subject));
    seen
}

fn columns(table: &Table, cells: &Cells<'_>) -> Vec<Column> {
    let seen = seen(table.id, cells);
    let mut columns = Vec::new();
    let column = |group: &str, subject: &str| Column {
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

/// The figures by which rows of our own in a published table are shown.
fn every_figure(table: &Table) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    let published = table.rows.iter().flat_map(|row| row.figures);
    for name in published.chain(table.also) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    names
}

fn missing_row(table: &Table, ran: &[String]) -> String {
    if ran.iter().any(|suite| suite == table.suite) {
        "this run has no row for it".into()
    } else {
        format!("the suite `{}` is not in this folder", table.suite)
    }
}

/// What builds the rows of one table.
struct Builder<'a> {
    columns: &'a [Column],
    groups: Vec<&'static str>,
    cells: &'a Cells<'a>,
}

impl Builder<'_> {
    /// A published row for which nothing was measured.
    fn unmeasured(&self, row: &Row, reason: &str) -> GridRow {
        let cell = |column: &Column| match column.subject.as_str() {
            "" => self.published(row, column),
            _ => Value::Missing(reason.to_owned()),
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

    fn published(&self, row: &Row, column: &Column) -> Value {
        let group = self.groups.iter().position(|name| *name == column.group);
        match group.and_then(|group| row.published.get(group)) {
            Some(text) if !text.is_empty() => Value::Published((*text).to_owned()),
            _ => Value::Unpublished,
        }
    }

    /// A measured row: a line for each published figure, then for the others that were measured.
    fn measured(&self, one: Place<'_>, entry: &[&Row], also: &[&str]) -> Vec<GridRow> {
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
    fn judged(&self, one: Place<'_>) -> Vec<String> {
        let mut names = std::collections::BTreeSet::new();
        for column in self.columns {
            let place = one.with(&column.subject);
            let figures = self.cells.figures(place);
            let judged = figures.into_iter().filter(|name| figure::judged(name));
            names.extend(judged.map(ToOwned::to_owned));
        }
        names.into_iter().collect()
    }

    fn row(
        &self,
        one: Place<'_>,
        name: &str,
        figure_name: &str,
        published: Option<&Row>,
    ) -> GridRow {
        let cell = |column: &Column| match (column.subject.as_str(), published) {
            ("", Some(row)) => self.published(row, column),
            ("", None) => Value::Unpublished,
            (subject, _) => self.value(one.with(subject), figure_name),
        };
        GridRow {
            name: name.to_owned(),
            measured_as: measured_as(one, name),
            figure: if figure_name.is_empty() {
                "any".into()
            } else {
                figure::label(figure_name)
            },
            cells: self.columns.iter().map(cell).collect(),
        }
    }

    fn value(&self, place: Place<'_>, figure_name: &str) -> Value {
        if let Some((spread, repeats)) = self.cells.spread(place, figure_name) {
            return Value::Measured {
                text: figure::spread(figure_name, &spread),
                repeats,
                against: self.against(place, figure_name),
            };
        }
        let lines = self.cells.lines(place);
        let reason = match self.cells.reason(place) {
            Some(reason) => reason.to_owned(),
            None if lines.is_empty() => "this run has no line for it".into(),
            None if lines.iter().all(|line| line.repeat == 0) => {
                "the run ended after its warm-up".into()
            }
            None => format!("its lines have no {}", figure::label(figure_name)),
        };
        Value::Missing(reason)
    }

    fn against(&self, place: Place<'_>, figure: &str) -> Option<Against> {
        let better = figure::better(figure)?;
        let ours = self.cells.values(place, figure);
        subjects::baselines(place.subject).iter().find_map(|name| {
            let theirs = self.cells.values(place.with(name), figure);
            let ratio = Ratio::paired(&ours, &theirs)?;
            Some(Against {
                baseline: (*name).to_owned(),
                ratio: ratio.text(),
                verdict: ratio.verdict(better),
            })
        })
    }
}

fn measured_as(one: Place<'_>, name: &str) -> String {
    let mut parts = Vec::new();
    if one.row != name {
        parts.push(one.row);
    }
    parts.extend(
        [one.form, one.network]
            .iter()
            .filter(|part| !part.is_empty()),
    );
    parts.join(" · ")
}
