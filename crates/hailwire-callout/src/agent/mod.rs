//! The agent's side: the trait, and serving it.

mod dispatch;
pub mod grpc;
mod host;
pub mod reverse;
mod serve;
mod session;
pub mod uds;

pub(crate) use dispatch::{EventDispatcher, ReplySink};
pub use host::HostHandle;
pub use serve::{ServeError, ServeOptions, serve};

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{
    capabilities::{AgentLimits, EventKinds, Features},
    control::{AgentCommand, CancelReason},
    event::{
        BodyChunk, Configure, EventKind, Guardrail, RequestComplete, RequestHeaders,
        ResponseHeaders, WebSocketFrame,
    },
    response::Response,
};

/// An agent.
///
/// Every event has a method, and each may be left out: its capabilities, which the handshake carries, name the
/// events whose methods are there, found at compile time ([`events`]). An event that is not wanted and comes all the
/// same is allowed.
///
/// Methods of different requests run side by side, up to [`AgentLimits::max_concurrency`] of a connection; the
/// chunks of one request's body come one after the other, in their order. When a host cancels, or its connection
/// ends, the method's future is dropped.
pub trait Agent: Send + Sync + 'static {
    /// What it is called: letters, digits and `-_.`; the id of its capabilities.
    fn name(&self) -> &str;

    /// Its version. Default empty.
    fn version(&self) -> &str {
        ""
    }

    /// Its limits.
    fn limits(&self) -> AgentLimits {
        AgentLimits::default()
    }

    /// The head of a request.
    fn request_headers(&self, event: RequestHeaders) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A chunk of a request's body.
    fn request_body(&self, event: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// The head of a response.
    fn response_headers(
        &self,
        event: ResponseHeaders,
    ) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A chunk of a response's body.
    fn response_body(&self, event: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A request has ended. Its decision is not looked at.
    fn request_complete(
        &self,
        event: RequestComplete,
    ) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A WebSocket frame.
    fn websocket_frame(&self, event: WebSocketFrame) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A text for or from a language model.
    fn guardrail(&self, event: Guardrail) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A new configuration; whatever is not an allow refuses it.
    fn configure(&self, event: Configure) -> impl Future<Output = Response> + Send + '_ {
        absent(event)
    }

    /// A host has connected. It may be told things from now on, until its connection ends.
    fn connected(&self, host: HostHandle) {
        drop(host);
    }

    /// A host orders something that concerns the agent as a whole. Whether it obeys is its own affair, and what it returns;
    /// only then are its hosts told that it drains. Default no: whoever may connect cannot take it from the others.
    fn ordered(&self, order: AgentCommand) -> bool {
        let _ = order;
        false
    }

    /// A host no longer waits for what it asked about this request. Its futures are dropped besides.
    fn cancelled(&self, correlation_id: &str, reason: CancelReason) {
        let _ = (correlation_id, reason);
    }
}

/// The events that an agent's type has methods for.
#[must_use]
pub fn events<A: Agent>() -> EventKinds {
    let there = [
        (EventKind::RequestHeaders, size(A::request_headers)),
        (EventKind::RequestBody, size(A::request_body)),
        (EventKind::ResponseHeaders, size(A::response_headers)),
        (EventKind::ResponseBody, size(A::response_body)),
        (EventKind::RequestComplete, size(A::request_complete)),
        (EventKind::WebSocketFrame, size(A::websocket_frame)),
        (EventKind::Guardrail, size(A::guardrail)),
        (EventKind::Configure, size(A::configure)),
    ];
    there
        .into_iter()
        .filter(|(_, size)| *size > 0)
        .map(|(kind, _)| kind)
        .collect()
}

/// What an agent of this type can do.
#[must_use]
pub fn features<A: Agent>(limits: &AgentLimits) -> Features {
    let events = events::<A>();
    Features {
        streaming_body: events.contains(EventKind::RequestBody)
            || events.contains(EventKind::ResponseBody),
        websocket: events.contains(EventKind::WebSocketFrame),
        guardrails: events.contains(EventKind::Guardrail),
        config_push: events.contains(EventKind::Configure),
        metrics_export: true,
        concurrent_requests: limits.max_concurrency,
        cancellation: true,
        flow_control: true,
        health_reporting: true,
    }
}

/// The future of a method that is not there: it has no size, and every other one has at least its event.
struct MissingMethod;

impl Future for MissingMethod {
    type Output = Response;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Response> {
        Poll::Ready(Response::allow())
    }
}

fn absent<E>(event: E) -> MissingMethod {
    drop(event);
    MissingMethod
}

/// The size of what a method returns. The method is not called.
fn size<'a, A: 'a, E, F>(_: impl FnOnce(&'a A, E) -> F) -> usize {
    size_of::<F>()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl Agent for Two {
        fn name(&self) -> &str {
            "two"
        }

        async fn request_headers(&self, _: RequestHeaders) -> Response {
            Response::block(403)
        }

        fn response_body(&self, _: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
            std::future::ready(Response::allow())
        }
    }

    #[test]
    fn an_agent_wants_the_events_that_it_has_methods_for() {
        let wanted: Vec<EventKind> = events::<Two>().iter().collect();
        assert_eq!(wanted, [EventKind::RequestHeaders, EventKind::ResponseBody]);
        let features = features::<Two>(&AgentLimits::default());
        assert!(features.streaming_body && !features.websocket);
    }
}
