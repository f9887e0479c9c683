//! Which pairs of networks can have a direct path, by theory: what RFC 5128 says of hole punching
//! between the kinds of RFC 4787.

use hailwire_lab::nat::EndpointDependence::{AddressAndPortDependent, EndpointIndependent};
use serde::{Deserialize, Serialize};

use super::networks::{ReachNetwork, UdpNat};

/// What theory says of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedReach {
    /// A direct path can be had.
    Direct,
    /// Only the relay connects them.
    Relay,
}

impl ExpectedReach {
    /// Its word, as a node's status has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay => "relay",
        }
    }
}

/// What theory says of these two.
pub(super) fn expected(near: &ReachNetwork, far: &ReachNetwork) -> ExpectedReach {
    let over_ipv4 = match (near.udp4, far.udp4) {
        (Some(near), Some(far)) => punches(near, far),
        _ => false,
    };
    let over_tcp = reaches_over_tcp(near, far) || reaches_over_tcp(far, near);
    match over_ipv4 || near.udp6 && far.udp6 || over_tcp || near.shared {
        true => ExpectedReach::Direct,
        false => ExpectedReach::Relay,
    }
}

/// Whether one of two connects to the other over TCP. Who listens has a public address.
fn reaches_over_tcp(from: &ReachNetwork, to: &ReachNetwork) -> bool {
    from.tcp4_out && to.listen_tcp.is_some()
}

/// Whether two learn each other's endpoints from a third and meet. Each sends to where the third saw
/// the other. That is right where the other maps independently of whom it sends to; where it does
/// not, the other's packets come from another port, and reach whoever does not filter by port.
fn punches(near: UdpNat, far: UdpNat) -> bool {
    let stays = |nat: UdpNat| nat.mapping == EndpointIndependent;
    let lets_other_port_in = |nat: UdpNat| stays(nat) && nat.filtering != AddressAndPortDependent;
    stays(near) && stays(far) || lets_other_port_in(near) || lets_other_port_in(far)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::networks::ALL;

    fn of(near: &str, far: &str) -> ExpectedReach {
        let network = |name| ALL.iter().find(|network| network.name == name).unwrap();
        assert_eq!(
            expected(network(near), network(far)),
            expected(network(far), network(near))
        );
        expected(network(near), network(far))
    }

    #[test]
    fn ordinary_nats_meet_and_symmetric_ones_meet_only_who_does_not_filter_by_port() {
        for other in ["public", "nat-open", "nat-address"] {
            assert_eq!(of("symmetric", other), ExpectedReach::Direct, "{other}");
        }
        for other in ["nat-port", "symmetric", "symmetric-random", "double-nat"] {
            assert_eq!(of("symmetric", other), ExpectedReach::Relay, "{other}");
        }
        assert_eq!(of("nat-port", "double-nat"), ExpectedReach::Direct);
    }

    #[test]
    fn without_udp_or_a_common_family_only_the_relay_connects() {
        assert_eq!(of("no-udp", "public"), ExpectedReach::Relay);
        assert_eq!(of("ipv6", "public"), ExpectedReach::Relay);
        assert_eq!(of("ipv6", "nat64"), ExpectedReach::Direct);
        assert_eq!(of("dead-ipv6", "ipv6"), ExpectedReach::Relay);
        assert_eq!(of("one-nat", "one-nat"), ExpectedReach::Direct);
    }

    #[test]
    fn who_listens_on_tcp_is_reached_directly_by_all_whom_tcp_lets_out() {
        for other in ["public", "no-udp", "tcp-443", "tcp-server"] {
            assert_eq!(of(other, "tcp-server"), ExpectedReach::Direct, "{other}");
        }
        for other in ["http-proxy", "ipv6", "nat64"] {
            assert_eq!(of(other, "tcp-server"), ExpectedReach::Relay, "{other}");
        }
    }
}
