//! Configuration files, and mistakes in them with file, line and column.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::TextMistake;

/// Largest file in bytes.
pub const MAX_FILE: u64 = 256 << 10;

/// One setting of a file, for reference pages and for commands that show the configuration.
#[derive(Clone, Copy, Debug)]
pub struct SettingRow {
    /// Its path, for example `limits.grace`.
    pub path: &'static str,
    /// Type and unit.
    pub value: &'static str,
    /// The default as written in the file.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read, or is larger than [`MAX_FILE`].
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Its contents are invalid.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong, lower case, no full stop.
        what: String,
        /// What to write instead; empty if there is no suggestion.
        hint: String,
    },
}

impl FileError {
    /// What to try next; empty if there is no suggestion.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Read { .. } => "check the file's path, owner and mode",
            Self::Invalid { hint, .. } => hint,
        }
    }
}

/// Reads the text of a file.
///
/// # Errors
///
/// [`FileError::Read`].
pub fn read(path: &Path) -> Result<String, FileError> {
    let text = || match std::fs::metadata(path)?.len() {
        0..=MAX_FILE => std::fs::read_to_string(path),
        _ => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 256 KiB",
        )),
    };
    text().map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

impl TextMistake {
    /// The mistake with its position in a file of this text.
    #[must_use]
    pub fn in_file(self, text: &str, path: &Path) -> FileError {
        let (line, column) = self.line_and_column(text);
        FileError::Invalid {
            path: path.to_owned(),
            line,
            column,
            what: self.what,
            hint: self.hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_told_with_its_file() {
        let error = TextMistake::at(3, "no such thing")
            .hint("write: b")
            .in_file("a\nbc", Path::new("x.kdl"));
        assert_eq!(error.to_string(), "x.kdl:2:2: no such thing");
        assert_eq!(error.hint(), "write: b");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.kdl");
        std::fs::write(&path, " ".repeat(usize::try_from(MAX_FILE).unwrap())).unwrap();
        assert!(read(&path).is_ok());
        std::fs::write(&path, " ".repeat(usize::try_from(MAX_FILE).unwrap() + 1)).unwrap();
        let Err(FileError::Read { source, .. }) = read(&path) else {
            panic!("it was read");
        };
        assert_eq!(source.kind(), io::ErrorKind::FileTooLarge);
    }
}
