//! Findings from facts: what is wrong is said, with its cure, and nothing else is.

use std::{collections::HashSet, net::IpAddr};

use super::*;
use crate::testing::{draws, for_each_seed};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn hub(reach: HubReach) -> HubFacts {
    HubFacts {
        url: "https://hub".to_owned(),
        reach,
        clock_offset_s: 0,
        refusal: String::new(),
        has_stun: true,
        plain: PlainAnswer::Ordinary,
    }
}

/// A home behind an ordinary router, with a hub that answers.
fn home() -> NetworkFacts {
    NetworkFacts {
        addresses: vec!["192.168.1.5".parse().unwrap()],
        hubs: vec![hub(HubReach::Answers(Duration::from_millis(20)))],
        udp4: ProbeOutcome::Answered,
        nat: Some(NatFacts {
            local_port: 4242,
            first: address("9.9.9.1:4242"),
            second: Some(address("9.9.9.1:4242")),
            other_port_came_in: Some(false),
            hairpin: true,
            is_own: false,
        }),
        payload: Some(1452),
        tried_payload: 1452,
        port_mapping: PortMappingFacts {
            enabled: true,
            ..PortMappingFacts::default()
        },
        ..NetworkFacts::default()
    }
}

fn codes(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.code).collect()
}

/// What is found in a home that is changed so.
fn found(change: impl FnOnce(&mut NetworkFacts)) -> Vec<&'static str> {
    let mut facts = home();
    change(&mut facts);
    codes(&diagnose(&facts))
}

#[test]
fn an_ordinary_home_has_nothing_that_is_wrong() {
    let found = diagnose(&home());
    assert_eq!(
        codes(&found),
        [
            "ipv6-none",
            "no-port-mapping",
            "hub-answers",
            "nat-port-filter"
        ]
    );
    assert!(found.iter().all(|one| one.level < FindingLevel::Warning));
}

#[test]
fn what_is_wrong_with_a_hub_is_said_first() {
    for (reach, code) in [
        (HubReach::Answers(Duration::from_secs(2)), "hub-slow"),
        (HubReach::UnknownName, "hub-name-unknown"),
        (HubReach::Refused, "hub-refuses"),
        (HubReach::Silent, "hub-silent"),
        (HubReach::OtherKey, "hub-other-key"),
        (HubReach::NotAMember, "hub-not-a-member"),
        (HubReach::Proxy("no".to_owned()), "proxy-fails"),
        (HubReach::Failed("no".to_owned()), "hub-failed"),
    ] {
        assert_eq!(found(|facts| facts.hubs = vec![hub(reach)])[0], code);
    }
    let with = |change: fn(&mut HubFacts)| found(|facts| change(&mut facts.hubs[0]));
    for offset in [-3600, 3600] {
        let off = found(|facts| facts.hubs[0].clock_offset_s = offset);
        assert_eq!(off[0], "clock-off");
    }
    assert!(!with(|hub| hub.clock_offset_s = 20).contains(&"clock-off"));
    assert!(with(|hub| hub.refusal = "taken".to_owned()).contains(&"hub-refused-record"));
    assert!(with(|hub| hub.has_stun = false).contains(&"hub-without-stun"));
    assert!(found(|facts| facts.hubs.clear()).contains(&"no-hub"));
    let portal = found(|facts| {
        facts.hubs[0].reach = HubReach::OtherKey;
        facts.hubs[0].plain = PlainAnswer::Page;
    });
    assert_eq!(portal[0], "captive-portal");
    assert!(!portal.contains(&"hub-other-key"));
}

#[test]
fn what_the_network_forbids_is_said() {
    let blocked = found(|facts| (facts.udp4, facts.nat) = (ProbeOutcome::Silent, None));
    assert_eq!(blocked[0], "udp-blocked");
    let six: IpAddr = "2600::1".parse().unwrap();
    let dead = found(|facts| {
        facts.addresses.push(six);
        facts.udp6 = ProbeOutcome::Silent;
    });
    assert_eq!(dead[0], "ipv6-dead");
    let only_six = found(|facts| {
        (facts.udp4, facts.nat) = (ProbeOutcome::Silent, None);
        facts.udp6 = ProbeOutcome::Answered;
    });
    assert!(only_six.contains(&"udp4-silent") && only_six.contains(&"ipv6-works"));
    assert!(!only_six.contains(&"udp-blocked"));
    assert_eq!(
        found(|facts| facts.payload = Some(1100))[0],
        "mtu-too-small"
    );
    assert!(found(|facts| facts.payload = Some(1252)).contains(&"mtu-small"));
    assert!(found(|facts| facts.loopback_only = true).contains(&"loopback-only"));
    assert!(found(|facts| facts.addresses.clear()).contains(&"no-network"));
    assert!(found(|facts| facts.proxy = Some("http://p".to_owned())).contains(&"proxy"));
    assert!(found(|facts| facts.short_buffers = Some((1, 2))).contains(&"short-buffers"));
}

#[test]
fn each_kind_of_nat_has_its_name() {
    let with = |change: fn(&mut NatFacts)| {
        found(|facts| {
            if let Some(nat) = &mut facts.nat {
                change(nat);
            }
        })
    };
    assert_eq!(
        with(|nat| nat.second = Some(address("9.9.9.1:5")))[0],
        "nat-symmetric"
    );
    assert!(with(|nat| nat.other_port_came_in = Some(true)).contains(&"nat-open"));
    assert!(with(|nat| nat.hairpin = false).contains(&"no-hairpin"));
    let public = with(|nat| (nat.is_own, nat.other_port_came_in) = (true, Some(true)));
    assert_eq!(public, ["ipv6-none", "hub-answers", "public-address"]);
    let public = with(|nat| nat.is_own = true);
    assert!(public.contains(&"public-with-firewall"));
    let short = MappingLife::of(&[(Duration::from_secs(10), false)]);
    let left_alone = |is_own| {
        found(|facts| {
            facts.mapping_life = Some(short);
            facts.nat.as_mut().unwrap().is_own = is_own;
        })
    };
    assert_eq!(left_alone(false)[0], "mapping-short");
    assert!(!left_alone(true).contains(&"mapping-short"), "no NAT");
    let mapped = |external: &str| {
        let external = Some(address(external));
        found(|facts| facts.port_mapping.external = external)
    };
    assert!(mapped("9.9.9.1:41641").contains(&"port-mapped"));
    assert_eq!(mapped("100.64.0.9:41641")[0], "port-mapped-behind-nat");
    assert!(found(|facts| facts.port_mapping.spoken = true).contains(&"port-refused"));
    assert!(found(|facts| facts.port_mapping.enabled = false).contains(&"port-mapping-off"));
}

fn summary(mapping: MappingKind, other_ports: bool) -> ReachSummary {
    ReachSummary {
        udp4: ProbeOutcome::Answered,
        mapping: Some(mapping),
        lets_other_ports_in: Some(other_ports),
        ..ReachSummary::default()
    }
}

fn relayed(near: &NetworkFacts, far: Option<ReachSummary>) -> Vec<&'static str> {
    codes(&why_relayed(near, far))
}

fn why_relayed(near: &NetworkFacts, far: Option<ReachSummary>) -> Vec<Finding> {
    let pair = PairFacts {
        peer: "laptop".to_owned(),
        state: PeerState::Up {
            carrier: "quic".to_owned(),
            remote: "https://hub".to_owned(),
            relayed: true,
            tcp_allowed: true,
        },
        far,
    };
    diagnose_pair(near, &pair)
}

#[test]
fn a_relayed_path_says_why_it_is_no_better() {
    use MappingKind::{EndpointDependent, EndpointIndependent};

    let strict = summary(EndpointIndependent, false);
    let symmetric = summary(EndpointDependent, false);
    let mut here = home();
    assert_eq!(relayed(&here, Some(strict)), ["relayed-no-reason"]);
    assert_eq!(relayed(&here, Some(symmetric)), ["relayed-port-filter"]);
    assert_eq!(relayed(&here, None), ["relayed-unknown", "peer-not-asked"]);
    let silent = ReachSummary::default();
    assert_eq!(relayed(&here, Some(silent)), ["relayed-udp-there"]);
    let six = ReachSummary {
        udp6: ProbeOutcome::Answered,
        ..silent
    };
    assert_eq!(relayed(&here, Some(six)), ["relayed-no-common-family"]);
    // A mapped port is met whatever the NAT does.
    let mapped = ReachSummary {
        is_mapped: true,
        ..symmetric
    };
    if let Some(nat) = &mut here.nat {
        nat.second = Some(address("9.9.9.1:5"));
    }
    assert_eq!(relayed(&here, Some(symmetric)), ["relayed-symmetric"]);
    assert_eq!(relayed(&here, Some(strict)), ["relayed-port-filter"]);
    assert_eq!(relayed(&here, Some(mapped)), ["relayed-no-reason"]);
    let open = summary(EndpointIndependent, true);
    assert_eq!(relayed(&here, Some(open)), ["relayed-no-reason"]);
    (here.udp4, here.nat) = (ProbeOutcome::Silent, None);
    assert_eq!(relayed(&here, Some(strict)), ["relayed-udp-here"]);
}

/// Which end has IPv6, which lacks it and where it is blocked: each with what the cure says of it.
#[test]
fn a_cure_says_which_end_has_ipv6_and_what_the_other_does_with_it() {
    use MappingKind::{EndpointDependent, EndpointIndependent};
    use ProbeOutcome::{Answered, NotTried, Silent};

    let ends = [
        (
            Answered,
            Silent,
            "which works here, and which a firewall blocks at laptop",
        ),
        (
            Answered,
            NotTried,
            "which works here, and which laptop lacks",
        ),
        (
            Silent,
            Answered,
            "which works at laptop, and which a firewall blocks here",
        ),
        (
            NotTried,
            Answered,
            "which works at laptop, and which this machine lacks",
        ),
        (Silent, NotTried, "use IPv6 at both ends"),
        (NotTried, NotTried, "use IPv6 at both ends"),
    ];
    let symmetric = |facts: &mut NetworkFacts| {
        facts.nat.as_mut().unwrap().second = Some(address("9.9.9.1:5"));
    };
    let blocked = |facts: &mut NetworkFacts| (facts.udp4, facts.nat) = (Silent, None);
    for (here_udp6, far_udp6, says) in ends {
        let check = |code: &str, change: &dyn Fn(&mut NetworkFacts), far: ReachSummary| {
            let mut here = home();
            here.udp6 = here_udp6;
            change(&mut here);
            let udp6 = far_udp6;
            let found = why_relayed(&here, Some(ReachSummary { udp6, ..far }));
            assert_eq!(codes(&found), [code], "{says}");
            assert!(found[0].cure.contains(says), "{says}: {}", found[0].cure);
        };
        let far = summary(EndpointDependent, false);
        check("relayed-symmetric", &symmetric, far);
        check("relayed-port-filter", &|_| {}, far);
        check(
            "relayed-port-filter",
            &symmetric,
            summary(EndpointIndependent, false),
        );
        if here_udp6 != Answered {
            check("relayed-udp-here", &blocked, far);
        }
        if far_udp6 != Answered {
            let silent = ReachSummary {
                udp4: Silent,
                ..far
            };
            check("relayed-udp-there", &|_| {}, silent);
        }
    }
    let six = ReachSummary {
        udp6: Answered,
        ..ReachSummary::default()
    };
    let found = why_relayed(&home(), Some(six));
    assert_eq!(codes(&found), ["relayed-no-common-family"]);
    assert!(found[0].cure.contains("this machine lacks"), "{found:?}");
}

#[test]
fn where_ipv6_works_at_both_ends_a_firewall_stands_between() {
    let both = |mapping, other_ports| ReachSummary {
        udp6: ProbeOutcome::Answered,
        ..summary(mapping, other_ports)
    };
    let mut here = home();
    here.udp6 = ProbeOutcome::Answered;
    let open = both(MappingKind::EndpointIndependent, true);
    assert_eq!(relayed(&here, Some(open)), ["relayed-ipv6-firewall"]);
    // Why IPv4 does not do either is said too.
    let symmetric = both(MappingKind::EndpointDependent, false);
    assert_eq!(
        relayed(&here, Some(symmetric)),
        ["relayed-ipv6-firewall", "relayed-port-filter"]
    );
    (here.udp4, here.nat) = (ProbeOutcome::Silent, None);
    assert_eq!(relayed(&here, Some(symmetric)), ["relayed-ipv6-firewall"]);
}

#[test]
fn whoever_cannot_be_reached_is_said_to_be_so_and_why() {
    let of = |state| {
        let pair = PairFacts {
            peer: "laptop".to_owned(),
            state,
            far: Some(ReachSummary::default()),
        };
        codes(&diagnose_pair(&home(), &pair))
    };
    assert_eq!(of(PeerState::Unknown), ["peer-unknown"]);
    assert_eq!(of(PeerState::Untrusted), ["peer-untrusted"]);
    assert_eq!(of(PeerState::WithoutAddress), ["peer-without-address"]);
    assert_eq!(of(PeerState::Away("no answer".to_owned())), ["peer-away"]);
    assert_eq!(of(PeerState::Distrusts), ["peer-distrusts"]);
    let up = |carrier: &str| PeerState::Up {
        carrier: carrier.to_owned(),
        remote: "192.0.2.1:7".to_owned(),
        relayed: false,
        tcp_allowed: true,
    };
    assert_eq!(of(up("quic")), ["path-direct"]);
    assert_eq!(of(up("h2")), ["path-direct-tcp"]);
}

#[test]
fn a_listener_on_tcp_is_named_where_the_configuration_forbids_it() {
    let pair = PairFacts {
        peer: "laptop".to_owned(),
        state: PeerState::Up {
            carrier: "quic".to_owned(),
            remote: "https://hub".to_owned(),
            relayed: true,
            tcp_allowed: false,
        },
        far: Some(ReachSummary {
            listens_tcp: true,
            ..ReachSummary::default()
        }),
    };
    let found = codes(&diagnose_pair(&home(), &pair));
    assert_eq!(found, ["relayed-udp-there", "relayed-by-setting"]);
}

#[test]
fn codes_are_unique() {
    let once: HashSet<_> = ALL_CODES.iter().collect();
    assert_eq!(once.len(), ALL_CODES.len());
    assert!(ALL_CODES.len() >= 40);
}

/// Whatever was measured: each finding once, a known code, one sentence of cause, and a cure for each that is wrong.
fn follow(seed: u64) {
    let mut below = draws(seed, 18);
    let mut facts = home();
    let outcomes = [
        ProbeOutcome::NotTried,
        ProbeOutcome::Silent,
        ProbeOutcome::Answered,
    ];
    facts.udp4 = outcomes[below(3) as usize];
    facts.udp6 = outcomes[below(3) as usize];
    if facts.udp4 != ProbeOutcome::Answered {
        facts.nat = None;
    }
    if let Some(nat) = &mut facts.nat {
        nat.second = [None, Some(nat.first), Some(address("9.9.9.1:9"))][below(3) as usize];
        nat.other_port_came_in = [None, Some(false), Some(true)][below(3) as usize];
        nat.hairpin = below(2) == 0;
        nat.is_own = below(4) == 0;
    }
    facts.payload = [None, Some(1000), Some(1252), Some(1452)][below(4) as usize];
    facts.loopback_only = below(8) == 0;
    facts.listens_tcp = below(2) == 0;
    facts.port_mapping.external = (below(3) == 0).then(|| address("9.9.9.1:41641"));
    facts.hubs[0].reach = match below(3) {
        0 => HubReach::Silent,
        1 => HubReach::Refused,
        _ => HubReach::Answers(Duration::from_millis(u64::from(below(2000)))),
    };
    let found = diagnose(&facts);
    let once: HashSet<_> = found.iter().map(|finding| finding.code).collect();
    assert_eq!(once.len(), found.len(), "seed {seed}: {found:?}");
    for finding in &found {
        assert!(ALL_CODES.contains(&finding.code));
        assert!(
            finding.cause.ends_with('.'),
            "seed {seed}: {}",
            finding.cause
        );
        let cured = finding.level < FindingLevel::Warning || finding.cure.ends_with('.');
        assert!(cured, "seed {seed}: {finding:?}");
    }
    assert!(found.is_sorted_by_key(|finding| std::cmp::Reverse(finding.level)));
}

/// Seeds that once failed, each with what was wrong.
const KEPT: &[u64] = &[];

#[test]
fn whatever_was_measured_is_said_once_and_with_a_cure() {
    for_each_seed(KEPT, 5_000, follow);
}
