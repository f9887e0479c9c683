//! Agents that go wrong on purpose: slow, crashing, lying, garbling, full, paused.
//!
//! Each is a real agent on a Unix socket that lets everything pass, up to the event at which it goes wrong.

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

/// How an agent goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It never answers.
    Slow,
    /// It drops its connections.
    Crashing,
    /// It answers with a status that is none.
    Lying,
    /// It sends bytes that are no frame.
    Garbling,
    /// It takes one request at a time, and has another one.
    Full,
    /// It asks for nothing new.
    Paused,
}

impl Wrong {
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

    /// What it is taken for at an event: `first` says that nothing was asked before, `waits` that the pool waits for
    /// an agent that takes nothing new. Pieces of a body that has begun always wait.
    pub(super) const fn fault(self, when: When, first: bool, waits: bool) -> AgentFault {
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

/// When: at an event of this kind; at the second one of a body where `mid_body` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct When {
    pub(super) kind: EventKind,
    pub(super) mid_body: bool,
}

/// The correlation id of the request that an agent is full with.
pub(super) const OCCUPIES: &str = "occupies";

/// How it stands with an agent that goes wrong.
#[derive(Default)]
pub(super) struct Standing {
    /// It has the request that it is full with.
    pub(super) occupied: Notify,
    hosts: Mutex<Vec<HostHandle>>,
}

impl Standing {
    /// Asks whoever is connected for nothing new.
    pub(super) fn pause(&self) {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        for host in &*hosts {
            host.notify(Notice::Flow(FlowControl::Pause(None)));
        }
    }
}

/// Serves an agent that goes wrong, until dropped.
pub(super) async fn serve(
    path: PathBuf,
    wrong: Wrong,
    when: When,
    standing: Arc<Standing>,
) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        let standing = Arc::clone(&standing);
        connections.spawn(async move {
            let ended = Arc::new(Notify::new());
            let agent = Arc::new(Faulty {
                wrong,
                when,
                ended: Arc::clone(&ended),
                standing,
            });
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let options = agent::ServeOptions::default();
            tokio::select! {
                _ = agent::serve(agent, near, &options) => {}
                _ = tokio::io::copy_bidirectional(&mut stream, &mut far) => {}
                () = ended.notified() => {}
            }
            if wrong == Wrong::Garbling {
                // Whether anybody reads it does not matter.
                let _ = stream.write_all(&[0xff; 64]).await;
                let _ = stream.read_u8().await;
            }
        });
    }
}

struct Faulty {
    wrong: Wrong,
    when: When,
    ended: Arc<Notify>,
    standing: Arc<Standing>,
}

impl Faulty {
    async fn answer(&self, event: Event) -> Response {
        let mid_body = match &event {
            Event::RequestBody(chunk) | Event::ResponseBody(chunk) => chunk.index > 0,
            _ => false,
        };
        if event.id() == OCCUPIES {
            self.standing.occupied.notify_one();
            return pending().await;
        }
        let now = self.when.kind == event.kind() && mid_body == self.when.mid_body;
        match self.wrong {
            _ if !now => Response::allow(),
            // Here nothing is wrong with what it answers.
            Wrong::Full | Wrong::Paused => Response::allow(),
            Wrong::Lying => Response::block(7),
            Wrong::Slow => pending().await,
            Wrong::Crashing | Wrong::Garbling => {
                self.ended.notify_one();
                pending().await
            }
        }
    }
}

impl Agent for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn limits(&self) -> AgentLimits {
        let all = AgentLimits::default();
        AgentLimits {
            max_concurrency: match self.wrong {
                Wrong::Full => 1,
                _ => all.max_concurrency,
            },
            ..all
        }
    }

    fn connected(&self, host: HostHandle) {
        let hosts = self.standing.hosts.lock();
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
