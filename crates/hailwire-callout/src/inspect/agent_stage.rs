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

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};

use super::{
    AgentFault, BodyMode, CallError, Verdict,
    request_state::{CallFuture, EndpointChoice, RequestState},
};
use crate::{Decision, Event, EventKind, Response, Text, event::BodyChunk, pool::StartSignal};

/// Most bytes of a body that one event carries, whatever an agent prefers: a frame of 16 MiB has them in base64.
pub(super) const MAX_CHUNK: u64 = 8 << 20;

/// Fewest, whatever an agent prefers.
const MIN_CHUNK: u64 = 1 << 10;

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
    /// When its time begins, where it was sent while others were unanswered.
    start: Option<StartSignal>,
    asked: FragmentState,
}

enum FragmentState {
    /// Until the endpoint is known.
    Unsent(Event),
    /// Never locked: it lets an exchange be shared between threads, which a future may not be.
    Sent(Mutex<CallFuture>),
    Answered(usize, Box<Result<Response, CallError>>),
}

/// One agent's stage in the pipeline of a body.
#[derive(Default)]
pub(super) struct AgentStage {
    /// In their order; the first is the one that is answered next.
    chunks: VecDeque<PipelineChunk>,
    /// The unanswered fragments of all chunks, in their order.
    fragments: VecDeque<ChunkFragment>,
    /// How many of them have been sent.
    sent: usize,
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
    pub(super) n: usize,
    pub(super) kind: EventKind,
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

    /// A chunk comes, and is shown to the agent if it is to be.
    pub(super) fn enter(&mut self, of: StageId, mut chunk: PipelineChunk, state: &RequestState) {
        chunk.plan = self.plan(of, &chunk, state);
        self.chunks.push_back(chunk);
        self.send(of, state);
    }

    /// The first chunk, once it goes on, as the agent left it.
    pub(super) fn poll_leave(
        &mut self,
        of: StageId,
        state: &mut RequestState,
        context: &mut Context<'_>,
    ) -> Poll<Result<PipelineChunk, Decision>> {
        while self.is_first_unanswered() {
            let (endpoint, answer) = ready!(self.poll_answer(context));
            state.found(of.n, endpoint);
            self.send(of, state);
            if let Err(decision) = self.answered(of, answer, state) {
                return Poll::Ready(Err(decision));
            }
        }
        match self.chunks.pop_front() {
            Some(chunk) => Poll::Ready(self.leave(of, chunk, state)),
            None => Poll::Pending,
        }
    }

    /// Everything that has not left, in its order. Nothing is waited for any more.
    pub(super) fn clear(&mut self) -> VecDeque<PipelineChunk> {
        self.fragments.clear();
        self.sent = 0;
        std::mem::take(&mut self.chunks)
    }

    fn is_first_unanswered(&self) -> bool {
        let first = self.chunks.front().map(|chunk| &chunk.plan);
        matches!(first, Some(ChunkPlan::Show(shown)) if shown.unanswered > 0)
    }

    /// What becomes of a chunk. What the agent is to be sent waits in `fragments` then.
    fn plan(&mut self, of: StageId, chunk: &PipelineChunk, state: &RequestState) -> ChunkPlan {
        let nothing = chunk.data.is_empty() && !chunk.last;
        if self.unseen || nothing || !state.asks(of.n, of.kind) {
            return ChunkPlan::Pass;
        }
        let rule = &state.point(of.n).rule;
        let known = state.capabilities(of.n);
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
                start: None,
                asked: FragmentState::Unsent(event),
            });
        }
        count
    }

    /// Sends what may leave: everything, once the endpoint is known.
    fn send(&mut self, of: StageId, state: &RequestState) {
        let timeout = state.point(of.n).rule.phase(of.kind).timeout;
        while state.endpoint(of.n).is_some() || self.sent == 0 {
            let ahead = self.sent;
            let Some(fragment) = self.fragments.get_mut(ahead) else {
                return;
            };
            let FragmentState::Unsent(event) = &fragment.asked else {
                return;
            };
            let start = (ahead > 0).then(StartSignal::default);
            let free = match (state.endpoint(of.n), &start) {
                (_, Some(start)) => EndpointChoice::Pipelined(start.clone()),
                (Some(_), None) => EndpointChoice::Same,
                (None, None) => EndpointChoice::Any,
            };
            let mut asking = state.asking(of.n, event.clone(), free, timeout);
            // It leaves when it is polled first. Who waits for its answer is said later.
            let mut nobody = Context::from_waker(Waker::noop());
            fragment.asked = match asking.as_mut().poll(&mut nobody) {
                Poll::Ready((endpoint, answer)) => {
                    FragmentState::Answered(endpoint, Box::new(answer))
                }
                Poll::Pending => FragmentState::Sent(Mutex::new(asking)),
            };
            fragment.start = start;
            self.sent += 1;
        }
    }

    /// The answer to the first fragment, and where it was asked.
    fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(usize, Result<Response, CallError>)> {
        let Some(fragment) = self.fragments.front_mut() else {
            return Poll::Pending;
        };
        if let Some(start) = &fragment.start {
            start.start();
        }
        match &mut fragment.asked {
            FragmentState::Unsent(_) => Poll::Pending,
            FragmentState::Answered(endpoint, answer) => {
                let lost = Err(CallError::Down);
                Poll::Ready((*endpoint, std::mem::replace(&mut **answer, lost)))
            }
            FragmentState::Sent(asking) => exclusive(asking).as_mut().poll(context),
        }
    }

    /// Takes the answer to the first fragment.
    fn answered(
        &mut self,
        of: StageId,
        answer: Result<Response, CallError>,
        state: &mut RequestState,
    ) -> Result<(), Decision> {
        let answer = state.checked(of.n, of.kind, answer)?;
        self.sent = self.sent.saturating_sub(1);
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
            self.give_up();
            return Ok(());
        };
        shown.undecided = response.needs_more && !fragment.last;
        let undecided = shown.undecided;
        let mutation = state.take(of.n, of.kind, response, undecided, &mut chunk.verdict)?;
        shown.changed |= mutation.is_some();
        shown.data.push(mutation.unwrap_or(fragment.data));
        if !state.asks(of.n, of.kind) {
            self.give_up();
        }
        Ok(())
    }

    /// The agent is not asked about the rest of the body: what it has not answered passes.
    fn give_up(&mut self) {
        self.unseen = true;
        // To drop what is asked is to cancel it.
        let mut fragments = std::mem::take(&mut self.fragments).into_iter();
        self.sent = 0;
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

    /// A chunk goes on, in the form in which it does.
    fn leave(
        &mut self,
        of: StageId,
        mut chunk: PipelineChunk,
        state: &RequestState,
    ) -> Result<PipelineChunk, Decision> {
        let rule = &state.point(of.n).rule;
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
                    self.give_up();
                    self.too_large(of, &mut chunk, state)?;
                }
            }
        }
        Ok(chunk)
    }

    /// A body that the agent cannot be shown: where that is allowed, all that was held back goes on.
    fn too_large(
        &mut self,
        of: StageId,
        chunk: &mut PipelineChunk,
        state: &RequestState,
    ) -> Result<(), Decision> {
        let why = "the body is too large";
        state.fault(of.n, of.kind, AgentFault::BodyTooLarge, why)?;
        if state.point(of.n).rule.observe {
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

/// What nobody else can have.
fn exclusive<T>(of: &mut Mutex<T>) -> &mut T {
    of.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// One after the other; copies only where there are several.
pub(super) fn gathered(mut fragments: Vec<Bytes>) -> Bytes {
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
