//! `hail agents`.

use std::collections::BTreeMap;

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
        table.row([
            row.name.clone(),
            node,
            row.version.clone(),
            members(row),
            bare(row.bare).to_owned(),
            row.tags.join(","),
            row.description.clone(),
        ]);
    }
    table
}

/// How many members there are, and which of them are not simply well.
fn members(row: &AgentRow) -> String {
    let mut unwell: BTreeMap<&str, usize> = BTreeMap::new();
    for member in &row.group {
        let policy = Some(member.policy.as_str()).filter(|policy| !policy.is_empty());
        let state = Some(member.state.as_str()).filter(|state| *state != "healthy");
        for word in [policy, state].into_iter().flatten() {
            *unwell.entry(word).or_default() += 1;
        }
    }
    let count = match row.members {
        0 => String::new(),
        members => members.to_string(),
    };
    if unwell.is_empty() {
        return count;
    }
    let unwell = unwell
        .into_iter()
        .map(|(word, members)| match row.group.len() {
            1 => word.to_owned(),
            _ => format!("{members} {word}"),
        });
    let unwell: Vec<String> = unwell.collect();
    format!("{count} ({})", unwell.join(", ")).trim().to_owned()
}

/// Whether calls that name no node may go to it.
fn bare(calls: BareCalls) -> &'static str {
    match calls {
        BareCalls::First => "first",
        BareCalls::Next => "next",
        BareCalls::Never => "never",
    }
}
