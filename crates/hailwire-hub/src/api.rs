//! The directory's HTTP interface: parses requests, verifies permits, queries the directory.

use std::{
    fmt,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire_core::lease_table::LeaseWish;
use hailwire_wire::{
    HubUrl, NodeId,
    address::NodeRef,
    directory::{
        HeldAnswer, HeldDeleted, HeldTaken, HoldAnswer, HoldRequest, HubHealth, HubRefusal,
        JoinHubAnswer, JoinHubRequest, LeaveHubAnswer, MemberTrust, PublishRequest, RefusalReason,
        RequestPermit, SearchRequest, SignedRequest, parse_after, path,
    },
    lease::{self, LeaseRelease, LeaseRequest},
    limits,
    record::RecordError,
};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::{
    config::HubBounds,
    directory::{
        Directory, DirectoryError,
        listing::{CheckedPublication, DirectorySearch, PublicationError},
    },
    held::{HeldBatches, HeldStore, HeldTurn},
    queue::{DirectoryQueue, QueueClosed},
    quotas::{MemberQuotas, QuotaExceeded},
    throttle::{KeyedThrottle, client_network},
};

/// Time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What [`DirectoryApi`] reports about the hub.
#[derive(Clone, Debug)]
pub(crate) struct HubInfo {
    pub(crate) id: NodeId,
    pub(crate) url: HubUrl,
    pub(crate) trust: MemberTrust,
    pub(crate) discovery_port: u16,
    pub(crate) stun_ports: [u16; 2],
    pub(crate) name_hold_s: u64,
}

/// Answers the directory's requests. Shared by all connections.
#[derive(Debug)]
pub(crate) struct DirectoryApi {
    about: HubInfo,
    names: [String; 2],
    clock: fn() -> u64,
    queue: DirectoryQueue,
    bad_tickets: Mutex<KeyedThrottle<IpAddr>>,
    quotas: MemberQuotas,
    held: HeldBatches,
}

impl DirectoryApi {
    pub(crate) fn new(
        about: HubInfo,
        clock: fn() -> u64,
        queue: DirectoryQueue,
        held: HeldBatches,
        bounds: &HubBounds,
    ) -> Self {
        Self {
            names: [about.id.to_string(), about.url.to_string()],
            about,
            clock,
            queue,
            bad_tickets: Mutex::new(KeyedThrottle::new(bounds.bad_tickets_per_minute)),
            quotas: MemberQuotas::new(bounds),
            held,
        }
    }

    /// Answers one request from `address`.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        address: IpAddr,
    ) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        match self.route(request, address).await {
            Ok(body) => respond(StatusCode::OK, body),
            Err(refused) => {
                tracing::debug!(%address, path, reason = ?refused.reason, "request refused");
                self.refuse(&refused)
            }
        }
    }

    /// The answer to a path that does not exist.
    pub(crate) fn no_such_path(&self) -> Response<Full<Bytes>> {
        self.refuse(&RefusedRequest::new(
            RefusalReason::NoSuchPath,
            "this hub has no such path or method",
        ))
    }

    async fn route(
        &self,
        request: Request<Incoming>,
        address: IpAddr,
    ) -> Result<Bytes, RefusedRequest> {
        let (parts, body) = request.into_parts();
        let method = parts.method;
        let uri = parts.uri;
        if method == Method::GET && uri.path() == path::HEALTH {
            return json(&self.health());
        }
        let endpoint = DirectoryRequest::of(&method, uri.path()).ok_or_else(|| {
            RefusedRequest::new(
                RefusalReason::NoSuchPath,
                "this hub has no such path or method",
            )
        })?;
        let (_turn, largest) = match endpoint {
            DirectoryRequest::Hold => (Some(self.held_turn(address)?), limits::MAX_HELD_REQUEST),
            DirectoryRequest::NextHeld => (Some(self.held_turn(address)?), limits::MAX_HUB_REQUEST),
            _ => (None, limits::MAX_HUB_REQUEST),
        };
        let body = Limited::new(body, largest).collect();
        let body = match timeout(BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => {
                return Err(RefusedRequest::new(
                    RefusalReason::TooLarge,
                    "the request is too large",
                ));
            }
            Err(_) => {
                return Err(RefusedRequest::new(
                    RefusalReason::Malformed,
                    "the request arrived too slowly",
                ));
            }
        };
        let authorization = parts.headers.get(header::AUTHORIZATION);
        let authorization = authorization
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let asked = SignedRequest {
            hub: "",
            method: method.as_str(),
            path: uri
                .path_and_query()
                .map_or(uri.path(), http::uri::PathAndQuery::as_str),
            body: &body,
        };
        let names = self.names.each_ref().map(String::as_str);
        let requester = RequestPermit::verify(authorization, &asked, &names, (self.clock)())
            .map_err(|error| RefusedRequest::new(error.reason(), error))?;
        match endpoint {
            DirectoryRequest::Join => self.join(requester, &body, address).await,
            DirectoryRequest::Leave => {
                tracing::info!(node = %requester.short(), "member left");
                let leave = move |directory: &mut Directory, _| {
                    let left = directory.remove(requester)?;
                    Ok(LeaveHubAnswer { left })
                };
                let answer = self.query(leave).await?;
                self.with_held(move |held| held.forget(requester)).await?;
                Ok(answer)
            }
            DirectoryRequest::Publish => self.publish(requester, &body).await,
            DirectoryRequest::Lookup(node) => {
                let node: NodeRef = node
                    .parse()
                    .map_err(|error| RefusedRequest::new(RefusalReason::Malformed, error))?;
                self.quotas.lookup(requester, Instant::now())?;
                self.query(move |directory, now| directory.lookup(requester, &node, now))
                    .await
            }
            DirectoryRequest::Lease => self.lease(requester, &body).await,
            DirectoryRequest::ReleaseLease => {
                let release: LeaseRelease = parse(&body)?;
                self.quotas.lease(requester, Instant::now())?;
                let release = move |directory: &mut Directory, _| {
                    directory.release_lease(requester, &release, Instant::now())
                };
                self.query(release).await
            }
            DirectoryRequest::Leases => {
                self.quotas.lookup(requester, Instant::now())?;
                let leases = self
                    .queue
                    .run_long(move |directory| Some(directory.leases(requester, Instant::now())));
                json(&leases.await.map_err(closed)??)
            }
            DirectoryRequest::Search => {
                let search: SearchRequest = parse(&body)?;
                let _active_search = self.quotas.search(requester, Instant::now())?;
                let mut searching = DirectorySearch::new(requester, search, (self.clock)());
                let page = self
                    .queue
                    .run_long(move |directory| searching.step(directory).transpose());
                json(&page.await.map_err(closed)??)
            }
            DirectoryRequest::Members => {
                let after = parse_after(uri.query());
                let after = after
                    .map_err(|()| RefusedRequest::new(RefusalReason::Malformed, "invalid query"))?;
                self.quotas.lookup(requester, Instant::now())?;
                let now = (self.clock)();
                let members = self
                    .queue
                    .run_long(move |directory| Some(directory.members(requester, after, now)));
                json(&members.await.map_err(closed)??)
            }
            DirectoryRequest::Hold => self.hold(requester, &body).await,
            DirectoryRequest::NextHeld => self.next_held(requester, uri.query()).await,
            DirectoryRequest::HeldTaken => {
                let HeldTaken { number } = parse(&body)?;
                self.quotas.lookup(requester, Instant::now())?;
                let deleted = self.with_held(move |held| held.delete(requester, number));
                json(&HeldDeleted {
                    deleted: deleted.await?,
                })
            }
        }
    }

    fn held_turn(&self, address: IpAddr) -> Result<HeldTurn, RefusedRequest> {
        self.held.turn(address).ok_or_else(|| {
            RefusedRequest::new(
                RefusalReason::TooOften,
                "as many sealed batches are under way as may be at once",
            )
        })
    }

    async fn hold(&self, requester: NodeId, body: &[u8]) -> Result<Bytes, RefusedRequest> {
        self.quotas.record(requester, Instant::now())?;
        let HoldRequest { to, sealed } = parse(body)?;
        if sealed.0.len() > limits::MAX_HELD {
            return Err(RefusedRequest::new(
                RefusalReason::TooLarge,
                "the sealed batch is too large",
            ));
        }
        let are_members = self.queue.run_quick(move |directory| {
            Ok((directory.is_member(requester)?, directory.is_member(to)?))
        });
        match are_members.await.map_err(closed)? {
            Err(error) => return Err(DirectoryError::into(error)),
            Ok((false, _)) => return Err(no_member()),
            Ok((true, false)) => {
                return Err(RefusedRequest::new(
                    RefusalReason::NotFound,
                    "the receiver is no member of this hub",
                ));
            }
            Ok((true, true)) => {}
        }
        let now = (self.clock)();
        let put = self.with_held(move |held| held.put(requester, to, &sealed.0, now));
        json(&HoldAnswer { until: put.await? })
    }

    async fn next_held(
        &self,
        requester: NodeId,
        query: Option<&str>,
    ) -> Result<Bytes, RefusedRequest> {
        let after = query.map(|query| query.strip_prefix("after=").and_then(|n| n.parse().ok()));
        let after = after
            .unwrap_or(Some(0))
            .ok_or_else(|| RefusedRequest::new(RefusalReason::Malformed, "invalid query"))?;
        self.quotas.lookup(requester, Instant::now())?;
        let is_member = self
            .queue
            .run_quick(move |directory| directory.is_member(requester));
        if !is_member.await.map_err(closed)?? {
            return Err(no_member());
        }
        let now = (self.clock)();
        let next = self.with_held(move |held| held.next(requester, after, now));
        json(&HeldAnswer { held: next.await? })
    }

    /// Asks the database of sealed batches.
    async fn with_held<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut HeldStore) -> Result<T, DirectoryError> + Send + 'static,
    ) -> Result<T, RefusedRequest> {
        Ok(self.held.ask(ask).await.map_err(closed)??)
    }

    fn health(&self) -> HubHealth {
        HubHealth {
            hub: self.about.id,
            software: concat!("hailwire-hub/", env!("CARGO_PKG_VERSION")).to_owned(),
            now: (self.clock)(),
            stun_ports: self.about.stun_ports.to_vec(),
        }
    }

    async fn join(
        &self,
        requester: NodeId,
        body: &[u8],
        address: IpAddr,
    ) -> Result<Bytes, RefusedRequest> {
        let JoinHubRequest { secret } = parse(body)?;
        let address = client_network(address);
        if !lock(&self.bad_tickets).allows(&address, Instant::now()) {
            return Err(RefusedRequest::new(
                RefusalReason::TooOften,
                "too many wrong tickets from this address",
            ));
        }
        let joined = self
            .query(move |directory, now| directory.join(requester, &secret, now))
            .await;
        match joined {
            Ok(_) => {}
            Err(refused) => {
                if refused.reason.code() == hailwire_wire::Code::PermissionDenied {
                    lock(&self.bad_tickets).charge(address, Instant::now());
                }
                return Err(refused);
            }
        }
        tracing::info!(node = %requester.short(), "member joined");
        json(&JoinHubAnswer {
            hub: self.about.id,
            trust: self.about.trust,
            relay: self.about.url.to_string(),
            discovery_port: self.about.discovery_port,
            name_hold_s: self.about.name_hold_s,
        })
    }

    async fn publish(&self, requester: NodeId, body: &[u8]) -> Result<Bytes, RefusedRequest> {
        let publish: PublishRequest = parse(body)?;
        self.quotas.record(requester, Instant::now())?;
        let publication = CheckedPublication::parse(publish, (self.clock)())?;
        self.query(move |directory, now| directory.publish(requester, &publication, now))
            .await
    }

    async fn lease(&self, requester: NodeId, body: &[u8]) -> Result<Bytes, RefusedRequest> {
        let request: LeaseRequest = parse(body)?;
        self.quotas.lease(requester, Instant::now())?;
        let ttl = request.ttl().ok_or_else(|| {
            let bounds = format_args!(
                "a lease lasts from {} to {} ms",
                limits::MIN_LEASE_MS,
                limits::MAX_LEASE_MS
            );
            RefusedRequest::new(RefusalReason::Malformed, bounds)
        })?;
        let wish = LeaseWish {
            name: request.name,
            node: requester,
            candidate: request.candidate,
            ttl,
            token: request.token,
        };
        self.query(move |directory, now| directory.ask_lease(&wish, Instant::now(), now))
            .await
    }

    async fn query<T: Serialize + Send + 'static>(
        &self,
        query: impl FnOnce(&mut Directory, u64) -> Result<T, DirectoryError> + Send + 'static,
    ) -> Result<Bytes, RefusedRequest> {
        let clock = self.clock;
        // The answer is encoded on the directory's thread, where it is in the cache.
        let answer = self
            .queue
            .run_quick(move |directory| query(directory, clock()).map(|a| json(&a)));
        match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(error.into()),
            Err(gone) => Err(closed(gone)),
        }
    }

    fn refuse(&self, refused: &RefusedRequest) -> Response<Full<Bytes>> {
        let refusal = HubRefusal::new(refused.reason, &refused.message, (self.clock)());
        let status = StatusCode::from_u16(refused.reason.http_status());
        let body = json(&refusal).unwrap_or_default();
        respond(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
    }
}

/// A request, by method and path.
enum DirectoryRequest {
    Join,
    Leave,
    Publish,
    Lookup(String),
    Search,
    Members,
    Hold,
    NextHeld,
    HeldTaken,
    Lease,
    ReleaseLease,
    Leases,
}

impl DirectoryRequest {
    fn of(method: &Method, path: &str) -> Option<Self> {
        Some(match (method, path) {
            (&Method::POST, path::JOIN) => Self::Join,
            (&Method::DELETE, path::MEMBERSHIP) => Self::Leave,
            (&Method::PUT, path::RECORD) => Self::Publish,
            (&Method::POST, path::SEARCH) => Self::Search,
            (&Method::GET, path::MEMBERS) => Self::Members,
            (&Method::PUT, path::HELD) => Self::Hold,
            (&Method::GET, path::HELD) => Self::NextHeld,
            (&Method::DELETE, path::HELD) => Self::HeldTaken,
            (&Method::POST, lease::path::LEASE) => Self::Lease,
            (&Method::POST, lease::path::RELEASE) => Self::ReleaseLease,
            (&Method::GET, lease::path::LEASES) => Self::Leases,
            (&Method::GET, path) => Self::Lookup(path.strip_prefix(path::NODES)?.to_owned()),
            _ => return None,
        })
    }
}

/// Why a request was refused, for the log and for the client.
#[derive(Debug)]
struct RefusedRequest {
    reason: RefusalReason,
    message: String,
}

impl RefusedRequest {
    fn new(reason: RefusalReason, message: impl fmt::Display) -> Self {
        Self {
            reason,
            message: message.to_string(),
        }
    }
}

fn no_member() -> RefusedRequest {
    RefusedRequest::new(
        RefusalReason::NotAMember,
        "this node is no member of the hub",
    )
}

fn closed(_: QueueClosed) -> RefusedRequest {
    RefusedRequest::new(RefusalReason::ShuttingDown, "the hub is shutting down")
}

impl From<QuotaExceeded> for RefusedRequest {
    fn from(exceeded: QuotaExceeded) -> Self {
        Self::new(RefusalReason::TooOften, exceeded.message())
    }
}

impl From<PublicationError> for RefusedRequest {
    fn from(unfit: PublicationError) -> Self {
        let text = match unfit {
            PublicationError::Record(error) => return error.into(),
            PublicationError::Whereabouts => {
                "the record without agents has another key, sequence or name, or has agents"
            }
            PublicationError::ShownTo => "agents are shown to too many nodes",
        };
        Self::new(RefusalReason::Malformed, text)
    }
}

impl From<RecordError> for RefusedRequest {
    fn from(error: RecordError) -> Self {
        let reason = match error {
            RecordError::TooLarge(_) => RefusalReason::TooLarge,
            RecordError::Malformed | RecordError::Bound(_) => RefusalReason::Malformed,
            RecordError::BadSignature => RefusalReason::Forged,
            RecordError::Expired { .. } | RecordError::NotYetValid { .. } => RefusalReason::Expired,
        };
        Self::new(reason, error)
    }
}

impl From<DirectoryError> for RefusedRequest {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Refused { reason, message } => Self { reason, message },
            DirectoryError::Store(cause) => {
                tracing::error!(%cause, "the database failed");
                Self::new(RefusalReason::Internal, "the hub's database failed")
            }
            DirectoryError::Newer(_) | DirectoryError::File(_) => {
                Self::new(RefusalReason::Internal, error)
            }
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, RefusedRequest> {
    serde_json::from_slice(body).map_err(|_| {
        RefusedRequest::new(
            RefusalReason::Malformed,
            "the body is not valid for this request",
        )
    })
}

fn json<T: Serialize>(answer: &T) -> Result<Bytes, RefusedRequest> {
    let answer = serde_json::to_vec(answer);
    answer
        .map(Bytes::from)
        .map_err(|error| RefusedRequest::new(RefusalReason::Internal, error))
}

fn respond(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    response
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
