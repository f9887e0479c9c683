//! Asks a hub's directory: one signed request, one answer.
//!
//! What follows soon, such as the lookups of a first call, goes over the same connection, which is kept for [`KEPT`]. Answers are bounded, every exchange has a time limit, and the hub's
//! clock is allowed for: when the hub refuses a request because the clocks differ, it is signed
//! again by the hub's clock, once.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use hailwire_wire::{
    Code, HubUrl, NodeId, NodeName, Status,
    address::NodeRef,
    directory::{
        HeldAnswer, HeldBatch, HeldDeleted, HeldTaken, HoldAnswer, HoldRequest, HubHealth,
        HubMember, HubMembers, HubRefusal, JoinHubAnswer, JoinHubRequest, LeaveHubAnswer,
        LookupAnswer, PublishAnswer, PublishRequest, RecordBytes, RefusalReason, RequestPermit,
        SearchPage, SearchRequest, SignedRequest, path,
    },
    lease::{self, LeaseAnswer, LeaseList, LeaseRelease, LeaseReleased, LeaseRequest, LeaseRow},
    limits,
    record::{RecordError, SignedRecord},
    signed::KeyPair,
    ticket::TicketSecret,
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;

use super::tls::HubPins;
use crate::outbound_tcp::{self, HttpProxies};

/// Time for TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a whole exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a connection is kept after it was opened; a hub ends it after a minute.
const KEPT: Duration = Duration::from_secs(50);

/// How long the record of a node that was found by its name stands for a lookup by its key.
const JUST_FOUND: Duration = Duration::from_secs(2);

/// Most pages that one search or list asks for, so that no hub keeps a node busy for ever.
const MAX_PAGES: usize = 256;

/// Searches under way at once; further ones wait.
const SEARCHES_AT_ONCE: usize = 2;
/// Who holds a name at a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// A node with a live record of that name.
    Node(NodeId),
    /// A node that is away; the name stays bound to its key.
    Away,
    /// No node.
    Nobody,
}

/// One hub, as one node asks it.
///
/// Cheap to share behind an `Arc`; methods take `&self` and may run at once. Holds one connection at most while nobody asks.
#[derive(Debug)]
pub struct HubClient {
    url: HubUrl,
    audience: String,
    key: KeyPair,
    tls: Arc<rustls::ClientConfig>,
    /// The hub's clock minus ours, in seconds, as far as it is known.
    clock_offset_s: AtomicI64,
    /// A hub refuses more searches of one node at once.
    searches: Semaphore,
    proxies: HttpProxies,
    kept: Mutex<Option<HubConnection>>,
    /// Who was last found to hold a name: a dial that follows needs no second lookup.
    found_by_name: Mutex<Option<(Instant, SignedRecord)>>,
}

impl HubClient {
    /// A client that asks the hub at `url` in the name of `key`.
    ///
    /// `hub_key` is the hub's key from its ticket; it is pinned in `pins` for the hub's host. With
    /// `None` the hub needs a public certificate.
    ///
    /// # Errors
    ///
    /// [`HubError::Tls`] when no TLS configuration can be made.
    pub fn new(
        url: HubUrl,
        hub_key: Option<NodeId>,
        key: KeyPair,
        pins: &HubPins,
    ) -> Result<Self, HubError> {
        if let Some(hub_key) = hub_key {
            pins.pin(url.host(), hub_key);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = pins.verifier(provider.clone()).map_err(HubError::Tls)?;
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| HubError::Tls(io::Error::other(error)))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let audience = hub_key.map_or_else(|| url.to_string(), |key| key.to_string());
        Ok(Self {
            url,
            audience,
            key,
            tls: Arc::new(tls),
            clock_offset_s: AtomicI64::new(0),
            searches: Semaphore::new(SEARCHES_AT_ONCE),
            proxies: HttpProxies::of_environment(),
            kept: Mutex::default(),
            found_by_name: Mutex::default(),
        })
    }

    /// The hub's URL.
    #[must_use]
    pub fn url(&self) -> &HubUrl {
        &self.url
    }

    /// Asks whether the hub is there; the only question that needs no membership.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn health(&self) -> Result<HubHealth, HubError> {
        self.ask(Method::GET, path::HEALTH, Bytes::new()).await
    }

    /// Becomes a member with the secret of a hub's ticket. Joining again changes nothing and takes
    /// no use of the ticket, so it may be tried again after an error.
    ///
    /// # Errors
    ///
    /// [`HubError::Refused`] with a ticket that is unknown, expired or used up; [`HubError`].
    pub async fn join(&self, secret: TicketSecret) -> Result<JoinHubAnswer, HubError> {
        self.ask(Method::POST, path::JOIN, json(&JoinHubRequest { secret }))
            .await
    }

    /// Ends this node's membership. May be tried again after an error.
    ///
    /// # Errors
    ///
    /// [`HubError::Refused`] by a hub that does not know this request; [`HubError`].
    pub async fn leave(&self) -> Result<LeaveHubAnswer, HubError> {
        self.ask(Method::DELETE, path::MEMBERSHIP, Bytes::new())
            .await
    }

    /// Publishes this node's record in place of the earlier one.
    ///
    /// # Errors
    ///
    /// [`HubError::Refused`], for example with `already_exists` when another node holds the name
    /// and `aborted` when the sequence is not higher than before; [`HubError`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have published the record or not.
    pub async fn publish(&self, record: &SignedRecord) -> Result<PublishAnswer, HubError> {
        self.publish_to(&PublishRequest::to_all(record.bytes().clone()))
            .await
    }

    /// As [`HubClient::publish`], and says to whom the node shows its agents.
    ///
    /// # Errors
    ///
    /// As [`HubClient::publish`].
    ///
    /// # Cancel safety
    ///
    /// As [`HubClient::publish`].
    pub async fn publish_to(&self, publish: &PublishRequest) -> Result<PublishAnswer, HubError> {
        self.ask(Method::PUT, path::RECORD, json(publish)).await
    }

    /// Looks a node up by key or by name; `None` when the hub knows no live record. The record is
    /// signed by the key, or states the name, that was asked for.
    ///
    /// # Errors
    ///
    /// [`HubError::Record`] for a record that does not prove itself; [`HubError`]. Safe to drop.
    pub async fn lookup(&self, node: &NodeRef) -> Result<Option<SignedRecord>, HubError> {
        if let NodeRef::Id(id) = node
            && let Some(just_found) = self.just_found(*id)
        {
            return Ok(Some(just_found));
        }
        match self.lookup_live(node).await {
            Err(HubError::Refused(refusal))
                if matches!(
                    refusal.reason,
                    RefusalReason::NotFound | RefusalReason::Away
                ) =>
            {
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    async fn lookup_live(&self, node: &NodeRef) -> Result<SignedRecord, HubError> {
        let path = format!("{}{node}", path::NODES);
        let found: LookupAnswer = self.ask(Method::GET, &path, Bytes::new()).await?;
        let record = SignedRecord::parse(found.record.0, self.hub_now())?;
        let asked_for = match node {
            NodeRef::Id(id) => record.node() == *id,
            NodeRef::Name(name) => record.record().name.as_ref() == Some(name),
        };
        if asked_for {
            Ok(record)
        } else {
            Err(HubError::Answer(
                "the record of another node than the one asked for",
            ))
        }
    }

    /// The record of a node that was found by its name a moment ago, once.
    fn just_found(&self, id: NodeId) -> Option<SignedRecord> {
        let is_it = |(at, record): &mut (Instant, SignedRecord)| {
            record.node() == id && at.elapsed() < JUST_FOUND
        };
        self.found_by_name()
            .take_if(is_it)
            .map(|(_, record)| record)
    }

    fn found_by_name(&self) -> std::sync::MutexGuard<'_, Option<(Instant, SignedRecord)>> {
        let found = self.found_by_name.lock();
        found.unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks which node holds a name.
    ///
    /// # Errors
    ///
    /// As [`HubClient::lookup`]. Safe to drop.
    pub async fn holder(&self, name: &NodeName) -> Result<NameHolder, HubError> {
        match self.lookup_live(&NodeRef::Name(name.clone())).await {
            Ok(record) => {
                let id = record.node();
                *self.found_by_name() = Some((Instant::now(), record));
                Ok(NameHolder::Node(id))
            }
            Err(HubError::Refused(refusal)) => match refusal.reason {
                // To who is no member a hub gives no names.
                RefusalReason::NotFound | RefusalReason::NotAMember => Ok(NameHolder::Nobody),
                RefusalReason::Away => Ok(NameHolder::Away),
                _ => Err(HubError::Refused(refusal)),
            },
            Err(error) => Err(error),
        }
    }

    /// Finds nodes with matching agents; with an empty search, all nodes with a live record.
    /// Records that do not prove themselves are left out.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn search(&self, search: &SearchRequest) -> Result<Vec<SignedRecord>, HubError> {
        // The semaphore is never closed.
        let _turn = self.searches.acquire().await;
        let mut search = search.clone();
        let mut found = Vec::new();
        for _ in 0..MAX_PAGES {
            let page: SearchPage = self.ask(Method::POST, path::SEARCH, json(&search)).await?;
            for bytes in page.records {
                match SignedRecord::parse(bytes.0, self.hub_now()) {
                    Ok(record) => found.push(record),
                    Err(error) => tracing::warn!(hub = %self.url, %error, "record left out"),
                }
            }
            match page.next {
                Some(next) => search.after = Some(next),
                None => break,
            }
        }
        Ok(found)
    }

    /// All members of the hub, in the order of their keys.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn members(&self) -> Result<Vec<HubMember>, HubError> {
        let mut path = path::MEMBERS.to_owned();
        let mut members = Vec::new();
        for _ in 0..MAX_PAGES {
            let page: HubMembers = self.ask(Method::GET, &path, Bytes::new()).await?;
            members.extend(page.members);
            match page.next {
                Some(next) => path = format!("{}?after={next}", path::MEMBERS),
                None => break,
            }
        }
        Ok(members)
    }

    /// One member of the hub; `None` where the key is none. Costs one page of members.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn member(&self, id: NodeId) -> Result<Option<HubMember>, HubError> {
        // Members come in the order of their keys, so it is the first one after its predecessor.
        let path = match predecessor(id) {
            Some(before) => format!("{}?after={before}", path::MEMBERS),
            None => path::MEMBERS.to_owned(),
        };
        let page: HubMembers = self.ask(Method::GET, &path, Bytes::new()).await?;
        Ok(page.members.into_iter().find(|member| member.id == id))
    }

    /// Leaves a sealed batch for a member, in place of the earlier one; returns the unix second until which it is held.
    ///
    /// # Errors
    ///
    /// [`HubError::Refused`] where the receiver is no member, there is no room, or the hub holds nothing; [`HubError`].
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have left the batch or not.
    pub async fn hold(&self, to: NodeId, sealed: Bytes) -> Result<u64, HubError> {
        let request = HoldRequest {
            to,
            sealed: RecordBytes(sealed),
        };
        let answer: HoldAnswer = self.ask(Method::PUT, path::HELD, json(&request)).await?;
        Ok(answer.until)
    }

    /// The first batch that the hub holds for this node whose number is above `after`.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn next_held(&self, after: u64) -> Result<Option<HeldBatch>, HubError> {
        let path = format!("{}?after={after}", path::HELD);
        let answer: HeldAnswer = self.ask(Method::GET, &path, Bytes::new()).await?;
        Ok(answer.held)
    }

    /// Has the hub delete a batch; returns whether it was still there.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn delete_held(&self, number: u64) -> Result<bool, HubError> {
        let answer: HeldDeleted = self
            .ask(Method::DELETE, path::HELD, json(&HeldTaken { number }))
            .await?;
        Ok(answer.deleted)
    }

    /// Asks for a lease, or for more time on one. An answer says who holds it; it is this candidate's only where
    /// [`LeaseAnswer::held`] says so.
    ///
    /// # Errors
    ///
    /// [`HubError::Refused`], for example with `resource_exhausted` where there are too many; [`HubError`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the candidate may hold the lease or not; asked again in its name, the hub says so.
    pub async fn ask_lease(&self, request: &LeaseRequest) -> Result<LeaseAnswer, HubError> {
        self.ask(Method::POST, lease::path::LEASE, json(request))
            .await
    }

    /// Gives a lease back.
    ///
    /// # Errors
    ///
    /// [`HubError`]. May be tried again.
    pub async fn release_lease(&self, release: &LeaseRelease) -> Result<LeaseReleased, HubError> {
        self.ask(Method::POST, lease::path::RELEASE, json(release))
            .await
    }

    /// All leases that are held at the hub.
    ///
    /// # Errors
    ///
    /// [`HubError`]. Safe to drop.
    pub async fn leases(&self) -> Result<Vec<LeaseRow>, HubError> {
        let list: LeaseList = self
            .ask(Method::GET, lease::path::LEASES, Bytes::new())
            .await?;
        if list.leases.len() > limits::MAX_LEASES {
            return Err(HubError::Answer("more leases than a hub has"));
        }
        Ok(list.leases)
    }

    /// One question, asked again by the hub's clock if that is why it was refused.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, HubError> {
        let first = self.exchange(&method, path, body.clone()).await?;
        let answer = match first {
            Err(refusal) if refusal.reason == RefusalReason::Clock => {
                let offset = i64::try_from(refusal.now)
                    .unwrap_or(i64::MAX)
                    .saturating_sub(unix());
                tracing::warn!(hub = %self.url, offset_s = offset, "the clocks differ");
                self.clock_offset_s.store(offset, Ordering::Relaxed);
                self.exchange(&method, path, body).await?
            }
            answer => answer,
        };
        let bytes = answer.map_err(HubError::Refused)?;
        serde_json::from_slice(&bytes).map_err(|_| HubError::Answer("not what was asked for"))
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Result<Bytes, HubRefusal>, HubError> {
        let answer = async {
            if let Some(mut kept) = self.take_kept() {
                let request = self.signed(method, path, body.clone())?;
                match kept.exchange(request).await {
                    // The hub had closed it meanwhile, or its network is another.
                    Err(HubError::Unreachable(_)) => {}
                    answer => return self.keep(kept, answer),
                }
            }
            let mut connection = self.open().await?;
            let request = self.signed(method, path, body)?;
            let answer = connection.exchange(request).await;
            self.keep(connection, answer)
        };
        let (status, bytes) = timeout(EXCHANGE_TIMEOUT, answer)
            .await
            .map_err(|_| HubError::TimedOut)??;
        if status == StatusCode::OK {
            return Ok(Ok(bytes));
        }
        let refusal = serde_json::from_slice(&bytes);
        refusal
            .map(Err)
            .map_err(|_| HubError::Answer("not the answer of a hub"))
    }

    fn signed(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, HubError> {
        let asked = SignedRequest {
            hub: &self.audience,
            method: method.as_str(),
            path,
            body: &body,
        };
        let permit = RequestPermit::new(&asked, self.hub_now()).sign(&self.key);
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.url.authority())
            .header(header::AUTHORIZATION, permit)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|_| HubError::Answer("the request cannot be made"))
    }

    /// A new connection to the hub, which has proved who it is.
    async fn open(&self) -> Result<HubConnection, HubError> {
        let (host, port) = (self.url.host(), self.url.port());
        let connect = outbound_tcp::connect(host, port, &self.proxies);
        let tcp = timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| HubError::TimedOut)?;
        let tcp = tcp.map_err(HubError::Unreachable)?;
        tcp.set_nodelay(true).map_err(HubError::Unreachable)?;
        if !self.url.is_encrypted() {
            return HubConnection::begin(tcp).await;
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| HubError::Tls(io::Error::other(error)))?;
        let connect = TlsConnector::from(self.tls.clone()).connect(name, tcp);
        let tls = timeout(CONNECT_TIMEOUT, connect)
            .await
            .map_err(|_| HubError::TimedOut)?;
        HubConnection::begin(tls.map_err(tls_error)?).await
    }

    fn take_kept(&self) -> Option<HubConnection> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        { kept }.take().filter(|kept| kept.opened.elapsed() < KEPT)
    }

    /// Keeps a connection whose answer was read to its end.
    fn keep<T>(
        &self,
        connection: HubConnection,
        answer: Result<T, HubError>,
    ) -> Result<T, HubError> {
        if answer.is_ok() && !connection.sender.is_closed() {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(connection);
        }
        answer
    }

    /// The hub's clock, in unix seconds, as far as it is known.
    fn hub_now(&self) -> u64 {
        let now = unix().saturating_add(self.clock_offset_s.load(Ordering::Relaxed));
        u64::try_from(now).unwrap_or_default()
    }
}

/// The key before this one in the order of keys; `None` before the first.
fn predecessor(id: NodeId) -> Option<NodeId> {
    let mut bytes = *id.as_bytes();
    for byte in bytes.iter_mut().rev() {
        let (less, borrow) = byte.overflowing_sub(1);
        *byte = less;
        if !borrow {
            return Some(NodeId::from_bytes(bytes));
        }
    }
    None
}

fn unix() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn json<T: Serialize>(value: &T) -> Bytes {
    #[expect(
        clippy::expect_used,
        reason = "these types are plain data with string keys"
    )]
    serde_json::to_vec(value).expect("plain data").into()
}

fn tls_error(error: io::Error) -> HubError {
    if error
        .get_ref()
        .is_some_and(|cause| cause.is::<rustls::Error>())
    {
        HubError::Tls(error)
    } else {
        HubError::Unreachable(error)
    }
}

type HubConnectionDriver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// A connection to a hub. It moves only while somebody waits for an answer on it.
struct HubConnection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// None once it has ended.
    driver: Option<HubConnectionDriver>,
    opened: Instant,
}

impl HubConnection {
    async fn begin<S>(io: S) -> Result<Self, HubError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let begun = http1::handshake(TokioIo::new(io)).await;
        let (sender, driver) = begun.map_err(broken)?;
        Ok(Self {
            sender,
            driver: Some(Box::pin(driver)),
            opened: Instant::now(),
        })
    }

    /// Sends one request and reads one bounded answer.
    async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), HubError> {
        let Self { sender, driver, .. } = self;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(broken)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), limits::MAX_HUB_ANSWER)
                .collect()
                .await;
            let body = body.map_err(|_| HubError::Answer("cut short or too long"))?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(exchange);
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            // The hub closed; what it said before that is still to be read.
            () = drive_to_the_end(driver) => exchange.await,
        }
    }
}

/// Moves a connection until it ends, and drops it then: only that tells a request that was queued too late.
async fn drive_to_the_end(driver: &mut Option<HubConnectionDriver>) {
    if let Some(connection) = driver {
        let _ = connection.await;
    }
    *driver = None;
}

impl fmt::Debug for HubConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubConnection")
    }
}

fn broken(error: hyper::Error) -> HubError {
    HubError::Unreachable(io::Error::other(error))
}

/// Why a hub gave no answer to use.
#[derive(Debug, Error)]
pub enum HubError {
    /// No connection, or it broke.
    #[error("the hub cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It did not answer in time.
    #[error("the hub did not answer in time")]
    TimedOut,
    /// Whoever answered did not prove to be the hub.
    #[error("the hub did not prove who it is")]
    Tls(#[source] io::Error),
    /// The hub refused, and said why.
    #[error("the hub refused: {}", .0.message)]
    Refused(HubRefusal),
    /// Not an answer of a hub.
    #[error("the hub's answer cannot be used: {0}")]
    Answer(&'static str),
    /// The hub handed out a record that does not prove itself.
    #[error("the hub handed out a bad record")]
    Record(#[from] RecordError),
}

impl From<HubError> for Status {
    fn from(error: HubError) -> Self {
        Self::from(&error)
    }
}

impl From<&HubError> for Status {
    fn from(error: &HubError) -> Self {
        let details = std::error::Error::source(error).map(ToString::to_string);
        let message = error.to_string();
        let status = match error {
            HubError::Refused(refusal) => return refusal.clone().into(),
            HubError::Unreachable(_) | HubError::TimedOut => Self::new(Code::Unavailable, message)
                .with_hint("check that the hub runs and that its URL is right"),
            HubError::Tls(_) => Self::new(Code::Unauthenticated, message)
                .with_hint("ask the hub's operator for a new ticket: its key may have changed"),
            HubError::Answer(_) => Self::new(Code::Internal, message)
                .with_hint("check that the URL is that of a hub of this version"),
            HubError::Record(_) => Self::new(Code::DataLoss, message),
        };
        status.with_details(details.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
