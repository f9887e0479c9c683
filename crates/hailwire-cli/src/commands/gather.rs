//! `hail call --all` and `--replies N`: the answers of many members of a group.
//!
//! The members are those of this node, and of each node that this one knows to offer the agent and may call without naming it: it
//! is asked for the numbers of its members. A node that cannot be asked, or is too old to say, gets one call, which any of its
//! members takes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use hailwire::{
    Client, Code, NodeId, Status,
    admin::{AGENT, AgentRow, AgentsQuery, BareCalls, method},
};
use hailwire_core::dispatch_plan::{
    DispatchAction, DispatchInput, DispatchLimits, DispatchOutcome, DispatchPlan, MAX_DISPATCH_BODY,
};
use hailwire_terminal::{failure::CommandFailure, text};
use hailwire_wire::address::NodeRef;
use tokio::sync::Notify;

use super::{
    CommandContext,
    binary_to_terminal::BinaryToTerminal,
    body, call, connect, did_you_mean,
    dispatch::{Outcome, collect},
};
use crate::plan::CallPlan;

/// Most calls at once.
const IN_FLIGHT: usize = 256;

/// Most nodes that are asked for their members at once.
const ASKED_AT_ONCE: usize = 64;

/// How long a node has to say which members it has.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// Largest list of agents that is taken from a node.
const MAX_LIST: usize = 8 * 1024 * 1024;

/// One member, or whichever a node picks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// `None` for this node.
    node: Option<NodeId>,
    node_name: String,
    /// 0 for any.
    member: u64,
}

pub(super) async fn run(
    run: &CommandContext,
    call: CallPlan,
    replies: Option<u32>,
) -> Result<(), CommandFailure> {
    let mut source = body::open(call.body.clone()).await?;
    // Each member gets it, so it is held.
    let body = source.bytes(MAX_DISPATCH_BODY).await.map_err(too_large)?;
    let client = connect::attach(run).await?;
    let targets = members(&client, &call).await?;

    let plan = RefCell::new(DispatchPlan::new(DispatchLimits {
        in_flight: IN_FLIGHT,
        retries: 0,
        ordered: false,
    }));
    let room = Notify::new();
    let enough = replies.map_or(targets.len(), |replies| replies as usize);
    let mut printer = Printer {
        output: run.output,
        binary: BinaryToTerminal::new(
            std::io::stdout().is_terminal(),
            std::io::stdin().is_terminal(),
        ),
    };
    let mut results = BTreeMap::new();
    let mut calls = stream::FuturesUnordered::new();
    let mut targets_left = targets.iter();
    let (mut answered, mut failed) = (0, Vec::new());
    while answered < enough {
        let action = plan.borrow_mut().poll_action();
        match action {
            Some(DispatchAction::Read) => match targets_left.next() {
                Some(_) => {
                    plan.borrow_mut()
                        .handle_input(DispatchInput::New { bytes: 0 });
                }
                None => plan.borrow_mut().handle_end(),
            },
            Some(DispatchAction::Call { index, .. }) => {
                let Some(target) = usize::try_from(index).ok().and_then(|at| targets.get(at))
                else {
                    continue;
                };
                let sent = call::prepare(&client, target.call(&call))
                    .member(target.member)
                    .body(body.clone())
                    .send();
                let (plan, room) = (&plan, &room);
                calls.push(async move {
                    let begun = Instant::now();
                    let answer = match sent.await {
                        Ok(answer) => collect(answer, index, plan, room).await,
                        Err(status) => Err(status),
                    };
                    target.outcome(index, answer, begun.elapsed())
                });
            }
            Some(DispatchAction::Record(_)) => {}
            Some(DispatchAction::Print(index)) => {
                if let Some(outcome) = results.remove(&index) {
                    match printer.print(&outcome)? {
                        Ok(()) => answered += 1,
                        Err(code) => failed.push(code),
                    }
                }
                room.notify_waiters();
            }
            None => {
                let Some(outcome) = calls.next().await else {
                    break;
                };
                let ended = match &outcome.answer {
                    Ok(_) => DispatchOutcome::Answered,
                    Err(status) => DispatchOutcome::Failed(status.code, status.retry_after()),
                };
                let index = outcome.index;
                results.insert(index, outcome);
                plan.borrow_mut()
                    .handle_outcome(Instant::now(), index, ended);
            }
        }
    }
    // Those that still run are cancelled.
    drop(calls);
    ended(answered, replies, targets.len(), &failed)
}

impl Target {
    fn call(&self, call: &CallPlan) -> CallPlan {
        let mut call = call.clone();
        call.to.node = self.node.map(NodeRef::Id);
        call
    }

    fn outcome(&self, index: u64, answer: Result<bytes::Bytes, Status>, took: Duration) -> Outcome {
        Outcome {
            index,
            label: None,
            node: Some(self.node_name.clone()),
            member: Some(self.member).filter(|member| *member != 0),
            answer,
            took,
            calls: 1,
        }
    }
}

/// Prints each answer as it is whole.
struct Printer {
    output: hailwire_terminal::output::Output,
    binary: BinaryToTerminal,
}

impl Printer {
    /// Prints one, and says how it ended.
    fn print(&mut self, outcome: &Outcome) -> Result<Result<(), Code>, CommandFailure> {
        let done = outcome
            .answer
            .as_ref()
            .map(|_| ())
            .map_err(|status| status.code);
        if self.output.json {
            self.output.text(&(outcome.line() + "\n"))?;
            return Ok(done);
        }
        let node = outcome.node.as_deref().unwrap_or_default();
        let who = match outcome.member {
            Some(member) => format!("{node}, member {member}"),
            None => node.to_owned(),
        };
        let who = text::one_line(&who);
        match &outcome.answer {
            Ok(answer) => {
                self.binary.check(answer)?;
                self.output.text(&format!("==> {who} <==\n"))?;
                self.output.bytes(answer)?;
                if !answer.is_empty() && !answer.ends_with(b"\n") {
                    self.output.text("\n")?;
                }
            }
            Err(status) => self.output.note(&format!("{who}: {}", told(status))),
        }
        Ok(done)
    }
}

/// What went wrong, with what the agent says of it in lines of their own.
fn told(status: &Status) -> String {
    let mut told = format!("{} ({})", text::one_line(&status.message), status.code);
    for line in status.details.trim_end().lines() {
        told.push_str("\n    ");
        told.push_str(&text::one_line(line));
    }
    told
}

/// How the command ends: well where as many answered as were asked for.
fn ended(
    answered: usize,
    replies: Option<u32>,
    members: usize,
    failed: &[Code],
) -> Result<(), CommandFailure> {
    let wanted = replies.map_or(members, |replies| replies as usize);
    if answered >= wanted {
        return Ok(());
    }
    let mut codes: BTreeMap<u8, (Code, usize)> = BTreeMap::new();
    for code in failed {
        codes.entry(code.number()).or_insert((*code, 0)).1 += 1;
    }
    let most = codes.values().rev().max_by_key(|(_, count)| *count);
    let code = most.map_or(Code::Unavailable, |(code, _)| *code);
    let message = match replies {
        None => format!("{} of {members} members did not answer", members - answered),
        Some(_) => format!("{answered} of {members} members answered, and {wanted} were to"),
    };
    Err(Status::new(code, message).into())
}

/// Whom to call: every member that is known.
async fn members(client: &Client, call: &CallPlan) -> Result<Vec<Target>, CommandFailure> {
    let mut rows = rows(client, call).await?;
    let resolved = match (&call.to.node, rows.is_empty()) {
        (None, false) => None,
        // Brings up the tunnel, or asks the nodes that are not connected.
        _ => match call::resolve(client, call).await {
            Ok(resolved) => Some(resolved),
            Err(failure) => return did_you_mean::or(client, &call.to, Err(failure.status)).await,
        },
    };
    if let Some(resolved) = resolved {
        if call.to.node.is_none() {
            rows = self::rows(client, call).await?;
        }
        rows.retain(|row| call.to.node.is_none() || row.node == resolved.node);
        if rows.is_empty() {
            let target = Target {
                node: Some(resolved.node).filter(|_| !resolved.local),
                node_name: shown_name(&resolved.name, resolved.node),
                member: 0,
            };
            return Ok(numbered(client, call, target).await);
        }
    }
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(row.node));
    let (mut targets, mut remote) = (Vec::new(), Vec::new());
    for row in rows {
        let target = Target {
            node: Some(row.node).filter(|_| !row.local),
            node_name: shown_name(&row.node_name, row.node),
            member: 0,
        };
        match row.local {
            true => targets.extend(target.with(&row.member_numbers)),
            false => remote.push(numbered(client, call, target)),
        }
    }
    let mut remote = stream::iter(remote).buffered(ASKED_AT_ONCE);
    while let Some(members) = remote.next().await {
        targets.extend(members);
    }
    Ok(targets)
}

/// The nodes that offer the agent to calls of this program: all, or those that may get calls that name no node.
async fn rows(client: &Client, call: &CallPlan) -> Result<Vec<AgentRow>, CommandFailure> {
    let query = query(call, false);
    let mut rows: Vec<AgentRow> = client.admin(method::AGENTS, &query).await?;
    rows.retain(|row| {
        let may = call.to.node.is_some() || row.bare != BareCalls::Never;
        row.name == call.to.agent.as_str() && may
    });
    Ok(rows)
}

fn query(call: &CallPlan, local_only: bool) -> AgentsQuery {
    AgentsQuery {
        words: vec![call.to.agent.to_string()],
        local_only,
        ..AgentsQuery::default()
    }
}

/// The members of another node, as it says itself.
async fn numbered(client: &Client, call: &CallPlan, target: Target) -> Vec<Target> {
    let Some(node) = target.node else {
        return vec![target];
    };
    let asked = async {
        let body = serde_json::to_vec(&query(call, true)).ok()?;
        let limit = call
            .deadline
            .map_or(ASKED_FOR, |limit| limit.min(ASKED_FOR));
        let asked = client
            .call(format!("{AGENT}@{node}"))
            .method(method::AGENTS)
            .carrier(call.carrier)
            .deadline(limit)
            .body(body);
        let mut answer = asked.send().await.ok()?;
        let list = answer.bytes(MAX_LIST).await.ok()?;
        let rows: Vec<AgentRow> = serde_json::from_slice(&list).ok()?;
        let mut rows = rows.into_iter();
        rows.find(|row| row.name == call.to.agent.as_str())
    };
    let row = asked.await;
    target.with(&row.map(|row| row.member_numbers).unwrap_or_default())
}

impl Target {
    /// One for each number; itself where there is none.
    fn with(&self, numbers: &[u64]) -> Vec<Self> {
        let numbers = if numbers.is_empty() { &[0] } else { numbers };
        let one = |member: &u64| Self {
            member: *member,
            ..self.clone()
        };
        numbers.iter().map(one).collect()
    }
}

fn shown_name(name: &str, node: NodeId) -> String {
    match name.is_empty() {
        true => node.short(),
        false => name.to_owned(),
    }
}

/// A body that is longer than what is held.
fn too_large(status: Status) -> CommandFailure {
    if status.code != Code::ResourceExhausted {
        return status.into();
    }
    let most = text::bytes(MAX_DISPATCH_BODY as u64);
    let message = format!(
        "the body is larger than {most}, which is the most that is sent to several members"
    );
    CommandFailure::from(Status::new(status.code, message))
        .hint("`hail call` without --all and --replies streams a body of any size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_well_where_as_many_answered_as_were_asked_for() {
        assert!(ended(3, None, 3, &[]).is_ok());
        assert!(ended(2, Some(2), 5, &[Code::Internal]).is_ok());
        let failed = [Code::NotFound, Code::Unavailable, Code::Unavailable];
        let failure = ended(2, None, 5, &failed).unwrap_err();
        assert_eq!(failure.exit(), 78);
        assert_eq!(failure.status.message, "3 of 5 members did not answer");
        let too_few = ended(2, Some(3), 2, &[]).unwrap_err();
        assert_eq!(too_few.status.code, Code::Unavailable);
        assert_eq!(
            too_few.status.message,
            "2 of 2 members answered, and 3 were to"
        );
    }
}
