//! The documents of the demonstration: excerpts that are in the program, or the text files of a named folder.
//!
//! Of a folder these are all files below it apart from `target` and `.git`. Links are not followed. Files that
//! are not text, cannot be read, or exceed a bound are skipped and counted.

use std::{
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use hailwire::{Code, Status};
use hailwire_terminal::failure::CommandFailure;
use serde::Serialize;

use super::samples;

/// Most documents of one run.
const MAX_DOCUMENTS: usize = 2000;

/// Most bytes of all documents together.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// Largest document in bytes.
const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;

/// Most files and folders visited.
const MAX_SEEN: usize = 100_000;

/// Folders with generated files only.
const SKIPPED_FOLDERS: [&str; 2] = ["target", ".git"];

/// A text file.
#[derive(Clone, Debug)]
pub(super) struct DemoDocument {
    text: Bytes,
}

impl DemoDocument {
    pub(super) fn bytes(&self) -> Bytes {
        self.text.clone()
    }

    pub(super) fn text(&self) -> &str {
        // It was checked when the document was read.
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }
}

/// The documents that were found.
#[derive(Debug, Default)]
pub(super) struct DocumentSet {
    pub(super) list: Vec<DemoDocument>,
    pub(super) skipped: SkippedFiles,
}

/// Files that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct SkippedFiles {
    /// Not UTF-8, or with a zero byte.
    pub(super) not_text: u64,
    /// It cannot be read, or is gone.
    pub(super) unreadable: u64,
    /// Larger than a document may be, or beyond the number or size of all.
    pub(super) too_many: u64,
}

impl SkippedFiles {
    pub(super) fn total(self) -> u64 {
        self.not_text + self.unreadable + self.too_many
    }
}

/// Reads the documents of a folder, or takes those that are in the program.
///
/// # Errors
///
/// The folder is missing, is not a folder, cannot be read or holds no text.
pub(super) fn collect(input: Option<&Path>) -> Result<DocumentSet, CommandFailure> {
    match input {
        Some(folder) => of_folder(folder),
        None => Ok(DocumentSet {
            list: samples::excerpts()
                .map(|text| DemoDocument { text: text.into() })
                .collect(),
            skipped: SkippedFiles::default(),
        }),
    }
}

fn of_folder(folder: &Path) -> Result<DocumentSet, CommandFailure> {
    let listing = fs::read_dir(folder).map_err(|error| folder_failure(folder, &error))?;
    drop(listing);
    let mut unreadable = 0;
    let mut paths = walk(folder, &mut unreadable);
    paths.sort();
    let mut documents = read(&paths);
    documents.skipped.unreadable += unreadable;
    if documents.list.is_empty() {
        let what = format!("there is no text file in {}", folder.display());
        let left_out = match documents.skipped.total() {
            0 => String::new(),
            n => format!(" ({n} files are not text or cannot be read)"),
        };
        return Err(
            CommandFailure::from(Status::new(Code::FailedPrecondition, what + &left_out))
                .hint("give a folder with documents: hail demo --input DIR"),
        );
    }
    Ok(documents)
}

fn folder_failure(folder: &Path, error: &std::io::Error) -> CommandFailure {
    let (code, what) = match error.kind() {
        std::io::ErrorKind::NotFound => (Code::NotFound, "does not exist".to_owned()),
        std::io::ErrorKind::NotADirectory => (Code::InvalidArgument, "is not a folder".to_owned()),
        _ => (
            Code::FailedPrecondition,
            format!(
                "cannot be read: {}",
                hailwire_terminal::text::lower_first(&error.to_string())
            ),
        ),
    };
    let status = Status::new(code, format!("{} {what}", folder.display()));
    CommandFailure::from(status).hint("give a folder with documents: hail demo --input DIR")
}

/// All files below `folder`.
fn walk(folder: &Path, unreadable: &mut u64) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            *unreadable += 1;
            continue;
        };
        for entry in entries {
            seen += 1;
            if seen > MAX_SEEN {
                return files;
            }
            let typed = entry.and_then(|entry| Ok((entry.file_type()?, entry)));
            let Ok((kind, entry)) = typed else {
                *unreadable += 1;
                continue;
            };
            let name = entry.file_name();
            if kind.is_dir() && !SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped) {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files
}

fn read(paths: &[PathBuf]) -> DocumentSet {
    let mut documents = DocumentSet::default();
    let mut total = 0;
    for path in paths {
        let skipped = &mut documents.skipped;
        let size = path.metadata().map_or(0, |meta| meta.len());
        if documents.list.len() >= MAX_DOCUMENTS || size > MAX_DOCUMENT {
            skipped.too_many += 1;
            continue;
        }
        let Ok(content) = fs::read(path) else {
            skipped.unreadable += 1;
            continue;
        };
        if content.contains(&0) || std::str::from_utf8(&content).is_err() {
            skipped.not_text += 1;
            continue;
        }
        if total + content.len() > MAX_BYTES {
            skipped.too_many += 1;
            continue;
        }
        total += content.len();
        documents.list.push(DemoDocument {
            text: content.into(),
        });
    }
    documents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn text_below_a_folder_is_found_and_the_rest_is_counted() {
        let dir = folder();
        for below in ["sub/deep", "target", ".git"] {
            fs::create_dir_all(dir.path().join(below)).unwrap();
            fs::write(dir.path().join(below).join("text"), "the text").unwrap();
        }
        fs::write(dir.path().join("empty"), "").unwrap();
        fs::write(dir.path().join("binary"), [0, 1, 2]).unwrap();
        fs::write(dir.path().join("latin"), [b'a', 0xe4]).unwrap();
        let large = fs::File::create(dir.path().join("large")).unwrap();
        large.set_len(MAX_DOCUMENT + 1).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let documents = collect(Some(dir.path())).unwrap();
        let texts: Vec<&str> = documents.list.iter().map(DemoDocument::text).collect();
        assert_eq!(texts, ["", "the text"]);
        let skipped = SkippedFiles {
            not_text: 2,
            unreadable: 0,
            too_many: 1,
        };
        assert_eq!(documents.skipped, skipped);
    }

    #[test]
    fn a_folder_without_text_is_refused_in_words() {
        let dir = folder();
        let message = |path: &Path| collect(Some(path)).unwrap_err().status.message;
        assert!(message(dir.path()).starts_with("there is no text file in"));
        fs::write(dir.path().join("binary"), [0]).unwrap();
        assert!(message(dir.path()).ends_with("(1 files are not text or cannot be read)"));
        assert!(message(&dir.path().join("binary")).ends_with("is not a folder"));
        assert!(message(&dir.path().join("missing")).ends_with("does not exist"));
    }
}
