//! Ending what was started for a call: SIGTERM, then SIGKILL after a grace.
//!
//! A [`Running`] owns a child, its process group and whatever else descends from it ([`kin`](super::kin)).
//! Dropping it, which is how a cancelled call looks from here, hands all of that to the [`Reaper`], which ends it. So
//! does the end of a program that has succeeded: what it left in the background ends with its call, because
//! callers choose how many calls there are. A call's slot is free again when nothing is left of it. Before `hail serve`
//! exits it asks the reaper to finish, which first tells everything that runs to stop.
//!
//! Where strays are is known from a look at all processes. The program of a call that ended well usually leaves
//! nothing, which one system call tells; otherwise looks are shared by all calls that end, and take at most a
//! tenth of the time.

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
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    kin::{CallMark, Kin, Sorted},
    processes::{self, GUARDED_BY, MARK},
};

/// First and longest time between two looks for what is left of a call.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// A look is followed by this many times its own duration without one.
const QUIET: u32 = 9;

/// How long what is left at the very end is looked for.
const LAST: Duration = Duration::from_secs(10);

/// How often strays that have ended are collected while no call ends.
const COLLECT: Duration = Duration::from_secs(1);

/// Ends what calls leave behind.
#[derive(Debug)]
pub(crate) struct Reaper {
    sender: mpsc::UnboundedSender<Abandoned>,
    stopping: watch::Sender<bool>,
    kin: Arc<Mutex<Kin>>,
    task: JoinHandle<()>,
}

/// What whoever starts programs needs of the [`Reaper`]. Cheap to clone; keeps nothing alive.
///
/// The channel behind it has no bound of its own: it holds at most one entry per running program,
/// of which `--max` limits the number.
#[derive(Clone, Debug)]
pub(crate) struct ReaperHandle {
    sender: mpsc::WeakUnboundedSender<Abandoned>,
    stopping: watch::Receiver<bool>,
    kin: Arc<Mutex<Kin>>,
}

/// Whose the children of this process are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// All are of calls.
    AllOfCalls,
    /// Others in this process start some, too.
    Mixed,
}

/// What is left of a call.
#[derive(Debug)]
struct Abandoned {
    /// Unless it was collected.
    child: Option<Child>,
    mark: CallMark,
    grace: Duration,
    /// The call's slot, free again when this is dropped.
    slot: Option<OwnedSemaphorePermit>,
}

/// Why a program was not started.
#[derive(Debug)]
pub(crate) enum StartFailure {
    /// The reaper finishes.
    Stopping,
    /// The system refused.
    System(io::Error),
}

impl Reaper {
    /// Starts the reaper's task on the current runtime.
    pub(crate) fn start(children: Children) -> Self {
        let all = children == Children::AllOfCalls;
        let kin = Arc::new(Mutex::new(Kin::new(all)));
        let (sender, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(reap(receiver, kin.clone(), all));
        Self {
            sender,
            stopping: watch::Sender::new(false),
            kin,
            task,
        }
    }

    /// A handle for whoever starts programs.
    pub(crate) fn handle(&self) -> ReaperHandle {
        ReaperHandle {
            sender: self.sender.downgrade(),
            stopping: self.stopping.subscribe(),
            kin: self.kin.clone(),
        }
    }

    /// Tells everything that runs to stop, lets nothing start any more, and waits until nothing is left.
    pub(crate) async fn finish(self) {
        self.stopping.send_replace(true);
        drop(self.sender);
        // The task neither panics nor is it aborted by anybody else.
        let _ = self.task.await;
    }
}

impl ReaperHandle {
    /// Starts a command for a call: in a process group of its own, with the call's mark. Where `slot` is a place among
    /// a bounded number, it is free again when nothing is left of the call.
    ///
    /// # Errors
    ///
    /// [`StartFailure`].
    pub(crate) fn spawn(
        &self,
        command: &mut Command,
        grace: Duration,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Result<Running, StartFailure> {
        let reaper = self.sender.upgrade().ok_or(StartFailure::Stopping)?;
        let mark = held(&self.kin).begin();
        let spawned = command
            .env(MARK, processes::mark(mark))
            .env_remove(GUARDED_BY)
            .process_group(0)
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                held(&self.kin).over(mark);
                return Err(StartFailure::System(error));
            }
        };
        if let Some(group) = group(&child) {
            held(&self.kin).started(mark, group.as_raw_nonzero().get());
        }
        Ok(Running {
            left: Some(Abandoned {
                child: Some(child),
                mark,
                grace,
                slot,
            }),
            kin: self.kin.clone(),
            reaper,
        })
    }

    /// Resolves once [`Reaper::finish`] was called, or the reaper is gone.
    pub(crate) async fn stopping(&mut self) {
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}

impl From<StartFailure> for Status {
    fn from(failure: StartFailure) -> Self {
        match failure {
            StartFailure::Stopping => Self::new(Code::Unavailable, "the agent is being stopped"),
            StartFailure::System(error) => {
                Self::new(Code::FailedPrecondition, "a program cannot be started")
                    .with_details(error.to_string())
            }
        }
    }
}

/// A running program and whatever descends from it. All of that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    /// `Some` until the drop.
    left: Option<Abandoned>,
    kin: Arc<Mutex<Kin>>,
    reaper: mpsc::UnboundedSender<Abandoned>,
}

impl Running {
    /// Time between SIGTERM and SIGKILL.
    pub(crate) fn grace(&self) -> Duration {
        self.left.as_ref().map_or(Duration::ZERO, |left| left.grace)
    }

    /// The child, for its pipes.
    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        self.left.as_mut()?.child.as_mut()
    }

    /// Waits for the child's end. What it leaves behind stays until this is dropped.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost; everything still ends when this is dropped.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let left = self.left.as_mut();
        let waited = || io::Error::other("the child was waited for already");
        let left = left.ok_or_else(waited)?;
        let status = left.child.as_mut().ok_or_else(waited)?.wait().await?;
        left.child = None;
        held(&self.kin).collected(left.mark);
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(left) = self.left.take() else { return };
        if left.child.is_none() && processes::has_no_child() {
            held(&self.kin).over(left.mark);
            return;
        }
        if let Err(mpsc::error::SendError(left)) = self.reaper.send(left) {
            // The reaper is gone with its runtime: no grace can be given any more.
            signal_group(left.child.as_ref().and_then(group), Signal::KILL);
        }
    }
}

/// The reaper's task: ends when nothing runs any more and nothing can be started.
async fn reap(
    mut receiver: mpsc::UnboundedReceiver<Abandoned>,
    kin: Arc<Mutex<Kin>>,
    collects: bool,
) {
    let (look, looks) = mpsc::unbounded_channel();
    // It ends with the last sender.
    let looking = tokio::spawn(look_around(looks, kin.clone()));
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
                Some(left) => drop(ending.spawn(end(left, look.clone(), kin.clone()))),
                None => break,
            },
            Some(_) = ending.join_next() => {}
            () = end_of_a_child => {
                collect_at = Instant::now() + COLLECT;
                let _ = looked(&look).await;
            }
        }
    }
    while ending.join_next().await.is_some() {}
    // What could not be told whose it was is nobody's now.
    let give_up = Instant::now() + LAST;
    while collects && !processes::has_no_child() && Instant::now() < give_up {
        let _ = looked(&look).await;
        sleep(LOOKS.0).await;
    }
    drop(look);
    let _ = looking.await;
}

type Asked = oneshot::Sender<Option<Arc<Sorted>>>;

/// What there is of each call now, or `None` where processes cannot be seen.
async fn looked(look: &mpsc::UnboundedSender<Asked>) -> Option<Arc<Sorted>> {
    let (asked, answer) = oneshot::channel();
    look.send(asked).ok()?;
    answer.await.ok()?
}

/// Looks at all processes when it is asked to, once for all who have asked; ends what is nobody's.
async fn look_around(mut looks: mpsc::UnboundedReceiver<Asked>, kin: Arc<Mutex<Kin>>) {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let mut not_before = Instant::now();
    while let Some(first) = looks.recv().await {
        sleep_until(not_before).await;
        let mut asked = vec![first];
        while let Ok(more) = looks.try_recv() {
            asked.push(more);
        }
        let began = Instant::now();
        let seen = tokio::task::spawn_blocking(processes::all).await;
        let sorted = seen.ok().and_then(Result::ok).map(|seen| {
            let sorted = held(&kin).sort(me, &seen, processes::mark_of);
            sorted.ended.iter().copied().for_each(processes::collect);
            for process in &sorted.nobodys {
                processes::signal(process, Signal::KILL);
            }
            Arc::new(sorted)
        });
        for asked in asked {
            // Whoever asked may have left.
            let _ = asked.send(sorted.clone());
        }
        not_before = Instant::now() + began.elapsed() * QUIET;
    }
}

/// Ends everything that is left of a call.
async fn end(mut left: Abandoned, look: mpsc::UnboundedSender<Asked>, kin: Arc<Mutex<Kin>>) {
    let deadline = Instant::now() + left.grace;
    let leader = left.child.as_ref().and_then(group);
    signal_group(leader, Signal::TERM);
    let mut told = HashSet::new();
    let mut pause = LOOKS.0;
    loop {
        if let Some(child) = &mut left.child {
            if timeout(pause, child.wait()).await.is_ok() {
                left.child = None;
                held(&kin).collected(left.mark);
            }
        } else if !told.is_empty() {
            sleep(pause).await;
        }
        pause = (pause * 2).min(LOOKS.1);
        if left.child.is_none() && processes::has_no_child() {
            break;
        }
        let late = Instant::now() >= deadline;
        if late && left.child.is_some() {
            signal_group(leader, Signal::KILL);
        }
        let Some(sorted) = looked(&look).await else {
            if left.child.is_some() {
                continue;
            }
            // Others of the group may have ignored SIGTERM. Right after the leader was collected its number
            // cannot have been given to a new group in all likelihood: numbers are handed out in turn.
            signal_group(leader, Signal::KILL);
            break;
        };
        let tree = sorted.of.get(&left.mark).map_or(&[][..], Vec::as_slice);
        let mut running = tree.iter().filter(|process| !process.ended).peekable();
        if left.child.is_none() && running.peek().is_none() {
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
    held(&kin).over(left.mark);
    drop(left.slot);
    // One that may have been of several calls is nobody's once the last of them is over.
    let strays = held(&kin).has_strays();
    if strays {
        let _ = looked(&look).await;
    }
}

fn held(kin: &Mutex<Kin>) -> MutexGuard<'_, Kin> {
    kin.lock().unwrap_or_else(PoisonError::into_inner)
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
        // It fails only when the whole group is gone, which is what was wanted.
        let _ = kill_process_group(group, signal);
    }
}
