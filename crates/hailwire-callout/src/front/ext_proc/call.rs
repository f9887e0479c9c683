//! One HTTP request as Envoy tells it, message by message.

mod answer;
mod body;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use tonic::Status;

use self::answer::{answer, block, common};
use super::{
    MAX_FIELDS,
    convert::{self, EnvoyHeaders},
    proto::{
        extensions::filters::http::ext_proc::v3::{
            ProcessingMode,
            processing_mode::{BodySendMode, HeaderSendMode},
        },
        service::ext_proc::v3::{
            HeadersResponse, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
            ProtocolConfiguration, processing_request::Request, processing_response::Response,
        },
    },
};
use crate::{
    Decision, EventKind, Text,
    event::RequestComplete,
    front::{ClientResponse, correlation_id},
    inspect::{Exchange, FallbackAction, Verdict},
    response::HeaderOp,
};

/// A request, its exchange, and how far both have come.
pub struct ExtProcRequest {
    exchange: Exchange,
    id: Text,
    unseen: FallbackAction,
    since: Instant,
    request: BodyProgress,
    response: BodyProgress,
    /// What agents want changed in a response that has not come yet.
    for_response: Vec<HeaderOp>,
    status: u16,
    observed: bool,
    begun: bool,
    over: bool,
    completed: bool,
}

/// A body in one direction.
#[derive(Default)]
struct BodyProgress {
    mode: Option<BodySendMode>,
    total: Option<u64>,
    index: u32,
    transferred: u64,
    ended: bool,
    /// What was shown without waiting for it: each message's body, and whether it was the last.
    shown: VecDeque<(Bytes, bool)>,
    /// It passes, and agents are not shown it.
    unseen: bool,
}

impl BodyProgress {
    /// Whether a message ends the body. Trailers may follow what is whole, and then Envoy does not say that it ends.
    fn ends_with(&self, mode: BodySendMode, told: &HttpBody) -> bool {
        let so_far = self.transferred + told.body.len() as u64;
        match mode {
            BodySendMode::Buffered => true,
            BodySendMode::BufferedPartial => told.end_of_stream || self.total == Some(so_far),
            _ => told.end_of_stream,
        }
    }
}

type ProcessingResult = Result<VecDeque<ProcessingResponse>, Status>;

impl ExtProcRequest {
    /// A request that is about to be told.
    #[must_use]
    pub fn new(exchange: Exchange, unseen: FallbackAction) -> Self {
        Self {
            exchange,
            id: correlation_id(),
            unseen,
            since: Instant::now(),
            request: BodyProgress::default(),
            response: BodyProgress::default(),
            for_response: Vec::new(),
            status: 0,
            observed: false,
            begun: false,
            over: false,
            completed: false,
        }
    }

    /// The request does not pass, and Envoy has been told.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// All of the response has passed that will be told.
    #[must_use]
    pub fn has_responded(&self) -> bool {
        self.response.ended && self.response.shown.is_empty()
    }

    /// There are bodies to be answered, by [`shown`](Self::shown).
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        !self.request.shown.is_empty() || !self.response.shown.is_empty()
    }

    /// Whether the next message should be taken. It may be of either body.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.exchange.has_room(EventKind::RequestBody)
            && self.exchange.has_room(EventKind::ResponseBody)
    }

    /// Tells agents that the request has ended; once.
    pub async fn complete(&mut self) {
        if std::mem::replace(&mut self.completed, true) || !self.begun {
            return;
        }
        let duration = self.since.elapsed().as_millis();
        let complete = RequestComplete {
            correlation_id: self.id.clone(),
            status: self.status,
            duration_ms: duration.try_into().unwrap_or(u64::MAX),
            request_body_size: self.request.transferred,
            response_body_size: self.response.transferred,
            ..RequestComplete::default()
        };
        self.exchange.complete(complete).await;
    }

    /// What Envoy is answered to a message.
    ///
    /// # Errors
    ///
    /// What Envoy would have to be configured differently for; the stream fails with it, and with it the request.
    pub(super) async fn told(&mut self, message: ProcessingRequest) -> ProcessingResult {
        self.observed |= message.observability_mode;
        if let Some(config) = message.protocol_config {
            self.configured(config)?;
        }
        let Some(request) = message.request else {
            return Ok(VecDeque::new());
        };
        let mut before = VecDeque::new();
        if !matches!(request, Request::RequestBody(_) | Request::ResponseBody(_)) {
            // Answers come in the order of what they are to.
            while self.is_under_way() && !self.over {
                before.append(&mut self.shown().await);
            }
            if self.over {
                return Ok(before);
            }
        }
        let answers = match request {
            Request::RequestHeaders(head) => self.request_head(&head, &message.attributes).await,
            _ if !self.begun => Err(Status::failed_precondition(
                "agents need the head of the request: request_header_mode must be SEND",
            )),
            Request::ResponseHeaders(head) => self.response_head(&head).await,
            Request::RequestBody(body) => self.body(EventKind::RequestBody, body).await,
            Request::ResponseBody(body) => self.body(EventKind::ResponseBody, body).await,
            Request::RequestTrailers(_) => self.trailers(EventKind::RequestBody).await,
            Request::ResponseTrailers(_) => self.trailers(EventKind::ResponseBody).await,
        };
        before.append(&mut answers?);
        match self.observed {
            true => Ok(VecDeque::new()),
            false => Ok(before),
        }
    }

    /// What Envoy is answered to the next body that was shown without waiting; nothing where there is none.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn shown(&mut self) -> VecDeque<ProcessingResponse> {
        let Some((kind, shown)) = self.exchange.shown().await else {
            return VecDeque::new();
        };
        let Some((told, end)) = self.direction(kind).shown.pop_front() else {
            return VecDeque::new();
        };
        let answers = match self.stops(&shown.verdict) {
            Some(answers) => answers,
            None => self.streamed(kind, &told, end, (shown.verdict, shown.data)),
        };
        match self.observed {
            true => VecDeque::new(),
            false => answers,
        }
    }

    fn configured(&mut self, config: ProtocolConfiguration) -> Result<(), Status> {
        let (request, response) = (config.request_body_mode(), config.response_body_mode());
        if [request, response].contains(&BodySendMode::Grpc) {
            return Err(Status::unimplemented("the body mode GRPC is not supported"));
        }
        self.request.mode = Some(request);
        self.response.mode = Some(response);
        Ok(())
    }

    async fn request_head(
        &mut self,
        told: &HttpHeaders,
        attributes: &std::collections::HashMap<String, super::proto::service::ext_proc::v3::Fields>,
    ) -> ProcessingResult {
        let map = told.headers.clone().unwrap_or_default();
        let head = EnvoyHeaders::new(&map);
        if head.len() > MAX_FIELDS {
            return Ok(self.ends(&block(431)));
        }
        self.begun = true;
        self.request.total = head.length();
        self.request.ended = told.end_of_stream;
        let event = head.request(&self.id, attributes);
        let mut verdict = self.exchange.request_headers(event).await;
        if let Some(answers) = self.stops(&verdict) {
            return Ok(answers);
        }
        if let Some(answers) = self.hides(EventKind::RequestBody) {
            return Ok(answers);
        }
        self.for_response.append(&mut verdict.response_headers);
        let common = common(&verdict.request_headers);
        let mut answer = answer(Response::RequestHeaders(HeadersResponse {
            response: common,
        }));
        answer.dynamic_metadata = convert::metadata(verdict.routing_metadata);
        answer.mode_override = self.less();
        Ok([answer].into())
    }

    async fn response_head(&mut self, told: &HttpHeaders) -> ProcessingResult {
        let map = told.headers.clone().unwrap_or_default();
        let head = EnvoyHeaders::new(&map);
        if head.len() > MAX_FIELDS {
            return Ok(self.ends(&block(502)));
        }
        self.response.total = head.length();
        self.response.ended = told.end_of_stream;
        self.status = head.status();
        let event = head.response(&self.id);
        let mut verdict = self.exchange.response_headers(event).await;
        if let Some(answers) = self.stops(&verdict) {
            return Ok(answers);
        }
        if let Some(answers) = self.hides(EventKind::ResponseBody) {
            return Ok(answers);
        }
        self.for_response.append(&mut verdict.response_headers);
        let more = self.exchange.wants(EventKind::ResponseBody);
        self.response.ended |= !more || self.response.mode == Some(BodySendMode::None);
        let common = common(&std::mem::take(&mut self.for_response));
        let mut answer = answer(Response::ResponseHeaders(HeadersResponse {
            response: common,
        }));
        answer.dynamic_metadata = convert::metadata(verdict.routing_metadata);
        Ok([answer].into())
    }

    fn direction(&mut self, kind: EventKind) -> &mut BodyProgress {
        match kind {
            EventKind::ResponseBody => &mut self.response,
            _ => &mut self.request,
        }
    }

    /// The answer that ends the request, where the verdict does.
    fn stops(&mut self, verdict: &Verdict) -> Option<VecDeque<ProcessingResponse>> {
        (!verdict.passes()).then(|| self.ends(&verdict.decision))
    }

    fn ends(&mut self, decision: &Decision) -> VecDeque<ProcessingResponse> {
        let Some(reply) = ClientResponse::to(decision) else {
            return VecDeque::new();
        };
        self.over = !self.observed;
        self.status = reply.status;
        [convert::immediate(reply)].into()
    }

    /// The answer that ends the request where a body follows that agents want and Envoy will not send.
    fn hides(&mut self, kind: EventKind) -> Option<VecDeque<ProcessingResponse>> {
        let direction = self.direction(kind);
        if direction.ended || direction.mode != Some(BodySendMode::None) {
            return None;
        }
        self.unseen(kind)
    }

    fn unseen(&mut self, kind: EventKind) -> Option<VecDeque<ProcessingResponse>> {
        if !self.exchange.wants(kind) {
            return None;
        }
        match self.unseen {
            FallbackAction::Allow => {
                tracing::warn!(id = %self.id, body = kind.name(), "passes uninspected: Envoy does not send it");
                self.direction(kind).unseen = true;
                None
            }
            FallbackAction::Block(status) => {
                tracing::debug!(id = %self.id, body = kind.name(), "blocked: Envoy does not send it");
                Some(self.ends(&block(status)))
            }
        }
    }

    /// What Envoy need not send, where it sends more than agents want.
    fn less(&self) -> Option<ProcessingMode> {
        let (request, response) = (self.request.mode?, self.response.mode?);
        let kept = |mode, kind| match self.exchange.wants(kind) {
            true => mode,
            false => BodySendMode::None,
        };
        let request_body = kept(request, EventKind::RequestBody);
        let response_body = kept(response, EventKind::ResponseBody);
        let head = self.exchange.wants(EventKind::ResponseHeaders)
            || self.exchange.wants(EventKind::RequestComplete)
            || response_body != BodySendMode::None
            || request_body != BodySendMode::None
            || !self.for_response.is_empty();
        if head && (request_body, response_body) == (request, response) {
            return None;
        }
        let mut mode = ProcessingMode::default();
        mode.set_request_body_mode(request_body);
        mode.set_response_body_mode(response_body);
        mode.set_response_header_mode(match head {
            true => HeaderSendMode::Send,
            false => HeaderSendMode::Skip,
        });
        let trailers = |body| match body == BodySendMode::FullDuplexStreamed {
            true => HeaderSendMode::Send,
            false => HeaderSendMode::Default,
        };
        mode.set_request_trailer_mode(trailers(request_body));
        mode.set_response_trailer_mode(trailers(response_body));
        Some(mode)
    }
}
