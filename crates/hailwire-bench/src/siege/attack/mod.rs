//! What attackers do, each at a bounded rate, until their time is over.
//!
//! An attacker counts what it managed to do and how it was refused. To be refused is the expected outcome: it continues
//! and tries again.

mod bodies;
mod datagrams;
mod http2;
mod lines;
mod local;
mod member;
mod offers;
mod pings;
mod silent;
mod untrusted_peers;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    AttackerKind,
    peer::{KeySeed, NodeAddress},
    processes::HubAddress,
};
use crate::BenchError;

/// The most reasons that are counted one by one.
const MAX_REASONS: usize = 24;

/// A pause after a refusal, so that an attacker does not turn into a busy loop of its own.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(250);

/// What an attacker is to do, as JSON on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AttackOrders {
    pub(super) kind: AttackerKind,
    pub(super) seconds: f64,
    pub(super) victim: NodeAddress,
    pub(super) hub: HubAddress,
    /// The local socket of the attacked node.
    pub(super) socket: PathBuf,
    /// Keys of its own. The attacked node trusts them where the kind is a peer.
    pub(super) seeds: Vec<KeySeed>,
}

impl AttackOrders {
    fn seed(&self, number: usize) -> Result<&KeySeed, BenchError> {
        let seed = self.seeds.get(number);
        seed.ok_or(BenchError::Unsupported("an attacker without a key"))
    }
}

/// What an attacker did, as JSON on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AttackReport {
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) did: BTreeMap<String, u64>,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) failed: String,
}

/// Attacks until it is dropped.
pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    match orders.kind {
        AttackerKind::Tokens => datagrams::tokens(orders, counters).await,
        AttackerKind::Initials => datagrams::initials(orders, counters).await,
        AttackerKind::Silent => silent::run(orders, counters).await,
        AttackerKind::Pings => pings::run(orders, counters).await,
        AttackerKind::Http2 => http2::run(orders, counters).await,
        AttackerKind::UntrustedPeers => untrusted_peers::run(orders, counters).await,
        AttackerKind::Bodies => bodies::run(orders, counters).await,
        AttackerKind::Offers => offers::run(orders, counters).await,
        AttackerKind::Member => member::run(orders, counters).await,
        AttackerKind::Local => local::run(orders, counters).await,
        AttackerKind::Lines => lines::run(orders, counters).await,
    }
}

/// Counters of what an attacker did. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct AttackCounters(Arc<Mutex<CountsByReason>>);

type CountsByReason = (BTreeMap<String, u64>, BTreeMap<String, u64>);

impl AttackCounters {
    fn lock(&self) -> std::sync::MutexGuard<'_, CountsByReason> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the counter of an action.
    fn did(&self, what: &str, times: u64) {
        *self.lock().0.entry(what.to_owned()).or_default() += times;
    }

    /// Counts a refusal by its reason.
    fn refused(&self, why: &str) {
        let refused = &mut self.lock().1;
        let known = refused.len() < MAX_REASONS || refused.contains_key(why);
        let why = if known { why } else { "another reason" };
        *refused.entry(why.to_owned()).or_default() += 1;
    }

    /// Takes the counts and resets them.
    pub(super) fn taken(&self) -> CountsByReason {
        std::mem::take(&mut self.lock())
    }
}

/// Ticks at a rate. Missed ticks are not made up for, so that a slow machine is not flooded.
fn pace(per_second: f64) -> Interval {
    let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_and_bounded() {
        let counters = AttackCounters::default();
        counters.did("packets", 3);
        counters.did("packets", 4);
        for reason in 0..100 {
            counters.refused(&reason.to_string());
        }
        let (did, refused) = counters.taken();
        assert_eq!(did["packets"], 7);
        assert_eq!(refused.len(), MAX_REASONS + 1);
        assert_eq!(refused.values().sum::<u64>(), 100);
    }
}
