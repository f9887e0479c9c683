//! `hail status`.

use std::{fmt::Write as _, time::Duration};

use hailwire::admin::{self, HubState, PathStatus, StatusRequest, TunnelStatus, method};
use hailwire_terminal::{failure::CommandFailure, output::Output, table::TextTable, text};

use super::{CommandContext, agents, connect};

pub(super) async fn run(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let request = StatusRequest { measure: true };
    let status: admin::NodeStatus = client.admin(method::STATUS, &request).await?;
    run.output
        .value(&status, |status| for_people(status, run.output))
}

fn for_people(status: &admin::NodeStatus, output: Output) -> String {
    let mut out = String::new();
    let name = if status.name.is_empty() {
        "(no name)"
    } else {
        &status.name
    };
    let up = text::age(Duration::from_millis(status.uptime_ms));
    let memory = text::bytes(status.rss_bytes);
    for (what, value) in [
        ("node", text::one_line(name)),
        ("id", status.id.to_string()),
        (
            "up",
            format!(
                "{up}, process {}, {memory}, version {}",
                status.pid, status.version
            ),
        ),
        ("data", status.data_dir.clone()),
        ("listens", listens(status)),
        ("found at", found_at(status)),
        ("public", public(status)),
        ("calls", calls(status)),
        ("paths", paths(&status.paths)),
        ("mapped", mapped(&status.port_mapping)),
    ] {
        let _ = writeln!(out, "{what:<9} {value}");
    }
    for hub in &status.hubs {
        let _ = writeln!(out, "{:<9} {}", "hub", hub_line(hub));
    }
    let mut section = |title: &str, table: Option<TextTable>| {
        let rows = table.map(|table| table.render(output.table_style()));
        let _ = match rows {
            Some(rows) => write!(out, "\n{title}\n{rows}"),
            None => writeln!(out, "\n{title}: none"),
        };
    };
    section(
        "tunnels",
        (!status.tunnels.is_empty()).then(|| tunnels(&status.tunnels)),
    );
    section(
        "agents",
        (!status.agents.is_empty()).then(|| agents::table(&status.agents)),
    );
    out
}

/// UDP and TCP addresses on one line, those of TCP named so.
fn both(udp: &[String], tcp: &[String]) -> String {
    let tcp = tcp.iter().map(|address| format!("tcp {address}"));
    let all: Vec<String> = udp.iter().cloned().chain(tcp).collect();
    all.join(", ")
}

fn listens(status: &admin::NodeStatus) -> String {
    both(&status.sockets, &status.tcp_sockets)
}

fn found_at(status: &admin::NodeStatus) -> String {
    both(&status.addresses, &status.tcp_addresses)
}

fn public(status: &admin::NodeStatus) -> String {
    match (
        status.public_addresses.as_slice(),
        status.hubs.iter().any(|hub| hub.connected),
    ) {
        ([], true) => "no address that is not this machine's own".to_owned(),
        ([], false) => "not known: a hub would tell".to_owned(),
        (known, _) => known.join(", "),
    }
}

/// How many connections had a direct path, how long that took from a relay, and what went by relays.
fn paths(paths: &admin::PathSummary) -> String {
    if paths.connections == 0 {
        return "none since the start".to_owned();
    }
    let mut line = format!("{} of {} direct", paths.direct, paths.connections);
    if paths.relayed_first > 0 {
        let _ = write!(
            line,
            ", {} of {} from a relay",
            paths.punched, paths.relayed_first
        );
    }
    if let Some(took) = paths.direct_us {
        let took = text::time(Duration::from_micros(took));
        let _ = write!(line, " after {took}");
    }
    if paths.relayed_bytes > 0 {
        let _ = write!(line, ", {} by relays", text::bytes(paths.relayed_bytes));
    }
    line
}

/// The port that the router gave, or why there is none.
fn mapped(mapping: &admin::PortMappingStatus) -> String {
    let protocol = mapping.protocols.first().map(String::as_str);
    match (&mapping.external, protocol) {
        (Some(external), Some(protocol)) => format!("{external} by {protocol}"),
        (Some(external), None) => external.clone(),
        (None, _) if !mapping.enabled => "no: not asked for".to_owned(),
        (None, _) if !mapping.asked => "no: no router stands before this machine".to_owned(),
        (None, None) => "no: the router speaks neither UPnP, NAT-PMP nor PCP".to_owned(),
        (None, Some(protocol)) => format!("no: the router speaks {protocol}, and gave no port"),
    }
}

/// Where calls came from and went to, and how many of those to peers found a tunnel up.
fn calls(status: &admin::NodeStatus) -> String {
    let to_peers = status.reused + status.made;
    let within = status
        .calls
        .saturating_sub(status.calls_from_peers)
        .saturating_sub(to_peers);
    let mut parts = Vec::new();
    if to_peers > 0 {
        let reused = status.reused as f64 * 100.0 / to_peers as f64;
        parts.push(format!(
            "{to_peers} to peers ({reused:.1} % found the tunnel up)"
        ));
    }
    if status.calls_from_peers > 0 {
        parts.push(format!("{} from peers", status.calls_from_peers));
    }
    if within > 0 {
        parts.push(format!("{within} within this machine"));
    }
    match parts.is_empty() {
        true => "none since the start".to_owned(),
        false => parts.join(", "),
    }
}

/// The carrier of a tunnel with its number of connections if there are several, and why it takes new calls,
/// or that it is in reserve.
pub(super) fn carrier(tunnel: &TunnelStatus) -> String {
    let carrier = match tunnel.connections {
        0 | 1 => tunnel.carrier.clone(),
        several => format!("{} × {several}", tunnel.carrier),
    };
    match tunnel.carries {
        true => format!("{carrier}: {}", tunnel.why),
        false => format!("{carrier}, in reserve"),
    }
}

fn hub_line(hub: &HubState) -> String {
    let mut line = hub.url.clone();
    if !hub.name.is_empty() {
        let _ = write!(line, " as {}", hub.name);
    }
    let heard = |out: &mut String| match hub.heard_s {
        Some(seconds) => {
            let ago = text::age(Duration::from_secs(seconds));
            write!(out, ", last answer {ago} ago")
        }
        None => write!(out, ", no answer since the start"),
    };
    let _ = match (hub.connected, hub.answer_us) {
        (true, Some(took)) => {
            let took = text::time(Duration::from_micros(took));
            write!(line, ", connected, answers in {took}")
        }
        (true, None) => write!(line, ", does not answer now").and_then(|()| heard(&mut line)),
        (false, _) => write!(line, ", not connected").and_then(|()| heard(&mut line)),
    };
    if !hub.error.is_empty() {
        let _ = write!(line, ": {}", hub.error);
    }
    text::one_line(&line)
}

fn tunnels(tunnels: &[TunnelStatus]) -> TextTable {
    let mut table = TextTable::new([
        "PEER",
        "CARRIER",
        "PATH",
        "REMOTE",
        ">PING",
        ">LOSS",
        ">SENT",
        ">RECEIVED",
        ">CALLS",
        ">UP",
    ]);
    for tunnel in tunnels {
        let peer = if tunnel.name.is_empty() {
            tunnel.peer.short()
        } else {
            tunnel.name.clone()
        };
        let [path, remote, rtt, loss, sent, received] = tunnel_cells(tunnel);
        let up = text::age(Duration::from_millis(tunnel.up_ms));
        let calls = tunnel.in_flight.to_string();
        let carrier = carrier(tunnel);
        table.row([
            peer, carrier, path, remote, rtt, loss, sent, received, calls, up,
        ]);
    }
    table
}

/// Path, remote end, how long a PING took, loss, bytes sent and received.
pub(super) fn tunnel_cells(tunnel: &TunnelStatus) -> [String; 6] {
    [
        tunnel.path.kind.clone(),
        tunnel.path.remote.clone(),
        match tunnel.ping_us {
            Some(took) => text::time(Duration::from_micros(took)),
            None => "no answer".to_owned(),
        },
        loss(&tunnel.path),
        text::bytes(tunnel.sent_bytes),
        text::bytes(tunnel.received_bytes),
    ]
}

/// Lost packets in percent of those sent on the path; empty where that cannot be told.
fn loss(path: &PathStatus) -> String {
    match path.sent_packets {
        0 => String::new(),
        sent => format!("{:.1}%", path.lost_packets as f64 * 100.0 / sent as f64),
    }
}

#[cfg(test)]
mod tests {
    use hailwire::NodeId;

    use super::*;

    #[test]
    fn a_status_shows_tunnels_agents_and_hubs() {
        let id = NodeId::from_bytes([7; 32]);
        let status = admin::NodeStatus {
            id,
            name: "desk".into(),
            version: "0.1.0".into(),
            pid: 42,
            uptime_ms: 61_000,
            rss_bytes: 12 << 20,
            data_dir: "/d".into(),
            sockets: vec!["0.0.0.0:1".into()],
            tcp_sockets: vec!["0.0.0.0:443".into()],
            addresses: vec!["10.0.0.1:1".into()],
            public_addresses: vec!["203.0.113.7:1".into()],
            tcp_addresses: vec!["10.0.0.1:443".into()],
            tunnels: vec![TunnelStatus {
                peer: id,
                name: "lap\x1btop".into(),
                carrier: "quic".into(),
                carries: true,
                why: "UDP works".into(),
                path: admin::PathStatus {
                    kind: "direct".into(),
                    remote: "10.0.0.2:7".into(),
                    rtt_us: 2100,
                    sent_packets: 200,
                    lost_packets: 3,
                },
                ping_us: Some(1234),
                connections: 4,
                sent_bytes: 2048,
                received_bytes: 10,
                sent_packets: 900,
                lost_packets: 300,
                in_flight: 1,
                up_ms: 1000,
            }],
            agents: Vec::new(),
            hubs: vec![HubState {
                url: "https://h".into(),
                connected: false,
                name: String::new(),
                error: "refused".into(),
                answer_us: None,
                heard_s: Some(20),
            }],
            calls: 9,
            calls_from_peers: 2,
            reused: 3,
            made: 1,
            paths: admin::PathSummary {
                connections: 12,
                direct: 9,
                relayed_first: 11,
                punched: 8,
                direct_us: Some(102_000),
                relayed_bytes: 3 << 20,
            },
            port_mapping: admin::PortMappingStatus {
                enabled: true,
                asked: true,
                protocols: vec!["pcp".into(), "upnp".into()],
                external: Some("203.0.113.7:4242".into()),
            },
            panics: 0,
        };
        let text = for_people(&status, Output::default());
        for part in [
            "desk",
            "1m 1s",
            "12.0 MiB",
            "1.23 ms",
            "1.5%",
            "not connected, last answer 20s ago: refused",
            "public    203.0.113.7:1",
            "4 to peers (75.0 % found the tunnel up), 2 from peers, 3 within",
            "agents: none",
            "mapped    203.0.113.7:4242 by pcp",
            "paths     9 of 12 direct, 8 of 11 from a relay after 102.00 ms, 3.0 MiB by relays",
            "quic × 4: UDP works",
            "found at  10.0.0.1:1, tcp 10.0.0.1:443",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn a_hub_line_says_what_is_true_now() {
        let line = |connected, error: &str, answer_us, heard_s| {
            hub_line(&HubState {
                url: "https://h".into(),
                connected,
                name: String::new(),
                error: error.into(),
                answer_us,
                heard_s,
            })
        };
        assert_eq!(
            line(true, "", Some(1500), Some(0)),
            "https://h, connected, answers in 1.50 ms"
        );
        assert_eq!(
            line(true, "the name `desk` is taken", Some(1500), Some(0)),
            "https://h, connected, answers in 1.50 ms: the name `desk` is taken"
        );
        assert_eq!(
            line(true, "", None, Some(20)),
            "https://h, does not answer now, last answer 20s ago"
        );
        assert_eq!(
            line(false, "refused", None, None),
            "https://h, not connected, no answer since the start: refused"
        );
    }
}
