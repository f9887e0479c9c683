//! A guard process for a command that starts programs: none of them is left behind, however the command ends.
//!
//! A process that is killed by SIGKILL cannot end its children. So such a command is two processes: the *guard*,
//! which the user has started, starts `hail` again with the same arguments, and only forwards signals and the exit code. Both are child subreapers (`prctl(2)`):
//!
//! | killed | then |
//! |---|---|
//! | the guarded process | its descendants become children of the guard, which kills them and exits |
//! | the guard | the kernel sends SIGTERM to the guarded process, which ends its programs as when it is stopped |
//! | both at the same instant | programs continue; a service manager that ends the whole control group still ends them |
//!
//! This needs no privileges. A program escapes only by having another process start something for it, such as a
//! service manager or a container engine.

use std::{
    ffi::{CStr, OsStr},
    io,
    os::unix::{ffi::OsStrExt as _, process::parent_id},
    time::Duration,
};

use hailwire_terminal::{child, failure::CommandFailure, output::Output};
use rustix::{
    process::{Pid, Signal, getpid, set_child_subreaper, set_parent_process_death_signal},
    thread::set_name,
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::serve::{
    process_owners::{ProcessMark, ProcessOwners},
    processes::{self, GUARDED_BY},
    reaper::ChildOwnership,
};

/// The guarded process's name in lists of processes.
const NAME: &CStr = c"hail-programs";

/// How long the guard tries to end the remaining processes. Only a process that the kernel cannot kill survives.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// First and longest time between two attempts.
const RETRY_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(2), Duration::from_millis(100));

/// Runs `work` in a guarded process, and exits with its exit code. If there can be no guard, `work` runs in this
/// process, and a note is printed.
///
/// With the process id of a node, the guard ends with that node, which must have started it.
pub(super) async fn run(
    output: Output,
    beside_node: Option<u32>,
    work: impl AsyncFnOnce(ChildOwnership) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    if let Some(guard) = guard() {
        return match be_guarded(guard) {
            Ok(()) => work(ChildOwnership::AllOfCalls).await,
            Err(error) => Err(CommandFailure::io("cannot guard the programs", &error)),
        };
    }
    if let Some(node) = beside_node {
        end_with(node).map_err(|error| CommandFailure::io("cannot end with the node", &error))?;
    }
    match start() {
        Ok(mut guarded) => {
            let status = child::wait(&mut guarded).await?;
            end_everything().await;
            child::passed_on(status)
        }
        Err(error) => {
            output.note(&format!(
                "note: if this process is killed, its programs may outlive it and their calls: {error}"
            ));
            work(ChildOwnership::Mixed).await
        }
    }
}

/// The process id of the guard of this process, if it has one.
fn guard() -> Option<u32> {
    std::env::var(GUARDED_BY).ok()?.parse().ok()
}

/// Makes this process guarded: its descendants become its children when their parents end.
fn be_guarded(guard: u32) -> io::Result<()> {
    end_with(guard)?;
    set_child_subreaper(Some(getpid()))?;
    // The name is for people only.
    let _ = set_name(NAME);
    Ok(())
}

/// Has this process told to stop when its parent ends.
fn end_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before this.
    if parent_id() != parent {
        return Err(io::Error::other(
            "the process that started this one is gone",
        ));
    }
    Ok(())
}

/// Starts the guarded process.
fn start() -> io::Result<Child> {
    set_child_subreaper(Some(getpid()))?;
    // Without `/proc` orphans cannot be found.
    processes::all()?;
    // The file that this process was started from, even if it has been replaced.
    Command::new("/proc/self/exe")
        .arg0(OsStr::from_bytes(NAME.to_bytes()))
        .args(std::env::args_os().skip(1))
        .env(GUARDED_BY, std::process::id().to_string())
        .spawn()
}

/// Kills the remaining processes of the guarded process.
async fn end_everything() {
    let me = Pid::as_raw(Some(getpid()));
    let give_up = Instant::now() + END_TIMEOUT;
    let mut pause = RETRY_INTERVALS.0;
    while !processes::has_no_child() && Instant::now() < give_up {
        // There are no calls here, so no descendant of this process has an owner.
        let left = processes::all()
            .map(|all| ProcessOwners::new(true).assign(me, &all, |_| ProcessMark::No));
        let Ok(left) = left else { return };
        left.ended.iter().copied().for_each(processes::collect);
        for process in &left.unowned {
            processes::signal(process, Signal::KILL);
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_INTERVALS.1);
    }
}
