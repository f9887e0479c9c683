//! The folder of a run: what is measured is on disk as soon as it is known.
//!
//! | file | holds |
//! |---|---|
//! | `environment.json` | machine, versions, the command, the git revision, whether the run is whole |
//! | `raw.jsonl` | an [`ResultEntry`] for each repeat, for each cell without one, and for the time of each row |
//! | `network.jsonl` | what each network's check measured before it was used |
//! | `flame-SUBJECT.svg`, `folded-SUBJECT.txt` | where processor time went, where that could be seen |

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    BenchError,
    result::{CellId, MeasuredRepeat, ResultEntry, RowTiming, SkippedEntry},
};

/// The machine, the program and the command of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunEnvironment {
    /// Unix seconds.
    pub at: u64,
    /// Version of this program.
    pub version: String,
    /// `/proc/sys/kernel/osrelease`.
    pub kernel: String,
    /// Processor model and count.
    pub cpu: String,
    /// Bytes of memory of the machine.
    pub memory_bytes: u64,
    /// The command line.
    pub command: String,
    /// The git revision that this program was built from; empty where it was built outside of a repository.
    pub revision: String,
    /// How the program was built: `release` or `debug`.
    pub build: String,
    /// How many processes wanted to run on average in the minute before: others disturb.
    pub load_before: f64,
    /// The same after the run.
    #[serde(default)]
    pub load_after: f64,
    /// How long the run took, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// `running`, `whole`, or `interrupted`.
    pub state: String,
    /// What foreign programs said of their versions, by subject.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
}

impl RunEnvironment {
    /// Describes this machine and this process.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let meminfo = read("/proc/meminfo");
        let memory = meminfo.split_whitespace().nth(1);
        Self {
            at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: format!("{} × {count}", model.unwrap_or("unknown").trim()),
            memory_bytes: memory.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024,
            command: std::env::args()
                .skip(1)
                .fold("hail".to_owned(), |all, arg| all + " " + &arg),
            revision: env!("HAILWIRE_REVISION").to_owned(),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
            .to_owned(),
            load_before: load(),
            load_after: 0.0,
            seconds: 0.0,
            state: "running".to_owned(),
            programs: BTreeMap::new(),
        }
    }

    /// The program and the machine.
    pub(crate) fn program_and_machine(&self) -> String {
        let Self {
            version,
            revision,
            build,
            cpu,
            kernel,
            ..
        } = self;
        format!("hail {version} {revision} ({build}), {cpu}, Linux {kernel}")
    }

    /// The command, the program and the machine on one line of Markdown.
    pub(crate) fn line(&self) -> String {
        format!(
            "`{}`, {}, {:.0} s, {}.",
            self.command,
            self.program_and_machine(),
            self.seconds,
            self.state
        )
    }

    /// Records how the run ended and how long it took.
    pub(crate) fn finished(&mut self, state: &str, took: Duration) {
        state.clone_into(&mut self.state);
        self.seconds = took.as_secs_f64();
        self.load_after = load();
    }

    /// Writes `environment.json`.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), BenchError> {
        write_json(&dir.join("environment.json"), self)
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// A folder being written.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    raw: fs::File,
    environment: RunEnvironment,
    begun: std::time::Instant,
    lines: Vec<MeasuredRepeat>,
    /// Cells that have a line or a reason.
    seen: BTreeSet<CellId>,
}

impl RunFolder {
    /// Makes the folder and writes the environment into it. Results of an earlier run are replaced.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn create(dir: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(dir).map_err(BenchError::io(format!("the folder {}", dir.display())))?;
        let environment = RunEnvironment::here();
        environment.write(dir)?;
        let create = |name: &str| {
            let path = dir.join(name);
            fs::File::create(&path).map_err(BenchError::io(path.display().to_string()))
        };
        create("network.jsonl")?;
        Ok(Self {
            raw: create("raw.jsonl")?,
            dir: dir.to_owned(),
            environment,
            begun: std::time::Instant::now(),
            lines: Vec::new(),
            seen: BTreeSet::new(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What has been measured so far.
    #[must_use]
    pub fn lines(&self) -> &[MeasuredRepeat] {
        &self.lines
    }

    /// Whether a cell has a line or a reason.
    #[must_use]
    pub fn has(&self, cell: &CellId) -> bool {
        self.seen.contains(cell)
    }

    /// Keeps what a subject's program said of its versions; it is written when the run ends.
    pub fn program(&mut self, subject: &str, versions: String) {
        self.environment
            .programs
            .insert(subject.to_owned(), versions);
    }

    /// Keeps one repeat.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep(&mut self, line: MeasuredRepeat) -> Result<(), BenchError> {
        self.write(&ResultEntry::Measured(line.clone()))?;
        self.seen.insert(line.cell.clone());
        self.lines.push(line);
        Ok(())
    }

    /// Keeps the reason why a cell has no line; the first reason stays, and a measured cell needs none.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn skip(&mut self, cell: CellId, reason: &str) -> Result<(), BenchError> {
        if !self.seen.insert(cell.clone()) {
            return Ok(());
        }
        self.write(&ResultEntry::Skipped(SkippedEntry {
            cell,
            reason: reason.to_owned(),
        }))
    }

    /// Keeps where the time of a row went.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn timing(&mut self, timing: RowTiming) -> Result<(), BenchError> {
        self.write(&ResultEntry::Timing(timing))
    }

    /// Keeps the check of a network.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn network(&mut self, check: &impl Serialize) -> Result<(), BenchError> {
        let text = serde_json::to_string(check).map_err(|e| BenchError::Invalid(e.to_string()))?;
        let path = self.dir.join("network.jsonl");
        let file = fs::OpenOptions::new().append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{text}"))
            .map_err(BenchError::io("writing network.jsonl"))
    }

    /// Records in the environment that the run is over.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn finish(mut self, interrupted: bool) -> Result<(), BenchError> {
        let state = if interrupted { "interrupted" } else { "whole" };
        self.environment.finished(state, self.begun.elapsed());
        self.environment.write(&self.dir)
    }

    fn write(&mut self, entry: &ResultEntry) -> Result<(), BenchError> {
        let text = serde_json::to_string(entry).map_err(|e| BenchError::Invalid(e.to_string()))?;
        writeln!(self.raw, "{text}").map_err(BenchError::io("writing raw.jsonl"))
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), BenchError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|e| BenchError::Invalid(e.to_string()))?;
    fs::write(path, text + "\n").map_err(BenchError::io(path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_lines_and_only_the_first_reason_of_an_unmeasured_cell() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = RunFolder::create(dir.path()).unwrap();
        let cell = |subject: &str| CellId {
            suite: "smoke".into(),
            table: "Q1".into(),
            row: "10 agents".into(),
            subject: subject.into(),
            form: String::new(),
        };
        folder
            .keep(MeasuredRepeat {
                cell: cell("quic"),
                network: "loopback".into(),
                repeat: 1,
                figures: BTreeMap::new(),
                distribution: Vec::new(),
                asked: BTreeMap::new(),
            })
            .unwrap();
        folder.skip(cell("quic"), "never").unwrap();
        folder.skip(cell("h2"), "first").unwrap();
        folder.skip(cell("h2"), "second").unwrap();
        folder.finish(true).unwrap();
        let raw = fs::read_to_string(dir.path().join("raw.jsonl")).unwrap();
        let entries: Vec<ResultEntry> = raw
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(entries.len(), 2);
        assert!(matches!(&entries[1], ResultEntry::Skipped(s) if s.reason == "first"));
        let environment = fs::read(dir.path().join("environment.json")).unwrap();
        let environment: RunEnvironment = serde_json::from_slice(&environment).unwrap();
        assert_eq!(environment.state, "interrupted");
    }
}
