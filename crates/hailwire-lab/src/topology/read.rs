//! The text of a topology file, read into types that cannot be wrong.

use std::{collections::HashSet, time::Duration};

use hailwire_kdl::{
    KdlDocument, KdlEntry, KdlIdentifier, KdlNode, TextMistake, argument, document, property,
    suggestion, text,
};

use super::{FirewallPolicy, Host, IpFamilies, MAX_HOSTS, MAX_NATS, MAX_SITES, Site, Topology};
use crate::{
    link::LinkShape,
    nat::{EndpointDependence, NatKind, PortAllocation, UnaskedPackets},
};

pub(super) fn topology(file: &str) -> Result<Topology, TextMistake> {
    let document = document(file)?;
    let mut topology = Topology {
        name: String::new(),
        about: String::new(),
        sites: Vec::new(),
    };
    for node in document.nodes() {
        match node.name().value() {
            "about" => topology.about = text(node, only(node)?)?.to_owned(),
            "site" => topology.sites.push(site(node)?),
            "host" => topology.sites.push(lone_host(node)?),
            _ => return Err(unknown(node, &["about", "site", "host"])),
        }
        if topology.sites.len() > MAX_SITES {
            return Err(TextMistake::of(
                node,
                format!("more than {MAX_SITES} sites"),
            ));
        }
    }
    check_names(&document, &topology)?;
    Ok(topology)
}

/// Every name once, at least one host, and relays and proxies that exist and are reachable.
fn check_names(document: &KdlDocument, topology: &Topology) -> Result<(), TextMistake> {
    let mut seen = HashSet::new();
    for (_, host) in topology.hosts() {
        if !seen.insert(host.name.as_str()) {
            let what = format!("two hosts are called `{}`", host.name);
            return Err(TextMistake::at(last_mention(document, &host.name), what));
        }
    }
    if seen.is_empty() {
        return Err(
            TextMistake::at(0, "a topology has at least one host").hint("write: host \"a\"")
        );
    }
    for site in &topology.sites {
        let Some(only) = site.firewall.as_ref().and_then(FirewallPolicy::only_host) else {
            continue;
        };
        let public = topology.site_of(only).is_some_and(|s| {
            let own = &topology.sites[s];
            own.nats.is_empty() && own.ip.has_ipv4()
        });
        if !public {
            let what = format!("`{only}` is not a host with a public address of IPv4");
            return Err(TextMistake::at(last_mention(document, only), what));
        }
    }
    Ok(())
}

/// Where a name stands last as a value, for the message about it.
fn last_mention(document: &KdlDocument, name: &str) -> usize {
    let nodes = document.nodes().iter();
    let all = nodes.flat_map(|node| std::iter::once(node).chain(node.iter_children()));
    all.flat_map(KdlNode::entries)
        .filter(|entry| entry.value().as_string() == Some(name))
        .map(|entry| entry.span().offset())
        .max()
        .unwrap_or(0)
}

fn site(node: &KdlNode) -> Result<Site, TextMistake> {
    let mut site = empty_site(name(node, &["ip"])?, families(node)?);
    let known = ["link", "nat", "nat64", "firewall", "host"];
    for inner in children(node, &known, &["host", "nat"])? {
        match inner.name().value() {
            "link" => (site.up, site.down) = link(inner)?,
            "nat" => site.nats.push(nat(inner)?),
            "nat64" => {
                no_entries(inner)?;
                children(inner, &[], &[])?;
                site.nat64 = true;
            }
            "firewall" => site.firewall = Some(firewall(inner)?),
            _ => {
                children(inner, &[], &[])?;
                site.hosts.push(host(inner, &["addresses"])?);
            }
        }
    }
    if site.hosts.is_empty() || site.hosts.len() > MAX_HOSTS {
        let what = format!("a site has 1 to {MAX_HOSTS} hosts");
        return Err(TextMistake::of(node, what).hint("write: host \"a\""));
    }
    if site.nats.len() > MAX_NATS {
        let what = format!("a site has at most {MAX_NATS} NATs");
        return Err(TextMistake::of(node, what));
    }
    if !site.nats.is_empty() && !site.ip.has_ipv4() {
        return Err(TextMistake::of(node, "a site without IPv4 has a `nat`")
            .hint("`nat64` lets hosts without IPv4 reach it; or write ip=\"4+6\""));
    }
    if site.nat64 && site.ip.has_ipv4() {
        return Err(TextMistake::of(node, "a site with IPv4 has a `nat64`")
            .hint("write ip=\"6\": a NAT64 is for hosts without IPv4"));
    }
    wide_enough(node, &site)?;
    Ok(site)
}

/// Links that carry IPv6 carry packets of 1,280 bytes (RFC 8200, section 5).
fn wide_enough(node: &KdlNode, site: &Site) -> Result<(), TextMistake> {
    match site.ip.has_ipv6() && site.up.mtu.min(site.down.mtu) < 1280 {
        true => Err(TextMistake::of(
            node,
            "IPv6 needs an `mtu` of at least 1280",
        )),
        false => Ok(()),
    }
}

/// The families that a site or a lone host names.
fn families(node: &KdlNode) -> Result<IpFamilies, TextMistake> {
    let Some(entry) = property(node, "ip") else {
        return Ok(IpFamilies::default());
    };
    match text(node, entry)? {
        "4" => Ok(IpFamilies::Ipv4),
        "6" => Ok(IpFamilies::Ipv6),
        "4+6" => Ok(IpFamilies::Both),
        _ => Err(TextMistake::in_value(
            entry,
            "`ip` is \"4\", \"6\" or \"4+6\"",
        )),
    }
}

fn lone_host(node: &KdlNode) -> Result<Site, TextMistake> {
    let host = host(node, &["addresses", "ip"])?;
    let mut site = empty_site(host.name.clone(), families(node)?);
    for inner in children(node, &["link", "firewall"], &[])? {
        match inner.name().value() {
            "link" => (site.up, site.down) = link(inner)?,
            _ => site.firewall = Some(firewall(inner)?),
        }
    }
    site.hosts.push(host);
    wide_enough(node, &site)?;
    Ok(site)
}

fn empty_site(name: String, ip: IpFamilies) -> Site {
    Site {
        name,
        up: LinkShape::default(),
        down: LinkShape::default(),
        ip,
        nats: Vec::new(),
        nat64: false,
        firewall: None,
        hosts: Vec::new(),
    }
}

fn host(node: &KdlNode, known: &[&str]) -> Result<Host, TextMistake> {
    let name = name(node, known)?;
    let addresses = match property(node, "addresses") {
        None => 1,
        Some(entry) => whole(entry, "addresses", 1, 3)?,
    };
    Ok(Host {
        name,
        addresses: u8::try_from(addresses).unwrap_or(1),
    })
}

/// The shapes up and down.
fn link(node: &KdlNode) -> Result<(LinkShape, LinkShape), TextMistake> {
    /// What a shape can say.
    const KNOWN: [&str; 8] = [
        "delay",
        "jitter",
        "loss",
        "reorder",
        "duplicate",
        "rate",
        "queue",
        "mtu",
    ];
    let known: Vec<&str> = KNOWN.iter().copied().chain(["up", "down"]).collect();
    no_entries(node)?;
    let mut both = LinkShape::default();
    let inner = children(node, &known, &[])?;
    let own = |n: &&&KdlNode| !["up", "down"].contains(&n.name().value());
    for setting in inner.iter().filter(own) {
        shape(setting, &mut both)?;
    }
    let (mut up, mut down) = (both.clone(), both);
    for block in inner.iter().filter(|n| !own(n)) {
        let target = match block.name().value() {
            "up" => &mut up,
            _ => &mut down,
        };
        no_entries(block)?;
        for setting in children(block, &KNOWN, &[])? {
            shape(setting, target)?;
        }
    }
    for shape in [&up, &down] {
        if shape.jitter > shape.delay {
            return Err(TextMistake::of(node, "the jitter is larger than the delay")
                .hint("a packet's delay lies in delay ± jitter"));
        }
    }
    Ok((up, down))
}

fn shape(node: &KdlNode, shape: &mut LinkShape) -> Result<(), TextMistake> {
    children(node, &[], &[])?;
    match node.name().value() {
        "delay" => shape.delay = time(node, only(node)?)?,
        "jitter" => shape.jitter = time(node, only(node)?)?,
        "loss" => shape.loss = share(node, only(node)?)?,
        "duplicate" => shape.duplicate = share(node, only(node)?)?,
        "rate" => shape.rate = Some(rate(node, only(node)?)?),
        "queue" => shape.queue = Some(bytes(node, only(node)?)?),
        "mtu" => {
            let mtu = whole(argument(node, &["icmp"])?, "mtu", 576, 9000)?;
            shape.mtu = u16::try_from(mtu).unwrap_or(crate::link::MTU);
            shape.mtu_told = match property(node, "icmp") {
                Some(icmp) => flag(icmp, "icmp")?,
                None => true,
            };
        }
        _ => {
            shape.reorder = share(node, argument(node, &["by"])?)?;
            if let Some(by) = property(node, "by") {
                shape.reorder_by = time(node, by)?;
            }
        }
    }
    Ok(())
}

fn nat(node: &KdlNode) -> Result<NatKind, TextMistake> {
    children(node, &[], &[])?;
    let known = [
        "mapping",
        "filtering",
        "hairpin",
        "ports",
        "timeout",
        "unasked",
    ];
    let mut nat = NatKind::default();
    for entry in node.entries() {
        let at = entry.span().offset();
        match entry.name().map(KdlIdentifier::value) {
            Some("mapping") => nat.mapping = dependence(node, entry)?,
            Some("filtering") => nat.filtering = dependence(node, entry)?,
            Some("hairpin") => nat.hairpin = flag(entry, "hairpin")?,
            Some("ports") => {
                nat.ports = match text(node, entry)? {
                    "preserve" => PortAllocation::Preserve,
                    "random" => PortAllocation::Random,
                    _ => return Err(TextMistake::at(at, "`ports` is \"preserve\" or \"random\"")),
                }
            }
            Some("timeout") => nat.timeout = time(node, entry)?,
            Some("unasked") => {
                nat.unasked = match text(node, entry)? {
                    "dropped" => UnaskedPackets::Dropped,
                    "noted" => UnaskedPackets::Noted,
                    _ => return Err(TextMistake::at(at, "`unasked` is \"dropped\" or \"noted\"")),
                }
            }
            _ => {
                let hint = format!("known here: {}", known.join(", "));
                return Err(TextMistake::at(at, "`nat` takes properties only").hint(hint));
            }
        }
    }
    Ok(nat)
}

fn flag(entry: &KdlEntry, what: &str) -> Result<bool, TextMistake> {
    let wrong = || {
        TextMistake::at(
            entry.span().offset(),
            format!("`{what}` is #true or #false"),
        )
    };
    entry.value().as_bool().ok_or_else(wrong)
}

fn dependence(node: &KdlNode, entry: &KdlEntry) -> Result<EndpointDependence, TextMistake> {
    let text = text(node, entry)?;
    let found = EndpointDependence::ALL
        .into_iter()
        .find(|kind| kind.name() == text);
    found.ok_or_else(|| {
        let names = EndpointDependence::ALL
            .map(EndpointDependence::name)
            .join(", ");
        TextMistake::in_value(entry, format!("`{text}` is not a kind of RFC 4787"))
            .hint(format!("known here: {names}"))
    })
}

fn firewall(node: &KdlNode) -> Result<FirewallPolicy, TextMistake> {
    children(node, &[], &[])?;
    let rule = argument(node, &["to"])?;
    let at = rule.span().offset();
    match (text(node, rule)?, property(node, "to")) {
        ("no-udp", None) => Ok(FirewallPolicy::NoUdp),
        ("no-udp-in", None) => Ok(FirewallPolicy::NoUdpIn),
        ("no-ipv6", None) => Ok(FirewallPolicy::NoIpv6),
        ("ipv6-known-ports", None) => Ok(FirewallPolicy::Ipv6KnownPorts),
        ("only-tcp-443", None) => Ok(FirewallPolicy::OnlyTcp443),
        ("only-relay", Some(to)) => Ok(FirewallPolicy::OnlyRelay(text(node, to)?.to_owned())),
        ("only-proxy", Some(to)) => Ok(FirewallPolicy::OnlyProxy(text(node, to)?.to_owned())),
        (only @ ("only-relay" | "only-proxy"), None) => {
            let what = format!("the {} is not named", &only["only-".len()..]);
            let hint = format!("write: firewall \"{only}\" to=\"HOST\"");
            Err(TextMistake::at(at, what).hint(hint))
        }
        (_, Some(to)) => Err(TextMistake::in_value(
            to,
            "`to` belongs to \"only-relay\" and \"only-proxy\"",
        )),
        (other, None) => Err(TextMistake::at(at, format!("`{other}` is not a firewall"))
            .hint("known here: no-udp, no-udp-in, no-ipv6, ipv6-known-ports, only-tcp-443, only-relay, only-proxy")),
    }
}

/// The name that a node has as its only value; properties only of `known`.
fn name(node: &KdlNode, known: &[&str]) -> Result<String, TextMistake> {
    let entry = argument(node, known)?;
    let text = text(node, entry)?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match (1..=32).contains(&text.len()) && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err(TextMistake::in_value(
            entry,
            "a name has 1 to 32 of a-z, 0-9 and -",
        )),
    }
}

fn only(node: &KdlNode) -> Result<&KdlEntry, TextMistake> {
    argument(node, &[])
}

fn no_entries(node: &KdlNode) -> Result<(), TextMistake> {
    match node.entries().first() {
        None => Ok(()),
        Some(entry) => {
            let what = format!("`{}` takes its settings in braces", node.name().value());
            Err(TextMistake::in_value(entry, what))
        }
    }
}

/// The settings in braces: only known ones, each once except those that may be `repeated`.
fn children<'a>(
    node: &'a KdlNode,
    known: &[&str],
    repeated: &[&str],
) -> Result<Vec<&'a KdlNode>, TextMistake> {
    let mut seen = HashSet::new();
    for inner in node.iter_children() {
        let name = inner.name().value();
        if !known.contains(&name) {
            return Err(unknown(inner, known));
        }
        if !seen.insert(name) && !repeated.contains(&name) {
            return Err(TextMistake::of(inner, format!("`{name}` is set twice")));
        }
    }
    Ok(node.iter_children().collect())
}

fn unknown(node: &KdlNode, known: &[&str]) -> TextMistake {
    let name = node.name().value();
    TextMistake::of(node, format!("`{name}` is not known here")).hint(suggestion(name, known))
}

fn time(node: &KdlNode, entry: &KdlEntry) -> Result<Duration, TextMistake> {
    humantime::parse_duration(text(node, entry)?)
        .ok()
        .filter(|time| *time <= Duration::from_secs(24 * 3600))
        .ok_or_else(|| {
            TextMistake::in_value(entry, "not a time of at most a day")
                .hint("write a number with its unit, for example \"25ms\"")
        })
}

fn share(node: &KdlNode, entry: &KdlEntry) -> Result<f64, TextMistake> {
    let percent = text(node, entry)?.strip_suffix('%');
    percent
        .and_then(|number| number.trim().parse::<f64>().ok())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| {
            TextMistake::in_value(entry, "not a share").hint("write for example \"0.5%\"")
        })
}

fn rate(node: &KdlNode, entry: &KdlEntry) -> Result<u64, TextMistake> {
    let units = [
        ("Gbit/s", 1e9),
        ("Mbit/s", 1e6),
        ("kbit/s", 1e3),
        ("bit/s", 1.0),
    ];
    scaled(text(node, entry)?, &units)
        .filter(|rate| (1_000..=1_000_000_000_000).contains(rate))
        .ok_or_else(|| {
            TextMistake::in_value(entry, "not a rate of 1 kbit/s to 1000 Gbit/s")
                .hint("write for example \"20 Mbit/s\"")
        })
}

fn bytes(node: &KdlNode, entry: &KdlEntry) -> Result<u64, TextMistake> {
    let units = [
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("B", 1.0),
    ];
    scaled(text(node, entry)?, &units)
        .filter(|size| (1..=1 << 30).contains(size))
        .ok_or_else(|| {
            TextMistake::in_value(entry, "not a size of 1 B to 1 GiB")
                .hint("write for example \"256 KiB\"")
        })
}

/// A number with one of these units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let number = number
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|n| n.is_finite() && *n >= 0.0)?;
    Some((number * factor).round() as u64)
}

fn whole(entry: &KdlEntry, what: &str, least: u32, most: u32) -> Result<u32, TextMistake> {
    hailwire_kdl::whole(entry, least..=most, || {
        format!("`{what}` is a whole number from {least} to {most}")
    })
}

#[cfg(test)]
mod tests;
