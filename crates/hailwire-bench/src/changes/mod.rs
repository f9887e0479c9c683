//! What a change of the network costs a stream and the calls after it: NATs that forget, UDP that is blocked under way, a move,
//! an interface that goes away, sleep, restarts, hubs that die.
//!
//! For each change ([`NetworkChange`]), once with a direct path and once relayed, a network of the lab with two nodes behind
//! NATs and a hub, or two. One node reads a stream of numbers from the other, fifty a second; then the network changes. What is
//! measured is the longest silence of the stream, numbers that were lost or came twice, and the time from the end of the
//! outage to the answer of the first new call.
//!
//! | module | what it does |
//! |---|---|
//! | `change` | the changes, and what each may cost |
//! | `case` | the network, the nodes, and one change |
//! | `stream` | the reader of the numbers |
//! | [`record`] | the lines of `changes.jsonl` |
//! | [`page`] | the table for people |

mod case;
mod change;
pub mod page;
pub mod record;
mod stream;

use std::path::PathBuf;

pub use change::NetworkChange;
use record::ChangeRow;

use crate::{
    BenchError,
    recorded_run::{RecordedOutcome, RecordedRun},
};

/// How the changes are to be measured.
#[derive(Clone, Debug)]
pub struct ChangesOptions {
    /// Which; empty for all.
    pub changes: Vec<NetworkChange>,
    /// The `hail` of the hubs and the nodes.
    pub program: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// Measures all changes. `tell` is called with each line. When `stop` resolves, the results so far are kept.
///
/// # Errors
///
/// A network cannot be made, a process cannot be started, or the folder cannot be written. A stream that breaks is no error
/// but in [`RecordedOutcome::missed`].
pub async fn run(
    order: &ChangesOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<RecordedOutcome, BenchError> {
    let mut kept = RecordedRun::create(&order.out, record::FILE)?;
    let all = NetworkChange::ALL.into_iter();
    let changes = all.filter(|change| order.changes.is_empty() || order.changes.contains(change));
    let mut stop = std::pin::pin!(stop);
    let mut interrupted = false;
    for (change, relayed) in changes.flat_map(|change| [(change, false), (change, true)]) {
        if relayed && change.needs_direct() {
            continue;
        }
        let row = tokio::select! {
            biased;
            () = &mut stop => { interrupted = true; break }
            row = Box::pin(case::measure(order, change, relayed)) => row?,
        };
        tell(&row.line());
        kept.keep(row)?;
    }
    kept.finish(interrupted, page::text, |rows| {
        rows.iter().filter_map(ChangeRow::missed).collect()
    })
}
