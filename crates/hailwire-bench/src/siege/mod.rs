//! A siege: a node and a hub under attack, with honest callers that must not notice.
//!
//! Real processes of `hail` on loopback, each in a data folder of its own: a hub, the node that is attacked
//! with its agents, and two honest nodes. Honest calls are due at a stated rate (`honest_callers`), in three phases:
//! quiet, attacked, and quiet again. Every attacker ([`AttackerKind`], `attack`) is a process of its own with a lower
//! priority (`nice`) and a bounded rate. Memory and processor time of all are read each second (`process_watch`).
//! The results are judged against targets (`verdict`) and kept as lines ([`record`]).
//!
//! | module | what it does |
//! |---|---|
//! | `attacker_kind` | the kinds of attackers: names, what each does |
//! | `processes` | the processes under attack |
//! | `honest_callers` | calls that must not be lost |
//! | `call_schedule` | when calls are due, more precisely than a runtime's timer |
//! | `process_watch` | memory and processor time, each second |
//! | `round` | starts the processes, attacks them in three phases, ends them |
//! | `child_process` | a process of the siege: an attacker, or the agent that is called |
//! | `peer` | a client that speaks the protocol of a node by hand |
//! | `attack` | what attackers do |
//! | [`record`] | the lines of `siege.jsonl` |
//! | `verdict` | the targets |
//! | `summary` | the results as text |

mod attack;
mod attacker_kind;
mod call_schedule;
mod child_process;
mod honest_callers;
mod peer;
mod process_watch;
mod processes;
pub mod record;
mod round;
mod summary;
mod verdict;

use std::{path::PathBuf, time::Duration};

pub use attacker_kind::AttackerKind;
pub use child_process::{SiegeProcessRole, run_process};
use record::SiegeRecord;
use tokio::sync::watch;

use crate::{
    BenchError,
    recorded_run::{RecordedOutcome, RecordedRun},
};

/// How a siege is to be run.
#[derive(Clone, Debug)]
pub struct SiegeOptions {
    /// Who attacks.
    pub attackers: Vec<AttackerKind>,
    /// One after the other, each against processes of its own, instead of all at once.
    pub one_by_one: bool,
    /// How long the attack lasts.
    pub attack: Duration,
    /// How long honest callers run without an attack before it, and after it.
    pub quiet: Duration,
    /// This program, which is also run as the attackers and the agent that is called.
    pub program: PathBuf,
    /// The `hail` whose hub, nodes and `hail serve` are attacked.
    pub attacked: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// Runs a siege. `tell` is called with each step. When `stop` resolves, the results so far are kept.
///
/// # Errors
///
/// The processes under attack cannot be started, or the folder cannot be written. What fails under attack is
/// not an error but a missed target.
pub async fn run(
    order: &SiegeOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<RecordedOutcome, BenchError> {
    let mut kept = RecordedRun::create(&order.out, record::FILE)?;
    let rounds: Vec<Vec<AttackerKind>> = if order.one_by_one {
        order.attackers.iter().map(|kind| vec![*kind]).collect()
    } else {
        vec![order.attackers.clone()]
    };
    let (tell_over, over) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    let mut interrupted = false;
    for attackers in &rounds {
        let mut round = Box::pin(round::run(
            order,
            attackers,
            &mut kept,
            &mut tell,
            over.clone(),
        ));
        loop {
            tokio::select! {
                biased;
                () = &mut stop, if !interrupted => {
                    interrupted = true;
                    let _ = tell_over.send(true);
                }
                done = &mut round => break done?,
            }
        }
        if interrupted {
            break;
        }
    }
    for target in verdict::judge(kept.lines()) {
        kept.keep(SiegeRecord::Target(target))?;
    }
    kept.finish(interrupted, summary::of, verdict::missed)
}
