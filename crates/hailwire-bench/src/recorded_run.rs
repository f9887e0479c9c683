//! A run whose results are lines of one kind: each is on disk as soon as it is known, and a summary follows.
//!
//! | file | holds |
//! |---|---|
//! | `environment.json` | machine, versions, the command, whether the run is whole |
//! | one of lines, as JSON | the results |
//! | `summary.txt` | the results as text |

use std::{fs, io::Write as _, path::Path, path::PathBuf, time::Instant};

use serde::Serialize;

use crate::{BenchError, run_folder::RunEnvironment};

/// What came out of a run that is held to targets.
#[derive(Clone, Debug)]
pub struct RecordedOutcome {
    /// The targets that were missed, as text.
    pub missed: Vec<String>,
    /// The summary.
    pub summary: String,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// A run while its results are written.
pub(crate) struct RecordedRun<T> {
    dir: PathBuf,
    name: &'static str,
    file: fs::File,
    lines: Vec<T>,
    environment: RunEnvironment,
    begun: Instant,
}

impl<T: Serialize> RecordedRun<T> {
    /// Makes the folder and the file of its lines. Results of an earlier run are replaced.
    pub(crate) fn create(dir: &Path, name: &'static str) -> Result<Self, BenchError> {
        fs::create_dir_all(dir).map_err(BenchError::io("creating the folder for the results"))?;
        let path = dir.join(name);
        Ok(Self {
            dir: dir.to_owned(),
            name,
            environment: RunEnvironment::here(),
            file: fs::File::create(&path).map_err(BenchError::io(path.display().to_string()))?,
            lines: Vec::new(),
            begun: Instant::now(),
        })
    }

    /// Writes one line.
    pub(crate) fn keep(&mut self, line: T) -> Result<(), BenchError> {
        let text = serde_json::to_string(&line).map_err(|e| BenchError::Invalid(e.to_string()))?;
        writeln!(self.file, "{text}").map_err(BenchError::io(format!("writing {}", self.name)))?;
        self.lines.push(line);
        Ok(())
    }

    /// The lines so far.
    pub(crate) fn lines(&self) -> &[T] {
        &self.lines
    }

    /// Writes the summary and how the run ended.
    pub(crate) fn finish(
        mut self,
        interrupted: bool,
        summary: impl FnOnce(&RunEnvironment, &[T]) -> String,
        missed: impl FnOnce(&[T]) -> Vec<String>,
    ) -> Result<RecordedOutcome, BenchError> {
        let state = if interrupted { "interrupted" } else { "whole" };
        self.environment.finished(state, self.begun.elapsed());
        self.environment.write(&self.dir)?;
        let summary = summary(&self.environment, &self.lines);
        let path = self.dir.join("summary.txt");
        fs::write(&path, &summary).map_err(BenchError::io(path.display().to_string()))?;
        Ok(RecordedOutcome {
            missed: missed(&self.lines),
            summary,
            interrupted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_on_disk_before_the_run_ends_and_then_how_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("run");
        let mut run = RecordedRun::create(&dir, "numbers.jsonl").unwrap();
        run.keep(1).unwrap();
        run.keep(2).unwrap();
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(read("numbers.jsonl"), "1\n2\n");
        let count = |environment: &RunEnvironment, lines: &[i32]| {
            format!("{}: {}", environment.state, lines.len())
        };
        let ended = run.finish(true, count, |lines| vec![format!("{lines:?}")]);
        let ended = ended.unwrap();
        assert_eq!(
            (ended.missed, ended.interrupted),
            (vec!["[1, 2]".to_owned()], true)
        );
        assert_eq!(ended.summary, "interrupted: 2");
        assert_eq!(read("summary.txt"), ended.summary);
        assert!(read("environment.json").contains("interrupted"));
    }
}
