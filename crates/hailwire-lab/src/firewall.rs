//! A firewall at the edge of a site: what may pass, in the forms that networks of companies, hotels
//! and careless providers have.
//!
//! What leaves is judged by its destination. What comes in passes only as the answer to something
//! that left, except under the rules that forbid one thing and leave all else alone. Refused packets
//! vanish without a message, as most such firewalls do it.
//!
//! It takes `now` and does no I/O.

use std::{collections::HashMap, net::Ipv4Addr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::packet::{Flow, Protocol};

/// Most flows that a firewall remembers; beyond them the one that was quiet longest is forgotten.
pub const MAX_FLOWS: usize = 65_536;

/// How long a quiet flow is remembered.
const FLOW_TIMEOUT: Duration = Duration::from_secs(3600);

/// What may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirewallRule {
    /// No UDP, neither out nor in.
    NoUdp,
    /// UDP goes out, and none comes in.
    NoUdpIn,
    /// No IPv6, neither out nor in: addresses and routes that lead nowhere.
    NoIpv6,
    /// Over IPv6 only what is from or to a port of known services, below 1024, of the other end.
    Ipv6KnownPorts,
    /// Out: TCP to port 443. In: its answers.
    OnlyTcp443,
    /// Out: to this address only, the relay. In: its answers.
    OnlyTo(Ipv4Addr),
    /// Out: TCP to this address only, the HTTP proxy. In: its answers.
    OnlyTcpTo(Ipv4Addr),
}

impl FirewallRule {
    /// For a rule that forbids one thing: whether a packet passes, which needs no memory. `None` for
    /// the others.
    fn forbids(self, flow: &Flow, inbound: bool) -> Option<bool> {
        match self {
            Self::NoUdp => Some(flow.protocol == Protocol::Udp),
            Self::NoUdpIn => Some(inbound && flow.protocol == Protocol::Udp),
            Self::NoIpv6 => Some(flow.source.is_ipv6()),
            Self::Ipv6KnownPorts => {
                let outside = if inbound {
                    flow.source
                } else {
                    flow.destination
                };
                let has_ports = matches!(flow.protocol, Protocol::Tcp | Protocol::Udp);
                Some(has_ports && outside.is_ipv6() && outside.port() >= 1024)
            }
            Self::OnlyTcp443 | Self::OnlyTo(_) | Self::OnlyTcpTo(_) => None,
        }
    }
}

/// A firewall with the flows that it has let out.
#[derive(Debug)]
pub struct Firewall {
    rule: FirewallRule,
    flows: HashMap<Flow, Duration>,
}

impl Firewall {
    /// A firewall that has seen nothing.
    #[must_use]
    pub fn new(rule: FirewallRule) -> Self {
        Self {
            rule,
            flows: HashMap::new(),
        }
    }

    /// Whether a packet may leave.
    pub fn outbound(&mut self, now: Duration, flow: &Flow) -> bool {
        if let Some(forbidden) = self.rule.forbids(flow, false) {
            return !forbidden;
        }
        let tcp = flow.protocol == Protocol::Tcp;
        let may = match self.rule {
            FirewallRule::OnlyTcp443 => tcp && flow.destination.port() == 443,
            FirewallRule::OnlyTo(relay) => flow.destination.ip() == relay,
            FirewallRule::OnlyTcpTo(proxy) => tcp && flow.destination.ip() == proxy,
            FirewallRule::NoUdp
            | FirewallRule::NoUdpIn
            | FirewallRule::NoIpv6
            | FirewallRule::Ipv6KnownPorts => false,
        };
        if may {
            self.remember(now, *flow);
        }
        may
    }

    /// Whether a packet may come in.
    pub fn inbound(&mut self, now: Duration, flow: &Flow) -> bool {
        if let Some(forbidden) = self.rule.forbids(flow, true) {
            return !forbidden;
        }
        match self.flows.get_mut(&flow.reversed()) {
            Some(used) if now.saturating_sub(*used) < FLOW_TIMEOUT => {
                *used = now;
                true
            }
            _ => false,
        }
    }

    fn remember(&mut self, now: Duration, flow: Flow) {
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&flow) {
            let quietest = self
                .flows
                .iter()
                .min_by_key(|(flow, used)| (**used, **flow));
            if let Some(quietest) = quietest.map(|(flow, _)| *flow) {
                self.flows.remove(&quietest);
            }
        }
        self.flows.insert(flow, now);
    }
}

/// A flow from `source` to `destination`, for tests of several modules.
#[cfg(test)]
pub(crate) fn flow(protocol: Protocol, source: &str, destination: &str) -> Flow {
    let end = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    Flow {
        protocol,
        source: end(source),
        destination: end(destination),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn without_udp_tcp_passes_both_ways() {
        let mut wall = Firewall::new(FirewallRule::NoUdp);
        let udp = flow(Protocol::Udp, "192.168.0.10:5000", "198.18.1.1:443");
        let tcp = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:22");
        assert!(!wall.outbound(S, &udp) && !wall.inbound(S, &udp.reversed()));
        assert!(wall.outbound(S, &tcp) && wall.inbound(S, &tcp.reversed()));
    }

    #[test]
    fn one_way_udp_leaves_and_never_comes_in() {
        let mut wall = Firewall::new(FirewallRule::NoUdpIn);
        let udp = flow(Protocol::Udp, "192.168.0.10:5000", "198.18.1.1:443");
        let tcp = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:22");
        assert!(wall.outbound(S, &udp) && !wall.inbound(S, &udp.reversed()));
        assert!(wall.outbound(S, &tcp) && wall.inbound(S, &tcp.reversed()));
    }

    #[test]
    fn where_ipv6_goes_nowhere_ipv4_passes() {
        let mut wall = Firewall::new(FirewallRule::NoIpv6);
        let six = flow(Protocol::Tcp, "[2001:2::1]:5000", "[2001:2:0:1::1]:443");
        let four = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:443");
        assert!(!wall.outbound(S, &six) && !wall.inbound(S, &six.reversed()));
        assert!(wall.outbound(S, &four) && wall.inbound(S, &four.reversed()));
    }

    #[test]
    fn over_ipv6_only_known_services_are_reached() {
        let mut wall = Firewall::new(FirewallRule::Ipv6KnownPorts);
        let hub = flow(Protocol::Udp, "[2001:2::1]:5000", "[2001:2:0:1::1]:444");
        let peer = flow(Protocol::Udp, "[2001:2::1]:443", "[2001:2:0:1::1]:5000");
        let four = flow(Protocol::Udp, "192.168.0.10:5000", "198.18.1.1:5000");
        for passes in [hub, four] {
            assert!(wall.outbound(S, &passes) && wall.inbound(S, &passes.reversed()));
        }
        assert!(!wall.outbound(S, &peer) && !wall.inbound(S, &peer.reversed()));
    }

    #[test]
    fn only_tcp_to_the_proxy_leaves() {
        let mut wall = Firewall::new(FirewallRule::OnlyTcpTo(Ipv4Addr::new(198, 18, 1, 1)));
        let tcp = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:3128");
        let udp = flow(Protocol::Udp, "192.168.0.10:5000", "198.18.1.1:3128");
        let other = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.2.1:3128");
        assert!(wall.outbound(S, &tcp) && wall.inbound(S, &tcp.reversed()));
        assert!(!wall.outbound(S, &udp) && !wall.outbound(S, &other));
    }

    #[test]
    fn only_tcp_to_port_443_leaves_and_only_its_answers_come_in() {
        let mut wall = Firewall::new(FirewallRule::OnlyTcp443);
        let web = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:443");
        let refused = [
            flow(Protocol::Udp, "192.168.0.10:5000", "198.18.1.1:443"),
            flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:80"),
            flow(Protocol::Echo, "192.168.0.10:1", "198.18.1.1:1"),
        ];
        assert!(!wall.inbound(S, &web.reversed()), "nobody asked");
        assert!(wall.outbound(S, &web));
        assert!(wall.inbound(S, &web.reversed()));
        for flow in refused {
            assert!(!wall.outbound(S, &flow), "{flow}");
            assert!(!wall.inbound(S, &flow.reversed()), "{flow}");
        }
    }

    #[test]
    fn only_to_the_relay_lets_nothing_else_out() {
        let relay = Ipv4Addr::new(198, 18, 1, 1);
        let mut wall = Firewall::new(FirewallRule::OnlyTo(relay));
        let to_relay = flow(Protocol::Udp, "192.168.0.10:5000", "198.18.1.1:7443");
        assert!(wall.outbound(S, &to_relay) && wall.inbound(S, &to_relay.reversed()));
        let other = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.2.1:443");
        assert!(!wall.outbound(S, &other));
    }

    #[test]
    fn a_flow_that_was_quiet_for_an_hour_is_forgotten() {
        let mut wall = Firewall::new(FirewallRule::OnlyTcp443);
        let web = flow(Protocol::Tcp, "192.168.0.10:5000", "198.18.1.1:443");
        wall.outbound(S, &web);
        assert!(wall.inbound(3600 * S, &web.reversed()));
        assert!(
            wall.inbound(7199 * S, &web.reversed()),
            "answers keep it alive"
        );
        assert!(!wall.inbound(10_800 * S, &web.reversed()));
    }
}
