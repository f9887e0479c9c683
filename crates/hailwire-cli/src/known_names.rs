//! Names that the running node knows, for a shell that completes what the user types.
//!
//! A node that does not answer at once is left out.

use std::{ffi::OsStr, path::PathBuf, time::Duration};

use clap_complete::engine::CompletionCandidate;
use hailwire::{
    Client, DataDir,
    admin::{AgentRow, AgentsQuery, TrustedPeer, method},
};
use serde::{Serialize, de::DeserializeOwned};

/// How long the node may take to answer.
const PATIENCE: Duration = Duration::from_millis(400);

/// Names that are offered at most.
const MAX_NAMES: usize = 1000;

/// Agents that can be called, and those of peers with their node.
pub(crate) fn agents(typed: &OsStr) -> Vec<CompletionCandidate> {
    let rows: Vec<AgentRow> = ask(method::AGENTS, &AgentsQuery::default());
    let mut candidates = Vec::new();
    for row in rows {
        let help = (!row.description.is_empty()).then(|| row.description.clone().into());
        let with_node = (!row.local && !row.node_name.is_empty())
            .then(|| format!("{}@{}", row.name, row.node_name));
        for name in [Some(row.name), with_node].into_iter().flatten() {
            candidates.push(CompletionCandidate::new(name).help(help.clone()));
        }
    }
    beginning_with(typed, candidates)
}

/// Names of trusted peers.
pub(crate) fn peers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let rows: Vec<TrustedPeer> = ask(method::TRUST_LIST, &());
    let names = rows.into_iter().map(|row| row.alias);
    let names = names.filter(|name| !name.is_empty());
    beginning_with(typed, names.map(CompletionCandidate::new).collect())
}

fn beginning_with(
    typed: &OsStr,
    mut candidates: Vec<CompletionCandidate>,
) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    candidates.retain(|name| name.get_value().to_string_lossy().starts_with(&*typed));
    candidates.sort_by(|a, b| a.get_value().cmp(b.get_value()));
    candidates.dedup_by(|a, b| a.get_value() == b.get_value());
    candidates.truncate(MAX_NAMES);
    candidates
}

/// The node's answer; nothing where it does not answer in time.
fn ask<Q: Serialize + Sync, A: DeserializeOwned>(method: &str, request: &Q) -> Vec<A> {
    let words: Vec<_> = std::env::args_os().collect();
    let typed = words.windows(2).find(|pair| pair[0] == "--data");
    let typed = typed.map(|pair| DataDir::new(PathBuf::from(&pair[1])));
    let Some(data) = typed.or_else(DataDir::from_env) else {
        return Vec::new();
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = async {
        let client = Client::attach(&data).await.ok()?;
        client.admin::<_, Vec<A>>(method, request).await.ok()
    };
    let answer = runtime.map(|runtime| {
        runtime.block_on(async { tokio::time::timeout(PATIENCE, asked).await.ok().flatten() })
    });
    answer.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_as_it_was_typed_is_offered_once_and_in_order() {
        let names = ["grep", "word-count", "greet", "grep"];
        let candidates = names.into_iter().map(CompletionCandidate::new).collect();
        let offered = beginning_with(OsStr::new("gre"), candidates);
        let offered: Vec<_> = offered.iter().map(|name| name.get_value()).collect();
        assert_eq!(offered, ["greet", "grep"]);
    }
}
