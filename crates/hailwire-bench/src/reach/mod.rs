//! Who reaches whom: a node in each of the networks that people have, every pair of them called once
//! for the first time, and what theory says of it.
//!
//! A network of the lab holds two hosts of each kind ([`ReachNetwork`]), a hub and an HTTP proxy; each
//! host runs `hail up` as a user starts it, a member of the hub. Then one pair after the other: the time
//! to the first answer, the time until the path is direct, and what a message and a large body cost on
//! the path that is then used. Theory (`expectation`) says which pairs can have a direct path.
//!
//! | module | what it does |
//! |---|---|
//! | `networks` | the networks: what stands before a host |
//! | `expectation` | which pairs theory gives a direct path |
//! | `processes` | the lab, the hub, the proxy and the nodes |
//! | `pair` | the measurement of one pair |
//! | [`record`] | the lines of `reach.jsonl` |
//! | [`page`] | the table for people |

mod expectation;
mod networks;
pub mod page;
mod pair;
mod processes;
pub mod record;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use expectation::ExpectedReach;
pub use networks::ReachNetwork;
use processes::ReachProcesses;
use record::{ReachPair, ReachRecord};

use crate::{BenchError, run_folder::RunEnvironment};

/// A pair that theory allows answers for the first time within this.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How the pairs are to be measured.
#[derive(Clone, Debug)]
pub struct ReachOptions {
    /// Between which networks; empty for all.
    pub networks: Vec<String>,
    /// Whether what messages and bodies cost is measured too.
    pub costs: bool,
    /// The `hail` of the hub and the nodes.
    pub program: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct ReachOutcome {
    /// The pairs that are not as theory says, in words.
    pub missed: Vec<String>,
    /// The table.
    pub summary: String,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// Measures all pairs. `tell` is called with each line. When `stop` resolves, the results so far are
/// kept.
///
/// # Errors
///
/// The network cannot be made, a process cannot be started, or the folder cannot be written. A pair
/// that does not meet is no error but in [`ReachOutcome::missed`].
pub async fn run(
    order: &ReachOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<ReachOutcome, BenchError> {
    let begun = Instant::now();
    let networks = networks::chosen(&order.networks)?;
    fs::create_dir_all(&order.out)
        .map_err(BenchError::io("creating the folder for the results"))?;
    let mut environment = RunEnvironment::here();
    let mut kept = ReachFolder::create(&order.out)?;
    let (networks, left_out) = processes::possible(networks);
    for (network, reason) in left_out {
        tell(&format!("skipped: {}: {reason}", network.name));
        kept.keep(ReachRecord::LeftOut {
            network: network.name.to_owned(),
            reason,
        })?;
    }
    let mut stop = std::pin::pin!(stop);
    let mut interrupted = false;
    tell(&format!(
        "starting {} nodes and a hub …",
        2 * networks.len()
    ));
    let processes = tokio::select! {
        biased;
        () = &mut stop => return Err(BenchError::Unsupported("it was interrupted")),
        started = ReachProcesses::start(order, &networks) => started?,
    };
    for (near, far) in networks::pairs(&networks) {
        let measured = tokio::select! {
            biased;
            () = &mut stop => { interrupted = true; break }
            measured = pair::measure(&processes, near, far, order.costs) => measured,
        };
        tell(&measured.line());
        kept.keep(ReachRecord::Pair(Box::new(measured)))?;
    }
    processes.end().await;
    let state = if interrupted { "interrupted" } else { "whole" };
    environment.finished(state, begun.elapsed());
    environment.write(&order.out)?;
    let summary = page::text(&environment, &kept.lines);
    let path = order.out.join("summary.txt");
    fs::write(&path, &summary).map_err(BenchError::io(path.display().to_string()))?;
    let pairs = kept.lines.iter().filter_map(ReachRecord::pair);
    Ok(ReachOutcome {
        missed: pairs.filter_map(ReachPair::missed).collect(),
        summary,
        interrupted,
    })
}

/// The folder of the results, while they are written.
struct ReachFolder {
    file: fs::File,
    lines: Vec<ReachRecord>,
}

impl ReachFolder {
    fn create(dir: &Path) -> Result<Self, BenchError> {
        let path = dir.join(record::FILE);
        Ok(Self {
            file: fs::File::create(&path).map_err(BenchError::io(path.display().to_string()))?,
            lines: Vec::new(),
        })
    }

    fn keep(&mut self, line: ReachRecord) -> Result<(), BenchError> {
        let text = serde_json::to_string(&line).map_err(|e| BenchError::Invalid(e.to_string()))?;
        writeln!(self.file, "{text}").map_err(BenchError::io("writing the results"))?;
        self.lines.push(line);
        Ok(())
    }
}
