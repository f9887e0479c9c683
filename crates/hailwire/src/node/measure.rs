//! Looks at the tunnels while they work: which carrier takes new calls, and how large the windows are.
//!
//! A thin shell around [`Choice`] and [`Window`]: a few times a second it reads the counters of every
//! tunnel with calls in flight, tells the two what it saw, and does what they answer. Tunnels at rest
//! cost nothing here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hailwire_wire::NodeId;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    Inner,
    choice::{Choice, Seen, Way},
    overlay,
    window::Window,
};
use crate::{carrier::Stats, session::Session};

/// How often working tunnels are looked at.
const TICK: Duration = Duration::from_millis(250);

/// What is kept of one peer between two looks.
#[derive(Debug)]
struct Watched {
    choice: Choice,
    window: Window,
    udp: Option<Before>,
    tcp: Option<Before>,
    at: Instant,
}

/// What was read from one tunnel the time before.
#[derive(Debug)]
struct Before {
    session: Session,
    stats: Stats,
    ping: Ping,
}

/// The last `PING`.
#[derive(Clone, Debug, Default)]
struct Ping(Arc<Mutex<Option<Asked>>>);

/// When it was sent, and how long its answer took.
#[derive(Clone, Copy, Debug)]
struct Asked {
    sent: Instant,
    took: Option<Duration>,
}

impl Ping {
    /// How long it took; how long it takes by now where it is not answered.
    fn answer(&self, now: Instant) -> Option<Duration> {
        let Asked { sent, took } = (*self.lock())?;
        Some(took.unwrap_or_else(|| now.saturating_duration_since(sent)))
    }

    /// Sends the next one, once the one before was answered.
    fn send(&self, session: Session) {
        {
            let mut last = self.lock();
            if last.is_some_and(|last| last.took.is_none()) {
                return;
            }
            *last = Some(Asked {
                sent: Instant::now(),
                took: None,
            });
        }
        let ping = self.clone();
        tokio::spawn(async move {
            let took = session.ping().await;
            if let (Ok(took), Some(last)) = (took, ping.lock().as_mut()) {
                last.took = Some(took);
            }
        });
    }

    fn forget(&self) {
        self.lock().take_if(|last| last.took.is_some());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the tunnels until the node ends.
pub(super) async fn watch(node: Arc<Inner>) {
    let mut watched: HashMap<NodeId, Watched> = HashMap::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = tick.tick().await;
        let ids = node.peers.ids();
        watched.retain(|id, _| ids.contains(id));
        for id in ids {
            let sessions = Way::BOTH.map(|way| node.peers.session(id, way));
            let idle = sessions.iter().flatten().all(|s| s.in_flight() == 0);
            let only_tcp = sessions[0].is_none();
            let resting = watched.get(&id).is_none_or(|peer| peer.choice.may_rest());
            if idle && resting && !only_tcp {
                if let Some(peer) = watched.get_mut(&id) {
                    (peer.udp, peer.tcp) = (None, None);
                }
                continue;
            }
            let peer = watched
                .entry(id)
                .or_insert_with(|| Watched::new(&node, id, now));
            look(&node, id, peer, sessions, now);
        }
    }
}

impl Watched {
    fn new(node: &Inner, id: NodeId, now: Instant) -> Self {
        let quic = &node.config.quic;
        Self {
            choice: Choice::new(node.carrier_for(id), now),
            window: Window::new(overlay::first_window(quic), quic.window.bytes()),
            udp: None,
            tcp: None,
            at: now,
        }
    }
}

/// One look at one peer.
fn look(
    node: &Arc<Inner>,
    id: NodeId,
    peer: &mut Watched,
    sessions: [Option<Session>; 2],
    now: Instant,
) {
    let elapsed = now.saturating_duration_since(peer.at);
    peer.at = now;
    let [udp_session, tcp_session] = sessions;
    let (udp, udp_stats) = read(&mut peer.udp, udp_session.as_ref(), now);
    let (tcp, _) = read(&mut peer.tcp, tcp_session.as_ref(), now);
    if let (Some(session), Some((rtt, received))) = (&udp_session, udp_stats)
        && let Some(size) = peer.window.arrived(received, elapsed, rtt)
    {
        tracing::debug!(peer = %id, size, "a larger window");
        session.connection().set_window(size);
    }
    let before = (peer.choice.why(), node.peers.carries(id));
    let wish = peer.choice.tick(now, &udp, &tcp);
    if before != (peer.choice.why(), Some(wish.carry)) {
        node.peers.set_carry(id, wish.carry, peer.choice.why());
    }
    if let Some(way) = wish.bring_up {
        tokio::spawn(Box::pin(node.clone().bring_up(
            id,
            way,
            node.carrier_for(id),
        )));
    }
    for before in [&peer.udp, &peer.tcp].into_iter().flatten() {
        if wish.ask {
            before.ping.send(before.session.clone());
        } else {
            before.ping.forget();
        }
    }
}

/// What happened on a tunnel since the time before; with the round trip and the bytes received.
fn read(
    before: &mut Option<Before>,
    session: Option<&Session>,
    now: Instant,
) -> (Seen, Option<(Duration, u64)>) {
    let Some(session) = session else {
        *before = None;
        return (Seen::default(), None);
    };
    let stats = session.connection().stats();
    let same = before.take().filter(|before| before.session.is(session));
    let (last, ping) = same.map_or_else(
        || (stats.clone(), Ping::default()),
        |before| (before.stats, before.ping),
    );
    let received = stats.received_bytes.saturating_sub(last.received_bytes);
    let seen = Seen {
        up: true,
        calls: session.in_flight(),
        moved: received + stats.sent_bytes.saturating_sub(last.sent_bytes),
        heard: received > 0,
        sent: stats.sent_packets.saturating_sub(last.sent_packets),
        lost: stats.lost_packets.saturating_sub(last.lost_packets),
        answer: ping.answer(now),
    };
    let rtt = stats.rtt;
    *before = Some(Before {
        session: session.clone(),
        stats,
        ping,
    });
    (seen, rtt.map(|rtt| (rtt, received)))
}
