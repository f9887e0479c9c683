//! A piece of network on loopback that a test can cut: UDP datagrams pass through it, or do not.
//!
//! Its near end is IPv6 and its far end IPv4. A node that is bound to `[::1]` only reaches one that is
//! bound to `127.0.0.1` only through it: two nodes that could reach each other find that out.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use tokio::{net::UdpSocket, sync::watch, task::JoinSet};

use crate::test_node::PATIENCE;

/// Passes what comes to [`Wire::address`] on to one far address, and back.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    far: SocketAddr,
    cut: AtomicBool,
    /// One datagram of so many is dropped; 0 for none.
    drops: AtomicU32,
    passed: watch::Sender<u64>,
    /// Nothing comes back.
    mute: AtomicBool,
}

impl State {
    fn passes(&self) -> bool {
        let mut number = 0;
        self.passed
            .send_modify(|passed| number = std::mem::replace(passed, *passed + 1));
        let drops = u64::from(self.drops.load(Ordering::SeqCst));
        // Spread, so that it does not fall in step with who sends what.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        !self.cut.load(Ordering::SeqCst) && (drops == 0 || !spread.is_multiple_of(drops))
    }
}

impl Wire {
    pub(crate) async fn to(far: SocketAddr) -> Self {
        let near = Arc::new(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).await.unwrap());
        let state = Arc::new(State {
            far,
            cut: AtomicBool::new(false),
            drops: AtomicU32::new(0),
            passed: watch::Sender::new(0),
            mute: AtomicBool::new(false),
        });
        let address = near.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(forward(near, state.clone()));
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    /// From now on nothing passes, or everything again.
    pub(crate) fn cut(&self, cut: bool) {
        self.state.cut.store(cut, Ordering::SeqCst);
    }

    /// From now on one datagram of so many is lost; 0 for none.
    pub(crate) fn lose_one_of(&self, number: u32) {
        self.state.drops.store(number, Ordering::SeqCst);
    }

    /// From now on what the far side says is lost, or not any more.
    pub(crate) fn mute(&self, mute: bool) {
        self.state.mute.store(mute, Ordering::SeqCst);
    }

    /// Datagrams that came.
    pub(crate) fn passed(&self) -> u64 {
        *self.state.passed.borrow()
    }

    /// Waits until so many datagrams came.
    pub(crate) async fn has_passed(&self, number: u64) {
        let mut passed = self.state.passed.subscribe();
        let so_many = passed.wait_for(|passed| *passed >= number);
        tokio::time::timeout(PATIENCE, so_many)
            .await
            .unwrap()
            .unwrap();
    }
}

/// Gives each near address a socket of its own towards the far side, whose answers go back.
async fn forward(near: Arc<UdpSocket>, state: Arc<State>) {
    let mut sockets: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut backward = JoinSet::new();
    let mut buffer = vec![0; 65536];
    while let Ok((len, from)) = near.recv_from(&mut buffer).await {
        let socket = match sockets.entry(from) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let socket = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
                backward.spawn(back(socket.clone(), near.clone(), from, state.clone()));
                new.insert(socket)
            }
        };
        if state.passes() {
            let _ = socket.send_to(&buffer[..len], state.far).await;
        }
    }
}

async fn back(socket: Arc<UdpSocket>, near: Arc<UdpSocket>, to: SocketAddr, state: Arc<State>) {
    let mut buffer = vec![0; 65536];
    while let Ok((len, _)) = socket.recv_from(&mut buffer).await {
        if state.passes() && !state.mute.load(Ordering::SeqCst) {
            let _ = near.send_to(&buffer[..len], to).await;
        }
    }
}
