//! Whom this node trusts, and what each may call.
//!
//! Closed by default: an unknown key may redeem a ticket and nothing else. What it tried is noted
//! as pending, for the operator to approve. The table lives in memory, for it is asked on every
//! call, and each change is written to the store before it takes effect.
//!
//! A peer that was removed is remembered as such, so that a hub that vouches for its members does
//! not bring it back. Only this node's side can: by a ticket, an approval or by hand.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use foldhash::HashMap;
use hailwire_core::{
    dial_address::AddressOrigin,
    grants::{BareCalls, Grant, GrantTerms, settle, takes_bare},
    names::NamedBy,
    pending::{PendingPeer, PendingPeers},
};
use hailwire_wire::{
    AgentName, Code, NodeId, NodeName, Status,
    address::NodeRef,
    latest_time::LatestTime,
    ticket::{Invitation, InvitationTable, RedeemError, TicketSecret},
};
use tokio::sync::watch;

use super::store::{NodeStore, StoreError, TrustChange, TrustOrigin, TrustRow};

/// Removed peers remembered; the longest removed is forgotten first.
const MAX_REMOVED: usize = 4096;

/// Where the latest time that was seen is kept.
const LATEST_TIME: &str = "latest-time";

/// Addresses kept per peer, newest first.
const MAX_KEPT_ADDRESSES: usize = 8;

#[derive(Debug)]
pub(crate) struct TrustStore {
    store: NodeStore,
    peers: RwLock<TrustTable>,
    invitations: Mutex<InvitationTable>,
    pending: Mutex<PendingPeers>,
    /// Counts changes of who may call what.
    changes: watch::Sender<u64>,
    clock: Mutex<TicketClock>,
    started: Instant,
}

/// The time by which tickets expire.
#[derive(Debug)]
struct TicketClock {
    latest: LatestTime,
    /// What is written down of it.
    kept: u64,
}

/// The trusted peers, by key and by alias, and those that were removed.
#[derive(Debug, Default)]
struct TrustTable {
    rows: HashMap<NodeId, TrustRow>,
    aliases: HashMap<NodeName, NodeId>,
    /// The longest removed first.
    removed: VecDeque<NodeId>,
}

impl TrustTable {
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

    /// `wanted`, or `wanted-2`, `wanted-3` … where another peer has it. A name that this user gives is
    /// taken from a peer that gave it itself.
    fn free_alias(&self, wanted: &NodeName, by: NamedBy, id: NodeId) -> Option<NodeName> {
        let free = |name: &NodeName| match self.aliases.get(name) {
            None => true,
            Some(holder) if *holder == id => true,
            Some(holder) => by == NamedBy::User && self.named_by(*holder) == Some(NamedBy::Peer),
        };
        std::iter::once(Some(wanted.clone()))
            .chain((2..1000).map(|n| format!("{wanted}-{n}").parse().ok()))
            .flatten()
            .find(free)
    }

    fn named_by(&self, id: NodeId) -> Option<NamedBy> {
        self.rows.get(&id).map(|row| row.named_by)
    }

    /// The peer that has to give up its own name for this row's, under the name that it gets.
    fn displaced(&self, row: &TrustRow) -> Option<TrustRow> {
        let holder = self.aliases.get(row.alias.as_ref()?)?;
        let mut other = self
            .rows
            .get(holder)
            .filter(|other| other.id != row.id)?
            .clone();
        other.alias = row.alias.as_ref().and_then(|name| self.next_free(name));
        Some(other)
    }

    fn next_free(&self, taken: &NodeName) -> Option<NodeName> {
        (2..1000)
            .filter_map(|n| format!("{taken}-{n}").parse().ok())
            .find(|name| !self.aliases.contains_key(name))
    }
}

/// What is stated when a peer becomes trusted.
#[derive(Clone, Debug)]
pub(crate) struct NewPeer {
    pub(crate) id: NodeId,
    /// The alias that is wanted, and who wants it; another is found if it is taken.
    pub(crate) alias: Option<(NodeName, NamedBy)>,
    pub(crate) terms: GrantTerms,
    /// Which bare calls it may take, where that was said.
    pub(crate) bare: Option<Vec<AgentName>>,
    pub(crate) via: TrustOrigin,
    /// Who says where it is.
    pub(crate) known: AddressOrigin,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) relay: Option<String>,
}

impl TrustStore {
    pub(crate) fn load(store: NodeStore) -> Result<Self, StoreError> {
        let mut peers = TrustTable {
            removed: store.removed()?.into(),
            ..TrustTable::default()
        };
        for row in store.trust()? {
            peers.insert(row);
        }
        let invitations = InvitationTable::restore(store.invitations()?);
        let latest = store.setting(LATEST_TIME)?;
        let latest = latest.and_then(|latest| latest.parse().ok()).unwrap_or(0);
        Ok(Self {
            store,
            peers: RwLock::new(peers),
            invitations: Mutex::new(invitations),
            pending: Mutex::default(),
            changes: watch::Sender::new(0),
            clock: Mutex::new(TicketClock {
                latest: LatestTime::new(latest, Duration::ZERO),
                kept: latest,
            }),
            started: Instant::now(),
        })
    }

    /// Tells each change of who may call what.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn store(&self) -> &NodeStore {
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
        if row.allow.allows(agent) {
            return Ok(());
        }
        Err(Status::new(
            Code::PermissionDenied,
            format!("this node does not let you call `{agent}`"),
        )
        .with_hint("ask its operator for an invitation that allows this agent"))
    }

    /// What `peer` may call here: nothing if it is not trusted.
    pub(crate) fn grant(&self, peer: NodeId) -> Grant {
        let row = self.row(peer);
        row.map_or(Grant::Only(Vec::new()), |row| row.allow)
    }

    /// Whether `peer` may take a bare call of `agent`.
    pub(crate) fn takes_bare(&self, peer: NodeId, agent: &AgentName) -> bool {
        let peers = self.read();
        let row = peers.rows.get(&peer);
        row.is_some_and(|row| takes_bare(&row.allow, &row.bare, agent))
    }

    /// The peer of this name, and who named it.
    pub(crate) fn named(&self, name: &NodeName) -> Option<(NodeId, NamedBy)> {
        let peers = self.read();
        let id = *peers.aliases.get(name)?;
        peers.named_by(id).map(|by| (id, by))
    }

    /// The alias under which `id` is known here.
    pub(crate) fn alias(&self, id: NodeId) -> Option<NodeName> {
        self.read().rows.get(&id).and_then(|row| row.alias.clone())
    }

    /// A peer as messages call it: by its alias and its short key, or by its short key alone.
    pub(crate) fn label(&self, id: NodeId) -> String {
        match self.alias(id) {
            Some(alias) => format!("`{alias}` ({})", id.short()),
            None => id.short(),
        }
    }

    /// The trusted peer that a reference means: by key, or by alias.
    pub(crate) fn find(&self, who: &NodeRef) -> Option<NodeId> {
        let peers = self.read();
        match who {
            NodeRef::Id(id) => peers.rows.contains_key(id).then_some(*id),
            NodeRef::Name(name) => peers.aliases.get(name).copied(),
        }
    }

    /// Trusts a peer from now on. One that is trusted already keeps its age, the alias that this user
    /// gave it, and a grant that is narrower than what is offered ([`settle`]). That it was removed
    /// once is forgotten.
    pub(crate) fn add(&self, peer: NewPeer, now_unix: u64) -> Result<TrustRow, StoreError> {
        self.enter(self.write(), peer, now_unix)
    }

    /// Trusts a peer for which a hub vouches, unless it was removed here; whether it is trusted.
    pub(crate) fn add_vouched(&self, peer: NewPeer, now_unix: u64) -> Result<bool, StoreError> {
        let peers = self.write();
        if peers.removed.contains(&peer.id) {
            return Ok(false);
        }
        if peers.rows.contains_key(&peer.id) {
            return Ok(true);
        }
        self.enter(peers, peer, now_unix).map(|_| true)
    }

    fn enter(
        &self,
        mut peers: RwLockWriteGuard<'_, TrustTable>,
        peer: NewPeer,
        now_unix: u64,
    ) -> Result<TrustRow, StoreError> {
        let known = peers.rows.get(&peer.id).cloned();
        let named = known
            .as_ref()
            .and_then(|row| Some((row.alias.clone()?, row.named_by)));
        let wanted = match (peer.alias, named) {
            // What this user has named, nobody else renames.
            (Some((_, NamedBy::Peer)) | None, Some(named @ (_, NamedBy::User))) => Some(named),
            (wanted, named) => wanted.or(named),
        };
        let named_by = wanted.as_ref().map_or(NamedBy::Peer, |(_, by)| *by);
        let typed = peer.known == AddressOrigin::Typed;
        let kept = |of: fn(&TrustRow) -> &Vec<SocketAddr>| {
            known.as_ref().map(of).cloned().unwrap_or_default()
        };
        let said = |new: &[SocketAddr], kept: Vec<SocketAddr>, said: bool| match said {
            true => newest(new.iter().copied().chain(kept)),
            false => kept,
        };
        let told = |new: &[SocketAddr], kept: Vec<SocketAddr>| match typed || new.is_empty() {
            true => kept,
            false => newest(new.iter().copied()),
        };
        let row = TrustRow {
            id: peer.id,
            alias: wanted.and_then(|(alias, by)| peers.free_alias(&alias, by, peer.id)),
            named_by,
            allow: settle(known.as_ref().map(|row| &row.allow), peer.terms),
            bare: match (peer.bare, &known) {
                (Some(names), _) => BareCalls::of(names),
                (None, Some(row)) => row.bare.clone(),
                (None, None) => BareCalls::ByGrant,
            },
            via: peer.via,
            since: known.as_ref().map_or(now_unix, |row| row.since),
            addresses: kept(|row| &row.addresses),
            typed: said(&peer.addresses, kept(|row| &row.typed), typed),
            told: told(&peer.addresses, kept(|row| &row.told)),
            tcp: said(&peer.tcp, kept(|row| &row.tcp), typed),
            told_tcp: told(&peer.tcp, kept(|row| &row.told_tcp)),
            relay: peer
                .relay
                .or_else(|| known.as_ref().and_then(|row| row.relay.clone())),
        };
        let displaced = peers.displaced(&row);
        let mut changes: Vec<TrustChange<'_>> = displaced.iter().map(TrustChange::Trust).collect();
        changes.push(TrustChange::Trust(&row));
        changes.push(TrustChange::Forgiven(row.id));
        self.store.commit(&changes)?;
        peers.removed.retain(|id| *id != row.id);
        displaced.into_iter().for_each(|other| peers.insert(other));
        peers.insert(row.clone());
        drop(peers);
        self.changes.send_modify(|changes| *changes += 1);
        self.pending().forget(row.id);
        Ok(row)
    }

    /// Trusts a peer no longer, and remembers that; whether it was trusted.
    pub(crate) fn remove(&self, id: NodeId, now_unix: u64) -> Result<bool, StoreError> {
        let mut peers = self.write();
        let others = peers.removed.iter().filter(|other| **other != id);
        let mut removed: VecDeque<NodeId> = others.copied().collect();
        removed.push_back(id);
        let forgotten = match removed.len() > MAX_REMOVED {
            true => removed.pop_front(),
            false => None,
        };
        let mut changes = vec![
            TrustChange::Distrust(id),
            TrustChange::Removed(id, now_unix),
        ];
        changes.extend(forgotten.map(TrustChange::Forgiven));
        self.store.commit(&changes)?;
        peers.removed = removed;
        let removed = peers.remove(id).is_some();
        self.changes.send_modify(|changes| *changes += 1);
        Ok(removed)
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
        if let Err(error) = self.store.put_place(row) {
            tracing::warn!(%id, %error, "the address of a peer could not be kept");
        }
    }

    /// The time by which tickets expire: this clock's, unless it was later before.
    pub(crate) fn latest(&self, now_unix: u64) -> u64 {
        let running = self.started.elapsed();
        self.clock().latest.now(now_unix, running)
    }

    /// Writes the time down, if there is a ticket that has not expired by what is written.
    pub(crate) fn keep_time(&self, now_unix: u64) {
        let now = self.latest(now_unix);
        let kept = self.clock().kept;
        let matters = self.invitations().iter().any(|open| open.expires > kept);
        if matters && let Err(status) = self.note_time(now) {
            tracing::warn!(%status, "the time could not be kept");
        }
    }

    /// Whether a peer was found at this address before, or said that it listens there.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        let peers = self.read();
        let mut places = peers
            .rows
            .values()
            .flat_map(|row| row.addresses.iter().chain(&row.typed).chain(&row.told))
            .chain(
                peers
                    .rows
                    .values()
                    .flat_map(|row| row.tcp.iter().chain(&row.told_tcp)),
            );
        places.any(|place| place.ip() == address)
    }

    /// Enters an invitation.
    pub(crate) fn invite(&self, invitation: &Invitation, now_unix: u64) -> Result<(), Status> {
        let now_unix = self.latest(now_unix);
        self.note_time(now_unix)?;
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
    pub(crate) fn redeem(
        &self,
        secret: &TicketSecret,
        now_unix: u64,
    ) -> Result<Invitation, Status> {
        let now_unix = self.latest(now_unix);
        self.note_time(now_unix)?;
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

    /// Writes the time down; a change that follows is synced with it.
    fn note_time(&self, now_unix: u64) -> Result<(), Status> {
        self.store
            .put_setting(LATEST_TIME, &now_unix.to_string())
            .map_err(store_status)?;
        self.clock().kept = now_unix;
        Ok(())
    }

    fn clock(&self) -> std::sync::MutexGuard<'_, TicketClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an untrusted peer tried something, from this remote end of its connection.
    pub(crate) fn note_untrusted(&self, id: NodeId, claim: &str, from: &str, now_unix: u64) {
        self.pending().note(now_unix, id, claim, from);
    }

    pub(crate) fn pending_rows(&self) -> Vec<PendingPeer> {
        self.pending().rows().to_vec()
    }

    fn read(&self) -> RwLockReadGuard<'_, TrustTable> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TrustTable> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn invitations(&self) -> std::sync::MutexGuard<'_, InvitationTable> {
        self.invitations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, PendingPeers> {
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

fn newest(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut kept: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if kept.len() < MAX_KEPT_ADDRESSES && !kept.contains(&address) {
            kept.push(address);
        }
    }
    kept
}

#[cfg(test)]
mod tests;
