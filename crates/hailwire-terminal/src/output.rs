//! Where output goes: data on stdout, everything else on stderr.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    failure::CommandFailure,
    log::LogStyle,
    table::{TableStyle, TextTable},
    text,
};

/// How this run prints. Cheap to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// One JSON value instead of text.
    pub json: bool,
    /// Colours on stdout.
    pub colour: bool,
    /// Colours on stderr.
    pub colour_errors: bool,
    /// Whether stderr is a terminal, so that progress may be drawn.
    pub progress: bool,
    /// Whether events are logged as JSON.
    pub log_json: bool,
    /// Columns of the terminal on stdout; none where stdout is no terminal, and tables are as wide as they are.
    pub width: Option<usize>,
}

impl Output {
    /// How tables are drawn on stdout.
    #[must_use]
    pub fn table_style(self) -> TableStyle {
        TableStyle {
            colour: self.colour,
            width: self.width,
        }
    }

    /// How events are logged.
    #[must_use]
    pub fn log_style(self) -> LogStyle {
        match (self.log_json, self.colour_errors) {
            (true, _) => LogStyle::Json,
            (false, true) => LogStyle::Coloured,
            (false, false) => LogStyle::Plain,
        }
    }

    /// Prints `value` as JSON, or as the text that `people` makes of it. Control characters in it are escaped.
    pub fn value<T: Serialize>(
        self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> Result<(), CommandFailure> {
        let text = if self.json {
            self.json_line(value)?
        } else {
            text::coloured(&people(value))
        };
        self.text(&text)
    }

    /// Prints `rows` as a JSON list, or as a table; `empty` goes to stderr if there are none.
    pub fn rows<T: Serialize>(
        self,
        rows: &[T],
        table: impl FnOnce(&[T]) -> TextTable,
        empty: &str,
    ) -> Result<(), CommandFailure> {
        if rows.is_empty() && !self.json {
            self.note(empty);
            return Ok(());
        }
        self.value(&rows, |rows| table(rows).render(self.table_style()))
    }

    /// Writes text to stdout unchanged; not for text that others wrote.
    pub fn text(self, text: &str) -> Result<(), CommandFailure> {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes to stdout unchanged.
    pub fn bytes(self, bytes: &[u8]) -> Result<(), CommandFailure> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|e| stdout_failure(&e))
    }

    /// Prints a note on stderr; nothing with `--json`.
    pub fn note(self, text: &str) {
        if !self.json {
            // A failing stderr cannot be reported.
            let _ = writeln!(io::stderr(), "{}", text::lines(text));
        }
    }

    /// Prints why the command failed.
    pub fn failure(self, failure: &CommandFailure) {
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

    fn json_line<T: Serialize>(self, value: &T) -> Result<String, CommandFailure> {
        let line = serde_json::to_string(value)
            .map_err(|error| CommandFailure::general(format!("cannot print as JSON: {error}")))?;
        Ok(text::json(&line) + "\n")
    }
}

/// The failure to write stdout: silent if the reader is gone.
pub fn stdout_failure(error: &io::Error) -> CommandFailure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CommandFailure::broken_pipe()
    } else {
        CommandFailure::io("cannot write to stdout", error)
    }
}
