//! One request on its way past the agents.

mod texts;

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::join_all;
use tracing::debug;

use super::{
    BodyVerdict, CountedCheckpoint, Verdict, WebSocketVerdict,
    agent_stage::gathered,
    body_pipeline::BodyPipeline,
    request_state::{EndpointChoice, RequestState},
};
use crate::{
    Decision, Event, EventKind, Text,
    event::{BodyChunk, RequestComplete, RequestHeaders, ResponseHeaders, WebSocketFrame},
    response::WebSocketDecision,
};

/// One request and its response, shown to the agents as they pass.
///
/// The events of an exchange come in the order of the protocol: the head of the request, its body, the head of the
/// response, its body; then [`complete`](Self::complete). What does not occur is left out. All have the same
/// correlation id, which no other exchange has meanwhile.
///
/// A body is shown in one of two ways. [`request_body`](Self::request_body) and [`response_body`](Self::response_body) show a chunk and
/// wait for what becomes of it, which takes a round trip to each agent for each chunk. With
/// [`show_request_body`](Self::show_request_body) and [`show_response_body`](Self::show_response_body) chunks leave while the
/// verdicts on earlier ones are still on the way, and [`shown`](Self::shown) gives these in their order; the caller shows more as long as
/// there is [room](Self::has_room).
///
/// # Cancel safety
///
/// A dropped future of one of its methods leaves the exchange with a hole: drop the exchange too. [`shown`](Self::shown) is the
/// exception: it loses nothing.
pub struct Exchange {
    state: RequestState,
    request: BodyPipeline,
    response: BodyPipeline,
    complete: bool,
}

impl Exchange {
    pub(super) fn new(points: Arc<[CountedCheckpoint]>) -> Self {
        Self {
            request: BodyPipeline::new(EventKind::RequestBody, points.len()),
            response: BodyPipeline::new(EventKind::ResponseBody, points.len()),
            state: RequestState::new(points),
            complete: false,
        }
    }

    /// Whether any agent is to be asked about events of a kind, as far as this request has come.
    #[must_use]
    pub fn wants(&self, kind: EventKind) -> bool {
        let unseen = |n| match kind {
            EventKind::RequestBody => self.request.is_unseen(n),
            EventKind::ResponseBody => self.response.is_unseen(n),
            _ => false,
        };
        let asks = |n| !unseen(n) && self.state.asks(n, kind);
        self.state.over().is_none() && (0..self.state.count()).any(asks)
    }

    #[cfg(test)]
    pub(super) fn points_are_empty(&self) -> bool {
        self.state.count() == 0
    }

    /// What was decided, where it does not pass.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Decision> {
        self.state.over()
    }

    /// The head of the request.
    pub async fn request_headers(&mut self, event: RequestHeaders) -> Verdict {
        self.state.names(event.metadata().request_id);
        self.head(Event::RequestHeaders(event)).await
    }

    /// A chunk of the request's body.
    ///
    /// What was shown before and has no verdict yet is waited for too, and its data and changes are part of this verdict.
    pub async fn request_body(&mut self, chunk: BodyChunk) -> BodyVerdict {
        self.show_request_body(chunk);
        self.rest(EventKind::RequestBody).await
    }

    /// The head of the response.
    pub async fn response_headers(&mut self, event: ResponseHeaders) -> Verdict {
        self.head(Event::ResponseHeaders(event)).await
    }

    /// A chunk of the response's body, as [`request_body`](Self::request_body).
    pub async fn response_body(&mut self, chunk: BodyChunk) -> BodyVerdict {
        self.show_response_body(chunk);
        self.rest(EventKind::ResponseBody).await
    }

    /// Shows a chunk of the request's body, and does not wait: [`shown`](Self::shown) says what becomes of it.
    ///
    /// It leaves at once as far as the window toward its agent goes, 512 KiB or less for one of ours; toward others, which
    /// take one chunk at a time, it waits in the connection. Its phase's timeout counts from the answer to the chunk
    /// before it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn show_request_body(&mut self, chunk: BodyChunk) {
        self.state.begin(&chunk.correlation_id);
        self.request.show(chunk, &self.state);
    }

    /// Shows a chunk of the response's body, as [`show_request_body`](Self::show_request_body).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn show_response_body(&mut self, chunk: BodyChunk) {
        self.state.begin(&chunk.correlation_id);
        self.response.show(chunk, &self.state);
    }

    /// Whether more of a body should be shown before a verdict is taken: less than 512 KiB of it is under way, a small
    /// chunk counting as 4 KiB. Whoever shows more holds more in memory. Anything but the two bodies has room always.
    #[must_use]
    pub const fn has_room(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::RequestBody => self.request.has_room(),
            EventKind::ResponseBody => self.response.has_room(),
            _ => true,
        }
    }

    /// Whether chunks of a body are under way, whose verdicts [`shown`](Self::shown) will give.
    #[must_use]
    pub fn is_under_way(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::RequestBody => self.request.is_under_way(),
            EventKind::ResponseBody => self.response.is_under_way(),
            _ => false,
        }
    }

    /// What becomes of the next chunk that was shown without waiting, and of which body it is: one verdict for each chunk, in the order of its
    /// body. `None` when none is under way.
    ///
    /// When an agent stops the request, all chunks that are under way have its decision, and agents that have not answered
    /// are told. Chunks go from one agent to the next while this is awaited.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn shown(&mut self) -> Option<(EventKind, BodyVerdict)> {
        poll_fn(|context| {
            let mut waits = false;
            for kind in [EventKind::RequestBody, EventKind::ResponseBody] {
                match self.poll_shown(kind, context) {
                    Poll::Ready(Some(verdict)) => return Poll::Ready(Some((kind, verdict))),
                    Poll::Ready(None) => {}
                    Poll::Pending => waits = true,
                }
            }
            match waits {
                true => Poll::Pending,
                false => Poll::Ready(None),
            }
        })
        .await
    }

    /// A WebSocket frame. An agent that blocks closes with 1008, one that does not answer with 1011.
    pub async fn websocket(&mut self, frame: WebSocketFrame) -> WebSocketVerdict {
        let mut out = WebSocketVerdict::default();
        let kind = EventKind::WebSocketFrame;
        if self.state.over().is_some() {
            out.decision = close(1008);
            return out;
        }
        self.state.begin(&frame.correlation_id);
        for n in 0..self.state.count() {
            if !self.state.asks(n, kind) {
                continue;
            }
            let mut verdict = Verdict::default();
            let event = Event::WebSocketFrame(frame.clone());
            let answer = self.state.one(n, event, &mut verdict).await;
            out.audits.append(&mut verdict.audits);
            match answer {
                Ok(Some(response)) => match response.websocket.unwrap_or_default() {
                    WebSocketDecision::Allow => {}
                    _ if self.state.shadow(n, kind) => {}
                    other => {
                        out.decision = other;
                        return out;
                    }
                },
                Ok(None) => {}
                Err(decision) => {
                    let fault = !self.state.has_decided(n);
                    self.state.stop(decision);
                    out.decision = close(if fault { 1011 } else { 1008 });
                    return out;
                }
            }
        }
        out
    }

    /// The request has ended. Agents that keep records are told; their answers decide nothing.
    pub async fn complete(&mut self, event: RequestComplete) {
        let (state, kind) = (&mut self.state, EventKind::RequestComplete);
        state.begin(&event.correlation_id);
        self.complete = true;
        let told = (0..state.count()).filter(|n| state.asks(*n, kind));
        let told = told.map(|n| {
            let timeout = state.point(n).rule.phase(kind).timeout;
            let event = Event::RequestComplete(event.clone());
            state.asking(n, event, EndpointChoice::Any, timeout)
        });
        for (_, answer) in join_all(told).await {
            if let Err(error) = answer {
                debug!(request = %state.request(), %error, "an agent was not told that a request has ended");
            }
        }
    }

    async fn head(&mut self, event: Event) -> Verdict {
        let mut verdict = Verdict::default();
        let state = &mut self.state;
        if let Some(decision) = state.over() {
            verdict.decision = decision.clone();
            return verdict;
        }
        state.begin(&Text::from(event.id()));
        for n in 0..state.count() {
            if !state.asks(n, event.kind()) {
                continue;
            }
            if let Err(decision) = state.one(n, event.clone(), &mut verdict).await {
                state.stop(decision.clone());
                verdict.decision = decision;
                break;
            }
        }
        verdict
    }

    /// The verdicts on all chunks of a body that are under way, as one.
    async fn rest(&mut self, kind: EventKind) -> BodyVerdict {
        let mut verdict = Verdict::default();
        let mut data: Vec<Bytes> = Vec::new();
        while let Some(next) = poll_fn(|context| self.poll_shown(kind, context)).await {
            verdict.append(next.verdict);
            data.push(next.data);
        }
        if !verdict.passes() {
            data.clear();
        }
        BodyVerdict {
            verdict,
            data: gathered(data),
        }
    }

    fn poll_shown(
        &mut self,
        kind: EventKind,
        context: &mut Context<'_>,
    ) -> Poll<Option<BodyVerdict>> {
        match kind {
            EventKind::ResponseBody => self.response.poll_shown(&mut self.state, context),
            _ => self.request.poll_shown(&mut self.state, context),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.state.end(self.complete);
    }
}

const fn close(code: u16) -> WebSocketDecision {
    WebSocketDecision::Close {
        code,
        reason: String::new(),
    }
}
