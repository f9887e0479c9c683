//! What a node says of itself: `hail status`.
//!
//! On request each peer and each hub is asked at that moment how far it is, so that what is said of them is not what was true
//! a while ago.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hailwire_core::{dial_address::is_global, peer_table::TunnelView};
use tokio::{task::JoinSet, time::timeout};

use super::{
    NodeInner, hubs,
    join::texts,
    listen,
    manage::{known_as, local_agents, micros, millis},
    port_mapping,
};
use crate::{
    admin::{self, AgentsQuery, StatusRequest},
    carrier::ConnectionStats,
    session::Session,
};

/// How long the answers of peers and hubs are waited for.
const PATIENCE: Duration = Duration::from_millis(admin::STATUS_PATIENCE_MS);

/// Most tunnels on which a PING is sent for one status.
const MAX_PINGS: usize = 256;

/// Packets for each piece of a stream that is sent from which they are little but acknowledgements, of whose loss the engine
/// knows nothing.
const MOSTLY_ACKS: u64 = 4;

/// What a node says of itself now.
pub(super) async fn of(node: &Arc<NodeInner>, request: Option<StatusRequest>) -> admin::NodeStatus {
    let measure = request.unwrap_or_default().measure;
    let views = node.peers.shown();
    let pings = match measure {
        true => {
            let (pings, ()) = tokio::join!(pings(&views), hubs::ask_all(node, PATIENCE));
            pings
        }
        false => Vec::new(),
    };
    let (reused, made) = node.peers.reuse();
    let own = listen::own_addresses(node);
    let here = node.sockets.reaching.local_networks().await;
    let local = |ip: IpAddr| here.subnets.iter().any(|subnet| subnet.address == ip);
    let is_public = |address: &&SocketAddr| {
        let ip = address.ip();
        !ip.is_loopback() && (is_global(ip) || !local(ip))
    };
    let public: Vec<_> = own.udp.iter().filter(is_public).collect();
    let pings = pings.into_iter().chain(std::iter::repeat(None));
    admin::NodeStatus {
        id: node.id(),
        name: node.name().map(String::from).unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: millis(node.lifecycle.started.elapsed()),
        rss_bytes: rss_bytes(),
        data_dir: node.setup.data.root().display().to_string(),
        sockets: texts(&node.sockets.endpoint.bound_sockets()),
        tcp_sockets: texts(listen::tcp_sockets(node)),
        addresses: texts(&own.udp),
        public_addresses: texts(&public),
        tcp_addresses: texts(&own.tcp),
        tunnels: views
            .into_iter()
            .zip(pings)
            .map(|(view, ping)| tunnel(node, view, ping))
            .collect(),
        agents: local_agents(node, &AgentsQuery::default()),
        hubs: hubs::hub_states(node),
        calls: node.programs.calls.load(Ordering::Relaxed),
        calls_from_peers: node.programs.calls_from_peers.load(Ordering::Relaxed),
        reused,
        made,
        paths: paths(node),
        port_mapping: node
            .sockets
            .mapped_port
            .status(port_mapping::is_enabled(node)),
        panics: crate::panics::contained(),
    }
}

fn paths(node: &NodeInner) -> admin::PathSummary {
    let sums = node.peers.path_sums();
    admin::PathSummary {
        connections: sums.connections,
        direct: sums.direct,
        relayed_first: sums.relayed_first,
        punched: sums.punched,
        direct_us: sums.time_to_direct.map(micros),
        relayed_bytes: sums.relayed_bytes,
    }
}

/// How long a PING takes on each tunnel; as many as have an answer, in order.
async fn pings(views: &[TunnelView<Session>]) -> Vec<Option<Duration>> {
    let mut took = vec![None; views.len()];
    let mut asked = JoinSet::new();
    for (index, view) in views.iter().enumerate().take(MAX_PINGS) {
        let session = view.first.clone();
        asked.spawn(async move { (index, timeout(PATIENCE, session.ping()).await) });
    }
    while let Some(answer) = asked.join_next().await {
        if let Ok((index, Ok(Ok(ping)))) = answer
            && let Some(took) = took.get_mut(index)
        {
            *took = Some(ping);
        }
    }
    took
}

fn tunnel(
    node: &NodeInner,
    view: TunnelView<Session>,
    ping: Option<Duration>,
) -> admin::TunnelStatus {
    let TunnelView {
        peer,
        first,
        connections,
        carries,
        reason,
    } = view;
    let each = connections.iter();
    let stats: Vec<_> = each.map(|session| session.connection().stats()).collect();
    let sum = |count: fn(&ConnectionStats) -> u64| stats.iter().map(count).sum();
    admin::TunnelStatus {
        peer,
        name: known_as(node, peer),
        carrier: first.connection().carrier().to_owned(),
        carries,
        why: reason.to_string(),
        path: path(&first),
        ping_us: ping.map(micros),
        connections: u32::try_from(connections.len()).unwrap_or(u32::MAX),
        sent_bytes: sum(|stats| stats.sent_bytes),
        received_bytes: sum(|stats| stats.received_bytes),
        sent_packets: sum(|stats| stats.sent_packets),
        lost_packets: sum(|stats| stats.lost_packets),
        in_flight: connections.iter().map(Session::in_flight).sum(),
        up_ms: millis(first.age()),
    }
}

/// The path that a connection uses.
pub(super) fn path(session: &Session) -> admin::PathStatus {
    let stats = session.connection().stats();
    let kind = match (stats.remote.is_empty(), stats.relayed) {
        (true, _) => "",
        (false, true) => "relay",
        (false, false) => "direct",
    };
    let (sent_packets, lost_packets) = path_loss(&stats);
    admin::PathStatus {
        kind: kind.to_owned(),
        remote: stats.remote,
        rtt_us: stats.rtt.map(micros).unwrap_or_default(),
        sent_packets,
        lost_packets,
    }
}

/// Packets sent on the path and lost on it; none were sent where loss cannot be told.
fn path_loss(stats: &ConnectionStats) -> (u64, u64) {
    let path = stats.path;
    match path.sent_packets > path.sent_pieces.saturating_mul(MOSTLY_ACKS) {
        true => (0, 0),
        false => (path.sent_packets, path.lost_packets),
    }
}

/// Resident memory of this process, from `/proc/self/statm`; 0 where there is none.
fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::PathCounters;

    #[test]
    fn who_only_acknowledges_on_a_path_learns_nothing_of_its_loss() {
        let loss = |sent_packets, sent_pieces, lost_packets| {
            path_loss(&ConnectionStats {
                path: PathCounters {
                    sent_packets,
                    sent_pieces,
                    lost_packets,
                },
                ..ConnectionStats::default()
            })
        };
        assert_eq!(loss(100, 60, 3), (100, 3));
        assert_eq!(loss(240, 60, 3), (240, 3));
        assert_eq!(loss(241, 60, 30), (0, 0));
        assert_eq!(loss(0, 0, 0), (0, 0));
    }
}
