//! What an agent answers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    DecodeError,
    proto::{
        self, agent_response::Decision as Decided, header_op::Operation,
        web_socket_decision::Decision as FrameDecided,
    },
    small,
};
use crate::{
    Text,
    response::{Audit, BodyMutation, Decision, HeaderOp, Response, WebSocketDecision},
};

/// An answer as a message; `ticket` is that of the event, 0 where it had none.
pub(crate) fn answer(id: String, ticket: u64, response: Response) -> proto::AgentResponse {
    proto::AgentResponse {
        correlation_id: id,
        decision: Some(decided(response.decision)),
        request_headers: response
            .request_headers
            .into_iter()
            .map(header_op)
            .collect(),
        response_headers: response
            .response_headers
            .into_iter()
            .map(header_op)
            .collect(),
        audit: (response.audit != Audit::default()).then(|| audit(response.audit)),
        processing_time_ms: None,
        needs_more: response.needs_more,
        routing_metadata: response.routing_metadata,
        request_body: response.request_body.map(mutation),
        response_body: response.response_body.map(mutation),
        websocket: response.websocket.map(frame_decided),
        ticket,
    }
}

/// Which request a message answers, and its answer.
///
/// A message without a decision has none to obey, and is refused.
pub(crate) fn response(message: proto::AgentResponse) -> (Text, Result<Response, DecodeError>) {
    let id = Text::from(message.correlation_id);
    let read = || {
        Ok(Response {
            decision: decision(message.decision)?,
            request_headers: header_ops(message.request_headers)?,
            response_headers: header_ops(message.response_headers)?,
            routing_metadata: message.routing_metadata,
            audit: message.audit.map(read_audit).unwrap_or_default(),
            needs_more: message.needs_more,
            request_body: message.request_body.map(read_mutation),
            response_body: message.response_body.map(read_mutation),
            websocket: message.websocket.map(frame_decision).transpose()?,
        })
    };
    (id, read())
}

fn decided(decision: Decision) -> Decided {
    match decision {
        Decision::Allow => Decided::Allow(proto::AllowDecision {}),
        Decision::Block {
            status,
            body,
            headers,
        } => Decided::Block(proto::BlockDecision {
            status: status.into(),
            body,
            headers: headers
                .into_iter()
                .map(|(name, value)| proto::Header { name, value })
                .collect(),
        }),
        Decision::Redirect { url, status } => Decided::Redirect(proto::RedirectDecision {
            url,
            status: status.into(),
        }),
        Decision::Challenge {
            challenge_type,
            params,
        } => Decided::Challenge(proto::ChallengeDecision {
            challenge_type,
            params,
        }),
    }
}

fn decision(decided: Option<Decided>) -> Result<Decision, DecodeError> {
    Ok(match decided {
        None => return Err(DecodeError("the answer has no decision".to_owned())),
        Some(Decided::Allow(_)) => Decision::Allow,
        Some(Decided::Block(block)) => Decision::Block {
            status: small(block.status, "status")?,
            body: block.body,
            headers: block
                .headers
                .into_iter()
                .map(|header| (header.name, header.value))
                .collect(),
        },
        Some(Decided::Redirect(redirect)) => Decision::Redirect {
            url: redirect.url,
            status: small(redirect.status, "status")?,
        },
        Some(Decided::Challenge(challenge)) => Decision::Challenge {
            challenge_type: challenge.challenge_type,
            params: challenge.params,
        },
    })
}

fn header_op(op: HeaderOp) -> proto::HeaderOp {
    let operation = match op {
        HeaderOp::Set { name, value } => Operation::Set(proto::Header { name, value }),
        HeaderOp::Add { name, value } => Operation::Add(proto::Header { name, value }),
        HeaderOp::Remove { name } => Operation::Remove(name),
    };
    proto::HeaderOp {
        operation: Some(operation),
    }
}

fn header_ops(ops: Vec<proto::HeaderOp>) -> Result<Vec<HeaderOp>, DecodeError> {
    ops.into_iter()
        .map(|op| match op.operation {
            Some(Operation::Set(proto::Header { name, value })) => {
                Ok(HeaderOp::Set { name, value })
            }
            Some(Operation::Add(proto::Header { name, value })) => {
                Ok(HeaderOp::Add { name, value })
            }
            Some(Operation::Remove(name)) => Ok(HeaderOp::Remove { name }),
            None => Err(DecodeError(
                "a change to the headers changes nothing".to_owned(),
            )),
        })
        .collect()
}

fn audit(audit: Audit) -> proto::AuditMetadata {
    let custom = audit.custom.into_iter();
    proto::AuditMetadata {
        tags: audit.tags,
        rule_ids: audit.rule_ids,
        confidence: audit.confidence,
        reason_codes: audit.reason_codes,
        custom: custom
            .map(|(name, value)| (name, value.to_string()))
            .collect(),
    }
}

fn read_audit(audit: proto::AuditMetadata) -> Audit {
    let custom: BTreeMap<String, Value> = audit
        .custom
        .into_iter()
        .map(|(name, text)| {
            let value = serde_json::from_str(&text);
            (name, value.unwrap_or(Value::String(text)))
        })
        .collect();
    Audit {
        tags: audit.tags,
        rule_ids: audit.rule_ids,
        confidence: audit.confidence,
        reason_codes: audit.reason_codes,
        custom,
    }
}

fn mutation(mutation: BodyMutation) -> proto::BodyMutation {
    proto::BodyMutation {
        chunk_index: mutation.index,
        data: mutation.data,
    }
}

fn read_mutation(mutation: proto::BodyMutation) -> BodyMutation {
    BodyMutation {
        index: mutation.chunk_index,
        data: mutation.data,
    }
}

fn frame_decided(decision: WebSocketDecision) -> proto::WebSocketDecision {
    let decision = match decision {
        WebSocketDecision::Allow => FrameDecided::Allow(proto::AllowDecision {}),
        WebSocketDecision::Drop => FrameDecided::Drop(proto::DropFrame {}),
        WebSocketDecision::Close { code, reason } => FrameDecided::Close(proto::CloseConnection {
            code: code.into(),
            reason,
        }),
    };
    proto::WebSocketDecision {
        decision: Some(decision),
    }
}

fn frame_decision(decided: proto::WebSocketDecision) -> Result<WebSocketDecision, DecodeError> {
    Ok(match decided.decision {
        None => return Err(DecodeError("the answer has no decision".to_owned())),
        Some(FrameDecided::Allow(_)) => WebSocketDecision::Allow,
        Some(FrameDecided::Drop(_)) => WebSocketDecision::Drop,
        Some(FrameDecided::Close(close)) => WebSocketDecision::Close {
            code: small(close.code, "close code")?,
            reason: close.reason,
        },
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn every_answer_comes_as_it_left() {
        let text = str::to_owned;
        let map = || BTreeMap::from([(text("k"), text("v"))]);
        let decisions = [
            Decision::Allow,
            Decision::Block {
                status: 403,
                body: Some(text("no")),
                headers: map(),
            },
            Decision::Redirect {
                url: text("/"),
                status: 302,
            },
            Decision::Challenge {
                challenge_type: text("captcha"),
                params: map(),
            },
        ];
        let frames = [
            None,
            Some(WebSocketDecision::Allow),
            Some(WebSocketDecision::Drop),
            Some(WebSocketDecision::Close {
                code: 1008,
                reason: text("r"),
            }),
        ];
        for (decision, websocket) in decisions.into_iter().zip(frames) {
            let name = || text("n");
            let value = || text("v");
            let given = Response {
                decision,
                request_headers: vec![
                    HeaderOp::Set {
                        name: name(),
                        value: value(),
                    },
                    HeaderOp::Remove { name: name() },
                ],
                response_headers: vec![HeaderOp::Add {
                    name: name(),
                    value: value(),
                }],
                routing_metadata: map(),
                audit: Audit {
                    tags: vec![text("t")],
                    confidence: Some(0.5),
                    custom: BTreeMap::from([
                        (text("number"), Value::from(1)),
                        (text("text"), Value::from("1")),
                    ]),
                    ..Audit::default()
                },
                needs_more: true,
                request_body: Some(BodyMutation {
                    index: 2,
                    data: Some(Bytes::new()),
                }),
                response_body: Some(BodyMutation {
                    index: 3,
                    data: None,
                }),
                websocket,
            };
            let (id, came) = response(answer("c1".to_owned(), 7, given.clone()));
            assert_eq!((&*id, came.ok()), ("c1", Some(given)));
        }
    }

    #[test]
    fn an_answer_that_decides_nothing_is_refused() {
        let message = proto::AgentResponse {
            correlation_id: "c1".to_owned(),
            ..proto::AgentResponse::default()
        };
        assert!(response(message).1.is_err());
    }
}
