//! Builds the answers to Envoy.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{Decision, EventKind, response::HeaderOp};

use super::super::{
    convert,
    proto::service::ext_proc::v3::{
        BodyMutation, BodyResponse, CommonResponse, ProcessingResponse, StreamedBodyResponse,
        body_mutation::Mutation, processing_response::Response,
    },
};

/// Bytes of one answer where both directions stream, as Envoy recommends.
const MAX_STREAMED_CHUNK: usize = 64 << 10;

pub(super) fn block(status: u16) -> Decision {
    Decision::Block {
        status,
        body: None,
        headers: std::collections::BTreeMap::new(),
    }
}

pub(super) fn answer(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        ..ProcessingResponse::default()
    }
}

pub(super) fn common(ops: &[HeaderOp]) -> Option<CommonResponse> {
    let mutation = convert::mutation(ops)?;
    Some(CommonResponse {
        header_mutation: Some(mutation),
        body_mutation: None,
    })
}

pub(super) fn body_answer(kind: EventKind, response: CommonResponse) -> ProcessingResponse {
    let response = BodyResponse {
        response: Some(response),
    };
    answer(match kind {
        EventKind::ResponseBody => Response::ResponseBody(response),
        _ => Response::RequestBody(response),
    })
}

/// How a body is changed; `None` where it is not.
pub(super) fn changed(told: &Bytes, data: Bytes) -> Option<BodyMutation> {
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
pub(super) fn chunks(kind: EventKind, mut data: Bytes, end: bool) -> VecDeque<ProcessingResponse> {
    let mut answers = VecDeque::new();
    while !data.is_empty() || (end && answers.is_empty()) {
        let body = data.split_to(data.len().min(MAX_STREAMED_CHUNK));
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
