//! Which node a name means.
//!
//! Four may have given a name, and they count in this order: this node's own user, for this node and
//! for its peers; a hub that this node joined; last the peer itself. A name that a peer gave itself
//! never stands before one of the others, so it counts only once the hubs have said that they gave the
//! name to nobody. What a hub said is remembered: while it is away its last word counts, and a name
//! of which it never spoke is not guessed.

use std::time::Duration;

use foldhash::HashMap;
use hailwire_wire::{NodeId, NodeName};

/// Names whose standing at the hubs is remembered; the longest unasked is forgotten first.
pub const MAX_HUB_NAMES: usize = 1024;

/// How long what a hub said counts while it could be asked again.
const ANSWER_FRESH_FOR: Duration = Duration::from_secs(60);

/// How long it counts that a name is nobody's: until then a peer has it that gave it itself.
const NOBODY_FRESH_FOR: Duration = Duration::from_secs(5);

/// Who named a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// This node's user, with `--alias`.
    User,
    /// The peer, or a hub that vouched for it.
    Peer,
}

impl NamedBy {
    /// Its name in the database and in the documented JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Peer => "peer",
        }
    }
}

/// What is known of a name.
#[derive(Clone, Copy, Debug)]
pub struct NameFacts {
    /// The peer to which this user gave it.
    pub by_user: Option<NodeId>,
    /// What the hubs say of it.
    pub at_hubs: HubView,
    /// The peer that gave it itself.
    pub by_peer: Option<NodeId>,
}

/// What the hubs say of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubView {
    /// They gave it to this node.
    Holder(NodeId),
    /// They gave it to a node that is away, and do not say to which.
    Away,
    /// They gave it to nobody, or this node is in no hub.
    Nobody,
    /// They have not been asked, or not for a while.
    Unasked,
    /// They do not answer and never spoke of it.
    Silent,
}

/// What the hubs said of a name when they were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubAnswer {
    /// They gave it to this node.
    Holder(NodeId),
    /// They gave it to a node that is away.
    Away,
    /// They gave it to nobody.
    Nobody,
}

impl From<HubAnswer> for HubView {
    fn from(said: HubAnswer) -> Self {
        match said {
            HubAnswer::Holder(id) => Self::Holder(id),
            HubAnswer::Away => Self::Away,
            HubAnswer::Nobody => Self::Nobody,
        }
    }
}

/// Which node a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameResolution {
    /// This one.
    Node(NodeId),
    /// The hubs have to be asked first.
    Ask,
    /// A peer gave itself that name, and the hubs cannot say whether it is another's.
    Unsure(NodeId),
    /// A node that is away.
    Away,
    /// None that is known.
    Nobody,
}

/// Which node a name means of which this is known.
pub fn resolve(known: NameFacts) -> NameResolution {
    if let Some(id) = known.by_user {
        return NameResolution::Node(id);
    }
    match (known.at_hubs, known.by_peer) {
        (HubView::Holder(id), _) | (HubView::Nobody, Some(id)) => NameResolution::Node(id),
        (HubView::Unasked, _) => NameResolution::Ask,
        (HubView::Away, _) => NameResolution::Away,
        (HubView::Silent, Some(id)) => NameResolution::Unsure(id),
        (HubView::Nobody | HubView::Silent, None) => NameResolution::Nobody,
    }
}

/// What the hubs said of names, and when.
#[derive(Debug, Default)]
pub struct HubNames(HashMap<NodeName, HubNameEntry>);

#[derive(Clone, Copy, Debug)]
struct HubNameEntry {
    said: HubAnswer,
    /// When the hubs were asked last, since the node's start; `None` before it.
    asked: Option<Duration>,
}

impl HubNames {
    /// What was remembered of an earlier run: it counts while the hubs are away.
    pub fn restore(words: impl IntoIterator<Item = (NodeName, HubAnswer)>) -> Self {
        let old = |(name, said)| (name, HubNameEntry { said, asked: None });
        Self(words.into_iter().take(MAX_HUB_NAMES).map(old).collect())
    }

    /// What the hubs say of a name, by what they said last. `away` says that none answers now.
    pub fn word(&self, name: &NodeName, away: bool, now: Duration) -> HubView {
        let Some(word) = self.0.get(name) else {
            return HubView::Unasked;
        };
        let long = match word.said {
            HubAnswer::Nobody => NOBODY_FRESH_FOR,
            HubAnswer::Holder(_) | HubAnswer::Away => ANSWER_FRESH_FOR,
        };
        let fresh = |asked: Duration| now.saturating_sub(asked) < long;
        if away || word.asked.is_some_and(fresh) {
            return word.said.into();
        }
        HubView::Unasked
    }

    /// Notes what the hubs answered. Gives what has to be written down: whether this is news, and
    /// which name gives way.
    pub fn answered(&mut self, name: &NodeName, said: HubAnswer, now: Duration) -> HubNameChange {
        let mut forgotten = None;
        if !self.0.contains_key(name) && self.0.len() >= MAX_HUB_NAMES {
            let oldest = self.0.iter().min_by_key(|(_, word)| word.asked);
            forgotten = oldest.map(|(name, _)| name.clone());
        }
        if let Some(name) = &forgotten {
            self.0.remove(name);
        }
        let asked = Some(now);
        let before = self.0.insert(name.clone(), HubNameEntry { said, asked });
        HubNameChange {
            changed: before.is_none_or(|before| before.said != said),
            forgotten,
        }
    }

    /// Notes that the hubs did not answer: what they said last counts for a while, so that not every
    /// call waits for them.
    pub fn unanswered(&mut self, name: &NodeName, now: Duration) -> HubView {
        match self.0.get_mut(name) {
            Some(word) => {
                word.asked = Some(now);
                word.said.into()
            }
            None => HubView::Silent,
        }
    }
}

/// What [`HubNames::answered`] changed.
#[derive(Debug, PartialEq, Eq)]
pub struct HubNameChange {
    /// Whether they had not said the same before.
    pub changed: bool,
    /// The name that made way for it.
    pub forgotten: Option<NodeName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 32])
    }

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn this_user_counts_before_a_hub_and_a_hub_before_the_peer_itself() {
        let (user, hub, peer) = (id(1), id(2), id(3));
        let mut known = NameFacts {
            by_user: Some(user),
            at_hubs: HubView::Holder(hub),
            by_peer: Some(peer),
        };
        assert_eq!(resolve(known), NameResolution::Node(user));
        known.by_user = None;
        assert_eq!(resolve(known), NameResolution::Node(hub));
        known.at_hubs = HubView::Unasked;
        assert_eq!(resolve(known), NameResolution::Ask);
        known.at_hubs = HubView::Silent;
        assert_eq!(resolve(known), NameResolution::Unsure(peer));
        known.at_hubs = HubView::Away;
        assert_eq!(resolve(known), NameResolution::Away);
        known.at_hubs = HubView::Nobody;
        assert_eq!(resolve(known), NameResolution::Node(peer));
        known.by_peer = None;
        assert_eq!(resolve(known), NameResolution::Nobody);
        known.at_hubs = HubView::Silent;
        assert_eq!(resolve(known), NameResolution::Nobody);
    }

    #[test]
    fn a_hubs_word_is_asked_for_again_and_its_last_one_counts_while_it_is_away() {
        let (z, start) = (name("z"), Duration::ZERO);
        let mut heard = HubNames::default();
        assert_eq!(heard.word(&z, false, start), HubView::Unasked);
        assert_eq!(heard.unanswered(&z, start), HubView::Silent);
        assert!(heard.answered(&z, HubAnswer::Holder(id(2)), start).changed);
        assert!(!heard.answered(&z, HubAnswer::Holder(id(2)), start).changed);
        let later = ANSWER_FRESH_FOR + Duration::from_secs(1);
        assert_eq!(heard.word(&z, false, start), HubView::Holder(id(2)));
        assert_eq!(heard.word(&z, false, later), HubView::Unasked);
        assert_eq!(heard.word(&z, true, later), HubView::Holder(id(2)));
        // It is asked, does not answer, and the next call does not wait for it.
        assert_eq!(heard.unanswered(&z, later), HubView::Holder(id(2)));
        assert_eq!(heard.word(&z, false, later), HubView::Holder(id(2)));
        // That it is nobody's is asked for soonest.
        heard.answered(&z, HubAnswer::Nobody, later);
        assert_eq!(heard.word(&z, false, later), HubView::Nobody);
        assert_eq!(
            heard.word(&z, false, later + NOBODY_FRESH_FOR),
            HubView::Unasked
        );
        let restored = HubNames::restore([(z.clone(), HubAnswer::Nobody)]);
        assert_eq!(restored.word(&z, false, start), HubView::Unasked);
        assert_eq!(restored.word(&z, true, start), HubView::Nobody);
    }

    #[test]
    fn remembered_names_are_bounded_and_the_longest_unasked_gives_way() {
        let mut heard = HubNames::default();
        for n in 0..=MAX_HUB_NAMES as u64 {
            let news = heard.answered(
                &name(&format!("n{n}")),
                HubAnswer::Nobody,
                Duration::from_secs(n),
            );
            let expected = (n == MAX_HUB_NAMES as u64).then(|| name("n0"));
            assert_eq!(news.forgotten, expected, "{n}");
        }
        assert_eq!(heard.0.len(), MAX_HUB_NAMES);
    }

    #[test]
    fn who_named_a_peer_is_written_as_the_documents_have_it() {
        assert_eq!(
            [NamedBy::User, NamedBy::Peer].map(NamedBy::name),
            ["user", "peer"]
        );
    }
}
