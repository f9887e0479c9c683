//! What an agent says of itself: `hail describe`. Its own node is asked, which alone has the schema.

use std::{sync::Arc, time::Duration};

use hailwire_core::routing::CallOrigin;
use hailwire_wire::{Address, AgentName, CallHeader, Code, NodeId, Status};

use super::{
    NodeInner,
    manage::known_as,
    registry::{MemberTarget, not_found},
    resolve,
    router::{self, RouteProgress},
    tunnel,
};
use crate::{
    admin::{AgentDescription, DescribeRequest, method},
    agent_schema::AgentSchema,
    session::{Session, in_time},
};

/// How long another node may take to answer, the tunnel to it included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest answer of another node: a schema, in JSON that may be written longer, and a row of the list.
const MAX_ANSWER: usize = 256 * 1024;

/// For a program of this machine: an agent here, or the one that a call to this address would go to.
///
/// # Errors
///
/// Those of a call to the address, and `unimplemented` from a node that is too old to be asked.
pub(super) async fn describe(
    node: &Arc<NodeInner>,
    request: &DescribeRequest,
) -> Result<AgentDescription, Status> {
    let address: Address = request
        .who
        .parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
    let deadline = Some(tokio::time::Instant::now() + PATIENCE);
    match home(node, &address).await? {
        None => local(node, &address.agent),
        Some(id) => in_time(deadline, std::pin::pin!(ask(node, id, &address.agent))).await,
    }
}

/// For a peer, and only for one that may call the agent.
///
/// # Errors
///
/// Those of a call to the agent.
pub(super) fn describe_for_peer(
    node: &NodeInner,
    peer: NodeId,
    request: &DescribeRequest,
) -> Result<AgentDescription, Status> {
    let agent: AgentName = request
        .who
        .parse()
        .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
    node.trust.check(peer, &agent)?;
    match crate::agent::is_private(&agent) {
        true => Err(not_found(&agent)),
        false => local(node, &agent),
    }
}

/// The node that a call to the address would go to; `None` for this one.
async fn home(node: &Arc<NodeInner>, address: &Address) -> Result<Option<NodeId>, Status> {
    if let Some(who) = &address.node {
        let id = resolve::resolve(node, who).await?;
        return Ok(Some(id).filter(|id| *id != node.id()));
    }
    let header = CallHeader {
        to: address.to_string(),
        ..CallHeader::default()
    };
    let route = match router::route(node, &header, CallOrigin::Local, None) {
        RouteProgress::Now(route) => route?,
        RouteProgress::Later(route) => route.await?,
    };
    let picked = route.picked.as_ref().map(|picked| picked.value());
    Ok(match picked {
        Some(MemberTarget::Peer { id, .. }) => Some(*id),
        _ => None,
    })
}

/// Members of one name share a description: the first that registered gives it, and the first with a schema that.
fn local(node: &NodeInner, agent: &AgentName) -> Result<AgentDescription, Status> {
    let members = node.registry.registered(agent);
    let register = members.first().ok_or_else(|| not_found(agent))?;
    let stated = members.iter().find(|member| !member.schema.is_empty());
    let schema = stated.map(|member| AgentSchema::parse(&member.schema));
    let schema = schema
        .transpose()
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(AgentDescription {
        name: agent.to_string(),
        node: node.id(),
        node_name: node.name().map(String::from).unwrap_or_default(),
        description: register.description.clone(),
        tags: register.tags.clone(),
        version: register.version.clone(),
        members: u32::try_from(members.len()).unwrap_or(u32::MAX),
        schema: schema.unwrap_or_default(),
    })
}

async fn ask(
    node: &Arc<NodeInner>,
    id: NodeId,
    agent: &AgentName,
) -> Result<AgentDescription, Status> {
    let session = tunnel::tunnel_to(node, id).await?;
    let description = ask_over(&session, agent).await?;
    if description.name != agent.as_str() {
        let what = format!("the node was asked for `{agent}` and described another agent");
        return Err(Status::new(Code::Internal, what));
    }
    Ok(AgentDescription {
        node: id,
        node_name: known_as(node, id),
        ..description
    })
}

async fn ask_over(session: &Session, agent: &AgentName) -> Result<AgentDescription, Status> {
    let request = DescribeRequest {
        who: agent.to_string(),
    };
    let internal = |error: serde_json::Error| Status::new(Code::Internal, error.to_string());
    let body = serde_json::to_vec(&request).map_err(internal)?;
    let _asking = session.count();
    let bytes = tunnel::ask_node(session, method::DESCRIBE, body, MAX_ANSWER).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let what = format!("the node describes `{agent}` in a way that cannot be read: {error}");
        Status::new(Code::Internal, what)
    })
}
