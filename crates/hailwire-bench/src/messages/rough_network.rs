//! A bad network between two nodes: packets are lost, come twice and overtake each other, the NAT forgets, and now and then nothing passes.

use std::{process::Command, time::Duration};

use hailwire_lab::{
    Topology,
    fabric::{SiteChange, SiteLinks},
    link::LinkShape,
    real::NamespaceNetwork,
};

use super::survival::DESK;
use crate::BenchError;

/// The sender's node stands behind a NAT whose mappings can be made to change, the receiver's is public.
const TOPOLOGY: &str = r#"
site "home" {
    link { delay "10ms"; jitter "4ms"; loss "3%"; reorder "5%" by="8ms"; duplicate "5%" }
    nat mapping="endpoint-independent" filtering="address-dependent" hairpin=#true
    host "desk"
}
host "laptop"
"#;

/// How long nothing passes, at most and at least.
const CUT_MS: (u64, u64) = (50, 1500);

/// The network.
pub(super) struct RoughNetwork {
    own: NamespaceNetwork,
    site: String,
    links: SiteLinks,
}

impl RoughNetwork {
    pub(super) fn up(seed: u64) -> Result<Self, BenchError> {
        let topology = Topology::parse(TOPOLOGY, "rough").map_err(BenchError::reported)?;
        let site = topology
            .sites
            .iter()
            .find(|site| site.hosts.iter().any(|host| host.name == DESK));
        let site = site.ok_or(BenchError::Unsupported("the network lacks a host"))?;
        Ok(Self {
            site: site.name.clone(),
            links: SiteLinks {
                up: site.up.clone(),
                down: site.down.clone(),
            },
            own: NamespaceNetwork::seeded(&topology, seed).map_err(BenchError::reported)?,
        })
    }

    /// A command that runs `sh` in a node's host.
    pub(super) fn shell(&self, host: &str) -> Result<Command, BenchError> {
        self.own.command(host, "sh").map_err(BenchError::reported)
    }

    /// Does what `draw` says: lets nothing pass for a while, has the NAT forget, both, or neither.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing may pass from then on.
    pub(super) async fn disturb(&self, draw: &mut impl FnMut() -> u64) -> Result<(), BenchError> {
        if draw().is_multiple_of(2) {
            self.change(SiteChange::Rebind)?;
        }
        if draw().is_multiple_of(2) {
            let cut = |shape: &LinkShape| LinkShape {
                loss: 1.0,
                ..shape.clone()
            };
            self.change(SiteChange::Links(Box::new(SiteLinks {
                up: cut(&self.links.up),
                down: cut(&self.links.down),
            })))?;
            let length = CUT_MS.0 + draw() % (CUT_MS.1 - CUT_MS.0);
            tokio::time::sleep(Duration::from_millis(length)).await;
            self.change(SiteChange::Links(Box::new(self.links.clone())))?;
        }
        Ok(())
    }

    fn change(&self, change: SiteChange) -> Result<(), BenchError> {
        self.own
            .change(&self.site, change)
            .map_err(BenchError::reported)
    }
}
