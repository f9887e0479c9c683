//! One HTTP request as Envoy tells it, message by message.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use tonic::Status;

use super::{
    MAX_FIELDS,
    proto::{
        extensions::filters::http::ext_proc::v3::{
            ProcessingMode,
            processing_mode::{BodySendMode, HeaderSendMode},
        },
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeadersResponse, HttpBody, HttpHeaders,
            ProcessingRequest, ProcessingResponse, ProtocolConfiguration, StreamedBodyResponse,
            TrailersResponse, body_mutation::Mutation, processing_request::Request,
            processing_response::Response,
        },
    },
    words::{self, Head},
};
use crate::{
    Decision, Kind, Text,
    event::{BodyChunk, RequestComplete},
    front::{Reply, correlation_id},
    inspect::{Action, Exchange, Verdict},
    response::HeaderOp,
};

/// Bytes of one answer where both directions stream, as Envoy recommends.
const PIECE: usize = 64 << 10;

/// A request, its exchange, and how far both have come.
pub struct Call {
    exchange: Exchange,
    id: Text,
    unseen: Action,
    since: Instant,
    request: Direction,
    response: Direction,
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
struct Direction {
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

impl Direction {
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

type Told = Result<VecDeque<ProcessingResponse>, Status>;

impl Call {
    /// A request that is about to be told.
    #[must_use]
    pub fn new(exchange: Exchange, unseen: Action) -> Self {
        Self {
            exchange,
            id: correlation_id(),
            unseen,
            since: Instant::now(),
            request: Direction::default(),
            response: Direction::default(),
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
        self.exchange.has_room(Kind::RequestBody) && self.exchange.has_room(Kind::ResponseBody)
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
    pub(super) async fn told(&mut self, message: ProcessingRequest) -> Told {
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
            Request::RequestBody(body) => self.body(Kind::RequestBody, body).await,
            Request::ResponseBody(body) => self.body(Kind::ResponseBody, body).await,
            Request::RequestTrailers(_) => self.trailers(Kind::RequestBody).await,
            Request::ResponseTrailers(_) => self.trailers(Kind::ResponseBody).await,
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
    ) -> Told {
        let map = told.headers.clone().unwrap_or_default();
        let head = Head::new(&map);
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
        if let Some(answers) = self.hides(Kind::RequestBody) {
            return Ok(answers);
        }
        self.for_response.append(&mut verdict.response_headers);
        let common = common(&verdict.request_headers);
        let mut answer = answer(Response::RequestHeaders(HeadersResponse {
            response: common,
        }));
        answer.dynamic_metadata = words::metadata(verdict.routing_metadata);
        answer.mode_override = self.less();
        Ok([answer].into())
    }

    async fn response_head(&mut self, told: &HttpHeaders) -> Told {
        let map = told.headers.clone().unwrap_or_default();
        let head = Head::new(&map);
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
        if let Some(answers) = self.hides(Kind::ResponseBody) {
            return Ok(answers);
        }
        self.for_response.append(&mut verdict.response_headers);
        let more = self.exchange.wants(Kind::ResponseBody);
        self.response.ended |= !more || self.response.mode == Some(BodySendMode::None);
        let common = common(&std::mem::take(&mut self.for_response));
        let mut answer = answer(Response::ResponseHeaders(HeadersResponse {
            response: common,
        }));
        answer.dynamic_metadata = words::metadata(verdict.routing_metadata);
        Ok([answer].into())
    }

    async fn body(&mut self, kind: Kind, told: HttpBody) -> Told {
        let direction = self.direction(kind);
        let mode = direction.mode.unwrap_or(BodySendMode::Streamed);
        let is_last = direction.ends_with(mode, &told);
        if mode == BodySendMode::BufferedPartial
            && !is_last
            && let Some(answers) = self.unseen(kind)
        {
            // The rest will not be sent.
            return Ok(answers);
        }
        let direction = self.direction(kind);
        if direction.unseen {
            direction.transferred += told.body.len() as u64;
            return Ok(match mode {
                BodySendMode::FullDuplexStreamed => pieces(kind, told.body, told.end_of_stream),
                _ => [body_answer(kind, CommonResponse::default())].into(),
            });
        }
        if matches!(
            mode,
            BodySendMode::Streamed | BodySendMode::FullDuplexStreamed
        ) {
            // Envoy goes on without an answer, and so do we: agents see it while they think about what came before.
            let chunk = self.chunk(kind, told.body.clone(), told.end_of_stream);
            match kind {
                Kind::ResponseBody => self.exchange.show_response_body(chunk),
                _ => self.exchange.show_request_body(chunk),
            }
            let shown = (told.body, told.end_of_stream);
            self.direction(kind).shown.push_back(shown);
            return Ok(VecDeque::new());
        }
        let shown = self.show(kind, told.body.clone(), is_last).await;
        let (verdict, data) = match shown {
            Ok(shown) => shown,
            Err(answers) => return Ok(answers),
        };
        let metadata = words::metadata(verdict.routing_metadata.clone());
        let response = CommonResponse {
            // The head waits for the body: it can still be changed.
            header_mutation: words::mutation(self.in_time(kind, verdict).as_slice()),
            body_mutation: changed(&told.body, data),
        };
        let mut answer = body_answer(kind, response);
        answer.dynamic_metadata = metadata;
        Ok([answer].into())
    }

    /// The answer to a body that streams.
    fn streamed(
        &mut self,
        kind: Kind,
        told: &Bytes,
        end: bool,
        (verdict, data): (Verdict, Bytes),
    ) -> VecDeque<ProcessingResponse> {
        let duplex = self.direction(kind).mode == Some(BodySendMode::FullDuplexStreamed);
        self.late(kind, &verdict);
        let mut answers = match duplex {
            true => pieces(kind, data, end),
            false => {
                let response = CommonResponse {
                    header_mutation: None,
                    body_mutation: changed(told, data),
                };
                [body_answer(kind, response)].into()
            }
        };
        if let Some(first) = answers.front_mut() {
            first.dynamic_metadata = words::metadata(verdict.routing_metadata);
        }
        answers
    }

    /// Trailers end a body that had no last piece.
    async fn trailers(&mut self, kind: Kind) -> Told {
        let mode = self.direction(kind).mode;
        let mut answers = VecDeque::new();
        let direction = self.direction(kind);
        if !direction.ended && !direction.unseen {
            let (verdict, data) = match self.show(kind, Bytes::new(), true).await {
                Ok(shown) => shown,
                Err(answers) => return Ok(answers),
            };
            self.late(kind, &verdict);
            if mode == Some(BodySendMode::FullDuplexStreamed) {
                answers = pieces(kind, data, false);
            } else if !data.is_empty() {
                tracing::warn!(id = %self.id, "what an agent held back until the trailers cannot go on: only FULL_DUPLEX_STREAMED can carry it");
                return Ok(self.ends(&block(500)));
            }
        }
        let response = TrailersResponse::default();
        answers.push_back(answer(match kind {
            Kind::ResponseBody => Response::ResponseTrailers(response),
            _ => Response::RequestTrailers(response),
        }));
        Ok(answers)
    }

    /// Shows a piece of a body; what goes on in its place, or the answers that end the request.
    async fn show(
        &mut self,
        kind: Kind,
        data: Bytes,
        is_last: bool,
    ) -> Result<(Verdict, Bytes), VecDeque<ProcessingResponse>> {
        let chunk = self.chunk(kind, data, is_last);
        let shown = match kind {
            Kind::ResponseBody => self.exchange.response_body(chunk).await,
            _ => self.exchange.request_body(chunk).await,
        };
        match self.stops(&shown.verdict) {
            Some(answers) => Err(answers),
            None => Ok((shown.verdict, shown.data)),
        }
    }

    /// The next piece of a body.
    fn chunk(&mut self, kind: Kind, data: Bytes, is_last: bool) -> BodyChunk {
        let id = self.id.clone();
        let direction = self.direction(kind);
        direction.transferred += data.len() as u64;
        direction.ended |= is_last;
        let chunk = BodyChunk {
            correlation_id: id,
            data,
            is_last,
            total_size: direction.total,
            index: direction.index,
            transferred: direction.transferred,
        };
        direction.index = direction.index.saturating_add(1);
        chunk
    }

    /// Changes that come while the head still waits.
    fn in_time(&mut self, kind: Kind, mut verdict: Verdict) -> Vec<HeaderOp> {
        if kind == Kind::ResponseBody {
            return verdict.response_headers;
        }
        self.for_response.append(&mut verdict.response_headers);
        verdict.request_headers
    }

    /// Changes that come when the head has gone; those for the response are in time with the request's body.
    fn late(&mut self, kind: Kind, verdict: &Verdict) {
        let late = match kind {
            Kind::ResponseBody => &verdict.response_headers,
            _ => {
                self.for_response
                    .extend_from_slice(&verdict.response_headers);
                &verdict.request_headers
            }
        };
        if !late.is_empty() {
            tracing::debug!(id = %self.id, count = late.len(), "changes to headers that have gone: only the mode BUFFERED can make them");
        }
    }

    fn direction(&mut self, kind: Kind) -> &mut Direction {
        match kind {
            Kind::ResponseBody => &mut self.response,
            _ => &mut self.request,
        }
    }

    /// The answer that ends the request, where the verdict does.
    fn stops(&mut self, verdict: &Verdict) -> Option<VecDeque<ProcessingResponse>> {
        (!verdict.passes()).then(|| self.ends(&verdict.decision))
    }

    fn ends(&mut self, decision: &Decision) -> VecDeque<ProcessingResponse> {
        let Some(reply) = Reply::to(decision) else {
            return VecDeque::new();
        };
        self.over = !self.observed;
        self.status = reply.status;
        [words::immediate(reply)].into()
    }

    /// The answer that ends the request where a body follows that agents want and Envoy will not send.
    fn hides(&mut self, kind: Kind) -> Option<VecDeque<ProcessingResponse>> {
        let direction = self.direction(kind);
        if direction.ended || direction.mode != Some(BodySendMode::None) {
            return None;
        }
        self.unseen(kind)
    }

    fn unseen(&mut self, kind: Kind) -> Option<VecDeque<ProcessingResponse>> {
        if !self.exchange.wants(kind) {
            return None;
        }
        match self.unseen {
            Action::Allow => {
                tracing::warn!(id = %self.id, body = kind.name(), "passes uninspected: Envoy does not send it");
                self.direction(kind).unseen = true;
                None
            }
            Action::Block(status) => {
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
        let request_body = kept(request, Kind::RequestBody);
        let response_body = kept(response, Kind::ResponseBody);
        let head = self.exchange.wants(Kind::ResponseHeaders)
            || self.exchange.wants(Kind::RequestComplete)
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

fn block(status: u16) -> Decision {
    Decision::Block {
        status,
        body: None,
        headers: std::collections::BTreeMap::new(),
    }
}

fn answer(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        ..ProcessingResponse::default()
    }
}

fn common(ops: &[HeaderOp]) -> Option<CommonResponse> {
    let mutation = words::mutation(ops)?;
    Some(CommonResponse {
        header_mutation: Some(mutation),
        body_mutation: None,
    })
}

fn body_answer(kind: Kind, response: CommonResponse) -> ProcessingResponse {
    let response = BodyResponse {
        response: Some(response),
    };
    answer(match kind {
        Kind::ResponseBody => Response::ResponseBody(response),
        _ => Response::RequestBody(response),
    })
}

/// How a body is changed; `None` where it is not.
fn changed(told: &Bytes, data: Bytes) -> Option<BodyMutation> {
    let same = data.len() == told.len() && (data.as_ptr() == told.as_ptr() || data == *told);
    let mutation = match (same, data.is_empty()) {
        (true, _) => return None,
        (false, true) => Mutation::ClearBody(true),
        (false, false) => Mutation::Body(data),
    };
    Some(BodyMutation {
        mutation: Some(mutation),
    })
}

/// What goes on where both directions stream: nothing while it is held back.
fn pieces(kind: Kind, mut data: Bytes, end: bool) -> VecDeque<ProcessingResponse> {
    let mut answers = VecDeque::new();
    while !data.is_empty() || (end && answers.is_empty()) {
        let body = data.split_to(data.len().min(PIECE));
        let streamed = StreamedBodyResponse {
            body,
            end_of_stream: end && data.is_empty(),
        };
        let mutation = BodyMutation {
            mutation: Some(Mutation::StreamedResponse(streamed)),
        };
        let response = CommonResponse {
            header_mutation: None,
            body_mutation: Some(mutation),
        };
        answers.push_back(body_answer(kind, response));
    }
    answers
}

#[cfg(test)]
mod tests;
