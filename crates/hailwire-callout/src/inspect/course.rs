//! One direction of a body on its way past the agents: pieces enter before the first agent, and leave behind the last one, in
//! their order, each as the agents left it.
//!
//! Several pieces are under way at once, before one agent and before different ones ([`super::leg`] is the way past one). As soon as
//! an agent stops the request, all that is under way is stopped with it.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use bytes::Bytes;

use super::{
    BodyVerdict,
    leg::{AgentStage, PipelineChunk, StageId},
    round::RequestState,
};
use crate::{
    Decision, EventKind,
    control::CancelReason,
    event::BodyChunk,
    stream::{LEAST_PIECE, WINDOW},
};

/// A body's course.
pub(super) struct BodyPipeline {
    kind: EventKind,
    legs: Box<[AgentStage]>,
    /// What has come through, and was not taken yet.
    through: VecDeque<BodyVerdict>,
    /// What each piece counts that was shown and whose verdict was not taken.
    costs: VecDeque<u64>,
    cost: u64,
}

impl BodyPipeline {
    pub(super) fn new(kind: EventKind, agents: usize) -> Self {
        Self {
            kind,
            legs: (0..agents).map(|_| AgentStage::default()).collect(),
            through: VecDeque::new(),
            costs: VecDeque::new(),
            cost: 0,
        }
    }

    /// Whether more of the body should be shown before a verdict is taken.
    pub(super) const fn has_room(&self) -> bool {
        self.cost < WINDOW as u64
    }

    /// Whether there are verdicts to come.
    pub(super) fn is_under_way(&self) -> bool {
        !self.costs.is_empty()
    }

    /// Whether an agent may be shown more of the body.
    pub(super) fn is_unseen(&self, n: usize) -> bool {
        self.legs[n].is_unseen()
    }

    /// A piece enters.
    pub(super) fn show(&mut self, chunk: BodyChunk, round: &RequestState) {
        let cost = LEAST_PIECE.max(chunk.data.len() as u64);
        self.costs.push_back(cost);
        self.cost += cost;
        if round.over().is_none() {
            let piece = PipelineChunk::new(chunk.data, chunk.is_last, chunk.total_size);
            self.enter(0, piece, round);
        }
    }

    /// What becomes of the next piece; `None` when none is under way.
    pub(super) fn poll_shown(
        &mut self,
        round: &mut RequestState,
        context: &mut Context<'_>,
    ) -> Poll<Option<BodyVerdict>> {
        if let Some(decision) = round.over().cloned() {
            self.stop(&decision, round);
        }
        loop {
            if let Some(verdict) = self.through.pop_front() {
                self.cost -= self.costs.pop_front().unwrap_or(0);
                return Poll::Ready(Some(verdict));
            }
            if self.costs.is_empty() {
                return Poll::Ready(None);
            }
            match self.advance(round, context) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(decision) => {
                    round.stop(decision.clone());
                    self.stop(&decision, round);
                }
            }
        }
    }

    /// Moves pieces on. False where all of them wait.
    fn advance(
        &mut self,
        round: &mut RequestState,
        context: &mut Context<'_>,
    ) -> Result<bool, Decision> {
        let mut moved = false;
        for n in 0..self.legs.len() {
            let of = StageId { n, kind: self.kind };
            while let Some(leg) = self.legs.get_mut(n)
                && let Poll::Ready(piece) = leg.poll_leave(of, round, context)
            {
                self.enter(n + 1, piece?, round);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// A piece comes to an agent, or has passed all of them.
    fn enter(&mut self, n: usize, piece: PipelineChunk, round: &RequestState) {
        let of = StageId { n, kind: self.kind };
        match self.legs.get_mut(n) {
            Some(leg) => leg.enter(of, piece, round),
            None => self.through.push_back(BodyVerdict {
                verdict: piece.verdict,
                data: piece.data,
            }),
        }
    }

    /// The request does not pass, and nothing of what is under way does. What agents said to it is told with the first piece.
    fn stop(&mut self, decision: &Decision, round: &RequestState) {
        for (n, leg) in self.legs.iter().enumerate() {
            if leg.is_owed()
                && let Some(place) = round.asked(n)
            {
                place.cancel(round.id(), CancelReason::BlockedByAgent);
            }
        }
        let mut stopped = BodyVerdict::default();
        // What is farthest came first.
        for piece in self.legs.iter_mut().rev().flat_map(AgentStage::clear) {
            stopped.verdict.append(piece.verdict);
        }
        stopped.verdict.decision = decision.clone();
        while self.through.len() < self.costs.len() {
            let next = BodyVerdict {
                verdict: super::Verdict {
                    decision: decision.clone(),
                    ..super::Verdict::default()
                },
                data: Bytes::new(),
            };
            self.through
                .push_back(std::mem::replace(&mut stopped, next));
        }
    }
}
