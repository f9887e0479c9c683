//! Two homes behind NAT, and an office that lets no UDP out, in a network of the lab.

use std::time::{Duration, Instant};

use hailwire::{
    Client, Code, Status,
    admin::{self, PathStatus, method},
};
use hailwire_lab::{Topology, real::NamespaceNetwork};
use hailwire_terminal::{failure::CommandFailure, text};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    process::{NodeRole, ProcessReady, ProcessRole},
    processes::{DemoProcesses, node_name},
    scene_agents::HELLO,
};
use crate::commands::connect;

/// The network. The homes' routers are of the ordinary kind, which holes can be punched through (RFC 4787).
const NETWORK: &str = r#"
about "two homes and an office behind NAT, and a hub: 40 ms from home to home"
site "home" {
    link { delay "10ms"; up { rate "40 Mbit/s" }; down { rate "200 Mbit/s" } }
    nat mapping="endpoint-independent" filtering="address-and-port-dependent"
    host "home"
}
site "cabin" {
    link { delay "10ms"; up { rate "40 Mbit/s" }; down { rate "200 Mbit/s" } }
    nat mapping="endpoint-independent" filtering="address-and-port-dependent"
    host "cabin"
}
site "office" {
    link { delay "10ms"; rate "500 Mbit/s" }
    nat mapping="endpoint-independent" filtering="address-and-port-dependent"
    firewall "only-tcp-443"
    host "office"
}
host "town" { link { delay "5ms" } }
"#;

/// The home that calls.
pub(super) const HOME: &str = "home";

/// The home whose agents are called.
pub(super) const CABIN: &str = "cabin";

/// Where no UDP gets out.
const OFFICE: &str = "office";

/// Where the hub stands.
const HUB: &str = "town";

/// The hub's port: the one that the office lets out.
const HUB_PORT: u16 = 443;

/// Deadline of a call.
const DEADLINE: Duration = Duration::from_secs(5);

/// The longest answer of [`HELLO`] in bytes.
const GREETING_BYTES: usize = 64;

/// How long two nodes may take to find the direct path.
const DIRECT_WITHIN: Duration = Duration::from_secs(10);

/// The time between two looks at the tunnel while they look for it.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The network and its nodes.
#[derive(Debug)]
pub(super) struct HomeNetwork {
    /// Kept up as long as the nodes are to run.
    _network: NamespaceNetwork,
    home: Client,
    office: Client,
    cabin: ProcessReady,
}

/// Makes the network.
///
/// # Errors
///
/// The reason why this machine cannot, in words that go in parentheses.
pub(super) fn make() -> Result<NamespaceNetwork, String> {
    let topology = Topology::parse(NETWORK, "demo").map_err(|error| error.to_string())?;
    NamespaceNetwork::up(&topology).map_err(|error| error.to_string())
}

impl HomeNetwork {
    /// Starts a hub and a node in each place.
    pub(super) async fn start(
        network: NamespaceNetwork,
        processes: &mut DemoProcesses,
    ) -> Result<Self, CommandFailure> {
        let address = |host: &str| {
            let found = network.address(host);
            found.map_err(|error| CommandFailure::caused(Code::Internal, &error))
        };
        let hub = ProcessRole::Hub {
            members: 3,
            listen: (address(HUB)?, HUB_PORT).into(),
        };
        let ticket = processes.add(HUB, hub, Some(&network)).await?.ticket;
        let role = |name: &str| {
            Ok::<_, CommandFailure>(ProcessRole::Node(Box::new(NodeRole {
                name: node_name(name)?,
                ticket: ticket.clone(),
                listen: address(name)?,
                work: Vec::new(),
                scenes: name == CABIN,
            })))
        };
        let cabin = processes.add(CABIN, role(CABIN)?, Some(&network)).await?;
        for name in [HOME, OFFICE] {
            processes.add(name, role(name)?, Some(&network)).await?;
        }
        let attach = async |name| {
            let attached = Client::attach(&processes.data(name)).await;
            attached.map_err(connect::failure)
        };
        Ok(Self {
            home: attach(HOME).await?,
            office: attach(OFFICE).await?,
            _network: network,
            cabin,
        })
    }

    /// One home calls an agent of the other, and their tunnel becomes direct.
    pub(super) async fn meet(&self) -> Result<String, CommandFailure> {
        let begun = Instant::now();
        let first = async {
            hello(&self.home).await?;
            Ok::<_, CommandFailure>(begun.elapsed())
        };
        let (first, paths) = tokio::try_join!(first, self.until_direct(begun))?;
        let call = Instant::now();
        hello(&self.home).await?;
        Ok(paths.sentence(first, call.elapsed()))
    }

    /// Looks at the tunnel to the cabin until it is direct.
    async fn until_direct(&self, begun: Instant) -> Result<PathsSeen, CommandFailure> {
        let mut again = interval(LOOK_INTERVAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut relay = None;
        while begun.elapsed() < DIRECT_WITHIN {
            again.tick().await;
            match self.path(&self.home).await? {
                Some(path) if path.kind == "direct" => {
                    let direct = begun.elapsed();
                    return Ok(PathsSeen { relay, direct });
                }
                Some(path) if path.kind == "relay" => _ = relay.get_or_insert(begun.elapsed()),
                _ => {}
            }
        }
        let seconds = DIRECT_WITHIN.as_secs();
        let what = format!("the homes have found no direct path after {seconds} s");
        Err(Status::new(Code::DeadlineExceeded, what).into())
    }

    /// The office calls the cabin, although its firewall lets no UDP out.
    pub(super) async fn without_udp(&self) -> Result<String, CommandFailure> {
        let begun = Instant::now();
        hello(&self.office).await?;
        let first = begun.elapsed();
        let path = self.path(&self.office).await?.unwrap_or_default();
        if path.kind != "relay" {
            let what = format!("the office has another path: {} {}", path.kind, path.remote);
            return Err(Status::new(Code::Internal, what).into());
        }
        let begun = Instant::now();
        hello(&self.office).await?;
        Ok(format!(
            "an office that lets no UDP out calls over TCP port 443: first answer {}, then {}",
            text::time(first),
            text::time(begun.elapsed())
        ))
    }

    /// The path of a node's tunnel to the cabin; none before there is one.
    async fn path(&self, client: &Client) -> Result<Option<PathStatus>, CommandFailure> {
        let asked = client.admin::<(), admin::NodeStatus>(method::STATUS, &());
        let status: admin::NodeStatus = Box::pin(asked).await?;
        let tunnels = status.tunnels.into_iter();
        let found = tunnels
            .filter(|tunnel| tunnel.peer == self.cabin.id)
            .max_by_key(|tunnel| tunnel.carries);
        Ok(found.map(|tunnel| tunnel.path))
    }
}

/// When a tunnel was first seen on each kind of path.
#[derive(Debug)]
struct PathsSeen {
    relay: Option<Duration>,
    direct: Duration,
}

impl PathsSeen {
    /// The sentence about two homes that met: after `first` came the first answer, and a later one took `then`.
    fn sentence(&self, first: Duration, then: Duration) -> String {
        let relay = match self.relay {
            Some(relay) => format!("through the relay after {}, ", text::time(relay)),
            None => String::new(),
        };
        format!(
            "two homes behind NAT meet: {relay}directly after {}; first answer after {}, the next in {}",
            text::time(self.direct),
            text::time(first),
            text::time(then)
        )
    }
}

async fn hello(client: &Client) -> Result<(), CommandFailure> {
    let call = client.call(format!("{HELLO}@{CABIN}")).deadline(DEADLINE);
    Box::pin(call.send()).await?.bytes(GREETING_BYTES).await?;
    Ok(())
}
