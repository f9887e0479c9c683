//! Leases: what a program asks of a hub about who leads, passed on. The node keeps nothing of it, so a program that leads goes on being
//! its own judge of when it must stop (`hailwire_core::lease_candidate`).

use std::{sync::Arc, time::Duration};

use hailwire_wire::{
    Status,
    lease::{LeaseAnswer, LeaseReleased, LeaseRow},
};

use super::{
    NodeInner,
    hubs::{HubLink, one_hub},
};
use crate::admin;

/// How long a hub has to answer. A candidate that asks in shorter time gives up itself.
const PATIENCE: Duration = Duration::from_secs(15);

/// How a hub is named on the command line.
const NAMING: &str = "--hub URL";

fn hub(node: &NodeInner, named: &str) -> Result<Arc<HubLink>, Status> {
    one_hub(&node.hubs.all(), named, NAMING)
}

pub(super) async fn ask(
    node: &Arc<NodeInner>,
    ask: admin::LeaseAsk,
) -> Result<LeaseAnswer, Status> {
    let hub = hub(node, &ask.hub)?;
    let asked = hub.client().ask_lease(&ask.request);
    let answer = hub.asked(node, PATIENCE, asked).await;
    answer.map_err(|error| Status::from(&error))
}

pub(super) async fn release(
    node: &Arc<NodeInner>,
    give_back: admin::LeaseGiveBack,
) -> Result<LeaseReleased, Status> {
    let hub = hub(node, &give_back.hub)?;
    let asked = hub.client().release_lease(&give_back.release);
    let answer = hub.asked(node, PATIENCE, asked).await;
    answer.map_err(|error| Status::from(&error))
}

pub(super) async fn list(
    node: &Arc<NodeInner>,
    query: &admin::LeaseQuery,
) -> Result<Vec<LeaseRow>, Status> {
    let hub = hub(node, &query.hub)?;
    let answer = hub.asked(node, PATIENCE, hub.client().leases()).await;
    answer.map_err(|error| Status::from(&error))
}
