//! Durable messages: how many are accepted each second beside what the disk and others can do, and whether any is lost while the nodes
//! are killed.
//!
//! Real processes of `hail` on loopback, in a folder on the disk that is measured. First the disk alone: a sync after each of small
//! writes, and a bare log that shares a sync among as many writes as are in flight. Then durable sends of 1 KiB from this process to
//! an agent of a peer, with as many in flight. Then NATS JetStream with `sync_interval: always` and `redis-server` with `appendfsync always`, where they are installed, and what is published under topics: kept, each synced before it is answered, and to 1, 100 and 1,000 subscribers beside NATS core ([`fanout`]). Last the proof: messages in order and
//! in any order, while one of the two nodes is killed with SIGKILL again and again at instants drawn from a seed, and
//! started again ([`survival`]).

mod fanout;
mod jetstream;
pub mod record;
mod rough_network;
mod soak;
mod speed;
mod survival;

use std::{path::PathBuf, time::Duration};

use hailwire_lab::power_loss::SyncPromise;
use tempfile::TempDir;

use crate::{
    BenchError,
    recorded_run::{RecordedOutcome, RecordedRun},
    tied_process,
};
use record::MessageRecord;

/// How messages are to be measured and tried.
#[derive(Clone, Debug)]
pub struct MessageOptions {
    /// Durable sends in each row of speed; none for no rows.
    pub sends: u32,
    /// Deliveries to subscribers in each row of what is published; none for no rows.
    pub deliveries: u32,
    /// Messages of the proof.
    pub messages: u32,
    /// How often a node is killed meanwhile.
    pub kills: u32,
    /// Whether each kill is a loss of power of that node's disk, and what a sync is worth on it. Needs
    /// [`hailwire_lab::power_loss::available`].
    pub power_loss: Option<SyncPromise>,
    /// Whether the nodes are in a network of the lab that loses, repeats and reorders packets, and is cut before some of the kills. Needs
    /// [`hailwire_lab::real::available`].
    pub rough_network: bool,
    /// For how long messages and what is published go on while the receiver's node is restarted; nothing for no soak.
    pub soak: Option<Duration>,
    /// From which the instants are drawn.
    pub seed: u64,
    /// The `hail` of the nodes.
    pub program: PathBuf,
    /// Where the nodes keep their data; a temporary folder by default, which may be no disk.
    pub disk: Option<PathBuf>,
    /// Where results go.
    pub out: PathBuf,
}

impl MessageOptions {
    /// A folder that goes with its owner, on the disk that is measured.
    fn folder(&self) -> Result<TempDir, BenchError> {
        match &self.disk {
            Some(disk) => tempfile::tempdir_in(disk).map_err(BenchError::io("making a folder")),
            None => tied_process::temporary_folder("hail-messages-"),
        }
    }
}

/// Measures and proves. `tell` is called with each line. When `stop` resolves, the results so far are kept.
///
/// # Errors
///
/// A process cannot be started, or the folder cannot be written. A lost message is no error but in
/// [`RecordedOutcome::missed`].
pub async fn run(
    order: &MessageOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<RecordedOutcome, BenchError> {
    let mut kept = RecordedRun::create(&order.out, record::FILE)?;
    let mut stop = std::pin::pin!(stop);
    let work = async {
        let mut keep = |line: MessageRecord| {
            tell(&line.line());
            kept.keep(line)
        };
        if order.sends > 0 {
            speed::measure(order, &mut keep).await?;
        }
        if order.deliveries > 0 {
            fanout::measure(order, &mut keep).await?;
        }
        if order.messages > 0 {
            keep(MessageRecord::Survival(survival::run(order).await?))?;
        }
        if let Some(length) = order.soak {
            soak::run(order, length, &mut keep).await?;
        }
        Ok::<_, BenchError>(())
    };
    let interrupted = tokio::select! {
        () = &mut stop => true,
        worked = Box::pin(work) => {
            worked?;
            false
        }
    };
    kept.finish(interrupted, record::text, record::missed)
}
