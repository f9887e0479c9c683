//! One round: starts the processes, attacks them in three phases, and ends them.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::watch,
};

use super::{
    AttackerKind, SiegeOptions,
    attack::{AttackOrders, AttackReport},
    honest_callers::HonestCallers,
    peer::KeySeed,
    process_watch::ProcessWatch,
    processes::{SiegeProcesses, VICTIM},
    record::{AttackerResult, SiegePhase, SiegeRecord},
};
use crate::{BenchError, recorded_run::RecordedRun};

/// How long an attacker may take to report after its time.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs one round.
pub(super) async fn run(
    order: &SiegeOptions,
    attackers: &[AttackerKind],
    kept: &mut RecordedRun<SiegeRecord>,
    tell: &mut impl FnMut(&str),
    stopped: watch::Receiver<bool>,
) -> Result<(), BenchError> {
    tell("starting a hub, three nodes and their agents");
    let processes = SiegeProcesses::start(&order.program, &order.attacked).await?;
    let result = attack_in_phases(order, attackers, &processes, kept, tell, stopped).await;
    processes.end().await;
    result
}

async fn attack_in_phases(
    order: &SiegeOptions,
    attackers: &[AttackerKind],
    processes: &SiegeProcesses,
    kept: &mut RecordedRun<SiegeRecord>,
    tell: &mut impl FnMut(&str),
    stopped: watch::Receiver<bool>,
) -> Result<(), BenchError> {
    let honest = HonestCallers::new(processes).await?;
    let watching = ProcessWatch::start(processes, attackers, stopped);
    for phase in [SiegePhase::Quiet, SiegePhase::Attacked, SiegePhase::After] {
        let time = match phase {
            SiegePhase::Attacked => order.attack,
            _ => order.quiet,
        };
        let words: Vec<&str> = attackers.iter().map(|kind| kind.name()).collect();
        let seconds = time.as_secs_f64();
        match phase {
            SiegePhase::Attacked => tell(&format!("{seconds:.0} s attacked: {}", words.join(", "))),
            _ => tell(&format!("{seconds:.0} s quiet")),
        }
        let mut attacking = Vec::new();
        if phase == SiegePhase::Attacked {
            for kind in attackers {
                attacking.push(AttackerProcess::start(order, processes, *kind).await?);
            }
        }
        watching.enter(phase);
        let calls = honest.run(attackers, phase, time, watching.over()).await;
        for calls in calls {
            kept.keep(SiegeRecord::Calls(calls))?;
        }
        let over = *watching.over().borrow();
        for attacker in attacking {
            kept.keep(SiegeRecord::Attacker(attacker.end(attackers, over).await))?;
        }
        if over {
            break;
        }
    }
    let seen = watching.end().await;
    for sample in seen.samples {
        kept.keep(SiegeRecord::Sample(sample))?;
    }
    for mut exited in seen.exited {
        let words = processes.log_tail(&exited.process);
        exited.how = format!("{}: {words}", exited.how);
        kept.keep(SiegeRecord::Exited(exited))?;
    }
    Ok(())
}

/// An attacker's process.
struct AttackerProcess {
    kind: AttackerKind,
    child: Child,
    /// Kept open as long as it may attack.
    stdin: Option<ChildStdin>,
}

impl AttackerProcess {
    async fn start(
        order: &SiegeOptions,
        processes: &SiegeProcesses,
        kind: AttackerKind,
    ) -> Result<Self, BenchError> {
        let mut seeds = Vec::new();
        for _ in 0..kind.peers().max(1) {
            seeds.push(KeySeed::draw()?);
        }
        if kind.peers() > 0 {
            processes.let_in(kind, &seeds).await?;
        }
        let orders = AttackOrders {
            kind,
            seconds: order.attack.as_secs_f64(),
            victim: processes.victim,
            hub: processes.hub.clone(),
            socket: processes.data(VICTIM).socket(),
            seeds,
        };
        let mut child = Command::new(&order.program)
            .args(["bench", "siege", "--part", "attack"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io("starting an attacker"))?;
        let mut stdin = child.stdin.take();
        let line =
            serde_json::to_string(&orders).map_err(|e| BenchError::Invalid(e.to_string()))?;
        if let Some(stdin) = &mut stdin {
            let written = stdin.write_all(format!("{line}\n").as_bytes()).await;
            written.map_err(BenchError::io("writing to an attacker"))?;
        }
        Ok(Self { kind, child, stdin })
    }

    /// Waits for its report and ends it. `early`: tells it to stop at once.
    async fn end(mut self, attackers: &[AttackerKind], early: bool) -> AttackerResult {
        let none = |failed: &str| AttackerResult {
            attackers: attackers.to_vec(),
            kind: self.kind,
            seconds: 0.0,
            cpu_share: 0.0,
            did: Default::default(),
            refused: Default::default(),
            failed: failed.to_owned(),
        };
        if early {
            drop(self.stdin.take());
        }
        let Some(stdout) = self.child.stdout.take() else {
            return none("it has no pipe");
        };
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(REPORT_TIMEOUT, lines.next_line()).await;
        let _ = self.child.kill().await;
        let Ok(Ok(Some(line))) = line else {
            return none("it ended without a report");
        };
        match serde_json::from_str::<AttackReport>(&line) {
            Err(error) => none(&error.to_string()),
            Ok(report) => AttackerResult {
                seconds: report.seconds,
                cpu_share: report.cpu_s / report.seconds.max(0.001),
                did: report.did,
                refused: report.refused,
                ..none(&report.failed)
            },
        }
    }
}
