//! What a peer may call here, and which of this node's bare calls it may take.
//!
//! A grant only ever becomes wider because this node's user said so about that very peer. A ticket is
//! said about whoever comes, and a hub's word about all its members, so neither widens what a peer that is
//! trusted already may call.
//!
//! A bare call names no node. Whoever takes it reads its body, so a peer takes one only if it may
//! call everything here, which is how this user's own machines trust each other, or if this user
//! asked for it by name (`--offer`).

use hailwire_wire::{AgentName, Code, Status};

/// How a user writes "every agent".
const EVERY: &str = "*";

/// Which agents of this node a peer may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Every agent, also those that come later.
    All,
    /// These and no other.
    Only(Vec<AgentName>),
}

impl Grant {
    /// Whether it covers an agent.
    #[must_use]
    pub fn allows(&self, agent: &AgentName) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(agent),
        }
    }

    /// What names in a ticket, a request or the database mean: none are all.
    pub fn of(names: Vec<AgentName>) -> Self {
        if names.is_empty() {
            Self::All
        } else {
            Self::Only(names)
        }
    }

    /// The names, as [`Grant::of`] takes them and the documented JSON has them; none for all.
    pub fn names(&self) -> &[AgentName] {
        match self {
            Self::All => &[],
            Self::Only(names) => names,
        }
    }

    fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::All) => true,
            (Self::All, Self::Only(_)) => false,
            (Self::Only(names), other) => names.iter().all(|name| other.allows(name)),
        }
    }
}

/// What is said of what a peer may call when it becomes trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantTerms {
    /// By this node's user, of this very peer: it holds as it is.
    Stated(Grant),
    /// Of whoever comes: by a ticket, a hub, or by saying nothing. It never widens.
    Offered(Grant),
}

/// What a peer may call from now on. Where neither the old nor what is offered lies within the
/// other, the old stays.
pub fn settle(known: Option<&Grant>, terms: GrantTerms) -> Grant {
    match (known, terms) {
        (_, GrantTerms::Stated(grant)) => grant,
        (Some(known), GrantTerms::Offered(grant)) if !grant.is_within(known) => known.clone(),
        (_, GrantTerms::Offered(grant)) => grant,
    }
}

/// Which bare calls of this node a peer may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BareCalls {
    /// All if it may call everything here, else none.
    #[default]
    ByGrant,
    /// Those of these names and no other.
    Named(Vec<AgentName>),
}

impl BareCalls {
    /// What names in a request or the database mean: none say nothing.
    #[must_use]
    pub fn of(names: Vec<AgentName>) -> Self {
        if names.is_empty() {
            Self::ByGrant
        } else {
            Self::Named(names)
        }
    }

    /// The names, as [`BareCalls::of`] takes them.
    #[must_use]
    pub fn names(&self) -> &[AgentName] {
        match self {
            Self::ByGrant => &[],
            Self::Named(names) => names,
        }
    }
}

/// Whether a peer with this grant may take a bare call of `agent`.
pub fn takes_bare(grant: &Grant, bare: &BareCalls, agent: &AgentName) -> bool {
    match bare {
        BareCalls::ByGrant => *grant == Grant::All,
        BareCalls::Named(names) => names.contains(agent),
    }
}

/// What a user said with `--allow`: nothing, every agent, or some.
///
/// # Errors
///
/// `invalid_argument`: a text is no agent's name, or `*` stands beside names.
pub fn stated(texts: &[String]) -> Result<Option<Grant>, Status> {
    if texts.iter().any(|text| text == EVERY) {
        return match texts {
            [_] => Ok(Some(Grant::All)),
            _ => Err(Status::new(
                Code::InvalidArgument,
                "`*` allows every agent and stands alone",
            )),
        };
    }
    let names = agent_names(texts)?;
    Ok((!names.is_empty()).then_some(Grant::Only(names)))
}

/// Parses what was typed as agent names; each counts once.
///
/// # Errors
///
/// `invalid_argument`: a text is no agent's name.
pub fn agent_names(texts: &[String]) -> Result<Vec<AgentName>, Status> {
    let mut names = Vec::new();
    for text in texts {
        let name: AgentName = text
            .parse()
            .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> AgentName {
        text.parse().unwrap()
    }

    fn only(names: &[&str]) -> Grant {
        Grant::Only(names.iter().map(|text| name(text)).collect())
    }

    #[test]
    fn what_is_offered_never_widens_and_what_is_said_holds() {
        let settled =
            |known: &Grant, offered: Grant| settle(Some(known), GrantTerms::Offered(offered));
        assert_eq!(settled(&only(&["echo"]), Grant::All), only(&["echo"]));
        assert_eq!(settled(&only(&["echo"]), only(&["grep"])), only(&["echo"]));
        let both = only(&["echo", "grep"]);
        assert_eq!(settled(&both, only(&["grep"])), only(&["grep"]));
        assert_eq!(settled(&only(&["grep"]), both.clone()), only(&["grep"]));
        assert_eq!(settled(&Grant::All, only(&["grep"])), only(&["grep"]));
        assert_eq!(settle(None, GrantTerms::Offered(Grant::All)), Grant::All);
        let said = settle(Some(&only(&["echo"])), GrantTerms::Stated(Grant::All));
        assert_eq!(said, Grant::All);
        // Whatever the two are, the outcome lies within what was.
        let nothing = Grant::Only(Vec::new());
        let grants = [Grant::All, nothing, only(&["echo"]), only(&["grep"]), both];
        for known in &grants {
            for offered in &grants {
                assert!(settled(known, offered.clone()).is_within(known));
            }
        }
    }

    #[test]
    fn a_bare_call_goes_to_the_unrestricted_and_to_whoever_was_asked_for() {
        let asked = BareCalls::Named(vec![name("grep")]);
        let takes =
            |grant: &Grant, bare: &BareCalls, agent: &str| takes_bare(grant, bare, &name(agent));
        assert!(takes(&Grant::All, &BareCalls::ByGrant, "grep"));
        assert!(!takes(&only(&["grep"]), &BareCalls::ByGrant, "grep"));
        assert!(takes(&only(&["other"]), &asked, "grep"));
        assert!(!takes(&Grant::All, &asked, "sha256"));
    }

    #[test]
    fn a_user_says_nothing_everything_or_some() {
        let texts = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
            stated(&texts)
        };
        assert_eq!(texts(&[]).unwrap(), None);
        assert_eq!(texts(&["*"]).unwrap(), Some(Grant::All));
        assert_eq!(texts(&["grep", "grep"]).unwrap(), Some(only(&["grep"])));
        assert!(texts(&["*", "grep"]).is_err() && texts(&["Grep"]).is_err());
    }

    #[test]
    fn names_are_as_a_grant_takes_them_and_none_are_all() {
        let names = vec![name("echo"), name("grep")];
        assert_eq!(Grant::of(Vec::new()), Grant::All);
        assert!(Grant::All.names().is_empty() && Grant::All.allows(&name("echo")));
        let some = Grant::of(names.clone());
        assert_eq!(some.names(), names);
        assert!(some.allows(&name("grep")) && !some.allows(&name("else")));
        assert_eq!(BareCalls::of(Vec::new()), BareCalls::ByGrant);
        assert!(BareCalls::ByGrant.names().is_empty());
        assert_eq!(BareCalls::of(names.clone()).names(), names);
    }

    #[test]
    fn what_is_no_name_is_refused_in_words_that_name_it() {
        let refused = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
            stated(&texts).unwrap_err()
        };
        assert_eq!(refused(&["ok", "Not Ok"]).code, Code::InvalidArgument);
        let alone = refused(&["grep", "*"]);
        assert_eq!(alone.code, Code::InvalidArgument);
        assert!(alone.message.contains("stands alone"), "{alone}");
        let each_once = agent_names(&["b", "a", "b"].map(String::from)).unwrap();
        assert_eq!(each_once, [name("b"), name("a")]);
    }
}
