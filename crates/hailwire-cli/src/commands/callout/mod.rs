//! `hail callout`: local and remote inspection agents.
//!
//! [`remote_agent`] connects two parts that do not know each other: the callout protocol, which needs a pair of byte streams, and
//! the node, which opens such a pair to an agent by its name on any node.

pub(super) mod attach;
mod fault_trials;
mod faults;
mod listeners;
mod probes;
pub(super) mod remote_agent;
pub(super) mod serve;
pub(super) mod test;

use std::{path::Path, sync::Arc, time::Duration};

use hailwire::DataDir;
use hailwire_callout::{
    inspect::{
        Config, ReverseRegistry,
        config::{AgentConfig, AgentEndpoint},
    },
    pool::Connector,
};

use super::CommandContext;
use hailwire_terminal::failure::CommandFailure;

/// Reads a configuration.
fn load(path: &Path) -> Result<Config, CommandFailure> {
    Config::load(path).map_err(|error| CommandFailure::file(&error))
}

/// Connectors for the endpoints that the callout crate does not know.
pub(super) struct EndpointConnectors {
    node: Arc<remote_agent::LocalNodeClient>,
    arrivals: ReverseRegistry,
}

impl EndpointConnectors {
    fn new(run: &CommandContext) -> Self {
        Self::of_node(run.data.clone())
    }

    /// Connectors that reach agents on other nodes through the node on this data folder.
    pub(super) fn of_node(data: DataDir) -> Self {
        Self {
            node: Arc::new(remote_agent::LocalNodeClient::at(data)),
            arrivals: ReverseRegistry::default(),
        }
    }

    pub(super) fn reach(
        &self,
        agent: &AgentConfig,
        place: &AgentEndpoint,
    ) -> Option<Arc<dyn Connector>> {
        match place {
            AgentEndpoint::Hail { agent: name, node } => {
                let (node, address) = (Arc::clone(&self.node), format!("{name}@{node}"));
                Some(Arc::new(remote_agent::RemoteAgent::new(
                    node,
                    address,
                    agent.dialect,
                )))
            }
            AgentEndpoint::Reverse(id) => Some(self.arrivals.of(id)),
            _ => None,
        }
    }
}

/// How long agents may take to connect before the first request.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
