//! How `hail top` looks, from 80 columns and 24 rows on.

use std::time::Duration;

use hailwire::admin::{AgentRow, HubState};
use hailwire_terminal::text;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Cell, Paragraph, Row, Table},
};

use super::rates::{TopRates, TunnelRates};

/// Rows of agents that are shown at most while there are peers to show.
const AGENT_ROWS: u16 = 8;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, rates: &TopRates) {
    let Some(status) = rates.status() else {
        return;
    };
    let agents = u16::try_from(status.agents.len()).unwrap_or(u16::MAX);
    let rows = agents.min(AGENT_ROWS);
    let [head, peers, agents, foot] = Layout::vertical([
        Constraint::Length(2 + u16::try_from(status.hubs.len().min(3)).unwrap_or(0)),
        Constraint::Min(5),
        Constraint::Length(if rows == 0 { 0 } else { rows + 2 }),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(rates)), head);
    frame.render_widget(peer_table(rates, peers), peers);
    if rows > 0 {
        frame.render_widget(agent_table(&status.agents), agents);
    }
    let keys = format!(
        "q quit   s sort (by {})   t traffic   n name   p ping   ↑↓ scroll",
        rates.order().name()
    );
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(Line::styled(keys, dim)), foot);
}

fn head_lines(rates: &TopRates) -> Vec<Line<'static>> {
    let Some(status) = rates.status() else {
        return Vec::new();
    };
    let name = match status.name.as_str() {
        "" => status.id.short(),
        name => text::one_line(name),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let up = text::age(Duration::from_millis(status.uptime_ms));
    let in_flight: u64 = status.tunnels.iter().map(|tunnel| tunnel.in_flight).sum();
    let mut lines = vec![
        Line::styled(
            format!(
                "{name}   up {up}   {}   {} peers   {} agents",
                text::bytes(status.rss_bytes),
                status.tunnels.len(),
                status.agents.len()
            ),
            bold,
        ),
        Line::raw(format!(
            "{:.0} calls/s   {in_flight} in flight with peers   {} calls since the start",
            rates.calls(),
            status.calls
        )),
    ];
    lines.extend(status.hubs.iter().take(3).map(hub_line));
    lines
}

fn hub_line(hub: &HubState) -> Line<'static> {
    let (says, colour) = match (hub.connected, hub.answer_us) {
        (true, Some(took)) => {
            let took = text::time(Duration::from_micros(took));
            (format!("answers in {took}"), Color::Green)
        }
        (true, None) => ("does not answer now".to_owned(), Color::Yellow),
        (false, _) => ("not connected".to_owned(), Color::Red),
    };
    let line = text::one_line(&format!("hub {} {says}", hub.url));
    Line::styled(line, Style::new().fg(colour))
}

fn peer_table(rates: &TopRates, area: Rect) -> Table<'static> {
    let rows = rates.tunnels().iter().take(usize::from(area.height));
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(4),
        Constraint::Fill(3),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(5),
    ];
    let headings = [
        "PEER", "OVER", "PATH", "PING", "LOSS", "OUT/S", "IN/S", "CALLS",
    ];
    Table::new(rows.map(peer_row), widths).header(header(headings))
}

fn header<const N: usize>(headings: [&'static str; N]) -> Row<'static> {
    Row::new(headings.map(Cell::from))
        .style(Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED))
}

fn peer_row(rates: &TunnelRates) -> Row<'static> {
    let tunnel = &rates.tunnel;
    let name = match tunnel.name.as_str() {
        "" => tunnel.peer.short(),
        name => text::one_line(name),
    };
    let path = match tunnel.path.kind.as_str() {
        "" => "none chosen yet".to_owned(),
        kind => text::one_line(&format!("{kind} {}", tunnel.path.remote)),
    };
    let (ping, colour) = match tunnel.ping_us {
        Some(took) => (text::time(Duration::from_micros(took)), Color::Reset),
        None => ("silent".to_owned(), Color::Red),
    };
    let loss = match tunnel.path.sent_packets {
        0 => String::new(),
        sent => format!(
            "{:.1}%",
            tunnel.path.lost_packets as f64 * 100.0 / sent as f64
        ),
    };
    let rate = |bytes: f64| text::bytes(bytes as u64);
    Row::new([
        Cell::from(name),
        Cell::from(tunnel.carrier.clone()),
        Cell::from(path),
        Cell::from(ping).style(Style::new().fg(colour)),
        Cell::from(loss),
        Cell::from(rate(rates.sent)),
        Cell::from(rate(rates.received)),
        Cell::from(tunnel.in_flight.to_string()),
    ])
}

fn agent_table(agents: &[AgentRow]) -> Table<'static> {
    let mut busiest: Vec<&AgentRow> = agents.iter().collect();
    busiest.sort_by(|a, b| (b.in_flight, &a.name).cmp(&(a.in_flight, &b.name)));
    let rows = busiest
        .into_iter()
        .take(usize::from(AGENT_ROWS))
        .map(|agent| {
            Row::new([
                Cell::from(text::one_line(&agent.name)),
                Cell::from(agent.in_flight.to_string()),
                Cell::from(agent.members.to_string()),
                Cell::from(text::one_line(&agent.description)),
            ])
        });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Fill(4),
    ];
    Table::new(rows, widths).header(header(["AGENT", "IN FLIGHT", "MEMBERS", "DESCRIPTION"]))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hailwire::admin::BareCalls;
    use ratatui::{Terminal, backend::TestBackend};

    use super::{
        super::rates::tests::{status, tunnel},
        *,
    };

    fn drawn(rates: &TopRates, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, rates)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells = buffer.content().chunks(usize::from(width));
        let line = |row: &[ratatui::buffer::Cell]| {
            row.iter()
                .map(ratatui::buffer::Cell::symbol)
                .collect::<String>()
                + "\n"
        };
        cells.map(line).collect()
    }

    #[test]
    fn all_of_it_fits_eighty_columns_and_twenty_four_rows() {
        let begin = Instant::now();
        let mut rates = TopRates::default();
        let agent = AgentRow {
            group: Vec::new(),
            name: "word-count".to_owned(),
            node: hailwire::NodeId::from_bytes([7; 32]),
            node_name: "desk".to_owned(),
            local: true,
            bare: BareCalls::First,
            description: "counts the words\u{1b} of a text".to_owned(),
            tags: Vec::new(),
            version: String::new(),
            members: 2,
            member_numbers: vec![1, 2],
            in_flight: 3,
            waiting: 0,
        };
        let with = |calls, up, sent| {
            let peers = (1..=40).map(|n| tunnel(&format!("peer-{n:02}"), up, sent));
            let mut status = status(calls, peers.collect());
            status.agents = vec![agent.clone()];
            status.hubs = vec![HubState {
                url: "https://hub.example.org:7443".to_owned(),
                connected: true,
                name: String::new(),
                error: String::new(),
                answer_us: None,
                heard_s: Some(20),
            }];
            status
        };
        rates.handle_status(begin, with(100, 1000, 0));
        rates.handle_status(begin + Duration::from_secs(1), with(350, 2000, 3 << 20));
        let shown = drawn(&rates, 80, 24);
        for part in [
            "desk   up 1m 1s   12.0 MiB   40 peers   1 agents",
            "250 calls/s   80 in flight",
            "hub https://hub.example.org:7443 does not answer now",
            "peer-01",
            "direct 192.0.2.7",
            "7.00 ms",
            "1.0%",
            "3.0 MiB",
            "1.5 MiB",
            "word-count",
            "q quit   s sort (by traffic)",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'));
        // A terminal that is far too small is drawn as far as it goes.
        drawn(&rates, 10, 3);
        drawn(&TopRates::default(), 80, 24);
    }
}
