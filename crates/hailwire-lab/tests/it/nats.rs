//! Every NAT is what its topology says, as a STUN-style probe finds it from inside, in both tiers.

use std::{
    net::{SocketAddrV4, UdpSocket},
    time::Duration,
};

use hailwire_lab::{
    Topology,
    discover::{DatagramSocket, NatBehaviour, NatProbeServer, discover},
    nat::{EndpointDependence, NatKind, PortAllocation},
    real, virtual_net,
};

use crate::namespaces::{network_or_skip, turn};

const PATIENCE: Duration = Duration::from_millis(150);

/// Every mapping with every filtering; hairpin and kept ports alternate among them. A hairpin shows
/// only where mapping or filtering looks at nothing: else the filter refuses the neighbour, whom its
/// own mapping does not know.
fn kinds() -> Vec<NatKind> {
    let mut kinds = Vec::new();
    for (row, mapping) in EndpointDependence::ALL.into_iter().enumerate() {
        for (column, filtering) in EndpointDependence::ALL.into_iter().enumerate() {
            kinds.push(NatKind {
                mapping,
                filtering,
                hairpin: (row + column) % 2 == 1 && row * column == 0,
                ports: if row == 0 {
                    PortAllocation::Preserve
                } else {
                    PortAllocation::Random
                },
                ..NatKind::default()
            });
        }
    }
    kinds
}

fn topology(kind: &NatKind) -> Topology {
    let NatKind {
        mapping,
        filtering,
        hairpin,
        ports,
        ..
    } = kind;
    let (mapping, filtering) = (mapping.name(), filtering.name());
    let ports = if *ports == PortAllocation::Preserve {
        "preserve"
    } else {
        "random"
    };
    let text = format!(
        "site \"home\" {{ link {{ delay \"1ms\" }}\n\
         nat mapping=\"{mapping}\" filtering=\"{filtering}\" hairpin=#{hairpin} ports=\"{ports}\"\n\
         host \"a\" }}\nhost \"stun\" addresses=2"
    );
    Topology::parse(&text, "nat").unwrap()
}

fn server_addresses(topology: &Topology) -> [SocketAddrV4; 4] {
    let addresses = topology.addresses("stun");
    let at = |address: usize, port| SocketAddrV4::new(addresses[address], port);
    [at(0, 3478), at(0, 3479), at(1, 3478), at(1, 3479)]
}

async fn found<S: DatagramSocket + Send + Sync + 'static>(
    client: [S; 3],
    server: [S; 4],
    at: [SocketAddrV4; 4],
) -> NatBehaviour {
    let server = NatProbeServer(server);
    tokio::select! {
        ended = server.serve() => panic!("the server ended: {ended:?}"),
        found = discover(&client, at, PATIENCE) => found.unwrap(),
    }
}

fn agrees(found: NatBehaviour, kind: &NatKind) {
    let expected = (
        kind.mapping,
        kind.filtering,
        kind.hairpin,
        kind.ports == PortAllocation::Preserve,
    );
    let seen = (
        found.mapping,
        found.filtering,
        found.hairpin,
        found.preserves_port,
    );
    assert_eq!(seen, expected, "mapping, filtering, hairpin, port kept");
    assert_eq!(found.external.ip().octets(), [198, 18, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn in_virtual_time_every_nat_is_of_the_kind_that_was_asked_for() {
    for kind in kinds() {
        let topology = topology(&kind);
        let at = server_addresses(&topology);
        let network = virtual_net::VirtualNetwork::up(&topology, 1);
        let client = [(); 3].map(|()| network.socket("a", 0).unwrap());
        let server = at.map(|at| network.socket_at(at).unwrap());
        agrees(found(client, server, at).await, &kind);
    }
}

#[test]
fn in_namespaces_every_nat_is_of_the_kind_that_was_asked_for() {
    let _turn = turn();
    // The two that nftables can be come among them and at the end.
    for kind in kinds() {
        let Some(network) = network_or_skip(&topology(&kind)) else {
            return;
        };
        agrees(found_in(&network), &kind);
    }
    let symmetric = NatKind {
        mapping: EndpointDependence::AddressAndPortDependent,
        ports: PortAllocation::Random,
        ..NatKind::default()
    };
    let Some(network) = network_or_skip(&topology(&symmetric)) else {
        return;
    };
    agrees(found_in(&network), &symmetric);
}

fn found_in(network: &real::NamespaceNetwork) -> NatBehaviour {
    let at = server_addresses(network.topology());
    let bound = |host: &str, at: SocketAddrV4| {
        let socket = network
            .within(host, || UdpSocket::bind(at))
            .unwrap()
            .unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let own = network.topology().addresses("a")[0];
    let client = [(); 3].map(|()| bound("a", SocketAddrV4::new(own, 0)));
    let server = at.map(|at| bound("stun", at));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let tokio = |socket| tokio::net::UdpSocket::from_std(socket).unwrap();
        found(client.map(tokio), server.map(tokio), at).await
    })
}
