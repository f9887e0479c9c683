//! The pipeline of one direction of a body: chunks enter before the first agent and leave after the last one, in
//! order, each as the agents left it.
//!
//! Several chunks are under way at once, before one agent and before different ones ([`super::agent_stage`] is the way past one). As soon as
//! an agent stops the request, all that is under way is stopped with it.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use bytes::Bytes;

use super::{
    BodyVerdict,
    agent_stage::{AgentStage, PipelineChunk, StageId},
    request_state::RequestState,
};
use crate::{
    Decision, EventKind,
    control::CancelReason,
    event::BodyChunk,
    stream::{MIN_CHUNK_COST, WINDOW},
};

/// The pipeline of one direction of a body.
pub(super) struct BodyPipeline {
    kind: EventKind,
    stages: Box<[AgentStage]>,
    /// What has come through, and was not taken yet.
    through: VecDeque<BodyVerdict>,
    /// What each chunk counts that was shown and whose verdict was not taken.
    costs: VecDeque<u64>,
    cost: u64,
}

impl BodyPipeline {
    pub(super) fn new(kind: EventKind, agents: usize) -> Self {
        Self {
            kind,
            stages: (0..agents).map(|_| AgentStage::default()).collect(),
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
        self.stages[n].is_unseen()
    }

    /// A chunk enters.
    pub(super) fn show(&mut self, chunk: BodyChunk, state: &RequestState) {
        let cost = MIN_CHUNK_COST.max(chunk.data.len() as u64);
        self.costs.push_back(cost);
        self.cost += cost;
        if state.over().is_none() {
            let chunk = PipelineChunk::new(chunk.data, chunk.is_last, chunk.total_size);
            self.enter(0, chunk, state);
        }
    }

    /// What becomes of the next chunk; `None` when none is under way.
    pub(super) fn poll_shown(
        &mut self,
        state: &mut RequestState,
        context: &mut Context<'_>,
    ) -> Poll<Option<BodyVerdict>> {
        if let Some(decision) = state.over().cloned() {
            self.stop(&decision, state);
        }
        loop {
            if let Some(verdict) = self.through.pop_front() {
                self.cost -= self.costs.pop_front().unwrap_or(0);
                return Poll::Ready(Some(verdict));
            }
            if self.costs.is_empty() {
                return Poll::Ready(None);
            }
            match self.advance(state, context) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(decision) => {
                    state.stop(decision.clone());
                    self.stop(&decision, state);
                }
            }
        }
    }

    /// Moves chunks on. False where all of them wait.
    fn advance(
        &mut self,
        state: &mut RequestState,
        context: &mut Context<'_>,
    ) -> Result<bool, Decision> {
        let mut moved = false;
        for n in 0..self.stages.len() {
            let id = StageId { n, kind: self.kind };
            while let Some(stage) = self.stages.get_mut(n)
                && let Poll::Ready(chunk) = stage.poll_leave(id, state, context)
            {
                self.enter(n + 1, chunk?, state);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// A chunk comes to an agent, or has passed all of them.
    fn enter(&mut self, n: usize, chunk: PipelineChunk, state: &RequestState) {
        let id = StageId { n, kind: self.kind };
        match self.stages.get_mut(n) {
            Some(stage) => stage.enter(id, chunk, state),
            None => self.through.push_back(BodyVerdict {
                verdict: chunk.verdict,
                data: chunk.data,
            }),
        }
    }

    /// The request does not pass, and nothing of what is under way does. What agents said to it is told with the first chunk.
    fn stop(&mut self, decision: &Decision, state: &RequestState) {
        for (n, stage) in self.stages.iter().enumerate() {
            if stage.is_owed()
                && let Some(endpoint) = state.asked(n)
            {
                endpoint.cancel(state.id(), CancelReason::BlockedByAgent);
            }
        }
        let mut stopped = BodyVerdict::default();
        // What is farthest came first.
        for chunk in self.stages.iter_mut().rev().flat_map(AgentStage::clear) {
            stopped.verdict.append(chunk.verdict);
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
