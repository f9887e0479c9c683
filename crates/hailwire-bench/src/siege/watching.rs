//! Memory and processor time of the processes under attack, each second, and whether they live.

use std::{
    fs,
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinHandle};

use super::{
    Kind,
    house::House,
    record::{Fallen, Phase, Sample},
};
use crate::measure::process;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(1);

/// What a process may hold before the round is ended, so that the machine survives the siege.
const MOST_RSS: u64 = 2 << 30;

/// Looks on until it is told to stop.
pub(super) struct Watching {
    phase: watch::Sender<Phase>,
    over: watch::Sender<bool>,
    task: JoinHandle<Seen>,
}

/// What was seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) samples: Vec<Sample>,
    pub(super) fallen: Vec<Fallen>,
}

impl Watching {
    /// `stopped` says that the siege is to end early.
    pub(super) fn start(house: &House, attackers: &[Kind], stopped: watch::Receiver<bool>) -> Self {
        let (phase, in_phase) = watch::channel(Phase::Quiet);
        let (over, _) = watch::channel(false);
        let look = Look {
            processes: house.processes().collect(),
            attackers: attackers.to_vec(),
            begun: Instant::now(),
            entered: Instant::now(),
            phase: Phase::Quiet,
            seen: Seen::default(),
        };
        let task = tokio::spawn(look.on(in_phase, over.clone(), stopped));
        Self { phase, over, task }
    }

    /// From now on it is this phase.
    pub(super) fn enter(&self, phase: Phase) {
        let _ = self.phase.send(phase);
    }

    /// Turns true when there is no use in going on.
    pub(super) fn over(&self) -> watch::Receiver<bool> {
        self.over.subscribe()
    }

    /// Everything that was seen.
    pub(super) async fn end(self) -> Seen {
        drop(self.phase);
        self.task.await.unwrap_or_default()
    }
}

struct Look {
    processes: Vec<(&'static str, u32)>,
    attackers: Vec<Kind>,
    begun: Instant,
    entered: Instant,
    phase: Phase,
    seen: Seen,
}

impl Look {
    /// Ends when nobody enters phases any more.
    async fn on(
        mut self,
        mut phase: watch::Receiver<Phase>,
        over: watch::Sender<bool>,
        mut stopped: watch::Receiver<bool>,
    ) -> Seen {
        let mut every = tokio::time::interval(EVERY);
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
                    if self.look() {
                        let _ = over.send(true);
                    }
                }
            }
        }
    }

    /// Says whether something has fallen.
    fn look(&mut self) -> bool {
        let mut standing = Vec::new();
        for (name, pid) in std::mem::take(&mut self.processes) {
            let usage = process::usage(pid);
            self.seen.samples.push(Sample {
                attackers: self.attackers.clone(),
                phase: self.phase,
                at_s: self.begun.elapsed().as_secs_f64(),
                process: name.to_owned(),
                rss_bytes: usage.rss_bytes,
                cpu_s: usage.cpu.as_secs_f64(),
            });
            let how = if is_dead(pid) {
                "it ended".to_owned()
            } else if usage.rss_bytes > MOST_RSS {
                format!("it held {} MiB", usage.rss_bytes >> 20)
            } else {
                standing.push((name, pid));
                continue;
            };
            self.seen.fallen.push(Fallen {
                attackers: self.attackers.clone(),
                process: name.to_owned(),
                phase: self.phase,
                after_s: self.entered.elapsed().as_secs_f64(),
                how,
            });
        }
        self.processes = standing;
        !self.seen.fallen.is_empty()
    }
}

/// Gone, or not yet fetched by its parent.
fn is_dead(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    matches!(state, None | Some("Z" | "X"))
}
