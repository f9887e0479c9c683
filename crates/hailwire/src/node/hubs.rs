//! The hubs that this node belongs to: registered at each, again whenever something changes, and
//! asked where a peer is.
//!
//! A hub is a convenience, never a need: the node works on its tunnels while a hub is gone, tries
//! again with a growing pause, and registers anew when it is back.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hailwire_core::{
    dial_address::{AddressCandidates, AddressOrigin},
    grants::{Grant, GrantTerms},
    hub_record,
    hub_registration::{HubAction, HubRegistration},
    names::{HubNames, NamedBy},
};
use hailwire_wire::{
    Code, HubUrl, NodeId, Status,
    address::NodeRef,
    directory::{MemberTrust as HubTrust, PublishRequest, RecordBytes, SearchRequest},
    header::OfferedGroup,
    limits,
    record::NodeRecord,
    ticket::HubTicket,
};
use iroh::{RelayConfig, RelayUrl, Watcher};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    NodeInner, StoreError, listen,
    manage::micros,
    messages, now_unix, resolve, sockets,
    store::{HubRow, NodeStore, TrustOrigin},
    trust::{NewPeer, store_status},
};
use crate::{
    admin, clock,
    config::Config,
    hub::{HubClient, HubError, tls::HubPins},
    key::NodeKey,
};

/// How long a record is believed.
const RECORD_LIFETIME_S: u64 = 3 * 3600;

/// Where the sequence of the last record is kept.
const SEQUENCE: &str = "record-sequence";

/// How long a lookup may hold up a dial for which addresses are known already.
const QUICK_LOOKUP: Duration = Duration::from_secs(1);

/// How long a lookup may take when nothing else is known.
const PATIENT_LOOKUP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Hubs {
    pins: HubPins,
    hubs: Mutex<Vec<Arc<HubLink>>>,
    /// Counts changes of what is published.
    changes: watch::Sender<u64>,
    /// Of the record that was signed last.
    sequence: Mutex<u64>,
    /// What they said of names.
    pub(super) names: Mutex<HubNames>,
    pub(super) questions: resolve::NameQuestions,
}

#[derive(Debug)]
pub(super) struct HubLink {
    row: HubRow,
    client: HubClient,
    state: Mutex<HubLinkState>,
}

#[derive(Clone, Debug, Default)]
struct HubLinkState {
    connected: bool,
    name: String,
    error: String,
    /// When it answered last.
    heard: Option<Instant>,
    /// How long it took when it was asked for the status last.
    answer: Option<Duration>,
}

impl Hubs {
    /// The hubs that were joined, and those that the configuration names.
    pub(super) fn load(
        config: &Config,
        store: &NodeStore,
        key: &NodeKey,
        pins: HubPins,
    ) -> Result<Self, StoreError> {
        let mut rows = store.hubs()?;
        let last = store.setting(SEQUENCE)?;
        for url in config.hubs.iter().map(ToString::to_string) {
            if !rows.iter().any(|row| row.url == url) {
                rows.push(HubRow {
                    url,
                    ..HubRow::default()
                });
            }
        }
        let hubs = Self {
            pins,
            hubs: Mutex::default(),
            changes: watch::Sender::new(0),
            sequence: Mutex::new(last.and_then(|last| last.parse().ok()).unwrap_or(0)),
            names: Mutex::new(HubNames::restore(store.hub_answers()?)),
            questions: resolve::NameQuestions::default(),
        };
        for row in rows {
            match hubs.make(row, key) {
                Ok(hub) => hubs.lock().push(Arc::new(hub)),
                Err(status) => tracing::warn!(%status, "a hub is left out"),
            }
        }
        Ok(hubs)
    }

    fn make(&self, row: HubRow, key: &NodeKey) -> Result<HubLink, Status> {
        let url = row
            .url
            .parse()
            .map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
        let client = HubClient::new(url, row.key, key.pair(), &self.pins).map_err(Status::from)?;
        Ok(HubLink {
            row,
            client,
            state: Mutex::default(),
        })
    }

    /// Says that what is published has changed.
    pub(super) fn publish(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The sequence of a new record, kept so that a later one is higher.
    fn next_sequence(&self, now_ms: u64, store: &NodeStore) -> u64 {
        let next = {
            let mut last = self.sequence.lock().unwrap_or_else(PoisonError::into_inner);
            *last = sequence_after(*last, now_ms);
            *last
        };
        if let Err(error) = store.put_setting(SEQUENCE, &next.to_string()) {
            tracing::warn!(%error, "the sequence of the record could not be kept");
        }
        next
    }

    /// Whether none of them answers now; `None` where there is none.
    pub(super) fn are_away(&self) -> Option<bool> {
        let hubs = self.lock();
        (!hubs.is_empty()).then(|| !hubs.iter().any(|hub| hub.is_connected()))
    }

    /// The relays that this node uses, of hubs that answer; of all where none does, since that may be about to change.
    pub(super) fn answering_relays(&self) -> Vec<String> {
        let hubs = self.lock();
        let of = |is_used: &dyn Fn(&HubLink) -> bool| -> Vec<String> {
            let used = hubs.iter().filter(|hub| is_used(hub));
            used.filter_map(|hub| hub.row.relay.clone()).collect()
        };
        let answering = of(&|hub| hub.is_connected());
        if answering.is_empty() {
            of(&|_| true)
        } else {
            answering
        }
    }

    /// The URLs of those that do not answer now.
    pub(super) fn silent(&self) -> Vec<String> {
        let hubs = self.lock();
        let silent = hubs.iter().filter(|hub| !hub.is_connected());
        silent.map(|hub| hub.row.url.clone()).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<HubLink>> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<HubLink>>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HubLink {
    fn state(&self) -> HubLinkState {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_state(&self, state: HubLinkState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Notes why the node is not registered.
    fn failed(&self, error: &HubError) {
        let error = describe(error);
        let state = self.state();
        if state.error != error {
            tracing::warn!(hub = %self.row.url, %error, "not registered at the hub");
        }
        self.set_state(HubLinkState {
            connected: false,
            error,
            ..state
        });
    }

    /// Asks the hub something small, and notes how long the answer took.
    async fn ask(&self, node: &NodeInner, patience: Duration) {
        let begun = Instant::now();
        let own = NodeRef::Id(node.id());
        let asked = tokio::time::timeout(patience, self.client.lookup(&own)).await;
        let answer = matches!(asked, Ok(Ok(_))).then(|| begun.elapsed());
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.answer = answer;
            if answer.is_some() {
                state.heard = Some(Instant::now());
            }
        }
        if let Ok(Err(error)) = asked {
            self.failed(&error);
            node.hubs.publish();
        }
    }

    /// What an exchange came to that may take so long, noted where it says that the hub is away: then it is registered at again as soon as it is back.
    pub(super) async fn asked<T>(
        &self,
        node: &NodeInner,
        patience: Duration,
        exchange: impl Future<Output = Result<T, HubError>>,
    ) -> Result<T, HubError> {
        let asked = tokio::time::timeout(patience, exchange).await;
        let answer = asked.unwrap_or(Err(HubError::TimedOut));
        if let Err(error @ (HubError::Unreachable(_) | HubError::TimedOut)) = &answer {
            let was_connected = self.is_connected();
            self.failed(error);
            if was_connected {
                node.hubs.publish();
            }
        }
        answer
    }

    /// Whether the last exchange with it succeeded.
    pub(super) fn is_connected(&self) -> bool {
        self.state().connected
    }

    pub(super) fn client(&self) -> &HubClient {
        &self.client
    }

    /// Why it did not take all of the record; empty where it did.
    pub(super) fn refusal(&self) -> String {
        let state = self.state();
        match state.connected {
            true => state.error,
            false => String::new(),
        }
    }

    fn trusts_members(&self) -> bool {
        self.row.trust_members
    }
}

/// A hub's relay is at the hub: another place that it names would be one that it makes its members
/// contact.
fn own_relay(relay: &str, hub: &HubUrl) -> Option<String> {
    let url: HubUrl = relay.trim_end_matches('/').parse().ok()?;
    let own = (url.host(), url.port()) == (hub.host(), hub.port());
    if !own {
        tracing::warn!(%hub, relay, "the hub names a relay elsewhere, which is not used");
    }
    own.then(|| relay.to_owned())
}

/// Whether members of a hub are trusted by their membership: only where its ticket said so, so that the
/// user could agree, the user did, and the hub says the same. What it says later changes nothing.
fn trusts_members(ticket: HubTrust, hub: HubTrust, agreed: bool) -> bool {
    agreed && ticket == HubTrust::Members && hub == HubTrust::Members
}

/// Keeps the node registered at its hubs until it ends.
pub(super) async fn run(node: Arc<NodeInner>) {
    for hub in node.hubs.all() {
        tokio::spawn(keep_registered(node.clone(), hub));
    }
    let mut addresses = node.sockets.endpoint.watch_addr();
    let mut grants = node.trust.changes();
    // Its connection to a relay ends as soon as a hub does, long before a record is due.
    let mut relays = node.sockets.endpoint.home_relay_status();
    loop {
        tokio::select! {
            updated = addresses.updated() => if updated.is_err() { return },
            updated = relays.updated() => if updated.is_err() { return },
            // To whom the agents are shown has changed. The sender lives in the node.
            changed = grants.changed() => if changed.is_err() { return },
        }
        node.hubs.publish();
        // The engine may have replaced its sockets.
        sockets::fit_sockets(&node);
    }
}

/// Becomes a member of the hub that issued `ticket`.
pub(super) async fn join_hub(
    node: &Arc<NodeInner>,
    ticket: HubTicket,
    agreed: bool,
) -> Result<admin::JoinAnswer, Status> {
    let row = HubRow {
        url: ticket.url.to_string(),
        key: ticket.key,
        ..HubRow::default()
    };
    let hub = node.hubs.make(row, &node.setup.key)?;
    let joined = hub.client.join(ticket.secret).await.map_err(Status::from)?;
    let row = HubRow {
        url: hub.client.url().to_string(),
        key: ticket.key,
        relay: own_relay(&joined.relay, hub.client.url()),
        discovery_port: Some(joined.discovery_port),
        trust_members: trusts_members(ticket.trust, joined.trust, agreed),
    };
    let trusted = row.trust_members;
    node.trust.store().put_hub(&row).map_err(store_status)?;
    let hub = Arc::new(node.hubs.make(row, &node.setup.key)?);
    {
        let mut hubs = node.hubs.lock();
        hubs.retain(|other| other.row.url != hub.row.url);
        hubs.push(hub.clone());
    }
    use_relay(node, &hub).await;
    // The first registration is part of joining, so that its name is known at the end.
    if let Err(error) = register(node, &hub).await {
        hub.failed(&error);
    }
    let HubLinkState { name, error, .. } = hub.state();
    let url = hub.row.url.clone();
    // The node is a member, whatever came of that: it is tried again until it works.
    tokio::spawn(keep_registered(node.clone(), hub));
    Ok(admin::JoinAnswer::Hub {
        url,
        name,
        error,
        members: joined.trust == HubTrust::Members,
        trusted,
    })
}

/// Ends this node's membership of a hub: the hub is told, and is forgotten here also where it is away. Tunnels that are up stay.
pub(super) async fn leave_hub(
    node: &Arc<NodeInner>,
    request: &admin::LeaveRequest,
) -> Result<admin::LeaveAnswer, Status> {
    let hub = hub_to_leave(&node.hubs.all(), &request.hub)?;
    let url = hub.row.url.clone();
    let told = tokio::time::timeout(PATIENT_LOOKUP, hub.client.leave()).await;
    let error = match told {
        Ok(Ok(_)) => String::new(),
        Ok(Err(error)) => describe(&error),
        Err(_) => describe(&HubError::TimedOut),
    };
    node.trust.store().remove_hub(&url).map_err(store_status)?;
    node.hubs.lock().retain(|other| !Arc::ptr_eq(other, &hub));
    // Whoever keeps it registered finds that it is gone.
    node.hubs.publish();
    if let Some(relay) = hub.row.relay.as_ref().and_then(|url| url.parse().ok()) {
        node.sockets.endpoint.remove_relay(&relay).await;
    }
    tracing::info!(hub = url, %error, "left the hub");
    let configured = node.config().hubs.iter().any(|hub| hub.to_string() == url);
    Ok(admin::LeaveAnswer {
        url,
        error,
        configured,
    })
}

/// The hub with this URL, or the only one where none is named.
fn hub_to_leave(hubs: &[Arc<HubLink>], named: &str) -> Result<Arc<HubLink>, Status> {
    one_hub(hubs, named, "hail leave URL")
}

/// The hub with this URL, or the only one where none is named; the hint says how one is named.
pub(super) fn one_hub(
    hubs: &[Arc<HubLink>],
    named: &str,
    naming: &str,
) -> Result<Arc<HubLink>, Status> {
    let urls: Vec<&str> = hubs.iter().map(|hub| hub.row.url.as_str()).collect();
    let known = || match urls.as_slice() {
        [] => "it is a member of none".to_owned(),
        urls => format!("it is a member of {}", urls.join(", ")),
    };
    if named.is_empty() {
        return match hubs {
            [only] => Ok(only.clone()),
            [] => Err(Status::new(
                Code::NotFound,
                "this node is a member of no hub",
            )),
            _ => Err(Status::new(
                Code::InvalidArgument,
                "this node is a member of several hubs",
            )
            .with_hint(format!("name one: `{naming}`; {}", known()))),
        };
    }
    let url = named.parse::<HubUrl>();
    let url = url.map_err(|error| Status::new(Code::InvalidArgument, format!("{error}")))?;
    let url = url.to_string();
    let found = hubs.iter().find(|hub| hub.row.url == url);
    found.cloned().ok_or_else(|| {
        Status::new(
            Code::NotFound,
            format!("this node is not a member of {url}"),
        )
        .with_hint(known())
    })
}

/// Asks all hubs how they are, each for so long at most.
pub(super) async fn ask_all(node: &Arc<NodeInner>, patience: Duration) {
    let mut asked = JoinSet::new();
    for hub in node.hubs.all() {
        let node = node.clone();
        asked.spawn(async move { hub.ask(&node, patience).await });
    }
    while asked.join_next().await.is_some() {}
}

pub(super) fn hub_states(node: &NodeInner) -> Vec<admin::HubState> {
    let state = |hub: Arc<HubLink>| {
        let HubLinkState {
            connected,
            name,
            error,
            heard,
            answer,
        } = hub.state();
        admin::HubState {
            url: hub.row.url.clone(),
            connected,
            name,
            error,
            answer_us: answer.map(micros),
            heard_s: heard.map(|heard| heard.elapsed().as_secs()),
        }
    };
    node.hubs.all().into_iter().map(state).collect()
}

/// Adds what the hubs know of a node's whereabouts.
pub(super) async fn candidates_at_hubs(
    node: &NodeInner,
    id: NodeId,
    candidates: &mut AddressCandidates,
) {
    let patience = if candidates.is_empty() {
        PATIENT_LOOKUP
    } else {
        QUICK_LOOKUP
    };
    let known = !candidates.is_empty();
    for hub in node.hubs.all() {
        if known && !hub.is_connected() {
            // A hub that is away would only hold the dial up.
            continue;
        }
        let who = NodeRef::Id(id);
        let Ok(Some(found)) = hub.asked(node, patience, hub.client.lookup(&who)).await else {
            continue;
        };
        let record = found.record();
        candidates.add(AddressOrigin::Told, &record.addresses, &record.tcp);
        candidates.relays.extend(record.relay.clone());
    }
}

/// Whether `id` is trusted, or is from now on since a hub vouches for it: [`vouched_for`].
pub(super) async fn trusts(node: &NodeInner, id: NodeId) -> bool {
    node.trust.is_trusted(id) || vouched_for(node, id).await
}

/// Whether a hub whose members trust each other vouches for `id`; it is then trusted, unless
/// the operator removed it.
pub(super) async fn vouched_for(node: &NodeInner, id: NodeId) -> bool {
    if node.trust.was_removed(id) {
        return false;
    }
    for hub in node
        .hubs
        .all()
        .into_iter()
        .filter(|hub| hub.trusts_members())
    {
        let member = hub.asked(node, PATIENT_LOOKUP, hub.client.member(id)).await;
        let Ok(Some(member)) = member else {
            continue;
        };
        let peer = NewPeer {
            id,
            alias: member.name.map(|name| (name, NamedBy::Peer)),
            terms: GrantTerms::Offered(Grant::All),
            bare: None,
            via: TrustOrigin::Hub,
            known: AddressOrigin::Told,
            addresses: Vec::new(),
            tcp: Vec::new(),
            relay: hub.row.relay.clone(),
        };
        return node.trust.add_vouched(peer, now_unix()).unwrap_or(false);
    }
    false
}

/// Agents that match, of trusted nodes at the hubs and of those that a hub vouches for, with the
/// node that offers them.
pub(super) async fn search_hubs(
    node: &NodeInner,
    search: &SearchRequest,
) -> Vec<(NodeId, NodeRecord)> {
    let mut found = Vec::new();
    for hub in node.hubs.all() {
        let asked = hub
            .asked(node, PATIENT_LOOKUP, hub.client.search(search))
            .await;
        if let Ok(records) = asked {
            let records = records.into_iter().map(|r| (r.node(), r.record().clone()));
            let vouched = |id| hub.trusts_members() && !node.trust.was_removed(id);
            let trusted = |id| node.trust.is_trusted(id) || vouched(id);
            found.extend(records.filter(|(id, _)| trusted(*id)));
        }
    }
    found
}

/// Publishes when [`HubRegistration`] says so, until the node ends.
async fn keep_registered(node: Arc<NodeInner>, hub: Arc<HubLink>) {
    use_relay(&node, &hub).await;
    let mut changes = node.hubs.changes.subscribe();
    let mut closing = node.lifecycle.closing.subscribe();
    let mut registration = HubRegistration::new(clock::now());
    loop {
        if !node.hubs.all().iter().any(|other| Arc::ptr_eq(other, &hub)) {
            // Joined anew; another task looks after it.
            return;
        }
        if let Some(HubAction::Publish) = registration.poll_action() {
            changes.mark_unchanged();
            match register(&node, &hub).await {
                Ok(()) => {
                    registration.handle_published(clock::now());
                    tokio::select! {
                        () = messages::fetch(&node, &hub) => {}
                        _ = closing.wait_for(|closing| *closing) => return,
                    }
                }
                Err(error) => {
                    hub.failed(&error);
                    registration.handle_failure(clock::now());
                }
            }
            continue;
        }
        tokio::select! {
            () = clock::reached(registration.poll_timeout()) => registration.handle_timeout(clock::now()),
            changed = changes.changed() => match changed {
                Ok(()) => registration.handle_change(clock::now()),
                Err(_) => return,
            },
            _ = closing.wait_for(|closing| *closing) => return,
        }
    }
}

/// Publishes the node's record, without its name where another node holds that.
async fn register(node: &NodeInner, hub: &HubLink) -> Result<(), HubError> {
    let name = node.name();
    let (publish, mut error) = to_publish(node, hub, name.is_some())?;
    let published = match hub.client.publish_to(&publish).await {
        Err(HubError::Refused(refusal))
            if Status::from(refusal.clone()).code == Code::AlreadyExists =>
        {
            error = refusal.message;
            let (publish, _) = to_publish(node, hub, false)?;
            hub.client.publish_to(&publish).await?
        }
        published => published?,
    };
    let held = published
        .name_held_until
        .and(name)
        .map(String::from)
        .unwrap_or_default();
    if !hub.state().connected {
        tracing::info!(hub = %hub.row.url, name = held, "registered at the hub");
    }
    hub.set_state(HubLinkState {
        connected: true,
        name: held,
        error,
        heard: Some(Instant::now()),
        ..hub.state()
    });
    Ok(())
}

/// What is published, and what was left out of it.
fn to_publish(
    node: &NodeInner,
    hub: &HubLink,
    named: bool,
) -> Result<(PublishRequest, String), HubError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut agents = node.registry.offers(&Grant::All);
    agents.truncate(limits::MAX_AGENTS_PER_NODE);
    // A record is for finding an agent, and outlives what its members are now.
    for agent in &mut agents {
        agent.group = OfferedGroup::default();
    }
    let own = listen::own_addresses(node);
    let record = NodeRecord {
        name: node.name().filter(|_| named),
        addresses: own.udp,
        tcp: own.tcp,
        relay: hub.row.relay.clone(),
        agents,
        sequence: node.hubs.next_sequence(
            u64::try_from(now.as_millis()).unwrap_or(0),
            node.trust.store(),
        ),
        issued: now.as_secs(),
        expires: now.as_secs() + RECORD_LIFETIME_S,
    };
    let key = node.setup.key.pair();
    let whereabouts = NodeRecord {
        agents: Vec::new(),
        ..record.clone()
    };
    let whereabouts = whereabouts.sign(&key)?;
    let (record, mut left_out) = hub_record::fit(record, &key)?;
    let rows = node.trust.rows();
    let unrestricted = rows.iter().filter(|row| row.allow == Grant::All);
    let (shown_to, hidden) = hub_record::shown_to(unrestricted.map(|row| (row.since, row.id)));
    if left_out.is_empty() && hidden > 0 {
        left_out = format!(
            "agents are shown to the {} peers trusted last, and not to {hidden} others",
            limits::MAX_SHOWN_TO
        );
    }
    let publish = PublishRequest {
        record: RecordBytes(record.bytes().clone()),
        whereabouts: Some(RecordBytes(whereabouts.bytes().clone())),
        shown_to,
    };
    Ok((publish, left_out))
}

/// Lets the endpoint use the hub's relay and address discovery.
async fn use_relay(node: &NodeInner, hub: &HubLink) {
    let Some(url) = hub
        .row
        .relay
        .as_ref()
        .and_then(|url| url.parse::<RelayUrl>().ok())
    else {
        return;
    };
    let mut config = RelayConfig::from(url.clone());
    match (hub.row.discovery_port, &mut config.quic) {
        (Some(port), Some(quic)) => quic.port = port,
        _ => config.quic = None,
    }
    node.sockets
        .endpoint
        .insert_relay(url, Arc::new(config))
        .await;
}

/// An error with its cause, for status and log.
fn describe(error: &HubError) -> String {
    let status = Status::from(error);
    if status.details.is_empty() {
        status.message
    } else {
        format!("{}: {}", status.message, status.details)
    }
}

/// Time in milliseconds, so that records of one key are in order wherever they were signed; one more
/// than the last where the clock has not moved on or was set back.
fn sequence_after(last: u64, now_ms: u64) -> u64 {
    now_ms.max(last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_set_back_an_hour_makes_no_record_older_than_the_last() {
        let now = 1_800_000_000_000;
        assert_eq!(sequence_after(0, now), now);
        assert_eq!(sequence_after(now, now), now + 1);
        assert_eq!(sequence_after(now, now - 3_600_000), now + 1);
    }

    #[test]
    fn members_of_a_hub_are_trusted_only_where_ticket_hub_and_user_say_so() {
        for ticket in [HubTrust::Members, HubTrust::Nobody] {
            for hub in [HubTrust::Members, HubTrust::Nobody] {
                for agreed in [false, true] {
                    let all = agreed && ticket == HubTrust::Members && ticket == hub;
                    assert_eq!(trusts_members(ticket, hub, agreed), all);
                }
            }
        }
    }

    #[test]
    fn a_hub_sends_its_members_to_no_relay_but_its_own() {
        let hub: HubUrl = "https://hub.example.org:8443".parse().unwrap();
        for own in [
            "https://hub.example.org:8443",
            "https://hub.example.org:8443/",
        ] {
            assert_eq!(own_relay(own, &hub).as_deref(), Some(own));
        }
        for other in [
            "https://hub.example.org",
            "https://hub.example.com:8443",
            "https://127.0.0.1:8443",
            "no url",
            "",
        ] {
            assert_eq!(own_relay(other, &hub), None, "{other}");
        }
    }

    /// The hubs of a node whose folder and configuration name these.
    fn loaded(rows: &[HubRow], configured: &[&str]) -> (tempfile::TempDir, Hubs) {
        let folder = tempfile::tempdir().unwrap();
        let key = NodeKey::load_or_create(&folder.path().join("key")).unwrap();
        let store = NodeStore::open(&folder.path().join("db")).unwrap();
        for row in rows {
            store.put_hub(row).unwrap();
        }
        let config = Config {
            hubs: configured.iter().map(|url| url.parse().unwrap()).collect(),
            ..Config::default()
        };
        let hubs = Hubs::load(&config, &store, &key, HubPins::default()).unwrap();
        (folder, hubs)
    }

    fn row(url: &str, relay: Option<&str>) -> HubRow {
        HubRow {
            url: url.to_owned(),
            relay: relay.map(str::to_owned),
            ..HubRow::default()
        }
    }

    #[test]
    fn hubs_that_were_joined_and_those_of_the_configuration_are_each_there_once() {
        let joined = row("https://a.example:443", Some("https://a.example:443"));
        let broken = row("no url", None);
        let configured = ["https://a.example", "https://b.example"];
        let (_folder, hubs) = loaded(&[joined, broken], &configured);
        let urls: Vec<_> = hubs.all().iter().map(|hub| hub.row.url.clone()).collect();
        assert_eq!(urls, ["https://a.example:443", "https://b.example:443"]);
        // What was learnt by joining is kept.
        assert_eq!(hubs.answering_relays(), ["https://a.example:443"]);
        assert!(hubs.all().iter().all(|hub| !hub.is_connected()));
    }

    #[test]
    fn a_hub_is_left_by_its_url_or_as_the_only_one() {
        let rows = [
            row("https://a.example:443", None),
            row("https://b.example:443", None),
        ];
        let (_folder, two) = loaded(&rows, &[]);
        let (_other, one) = loaded(&rows[..1], &[]);
        let (_third, none) = loaded(&[], &[]);
        let left = |hubs: &Hubs, named: &str| {
            let hub = hub_to_leave(&hubs.all(), named);
            hub.map(|hub| hub.row.url.clone())
                .map_err(|status| status.code)
        };
        assert_eq!(left(&one, "").unwrap(), "https://a.example:443");
        assert_eq!(
            left(&two, "https://B.example/").unwrap(),
            "https://b.example:443"
        );
        assert_eq!(left(&two, ""), Err(Code::InvalidArgument));
        assert_eq!(left(&none, ""), Err(Code::NotFound));
        assert_eq!(left(&two, "https://c.example"), Err(Code::NotFound));
        assert_eq!(left(&two, "b.example"), Err(Code::InvalidArgument));
    }

    #[test]
    fn a_hub_that_fails_says_why_and_keeps_the_name_that_it_gave() {
        let (_folder, hubs) = loaded(&[row("https://a.example:443", None)], &[]);
        let hub = hubs.all().remove(0);
        hub.set_state(HubLinkState {
            connected: true,
            name: "desk".to_owned(),
            ..HubLinkState::default()
        });
        assert!(hub.is_connected());
        let refused = std::io::Error::other("nobody listens");
        hub.failed(&HubError::Unreachable(refused));
        let HubLinkState {
            connected,
            name,
            error,
            ..
        } = hub.state();
        assert_eq!((connected, &name[..]), (false, "desk"));
        assert_eq!(error, "the hub cannot be reached: nobody listens");
        hub.failed(&HubError::TimedOut);
        assert_eq!(hub.state().error, "the hub did not answer in time");
    }

    #[test]
    fn each_record_is_newer_than_the_last_one_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let key = NodeKey::load_or_create(&folder.path().join("key")).unwrap();
        let store = NodeStore::open(&folder.path().join("db")).unwrap();
        let load = || Hubs::load(&Config::default(), &store, &key, HubPins::default()).unwrap();
        let hubs = load();
        assert_eq!(hubs.next_sequence(1000, &store), 1000);
        assert_eq!(hubs.next_sequence(1000, &store), 1001);
        assert_eq!(load().next_sequence(7, &store), 1002);
    }
}
