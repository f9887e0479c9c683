//! The node: one machine's presence in the network.
//!
//! | module | what it does |
//! |---|---|
//! | `overlay` | UDP sockets, the QUIC endpoint |
//! | `listen` | TCP sockets |
//! | `dial` | the race of carriers |
//! | `early` | sessions that take calls before their peer has greeted |
//! | `peers`, `connections` | a peer's tunnels, and what each consists of |
//! | `beside` | further connections of a tunnel |
//! | `choice`, `window`, `measure` | which carrier takes new calls, how large windows are |
//! | `tunnel` | the life of a tunnel: up, offers, silence, end |
//! | `local` | the Unix socket to which programs attach |
//! | `registry` | which agents there are and who takes the next call |
//! | `router` | may a call go, and where |
//! | `trust`, `store` | whom this node trusts, and how that survives |
//! | `reach`, `here` | which addresses of a peer are dialled |
//! | `grants` | what a peer may call, which bare calls it may take |
//! | `names`, `resolve` | which node a name means |
//! | `manage`, `join` | the built-in agent `node`: status, invitations, trust |
//! | `hubs` | the hubs that this node belongs to |

mod accounts;
mod additional;
mod asked;
mod dial;
mod early;
mod here;
mod hubs;
mod join;
mod listen;
mod local;
mod manage;
mod measure;
mod offers;
mod overlay;
mod peers;
mod registry;
mod resolve;
mod router;
mod sockets;
mod spin;
mod store;
mod trust;
mod tunnel;
mod unread;
#[cfg(test)]
mod virtual_house;

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hailwire_wire::{
    Code, NodeId, NodeName,
    header::{BESIDE, Hello, VERSION},
};
use thiserror::Error;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

pub use overlay::BindError;
pub use store::StoreError;

pub(crate) use registry::{Picked, Target};
pub(crate) use router::{Destination, Route, onward_header, request_kind};

use crate::{
    config::Config,
    hub::tls::Pins,
    key::{KeyError, NodeKey, random},
    panics,
    paths::{self, DataDir},
    session::Session,
};

/// What a greeting says of this program.
const SOFTWARE: &str = concat!("hailwire/", env!("CARGO_PKG_VERSION"));

/// How often the time is written down while tickets are open.
const KEEP_TIME: Duration = Duration::from_secs(60);

/// How often a drain looks whether the last call has ended.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// How long a closed endpoint may take to tell its peers.
const FAREWELL: Duration = Duration::from_secs(1);

/// A node embedded in this process.
///
/// Runs until [`Node::shutdown`]; dropping it without that leaves its tasks to the runtime. Needs a
/// tokio runtime with time and I/O.
#[derive(Debug)]
pub struct Node {
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
    /// Held, locked, for as long as the node runs.
    _lock: File,
}

/// How a [`Node`] is to be started.
#[derive(Debug, Default)]
pub struct NodeBuilder {
    data: Option<DataDir>,
    config: Config,
}

impl NodeBuilder {
    /// Where key, trust and names are kept. Default: [`DataDir::from_env`].
    #[must_use]
    pub fn data_dir(mut self, data: DataDir) -> Self {
        self.data = Some(data);
        self
    }

    /// The configuration. Default: [`Config::default`].
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Starts the node: takes the lock, reads or makes the key, binds the sockets.
    ///
    /// Programs may attach once it returns. It waits for no peer and no hub.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing is left running.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing is left running; a key that was made stays.
    pub async fn start(self) -> Result<Node, StartError> {
        let data = self
            .data
            .or_else(DataDir::from_env)
            .ok_or(StartError::NoDataDir)?;
        data.create().map_err(|source| StartError::DataDir {
            path: shown(data.root()),
            source,
        })?;
        let lock = take_lock(&data)?;
        let key = NodeKey::load_or_create(&data.key())?;
        let database = data.database();
        paths::private_database(&database).map_err(|source| StartError::DataDir {
            path: shown(&database),
            source,
        })?;
        let store = store::Store::open(&database)?;
        let pins = Pins::default();
        // Boxed, so that whoever starts a node need not carry the engine's large future along.
        let endpoint = Box::pin(overlay::bind(&self.config, &key, &store, &pins)).await?;
        let (tcp, listeners) = listen::bind(&self.config, &key, &store).await?;
        let listener = local::listen(&data).map_err(|source| StartError::Socket {
            path: shown(&data.socket()),
            source,
        })?;

        let id = key.pair().id();
        let hubs = hubs::Hubs::load(&self.config, &store, &key, pins)?;
        let sockets = endpoint.bound_sockets().into_iter();
        let reaching = here::Reaching::new(sockets.chain(tcp.sockets().iter().copied()));
        let inner = Arc::new(Inner {
            id,
            instance: draw_instance(),
            data,
            key,
            endpoint,
            tcp,
            trust: trust::Trust::load(store)?,
            registry: registry::Registry::new(),
            lists: offers::Lists::new(),
            peers: peers::Peers::new(id),
            asked: asked::Asked::default(),
            accounts: accounts::Accounts::default(),
            strangers: tunnel::strangers(),
            hubs,
            reaching,
            locals: Mutex::default(),
            spin: spin::Spin::new(self.config.limits.spin),
            calls: AtomicU64::new(0),
            started: Instant::now(),
            closing: watch::Sender::new(false),
            stop: watch::Sender::new(None),
            deaf: watch::Sender::new(false),
            config: self.config,
        });
        inner.fit_sockets();
        let mut tasks = vec![
            keep("accepting over UDP", &inner, tunnel::accept),
            keep("telling of agents", &inner, tunnel::announce),
            keep("entering offers", &inner, offers::enter),
            keep("watching for silence", &inner, tunnel::watch_liveness),
            keep("measuring", &inner, measure::watch),
            keep("charging what is unread", &inner, unread::watch),
            keep("looking again", &inner, look_again),
            keep("keeping time", &inner, keep_time),
            keep("hubs", &inner, hubs::run),
            {
                let listener = Arc::new(listener);
                keep("accepting programs", &inner, move |node| {
                    local::accept(node, listener.clone())
                })
            },
        ];
        for mut listener in listeners {
            let known = inner.clone();
            listener.know(move |address| known.trust.is_at(address));
            let listener = Arc::new(listener);
            tasks.push(keep("accepting over TCP", &inner, move |node| {
                listen::accept(node, listener.clone())
            }));
        }
        Ok(Node {
            inner,
            tasks,
            _lock: lock,
        })
    }
}

impl Node {
    /// A node with default settings, to be adjusted and started.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use hailwire::{Config, DataDir, Node};
    ///
    /// let mut config = Config::default();
    /// config.node.name = Some("desk".parse()?);
    /// let node =
    ///     Node::builder().data_dir(DataDir::new("/var/lib/desk")).config(config).start().await?;
    /// println!("{} is up", node.id());
    /// let client = node.client();
    /// // …
    /// node.shutdown(Duration::from_secs(10)).await;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// The public half of the node's key: its identity, the same at every start.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    /// The name that the configuration gives it and that it offers to peers and hubs; `None` by
    /// default. A hub may have given that name to another node.
    #[must_use]
    pub fn name(&self) -> Option<NodeName> {
        self.inner.name()
    }

    /// UDP sockets as bound, with the ports that the system chose.
    #[must_use]
    pub fn sockets(&self) -> Vec<std::net::SocketAddr> {
        self.inner.endpoint.bound_sockets()
    }

    /// TCP sockets as bound; none by default.
    #[must_use]
    pub fn tcp_sockets(&self) -> Vec<std::net::SocketAddr> {
        self.inner.tcp_sockets().to_vec()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Resolves when somebody asks the node to stop (`hail down`), with the grace time asked for. The
    /// node goes on until [`Node::shutdown`]. Safe to drop.
    pub async fn stop_requested(&self) -> Duration {
        let mut stop = self.inner.stop.subscribe();
        match stop.wait_for(Option::is_some).await.map(|grace| *grace) {
            Ok(Some(grace)) => grace,
            // The sender lives as long as the node.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Resolves when the node hears nothing over UDP any more, because its QUIC endpoint has ended on an error. What is left
    /// to do is to shut it down and to start another. Safe to drop.
    pub async fn deaf(&self) {
        let mut deaf = self.inner.deaf.subscribe();
        if deaf.wait_for(|deaf| *deaf).await.is_err() {
            // The sender lives as long as the node.
            std::future::pending::<()>().await;
        }
    }

    /// Stops the node: no new work is taken, calls in flight may finish within `grace`, then
    /// everything is closed. Takes at most `grace` and a second. Calls that are cut off end with
    /// `unavailable`.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the node takes no new work and its tasks are left to the runtime.
    pub async fn shutdown(self, grace: Duration) {
        self.inner.drain(grace).await;
        for task in self.tasks {
            task.abort();
            // Until it has ended it holds the endpoint, and with it the sockets.
            let _ = task.await;
        }
        let _ = std::fs::remove_file(self.inner.data.socket());
        let _ = tokio::time::timeout(FAREWELL, self.inner.endpoint.close()).await;
    }
}

/// All that a running node consists of.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: NodeId,
    /// Drawn at start; see [`Hello::instance`].
    instance: u64,
    config: Config,
    data: DataDir,
    key: NodeKey,
    endpoint: iroh::Endpoint,
    tcp: listen::Tcp,
    trust: trust::Trust,
    pub(crate) registry: registry::Registry,
    lists: offers::Lists,
    peers: peers::Peers,
    asked: asked::Asked,
    accounts: accounts::Accounts,
    strangers: tunnel::UntrustedPeers,
    hubs: hubs::Hubs,
    reaching: here::Reaching,
    /// Sessions of attached programs.
    locals: Mutex<Vec<Session>>,
    pub(crate) spin: spin::Spin,
    calls: AtomicU64,
    started: Instant,
    closing: watch::Sender<bool>,
    /// The grace time with which somebody asked the node to stop.
    stop: watch::Sender<Option<Duration>>,
    /// The QUIC endpoint has ended, though nobody asked for it.
    deaf: watch::Sender<bool>,
}

impl Inner {
    fn name(&self) -> Option<NodeName> {
        self.config.node.name.clone()
    }

    fn hello(&self) -> Hello {
        Hello {
            versions: vec![VERSION],
            name: self.name().map(String::from).unwrap_or_default(),
            software: SOFTWARE.to_owned(),
            instance: self.instance,
            features: vec![BESIDE.to_owned()],
            beside: false,
        }
    }

    /// Counts a call that enters at this node.
    pub(crate) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    fn sessions(&self) -> Vec<Session> {
        let locals = self
            .locals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        locals
            .into_iter()
            .chain(self.peers.all().into_iter().map(|(_, session)| session))
            .collect()
    }

    async fn drain(&self, grace: Duration) {
        self.closing.send_replace(true);
        let sessions = self.sessions();
        for session in &sessions {
            session.go_away("the node is shutting down");
        }
        let deadline = Instant::now() + grace;
        // Attachments are streams that never end by themselves; they are no work.
        let busy = || {
            let attached = self.registry.attached();
            sessions.iter().map(Session::in_flight).sum::<u64>() > attached
        };
        while busy() && Instant::now() < deadline {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        for session in sessions {
            session.close(Code::Unavailable, "the node has shut down");
        }
    }
}

/// Why a node did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Neither a folder nor a home is known.
    #[error("no data folder is known: pass --data DIR, or set HAIL_DATA or HOME")]
    NoDataDir,
    /// The data folder cannot be made or is not private.
    #[error("the data folder {path} cannot be used")]
    DataDir {
        /// The folder.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another node runs on the same folder.
    #[error("a node is running already with this data folder (process {pid})")]
    AlreadyRunning {
        /// Its process id, as it wrote it down.
        pid: String,
    },
    /// The key cannot be read or made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A UDP or TCP address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The local socket cannot be made.
    #[error("the local socket {path} cannot be made")]
    Socket {
        /// Where.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Takes the single-instance lock and writes the process id into it.
fn take_lock(data: &DataDir) -> Result<File, StartError> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};

    let failed = |source| StartError::DataDir {
        path: shown(&data.lock()),
        source,
    };
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(data.lock())
        .map_err(failed)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = std::fs::read_to_string(data.lock()).unwrap_or_default();
            return Err(StartError::AlreadyRunning {
                pid: pid.trim().to_owned(),
            });
        }
        Err(error) => return Err(failed(error.into())),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

/// Runs one of a node's loops for as long as the node, whatever panics in it.
fn keep<W: Future<Output = ()> + Send + 'static>(
    what: &'static str,
    node: &Arc<Inner>,
    begin: impl Fn(Arc<Inner>) -> W + Send + 'static,
) -> JoinHandle<()> {
    let node = node.clone();
    tokio::spawn(panics::supervised(what, move || begin(node.clone())))
}

async fn look_again(node: Arc<Inner>) {
    node.spin.run().await;
}

/// Writes down how late it is while tickets are open, so that a clock that is set back while the node
/// is down does not bring back one that has expired.
async fn keep_time(node: Arc<Inner>) {
    let mut tick = tokio::time::interval(KEEP_TIME);
    loop {
        tick.tick().await;
        node.trust.keep_time(now_unix());
    }
}

fn draw_instance() -> u64 {
    let mut bytes = [0; 8];
    random(&mut bytes);
    // Zero means "not stated".
    u64::from_be_bytes(bytes) | 1
}

fn shown(path: &std::path::Path) -> String {
    path.display().to_string()
}

/// Seconds since 1970 by this machine's clock.
pub(crate) fn now_unix() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
