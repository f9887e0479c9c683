//! An agent on offer, by the node's own process or by a program attached to it.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hailwire_core::retry_budget::RetryBudget;
use hailwire_wire::{
    AgentName, Code, Status,
    frame::{FrameEvent, FrameKind},
    header,
};
use tokio::sync::oneshot;

use crate::{
    agent::{self, Agent, Caller, Handler, SharedHandler},
    carrier::SendStream,
    node::{self, NodeInner},
    session::{self, OpenedStream, Session, StreamDispatcher},
};

/// An agent on offer. Dropping it takes the offer back; calls that run may finish.
#[must_use = "dropping it takes the offer back"]
pub struct ServeHandle {
    name: AgentName,
    kind: ServingKind,
}

enum ServingKind {
    Embedded {
        node: Weak<NodeInner>,
        number: u64,
        unused: oneshot::Receiver<()>,
    },
    Attached {
        attached: Arc<AttachedSession>,
        registration: HeldRegistration,
    },
}

impl ServeHandle {
    /// Resolves when the offer has ended without being taken back: the node is gone. To be offered
    /// again the agent has to be served again, on a new [`Client`](crate::Client). For an embedded node it never
    /// resolves. Safe to drop.
    pub async fn closed(&mut self) -> Status {
        match &mut self.kind {
            ServingKind::Embedded { .. } => std::future::pending().await,
            ServingKind::Attached { registration, .. } => registration.closed().await,
        }
    }

    /// Takes the offer back in order, and waits for the calls that it has: no new one comes, those under way end, keys of affinity move on. Nobody who calls
    /// finds the agent gone who would not have anyway, so that members of a group can be restarted one after the other.
    ///
    /// It takes as long as the longest call; bound it with a time-out. A node that is older, or gone, is not waited for.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it resolves, the offer is taken back all the same; calls that run may finish.
    pub async fn drain(mut self) {
        match &mut self.kind {
            ServingKind::Embedded {
                node,
                number,
                unused,
            } => {
                if let Some(node) = node.upgrade() {
                    node::leaving::announce(&node, &self.name, *number).await;
                    node.registry.remove(&self.name, *number);
                }
                // Resolves as an error, when nobody has it any more.
                let _ = unused.await;
            }
            ServingKind::Attached { registration, .. } => {
                registration.leave();
                registration.closed().await;
            }
        }
    }

    /// The agent's name.
    #[must_use]
    pub fn name(&self) -> &AgentName {
        &self.name
    }

    /// Offers the agent anew, with another description, bound or handler, in place of what was offered. New calls go to the new
    /// handler; calls that run finish with the old one. No call finds the agent gone meanwhile. Both bounds on concurrency
    /// hold for their own calls, so that for a moment more may run than either allows.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for another name, and those of [`Client::serve`](crate::Client::serve). The old offer then stands.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it resolves, the old offer stands.
    pub async fn replace(&mut self, agent: Agent, handler: impl Handler) -> Result<(), Status> {
        if agent.register.name != self.name {
            let what = format!(
                "`{}` cannot take the place of `{}`",
                agent.name(),
                self.name
            );
            return Err(Status::new(Code::InvalidArgument, what));
        }
        let handler = agent::shared(&agent, handler);
        match &mut self.kind {
            ServingKind::Embedded {
                node,
                number,
                unused,
            } => {
                let node = node.upgrade();
                let node =
                    node.ok_or_else(|| Status::new(Code::Unavailable, "the node is gone"))?;
                let (target, new_unused) = embedded(agent, handler);
                let new = node.registry.add(target)?;
                node.registry
                    .remove(&self.name, std::mem::replace(number, new));
                *unused = new_unused;
            }
            ServingKind::Attached {
                attached,
                registration,
            } => {
                let (send, reader) = register(attached, &agent).await?;
                let old = attached.agents.lock().insert(self.name.clone(), handler);
                // This ends the old registration.
                *registration = HeldRegistration::new(send, reader);
                // After the lock, as in the drop below.
                drop(old);
            }
        }
        Ok(())
    }
}

impl Drop for ServeHandle {
    fn drop(&mut self) {
        match &self.kind {
            ServingKind::Embedded { node, number, .. } => {
                if let Some(node) = node.upgrade() {
                    node.registry.remove(&self.name, *number);
                }
            }
            ServingKind::Attached {
                attached,
                registration,
            } => {
                registration.stream.abort();
                // Dropped after the lock: a handler may own other agents, which it takes back here.
                let gone = attached.agents.lock().remove(&self.name);
                drop(gone);
            }
        }
    }
}

impl fmt::Debug for ServeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

pub(super) fn serve_embedded(
    node: &Arc<NodeInner>,
    agent: Agent,
    handler: SharedHandler,
) -> Result<ServeHandle, Status> {
    let name = agent.register.name.clone();
    let (target, unused) = embedded(agent, handler);
    let number = node.registry.add(target)?;
    Ok(ServeHandle {
        name,
        kind: ServingKind::Embedded {
            node: Arc::downgrade(node),
            number,
            unused,
        },
    })
}

fn embedded(agent: Agent, handler: SharedHandler) -> (node::MemberTarget, oneshot::Receiver<()>) {
    let (in_use, unused) = node::MemberUse::new();
    let target = node::MemberTarget::Handler {
        handler,
        register: Arc::new(agent.register),
        _in_use: in_use,
    };
    (target, unused)
}

pub(super) async fn serve_attached(
    attached: &Arc<AttachedSession>,
    agent: Agent,
    handler: SharedHandler,
) -> Result<ServeHandle, Status> {
    let name = agent.register.name.clone();
    if attached.agents.lock().contains_key(&name) {
        return Err(Status::new(
            Code::AlreadyExists,
            format!("this program serves `{name}` already"),
        )
        .with_hint("attach a second client to serve a second member of the group"));
    }
    attached.agents.lock().insert(name.clone(), handler);
    let registered = register(attached, &agent).await;
    let (send, reader) = match registered {
        Ok(stream) => stream,
        Err(status) => {
            let gone = attached.agents.lock().remove(&name);
            drop(gone);
            return Err(status);
        }
    };
    let kind = ServingKind::Attached {
        attached: attached.clone(),
        registration: HeldRegistration::new(send, reader),
    };
    Ok(ServeHandle { name, kind })
}

/// A registration, which lasts while its stream is open: dropping this ends it.
struct HeldRegistration {
    stream: tokio::task::JoinHandle<()>,
    /// Why it has ended, unless it was dropped.
    closed: oneshot::Receiver<Status>,
    /// Ends it in order.
    leave: Option<oneshot::Sender<()>>,
}

impl HeldRegistration {
    fn new(mut send: SendStream, mut reader: session::FrameReader) -> Self {
        let (tell, closed) = oneshot::channel();
        let (leave, mut leaving) = oneshot::channel();
        let stream = tokio::spawn(async move {
            let mut stays = true;
            let why = loop {
                let event = tokio::select! {
                    event = reader.next() => event,
                    asked = &mut leaving, if stays => {
                        stays = false;
                        if asked.is_ok() {
                            send.finish();
                        }
                        continue;
                    }
                };
                match event {
                    Ok(Some(FrameEvent::Frame(FrameKind::END, payload))) => {
                        break header::decode(&payload).unwrap_or_else(|_| Status::ok());
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        break Status::new(Code::Unavailable, "the node ended the registration");
                    }
                    Err(status) => break status,
                }
            };
            let _ = tell.send(why);
        });
        Self {
            stream,
            closed,
            leave: Some(leave),
        }
    }

    async fn closed(&mut self) -> Status {
        let closed = (&mut self.closed).await;
        closed.unwrap_or_else(|_| Status::new(Code::Unavailable, "the node is gone"))
    }

    /// No new calls are wanted; it is closed once those under way have ended.
    fn leave(&mut self) {
        if let Some(leave) = self.leave.take() {
            let _ = leave.send(());
        }
    }
}

impl Drop for HeldRegistration {
    fn drop(&mut self) {
        self.stream.abort();
    }
}

async fn register(
    attached: &AttachedSession,
    agent: &Agent,
) -> Result<(SendStream, session::FrameReader), Status> {
    let payload = header::encode(&agent.register);
    let (send, mut reader) = attached
        .session
        .open_with_payload(FrameKind::REGISTER, &payload)
        .await?;
    match reader.next_frame().await? {
        Some((FrameKind::HEAD, _)) => Ok((send, reader)),
        Some((FrameKind::END, payload)) => Err(header::decode(&payload)
            .unwrap_or_else(|_| Status::new(Code::Internal, "the node refused without a reason"))),
        _ => Err(Status::new(Code::Unavailable, "the node is going away")),
    }
}

/// A session with the node beside this process.
#[derive(Debug)]
pub(super) struct AttachedSession {
    pub(super) session: Session,
    pub(super) agents: Arc<ServedAgents>,
    pub(super) retry_budget: Mutex<RetryBudget>,
}

impl Drop for AttachedSession {
    fn drop(&mut self) {
        self.session.close(Code::Ok, "the program has detached");
    }
}

/// The agents that an attached program serves.
#[derive(Debug, Default)]
pub(super) struct ServedAgents(Mutex<HashMap<AgentName, SharedHandler>>);

impl ServedAgents {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<AgentName, SharedHandler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamDispatcher for ServedAgents {
    async fn dispatch(self: Arc<Self>, _session: Session, opening: OpenedStream) {
        let kind = opening.kind;
        let (header, send, reader) = opening.into_call();
        let mut header = match header {
            Ok(header) => header,
            Err(status) => return session::refuse(send, reader, &status).await,
        };
        let handler = self.lock().get(header.to.as_str()).cloned();
        let Some(handler) = handler else {
            let status = Status::new(
                Code::NotFound,
                format!("`{}` is no longer served here", header.to),
            );
            return session::refuse(send, reader, &status).await;
        };
        // The node tells an attached program where a call came from, in `from`.
        let caller = header.from.node.take().map_or(Caller::Local, Caller::Peer);
        session::serve(
            node::request_kind(kind),
            header,
            caller,
            send,
            reader,
            &handler,
        )
        .await;
    }
}
