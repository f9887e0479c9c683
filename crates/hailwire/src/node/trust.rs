//! Whom this node trusts, and what each may call.
//!
//! Closed by default: an unknown key may redeem a ticket and nothing else. What it tried is noted
//! as pending, for the operator to approve. The table lives in memory, for it is asked on every
//! call, and each change is written to the store before it takes effect.
//!
//! A peer that was removed is remembered as such, so that a hub that vouches for its members does
//! not bring it back. Only this node's side can: by a ticket, an approval or by hand.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use hailwire_wire::{
    AgentName, Code, NodeId, NodeName, Status,
    address::NodeRef,
    ticket::{Invitation, Invitations, RedeemError, Secret},
};

use super::{
    pending::{Pending, PendingRow},
    store::{Store, StoreError, TrustRow, Via},
};

/// Removed peers remembered; the longest removed is forgotten first.
const MAX_REMOVED: usize = 4096;

/// Addresses kept per peer, newest first.
const MAX_KEPT_ADDRESSES: usize = 8;

#[derive(Debug)]
pub(crate) struct Trust {
    store: Store,
    peers: RwLock<Table>,
    invitations: Mutex<Invitations>,
    pending: Mutex<Pending>,
}

/// The trusted peers, by key and by alias, and those that were removed.
#[derive(Debug, Default)]
struct Table {
    rows: HashMap<NodeId, TrustRow>,
    aliases: HashMap<NodeName, NodeId>,
    /// The longest removed first.
    removed: VecDeque<NodeId>,
}

impl Table {
    fn insert(&mut self, row: TrustRow) {
        self.remove(row.id);
        if let Some(alias) = &row.alias {
            self.aliases.insert(alias.clone(), row.id);
        }
        self.rows.insert(row.id, row);
    }

    fn remove(&mut self, id: NodeId) -> Option<TrustRow> {
        let row = self.rows.remove(&id)?;
        if let Some(alias) = &row.alias {
            self.aliases.remove(alias);
        }
        Some(row)
    }

    /// `wanted`, or `wanted-2`, `wanted-3` … where another peer has it.
    fn free_alias(&self, wanted: &NodeName, id: NodeId) -> Option<NodeName> {
        std::iter::once(Some(wanted.clone()))
            .chain((2..1000).map(|n| format!("{wanted}-{n}").parse().ok()))
            .flatten()
            .find(|name| self.aliases.get(name).is_none_or(|holder| *holder == id))
    }
}

/// What is stated when a peer becomes trusted.
#[derive(Clone, Debug)]
pub(crate) struct NewPeer {
    pub(crate) id: NodeId,
    /// The alias that is wanted; another is found if it is taken.
    pub(crate) alias: Option<NodeName>,
    pub(crate) allow: Vec<AgentName>,
    pub(crate) via: Via,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) relay: Option<String>,
}

impl Trust {
    pub(crate) fn load(store: Store) -> Result<Self, StoreError> {
        let mut peers = Table {
            removed: store.removed()?.into(),
            ..Table::default()
        };
        for row in store.trust()? {
            peers.insert(row);
        }
        let invitations = Invitations::restore(store.invitations()?);
        Ok(Self {
            store,
            peers: RwLock::new(peers),
            invitations: Mutex::new(invitations),
            pending: Mutex::default(),
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn is_trusted(&self, id: NodeId) -> bool {
        self.read().rows.contains_key(&id)
    }

    pub(crate) fn row(&self, id: NodeId) -> Option<TrustRow> {
        self.read().rows.get(&id).cloned()
    }

    pub(crate) fn rows(&self) -> Vec<TrustRow> {
        self.read().rows.values().cloned().collect()
    }

    /// Whether `peer` may call `agent` here.
    ///
    /// # Errors
    ///
    /// `permission_denied`, in words for the caller.
    pub(crate) fn check(&self, peer: NodeId, agent: &AgentName) -> Result<(), Status> {
        let peers = self.read();
        let Some(row) = peers.rows.get(&peer) else {
            return Err(untrusted(peer));
        };
        if row.allow.is_empty() || row.allow.contains(agent) {
            return Ok(());
        }
        Err(Status::new(
            Code::PermissionDenied,
            format!("this node does not let you call `{agent}`"),
        )
        .with_hint("ask its operator for an invitation that allows this agent"))
    }

    /// The alias under which `id` is known here.
    pub(crate) fn alias(&self, id: NodeId) -> Option<NodeName> {
        self.read().rows.get(&id).and_then(|row| row.alias.clone())
    }

    /// The trusted peer that a reference means: by key, or by alias.
    pub(crate) fn find(&self, who: &NodeRef) -> Option<NodeId> {
        let peers = self.read();
        match who {
            NodeRef::Id(id) => peers.rows.contains_key(id).then_some(*id),
            NodeRef::Name(name) => peers.aliases.get(name).copied(),
        }
    }

    /// Trusts a peer from now on; one that is trusted already keeps its alias and age, and gets the
    /// new grants and addresses. That it was removed once is forgotten.
    pub(crate) fn add(&self, peer: NewPeer, now_unix: u64) -> Result<TrustRow, StoreError> {
        let mut peers = self.write();
        if peers.removed.contains(&peer.id) {
            self.store.forget_removed(peer.id)?;
            peers.removed.retain(|id| *id != peer.id);
        }
        self.enter(peers, peer, now_unix)
    }

    /// Trusts a peer for which a hub vouches, unless it was removed here; whether it is trusted.
    pub(crate) fn add_vouched(&self, peer: NewPeer, now_unix: u64) -> Result<bool, StoreError> {
        let peers = self.write();
        if peers.removed.contains(&peer.id) {
            return Ok(false);
        }
        self.enter(peers, peer, now_unix).map(|_| true)
    }

    fn enter(
        &self,
        mut peers: RwLockWriteGuard<'_, Table>,
        peer: NewPeer,
        now_unix: u64,
    ) -> Result<TrustRow, StoreError> {
        let known = peers.rows.get(&peer.id).cloned();
        let wanted = peer
            .alias
            .or_else(|| known.as_ref().and_then(|row| row.alias.clone()));
        let mut addresses = peer.addresses;
        addresses.extend(known.iter().flat_map(|row| row.addresses.iter().copied()));
        let row = TrustRow {
            id: peer.id,
            alias: wanted.and_then(|alias| peers.free_alias(&alias, peer.id)),
            allow: peer.allow,
            via: peer.via,
            since: known.as_ref().map_or(now_unix, |row| row.since),
            addresses: newest(addresses),
            tcp: if peer.tcp.is_empty() {
                known
                    .as_ref()
                    .map(|row| row.tcp.clone())
                    .unwrap_or_default()
            } else {
                newest(peer.tcp)
            },
            relay: peer.relay.or_else(|| known.and_then(|row| row.relay)),
        };
        self.store.put_trust(&row)?;
        peers.insert(row.clone());
        drop(peers);
        self.pending().forget(row.id);
        Ok(row)
    }

    /// Trusts a peer no longer, and remembers that; whether it was trusted.
    pub(crate) fn remove(&self, id: NodeId, now_unix: u64) -> Result<bool, StoreError> {
        let mut peers = self.write();
        self.store.put_removed(id, now_unix)?;
        peers.removed.retain(|other| *other != id);
        peers.removed.push_back(id);
        if peers.removed.len() > MAX_REMOVED
            && let Some(oldest) = peers.removed.pop_front()
        {
            self.store.forget_removed(oldest)?;
        }
        self.store.remove_trust(id)?;
        Ok(peers.remove(id).is_some())
    }

    /// Whether the peer was removed here, and not added since.
    pub(crate) fn was_removed(&self, id: NodeId) -> bool {
        self.read().removed.contains(&id)
    }

    /// Remembers where a peer was found. Failing to write it down loses only time later.
    pub(crate) fn found_at(&self, id: NodeId, address: SocketAddr) {
        let mut peers = self.write();
        let Some(row) = peers.rows.get_mut(&id) else {
            return;
        };
        if row.addresses.first() == Some(&address) {
            return;
        }
        row.addresses.insert(0, address);
        row.addresses = newest(std::mem::take(&mut row.addresses));
        if let Err(error) = self.store.put_trust(row) {
            tracing::warn!(%id, %error, "the address of a peer could not be kept");
        }
    }

    /// Whether a peer was found at this address before, or said that it listens there.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        let peers = self.read();
        let mut places = peers
            .rows
            .values()
            .flat_map(|row| row.addresses.iter().chain(&row.tcp));
        places.any(|place| place.ip() == address)
    }

    /// Enters an invitation.
    pub(crate) fn invite(&self, invitation: &Invitation, now_unix: u64) -> Result<(), Status> {
        let mut invitations = self.invitations();
        invitations
            .issue(invitation.clone(), now_unix)
            .map_err(|error| Status::new(Code::ResourceExhausted, error.to_string()))?;
        self.store
            .expire_invitations(now_unix)
            .map_err(store_status)?;
        self.store.put_invitation(invitation).map_err(store_status)
    }

    /// Takes one use of a ticket and gives what it allows.
    pub(crate) fn redeem(&self, secret: &Secret, now_unix: u64) -> Result<Invitation, Status> {
        let mut invitations = self.invitations();
        let before = invitations.clone();
        let invitation = invitations
            .redeem(secret, now_unix)
            .map_err(redeem_status)?
            .clone();
        if let Err(error) = self.store.put_invitation(&invitation) {
            // A use that is not written down would come back with the next start.
            *invitations = before;
            return Err(store_status(error));
        }
        Ok(invitation)
    }

    /// Notes that a stranger tried something, from this remote end of its connection.
    pub(crate) fn note_stranger(&self, id: NodeId, claim: &str, from: &str, now_unix: u64) {
        self.pending().note(now_unix, id, claim, from);
    }

    pub(crate) fn pending_rows(&self) -> Vec<PendingRow> {
        self.pending().rows().to_vec()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn invitations(&self) -> std::sync::MutexGuard<'_, Invitations> {
        self.invitations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn untrusted(peer: NodeId) -> Status {
    Status::new(Code::PermissionDenied, "that node does not trust this one").with_hint(format!(
        "ask its operator to run `hail trust approve {peer}`, or join with a ticket from `hail invite`"
    ))
}

/// What a failed write means to whoever asked for the change.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the form that `map_err` takes"
)]
pub(crate) fn store_status(error: StoreError) -> Status {
    use std::error::Error;
    let cause = error
        .source()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    Status::new(Code::Unavailable, format!("{error}{cause}")).with_hint(
        "see that the data folder is writable and the disk is not full; nothing was changed",
    )
}

fn redeem_status(error: RedeemError) -> Status {
    let code = match error {
        RedeemError::Unknown => Code::Unauthenticated,
        RedeemError::Expired | RedeemError::UsedUp => Code::PermissionDenied,
    };
    Status::new(code, error.to_string()).with_hint("ask for a new ticket: `hail invite`")
}

fn newest(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut kept: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if kept.len() < MAX_KEPT_ADDRESSES && !kept.contains(&address) {
            kept.push(address);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn trust() -> (tempfile::TempDir, Trust) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("node.db")).unwrap();
        (dir, Trust::load(store).unwrap())
    }

    fn peer(byte: u8, alias: &str) -> NewPeer {
        NewPeer {
            id: NodeId::from_bytes([byte; 32]),
            alias: Some(alias.parse().unwrap()),
            allow: Vec::new(),
            via: Via::Manual,
            addresses: Vec::new(),
            tcp: Vec::new(),
            relay: None,
        }
    }

    #[test]
    fn an_unknown_node_may_call_nothing() {
        let (_dir, trust) = trust();
        let status = trust
            .check(NodeId::from_bytes([1; 32]), &"grep".parse().unwrap())
            .unwrap_err();
        assert_eq!(status.code, Code::PermissionDenied);
    }

    #[test]
    fn a_grant_allows_what_it_lists_and_nothing_else() {
        let (_dir, trust) = trust();
        let allow = vec!["grep".parse().unwrap()];
        let row = trust
            .add(
                NewPeer {
                    allow,
                    ..peer(1, "a")
                },
                NOW,
            )
            .unwrap();
        assert!(trust.check(row.id, &"grep".parse().unwrap()).is_ok());
        assert!(trust.check(row.id, &"sha256".parse().unwrap()).is_err());
    }

    #[test]
    fn two_peers_never_share_an_alias() {
        let (_dir, trust) = trust();
        trust.add(peer(1, "laptop"), NOW).unwrap();
        let second = trust.add(peer(2, "laptop"), NOW).unwrap();
        assert_eq!(second.alias.unwrap().as_str(), "laptop-2");
        // The same peer again keeps its own.
        assert_eq!(
            trust
                .add(peer(1, "laptop"), NOW)
                .unwrap()
                .alias
                .unwrap()
                .as_str(),
            "laptop"
        );
    }

    #[test]
    fn a_ticket_is_used_as_often_as_it_says_also_across_a_restart() {
        let (dir, trust) = trust();
        let secret = Secret::from_random([7; 16]);
        let invitation = Invitation {
            digest: secret.digest(),
            uses_left: 1,
            expires: NOW + 60,
            allow: Vec::new(),
        };
        trust.invite(&invitation, NOW).unwrap();
        assert!(trust.redeem(&Secret::from_random([8; 16]), NOW).is_err());
        assert!(trust.redeem(&secret, NOW).is_ok());
        assert!(
            trust
                .redeem(&secret, NOW)
                .unwrap_err()
                .message
                .contains("used up")
        );
        drop(trust);
        let trust = Trust::load(Store::open(&dir.path().join("node.db")).unwrap()).unwrap();
        assert!(
            trust
                .redeem(&secret, NOW)
                .unwrap_err()
                .message
                .contains("used up")
        );
    }

    #[test]
    fn an_expired_ticket_is_refused_with_its_reason() {
        let (_dir, trust) = trust();
        let secret = Secret::from_random([7; 16]);
        let invitation = Invitation {
            digest: secret.digest(),
            uses_left: 9,
            expires: NOW,
            allow: Vec::new(),
        };
        trust.invite(&invitation, NOW - 60).unwrap();
        assert!(
            trust
                .redeem(&secret, NOW)
                .unwrap_err()
                .message
                .contains("expired")
        );
    }

    #[test]
    fn a_hub_does_not_bring_back_whom_the_operator_removed_and_a_ticket_does() {
        let (dir, trust) = trust();
        let hub = || NewPeer {
            via: Via::Hub,
            ..peer(1, "a")
        };
        assert!(trust.add_vouched(hub(), NOW).unwrap());
        assert!(trust.remove(hub().id, NOW).unwrap());
        assert!(!trust.add_vouched(hub(), NOW).unwrap());
        drop(trust);
        let trust = Trust::load(Store::open(&dir.path().join("node.db")).unwrap()).unwrap();
        assert!(!trust.add_vouched(hub(), NOW).unwrap() && !trust.is_trusted(hub().id));
        trust.add(peer(1, "a"), NOW).unwrap();
        assert!(trust.is_trusted(hub().id) && !trust.was_removed(hub().id));
        drop(trust);
        let trust = Trust::load(Store::open(&dir.path().join("node.db")).unwrap()).unwrap();
        assert!(!trust.was_removed(hub().id));
    }

    #[test]
    fn removed_peers_are_remembered_up_to_a_bound_and_the_oldest_goes_first() {
        let (dir, trust) = trust();
        let id = |i: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&i.to_be_bytes());
            NodeId::from_bytes(bytes)
        };
        for i in 0..=MAX_REMOVED {
            trust.remove(id(i), NOW).unwrap();
        }
        let as_kept = |trust: &Trust| {
            assert!(!trust.was_removed(id(0)));
            assert!(trust.was_removed(id(1)) && trust.was_removed(id(MAX_REMOVED)));
            assert_eq!(trust.read().removed.len(), MAX_REMOVED);
        };
        as_kept(&trust);
        drop(trust);
        as_kept(&Trust::load(Store::open(&dir.path().join("node.db")).unwrap()).unwrap());
    }
}
