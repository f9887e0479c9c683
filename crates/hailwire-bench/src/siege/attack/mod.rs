//! What attackers do, each at a bounded rate, until their time is over.
//!
//! An attacker counts what it managed to do and how it was refused. That it is refused is what is hoped for:
//! it goes on, and tries again.

mod bodies;
mod datagrams;
mod http2;
mod lines;
mod local;
mod member;
mod offers;
mod pings;
mod silent;
mod strangers;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    Kind,
    house::HubPlace,
    peer::{Place, Seed},
};
use crate::BenchError;

/// Different reasons that are kept.
const MOST_REASONS: usize = 24;

/// A pause after a refusal, so that an attacker does not turn into a busy loop of its own.
const PAUSE: Duration = Duration::from_millis(250);

/// What an attacker is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) kind: Kind,
    pub(super) seconds: f64,
    pub(super) victim: Place,
    pub(super) hub: HubPlace,
    /// The local socket of the attacked node.
    pub(super) socket: PathBuf,
    /// Keys of its own. The attacked node trusts them where the kind is a peer.
    pub(super) seeds: Vec<Seed>,
}

impl Orders {
    fn seed(&self, number: usize) -> Result<&Seed, BenchError> {
        let seed = self.seeds.get(number);
        seed.ok_or(BenchError::Unsupported("an attacker without a key"))
    }
}

/// What an attacker says in the end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    pub(super) did: BTreeMap<String, u64>,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) failed: String,
}

/// Attacks until it is dropped.
pub(super) async fn run(orders: &Orders, tally: &Tally) -> Result<(), BenchError> {
    match orders.kind {
        Kind::Tokens => datagrams::tokens(orders, tally).await,
        Kind::Initials => datagrams::initials(orders, tally).await,
        Kind::Silent => silent::run(orders, tally).await,
        Kind::Pings => pings::run(orders, tally).await,
        Kind::Http2 => http2::run(orders, tally).await,
        Kind::Strangers => strangers::run(orders, tally).await,
        Kind::Bodies => bodies::run(orders, tally).await,
        Kind::Offers => offers::run(orders, tally).await,
        Kind::Member => member::run(orders, tally).await,
        Kind::Local => local::run(orders, tally).await,
        Kind::Lines => lines::run(orders, tally).await,
    }
}

/// Counts. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Arc<Mutex<Counts>>);

type Counts = (BTreeMap<String, u64>, BTreeMap<String, u64>);

impl Tally {
    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It did something so many times.
    fn did(&self, what: &str, times: u64) {
        *self.lock().0.entry(what.to_owned()).or_default() += times;
    }

    /// It was refused.
    fn refused(&self, why: &str) {
        let refused = &mut self.lock().1;
        let known = refused.len() < MOST_REASONS || refused.contains_key(why);
        let why = if known { why } else { "another reason" };
        *refused.entry(why.to_owned()).or_default() += 1;
    }

    /// Both, once.
    pub(super) fn taken(&self) -> Counts {
        std::mem::take(&mut self.lock())
    }
}

/// Ticks at a rate. What was missed is not made good, so that a slow machine is not flooded.
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
        let tally = Tally::default();
        tally.did("packets", 3);
        tally.did("packets", 4);
        for reason in 0..100 {
            tally.refused(&reason.to_string());
        }
        let (did, refused) = tally.taken();
        assert_eq!(did["packets"], 7);
        assert_eq!(refused.len(), MOST_REASONS + 1);
        assert_eq!(refused.values().sum::<u64>(), 100);
    }
}
