//! The real tier: networks for programs, what they measure, and what is left of them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::fs::MetadataExt as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hailwire_lab::{
    Topology, check,
    fabric::SiteChange,
    firewall::FirewallRule,
    nat,
    real::{self, LabError, NamespaceNetwork},
};

/// One network measures at a time: two cores carry one.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A network, or nothing and a line that says why, where this machine or user cannot have one.
pub(crate) fn network_or_skip(topology: &Topology) -> Option<NamespaceNetwork> {
    if let Err(reason) = real::available() {
        hailwire_skip::skipped(reason);
        return None;
    }
    Some(NamespaceNetwork::up(topology).unwrap_or_else(|error| panic!("{error:?}")))
}

fn parsed(text: &str) -> Topology {
    Topology::parse(text, "test").unwrap()
}

/// Measures a ready network with the lab's own probe.
fn keeps_its_label(name: &str) {
    let _turn = turn();
    let Some(network) = network_or_skip(&Topology::named(name).unwrap()) else {
        return;
    };
    let checked = check(&network).unwrap();
    assert!(checked.within, "{:?} {checked:#?}", network.counters());
}

#[test]
fn wan_50ms_loss1_loses_its_share_each_way_within_the_confidence_interval() {
    keeps_its_label("wan-50ms-loss1");
}

#[test]
fn longfat_has_its_rate_for_udp_and_for_tcp() {
    keeps_its_label("longfat");
}

#[test]
fn the_router_carries_a_gigabit() {
    keeps_its_label("gigabit");
}

#[test]
fn corporate_lets_tcp_to_port_443_out_and_no_udp() {
    keeps_its_label("corporate");
}

#[test]
fn a_round_trip_is_within_a_millisecond_of_the_label() {
    let _turn = turn();
    let Some(network) = network_or_skip(&Topology::named("wan-50ms").unwrap()) else {
        return;
    };
    // A machine that has other things to do makes it longer, and never shorter.
    let mut seen = Vec::new();
    for _ in 0..4 {
        let checked = check(&network).unwrap();
        let path = &checked.paths[0];
        let (udp, tcp) = (path.udp.unwrap(), path.tcp.unwrap());
        assert!(
            udp.rtt_min_ms >= 50.0,
            "never faster than the label: {udp:?}"
        );
        if [udp.rtt_ms, tcp.rtt_ms]
            .iter()
            .all(|rtt| (rtt - 50.0).abs() < 1.0)
        {
            return;
        }
        seen.push((udp, tcp));
    }
    panic!("{seen:?}");
}

#[test]
fn bytes_cross_a_lossy_reordering_duplicating_network_unchanged() {
    let _turn = turn();
    let text = "host \"a\" { link { delay \"2ms\"; jitter \"1ms\"; loss \"2%\"; reorder \"2%\"; duplicate \"2%\" } }\nhost \"b\"";
    let Some(network) = network_or_skip(&parsed(text)) else {
        return;
    };
    let body: Vec<u8> = (0..20_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    assert!(carried(&network, &body) == body, "the bytes are others");
    let counters = network.counters();
    assert!(counters.lost > 50, "{counters:?}");
}

#[test]
fn tcp_finds_the_mtu_of_a_link_in_the_middle() {
    let _turn = turn();
    let Some(network) = network_or_skip(&parsed(
        "host \"a\"\nhost \"b\" { link { down { mtu 1280 } } }",
    )) else {
        return;
    };
    let body = vec![5; 1_000_000];
    assert!(carried(&network, &body) == body);
    assert!(network.counters().too_large > 0, "{:?}", network.counters());
}

/// Sends a body from `a` to `b` over one TCP connection.
fn carried(network: &NamespaceNetwork, body: &[u8]) -> Vec<u8> {
    carried_to(network, network.address("b").unwrap(), body)
}

/// The same to one of its addresses.
fn carried_to(network: &NamespaceNetwork, to: IpAddr, body: &[u8]) -> Vec<u8> {
    let address = SocketAddr::new(host_side(to), 0);
    let listener = network
        .within("b", || TcpListener::bind(address))
        .unwrap()
        .unwrap();
    let to = SocketAddr::new(to, listener.local_addr().unwrap().port());
    let mut near = network
        .within("a", || TcpStream::connect(to))
        .unwrap()
        .unwrap();
    let (mut far, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || near.write_all(body).unwrap());
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        received
    })
}

/// The address that a host itself has, where others reach it through a NAT64.
fn host_side(address: IpAddr) -> IpAddr {
    let embedded = match address {
        IpAddr::V6(address) => nat::embedded(address),
        IpAddr::V4(_) => None,
    };
    embedded.map_or(address, IpAddr::V4)
}

const SIX: &str = "site \"six\" ip=\"6\" { link { delay \"1ms\" }; nat64; host \"a\" }
    host \"b\" ip=\"4+6\"
    host \"c\" ip=\"4+6\" { firewall \"no-ipv6\" }";

#[test]
fn bytes_cross_ipv6_and_a_nat64_unchanged() {
    let _turn = turn();
    let Some(network) = network_or_skip(&parsed(SIX)) else {
        return;
    };
    let body: Vec<u8> = (0..5_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let topology = network.topology();
    let six = topology.ipv6_addresses("b")[0];
    let through = nat::embed(topology.addresses("b")[0]);
    for to in [six, through] {
        assert!(carried_to(&network, to.into(), &body) == body, "{to}");
        assert_eq!(datagram(&network, to.into(), 1200), Some(1200), "{to}");
    }
    let nowhere = topology.ipv6_addresses("c")[0];
    assert_eq!(datagram(&network, nowhere.into(), 100), None);
    let counters = network.counters();
    assert!(counters.firewall > 0, "{counters:?}");
}

/// Sends a datagram from `a` to the host that has this address, and says how large it arrives.
fn datagram(network: &NamespaceNetwork, to: IpAddr, bytes: usize) -> Option<usize> {
    let own = host_side(to);
    let hosts = network.topology().hosts();
    let mut names = hosts.map(|(_, host)| host.name.clone());
    let host = names
        .find(|name| network.topology().all_addresses(name).contains(&own))
        .unwrap();
    let far = network
        .within(&host, || UdpSocket::bind((own, 0)))
        .unwrap()
        .unwrap();
    far.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let to = SocketAddr::new(to, far.local_addr().unwrap().port());
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let near = network
        .within("a", || UdpSocket::bind((any, 0)))
        .unwrap()
        .unwrap();
    near.send_to(&vec![1; bytes], to).unwrap();
    far.recv(&mut [0; 2000]).ok()
}

#[test]
fn a_silent_mtu_tells_nobody_and_one_way_udp_goes_out_only() {
    let _turn = turn();
    let Some(network) = network_or_skip(&parsed(
        "host \"a\" { link { mtu 1280 icmp=#false } }
         host \"b\"
         host \"c\" { firewall \"no-udp-in\" }",
    )) else {
        return;
    };
    let b = network.address("b").unwrap();
    assert_eq!(datagram(&network, b, 1252), Some(1252));
    for _ in 0..2 {
        // Nobody says so: the second is sent as the first was.
        assert_eq!(datagram(&network, b, 1253), None);
    }
    assert_eq!(network.counters().too_large, 2);
    assert_eq!(datagram(&network, network.address("c").unwrap(), 10), None);
    assert_eq!(network.counters().firewall, 1);
}

#[test]
fn a_running_network_changes() {
    let _turn = turn();
    let Some(network) = network_or_skip(&parsed("host \"a\"\nhost \"b\"")) else {
        return;
    };
    let b = network.address("b").unwrap();
    assert_eq!(datagram(&network, b, 10), Some(10));
    let wall = SiteChange::Firewall(Some(FirewallRule::NoUdp));
    network.change("a", wall).unwrap();
    assert_eq!(datagram(&network, b, 10), None);
    network.change("a", SiteChange::Firewall(None)).unwrap();
    assert_eq!(datagram(&network, b, 10), Some(10));
    assert!(network.change("nobody", SiteChange::Rebind).is_err());
}

#[test]
fn a_program_is_told_the_networks_names() {
    let _turn = turn();
    let Some(network) = network_or_skip(&parsed(SIX)) else {
        return;
    };
    let asked = |host: &str, name: &str| {
        let mut command = network.command_with_names(host, "getent").unwrap();
        let out = command.args(["ahosts", name]).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        out.split_whitespace().next().unwrap_or_default().to_owned()
    };
    if asked("b", "b").is_empty() {
        hailwire_skip::skipped("nothing can be mounted here");
        return;
    }
    assert_eq!(asked("a", "b"), "2001:2:0:1::1");
    assert_eq!(asked("b", "a"), "2001:2::1");
}

#[test]
fn two_networks_of_one_topology_do_not_meet() {
    let _turn = turn();
    let topology = Topology::named("lan").unwrap();
    let (Some(one), Some(other)) = (network_or_skip(&topology), network_or_skip(&topology)) else {
        return;
    };
    let here = SocketAddr::from((Ipv4Addr::new(198, 18, 1, 1), 7000));
    let bound = |network: &NamespaceNetwork| {
        let socket = network
            .within("b", || UdpSocket::bind(here))
            .unwrap()
            .unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        socket
    };
    let (mine, yours) = (bound(&one), bound(&other));
    let sender = one
        .within("a", || UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    sender.send_to(b"x", here).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(mine.recv(&mut buffer).unwrap(), 1);
    assert!(
        yours.recv(&mut buffer).is_err(),
        "it arrived in the other network"
    );
}

#[test]
fn a_program_runs_inside_its_host() {
    let _turn = turn();
    let Some(network) = network_or_skip(&Topology::named("lan").unwrap()) else {
        return;
    };
    let inside = |host: &str| {
        let mut command = network.command(host, "readlink").unwrap();
        let out = command.arg("/proc/self/ns/net").output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(inside("a").starts_with("net:["));
    assert_ne!(inside("a"), inside("b"));
    assert!(matches!(
        network.command("c", "true"),
        Err(LabError::NoHost { .. })
    ));
}

#[test]
fn a_dropped_network_leaves_no_namespace_behind() {
    let _turn = turn();
    let topology = Topology::named("home-to-home").unwrap();
    let Some(network) = network_or_skip(&topology) else {
        return;
    };
    let inode = |path: std::path::PathBuf| fs::metadata(path).unwrap().ino();
    let inodes: Vec<u64> = topology
        .hosts()
        .map(|(_, host)| inode(network.namespace_path(&host.name).unwrap()))
        .collect();
    assert!(holders(&inodes) > 0, "this process holds them");
    drop(network);
    assert_eq!(holders(&inodes), 0);
}

/// How many processes and descriptors, of those that can be looked at, hold one of these namespaces.
fn holders(inodes: &[u64]) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let own = processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    own.flat_map(|entry| {
        let path = entry.path();
        let descriptors = fs::read_dir(path.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut links: Vec<_> = descriptors.map(|entry| entry.path()).collect();
        links.push(path.join("ns/net"));
        links
    })
    .filter_map(|link| fs::read_link(link).ok())
    .filter(|target| {
        let target = target.to_string_lossy();
        let inode = target
            .strip_prefix("net:[")
            .and_then(|rest| rest.strip_suffix(']'));
        inode
            .and_then(|inode| inode.parse().ok())
            .is_some_and(|inode| inodes.contains(&inode))
    })
    .count()
}
