//! One request on its way past the agents.
//!
//! What becomes of it is decided in `core`; `request_driver` asks the agents.

use std::{future::poll_fn, task::Poll};

use bytes::Bytes;

use super::{
    BodyVerdict, TextVerdict, Verdict, WebSocketVerdict,
    core::gathered,
    request_driver::{RequestAgents, RequestDriver},
};
use crate::{
    Decision, Event, EventKind,
    event::{
        BodyChunk, Guardrail, RequestComplete, RequestHeaders, ResponseHeaders, WebSocketFrame,
    },
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
pub struct Exchange(RequestDriver);

impl Exchange {
    pub(super) fn new(points: RequestAgents) -> Self {
        Self(RequestDriver::new(points))
    }

    /// Whether any agent is to be asked about events of a kind, as far as this request has come.
    #[must_use]
    pub fn wants(&self, kind: EventKind) -> bool {
        self.0.core().wants(kind)
    }

    #[cfg(test)]
    pub(super) fn points_are_empty(&self) -> bool {
        self.0.core().agents().is_empty()
    }

    /// What was decided, where it does not pass.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Decision> {
        self.0.core().stopped()
    }

    /// The head of the request.
    pub async fn request_headers(&mut self, event: RequestHeaders) -> Verdict {
        self.0.name(event.metadata().request_id);
        self.0.round(Event::RequestHeaders(event)).await.verdict
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
        self.0.round(Event::ResponseHeaders(event)).await.verdict
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
        self.0.show(EventKind::RequestBody, chunk);
    }

    /// Shows a chunk of the response's body, as [`show_request_body`](Self::show_request_body).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn show_response_body(&mut self, chunk: BodyChunk) {
        self.0.show(EventKind::ResponseBody, chunk);
    }

    /// Whether more of a body should be shown before a verdict is taken: less than 512 KiB of it is under way, a small
    /// chunk counting as 4 KiB. Whoever shows more holds more in memory. Anything but the two bodies has room always.
    #[must_use]
    pub const fn has_room(&self, kind: EventKind) -> bool {
        self.0.core().has_room(kind)
    }

    /// Whether chunks of a body are under way, whose verdicts [`shown`](Self::shown) will give.
    #[must_use]
    pub fn is_under_way(&self, kind: EventKind) -> bool {
        self.0.core().is_under_way(kind)
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
                match self.0.poll_shown(kind, context) {
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
        let out = self.0.round(Event::WebSocketFrame(frame)).await;
        WebSocketVerdict {
            decision: out.websocket,
            audits: out.verdict.audits,
        }
    }

    /// A text for or from a language model, before it goes on.
    ///
    /// An agent that found something has taken it out, and then the text goes on as it left it, to the next agent
    /// too; or it does not pass: with the agent's decision, or with 403 where that allows. Findings that cannot be
    /// read are an error of their agent. What happens where there is no answer is the phase's,
    /// `guardrail_inspect`.
    ///
    /// Cost: the text is copied for each agent.
    pub async fn guardrail(&mut self, event: Guardrail) -> TextVerdict {
        let out = self.0.round(Event::Guardrail(event)).await;
        TextVerdict {
            verdict: out.verdict,
            content: out.content,
            findings: out.findings,
        }
    }

    /// The request has ended. Agents that keep records are told; their answers decide nothing.
    pub async fn complete(&mut self, event: RequestComplete) {
        self.0.complete(&event).await;
    }

    /// The verdicts on all chunks of a body that are under way, as one.
    async fn rest(&mut self, kind: EventKind) -> BodyVerdict {
        let mut verdict = Verdict::default();
        let mut data: Vec<Bytes> = Vec::new();
        while let Some(next) = poll_fn(|context| self.0.poll_shown(kind, context)).await {
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
}
