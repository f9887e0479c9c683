use super::*;
use crate::{firewall::flow, packet::Protocol};

const MS: Duration = Duration::from_millis(1);

fn fabric(text: &str) -> Fabric<&'static str> {
    Fabric::new(&Topology::parse(text, "t").unwrap(), 1, |_| {
        NatProvider::Model
    })
}

/// Sends one UDP packet and tells when it comes out where, and what it looks like there.
fn send(
    fabric: &mut Fabric<&'static str>,
    now: Duration,
    from: &str,
    to: &str,
) -> Option<(Duration, FabricPort, Flow)> {
    let flow = flow(Protocol::Udp, from, to);
    let port = fabric.port(flow.source.ip()).unwrap();
    fabric.enter(now, port, flow, PacketSegments::one(100), "x");
    let mut last = None;
    while let Some(at) = fabric.next() {
        if let Some(FabricOutput::Arrived { port, flow, .. }) = fabric.leave(at) {
            last = Some((at, port, flow));
        }
    }
    last
}

#[test]
fn a_packet_takes_the_time_of_both_links() {
    let mut net =
        fabric("host \"a\" { link { delay \"10ms\" } }\nhost \"b\" { link { delay \"3ms\" } }");
    let (at, port, flow) = send(&mut net, MS, "198.18.0.1:1", "198.18.1.1:2").unwrap();
    assert_eq!((at, port), (14 * MS, FabricPort(1)));
    assert_eq!(flow.source, "198.18.0.1:1".parse().unwrap());
}

#[test]
fn behind_a_nat_a_host_shows_its_sites_address_and_gets_answers() {
    let mut net = fabric("site \"home\" { nat ports=\"random\"; host \"a\" }\nhost \"b\"");
    let (_, port, out) = send(&mut net, MS, "192.168.0.10:5000", "198.18.1.1:2").unwrap();
    assert_eq!(port, FabricPort(1));
    assert_eq!(out.source.ip(), Ipv4Addr::new(198, 18, 0, 1));
    assert_ne!(out.source.port(), 5000);
    let back = out.source.to_string();
    let (_, port, answer) = send(&mut net, MS, "198.18.1.1:2", &back).unwrap();
    assert_eq!(port, FabricPort(0));
    assert_eq!(answer.destination, "192.168.0.10:5000".parse().unwrap());
    assert!(
        send(&mut net, MS, "198.18.1.1:3", &back).is_none(),
        "filtered"
    );
    assert_eq!(net.counters().nat, 1);
}

#[test]
fn neighbours_reach_each_other_inside_and_only_by_hairpin_from_outside() {
    for (hairpin, reaches) in [("#true", true), ("#false", false)] {
        let mut net = fabric(&format!(
            "site \"home\" {{ link {{ delay \"9ms\" }}; nat filtering=\"endpoint-independent\" hairpin={hairpin}\n\
             host \"a\"; host \"c\" }}\nhost \"b\""
        ));
        let inside = send(&mut net, MS, "192.168.0.10:1000", "192.168.0.11:1000").unwrap();
        assert_eq!((inside.0, inside.1), (MS, FabricPort(1)));
        send(&mut net, MS, "192.168.0.11:2000", "198.18.1.1:2").unwrap();
        let around = send(&mut net, MS, "192.168.0.10:3000", "198.18.0.1:2000");
        assert_eq!(around.is_some(), reaches);
        if let Some((_, port, flow)) = around {
            assert_eq!(port, FabricPort(1));
            assert_eq!(
                flow.source.ip(),
                Ipv4Addr::new(198, 18, 0, 1),
                "by its external address"
            );
        }
    }
}

#[test]
fn a_firewall_before_the_nat_sees_inside_addresses() {
    let mut net = fabric(
        "site \"o\" { nat; firewall \"only-relay\" to=\"hub\"; host \"a\" }\nhost \"hub\"\nhost \"b\"",
    );
    let (_, _, out) = send(&mut net, MS, "192.168.0.10:5000", "198.18.1.1:7").unwrap();
    assert!(send(&mut net, MS, "198.18.1.1:7", &out.source.to_string()).is_some());
    assert!(send(&mut net, MS, "192.168.0.10:5000", "198.18.2.1:7").is_none());
    assert_eq!(net.counters().firewall, 1);
}

#[test]
fn nobody_sends_from_an_address_that_is_not_his() {
    let mut net = fabric("host \"a\"\nhost \"b\"");
    let forged = flow(Protocol::Udp, "198.18.1.1:1", "198.18.1.1:2");
    net.enter(MS, FabricPort(0), forged, PacketSegments::one(100), "x");
    assert_eq!((net.next(), net.counters().unroutable), (None, 1));
}

/// The arrivals of a buffer of 40 packets of 1,500 bytes over this link.
fn buffer(link: &str) -> Vec<(Duration, Range<u32>)> {
    let mut net = fabric(&format!("host \"a\" {{ link {{ {link} }} }}\nhost \"b\""));
    let segments = PacketSegments {
        header: 28,
        size: 1472,
        payload: 40 * 1472,
    };
    let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
    net.enter(Duration::ZERO, FabricPort(0), flow, segments, "x");
    let mut out = Vec::new();
    while let Some(at) = net.next() {
        while let Some(FabricOutput::Arrived { range, .. }) = net.leave(at) {
            out.push((at, range));
        }
    }
    out
}

#[test]
fn a_buffer_stays_whole_where_nothing_parts_its_packets() {
    assert_eq!(buffer("delay \"5ms\""), [(5 * MS, 0..40)]);
}

#[test]
fn a_slow_link_spaces_the_packets_of_a_buffer() {
    let out = buffer("rate \"12 Mbit/s\"; queue \"1 MiB\"");
    let expected: Vec<_> = (0..40).map(|i| (MS * (i + 1), i..i + 1)).collect();
    assert_eq!(out, expected);
    let fast = buffer("rate \"120 Mbit/s\"; queue \"1 MiB\"");
    assert!(fast.iter().all(|(_, range)| range.len() <= 3), "{fast:?}");
    assert_eq!(fast.last().map(|(at, _)| *at), Some(4 * MS));
}

#[test]
fn each_packet_of_a_buffer_is_lost_by_itself() {
    let out = buffer("loss \"20%\"");
    let arrived: usize = out.iter().map(|(_, range)| range.len()).sum();
    assert!((25..40).contains(&arrived), "{arrived} arrived");
    assert!(out.windows(2).all(|pair| pair[0].1.end < pair[1].1.start));
}

#[test]
fn what_is_too_large_is_told_to_the_sender() {
    let mut net = fabric("host \"a\"\nhost \"b\" { link { mtu 1400 } }");
    let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
    net.enter(MS, FabricPort(0), flow, PacketSegments::one(1401), "x");
    assert_eq!(
        net.leave(MS),
        Some(FabricOutput::TooLarge {
            port: FabricPort(0),
            mtu: 1400,
            payload: "x"
        })
    );
    assert_eq!(net.counters().too_large, 1);
}

#[test]
fn what_is_under_way_is_bounded() {
    let mut net = fabric("host \"a\" { link { delay \"1h\" } }\nhost \"b\"");
    let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
    let segments = PacketSegments {
        header: 28,
        size: 1472,
        payload: 40 * 1472,
    };
    for _ in 0..5000 {
        net.enter(MS, FabricPort(0), flow, segments, "x");
    }
    assert!(net.bytes_in_transit <= MAX_BYTES_IN_TRANSIT);
    assert!(net.counters().overflow > 0);
    while net.leave(Duration::from_secs(4000)).is_some() {}
    assert_eq!(net.bytes_in_transit, 0);
}

#[test]
fn behind_two_nats_a_packet_shows_the_outer_ones_address_and_the_answer_finds_back() {
    let mut net = fabric(
        "site \"home\" { nat ports=\"random\"; nat ports=\"random\"; host \"a\"; host \"c\" }\nhost \"b\"",
    );
    let (_, _, out) = send(&mut net, MS, "192.168.0.10:5000", "198.18.1.1:2").unwrap();
    assert_eq!(out.source.ip(), Ipv4Addr::new(198, 18, 0, 1));
    let back = out.source.to_string();
    let (_, port, answer) = send(&mut net, MS, "198.18.1.1:2", &back).unwrap();
    assert_eq!(port, FabricPort(0));
    assert_eq!(answer.destination, "192.168.0.10:5000".parse().unwrap());
    assert!(send(&mut net, MS, "198.18.1.1:3", &back).is_none());
}

#[test]
fn the_outer_of_two_nats_turns_a_packet_back_to_a_neighbour() {
    let open = "nat filtering=\"endpoint-independent\" hairpin=#true";
    let mut net = fabric(&format!(
        "site \"home\" {{ {open}; {open}; host \"a\"; host \"c\" }}\nhost \"b\""
    ));
    send(&mut net, MS, "192.168.0.11:2000", "198.18.1.1:2").unwrap();
    let (_, port, flow) = send(&mut net, MS, "192.168.0.10:3000", "198.18.0.1:2000").unwrap();
    assert_eq!(port, FabricPort(1));
    assert_eq!(flow.source.ip(), Ipv4Addr::new(198, 18, 0, 1));
}

#[test]
fn ipv6_passes_as_it_is_and_to_the_prefix_of_nat64_as_ipv4() {
    let mut net = fabric(
        "site \"six\" ip=\"6\" { link { delay \"4ms\" }; nat64; host \"a\" }\nhost \"b\"\nhost \"c\" ip=\"4+6\"",
    );
    let (at, port, flow) = send(&mut net, MS, "[2001:2::1]:5000", "[2001:2:0:2::1]:7").unwrap();
    assert_eq!((at, port), (5 * MS, FabricPort(2)));
    assert_eq!(flow.source, "[2001:2::1]:5000".parse().unwrap());
    let (_, port, flow) = send(&mut net, MS, "[2001:2::1]:5000", "[64:ff9b::c612:101]:7").unwrap();
    assert_eq!(port, FabricPort(1));
    assert_eq!(flow.source, "198.18.0.1:5000".parse().unwrap());
    assert_eq!(flow.destination, "198.18.1.1:7".parse().unwrap());
    let (_, port, flow) = send(&mut net, MS, "198.18.1.1:7", "198.18.0.1:5000").unwrap();
    assert_eq!(port, FabricPort(0));
    assert_eq!(flow.source, "[64:ff9b::c612:101]:7".parse().unwrap());
    assert_eq!(flow.destination, "[2001:2::1]:5000".parse().unwrap());
    // Who has no NAT64 has nobody there.
    assert!(send(&mut net, MS, "[2001:2:0:2::1]:7", "[64:ff9b::c612:101]:7").is_none());
}

#[test]
fn a_link_that_tells_nobody_drops_what_is_too_large() {
    for (icmp, told) in [("", 1), (" icmp=#false", 0)] {
        let mut net = fabric(&format!(
            "host \"a\" {{ link {{ mtu 1280{icmp} }} }}\nhost \"b\""
        ));
        let flow = flow(Protocol::Udp, "198.18.0.1:1", "198.18.1.1:2");
        net.enter(MS, FabricPort(0), flow, PacketSegments::one(1300), "x");
        let mut messages = 0;
        while let Some(at) = net.next() {
            match net.leave(at) {
                Some(FabricOutput::TooLarge { mtu: 1280, .. }) => messages += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((messages, net.counters().too_large), (told, 1));
    }
}

#[test]
fn a_site_changes_while_packets_travel() {
    let mut net = fabric("site \"home\" { nat; host \"a\" }\nhost \"b\"");
    let out = |net: &mut _| send(net, MS, "192.168.0.10:5000", "198.18.1.1:2");
    let before = out(&mut net).unwrap().2.source;
    net.change(0, SiteChange::Rebind);
    assert!(send(&mut net, MS, "198.18.1.1:2", &before.to_string()).is_none());
    assert_ne!(out(&mut net).unwrap().2.source, before);
    net.change(0, SiteChange::Firewall(Some(FirewallRule::NoUdp)));
    assert!(out(&mut net).is_none());
    net.change(0, SiteChange::Firewall(None));
    let slow = LinkShape {
        delay: 9 * MS,
        ..LinkShape::default()
    };
    let links = SiteLinks {
        up: slow.clone(),
        down: slow,
    };
    net.change(0, SiteChange::Links(Box::new(links)));
    assert_eq!(out(&mut net).unwrap().0, 10 * MS);
}
