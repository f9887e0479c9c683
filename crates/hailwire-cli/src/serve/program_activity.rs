//! Observes from outside whether a program waits for input.
//!
//! Linux shows for each thread in `/proc/PID/task/TID/` whether it runs (`stat`) and in which kernel function it
//! sleeps (`wchan`). A program all of whose threads sleep in the read of a pipe, while the
//! pipe to it is empty, has read all its input and does nothing until there is more. Where `wchan` is hidden, or
//! a program waits in another way, such as in an event loop, only that it sleeps can be observed; without `/proc`, not even that.

use std::{fs, os::fd::AsFd, path::Path};

use rustix::io::ioctl_fionread;

use super::line_dialogue::ProgramActivity;

/// Threads that are read; a program with more counts as asleep, not as waiting.
const MAX_THREADS: usize = 64;

/// The activity of the program with the process id `pid`, whose input is `stdin`.
pub(crate) fn observe(pid: u32, stdin: impl AsFd) -> ProgramActivity {
    let unread = ioctl_fionread(stdin).unwrap_or(0) > 0;
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return ProgramActivity::Asleep;
    };
    let mut rest = match unread {
        true => ProgramActivity::Asleep,
        false => ProgramActivity::Waiting,
    };
    for (number, thread) in threads.flatten().enumerate() {
        if number == MAX_THREADS {
            return ProgramActivity::Asleep;
        }
        match of_thread(&thread.path()) {
            ProgramActivity::Busy => return ProgramActivity::Busy,
            ProgramActivity::Asleep => rest = ProgramActivity::Asleep,
            ProgramActivity::Waiting => {}
        }
    }
    rest
}

fn of_thread(thread: &Path) -> ProgramActivity {
    let Ok(stat) = fs::read_to_string(thread.join("stat")) else {
        return ProgramActivity::Asleep;
    };
    if state(&stat) != Some('S') {
        return ProgramActivity::Busy;
    }
    match fs::read_to_string(thread.join("wchan")) {
        Ok(place) if is_read_of_a_pipe(&place) => ProgramActivity::Waiting,
        _ => ProgramActivity::Asleep,
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

    /// Polls until the program is observed so.
    fn becomes(child: &Child, rest: ProgramActivity) {
        let end = Instant::now() + Duration::from_secs(20);
        while observe(child.id(), child.stdin.as_ref().unwrap()) != rest {
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
        becomes(&child, ProgramActivity::Waiting);
        let mut stdin = child.stdin.as_ref().unwrap();
        stdin.write_all(b"exec sleep 1000\n").unwrap();
        becomes(&child, ProgramActivity::Asleep);
        child.kill().unwrap();
        child.wait().unwrap();

        let mut child = start("while :; do :; done");
        becomes(&child, ProgramActivity::Busy);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_program_with_unread_input_does_not_wait() {
        let mut child = start("exec sleep 1000");
        let mut stdin = child.stdin.as_ref().unwrap();
        stdin.write_all(b"unread\n").unwrap();
        becomes(&child, ProgramActivity::Asleep);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_state_is_read_after_the_name() {
        assert_eq!(state("7 (a) S b) R 1 7"), Some('R'));
        assert_eq!(state("nothing"), None);
    }
}
