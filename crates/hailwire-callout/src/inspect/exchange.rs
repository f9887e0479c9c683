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
    course::BodyPipeline,
    leg::gathered,
    round::{EndpointChoice, RequestState},
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
/// A body is shown in one of two ways. [`request_body`](Self::request_body) and [`response_body`](Self::response_body) show a piece and
/// wait for what becomes of it, which takes a round trip to each agent for each piece. With
/// [`show_request_body`](Self::show_request_body) and [`show_response_body`](Self::show_response_body) pieces leave while the
/// verdicts on earlier ones are still on the way, and [`shown`](Self::shown) gives these in their order; the caller shows more as long as
/// there is [room](Self::has_room).
///
/// # Cancel safety
///
/// A dropped future of one of its methods leaves the exchange with a hole: drop the exchange too. [`shown`](Self::shown) is the
/// exception: it loses nothing.
pub struct Exchange {
    round: RequestState,
    request: BodyPipeline,
    response: BodyPipeline,
    complete: bool,
}

impl Exchange {
    pub(super) fn new(points: Arc<[CountedCheckpoint]>) -> Self {
        Self {
            request: BodyPipeline::new(EventKind::RequestBody, points.len()),
            response: BodyPipeline::new(EventKind::ResponseBody, points.len()),
            round: RequestState::new(points),
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
        let asks = |n| !unseen(n) && self.round.asks(n, kind);
        self.round.over().is_none() && (0..self.round.count()).any(asks)
    }

    #[cfg(test)]
    pub(super) fn points_are_empty(&self) -> bool {
        self.round.count() == 0
    }

    /// What was decided, where it does not pass.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Decision> {
        self.round.over()
    }

    /// The head of the request.
    pub async fn request_headers(&mut self, event: RequestHeaders) -> Verdict {
        self.round.names(event.metadata().request_id);
        self.head(Event::RequestHeaders(event)).await
    }

    /// A piece of the request's body.
    ///
    /// What was shown before and has no verdict yet is waited for too, and its data and changes are part of this verdict.
    pub async fn request_body(&mut self, piece: BodyChunk) -> BodyVerdict {
        self.show_request_body(piece);
        self.rest(EventKind::RequestBody).await
    }

    /// The head of the response.
    pub async fn response_headers(&mut self, event: ResponseHeaders) -> Verdict {
        self.head(Event::ResponseHeaders(event)).await
    }

    /// A piece of the response's body, as [`request_body`](Self::request_body).
    pub async fn response_body(&mut self, piece: BodyChunk) -> BodyVerdict {
        self.show_response_body(piece);
        self.rest(EventKind::ResponseBody).await
    }

    /// Shows a piece of the request's body, and does not wait: [`shown`](Self::shown) says what becomes of it.
    ///
    /// It leaves at once as far as the window toward its agent goes, 512 KiB or less for one of ours; toward others, which
    /// take one piece at a time, it waits in the connection. Its phase's timeout counts from the answer to the piece
    /// before it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn show_request_body(&mut self, piece: BodyChunk) {
        self.round.begin(&piece.correlation_id);
        self.request.show(piece, &self.round);
    }

    /// Shows a piece of the response's body, as [`show_request_body`](Self::show_request_body).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn show_response_body(&mut self, piece: BodyChunk) {
        self.round.begin(&piece.correlation_id);
        self.response.show(piece, &self.round);
    }

    /// Whether more of a body should be shown before a verdict is taken: less than 512 KiB of it is under way, a small
    /// piece counting as 4 KiB. Whoever shows more holds more in memory. Anything but the two bodies has room always.
    #[must_use]
    pub const fn has_room(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::RequestBody => self.request.has_room(),
            EventKind::ResponseBody => self.response.has_room(),
            _ => true,
        }
    }

    /// Whether pieces of a body are under way, whose verdicts [`shown`](Self::shown) will give.
    #[must_use]
    pub fn is_under_way(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::RequestBody => self.request.is_under_way(),
            EventKind::ResponseBody => self.response.is_under_way(),
            _ => false,
        }
    }

    /// What becomes of the next piece that was shown without waiting, and of which body it is: one verdict for each piece, in the order of its
    /// body. `None` when none is under way.
    ///
    /// When an agent stops the request, all pieces that are under way have its decision, and agents that have not answered
    /// are told. Pieces go from one agent to the next while this is awaited.
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
        if self.round.over().is_some() {
            out.decision = close(1008);
            return out;
        }
        self.round.begin(&frame.correlation_id);
        for n in 0..self.round.count() {
            if !self.round.asks(n, kind) {
                continue;
            }
            let mut verdict = Verdict::default();
            let event = Event::WebSocketFrame(frame.clone());
            let answer = self.round.one(n, event, &mut verdict).await;
            out.audits.append(&mut verdict.audits);
            match answer {
                Ok(Some(response)) => match response.websocket.unwrap_or_default() {
                    WebSocketDecision::Allow => {}
                    _ if self.round.shadow(n, kind) => {}
                    other => {
                        out.decision = other;
                        return out;
                    }
                },
                Ok(None) => {}
                Err(decision) => {
                    let fault = !self.round.has_decided(n);
                    self.round.stop(decision);
                    out.decision = close(if fault { 1011 } else { 1008 });
                    return out;
                }
            }
        }
        out
    }

    /// The request has ended. Agents that keep records are told; their answers decide nothing.
    pub async fn complete(&mut self, event: RequestComplete) {
        let (round, kind) = (&mut self.round, EventKind::RequestComplete);
        round.begin(&event.correlation_id);
        self.complete = true;
        let told = (0..round.count()).filter(|n| round.asks(*n, kind));
        let told = told.map(|n| {
            let timeout = round.point(n).rule.phase(kind).timeout;
            let event = Event::RequestComplete(event.clone());
            round.asking(n, event, EndpointChoice::Yes, timeout)
        });
        for (_, answer) in join_all(told).await {
            if let Err(error) = answer {
                debug!(request = %round.request(), %error, "an agent does not know that a request has ended");
            }
        }
    }

    async fn head(&mut self, event: Event) -> Verdict {
        let mut verdict = Verdict::default();
        let round = &mut self.round;
        if let Some(decision) = round.over() {
            verdict.decision = decision.clone();
            return verdict;
        }
        round.begin(&Text::from(event.id()));
        for n in 0..round.count() {
            if !round.asks(n, event.kind()) {
                continue;
            }
            if let Err(decision) = round.one(n, event.clone(), &mut verdict).await {
                round.stop(decision.clone());
                verdict.decision = decision;
                break;
            }
        }
        verdict
    }

    /// The verdicts on all pieces of a body that are under way, as one.
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
            EventKind::ResponseBody => self.response.poll_shown(&mut self.round, context),
            _ => self.request.poll_shown(&mut self.round, context),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.round.end(self.complete);
    }
}

const fn close(code: u16) -> WebSocketDecision {
    WebSocketDecision::Close {
        code,
        reason: String::new(),
    }
}
