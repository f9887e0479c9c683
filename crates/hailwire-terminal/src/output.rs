//! Where output goes: data on stdout, everything else on stderr.

use std::io::{self, Write};

use serde::Serialize;

use crate::{failure::Failure, table::Table, text};

/// How this run prints. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// One JSON value instead of text.
    pub json: bool,
    /// Colours on stdout.
    pub colour: bool,
    /// Colours on stderr.
    pub colour_errors: bool,
    /// Whether stderr is a terminal, so that progress may be drawn.
    pub progress: bool,
}

impl Output {
    /// Prints `value` as JSON, or as the text that `people` makes of it. Foreign text in it cannot steer a terminal.
    pub fn value<T: Serialize>(
        self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = if self.json {
            self.json_line(value)?
        } else {
            text::coloured(&people(value))
        };
        self.text(&text)
    }

    /// Prints `rows` as a JSON list, or as a table; `empty` goes to stderr where there are none.
    pub fn rows<T: Serialize>(
        self,
        rows: &[T],
        table: impl FnOnce(&[T]) -> Table,
        empty: &str,
    ) -> Result<(), Failure> {
        if rows.is_empty() && !self.json {
            self.note(empty);
            return Ok(());
        }
        self.value(&rows, |rows| table(rows).render(self.colour))
    }

    /// Writes text to stdout as it is, so none that others wrote.
    pub fn text(self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|e| stdout_failure(&e))
    }

    /// Tells the user something on stderr; nothing with `--json`.
    pub fn note(self, text: &str) {
        if !self.json {
            // Nothing can be said about a failing stderr.
            let _ = writeln!(io::stderr(), "{}", text::lines(text));
        }
    }

    /// Prints why the command failed.
    pub fn failure(self, failure: &Failure) {
        if failure.is_silent() {
            return;
        }
        let text = if self.json {
            failure.for_programs()
        } else {
            failure.for_people(self.colour_errors)
        };
        let _ = writeln!(io::stderr(), "{text}");
    }

    fn json_line<T: Serialize>(self, value: &T) -> Result<String, Failure> {
        let line = serde_json::to_string(value)
            .map_err(|error| Failure::general(format!("cannot print as JSON: {error}")))?;
        Ok(text::json(&line) + "\n")
    }
}

/// A failure to write stdout: silent where the reader has gone.
pub fn stdout_failure(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::broken_pipe()
    } else {
        Failure::io("cannot write to stdout", error)
    }
}
