//! Faulty agents for tests of a configuration: slow, crashing, lying, garbling, full, paused.
//!
//! Each is a real agent on a Unix socket that allows everything up to the event at which it misbehaves.

use std::{
    future::{Future, pending},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use hailwire_callout::{
    Agent, Event, EventKind, Response,
    agent::{self, HostHandle},
    capabilities::AgentLimits,
    control::{FlowControl, Notice},
    event::{BodyChunk, Guardrail, RequestHeaders, ResponseHeaders},
    inspect::AgentFault,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
    sync::Notify,
    task::JoinSet,
};

/// How an agent misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultyBehaviour {
    /// It never answers.
    Slow,
    /// It drops its connections.
    Crashing,
    /// It answers with an invalid status.
    Lying,
    /// It sends bytes that are not a valid frame.
    Garbling,
    /// It accepts one request at a time, and is busy with another one.
    Full,
    /// It asks to be sent nothing new.
    Paused,
}

impl FaultyBehaviour {
    pub(super) const ALL: [Self; 6] = [
        Self::Slow,
        Self::Crashing,
        Self::Lying,
        Self::Garbling,
        Self::Full,
        Self::Paused,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow agent",
            Self::Crashing => "crashing agent",
            Self::Lying => "lying agent",
            Self::Garbling => "garbling agent",
            Self::Full => "full agent",
            Self::Paused => "paused agent",
        }
    }

    /// The fault that the host sees at an event: `first` if it is the first event that the agent gets, `waits`
    /// if the pool waits for a paused agent. Chunks of a body that has begun always wait.
    pub(super) const fn fault(self, when: FaultTrigger, first: bool, waits: bool) -> AgentFault {
        match self {
            Self::Slow => AgentFault::Timeout,
            Self::Crashing | Self::Lying | Self::Garbling => AgentFault::Error,
            Self::Full if first => AgentFault::Overload,
            Self::Full => match when.kind {
                EventKind::RequestBody | EventKind::ResponseBody => AgentFault::Timeout,
                _ if waits => AgentFault::Timeout,
                _ => AgentFault::Overload,
            },
            Self::Paused if waits => AgentFault::Timeout,
            Self::Paused => AgentFault::Overload,
        }
    }
}

/// The event at which an agent misbehaves: the first of this kind, or the second one of a body if `mid_body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FaultTrigger {
    pub(super) kind: EventKind,
    pub(super) mid_body: bool,
}

/// The correlation id of the request that occupies a full agent.
pub(super) const OCCUPYING_REQUEST_ID: &str = "occupies";

/// The state of a faulty agent.
#[derive(Default)]
pub(super) struct FaultyAgentState {
    /// Notified when it has the request that occupies it.
    pub(super) occupied: Notify,
    hosts: Mutex<Vec<HostHandle>>,
}

impl FaultyAgentState {
    /// Asks all connected hosts to send nothing new.
    pub(super) fn pause(&self) {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        for host in &*hosts {
            host.notify(Notice::Flow(FlowControl::Pause(None)));
        }
    }
}

/// Serves a faulty agent, until dropped.
pub(super) async fn serve(
    path: PathBuf,
    behaviour: FaultyBehaviour,
    when: FaultTrigger,
    state: Arc<FaultyAgentState>,
) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let ended = Arc::new(Notify::new());
            let agent = Arc::new(FaultyAgent {
                behaviour,
                when,
                ended: Arc::clone(&ended),
                state,
            });
            let (agent_end, mut host_end) = tokio::io::duplex(1 << 20);
            let options = agent::ServeOptions::default();
            tokio::select! {
                _ = agent::serve(agent, agent_end, &options) => {}
                _ = tokio::io::copy_bidirectional(&mut stream, &mut host_end) => {}
                () = ended.notified() => {}
            }
            if behaviour == FaultyBehaviour::Garbling {
                // It does not matter whether this is read.
                let _ = stream.write_all(&[0xff; 64]).await;
                let _ = stream.read_u8().await;
            }
        });
    }
}

struct FaultyAgent {
    behaviour: FaultyBehaviour,
    when: FaultTrigger,
    ended: Arc<Notify>,
    state: Arc<FaultyAgentState>,
}

impl FaultyAgent {
    async fn answer(&self, event: Event) -> Response {
        let mid_body = match &event {
            Event::RequestBody(chunk) | Event::ResponseBody(chunk) => chunk.index > 0,
            _ => false,
        };
        if event.id() == OCCUPYING_REQUEST_ID {
            self.state.occupied.notify_one();
            return pending().await;
        }
        let now = self.when.kind == event.kind() && mid_body == self.when.mid_body;
        match self.behaviour {
            _ if !now => Response::allow(),
            // Its answers are normal.
            FaultyBehaviour::Full | FaultyBehaviour::Paused => Response::allow(),
            FaultyBehaviour::Lying => Response::block(7),
            FaultyBehaviour::Slow => pending().await,
            FaultyBehaviour::Crashing | FaultyBehaviour::Garbling => {
                self.ended.notify_one();
                pending().await
            }
        }
    }
}

impl Agent for FaultyAgent {
    fn name(&self) -> &str {
        "faulty"
    }

    fn limits(&self) -> AgentLimits {
        let all = AgentLimits::default();
        AgentLimits {
            max_concurrency: match self.behaviour {
                FaultyBehaviour::Full => 1,
                _ => all.max_concurrency,
            },
            ..all
        }
    }

    fn connected(&self, host: HostHandle) {
        let hosts = self.state.hosts.lock();
        hosts.unwrap_or_else(PoisonError::into_inner).push(host);
    }

    fn request_headers(&self, event: RequestHeaders) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Event::RequestHeaders(event))
    }

    fn request_body(&self, event: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Event::RequestBody(event))
    }

    fn response_headers(
        &self,
        event: ResponseHeaders,
    ) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Event::ResponseHeaders(event))
    }

    fn response_body(&self, event: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Event::ResponseBody(event))
    }

    fn guardrail(&self, event: Guardrail) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Event::Guardrail(event))
    }
}
