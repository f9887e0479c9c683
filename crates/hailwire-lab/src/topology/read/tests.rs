use super::*;

fn good(text: &str) -> Topology {
    topology(text).unwrap_or_else(|mistake| panic!("{text}: {mistake:?}"))
}

fn mistake(text: &str) -> (usize, usize, String) {
    let mistake = topology(text).expect_err(text);
    let (line, column) = mistake.line_and_column(text);
    (line, column, mistake.what)
}

#[test]
fn everything_that_a_file_can_say_is_read() {
    let topology = good(
        "about \"x\"\n\
         site \"home\" {\n\
           link { delay \"20ms\"; jitter \"5ms\"; loss \"0.5%\"; reorder \"1%\" by=\"3ms\"\n\
                  duplicate \"0.1%\"; rate \"1.5 Mbit/s\"; queue \"64 KiB\"; mtu 1400\n\
                  up { rate \"500 kbit/s\" }\n\
                  down { loss \"2%\" } }\n\
           nat mapping=\"address-dependent\" filtering=\"endpoint-independent\" hairpin=#true ports=\"random\" timeout=\"30s\" unasked=\"noted\"\n\
           firewall \"only-relay\" to=\"hub\"\n\
           host \"a\"\n\
         }\n\
         host \"hub\" addresses=2 { link { delay \"1ms\" }; firewall \"no-udp\" }\n",
    );
    let home = &topology.sites[0];
    assert_eq!(home.up.rate, Some(500_000));
    assert_eq!(home.up.loss, 0.005);
    assert_eq!(
        home.down,
        LinkShape {
            delay: Duration::from_millis(20),
            jitter: Duration::from_millis(5),
            loss: 0.02,
            reorder: 0.01,
            reorder_by: Duration::from_millis(3),
            duplicate: 0.001,
            rate: Some(1_500_000),
            queue: Some(65536),
            mtu: 1400,
            mtu_told: true,
        }
    );
    assert_eq!(
        home.nats,
        [NatKind {
            mapping: EndpointDependence::AddressDependent,
            filtering: EndpointDependence::EndpointIndependent,
            hairpin: true,
            ports: PortAllocation::Random,
            timeout: Duration::from_secs(30),
            unasked: UnaskedPackets::Noted,
        }]
    );
    assert_eq!(home.firewall, Some(FirewallPolicy::OnlyRelay("hub".into())));
    assert_eq!(topology.sites[1].firewall, Some(FirewallPolicy::NoUdp));
}

#[test]
fn mistakes_are_named_with_line_and_column() {
    let cases = [
        ("", 1, 1, "at least one host"),
        ("host \"a\"\nlnk", 2, 1, "`lnk` is not known here"),
        ("host \"A\"", 1, 6, "a name has 1 to 32"),
        ("host \"a\" \"b\"", 1, 1, "exactly one value"),
        ("host \"a\"\nhost \"a\"", 2, 6, "two hosts"),
        ("host \"a\" { link { delay 25 } }", 1, 25, "takes a string"),
        ("host \"a\" { link { delay \"25\" } }", 1, 25, "not a time"),
        ("host \"a\" { link { loss \"1\" } }", 1, 24, "not a share"),
        (
            "host \"a\" { link { loss \"101%\" } }",
            1,
            24,
            "not a share",
        ),
        ("host \"a\" { link { rate \"5\" } }", 1, 24, "not a rate"),
        ("host \"a\" { link { queue \"5 G\" } }", 1, 25, "not a size"),
        ("host \"a\" { link { mtu 100 } }", 1, 23, "from 576 to 9000"),
        (
            "host \"a\" { link { delay \"1ms\"; delay \"2ms\" } }",
            1,
            32,
            "set twice",
        ),
        (
            "host \"a\" { link { jitter \"1ms\" } }",
            1,
            12,
            "jitter is larger",
        ),
        ("host \"a\" { nat }", 1, 12, "not known here"),
        (
            "site \"s\" { nat mapping=\"cone\"; host \"a\" }",
            1,
            16,
            "kind of RFC 4787",
        ),
        (
            "site \"s\" { nat \"x\"; host \"a\" }",
            1,
            16,
            "properties only",
        ),
        ("site \"s\"", 1, 1, "1 to 64 hosts"),
        ("host \"a\" { firewall \"x\" }", 1, 21, "not a firewall"),
        ("host \"a\" { firewall \"only-relay\" }", 1, 21, "not named"),
        (
            "host \"a\" { firewall \"only-relay\" to=\"x\" }",
            1,
            34,
            "public address",
        ),
        ("host \"a\" {", 1, 10, "not KDL"),
        ("host \"a\" ip=\"5\"", 1, 10, "\"4\", \"6\" or \"4+6\""),
        (
            "site \"s\" ip=\"6\" { nat; host \"a\" }",
            1,
            1,
            "without IPv4 has a `nat`",
        ),
        (
            "site \"s\" { nat64; host \"a\" }",
            1,
            1,
            "with IPv4 has a `nat64`",
        ),
        (
            "site \"s\" { nat; nat; nat; nat; host \"a\" }",
            1,
            1,
            "at most 3 NATs",
        ),
        (
            "host \"a\" ip=\"6\" { link { mtu 1000 } }",
            1,
            1,
            "at least 1280",
        ),
        (
            "host \"a\" { link { mtu 1280 icmp=1 } }",
            1,
            28,
            "#true or #false",
        ),
        (
            "host \"a\" { firewall \"only-proxy\" }",
            1,
            21,
            "the proxy is not named",
        ),
    ];
    for (text, line, column, what) in cases {
        let found = mistake(text);
        assert!(found.2.contains(what), "{text}: {found:?}");
        assert_eq!((found.0, found.1), (line, column), "{text}: {found:?}");
    }
}

#[test]
fn sites_and_hosts_are_bounded() {
    let many: String = (0..=MAX_SITES)
        .map(|i| format!("host \"h{i}\"\n"))
        .collect();
    assert!(mistake(&many).2.contains("more than 64 sites"));
    let hosts: String = (0..=MAX_HOSTS)
        .map(|i| format!("host \"h{i}\"\n"))
        .collect();
    assert!(
        mistake(&format!("site \"s\" {{ {hosts} }}"))
            .2
            .contains("1 to 64 hosts")
    );
}

#[test]
fn families_several_nats_and_silent_links_are_read() {
    let topology = good(
        "site \"s\" ip=\"4+6\" { link { mtu 1280 icmp=#false }; nat; nat timeout=\"30s\"; host \"a\" }\n\
         site \"six\" ip=\"6\" { nat64; firewall \"only-proxy\" to=\"p\"; host \"b\" }\n\
         host \"p\" ip=\"4+6\" { firewall \"no-ipv6\" }\n\
         host \"q\" { firewall \"no-udp-in\" }",
    );
    let [first, six, p, q] = &topology.sites[..] else {
        panic!("{topology:?}")
    };
    assert_eq!((first.ip, first.nats.len()), (IpFamilies::Both, 2));
    assert_eq!((first.up.mtu, first.down.mtu_told), (1280, false));
    assert_eq!((six.ip, six.nat64), (IpFamilies::Ipv6, true));
    let policies = [six, p, q].map(|site| site.firewall.clone().unwrap());
    let expected = [
        FirewallPolicy::OnlyProxy("p".into()),
        FirewallPolicy::NoIpv6,
        FirewallPolicy::NoUdpIn,
    ];
    assert_eq!(policies, expected);
}
