//! The node: one machine's presence in the network.
//!
//! Each module carries out what a machine of [`hailwire_core`] decides, or holds a part of the node's state; its functions take
//! the node first.
//!
//! | module | what it does |
//! |---|---|
//! | `overlay`, `sockets` | the QUIC endpoint, its UDP sockets and their buffers |
//! | `listen` | TCP sockets |
//! | `local` | the Unix socket to which programs attach |
//! | `router` | the way of a call: may it go, and where |
//! | `registry` | which agents there are and who takes the next call |
//! | `port_mapping` | a port of the router that leads to this node |
//! | `resolve` | which node a name means |
//! | `peers` | the tunnels to peers, and what each consists of |
//! | `tunnel` | the life of a tunnel: up, silence, end |
//! | `dial`, `asked` | the race of carriers; a carrier that somebody asks for |
//! | `early` | sessions that take calls before their peer has greeted |
//! | `additional` | additional connections of a tunnel |
//! | `measure` | which carrier takes new calls, how large windows are |
//! | `here` | which addresses of a peer are dialled |
//! | `offers` | what peers offer |
//! | `accounts`, `unread` | what a peer makes this node hold |
//! | `trust`, `store` | whom this node trusts, and how that survives |
//! | `join`, `manage` | invitations; the built-in agent `node` |
//! | `doctor` | what keeps this node from being reached |
//! | `messages`, `topics` | durable messages; publish and subscribe |
//! | `hubs` | the hubs that this node belongs to |
//! | `spin` | looking for more traffic before going to sleep |

mod accounts;
mod additional;
mod busy_polling;
mod describe;
mod dial;
mod dial_targets;
mod doctor;
mod early_sessions;
pub(crate) mod embedded_call;
#[cfg(test)]
pub(crate) mod hand_played;
mod held_back;
mod hubs;
mod join;
mod leases;
pub(crate) mod leaving;
mod listen;
mod local;
mod manage;
mod measure;
mod messages;
mod network_return;
mod offers;
mod overlay;
mod peers;
mod port_mapping;
mod reconnect;
mod registry;
mod requested_dials;
mod resolve;
mod router;
mod sockets;
mod status;
mod store;
mod topics;
mod trust;
mod tunnel;
mod unread;
#[cfg(test)]
mod virtual_nodes;
mod waiting_calls;

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hailwire_core::{retry_budget::RetryBudget, routing::CallOrigin};
use hailwire_wire::{
    Code, NodeId, NodeName,
    header::{ADDITIONAL_CONNECTIONS, Hello, VERSION},
};
use thiserror::Error;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

pub use messages::MessageStoreError;
pub use overlay::BindError;
pub use store::StoreError;

pub(crate) use registry::{MemberTarget, MemberUse};
pub(crate) use router::{
    CallDestination, CallRoute, RouteProgress, open_onward, place, request_kind, set_onward,
};

use crate::{
    config::Config,
    hub::tls::HubPins,
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
const ENDPOINT_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a start waits for the lock of the data folder, and how often it tries.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// A node embedded in this process.
///
/// Runs until [`Node::shutdown`]; dropping it without that leaves its tasks to the runtime. Needs a
/// tokio runtime with time and I/O.
#[derive(Debug)]
pub struct Node {
    inner: Arc<NodeInner>,
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
        let lock = take_lock(&data).await?;
        let key = NodeKey::load_or_create(&data.key())?;
        let database = data.database();
        paths::private_database(&database).map_err(|source| StartError::DataDir {
            path: shown(&database),
            source,
        })?;
        let store = store::NodeStore::open(&database)?;
        let pins = HubPins::default();
        // Boxed, so that whoever starts a node need not carry the engine's large future along.
        let endpoint = Box::pin(overlay::bind(&self.config, &key, &store, &pins)).await?;
        let (tcp, listeners) = listen::bind(&self.config, &key, &store).await?;
        let listener = local::listen(&data).map_err(|source| StartError::Socket {
            path: shown(&data.socket()),
            source,
        })?;

        let id = key.pair().id();
        let database = data.messages();
        paths::private_database(&database).map_err(|source| StartError::DataDir {
            path: shown(&database),
            source,
        })?;
        let messages = messages::Messages::open(&database, id, &self.config.messages)?;
        let database = data.topics();
        paths::private_database(&database).map_err(|source| StartError::DataDir {
            path: shown(&database),
            source,
        })?;
        let topics = topics::Topics::open(&database)?;
        let hubs = hubs::Hubs::load(&self.config, &store, &key, pins)?;
        let sockets = endpoint.bound_sockets().into_iter();
        let reaching = dial_targets::DialTargets::new(sockets.chain(tcp.sockets().iter().copied()));
        let held_back = held_back::HeldBackAddresses::default();
        match endpoint.address_lookup() {
            Ok(lookups) => lookups.add(held_back.clone()),
            Err(error) => tracing::error!(%error, "addresses that are held back are not dialled"),
        }
        let inner = Arc::new(NodeInner {
            sockets: NodeSockets {
                endpoint,
                held_back,
                tcp,
                reaching,
                mapped_port: port_mapping::MappedPort::default(),
                measured: doctor::Measured::default(),
            },
            trust: trust::TrustStore::load(store)?,
            registry: registry::Registry::new(id),
            peers: peers::Peers::new(id),
            hubs,
            messages,
            topics,
            programs: LocalPrograms {
                sessions: Mutex::default(),
                spin: busy_polling::BusyPolling::new(self.config.limits.spin),
                calls: AtomicU64::new(0),
                calls_from_peers: AtomicU64::new(0),
                retry_budget: Mutex::default(),
            },
            lifecycle: NodeLifecycle::default(),
            setup: NodeSetup {
                id,
                key,
                instance: draw_instance(),
                data,
                config: self.config,
            },
        });
        sockets::fit_sockets(&inner);
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
            keep("handing over messages", &inner, messages::deliver),
            keep("sending messages", &inner, messages::exchange),
            keep("expiring messages", &inner, messages::keep_clean),
            keep(
                "telling progress of messages",
                &inner,
                messages::report_progress,
            ),
            keep("asking peers for topics", &inner, topics::follow_peers),
            keep(
                "removing old messages of topics",
                &inner,
                topics::keep_clean,
            ),
            keep("mapping a port", &inner, port_mapping::run),
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
        // It ends when all have been dialled.
        tasks.push(tokio::spawn(reconnect::run(inner.clone())));
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
        self.inner.id()
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
        self.inner.sockets.endpoint.bound_sockets()
    }

    /// TCP sockets as bound; none by default.
    #[must_use]
    pub fn tcp_sockets(&self) -> Vec<std::net::SocketAddr> {
        listen::tcp_sockets(&self.inner).to_vec()
    }

    pub(crate) fn inner(&self) -> &Arc<NodeInner> {
        &self.inner
    }

    /// Changes whenever a connection of a tunnel comes up or ends, and when another transport takes new calls: then it is worth
    /// asking for [`admin::method::STATUS`](crate::admin::method::STATUS) again. The number counts the changes since the start.
    #[must_use]
    pub fn tunnel_changes(&self) -> watch::Receiver<u64> {
        self.inner.peers.changes()
    }

    /// Resolves when somebody asks the node to stop (`hail down`), with the grace time asked for. The
    /// node goes on until [`Node::shutdown`]. Safe to drop.
    pub async fn stop_requested(&self) -> Duration {
        let mut stop = self.inner.lifecycle.stop.subscribe();
        match stop.wait_for(Option::is_some).await.map(|grace| *grace) {
            Ok(Some(grace)) => grace,
            // The sender lives as long as the node.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Resolves when the node hears nothing over UDP any more, because its QUIC endpoint has ended on an error. What is left
    /// to do is to shut it down and to start another. Safe to drop.
    pub async fn deaf(&self) {
        let mut deaf = self.inner.lifecycle.deaf.subscribe();
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
        self.inner.messages.close().await;
        self.inner.topics.close().await;
        let _ = std::fs::remove_file(self.inner.setup.data.socket());
        let closed =
            tokio::time::timeout(ENDPOINT_CLOSE_TIMEOUT, self.inner.sockets.endpoint.close());
        let _ = tokio::join!(closed, self.inner.sockets.mapped_port.release());
    }
}

/// What the parts of a running node share. What is done with it are functions of the modules: each takes the node first.
#[derive(Debug)]
pub(crate) struct NodeInner {
    setup: NodeSetup,
    sockets: NodeSockets,
    trust: trust::TrustStore,
    /// Agents of this machine and of peers.
    pub(crate) registry: registry::Registry,
    peers: peers::Peers,
    hubs: hubs::Hubs,
    messages: messages::Messages,
    topics: topics::Topics,
    pub(crate) programs: LocalPrograms,
    lifecycle: NodeLifecycle,
}

/// What a node is from its start on.
#[derive(Debug)]
struct NodeSetup {
    id: NodeId,
    key: NodeKey,
    /// Drawn at start; see [`Hello::instance`].
    instance: u64,
    data: DataDir,
    config: Config,
}

/// Where a node listens, and which networks it can reach from there.
#[derive(Debug)]
struct NodeSockets {
    endpoint: iroh::Endpoint,
    held_back: held_back::HeldBackAddresses,
    tcp: listen::TcpListening,
    reaching: dial_targets::DialTargets,
    mapped_port: port_mapping::MappedPort,
    measured: doctor::Measured,
}

/// The programs of this machine, and how busy they keep the node.
#[derive(Debug)]
pub(crate) struct LocalPrograms {
    /// Sessions of attached programs.
    sessions: Mutex<Vec<Session>>,
    pub(crate) spin: busy_polling::BusyPolling,
    calls: AtomicU64,
    calls_from_peers: AtomicU64,
    /// Of the calls that this process makes itself.
    retry_budget: Mutex<RetryBudget>,
}

/// Since when a node runs, and whether it is about to end.
#[derive(Debug)]
struct NodeLifecycle {
    started: Instant,
    closing: watch::Sender<bool>,
    /// The grace time with which somebody asked the node to stop.
    stop: watch::Sender<Option<Duration>>,
    /// The QUIC endpoint has ended, though nobody asked for it.
    deaf: watch::Sender<bool>,
}

impl LocalPrograms {
    /// Counts a call that enters at this node.
    pub(crate) fn count_call(&self, origin: CallOrigin) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let CallOrigin::Peer(_) = origin {
            self.calls_from_peers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for NodeLifecycle {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            closing: watch::Sender::new(false),
            stop: watch::Sender::new(None),
            deaf: watch::Sender::new(false),
        }
    }
}

impl NodeInner {
    pub(crate) fn id(&self) -> NodeId {
        self.setup.id
    }

    fn config(&self) -> &Config {
        &self.setup.config
    }

    pub(crate) fn retry_budget(&self) -> &Mutex<RetryBudget> {
        &self.programs.retry_budget
    }

    fn name(&self) -> Option<NodeName> {
        self.config().node.name.clone()
    }

    fn hello(&self) -> Hello {
        Hello {
            versions: vec![VERSION],
            name: self.name().map(String::from).unwrap_or_default(),
            software: SOFTWARE.to_owned(),
            instance: self.setup.instance,
            features: vec![ADDITIONAL_CONNECTIONS.to_owned()],
            additional: false,
        }
    }

    fn is_closing(&self) -> bool {
        *self.lifecycle.closing.borrow()
    }

    fn sessions(&self) -> Vec<Session> {
        let programs = self.programs.sessions().clone();
        let peers = self.peers.all().into_iter();
        programs
            .into_iter()
            .chain(peers.map(|(_, session)| session))
            .collect()
    }

    async fn drain(&self, grace: Duration) {
        self.lifecycle.closing.send_replace(true);
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
    /// The database of durable messages, or that of topics, cannot be used.
    #[error(transparent)]
    Messages(#[from] MessageStoreError),
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

/// Takes the single-instance lock, which a process that is being killed holds for a moment longer, and writes the process id into it.
async fn take_lock(data: &DataDir) -> Result<File, StartError> {
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
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    let given_up = Instant::now() + LOCK_PATIENCE;
    let locked = loop {
        match rustix::fs::flock(&file, exclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < given_up => {
                tokio::time::sleep(LOCK_POLL).await;
            }
            locked => break locked,
        }
    };
    match locked {
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
    node: &Arc<NodeInner>,
    begin: impl Fn(Arc<NodeInner>) -> W + Send + 'static,
) -> JoinHandle<()> {
    let node = node.clone();
    tokio::spawn(panics::supervised(what, move || begin(node.clone())))
}

async fn look_again(node: Arc<NodeInner>) {
    node.programs.spin.run().await;
}

/// Writes down how late it is while tickets are open, so that a clock that is set back while the node
/// is down does not bring back one that has expired.
async fn keep_time(node: Arc<NodeInner>) {
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
