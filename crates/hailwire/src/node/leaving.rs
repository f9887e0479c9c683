//! A member that leaves its group in order: others are told before it takes no more calls, so that none that is on its way finds nobody.

use std::time::Duration;

use hailwire_wire::AgentName;

use super::NodeInner;

/// How long peers may send calls after they were told that the last member of a name leaves: they take up a new list within a quarter of a second, and what
/// they sent before is on its way.
const CALLS_ON_THEIR_WAY: Duration = Duration::from_millis(500);

/// Says that a member leaves, and resolves when it may be taken out. From now on it is called only where no other member is, and is not offered.
pub(crate) async fn announce(node: &NodeInner, name: &AgentName, number: u64) {
    let others = node.registry.begin_leaving(name, number);
    if !others && node.peers.len() > 0 {
        tokio::time::sleep(CALLS_ON_THEIR_WAY).await;
    }
}
