//! A program reads what is kept: by this node, and by each trusted peer that lets it. Each log is read by a task that has a position in it, and goes on
//! from there when a tunnel, a peer or a carrier has failed, so nothing is lost and nothing comes twice while the subscription lasts. The tasks
//! share one way to the program, which is as fast as the program reads.

use std::{collections::HashSet, pin::pin, sync::Arc, time::Duration};

use bytes::BytesMut;
use foldhash::{HashMap, HashMapExt};
use hailwire_core::{backoff::Backoff, kept_topics::LogPosition};
use hailwire_wire::{
    CallHeader, NodeId, Status,
    frame::FrameKind,
    limits::MAX_REPLAY_PATTERNS,
    topics::{RecordReader, TopicPattern, TopicRecord, TopicReplay, put_record},
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

use super::{
    CHANGE_PAUSE, PATIENCE, closing,
    interest::{MAX_DIALS, PAUSES, another, is_its_to_publish, moved},
    invalid,
    log_reader::{LogReader, ReplaySlot},
    named::NamedReader,
    shutting_down,
};
use crate::{
    admin::{self, SubscribeRequest, method},
    agent::Response,
    body::{Body, BodySender},
    clock,
    node::{NodeInner, tunnel},
    session::{AbortOnDrop, Answer, Session, deadline_exceeded},
};

/// How long nodes may take to say what they keep, before it is said that all have that could, where the program does not say.
const SETTLE: Duration = Duration::from_secs(3);

/// The longest that a program may wait for it.
const LONGEST_SETTLE: Duration = Duration::from_secs(60);

/// Records that are read together leave together up to this size.
const SENT_AT_ONCE: usize = 64 * 1024;

/// Between two looks whether tasks that were aborted have ended.
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// What the tasks of one subscription share.
struct ReplayingProgram {
    node: Arc<NodeInner>,
    patterns: Vec<TopicPattern>,
    /// Where a log is begun that was not read before, unless the program has a name.
    start: TopicReplay,
    named: Option<NamedReader>,
    sender: BodySender,
    /// Nodes that have said what they keep, or cannot.
    done: mpsc::Sender<NodeId>,
    dials: Semaphore,
}

/// Subscribes a program to what is kept; the answer is a stream of records, the first of them empty.
pub(super) async fn subscribe(
    node: &Arc<NodeInner>,
    session: Option<Session>,
    request: &SubscribeRequest,
    patterns: Vec<TopicPattern>,
) -> Result<Response, Status> {
    if patterns.len() > MAX_REPLAY_PATTERNS {
        return Err(invalid(format!(
            "what is kept is read with at most {MAX_REPLAY_PATTERNS} patterns"
        )));
    }
    let slot = ReplaySlot::take(node, None)?;
    let named = match request.name.is_empty() {
        true => None,
        false => Some(NamedReader::begin(node, &patterns, request).await?),
    };
    let (sender, body) = Body::channel(1);
    let (done, is_done) = mpsc::channel(16);
    let start = TopicReplay {
        from: request.from,
        last: request.last,
        since_ms: request.since_ms,
        ..TopicReplay::default()
    };
    let replaying = Arc::new(ReplayingProgram {
        node: node.clone(),
        patterns,
        start,
        named,
        sender,
        done,
        dials: Semaphore::new(MAX_DIALS),
    });
    // Here a mistake is told of at once.
    let own = own_log(&replaying).await?;
    let settle = request.settle_ms.map_or(SETTLE, Duration::from_millis);
    let settle = Instant::now() + settle.min(LONGEST_SETTLE);
    tokio::spawn(async move {
        // The program, so that no other has its key meanwhile.
        let _held = (session, slot);
        run(replaying, own, is_done, settle).await;
    });
    Ok(Response::new(body))
}

/// Reads all logs, until the program, the node or the name is gone.
async fn run(
    replaying: Arc<ReplayingProgram>,
    own: LogReader,
    mut is_done: mpsc::Receiver<NodeId>,
    settle: Instant,
) {
    let node = replaying.node.clone();
    let own_task = tokio::spawn(read_own(replaying.clone(), own));
    let own_aborted = AbortOnDrop(own_task.abort_handle());
    let mut tasks: HashMap<NodeId, AbortOnDrop> = HashMap::new();
    let ended = {
        let mut trust = node.trust.changes();
        let mut closing = pin!(closing(&node));
        let mut own_task = pin!(own_task);
        let mut settling = Some(HashSet::from([node.id()]));
        let mut first = true;
        loop {
            trust.borrow_and_update();
            let peers: HashSet<NodeId> = node.trust.rows().into_iter().map(|row| row.id).collect();
            tasks.retain(|peer, _| peers.contains(peer));
            for peer in peers {
                tasks.entry(peer).or_insert_with(|| {
                    if let (true, Some(settling)) = (first, &mut settling) {
                        settling.insert(peer);
                    }
                    let reads = read_peer(replaying.clone(), peer);
                    AbortOnDrop(tokio::spawn(reads).abort_handle())
                });
            }
            first = false;
            let replaced = async {
                match &replaying.named {
                    Some(named) => named.replaced().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = trust.changed() => {}
                Some(done) = is_done.recv() => {
                    if let Some(settling) = &mut settling {
                        settling.remove(&done);
                    }
                }
                () = tokio::time::sleep_until(settle), if settling.is_some() => {
                    for late in settling.replace(HashSet::new()).into_iter().flatten() {
                        if replaying.late(late).await.is_err() {
                            return;
                        }
                    }
                }
                () = replaying.sender.closed() => break None,
                () = &mut closing => break Some(shutting_down()),
                status = replaced => break Some(status),
                ended = &mut own_task => break Some(ended.unwrap_or_else(|_| shutting_down())),
            }
            if settling.as_ref().is_some_and(HashSet::is_empty) {
                settling = None;
                let news = TopicRecord {
                    settled: true,
                    ..TopicRecord::default()
                };
                if replaying.news(&news).await.is_err() {
                    break None;
                }
            }
        }
    };
    // Nobody else writes any more once they have ended.
    tasks.clear();
    drop(own_aborted);
    if let Some(status) = ended {
        replaying.end(status).await;
    }
}

impl ReplayingProgram {
    async fn news(&self, news: &TopicRecord) -> Result<(), Status> {
        let mut out = BytesMut::new();
        put_record(&mut out, news);
        self.sender.send(out.freeze()).await
    }

    /// Says that a node has not answered in time.
    async fn late(&self, node: NodeId) -> Result<(), Status> {
        let news = TopicRecord {
            node: Some(node).filter(|node| *node != self.node.id()),
            away: "it has not answered in time".to_owned(),
            ..TopicRecord::default()
        };
        self.news(&news).await
    }

    /// Says why nothing more comes. One who does not read is not waited for.
    async fn end(self: Arc<Self>, status: Status) {
        let patience = Instant::now() + CHANGE_PAUSE;
        let mut shared = Some(self);
        // Tasks that were aborted hold it for a moment longer.
        while let Some(held) = shared.take() {
            match Arc::try_unwrap(held) {
                Ok(alone) => {
                    let aborted = alone.sender.abort(status);
                    let _ = tokio::time::timeout(CHANGE_PAUSE, aborted).await;
                    return;
                }
                Err(_) if Instant::now() > patience => return,
                Err(held) => shared = Some(held),
            }
            tokio::time::sleep(ENDING_PAUSE).await;
        }
    }

    /// Where to begin in the log of a node that was not read since the subscription began.
    fn begin_at(&self, node: NodeId) -> TopicReplay {
        match &self.named {
            Some(named) => named.begin_at(node),
            None => self.start.clone(),
        }
    }

    fn note_handed(&self, node: NodeId, position: LogPosition) {
        if let Some(named) = &self.named {
            named.note_handed(node, position);
        }
    }

    async fn note_begun(&self, node: NodeId, position: LogPosition) -> Result<(), Status> {
        match &self.named {
            Some(named) => named.note_begun(node, position).await,
            None => Ok(()),
        }
    }
}

async fn own_log(replaying: &Arc<ReplayingProgram>) -> Result<LogReader, Status> {
    let node = &replaying.node;
    let start = replaying.begin_at(node.id());
    let reader = LogReader::begin(node, replaying.patterns.clone(), &start).await?;
    replaying.note_begun(node.id(), reader.position()).await?;
    Ok(reader)
}

/// Reads this node's own log; why it has ended.
async fn read_own(replaying: Arc<ReplayingProgram>, mut reader: LogReader) -> Status {
    let own = replaying.node.id();
    let mut out = BytesMut::new();
    // It tells the program that the subscription stands.
    put_record(&mut out, &TopicRecord::default());
    let log = TopicRecord {
        log: reader.position().log,
        ..TopicRecord::default()
    };
    put_record(&mut out, &log);
    loop {
        if !out.is_empty()
            && let Err(status) = replaying.sender.send(out.split().freeze()).await
        {
            return status;
        }
        let step = match reader.next().await {
            Ok(step) => step,
            Err(status) => return status,
        };
        if step.batch.missed > 0 {
            let news = TopicRecord {
                missed: step.batch.missed,
                ..TopicRecord::default()
            };
            put_record(&mut out, &news);
        }
        for kept in &step.batch.records {
            out.extend_from_slice(&kept.record);
        }
        replaying.note_handed(own, reader.position());
        if step.reached {
            let news = TopicRecord {
                reached: true,
                ..TopicRecord::default()
            };
            put_record(&mut out, &news);
            if let Err(status) = replaying.sender.send(out.split().freeze()).await {
                return status;
            }
            let _ = replaying.done.send(own).await;
        }
    }
}

/// Reads a peer's log, again and again.
async fn read_peer(replaying: Arc<ReplayingProgram>, peer: NodeId) {
    let node = replaying.node.clone();
    let mut backoff = Backoff::new(PAUSES);
    let mut position = None;
    let mut said = String::new();
    loop {
        let mut changes = node.peers.changes();
        let dialled = {
            let _turn = replaying.dials.acquire().await;
            tunnel::tunnel_to(&node, peer).await
        };
        let session = dialled.as_ref().ok().cloned();
        let ended = match dialled {
            Ok(session) => {
                let read = PeerLog::new(&replaying, peer, session.clone(), &mut position);
                let mut said = (&mut said, &mut backoff);
                let read = read_session(read, &mut said);
                tokio::select! {
                    ended = read => ended,
                    // What is read next is read over the other one, from where this one has come to.
                    _ = moved(&node, peer, &session) => continue,
                }
            }
            Err(status) => status,
        };
        if said != ended.message {
            said.clone_from(&ended.message);
            let news = TopicRecord {
                node: Some(peer),
                away: ended.message,
                ..TopicRecord::default()
            };
            if replaying.news(&news).await.is_err() {
                return;
            }
        }
        let _ = replaying.done.send(peer).await;
        let pause = backoff.fail(clock::now());
        tokio::select! {
            () = another(&node, peer, session.as_ref(), &mut changes) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn read_session(
    mut log: PeerLog<'_>,
    (said, backoff): &mut (&mut String, &mut Backoff),
) -> Status {
    let mut answer = match log.open().await {
        Ok(answer) => answer,
        Err(status) => return status,
    };
    said.clear();
    backoff.reset();
    let mut reader = RecordReader::default();
    loop {
        match log.take(&mut reader).await {
            Ok(()) => {}
            Err(status) => return status,
        }
        match answer.chunk().await {
            Ok(Some(chunk)) => reader.handle_chunk(&chunk),
            Ok(None) => return shutting_down(),
            Err(status) => return status,
        }
    }
}

/// One call of `topics.replay` to a peer.
struct PeerLog<'a> {
    replaying: &'a ReplayingProgram,
    peer: NodeId,
    session: Session,
    position: &'a mut Option<LogPosition>,
}

impl<'a> PeerLog<'a> {
    fn new(
        replaying: &'a ReplayingProgram,
        peer: NodeId,
        session: Session,
        position: &'a mut Option<LogPosition>,
    ) -> Self {
        Self {
            replaying,
            peer,
            session,
            position,
        }
    }

    async fn open(&self) -> Result<Answer, Status> {
        let begin = match *self.position {
            Some(position) => TopicReplay {
                log: position.log,
                after: position.number,
                ..TopicReplay::default()
            },
            None => self.replaying.begin_at(self.peer),
        };
        let patterns = self.replaying.patterns.iter().map(TopicPattern::to_string);
        let replay = TopicReplay {
            patterns: patterns.collect(),
            ..begin
        };
        let mut body = BytesMut::new();
        put_record(&mut body, &replay);
        let header = CallHeader {
            to: admin::AGENT.to_owned(),
            method: method::TOPIC_REPLAY.to_owned(),
            ..CallHeader::default()
        };
        let begun = async {
            let body = Body::from(body.freeze());
            let answer = self.session.open(FrameKind::CALL, &header, body).await?;
            answer.begin(None).await
        };
        let begun = tokio::time::timeout(PATIENCE, begun).await;
        begun.unwrap_or_else(|_| Err(deadline_exceeded()))
    }

    /// Hands on what has come. Only what was handed on counts as read.
    async fn take(&mut self, reader: &mut RecordReader) -> Result<(), Status> {
        let mut out = BytesMut::new();
        let mut come_to = *self.position;
        let mut reached = false;
        loop {
            let record: Option<TopicRecord> = reader.poll_record().map_err(invalid)?;
            if out.len() >= SENT_AT_ONCE || record.is_none() {
                if let Some(position) = come_to.filter(|_| !out.is_empty()) {
                    self.replaying.note_handed(self.peer, position);
                    self.replaying.sender.send(out.split().freeze()).await?;
                }
                *self.position = come_to;
            }
            let Some(record) = record else { break };
            match record.topic.is_empty() {
                true if record.log != 0 => {
                    let position = LogPosition {
                        log: record.log,
                        number: record.kept,
                    };
                    self.replaying.note_begun(self.peer, position).await?;
                    come_to = Some(position);
                }
                true => reached |= record.reached,
                false => {
                    let Some(come_to) = &mut come_to else {
                        return Err(invalid("a message of a log that was not named"));
                    };
                    if record.kept <= come_to.number {
                        return Err(invalid("messages of a log come in its order"));
                    }
                    come_to.number = record.kept;
                }
            }
            if let Some(record) = self.checked(record)? {
                put_record(&mut out, &record);
            }
        }
        if reached {
            let _ = self.replaying.done.send(self.peer).await;
        }
        Ok(())
    }

    /// What of a peer's record the program gets.
    fn checked(&self, record: TopicRecord) -> Result<Option<TopicRecord>, Status> {
        let peer = Some(self.peer);
        if record.topic.is_empty() {
            return Ok(Some(TopicRecord {
                node: peer,
                log: record.log,
                missed: record.missed,
                reached: record.reached,
                away: match record.refused.is_empty() {
                    true => String::new(),
                    false => format!(
                        "it does not let this node subscribe to {}",
                        record.refused.join(", ")
                    ),
                },
                ..TopicRecord::default()
            }));
        }
        let topic = record.check().map_err(invalid)?;
        let wanted = self
            .replaying
            .patterns
            .iter()
            .any(|one| one.matches(&topic));
        let node = &self.replaying.node;
        if !wanted || !is_its_to_publish(node, self.peer, &topic, &record) {
            return Ok(None);
        }
        Ok(Some(TopicRecord {
            node: peer,
            topic: record.topic,
            from: record.from,
            content_type: record.content_type,
            headers: record.headers,
            body: record.body,
            at_ms: record.at_ms,
            kept: record.kept,
            deleted: record.deleted,
            ..TopicRecord::default()
        }))
    }
}
