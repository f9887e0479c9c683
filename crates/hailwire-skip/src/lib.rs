//! How a test says that it cannot run here, so that it is counted.
//!
//! Rust's test harness knows tests that passed and tests that failed: one that returns early because
//! the machine lacks something has passed, and nobody sees what was not tested. So each such test
//! calls [`skipped`], which prints the reason and adds a line to a file; `./x test` names the file
//! in the environment and ends with what is in it.
//!
//! For tests only: a development dependency of whoever needs it, that depends on nothing.

use std::{env, ffi::OsStr, fmt::Display, fs::File, io::Write as _, thread};

/// The variable that names the file.
pub const FILE: &str = "HAILWIRE_SKIPPED";

/// Says that the calling test is skipped; `reason` follows "skipped: ". The test returns then.
///
/// Called on the test's own thread, whose name is the test's.
pub fn skipped(reason: impl Display) {
    let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
    let thread = thread::current();
    let line = line(&package, thread.name().unwrap_or_default(), &reason);
    eprintln!("skipped: {reason}");
    if let Some(file) = env::var_os(FILE) {
        note(&file, &line);
    }
}

/// Package, test and reason, on one line whatever the reason is.
fn line(package: &str, test: &str, reason: &impl Display) -> String {
    let reason = reason.to_string();
    let words: Vec<&str> = reason.split_whitespace().collect();
    format!("{package} {test}: {}\n", words.join(" "))
}

/// One write at the end of the file, so that lines of several processes do not mix.
fn note(file: &OsStr, line: &str) {
    let written = File::options()
        .append(true)
        .create(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    assert!(written.is_ok(), "{}: {written:?}", file.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skipped_test_is_a_line_of_its_own() {
        let name = format!("hailwire-skip-{}", std::process::id());
        let file = env::temp_dir().join(name);
        for test in ["one::needs_root", "two"] {
            note(file.as_os_str(), &line("pack", test, &"needs\n  root"));
        }
        let written = std::fs::read_to_string(&file);
        let _ = std::fs::remove_file(&file);
        let expected = "pack one::needs_root: needs root\npack two: needs root\n";
        assert_eq!(written.ok().as_deref(), Some(expected));
    }
}
