//! The network of the lab with the hub, the proxy and the nodes, each `hail` as a user starts it.

use std::{collections::HashMap, process::Command};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hailwire::Client;

use super::{
    ReachOptions,
    networks::{self, HUB, PROXY, ReachNetwork},
};
use crate::{
    BenchError,
    lab_nodes::{LabNode, LabStarter, PROXY_PORT, PROXY_PROGRAM},
    measure::millis,
    tied_process::TiedProcess,
};

/// How many nodes are started at once.
const STARTED_AT_ONCE: usize = 4;

/// Everything that runs. Dropping this ends it.
pub(super) struct ReachProcesses {
    nodes: HashMap<String, LabNode>,
    servers: Vec<TiedProcess>,
    starter: LabStarter,
}

/// Those that can be had here, and the others with the reason.
pub(super) fn possible(
    networks: Vec<ReachNetwork>,
) -> (Vec<ReachNetwork>, Vec<(ReachNetwork, String)>) {
    let proxy = Command::new(PROXY_PROGRAM).arg("-v").output().is_ok();
    let (can, cannot): (Vec<_>, Vec<_>) = networks
        .into_iter()
        .partition(|network| proxy || !network.proxied);
    let why = format!("`{PROXY_PROGRAM}` is not installed (Debian's package tinyproxy-bin)");
    let left_out = |network| (network, why.clone());
    (can, cannot.into_iter().map(left_out).collect())
}

impl ReachProcesses {
    /// Makes the network and starts everything in it.
    pub(super) async fn start(
        order: &ReachOptions,
        networks: &[ReachNetwork],
    ) -> Result<Self, BenchError> {
        let starter = LabStarter::new(&networks::topology(networks), "reach", &order.program)?;
        let mut servers = vec![starter.hub(HUB).await?];
        if networks.iter().any(|network| network.proxied) {
            servers.push(starter.proxy(PROXY).await?);
        }
        let ticket = starter.ticket(HUB, 2 * networks.len()).await?;
        let tickets = [ticket];
        let proxy = starter.network.address(PROXY);
        let proxy = proxy.map_err(BenchError::reported)?;
        let proxy = format!("http://{proxy}:{PROXY_PORT}");
        let start = async |host: String, network: ReachNetwork| {
            let proxy = [("HTTPS_PROXY", proxy.as_str())];
            let environment: &[(&str, &str)] = if network.proxied { &proxy } else { &[] };
            let listen = network.listen_tcp.map(|port| format!("0.0.0.0:{port}"));
            let words: Vec<&str> = listen
                .iter()
                .flat_map(|listen| ["--listen-tcp", listen])
                .collect();
            let node = starter.node(&host, environment, &words, &tickets).await?;
            Ok::<_, BenchError>((host, node))
        };
        let hosts = networks
            .iter()
            .flat_map(|network| network.hosts().map(|host| (host, *network)));
        let started = stream::iter(hosts)
            .map(|(host, network)| start(host, network))
            .buffer_unordered(STARTED_AT_ONCE);
        let nodes = Box::pin(started.try_collect()).await?;
        Ok(Self {
            nodes,
            servers,
            starter,
        })
    }

    /// The client attached to the node of a host.
    pub(super) fn client(&self, host: &str) -> Option<&Client> {
        self.nodes.get(host).map(|node| &node.client)
    }

    /// The round trip between two hosts by the links, in milliseconds.
    pub(super) fn direct_ms(&self, from: &str, to: &str) -> f64 {
        let expected = self.starter.network.topology().expected(from, to);
        expected.map_or(0.0, |path| millis(path.rtt))
    }

    /// The same by way of the hub, to which one behind a proxy gets through that.
    pub(super) fn relayed_ms(&self, [near, far]: [(&ReachNetwork, &str); 2]) -> f64 {
        let to_hub = |(network, host): (&ReachNetwork, &str)| match network.proxied {
            true => self.direct_ms(host, PROXY) + self.direct_ms(PROXY, HUB),
            false => self.direct_ms(host, HUB),
        };
        to_hub(near) + to_hub(far)
    }

    /// Ends everything, and returns when it is gone.
    pub(super) async fn end(self) {
        for node in self.nodes.into_values() {
            node.end().await;
        }
        for server in self.servers {
            server.end().await;
        }
    }
}
