//! What keeps this node from being reached: measured here, judged by [`hailwire_core::diagnosis`].
//!
//! A diagnosis asks each hub over TCP, and one that answers STUN over UDP; for a peer it brings the tunnel up, waits a moment for a
//! direct path, and asks the peer what its network allows and what came of this node's addresses there. What was measured is kept for
//! [`FRESH`], so that peers that ask cost little.

mod portal_probe;
mod udp_probe;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hailwire_core::{
    Carrier,
    diagnosis::{
        self, HubFacts, HubReach, MappingLife, NetworkFacts, PairFacts, PeerState, PlainAnswer,
        PortMappingFacts, ProbeOutcome, ReachSummary,
    },
    dial_address::is_global,
};
use hailwire_wire::{
    CallHeader, Code, NodeId, Status,
    address::NodeRef,
    directory::{HubHealth, RefusalReason},
    frame::FrameKind,
};
use tokio::{
    net::lookup_host,
    sync::Mutex,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    NodeInner, dial, dial_targets,
    hubs::{self, HubLink},
    manage::{known_as, trusts_us},
    overlay::NodeAddresses,
    port_mapping, resolve, sockets, status, tunnel,
};
use crate::{admin, hub::HubError, outbound_tcp::HttpProxies, session::Session};

/// How long what was measured is believed.
const FRESH: Duration = Duration::from_secs(20);

/// How long a hub may take to answer over TCP.
const HUB_PATIENCE: Duration = Duration::from_secs(4);

/// How long a relayed tunnel may take to get a direct path, before it is said why it has none.
const PATH_PATIENCE: Duration = Duration::from_secs(4);

/// How long a peer may take to say what its network allows.
const PEER_PATIENCE: Duration = Duration::from_secs(9);

/// Most bytes of what a peer says.
const MAX_REPORT: usize = 32 * 1024;

/// Most addresses that are told to a peer, and that are taken from one.
const MAX_CANDIDATES: usize = 32;

/// Most bytes of each.
const MAX_CANDIDATE: usize = 256;

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

/// No more and no longer ones than are told.
fn bounded(mut candidates: Vec<admin::PathCandidate>) -> Vec<admin::PathCandidate> {
    // What is in use is not what is left out.
    candidates.sort_by_key(|candidate| !candidate.answered);
    candidates.truncate(MAX_CANDIDATES);
    for candidate in &mut candidates {
        for text in [&mut candidate.kind, &mut candidate.address] {
            text.truncate(text.floor_char_boundary(MAX_CANDIDATE));
        }
    }
    candidates
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

/// What is known of a peer, the tunnel brought up, and how that is shown.
async fn pair(
    node: &Arc<NodeInner>,
    who: &str,
) -> Result<(PairFacts, admin::PeerDiagnosis), Status> {
    let who_ref: NodeRef = who
        .parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
    let facts = |state, far| PairFacts {
        peer: who.to_owned(),
        state,
        far,
    };
    let mut shown = admin::PeerDiagnosis::default();
    let id = match resolve::resolve(node, &who_ref).await {
        Ok(id) => id,
        Err(status) if status.code == Code::NotFound => {
            return Ok((facts(PeerState::Unknown, None), shown));
        }
        Err(status) => return Ok((facts(PeerState::Away(status.message), None), shown)),
    };
    (shown.id, shown.name) = (Some(id), known_as(node, id));
    if !node.trust.is_trusted(id) && !hubs::vouched_for(node, id).await {
        return Ok((facts(PeerState::Untrusted, None), shown));
    }
    let places = tunnel::places(node, id).await;
    let candidates = tried_candidates(&places);
    let session = match tunnel::tunnel_to(node, id).await {
        Ok(session) => session,
        Err(_) if places.is_empty() => {
            return Ok((facts(PeerState::WithoutAddress, None), shown));
        }
        Err(status) => {
            shown.candidates = shown_candidates(candidates, &[]);
            return Ok((facts(PeerState::Away(status.message), None), shown));
        }
    };
    if !matches!(trusts_us(&session).await, Ok(true)) {
        return Ok((facts(PeerState::Distrusts, None), shown));
    }
    // The peer measures meanwhile, so that it can say at once what has become of the path.
    let (_, ()) = tokio::join!(report_of(&session), direct(node, id));
    let session = node.peers.up(id).unwrap_or(session);
    let report = report_of(&session).await;
    let path = status::path(&session);
    shown.candidates = bounded(candidates_with(node, id, candidates, &session));
    let mut far = None;
    if let Some(report) = report {
        let of_far = summary(&report.network);
        far = Some(of_far);
        shown.far = Some(reach(&of_far));
        shown.far_candidates = bounded(report.candidates);
    }
    let state = PeerState::Up {
        carrier: session.connection().carrier().to_owned(),
        relayed: path.kind == "relay",
        remote: path.remote,
        tcp_allowed: dial::carrier_for(node, id) != Carrier::Quic,
    };
    Ok((facts(state, far), shown))
}

/// A kind of candidate and its address.
type TriedCandidate = (&'static str, String);

/// Where a peer may be.
fn tried_candidates(places: &NodeAddresses) -> Vec<TriedCandidate> {
    let udp = places.addresses.iter().chain(&places.held_back);
    let udp = udp.map(|address| ("udp", address.to_string()));
    let tcp = places
        .tcp
        .iter()
        .map(|address| ("tcp", address.to_string()));
    let relays = places.relays.iter().map(|relay| ("relay", one_way(relay)));
    udp.chain(tcp).chain(relays).collect()
}

/// What came of each while `session` takes new calls.
fn candidates_with(
    node: &NodeInner,
    id: NodeId,
    tried: Vec<TriedCandidate>,
    session: &Session,
) -> Vec<admin::PathCandidate> {
    let udp = node.peers.connections(id, hailwire_core::Transport::Udp);
    let open = udp.first().unwrap_or(session).connection().open_paths();
    let open: Vec<String> = open.iter().map(|remote| one_way(remote)).collect();
    let used = one_way(&status::path(session).remote);
    let mut candidates = shown_candidates(tried, &open);
    for candidate in &mut candidates {
        candidate.used = candidate.address == used;
        candidate.answered |= candidate.used;
    }
    candidates
}

/// A relay's URL in the form of hubs' URLs, whichever it has; an address as it is.
fn one_way(address: &str) -> String {
    let short = address.trim_end_matches('/');
    match short.strip_prefix("https://") {
        Some(_) => short.strip_suffix(":443").unwrap_or(short).to_owned(),
        None => address.to_owned(),
    }
}

/// Addresses that were tried, and those at which the peer turned out to be beside them.
fn shown_candidates(tried: Vec<TriedCandidate>, open: &[String]) -> Vec<admin::PathCandidate> {
    let mut shown: Vec<admin::PathCandidate> = Vec::new();
    let seen = open.iter().map(|remote| {
        let kind = if remote.contains("://") {
            "relay"
        } else {
            "udp"
        };
        (kind, remote.clone())
    });
    for (kind, address) in tried.into_iter().chain(seen) {
        if !shown.iter().any(|known| known.address == address) {
            shown.push(admin::PathCandidate {
                kind: kind.to_owned(),
                answered: open.contains(&address),
                used: false,
                address,
            });
        }
    }
    shown
}

/// Waits until the tunnel that takes new calls has a direct path, for a moment.
async fn direct(node: &NodeInner, id: NodeId) {
    let mut changes = node.peers.changes();
    let direct = async {
        loop {
            changes.mark_unchanged();
            let up = node.peers.up(id);
            let relayed = up.is_none_or(|session| {
                let stats = session.connection().stats();
                stats.relayed || stats.remote.is_empty()
            });
            if !relayed || changes.changed().await.is_err() {
                return;
            }
        }
    };
    // Without one it is said why.
    let _ = timeout(PATH_PATIENCE, direct).await;
}

/// What the peer says of its network and of the addresses of this node; nothing where it is of another version.
async fn report_of(session: &Session) -> Option<admin::PeerReport> {
    let header = CallHeader {
        to: admin::AGENT.to_owned(),
        method: admin::method::REACH.to_owned(),
        ..CallHeader::default()
    };
    let asked = async {
        let answer = session.open(FrameKind::CALL, &header, bytes::Bytes::new().into());
        answer.await?.begin(None).await?.bytes(MAX_REPORT).await
    };
    let said = timeout(PEER_PATIENCE, asked).await.ok()?.ok()?;
    serde_json::from_slice(&said).ok()
}

fn finding(found: diagnosis::Finding) -> admin::DiagnosisFinding {
    admin::DiagnosisFinding {
        code: found.code.to_owned(),
        level: found.level.name().to_owned(),
        cause: found.cause,
        cure: found.cure,
    }
}

const OUTCOMES: [(ProbeOutcome, &str); 3] = [
    (ProbeOutcome::NotTried, "not-tried"),
    (ProbeOutcome::Silent, "silent"),
    (ProbeOutcome::Answered, "answered"),
];

const MAPPINGS: [(diagnosis::MappingKind, &str); 3] = [
    (diagnosis::MappingKind::None, "none"),
    (
        diagnosis::MappingKind::EndpointIndependent,
        "endpoint-independent",
    ),
    (
        diagnosis::MappingKind::EndpointDependent,
        "endpoint-dependent",
    ),
];

fn reach(summary: &ReachSummary) -> admin::ReachReport {
    let outcome = |of: ProbeOutcome| {
        let mut all = OUTCOMES.iter();
        let found = all.find(|(outcome, _)| *outcome == of);
        found.map_or("", |(_, word)| word).to_owned()
    };
    let mapping = |of: diagnosis::MappingKind| {
        let mut all = MAPPINGS.iter();
        all.find(|(mapping, _)| *mapping == of)
            .map(|(_, word)| (*word).to_owned())
    };
    admin::ReachReport {
        udp4: outcome(summary.udp4),
        udp6: outcome(summary.udp6),
        mapping: summary.mapping.and_then(mapping),
        lets_other_ports_in: summary.lets_other_ports_in,
        is_mapped: summary.is_mapped,
        listens_tcp: summary.listens_tcp,
    }
}

fn summary(report: &admin::ReachReport) -> ReachSummary {
    let outcome = |word: &str| {
        let mut all = OUTCOMES.iter();
        let found = all.find(|(_, own)| *own == word);
        found.map_or(ProbeOutcome::NotTried, |(outcome, _)| *outcome)
    };
    let mapping = |word: &String| {
        let mut all = MAPPINGS.iter();
        all.find(|(_, own)| own == word)
            .map(|(mapping, _)| *mapping)
    };
    ReachSummary {
        udp4: outcome(&report.udp4),
        udp6: outcome(&report.udp6),
        mapping: report.mapping.as_ref().and_then(mapping),
        lets_other_ports_in: report.lets_other_ports_in,
        is_mapped: report.is_mapped,
        listens_tcp: report.listens_tcp,
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
    fn what_a_peer_says_is_read_as_it_was_meant_and_nonsense_is_nothing() {
        let said = ReachSummary {
            udp4: ProbeOutcome::Answered,
            udp6: ProbeOutcome::Silent,
            mapping: Some(diagnosis::MappingKind::EndpointDependent),
            lets_other_ports_in: Some(true),
            is_mapped: true,
            listens_tcp: true,
        };
        assert_eq!(summary(&reach(&said)), said);
        let nonsense = admin::ReachReport {
            udp4: "always".to_owned(),
            mapping: Some("new".to_owned()),
            ..admin::ReachReport::default()
        };
        assert_eq!(summary(&nonsense), ReachSummary::default());
    }

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

    #[test]
    fn what_is_told_of_candidates_is_bounded_and_keeps_what_answered() {
        let candidate = |place: usize| admin::PathCandidate {
            kind: "udp".to_owned(),
            address: format!("{place}{}", "é".repeat(MAX_CANDIDATE)),
            answered: place == 99,
            used: false,
        };
        let told = bounded((0..100).map(candidate).collect());
        assert_eq!(told.len(), MAX_CANDIDATES);
        assert!(told[0].answered && told.iter().all(|one| one.address.len() <= MAX_CANDIDATE));
        let report = admin::PeerReport {
            candidates: told,
            ..admin::PeerReport::default()
        };
        assert!(serde_json::to_vec(&report).unwrap().len() < MAX_REPORT);
    }

    #[test]
    fn a_report_of_an_older_peer_has_no_candidates() {
        let older = serde_json::to_vec(&admin::ReachReport::default()).unwrap();
        let report: admin::PeerReport = serde_json::from_slice(&older).unwrap();
        assert_eq!(report, admin::PeerReport::default());
    }

    #[test]
    fn a_relay_is_one_however_its_url_is_written() {
        for url in [
            "https://hub",
            "https://hub/",
            "https://hub:443",
            "https://hub:443/",
        ] {
            assert_eq!(one_way(url), "https://hub");
        }
        assert_eq!(
            one_way("https://[2001:db8::443]/"),
            "https://[2001:db8::443]"
        );
        assert_eq!(one_way("https://hub:7443/"), "https://hub:7443");
        assert_eq!(one_way("192.0.2.1:443"), "192.0.2.1:443");
    }

    #[test]
    fn a_candidate_is_shown_once_and_says_whether_it_answered() {
        let tried = vec![
            ("udp", "192.0.2.1:7".to_owned()),
            ("relay", "https://hub/".to_owned()),
        ];
        let open = ["https://hub/".to_owned(), "192.0.2.1:9".to_owned()];
        let shown = shown_candidates(tried, &open);
        let told: Vec<_> = shown
            .iter()
            .map(|one| (one.kind.as_str(), one.address.as_str(), one.answered))
            .collect();
        assert_eq!(
            told,
            [
                ("udp", "192.0.2.1:7", false),
                ("relay", "https://hub/", true),
                ("udp", "192.0.2.1:9", true)
            ]
        );
    }
}
