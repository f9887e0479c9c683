//! Ends the processes of a call: SIGTERM, then SIGKILL after a grace period.
//!
//! A [`RunningProgram`] owns a child, its process group and all its descendants ([`owners`](super::process_owners)).
//! Dropping it, which happens when a call is cancelled, hands all of them to the [`ProcessReaper`], which ends them. So does the
//! end of a program that has succeeded: its background processes end with its call, because callers choose how many calls there are. A call's slot is released when no process of it is left. Before `hail serve` exits it calls [`ProcessReaper::finish`], which first tells all programs to stop.
//!
//! Orphans are found by a scan of all processes. The program of a call that succeeded usually leaves none, which one
//! system call shows; otherwise scans are shared by all calls that end, and take at most a tenth of the time.

use std::{
    collections::HashSet,
    io,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hailwire::{Code, Status};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    process_owners::{CallMark, ProcessOwners, ProcessesByCall},
    processes::{self, CALL_MARK_VARIABLE, GUARDED_BY},
    program_slot::ProgramSlot,
};

/// First and longest time between two scans for processes of a call.
const SCAN_INTERVALS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// The pause after a scan, as a multiple of its duration.
const SCAN_PAUSE_FACTOR: u32 = 9;

/// How long remaining processes are searched for at the very end.
const FINAL_SCAN_TIME: Duration = Duration::from_secs(10);

/// How often orphans that have ended are collected while no call ends.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// Ends the processes of calls that have ended.
#[derive(Debug)]
pub(crate) struct ProcessReaper {
    sender: mpsc::UnboundedSender<AbandonedCall>,
    stopping: watch::Sender<bool>,
    owners: Arc<Mutex<ProcessOwners>>,
    task: JoinHandle<()>,
}

/// A handle of the [`ProcessReaper`] with which programs are started. Cheap to clone; keeps nothing alive.
///
/// The channel behind it has no bound of its own: it holds at most one entry per running program,
/// of which `--max` limits the number.
#[derive(Clone, Debug)]
pub(crate) struct ReaperHandle {
    sender: mpsc::WeakUnboundedSender<AbandonedCall>,
    stopping: watch::Receiver<bool>,
    owners: Arc<Mutex<ProcessOwners>>,
}

/// Whether other code in this process starts children too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildOwnership {
    /// All children belong to calls.
    AllOfCalls,
    /// Other code in this process starts children, too.
    Mixed,
}

/// The remaining processes of a call.
#[derive(Debug)]
struct AbandonedCall {
    /// `None` once it was collected.
    child: Option<Child>,
    mark: CallMark,
    grace: Duration,
    /// The call's slot, free again when this is dropped.
    slot: Option<ProgramSlot>,
}

/// Why a program was not started.
#[derive(Debug)]
pub(crate) enum StartFailure {
    /// The reaper is finishing.
    Stopping,
    /// The system refused.
    System(io::Error),
}

impl ProcessReaper {
    /// Starts the reaper's task on the current runtime.
    pub(crate) fn start(children: ChildOwnership) -> Self {
        let all = children == ChildOwnership::AllOfCalls;
        let owners = Arc::new(Mutex::new(ProcessOwners::new(all)));
        let (sender, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(reap(receiver, owners.clone(), all));
        Self {
            sender,
            stopping: watch::Sender::new(false),
            owners,
            task,
        }
    }

    /// A handle with which programs are started.
    pub(crate) fn handle(&self) -> ReaperHandle {
        ReaperHandle {
            sender: self.sender.downgrade(),
            stopping: self.stopping.subscribe(),
            owners: self.owners.clone(),
        }
    }

    /// Tells all programs to stop, lets no new one start, and waits until none is left.
    pub(crate) async fn finish(self) {
        self.stopping.send_replace(true);
        drop(self.sender);
        // The task neither panics nor is it aborted elsewhere.
        let _ = self.task.await;
    }
}

impl ReaperHandle {
    /// Starts a command for a call: in a process group of its own, with the call's mark. `slot`, where the number of calls
    /// is bounded, is released when no process of the call is left.
    ///
    /// # Errors
    ///
    /// [`StartFailure`].
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        grace: Duration,
        slot: Option<ProgramSlot>,
    ) -> Result<RunningProgram, StartFailure> {
        let reaper = self.sender.upgrade().ok_or(StartFailure::Stopping)?;
        let mark = held(&self.owners).begin();
        let spawned = command
            .env(CALL_MARK_VARIABLE, processes::mark(mark))
            .env_remove(GUARDED_BY)
            .process_group(0)
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                held(&self.owners).over(mark);
                return Err(StartFailure::System(error));
            }
        };
        if let Some(group) = group(&child) {
            held(&self.owners).started(mark, group.as_raw_nonzero().get());
        }
        Ok(RunningProgram {
            abandoned: Some(AbandonedCall {
                child: Some(child),
                mark,
                grace,
                slot,
            }),
            owners: self.owners.clone(),
            reaper,
        })
    }

    /// Resolves once [`ProcessReaper::finish`] was called, or the reaper is gone.
    pub(crate) async fn stopping(&mut self) {
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}

impl From<StartFailure> for Status {
    fn from(failure: StartFailure) -> Self {
        match failure {
            StartFailure::Stopping => Self::new(Code::Unavailable, "the agent is being stopped"),
            StartFailure::System(error) => {
                Self::new(Code::FailedPrecondition, "cannot start a program")
                    .with_details(error.to_string())
            }
        }
    }
}

/// A running program and its descendants. All of them end when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningProgram {
    /// `Some` until the drop.
    abandoned: Option<AbandonedCall>,
    owners: Arc<Mutex<ProcessOwners>>,
    reaper: mpsc::UnboundedSender<AbandonedCall>,
}

impl RunningProgram {
    /// Time between SIGTERM and SIGKILL.
    pub(crate) fn grace(&self) -> Duration {
        self.abandoned
            .as_ref()
            .map_or(Duration::ZERO, |abandoned| abandoned.grace)
    }

    /// The child, for its pipes.
    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        self.abandoned.as_mut()?.child.as_mut()
    }

    /// Waits for the child's end. Its descendants remain until this is dropped.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost; everything still ends when this is dropped.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let abandoned = self.abandoned.as_mut();
        let waited = || io::Error::other("the program was already waited for");
        let abandoned = abandoned.ok_or_else(waited)?;
        let status = abandoned.child.as_mut().ok_or_else(waited)?.wait().await?;
        abandoned.child = None;
        held(&self.owners).collected(abandoned.mark);
        Ok(status)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let Some(abandoned) = self.abandoned.take() else {
            return;
        };
        if abandoned.child.is_none() && processes::has_no_child() {
            held(&self.owners).over(abandoned.mark);
            return;
        }
        if let Err(mpsc::error::SendError(abandoned)) = self.reaper.send(abandoned) {
            // The reaper is gone with its runtime: no grace period is possible any more.
            signal_group(abandoned.child.as_ref().and_then(group), Signal::KILL);
        }
    }
}

/// The reaper's task: ends when no program runs and none can be started.
async fn reap(
    mut receiver: mpsc::UnboundedReceiver<AbandonedCall>,
    owners: Arc<Mutex<ProcessOwners>>,
    collects: bool,
) {
    let (scan, scans) = mpsc::unbounded_channel();
    // It ends with the last sender.
    let looking = tokio::spawn(scan_processes(scans, owners.clone()));
    let mut ends = signal(SignalKind::child()).ok().filter(|_| collects);
    let mut ending = JoinSet::new();
    let mut collect_at = Instant::now();
    loop {
        let end_of_a_child = async {
            match &mut ends {
                Some(ends) => {
                    ends.recv().await;
                    sleep_until(collect_at).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            next = receiver.recv() => match next {
                Some(abandoned) => drop(ending.spawn(end(abandoned, scan.clone(), owners.clone()))),
                None => break,
            },
            Some(_) = ending.join_next() => {}
            () = end_of_a_child => {
                collect_at = Instant::now() + COLLECT_INTERVAL;
                let _ = scanned(&scan).await;
            }
        }
    }
    while ending.join_next().await.is_some() {}
    // Processes of uncertain ownership have no owner any more.
    let give_up = Instant::now() + FINAL_SCAN_TIME;
    while collects && !processes::has_no_child() && Instant::now() < give_up {
        let _ = scanned(&scan).await;
        sleep(SCAN_INTERVALS.0).await;
    }
    drop(scan);
    let _ = looking.await;
}

type ScanRequest = oneshot::Sender<Option<Arc<ProcessesByCall>>>;

/// The current processes of each call, or `None` where processes cannot be listed.
async fn scanned(scan: &mpsc::UnboundedSender<ScanRequest>) -> Option<Arc<ProcessesByCall>> {
    let (requested, answer) = oneshot::channel();
    scan.send(requested).ok()?;
    answer.await.ok()?
}

/// Scans all processes on request, once for all pending requests; ends those without an owner.
async fn scan_processes(
    mut scans: mpsc::UnboundedReceiver<ScanRequest>,
    owners: Arc<Mutex<ProcessOwners>>,
) {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let mut not_before = Instant::now();
    while let Some(first) = scans.recv().await {
        sleep_until(not_before).await;
        let mut requested = vec![first];
        while let Ok(more) = scans.try_recv() {
            requested.push(more);
        }
        let began = Instant::now();
        let seen = tokio::task::spawn_blocking(processes::all).await;
        let by_call = seen.ok().and_then(Result::ok).map(|seen| {
            let by_call = held(&owners).assign(me, &seen, processes::mark_of);
            by_call.ended.iter().copied().for_each(processes::collect);
            for process in &by_call.unowned {
                processes::signal(process, Signal::KILL);
            }
            Arc::new(by_call)
        });
        for requested in requested {
            // The requester may be gone.
            let _ = requested.send(by_call.clone());
        }
        not_before = Instant::now() + began.elapsed() * SCAN_PAUSE_FACTOR;
    }
}

/// Ends all remaining processes of a call.
async fn end(
    mut abandoned: AbandonedCall,
    scan: mpsc::UnboundedSender<ScanRequest>,
    owners: Arc<Mutex<ProcessOwners>>,
) {
    let deadline = Instant::now() + abandoned.grace;
    let leader = abandoned.child.as_ref().and_then(group);
    signal_group(leader, Signal::TERM);
    let mut told = HashSet::new();
    let mut pause = SCAN_INTERVALS.0;
    loop {
        if let Some(child) = &mut abandoned.child {
            if timeout(pause, child.wait()).await.is_ok() {
                abandoned.child = None;
                held(&owners).collected(abandoned.mark);
            }
        } else if !told.is_empty() {
            sleep(pause).await;
        }
        pause = (pause * 2).min(SCAN_INTERVALS.1);
        if abandoned.child.is_none() && processes::has_no_child() {
            break;
        }
        let late = Instant::now() >= deadline;
        if late && abandoned.child.is_some() {
            signal_group(leader, Signal::KILL);
        }
        let Some(by_call) = scanned(&scan).await else {
            if abandoned.child.is_some() {
                continue;
            }
            // Others of the group may have ignored SIGTERM. Right after the leader was collected its process
            // id is very unlikely to be in use by a new group, since ids are assigned in order.
            signal_group(leader, Signal::KILL);
            break;
        };
        let tree = by_call
            .of
            .get(&abandoned.mark)
            .map_or(&[][..], Vec::as_slice);
        let mut running = tree.iter().filter(|process| !process.ended).peekable();
        if abandoned.child.is_none() && running.peek().is_none() {
            break;
        }
        for process in running {
            if late {
                processes::signal(process, Signal::KILL);
            } else if told.insert((process.pid, process.start))
                && leader.is_none_or(|leader| leader.as_raw_nonzero().get() != process.group)
            {
                processes::signal(process, Signal::TERM);
            }
        }
    }
    held(&owners).over(abandoned.mark);
    drop(abandoned.slot);
    // A process that may have belonged to several calls has no owner once the last of them has ended.
    let strays = held(&owners).has_strays();
    if strays {
        let _ = scanned(&scan).await;
    }
}

fn held(owners: &Mutex<ProcessOwners>) -> MutexGuard<'_, ProcessOwners> {
    owners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The group that a child leads; `None` once it was collected.
fn group(child: &Child) -> Option<Pid> {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
}

fn signal_group(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // It fails only when the whole group is gone, as intended.
        let _ = kill_process_group(group, signal);
    }
}
