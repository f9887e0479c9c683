//! The virtual tier: a network in one process, in virtual time, for tests of whole systems in
//! milliseconds.
//!
//! Run it on tokio's single-threaded runtime with its clock paused
//! (`#[tokio::test(start_paused = true)]`): the clock then jumps to whatever happens next, and an
//! hour of network time costs what its packets cost. Chance comes from a seed, so that the same
//! program meets the same network again; [`VirtualNetwork::trace`] is a hash of every packet that arrived and
//! when, to hold a run to that.
//!
//! [`VirtualNetwork::socket`] is a UDP socket in memory behind the topology's links, NATs and firewalls.
//! [`VirtualSocket`] is also the engine's own kind (`noq::AsyncUdpSocket`), and noq takes its time from
//! tokio, so that real QUIC runs over it. [`VirtualNetwork::connect`] is a byte stream where the engine is
//! not the subject: what a TCP connection would carry, with loss as delay.
//!
//! The clock ticks in milliseconds, as tokio's timers do: a packet is handed over at the first tick
//! at or after its arrival.

mod socket;
mod stream;

use std::{
    collections::{HashMap, VecDeque},
    hash::Hasher as _,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use crate::{
    fabric::{Fabric, FabricOutput, FabricPort, NatProvider, PacketCounters},
    packet::{Flow, PacketSegments, Protocol},
    topology::Topology,
};

pub use socket::VirtualSocket;
pub use stream::{STREAM_WINDOW, VirtualStream};

/// Datagrams that a socket holds for its reader; beyond them the newest is dropped, as a kernel does.
pub const MAX_UNREAD: usize = 1024;

/// Bytes of IP and UDP headers, which count toward rates and MTUs.
const HEADERS: u32 = 28;

/// First of the ports that a socket without one is given.
const FIRST_PORT: u16 = 49_152;

/// A network in virtual time. Dropping it ends it; what is under way is lost.
#[derive(Debug)]
pub struct VirtualNetwork {
    shared: Arc<SharedNetwork>,
    topology: Topology,
    seed: u64,
    streams: Mutex<u64>,
    driver: JoinHandle<()>,
}

impl Drop for VirtualNetwork {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[derive(Debug)]
struct SharedNetwork {
    origin: Instant,
    state: Mutex<NetworkState>,
    changed: Notify,
}

#[derive(Debug)]
struct NetworkState {
    fabric: Fabric<Bytes>,
    unread: HashMap<SocketAddrV4, SocketQueue>,
    trace: FnvHasher,
    next_port: u16,
}

/// What waits at one socket.
#[derive(Debug, Default)]
struct SocketQueue {
    datagrams: VecDeque<(Bytes, SocketAddrV4)>,
    readers: Vec<Waker>,
}

impl VirtualNetwork {
    /// Makes the network; chance comes from `seed`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn up(topology: &Topology, seed: u64) -> Self {
        let shared = Arc::new(SharedNetwork {
            origin: Instant::now(),
            state: Mutex::new(NetworkState {
                fabric: Fabric::new(topology, seed, |_| NatProvider::Model),
                unread: HashMap::new(),
                trace: FnvHasher::default(),
                next_port: FIRST_PORT,
            }),
            changed: Notify::new(),
        });
        Self {
            driver: tokio::spawn(drive(Arc::clone(&shared))),
            shared,
            topology: topology.clone(),
            seed,
            streams: Mutex::new(0),
        }
    }

    /// What it was made from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The address that a host itself has: behind a NAT, a private one. `None` for an unknown host.
    #[must_use]
    pub fn address(&self, host: &str) -> Option<IpAddr> {
        self.topology
            .addresses(host)
            .first()
            .copied()
            .map(IpAddr::V4)
    }

    /// A UDP socket of a host, on its main address. Port 0 lets the network choose.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown host, `AddrInUse` for a port that is taken.
    pub fn socket(&self, host: &str, port: u16) -> io::Result<VirtualSocket> {
        let addresses = self.topology.addresses(host);
        let address = addresses.first().ok_or(io::ErrorKind::NotFound)?;
        self.socket_at(SocketAddrV4::new(*address, port))
    }

    /// A UDP socket on any address that a host has.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` for an address that no host has, `AddrInUse` for a port that is taken.
    pub fn socket_at(&self, mut local: SocketAddrV4) -> io::Result<VirtualSocket> {
        let mut state = self.shared.lock();
        let port = state
            .fabric
            .port(IpAddr::V4(*local.ip()))
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        if local.port() == 0 {
            local = state
                .free_port(*local.ip())
                .ok_or(io::ErrorKind::AddrInUse)?;
        }
        if state.unread.contains_key(&local) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.unread.insert(local, SocketQueue::default());
        drop(state);
        Ok(VirtualSocket::new(Arc::clone(&self.shared), port, local))
    }

    /// Connects a byte stream from one host to a port of another: the near and the far end.
    ///
    /// The links between the two shape it both ways. A packet that is lost arrives one round trip
    /// later, and all behind it wait for it, as over TCP. Names and ports are not looked up, so that
    /// nobody has to listen.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown host; `TimedOut` where a NAT or a firewall of the topology does not
    /// let a connection through.
    pub fn connect(
        &self,
        from: &str,
        to: &str,
        port: u16,
    ) -> io::Result<(VirtualStream, VirtualStream)> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        *streams += 1;
        stream::connect(&self.topology, self.seed ^ (*streams << 16), from, to, port)
    }

    /// A hash of every packet that has arrived so far: when, from where to where, how large.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.shared.lock().trace.finish()
    }

    /// What became of the packets so far.
    #[must_use]
    pub fn counters(&self) -> PacketCounters {
        self.shared.lock().fabric.counters()
    }
}

impl SharedNetwork {
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn send(
        &self,
        port: FabricPort,
        source: SocketAddrV4,
        destination: SocketAddrV4,
        payload: &[u8],
    ) {
        let flow = Flow {
            protocol: Protocol::Udp,
            source: source.into(),
            destination: destination.into(),
        };
        let bytes = HEADERS + u32::try_from(payload.len()).unwrap_or(u32::MAX - HEADERS);
        let payload = Bytes::copy_from_slice(payload);
        self.lock()
            .fabric
            .enter(self.now(), port, flow, PacketSegments::one(bytes), payload);
        self.changed.notify_one();
    }

    /// Hands over what has arrived, and tells when the next arrives.
    fn deliver(&self) -> Option<Duration> {
        let now = self.now();
        let mut state = self.lock();
        while let Some(output) = state.fabric.leave(now) {
            // Who sent too large a datagram learns it by the silence, as most of the internet does.
            if let FabricOutput::Arrived { flow, payload, .. } = output {
                state.arrive(now, flow, payload);
            }
        }
        state.fabric.next()
    }
}

impl NetworkState {
    fn arrive(&mut self, now: Duration, flow: Flow, payload: Bytes) {
        // Sockets in memory are of IPv4 only.
        let (SocketAddr::V4(source), SocketAddr::V4(destination)) = (flow.source, flow.destination)
        else {
            return;
        };
        self.trace.packet(now, [source, destination], payload.len());
        let Some(unread) = self.unread.get_mut(&destination) else {
            return;
        };
        if unread.datagrams.len() < MAX_UNREAD {
            unread.datagrams.push_back((payload, source));
        }
        unread.readers.drain(..).for_each(Waker::wake);
    }

    fn free_port(&mut self, address: Ipv4Addr) -> Option<SocketAddrV4> {
        for _ in FIRST_PORT..=u16::MAX {
            let candidate = SocketAddrV4::new(address, self.next_port);
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            if !self.unread.contains_key(&candidate) {
                return Some(candidate);
            }
        }
        None
    }
}

/// Hands packets over as they arrive, until aborted.
async fn drive(shared: Arc<SharedNetwork>) {
    loop {
        let changed = shared.changed.notified();
        match shared.deliver() {
            None => changed.await,
            Some(at) => tokio::select! {
                () = tokio::time::sleep_until(shared.origin + at) => {}
                () = changed => {}
            },
        }
    }
}

/// FNV-1a: the same on every machine and in every version, unlike the standard library's.
#[derive(Debug)]
struct FnvHasher(u64);

impl Default for FnvHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl FnvHasher {
    fn packet(&mut self, now: Duration, ends: [SocketAddrV4; 2], length: usize) {
        self.write(&now.as_nanos().to_le_bytes());
        for end in ends {
            self.write(&end.ip().octets());
            self.write(&end.port().to_le_bytes());
        }
        self.write(&(length as u64).to_le_bytes());
    }
}

impl std::hash::Hasher for FnvHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
