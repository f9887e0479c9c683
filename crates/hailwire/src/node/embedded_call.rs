//! A call that begins in the node's own process: made by the program that embeds the node, or by the node for a message that it keeps. Its way is that
//! of every call ([`super::place`]).

use std::sync::Arc;

use hailwire_core::routing::CallOrigin;
use hailwire_wire::{CallHeader, Code, Status, frame::FrameKind};
use tokio::{sync::oneshot, time::Instant};

use super::{
    CallDestination, CallRoute, NodeInner, RouteProgress, messages, open_onward, place,
    request_kind, router::caller, set_onward,
};
use crate::{
    agent::{self, Request, SharedHandler},
    body::Body,
    session::{self, Answer},
};

/// A call of the program that embeds the node.
pub(crate) async fn call(
    node: &Arc<NodeInner>,
    kind: FrameKind,
    mut header: Box<CallHeader>,
    body: Body,
    deadline: Option<Instant>,
) -> Result<Answer, Status> {
    let origin = CallOrigin::Local;
    if header.durable.is_durable() {
        let acceptor = messages::acceptor(node, kind, origin);
        return call_handler(acceptor, FrameKind::CALL, origin, header, body, deadline).await;
    }
    let route = find(node, &mut header, origin, deadline).await?;
    make(node, route, origin, kind, header, body, deadline).await
}

/// Finds who takes a call of `origin`.
pub(super) async fn find(
    node: &Arc<NodeInner>,
    header: &mut CallHeader,
    origin: CallOrigin,
    deadline: Option<Instant>,
) -> Result<CallRoute, Status> {
    match place(node, None, header, origin, deadline) {
        RouteProgress::Now(route) => route,
        RouteProgress::Later(route) => route.await,
    }
}

/// Makes a call whose way was found, and waits until its answer begins.
pub(super) async fn make(
    node: &Arc<NodeInner>,
    route: CallRoute,
    origin: CallOrigin,
    kind: FrameKind,
    mut header: Box<CallHeader>,
    body: Body,
    deadline: Option<Instant>,
) -> Result<Answer, Status> {
    let CallRoute { to, picked } = route;
    let begun = match to {
        CallDestination::Handler(handler) => {
            Box::pin(call_handler(handler, kind, origin, header, body, deadline)).await
        }
        CallDestination::Session(onward, peer) => {
            set_onward(&mut header, origin, picked.as_ref(), deadline);
            let opened = open_onward(node, &onward, peer, header.priority, deadline);
            let begun = async { opened.await?.begin(kind, &header, body).await };
            match begun.await {
                Ok(answer) => answer.begin(deadline).await,
                Err(status) => Err(status),
            }
        }
    };
    let Some(mut picked) = picked else {
        return begun;
    };
    match begun {
        Ok(answer) => {
            node.registry.report(&mut picked, Code::Ok, Instant::now());
            // The member is busy until the answer has ended.
            Ok(answer.holding(Arc::new(picked)))
        }
        Err(status) => {
            node.registry.finish(picked, status.code, Instant::now());
            Err(status)
        }
    }
}

/// Runs a handler of this process in a task that ends with the answer.
async fn call_handler(
    handler: SharedHandler,
    kind: FrameKind,
    origin: CallOrigin,
    header: Box<CallHeader>,
    body: Body,
    deadline: Option<Instant>,
) -> Result<Answer, Status> {
    let request = Request {
        kind: request_kind(kind),
        header,
        caller: caller(origin),
        body,
    };
    let (tell, told) = oneshot::channel();
    let task = tokio::spawn(async move {
        // A caller that is gone needs no answer.
        let _ = tell.send(agent::within(deadline, handler.handle(request)).await);
    });
    let guard = session::AbortOnDrop(task.abort_handle());
    let response = told.await.unwrap_or_else(|_| Err(session::panicked()))?;
    Ok(Answer::local(response.head, response.body, guard, deadline))
}
