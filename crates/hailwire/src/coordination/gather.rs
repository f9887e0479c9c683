//! Fan-out and gather, and broadcast with quorum.

use futures_util::stream;
use hailwire_core::quorum::{Quorum, QuorumState};
use thiserror::Error;

use super::{MAX_IN_FLIGHT, MapLimits, Replies, Reply, map};
use crate::client::Call;

/// Makes calls at once, [`MAX_IN_FLIGHT`] at most in flight; their answers come as they are done. A deadline is each call's own.
///
/// ```no_run
/// # async fn example(client: hailwire::Client) {
/// use std::time::Duration;
///
/// use hailwire::coordination::gather;
///
/// let nodes = ["laptop", "desk", "attic"];
/// let ask = |node| {
///     let call = client.call(format!("load@{node}"));
///     call.deadline(Duration::from_secs(2))
/// };
/// for reply in gather(nodes.map(ask)).all().await {
///     println!("{}: {:?}", reply.to, reply.outcome);
/// }
/// # }
/// ```
pub fn gather(calls: impl IntoIterator<Item = Call>) -> Gather {
    let calls: Vec<Call> = calls.into_iter().collect();
    let limits = MapLimits {
        in_flight: MAX_IN_FLIGHT,
        ordered: false,
        ..MapLimits::default()
    };
    Gather {
        voters: calls.len(),
        replies: map(stream::iter(calls), limits),
    }
}

/// Calls under way at once. Dropping it cancels those without an answer.
#[derive(Debug)]
#[must_use = "no call is made before it is polled"]
pub struct Gather {
    voters: usize,
    replies: Replies,
}

/// Enough have agreed.
#[derive(Debug)]
pub struct Agreed {
    /// Who agreed, as their answers came; as many as were needed.
    pub agreed: Vec<Reply>,
    /// Who had failed by then.
    pub failed: Vec<Reply>,
    /// The calls without an answer yet. Dropping it cancels them; who wants them to arrive everywhere reads it to its end.
    pub rest: Replies,
}

/// Too few can agree.
#[derive(Clone, Debug, Error)]
#[error("{} of {voters} agreed, and {needed} have to", agreed.len())]
pub struct QuorumMissed {
    /// How many have to.
    pub needed: usize,
    /// How many were called.
    pub voters: usize,
    /// Who agreed.
    pub agreed: Vec<Reply>,
    /// Who failed.
    pub failed: Vec<Reply>,
}

impl Gather {
    /// The next answer to come; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// Safe to drop: no answer is lost.
    pub async fn next(&mut self) -> Option<Reply> {
        self.replies.next().await
    }

    /// All answers, in the order of the calls.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the calls without an answer, and the answers so far are lost.
    pub async fn all(mut self) -> Vec<Reply> {
        let mut all = Vec::with_capacity(self.voters);
        while let Some(reply) = self.replies.next().await {
            all.push(reply);
        }
        all.sort_unstable_by_key(|reply| reply.index);
        all
    }

    /// Waits until `needed` have agreed, by an answer with status `ok`, or no longer can. So with 1 it is the first answer of many; for
    /// more than half see [`Quorum::majority`].
    ///
    /// # Errors
    ///
    /// [`QuorumMissed`] as soon as the calls under way are too few. They are cancelled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the calls without an answer; who has agreed does not learn of it.
    pub async fn quorum(mut self, needed: usize) -> Result<Agreed, QuorumMissed> {
        let mut quorum = Quorum::new(needed, self.voters);
        let (mut agreed, mut failed) = (Vec::new(), Vec::new());
        while quorum.state() == QuorumState::Open {
            let Some(reply) = self.replies.next().await else {
                break;
            };
            quorum.handle_vote(reply.outcome.is_ok());
            match reply.outcome {
                Ok(_) => agreed.push(reply),
                Err(_) => failed.push(reply),
            }
        }
        if quorum.state() == QuorumState::Reached {
            return Ok(Agreed {
                agreed,
                failed,
                rest: self.replies,
            });
        }
        Err(QuorumMissed {
            needed,
            voters: self.voters,
            agreed,
            failed,
        })
    }
}
