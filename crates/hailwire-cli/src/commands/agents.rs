//! `hail agents`.

use hailwire::admin::{AgentRow, AgentsQuery, BareCalls, method};
use hailwire_terminal::{failure::CommandFailure, table::TextTable};

use super::{CommandContext, connect};

pub(super) async fn run(run: &CommandContext, query: AgentsQuery) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let rows: Vec<AgentRow> = client.admin(method::AGENTS, &query).await?;
    let narrowed = !query.tags.is_empty() || !query.words.is_empty();
    let empty = match narrowed {
        true => "no agent matches",
        false => "no agents are available; serve one with `hail serve NAME -- CMD`",
    };
    run.output.rows(&rows, table, empty)
}

pub(super) fn table(rows: &[AgentRow]) -> TextTable {
    let mut table = TextTable::new([
        "AGENT",
        "NODE",
        "VERSION",
        ">MEMBERS",
        "BARE CALLS",
        "TAGS",
        "DESCRIPTION",
    ]);
    for row in rows {
        let node = match (row.local, row.node_name.is_empty()) {
            (true, _) => "(here)".to_owned(),
            (false, false) => row.node_name.clone(),
            (false, true) => row.node.short(),
        };
        let members = if row.members == 0 {
            String::new()
        } else {
            row.members.to_string()
        };
        table.row([
            row.name.clone(),
            node,
            row.version.clone(),
            members,
            bare(row.bare).to_owned(),
            row.tags.join(","),
            row.description.clone(),
        ]);
    }
    table
}

/// Whether calls that name no node may go to it.
fn bare(calls: BareCalls) -> &'static str {
    match calls {
        BareCalls::First => "first",
        BareCalls::Next => "next",
        BareCalls::Never => "never",
    }
}
