//! The network of the lab with the hub, the proxy and the nodes, each `hail` as a user starts it.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hailwire::{Agent, Client, DataDir, Request, Response, ServeHandle, admin::method};
use hailwire_lab::real::NamespaceNetwork;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    ReachOptions,
    networks::{self, HUB, PROXY, PROXY_PORT, ReachNetwork},
};
use crate::{
    BenchError,
    tied_process::{self, TiedProcess},
};

/// The agent that every node has.
pub(super) const AGENT: &str = "count";

/// The hub's port: the one that every office lets out.
const HUB_PORT: u16 = 443;

/// The program of the proxy.
const PROXY_PROGRAM: &str = "tinyproxy";

/// How many nodes are started at once.
const STARTED_AT_ONCE: usize = 4;

/// How long the proxy may take to listen.
const PROXY_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything that runs. Dropping this ends it.
pub(super) struct ReachProcesses {
    nodes: HashMap<String, ReachNode>,
    servers: Vec<TiedProcess>,
    network: NamespaceNetwork,
    _folder: TempDir,
}

/// A node, attached.
struct ReachNode {
    client: Client,
    process: TiedProcess,
    _serving: ServeHandle,
}

/// Those that can be had here, and the others with the reason.
pub(super) fn possible(
    networks: Vec<ReachNetwork>,
) -> (Vec<ReachNetwork>, Vec<(ReachNetwork, String)>) {
    let proxy = Command::new(PROXY_PROGRAM).arg("-v").output().is_ok();
    let (can, cannot) = networks
        .into_iter()
        .partition(|network| proxy || !network.proxied);
    let why = format!("`{PROXY_PROGRAM}` is not installed (Debian's package of that name)");
    let left_out = |network| (network, why.clone());
    let cannot: Vec<ReachNetwork> = cannot;
    (can, cannot.into_iter().map(left_out).collect())
}

impl ReachProcesses {
    /// Makes the network and starts everything in it.
    pub(super) async fn start(
        order: &ReachOptions,
        networks: &[ReachNetwork],
    ) -> Result<Self, BenchError> {
        let topology = networks::topology(networks)?;
        let network = NamespaceNetwork::up(&topology)
            .map_err(|error| BenchError::Reported(error.to_string()))?;
        let folder = tempfile::Builder::new()
            .prefix("hail-reach-")
            .tempdir()
            .map_err(BenchError::io("creating a temporary folder"))?;
        let starter = ProcessStarter {
            program: order.program.clone(),
            folder: folder.path().to_owned(),
            network: &network,
        };
        let mut servers = vec![starter.hub().await?];
        if networks.iter().any(|network| network.proxied) {
            servers.push(starter.proxy().await?);
        }
        let ticket = starter.ticket(2 * networks.len()).await?;
        let hosts = networks
            .iter()
            .flat_map(|network| network.hosts().map(|host| (host, network.proxied)));
        let started = stream::iter(hosts)
            .map(|(host, proxied)| starter.node(host, proxied, &ticket))
            .buffer_unordered(STARTED_AT_ONCE);
        let nodes = Box::pin(started.try_collect()).await?;
        Ok(Self {
            nodes,
            servers,
            network,
            _folder: folder,
        })
    }

    /// The client attached to the node of a host.
    pub(super) fn client(&self, host: &str) -> Option<&Client> {
        self.nodes.get(host).map(|node| &node.client)
    }

    /// The round trip between two hosts by the links, in milliseconds.
    pub(super) fn direct_ms(&self, from: &str, to: &str) -> f64 {
        let expected = self.network.topology().expected(from, to);
        expected.map_or(0.0, |path| path.rtt.as_secs_f64() * 1000.0)
    }

    /// The same by way of the hub.
    pub(super) fn relayed_ms(&self, from: &str, to: &str) -> f64 {
        self.direct_ms(from, HUB) + self.direct_ms(HUB, to)
    }

    /// Ends everything, and returns when it is gone.
    pub(super) async fn end(self) {
        for node in self.nodes.into_values() {
            drop(node.client);
            node.process.end().await;
        }
        for server in self.servers {
            server.end().await;
        }
    }
}

/// What starts processes in a network.
struct ProcessStarter<'a> {
    program: PathBuf,
    folder: PathBuf,
    network: &'a NamespaceNetwork,
}

impl ProcessStarter<'_> {
    async fn hub(&self) -> Result<TiedProcess, BenchError> {
        let listen = format!("[::]:{HUB_PORT}");
        let url = format!("https://{HUB}:{HUB_PORT}");
        let words = [
            "hub", "--listen", &listen, "--url", &url, "--trust", "members",
        ];
        self.tie(HUB, &self.hail(HUB, &words), &[]).await
    }

    /// An HTTP proxy that connects to whatever it is asked for.
    async fn proxy(&self) -> Result<TiedProcess, BenchError> {
        let config = self.folder.join("proxy.conf");
        let text = format!("Port {PROXY_PORT}\nListen 0.0.0.0\nTimeout 600\nMaxClients 100\n");
        fs::write(&config, text).map_err(BenchError::io("writing the proxy's configuration"))?;
        let script = format!("echo started; exec {PROXY_PROGRAM} -d -c \"$0\"");
        let words = ["sh", "-c", &script, &config.display().to_string()].map(str::to_owned);
        let process = self.tie(PROXY, &words, &[]).await?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PROXY_PORT));
        let begun = Instant::now();
        while begun.elapsed() < PROXY_TIMEOUT {
            let connected = self.network.within(PROXY, || TcpStream::connect(at));
            if connected.is_ok_and(|connected| connected.is_ok()) {
                return Ok(process);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(BenchError::Failed {
            what: PROXY_PROGRAM.to_owned(),
            reason: tied_process::log_tail(&self.log(PROXY)),
        })
    }

    /// A ticket with which so many nodes join.
    async fn ticket(&self, nodes: usize) -> Result<String, BenchError> {
        let uses = nodes.to_string();
        let words = self.hail(HUB, &["hub", "invite", "--uses", &uses]);
        let (program, words) = words
            .split_first()
            .ok_or(BenchError::Unsupported("no words"))?;
        let mut command = self.inside(HUB, program)?;
        command.args(words);
        let invited = tied_process::printed_json(command).await?;
        let ticket = invited["ticket"].as_str().map(str::to_owned);
        ticket.ok_or_else(|| BenchError::Invalid("the hub's invitation has no ticket".into()))
    }

    /// A node that has joined the hub, with its agent.
    async fn node(
        &self,
        host: String,
        proxied: bool,
        ticket: &str,
    ) -> Result<(String, ReachNode), BenchError> {
        let failed = |what: &str| {
            let what = format!("{host}: {what}");
            move |error: &dyn std::fmt::Display| BenchError::Failed {
                what,
                reason: error.to_string(),
            }
        };
        let proxy = self
            .network
            .address(PROXY)
            .map_err(|error| failed("the proxy")(&error))?;
        let proxy = format!("http://{proxy}:{PROXY_PORT}");
        let environment: &[(&str, &str)] = match proxied {
            true => &[("HTTPS_PROXY", &proxy)],
            false => &[],
        };
        let words = self.hail(&host, &["up", "--name", &host]);
        let process = self.tie(&host, &words, environment).await?;
        let data = DataDir::new(self.folder.join(&host));
        let client = Client::attach(&data)
            .await
            .map_err(|error| failed("attaching to the node")(&error))?;
        let join = json!({ "ticket": ticket.trim(), "yes": true });
        let _: Value = client
            .admin(method::JOIN, &join)
            .await
            .map_err(|error| failed("joining the hub")(&error))?;
        let agent = Agent::new(AGENT).map_err(|error| failed("the agent")(&error))?;
        let count = |request: Request| async move {
            let mut body = request.into_body();
            let bytes = body.bytes(16 << 20).await?.len();
            Ok(Response::new(bytes.to_string()))
        };
        let serving = client
            .serve(agent, count)
            .await
            .map_err(|error| failed("serving")(&error))?;
        let node = ReachNode {
            client,
            process,
            _serving: serving,
        };
        Ok((host, node))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn hail(&self, data: &str, words: &[&str]) -> Vec<String> {
        tied_process::hail_words(&self.program, &self.folder.join(data), words)
    }

    /// A command in a host.
    fn inside(&self, host: &str, program: &str) -> Result<Command, BenchError> {
        let command = self.network.command_with_names(host, program);
        let mut command = command.map_err(|error| BenchError::Reported(error.to_string()))?;
        command.env("HOME", &self.folder);
        Ok(command)
    }

    async fn tie(
        &self,
        host: &str,
        words: &[String],
        environment: &[(&str, &str)],
    ) -> Result<TiedProcess, BenchError> {
        let mut shell = self.inside(host, "sh")?;
        shell.envs(environment.iter().copied());
        TiedProcess::start(host, shell, words, &self.log(host)).await
    }
}
