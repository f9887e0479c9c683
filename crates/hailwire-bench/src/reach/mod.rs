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

use std::{path::PathBuf, time::Duration};

pub use expectation::ExpectedReach;
pub use networks::ReachNetwork;
use processes::ReachProcesses;
use record::{ReachPair, ReachRecord};

use crate::{
    BenchError,
    recorded_run::{RecordedOutcome, RecordedRun},
};

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

/// Measures all pairs. `tell` is called with each line. When `stop` resolves, the results so far are
/// kept.
///
/// # Errors
///
/// The network cannot be made, a process cannot be started, or the folder cannot be written. A pair
/// that does not meet is no error but in [`RecordedOutcome::missed`].
pub async fn run(
    order: &ReachOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<RecordedOutcome, BenchError> {
    let networks = networks::chosen(&order.networks)?;
    let mut kept = RecordedRun::create(&order.out, record::FILE)?;
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
    kept.finish(interrupted, page::text, |lines| {
        let pairs = lines.iter().filter_map(ReachRecord::pair);
        pairs.filter_map(ReachPair::missed).collect()
    })
}
