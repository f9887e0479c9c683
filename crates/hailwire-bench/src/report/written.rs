//! Results as files: one JSON line per repeat, and a summary drawn from them.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    BenchError,
    load::{Measured, Work},
    measure::Spread,
};

/// One repeat of one piece of work on one subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The row that it belongs to.
    pub row: String,
    /// The subject.
    pub subject: String,
    /// Counted from 1; 0 is the warm-up, which no summary uses.
    pub repeat: u32,
    /// What was done.
    pub work: Option<Work>,
    /// What came of it.
    pub measured: Measured,
}

/// Memory of one node process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Peers connected to it, in other processes.
    pub peers: u32,
    /// Resident bytes now.
    pub rss_bytes: u64,
    /// Most resident bytes so far.
    pub peak_bytes: u64,
}

/// Where and with what a result was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// Unix seconds.
    pub at: u64,
    /// Version of this program.
    pub version: String,
    /// `/proc/sys/kernel/osrelease`.
    pub kernel: String,
    /// Processor model and count.
    pub cpu: String,
    /// The command that was typed.
    pub command: String,
    /// The git revision of the folder that it ran in; empty outside one.
    pub revision: String,
}

impl Environment {
    /// What can be found out here.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let git = std::process::Command::new("git")
            .args(["describe", "--always", "--dirty"])
            .output();
        let revision = git
            .ok()
            .filter(|out| out.status.success())
            .map(|out| out.stdout);
        Self {
            at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: format!("{} × {count}", model.unwrap_or("unknown").trim()),
            command: std::env::args()
                .skip(1)
                .fold("hail".to_owned(), |all, arg| all + " " + &arg),
            revision: String::from_utf8(revision.unwrap_or_default())
                .unwrap_or_default()
                .trim()
                .to_owned(),
        }
    }
}

/// A folder of results being written: what is measured is kept even if the run ends early.
#[derive(Debug)]
pub struct Results {
    dir: PathBuf,
    raw: fs::File,
    lines: Vec<Line>,
    memory: Vec<Memory>,
    environment: Environment,
}

impl Results {
    /// Makes the folder and writes the environment into it.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn create(dir: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(dir).map_err(BenchError::io(format!("the folder {}", dir.display())))?;
        let environment = Environment::here();
        write_json(&dir.join("environment.json"), &environment)?;
        let path = dir.join("raw.jsonl");
        let raw = fs::File::create(&path).map_err(BenchError::io(path.display().to_string()))?;
        Ok(Self {
            dir: dir.to_owned(),
            raw,
            lines: Vec::new(),
            memory: Vec::new(),
            environment,
        })
    }

    /// Keeps one repeat.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep(&mut self, line: Line) -> Result<(), BenchError> {
        let text = serde_json::to_string(&line).map_err(|e| BenchError::Wrong(e.to_string()))?;
        writeln!(self.raw, "{text}").map_err(BenchError::io("raw.jsonl"))?;
        self.lines.push(line);
        Ok(())
    }

    /// Keeps a reading of memory.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_memory(&mut self, memory: Memory) -> Result<(), BenchError> {
        self.memory.push(memory);
        write_json(&self.dir.join("memory.json"), &self.memory)
    }

    /// Writes `summary.md` and returns it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn finish(self) -> Result<String, BenchError> {
        let text = summary(&self.environment, &self.lines, &self.memory);
        let path = self.dir.join("summary.md");
        fs::write(&path, &text).map_err(BenchError::io(path.display().to_string()))?;
        Ok(text)
    }
}

/// The number by which a row is compared, and its unit.
fn figure(line: &Line) -> (f64, &'static str) {
    match (line.measured.p50_us, line.work) {
        (Some(p50), _) => (p50, "µs (p50)"),
        (None, Some(Work::Bulk { .. })) => (line.measured.megabytes_per_second(), "MB/s"),
        _ => (line.measured.per_second(), "calls/s"),
    }
}

fn summary(environment: &Environment, lines: &[Line], memory: &[Memory]) -> String {
    let mut out = format!(
        "# Smoke\n\n`{}` · hailwire {} {} · Linux {} · {} · Unix time {}\n\n\
         All parties are separate processes on loopback, TLS 1.3, one thread each, warm; every answer \
         is checked. Median (min – max) of the repeats; the ratio is paired repeat by repeat with raw iroh.\n\n\
         | row | subject | figure | against raw iroh |\n|---|---|---|---|\n",
        environment.command,
        environment.version,
        environment.revision,
        environment.kernel,
        environment.cpu,
        environment.at
    );
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for line in lines.iter().filter(|line| line.repeat > 0) {
        let key = (line.row.as_str(), line.subject.as_str());
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let of = |subject: &str| -> Vec<(u32, f64)> {
            let same = |l: &&Line| l.repeat > 0 && l.row == line.row && l.subject == subject;
            lines
                .iter()
                .filter(same)
                .map(|l| (l.repeat, figure(l).0))
                .collect()
        };
        let mine = of(&line.subject);
        let base = of("raw iroh");
        let ratios = mine.iter().filter_map(|(repeat, value)| {
            let (_, other) = base.iter().find(|(other, _)| other == repeat)?;
            Some(value / other)
        });
        let ratio = Spread::of(ratios.collect());
        let Some(figures) = Spread::of(mine.iter().map(|(_, value)| *value).collect()) else {
            continue;
        };
        let ratio = match ratio {
            Some(r) if line.subject != "raw iroh" => {
                format!("{:.2} × ({:.2} – {:.2})", r.median, r.min, r.max)
            }
            _ => String::new(),
        };
        out += &format!(
            "| {} | {} | {:.0} ({:.0} – {:.0}) {} | {ratio} |\n",
            line.row,
            line.subject,
            figures.median,
            figures.min,
            figures.max,
            figure(line).1
        );
    }
    if !memory.is_empty() {
        out += "\nMemory of one node process (`hail up` alone, peers in other processes):\n\n\
                | connected peers | resident | peak |\n|---|---|---|\n";
        for reading in memory {
            out += &format!(
                "| {} | {:.1} MiB | {:.1} MiB |\n",
                reading.peers,
                reading.rss_bytes as f64 / f64::from(1 << 20),
                reading.peak_bytes as f64 / f64::from(1 << 20)
            );
        }
    }
    out
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), BenchError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| BenchError::Wrong(e.to_string()))?;
    fs::write(path, text + "\n").map_err(BenchError::io(path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_kept_and_not_summed_up() {
        let line = |subject: &str, repeat, p50| Line {
            row: "echo".into(),
            subject: subject.into(),
            repeat,
            work: None,
            measured: Measured {
                p50_us: Some(p50),
                ..Measured::default()
            },
        };
        let lines = [
            line("raw iroh", 0, 1000.0),
            line("raw iroh", 1, 100.0),
            line("embedded", 0, 9000.0),
            line("embedded", 1, 110.0),
        ];
        let text = summary(&Environment::here(), &lines, &[]);
        assert!(
            text.contains("| echo | embedded | 110 (110 – 110) µs (p50) | 1.10 × (1.10 – 1.10) |"),
            "{text}"
        );
    }
}
