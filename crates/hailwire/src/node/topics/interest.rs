//! Asks peers for what programs of this machine are subscribed to: one call to each trusted peer, open for as long as there is anything to
//! ask for.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use foldhash::{HashMap, HashMapExt};
use hailwire_core::{backoff::Backoff, topics::PublishedAt};
use hailwire_wire::{
    AgentName, CallHeader, NodeId, Status,
    frame::FrameKind,
    topics::{RecordReader, Topic, TopicInterest, TopicPattern, TopicRecord, put_record},
};
use tokio::sync::{Semaphore, watch};

use super::{AskedPeer, CHANGE_PAUSE, PATIENCE, invalid, stays_here};
use crate::{
    admin::{self, method},
    body::{Body, BodySender},
    clock,
    node::{NodeInner, tunnel},
    session::{AbortOnDrop, Answer, Session, deadline_exceeded},
};

/// Between two attempts to ask a peer that cannot be asked; a tunnel that comes up ends the wait.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Peers to which a tunnel is brought up at once.
pub(super) const MAX_DIALS: usize = 16;

/// How long what is under way on a connection that another has taken the place of may take; what comes on the other waits meanwhile, so that
/// the order stays.
const LEFTOVERS: Duration = Duration::from_secs(1);

/// Asks peers, until the node ends.
pub(in crate::node) async fn run(node: Arc<NodeInner>) {
    let mut wanted = node.topics.wanted.subscribe();
    let mut trust = node.trust.changes();
    let mut closing = node.lifecycle.closing.subscribe();
    let dials = Arc::new(Semaphore::new(MAX_DIALS));
    let mut asking: HashMap<NodeId, AbortOnDrop> = HashMap::new();
    loop {
        trust.borrow_and_update();
        let anything = !wanted.borrow_and_update().is_empty() && !node.is_closing();
        let trusted = anything.then(|| node.trust.rows()).into_iter().flatten();
        let peers: HashSet<NodeId> = trusted.map(|row| row.id).collect();
        asking.retain(|peer, _| peers.contains(peer));
        node.topics.asked().retain(|peer, _| peers.contains(peer));
        for peer in peers {
            asking.entry(peer).or_insert_with(|| {
                let asks = ask(node.clone(), peer, dials.clone());
                AbortOnDrop(tokio::spawn(asks).abort_handle())
            });
        }
        tokio::select! {
            _ = wanted.changed() => {}
            _ = trust.changed() => {}
            _ = closing.changed() => {}
        }
    }
}

/// Asks one peer, again and again.
async fn ask(node: Arc<NodeInner>, peer: NodeId, dials: Arc<Semaphore>) {
    let mut backoff = Backoff::new(PAUSES);
    loop {
        let mut changes = node.peers.changes();
        let dialled = {
            let _turn = dials.acquire().await;
            tunnel::tunnel_to(&node, peer).await
        };
        let session = dialled.as_ref().ok().cloned();
        let ended = match dialled {
            Ok(session) => subscribe(&node, peer, session, &mut backoff).await,
            Err(status) => status,
        };
        tracing::debug!(%peer, status = %ended, "no messages come from a peer for now");
        node.topics.asked().insert(
            peer,
            AskedPeer {
                error: ended.message,
                ..AskedPeer::default()
            },
        );
        let pause = backoff.fail(clock::now());
        tokio::select! {
            () = another(&node, peer, session.as_ref(), &mut changes) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// There is another tunnel to a peer than the one that was used.
pub(super) async fn another(
    node: &NodeInner,
    peer: NodeId,
    session: Option<&Session>,
    changes: &mut watch::Receiver<u64>,
) {
    loop {
        if let Some(up) = node.peers.up(peer)
            && session.is_none_or(|session| !up.is(session))
        {
            return;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Takes a peer's messages over the tunnel that takes its calls, whichever that is; why they have ended.
async fn subscribe(
    node: &Arc<NodeInner>,
    peer: NodeId,
    session: Session,
    backoff: &mut Backoff,
) -> Status {
    let opened = PeerStream::open(node, session).await;
    let mut stream = match opened {
        Ok(stream) => stream,
        Err(status) => return status,
    };
    backoff.reset();
    loop {
        let session = stream.session.clone();
        let next = tokio::select! {
            ended = stream.read(node, peer) => return ended,
            next = moved(node, peer, &session) => next,
        };
        // The new one first: what is published meanwhile waits in the queue that it takes over.
        match PeerStream::open(node, next).await {
            Ok(next) => {
                let mut before = std::mem::replace(&mut stream, next);
                let rest = tokio::time::timeout(LEFTOVERS, before.read(node, peer));
                if rest.await.is_err() {
                    tracing::debug!(%peer, "messages of a connection that was left are lost");
                }
            }
            Err(status) => return status,
        }
    }
}

/// Another connection takes the peer's calls.
pub(super) async fn moved(node: &NodeInner, peer: NodeId, session: &Session) -> Session {
    let mut changes = node.peers.changes();
    loop {
        if let Some(up) = node.peers.up(peer)
            && !up.is(session)
            && up.takes_work()
        {
            return up;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One call of `topics` to a peer.
struct PeerStream {
    session: Session,
    answer: Answer,
    reader: RecordReader,
    _telling: AbortOnDrop,
}

impl PeerStream {
    async fn open(node: &Arc<NodeInner>, session: Session) -> Result<Self, Status> {
        let header = CallHeader {
            to: admin::AGENT.to_owned(),
            method: method::TOPICS.to_owned(),
            ..CallHeader::default()
        };
        let (sender, body) = Body::channel(1);
        let telling = tokio::spawn(tell(node.topics.wanted.subscribe(), sender));
        let telling = AbortOnDrop(telling.abort_handle());
        let begun = async {
            let answer = session.open(FrameKind::CALL, &header, body).await?;
            answer.begin(None).await
        };
        let begun = tokio::time::timeout(PATIENCE, begun).await;
        let answer = begun.unwrap_or_else(|_| Err(deadline_exceeded()))?;
        Ok(Self {
            session,
            answer,
            reader: RecordReader::default(),
            _telling: telling,
        })
    }

    /// Hands on what comes, until it ends. Dropping it loses nothing.
    async fn read(&mut self, node: &NodeInner, peer: NodeId) -> Status {
        loop {
            loop {
                match self.reader.poll_record().map_err(invalid) {
                    Ok(Some(record)) => {
                        if let Err(status) = take(node, peer, record) {
                            return status;
                        }
                    }
                    Ok(None) => break,
                    Err(status) => return status,
                }
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => self.reader.handle_chunk(&chunk),
                Ok(None) => return Status::ok(),
                Err(status) => return status,
            }
        }
    }
}

/// Tells a peer what is wanted, each time that it changes.
async fn tell(mut wanted: watch::Receiver<Arc<Vec<String>>>, sender: BodySender) {
    loop {
        let patterns = wanted.borrow_and_update().to_vec();
        let mut out = BytesMut::new();
        put_record(&mut out, &TopicInterest { patterns });
        if sender.send(Bytes::from(out)).await.is_err() {
            return;
        }
        tokio::time::sleep(CHANGE_PAUSE).await;
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Takes one record of a peer.
pub(super) fn take(node: &NodeInner, peer: NodeId, record: TopicRecord) -> Result<(), Status> {
    if record.topic.is_empty() {
        note_news(node, peer, record);
        return Ok(());
    }
    let topic = record.check().map_err(invalid)?;
    if !is_its_to_publish(node, peer, &topic, &record) {
        return Ok(());
    }
    let mut state = node.topics.state();
    state.publish(node, &topic, PublishedAt::Peer, |_| TopicRecord {
        node: Some(peer),
        missed: 0,
        missed_of: Vec::new(),
        refused: Vec::new(),
        if_kept: None,
        log: 0,
        reached: false,
        away: String::new(),
        settled: false,
        ..record
    });
    Ok(())
}

/// Whether a peer may publish a message here, and as what it says; what it may not is counted.
pub(super) fn is_its_to_publish(
    node: &NodeInner,
    peer: NodeId,
    topic: &Topic,
    record: &TopicRecord,
) -> bool {
    let first = topic.first();
    let named = record.from.is_empty() || record.from.parse::<AgentName>().is_ok();
    let granted = node.trust.check(peer, &first).is_ok() && !stays_here(Some(first));
    let may = record.node.is_none() && named && granted;
    if !may {
        let mut asked = node.topics.asked();
        let asked = asked.entry(peer).or_default();
        asked.dropped += 1;
        if asked.dropped == 1 {
            tracing::warn!(%peer, %topic, "a message was dropped that the peer may not publish here");
        }
    }
    may
}

/// What a peer says of the stream itself.
fn note_news(node: &NodeInner, peer: NodeId, record: TopicRecord) {
    let mut state = node.topics.state();
    for (pattern, lost) in record.missed_of {
        if let Ok(pattern) = pattern.parse::<TopicPattern>() {
            let woken = state.table.handle_missed(&pattern, lost);
            state.wake(&woken);
        }
    }
    drop(state);
    let mut asked = node.topics.asked();
    let asked = asked.entry(peer).or_default();
    asked.error.clear();
    asked.subscribed = true;
    if record.missed == 0 {
        asked.refused = record.refused;
    }
}
