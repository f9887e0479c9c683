//! Two result folders side by side: the same cells, their ratio, and whether they differ.
//!
//! The runs were not interleaved, so the machine's other work, its clock or its kernel
//! may have changed between them. Hence the warnings, and hence the rule: two figures differ when their ranges do not touch, each of three repeats or more.

use std::{fmt::Write as _, fs, path::Path};

use maud::{Markup, html};
use serde::Serialize;

use super::{
    cell_index::{CellIndex, CellKey},
    figure, html as page,
    markdown::{row, rule, safe},
    result_folder::ResultFolder,
    spread::{DifferenceVerdict, RatioSpread},
    subjects,
};
use crate::{BenchError, measure::Spread};

/// What has to be equal for two runs to be comparable: the name in `environment.json`, and the name for people.
const MUST_AGREE: &[(&str, &str)] = &[
    ("cpu", "machine"),
    ("kernel", "kernel"),
    ("revision", "revision"),
    ("version", "version"),
    ("command", "command"),
];

/// Two folders, compared.
#[derive(Clone, Debug, Serialize)]
pub struct FolderComparison {
    /// The first folder, as it was named.
    pub before: String,
    /// The second.
    pub after: String,
    /// Reasons to doubt a difference.
    pub warnings: Vec<String>,
    /// Every judged figure that both have.
    pub rows: Vec<ComparedRow>,
    /// Cells that only the first has, and only the second.
    pub alone: [usize; 2],
}

/// One figure in both folders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRow {
    /// The table.
    pub table: String,
    /// The row.
    pub row: String,
    /// The subject.
    pub subject: String,
    /// The form.
    pub form: String,
    /// The network.
    pub network: String,
    /// The figure's name.
    pub figure: String,
    /// In the first folder.
    pub before: ComparedFigure,
    /// In the second.
    pub after: ComparedFigure,
    /// The second divided by the first: median, least, most.
    pub ratio: [f64; 3],
    /// The second is…
    pub verdict: DifferenceVerdict,
}

/// A figure of one folder.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// Counted repeats.
    pub repeats: usize,
}

/// Compares two folders.
///
/// # Errors
///
/// One of them has no `raw.jsonl`.
pub fn folders(before: &Path, after: &Path) -> Result<FolderComparison, BenchError> {
    Ok(of(
        &ResultFolder::read(before)?,
        &ResultFolder::read(after)?,
    ))
}

/// Compares two folders that have been read.
fn of(before: &ResultFolder, after: &ResultFolder) -> FolderComparison {
    let (old, new) = (CellIndex::of(before), CellIndex::of(after));
    let rows: Vec<ComparedRow> = new
        .measured()
        .flat_map(|cell_key| rows(&old, &new, cell_key))
        .collect();
    let missing = |one: &CellIndex<'_>, other: &CellIndex<'_>| {
        one.measured()
            .filter(|cell_key| other.lines(*cell_key).is_empty())
            .count()
    };
    FolderComparison {
        before: before.dir.display().to_string(),
        after: after.dir.display().to_string(),
        warnings: warnings(before, after),
        alone: [missing(&old, &new), missing(&new, &old)],
        rows,
    }
}

fn rows(old: &CellIndex<'_>, new: &CellIndex<'_>, cell_key: CellKey<'_>) -> Vec<ComparedRow> {
    let one = |name: &&str| {
        let better = figure::better(name)?;
        let (before, few) = old.spread(cell_key, name)?;
        let (after, many) = new.spread(cell_key, name)?;
        let ratio = RatioSpread::unpaired(&after, &before, few.min(many))?;
        let Spread { median, min, max } = ratio.spread;
        Some(ComparedRow {
            table: cell_key.table.to_owned(),
            row: cell_key.row.to_owned(),
            subject: cell_key.subject.to_owned(),
            form: cell_key.form.to_owned(),
            network: cell_key.network.to_owned(),
            figure: (*name).to_owned(),
            before: ComparedFigure::of(before, few),
            after: ComparedFigure::of(after, many),
            ratio: [median, min, max],
            verdict: ratio.verdict(better),
        })
    };
    new.figures(cell_key).iter().filter_map(one).collect()
}

impl ComparedFigure {
    fn of(spread: Spread, repeats: usize) -> Self {
        Self {
            median: spread.median,
            min: spread.min,
            max: spread.max,
            repeats,
        }
    }

    fn text(&self, name: &str) -> String {
        let Self {
            median, min, max, ..
        } = *self;
        figure::spread(name, &Spread { median, min, max })
    }
}

fn warnings(before: &ResultFolder, after: &ResultFolder) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, word) in MUST_AGREE {
        let (old, new) = (before.fact(name), after.fact(name));
        let named = |text: Option<String>| text.unwrap_or_else(|| "not known".into());
        if old != new {
            warnings.push(format!(
                "the {word} differs: {}, then {}",
                named(old),
                named(new)
            ));
        }
    }
    for folder in [before, after] {
        let dir = folder.dir.display();
        warnings.extend(folder.warnings.iter().map(|text| format!("{dir}: {text}")));
    }
    warnings
}

impl ComparedRow {
    fn cell_key(&self) -> String {
        let parts = [&self.table, &self.row, &self.form, &self.network];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.cloned().collect::<Vec<_>>().join(" · ")
    }

    fn ratio(&self) -> String {
        let [median, min, max] = self.ratio;
        let spread = Spread { median, min, max };
        RatioSpread { spread, count: 0 }.text()
    }
}

impl FolderComparison {
    fn count(&self, verdict: DifferenceVerdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }

    /// The number of rows with each verdict, in one line.
    #[must_use]
    pub fn counts(&self) -> String {
        let [old, new] = self.alone;
        format!(
            "{} figures: {} better, {} worse, {} no difference, {} too few repeats; only in the first {old} cells, \
             only in the second {new}",
            self.rows.len(),
            self.count(DifferenceVerdict::Better),
            self.count(DifferenceVerdict::Worse),
            self.count(DifferenceVerdict::NoDifference),
            self.count(DifferenceVerdict::TooFew),
        )
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let (before, after) = (safe(&self.before), safe(&self.after));
        let mut out = format!("# {before} and {after}\n\n{}.\n\n{RULE}\n\n", self.counts());
        for warning in &self.warnings {
            let _ = writeln!(out, "- warning: {}", safe(warning));
        }
        if !self.warnings.is_empty() {
            out.push('\n');
        }
        let head = [
            "row",
            "subject",
            "figure",
            "first",
            "second",
            "second ÷ first",
            "second is",
        ];
        row(&mut out, &head.map(String::from));
        rule(&mut out, head.len());
        for one in &self.rows {
            row(
                &mut out,
                &[
                    safe(&one.cell_key()),
                    safe(&subjects::words(&one.subject)),
                    safe(&figure::label(&one.figure)),
                    one.before.text(&one.figure),
                    one.after.text(&one.figure),
                    one.ratio(),
                    one.verdict.text().into(),
                ],
            );
        }
        out
    }

    /// As a page like a report's.
    #[must_use]
    pub fn html(&self) -> String {
        let body = html! {
            header {
                p.over { "Hailwire bench" }
                h1 { (self.before) " and " (self.after) }
                p.lead { (self.counts()) "." }
                p { (RULE) }
            }
            main {
                (page::warnings(&self.warnings))
                section { h2 { "Figures" } (page::scroll("Figures", &self.table())) }
            }
        };
        page::whole(&format!("{} and {}", self.before, self.after), &body)
    }

    fn table(&self) -> Markup {
        html! {
            table {
                thead { tr { @for name in ["row", "subject", "figure", "first", "second", "second ÷ first", "second is"] { th scope="col" { (name) } } } }
                tbody { @for one in &self.rows { tr {
                    th scope="row" { (one.cell_key()) }
                    td.text { (subjects::words(&one.subject)) }
                    td.text { (figure::label(&one.figure)) }
                    td.value { (one.before.text(&one.figure)) }
                    td.value { (one.after.text(&one.figure)) }
                    td.value { (one.ratio()) }
                    td class=(page::class(one.verdict)) { (one.verdict.text()) }
                } } }
            }
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_html(&self, path: &Path) -> Result<(), BenchError> {
        fs::write(path, self.html()).map_err(BenchError::io(path.display().to_string()))
    }
}

const RULE: &str = "The two runs were not interleaved. Figures differ when their ranges do not touch and each has \
     three repeats or more; a ratio stands between the smallest and the largest that any two repeats give. With five \
     repeats each, chance alone makes one figure in 126 differ.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn folder(command: &str, factor: f64) -> ResultFolder {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        let mut folder = ResultFolder::read(dir.path()).unwrap();
        folder.environment.insert("command".into(), command.into());
        for line in &mut folder.lines {
            for value in line.figures.values_mut() {
                *value *= factor;
            }
        }
        folder
    }

    #[test]
    fn a_run_beside_itself_shows_no_difference_and_warns_of_nothing() {
        let folder = folder("hail bench", 1.0);
        let compared = of(&folder, &folder);
        assert!(!compared.rows.is_empty());
        assert_eq!(
            compared.count(DifferenceVerdict::NoDifference),
            compared.rows.len()
        );
        assert_eq!((compared.alone, compared.warnings), ([0, 0], Vec::new()));
    }

    #[test]
    fn twice_as_much_of_everything_is_worse_for_times_and_better_for_rates() {
        let (before, after) = (folder("hail bench", 1.0), folder("hail bench --full", 2.0));
        let compared = of(&before, &after);
        for row in &compared.rows {
            let expected = match figure::better(&row.figure) {
                Some(figure::BetterDirection::More) => DifferenceVerdict::Better,
                _ => DifferenceVerdict::Worse,
            };
            assert_eq!(row.verdict, expected, "{}", row.cell_key());
        }
        assert_eq!(compared.warnings.len(), 1);
        assert!(compared.warnings[0].contains("the command differs"));
        let markdown = compared.markdown();
        assert!(markdown.contains("2.00 ×") && markdown.contains("the command differs"));
        assert!(compared.html().contains("the command differs"));
    }

    #[test]
    fn cells_of_one_folder_alone_are_counted() {
        let before = folder("hail bench", 1.0);
        let mut after = before.clone();
        after.lines.retain(|line| line.cell.table != "Q1");
        let compared = of(&before, &after);
        assert!(compared.alone[0] > 0 && compared.alone[1] == 0);
        assert!(compared.rows.iter().all(|row| row.table != "Q1"));
    }
}
