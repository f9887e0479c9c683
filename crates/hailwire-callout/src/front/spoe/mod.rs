//! HAProxy asks agents through SPOE: this is what it calls an agent of its own, speaking SPOP 2.0.
//!
//! HAProxy sends two messages for each HTTP request, [`message::REQUEST`] and [`message::RESPONSE`], and acts on the
//! variables that it gets back ([`answer`]). Both belong to one exchange, known by HAProxy's unique id, on whichever
//! connection they come; between them the exchange waits in a table. Connections are bytes in and
//! bytes out in [`session`], frames in [`frame`]; here are the sockets.
//!
//! What HAProxy cannot do bounds what agents see: the body of a request is what fits its buffer, and one that is
//! not whole is blocked where an agent wants bodies; a body cannot be changed, so an agent's change
//! blocks with 500; bodies of responses cannot be shown, and are blocked where an agent wants them. What happens at the first
//! and the last, the operator decides (`unseen`).
//!
//! Nothing passes by accident: `examples/proxies/haproxy.cfg` denies what has no decision, so a front that is
//! gone, an answer that came too late and a frame that HAProxy could not send all deny.
//!
//! | what a peer can grow | bound | beyond it |
//! |---|---|---|
//! | connections | [`SpoeLimits::connections`] | the next waits to be taken |
//! | bytes of a frame | [`frame::MAX_FRAME`], less as HAProxy proposes | the connection ends: 3 |
//! | questions under way on a connection | [`SpoeLimits::pipelined`] | nothing more is read from it |
//! | answers that HAProxy does not read | the same | the same |
//! | time until the greeting | [`SpoeLimits::greeting`] | the connection ends |
//! | exchanges that wait for their response | [`SpoeLimits::waiting`], each [`SpoeLimits::patience`] | the oldest is dropped; its response, should it come, is blocked |

pub mod answer;
pub mod frame;
pub mod message;
mod pending;
pub mod session;

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::Semaphore,
    task::JoinSet,
};

use self::{
    frame::{NotifyFrame, SetVar, SpoeMessage, SpopError, SpopValue, VarScope},
    message::SpoeRequest,
    pending::{PendingResponse, PendingTable, TransactionKey},
    session::SpopSession,
};
use crate::{
    EventKind, Text,
    agent::uds,
    event::BodyChunk,
    front::{UnseenBodyPolicy, correlation_id},
    inspect::{Exchange, FallbackAction, Inspector, Verdict},
};

/// What a peer can make grow.
#[derive(Clone, Copy, Debug)]
pub struct SpoeLimits {
    /// Connections. Default 1,024.
    pub connections: usize,
    /// Questions under way on a connection. Default 256; HAProxy's `max-waiting-frames` is 20.
    pub pipelined: usize,
    /// Until the greeting. Default 5 s.
    pub greeting: Duration,
    /// Exchanges between request and response. Default 65,536, each some hundred bytes and the request's head.
    pub waiting: usize,
    /// How long an exchange waits for the response. Default 5 minutes.
    pub patience: Duration,
}

impl Default for SpoeLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            pipelined: 256,
            greeting: Duration::from_secs(5),
            waiting: 65_536,
            patience: Duration::from_secs(300),
        }
    }
}

/// Serves HAProxy's SPOE with the agents of an inspector.
pub struct SpoeServer {
    inspector: Arc<Inspector>,
    unseen: UnseenBodyPolicy,
    limits: SpoeLimits,
    waiting: PendingTable,
}

impl SpoeServer {
    /// The agents of an inspector; `unseen` is what becomes of a body that an agent wants and HAProxy cannot show.
    #[must_use]
    pub fn new(
        inspector: Arc<Inspector>,
        unseen: impl Into<UnseenBodyPolicy>,
        limits: SpoeLimits,
    ) -> Self {
        Self {
            inspector,
            unseen: unseen.into(),
            limits,
            waiting: PendingTable::new(limits.waiting, limits.patience),
        }
    }

    /// Serves connections until accepting fails or `stop` is ready: then no connection is accepted any more, a connection ends when it has
    /// nothing under way, and this returns when all have ended.
    ///
    /// # Errors
    ///
    /// The listener's error.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped every connection ends; what it was asked is not answered, and agents are told.
    pub async fn serve_until(
        self: Arc<Self>,
        listener: impl SpoeListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let stop = stop.boxed().shared();
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await;
                listener.accept().await.map(|io| (io, place))
            };
            let (io, place) = tokio::select! {
                next = next => next?,
                () = stop.clone() => break,
            };
            let (front, stop) = (Arc::clone(&self), stop.clone());
            connections.spawn(async move {
                if let Err(error) = front.connection_until(io, stop).await {
                    tracing::debug!(%error, "a connection from HAProxy ended");
                }
                drop(place);
            });
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
        Ok(())
    }

    /// Serves one connection to its end.
    ///
    /// # Errors
    ///
    /// Of reading and writing; that HAProxy does not greet in time.
    ///
    /// # Cancel safety
    ///
    /// As [`serve_until`](Self::serve_until).
    pub async fn connection(&self, io: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        self.connection_until(io, std::future::pending()).await
    }

    async fn connection_until(
        &self,
        io: impl AsyncRead + AsyncWrite,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let mut stopping = false;
        tokio::pin!(stop);
        let (mut reader, mut writer) = tokio::io::split(io);
        let mut session = SpopSession::default();
        let greeting = tokio::time::sleep(self.limits.greeting);
        tokio::pin!(greeting);
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < self.room(&session) {
                let Some(question) = session.question() else {
                    break;
                };
                let engine = session.agreed().map(|a| (a.engine.clone(), a.max_frame));
                let (engine, frame) = engine.unwrap_or_default();
                under_way.push(self.question(question, engine, frame));
            }
            if stopping && under_way.is_empty() && session.buffers().0.is_empty() {
                session.end(SpopError::Normal);
            }
            let reads = !session.is_over() && under_way.len() < self.room(&session);
            if !reads && under_way.is_empty() && session.output().is_empty() {
                return writer.shutdown().await;
            }
            // All that waits goes out with one write; meanwhile answers gather, but nothing more is read.
            let writes = !session.output().is_empty();
            let greeted = session.agreed().is_some();
            let (input, output) = session.buffers();
            tokio::select! {
                written = writer.write_buf(output), if writes => {
                    if written? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                Some(answer) = under_way.next(), if !under_way.is_empty() => {
                    let NotifyAnswer { stream, frame, scope, vars } = answer;
                    let fits = session.answer(stream, frame, &vars)
                        || session.answer(stream, frame, &answer::refused(scope));
                    if !fits {
                        session.end(SpopError::TooBig);
                    }
                }
                read = reader.read_buf(input), if reads && !writes => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                () = &mut stop, if !stopping => stopping = true,
                () = &mut greeting, if !greeted => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
    }

    /// How many questions may be under way.
    fn room(&self, session: &SpopSession) -> usize {
        match session.agreed() {
            Some(agreed) if !agreed.pipelining => 1,
            _ => self.limits.pipelined.max(1),
        }
    }

    async fn question(&self, question: NotifyFrame, engine: Bytes, frame: u32) -> NotifyAnswer {
        let NotifyFrame {
            stream,
            frame: number,
            messages,
        } = question;
        let key = |message: &SpoeMessage| match message.arg("id").and_then(SpopValue::bytes) {
            Some(id) if !id.is_empty() => TransactionKey::Id(id.clone()),
            _ => TransactionKey::Stream { engine, stream },
        };
        let of = |name: &[u8]| messages.iter().find(|message| message.name == name);
        let (scope, vars) = if let Some(message) = of(message::REQUEST) {
            (
                VarScope::Transaction,
                self.request(message, key(message), frame).await,
            )
        } else if let Some(message) = of(message::RESPONSE) {
            (
                VarScope::Response,
                self.response(message, key(message)).await,
            )
        } else {
            tracing::warn!("HAProxy sent no known message; nothing is answered");
            (VarScope::Transaction, Vec::new())
        };
        NotifyAnswer {
            stream,
            frame: number,
            scope,
            vars,
        }
    }

    async fn request(&self, message: &SpoeMessage, key: TransactionKey, frame: u32) -> Vec<SetVar> {
        let scope = VarScope::Transaction;
        let id = correlation_id();
        let request = match SpoeRequest::read(message, &id, frame) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%error, "invalid request message from HAProxy");
                return answer::blocked(scope, 400);
            }
        };
        let mut exchange = self.inspector.exchange();
        let mut waiting = PendingResponse::new(id.clone(), request.body.len() as u64);
        waiting.head = request.head.method() == "HEAD";
        let body = (request.has_body(), request.is_whole(), request.body);
        let mut verdict = exchange.request_headers(request.head).await;
        if let (true, whole, data) = body
            && verdict.passes()
            && exchange.wants(EventKind::RequestBody)
        {
            if !whole && let Some(status) = self.blocks(&id, EventKind::RequestBody) {
                waiting.complete(&mut exchange, status).await;
                return answer::blocked(scope, status);
            }
            if whole && !body_passes(&mut exchange, &id, data, &mut verdict).await {
                waiting.complete(&mut exchange, 500).await;
                return answer::refused(scope);
            }
        }
        let vars = answer::variables(&verdict, scope);
        if !verdict.passes() {
            let status =
                crate::front::ClientResponse::to(&verdict.decision).map_or(0, |r| r.status);
            waiting.complete(&mut exchange, status).await;
        } else if exchange.wants(EventKind::ResponseHeaders)
            || exchange.wants(EventKind::RequestComplete)
        {
            waiting.exchange = Some(exchange);
            self.waiting.put(key, waiting);
        }
        vars
    }

    async fn response(&self, message: &SpoeMessage, key: TransactionKey) -> Vec<SetVar> {
        let scope = VarScope::Response;
        let taken = self.waiting.take(&key);
        let Some((mut waiting, mut exchange)) =
            taken.and_then(|mut w| w.exchange.take().map(|e| (w, e)))
        else {
            // Either no agent wanted it, or its request was never shown.
            return match self.inspector.exchange().wants(EventKind::ResponseHeaders) {
                true => answer::blocked(scope, 503),
                false => answer::variables(&Verdict::default(), scope),
            };
        };
        let head = match message::response(message, &waiting.id) {
            Ok(head) => head,
            Err(error) => {
                tracing::warn!(%error, "invalid response message from HAProxy");
                return answer::blocked(scope, 502);
            }
        };
        let mut status = head.status();
        let empty =
            [204, 304].contains(&status) || head.headers().get("content-length") == Some("0");
        let verdict = exchange.response_headers(head).await;
        let hidden = !empty && !waiting.head && exchange.wants(EventKind::ResponseBody);
        if verdict.passes()
            && hidden
            && let Some(status) = self.blocks(&waiting.id, EventKind::ResponseBody)
        {
            waiting.complete(&mut exchange, status).await;
            return answer::blocked(scope, status);
        }
        if let Some(reply) = crate::front::ClientResponse::to(&verdict.decision) {
            status = reply.status;
        }
        waiting.complete(&mut exchange, status).await;
        answer::variables(&verdict, scope)
    }
}

impl SpoeServer {
    /// The status with which a body that HAProxy cannot show is blocked; `None` where it passes.
    fn blocks(&self, id: &Text, kind: EventKind) -> Option<u16> {
        let body = kind.name();
        match self.unseen.now() {
            FallbackAction::Block(status) => {
                tracing::debug!(%id, body, "blocked: HAProxy does not show all of it");
                Some(status)
            }
            FallbackAction::Allow => {
                tracing::warn!(%id, body, "passes uninspected: HAProxy does not show all of it");
                None
            }
        }
    }
}

/// Shows a body. False where an agent changed it, which HAProxy cannot do.
async fn body_passes(
    exchange: &mut Exchange,
    id: &Text,
    data: Bytes,
    verdict: &mut Verdict,
) -> bool {
    let size = data.len() as u64;
    let shown = exchange.request_body(BodyChunk {
        correlation_id: id.clone(),
        data: data.clone(),
        is_last: true,
        total_size: Some(size),
        index: 0,
        transferred: size,
    });
    let shown = shown.await;
    let changed = shown.verdict.passes() && shown.data != data;
    verdict.decision = shown.verdict.decision;
    verdict
        .request_headers
        .extend(shown.verdict.request_headers);
    verdict
        .response_headers
        .extend(shown.verdict.response_headers);
    verdict
        .routing_metadata
        .extend(shown.verdict.routing_metadata);
    if changed {
        tracing::warn!(%id, "an agent changed a body, which SPOE cannot forward; blocked");
    }
    !changed
}

/// What becomes of a question.
struct NotifyAnswer {
    stream: u64,
    frame: u64,
    scope: VarScope,
    vars: Vec<SetVar>,
}

/// Where connections come from.
pub trait SpoeListener: Send {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Send + 'static;

    /// The next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl SpoeListener for tokio::net::TcpListener {
    type Io = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Io> {
        let (io, _) = Self::accept(self).await?;
        io.set_nodelay(true)?;
        Ok(io)
    }
}

impl SpoeListener for uds::UdsListener {
    type Io = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Self::Io> {
        Self::accept(self).await
    }
}
