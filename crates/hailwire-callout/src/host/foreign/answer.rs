//! Decodes the answers of the kits, leniently: their languages write an absent list as `null`, or leave out what is empty.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    event::EventKind,
    response::{Audit, BodyMutation, Decision, HeaderOp, Response, WebSocketDecision},
};

/// Under which name a guardrail's answer travels, as text, in the routing metadata.
const GUARDRAIL: &str = "guardrail_response";

/// The answer to an event of this kind.
///
/// What it does not decide it is not taken to allow: an answer that is no answer to such an event is refused.
///
/// # Errors
///
/// What is wrong with it.
pub(super) fn response(kind: EventKind, json: &[u8]) -> Result<Response, String> {
    let answer: KitAnswer = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    match kind {
        EventKind::RequestComplete => Ok(Response::allow()),
        EventKind::Configure => match (answer.success, answer.decision) {
            (Some(true), _) | (None, Some(KitDecision::Allow)) => Ok(Response::allow()),
            (Some(false), _) => Ok(refused(answer.error)),
            (None, _) => Err("no answer to a configuration".to_owned()),
        },
        EventKind::Guardrail if answer.detected.is_some() => {
            let text = String::from_utf8_lossy(json).into_owned();
            Ok(Response {
                routing_metadata: BTreeMap::from([(GUARDRAIL.to_owned(), text)]),
                ..Response::default()
            })
        }
        EventKind::Guardrail => Err("no answer to a guardrail".to_owned()),
        EventKind::RequestHeaders
        | EventKind::RequestBody
        | EventKind::ResponseHeaders
        | EventKind::ResponseBody
        | EventKind::WebSocketFrame => answer.into_response(),
    }
}

/// An answer whose chunk of a body is changed, and nothing else is said.
pub(super) fn mutated(kind: EventKind, index: u32, data: Option<&str>) -> Result<Response, String> {
    let mutation = KitMutation {
        data: data.map(str::to_owned),
        chunk_index: index,
    };
    let mutation = Some(mutation.into_mutation()?);
    let mut response = Response::allow();
    match kind {
        EventKind::RequestBody => response.request_body = mutation,
        EventKind::ResponseBody => response.response_body = mutation,
        _ => return Err("a changed chunk of a body in the answer to another event".to_owned()),
    }
    Ok(response)
}

fn refused(error: Option<String>) -> Response {
    let mut response = Response::block(500);
    if let Decision::Block { body, .. } = &mut response.decision {
        *body = error;
    }
    response
}

#[derive(Deserialize)]
struct KitAnswer {
    #[serde(default)]
    decision: Option<KitDecision>,
    #[serde(default)]
    success: Option<bool>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    detected: Option<bool>,
    #[serde(default)]
    request_headers: Option<Vec<KitHeaderOp>>,
    #[serde(default)]
    response_headers: Option<Vec<KitHeaderOp>>,
    #[serde(default)]
    routing_metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    audit: Option<KitAudit>,
    #[serde(default)]
    needs_more: bool,
    #[serde(default)]
    request_body_mutation: Option<KitMutation>,
    #[serde(default)]
    response_body_mutation: Option<KitMutation>,
    #[serde(default)]
    websocket_decision: Option<WebSocketDecision>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum KitDecision {
    #[serde(alias = "Allow")]
    Allow,
    #[serde(alias = "Block")]
    Block {
        status: u16,
        #[serde(default)]
        body: Option<String>,
        #[serde(default)]
        headers: Option<BTreeMap<String, String>>,
    },
    #[serde(alias = "Redirect")]
    Redirect {
        url: String,
        #[serde(default = "found")]
        status: u16,
    },
    #[serde(alias = "Challenge")]
    Challenge {
        challenge_type: String,
        #[serde(default)]
        params: Option<BTreeMap<String, Value>>,
    },
    /// The kit for Go says so in place of a decision.
    NeedsMore(bool),
}

const fn found() -> u16 {
    302
}

#[derive(Deserialize)]
#[serde(untagged)]
enum KitHeaderOp {
    Tagged(HeaderOp),
    Flat {
        operation: HeaderOperation,
        name: String,
        #[serde(default)]
        value: Option<String>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeaderOperation {
    Set,
    Add,
    Remove,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KitAudit {
    tags: Option<Vec<String>>,
    rule_ids: Option<Vec<String>>,
    confidence: Option<f32>,
    reason_codes: Option<Vec<String>>,
    custom: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct KitMutation {
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    chunk_index: u32,
}

impl KitAnswer {
    fn into_response(self) -> Result<Response, String> {
        let mut needs_more = self.needs_more;
        let decision = match self.decision {
            None => return Err("the answer has no decision".to_owned()),
            Some(KitDecision::Allow) => Decision::Allow,
            Some(KitDecision::NeedsMore(more)) => {
                needs_more |= more;
                Decision::Allow
            }
            Some(KitDecision::Block {
                status,
                body,
                headers,
            }) => Decision::Block {
                status,
                body,
                headers: headers.unwrap_or_default(),
            },
            Some(KitDecision::Redirect { url, status }) => Decision::Redirect { url, status },
            Some(KitDecision::Challenge {
                challenge_type,
                params,
            }) => Decision::Challenge {
                challenge_type,
                params: params
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(name, value)| (name, text(value)))
                    .collect(),
            },
        };
        let ops = |ops: Option<Vec<KitHeaderOp>>| {
            let ops = ops.unwrap_or_default().into_iter();
            ops.map(KitHeaderOp::into_op).collect()
        };
        let mutation = |mutation: Option<KitMutation>| mutation.map(KitMutation::into_mutation);
        let audit = self.audit.unwrap_or_default();
        Ok(Response {
            decision,
            request_headers: ops(self.request_headers),
            response_headers: ops(self.response_headers),
            routing_metadata: self.routing_metadata.unwrap_or_default(),
            audit: Audit {
                tags: audit.tags.unwrap_or_default(),
                rule_ids: audit.rule_ids.unwrap_or_default(),
                confidence: audit.confidence,
                reason_codes: audit.reason_codes.unwrap_or_default(),
                custom: audit.custom.unwrap_or_default(),
            },
            needs_more,
            request_body: mutation(self.request_body_mutation).transpose()?,
            response_body: mutation(self.response_body_mutation).transpose()?,
            websocket: self.websocket_decision,
        })
    }
}

impl KitHeaderOp {
    fn into_op(self) -> HeaderOp {
        match self {
            Self::Tagged(op) => op,
            Self::Flat {
                operation,
                name,
                value,
            } => {
                let value = value.unwrap_or_default();
                match operation {
                    HeaderOperation::Set => HeaderOp::Set { name, value },
                    HeaderOperation::Add => HeaderOp::Add { name, value },
                    HeaderOperation::Remove => HeaderOp::Remove { name },
                }
            }
        }
    }
}

impl KitMutation {
    fn into_mutation(self) -> Result<BodyMutation, String> {
        let data = match self.data {
            None => None,
            Some(text) => Some(
                base64_simd::STANDARD
                    .decode_to_vec(text)
                    .map(Bytes::from)
                    .map_err(|_| "the data is not valid base64".to_owned())?,
            ),
        };
        Ok(BodyMutation {
            index: self.chunk_index,
            data,
        })
    }
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(json: &str) -> Result<Response, String> {
        response(EventKind::RequestHeaders, json.as_bytes())
    }

    #[test]
    fn what_the_kits_write_is_read() {
        let python = r#"{"version": 2, "decision": {"challenge": {"challenge_type": "captcha"}},
            "request_headers": [{"remove": {"name": "x"}}], "response_headers": [],
            "routing_metadata": {}, "audit": {}, "needs_more": true,
            "request_body_mutation": {"data": "aGk=", "chunk_index": 1},
            "response_body_mutation": null, "websocket_decision": null}"#;
        let read = head(python).unwrap();
        assert!(matches!(&read.decision, Decision::Challenge { params, .. } if params.is_empty()));
        assert!(read.needs_more);
        assert_eq!(read.request_body.unwrap().data.unwrap(), "hi");

        let go = r#"{"request_id":5,"decision":{"block":{"status":403}},
            "request_headers":[{"operation":"set","name":"a","value":"b"}],"audit":{"tags":["t"]}}"#;
        let read = head(go).unwrap();
        assert_eq!(read.decision, Response::block(403).decision);
        let op = HeaderOp::Set {
            name: "a".to_owned(),
            value: "b".to_owned(),
        };
        assert_eq!(
            (read.request_headers, read.audit.tags),
            (vec![op], vec!["t".to_owned()])
        );

        let more =
            head(r#"{"request_id":5,"decision":{"needs_more":true},"request_headers":null}"#);
        assert!(more.unwrap().needs_more);
    }

    #[test]
    fn what_decides_nothing_is_not_an_allow() {
        for nothing in ["{}", r#"{"success":true}"#, "[]", r#"{"decision":"maybe"}"#] {
            assert!(head(nothing).is_err(), "{nothing}");
        }
        let allow = br#"{"version":1,"decision":"allow"}"#;
        assert!(response(EventKind::Guardrail, allow).is_err());
    }

    #[test]
    fn the_answer_of_a_guardrail_is_kept_as_it_is() {
        let clean = br#"{"detected":false,"confidence":0.0,"detections":[]}"#;
        let read = response(EventKind::Guardrail, clean).unwrap();
        let kept = read.routing_metadata.get(GUARDRAIL).map(String::as_bytes);
        assert_eq!(kept, Some(clean.as_slice()));
    }
}
