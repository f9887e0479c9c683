//! The processes under attack: a hub, the attacked node with its agents, two honest nodes.
//!
//! Each is `hail` as a user starts it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use hailwire::{Client, DataDir, NodeId, admin, admin::method};
use hailwire_wire::ticket::{HubTicket, Ticket, TicketSecret};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    AttackerKind,
    peer::{KeySeed, NodeAddress},
};
use crate::{
    BenchError,
    tied_process::{self, TiedProcess},
};

/// The name of the attacked node.
pub(super) const VICTIM: &str = "victim";

/// The honest node that reaches it over QUIC, and the one that does over TCP.
pub(super) const DESK: &str = "desk";
/// See [`DESK`].
pub(super) const SHELF: &str = "shelf";

/// Number of keys of new peers over QUIC, and of as many over TCP. A key's new connection takes the place of its old one,
/// so there are more of them than calls in flight.
pub(super) const NEWCOMERS: usize = 24;

/// All processes under attack. Dropping this ends them.
pub(super) struct SiegeProcesses {
    folder: TempDir,
    /// The attacked program.
    program: PathBuf,
    processes: Vec<TiedProcess>,
    pub(super) victim: NodeAddress,
    pub(super) hub: HubAddress,
    /// The secret of a ticket of the attacked node.
    pub(super) secret: TicketSecret,
    /// Keys of honest new peers, which the attacked node trusts, and of a member of the hub.
    pub(super) newcomers: Vec<KeySeed>,
}

/// The hub's ticket: its address, and the secret to become a member.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct HubAddress {
    pub(super) ticket: String,
}

impl HubAddress {
    pub(super) fn read(&self) -> Result<HubTicket, BenchError> {
        match self
            .ticket
            .trim()
            .parse()
            .map_err(BenchError::failed("parsing the ticket"))?
        {
            Ticket::Hub(ticket) => Ok(ticket),
            Ticket::Node(_) => Err(BenchError::Invalid(
                "the ticket of a hub was expected".into(),
            )),
        }
    }

    pub(super) fn address(&self) -> Result<SocketAddr, BenchError> {
        let url = self.read()?.url;
        let text = format!("{}:{}", url.host(), url.port());
        text.parse()
            .map_err(BenchError::failed("parsing the hub's address"))
    }
}

impl SiegeProcesses {
    /// Starts everything. The agent that is called is `own`, so that it answers the same whatever is attacked.
    pub(super) async fn start(own: &Path, attacked: &Path) -> Result<Self, BenchError> {
        let folder = tied_process::temporary_folder("hail-siege-")?;
        let nobody = NodeAddress {
            node: NodeId::from_bytes([0; 32]),
            udp: SocketAddr::from(([127, 0, 0, 1], 0)),
            tcp: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let mut processes = Self {
            folder,
            program: attacked.to_owned(),
            processes: Vec::new(),
            victim: nobody,
            hub: HubAddress {
                ticket: String::new(),
            },
            secret: TicketSecret::from_random([0; 16]),
            newcomers: (0..=2 * NEWCOMERS)
                .map(|_| KeySeed::draw())
                .collect::<Result<_, _>>()?,
        };
        let hub = ["hub", "--listen", "127.0.0.1:0"];
        processes.tie("hub", "hub", &hub).await?;
        let invite = ["hub", "invite", "--uses", "1000", "--expires", "24h"];
        let invited = processes.ask("hub", &invite).await?;
        processes.hub.ticket = text_of(&invited, "ticket")?;
        let loopback = ["--listen", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
        for (name, carrier) in [(VICTIM, "auto"), (DESK, "quic"), (SHELF, "h2")] {
            let mut words = vec!["up", "--name", name, "--carrier", carrier];
            words.extend(loopback);
            processes.tie(name, name, &words).await?;
        }
        processes.victim = processes.address(VICTIM).await?;
        processes.trust_each_other().await?;
        let lines = ["serve", "lines", "--lines", "--", "cat"];
        processes.tie("serve --lines", VICTIM, &lines).await?;
        let program = ["serve", "program", "--", "cat"];
        processes.tie("serve", VICTIM, &program).await?;
        let agent = ["bench", "siege", "--part", "agent"];
        own.clone_into(&mut processes.program);
        processes.tie("agent", VICTIM, &agent).await?;
        Ok(processes)
    }

    /// Ends all processes, and returns when they are gone.
    pub(super) async fn end(mut self) {
        // The agents before their node, the nodes before the hub.
        while let Some(process) = self.processes.pop() {
            process.end().await;
        }
    }

    pub(super) fn data(&self, name: &str) -> DataDir {
        DataDir::new(self.folder.path().join(name))
    }

    pub(super) async fn attach(&self, name: &str) -> Result<Client, BenchError> {
        let attached = Client::attach(&self.data(name)).await;
        attached.map_err(BenchError::failed("attaching to the node"))
    }

    /// Names and process ids.
    pub(super) fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        let processes = self.processes.iter();
        processes.map(|process| (process.name(), process.pid()))
    }

    /// The end of a process's log.
    pub(super) fn log_tail(&self, name: &str) -> String {
        tied_process::log_tail(&self.log(name))
    }

    /// Makes the attacked node trust the honest nodes and the new peers, and makes all nodes members of the hub.
    async fn trust_each_other(&mut self) -> Result<(), BenchError> {
        let victim = self.attach(VICTIM).await?;
        for name in [DESK, SHELF] {
            let near = self.attach(name).await?;
            let address = self.address(name).await?;
            trust(&victim, address.node, name, Some(address), &[]).await?;
            trust(&near, self.victim.node, VICTIM, Some(self.victim), &[]).await?;
        }
        for seed in &self.newcomers {
            trust(&victim, seed.id(), "", None, &[]).await?;
        }
        for name in [VICTIM, DESK, SHELF] {
            let client = self.attach(name).await?;
            let join = json!({ "ticket": self.hub.ticket.trim(), "alias": "" });
            let _: Value = client
                .admin(method::JOIN, &join)
                .await
                .map_err(BenchError::failed("joining the hub"))?;
        }
        let invite = json!({ "uses": 10_000, "expires_s": 24 * 3600, "allow": [] });
        let invited: Value = victim
            .admin(method::INVITE, &invite)
            .await
            .map_err(BenchError::failed("making a ticket"))?;
        let ticket = text_of(&invited, "ticket")?;
        match ticket
            .parse()
            .map_err(BenchError::failed("parsing the ticket"))?
        {
            Ticket::Node(ticket) => self.secret = ticket.secret,
            Ticket::Hub(_) => return Err(BenchError::Invalid("not the ticket of a node".into())),
        }
        Ok(())
    }

    /// Makes the attacked node trust the attackers that are its peers.
    pub(super) async fn let_in(
        &self,
        kind: AttackerKind,
        seeds: &[KeySeed],
    ) -> Result<(), BenchError> {
        let victim = self.attach(VICTIM).await?;
        for seed in seeds {
            trust(&victim, seed.id(), "", None, &[kind.grant()]).await?;
        }
        Ok(())
    }

    async fn address(&self, name: &str) -> Result<NodeAddress, BenchError> {
        let client = self.attach(name).await?;
        let status: admin::NodeStatus = client
            .admin(method::STATUS, &())
            .await
            .map_err(BenchError::failed("reading the node's status"))?;
        let first = |places: &[String]| {
            let address = places.first().and_then(|address| address.parse().ok());
            address
                .ok_or_else(|| BenchError::Invalid("the node does not say where it listens".into()))
        };
        Ok(NodeAddress {
            node: status.id,
            udp: first(&status.sockets)?,
            tcp: first(&status.tcp_sockets)?,
        })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn hail(&self, data: &str, words: &[&str]) -> Vec<String> {
        tied_process::hail_args(&self.folder.path().join(data), words)
    }

    /// Runs a command to its end and reads what it prints.
    async fn ask(&self, data: &str, words: &[&str]) -> Result<Value, BenchError> {
        let mut command = Command::new(&self.program);
        command
            .args(self.hail(data, words))
            .env("HOME", self.folder.path());
        tied_process::printed_json(command).await
    }

    /// Starts a process that lives as long as this one, and waits for its first line.
    async fn tie(&mut self, name: &str, data: &str, words: &[&str]) -> Result<(), BenchError> {
        let mut shell = Command::new("sh");
        shell.env("HOME", self.folder.path());
        let (args, log) = (self.hail(data, words), self.log(name));
        let process = TiedProcess::start(name, shell, &self.program, &args, &log).await?;
        self.processes.push(process);
        Ok(())
    }
}

/// Makes a node trust a key.
async fn trust(
    client: &Client,
    id: NodeId,
    alias: &str,
    address: Option<NodeAddress>,
    allow: &[&str],
) -> Result<(), BenchError> {
    let add = json!({
        "id": id,
        "alias": alias,
        "allow": allow,
        "addresses": address.iter().map(|p| p.udp.to_string()).collect::<Vec<_>>(),
        "tcp": address.iter().map(|p| p.tcp.to_string()).collect::<Vec<_>>(),
    });
    let _: Value = client
        .admin(method::TRUST_ADD, &add)
        .await
        .map_err(BenchError::failed("adding a trusted peer"))?;
    Ok(())
}

fn text_of(value: &Value, name: &str) -> Result<String, BenchError> {
    let text = value[name].as_str();
    text.map(ToString::to_string)
        .ok_or_else(|| BenchError::Invalid(format!("there is no `{name}` in {value}")))
}
