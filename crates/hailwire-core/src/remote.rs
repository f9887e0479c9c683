//! Where somebody comes from, as far as slots are shared out by it.
//!
//! Whoever has one IPv6 address has 2⁶⁴ of them, and a site has more (RFC 6177), so that an address says
//! little there. An IPv4 address is scarce, and its neighbours often belong to the same renter. Whoever
//! comes through a hub's relay has proved a key there, and a member has one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hailwire_wire::NodeId;

/// Where somebody comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSource {
    pub(crate) host: SourceHost,
    pub(crate) network: SourceNetwork,
}

/// One subscriber: an IPv4 address, the /64 of an IPv6 address, or a member of a relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SourceHost {
    Address(IpAddr),
    Member(NodeId),
    Other(String),
}

/// One network: the /24 of an IPv4 address, the /48 of an IPv6 address, or a relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceNetwork {
    /// A subnet, by its first address.
    Prefix(IpAddr),
    /// What comes through a relay, by its URL.
    Relay(String),
}

impl RemoteSource {
    /// Of an IP address.
    #[must_use]
    pub fn address(address: IpAddr) -> Self {
        let (host, network) = match address.to_canonical() {
            IpAddr::V4(address) => (
                IpAddr::V4(address),
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & !0xff)),
            ),
            IpAddr::V6(address) => (leading(address, 64), leading(address, 48)),
        };
        Self {
            host: SourceHost::Address(host),
            network: SourceNetwork::Prefix(network),
        }
    }

    /// Of a member that comes through a relay.
    #[must_use]
    pub fn relayed(relay: String, member: NodeId) -> Self {
        Self {
            host: SourceHost::Member(member),
            network: SourceNetwork::Relay(relay),
        }
    }

    /// From where there are no addresses, in words.
    #[must_use]
    pub fn other(words: String) -> Self {
        Self {
            host: SourceHost::Other(words.clone()),
            network: SourceNetwork::Relay(words),
        }
    }

    /// The network alone.
    #[must_use]
    pub fn into_network(self) -> SourceNetwork {
        self.network
    }

    /// Of a connection's remote end in text: a socket address, or what else its carrier calls it.
    #[must_use]
    pub fn remote(text: &str, id: NodeId) -> Self {
        match text.parse::<SocketAddr>() {
            Ok(address) => Self::address(address.ip()),
            Err(_) => Self::relayed(text.to_owned(), id),
        }
    }
}

fn leading(address: Ipv6Addr, bits: u32) -> IpAddr {
    let mask = u128::MAX << (128 - bits);
    IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> RemoteSource {
        RemoteSource::address(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_one_subscriber_and_of_one_network_count_as_one() {
        let same_host = |a, b| source(a).host == source(b).host;
        let same_network = |a, b| source(a).network == source(b).network;
        assert!(!same_host("192.0.2.1", "192.0.2.2"));
        assert!(same_host("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(same_host("2001:db8:0:1::1", "2001:db8:0:1:ffff::2"));
        assert!(!same_host("2001:db8:0:1::1", "2001:db8:0:2::1"));
        assert!(same_network("192.0.2.1", "192.0.2.254"));
        assert!(!same_network("192.0.2.1", "192.0.3.1"));
        assert!(same_network("2001:db8:0:1::1", "2001:db8:0:2::1"));
        assert!(!same_network("2001:db8:1::1", "2001:db8:2::1"));
    }

    #[test]
    fn a_prefix_is_shared_up_to_its_last_bit_and_no_further() {
        let same_host = |a, b| source(a).host == source(b).host;
        let same_network = |a, b| source(a).network == source(b).network;
        // /64 and /48; /32 and /24.
        assert!(same_host("2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"));
        assert!(!same_host("2001:db8:0:0::", "2001:db8:0:1::"));
        assert!(same_network("2001:db8:7::", "2001:db8:7:ffff:ffff::1"));
        assert!(!same_network("2001:db8:6::", "2001:db8:7::"));
        assert!(same_network("10.1.2.0", "10.1.2.255"));
        assert!(!same_network("10.1.2.255", "10.1.3.0"));
    }

    #[test]
    fn whoever_has_no_address_is_told_apart_by_its_key_and_shares_the_network_of_its_relay() {
        let [one, two] = [1, 2].map(crate::testing::node);
        let relay = "https://relay.example";
        assert_eq!(
            RemoteSource::remote(relay, one),
            RemoteSource::relayed(relay.to_owned(), one)
        );
        assert_ne!(
            RemoteSource::remote(relay, one),
            RemoteSource::remote(relay, two)
        );
        let network = |text, id| RemoteSource::remote(text, id).into_network();
        assert_eq!(network(relay, one), network(relay, two));
        assert_ne!(network(relay, one), network("https://other.example", one));
        // Where there is an address, the key is a claim that costs nothing.
        assert_eq!(
            RemoteSource::remote("192.0.2.7:9", one),
            source("192.0.2.7")
        );
        assert_eq!(network("192.0.2.7:9", one), network("192.0.2.8:1", two));
        let words = |text: &str| RemoteSource::other(text.to_owned());
        assert_eq!(words("a socket"), words("a socket"));
        assert_ne!(words("a socket"), words("another"));
    }
}
