//! The sockets on which `hail callout serve` listens, and their changes while it runs.
//!
//! A change has two steps. [`CalloutListeners::plan`] opens new sockets, and fails without having changed anything;
//! [`CalloutListeners::change`] cannot fail: it serves new sockets and closes removed ones. Unchanged sockets are not touched, nor their connections
//! and requests. A removed socket accepts no more connections; its requests in flight have
//! [`DRAIN_TIMEOUT`] to end.

use std::{
    error::Error, fmt, future::Future, future::ready, io, net::SocketAddr, path::PathBuf,
    sync::Arc, time::Duration,
};

use futures_util::FutureExt as _;
use hailwire::Code;
use hailwire_callout::{
    agent::uds,
    exposition,
    front::{FrontListener, UnseenBodyPolicy, ext_proc, spoe},
    host::reverse::ReverseOptions,
    inspect::{
        FallbackAction, Inspector, ReverseRegistry,
        config::{AgentToken, ListenAddress, ListenConfig},
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};

use crate::commands::metrics;
use hailwire_terminal::failure::CommandFailure;

/// How long requests may take to end on a removed socket.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// All open listeners.
pub(super) struct CalloutListeners {
    inspector: Arc<Inspector>,
    arrivals: ReverseRegistry,
    unseen: UnseenBodyPolicy,
    tokens: Vec<AgentToken>,
    /// One for all its sockets: a response may arrive on another one than its request.
    spoe: Arc<spoe::SpoeServer>,
    open: Vec<OpenListener>,
    tasks: JoinSet<io::Result<()>>,
}

/// A listener as the configuration file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListenerKind {
    ExtProc(ListenAddress),
    Spoe(ListenAddress),
    Reverse(PathBuf),
    Metrics(SocketAddr),
}

/// A socket that is served.
struct OpenListener {
    what: ListenerKind,
    at: String,
    reverse: Option<Arc<uds::UdsListener>>,
    /// The listener stops when this is dropped.
    _stop: oneshot::Sender<()>,
}

/// A bound socket that is not served yet.
enum BoundSocket {
    ExtProc(FrontListener),
    Spoe(FrontListener),
    Reverse(Arc<uds::UdsListener>),
    Metrics(TcpListener),
}

/// A planned change of the listeners.
pub(super) struct ListenerChange {
    unseen: FallbackAction,
    tokens: Vec<AgentToken>,
    /// In the order of the file.
    steps: Vec<ListenerStep>,
}

enum ListenerStep {
    /// Keeps the open listener of this index.
    Keeps(usize),
    Opens(ListenerKind, String, BoundSocket),
}

impl CalloutListeners {
    /// Without listeners.
    pub(super) fn new(inspector: Arc<Inspector>, arrivals: ReverseRegistry) -> Self {
        let unseen = UnseenBodyPolicy::default();
        let front = spoe::SpoeServer::new(
            Arc::clone(&inspector),
            unseen.clone(),
            spoe::SpoeLimits::default(),
        );
        Self {
            inspector,
            arrivals,
            unseen,
            tokens: Vec::new(),
            spoe: Arc::new(front),
            open: Vec::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Plans a change: opens the sockets that are not open yet.
    pub(super) async fn plan(&self, listen: &ListenConfig) -> Result<ListenerChange, ListenError> {
        let mut steps = Vec::new();
        for what in wanted(listen) {
            let is_free = |n: &usize| {
                let taken =
                    |step: &ListenerStep| matches!(step, ListenerStep::Keeps(kept) if kept == n);
                !steps.iter().any(taken)
            };
            let mut same = (0..self.open.len()).filter(|n| self.open[*n].what == what);
            let step = match same.find(is_free) {
                Some(kept) => ListenerStep::Keeps(kept),
                None => {
                    let (bound, at) = what.bind().await?;
                    ListenerStep::Opens(what, at, bound)
                }
            };
            steps.push(step);
        }
        Ok(ListenerChange {
            unseen: listen
                .unseen_body
                .unwrap_or_else(|| UnseenBodyPolicy::default().now()),
            tokens: listen.tokens.clone(),
            steps,
        })
    }

    /// Applies a planned change. Returns whether the set of listeners has changed.
    pub(super) fn change(&mut self, plan: ListenerChange) -> bool {
        self.unseen.set(plan.unseen);
        let tokens_changed = self.tokens != plan.tokens;
        self.tokens = plan.tokens;
        let mut before: Vec<Option<OpenListener>> = self.open.drain(..).map(Some).collect();
        let mut changed = before.len() != plan.steps.len();
        for step in plan.steps {
            let open = match step {
                ListenerStep::Keeps(n) => {
                    let Some(open) = before.get_mut(n).and_then(Option::take) else {
                        continue;
                    };
                    match open.reverse {
                        // The socket is kept, so that no agent that connects finds it gone.
                        Some(socket) if tokens_changed => {
                            self.serve(open.what, open.at, BoundSocket::Reverse(socket))
                        }
                        _ => open,
                    }
                }
                ListenerStep::Opens(what, at, bound) => {
                    changed = true;
                    self.serve(what, at, bound)
                }
            };
            self.open.push(open);
        }
        changed
    }

    /// Resolves with the error when a listener fails.
    pub(super) async fn failed(&mut self) -> CommandFailure {
        loop {
            match self.tasks.join_next().await {
                None => std::future::pending().await,
                // A removed listener has ended.
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return CommandFailure::io("a listener failed", &error),
                Some(Err(error)) => return CommandFailure::general(error),
            }
        }
    }

    /// The addresses of all listeners.
    pub(super) fn at(&self) -> Value {
        let all = |is: fn(&ListenerKind) -> bool| -> Vec<&str> {
            let open = self.open.iter().filter(|open| is(&open.what));
            open.map(|open| open.at.as_str()).collect()
        };
        let reverse = all(|what| matches!(what, ListenerKind::Reverse(_)));
        let metrics = all(|what| matches!(what, ListenerKind::Metrics(_)));
        json!({
            "ext_proc": all(|what| matches!(what, ListenerKind::ExtProc(_))),
            "spoe": all(|what| matches!(what, ListenerKind::Spoe(_))),
            "reverse": reverse.first(),
            "metrics": metrics.first(),
        })
    }

    fn serve(&mut self, what: ListenerKind, at: String, bound: BoundSocket) -> OpenListener {
        let (stop, stopped) = oneshot::channel();
        let stopped = stopped.map(|_| ()).shared();
        let mut reverse = None;
        match bound {
            BoundSocket::ExtProc(socket) => {
                let front =
                    ext_proc::ExtProcServer::new(Arc::clone(&self.inspector), self.unseen.clone());
                let served = front.serve_at(socket, stopped.clone());
                self.tasks.spawn(within(DRAIN_TIMEOUT, stopped, served));
            }
            BoundSocket::Spoe(socket) => {
                let served = Arc::clone(&self.spoe).serve_at(socket, stopped.clone());
                self.tasks.spawn(within(DRAIN_TIMEOUT, stopped, served));
            }
            BoundSocket::Reverse(socket) => {
                reverse = Some(Arc::clone(&socket));
                let (arrivals, options) = (self.arrivals.clone(), self.registration());
                let served = async move { arrivals.listen(&socket, options).await };
                self.tasks.spawn(within(Duration::ZERO, stopped, served));
            }
            BoundSocket::Metrics(listener) => {
                let inspector = Arc::clone(&self.inspector);
                let served = async move {
                    let text = || ready(inspector.to_openmetrics());
                    metrics::serve(listener, exposition::CONTENT_TYPE, text).await
                };
                self.tasks.spawn(within(Duration::ZERO, stopped, served));
            }
        }
        OpenListener {
            what,
            at,
            reverse,
            _stop: stop,
        }
    }

    /// Which agents may register by connecting to this host.
    fn registration(&self) -> ReverseOptions {
        let tokens = self.tokens.iter().map(|token| token.secret().to_owned());
        ReverseOptions {
            shared_tokens: tokens.collect(),
            anonymous: self.tokens.is_empty(),
            ..ReverseOptions::default()
        }
    }
}

/// Runs until it ends by itself, or for the grace period after it was stopped.
async fn within(
    grace: Duration,
    stopped: impl Future<Output = ()>,
    served: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let over = async {
        stopped.await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        served = served => served,
        () = over => Ok(()),
    }
}

/// The listeners of the configuration, in the order of their kinds.
fn wanted(listen: &ListenConfig) -> Vec<ListenerKind> {
    let ext_proc = listen.ext_proc.iter().cloned().map(ListenerKind::ExtProc);
    let spoe = listen.spoe.iter().cloned().map(ListenerKind::Spoe);
    let reverse = listen.reverse.iter().cloned().map(ListenerKind::Reverse);
    let metrics = listen.metrics.into_iter().map(ListenerKind::Metrics);
    ext_proc.chain(spoe).chain(reverse).chain(metrics).collect()
}

impl ListenerKind {
    async fn bind(&self) -> Result<(BoundSocket, String), ListenError> {
        let (bound, named) = match self {
            Self::ExtProc(address) => (
                front(address, BoundSocket::ExtProc).await,
                address.to_string(),
            ),
            Self::Spoe(address) => (front(address, BoundSocket::Spoe).await, address.to_string()),
            Self::Reverse(path) => {
                let at = path.display().to_string();
                let socket = uds::UdsListener::bind(path);
                let bound =
                    socket.map(|socket| (BoundSocket::Reverse(Arc::new(socket)), at.clone()));
                (bound, at)
            }
            Self::Metrics(address) => (scraped(*address).await, address.to_string()),
        };
        bound.map_err(|error| ListenError { at: named, error })
    }
}

/// A socket that cannot be opened.
#[derive(Debug)]
pub(super) struct ListenError {
    at: String,
    error: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}", self.at)
    }
}

impl Error for ListenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl ListenError {
    pub(super) const HINT: &str = "another program may be listening there";
}

impl From<ListenError> for CommandFailure {
    fn from(error: ListenError) -> Self {
        Self::caused(Code::Unavailable, &error).hint(ListenError::HINT)
    }
}

async fn front(
    address: &ListenAddress,
    of: fn(FrontListener) -> BoundSocket,
) -> io::Result<(BoundSocket, String)> {
    let socket = FrontListener::bind(address).await?;
    let at = socket.local_address()?.to_string();
    Ok((of(socket), at))
}

async fn scraped(address: SocketAddr) -> io::Result<(BoundSocket, String)> {
    let listener = TcpListener::bind(address).await?;
    let at = listener.local_addr()?.to_string();
    Ok((BoundSocket::Metrics(listener), at))
}
