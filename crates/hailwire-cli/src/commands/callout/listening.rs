//! Where `hail callout serve` listens, and how that changes while it runs.
//!
//! A change has two steps. [`Listening::plan`] opens what is new, and fails without having changed anything;
//! [`Listening::change`] cannot fail: it serves what is new and stops what is gone. Whatever stays is not touched: its
//! socket, its connections and their requests. What is gone takes nobody any more; requests under way there have
//! [`GRACE`] to end.

use std::{
    error::Error, fmt, future::Future, io, net::SocketAddr, path::PathBuf, sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use hailwire::Code;
use hailwire_callout::{
    agent::uds,
    front::{FrontListener, UnseenBodyPolicy, ext_proc, spoe},
    host::reverse::ReverseOptions,
    inspect::{
        FallbackAction, Inspector, ReverseRegistry,
        config::{AgentToken, ListenAddress, ListenConfig},
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};

use super::metrics;
use hailwire_terminal::failure::Failure;

/// How long requests may take to end where nothing is listened on any more.
const GRACE: Duration = Duration::from_secs(30);

/// Everything that is listened on.
pub(super) struct Listening {
    inspector: Arc<Inspector>,
    arrivals: ReverseRegistry,
    unseen: UnseenBodyPolicy,
    tokens: Vec<AgentToken>,
    /// One for all its sockets: a response may come on another one than its request.
    spoe: Arc<spoe::SpoeServer>,
    open: Vec<Open>,
    tasks: JoinSet<io::Result<()>>,
}

/// What is listened on, as the file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    ExtProc(ListenAddress),
    Spoe(ListenAddress),
    Reverse(PathBuf),
    Metrics(SocketAddr),
}

/// A socket that is served.
struct Open {
    what: What,
    at: String,
    reverse: Option<Arc<uds::UdsListener>>,
    /// Dropped, it ends.
    _stop: oneshot::Sender<()>,
}

/// A socket that is not served yet.
enum Bound {
    ExtProc(FrontListener),
    Spoe(FrontListener),
    Reverse(Arc<uds::UdsListener>),
    Metrics(TcpListener),
}

/// What a change comes to.
pub(super) struct Plan {
    unseen: FallbackAction,
    tokens: Vec<AgentToken>,
    /// In the order of the file.
    steps: Vec<Step>,
}

enum Step {
    /// The one of this number among those that are open.
    Keeps(usize),
    Opens(What, String, Bound),
}

impl Listening {
    /// Nothing yet.
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

    /// Opens what is not open yet.
    pub(super) async fn plan(&self, listen: &ListenConfig) -> Result<Plan, Unopened> {
        let mut steps = Vec::new();
        for what in wanted(listen) {
            let is_free = |n: &usize| {
                let taken = |step: &Step| matches!(step, Step::Keeps(kept) if kept == n);
                !steps.iter().any(taken)
            };
            let mut same = (0..self.open.len()).filter(|n| self.open[*n].what == what);
            let step = match same.find(is_free) {
                Some(kept) => Step::Keeps(kept),
                None => {
                    let (bound, at) = what.bind().await?;
                    Step::Opens(what, at, bound)
                }
            };
            steps.push(step);
        }
        Ok(Plan {
            unseen: listen
                .unseen_body
                .unwrap_or_else(|| UnseenBodyPolicy::default().now()),
            tokens: listen.tokens.clone(),
            steps,
        })
    }

    /// From now on as planned. Says whether anything else is listened on.
    pub(super) fn change(&mut self, plan: Plan) -> bool {
        self.unseen.set(plan.unseen);
        let tokens_changed = self.tokens != plan.tokens;
        self.tokens = plan.tokens;
        let mut before: Vec<Option<Open>> = self.open.drain(..).map(Some).collect();
        let mut changed = before.len() != plan.steps.len();
        for step in plan.steps {
            let open = match step {
                Step::Keeps(n) => {
                    let Some(open) = before.get_mut(n).and_then(Option::take) else {
                        continue;
                    };
                    match open.reverse {
                        // The socket stays, so that nobody who dials finds it gone.
                        Some(socket) if tokens_changed => {
                            self.serve(open.what, open.at, Bound::Reverse(socket))
                        }
                        _ => open,
                    }
                }
                Step::Opens(what, at, bound) => {
                    changed = true;
                    self.serve(what, at, bound)
                }
            };
            self.open.push(open);
        }
        changed
    }

    /// Why nothing more can be served, should that come about.
    pub(super) async fn failed(&mut self) -> Failure {
        loop {
            match self.tasks.join_next().await {
                None => std::future::pending().await,
                // What is gone has ended.
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return Failure::io("listening has ended", &error),
                Some(Err(error)) => return Failure::general(error),
            }
        }
    }

    /// Where everything is.
    pub(super) fn at(&self) -> Value {
        let all = |is: fn(&What) -> bool| -> Vec<&str> {
            let open = self.open.iter().filter(|open| is(&open.what));
            open.map(|open| open.at.as_str()).collect()
        };
        let reverse = all(|what| matches!(what, What::Reverse(_)));
        let metrics = all(|what| matches!(what, What::Metrics(_)));
        json!({
            "ext_proc": all(|what| matches!(what, What::ExtProc(_))),
            "spoe": all(|what| matches!(what, What::Spoe(_))),
            "reverse": reverse.first(),
            "metrics": metrics.first(),
        })
    }

    fn serve(&mut self, what: What, at: String, bound: Bound) -> Open {
        let (stop, stopped) = oneshot::channel();
        let stopped = stopped.map(|_| ()).shared();
        let mut reverse = None;
        match bound {
            Bound::ExtProc(socket) => {
                let front =
                    ext_proc::ExtProcServer::new(Arc::clone(&self.inspector), self.unseen.clone());
                let served = front.serve_at(socket, stopped.clone());
                self.tasks.spawn(within(GRACE, stopped, served));
            }
            Bound::Spoe(socket) => {
                let served = Arc::clone(&self.spoe).serve_at(socket, stopped.clone());
                self.tasks.spawn(within(GRACE, stopped, served));
            }
            Bound::Reverse(socket) => {
                reverse = Some(Arc::clone(&socket));
                let (arrivals, options) = (self.arrivals.clone(), self.registration());
                let served = async move { arrivals.listen(&socket, options).await };
                self.tasks.spawn(within(Duration::ZERO, stopped, served));
            }
            Bound::Metrics(listener) => {
                let served = metrics::serve(listener, Arc::clone(&self.inspector));
                self.tasks.spawn(within(Duration::ZERO, stopped, served));
            }
        }
        Open {
            what,
            at,
            reverse,
            _stop: stop,
        }
    }

    /// Whom an agent that connects has to be.
    fn registration(&self) -> ReverseOptions {
        let tokens = self.tokens.iter().map(|token| token.secret().to_owned());
        ReverseOptions {
            shared_tokens: tokens.collect(),
            anonymous: self.tokens.is_empty(),
            ..ReverseOptions::default()
        }
    }
}

/// Until it ends by itself, or for so long after it was stopped.
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

/// In the order of their kinds.
fn wanted(listen: &ListenConfig) -> Vec<What> {
    let ext_proc = listen.ext_proc.iter().cloned().map(What::ExtProc);
    let spoe = listen.spoe.iter().cloned().map(What::Spoe);
    let reverse = listen.reverse.iter().cloned().map(What::Reverse);
    let metrics = listen.metrics.into_iter().map(What::Metrics);
    ext_proc.chain(spoe).chain(reverse).chain(metrics).collect()
}

impl What {
    async fn bind(&self) -> Result<(Bound, String), Unopened> {
        let (bound, named) = match self {
            Self::ExtProc(address) => (front(address, Bound::ExtProc).await, address.to_string()),
            Self::Spoe(address) => (front(address, Bound::Spoe).await, address.to_string()),
            Self::Reverse(path) => {
                let at = path.display().to_string();
                let socket = uds::UdsListener::bind(path);
                let bound = socket.map(|socket| (Bound::Reverse(Arc::new(socket)), at.clone()));
                (bound, at)
            }
            Self::Metrics(address) => (scraped(*address).await, address.to_string()),
        };
        bound.map_err(|error| Unopened { at: named, error })
    }
}

/// A socket that cannot be opened.
#[derive(Debug)]
pub(super) struct Unopened {
    at: String,
    error: io::Error,
}

impl fmt::Display for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be listened on", self.at)
    }
}

impl Error for Unopened {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl Unopened {
    pub(super) const HINT: &str = "another program may listen there";
}

impl From<Unopened> for Failure {
    fn from(error: Unopened) -> Self {
        Self::caused(Code::Unavailable, &error).hint(Unopened::HINT)
    }
}

async fn front(
    address: &ListenAddress,
    of: fn(FrontListener) -> Bound,
) -> io::Result<(Bound, String)> {
    let socket = FrontListener::bind(address).await?;
    let at = socket.local_address()?.to_string();
    Ok((of(socket), at))
}

async fn scraped(address: SocketAddr) -> io::Result<(Bound, String)> {
    let listener = TcpListener::bind(address).await?;
    let at = listener.local_addr()?.to_string();
    Ok((Bound::Metrics(listener), at))
}
