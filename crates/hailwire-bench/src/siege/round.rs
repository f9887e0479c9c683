//! One house, three phases.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::watch,
};

use super::{
    Kept, Kind, Order,
    attack::{Orders, Report},
    honest::Honest,
    house::{House, VICTIM},
    peer::Seed,
    record::{Attacker, Phase, Record},
    watching::Watching,
};
use crate::BenchError;

/// How long an attacker may take to report after its time.
const REPORTS_WITHIN: Duration = Duration::from_secs(15);

/// Starts a house, attacks it, and ends it.
pub(super) async fn run(
    order: &Order,
    attackers: &[Kind],
    kept: &mut Kept,
    tell: &mut impl FnMut(&str),
    stopped: watch::Receiver<bool>,
) -> Result<(), BenchError> {
    tell("starting a hub, three nodes and their agents");
    let house = House::start(&order.program, &order.attacked).await?;
    let besieged = besiege(order, attackers, &house, kept, tell, stopped).await;
    house.end().await;
    besieged
}

async fn besiege(
    order: &Order,
    attackers: &[Kind],
    house: &House,
    kept: &mut Kept,
    tell: &mut impl FnMut(&str),
    stopped: watch::Receiver<bool>,
) -> Result<(), BenchError> {
    let honest = Honest::new(house).await?;
    let watching = Watching::start(house, attackers, stopped);
    for phase in [Phase::Quiet, Phase::Attacked, Phase::After] {
        let time = match phase {
            Phase::Attacked => order.attack,
            _ => order.quiet,
        };
        let words: Vec<&str> = attackers.iter().map(|kind| kind.name()).collect();
        let seconds = time.as_secs_f64();
        match phase {
            Phase::Attacked => tell(&format!("{seconds:.0} s attacked: {}", words.join(", "))),
            _ => tell(&format!("{seconds:.0} s quiet")),
        }
        let mut parties = Vec::new();
        if phase == Phase::Attacked {
            for kind in attackers {
                parties.push(Party::start(order, house, *kind).await?);
            }
        }
        watching.enter(phase);
        let calls = honest.run(attackers, phase, time, watching.over()).await;
        for calls in calls {
            kept.keep(Record::Calls(calls))?;
        }
        let over = *watching.over().borrow();
        for party in parties {
            kept.keep(Record::Attacker(party.end(attackers, over).await))?;
        }
        if over {
            break;
        }
    }
    let seen = watching.end().await;
    for sample in seen.samples {
        kept.keep(Record::Sample(sample))?;
    }
    for mut fallen in seen.fallen {
        let words = house.last_words(&fallen.process);
        fallen.how = format!("{}: {words}", fallen.how);
        kept.keep(Record::Fallen(fallen))?;
    }
    Ok(())
}

/// An attacker's process.
struct Party {
    kind: Kind,
    child: Child,
    /// Open as long as it may attack.
    stdin: Option<ChildStdin>,
}

impl Party {
    async fn start(order: &Order, house: &House, kind: Kind) -> Result<Self, BenchError> {
        let mut seeds = Vec::new();
        for _ in 0..kind.peers().max(1) {
            seeds.push(Seed::draw()?);
        }
        if kind.peers() > 0 {
            house.let_in(kind, &seeds).await?;
        }
        let orders = Orders {
            kind,
            seconds: order.attack.as_secs_f64(),
            victim: house.victim,
            hub: house.hub.clone(),
            socket: house.data(VICTIM).socket(),
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
        let line = serde_json::to_string(&orders).map_err(|e| BenchError::Wrong(e.to_string()))?;
        if let Some(stdin) = &mut stdin {
            let written = stdin.write_all(format!("{line}\n").as_bytes()).await;
            written.map_err(BenchError::io("an attacker"))?;
        }
        Ok(Self { kind, child, stdin })
    }

    /// What it says in the end. `early`: it is not waited for.
    async fn end(mut self, attackers: &[Kind], early: bool) -> Attacker {
        let none = |failed: &str| Attacker {
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
        let line = tokio::time::timeout(REPORTS_WITHIN, lines.next_line()).await;
        let _ = self.child.kill().await;
        let Ok(Ok(Some(line))) = line else {
            return none("it ended without a report");
        };
        match serde_json::from_str::<Report>(&line) {
            Err(error) => none(&error.to_string()),
            Ok(report) => Attacker {
                seconds: report.seconds,
                cpu_share: report.cpu_s / report.seconds.max(0.001),
                did: report.did,
                refused: report.refused,
                ..none(&report.failed)
            },
        }
    }
}
