//! Restarts a node in place when its process is about to abort.
//!
//! A panic costs the work in which it happened (`docs/decisions/0028-panics.md`), with one exception that
//! cannot be fixed from outside: the QUIC engine takes its locks in destructors and panics there once a
//! panic has poisoned them, and a panic in a destructor while another one unwinds aborts the process.
//! Before that the panic hook runs a last time. It replaces the process by a new one with the same arguments and
//! the same process id. Calls in flight are lost, as with any restart; key, trust and ports are kept.
//!
//! At most [`MAX_RESTARTS`] times in [`RESTART_WINDOW`]: a process that keeps failing ends, and a service manager reports it.

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    panic::{self, PanicHookInfo},
    path::PathBuf,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How many times a process may restart.
const MAX_RESTARTS: u32 = 5;

/// The time in which these restarts are counted, from the first one.
const RESTART_WINDOW: Duration = Duration::from_secs(600);

/// Passes the count and the time of the first restart to the new process: `3 1800000000`.
const RESTART_COUNT: &str = "HAIL_BEGUN_AGAIN";

/// Makes this process restart in place where it would abort.
pub(super) fn restart_instead_of_aborting() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        before(panic);
        if aborts(panic) {
            restart_in_place();
        }
    }));
}

/// Whether the process aborts after this panic. The standard library tells it only by the text of the panic.
fn aborts(panic: &PanicHookInfo<'_>) -> bool {
    let words = panic.payload_as_str().unwrap_or_default();
    words == "panic in a destructor during cleanup"
        || words == "panic in a function that cannot unwind"
}

/// Replaces this process, unless it has restarted too often. Returns only if it has not been replaced, and then the process aborts.
fn restart_in_place() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    let before = env::var(RESTART_COUNT).unwrap_or_default();
    let Some(count) = next(&before, now) else {
        eprintln!("hail: the process has restarted too often and ends");
        return;
    };
    eprintln!("hail: restarting instead of aborting ({count})");
    let error = replace(&count);
    eprintln!("hail: cannot restart: {error}");
}

/// Executes the same program with the same arguments.
fn replace(count: &str) -> io::Error {
    let mut words = env::args_os();
    let name = words.next().unwrap_or_else(|| OsString::from("hail"));
    // On Linux this is the running program, even if its file has been replaced.
    let running = PathBuf::from("/proc/self/exe");
    let running = match running.exists() {
        true => Ok(running),
        false => env::current_exe(),
    };
    let running = match running {
        Ok(running) => running,
        Err(error) => return error,
    };
    Command::new(running)
        .arg0(name)
        .args(words)
        .env(RESTART_COUNT, count)
        .exec()
}

/// The count for the next process; `None` if there may be no further restart.
fn next(before: &str, now: u64) -> Option<String> {
    let parsed = before.split_once(' ');
    let parsed = parsed.and_then(|(count, since)| Some((count.parse().ok()?, since.parse().ok()?)));
    let (count, since): (u32, u64) = parsed.unwrap_or((0, now));
    if now.saturating_sub(since) > RESTART_WINDOW.as_secs() {
        return Some(format!("1 {now}"));
    }
    (count < MAX_RESTARTS).then(|| format!("{} {since}", count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_begins_again_a_few_times_in_a_while_and_no_more() {
        let mut told = String::new();
        for n in 0..u64::from(MAX_RESTARTS) {
            told = next(&told, 1000 + n).unwrap();
        }
        assert_eq!(told, "5 1000");
        assert_eq!(next(&told, 1000 + RESTART_WINDOW.as_secs()), None);
        assert_eq!(
            next(&told, 1001 + RESTART_WINDOW.as_secs()).as_deref(),
            Some("1 1601")
        );
        assert_eq!(next("what else", 7).as_deref(), Some("1 7"));
    }

    /// Panics once more while a panic unwinds.
    struct Poisoned;

    impl Drop for Poisoned {
        fn drop(&mut self) {
            panic!("the second panic of a test");
        }
    }

    /// Run by the test below, in a process of its own.
    #[test]
    #[ignore = "it would end the process of the tests"]
    fn child() {
        if env::var_os(RESTART_COUNT).is_some() {
            println!("begun again as {}", std::process::id());
            return;
        }
        println!("begun as {}", std::process::id());
        restart_instead_of_aborting();
        let _held = Poisoned;
        panic!("the first panic of a test");
    }

    #[test]
    fn a_panic_that_would_abort_the_process_begins_it_again_with_the_same_id() {
        let words = ["commands::restart::tests::child", "--exact", "--ignored"];
        let child = Command::new(env::current_exe().unwrap())
            .args(words)
            .args(["--nocapture", "--test-threads=1"])
            .env_remove(RESTART_COUNT)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        let id = |words: &str| {
            let (_, rest) = said.split_once(words)?;
            rest.split_whitespace().next().map(str::to_owned)
        };
        assert!(child.status.success(), "{child:?}");
        let first = id("begun as ").unwrap();
        assert_eq!(id("begun again as "), Some(first), "{said}");
    }
}
