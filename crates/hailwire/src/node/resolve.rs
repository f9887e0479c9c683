//! Which node is meant: the names that are known here, and what the hubs say of them.
//!
//! [`hailwire_core::names`] decides; here the hubs are asked, and what they said is kept.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use hailwire_core::names::{HubAnswer, HubView, NameFacts, NameResolution, NamedBy, resolve};
use hailwire_wire::{Code, NodeId, NodeName, Status, address::NodeRef};

use super::Inner;
use crate::hub::Holder;

/// How long a hub may take to say who holds a name.
const PATIENCE: Duration = Duration::from_secs(5);

impl Inner {
    /// Which node a reference means, if that can be told without asking anybody.
    pub(super) fn meant_now(&self, node: &NodeRef) -> Option<NodeId> {
        match node {
            NodeRef::Id(id) => Some(*id),
            NodeRef::Name(_) if self.is_me(node) => Some(self.id),
            NodeRef::Name(name) => match self.meant(name, self.hub_word(name)) {
                NameResolution::Node(id) => Some(id),
                NameResolution::Ask
                | NameResolution::Unsure(_)
                | NameResolution::Away
                | NameResolution::Nobody => None,
            },
        }
    }

    /// The key of the node that a reference means.
    pub(crate) async fn resolve(self: &Arc<Self>, node: &NodeRef) -> Result<NodeId, Status> {
        if let Some(id) = self.meant_now(node) {
            return Ok(id);
        }
        let NodeRef::Name(name) = node else {
            return Err(unknown(node));
        };
        let mut outcome = self.meant(name, self.hub_word(name));
        if outcome == NameResolution::Ask {
            let word = self.ask_hubs_who_is(name).await;
            outcome = self.meant(name, word);
        }
        match outcome {
            NameResolution::Node(id) => Ok(id),
            NameResolution::Unsure(id) => Err(unsure(name, id)),
            NameResolution::Away => Err(Status::new(
                Code::Unavailable,
                format!("the hub gave the name `{name}` to a node that is away"),
            )
            .with_hint(
                "call it by its key, or give a name of your own: `hail trust add KEY --alias NAME`",
            )),
            NameResolution::Ask | NameResolution::Nobody => Err(unknown(node)),
        }
    }

    /// Has the hubs say of a name that a peer gave itself whether it is another's, ahead of the first
    /// call to it.
    pub(super) fn ask_ahead(self: &Arc<Self>, name: Option<NodeName>) {
        let Some(name) = name else { return };
        if self.hub_word(&name) == HubView::Unasked {
            let node = self.clone();
            tokio::spawn(async move { node.ask_hubs_who_is(&name).await });
        }
    }

    fn meant(&self, name: &NodeName, at_hubs: HubView) -> NameResolution {
        let (mut by_user, mut by_peer) = (None, None);
        match self.trust.named(name) {
            Some((id, NamedBy::User)) => by_user = Some(id),
            Some((id, NamedBy::Peer)) => by_peer = Some(id),
            None => {}
        }
        resolve(NameFacts {
            by_user,
            at_hubs,
            by_peer,
        })
    }

    /// What the hubs said of a name, as far as that still counts.
    fn hub_word(&self, name: &NodeName) -> HubView {
        let Some(away) = self.hubs.are_away() else {
            return HubView::Nobody;
        };
        let heard = self.hubs.heard.lock();
        let heard = heard.unwrap_or_else(PoisonError::into_inner);
        heard.word(name, away, self.started.elapsed())
    }

    async fn ask_hubs_who_is(&self, name: &NodeName) -> HubView {
        let mut said = Some(HubAnswer::Nobody);
        for hub in self.hubs.all() {
            let answer = tokio::time::timeout(PATIENCE, hub.client().holder(name)).await;
            match answer {
                Ok(Ok(Holder::Node(id))) => {
                    said = Some(HubAnswer::Holder(id));
                    break;
                }
                Ok(Ok(Holder::Away)) => said = Some(HubAnswer::Away),
                Ok(Ok(Holder::Nobody)) => {}
                Ok(Err(_)) | Err(_) => said = said.filter(|said| *said == HubAnswer::Away),
            }
        }
        let now = self.started.elapsed();
        let heard = self.hubs.heard.lock();
        let mut heard = heard.unwrap_or_else(PoisonError::into_inner);
        let Some(said) = said else {
            return heard.unanswered(name, now);
        };
        let news = heard.answered(name, said, now);
        let store = self.trust.store();
        let kept = match news.changed {
            true => store.put_heard(name, said),
            false => Ok(()),
        };
        let forgotten = news
            .forgotten
            .map_or(Ok(()), |name| store.forget_heard(&name));
        if let Err(error) = kept.and(forgotten) {
            tracing::warn!(%name, %error, "what a hub said of a name could not be kept");
        }
        said.into()
    }
}

fn unknown(node: &NodeRef) -> Status {
    Status::new(Code::NotFound, format!("no node `{node}` is known here"))
        .with_hint("`hail trust ls` lists the peers, `hail join TICKET` adds one")
}

fn unsure(name: &NodeName, id: NodeId) -> Status {
    let what = format!(
        "a peer calls itself `{name}`, and no hub answers whether that name is another node's"
    );
    Status::new(Code::Unavailable, what).with_hint(format!(
        "if you mean {id}, give it the name yourself: `hail trust add {id} --alias {name}`"
    ))
}
