//! What waits for an agent, told to programs of this machine that start others for it: a line whenever it has changed, for as long as they
//! read. Lines are at least [`BETWEEN_LINES`] apart, so a busy agent costs a bounded number of them.

use std::{sync::Arc, time::Duration};

use hailwire_wire::{AgentName, Code, Status};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{Messages, locked};
use crate::{
    admin::{BacklogWatch, MessageBacklog},
    agent::Response,
    body::{Body, BodySender},
    clock,
    node::NodeInner,
};

/// Watches at once, of all programs.
pub(super) const MAX_BACKLOG_WATCHES: usize = 4096;

/// The shortest time between two lines of one watch.
const BETWEEN_LINES: Duration = Duration::from_millis(10);

/// One program watches one agent, until this is dropped.
struct WatchedBacklog {
    node: Arc<NodeInner>,
    agent: AgentName,
    changes: watch::Receiver<u64>,
    _place: OwnedSemaphorePermit,
}

impl WatchedBacklog {
    fn begin(node: &Arc<NodeInner>, agent: AgentName) -> Result<Self, Status> {
        let messages = &node.messages;
        let place = messages.backlog_places.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            let what = format!("all {MAX_BACKLOG_WATCHES} watches of what waits are in use");
            Status::new(Code::ResourceExhausted, what)
                .with_hint("end some of the programs that wait for messages (`hail serve ls`)")
        })?;
        let mut watches = locked(&messages.backlog_watches);
        locked(&messages.inbox).watch(&agent);
        let changes = watches.entry(agent.clone()).or_default().subscribe();
        drop(watches);
        Ok(Self {
            node: node.clone(),
            agent,
            changes,
            _place: place,
        })
    }

    /// Writes lines until nobody reads them, or the node ends.
    async fn tell(mut self, lines: BodySender) {
        let mut closing = self.node.lifecycle.closing.subscribe();
        let closing = async move {
            // The sender lives as long as the node.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        tokio::pin!(closing);
        let mut told = None;
        loop {
            self.changes.borrow_and_update();
            let now = clock::now();
            let backlog = locked(&self.node.messages.inbox).backlog(now, &self.agent);
            let row = MessageBacklog {
                ready: backlog.ready as u64,
                waiting: backlog.waiting as u64,
                in_hand: backlog.in_hand as u64,
                taken: backlog.taken,
            };
            if told != Some(row) {
                let mut line = serde_json::to_string(&row).unwrap_or_default();
                line.push('\n');
                if lines.send(line).await.is_err() {
                    return;
                }
                told = Some(row);
            }
            let changed = async {
                tokio::time::sleep(BETWEEN_LINES).await;
                tokio::select! {
                    // The sender lives as long as this.
                    _ = self.changes.changed() => {}
                    () = clock::reached(backlog.next_due) => {}
                }
            };
            tokio::select! {
                () = changed => {}
                () = lines.closed() => return,
                () = &mut closing => break,
            }
        }
        let why = Status::new(Code::Unavailable, "this node is shutting down");
        lines.abort(why).await;
    }
}

impl Drop for WatchedBacklog {
    fn drop(&mut self) {
        let messages = &self.node.messages;
        let mut watches = locked(&messages.backlog_watches);
        // This one still counts.
        let last = |changes: &watch::Sender<u64>| changes.receiver_count() <= 1;
        if watches.get(&self.agent).is_some_and(last) {
            watches.remove(&self.agent);
            locked(&messages.inbox).unwatch(&self.agent);
        }
    }
}

/// Tells a program of this machine what waits for an agent, now and whenever it has changed, for as long as it reads.
pub(in crate::node) fn watch_backlog(
    node: &Arc<NodeInner>,
    request: &BacklogWatch,
) -> Result<Response, Status> {
    let agent = super::agent_named(&request.agent)?;
    let watched = WatchedBacklog::begin(node, agent)?;
    let (sender, body) = Body::channel(1);
    // It ends with its reader, or with the node.
    tokio::spawn(watched.tell(sender));
    Ok(Response::new(body).content_type("application/x-ndjson"))
}

impl Messages {
    /// Tells those who watch what has changed.
    pub(super) fn tell_watches(&self, changed: Vec<AgentName>) {
        if changed.is_empty() {
            return;
        }
        let watches = locked(&self.backlog_watches);
        for agent in changed {
            if let Some(changes) = watches.get(&agent) {
                changes.send_modify(|number| *number += 1);
            }
        }
    }
}
