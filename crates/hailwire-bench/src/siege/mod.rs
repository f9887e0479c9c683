//! A siege: a node and a hub under attack, with honest callers who must not notice.
//!
//! Real processes of `hail` on loopback, each in a data folder of its own: a hub, the node that is attacked
//! with its agents, and two honest nodes. Honest calls are due at a stated rate (`honest`), in three phases:
//! quiet, attacked, and quiet again. Every attacker ([`Kind`], `attack`) is a process of its own that gives way
//! to others (`nice`), with a bounded rate. Memory and processor time of all are read each second (`watching`).
//! What was found is judged by the aims (`verdict`) and kept as lines ([`record`]).
//!
//! | module | what it does |
//! |---|---|
//! | `kind` | who attacks: names, what each does |
//! | `house` | the processes under attack |
//! | `honest` | calls that must not be lost |
//! | `metronome` | tells when calls are due, more finely than a runtime's timer |
//! | `watching` | memory and processor time, each second |
//! | `round` | one house, three phases |
//! | `part` | a process of the siege: an attacker, or the agent that is called |
//! | `peer` | whoever speaks to a node without being one |
//! | `attack` | what attackers do |
//! | [`record`] | the lines that a siege leaves behind |
//! | `verdict` | aims |
//! | `summary` | the same in words |

mod attack;
mod honest;
mod house;
mod kind;
mod metronome;
mod part;
mod peer;
pub mod record;
mod round;
mod summary;
mod verdict;
mod watching;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use kind::Kind;
pub use part::part;
use record::Record;
use tokio::sync::watch;

use crate::{BenchError, folder::Environment};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Order {
    /// Who attacks.
    pub attackers: Vec<Kind>,
    /// One after the other, each against processes of its own, instead of all at once.
    pub one_by_one: bool,
    /// How long the attack lasts.
    pub attack: Duration,
    /// How long it is quiet before, and after.
    pub quiet: Duration,
    /// This program, which is also run as the attackers and the agent that is called.
    pub program: PathBuf,
    /// The `hail` whose hub, nodes and `hail serve` are attacked.
    pub attacked: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// How a siege ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The aims that were missed, in words.
    pub missed: Vec<String>,
    /// The summary.
    pub summary: String,
    /// Whether it was told to stop before its end.
    pub interrupted: bool,
}

/// The folder of a siege, while it is written.
struct Kept {
    file: fs::File,
    lines: Vec<Record>,
}

impl Kept {
    fn create(dir: &Path) -> Result<Self, BenchError> {
        let path = dir.join("siege.jsonl");
        Ok(Self {
            file: fs::File::create(&path).map_err(BenchError::io(path.display().to_string()))?,
            lines: Vec::new(),
        })
    }

    fn keep(&mut self, line: Record) -> Result<(), BenchError> {
        let text = serde_json::to_string(&line).map_err(|e| BenchError::Wrong(e.to_string()))?;
        writeln!(self.file, "{text}").map_err(BenchError::io("siege.jsonl"))?;
        self.lines.push(line);
        Ok(())
    }
}

/// Carries a siege out. `tell` is told what is being done. When `stop` resolves, what was found so far is kept.
///
/// # Errors
///
/// The processes under attack cannot be started, or the folder cannot be written. What fails under attack is
/// not an error but a missed aim.
pub async fn run(
    order: &Order,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<Ended, BenchError> {
    let begun = Instant::now();
    fs::create_dir_all(&order.out).map_err(BenchError::io("the folder for the results"))?;
    let mut environment = Environment::here();
    let mut kept = Kept::create(&order.out)?;
    let rounds: Vec<Vec<Kind>> = if order.one_by_one {
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
    for aim in verdict::judge(&kept.lines) {
        kept.keep(Record::Aim(aim))?;
    }
    let state = if interrupted { "interrupted" } else { "whole" };
    environment.finished(state, begun.elapsed());
    environment.write(&order.out)?;
    let summary = summary::of(&environment, &kept.lines);
    let path = order.out.join("summary.txt");
    fs::write(&path, &summary).map_err(BenchError::io(path.display().to_string()))?;
    Ok(Ended {
        missed: verdict::missed(&kept.lines),
        summary,
        interrupted,
    })
}
