//! `hail logs`: what a node in the background has written.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::Duration,
};

use hailwire::Code;
use hailwire_terminal::failure::CommandFailure;

use super::CommandContext;

/// How often a log that is followed is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Most bytes that are read from the end of the log for its last lines.
const MAX_TAIL: u64 = 4 * 1024 * 1024;

/// Most bytes that are read at once while following.
const MAX_CHUNK: u64 = 64 * 1024;

/// Prints the last `lines` of the log, and with `follow` whatever is added, until Ctrl-C.
pub(super) async fn run(
    run: &CommandContext,
    lines: usize,
    follow: bool,
) -> Result<(), CommandFailure> {
    let path = run.data.log();
    let failed = |error: &io::Error| failure(&path, error);
    let mut log = OpenLog::open(&path).map_err(|error| failed(&error))?;
    let tail = log.tail(lines).map_err(|error| failed(&error))?;
    // Each event was escaped when it was written.
    run.output.text(&tail)?;
    if !follow {
        return Ok(());
    }
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        tokio::select! {
            _ = &mut interrupted => return Ok(()),
            _ = ticks.tick() => {}
        }
        loop {
            let added = log.added().map_err(|error| failed(&error))?;
            if added.is_empty() {
                break;
            }
            run.output.text(&added)?;
        }
        // The next start may have begun another file, once this one was read to its end.
        if log.is_replaced(&path) {
            log = OpenLog::open(&path).map_err(|error| failed(&error))?;
        }
    }
}

fn failure(path: &Path, error: &io::Error) -> CommandFailure {
    let failure = CommandFailure::io(format!("cannot read {}", path.display()), error);
    match failure.status.code {
        Code::NotFound => failure.hint(
            "only a node that `hail up -d` started writes it; one of systemd writes to the journal: `journalctl --user \
             -u hailwire`",
        ),
        _ => failure,
    }
}

/// The log and how far it was read.
struct OpenLog {
    file: File,
    /// What was read of a character that is not whole yet.
    rest: Vec<u8>,
}

impl OpenLog {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
            rest: Vec::new(),
        })
    }

    /// The last lines, of [`MAX_TAIL`] bytes at most; what is added comes after them.
    fn tail(&mut self, lines: usize) -> io::Result<String> {
        let end = self.file.metadata()?.len();
        let begin = end.saturating_sub(MAX_TAIL);
        self.file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        self.file
            .by_ref()
            .take(end - begin)
            .read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let text = match begin {
            0 => &*text,
            // The first line is not whole.
            _ => text.split_once('\n').map_or("", |(_, rest)| rest),
        };
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        let skipped = all.len().saturating_sub(lines);
        Ok(all.get(skipped..).unwrap_or_default().concat())
    }

    /// What was added since, a chunk of it; empty where nothing was.
    fn added(&mut self) -> io::Result<String> {
        self.file
            .by_ref()
            .take(MAX_CHUNK)
            .read_to_end(&mut self.rest)?;
        let whole = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.rest.len(),
        };
        let rest = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, rest);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether another file has its name now.
    fn is_replaced(&self, path: &Path) -> bool {
        let (Ok(own), Ok(named)) = (self.file.metadata(), path.metadata()) else {
            return false;
        };
        (own.dev(), own.ino()) != (named.dev(), named.ino())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_last_lines_come_first_and_then_what_is_added() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hail.log");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"one\ntwo\nthree\n").unwrap();
        let mut log = OpenLog::open(&path).unwrap();
        assert_eq!(log.tail(2).unwrap(), "two\nthree\n");
        assert_eq!(log.added().unwrap(), "");
        // A character that comes in two parts.
        writer.write_all(b"f\xc3").unwrap();
        assert_eq!(log.added().unwrap(), "f");
        writer.write_all(b"\xbcnf\n").unwrap();
        assert_eq!(log.added().unwrap(), "\u{fc}nf\n");

        assert!(!log.is_replaced(&path));
        std::fs::rename(&path, folder.path().join("hail.log.1")).unwrap();
        assert!(!log.is_replaced(&path), "there is no other yet");
        std::fs::write(&path, "four\n").unwrap();
        assert!(log.is_replaced(&path));
    }

    #[test]
    fn of_a_long_log_the_end_is_read_from_a_whole_line_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hail.log");
        let line = "x".repeat(99) + "\n";
        std::fs::write(&path, line.repeat(50_000)).unwrap();
        let tail = OpenLog::open(&path).unwrap().tail(usize::MAX).unwrap();
        assert!(tail.len() as u64 <= MAX_TAIL);
        assert!(tail.lines().all(|one| one.len() == 99));
        assert!(tail.lines().count() > 40_000);
    }
}
