//! One agent's part in the course of a body: what it is shown, what it has not answered yet, what is held back.
//!
//! Pieces leave it in the order in which they entered, each when all of its parts are answered. A part is shown as soon as its piece
//! enters, whatever else is unanswered: the connection's window decides how much is on the way. Only while it is not known which place
//! answers for the agent, one part is asked and the others wait.
//!
//! Each part has the phase's timeout from the moment when it is the first that is unanswered; one that takes longer is the
//! agent's failure, as with any event. The pieces behind one
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
    round::{CallFuture, EndpointChoice, RequestState},
};
use crate::{Decision, Event, EventKind, Response, Text, event::BodyChunk, pool::StartSignal};

/// Most bytes of a body that one event carries, whatever an agent prefers: a frame of 16 MiB has them in base64.
pub(super) const MAX_PIECE: u64 = 8 << 20;

/// Fewest, whatever an agent prefers.
const MIN_PIECE: u64 = 1 << 10;

/// What an agent that has not said it yet is taken to prefer.
const PIECE: u64 = 64 << 10;

/// A piece of a body between the agents.
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

/// What becomes of a piece at one agent.
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

/// What became of a piece that was shown.
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
    turn: Option<StartSignal>,
    asked: FragmentState,
}

enum FragmentState {
    /// Until the place is known.
    Not(Event),
    /// Never locked: it lets an exchange be shared between threads, which a future may not be.
    Under(Mutex<CallFuture>),
    Answered(usize, Box<Result<Response, CallError>>),
}

/// One agent's part in the course of a body.
#[derive(Default)]
pub(super) struct AgentStage {
    /// In their order; the first is the one that is answered next.
    pieces: VecDeque<PipelineChunk>,
    /// The unanswered parts of all pieces, in their order.
    parts: VecDeque<ChunkFragment>,
    /// How many of them have been sent.
    sent: usize,
    index: u32,
    seen: u64,
    held: Vec<Bytes>,
    held_len: usize,
    /// The rest of the body is not shown.
    unseen: bool,
}

/// Whose leg it is.
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

    /// A piece comes, and is shown to the agent if it is to be.
    pub(super) fn enter(&mut self, of: StageId, mut piece: PipelineChunk, round: &RequestState) {
        piece.plan = self.plan(of, &piece, round);
        self.pieces.push_back(piece);
        self.send(of, round);
    }

    /// The first piece, once it goes on, as the agent left it.
    pub(super) fn poll_leave(
        &mut self,
        of: StageId,
        round: &mut RequestState,
        context: &mut Context<'_>,
    ) -> Poll<Result<PipelineChunk, Decision>> {
        while self.is_first_unanswered() {
            let (place, answer) = ready!(self.poll_answer(context));
            round.found(of.n, place);
            self.send(of, round);
            if let Err(decision) = self.answered(of, answer, round) {
                return Poll::Ready(Err(decision));
            }
        }
        match self.pieces.pop_front() {
            Some(piece) => Poll::Ready(self.leave(of, piece, round)),
            None => Poll::Pending,
        }
    }

    /// Everything that has not left, in its order. Nothing is waited for any more.
    pub(super) fn clear(&mut self) -> VecDeque<PipelineChunk> {
        self.parts.clear();
        self.sent = 0;
        std::mem::take(&mut self.pieces)
    }

    fn is_first_unanswered(&self) -> bool {
        let first = self.pieces.front().map(|piece| &piece.plan);
        matches!(first, Some(ChunkPlan::Show(shown)) if shown.unanswered > 0)
    }

    /// What becomes of a piece. What it is shown as waits in `parts` then.
    fn plan(&mut self, of: StageId, piece: &PipelineChunk, round: &RequestState) -> ChunkPlan {
        let nothing = piece.data.is_empty() && !piece.last;
        if self.unseen || nothing || !round.asks(of.n, of.kind) {
            return ChunkPlan::Pass;
        }
        let rule = &round.point(of.n).rule;
        let known = round.capabilities(of.n);
        let mode = rule.body(of.kind).mode;
        let most = rule.most(of.kind, known.as_deref());
        let gathered = match mode {
            BodyMode::Buffer => self.held_len,
            BodyMode::Stream => 0,
        };
        let whole = gathered + piece.data.len();
        let large =
            self.seen + whole as u64 > most || piece.total.is_some_and(|total| total > most);
        if large || (mode == BodyMode::Buffer && whole > rule.buffer_size) {
            self.unseen = true;
            return ChunkPlan::TooLarge;
        }
        let (shown, size) = match mode {
            BodyMode::Stream => {
                let size = known.map_or(PIECE, |c| c.limits.preferred_chunk_size);
                (piece.data.clone(), size)
            }
            BodyMode::Buffer => {
                self.hold(piece.data.clone());
                if !piece.last {
                    return ChunkPlan::Gather;
                }
                (self.release(), MAX_PIECE)
            }
        };
        let unanswered = self.cut(of.kind, round.id(), &shown, piece, size);
        ChunkPlan::Show(ChunkProgress {
            unanswered,
            ..ChunkProgress::default()
        })
    }

    /// Cuts what is shown into parts, each at most as large as the agent wants. Gives how many.
    fn cut(
        &mut self,
        kind: EventKind,
        id: &Text,
        data: &Bytes,
        piece: &PipelineChunk,
        size: u64,
    ) -> usize {
        let size = size.clamp(MIN_PIECE, MAX_PIECE) as usize;
        let count = data.len().div_ceil(size).max(1);
        for part in 0..count {
            let (from, to) = (part * size, ((part + 1) * size).min(data.len()));
            self.seen += (to - from) as u64;
            let (data, last) = (data.slice(from..to), piece.last && part + 1 == count);
            let chunk = BodyChunk {
                correlation_id: id.clone(),
                data: data.clone(),
                is_last: last,
                total_size: piece.total,
                index: self.index,
                transferred: self.seen,
            };
            self.index = self.index.saturating_add(1);
            let event = match kind {
                EventKind::ResponseBody => Event::ResponseBody(chunk),
                _ => Event::RequestBody(chunk),
            };
            self.parts.push_back(ChunkFragment {
                data,
                last,
                turn: None,
                asked: FragmentState::Not(event),
            });
        }
        count
    }

    /// Sends what may leave: everything, once the place is known.
    fn send(&mut self, of: StageId, round: &RequestState) {
        let timeout = round.point(of.n).rule.phase(of.kind).timeout;
        while round.place(of.n).is_some() || self.sent == 0 {
            let ahead = self.sent;
            let Some(part) = self.parts.get_mut(ahead) else {
                return;
            };
            let FragmentState::Not(event) = &part.asked else {
                return;
            };
            let turn = (ahead > 0).then(StartSignal::default);
            let free = match (round.place(of.n), &turn) {
                (_, Some(turn)) => EndpointChoice::Behind(turn.clone()),
                (Some(_), None) => EndpointChoice::No,
                (None, None) => EndpointChoice::Yes,
            };
            let mut asking = round.asking(of.n, event.clone(), free, timeout);
            // It leaves when it is polled first. Who waits for its answer is said later.
            let mut nobody = Context::from_waker(Waker::noop());
            part.asked = match asking.as_mut().poll(&mut nobody) {
                Poll::Ready((place, answer)) => FragmentState::Answered(place, Box::new(answer)),
                Poll::Pending => FragmentState::Under(Mutex::new(asking)),
            };
            part.turn = turn;
            self.sent += 1;
        }
    }

    /// The answer to the first part, and where it was asked.
    fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(usize, Result<Response, CallError>)> {
        let Some(part) = self.parts.front_mut() else {
            return Poll::Pending;
        };
        if let Some(turn) = &part.turn {
            turn.come();
        }
        match &mut part.asked {
            FragmentState::Not(_) => Poll::Pending,
            FragmentState::Answered(place, answer) => {
                let lost = Err(CallError::Down);
                Poll::Ready((*place, std::mem::replace(&mut **answer, lost)))
            }
            FragmentState::Under(asking) => alone(asking).as_mut().poll(context),
        }
    }

    /// Takes the answer to the first part.
    fn answered(
        &mut self,
        of: StageId,
        answer: Result<Response, CallError>,
        round: &mut RequestState,
    ) -> Result<(), Decision> {
        let answer = round.checked(of.n, of.kind, answer)?;
        self.sent = self.sent.saturating_sub(1);
        let (Some(part), Some(piece)) = (self.parts.pop_front(), self.pieces.front_mut()) else {
            return Ok(());
        };
        let ChunkPlan::Show(shown) = &mut piece.plan else {
            return Ok(());
        };
        shown.unanswered -= 1;
        let Some(response) = answer else {
            shown.data.push(part.data);
            self.give_up();
            return Ok(());
        };
        shown.undecided = response.needs_more && !part.last;
        let undecided = shown.undecided;
        let mutation = round.take(of.n, of.kind, response, undecided, &mut piece.verdict)?;
        shown.changed |= mutation.is_some();
        shown.data.push(mutation.unwrap_or(part.data));
        if !round.asks(of.n, of.kind) {
            self.give_up();
        }
        Ok(())
    }

    /// The agent is not asked about the rest of the body: what it has not answered passes.
    fn give_up(&mut self) {
        self.unseen = true;
        // To drop what is asked is to cancel it.
        let mut parts = std::mem::take(&mut self.parts).into_iter();
        self.sent = 0;
        for piece in &mut self.pieces {
            match &mut piece.plan {
                // Some of it may be answered, and changed.
                ChunkPlan::Show(shown) => {
                    let rest = parts.by_ref().take(std::mem::take(&mut shown.unanswered));
                    shown.data.extend(rest.map(|part| part.data));
                    shown.undecided = false;
                }
                plan => *plan = ChunkPlan::Pass,
            }
        }
    }

    /// A piece goes on, in the form in which it does.
    fn leave(
        &mut self,
        of: StageId,
        mut piece: PipelineChunk,
        round: &RequestState,
    ) -> Result<PipelineChunk, Decision> {
        let rule = &round.point(of.n).rule;
        let (observe, buffer_size) = (rule.observe, rule.buffer_size);
        match std::mem::replace(&mut piece.plan, ChunkPlan::Pass) {
            // It passes as it is, and with the last one nothing stays held back.
            ChunkPlan::Pass if piece.last && !observe => self.join(&mut piece),
            ChunkPlan::Gather if !observe => piece.data = Bytes::new(),
            ChunkPlan::Pass | ChunkPlan::Gather => {}
            ChunkPlan::TooLarge => self.too_large(of, &mut piece, round)?,
            ChunkPlan::Show(_) if observe => {}
            ChunkPlan::Show(shown) => {
                shown.data.into_iter().for_each(|data| self.hold(data));
                if shown.changed {
                    piece.total = None;
                }
                piece.data = Bytes::new();
                if !shown.undecided {
                    piece.data = self.release();
                } else if self.held_len > buffer_size {
                    self.give_up();
                    self.too_large(of, &mut piece, round)?;
                }
            }
        }
        Ok(piece)
    }

    /// A body that the agent cannot be shown: where that is allowed, all that was held back goes on.
    fn too_large(
        &mut self,
        of: StageId,
        piece: &mut PipelineChunk,
        round: &RequestState,
    ) -> Result<(), Decision> {
        let why = "the body is too large";
        round.fault(of.n, of.kind, AgentFault::BodyTooLarge, why)?;
        if round.point(of.n).rule.observe {
            self.release();
        } else {
            self.join(piece);
        }
        Ok(())
    }

    /// What was held back goes on before the piece, with it.
    fn join(&mut self, piece: &mut PipelineChunk) {
        self.hold(std::mem::take(&mut piece.data));
        piece.data = self.release();
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
fn alone<T>(of: &mut Mutex<T>) -> &mut T {
    of.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// One after the other; copies only where there are several.
pub(super) fn gathered(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        0 => Bytes::new(),
        1 => parts.swap_remove(0),
        _ => {
            let mut all = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
            for part in parts {
                all.extend_from_slice(&part);
            }
            all.freeze()
        }
    }
}
