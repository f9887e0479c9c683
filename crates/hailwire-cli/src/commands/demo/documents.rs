//! The documents of the demonstration: text files of the checkout, or of a named folder.
//!
//! Without `--input` they are the files that git tracks below the current folder, or where that is
//! no checkout, all files below it apart from `target` and `.git`. Links are not followed. Files that
//! are not text, cannot be read, or exceed a bound are skipped and counted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use bytes::Bytes;
use hailwire::{Code, Status};
use hailwire_terminal::failure::CommandFailure;
use serde::Serialize;

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

/// Reads the documents of a folder, or of the current one.
///
/// # Errors
///
/// The folder is missing, is not a folder, cannot be read or holds no text.
pub(super) fn collect(input: Option<&Path>) -> Result<DocumentSet, CommandFailure> {
    let folder = input.unwrap_or(Path::new("."));
    let listing = fs::read_dir(folder).map_err(|error| folder_failure(folder, &error))?;
    drop(listing);
    let tracked = match input {
        Some(_) => None,
        None => tracked(folder),
    };
    let mut unreadable = 0;
    let mut paths = tracked.unwrap_or_else(|| walk(folder, &mut unreadable));
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

/// The files below `folder` that git tracks; `None` where it is no checkout or git is missing.
fn tracked(folder: &Path) -> Option<Vec<PathBuf>> {
    let listed = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["ls-files", "-z", "--cached"])
        .output()
        .ok()?;
    let text = String::from_utf8(listed.stdout).ok()?;
    let paths: Vec<PathBuf> = text
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| folder.join(name))
        .filter(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_file()))
        .take(MAX_SEEN)
        .collect();
    (listed.status.success() && !paths.is_empty()).then_some(paths)
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
