//! The wire that the protocol's documentation describes, which the Go kit's `v2` speaks.
//!
//! Frames are those of the Unix socket ([`crate::wire::frame`]), payloads always JSON:
//!
//! | code | what | fields |
//! |---|---|---|
//! | 0x01 | handshake | `protocol_version` 2, `client_name`, `supported_features` |
//! | 0x02 | its answer | `agent_name`, `capabilities` {`handles_…`, `supports_…`, `max_concurrent_requests`}, `accepted`, `error` |
//! | 0x03, 0x04 | an agent that dialled registers, and the answer | `agent_id`, `capabilities`, `auth_token`; `accepted`, `error`, `assigned_id` |
//! | 0x10–0x13 | heads and chunks of bodies | `request_id`, and much as elsewhere |
//! | 0x20 | decision | `request_id`, `decision`, `request_headers`, `response_headers`, `audit` |
//! | 0x21 | a changed chunk of a body, in place of a decision | `request_id`, `chunk_index`, `data` |
//! | 0x30 | cancel | `request_id`, `reason` |
//! | 0xF0, 0xF1 | ping and pong, either way | `timestamp` |
//!
//! A request is named by a number. An agent keeps one table of them for all its connections, so that the same request has to have the same
//! number on each, and different requests of one host must not: it is a hash of the correlation id, keyed anew by each process
//! ([`number`]), of 53 bits, which every JSON reader holds.
//!
//! There is no event for a WebSocket frame, a guardrail or a configuration: they are refused. Nor is there one for a request that
//! has ended, which is answered here; the agent gets a cancel, because nothing else makes it forget the request.
//!
//! What belongs to a request whose head this connection has not shown is refused ([`super::heads`]), unless the agent wants no heads: behind a new connection there may be
//! an agent that has started anew, and allows what it does not know.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher as _, RandomState},
    io,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

use super::{answer, heads::KnownHeads};
use crate::{
    Text, VERSION,
    capabilities::{AgentLimits, Capabilities, EventKinds, Features},
    control::{Cancel, Ping},
    event::{BodyChunk, Event, EventKind},
    headers::Headers,
    host::{
        ConnectError, ConnectOptions, Connection, ConnectionLink, EventTransport, LinkSettings,
        MAX_ENTRIES, RequestError, RequestTicket, open,
    },
    response::Response,
    wire::frame,
};

pub(crate) const REGISTRATION: u8 = 0x03;
const REGISTRATION_ANSWER: u8 = 0x04;
const DECISION: u8 = 0x20;
const MUTATION: u8 = 0x21;
const CANCEL: u8 = 0x30;
const PING: u8 = 0xF0;
const PONG: u8 = 0xF1;

/// Bytes that may wait to be written; what would go beyond is refused.
const MAX_QUEUED_BYTES: usize = 32 << 20;

/// Events whose answers may be outstanding: as many as a connection's callers may wait for.
const MAX_PENDING: usize = MAX_ENTRIES;

/// What this host can do, as the documentation has it.
const FEATURES: [&str; 2] = ["streaming", "cancellation"];

/// Puts into a handshake what an agent of this dialect looks for. Those of the crate do not look at it.
pub(in crate::host) fn introduce(handshake: &mut Value, host_id: &str) {
    if let Value::Object(fields) = handshake {
        fields.insert("protocol_version".to_owned(), VERSION.into());
        fields.insert("client_name".to_owned(), host_id.into());
        fields.insert("supported_features".to_owned(), FEATURES.as_slice().into());
    }
}

/// Goes on after the answer to the handshake; `unread` is what came after it.
///
/// # Errors
///
/// [`ConnectError::Refused`].
pub(in crate::host) fn welcomed<R, W>(
    (read, unread): (R, BytesMut),
    write: W,
    welcome: DocumentedHandshake,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let error = welcome.error.filter(|error| !error.is_empty());
    let able = welcome
        .capabilities
        .filter(|_| welcome.accepted != Some(false));
    let Some(able) = able else {
        let error = error.unwrap_or_else(|| "no reason given".to_owned());
        return Err(ConnectError::Refused(error));
    };
    let capabilities = able.into_capabilities(welcome.agent_name);
    Ok(start((read, unread), write, capabilities, options))
}

/// The answer to a handshake.
#[derive(Deserialize)]
pub(in crate::host) struct DocumentedHandshake {
    agent_name: String,
    #[serde(default)]
    capabilities: Option<DocumentedCapabilities>,
    #[serde(default)]
    error: Option<String>,
    /// The kit says it, the documentation does not.
    #[serde(default)]
    accepted: Option<bool>,
}

impl DocumentedHandshake {
    /// `None` where it is not of this dialect.
    pub(in crate::host) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// An agent that has dialled, and registers.
pub(crate) struct DocumentedRegistration {
    pub(crate) agent_id: String,
    pub(crate) auth_token: Option<String>,
    able: DocumentedCapabilities,
}

impl DocumentedRegistration {
    /// From the payload of a frame of type [`REGISTRATION`].
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn read(payload: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct RegistrationFields {
            protocol_version: u32,
            agent_id: String,
            capabilities: DocumentedCapabilities,
            #[serde(default)]
            auth_token: Option<String>,
        }
        let read: RegistrationFields =
            serde_json::from_slice(payload).map_err(|e| e.to_string())?;
        if read.protocol_version != VERSION || read.agent_id.is_empty() {
            return Err("unsupported protocol version, or empty agent id".to_owned());
        }
        Ok(Self {
            agent_id: read.agent_id,
            auth_token: read.auth_token.filter(|token| !token.is_empty()),
            able: read.capabilities,
        })
    }

    /// Lets it in under a name for this connection; `unread` is what came after its registration.
    ///
    /// # Errors
    ///
    /// When the agent has gone.
    pub(crate) async fn accept<R, W>(
        self,
        (read, unread): (R, BytesMut),
        mut write: W,
        assigned_id: &str,
        options: &ConnectOptions,
    ) -> io::Result<Connection>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let mut answer = json!({"accepted": true, "assigned_id": assigned_id});
        if let (Some(config), Value::Object(answer)) = (&options.config, &mut answer) {
            answer.insert("config".to_owned(), config.clone());
        }
        let mut out = BytesMut::new();
        put_json(&mut out, REGISTRATION_ANSWER, &answer).map_err(io::Error::other)?;
        write.write_all(&out).await?;
        let capabilities = self.able.into_capabilities(self.agent_id);
        Ok(start((read, unread), write, capabilities, options))
    }
}

/// Turns away an agent that registers.
pub(crate) async fn refuse(mut write: impl AsyncWrite + Unpin, why: &str) -> io::Result<()> {
    let mut out = BytesMut::new();
    let answer = json!({"accepted": false, "error": why});
    put_json(&mut out, REGISTRATION_ANSWER, &answer).map_err(io::Error::other)?;
    write.write_all(&out).await?;
    write.shutdown().await
}

#[derive(Default, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "as on the wire")]
struct DocumentedCapabilities {
    handles_request_headers: bool,
    handles_request_body: bool,
    handles_response_headers: bool,
    handles_response_body: bool,
    supports_streaming: bool,
    supports_cancellation: bool,
    max_concurrent_requests: Option<u32>,
}

impl DocumentedCapabilities {
    fn into_capabilities(self, name: String) -> Capabilities {
        let limits = AgentLimits::default();
        let handled = [
            (EventKind::RequestHeaders, self.handles_request_headers),
            (EventKind::RequestBody, self.handles_request_body),
            (EventKind::ResponseHeaders, self.handles_response_headers),
            (EventKind::ResponseBody, self.handles_response_body),
            (EventKind::RequestComplete, true),
        ];
        let events: EventKinds = handled
            .into_iter()
            .filter_map(|(kind, handled)| handled.then_some(kind))
            .collect();
        Capabilities {
            agent_id: name.clone(),
            name,
            version: String::new(),
            events,
            features: Features {
                streaming_body: self.supports_streaming,
                concurrent_requests: self.max_concurrent_requests.unwrap_or(0),
                cancellation: self.supports_cancellation,
                ..Features::default()
            },
            limits: AgentLimits {
                max_concurrency: self
                    .max_concurrent_requests
                    .unwrap_or(limits.max_concurrency),
                ..limits
            },
        }
    }
}

fn start<R, W>(
    (read, unread): (R, BytesMut),
    write: W,
    capabilities: Capabilities,
    options: &ConnectOptions,
) -> Connection
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    // Bounded by `queued`: what would take it beyond MAX_QUEUED_BYTES is refused by `DocumentedTransport::order`. Beside that there is
    // one order to close.
    let (orders, queue) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let out = DocumentedTransport {
        orders,
        queued: queued.clone(),
    };
    let pongs = out.clone();
    let settings = LinkSettings {
        capabilities,
        numbered: false,
        window: 0,
        overload: options.overload,
        late: options.late,
        notices: options.notices.clone(),
    };
    let (connection, link) = open(out, settings);
    let driver = DocumentedDriver {
        link: link.clone(),
        read: unread,
        pongs,
    };
    tokio::spawn(async move {
        let asked = PendingEvents::default();
        let ended = tokio::select! {
            ended = driver.listen(read, &asked) => ended,
            ended = carry_out(write, queue, &queued, &asked, &link) => ended,
            () = link.overdue() => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection in the documented dialect ended");
        }
        link.end();
    });
    connection
}

enum DocumentedCommand {
    Event(Box<Event>),
    Cancelled(Text),
    Ping(u64),
    Pong(i64),
    Close,
}

impl DocumentedCommand {
    /// What it holds, about.
    fn bytes(&self) -> usize {
        const MESSAGE_OVERHEAD: usize = 256;
        MESSAGE_OVERHEAD
            + match self {
                Self::Event(event) => match &**event {
                    Event::RequestBody(chunk) | Event::ResponseBody(chunk) => chunk.data.len(),
                    _ => 1024,
                },
                Self::Cancelled(_) | Self::Ping(_) | Self::Pong(_) | Self::Close => 0,
            }
    }
}

#[derive(Clone)]
struct DocumentedTransport {
    orders: mpsc::UnboundedSender<DocumentedCommand>,
    /// Bytes that the orders hold, about.
    queued: Arc<AtomicUsize>,
}

impl DocumentedTransport {
    /// An order, unless too much waits. Returns whether it will be carried out.
    fn order(&self, order: DocumentedCommand) -> Result<(), RequestError> {
        let bytes = order.bytes();
        if self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_QUEUED_BYTES {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
            return Err(RequestError::Full);
        }
        self.orders.send(order).map_err(|_| RequestError::Closed)
    }
}

impl EventTransport for DocumentedTransport {
    fn event(&self, _: RequestTicket, event: Event, _: bool) -> Result<(), RequestError> {
        match event.kind() {
            EventKind::WebSocketFrame | EventKind::Guardrail | EventKind::Configure => {
                let name = event.kind().name();
                let why = format!("the documented dialect has no event {name}");
                Err(RequestError::Refused(why))
            }
            _ => self.order(DocumentedCommand::Event(Box::new(event))),
        }
    }

    fn cancel(&self, cancel: Cancel) {
        // An agent that reads so little has not begun with it.
        let _ = self.order(DocumentedCommand::Cancelled(cancel.correlation_id));
    }

    fn ping(&self, ping: Ping) -> bool {
        self.order(DocumentedCommand::Ping(ping.sequence)).is_ok()
    }

    fn close(&self) {
        let _ = self.orders.send(DocumentedCommand::Close);
    }
}

/// What is under way, by the number of its request: one event of each. An agent that never answers what nobody waits for does
/// not make it grow: the oldest of [`MAX_PENDING`] is forgotten, and its answer found to be nobody's.
#[derive(Default)]
struct PendingEvents(Mutex<PendingTable>);

#[derive(Default)]
struct PendingTable {
    events: HashMap<u64, (Text, EventKind)>,
    /// In the order in which they were sent; some are answered.
    order: VecDeque<u64>,
}

impl PendingEvents {
    fn insert(&self, number: u64, id: Text, kind: EventKind) {
        let mut table = self.table();
        if table.events.insert(number, (id, kind)).is_none() {
            table.order.push_back(number);
        }
        while table.events.len() > MAX_PENDING
            && let Some(oldest) = table.order.pop_front()
        {
            table.events.remove(&oldest);
        }
        if table.order.len() > 2 * MAX_PENDING {
            let PendingTable { events, order } = &mut *table;
            order.retain(|number| events.contains_key(number));
        }
    }

    fn remove(&self, number: u64) -> Option<(Text, EventKind)> {
        self.table().events.remove(&number)
    }

    fn table(&self) -> MutexGuard<'_, PendingTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn carry_out(
    mut io: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<DocumentedCommand>,
    queued: &AtomicUsize,
    asked: &PendingEvents,
    link: &ConnectionLink,
) -> io::Result<()> {
    const BATCH: usize = 64 << 10;
    let mut out = BytesMut::new();
    let mut heads = KnownHeads::default();
    while let Some(order) = queue.recv().await {
        let mut order = Some(order);
        while let Some(next) = order {
            if matches!(next, DocumentedCommand::Close) {
                return io.write_all(&out).await;
            }
            queued.fetch_sub(next.bytes(), Ordering::Relaxed);
            put(next, (asked, &mut heads), link, &mut out);
            order = match out.len() {
                0..BATCH => queue.try_recv().ok(),
                _ => None,
            };
        }
        io.write_all(&out).await?;
        out.clear();
    }
    Ok(())
}

/// Appends the frames that carry an order out.
fn put(
    order: DocumentedCommand,
    (asked, heads): (&PendingEvents, &mut KnownHeads),
    link: &ConnectionLink,
    out: &mut BytesMut,
) {
    match order {
        DocumentedCommand::Event(event) => {
            let (id, kind) = (Text::from(event.id()), event.kind());
            if link
                .capabilities()
                .events
                .contains(EventKind::RequestHeaders)
                && let Err(error) = heads.admit(kind, &id)
            {
                return link.answer_request(&id, Err(error));
            }
            if kind == EventKind::RequestComplete {
                put_cancel(&id, "complete", out);
                link.answer_request(&id, Ok(Response::allow()));
                return;
            }
            match put_event(&event, out) {
                Ok(()) => {
                    asked.insert(number(&id), id, kind);
                }
                Err(error) => link.answer_request(&id, Err(error)),
            }
        }
        DocumentedCommand::Cancelled(id) => {
            put_cancel(&id, "nobody waits", out);
        }
        DocumentedCommand::Ping(sequence) => {
            let _ = put_json(out, PING, &json!({"timestamp": sequence}));
        }
        DocumentedCommand::Pong(timestamp) => {
            let _ = put_json(out, PONG, &json!({"timestamp": timestamp}));
        }
        DocumentedCommand::Close => {}
    }
}

fn put_cancel(id: &str, reason: &str, out: &mut BytesMut) {
    let cancel = json!({"request_id": number(id), "reason": reason});
    let _ = put_json(out, CANCEL, &cancel);
}

fn put_event(event: &Event, out: &mut BytesMut) -> Result<(), RequestError> {
    let code = frame::FrameType::Event(event.kind()).code();
    let request_id = number(event.id());
    match event {
        Event::RequestHeaders(event) => {
            let of = event.metadata();
            let body = has_body(event.headers(), takes_body(event.method()));
            let metadata = MetadataFields {
                correlation_id: of.correlation_id,
                client_ip: of.client_ip,
                client_port: of.client_port,
                server_name: of.server_name,
                protocol: of.protocol,
                tls_version: of.tls_version,
                route_id: of.route_id,
                upstream_id: of.upstream_id,
                traceparent: of.traceparent,
            };
            let head = RequestHeadFrame {
                request_id,
                metadata,
                method: event.method(),
                uri: event.uri(),
                headers: event.headers(),
                has_body: body,
            };
            put_json(out, code, &head)
        }
        Event::ResponseHeaders(event) => {
            let head = ResponseHeadFrame {
                request_id,
                status_code: event.status(),
                headers: event.headers(),
                has_body: has_body(
                    event.headers(),
                    !matches!(event.status(), 100..=199 | 204 | 304),
                ),
            };
            put_json(out, code, &head)
        }
        Event::RequestBody(chunk) | Event::ResponseBody(chunk) => {
            put_json(out, code, &BodyChunkFrame::of(request_id, chunk))
        }
        Event::RequestComplete(_)
        | Event::WebSocketFrame(_)
        | Event::Guardrail(_)
        | Event::Configure(_) => Err(RequestError::Refused("no such event".to_owned())),
    }
}

#[derive(Serialize)]
struct RequestHeadFrame<'a> {
    request_id: u64,
    metadata: MetadataFields<'a>,
    method: &'a str,
    uri: &'a str,
    headers: &'a Headers,
    has_body: bool,
}

#[derive(Serialize)]
struct MetadataFields<'a> {
    correlation_id: &'a str,
    client_ip: &'a str,
    client_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_name: Option<&'a str>,
    protocol: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

#[derive(Serialize)]
struct ResponseHeadFrame<'a> {
    request_id: u64,
    status_code: u16,
    headers: &'a Headers,
    has_body: bool,
}

#[derive(Serialize)]
struct BodyChunkFrame {
    request_id: u64,
    chunk_index: u32,
    data: String,
    is_last: bool,
}

impl BodyChunkFrame {
    fn of(request_id: u64, chunk: &BodyChunk) -> Self {
        Self {
            request_id,
            chunk_index: chunk.index,
            data: base64_simd::STANDARD.encode_to_string(&chunk.data),
            is_last: chunk.is_last,
        }
    }
}

/// Whether a body follows, as far as the head says; else what is usual.
fn has_body(headers: &Headers, usual: bool) -> bool {
    match headers.get("content-length") {
        Some(length) => length.trim() != "0",
        None => usual || headers.get("transfer-encoding").is_some(),
    }
}

fn takes_body(method: &str) -> bool {
    matches!(method, "POST" | "PUT" | "PATCH")
}

/// The number of a request, the same on every connection of this process.
fn number(id: &str) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one(id) >> 11
}

fn put_json(out: &mut BytesMut, code: u8, value: &impl Serialize) -> Result<(), RequestError> {
    use bytes::BufMut as _;
    let mut written = Ok(());
    frame::put(out, code, |out| {
        written = serde_json::to_writer(out.writer(), value);
    })
    .map_err(|_| RequestError::TooLarge)?;
    written.map_err(|e| RequestError::Refused(e.to_string()))
}

struct DocumentedDriver {
    link: ConnectionLink,
    read: BytesMut,
    pongs: DocumentedTransport,
}

impl DocumentedDriver {
    async fn listen(
        mut self,
        mut io: impl AsyncRead + Unpin,
        asked: &PendingEvents,
    ) -> io::Result<()> {
        while let Some((code, payload)) = next(&mut io, &mut self.read).await? {
            match code {
                DECISION => self.answered(asked, &payload, answer::response),
                MUTATION => self.answered(asked, &payload, mutated),
                PONG => {
                    let timestamp = timestamp(&payload);
                    if let Ok(sequence) = u64::try_from(timestamp) {
                        self.link.pong(Ping {
                            sequence,
                            timestamp_ms: 0,
                        });
                    }
                }
                PING => {
                    let _ = self
                        .pongs
                        .order(DocumentedCommand::Pong(timestamp(&payload)));
                }
                // Health and metrics, which were not asked for, and what later versions may say.
                _ => {}
            }
        }
        Ok(())
    }

    fn answered(
        &self,
        asked: &PendingEvents,
        payload: &[u8],
        read: impl FnOnce(EventKind, &[u8]) -> Result<Response, String>,
    ) {
        #[derive(Deserialize)]
        struct RequestIdField {
            request_id: u64,
        }
        let whose = serde_json::from_slice::<RequestIdField>(payload).ok();
        let entry = whose.and_then(|whose| asked.remove(whose.request_id));
        let Some((id, kind)) = entry else {
            // The kit answers 0 to what it cannot read. Whoever asked gets no answer in time, and no allow.
            tracing::debug!("answer without a request ignored");
            return;
        };
        let response = read(kind, payload).map_err(RequestError::Malformed);
        self.link.answer_request(&id, response);
    }
}

fn mutated(kind: EventKind, payload: &[u8]) -> Result<Response, String> {
    #[derive(Deserialize)]
    struct MutationFrame {
        #[serde(default)]
        chunk_index: u32,
        #[serde(default)]
        data: Option<String>,
    }
    let read: MutationFrame = serde_json::from_slice(payload).map_err(|e| e.to_string())?;
    answer::mutated(kind, read.chunk_index, read.data.as_deref())
}

fn timestamp(payload: &[u8]) -> i64 {
    #[derive(Deserialize)]
    struct TimestampField {
        timestamp: i64,
    }
    serde_json::from_slice(payload).map_or(-1, |stamp: TimestampField| stamp.timestamp)
}

/// The next frame; `None` at the end. What was read of one when this is dropped stays in `read`.
async fn next(
    io: &mut (impl AsyncRead + Unpin),
    read: &mut BytesMut,
) -> io::Result<Option<(u8, Bytes)>> {
    loop {
        if let Some(frame) = frame::take(read).map_err(io::Error::other)? {
            return Ok(Some(frame));
        }
        if io.read_buf(read).await? == 0 {
            return match read.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(size: usize) -> Event {
        Event::RequestBody(BodyChunk {
            correlation_id: "c".into(),
            data: Bytes::from(vec![0; size]),
            is_last: false,
            total_size: None,
            index: 0,
            transferred: size as u64,
        })
    }

    #[test]
    fn what_waits_to_be_written_is_bounded() {
        const CHUNK: usize = 4 << 20;
        let (orders, mut queue) = mpsc::unbounded_channel();
        let transport = DocumentedTransport {
            orders,
            queued: Arc::default(),
        };
        let ticket = RequestTicket::from_number(0);
        let mut sent = 0;
        while transport.event(ticket, chunk(CHUNK), false).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, MAX_QUEUED_BYTES / CHUNK - 1, "each has a head, too");
        // An agent that pings and does not read.
        let mut pongs = 0;
        while transport.order(DocumentedCommand::Pong(0)).is_ok() {
            pongs += 1;
        }
        assert_eq!(queue.len(), sent + pongs);
        assert!(queue.len() <= MAX_QUEUED_BYTES / DocumentedCommand::Pong(0).bytes());
        let full = transport.event(ticket, chunk(0), false);
        assert_eq!(full, Err(RequestError::Full));
        transport.close();
        let last = std::iter::from_fn(|| queue.try_recv().ok()).last();
        assert!(
            matches!(last, Some(DocumentedCommand::Close)),
            "it is heard all the same"
        );
    }

    #[test]
    fn what_an_agent_never_answers_is_forgotten_in_its_order() {
        let asked = PendingEvents::default();
        for number in 0..=MAX_PENDING as u64 {
            asked.insert(number, "c".into(), EventKind::RequestBody);
        }
        assert_eq!(asked.table().events.len(), MAX_PENDING);
        assert!(asked.remove(0).is_none());
        // What is answered leaves nothing behind either.
        for number in 1..=3 * MAX_PENDING as u64 {
            asked.insert(number, "c".into(), EventKind::RequestBody);
            assert!(asked.remove(number).is_some());
        }
        let table = asked.table();
        assert!(table.events.is_empty() && table.order.len() <= 2 * MAX_PENDING);
    }
}
