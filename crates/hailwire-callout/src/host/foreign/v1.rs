//! The older framing, which the kits for Python, Go (its root package) and TypeScript speak.
//!
//! ```text
//! u32 big-endian   bytes of the text, at most 10,485,760
//! bytes            JSON: {"event_type": …, "payload": …}, and the answer
//! ```
//!
//! There is no handshake, no type, no id in an answer. So one event is under way at a time, and what comes next is its answer.
//! Whether the other side speaks this at all is asked by an event that changes nothing there: the end of a
//! request that it never saw, or the configuration where there is one.
//!
//! When nobody waits for an answer any more, it is still waited for, for [`ABANDONED_WAIT`]; then the connection ends.
//!
//! What the kits do behind this framing shapes the rest:
//!
//! - They remember a request's head for its connection, and *allow* whatever belongs to a request that they do not know.
//!   So a body, or a response, of a request whose head this connection has not shown is refused here.
//! - The one for Python reads a message with one read of its socket, so that a large message is cut off and ends the
//!   connection. [`CHUNK`] keeps chunks of bodies below what the kernel hands over at once.
//! - Their WebSocket frames have numbers for opcodes and a word for the direction.

use std::{
    collections::VecDeque,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{
        Notify,
        mpsc::{self, error::TrySendError},
    },
    time::{Instant, sleep_until},
};

use super::{answer, heads::KnownHeads};
use crate::{
    Text,
    capabilities::{AgentLimits, Capabilities, Features},
    control::Cancel,
    event::{Event, EventKind, Opcode},
    host::{
        ConnectError, ConnectOptions, Connection, ConnectionLink, EventTransport, LinkSettings,
        RequestError, RequestTicket, open,
    },
    wire::{self, Encoding},
};

/// The greatest message.
const MAX_MESSAGE: usize = 10 << 20;

/// Bytes of a chunk of a body.
const CHUNK: u64 = 16 << 10;

/// Events that may wait for the one under way. The link lets out one at a time; more are those after events that were given up.
const MAX_WAITING: usize = 64;

/// Commands that the driver may leave unread: events, and cancels of these and of any other request.
const MAX_COMMANDS: usize = 1024;

/// How long an answer is waited for that nobody waits for.
const ABANDONED_WAIT: Duration = Duration::from_millis(250);

/// Speaks it over a connection that is there.
///
/// # Errors
///
/// [`ConnectError::Handshake`] where the other side answers something else, [`ConnectError::Configuration`].
pub(in crate::host) async fn connect<R, W>(
    mut reader: R,
    mut writer: W,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (kind, payload) = match &options.config {
        Some(config) => (
            EventKind::Configure,
            json!({"agent_id": "", "config": config, "config_version": options.config_version}),
        ),
        None => (
            EventKind::RequestComplete,
            json!({"correlation_id": "", "status": 0, "duration_ms": 0, "request_size": 0, "response_size": 0}),
        ),
    };
    let mut hello = BytesMut::new();
    put(&mut hello, kind, |out| {
        out.extend_from_slice(payload.to_string().as_bytes());
    })
    .map_err(|_| ConnectError::Handshake("the configuration is too large".to_owned()))?;
    writer.write_all(&hello).await?;
    let mut read = BytesMut::new();
    let answer = match next(&mut reader, &mut read).await? {
        Some(answer) => answer,
        None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    };
    settle(&answer)?;
    let (commands, queue) = mpsc::channel(MAX_COMMANDS);
    let transport = V1Transport {
        commands,
        waiting: Arc::default(),
        closing: Arc::default(),
    };
    let (events, closing) = (transport.waiting.clone(), transport.closing.clone());
    let (connection, link) = open(transport, settings(options));
    let driver = V1Driver {
        reader,
        writer,
        read,
        link,
        queue,
        closing,
        events,
        waiting: VecDeque::new(),
        heads: KnownHeads::default(),
    };
    tokio::spawn(driver.run());
    Ok(connection)
}

/// Whether the first answer is one of these kits.
fn settle(answer: &[u8]) -> Result<(), ConnectError> {
    let strange = || ConnectError::Handshake("not an answer in the older framing".to_owned());
    let answer: Value = serde_json::from_slice(answer).map_err(|_| strange())?;
    match answer.get("success") {
        Some(Value::Bool(true)) => Ok(()),
        Some(Value::Bool(false)) => {
            let error = answer.get("error").and_then(Value::as_str);
            let error = error.unwrap_or("no reason given").to_owned();
            Err(ConnectError::Configuration(error))
        }
        _ if answer.get("decision").is_some() => Ok(()),
        _ => Err(strange()),
    }
}

/// Nothing was said, so this is what the kits can do.
fn settings(options: &ConnectOptions) -> LinkSettings {
    LinkSettings {
        capabilities: Capabilities {
            agent_id: "v1".to_owned(),
            name: "v1".to_owned(),
            version: String::new(),
            events: EventKind::ALL.into_iter().collect(),
            features: Features {
                streaming_body: true,
                guardrails: true,
                config_push: true,
                concurrent_requests: 1,
                ..Features::default()
            },
            limits: AgentLimits {
                max_concurrency: 1,
                preferred_chunk_size: CHUNK,
                ..AgentLimits::default()
            },
        },
        numbered: false,
        window: 0,
        overload: options.overload,
        late: options.late,
        notices: options.notices.clone(),
    }
}

/// What the driver is told.
enum V1Command {
    Event(Box<Event>),
    Cancelled(Text),
}

struct V1Transport {
    commands: mpsc::Sender<V1Command>,
    /// Events that have not been sent to the agent.
    waiting: Arc<AtomicUsize>,
    closing: Arc<Notify>,
}

impl EventTransport for V1Transport {
    fn event(&self, _: RequestTicket, event: Event, _: bool) -> Result<(), RequestError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(RequestError::Full);
        }
        let sent = self.commands.try_send(V1Command::Event(Box::new(event)));
        sent.map_err(|error| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => RequestError::Full,
                TrySendError::Closed(_) => RequestError::Closed,
            }
        })
    }

    fn cancel(&self, cancel: Cancel) {
        let cancelled = V1Command::Cancelled(cancel.correlation_id);
        // A cancel that is lost would let an answer be waited for without an end: a driver that is so far behind is given up.
        if let Err(TrySendError::Full(_)) = self.commands.try_send(cancelled) {
            self.closing.notify_one();
        }
    }

    fn close(&self) {
        self.closing.notify_one();
    }
}

/// Owns the socket.
struct V1Driver<R, W> {
    reader: R,
    writer: W,
    read: BytesMut,
    link: ConnectionLink,
    queue: mpsc::Receiver<V1Command>,
    closing: Arc<Notify>,
    /// Counts those of the queue and of `waiting`.
    events: Arc<AtomicUsize>,
    /// Events that came while another was under way; at most [`MAX_WAITING`].
    waiting: VecDeque<Box<Event>>,
    heads: KnownHeads,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> V1Driver<R, W> {
    async fn run(mut self) {
        if let Err(error) = self.serve().await {
            tracing::debug!(%error, "connection in the older framing ended");
        }
        self.link.end();
    }

    async fn serve(&mut self) -> io::Result<()> {
        loop {
            let event = match self.waiting.pop_front() {
                Some(event) => event,
                None => tokio::select! {
                    command = self.queue.recv() => match command {
                        Some(V1Command::Event(event)) => event,
                        Some(V1Command::Cancelled(_)) => continue,
                        None => return Ok(()),
                    },
                    () = self.closing.notified() => return Ok(()),
                    // Nothing was asked, so whatever comes is wrong, and an end is an end.
                    more = self.reader.read_buf(&mut self.read) => {
                        return more.and_then(|more| match more {
                            0 => Ok(()),
                            _ => Err(io::Error::other("answer without a request")),
                        });
                    }
                },
            };
            self.events.fetch_sub(1, Ordering::Relaxed);
            if !self.request(event).await? {
                return Ok(());
            }
        }
    }

    /// Asks, and says what was answered. Returns whether the connection goes on.
    async fn request(&mut self, event: Box<Event>) -> io::Result<bool> {
        let kind = event.kind();
        let id = Text::from(event.id());
        if let Err(error) = self.heads.admit(kind, &id) {
            self.link.answer_request(&id, Err(error));
            return Ok(true);
        }
        let mut out = BytesMut::new();
        if let Err(error) = put(&mut out, kind, |out| payload(&event, out)) {
            self.link.answer_request(&id, Err(error));
            return Ok(true);
        }
        let Self {
            reader,
            writer,
            read,
            link,
            queue,
            closing,
            events,
            waiting,
            ..
        } = self;
        let mut exchange = pin!(async {
            // In one piece: a reader that reads once has to find all of it.
            writer.write_all(&out).await?;
            next(reader, read).await
        });
        let mut until = None;
        loop {
            tokio::select! {
                answer = &mut exchange => {
                    let Some(answer) = answer? else {
                        return Ok(false);
                    };
                    let response = answer::response(kind, &answer).map_err(RequestError::Malformed);
                    link.answer_request(&id, response);
                    return Ok(true);
                }
                () = closing.notified() => return Ok(false),
                command = queue.recv() => match command {
                    Some(V1Command::Event(event)) => waiting.push_back(event),
                    Some(V1Command::Cancelled(cancelled)) if cancelled == id => {
                        until.get_or_insert_with(|| Instant::now() + ABANDONED_WAIT);
                    }
                    Some(V1Command::Cancelled(cancelled)) => {
                        let forgotten = forget(waiting, link, &cancelled);
                        events.fetch_sub(forgotten, Ordering::Relaxed);
                    }
                    None => return Ok(false),
                },
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            }
        }
    }
}

/// Takes out what has not been sent, and gives how many. The link still counts on an answer.
fn forget(waiting: &mut VecDeque<Box<Event>>, link: &ConnectionLink, id: &str) -> usize {
    let before = waiting.len();
    waiting.retain(|event| event.id() != id);
    for _ in waiting.len()..before {
        link.answer_request(id, Err(RequestError::Cancelled));
    }
    before - waiting.len()
}

/// Appends a message whose payload `write` appends.
fn put(
    out: &mut BytesMut,
    kind: EventKind,
    write: impl FnOnce(&mut BytesMut),
) -> Result<(), RequestError> {
    let start = out.len();
    out.put_u32(0);
    out.extend_from_slice(b"{\"event_type\":\"");
    out.extend_from_slice(kind.name().as_bytes());
    out.extend_from_slice(b"\",\"payload\":");
    write(out);
    out.put_u8(b'}');
    let length = out.len() - start - 4;
    if length > MAX_MESSAGE {
        out.truncate(start);
        return Err(RequestError::TooLarge);
    }
    if let (Some(prefix), Ok(length)) = (out.get_mut(start..start + 4), u32::try_from(length)) {
        prefix.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

fn payload(event: &Event, out: &mut BytesMut) {
    let special = match event {
        Event::RequestComplete(event) => json!({
            "correlation_id": &*event.correlation_id,
            "status": event.status,
            "duration_ms": event.duration_ms,
            "request_size": event.request_body_size,
            "response_size": event.response_body_size,
            "upstream_attempts": event.upstream_attempts,
            "error": event.error,
        }),
        Event::WebSocketFrame(frame) => json!({
            "correlation_id": &*frame.correlation_id,
            "opcode": opcode(frame.opcode),
            "data": base64_simd::STANDARD.encode_to_string(&frame.data),
            "direction": if frame.client_to_server { "client_to_server" } else { "server_to_client" },
            "client_to_server": frame.client_to_server,
            "frame_index": frame.index,
            "fin": frame.fin,
            "route_id": frame.route_id,
            "client_ip": frame.client_ip,
        }),
        Event::Configure(event) => json!({
            "agent_id": "",
            "config": event.config,
            "config_version": event.config_version,
        }),
        Event::RequestHeaders(_)
        | Event::RequestBody(_)
        | Event::ResponseHeaders(_)
        | Event::ResponseBody(_)
        | Event::Guardrail(_) => return wire::encode_event(event, Encoding::Json, out),
    };
    out.extend_from_slice(special.to_string().as_bytes());
}

/// RFC 6455, 5.2.
const fn opcode(opcode: Opcode) -> u8 {
    match opcode {
        Opcode::Continuation => 0,
        Opcode::Text => 1,
        Opcode::Binary => 2,
        Opcode::Close => 8,
        Opcode::Ping => 9,
        Opcode::Pong => 10,
    }
}

/// The next message; `None` at the end. What was read of one when this is dropped stays in `read`.
async fn next(io: &mut (impl AsyncRead + Unpin), read: &mut BytesMut) -> io::Result<Option<Bytes>> {
    loop {
        if let Some(prefix) = read.first_chunk::<4>() {
            let length = u32::from_be_bytes(*prefix) as usize;
            if length > MAX_MESSAGE {
                return Err(io::Error::other(format!("a message of {length} bytes")));
            }
            if read.len() >= 4 + length {
                read.advance(4);
                return Ok(Some(read.split_to(length).freeze()));
            }
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
    use crate::{control::CancelReason, event::RequestComplete};

    fn transport() -> (V1Transport, mpsc::Receiver<V1Command>) {
        let (commands, queue) = mpsc::channel(MAX_COMMANDS);
        let transport = V1Transport {
            commands,
            waiting: Arc::default(),
            closing: Arc::default(),
        };
        (transport, queue)
    }

    fn send(transport: &V1Transport) -> Result<(), RequestError> {
        let event = Event::RequestComplete(RequestComplete::default());
        transport.event(RequestTicket::from_number(0), event, false)
    }

    fn cancel(transport: &V1Transport) {
        transport.cancel(Cancel {
            correlation_id: Text::new(),
            reason: CancelReason::Timeout,
            timestamp_ms: 0,
        });
    }

    #[tokio::test]
    async fn events_that_wait_are_bounded_and_a_driver_that_reads_no_cancels_is_given_up() {
        let (transport, queue) = transport();
        for _ in 0..MAX_WAITING {
            assert_eq!(send(&transport), Ok(()));
        }
        assert_eq!(send(&transport), Err(RequestError::Full));
        for _ in MAX_WAITING..MAX_COMMANDS {
            cancel(&transport);
        }
        let closing = transport.closing.notified();
        let mut closing = pin!(closing);
        assert!(!closing.as_mut().enable(), "everything found room");
        cancel(&transport);
        closing.await;
        assert_eq!(queue.len(), MAX_COMMANDS);
        drop(queue);
        transport.waiting.store(0, Ordering::Relaxed);
        assert_eq!(send(&transport), Err(RequestError::Closed));
    }

    /// Whoever gives up at once, again and again, does not make the driver gather what it will never send.
    #[tokio::test(start_paused = true)]
    async fn an_agent_that_stalls_is_left_with_no_more_events_than_the_bound() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(ours);
        let agent = tokio::spawn(async move {
            let mut hello = BytesMut::new();
            next(&mut theirs, &mut hello).await.unwrap().unwrap();
            let mut answer = BytesMut::new();
            answer.put_slice(&[0, 0, 0, 20]);
            answer.put_slice(b"{\"decision\":\"allow\"}");
            theirs.write_all(&answer).await.unwrap();
            // It answers nothing more, until the connection ends.
            let mut rest = Vec::new();
            theirs.read_to_end(&mut rest).await.unwrap();
        });
        let connection = connect(read, write, &ConnectOptions::default())
            .await
            .unwrap();
        let stalled = connection.clone();
        let stalled = tokio::spawn(async move {
            let event = Event::RequestComplete(RequestComplete::default());
            stalled.request(event).await
        });
        tokio::task::yield_now().await;
        let mut full = 0;
        for n in 0..4 * MAX_WAITING {
            let event = Event::RequestComplete(RequestComplete {
                correlation_id: Text::from(n.to_string()),
                ..RequestComplete::default()
            });
            let asked = tokio::time::timeout(Duration::from_millis(1), connection.request(event));
            full += usize::from(matches!(asked.await, Ok(Err(RequestError::Full))));
        }
        // All of them waited for the one that is under way, in the link and not in the driver.
        assert_eq!(full, 0);
        assert_eq!(connection.in_flight(), 1);
        stalled.abort();
        assert!(stalled.await.unwrap_err().is_cancelled());
        // What nobody waits for is waited for a while; then the connection ends.
        connection.closed().await;
        agent.await.unwrap();
    }
}
