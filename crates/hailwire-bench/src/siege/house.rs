//! The processes under attack: a hub, the attacked node with its agents, two honest nodes.
//!
//! Each is `hail` as people start it, beneath a shell that ends it when this process is gone, however that
//! came about.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use hailwire::{Client, DataDir, NodeId, admin, admin::method};
use hailwire_wire::ticket::{HubTicket, Secret, Ticket};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::{
    Kind,
    peer::{Place, Seed, failed},
};
use crate::BenchError;

/// How long a process may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Runs a program until standard input ends, and then ends it.
const TIED: &str = r#""$@" </dev/null & child=$!; read -r _; kill -9 "$child" 2>/dev/null; wait"#;

/// The name of the attacked node.
pub(super) const VICTIM: &str = "victim";

/// The honest node that reaches it over QUIC, and the one that does over TCP.
pub(super) const DESK: &str = "desk";
/// See [`DESK`].
pub(super) const SHELF: &str = "shelf";

/// Keys of those who come over QUIC, and as many of those over TCP. A key's new connection takes the place of its old one,
/// so that there are more than calls under way.
pub(super) const NEWCOMERS: usize = 24;

/// Bytes of a log's end that are told.
const TAIL: usize = 600;

/// All of them. Dropping it ends them.
pub(super) struct House {
    folder: TempDir,
    /// What is attacked.
    program: PathBuf,
    processes: Vec<Process>,
    pub(super) victim: Place,
    pub(super) hub: HubPlace,
    /// Of the attacked node.
    pub(super) secret: Secret,
    /// Keys of honest newcomers, whom the attacked node trusts, and of a member of the hub.
    pub(super) newcomers: Vec<Seed>,
}

/// Where the hub is, and how to become a member.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct HubPlace {
    pub(super) ticket: String,
}

impl HubPlace {
    pub(super) fn read(&self) -> Result<HubTicket, BenchError> {
        match self.ticket.trim().parse().map_err(failed("the ticket"))? {
            Ticket::Hub(ticket) => Ok(ticket),
            Ticket::Node(_) => Err(BenchError::Wrong("the ticket of a hub was expected".into())),
        }
    }

    pub(super) fn address(&self) -> Result<SocketAddr, BenchError> {
        let url = self.read()?.url;
        let text = format!("{}:{}", url.host(), url.port());
        text.parse().map_err(failed("the hub's address"))
    }
}

struct Process {
    name: &'static str,
    pid: u32,
    shell: Child,
}

impl House {
    /// Starts everything. The agent that is called is `own`, so that it answers the same whatever is attacked.
    pub(super) async fn start(own: &Path, attacked: &Path) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new()
            .prefix("hail-siege-")
            .tempdir()
            .map_err(BenchError::io("a temporary folder"))?;
        let nobody = Place {
            node: NodeId::from_bytes([0; 32]),
            udp: SocketAddr::from(([127, 0, 0, 1], 0)),
            tcp: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let mut house = Self {
            folder,
            program: attacked.to_owned(),
            processes: Vec::new(),
            victim: nobody,
            hub: HubPlace {
                ticket: String::new(),
            },
            secret: Secret::from_random([0; 16]),
            newcomers: (0..=2 * NEWCOMERS)
                .map(|_| Seed::draw())
                .collect::<Result<_, _>>()?,
        };
        let hub = ["hub", "--listen", "127.0.0.1:0"];
        house.tie("hub", "hub", &hub).await?;
        let invite = ["hub", "invite", "--uses", "1000", "--expires", "24h"];
        let invited = house.ask("hub", &invite).await?;
        house.hub.ticket = text_of(&invited, "ticket")?;
        let loopback = ["--listen", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
        for (name, carrier) in [(VICTIM, "auto"), (DESK, "quic"), (SHELF, "h2")] {
            let mut words = vec!["up", "--name", name, "--carrier", carrier];
            words.extend(loopback);
            house.tie(name, name, &words).await?;
        }
        house.victim = house.place(VICTIM).await?;
        house.befriend().await?;
        let lines = ["serve", "lines", "--lines", "--", "cat"];
        house.tie("serve --lines", VICTIM, &lines).await?;
        let program = ["serve", "program", "--", "cat"];
        house.tie("serve", VICTIM, &program).await?;
        let agent = ["bench", "siege", "--part", "agent"];
        own.clone_into(&mut house.program);
        house.tie("agent", VICTIM, &agent).await?;
        Ok(house)
    }

    /// Ends everything, and returns when it is gone.
    pub(super) async fn end(mut self) {
        // The agents before their node, the nodes before the hub.
        while let Some(mut process) = self.processes.pop() {
            drop(process.shell.stdin.take());
            let _ = tokio::time::timeout(READY_WITHIN, process.shell.wait()).await;
        }
    }

    pub(super) fn data(&self, name: &str) -> DataDir {
        DataDir::new(self.folder.path().join(name))
    }

    pub(super) async fn attach(&self, name: &str) -> Result<Client, BenchError> {
        let attached = Client::attach(&self.data(name)).await;
        attached.map_err(failed("attaching"))
    }

    /// Names and process ids.
    pub(super) fn processes(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.processes
            .iter()
            .map(|process| (process.name, process.pid))
    }

    /// What a process said last.
    pub(super) fn last_words(&self, name: &str) -> String {
        let log = fs::read(self.log(name)).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(TAIL)..];
        let text = String::from_utf8_lossy(tail);
        text.lines().rev().take(3).collect::<Vec<_>>().join(" / ")
    }

    /// The attacked node trusts the honest ones and the newcomers, and all are members of the hub.
    async fn befriend(&mut self) -> Result<(), BenchError> {
        let victim = self.attach(VICTIM).await?;
        for name in [DESK, SHELF] {
            let near = self.attach(name).await?;
            let place = self.place(name).await?;
            trust(&victim, place.node, name, Some(place), &[]).await?;
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
                .map_err(failed("joining the hub"))?;
        }
        let invite = json!({ "uses": 10_000, "expires_s": 24 * 3600, "allow": [] });
        let invited: Value = victim
            .admin(method::INVITE, &invite)
            .await
            .map_err(failed("inviting"))?;
        let ticket = text_of(&invited, "ticket")?;
        match ticket.parse().map_err(failed("the ticket"))? {
            Ticket::Node(ticket) => self.secret = ticket.secret,
            Ticket::Hub(_) => return Err(BenchError::Wrong("not the ticket of a node".into())),
        }
        Ok(())
    }

    /// Makes the attacked node trust the attackers that are its peers.
    pub(super) async fn let_in(&self, kind: Kind, seeds: &[Seed]) -> Result<(), BenchError> {
        let victim = self.attach(VICTIM).await?;
        for seed in seeds {
            trust(&victim, seed.id(), "", None, &[kind.grant()]).await?;
        }
        Ok(())
    }

    async fn place(&self, name: &str) -> Result<Place, BenchError> {
        let client = self.attach(name).await?;
        let status: admin::Status = client
            .admin(method::STATUS, &())
            .await
            .map_err(failed("the node's status"))?;
        let first = |places: &[String]| {
            let place = places.first().and_then(|place| place.parse().ok());
            place.ok_or_else(|| BenchError::Wrong("the node says not where it listens".into()))
        };
        Ok(Place {
            node: status.id,
            udp: first(&status.sockets)?,
            tcp: first(&status.tcp_sockets)?,
        })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn hail(&self, data: &str, words: &[&str]) -> Vec<String> {
        let data = self.folder.path().join(data).display().to_string();
        let program = self.program.display().to_string();
        let front = [program, "--json".into(), "--data".into(), data];
        front
            .into_iter()
            .chain(words.iter().map(ToString::to_string))
            .collect()
    }

    /// Runs a command to its end and reads what it prints.
    async fn ask(&self, data: &str, words: &[&str]) -> Result<Value, BenchError> {
        let words = self.hail(data, words);
        let (program, words) = words
            .split_first()
            .ok_or(BenchError::Unsupported("no words"))?;
        let out = Command::new(program)
            .args(words)
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(BenchError::io("hail"))?;
        serde_json::from_slice(&out.stdout).map_err(|_| BenchError::Part {
            part: words.join(" "),
            reason: String::from_utf8_lossy(&out.stderr).into_owned(),
        })
    }

    /// Starts a process that lives as long as this one, and waits for its first line.
    async fn tie(
        &mut self,
        name: &'static str,
        data: &str,
        words: &[&str],
    ) -> Result<(), BenchError> {
        let log = File::create(self.log(name)).map_err(BenchError::io("a log"))?;
        let mut shell = Command::new("sh")
            .args(["-c", TIED, "sh"])
            .args(self.hail(data, words))
            .env("HOME", self.folder.path())
            .env_remove("HAIL_DATA")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for the siege, which ends its processes in order.
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
            .map_err(BenchError::io(format!("starting {name}")))?;
        let ended = |reason: String| BenchError::Part {
            part: name.to_owned(),
            reason,
        };
        let stdout = shell.stdout.take().ok_or_else(|| ended("no pipe".into()))?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(READY_WITHIN, lines.next_line()).await;
        let Ok(Ok(Some(_))) = line else {
            return Err(ended(self.last_words(name)));
        };
        // What it prints later goes nowhere, and must not fill its pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let family = crate::measure::process::family(shell.id().unwrap_or_default());
        let pid = *family.get(1).ok_or_else(|| ended("it ended".into()))?;
        self.processes.push(Process { name, pid, shell });
        Ok(())
    }
}

/// Makes a node trust a key.
async fn trust(
    client: &Client,
    id: NodeId,
    alias: &str,
    place: Option<Place>,
    allow: &[&str],
) -> Result<(), BenchError> {
    let add = json!({
        "id": id,
        "alias": alias,
        "allow": allow,
        "addresses": place.iter().map(|p| p.udp.to_string()).collect::<Vec<_>>(),
        "tcp": place.iter().map(|p| p.tcp.to_string()).collect::<Vec<_>>(),
    });
    let _: Value = client
        .admin(method::TRUST_ADD, &add)
        .await
        .map_err(failed("trusting"))?;
    Ok(())
}

fn text_of(value: &Value, name: &str) -> Result<String, BenchError> {
    let text = value[name].as_str();
    text.map(ToString::to_string)
        .ok_or_else(|| BenchError::Wrong(format!("there is no `{name}` in {value}")))
}
