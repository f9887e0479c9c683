//! Memory and processor time of the processes under attack, each second, and whether they are alive.

use std::{
    fs,
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinHandle};

use super::{
    AttackerKind,
    processes::SiegeProcesses,
    record::{ProcessExit, ProcessSample, SiegePhase},
};
use crate::measure::process;

/// The time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Resident memory of a process at which the round is ended, so that the machine survives the siege.
const MAX_RSS: u64 = 2 << 30;

/// Samples the processes until it is stopped.
pub(super) struct ProcessWatch {
    phase: watch::Sender<SiegePhase>,
    over: watch::Sender<bool>,
    task: JoinHandle<WatchedProcesses>,
}

/// The samples, and the processes that ended.
#[derive(Default)]
pub(super) struct WatchedProcesses {
    pub(super) samples: Vec<ProcessSample>,
    pub(super) exited: Vec<ProcessExit>,
}

impl ProcessWatch {
    /// `stopped` turns true when the siege is to end early.
    pub(super) fn start(
        processes: &SiegeProcesses,
        attackers: &[AttackerKind],
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let (phase, in_phase) = watch::channel(SiegePhase::Quiet);
        let (over, _) = watch::channel(false);
        let sample_all = ProcessWatchTask {
            processes: processes
                .processes()
                .map(|(name, pid)| (name.to_owned(), pid))
                .collect(),
            attackers: attackers.to_vec(),
            begun: Instant::now(),
            entered: Instant::now(),
            phase: SiegePhase::Quiet,
            seen: WatchedProcesses::default(),
        };
        let task = tokio::spawn(sample_all.on(in_phase, over.clone(), stopped));
        Self { phase, over, task }
    }

    /// Samples belong to this phase from now on.
    pub(super) fn enter(&self, phase: SiegePhase) {
        let _ = self.phase.send(phase);
    }

    /// Turns true when the round cannot continue.
    pub(super) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    /// Stops sampling and returns everything.
    pub(super) async fn end(self) -> WatchedProcesses {
        drop(self.phase);
        self.task.await.unwrap_or_default()
    }
}

struct ProcessWatchTask {
    processes: Vec<(String, u32)>,
    attackers: Vec<AttackerKind>,
    begun: Instant,
    entered: Instant,
    phase: SiegePhase,
    seen: WatchedProcesses,
}

impl ProcessWatchTask {
    /// Runs until [`ProcessWatch::end`] drops the sender of phases.
    async fn on(
        mut self,
        mut phase: watch::Receiver<SiegePhase>,
        over: watch::Sender<bool>,
        mut stopped: watch::Receiver<bool>,
    ) -> WatchedProcesses {
        let mut every = tokio::time::interval(SAMPLE_INTERVAL);
        let mut told = false;
        loop {
            tokio::select! {
                entered = phase.changed() => {
                    if entered.is_err() {
                        return self.seen;
                    }
                    self.phase = *phase.borrow_and_update();
                    self.entered = Instant::now();
                }
                _ = stopped.wait_for(|stopped| *stopped), if !told => {
                    told = true;
                    let _ = over.send(true);
                }
                _ = every.tick() => {
                    if self.sample_all() {
                        let _ = over.send(true);
                    }
                }
            }
        }
    }

    /// Takes a sample of each process; returns whether one has ended.
    fn sample_all(&mut self) -> bool {
        let mut alive = Vec::new();
        for (name, pid) in std::mem::take(&mut self.processes) {
            let usage = process::usage(pid);
            self.seen.samples.push(ProcessSample {
                attackers: self.attackers.clone(),
                phase: self.phase,
                at_s: self.begun.elapsed().as_secs_f64(),
                process: name.to_owned(),
                rss_bytes: usage.rss_bytes,
                cpu_s: usage.cpu.as_secs_f64(),
            });
            let how = if is_dead(pid) {
                "it ended".to_owned()
            } else if usage.rss_bytes > MAX_RSS {
                format!("it held {} MiB", usage.rss_bytes >> 20)
            } else {
                alive.push((name, pid));
                continue;
            };
            self.seen.exited.push(ProcessExit {
                attackers: self.attackers.clone(),
                process: name.to_owned(),
                phase: self.phase,
                after_s: self.entered.elapsed().as_secs_f64(),
                how,
            });
        }
        self.processes = alive;
        !self.seen.exited.is_empty()
    }
}

/// Gone, or a zombie.
fn is_dead(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    matches!(state, None | Some("Z" | "X"))
}
