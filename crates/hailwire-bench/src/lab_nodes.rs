//! Hubs and nodes in the hosts of a network of the lab: each `hail` as a user starts it, with two agents that measurements call.

use std::{
    ffi::OsStr,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::{
    Agent, Body, Client, Code, DataDir, Request, Response, ServeHandle, Status,
    admin::{PingAnswer, PingRequest, method},
};
use hailwire_lab::{Topology, real::NamespaceNetwork};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    BenchError,
    tied_process::{self, TiedProcess},
};

/// The agent that answers with the number of bytes that it was sent.
pub(crate) const COUNT: &str = "count";

/// The agent that answers with numbers without end, one every [`TICK`], each a chunk of four bytes, the highest first.
pub(crate) const TICKS: &str = "ticks";

/// The time between two numbers of [`TICKS`].
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A hub's port: the one that every office lets out.
pub(crate) const HUB_PORT: u16 = 443;

/// An HTTP proxy's port.
pub(crate) const PROXY_PORT: u16 = 3128;

/// The program of the proxy.
pub(crate) const PROXY_PROGRAM: &str = "tinyproxy";

/// How long the proxy may take to listen.
const PROXY_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of a body that [`COUNT`] takes.
const MAX_COUNTED: usize = 16 << 20;

/// A node and a client that is attached to it.
pub(crate) struct LabNode {
    pub(crate) client: Client,
    process: TiedProcess,
    _serving: [ServeHandle; 2],
}

impl LabNode {
    /// The process id of the node.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it, and returns when it is gone.
    pub(crate) async fn end(self) {
        drop(self.client);
        self.process.end().await;
    }
}

/// A network, and what starts processes in it. Those of a host have its name.
pub(crate) struct LabStarter {
    pub(crate) network: NamespaceNetwork,
    program: PathBuf,
    /// Where the data folders and the logs are.
    folder: TempDir,
}

impl LabStarter {
    /// Makes the network that a topology file says. The hubs and nodes will be of the `hail` at `program`.
    pub(crate) fn new(file: &str, name: &str, program: &Path) -> Result<Self, BenchError> {
        let topology = Topology::parse(file, name).map_err(BenchError::reported)?;
        Ok(Self {
            network: NamespaceNetwork::up(&topology).map_err(BenchError::reported)?,
            program: program.to_owned(),
            folder: tied_process::temporary_folder(&format!("hail-{name}-"))?,
        })
    }

    /// A hub whose members trust each other, known by its host's name.
    pub(crate) async fn hub(&self, host: &str) -> Result<TiedProcess, BenchError> {
        let listen = format!("[::]:{HUB_PORT}");
        let url = format!("https://{host}:{HUB_PORT}");
        let words = [
            "hub", "--listen", &listen, "--url", &url, "--trust", "members",
        ];
        self.tie_hail(host, &words, &[]).await
    }

    /// An HTTP proxy that connects to whatever it is asked for.
    pub(crate) async fn proxy(&self, host: &str) -> Result<TiedProcess, BenchError> {
        let config = self.folder.path().join("proxy.conf");
        let text = format!("Port {PROXY_PORT}\nListen 0.0.0.0\nTimeout 600\nMaxClients 100\n");
        fs::write(&config, text).map_err(BenchError::io("writing the proxy's configuration"))?;
        let script = format!("echo started; exec {PROXY_PROGRAM} -d -c \"$0\"");
        let args = ["-c", &script, &config.display().to_string()].map(str::to_owned);
        let process = self.tie(host, Path::new("sh"), &args, &[]).await?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
        let begun = Instant::now();
        while begun.elapsed() < PROXY_TIMEOUT {
            let connected = self.network.within(host, || TcpStream::connect(at));
            if connected.is_ok_and(|connected| connected.is_ok()) {
                return Ok(process);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(BenchError::Failed {
            what: PROXY_PROGRAM.to_owned(),
            reason: tied_process::log_tail(&self.log(host)),
        })
    }

    /// A ticket of a hub with which so many nodes join.
    pub(crate) async fn ticket(&self, hub: &str, nodes: usize) -> Result<String, BenchError> {
        let uses = nodes.to_string();
        let mut command = self.inside(hub, &self.program)?;
        command.args(self.hail(hub, &["hub", "invite", "--uses", &uses]));
        let invited = tied_process::printed_json(command).await?;
        let ticket = invited["ticket"].as_str().map(str::to_owned);
        ticket.ok_or_else(|| BenchError::Invalid("the hub's invitation has no ticket".into()))
    }

    /// A node with its agents, started with `words` beside its name, which joins these hubs; none where it has joined before.
    pub(crate) async fn node(
        &self,
        host: &str,
        environment: &[(&str, &str)],
        words: &[&str],
        tickets: &[String],
    ) -> Result<LabNode, BenchError> {
        let step = |what: &str| format!("{host}: {what}");
        let words = [&["up", "--name", host], words].concat();
        let process = self.tie_hail(host, &words, environment).await?;
        let data = DataDir::new(self.data(host));
        let client = Client::attach(&data)
            .await
            .map_err(BenchError::failed(step("attaching to the node")))?;
        for ticket in tickets {
            let join = json!({ "ticket": ticket.trim(), "yes": true });
            let _: Value = client
                .admin(method::JOIN, &join)
                .await
                .map_err(BenchError::failed(step("joining a hub")))?;
        }
        let serving = serve(&client)
            .await
            .map_err(BenchError::failed(step("serving")))?;
        Ok(LabNode {
            client,
            process,
            _serving: serving,
        })
    }

    /// Runs lines of `ip` in a host; `lines` is given the addresses that it has by the topology.
    pub(crate) fn ip(
        &self,
        host: &str,
        lines: impl FnOnce(&[Ipv4Addr]) -> String,
    ) -> Result<(), BenchError> {
        let own = self.network.topology().addresses(host);
        for line in lines(&own).lines() {
            let command = self.network.command(host, "ip");
            let mut command = command.map_err(BenchError::reported)?;
            let done = command
                .args(line.split(' '))
                .output()
                .map_err(BenchError::io("running ip"))?;
            if !done.status.success() {
                return Err(BenchError::Failed {
                    what: format!("ip {line}"),
                    reason: String::from_utf8_lossy(&done.stderr).trim().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Takes a host's second address away, which [`LabStarter::move_host`] gives back.
    pub(crate) fn take_second_address(&self, host: &str) -> Result<(), BenchError> {
        self.ip(host, |own| format!("address del {} dev eth0", own[1]))
    }

    /// A host has another of its addresses by the topology from now on: that of number `to` in place of `from`.
    pub(crate) fn move_host(&self, host: &str, from: usize, to: usize) -> Result<(), BenchError> {
        self.ip(host, |own| {
            let (old, new) = (own[from], own[to]);
            format!(
                "address add {new}/32 dev eth0\nroute replace default dev eth0 src {new}\naddress del {old} dev eth0"
            )
        })
    }

    fn log(&self, host: &str) -> PathBuf {
        self.folder.path().join(format!("{host}.log"))
    }

    fn data(&self, host: &str) -> PathBuf {
        self.folder.path().join(host)
    }

    fn hail(&self, host: &str, words: &[&str]) -> Vec<String> {
        tied_process::hail_args(&self.data(host), words)
    }

    /// A command in a host.
    fn inside(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command, BenchError> {
        let command = self.network.command_with_names(host, program);
        let mut command = command.map_err(BenchError::reported)?;
        command.env("HOME", self.folder.path());
        Ok(command)
    }

    async fn tie_hail(
        &self,
        host: &str,
        words: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<TiedProcess, BenchError> {
        let args = self.hail(host, words);
        self.tie(host, &self.program, &args, environment).await
    }

    async fn tie(
        &self,
        host: &str,
        program: &Path,
        args: &[String],
        environment: &[(&str, &str)],
    ) -> Result<TiedProcess, BenchError> {
        let mut shell = self.inside(host, "sh")?;
        shell.envs(environment.iter().copied());
        TiedProcess::start(host, shell, program, args, &self.log(host)).await
    }
}

/// Offers both agents.
async fn serve(client: &Client) -> Result<[ServeHandle; 2], Status> {
    let agent = |name: &str| {
        Agent::new(name).map_err(|error| Status::new(Code::Internal, error.to_string()))
    };
    let count = |request: Request| async move {
        let bytes = request.into_body().bytes(MAX_COUNTED).await?.len();
        Ok(Response::new(bytes.to_string()))
    };
    let ticks = |_: Request| async move {
        let (sender, body) = Body::channel(1);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            for number in 0_u32.. {
                ticks.tick().await;
                let chunk = Bytes::copy_from_slice(&number.to_be_bytes());
                if sender.send(chunk).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(body))
    };
    Ok([
        client.serve(agent(COUNT)?, count).await?,
        client.serve(agent(TICKS)?, ticks).await?,
    ])
}

/// Calls [`COUNT`] on a node, checks the answer, and says how long it took.
pub(crate) async fn call_count(
    client: &Client,
    node: &str,
    body: Bytes,
    deadline: Duration,
) -> Result<Duration, String> {
    let begun = Instant::now();
    let sent = body.len();
    let call = client.call(format!("{COUNT}@{node}")).deadline(deadline);
    let answer = async { Box::pin(call.body(body).send()).await?.bytes(64).await };
    match answer.await {
        Ok(said) if said == sent.to_string() => Ok(begun.elapsed()),
        Ok(said) => Err(format!(
            "another answer: {}",
            String::from_utf8_lossy(&said)
        )),
        Err(status) => Err(status.to_string()),
    }
}

/// The kind of the path to a node that a ping took: `direct`, `relay`, or nothing while none is chosen.
pub(crate) async fn path_kind(client: &Client, node: &str) -> Result<String, Status> {
    let who = PingRequest {
        who: node.to_owned(),
        ..PingRequest::default()
    };
    let pong: PingAnswer = client.admin(method::PING, &who).await?;
    Ok(pong.path.kind)
}
