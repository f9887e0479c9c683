//! The network of a measurement, its nodes, and the agents on them.

use std::path::Path;

use bytes::Bytes;
use hailwire::{
    Agent, Client, Code, Request, Response, ServeHandle, Status,
    admin::{NodeStatus, method},
    coordination::{Reply, gather},
};

use crate::{
    BenchError,
    lab_nodes::{LabNode, LabStarter},
    tied_process::TiedProcess,
};

/// The machine that asks.
pub(super) const CENTRE: &str = "centre";

/// The hub's machine.
const HUB: &str = "hub";

/// The round trip between two machines in milliseconds.
pub(super) const RTT_MS: u32 = 50;

/// What waits before a narrow line at most: a round trip of 20 Mbit/s.
const QUEUE: &str = "0.125 MB";

/// Answers at once.
pub(super) const WORK: &str = "work";

/// Has each agent of a list do [`WORK`], and answers with how many did.
pub(super) const LEAD: &str = "lead";

/// Does its work and hands the rest of the list to the first of it; answers with how many did theirs.
pub(super) const PASS: &str = "pass";

/// Longest list of agents.
const MAX_LIST: usize = 64 * 1024;

/// Machines with nodes, members of one hub.
pub(super) struct Machines {
    pub(super) centre: LabNode,
    nodes: Vec<LabNode>,
    serving: Vec<ServeHandle>,
    ticket: String,
    hub: TiedProcess,
    // Last, so that the processes are ended while they still have a network.
    starter: LabStarter,
}

impl Machines {
    /// The centre and so many other machines, each half a round trip from each; a line narrower than the lab's has `rate`, such as
    /// `20 Mbit/s`.
    pub(super) async fn start(
        program: &Path,
        count: usize,
        rate: Option<&str>,
    ) -> Result<Self, BenchError> {
        let rate = rate.map_or(String::new(), |rate| {
            format!("rate \"{rate}\"; queue \"{QUEUE}\"; ")
        });
        let quarter_us = RTT_MS * 1000 / 4;
        let host = |name: &str| {
            format!("host \"{name}\" {{ link {{ {rate}delay \"{quarter_us}us\" }} }}\n")
        };
        let names: Vec<String> = (0..count).map(name_of).collect();
        let all = [CENTRE, HUB]
            .into_iter()
            .chain(names.iter().map(String::as_str));
        let topology: String = all.map(host).collect();
        let starter = LabStarter::new(&topology, "topologies", program)?;
        let hub = starter.hub(HUB).await?;
        let ticket = starter.ticket(HUB, count + 1).await?;
        let tickets = std::slice::from_ref(&ticket);
        let mut nodes = Vec::new();
        for name in &names {
            nodes.push(starter.node(name, &[], &[], tickets).await?);
        }
        let centre = starter.node(CENTRE, &[], &[], tickets).await?;
        Ok(Self {
            centre,
            nodes,
            serving: Vec::new(),
            ticket,
            hub,
            starter,
        })
    }

    /// Puts so many agents on the nodes in turn, in place of those that were there, and says their addresses.
    pub(super) async fn agents(&mut self, count: u32) -> Result<Vec<String>, BenchError> {
        self.serving.clear();
        let mut addresses = Vec::new();
        for (number, (at, node)) in (0..count).zip(self.nodes.iter().enumerate().cycle()) {
            let name = format!("agent-{number}");
            let serving = serve(&node.client, &name).await;
            self.serving
                .push(serving.map_err(BenchError::failed("serving"))?);
            addresses.push(format!("{name}@{}", name_of(at)));
        }
        Ok(addresses)
    }

    /// The same agents by the keys of their nodes, so that no name has to be asked for.
    pub(super) async fn by_key(&self, agents: &[String]) -> Result<Vec<String>, BenchError> {
        let mut keys = Vec::new();
        for node in &self.nodes {
            let status = node.client.admin(method::STATUS, &()).await;
            let status: NodeStatus = status.map_err(BenchError::failed("asking a node"))?;
            keys.push(status.id.to_string());
        }
        let names = agents.iter().filter_map(|agent| agent.split('@').next());
        let by_key = names.zip(keys.iter().cycle());
        Ok(by_key.map(|(name, key)| format!("{name}@{key}")).collect())
    }

    /// Starts the centre's node anew, so that it knows the others and has no tunnel to any.
    pub(super) async fn restart_centre(mut self) -> Result<Self, BenchError> {
        self.centre.end().await;
        self.centre = self.starter.node(CENTRE, &[], &[], &[]).await?;
        Ok(self)
    }

    /// Ends all processes, then the network.
    pub(super) async fn end(self) {
        drop(self.serving);
        self.centre.end().await;
        for node in self.nodes {
            node.end().await;
        }
        self.hub.end().await;
        drop((self.ticket, self.starter));
    }
}

fn name_of(machine: usize) -> String {
    format!("machine-{machine}")
}

async fn serve(client: &Client, name: &str) -> Result<ServeHandle, Status> {
    let agent = Agent::new(name).map_err(|e| Status::new(Code::Internal, e.to_string()))?;
    let caller = client.clone();
    let handler = move |mut request: Request| {
        let caller = caller.clone();
        async move {
            let list = request.body_mut().bytes(MAX_LIST).await?;
            let list = String::from_utf8_lossy(&list).into_owned();
            let done = match request.header().method.as_str() {
                LEAD => lead(&caller, &list).await?,
                PASS => 1 + pass(&caller, &list).await?,
                _ => 1,
            };
            Ok(Response::new(done.to_string()))
        }
    };
    client.serve(agent, handler).await
}

async fn lead(client: &Client, list: &str) -> Result<u64, Status> {
    let calls = list.lines().map(|to| client.call(to).method(WORK));
    let replies = gather(calls).all().await;
    let done: Result<Vec<u64>, Status> = replies.into_iter().map(number).collect();
    Ok(done?.into_iter().sum())
}

async fn pass(client: &Client, list: &str) -> Result<u64, Status> {
    let Some((next, rest)) = list.split_once('\n') else {
        return Ok(0);
    };
    let call = client.call(next).method(PASS).body(rest.to_owned());
    let mut answer = Box::pin(call.send()).await?;
    counted(&answer.bytes(64).await?)
}

/// How many did their work, by an answer.
pub(super) fn number(reply: Reply) -> Result<u64, Status> {
    counted(&reply.outcome?)
}

fn counted(answer: &Bytes) -> Result<u64, Status> {
    let number = std::str::from_utf8(answer)
        .ok()
        .and_then(|n| n.parse().ok());
    number.ok_or_else(|| Status::new(Code::Internal, "an answer is no number"))
}
