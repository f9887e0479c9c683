//! One agent's stage in the pipeline of a body: what it is sent, what it has not answered yet, what is held back.
//!
//! Chunks leave it in the order in which they entered, each when all of its fragments are answered. A fragment is sent as soon as its chunk
//! enters, whatever else is unanswered: the connection's window bounds how much is in flight. Only while it is not known which endpoint
//! answers for the agent, one fragment is sent and the others wait.
//!
//! Each fragment has the phase's timeout from the moment when it is the first that is unanswered; one that takes longer is the
//! agent's failure, as with any event. The chunks behind one
//! that is not answered, and may pass all the same, pass too and are not asked about any more: the agent would judge a body
//! with a hole.

use std::{collections::VecDeque, time::Instant};

use bytes::{Bytes, BytesMut};

use super::{
    action::{AgentAsk, CallId, FaultCause, RequestAction, RequestPart},
    endpoint_search::EndpointSearch,
    request_state::{AgentList, RequestState},
};
use crate::{
    Decision, Event, EventKind, Response, Text,
    event::BodyChunk,
    inspect::{AgentFault, BodyMode, CallError, Verdict},
};

/// Most bytes of a body that one event carries, whatever an agent prefers: a frame of 16 MiB has them in base64.
pub(super) const MAX_CHUNK: u64 = 8 << 20;

/// Fewest, whatever an agent prefers.
pub(super) const MIN_CHUNK: u64 = 1 << 10;

/// What an agent that has not said it yet is taken to prefer.
const DEFAULT_CHUNK: u64 = 64 << 10;

/// A chunk of a body between the agents.
pub(super) struct PipelineChunk {
    pub(super) data: Bytes,
    pub(super) last: bool,
    pub(super) total: Option<u64>,
    /// What the agents before said to it.
    pub(super) verdict: Verdict,
    plan: ChunkPlan,
}

impl PipelineChunk {
    pub(super) fn new(data: Bytes, last: bool, total: Option<u64>) -> Self {
        Self {
            data,
            last,
            total,
            verdict: Verdict::default(),
            plan: ChunkPlan::Pass,
        }
    }
}

/// What becomes of a chunk at one agent.
enum ChunkPlan {
    /// It goes on as it is.
    Pass,
    /// It is gathered until the body is whole.
    Gather,
    /// It is more than the agent may be shown.
    TooLarge,
    /// It is shown, and answered so far.
    Show(ChunkProgress),
}

/// What became of a chunk that was shown.
#[derive(Default)]
struct ChunkProgress {
    data: Vec<Bytes>,
    /// Parts that are not answered.
    unanswered: usize,
    changed: bool,
    undecided: bool,
}

/// What an agent is asked at once.
struct ChunkFragment {
    data: Bytes,
    last: bool,
    asked: FragmentState,
}

enum FragmentState {
    /// Until the endpoint is known.
    Unsent(Event),
    /// When it is given up on; nothing while others before it are unanswered.
    Sent(Option<Instant>),
    /// Answered before those ahead of it.
    Answered(Box<Result<Response, CallError>>),
    /// The first one, whose answer lies in [`AgentStage::answer`].
    Taken,
}

/// One agent's stage in the pipeline of a body.
#[derive(Default)]
pub(super) struct AgentStage {
    /// In their order; the first is the one that is answered next.
    chunks: VecDeque<PipelineChunk>,
    /// The unanswered fragments of all chunks, in their order.
    fragments: VecDeque<ChunkFragment>,
    /// The number of the call for the first of them.
    first: u32,
    /// How many of them have been sent.
    sent: usize,
    /// Calls may be under way.
    calls: bool,
    /// The answer to the first of them, until it is decided what it means.
    answer: Option<Result<Response, CallError>>,
    /// Which endpoint answers the first of them, where that is not known.
    search: Option<EndpointSearch>,
    index: u32,
    seen: u64,
    held: Vec<Bytes>,
    held_len: usize,
    /// The rest of the body is not shown.
    unseen: bool,
}

/// Whose stage it is.
#[derive(Clone, Copy)]
pub(super) struct StageId {
    pub(super) agent: usize,
    pub(super) kind: EventKind,
}

impl StageId {
    const fn part(self) -> RequestPart {
        RequestPart::of(self.kind)
    }
}

impl AgentStage {
    /// Whether the rest of the body is not shown.
    pub(super) const fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// Whether the agent owes an answer.
    pub(super) const fn is_owed(&self) -> bool {
        self.sent > 0
    }

    /// When the first fragment is given up on, once its time has begun.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.fragments.front()?.asked {
            FragmentState::Sent(due) => due,
            _ => None,
        }
    }

    /// A chunk comes, and is shown to the agent if it is to be.
    pub(super) fn enter<A: AgentList>(
        &mut self,
        now: Instant,
        of: StageId,
        mut chunk: PipelineChunk,
        state: &mut RequestState<A>,
    ) {
        chunk.plan = self.plan(of, &chunk, state);
        self.chunks.push_back(chunk);
        self.send(now, of, state);
    }

    /// An endpoint has answered a fragment, or has not. What that means is decided when it is the fragment's turn.
    pub(super) fn answer<A: AgentList>(
        &mut self,
        now: Instant,
        of: StageId,
        call: CallId,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) {
        let ahead = call.sequence.wrapping_sub(self.first) as usize;
        if ahead >= self.sent {
            return;
        }
        let Some(fragment) = self.fragments.get_mut(ahead) else {
            return;
        };
        if !matches!(fragment.asked, FragmentState::Sent(_)) {
            return;
        }
        if ahead > 0 {
            fragment.asked = FragmentState::Answered(Box::new(answer));
            return;
        }
        if let (Some(search), Err(error)) = (&mut self.search, &answer)
            && let Some((event, deadline)) = search.next(now, error)
        {
            let endpoint = search.current();
            let due = state.due_at(now, of.agent, endpoint, deadline);
            fragment.asked = FragmentState::Sent(Some(due));
            return state.push(RequestAction::Ask(AgentAsk {
                call,
                endpoint,
                event,
                deadline,
                queued: false,
                again: true,
            }));
        }
        fragment.asked = FragmentState::Taken;
        self.answer = Some(answer);
    }

    /// Gives up on the first fragment if its time is over.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.due().is_some_and(|due| due <= now)
            && let Some(fragment) = self.fragments.front_mut()
        {
            fragment.asked = FragmentState::Taken;
            self.answer = Some(Err(CallError::Timeout));
        }
    }

    /// The first chunk, once it goes on, as the agent left it.
    pub(super) fn leave_first<A: AgentList>(
        &mut self,
        now: Instant,
        of: StageId,
        state: &mut RequestState<A>,
    ) -> Option<Result<PipelineChunk, Decision>> {
        while self.is_first_unanswered() {
            let answer = self.first_answer(now, of, state)?;
            if let Some(search) = self.search.take() {
                state.found(of.agent, search.current());
            }
            if let Err(decision) = self.answered(of, answer, state) {
                return Some(Err(decision));
            }
            self.send(now, of, state);
        }
        let chunk = self.chunks.pop_front()?;
        Some(self.leave(of, chunk, state))
    }

    /// Everything that has not left, in its order. Nothing is waited for any more.
    pub(super) fn clear<A>(
        &mut self,
        of: StageId,
        state: &mut RequestState<A>,
    ) -> VecDeque<PipelineChunk> {
        self.take_fragments(of, state);
        std::mem::take(&mut self.chunks)
    }

    fn is_first_unanswered(&self) -> bool {
        let first = self.chunks.front().map(|chunk| &chunk.plan);
        matches!(first, Some(ChunkPlan::Show(shown)) if shown.unanswered > 0)
    }

    /// What becomes of a chunk. What the agent is to be sent waits in `fragments` then.
    fn plan<A: AgentList>(
        &mut self,
        of: StageId,
        chunk: &PipelineChunk,
        state: &RequestState<A>,
    ) -> ChunkPlan {
        let nothing = chunk.data.is_empty() && !chunk.last;
        if self.unseen || nothing || !state.asks(of.agent, of.kind) {
            return ChunkPlan::Pass;
        }
        let rule = state.rule(of.agent);
        let known = state.capabilities(of.agent);
        let mode = rule.body(of.kind).mode;
        let most = rule.most(of.kind, known.as_deref());
        let gathered = match mode {
            BodyMode::Buffer => self.held_len,
            BodyMode::Stream => 0,
        };
        let whole = gathered + chunk.data.len();
        let large =
            self.seen + whole as u64 > most || chunk.total.is_some_and(|total| total > most);
        if large || (mode == BodyMode::Buffer && whole > rule.buffer_size) {
            self.unseen = true;
            return ChunkPlan::TooLarge;
        }
        let (shown, size) = match mode {
            BodyMode::Stream => {
                let size = known.map_or(DEFAULT_CHUNK, |c| c.limits.preferred_chunk_size);
                (chunk.data.clone(), size)
            }
            BodyMode::Buffer => {
                self.hold(chunk.data.clone());
                if !chunk.last {
                    return ChunkPlan::Gather;
                }
                (self.release(), MAX_CHUNK)
            }
        };
        let unanswered = self.cut(of.kind, state.id(), &shown, chunk, size);
        ChunkPlan::Show(ChunkProgress {
            unanswered,
            ..ChunkProgress::default()
        })
    }

    /// Cuts what is shown into fragments, each at most as large as the agent wants. Gives how many.
    fn cut(
        &mut self,
        kind: EventKind,
        id: &Text,
        data: &Bytes,
        chunk: &PipelineChunk,
        size: u64,
    ) -> usize {
        let size = size.clamp(MIN_CHUNK, MAX_CHUNK) as usize;
        let count = data.len().div_ceil(size).max(1);
        for fragment in 0..count {
            let (from, to) = (fragment * size, ((fragment + 1) * size).min(data.len()));
            self.seen += (to - from) as u64;
            let (data, last) = (data.slice(from..to), chunk.last && fragment + 1 == count);
            let event = BodyChunk {
                correlation_id: id.clone(),
                data: data.clone(),
                is_last: last,
                total_size: chunk.total,
                index: self.index,
                transferred: self.seen,
            };
            self.index = self.index.saturating_add(1);
            let event = match kind {
                EventKind::ResponseBody => Event::ResponseBody(event),
                _ => Event::RequestBody(event),
            };
            self.fragments.push_back(ChunkFragment {
                data,
                last,
                asked: FragmentState::Unsent(event),
            });
        }
        count
    }

    /// Sends what may leave: everything, once the endpoint is known.
    fn send<A: AgentList>(&mut self, now: Instant, of: StageId, state: &mut RequestState<A>) {
        let deadline = state.rule(of.agent).phase(of.kind).timeout;
        while state.endpoint(of.agent).is_some() || self.sent == 0 {
            let (call, queued) = (self.call(of, self.sent), self.sent > 0);
            let Some(fragment) = self.fragments.get_mut(self.sent) else {
                return;
            };
            let endpoint = state.endpoint(of.agent).unwrap_or(0);
            let due = (!queued).then(|| state.due_at(now, of.agent, endpoint, deadline));
            let sent = FragmentState::Sent(due);
            let FragmentState::Unsent(event) = std::mem::replace(&mut fragment.asked, sent) else {
                return;
            };
            if state.endpoint(of.agent).is_none() {
                let endpoints = state.agents().endpoints(of.agent);
                let search = EndpointSearch::new(now, &event, None, endpoints, deadline);
                self.search = Some(search);
            }
            self.sent += 1;
            self.calls = true;
            state.push(RequestAction::Ask(AgentAsk {
                call,
                endpoint,
                event,
                deadline,
                queued,
                again: false,
            }));
        }
    }

    /// The call for the fragment that has so many before it.
    const fn call(&self, of: StageId, ahead: usize) -> CallId {
        CallId {
            agent: of.agent,
            part: of.part(),
            sequence: self.first.wrapping_add(ahead as u32),
        }
    }

    /// The answer to the first fragment. Where there is none yet, its time begins.
    fn first_answer<A: AgentList>(
        &mut self,
        now: Instant,
        of: StageId,
        state: &mut RequestState<A>,
    ) -> Option<Result<Response, CallError>> {
        if let Some(answer) = self.answer.take() {
            return Some(answer);
        }
        let call = self.call(of, 0);
        let fragment = self.fragments.front_mut()?;
        match &mut fragment.asked {
            FragmentState::Sent(due @ None) => {
                let deadline = state.rule(of.agent).phase(of.kind).timeout;
                let endpoint = state.endpoint(of.agent).unwrap_or(0);
                *due = Some(state.due_at(now, of.agent, endpoint, deadline));
                state.push(RequestAction::StartDeadline(call));
                None
            }
            FragmentState::Answered(answer) => {
                let lost = Err(CallError::Down);
                Some(std::mem::replace(&mut **answer, lost))
            }
            FragmentState::Unsent(_) | FragmentState::Sent(_) | FragmentState::Taken => None,
        }
    }

    /// Takes the answer to the first fragment.
    fn answered<A: AgentList>(
        &mut self,
        of: StageId,
        answer: Result<Response, CallError>,
        state: &mut RequestState<A>,
    ) -> Result<(), Decision> {
        let answer = state.checked(of.agent, of.kind, answer)?;
        self.sent = self.sent.saturating_sub(1);
        self.first = self.first.wrapping_add(1);
        let (Some(fragment), Some(chunk)) = (self.fragments.pop_front(), self.chunks.front_mut())
        else {
            return Ok(());
        };
        let ChunkPlan::Show(shown) = &mut chunk.plan else {
            return Ok(());
        };
        shown.unanswered -= 1;
        let Some(response) = answer else {
            shown.data.push(fragment.data);
            self.give_up(of, state);
            return Ok(());
        };
        shown.undecided = response.needs_more && !fragment.last;
        let undecided = shown.undecided;
        let mutation = state.take(of.agent, of.kind, response, undecided, &mut chunk.verdict)?;
        shown.changed |= mutation.is_some();
        shown.data.push(mutation.unwrap_or(fragment.data));
        if !state.asks(of.agent, of.kind) {
            self.give_up(of, state);
        }
        Ok(())
    }

    /// The agent is not asked about the rest of the body: what it has not answered passes.
    fn give_up<A>(&mut self, of: StageId, state: &mut RequestState<A>) {
        self.unseen = true;
        let mut fragments = self.take_fragments(of, state).into_iter();
        for chunk in &mut self.chunks {
            match &mut chunk.plan {
                // Some of it may be answered, and changed.
                ChunkPlan::Show(shown) => {
                    let rest = fragments
                        .by_ref()
                        .take(std::mem::take(&mut shown.unanswered));
                    shown.data.extend(rest.map(|fragment| fragment.data));
                    shown.undecided = false;
                }
                plan => *plan = ChunkPlan::Pass,
            }
        }
    }

    /// Nothing that the agent was sent is waited for any more. Gives it, with what it was not sent.
    fn take_fragments<A>(
        &mut self,
        of: StageId,
        state: &mut RequestState<A>,
    ) -> VecDeque<ChunkFragment> {
        if std::mem::take(&mut self.calls) {
            let (agent, part) = (of.agent, of.part());
            state.push(RequestAction::Abandon { agent, part });
        }
        self.first = self.first.wrapping_add(self.sent as u32);
        self.sent = 0;
        self.answer = None;
        self.search = None;
        std::mem::take(&mut self.fragments)
    }

    /// A chunk goes on, in the form in which it does.
    fn leave<A: AgentList>(
        &mut self,
        of: StageId,
        mut chunk: PipelineChunk,
        state: &mut RequestState<A>,
    ) -> Result<PipelineChunk, Decision> {
        let rule = state.rule(of.agent);
        let (observe, buffer_size) = (rule.observe, rule.buffer_size);
        match std::mem::replace(&mut chunk.plan, ChunkPlan::Pass) {
            // It passes as it is, and with the last one nothing stays held back.
            ChunkPlan::Pass if chunk.last && !observe => self.join(&mut chunk),
            ChunkPlan::Gather if !observe => chunk.data = Bytes::new(),
            ChunkPlan::Pass | ChunkPlan::Gather => {}
            ChunkPlan::TooLarge => self.too_large(of, &mut chunk, state)?,
            ChunkPlan::Show(_) if observe => {}
            ChunkPlan::Show(shown) => {
                shown.data.into_iter().for_each(|data| self.hold(data));
                if shown.changed {
                    chunk.total = None;
                }
                chunk.data = Bytes::new();
                if !shown.undecided {
                    chunk.data = self.release();
                } else if self.held_len > buffer_size {
                    self.give_up(of, state);
                    self.too_large(of, &mut chunk, state)?;
                }
            }
        }
        Ok(chunk)
    }

    /// A body that the agent cannot be shown: where that is allowed, all that was held back goes on.
    fn too_large<A: AgentList>(
        &mut self,
        of: StageId,
        chunk: &mut PipelineChunk,
        state: &mut RequestState<A>,
    ) -> Result<(), Decision> {
        let fault = AgentFault::BodyTooLarge;
        state.fault(of.agent, of.kind, fault, FaultCause::TooLarge)?;
        if state.rule(of.agent).observe {
            self.release();
        } else {
            self.join(chunk);
        }
        Ok(())
    }

    /// What was held back goes on before the chunk, with it.
    fn join(&mut self, chunk: &mut PipelineChunk) {
        self.hold(std::mem::take(&mut chunk.data));
        chunk.data = self.release();
    }

    fn hold(&mut self, data: Bytes) {
        self.held_len += data.len();
        if !data.is_empty() {
            self.held.push(data);
        }
    }

    fn release(&mut self) -> Bytes {
        self.held_len = 0;
        gathered(std::mem::take(&mut self.held))
    }
}

/// One after the other; copies only where there are several.
pub(crate) fn gathered(mut fragments: Vec<Bytes>) -> Bytes {
    match fragments.len() {
        0 => Bytes::new(),
        1 => fragments.swap_remove(0),
        _ => {
            let mut all = BytesMut::with_capacity(fragments.iter().map(Bytes::len).sum());
            for fragment in fragments {
                all.extend_from_slice(&fragment);
            }
            all.freeze()
        }
    }
}
