//! Where a call goes: delivered here, carried on to a node, searched for, or refused.
//!
//! [`RouteRequest::parse`] reads what a header asks for, and [`RouteRequest::decide`] says where that leads, by what is known without waiting. A
//! call from a peer goes to agents of this machine only, and only where the grants allow: nodes do not forward for one
//! another. A call that names no node is searched for ([`RouteSearch`]): it goes to a local member of the name if one has room,
//! else to a connected peer that offers it, else to a node that is asked for it.

use hailwire_wire::{
    Address, AgentName, CallHeader, Code, NodeId, Priority, Status, address::NodeRef,
};

use crate::Carrier;

/// Where a call came from, by the carrier that it came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOrigin {
    /// A program on this machine.
    Local,
    /// A peer, trusted or not.
    Peer(NodeId),
}

/// What a call's header asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRequest {
    /// Whom it is for.
    pub address: Address,
    /// The only carrier over which it may go, where it asks for one.
    pub carrier: Option<Carrier>,
    /// The only member of the group that takes it, by its number on its node; 0 for any.
    pub member: u64,
    /// What it has in common with the calls that are to go to the same member, if it says so.
    pub affinity: Option<String>,
    /// How urgent it is, where calls wait for a member.
    pub priority: Priority,
    /// It does no harm to make it twice, so it may travel in a first flight.
    pub replayable: bool,
}

/// Where a call goes, as far as that is known without waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteDecision {
    /// To an agent of this machine.
    Deliver,
    /// To this node; its tunnel is brought up if need be.
    Dial(NodeId),
    /// It names a node, and somebody has to be asked which that is.
    Resolve(NodeRef),
    /// It names no node: see [`RouteSearch`].
    Search,
}

impl RouteRequest {
    /// Reads a header. The carrier that a call from elsewhere asks for is no business of this node.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for an address that is none, or a word that is no carrier's.
    pub fn parse(header: &CallHeader, origin: CallOrigin) -> Result<Self, Status> {
        let address = header
            .to
            .parse()
            .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
        Ok(Self {
            address,
            carrier: requested_carrier(header, origin)?,
            member: header.member,
            affinity: Some(&header.affinity)
                .filter(|key| !key.is_empty())
                .cloned(),
            priority: header.priority,
            replayable: !header.idempotency_key.is_empty(),
        })
    }

    /// Where the call goes. `may_call` says whether a peer may call an agent here, `meant` which node a reference means, if that can be told without
    /// asking anybody; `me` is this node.
    ///
    /// # Errors
    ///
    /// What `may_call` says.
    pub fn decide(
        &self,
        origin: CallOrigin,
        me: NodeId,
        may_call: impl FnOnce(NodeId, &AgentName) -> Result<(), Status>,
        meant: impl FnOnce(&NodeRef) -> Option<NodeId>,
    ) -> Result<RouteDecision, Status> {
        if let CallOrigin::Peer(peer) = origin {
            // Whatever node it names: it came to this one.
            may_call(peer, &self.address.agent)?;
            return Ok(RouteDecision::Deliver);
        }
        let Some(node) = &self.address.node else {
            // A member's number means something on its own node alone.
            return Ok(match self.member {
                0 => RouteDecision::Search,
                _ => RouteDecision::Deliver,
            });
        };
        Ok(match meant(node) {
            Some(id) if id == me => RouteDecision::Deliver,
            Some(id) => RouteDecision::Dial(id),
            None => RouteDecision::Resolve(node.clone()),
        })
    }
}

/// The carrier that a call from this machine asks for; that of a call from elsewhere is none of ours.
///
/// # Errors
///
/// `invalid_argument` for a word that is no carrier's.
pub fn requested_carrier(
    header: &CallHeader,
    origin: CallOrigin,
) -> Result<Option<Carrier>, Status> {
    if header.carrier.is_empty() || origin != CallOrigin::Local {
        return Ok(None);
    }
    let carrier: Carrier = header.carrier.parse().map_err(|error| {
        let what = format!("`{}` is not a carrier: {error}", header.carrier);
        Status::new(Code::InvalidArgument, what)
    })?;
    Ok(Some(carrier).filter(|carrier| *carrier != Carrier::Auto))
}

/// What is to be done next for a call that names no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchAction {
    /// Pick a member of the name, and none of those that are left out.
    Pick,
    /// Ask nodes that are not connected whether they offer it.
    AskOthers,
    /// Bring up the tunnel to the peer that was picked.
    Dial(NodeId),
    /// The member that was picked takes it.
    Deliver,
    /// Nobody takes it.
    Refuse(Status),
}

/// Whom a pick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PickedMember {
    /// A handler or a program of this machine.
    Local,
    /// A peer that offers the agent.
    Peer(NodeId),
}

/// The search for whoever takes a call that names no node.
///
/// Each `handle_…` method is told how the action before went, and gives the next one. It ends with
/// [`SearchAction::Deliver`] or [`SearchAction::Refuse`] after at most `2 n + 3` actions, where `n` peers offer the name.
#[derive(Debug)]
pub struct RouteSearch {
    /// Whether the call asks for a carrier: then a peer that cannot be reached over it may be well.
    over_carrier: bool,
    asked: bool,
    /// Peers that cannot be reached.
    excluded: Vec<NodeId>,
    /// Why the carrier that was asked for led nowhere.
    unreached: Option<Status>,
}

impl RouteSearch {
    /// One that begins with [`SearchAction::Pick`].
    #[must_use]
    pub const fn new(carrier: Option<Carrier>) -> Self {
        Self {
            over_carrier: carrier.is_some(),
            asked: false,
            excluded: Vec::new(),
            unreached: None,
        }
    }

    /// Whom not to pick.
    #[must_use]
    pub fn excluded(&self) -> &[NodeId] {
        &self.excluded
    }

    /// A member was picked, or why there is none.
    pub fn handle_pick(&mut self, picked: Result<PickedMember, Status>) -> SearchAction {
        match picked {
            Ok(PickedMember::Local) => SearchAction::Deliver,
            Ok(PickedMember::Peer(id)) => SearchAction::Dial(id),
            Err(status) if status.code == Code::NotFound && !self.asked => {
                self.asked = true;
                SearchAction::AskOthers
            }
            Err(status) => SearchAction::Refuse(self.unreached.take().unwrap_or(status)),
        }
    }

    /// The others have been asked; those that offer the agent can be picked now.
    pub const fn handle_asked(&mut self) -> SearchAction {
        SearchAction::Pick
    }

    /// The tunnel to the peer that was picked is up, or why it is not. The second value says whether the peer failed as
    /// such, which its pool is to know.
    pub fn handle_dialled(
        &mut self,
        peer: NodeId,
        outcome: Result<(), Status>,
    ) -> (SearchAction, bool) {
        match outcome {
            Ok(()) => (SearchAction::Deliver, false),
            Err(status) => {
                self.excluded.push(peer);
                if self.over_carrier {
                    self.unreached = Some(status);
                }
                (SearchAction::Pick, !self.over_carrier)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, node};

    fn header(to: &str, carrier: &str) -> CallHeader {
        CallHeader {
            to: to.to_owned(),
            carrier: carrier.to_owned(),
            ..CallHeader::default()
        }
    }

    const PEER: u8 = 9;

    fn peer() -> CallOrigin {
        CallOrigin::Peer(node(PEER))
    }

    #[test]
    fn only_a_call_of_this_machine_chooses_its_carrier() {
        let asked = |carrier, origin| requested_carrier(&header("a", carrier), origin);
        assert_eq!(asked("h2", CallOrigin::Local), Ok(Some(Carrier::H2)));
        assert_eq!(asked("h2", peer()), Ok(None));
        assert_eq!(asked("smoke", peer()), Ok(None));
        for open in ["", "auto"] {
            assert_eq!(asked(open, CallOrigin::Local), Ok(None));
        }
        let refused = asked("smoke", CallOrigin::Local).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.contains("smoke"), "{refused}");
    }

    #[test]
    fn a_header_is_read_or_refused() {
        let parse = |to| RouteRequest::parse(&header(to, ""), CallOrigin::Local);
        assert_eq!(parse("no name").unwrap_err().code, Code::InvalidArgument);
        assert!(!parse("echo").unwrap().replayable);
        let once = CallHeader {
            idempotency_key: "k".to_owned(),
            ..header("echo@desk", "ws")
        };
        let request = RouteRequest::parse(&once, CallOrigin::Local).unwrap();
        assert!(request.replayable && request.address.node.is_some());
        assert_eq!(request.carrier, Some(Carrier::Ws));
    }

    #[test]
    fn a_call_for_one_member_that_names_no_node_stays_here() {
        let one = CallHeader {
            member: 3,
            ..header("echo", "")
        };
        let request = RouteRequest::parse(&one, CallOrigin::Local).unwrap();
        let nobody_asked = |_: NodeId, _: &AgentName| Ok(());
        let decision = request.decide(CallOrigin::Local, node(1), nobody_asked, |_| None);
        assert_eq!(decision, Ok(RouteDecision::Deliver));
    }

    #[test]
    fn a_call_goes_where_its_origin_and_its_address_say() {
        let me = node(1);
        let refused = || Status::new(Code::PermissionDenied, "no");
        let decide = |to: &str, origin, allowed: bool| {
            let request = RouteRequest::parse(&header(to, ""), origin).unwrap();
            let may_call = |_: NodeId, _: &AgentName| match allowed {
                true => Ok(()),
                false => Err(refused()),
            };
            let meant = |node_ref: &NodeRef| match node_ref {
                NodeRef::Name(name) if name.as_str() == "here" => Some(me),
                NodeRef::Name(name) if name.as_str() == "there" => Some(node(2)),
                _ => None,
            };
            request.decide(origin, me, may_call, meant)
        };
        let local = |to| decide(to, CallOrigin::Local, false).unwrap();
        assert_eq!(local("echo"), RouteDecision::Search);
        assert_eq!(local("echo@here"), RouteDecision::Deliver);
        assert_eq!(local("echo@there"), RouteDecision::Dial(node(2)));
        let unknown = NodeRef::Name("else".parse().unwrap());
        assert_eq!(local("echo@else"), RouteDecision::Resolve(unknown));
        // A peer's call stays here, whatever it says.
        for to in ["echo", "echo@here", "echo@there", "echo@else"] {
            assert_eq!(decide(to, peer(), true), Ok(RouteDecision::Deliver));
            assert_eq!(decide(to, peer(), false), Err(refused()));
        }
    }

    /// A name with local members and peers, some of them only found by asking, some not to be reached.
    fn follow(seed: u64) {
        let mut below = draws(seed, 23);
        let local = below(4) == 0;
        let carrier = (below(3) == 0).then_some(Carrier::H2);
        // Whether it is connected, and whether its tunnel comes up.
        let peers: Vec<(bool, bool)> = (0..below(6))
            .map(|_| (below(2) == 0, below(2) == 0))
            .collect();
        let mut search = RouteSearch::new(carrier);
        let (mut asked, mut failed, mut steps) = (false, 0, 0);
        let mut action = SearchAction::Pick;
        let end = loop {
            steps += 1;
            assert!(steps <= 2 * peers.len() + 4, "seed {seed}: it does not end");
            action = match action {
                SearchAction::Pick => {
                    let known = peers
                        .iter()
                        .enumerate()
                        .filter(|(_, (connected, _))| *connected || asked);
                    let id = |at: usize| node(at as u8 + 1);
                    let mut open = known.filter(|(at, _)| !search.excluded().contains(&id(*at)));
                    let picked = match (local, open.next()) {
                        (true, _) => Ok(PickedMember::Local),
                        (false, Some((at, _))) => Ok(PickedMember::Peer(id(at))),
                        (false, None) => Err(Status::new(Code::NotFound, "nobody")),
                    };
                    search.handle_pick(picked)
                }
                SearchAction::AskOthers => {
                    assert!(
                        !asked && !local,
                        "seed {seed}: asked once, and only where it helps"
                    );
                    asked = true;
                    search.handle_asked()
                }
                SearchAction::Dial(id) => {
                    let at = usize::from(id.as_bytes()[0]) - 1;
                    let outcome = match peers[at].1 {
                        true => Ok(()),
                        false => Err(Status::new(Code::Unavailable, "away")),
                    };
                    failed += usize::from(outcome.is_err());
                    let (next, blamed) = search.handle_dialled(id, outcome.clone());
                    let blame = outcome.is_err() && carrier.is_none();
                    assert_eq!(blamed, blame, "seed {seed}");
                    next
                }
                end @ (SearchAction::Deliver | SearchAction::Refuse(_)) => break end,
            };
        };
        let reachable = local || peers.iter().any(|(_, up)| *up);
        match end {
            SearchAction::Deliver => assert!(reachable, "seed {seed}"),
            SearchAction::Refuse(status) => {
                assert!(!reachable, "seed {seed}: somebody takes it");
                assert_eq!(failed, peers.len(), "seed {seed}: all were tried");
                // Whoever asks for a carrier is told why it leads nowhere.
                let away = carrier.is_some() && failed > 0;
                let code = if away {
                    Code::Unavailable
                } else {
                    Code::NotFound
                };
                assert_eq!(status.code, code, "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn whoever_can_be_reached_is_found_and_nobody_is_tried_twice() {
        for_each_seed(KEPT, 10_000, follow);
    }
}
