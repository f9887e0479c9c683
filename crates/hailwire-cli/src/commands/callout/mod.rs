//! `hail callout`: inspection agents, near and far.
//!
//! [`far`] is where the two meet that know nothing of each other: the callout protocol, to which a connection is any
//! pair of byte streams, and the node, which opens such a pair to an agent by its name, wherever it is.

pub(super) mod attach;
mod far;
mod faults;
mod listening;
mod metrics;
mod probes;
mod replaced;
pub(super) mod serve;
pub(super) mod test;

use std::{path::Path, sync::Arc, time::Duration};

use hailwire_callout::{
    inspect::{
        Config, ReverseRegistry,
        config::{AgentConfig, AgentEndpoint},
    },
    pool::Connector,
};

use super::Run;
use hailwire_terminal::failure::Failure;

/// Reads a configuration.
fn load(path: &Path) -> Result<Config, Failure> {
    Config::load(path).map_err(|error| Failure::file(&error))
}

/// How the places are reached that the callout crate does not know.
struct Places {
    node: Arc<far::Node>,
    arrivals: ReverseRegistry,
}

impl Places {
    fn new(run: &Run) -> Self {
        Self {
            node: Arc::new(far::Node::at(run.data.clone())),
            arrivals: ReverseRegistry::default(),
        }
    }

    fn reach(&self, agent: &AgentConfig, place: &AgentEndpoint) -> Option<Arc<dyn Connector>> {
        match place {
            AgentEndpoint::Hail { agent: name, node } => {
                let (node, address) = (Arc::clone(&self.node), format!("{name}@{node}"));
                Some(Arc::new(far::Far::new(node, address, agent.dialect)))
            }
            AgentEndpoint::Reverse(id) => Some(self.arrivals.of(id)),
            _ => None,
        }
    }
}

/// How long agents may take to be there before anything is asked of them.
const READY: Duration = Duration::from_secs(5);
