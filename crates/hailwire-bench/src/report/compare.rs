//! Two result folders side by side: the same cells, their ratio, and whether they differ.
//!
//! The runs were not interleaved, so whatever changed between them changed with the subject: the
//! machine's other work, its clock, its kernel. Hence the warnings, and hence the rule: two figures
//! differ when their ranges do not touch, each of three repeats or more.

use std::{fmt::Write as _, fs, path::Path};

use maud::{Markup, html};
use serde::Serialize;

use super::{
    cells::{Cells, Place},
    figure,
    folder::Folder,
    html as page,
    markdown::{row, rule, safe},
    spread::{Ratio, Verdict},
};
use crate::{BenchError, measure::Spread};

/// What has to be the same for two runs to speak of the same thing: name in `environment.json`, and in words.
const SAME: &[(&str, &str)] = &[
    ("cpu", "machine"),
    ("kernel", "kernel"),
    ("revision", "revision"),
    ("version", "version"),
    ("command", "command"),
];

/// Two folders, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The first folder, as it was named.
    pub before: String,
    /// The second.
    pub after: String,
    /// What to know before believing a difference.
    pub warnings: Vec<String>,
    /// Every figure that both have, and that has a better and a worse.
    pub rows: Vec<Row>,
    /// Cells that only the first has, and only the second.
    pub alone: [usize; 2],
}

/// One figure in both folders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
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
    pub before: Figure,
    /// In the second.
    pub after: Figure,
    /// The second divided by the first: median, least, most.
    pub ratio: [f64; 3],
    /// The second is…
    pub verdict: Verdict,
}

/// A figure of one folder.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
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
pub fn folders(before: &Path, after: &Path) -> Result<Comparison, BenchError> {
    Ok(of(&Folder::read(before)?, &Folder::read(after)?))
}

/// Compares two folders that were read.
fn of(before: &Folder, after: &Folder) -> Comparison {
    let (old, new) = (Cells::of(before), Cells::of(after));
    let rows: Vec<Row> = new
        .measured()
        .flat_map(|place| rows(&old, &new, place))
        .collect();
    let missing = |one: &Cells<'_>, other: &Cells<'_>| {
        one.measured()
            .filter(|place| other.lines(*place).is_empty())
            .count()
    };
    Comparison {
        before: before.dir.display().to_string(),
        after: after.dir.display().to_string(),
        warnings: warnings(before, after),
        alone: [missing(&old, &new), missing(&new, &old)],
        rows,
    }
}

fn rows(old: &Cells<'_>, new: &Cells<'_>, place: Place<'_>) -> Vec<Row> {
    let one = |name: &&str| {
        let better = figure::better(name)?;
        let (before, few) = old.spread(place, name)?;
        let (after, many) = new.spread(place, name)?;
        let ratio = Ratio::unpaired(&after, &before, few.min(many))?;
        let Spread { median, min, max } = ratio.spread;
        Some(Row {
            table: place.table.to_owned(),
            row: place.row.to_owned(),
            subject: place.subject.to_owned(),
            form: place.form.to_owned(),
            network: place.network.to_owned(),
            figure: (*name).to_owned(),
            before: Figure::of(before, few),
            after: Figure::of(after, many),
            ratio: [median, min, max],
            verdict: ratio.verdict(better),
        })
    };
    new.figures(place).iter().filter_map(one).collect()
}

impl Figure {
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

fn warnings(before: &Folder, after: &Folder) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, word) in SAME {
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

impl Row {
    fn place(&self) -> String {
        let parts = [&self.table, &self.row, &self.form, &self.network];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.cloned().collect::<Vec<_>>().join(" · ")
    }

    fn ratio(&self) -> String {
        let [median, min, max] = self.ratio;
        let spread = Spread { median, min, max };
        Ratio { spread, count: 0 }.text()
    }
}

impl Comparison {
    fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }

    /// How many rows came out which way, in one line.
    #[must_use]
    pub fn counts(&self) -> String {
        let [old, new] = self.alone;
        format!(
            "{} figures: {} better, {} worse, {} no difference, {} too few repeats; only in the first {old} cells, \
             only in the second {new}",
            self.rows.len(),
            self.count(Verdict::Better),
            self.count(Verdict::Worse),
            self.count(Verdict::NoDifference),
            self.count(Verdict::TooFew),
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
                    safe(&one.place()),
                    safe(&one.subject),
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
                    th scope="row" { (one.place()) }
                    td.text { (one.subject) }
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

    fn folder(command: &str, factor: f64) -> Folder {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        let mut folder = Folder::read(dir.path()).unwrap();
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
        assert_eq!(compared.count(Verdict::NoDifference), compared.rows.len());
        assert_eq!((compared.alone, compared.warnings), ([0, 0], Vec::new()));
    }

    #[test]
    fn twice_as_much_of_everything_is_worse_for_times_and_better_for_rates() {
        let (before, after) = (folder("hail bench", 1.0), folder("hail bench --full", 2.0));
        let compared = of(&before, &after);
        for row in &compared.rows {
            let expected = match figure::better(&row.figure) {
                Some(figure::Better::More) => Verdict::Better,
                _ => Verdict::Worse,
            };
            assert_eq!(row.verdict, expected, "{}", row.place());
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
