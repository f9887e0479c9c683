//! The bodies of a request and its response, in every mode in which Envoy tells them.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{EventKind, event::BodyChunk, inspect::Verdict, response::HeaderOp};

use super::{
    super::{
        convert,
        proto::{
            extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
            service::ext_proc::v3::{
                CommonResponse, HttpBody, ProcessingResponse, TrailersResponse,
                processing_response::Response,
            },
        },
    },
    ExtProcRequest, ProcessingResult,
    answer::{answer, block, body_answer, changed, chunks},
};

impl ExtProcRequest {
    pub(super) async fn body(&mut self, kind: EventKind, told: HttpBody) -> ProcessingResult {
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
                BodySendMode::FullDuplexStreamed => chunks(kind, told.body, told.end_of_stream),
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
                EventKind::ResponseBody => self.exchange.show_response_body(chunk),
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
        let metadata = convert::metadata(verdict.routing_metadata.clone());
        let response = CommonResponse {
            // The head waits for the body: it can still be changed.
            header_mutation: convert::mutation(self.in_time(kind, verdict).as_slice()),
            body_mutation: changed(&told.body, data),
        };
        let mut answer = body_answer(kind, response);
        answer.dynamic_metadata = metadata;
        Ok([answer].into())
    }

    /// The answer to a body that streams.
    pub(super) fn streamed(
        &mut self,
        kind: EventKind,
        told: &Bytes,
        end: bool,
        (verdict, data): (Verdict, Bytes),
    ) -> VecDeque<ProcessingResponse> {
        let duplex = self.direction(kind).mode == Some(BodySendMode::FullDuplexStreamed);
        self.late(kind, &verdict);
        let mut answers = match duplex {
            true => chunks(kind, data, end),
            false => {
                let response = CommonResponse {
                    header_mutation: None,
                    body_mutation: changed(told, data),
                };
                [body_answer(kind, response)].into()
            }
        };
        if let Some(first) = answers.front_mut() {
            first.dynamic_metadata = convert::metadata(verdict.routing_metadata);
        }
        answers
    }

    /// Trailers end a body that had no last chunk.
    pub(super) async fn trailers(&mut self, kind: EventKind) -> ProcessingResult {
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
                answers = chunks(kind, data, false);
            } else if !data.is_empty() {
                tracing::warn!(id = %self.id, "an agent held back data until the trailers, which only FULL_DUPLEX_STREAMED can forward; blocked");
                return Ok(self.ends(&block(500)));
            }
        }
        let response = TrailersResponse::default();
        answers.push_back(answer(match kind {
            EventKind::ResponseBody => Response::ResponseTrailers(response),
            _ => Response::RequestTrailers(response),
        }));
        Ok(answers)
    }

    /// Sends a chunk of a body to the agents: what is forwarded in its stead, or the answers that end the request.
    async fn show(
        &mut self,
        kind: EventKind,
        data: Bytes,
        is_last: bool,
    ) -> Result<(Verdict, Bytes), VecDeque<ProcessingResponse>> {
        let chunk = self.chunk(kind, data, is_last);
        let shown = match kind {
            EventKind::ResponseBody => self.exchange.response_body(chunk).await,
            _ => self.exchange.request_body(chunk).await,
        };
        match self.stops(&shown.verdict) {
            Some(answers) => Err(answers),
            None => Ok((shown.verdict, shown.data)),
        }
    }

    /// The next chunk of a body.
    pub(super) fn chunk(&mut self, kind: EventKind, data: Bytes, is_last: bool) -> BodyChunk {
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
    fn in_time(&mut self, kind: EventKind, mut verdict: Verdict) -> Vec<HeaderOp> {
        if kind == EventKind::ResponseBody {
            return verdict.response_headers;
        }
        self.for_response.append(&mut verdict.response_headers);
        verdict.request_headers
    }

    /// Changes that come when the head has gone; those for the response are in time with the request's body.
    fn late(&mut self, kind: EventKind, verdict: &Verdict) {
        let late = match kind {
            EventKind::ResponseBody => &verdict.response_headers,
            _ => {
                self.for_response
                    .extend_from_slice(&verdict.response_headers);
                &verdict.request_headers
            }
        };
        if !late.is_empty() {
            tracing::debug!(id = %self.id, count = late.len(), "header changes dropped: the headers were already forwarded (only mode BUFFERED holds them)");
        }
    }
}
