//! Seeing from outside whether a program waits for input.
//!
//! Linux says of each thread in `/proc/PID/task/TID/` whether it runs (`stat`) and in which of its own
//! functions it sleeps (`wchan`). A program all of whose threads sleep in the read of a pipe, while the
//! pipe to it is empty, has taken in all that it was asked and does nothing until it is asked more. Where
//! `wchan` is hidden, or a program waits in another way, as one with an event loop does, only its sleep can be
//! seen; where there is no `/proc`, not even that.

use std::{fs, os::fd::AsFd, path::Path};

use rustix::io::ioctl_fionread;

use super::dialogue::Rest;

/// Threads that are looked at; a program with more counts as asleep, not as waiting.
const MAX_THREADS: usize = 64;

/// What the program with the number `pid` does, which is given its input through `stdin`.
pub(crate) fn look(pid: u32, stdin: impl AsFd) -> Rest {
    let unread = ioctl_fionread(stdin).unwrap_or(0) > 0;
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Rest::Asleep;
    };
    let mut rest = match unread {
        true => Rest::Asleep,
        false => Rest::Waiting,
    };
    for (number, thread) in threads.flatten().enumerate() {
        if number == MAX_THREADS {
            return Rest::Asleep;
        }
        match of_thread(&thread.path()) {
            Rest::Busy => return Rest::Busy,
            Rest::Asleep => rest = Rest::Asleep,
            Rest::Waiting => {}
        }
    }
    rest
}

fn of_thread(thread: &Path) -> Rest {
    let Ok(stat) = fs::read_to_string(thread.join("stat")) else {
        return Rest::Asleep;
    };
    if state(&stat) != Some('S') {
        return Rest::Busy;
    }
    match fs::read_to_string(thread.join("wchan")) {
        Ok(place) if is_read_of_a_pipe(&place) => Rest::Waiting,
        _ => Rest::Asleep,
    }
}

/// The state in a line of `stat`, after the name, which may itself hold anything.
fn state(stat: &str) -> Option<char> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

/// `pipe_read` up to Linux 6.13, `anon_pipe_read` since.
fn is_read_of_a_pipe(place: &str) -> bool {
    matches!(place.trim(), "pipe_read" | "anon_pipe_read")
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;

    fn start(script: &str) -> Child {
        Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Looks until the program is seen so.
    fn becomes(child: &Child, rest: Rest) {
        let end = Instant::now() + Duration::from_secs(20);
        while look(child.id(), child.stdin.as_ref().unwrap()) != rest {
            assert!(Instant::now() < end, "it never became {rest:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_that_waits_for_a_line_is_told_from_one_that_sleeps_or_works() {
        if fs::read_to_string("/proc/self/wchan").is_err() {
            return hailwire_skip::skipped("this kernel does not say where a thread sleeps");
        }
        let mut child = start("while read l; do $l; done");
        becomes(&child, Rest::Waiting);
        let mut stdin = child.stdin.as_ref().unwrap();
        stdin.write_all(b"exec sleep 1000\n").unwrap();
        becomes(&child, Rest::Asleep);
        child.kill().unwrap();
        child.wait().unwrap();

        let mut child = start("while :; do :; done");
        becomes(&child, Rest::Busy);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_program_with_unread_input_does_not_wait() {
        let mut child = start("exec sleep 1000");
        let mut stdin = child.stdin.as_ref().unwrap();
        stdin.write_all(b"unread\n").unwrap();
        becomes(&child, Rest::Asleep);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_state_is_read_after_the_name() {
        assert_eq!(state("7 (a) S b) R 1 7"), Some('R'));
        assert_eq!(state("nothing"), None);
    }
}
