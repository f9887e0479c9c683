//! `hail status`.

use std::{fmt::Write as _, time::Duration};

use hailwire::admin::{self, HubState, TunnelStatus, method};
use hailwire_terminal::{failure::CommandFailure, table::TextTable, text};

use super::{CommandContext, agents, connect};

pub(super) async fn run(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let status: admin::NodeStatus = client.admin(method::STATUS, &()).await?;
    run.output
        .value(&status, |status| for_people(status, run.output.colour))
}

fn for_people(status: &admin::NodeStatus, colour: bool) -> String {
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
        ("sockets", status.sockets.join(", ")),
        ("found at", status.addresses.join(", ")),
        ("tcp", tcp(status)),
        ("calls", calls(status)),
    ] {
        let _ = writeln!(out, "{what:<9} {value}");
    }
    for hub in &status.hubs {
        let _ = writeln!(out, "{:<9} {}", "hub", hub_line(hub));
    }
    let mut section = |title: &str, table: Option<TextTable>| {
        let rows = table.map(|table| table.render(colour));
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

fn tcp(status: &admin::NodeStatus) -> String {
    match status.tcp_sockets.is_empty() {
        true => "not listening".to_owned(),
        false => format!(
            "{}, found at {}",
            status.tcp_sockets.join(", "),
            status.tcp_addresses.join(", ")
        ),
    }
}

fn calls(status: &admin::NodeStatus) -> String {
    let to_peers = status.reused + status.made;
    match to_peers {
        0 => status.calls.to_string(),
        _ => format!(
            "{}, {to_peers} to peers, {:.1} % over a tunnel that was up",
            status.calls,
            status.reused as f64 * 100.0 / to_peers as f64
        ),
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
    let _ = match (hub.connected, hub.error.is_empty()) {
        (true, _) => write!(line, ", connected"),
        (false, true) => write!(line, ", not connected"),
        (false, false) => write!(line, ", not connected: {}", hub.error),
    };
    text::one_line(&line)
}

fn tunnels(tunnels: &[TunnelStatus]) -> TextTable {
    let mut table = TextTable::new([
        "PEER",
        "CARRIER",
        "PATH",
        "REMOTE",
        ">RTT",
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

/// Path, remote end, RTT, loss, bytes sent and received.
pub(super) fn tunnel_cells(tunnel: &TunnelStatus) -> [String; 6] {
    [
        tunnel.path.kind.clone(),
        tunnel.path.remote.clone(),
        text::time(Duration::from_micros(tunnel.path.rtt_us)),
        loss(tunnel.lost_packets, tunnel.sent_packets),
        text::bytes(tunnel.sent_bytes),
        text::bytes(tunnel.received_bytes),
    ]
}

/// Lost packets in percent of those sent.
fn loss(lost: u64, sent: u64) -> String {
    match sent {
        0 => String::new(),
        _ => format!("{:.1}%", lost as f64 * 100.0 / sent as f64),
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
                    rtt_us: 1234,
                },
                connections: 4,
                sent_bytes: 2048,
                received_bytes: 10,
                sent_packets: 200,
                lost_packets: 3,
                in_flight: 1,
                up_ms: 1000,
            }],
            agents: Vec::new(),
            hubs: vec![HubState {
                url: "https://h".into(),
                connected: false,
                name: String::new(),
                error: "refused".into(),
            }],
            calls: 9,
            reused: 3,
            made: 1,
            panics: 0,
        };
        let text = for_people(&status, false);
        for part in [
            "desk",
            "1m 1s",
            "12.0 MiB",
            "1.23 ms",
            "1.5%",
            "not connected: refused",
            "agents: none",
            "quic × 4: UDP works",
            "found at 10.0.0.1:443",
            "75.0 % over a tunnel",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\x1b'));
    }
}
