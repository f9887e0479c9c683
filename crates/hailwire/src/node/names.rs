//! Which node a name means: pure.
//!
//! Four may have given a name, and they count in this order: this node's own user, for this node and
//! for its peers; a hub that this node joined; last the peer itself. A name that a peer gave itself
//! never stands before one of the others, so it counts only once the hubs have said that they gave the
//! name to nobody. What a hub said is remembered: while it is away its last word counts, and a name
//! of which it never spoke is not guessed.

use std::{collections::HashMap, time::Duration};

use hailwire_wire::{NodeId, NodeName};

/// Names whose standing at the hubs is remembered; the longest unasked is forgotten first.
pub(crate) const MAX_HEARD: usize = 1024;

/// How long what a hub said counts while it could be asked again.
const FRESH: Duration = Duration::from_secs(60);

/// How long it counts that a name is nobody's: until then a peer has it that gave it itself.
const FRESH_NOBODY: Duration = Duration::from_secs(5);

/// Who named a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedBy {
    /// This node's user, with `--alias`.
    User,
    /// The peer, or a hub that vouched for it.
    Peer,
}

impl NamedBy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Peer => "peer",
        }
    }
}

/// What is known of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// The peer to which this user gave it.
    pub(crate) by_user: Option<NodeId>,
    pub(crate) at_hubs: HubWord,
    /// The peer that gave it itself.
    pub(crate) by_peer: Option<NodeId>,
}

/// What the hubs say of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HubWord {
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
pub(crate) enum Said {
    Holder(NodeId),
    Away,
    Nobody,
}

impl From<Said> for HubWord {
    fn from(said: Said) -> Self {
        match said {
            Said::Holder(id) => Self::Holder(id),
            Said::Away => Self::Away,
            Said::Nobody => Self::Nobody,
        }
    }
}

/// Which node a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meant {
    Node(NodeId),
    /// The hubs have to be asked first.
    Ask,
    /// A peer gave itself that name, and the hubs cannot say whether it is another's.
    Unsure(NodeId),
    /// A node that is away.
    Away,
    Nobody,
}

/// Which node is meant by a name of which this is known.
pub(crate) fn meant(known: Standing) -> Meant {
    if let Some(id) = known.by_user {
        return Meant::Node(id);
    }
    match (known.at_hubs, known.by_peer) {
        (HubWord::Holder(id), _) | (HubWord::Nobody, Some(id)) => Meant::Node(id),
        (HubWord::Unasked, _) => Meant::Ask,
        (HubWord::Away, _) => Meant::Away,
        (HubWord::Silent, Some(id)) => Meant::Unsure(id),
        (HubWord::Nobody | HubWord::Silent, None) => Meant::Nobody,
    }
}

/// What the hubs said of names, and when.
#[derive(Debug, Default)]
pub(crate) struct Heard(HashMap<NodeName, Word>);

#[derive(Clone, Copy, Debug)]
struct Word {
    said: Said,
    /// When the hubs were asked last, since the node's start; `None` before it.
    asked: Option<Duration>,
}

impl Heard {
    /// What was remembered of an earlier run: it counts while the hubs are away.
    pub(crate) fn restore(words: impl IntoIterator<Item = (NodeName, Said)>) -> Self {
        let old = |(name, said)| (name, Word { said, asked: None });
        Self(words.into_iter().take(MAX_HEARD).map(old).collect())
    }

    /// What the hubs say of a name, by what they said last. `away` says that none answers now.
    pub(crate) fn word(&self, name: &NodeName, away: bool, now: Duration) -> HubWord {
        let Some(word) = self.0.get(name) else {
            return HubWord::Unasked;
        };
        let long = match word.said {
            Said::Nobody => FRESH_NOBODY,
            Said::Holder(_) | Said::Away => FRESH,
        };
        let fresh = |asked: Duration| now.saturating_sub(asked) < long;
        if away || word.asked.is_some_and(fresh) {
            return word.said.into();
        }
        HubWord::Unasked
    }

    /// Notes what the hubs answered. Gives what has to be written down: whether this is news, and
    /// which name gives way.
    pub(crate) fn answered(&mut self, name: &NodeName, said: Said, now: Duration) -> News {
        let mut forgotten = None;
        if !self.0.contains_key(name) && self.0.len() >= MAX_HEARD {
            let oldest = self.0.iter().min_by_key(|(_, word)| word.asked);
            forgotten = oldest.map(|(name, _)| name.clone());
        }
        if let Some(name) = &forgotten {
            self.0.remove(name);
        }
        let asked = Some(now);
        let before = self.0.insert(name.clone(), Word { said, asked });
        News {
            changed: before.is_none_or(|before| before.said != said),
            forgotten,
        }
    }

    /// Notes that the hubs did not answer: what they said last counts for a while, so that not every
    /// call waits for them.
    pub(crate) fn unanswered(&mut self, name: &NodeName, now: Duration) -> HubWord {
        match self.0.get_mut(name) {
            Some(word) => {
                word.asked = Some(now);
                word.said.into()
            }
            None => HubWord::Silent,
        }
    }
}

/// What [`Heard::answered`] changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) changed: bool,
    pub(crate) forgotten: Option<NodeName>,
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
        let mut known = Standing {
            by_user: Some(user),
            at_hubs: HubWord::Holder(hub),
            by_peer: Some(peer),
        };
        assert_eq!(meant(known), Meant::Node(user));
        known.by_user = None;
        assert_eq!(meant(known), Meant::Node(hub));
        known.at_hubs = HubWord::Unasked;
        assert_eq!(meant(known), Meant::Ask);
        known.at_hubs = HubWord::Silent;
        assert_eq!(meant(known), Meant::Unsure(peer));
        known.at_hubs = HubWord::Away;
        assert_eq!(meant(known), Meant::Away);
        known.at_hubs = HubWord::Nobody;
        assert_eq!(meant(known), Meant::Node(peer));
        known.by_peer = None;
        assert_eq!(meant(known), Meant::Nobody);
        known.at_hubs = HubWord::Silent;
        assert_eq!(meant(known), Meant::Nobody);
    }

    #[test]
    fn a_hubs_word_is_asked_for_again_and_its_last_one_counts_while_it_is_away() {
        let (z, start) = (name("z"), Duration::ZERO);
        let mut heard = Heard::default();
        assert_eq!(heard.word(&z, false, start), HubWord::Unasked);
        assert_eq!(heard.unanswered(&z, start), HubWord::Silent);
        assert!(heard.answered(&z, Said::Holder(id(2)), start).changed);
        assert!(!heard.answered(&z, Said::Holder(id(2)), start).changed);
        let later = FRESH + Duration::from_secs(1);
        assert_eq!(heard.word(&z, false, start), HubWord::Holder(id(2)));
        assert_eq!(heard.word(&z, false, later), HubWord::Unasked);
        assert_eq!(heard.word(&z, true, later), HubWord::Holder(id(2)));
        // It is asked, does not answer, and the next call does not wait for it.
        assert_eq!(heard.unanswered(&z, later), HubWord::Holder(id(2)));
        assert_eq!(heard.word(&z, false, later), HubWord::Holder(id(2)));
        // That it is nobody's is asked for soonest.
        heard.answered(&z, Said::Nobody, later);
        assert_eq!(heard.word(&z, false, later), HubWord::Nobody);
        assert_eq!(
            heard.word(&z, false, later + FRESH_NOBODY),
            HubWord::Unasked
        );
        let restored = Heard::restore([(z.clone(), Said::Nobody)]);
        assert_eq!(restored.word(&z, false, start), HubWord::Unasked);
        assert_eq!(restored.word(&z, true, start), HubWord::Nobody);
    }

    #[test]
    fn remembered_names_are_bounded_and_the_longest_unasked_gives_way() {
        let mut heard = Heard::default();
        for n in 0..=MAX_HEARD as u64 {
            let news = heard.answered(
                &name(&format!("n{n}")),
                Said::Nobody,
                Duration::from_secs(n),
            );
            let expected = (n == MAX_HEARD as u64).then(|| name("n0"));
            assert_eq!(news.forgotten, expected, "{n}");
        }
        assert_eq!(heard.0.len(), MAX_HEARD);
    }
}
