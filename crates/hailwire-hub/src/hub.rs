//! A running hub: starts its components, creates tickets, shuts down in order.

use std::{
    fmt,
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use hailwire_wire::{HubUrl, NodeId, directory::HubMember};
use iroh_base::EndpointId;
use iroh_relay::server::Server;
use thiserror::Error;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    api::{DirectoryApi, HubInfo},
    config::{AgentVisibility, HubConfig, TlsMode},
    directory::{Directory, DirectoryError, DirectoryPolicy, HubCounts},
    folder::{self, InviteError},
    held::{self, HeldBatches, HeldCounts, HeldStore},
    identity::{HubIdentity, IdentityError},
    nat_discovery::NatDiscovery,
    queue::DirectoryQueue,
    relay::{self, Relay},
    server::{self, ServerContext},
};

/// The time between two looks whether the port of address discovery is free again.
const PORT_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How long the relay's connections, and address discovery, may each take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A running hub: directory, relay and address discovery in this process.
///
/// Dropping it stops its tasks without waiting; [`Hub::shutdown`] waits.
pub struct Hub {
    id: NodeId,
    url: HubUrl,
    tcp: SocketAddr,
    udp: SocketAddr,
    clock: fn() -> u64,
    queue: DirectoryQueue,
    held: HeldBatches,
    pub(crate) relay: Relay,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    discovery: Server,
    stun: JoinHandle<()>,
    directory: thread::JoinHandle<()>,
    /// The lock of the data folder, held as long as the hub runs.
    _lock: File,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id, url, tcp, udp, ..
        } = self;
        f.debug_struct("Hub")
            .field("id", id)
            .field("url", url)
            .field("tcp", tcp)
            .field("udp", udp)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// Starts a hub. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    ///
    /// [`StartError`]. Nothing is left running then.
    pub async fn start(config: HubConfig) -> Result<Self, StartError> {
        if config.tls == TlsMode::Plain && !config.listen.ip().is_loopback() {
            return Err(StartError::PlainOffLoopback(config.listen));
        }
        let lock = lock_folder(&config.data_dir)?;
        let identity = HubIdentity::load_or_create(&config.data_dir)?;
        let tls = identity.server_config(&config.tls)?;

        let in_use = |source| StartError::Bind {
            protocol: "TCP",
            address: config.listen,
            source,
        };
        let listener = hailwire_socket::tcp::bind(config.listen).map_err(in_use)?;
        let tcp = listener.local_addr().map_err(in_use)?;
        let udp_port = config.udp_port.unwrap_or(if config.listen.port() == 0 {
            0
        } else {
            tcp.port()
        });
        let udp = SocketAddr::new(tcp.ip(), udp_port);
        let discovery = relay::discovery(udp, tls.clone()).await.map_err(|error| {
            let source = io::Error::other(error);
            StartError::Bind {
                protocol: "UDP",
                address: udp,
                source,
            }
        })?;
        let udp = discovery.quic_addr().unwrap_or(udp);
        let stun = NatDiscovery::bind(udp, udp_port != 0).await;
        let stun = stun.map_err(|source| StartError::Bind {
            protocol: "UDP",
            address: SocketAddr::new(udp.ip(), 0),
            source,
        })?;

        let id = identity.id();
        let url = config
            .url
            .clone()
            .unwrap_or_else(|| url_of(&config.tls, tcp));
        let name_hold_s = config.name_hold.as_secs();
        let policy = DirectoryPolicy {
            max_members: config.bounds.members,
            name_hold_s,
            listing: config
                .listing
                .unwrap_or(AgentVisibility::for_trust(config.trust)),
        };
        let mut directory = Directory::open(&config.data_dir.join(folder::DATABASE), policy)?;
        let pinned = (!matches!(config.tls, TlsMode::Files { .. })).then_some(id);
        folder::remember(&mut directory, &url, pinned, config.trust)?;
        let held = HeldStore::open(&config.data_dir.join(held::DATABASE), config.hold)?;
        let held = HeldBatches::new(held);
        let (queue, directory) = DirectoryQueue::start(directory).map_err(StartError::Thread)?;

        let discovery_port = udp.port();
        let about = HubInfo {
            id,
            url: url.clone(),
            trust: config.trust,
            discovery_port,
            stun_ports: stun.ports(),
            name_hold_s,
        };
        let (relay, removed) = Relay::new(queue.clone(), &config.bounds);
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(removed.end(stopped.clone()));
        let stun = tokio::spawn(stun.serve(stopped.clone()));
        let port = ServerContext {
            api: DirectoryApi::new(
                about,
                config.clock,
                queue.clone(),
                held.clone(),
                &config.bounds,
            ),
            relay: relay.clone(),
            tls: (config.tls != TlsMode::Plain).then(|| TlsAcceptor::from(Arc::new(tls))),
            handshake: config.bounds.handshake,
            stop: stopped,
        };
        let serving = tokio::spawn(server::serve(listener, Arc::new(port), config.bounds));
        tracing::info!(%id, %url, %tcp, %udp, "hub started");
        Ok(Self {
            id,
            url,
            tcp,
            udp,
            clock: config.clock,
            queue,
            held,
            relay,
            stop,
            serving,
            discovery,
            stun,
            directory,
            _lock: lock,
        })
    }

    /// The hub's key.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The URL at which nodes reach the hub; also the URL of its relay.
    #[must_use]
    pub fn url(&self) -> &HubUrl {
        &self.url
    }

    /// The bound TCP address.
    #[must_use]
    pub fn tcp_addr(&self) -> SocketAddr {
        self.tcp
    }

    /// The bound UDP address of address discovery.
    #[must_use]
    pub fn udp_addr(&self) -> SocketAddr {
        self.udp
    }

    /// Creates a ticket for membership: a secret. `uses` nodes may join with it until `lifetime` has
    /// passed.
    ///
    /// # Errors
    ///
    /// [`InviteError`].
    pub async fn invite(&self, uses: u32, lifetime: Duration) -> Result<String, InviteError> {
        let clock = self.clock;
        let issue = self
            .queue
            .run_quick(move |directory| folder::issue(directory, uses, lifetime, clock()));
        issue.await.unwrap_or(Err(InviteError::ShuttingDown))
    }

    /// All members, in the order of their keys.
    ///
    /// # Errors
    ///
    /// [`InviteError::Directory`] and [`InviteError::ShuttingDown`].
    pub async fn members(&self) -> Result<Vec<HubMember>, InviteError> {
        let clock = self.clock;
        let list = self
            .queue
            .run_quick(move |directory| folder::all_members(directory, clock()));
        list.await
            .map_err(|_| InviteError::ShuttingDown)?
            .map_err(InviteError::Directory)
    }

    /// Ends a membership: deletes its record and name, and closes its relay connections. Returns whether
    /// the node was a member.
    ///
    /// # Errors
    ///
    /// [`InviteError::Directory`] and [`InviteError::ShuttingDown`].
    pub async fn remove(&self, node: NodeId) -> Result<bool, InviteError> {
        let remove = self
            .queue
            .run_quick(move |directory| directory.remove(node))
            .await;
        let removed = remove.map_err(|_| InviteError::ShuttingDown)?;
        let removed = removed.map_err(InviteError::Directory)?;
        self.ask_held(move |held| held.forget(node)).await?;
        if let Ok(endpoint) = EndpointId::from_bytes(node.as_bytes()) {
            self.relay.disconnect(endpoint);
        }
        Ok(removed)
    }

    /// How many members, records and names there are.
    ///
    /// # Errors
    ///
    /// [`InviteError::Directory`] and [`InviteError::ShuttingDown`].
    pub async fn counts(&self) -> Result<HubCounts, InviteError> {
        let clock = self.clock;
        let counts = self
            .queue
            .run_quick(move |directory| directory.counts(clock()));
        counts
            .await
            .map_err(|_| InviteError::ShuttingDown)?
            .map_err(InviteError::Directory)
    }

    /// What is held for members that are away.
    ///
    /// # Errors
    ///
    /// [`InviteError::Directory`] and [`InviteError::ShuttingDown`].
    pub async fn held(&self) -> Result<HeldCounts, InviteError> {
        self.ask_held(|held| held.counts()).await
    }

    async fn ask_held<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut HeldStore) -> Result<T, DirectoryError> + Send + 'static,
    ) -> Result<T, InviteError> {
        let asked = self.held.ask(ask).await;
        let answer = asked.map_err(|_| InviteError::ShuttingDown)?;
        answer.map_err(InviteError::Directory)
    }

    /// Stops: no new connection, requests in flight finish within two seconds, the database is
    /// closed, relay connections close, ports are free. What was acknowledged is on disk. Takes at most about
    /// eight seconds, whatever the peers do.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        for task in [self.serving, self.stun] {
            if task.await.is_err() {
                tracing::error!("a task of the hub failed");
            }
        }
        match timeout(CLOSE_TIMEOUT, self.discovery.shutdown()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "address discovery did not stop in order");
            }
            Err(_) => tracing::warn!("address discovery did not stop in time"),
        }
        // Whoever starts the hub again wants its port, and the engine lets its socket go a moment later.
        let free = async {
            while UdpSocket::bind(self.udp).is_err() {
                sleep(PORT_LOOK_INTERVAL).await;
            }
        };
        if timeout(CLOSE_TIMEOUT, free).await.is_err() {
            tracing::warn!(udp = %self.udp, "the port of address discovery is not free again");
        }
        // The relay admits no more connections from here on, so closing its connections terminates.
        self.queue.close().await;
        let directory = self.directory;
        let joined = tokio::task::spawn_blocking(move || directory.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the directory's thread failed");
        }
        if timeout(CLOSE_TIMEOUT, self.relay.shutdown()).await.is_err() {
            tracing::warn!("relay connections were cut off");
        }
        tracing::info!("hub stopped");
    }
}

/// Creates the data folder and takes its lock.
fn lock_folder(data_dir: &Path) -> Result<File, StartError> {
    let at = |source| StartError::Folder {
        path: data_dir.into(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .map_err(at)?;
    let path = data_dir.join(folder::LOCK);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path);
    let mut lock = lock.map_err(at)?;
    match lock.try_lock() {
        Ok(()) => {
            // For `hail hub down`.
            let process = std::process::id().to_string();
            lock.set_len(0)
                .and_then(|()| lock.write_all(process.as_bytes()))
                .map_err(at)?;
            Ok(lock)
        }
        Err(TryLockError::WouldBlock) => Err(StartError::Running(data_dir.into())),
        Err(TryLockError::Error(source)) => Err(at(source)),
    }
}

fn url_of(tls: &TlsMode, tcp: SocketAddr) -> HubUrl {
    let address = SocketAddr::new(
        if tcp.ip().is_unspecified() {
            outgoing(tcp)
        } else {
            tcp.ip()
        },
        tcp.port(),
    );
    let scheme = if *tls == TlsMode::Plain {
        "http"
    } else {
        "https"
    };
    #[expect(
        clippy::expect_used,
        reason = "an IP address and a bound port make a URL"
    )]
    format!("{scheme}://{address}").parse().expect("a URL")
}

/// The address from which this machine would reach the Internet. Connecting a UDP socket sends
/// nothing; the far address is one of documentation (RFC 5737, RFC 3849).
fn outgoing(bound: SocketAddr) -> std::net::IpAddr {
    let (any, far, fallback): (SocketAddr, SocketAddr, std::net::IpAddr) = if bound.is_ipv4() {
        let far = Ipv4Addr::new(192, 0, 2, 1);
        (
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (far, 9).into(),
            Ipv4Addr::LOCALHOST.into(),
        )
    } else {
        let far = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            (far, 9).into(),
            Ipv6Addr::LOCALHOST.into(),
        )
    };
    let socket = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(far)?;
        socket.local_addr()
    });
    socket.map_or(fallback, |address| address.ip())
}

/// Why a hub does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Plain HTTP off loopback would show tickets to the network.
    #[error(
        "plain HTTP is only allowed on loopback, and {0} is not a loopback address; use the hub's own key or a certificate"
    )]
    PlainOffLoopback(SocketAddr),
    /// The data folder cannot be used.
    #[error("the data folder {} cannot be used", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another hub is running with this data folder.
    #[error("a hub is already running with the data folder {}", .0.display())]
    Running(PathBuf),
    /// The key or the certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The address cannot be bound.
    #[error("cannot bind {protocol} {address}")]
    Bind {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The database cannot be opened.
    #[error("the hub's database cannot be opened")]
    Database(#[from] DirectoryError),
    /// The thread cannot be started.
    #[error("cannot start the directory's thread")]
    Thread(#[source] io::Error),
}
