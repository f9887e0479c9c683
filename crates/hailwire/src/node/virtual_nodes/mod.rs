//! Whole nodes in virtual time, for tests: every module of a node but its network card.
//!
//! A [`VirtualNodes`] is where such nodes live. They are started as any node is, with a data folder, trust in
//! SQLite and all their tasks, and listen nowhere. Where one dials another over TCP, [`dial`] hands
//! it the in-memory carrier instead: the multiplexer over a byte stream of `hailwire-lab`, with the
//! network's delay, loss and rate, after the round trips of a handshake. From there on everything is
//! the node's own: greeting, tunnel, offers, router, pool, silence. Programs are embedded.
//!
//! Virtual time needs a runtime with one thread and a paused clock, which jumps when nobody has
//! anything to do. That is true to life as long as nothing that a node waits for happens outside
//! of the runtime: SQLite is called in place and returns at once, an embedded program has no
//! socket, and neither UDP nor TCP nor hubs are there. Looking again for traffic (`limits.spin`)
//! is off, for that waits for a clock that stands still meanwhile.
//!
//! Chance comes from the network's seed, drawn anew for each pair and dial, so that it does not matter in
//! which order nodes dial in one instant.

mod tests;

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hailwire_core::{
    dial_address::AddressOrigin,
    grants::{Grant, GrantTerms},
    names::NamedBy,
};
use hailwire_lab::{
    Topology,
    virtual_net::{VirtualNetwork as Network, VirtualStream as Stream},
};
use hailwire_wire::{NodeId, mux::MuxRole};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep, sleep_until},
};

use super::{Node, NodeInner, overlay::DIAL_TIMEOUT, store::TrustOrigin, trust::NewPeer, tunnel};
use crate::{
    Config, DataDir,
    carrier::{CarrierConnection, mux},
};

thread_local! {
    /// The network of the test that runs on this thread.
    static NETWORK: RefCell<Option<Arc<VirtualNodes>>> = const { RefCell::new(None) };
}

/// Nodes with links between them, all alike.
#[derive(Debug)]
pub(super) struct VirtualNodes {
    topology: Topology,
    seed: u64,
    hosts: Mutex<HashMap<NodeId, VirtualHost>>,
    dials: Mutex<HashMap<(NodeId, NodeId), u64>>,
    /// Far ends of what was cut: they hear nothing, not even an end.
    silent: Mutex<Vec<Stream>>,
}

#[derive(Clone, Debug)]
struct VirtualHost {
    node: Weak<NodeInner>,
    cut: Arc<AtomicBool>,
}

/// A node that is there, and what says that it was cut off.
type FoundHost = (Arc<NodeInner>, Arc<AtomicBool>);

/// How long the first question for a connection is waited for.
const FIRST_SYN: Duration = Duration::from_secs(1);

impl VirtualNodes {
    /// A network whose nodes are all `link` away from each other, for this thread. A link is what a
    /// topology file says of one, in KDL.
    pub(super) fn new(link: &str, seed: u64) -> Arc<Self> {
        let text = format!("host \"a\" {{ link {{ {link} }} }}\nhost \"b\"");
        let network = Arc::new(Self {
            topology: Topology::parse(&text, "network").unwrap(),
            seed,
            hosts: Mutex::default(),
            dials: Mutex::default(),
            silent: Mutex::default(),
        });
        NETWORK.set(Some(Arc::clone(&network)));
        network
    }

    /// A node of this name, as its folder knows it. Its key follows from its name.
    pub(super) async fn start(&self, folder: &Path, name: &str) -> Node {
        self.start_with(folder, name, |_| {}).await
    }

    /// As [`VirtualNodes::start`], with other settings.
    pub(super) async fn start_with(
        &self,
        folder: &Path,
        name: &str,
        set: impl FnOnce(&mut Config),
    ) -> Node {
        let data = DataDir::new(folder);
        data.create().unwrap();
        if !data.key().exists() {
            write_key(&data.key(), name);
        }
        let mut config = Config::default();
        config.node.name = Some(name.parse().unwrap());
        config.listen.udp.clear();
        config.carrier = crate::config::Carrier::Ws;
        config.limits.spin = Duration::ZERO;
        set(&mut config);
        let node = Node::builder().data_dir(data).config(config);
        let node = Box::pin(node.start()).await.unwrap();
        let host = VirtualHost {
            node: Arc::downgrade(&node.inner),
            cut: Arc::default(),
        };
        lock(&self.hosts).insert(node.id(), host);
        node
    }

    /// Takes a node away as a power cut does: nobody hears that it has gone.
    pub(super) async fn cut(&self, node: Node) {
        if let Some(host) = lock(&self.hosts).remove(&node.id()) {
            host.cut.store(true, Ordering::Release);
        }
        node.shutdown(Duration::ZERO).await;
    }

    fn host(&self, id: NodeId) -> Option<FoundHost> {
        let hosts = lock(&self.hosts);
        let host = hosts.get(&id)?;
        Some((host.node.upgrade()?, Arc::clone(&host.cut)))
    }

    async fn connect(
        self: Arc<Self>,
        near: NodeId,
        far: NodeId,
    ) -> Result<CarrierConnection, String> {
        let expected = self.topology.expected("a", "b").unwrap();
        let Some(((_, here), (node, there))) = self.knock(near, far).await else {
            return Err("no answer".to_owned());
        };
        let network = Network::up(&self.topology, self.draw(near, far));
        let (a, b) = network.connect("a", "b", 443).unwrap();
        // TCP's handshake, then TLS's.
        sleep(2 * expected.rtt).await;
        let cuts = [here, there];
        let end = |stream, role| {
            let cable = VirtualCable {
                stream: Some(stream),
                cuts: cuts.clone(),
                network: Arc::clone(&self),
            };
            // What a node takes it for: it looks for tunnels by the carrier that they are on.
            CarrierConnection::Mux(mux::MuxConnection::over(cable, role, "ws", String::new()))
        };
        let (a, b) = (end(a, MuxRole::Client), end(b, MuxRole::Server));
        tokio::spawn(async move { Box::pin(tunnel::arrived(&node, near, b)).await });
        Ok(a)
    }

    /// Both ends, as soon as both are there. Asks again as often as TCP does (RFC 6298).
    async fn knock(&self, near: NodeId, far: NodeId) -> Option<(FoundHost, FoundHost)> {
        let mut wait = FIRST_SYN;
        let given_up = Instant::now() + DIAL_TIMEOUT;
        loop {
            let both = self.host(near).zip(self.host(far));
            if both.is_some() || Instant::now() >= given_up {
                return both;
            }
            sleep_until(given_up.min(Instant::now() + wait)).await;
            wait *= 2;
        }
    }

    /// The seed of one connection.
    fn draw(&self, near: NodeId, far: NodeId) -> u64 {
        let mut dials = lock(&self.dials);
        let dial = dials.entry((near, far)).or_default();
        *dial += 1;
        let bytes = near.as_bytes().iter().chain(far.as_bytes());
        let pair = bytes.fold(self.seed, |sum, byte| {
            sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte)
        });
        pair ^ (*dial << 32)
    }
}

/// What a dial over TCP finds on this thread's network; `None` where there is none.
pub(super) async fn dial(near: NodeId, far: NodeId) -> Option<Result<CarrierConnection, String>> {
    let network = NETWORK.with_borrow(Option::clone)?;
    Some(network.connect(near, far).await)
}

/// Makes two nodes trust each other.
pub(super) fn befriend(one: &Node, other: &Node) {
    for (of, to) in [(one, other), (other, one)] {
        let peer = NewPeer {
            id: of.id(),
            alias: of.name().map(|name| (name, NamedBy::User)),
            terms: GrantTerms::Offered(Grant::All),
            bare: None,
            via: TrustOrigin::Manual,
            known: AddressOrigin::Typed,
            addresses: Vec::new(),
            // Any will do: see `dial`.
            tcp: vec![([198, 18, 0, 1], 443).into()],
            relay: None,
        };
        to.inner.trust.add(peer, super::now_unix()).unwrap();
    }
}

fn write_key(path: &Path, name: &str) {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    let mut seed = [0; 32];
    for (place, byte) in name.bytes().enumerate() {
        seed[place % 32] = byte;
    }
    fs::write(path, data_encoding::HEXLOWER.encode(&seed)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn lock<T>(own: &Mutex<T>) -> MutexGuard<'_, T> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a byte stream between two nodes. Once either was cut off, what is written is gone, and
/// nothing is read any more.
struct VirtualCable {
    stream: Option<Stream>,
    cuts: [Arc<AtomicBool>; 2],
    network: Arc<VirtualNodes>,
}

impl VirtualCable {
    /// The stream, if it is whole.
    fn whole(&mut self) -> Option<Pin<&mut Stream>> {
        let cut = self.cuts.iter().any(|cut| cut.load(Ordering::Acquire));
        let stream = self.stream.as_mut().filter(|_| !cut)?;
        Some(Pin::new(stream))
    }
}

impl Drop for VirtualCable {
    fn drop(&mut self) {
        if self.whole().is_none() {
            lock(&self.network.silent).extend(self.stream.take());
        }
    }
}

impl AsyncRead for VirtualCable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.whole() {
            Some(stream) => stream.poll_read(cx, buffer),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for VirtualCable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.whole() {
            Some(stream) => stream.poll_write(cx, bytes),
            None => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.whole() {
            Some(stream) => stream.poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
