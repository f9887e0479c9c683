//! The pipeline of one direction of a body: chunks enter before the first agent and leave after the last one, in
//! order, each as the agents left it.
//!
//! Several chunks are under way at once, before one agent and before different ones ([`agent_stage`](super::agent_stage) is the way past one). As soon as
//! an agent stops the request, all that is under way is stopped with it.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;

use super::{
    action::CallId,
    agent_stage::{AgentStage, PipelineChunk, StageId},
    request_state::{AgentList, RequestState},
};
use crate::{
    Decision, EventKind, Response,
    control::CancelReason,
    event::BodyChunk,
    inspect::{BodyVerdict, CallError, Verdict},
    stream::{MIN_CHUNK_COST, WINDOW},
};

/// The pipeline of one direction of a body.
pub(super) struct BodyPipeline {
    kind: EventKind,
    /// None before the first chunk.
    stages: Vec<AgentStage>,
    /// What has come through, and was not taken yet.
    through: VecDeque<BodyVerdict>,
    /// What each chunk counts that was shown and whose verdict was not taken.
    costs: VecDeque<u64>,
    cost: u64,
}

impl BodyPipeline {
    pub(super) const fn new(kind: EventKind) -> Self {
        Self {
            kind,
            stages: Vec::new(),
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

    /// Whether an agent may be shown no more of the body.
    pub(super) fn is_unseen(&self, agent: usize) -> bool {
        self.stages.get(agent).is_some_and(AgentStage::is_unseen)
    }

    /// When the first call is given up on.
    pub(super) fn due(&self) -> Option<Instant> {
        self.stages.iter().filter_map(AgentStage::due).min()
    }

    /// A chunk enters.
    pub(super) fn show<A: AgentList>(
        &mut self,
        now: Instant,
        chunk: BodyChunk,
        state: &mut RequestState<A>,
    ) {
        let cost = MIN_CHUNK_COST.max(chunk.data.len() as u64);
        self.costs.push_back(cost);
        self.cost += cost;
        if let Some(decision) = state.stopped().cloned() {
            return self.stop(&decision, state);
        }
        if self.stages.is_empty() {
            self.stages.resize_with(state.count(), AgentStage::default);
        }
        let chunk = PipelineChunk::new(chunk.data, chunk.is_last, chunk.total_size);
        self.enter(now, 0, chunk, state);
    }

    /// An endpoint has answered a call about the body, or has not.
    pub(super) fn answer<A: AgentList>(
        &mut self,
        now: Instant,
        call: CallId,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) {
        let id = self.id(call.agent);
        if let Some(stage) = self.stages.get_mut(call.agent) {
            stage.answer(now, id, call, answer, state);
        }
    }

    /// Gives up on the calls whose time is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for stage in &mut self.stages {
            stage.handle_timeout(now);
        }
    }

    /// The verdict on the next chunk, once it has come through.
    pub(super) fn poll_verdict(&mut self) -> Option<BodyVerdict> {
        let verdict = self.through.pop_front()?;
        self.cost -= self.costs.pop_front().unwrap_or(0);
        Some(verdict)
    }

    /// Moves chunks on as far as they are answered.
    pub(super) fn advance<A: AgentList>(
        &mut self,
        now: Instant,
        state: &mut RequestState<A>,
    ) -> Result<(), Decision> {
        for agent in 0..self.stages.len() {
            let id = self.id(agent);
            while let Some(chunk) = self.stages[agent].leave_first(now, id, state) {
                self.enter(now, agent + 1, chunk?, state);
            }
        }
        Ok(())
    }

    /// The request does not pass, and nothing of what is under way does. What agents said to it is told with the first chunk.
    pub(super) fn stop<A>(&mut self, decision: &Decision, state: &mut RequestState<A>) {
        for (agent, stage) in self.stages.iter().enumerate() {
            if stage.is_owed() {
                state.cancel(agent, CancelReason::BlockedByAgent);
            }
        }
        let mut stopped = BodyVerdict::default();
        // What is farthest came first.
        for agent in (0..self.stages.len()).rev() {
            let id = self.id(agent);
            for chunk in self.stages[agent].clear(id, state) {
                stopped.verdict.append(chunk.verdict);
            }
        }
        stopped.verdict.decision = decision.clone();
        while self.through.len() < self.costs.len() {
            let next = BodyVerdict {
                verdict: Verdict {
                    decision: decision.clone(),
                    ..Verdict::default()
                },
                data: Bytes::new(),
            };
            self.through
                .push_back(std::mem::replace(&mut stopped, next));
        }
    }

    /// Nothing of it is waited for any more.
    pub(super) fn end<A>(&mut self, state: &mut RequestState<A>) {
        for agent in 0..self.stages.len() {
            let id = self.id(agent);
            self.stages[agent].clear(id, state);
        }
        self.through.clear();
        self.costs.clear();
        self.cost = 0;
    }

    /// A chunk comes to an agent, or has passed all of them.
    fn enter<A: AgentList>(
        &mut self,
        now: Instant,
        agent: usize,
        chunk: PipelineChunk,
        state: &mut RequestState<A>,
    ) {
        let id = self.id(agent);
        match self.stages.get_mut(agent) {
            Some(stage) => stage.enter(now, id, chunk, state),
            None => self.through.push_back(BodyVerdict {
                verdict: chunk.verdict,
                data: chunk.data,
            }),
        }
    }

    const fn id(&self, agent: usize) -> StageId {
        StageId {
            agent,
            kind: self.kind,
        }
    }
}
