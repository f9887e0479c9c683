//! A command that starts programs and leaves none behind, however it ends.
//!
//! Whoever is killed by SIGKILL cannot end its children any more. So such a command is two processes: the *guard*,
//! which the user has started, starts `hail` again with the same arguments, and does nothing but hand on signals and
//! the exit code. Both are child subreapers (`prctl(2)`):
//!
//! | killed | then |
//! |---|---|
//! | the guarded process | all that it had started becomes the guard's, which kills it and exits |
//! | the guard | the guarded process is sent SIGTERM by the kernel, and ends everything as it does when it is stopped |
//! | both at the same instant | programs go on; a service manager that ends a whole control group is a third guard |
//!
//! This takes no rights. A program escapes only by having another process start something for it, such as a
//! service manager or a container engine, as nobody can see that from outside.

use std::{
    ffi::{CStr, OsStr},
    io,
    os::unix::{ffi::OsStrExt as _, process::parent_id},
    time::Duration,
};

use hailwire_terminal::{child, failure::Failure, output::Output};
use rustix::{
    process::{Pid, Signal, getpid, set_child_subreaper, set_parent_process_death_signal},
    thread::set_name,
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::serve::{
    kin::{Kin, Marked},
    processes::{self, GUARDED_BY},
    reaper::Children,
};

/// The guarded process's name in lists of processes.
const NAME: &CStr = c"hail-programs";

/// How long the guard tries to end what is left. Only a process that the kernel itself does not let go survives.
const END: Duration = Duration::from_secs(10);

/// First and longest time between two tries.
const TRIES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Does `work` in a guarded process, and becomes its exit code. Where there can be no guard, `work` is done here, and
/// the user is told.
pub(super) async fn run(
    output: Output,
    work: impl AsyncFnOnce(Children) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(guard) = guard() {
        return match be_guarded(guard) {
            Ok(()) => work(Children::AllOfCalls).await,
            Err(error) => Err(Failure::io("the programs cannot be guarded", &error)),
        };
    }
    match start() {
        Ok(mut guarded) => {
            let status = child::wait(&mut guarded).await?;
            end_everything().await;
            child::passed_on(status)
        }
        Err(error) => {
            output.note(&format!(
                "note: programs may outlive this process if it is killed, and their calls: {error}"
            ));
            work(Children::Mixed).await
        }
    }
}

/// The guard of this process, where it has one.
fn guard() -> Option<u32> {
    std::env::var(GUARDED_BY).ok()?.parse().ok()
}

/// Takes a guard's place for whatever is started from now on.
fn be_guarded(guard: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before it was watched.
    if parent_id() != guard {
        return Err(io::Error::other("the process that guards them is gone"));
    }
    set_child_subreaper(Some(getpid()))?;
    // For people only.
    let _ = set_name(NAME);
    Ok(())
}

/// Starts the guarded process.
fn start() -> io::Result<Child> {
    set_child_subreaper(Some(getpid()))?;
    // Without `/proc` nothing that has left its parent can be found.
    processes::all()?;
    // The file that this process was started from, even if it has been replaced since.
    Command::new("/proc/self/exe")
        .arg0(OsStr::from_bytes(NAME.to_bytes()))
        .args(std::env::args_os().skip(1))
        .env(GUARDED_BY, std::process::id().to_string())
        .spawn()
}

/// Kills whatever the guarded process has left.
async fn end_everything() {
    let me = Pid::as_raw(Some(getpid()));
    let give_up = Instant::now() + END;
    let mut pause = TRIES.0;
    while !processes::has_no_child() && Instant::now() < give_up {
        // There are no calls here, so everything that descends from this process is nobody's.
        let left = processes::all().map(|all| Kin::new(true).sort(me, &all, |_| Marked::No));
        let Ok(left) = left else { return };
        left.ended.iter().copied().for_each(processes::collect);
        for process in &left.nobodys {
            processes::signal(process, Signal::KILL);
        }
        sleep(pause).await;
        pause = (pause * 2).min(TRIES.1);
    }
}
