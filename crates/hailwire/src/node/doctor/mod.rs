//! What keeps this node from being reached: measured here, judged by [`hailwire_core::diagnosis`].
//!
//! A diagnosis asks each hub over TCP, and one that answers STUN over UDP; for a peer it brings the tunnel up, waits a moment for a
//! direct path, and asks the peer what its network allows and what came of this node's addresses there. What was measured is kept for
//! [`FRESH`], so that peers that ask cost little.

mod peer_path;
mod portal_probe;
mod report;
mod udp_probe;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hailwire_core::{
    diagnosis::{
        self, HubFacts, HubReach, MappingLife, NetworkFacts, PlainAnswer, PortMappingFacts,
        ProbeOutcome,
    },
    dial_address::is_global,
};
use hailwire_wire::{
    NodeId, Status,
    address::NodeRef,
    directory::{HubHealth, RefusalReason},
};
use tokio::{
    net::lookup_host,
    sync::Mutex,
    task::JoinSet,
    time::{Instant, timeout},
};

use self::{
    peer_path::{bounded, candidates_with, pair, shown_candidates, tried_candidates},
    report::{finding, reach},
};
use super::{NodeInner, dial_targets, hubs::HubLink, port_mapping, sockets, tunnel};
use crate::{admin, hub::HubError, outbound_tcp::HttpProxies};

/// How long what was measured is believed.
const FRESH: Duration = Duration::from_secs(20);

/// How long a hub may take to answer over TCP.
const HUB_PATIENCE: Duration = Duration::from_secs(4);

/// What was measured last; whoever comes while it is being measured waits.
#[derive(Debug, Default)]
pub(super) struct Measured(Mutex<Option<(Instant, Arc<Measurement>)>>);

/// What was measured, and where hubs answer STUN over IPv4.
#[derive(Debug)]
struct Measurement {
    facts: NetworkFacts,
    stun4: Vec<[SocketAddr; 2]>,
}

/// A hub, and where it answers STUN.
struct AskedHub {
    facts: HubFacts,
    addresses: Vec<IpAddr>,
    stun_ports: Vec<u16>,
}

/// `hail doctor`: of this network, and of the path to a peer where one is named.
pub(super) async fn diagnose(
    node: &Arc<NodeInner>,
    request: &admin::DiagnosisRequest,
) -> Result<admin::Diagnosis, Status> {
    let measured = Box::pin(measured(node, Duration::ZERO)).await;
    let of_peer = async {
        match request.who.is_empty() {
            true => Ok(None),
            false => Box::pin(pair(node, &request.who)).await.map(Some),
        }
    };
    let longest = Duration::from_secs(request.lifetime_s);
    let (mapping_life, of_peer) = tokio::join!(mapping_life(&measured, longest), of_peer);
    let facts = NetworkFacts {
        mapping_life,
        ..measured.facts.clone()
    };
    let mut found = diagnosis::diagnose(&facts);
    let mut peer = None;
    if let Some((pair, shown)) = of_peer? {
        let mut of_path = diagnosis::diagnose_pair(&facts, &pair);
        of_path.append(&mut found);
        found = of_path;
        peer = Some(shown);
    }
    Ok(admin::Diagnosis {
        findings: found.into_iter().map(finding).collect(),
        network: reach(&facts.summary()),
        peer,
    })
}

/// How long the NAT keeps a mapping, where that is asked for and there is a NAT.
async fn mapping_life(measured: &Measurement, longest: Duration) -> Option<MappingLife> {
    let nat = measured.facts.nat?;
    match longest.is_zero() || nat.is_own {
        true => None,
        false => Some(udp_probe::mapping_life(&measured.stun4, longest).await),
    }
}

/// What a peer, which has proved its key, is told: what this network allows, and what came of the addresses at which it was looked for.
pub(super) async fn reach_report(node: &Arc<NodeInner>, peer: NodeId) -> admin::PeerReport {
    let measured = Box::pin(measured(node, FRESH)).await;
    let tried = tried_candidates(&tunnel::places(node, peer).await);
    let up = node.peers.up(peer);
    let candidates = match &up {
        Some(session) => candidates_with(node, peer, tried, session),
        None => shown_candidates(tried, &[]),
    };
    admin::PeerReport {
        network: reach(&measured.facts.summary()),
        candidates: bounded(candidates),
    }
}

/// What was measured at most so long ago.
async fn measured(node: &Arc<NodeInner>, fresh: Duration) -> Arc<Measurement> {
    let mut last = node.sockets.measured.0.lock().await;
    if let Some((at, measurement)) = &*last
        && at.elapsed() < fresh
    {
        return measurement.clone();
    }
    let measurement = Arc::new(Box::pin(measure(node)).await);
    *last = Some((Instant::now(), measurement.clone()));
    measurement
}

async fn measure(node: &Arc<NodeInner>) -> Measurement {
    let own = dial_targets::own_subnets().await.into_iter();
    let addresses: Vec<IpAddr> = own.map(|subnet| subnet.address.to_canonical()).collect();
    let listening = node.sockets.endpoint.bound_sockets();
    let mut asked = JoinSet::new();
    for (place, hub) in node.hubs.all().into_iter().enumerate() {
        let id = node.id();
        asked.spawn(async move { (place, ask_hub(&hub, id).await) });
    }
    let mut hubs = asked.join_all().await;
    hubs.sort_by_key(|(place, _)| *place);
    let hubs: Vec<AskedHub> = hubs.into_iter().map(|(_, hub)| hub).collect();
    let loopback_only = listening.iter().all(|socket| socket.ip().is_loopback());
    let mut facts = NetworkFacts {
        loopback_only,
        proxy: proxy(node),
        short_buffers: sockets::short_buffers(node),
        port_mapping: port_mapping_facts(node),
        listens_tcp: !node.sockets.tcp.sockets().is_empty(),
        tried_payload: udp_probe::LONGEST,
        ..NetworkFacts::default()
    };
    let stun = |is_family: fn(&IpAddr) -> bool| {
        let of = |hub: &AskedHub| {
            let ip = hub.addresses.iter().copied().find(is_family)?;
            let [first, second] = hub.stun_ports.as_slice() else {
                return None;
            };
            Some([*first, *second].map(|port| SocketAddr::new(ip, port)))
        };
        hubs.iter().filter_map(of).collect::<Vec<_>>()
    };
    let has = |is_family: fn(&IpAddr) -> bool| {
        let usable = |ip: &&IpAddr| is_family(ip) && !is_link_local(ip);
        addresses.iter().any(|ip| usable(&ip))
    };
    let stun4 = stun(IpAddr::is_ipv4);
    let none = || std::future::ready((ProbeOutcome::NotTried, None, None));
    let four = async {
        match has(IpAddr::is_ipv4) && !loopback_only {
            true => udp_probe::probe_ipv4(&stun4, &addresses).await,
            false => none().await,
        }
    };
    let six = async {
        match has(IpAddr::is_ipv6) && !loopback_only {
            true => udp_probe::probe_ipv6(&stun(IpAddr::is_ipv6)).await,
            false => ProbeOutcome::NotTried,
        }
    };
    let ((udp4, nat, payload), udp6) = tokio::join!(four, six);
    (facts.udp4, facts.nat, facts.payload, facts.udp6) = (udp4, nat, payload, udp6);
    facts.hubs = hubs.into_iter().map(|hub| hub.facts).collect();
    facts.addresses = addresses;
    Measurement { facts, stun4 }
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn proxy(node: &NodeInner) -> Option<String> {
    let proxies = HttpProxies::of_environment();
    let hubs = node.hubs.all();
    let mut of_hubs = hubs.iter().filter_map(|hub| {
        let url = hub.client().url();
        proxies.shown(url.host(), url.port())
    });
    of_hubs.next()
}

fn port_mapping_facts(node: &NodeInner) -> PortMappingFacts {
    let enabled = port_mapping::is_enabled(node);
    let known = node.sockets.mapped_port.status(enabled);
    PortMappingFacts {
        enabled,
        spoken: !known.protocols.is_empty(),
        external: known.external.and_then(|external| external.parse().ok()),
    }
}

/// Asks a hub whether it is there, whether this node is its member, how late it is and where it answers STUN.
async fn ask_hub(hub: &HubLink, own: NodeId) -> AskedHub {
    let url = hub.client().url();
    let (host, port) = (url.host().to_owned(), url.port());
    let proxied = HttpProxies::of_environment().shown(&host, port).is_some();
    let looked_up = timeout(HUB_PATIENCE, lookup_host((host.as_str(), port))).await;
    let addresses: Vec<IpAddr> = match looked_up {
        Ok(Ok(found)) => found.map(|address| address.ip().to_canonical()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    let begun = Instant::now();
    let health = timeout(HUB_PATIENCE, hub.client().health()).await;
    let took = begun.elapsed();
    let health = health.unwrap_or(Err(HubError::TimedOut));
    let mut facts = HubFacts {
        url: url.to_string(),
        reach: HubReach::Answers(took),
        clock_offset_s: 0,
        refusal: String::new(),
        has_stun: false,
        plain: PlainAnswer::Ordinary,
    };
    let mut stun_ports = Vec::new();
    match health {
        Ok(health) => {
            facts.clock_offset_s = clock_offset(&health);
            facts.has_stun = health.stun_ports.len() == 2;
            stun_ports = health.stun_ports;
            facts.reach = membership(hub, own, took).await;
            facts.refusal = hub.refusal();
        }
        Err(error) => {
            facts.reach = unreached(&error, proxied, addresses.is_empty());
            if !proxied && let Some(ip) = addresses.first() {
                facts.plain = portal_probe::plain_answer(&host, *ip, port).await;
            }
        }
    }
    AskedHub {
        facts,
        addresses,
        stun_ports,
    }
}

fn clock_offset(health: &HubHealth) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let signed = |time| i64::try_from(time).unwrap_or(i64::MAX);
    signed(health.now).saturating_sub(signed(now))
}

async fn membership(hub: &HubLink, own: NodeId, took: Duration) -> HubReach {
    let own = NodeRef::Id(own);
    let looked_up = timeout(HUB_PATIENCE, hub.client().lookup(&own)).await;
    match looked_up.unwrap_or(Err(HubError::TimedOut)) {
        Err(HubError::Refused(refusal)) if refusal.reason == RefusalReason::NotAMember => {
            HubReach::NotAMember
        }
        Err(error) => HubReach::Failed(error.to_string()),
        Ok(_) => HubReach::Answers(took),
    }
}

fn unreached(error: &HubError, proxied: bool, nameless: bool) -> HubReach {
    match error {
        // A server of names that does not answer is as good as none.
        HubError::TimedOut if nameless && !proxied => HubReach::UnknownName,
        HubError::TimedOut => HubReach::Silent,
        HubError::Tls(_) | HubError::Answer(_) => HubReach::OtherKey,
        HubError::Unreachable(error) if proxied => HubReach::Proxy(error.to_string()),
        HubError::Unreachable(_) if nameless => HubReach::UnknownName,
        HubError::Unreachable(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => HubReach::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => HubReach::Silent,
            _ => HubReach::Failed(error.to_string()),
        },
        other => HubReach::Failed(other.to_string()),
    }
}

/// Whether the address of a probe is this machine's own.
fn is_own(address: SocketAddr, own: &[IpAddr]) -> bool {
    own.contains(&address.ip().to_canonical()) && !is_global(address.ip())
        || own.contains(&address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_hub_is_told_by_what_it_means() {
        let refused = || HubError::Unreachable(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(unreached(&refused(), false, false), HubReach::Refused);
        assert_eq!(unreached(&refused(), false, true), HubReach::UnknownName);
        assert!(matches!(
            unreached(&refused(), true, false),
            HubReach::Proxy(_)
        ));
        assert_eq!(
            unreached(&HubError::TimedOut, false, false),
            HubReach::Silent
        );
        let tls = HubError::Tls(io::Error::other("another key"));
        assert_eq!(unreached(&tls, false, false), HubReach::OtherKey);
    }

    #[test]
    fn the_page_of_the_manual_has_every_code_once() {
        let page = include_str!("../../../../../docs/reference/doctor.md");
        for code in diagnosis::ALL_CODES {
            let row = format!("\n| `{code}` |");
            assert_eq!(page.matches(&row).count(), 1, "{code}");
        }
    }
}
