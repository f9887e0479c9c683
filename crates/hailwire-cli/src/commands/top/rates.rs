//! What `hail top` shows, worked out from two answers of the node: rates, and the order of the peers.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use hailwire::{
    NodeId,
    admin::{NodeStatus, TunnelStatus},
};

/// By what peers are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PeerOrder {
    /// Who sends and receives most now, first.
    #[default]
    Traffic,
    /// By name.
    Name,
    /// The farthest first.
    Ping,
}

impl PeerOrder {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Traffic => Self::Name,
            Self::Name => Self::Ping,
            Self::Ping => Self::Traffic,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Name => "name",
            Self::Ping => "ping",
        }
    }
}

/// A tunnel with what passed in the last second.
#[derive(Clone, Debug)]
pub(super) struct TunnelRates {
    pub(super) tunnel: TunnelStatus,
    /// Bytes sent a second.
    pub(super) sent: f64,
    /// Bytes received a second.
    pub(super) received: f64,
}

/// The last answer of the node, and the one before it.
#[derive(Debug, Default)]
pub(super) struct TopRates {
    last: Option<(Instant, NodeStatus)>,
    tunnels: Vec<TunnelRates>,
    /// Calls a second: all, and those to and from peers.
    calls: f64,
    order: PeerOrder,
    /// How many peers are scrolled past.
    skipped: usize,
}

impl TopRates {
    /// The node has answered.
    pub(super) fn handle_status(&mut self, now: Instant, status: NodeStatus) {
        let (elapsed, before) = match self.last.take() {
            Some((at, before)) => (now.saturating_duration_since(at), Some(before)),
            None => (Duration::ZERO, None),
        };
        let rate = |now: u64, before: Option<u64>| match before {
            // A counter that is smaller began anew.
            Some(before) if now >= before && elapsed > Duration::ZERO => {
                (now - before) as f64 / elapsed.as_secs_f64()
            }
            _ => 0.0,
        };
        self.calls = rate(status.calls, before.as_ref().map(|before| before.calls));
        let known: HashMap<(NodeId, &str), &TunnelStatus> = before
            .iter()
            .flat_map(|before| &before.tunnels)
            .map(|tunnel| ((tunnel.peer, tunnel.carrier.as_str()), tunnel))
            .collect();
        let with_rates = |tunnel: &TunnelStatus| {
            let before = known.get(&(tunnel.peer, tunnel.carrier.as_str()));
            // One that is younger than the last answer is another.
            let before = before.filter(|before| tunnel.up_ms >= before.up_ms);
            TunnelRates {
                sent: rate(tunnel.sent_bytes, before.map(|before| before.sent_bytes)),
                received: rate(
                    tunnel.received_bytes,
                    before.map(|before| before.received_bytes),
                ),
                tunnel: tunnel.clone(),
            }
        };
        self.tunnels = status.tunnels.iter().map(with_rates).collect();
        self.last = Some((now, status));
        self.sort();
    }

    pub(super) fn order(&self) -> PeerOrder {
        self.order
    }

    pub(super) fn set_order(&mut self, order: PeerOrder) {
        self.order = order;
        self.skipped = 0;
        self.sort();
    }

    /// Scrolls the peers by so many rows, as far as there are any.
    pub(super) fn scroll(&mut self, rows: isize) {
        let most = self.tunnels.len().saturating_sub(1);
        self.skipped = self.skipped.saturating_add_signed(rows).min(most);
    }

    pub(super) fn status(&self) -> Option<&NodeStatus> {
        self.last.as_ref().map(|(_, status)| status)
    }

    /// Calls a second.
    pub(super) fn calls(&self) -> f64 {
        self.calls
    }

    /// The tunnels in order, from the first that is not scrolled past.
    pub(super) fn tunnels(&self) -> &[TunnelRates] {
        self.tunnels.get(self.skipped..).unwrap_or_default()
    }

    fn sort(&mut self) {
        let traffic = |tunnel: &TunnelRates| tunnel.sent + tunnel.received;
        let name = |tunnel: &TunnelRates| (tunnel.tunnel.name.clone(), tunnel.tunnel.peer);
        self.tunnels.sort_by(|a, b| {
            let first = match self.order {
                PeerOrder::Traffic => traffic(b).total_cmp(&traffic(a)),
                PeerOrder::Name => std::cmp::Ordering::Equal,
                PeerOrder::Ping => b.tunnel.ping_us.cmp(&a.tunnel.ping_us),
            };
            first.then_with(|| name(a).cmp(&name(b)))
        });
        self.skipped = self.skipped.min(self.tunnels.len().saturating_sub(1));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use hailwire::admin::PathStatus;

    use super::*;

    /// A tunnel that is up for so many milliseconds and has sent so many bytes.
    pub(in super::super) fn tunnel(name: &str, up_ms: u64, sent: u64) -> TunnelStatus {
        TunnelStatus {
            peer: NodeId::from_bytes([name.len() as u8; 32]),
            name: name.to_owned(),
            carrier: "quic".to_owned(),
            carries: true,
            why: "UDP works".to_owned(),
            path: PathStatus {
                kind: "direct".to_owned(),
                remote: "192.0.2.7:4242".to_owned(),
                rtt_us: 900,
                sent_packets: 100,
                lost_packets: 1,
            },
            ping_us: Some(1000 * name.len() as u64),
            connections: 1,
            sent_bytes: sent,
            received_bytes: sent / 2,
            sent_packets: 100,
            lost_packets: 1,
            in_flight: 2,
            up_ms,
        }
    }

    pub(in super::super) fn status(calls: u64, tunnels: Vec<TunnelStatus>) -> NodeStatus {
        NodeStatus {
            id: NodeId::from_bytes([7; 32]),
            name: "desk".to_owned(),
            version: "0.1.0".to_owned(),
            pid: 1,
            uptime_ms: 61_000,
            rss_bytes: 12 << 20,
            data_dir: "/d".to_owned(),
            sockets: Vec::new(),
            tcp_sockets: Vec::new(),
            addresses: Vec::new(),
            public_addresses: Vec::new(),
            tcp_addresses: Vec::new(),
            tunnels,
            agents: Vec::new(),
            hubs: Vec::new(),
            calls,
            calls_from_peers: 0,
            reused: 0,
            made: 0,
            paths: hailwire::admin::PathSummary::default(),
            port_mapping: hailwire::admin::PortMappingStatus::default(),
            panics: 0,
        }
    }

    fn names(rates: &TopRates) -> Vec<&str> {
        let tunnels = rates.tunnels().iter();
        tunnels.map(|tunnel| &tunnel.tunnel.name[..]).collect()
    }

    #[test]
    fn a_rate_is_what_passed_between_two_answers_and_none_is_made_up() {
        let begin = Instant::now();
        let mut rates = TopRates::default();
        rates.handle_status(begin, status(10, vec![tunnel("a", 1000, 1000)]));
        assert_eq!((rates.calls(), rates.tunnels()[0].sent), (0.0, 0.0));

        let later = begin + Duration::from_secs(2);
        let tunnels = vec![tunnel("a", 3000, 5000), tunnel("bb", 500, 900)];
        rates.handle_status(later, status(30, tunnels));
        assert_eq!(rates.calls(), 10.0);
        assert_eq!(names(&rates), ["a", "bb"]);
        assert_eq!(
            (rates.tunnels()[0].sent, rates.tunnels()[0].received),
            (2000.0, 1000.0)
        );
        assert_eq!(rates.tunnels()[1].sent, 0.0, "a tunnel that is new");

        // The node was started anew: its counters are smaller, and its tunnels younger.
        let anew = later + Duration::from_secs(1);
        rates.handle_status(anew, status(1, vec![tunnel("a", 100, 9000)]));
        assert_eq!((rates.calls(), rates.tunnels()[0].sent), (0.0, 0.0));
    }

    #[test]
    fn peers_are_sorted_and_scrolled_as_far_as_there_are_any() {
        let begin = Instant::now();
        let mut rates = TopRates::default();
        let all = |sent: [u64; 3], up| {
            let names = ["c", "bb", "aaa"];
            names
                .iter()
                .zip(sent)
                .map(|(name, sent)| tunnel(name, up, sent))
                .collect()
        };
        rates.handle_status(begin, status(0, all([0, 0, 0], 1)));
        rates.handle_status(
            begin + Duration::from_secs(1),
            status(0, all([5, 900, 70], 1001)),
        );
        assert_eq!(names(&rates), ["bb", "aaa", "c"]);
        rates.set_order(PeerOrder::Name);
        assert_eq!(names(&rates), ["aaa", "bb", "c"]);
        rates.set_order(PeerOrder::Ping);
        assert_eq!(names(&rates), ["aaa", "bb", "c"]);
        rates.scroll(2);
        assert_eq!(names(&rates), ["c"]);
        rates.scroll(9);
        assert_eq!(names(&rates), ["c"]);
        rates.scroll(-9);
        assert_eq!(names(&rates).len(), 3);
    }
}
