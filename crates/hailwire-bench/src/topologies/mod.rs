//! Agents that work together over eleven machines: four topologies, a dispatch of a thousand calls, and four priorities on a full line.
//!
//! Each network is one of the lab, with a round trip of 50 ms between any two machines; each machine has a node of `hail`, and all are
//! members of one hub. The topologies are compositions of `hailwire::coordination`, carried out by agents on those nodes, so a
//! hierarchy's leaders and a ring's links are calls from node to node.
//!
//! | module | what it does |
//! |---|---|
//! | `machines` | the network, its nodes, and the agents on them |
//! | `patterns` | star, hierarchy, ring, mesh and dispatch |
//! | `pressure` | four priorities, alone and on a full line |
//! | [`record`] | the lines of `topologies.jsonl`, and what others have published |
//! | [`page`] | the tables for people |

mod machines;
pub mod page;
mod patterns;
mod pressure;
pub mod record;

use std::path::PathBuf;

use record::TopologyLine;

use crate::{
    BenchError,
    recorded_run::{RecordedOutcome, RecordedRun},
};

/// How topologies are to be measured.
#[derive(Clone, Debug)]
pub struct TopologiesOptions {
    /// How often each is done, after once that does not count.
    pub rounds: u32,
    /// Seconds for which the line is full.
    pub seconds: u32,
    /// Only up to so many agents; `None` for all sizes.
    pub most_agents: Option<u32>,
    /// The `hail` of the hub and the nodes.
    pub program: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// Measures all of it. `tell` is called with each line. When `stop` resolves, the results so far are kept.
///
/// # Errors
///
/// A network cannot be made, a process cannot be started, an answer is not what it should be, or the folder cannot be written. Calls that
/// fail are no error but in [`RecordedOutcome::missed`].
pub async fn run(
    order: &TopologiesOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<RecordedOutcome, BenchError> {
    let mut kept = RecordedRun::create(&order.out, record::FILE)?;
    let mut keep = |line: TopologyLine| {
        tell(&line.text());
        kept.keep(line)
    };
    let measured = async {
        Box::pin(patterns::measure(order, &mut keep)).await?;
        Box::pin(pressure::measure(order, &mut keep)).await
    };
    let interrupted = tokio::select! {
        biased;
        () = stop => true,
        measured = measured => { measured?; false }
    };
    kept.finish(interrupted, page::text, |lines| {
        lines.iter().filter_map(TopologyLine::missed).collect()
    })
}
