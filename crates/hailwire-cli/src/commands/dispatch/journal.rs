//! The journal of a dispatch: a file of JSON lines from which a run goes on that was interrupted.
//!
//! The first line states what was dispatched; each further one is an answered input: a hash of its bytes and its result.
//!
//! ```text
//! {"dispatch":1,"to":"word-count","inputs":"lines","options":"0f…"}
//! {"hash":"9c…","result":{"index":0,"input":"a b","code":"ok","text":"2\n","calls":1,"ms":3.1}}
//! ```
//!
//! A line is written before its result is printed, so it is there however the process ends. It is synced to disk each second and
//! at the end. A last line without a line feed was cut off by the end of a process, and is taken away. One run at a time has it: the
//! file is locked.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use hailwire::{Code, Status};
use hailwire_core::dispatch_journal::{InputInJournal, JournalIndex, JournalLineAt};
use hailwire_terminal::failure::CommandFailure;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::plan::DispatchPlanned;

/// Longest line: an answer of 16 MiB of which each byte is escaped, and what stands around it.
const MAX_LINE: u64 = 100 * 1024 * 1024;

/// What stands before and after the hash of an entry, and at the end of its line.
const HASH: &str = "{\"hash\":\"";
const RESULT: &str = "\",\"result\":";
const HASH_DIGITS: usize = 16;

/// The first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct JournalHead {
    /// The version of the format.
    dispatch: u32,
    to: String,
    inputs: String,
    /// A hash of what else decides what the agent is asked.
    options: String,
}

const VERSION: u32 = 1;

/// An entry, as far as it is looked at.
#[derive(Deserialize)]
struct JournalEntry {
    hash: String,
    result: RecordedResult,
}

#[derive(Deserialize)]
struct RecordedResult {
    index: u64,
}

/// The journal of a run.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    index: JournalIndex,
    /// Where the next line is written.
    end: u64,
    unsynced: bool,
}

impl Journal {
    /// Opens a journal, or begins one, and reads which inputs it answers.
    pub(super) fn open(path: &Path, dispatch: &DispatchPlanned) -> Result<Self, CommandFailure> {
        let wrong = |error: io::Error| {
            CommandFailure::io(format!("cannot use the journal {}", path.display()), &error)
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(path).map_err(wrong)?;
        if !file.metadata().map_err(wrong)?.is_file() {
            let message = format!("the journal {} is not a regular file", path.display());
            return Err(CommandFailure::usage(message));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!("another dispatch runs with the journal {}", path.display());
                return Err(refused(message).hint("wait for it, or choose another file"));
            }
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
        let mut journal = Self {
            path: path.to_owned(),
            file,
            index: JournalIndex::default(),
            end: 0,
            unsynced: false,
        };
        journal.read(&head(dispatch))?;
        Ok(journal)
    }

    /// What it says of an input that was read.
    pub(super) fn look_up(
        &mut self,
        index: u64,
        body: &[u8],
    ) -> Result<InputInJournal, CommandFailure> {
        let found = self.index.take(index, hash_of(body));
        if found == InputInJournal::AnotherInput {
            let message = format!(
                "the journal {} is of other inputs: it has the answer of another input {index}",
                self.path.display()
            );
            return Err(refused(message).hint(OTHER_FILE));
        }
        Ok(found)
    }

    /// All inputs were read: it must have no answer of any other.
    pub(super) fn check_end(&self, inputs: u64) -> Result<(), CommandFailure> {
        match self.index.left() {
            0 => Ok(()),
            left => {
                let message = format!(
                    "the journal {} is of other inputs: it has answers of {left} beyond the {inputs} that there are",
                    self.path.display()
                );
                Err(refused(message).hint(OTHER_FILE))
            }
        }
    }

    /// The result that stands at a place.
    pub(super) fn result(&self, at: JournalLineAt) -> Result<String, CommandFailure> {
        let mut line = vec![0; at.length];
        self.file
            .read_exact_at(&mut line, at.offset)
            .map_err(|e| self.wrong(&e))?;
        let line = String::from_utf8(line).unwrap_or_default();
        let result =
            line.get(HASH.len() + HASH_DIGITS + RESULT.len()..line.len().saturating_sub(1));
        result.map(str::to_owned).ok_or_else(|| self.invalid(None))
    }

    /// Writes an answered input. It is there when this process ends, however it ends.
    pub(super) fn write(&mut self, body: &[u8], result: &str) -> Result<(), CommandFailure> {
        let hash = hash_of(body);
        self.append(&format!("{HASH}{hash:016x}{RESULT}{result}}}\n"))
    }

    /// The file, if something was written that may not be on disk yet.
    pub(super) fn take_unsynced(&mut self) -> Option<io::Result<File>> {
        std::mem::take(&mut self.unsynced).then(|| self.file.try_clone())
    }

    /// That it could not be written or synced.
    pub(super) fn wrong(&self, error: &io::Error) -> CommandFailure {
        let what = format!("cannot write the journal {}", self.path.display());
        CommandFailure::io(what, error)
            .hint("what it holds stays good: the same command goes on from there")
    }

    fn append(&mut self, line: &str) -> Result<(), CommandFailure> {
        self.file
            .write_all(line.as_bytes())
            .map_err(|e| self.wrong(&e))?;
        self.end += line.len() as u64;
        self.unsynced = true;
        Ok(())
    }

    fn read(&mut self, expected: &JournalHead) -> Result<(), CommandFailure> {
        let wrong = |error: &io::Error| {
            CommandFailure::io(
                format!("cannot read the journal {}", self.path.display()),
                error,
            )
        };
        let mut lines = BufReader::new(self.file.try_clone().map_err(|e| wrong(&e))?);
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let read = (&mut lines).take(MAX_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(|e| wrong(&e))? as u64;
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                if read == MAX_LINE {
                    return Err(self.invalid(Some(number + 1)));
                }
                break;
            }
            number += 1;
            let at = JournalLineAt {
                offset: self.end,
                length: line.len(),
            };
            self.end += read;
            match number {
                1 => self.check_head(&line, expected)?,
                _ => match entry(&line) {
                    Some((index, hash)) => self.index.enter(index, hash, at),
                    None => return Err(self.invalid(Some(number))),
                },
            }
        }
        drop(lines);
        // A first line that was cut off is no journal's, unless it is the beginning of this one.
        if number == 0 && !line.is_empty() && !head_line(expected).as_bytes().starts_with(&line) {
            return Err(self.invalid(Some(1)));
        }
        let cut = self.file.set_len(self.end).and_then(|()| {
            self.file.seek(SeekFrom::Start(self.end))?;
            Ok(())
        });
        cut.map_err(|e| self.wrong(&e))?;
        match number {
            0 => self.begin(expected),
            _ => Ok(()),
        }
    }

    /// Writes the first line, and has the file survive a power loss from then on.
    fn begin(&mut self, head: &JournalHead) -> Result<(), CommandFailure> {
        self.append(&head_line(head))?;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| self.wrong(&e))
    }

    fn check_head(&self, line: &[u8], expected: &JournalHead) -> Result<(), CommandFailure> {
        let Ok(head) = serde_json::from_slice::<JournalHead>(line) else {
            return Err(self.invalid(Some(1)));
        };
        let path = self.path.display();
        let (was, now) = if head.dispatch != expected.dispatch {
            let message = format!("the journal {path} is of another version of `hail`");
            return Err(refused(message).hint(OTHER_FILE));
        } else if head.to != expected.to {
            (
                format!("calls of `{}`", head.to),
                format!("`{}`", expected.to),
            )
        } else if head.inputs != expected.inputs {
            (
                format!("inputs that are {}", head.inputs),
                expected.inputs.clone(),
            )
        } else if head.options != expected.options {
            let was = "calls with another method, header fields or type".to_owned();
            (was, "these".to_owned())
        } else {
            return Ok(());
        };
        Err(refused(format!("the journal {path} is of {was}, not {now}")).hint(OTHER_FILE))
    }

    fn invalid(&self, line: Option<u64>) -> CommandFailure {
        let path = self.path.display();
        let message = match line {
            Some(line) => {
                format!("{path} is not a journal of `hail dispatch`: line {line} is none of one")
            }
            None => format!("the journal {path} was changed while it was in use"),
        };
        refused(message).hint("choose another file with --journal; this one was not changed")
    }
}

const OTHER_FILE: &str =
    "run the command that it is of, or choose another file with --journal; it was not changed";

fn refused(message: String) -> CommandFailure {
    Status::new(Code::FailedPrecondition, message).into()
}

fn head(dispatch: &DispatchPlanned) -> JournalHead {
    let mut options = Sha256::new();
    let call = &dispatch.call;
    let fields = call.headers.iter().flat_map(|(name, value)| [name, value]);
    for part in [&call.method, &call.content_type].into_iter().chain(fields) {
        options.update((part.len() as u64).to_be_bytes());
        options.update(part);
    }
    JournalHead {
        dispatch: VERSION,
        to: call.to.to_string(),
        inputs: dispatch.inputs.kind().to_owned(),
        options: format!("{:016x}", first_eight(options)),
    }
}

fn head_line(head: &JournalHead) -> String {
    serde_json::to_string(head).unwrap_or_default() + "\n"
}

fn entry(line: &[u8]) -> Option<(u64, u64)> {
    let entry: JournalEntry = serde_json::from_slice(line).ok()?;
    let hash = u64::from_str_radix(&entry.hash, 16).ok()?;
    let starts = line.starts_with(HASH.as_bytes());
    let result = line.get(HASH.len() + HASH_DIGITS..)?;
    (starts && result.starts_with(RESULT.as_bytes())).then_some((entry.result.index, hash))
}

fn hash_of(body: &[u8]) -> u64 {
    first_eight(Sha256::new_with_prefix(body))
}

fn first_eight(hash: Sha256) -> u64 {
    let hash = hash.finalize();
    hash.iter()
        .take(8)
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
