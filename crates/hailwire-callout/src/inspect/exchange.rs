//! One request on its way past the agents.

mod texts;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesOrdered};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    Action, Armed, BodyMode, BodyVerdict, Checkpoint, Fault, Unanswered, Verdict, WebSocketVerdict,
    policy,
};
use crate::{
    Decision, Event, Kind, Response, Text,
    capabilities::Capabilities,
    control::CancelReason,
    event::{BodyChunk, RequestComplete, RequestHeaders, ResponseHeaders, WebSocketFrame},
    response::WebSocketDecision,
};

/// Most bytes of a body that one event carries, whatever an agent prefers: a frame of 16 MiB has them in base64.
pub(super) const MAX_PIECE: u64 = 8 << 20;

/// Fewest, whatever an agent prefers.
const MIN_PIECE: u64 = 1 << 10;

/// What an agent that has not said it yet is taken to prefer.
const PIECE: u64 = 64 << 10;

/// One request and its response, shown to the agents as they pass.
///
/// The events of an exchange come in the order of the protocol: the head of the request, its body, the head of the
/// response, its body; then [`complete`](Self::complete). What does not occur is left out. All have the same
/// correlation id, which no other exchange has meanwhile.
///
/// # Cancel safety
///
/// A dropped future of one of its methods leaves the exchange with a hole: drop the exchange too.
pub struct Exchange {
    points: Arc<[Armed]>,
    states: Box<[State]>,
    id: Text,
    request: Text,
    over: Option<Decision>,
    complete: bool,
}

/// What an exchange knows of one agent.
#[derive(Default)]
struct State {
    /// Where it was asked first.
    place: Option<usize>,
    /// It is not asked any more: it observes, and would have blocked.
    silent: bool,
    /// It decided.
    decided: bool,
    request: Flow,
    response: Flow,
}

/// A body as one agent sees it.
#[derive(Default)]
struct Flow {
    index: u32,
    seen: u64,
    held: Vec<Bytes>,
    held_len: usize,
    /// The rest of it is not shown.
    unseen: bool,
}

/// A piece of a body between two agents.
struct Piece {
    data: Bytes,
    last: bool,
    total: Option<u64>,
}

impl Exchange {
    pub(super) fn new(points: Arc<[Armed]>) -> Self {
        Self {
            states: points.iter().map(|_| State::default()).collect(),
            points,
            id: Text::new(),
            request: Text::new(),
            over: None,
            complete: false,
        }
    }

    /// Whether any agent is to be asked about events of a kind, as far as this request has come.
    #[must_use]
    pub fn wants(&self, kind: Kind) -> bool {
        self.over.is_none() && (0..self.points.len()).any(|n| self.asks(n, kind))
    }

    #[cfg(test)]
    pub(super) fn points_are_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// What was decided, where it does not pass.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Decision> {
        self.over.as_ref()
    }

    /// The head of the request.
    pub async fn request_headers(&mut self, event: RequestHeaders) -> Verdict {
        self.request = Text::from(event.metadata().request_id);
        self.head(Event::RequestHeaders(event)).await
    }

    /// A piece of the request's body.
    pub async fn request_body(&mut self, piece: BodyChunk) -> BodyVerdict {
        self.body(Kind::RequestBody, piece).await
    }

    /// The head of the response.
    pub async fn response_headers(&mut self, event: ResponseHeaders) -> Verdict {
        self.head(Event::ResponseHeaders(event)).await
    }

    /// A piece of the response's body.
    pub async fn response_body(&mut self, piece: BodyChunk) -> BodyVerdict {
        self.body(Kind::ResponseBody, piece).await
    }

    /// A WebSocket frame. An agent that blocks closes with 1008, one that does not answer with 1011.
    pub async fn websocket(&mut self, frame: WebSocketFrame) -> WebSocketVerdict {
        let mut out = WebSocketVerdict::default();
        if self.over.is_some() {
            out.decision = close(1008);
            return out;
        }
        self.begin(&frame.correlation_id);
        for n in 0..self.points.len() {
            if !self.asks(n, Kind::WebSocketFrame) {
                continue;
            }
            let mut verdict = Verdict::default();
            let event = Event::WebSocketFrame(frame.clone());
            let answer = self.one(n, event, &mut verdict).await;
            out.audits.append(&mut verdict.audits);
            match answer {
                Ok(Some(response)) => match response.websocket.unwrap_or_default() {
                    WebSocketDecision::Allow => {}
                    _ if self.shadow(n, Kind::WebSocketFrame) => {}
                    other => {
                        out.decision = other;
                        return out;
                    }
                },
                Ok(None) => {}
                Err(decision) => {
                    let fault = !self.states[n].decided;
                    self.over = Some(decision);
                    out.decision = close(if fault { 1011 } else { 1008 });
                    return out;
                }
            }
        }
        out
    }

    /// The request has ended. Agents that keep records are told; their answers decide nothing.
    pub async fn complete(&mut self, event: RequestComplete) {
        self.begin(&event.correlation_id);
        self.complete = true;
        let kind = Kind::RequestComplete;
        let told = (0..self.points.len()).filter(|n| self.asks(*n, kind));
        let told = told.map(|n| {
            let event = Event::RequestComplete(event.clone());
            let (point, place) = (&self.points[n].point, self.states[n].place);
            self.points[n].tally.ask(kind);
            ask(point, place, true, event, point.rule.phase(kind).timeout)
        });
        for (_, answer) in join_all(told).await {
            if let Err(error) = answer {
                debug!(request = %self.request, %error, "an agent does not know that a request has ended");
            }
        }
    }

    async fn head(&mut self, event: Event) -> Verdict {
        let mut verdict = Verdict::default();
        if let Some(decision) = &self.over {
            verdict.decision = decision.clone();
            return verdict;
        }
        self.begin(&Text::from(event.id()));
        for n in 0..self.points.len() {
            if !self.asks(n, event.kind()) {
                continue;
            }
            if let Err(decision) = self.one(n, event.clone(), &mut verdict).await {
                self.over = Some(decision.clone());
                verdict.decision = decision;
                break;
            }
        }
        verdict
    }

    async fn body(&mut self, kind: Kind, chunk: BodyChunk) -> BodyVerdict {
        let mut out = BodyVerdict::default();
        if let Some(decision) = &self.over {
            out.verdict.decision = decision.clone();
            return out;
        }
        self.begin(&chunk.correlation_id);
        let mut piece = Piece {
            data: chunk.data,
            last: chunk.is_last,
            total: chunk.total_size,
        };
        for n in 0..self.points.len() {
            if !self.asks(n, kind) {
                continue;
            }
            if piece.data.is_empty() && !piece.last {
                break;
            }
            if let Err(decision) = self.piece(n, kind, &mut piece, &mut out.verdict).await {
                self.over = Some(decision.clone());
                out.verdict.decision = decision;
                return out;
            }
        }
        out.data = piece.data;
        out
    }

    /// Shows one agent a piece, and leaves in its place what goes on.
    async fn piece(
        &mut self,
        n: usize,
        kind: Kind,
        piece: &mut Piece,
        verdict: &mut Verdict,
    ) -> Result<(), Decision> {
        let (rule, known) = (&self.points[n].point.rule, self.capabilities(n));
        let (observe, buffer_size) = (rule.observe, rule.buffer_size);
        let mode = rule.body(kind).mode;
        let most = rule.most(kind, known.as_deref());
        let flow = self.states[n].flow(kind);
        if flow.unseen {
            return Ok(());
        }
        let seen = flow.seen + flow.unsent(mode) + piece.data.len() as u64;
        if seen > most || piece.total.is_some_and(|total| total > most) {
            return self.too_large(n, kind, piece);
        }
        let mut shown = piece.data.clone();
        if mode == BodyMode::Buffer {
            flow.hold(shown);
            if flow.held_len > buffer_size {
                piece.data = Bytes::new();
                return self.too_large(n, kind, piece);
            }
            if !piece.last {
                if !observe {
                    piece.data = Bytes::new();
                }
                return Ok(());
            }
            shown = flow.release();
        }
        let size = match mode {
            BodyMode::Stream => known.map_or(PIECE, |c| c.limits.preferred_chunk_size),
            BodyMode::Buffer => MAX_PIECE,
        };
        let events = self.events(n, kind, &shown, piece, size);
        let shown = self.parts(n, kind, shown, events, verdict).await?;
        if observe {
            return Ok(());
        }
        let flow = self.states[n].flow(kind);
        flow.hold(shown.data);
        if shown.changed {
            piece.total = None;
        }
        if !shown.undecided || flow.unseen {
            piece.data = flow.release();
            return Ok(());
        }
        piece.data = Bytes::new();
        if flow.held_len > buffer_size {
            return self.too_large(n, kind, piece);
        }
        Ok(())
    }

    /// The events that show a piece: each at most as large as the agent wants.
    fn events(
        &mut self,
        n: usize,
        kind: Kind,
        data: &Bytes,
        piece: &Piece,
        size: u64,
    ) -> Vec<Event> {
        let size = size.clamp(MIN_PIECE, MAX_PIECE) as usize;
        let count = data.len().div_ceil(size).max(1);
        let id = self.id.clone();
        let flow = self.states[n].flow(kind);
        let events = (0..count).map(|part| {
            let (from, to) = (part * size, ((part + 1) * size).min(data.len()));
            flow.seen += (to - from) as u64;
            let chunk = BodyChunk {
                correlation_id: id.clone(),
                data: data.slice(from..to),
                is_last: piece.last && part + 1 == count,
                total_size: piece.total,
                index: flow.index,
                transferred: flow.seen,
            };
            flow.index = flow.index.saturating_add(1);
            match kind {
                Kind::ResponseBody => Event::ResponseBody(chunk),
                _ => Event::RequestBody(chunk),
            }
        });
        events.collect()
    }

    /// Asks about the parts of a piece side by side, and takes the answers in their order.
    async fn parts(
        &mut self,
        n: usize,
        kind: Kind,
        data: Bytes,
        events: Vec<Event>,
        verdict: &mut Verdict,
    ) -> Result<Shown, Decision> {
        let mut shown = Shown::default();
        let mut originals = Vec::with_capacity(events.len());
        let mut events = events.into_iter().inspect(|event| {
            if let Event::RequestBody(chunk) | Event::ResponseBody(chunk) = event {
                originals.push((chunk.data.clone(), chunk.is_last));
            }
        });
        let points = Arc::clone(&self.points);
        let point = &points[n].point;
        let timeout = point.rule.phase(kind).timeout;
        let mut answers = FuturesOrdered::new();
        if self.states[n].place.is_none()
            && let Some(first) = events.next()
        {
            // The first one finds the place for all.
            points[n].tally.ask(kind);
            let (place, answer) = ask(point, None, true, first, timeout).await;
            self.states[n].place = Some(place);
            answers.push_back(ready(answer));
        }
        let place = self.states[n].place;
        for (part, event) in (1_u32..).zip(events) {
            points[n].tally.ask(kind);
            // Where a peer takes one at a time, the later ones wait for the earlier.
            let deadline = timeout.saturating_mul(part);
            answers.push_back(later(point, place, event, deadline));
        }
        let mut rest = data;
        for (original, is_last) in originals {
            let Some(answer) = answers.next().await else {
                break;
            };
            let response = match self.checked(n, kind, answer)? {
                Some(response) => response,
                None => {
                    self.states[n].flow(kind).unseen = true;
                    shown.push(&rest);
                    return Ok(shown);
                }
            };
            rest = rest.slice(original.len()..);
            shown.undecided = response.needs_more && !is_last;
            let mutation = self.take(n, kind, response, shown.undecided, verdict)?;
            shown.changed |= mutation.is_some();
            shown.push(&mutation.unwrap_or(original));
        }
        Ok(shown)
    }

    /// Asks one agent one thing. `None` where it does not answer and that is allowed.
    async fn one(
        &mut self,
        n: usize,
        event: Event,
        verdict: &mut Verdict,
    ) -> Result<Option<Response>, Decision> {
        let kind = event.kind();
        let points = Arc::clone(&self.points);
        let point = &points[n].point;
        points[n].tally.ask(kind);
        let timeout = point.rule.phase(kind).timeout;
        let (place, answer) = ask(point, self.states[n].place, true, event, timeout).await;
        self.states[n].place = Some(place);
        let Some(mut response) = self.checked(n, kind, answer)? else {
            return Ok(None);
        };
        let websocket = response.websocket.take();
        self.take(n, kind, response, false, verdict)?;
        Ok(Some(Response {
            websocket,
            ..Response::default()
        }))
    }

    /// An answer that can be meant; `None` where there is none and that is allowed.
    fn checked(
        &mut self,
        n: usize,
        kind: Kind,
        answer: Result<Response, Unanswered>,
    ) -> Result<Option<Response>, Decision> {
        let (fault, why) = match answer {
            Ok(response) => match policy::check(&response) {
                Ok(()) => return Ok(Some(response)),
                Err(lie) => (Fault::Error, lie.to_owned()),
            },
            Err(unanswered) => (fault_of(&unanswered), unanswered.to_string()),
        };
        self.fault(n, kind, fault, &why).map(|()| None)
    }

    /// Adds an answer to the verdict. Gives what goes on in place of a piece, where that is changed.
    fn take(
        &mut self,
        n: usize,
        kind: Kind,
        mut response: Response,
        undecided: bool,
        verdict: &mut Verdict,
    ) -> Result<Option<Bytes>, Decision> {
        let Armed { point, tally } = &self.points[n];
        if response.audit != crate::response::Audit::default() {
            verdict.audits.push((point.name.clone(), response.audit));
        }
        let stops = response.decision != Decision::Allow && !undecided;
        if point.rule.observe {
            if stops {
                tally.observe(kind);
                self.states[n].silent = true;
                debug!(request = %self.request, agent = %point.name, phase = kind.name(), "would have been stopped");
            }
            return Ok(None);
        }
        verdict
            .request_headers
            .append(&mut response.request_headers);
        verdict
            .response_headers
            .append(&mut response.response_headers);
        verdict
            .routing_metadata
            .append(&mut response.routing_metadata);
        if stops {
            tally.stop(kind);
            self.states[n].decided = true;
            debug!(request = %self.request, agent = %point.name, phase = kind.name(), "stopped");
            return Err(response.decision);
        }
        let mutation = match kind {
            Kind::RequestBody => response.request_body,
            Kind::ResponseBody => response.response_body,
            _ => None,
        };
        Ok(mutation.and_then(|mutation| mutation.data))
    }

    /// A body that an agent cannot be shown: where that is allowed, all that was held back goes on.
    fn too_large(&mut self, n: usize, kind: Kind, piece: &mut Piece) -> Result<(), Decision> {
        let flow = self.states[n].flow(kind);
        flow.unseen = true;
        let held = flow.release();
        self.fault(n, kind, Fault::BodyTooLarge, "the body is too large")?;
        if !self.points[n].point.rule.observe {
            piece.data = joined(held, &piece.data);
        }
        Ok(())
    }

    /// What happens where there is no answer.
    fn fault(&self, n: usize, kind: Kind, fault: Fault, why: &str) -> Result<(), Decision> {
        let Armed { point, tally } = &self.points[n];
        let (request, agent, phase) = (&self.request, &point.name, kind.name());
        match point.rule.on(kind, fault) {
            Action::Block(_) if point.rule.observe => {
                tally.observe(kind);
                debug!(%request, %agent, phase, fault = fault.name(), why, "would have been blocked");
                Ok(())
            }
            Action::Allow => {
                if !point.rule.observe {
                    tally.bypass(kind, fault);
                    warn!(%request, %agent, phase, fault = fault.name(), why, "passes uninspected");
                }
                Ok(())
            }
            Action::Block(status) => {
                tally.block(kind, fault);
                debug!(%request, %agent, phase, fault = fault.name(), why, "blocked");
                Err(Decision::Block {
                    status,
                    body: None,
                    headers: BTreeMap::new(),
                })
            }
        }
    }

    /// Whether an agent observes; what it would have done is counted then.
    fn shadow(&mut self, n: usize, kind: Kind) -> bool {
        let Armed { point, tally } = &self.points[n];
        match point.rule.observe {
            true => tally.observe(kind),
            false => tally.stop(kind),
        }
        point.rule.observe
    }

    fn begin(&mut self, id: &Text) {
        if self.id.is_empty() {
            self.id = id.clone();
        }
        if self.request.is_empty() {
            self.request = id.clone();
        }
    }

    fn asks(&self, n: usize, kind: Kind) -> bool {
        let state = &self.states[n];
        let unseen = match kind {
            Kind::RequestBody => state.request.unseen,
            Kind::ResponseBody => state.response.unseen,
            _ => false,
        };
        let known = || self.capabilities(n);
        !state.silent && !unseen && self.points[n].point.rule.wants(kind, known().as_deref())
    }

    /// What the agent says of itself at the place where this exchange asks it.
    fn capabilities(&self, n: usize) -> Option<Arc<Capabilities>> {
        let places = &self.points[n].point.places;
        match self.states[n].place {
            Some(place) => places.get(place)?.capabilities(),
            None => places.iter().find_map(|place| place.capabilities()),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let reason = match self.over {
            Some(_) => CancelReason::BlockedByAgent,
            None => CancelReason::ClientDisconnect,
        };
        for (armed, state) in self.points.iter().zip(&self.states) {
            let place = state.place.and_then(|place| armed.point.places.get(place));
            let Some(place) = place else {
                continue;
            };
            if !self.complete && !state.decided {
                place.cancel(&self.id, reason);
            }
            place.done(&self.id);
        }
    }
}

impl State {
    fn flow(&mut self, kind: Kind) -> &mut Flow {
        match kind {
            Kind::ResponseBody => &mut self.response,
            _ => &mut self.request,
        }
    }
}

impl Flow {
    /// Bytes that are gathered and were not shown yet.
    fn unsent(&self, mode: BodyMode) -> u64 {
        match mode {
            BodyMode::Buffer => self.held_len as u64,
            BodyMode::Stream => 0,
        }
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

/// What became of a piece that was shown.
#[derive(Default)]
struct Shown {
    data: Bytes,
    changed: bool,
    undecided: bool,
}

impl Shown {
    fn push(&mut self, data: &Bytes) {
        self.data = joined(std::mem::take(&mut self.data), data);
    }
}

/// Asks at one place after the other, within the deadline. Gives the last place asked.
///
/// The next place is tried where one is full, down or fails, and only where the event stands for itself (`free`):
/// a piece of a body goes where the ones before it went.
async fn ask(
    point: &Checkpoint,
    place: Option<usize>,
    free: bool,
    event: Event,
    deadline: Duration,
) -> (usize, Result<Response, Unanswered>) {
    let first = place.unwrap_or(0);
    let others = (0..point.places.len()).filter(|n| *n != first && free);
    let begin = Instant::now();
    let mut last = (first, Err(Unanswered::Down));
    for n in std::iter::once(first).chain(others) {
        let Some(asked) = point.places.get(n) else {
            break;
        };
        let left = deadline.saturating_sub(begin.elapsed());
        last = (n, asked.ask(event.clone(), left).await);
        match &last.1 {
            Err(Unanswered::Overload | Unanswered::Down | Unanswered::Failed(_)) => {}
            _ => break,
        }
    }
    last
}

type Answer<'a> = futures_util::future::BoxFuture<'a, Result<Response, Unanswered>>;

fn later(point: &Checkpoint, place: Option<usize>, event: Event, deadline: Duration) -> Answer<'_> {
    Box::pin(async move { ask(point, place, false, event, deadline).await.1 })
}

fn ready<'a>(answer: Result<Response, Unanswered>) -> Answer<'a> {
    Box::pin(std::future::ready(answer))
}

const fn fault_of(unanswered: &Unanswered) -> Fault {
    match unanswered {
        Unanswered::Timeout => Fault::Timeout,
        Unanswered::Overload => Fault::Overload,
        Unanswered::TooLarge => Fault::BodyTooLarge,
        Unanswered::Down | Unanswered::Failed(_) => Fault::Error,
    }
}

const fn close(code: u16) -> WebSocketDecision {
    WebSocketDecision::Close {
        code,
        reason: String::new(),
    }
}

/// One after the other; copies only where there are several.
fn gathered(mut parts: Vec<Bytes>) -> Bytes {
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

fn joined(head: Bytes, tail: &Bytes) -> Bytes {
    match (head.is_empty(), tail.is_empty()) {
        (true, _) => tail.clone(),
        (_, true) => head,
        _ => gathered(vec![head, tail.clone()]),
    }
}
