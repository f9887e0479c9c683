//! Which node is meant: the names that are known here, and what the hubs say of them.
//!
//! [`hailwire_core::names`] decides; here the hubs are asked, and what they said is kept.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hailwire_core::names::{self, HubAnswer, HubView, NameFacts, NameResolution, NamedBy};
use hailwire_wire::{Code, NodeId, NodeName, Status, address::NodeRef};

use tokio::sync::OnceCell;

use super::NodeInner;
use crate::hub::NameHolder;

/// How long a hub may take to say who holds a name.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which node a reference means, if that can be told without asking anybody.
pub(super) fn meant_now(node: &NodeInner, who: &NodeRef) -> Option<NodeId> {
    match who {
        NodeRef::Id(id) => Some(*id),
        NodeRef::Name(name) if node.config().node.name.as_ref() == Some(name) => Some(node.id()),
        NodeRef::Name(name) => match meant(node, name, hub_word(node, name)) {
            NameResolution::Node(id) => Some(id),
            NameResolution::Ask
            | NameResolution::Unsure(_)
            | NameResolution::Away
            | NameResolution::Nobody => None,
        },
    }
}

/// The key of the node that a reference means.
pub(crate) async fn resolve(node: &Arc<NodeInner>, who: &NodeRef) -> Result<NodeId, Status> {
    if let Some(id) = meant_now(node, who) {
        return Ok(id);
    }
    let NodeRef::Name(name) = who else {
        return Err(unknown(who));
    };
    let mut outcome = meant(node, name, hub_word(node, name));
    if outcome == NameResolution::Ask {
        let word = NameQuestion::join(node, name).answer().await;
        outcome = meant(node, name, word);
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
        NameResolution::Ask | NameResolution::Nobody => Err(match node.hubs.silent().as_slice() {
            [] => unknown(who),
            silent => unanswered(name, silent),
        }),
    }
}

/// Has the hubs say of a name that a peer gave itself whether it is another's, ahead of the first
/// call to it.
pub(super) fn ask_ahead(node: &Arc<NodeInner>, name: Option<NodeName>) {
    let Some(name) = name else { return };
    if hub_word(node, &name) == HubView::Unasked {
        let node = node.clone();
        tokio::spawn(async move { NameQuestion::join(&node, &name).answer().await });
    }
}

fn meant(node: &NodeInner, name: &NodeName, at_hubs: HubView) -> NameResolution {
    let (mut by_user, mut by_peer) = (None, None);
    match node.trust.named(name) {
        Some((id, NamedBy::User)) => by_user = Some(id),
        Some((id, NamedBy::Peer)) => by_peer = Some(id),
        None => {}
    }
    names::resolve(NameFacts {
        by_user,
        at_hubs,
        by_peer,
    })
}

/// What the hubs said of a name, as far as that still counts.
fn hub_word(node: &NodeInner, name: &NodeName) -> HubView {
    let Some(away) = node.hubs.are_away() else {
        return HubView::Nobody;
    };
    let heard = node.hubs.names.lock();
    let heard = heard.unwrap_or_else(PoisonError::into_inner);
    heard.word(name, away, node.lifecycle.started.elapsed())
}

/// What the hubs are being asked. A thousand calls to a name that nobody has asked for yet are one question.
#[derive(Debug, Default)]
pub(super) struct NameQuestions(Mutex<HashMap<NodeName, Arc<OnceCell<HubView>>>>);

impl NameQuestions {
    fn locked(&self) -> MutexGuard<'_, HashMap<NodeName, Arc<OnceCell<HubView>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of those who wait for the same answer. The last one to go takes the question along.
struct NameQuestion<'a> {
    node: &'a NodeInner,
    name: &'a NodeName,
    answer: Arc<OnceCell<HubView>>,
}

impl<'a> NameQuestion<'a> {
    fn join(node: &'a NodeInner, name: &'a NodeName) -> Self {
        let mut questions = node.hubs.questions.locked();
        let answer = questions.entry(name.clone()).or_default().clone();
        Self { node, name, answer }
    }

    /// Asks, or waits for whoever does; if that one is gone before the answer comes, another takes its place.
    async fn answer(&self) -> HubView {
        let ask = || async {
            // Whoever joined may have looked before the question ahead of this one was answered.
            match hub_word(self.node, self.name) {
                HubView::Unasked => ask_hubs_who_is(self.node, self.name).await,
                word => word,
            }
        };
        *self.answer.get_or_init(ask).await
    }
}

impl Drop for NameQuestion<'_> {
    fn drop(&mut self) {
        let mut questions = self.node.hubs.questions.locked();
        let same = |asked: &&Arc<OnceCell<HubView>>| Arc::ptr_eq(asked, &self.answer);
        // An answered question is not joined: what follows is asked anew when its answer is old.
        let over = self.answer.initialized() || Arc::strong_count(&self.answer) <= 2;
        if over && questions.get(self.name).filter(same).is_some() {
            questions.remove(self.name);
        }
    }
}

async fn ask_hubs_who_is(node: &NodeInner, name: &NodeName) -> HubView {
    let mut said = Some(HubAnswer::Nobody);
    for hub in node.hubs.all() {
        let answer = hub.asked(node, PATIENCE, hub.client().holder(name)).await;
        match answer {
            Ok(NameHolder::Node(id)) => {
                said = Some(HubAnswer::Holder(id));
                break;
            }
            Ok(NameHolder::Away) => said = Some(HubAnswer::Away),
            Ok(NameHolder::Nobody) => {}
            Err(_) => said = said.filter(|said| *said == HubAnswer::Away),
        }
    }
    let now = node.lifecycle.started.elapsed();
    let heard = node.hubs.names.lock();
    let mut heard = heard.unwrap_or_else(PoisonError::into_inner);
    let Some(said) = said else {
        return heard.unanswered(name, now);
    };
    let news = heard.answered(name, said, now);
    let store = node.trust.store();
    let kept = match news.changed {
        true => store.put_hub_answer(name, said),
        false => Ok(()),
    };
    let forgotten = news
        .forgotten
        .map_or(Ok(()), |name| store.forget_hub_answer(&name));
    if let Err(error) = kept.and(forgotten) {
        tracing::warn!(%name, %error, "what a hub said of a name could not be kept");
    }
    said.into()
}

fn unknown(who: &NodeRef) -> Status {
    Status::new(Code::NotFound, format!("no node `{who}` is known here"))
        .with_hint("`hail trust ls` lists the peers, `hail join TICKET` adds one")
}

/// A name that nobody here knows, while there are hubs that might.
fn unanswered(name: &NodeName, silent: &[String]) -> Status {
    let (hubs, verb) = match silent {
        [hub] => (format!("hub {hub}"), "does"),
        hubs => (format!("hubs {}", hubs.join(" and ")), "do"),
    };
    let what = format!("no node `{name}` is known here, and the {hubs} {verb} not answer");
    Status::new(Code::Unavailable, what)
        .with_hint("try again when it is back: `hail status` shows the hubs. By its key a peer that was met is called without them")
}

fn unsure(name: &NodeName, id: NodeId) -> Status {
    let what = format!(
        "a peer calls itself `{name}`, and no hub answers whether that name is another node's"
    );
    Status::new(Code::Unavailable, what).with_hint(format!(
        "if you mean {id}, give it the name yourself: `hail trust add {id} --alias {name}`"
    ))
}
