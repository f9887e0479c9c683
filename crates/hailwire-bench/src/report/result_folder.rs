//! A result folder, read.
//!
//! Whatever is there is used. A line that cannot be read is named and left out, a missing file is
//! reported; only a folder without a readable `raw.jsonl` is an error. So a run that was interrupted, or
//! whose last line was cut by a full disk, still gives a report.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{
    BenchError,
    result::{MeasuredRepeat, ResultEntry, RowTiming, SkippedEntry},
    tables,
};

/// How many invalid lines are reported one by one.
const MAX_FILES_NAMED: usize = 20;

/// The load average above which the machine was busy with other work.
const MIN_IDLE_SHARE: f64 = 0.7;

/// The files of a folder that a report links to, and what each holds.
const FILES: &[(&str, &str)] = &[
    (
        "raw.jsonl",
        "one line for each repeat, warm-ups included, or the reason why there is none, and where the time went",
    ),
    (
        "network.jsonl",
        "what each network did before it was believed",
    ),
    (
        "environment.json",
        "machine, kernel, versions, revision and command",
    ),
    ("summary.json", "the figures of this report, for programs"),
    ("report.md", "this report in Markdown"),
];

/// What a folder holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResultFolder {
    /// Where it is.
    pub(crate) dir: PathBuf,
    /// `environment.json`, in its order.
    pub(crate) environment: Map<String, Value>,
    /// Repeats, in the order in which they were measured.
    pub(crate) lines: Vec<MeasuredRepeat>,
    /// Cells without a figure.
    pub(crate) skipped: Vec<SkippedEntry>,
    /// Where the time of each row went.
    pub(crate) timings: Vec<RowTiming>,
    /// Checks of networks.
    pub(crate) networks: Vec<Map<String, Value>>,
    /// What could not be read, for people.
    pub(crate) warnings: Vec<String>,
    /// Other files worth a link: name, and what it holds.
    pub(crate) files: Vec<(String, String)>,
}

impl ResultFolder {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// There is no `raw.jsonl` that can be opened.
    pub(crate) fn read(dir: &Path) -> Result<Self, BenchError> {
        let raw = dir.join("raw.jsonl");
        let text = fs::read(&raw).map_err(BenchError::io(raw.display().to_string()))?;
        let mut folder = Self {
            dir: dir.to_owned(),
            ..Self::default()
        };
        let entries = folder.json_lines("raw.jsonl", &text);
        for entry in entries {
            match entry {
                ResultEntry::Measured(mut line) => {
                    if tables::moves_no_bytes(&line.cell.table, &line.cell.row) {
                        line.figures.remove("gibibytes_per_s");
                    }
                    folder.lines.push(line);
                }
                ResultEntry::Skipped(skipped) => folder.skipped.push(skipped),
                ResultEntry::Timing(timing) => folder.timings.push(timing),
            }
        }
        match fs::read(dir.join("network.jsonl")) {
            Ok(text) => {
                folder.networks = folder.json_lines("network.jsonl", &text);
            }
            Err(_) if folder.lines.iter().all(|line| line.network == "loopback") => {}
            Err(_) => folder
                .warnings
                .push("network.jsonl is missing: the networks of this run were not checked".into()),
        }
        folder.read_environment();
        folder.judge_environment();
        folder.judge_amount();
        folder.list_files();
        Ok(folder)
    }

    fn json_lines<T: DeserializeOwned>(&mut self, file: &str, text: &[u8]) -> Vec<T> {
        let (mut good, mut bad) = (Vec::new(), 0);
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(value) => good.push(value),
                Err(reason) => {
                    bad += 1;
                    if bad <= MAX_FILES_NAMED {
                        self.warnings
                            .push(format!("{file}, line {number}, was left out: {reason}"));
                    }
                }
            }
        }
        if bad > MAX_FILES_NAMED {
            self.warnings.push(format!(
                "{file}: {} more lines were left out",
                bad - MAX_FILES_NAMED
            ));
        }
        good
    }

    fn read_environment(&mut self) {
        let read = fs::read(self.dir.join("environment.json")).map_err(|error| error.to_string());
        match read.and_then(|text| serde_json::from_slice(&text).map_err(|e| e.to_string())) {
            Ok(environment) => self.environment = environment,
            Err(reason) => self
                .warnings
                .push(format!("environment.json cannot be read: {reason}")),
        }
    }

    /// Warns of what makes the figures of a run less reliable.
    fn judge_environment(&mut self) {
        match self.fact("state").as_deref() {
            Some("interrupted") => self.warnings.push("this run was interrupted".into()),
            Some("running") => self.warnings.push(
                "this run has not ended, or was killed: the report has what was measured so far"
                    .into(),
            ),
            _ => {}
        }
        if self.fact("build").as_deref() == Some("debug") {
            self.warnings.push(
                "measured with an unoptimised build: the figures do not show real performance"
                    .into(),
            );
        }
        let load = self.environment.get("load_before").and_then(Value::as_f64);
        if let Some(load) = load.filter(|load| *load > MIN_IDLE_SHARE) {
            self.warnings.push(format!(
                "the machine was busy when the run began (load average {load:.2}): expect wide spreads"
            ));
        }
    }

    /// Warns when a run did less work than the names of its rows say, as a trial run does.
    fn judge_amount(&mut self) {
        let less = self.lines.iter().find_map(|line| {
            let asked = line.asked.get("agents")?.as_u64()?;
            let (number, rest) = line.cell.row.split_once(' ')?;
            let named: u64 = number.replace(',', "").parse().ok()?;
            (rest.starts_with("agents") && asked < named).then_some((&line.cell.row, asked))
        });
        if let Some((row, asked)) = less {
            self.warnings.push(format!(
                "a trial run: the row “{row}” was run with {asked} agents, so neither its figures nor its targets count"
            ));
        }
    }

    fn list_files(&mut self) {
        let drawn = ["summary.json", "report.md"];
        let there = |name: &str| drawn.contains(&name) || self.dir.join(name).is_file();
        self.files = FILES
            .iter()
            .filter(|(name, _)| there(name))
            .map(|(name, what)| ((*name).to_owned(), (*what).to_owned()))
            .collect();
        let Ok(all) = fs::read_dir(&self.dir) else {
            return;
        };
        let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut seen: Vec<String> = names
            .filter(|name| name.starts_with("flame-") || name.starts_with("folded-"))
            .collect();
        seen.sort();
        let what = "where the processor's time went";
        self.files
            .extend(seen.into_iter().map(|name| (name, what.to_owned())));
    }

    /// A field of `environment.json` as text; `None` where it is missing.
    #[must_use]
    pub(crate) fn fact(&self, name: &str) -> Option<String> {
        match self.environment.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// The suites that were run here, in the order in which they appear.
    #[must_use]
    pub(crate) fn suites(&self) -> Vec<String> {
        let mut suites: Vec<String> = Vec::new();
        let cells = self.lines.iter().map(|line| &line.cell);
        for cell in cells.chain(self.skipped.iter().map(|skipped| &skipped.cell)) {
            if !suites.contains(&cell.suite) {
                suites.push(cell.suite.clone());
            }
        }
        suites
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_bad_line_is_named_by_its_number_and_the_others_are_used() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        let raw = dir.path().join("raw.jsonl");
        let text = fs::read_to_string(&raw).unwrap();
        let whole = ResultFolder::read(dir.path()).unwrap();
        fs::write(&raw, format!("{{\"measured\":{{}}}}\n{text}{{\"meas")).unwrap();
        let folder = ResultFolder::read(dir.path()).unwrap();
        assert_eq!(folder.lines, whole.lines);
        assert_eq!(folder.warnings.len(), whole.warnings.len() + 2);
        assert!(
            folder
                .warnings
                .iter()
                .any(|w| w.starts_with("raw.jsonl, line 1,"))
        );
        let last = text.lines().count() + 2;
        let named = format!("raw.jsonl, line {last},");
        assert!(folder.warnings.iter().any(|w| w.starts_with(&named)));
    }

    #[test]
    fn what_moves_no_bytes_has_no_rate_and_keeps_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let lines = [
            ("C8", "chunk in, 64 KiB, raw"),
            ("C8", "chunk in, 64 KiB, JSON"),
        ]
        .map(|(table, row)| {
            let cell = fixture::cell(table, row, "callout", "one thread");
            let figures = [("gibibytes_per_s", 1800.0), ("ns_per_op", 33.0)];
            ResultEntry::Measured(fixture::line(cell, "loopback", 1, &figures))
        });
        fixture::write(dir.path(), &lines);
        let folder = ResultFolder::read(dir.path()).unwrap();
        let names = |n: usize| {
            folder.lines[n]
                .figures
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["ns_per_op"]);
        assert_eq!(names(1), ["gibibytes_per_s", "ns_per_op"]);
    }

    #[test]
    fn a_thousand_bad_lines_are_counted_and_not_all_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("raw.jsonl"), "no\n".repeat(1000)).unwrap();
        let folder = ResultFolder::read(dir.path()).unwrap();
        assert!(folder.warnings.len() < MAX_FILES_NAMED + 5);
        assert!(folder.warnings.iter().any(|w| w.contains("980 more lines")));
    }

    #[test]
    fn a_folder_without_lines_is_no_result_folder() {
        let dir = tempfile::tempdir().unwrap();
        let error = ResultFolder::read(dir.path()).unwrap_err();
        assert!(error.to_string().contains("raw.jsonl"));
    }

    #[test]
    fn what_makes_figures_worth_less_is_said() {
        let dir = tempfile::tempdir().unwrap();
        fixture::write(dir.path(), &fixture::entries());
        assert_eq!(
            ResultFolder::read(dir.path()).unwrap().warnings,
            Vec::<String>::new()
        );
        let environment = r#"{"state":"interrupted","build":"debug","load_before":1.5}"#;
        fs::write(dir.path().join("environment.json"), environment).unwrap();
        let raw = fs::read_to_string(dir.path().join("raw.jsonl")).unwrap();
        let trial = raw.replace(r#""agents":1000"#, r#""agents":3"#);
        fs::write(dir.path().join("raw.jsonl"), trial).unwrap();
        let warnings = ResultFolder::read(dir.path()).unwrap().warnings;
        for word in ["interrupted", "unoptimised", "busy", "a trial run"] {
            assert!(
                warnings.iter().any(|w| w.contains(word)),
                "{word}: {warnings:?}"
            );
        }
    }
}
