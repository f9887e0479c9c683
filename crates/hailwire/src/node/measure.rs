//! Looks at the tunnels while they work: which carrier takes new calls, and how large the windows are.
//!
//! A thin shell around [`CarrierChoice`] and [`ReceiveWindow`]: a few times a second it reads the counters of every
//! tunnel with calls in flight, tells the two what it saw, and does what they answer. A tunnel of several
//! connections is seen as the sum of them; its first one is asked for answers. Tunnels at rest cost nothing
//! here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hailwire_core::{
    Transport,
    carrier_choice::{CarrierChoice, CarrierSample},
    path_silence::PathSilence,
    receive_window::ReceiveWindow,
};
use hailwire_wire::NodeId;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{NodeInner, dial, overlay};
use crate::{carrier::ConnectionStats, session::Session};

/// How often working tunnels are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Packets for each piece of a stream that is sent from which they are little but acknowledgements.
const MOSTLY_ACKS: u64 = 4;

/// What is kept of one peer between two looks.
#[derive(Debug)]
struct PeerMeasurement {
    choice: CarrierChoice,
    silence: PathSilence,
    window: ReceiveWindow,
    udp: TunnelSample,
    tcp: TunnelSample,
    at: Instant,
}

/// What was read from one tunnel the time before.
#[derive(Debug, Default)]
struct TunnelSample {
    connections: Vec<ConnectionSample>,
    /// On the first of them.
    ping: PingProbe,
}

/// What was read from one connection.
#[derive(Debug)]
struct ConnectionSample {
    session: Session,
    stats: ConnectionStats,
    /// The window that it was given; zero where that is not known.
    window: u32,
}

/// The last `PING`.
#[derive(Clone, Debug, Default)]
struct PingProbe(Arc<Mutex<Option<SentPing>>>);

/// When it was sent, and how long its answer took.
#[derive(Clone, Copy, Debug)]
struct SentPing {
    sent: Instant,
    took: Option<Duration>,
}

impl PingProbe {
    /// How long it took; how long it takes by now where it is not answered.
    fn answer(&self, now: Instant) -> Option<Duration> {
        let SentPing { sent, took } = (*self.lock())?;
        Some(took.unwrap_or_else(|| now.saturating_duration_since(sent)))
    }

    /// Sends the next one, once the one before was answered.
    fn send(&self, session: Session) {
        {
            let mut last = self.lock();
            if last.is_some_and(|last| last.took.is_none()) {
                return;
            }
            *last = Some(SentPing {
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

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<SentPing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the tunnels until the node ends.
pub(super) async fn watch(node: Arc<NodeInner>) {
    let mut watched: HashMap<NodeId, PeerMeasurement> = HashMap::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = tick.tick().await;
        let ids = node.peers.ids();
        watched.retain(|id, _| ids.contains(id));
        let changed = node.peers.take_changed_paths();
        for id in ids {
            let sessions = Transport::BOTH.map(|transport| node.peers.connections(id, transport));
            let idle = sessions.iter().flatten().all(|s| s.in_flight() == 0);
            let only_tcp = sessions[0].is_empty();
            let rests = |peer: &PeerMeasurement| peer.choice.may_rest() && peer.silence.may_rest();
            let resting = !changed.contains(&id) && watched.get(&id).is_none_or(rests);
            if idle && resting && !only_tcp {
                if let Some(peer) = watched.get_mut(&id) {
                    (peer.udp, peer.tcp) = (TunnelSample::default(), TunnelSample::default());
                }
                continue;
            }
            let peer = watched
                .entry(id)
                .or_insert_with(|| PeerMeasurement::new(&node, id, now));
            let timers = peer.silence.tick(now.into_std(), !idle);
            for session in &sessions[0] {
                session.connection().set_path_timers(timers);
            }
            look(&node, id, peer, &sessions, now);
        }
    }
}

impl PeerMeasurement {
    fn new(node: &NodeInner, id: NodeId, now: Instant) -> Self {
        let quic = &node.config().quic;
        Self {
            choice: CarrierChoice::new(dial::carrier_for(node, id), now.into_std()),
            silence: PathSilence::new(quic.path_silence, overlay::path_timers(quic)),
            window: ReceiveWindow::new(overlay::first_window(quic), quic.window.bytes_u32()),
            udp: TunnelSample::default(),
            tcp: TunnelSample::default(),
            at: now,
        }
    }
}

/// One look at one peer.
fn look(
    node: &Arc<NodeInner>,
    id: NodeId,
    peer: &mut PeerMeasurement,
    [udp, tcp]: &[Vec<Session>; 2],
    now: Instant,
) {
    let elapsed = now.saturating_duration_since(peer.at);
    peer.at = now;
    let (udp, busiest) = peer.udp.read(udp, now);
    let (tcp, _) = peer.tcp.read(tcp, now);
    if let Some((rtt, received)) = busiest {
        peer.fit_windows(id, received, elapsed, rtt);
    }
    let before = (peer.choice.reason(), node.peers.carries(id));
    let wish = peer.choice.tick(now.into_std(), &udp, &tcp);
    if before != (peer.choice.reason(), Some(wish.carry)) {
        node.peers.set_carry(id, wish.carry, peer.choice.reason());
    }
    if let Some(transport) = wish.bring_up {
        tokio::spawn(Box::pin(dial::bring_up(
            node.clone(),
            id,
            transport,
            dial::carrier_for(node, id),
        )));
    }
    for before in [&peer.udp, &peer.tcp] {
        match before.connections.first() {
            Some(first) if wish.ask => before.ping.send(first.session.clone()),
            _ => before.ping.forget(),
        }
    }
}

impl PeerMeasurement {
    /// Gives the connections over QUIC the windows that they need, by the busiest of them. They share what
    /// one peer may occupy.
    fn fit_windows(&mut self, id: NodeId, received: u64, elapsed: Duration, rtt: Duration) {
        let connections = self.udp.connections.len();
        self.window.arrived(received, elapsed, rtt, connections);
        let size = self.window.share(connections);
        for read in &mut self.udp.connections {
            if read.window < size && size > self.window.first() {
                tracing::debug!(peer = %id, size, "a larger window");
                read.session.connection().set_window(size);
                read.window = size;
            }
        }
    }
}

impl TunnelSample {
    /// What happened on a tunnel since the time before; with the round trip of the connection that received
    /// most, and how much.
    fn read(
        &mut self,
        sessions: &[Session],
        now: Instant,
    ) -> (CarrierSample, Option<(Duration, u64)>) {
        let before = std::mem::take(&mut self.connections);
        let same_first = match (before.first(), sessions.first()) {
            (Some(before), Some(now)) => before.session.is(now),
            _ => false,
        };
        if !same_first {
            self.ping = PingProbe::default();
        }
        let mut seen = CarrierSample {
            up: !sessions.is_empty(),
            answer: self.ping.answer(now),
            ..CarrierSample::default()
        };
        let mut busiest = None;
        for (place, session) in sessions.iter().enumerate() {
            // Nearly always at the same place.
            let at_place = before.get(place).filter(|read| read.session.is(session));
            let known = at_place.or_else(|| before.iter().find(|read| read.session.is(session)));
            let stats = session.connection().stats();
            let last = known.map_or(&stats, |read| &read.stats);
            let received = stats.received_bytes.saturating_sub(last.received_bytes);
            seen.calls += session.in_flight();
            seen.moved += received + stats.sent_bytes.saturating_sub(last.sent_bytes);
            seen.heard |= received > 0;
            // All of one tunnel go the same way; the first is the one that is shown.
            seen.relayed |= place == 0 && stats.relayed;
            seen.sent += stats.sent_packets.saturating_sub(last.sent_packets);
            seen.lost += lost(last, &stats);
            if let Some(rtt) = stats.rtt
                && busiest.is_none_or(|(_, most)| received > most)
            {
                busiest = Some((rtt, received));
            }
            self.connections.push(ConnectionSample {
                session: session.clone(),
                window: known.map_or(0, |read| read.window),
                stats,
            });
        }
        (seen, busiest)
    }
}

/// Packets lost since the time before. Who only acknowledges learns nothing of loss: the engine counts many of
/// those packets as lost, on networks that lose none, because nobody has to acknowledge them.
fn lost(before: &ConnectionStats, now: &ConnectionStats) -> u64 {
    let since = |of: fn(&ConnectionStats) -> u64| of(now).saturating_sub(of(before));
    if since(|s| s.sent_packets) > since(|s| s.sent_pieces).saturating_mul(MOSTLY_ACKS) {
        return 0;
    }
    since(|s| s.lost_packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(sent_packets: u64, sent_pieces: u64, lost_packets: u64) -> ConnectionStats {
        ConnectionStats {
            sent_packets,
            sent_pieces,
            lost_packets,
            ..ConnectionStats::default()
        }
    }

    #[test]
    fn who_only_acknowledges_learns_nothing_of_loss() {
        let before = stats(100, 90, 10);
        // Four looks a second at a receiver of 130 MB/s on a network without loss, as they were.
        assert_eq!(lost(&before, &stats(321, 92, 140)), 0);
        // Small calls, an acknowledgement with each, one in twenty lost; bulk that is sent, the same.
        assert_eq!(lost(&before, &stats(500, 290, 30)), 20);
        assert_eq!(lost(&before, &stats(500, 485, 30)), 20);
        assert_eq!(lost(&before, &before), 0);
    }
}
