//! Responses: what an agent answers to an event.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// An agent's answer. Its default lets everything pass.
///
/// An answer without text allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// What becomes of the request.
    pub decision: Decision,
    /// Changes to the request's headers.
    pub request_headers: Vec<HeaderOp>,
    /// Changes to the response's headers.
    pub response_headers: Vec<HeaderOp>,
    /// For the host's routing.
    pub routing_metadata: BTreeMap<String, String>,
    /// For records.
    pub audit: Audit,
    /// The decision is provisional: more of the body is wanted.
    pub needs_more: bool,
    /// What becomes of the chunk of the request's body that this answers.
    pub request_body: Option<BodyMutation>,
    /// What becomes of the chunk of the response's body that this answers.
    pub response_body: Option<BodyMutation>,
    /// What becomes of the WebSocket frame that this answers.
    pub websocket: Option<WebSocketDecision>,
}

impl Response {
    /// Lets it pass.
    #[must_use]
    pub fn allow() -> Self {
        Self::default()
    }

    /// Blocks it with a status.
    #[must_use]
    pub fn block(status: u16) -> Self {
        Self {
            decision: Decision::Block {
                status,
                body: None,
                headers: BTreeMap::new(),
            },
            ..Self::default()
        }
    }

    /// Whether it allows and says no more.
    pub(crate) fn says_nothing(&self) -> bool {
        let Self {
            decision: Decision::Allow,
            request_headers,
            response_headers,
            routing_metadata,
            audit,
            needs_more: false,
            request_body: None,
            response_body: None,
            websocket: None,
        } = self
        else {
            return false;
        };
        request_headers.is_empty()
            && response_headers.is_empty()
            && routing_metadata.is_empty()
            && audit.tags.is_empty()
            && audit.rule_ids.is_empty()
            && audit.confidence.is_none()
            && audit.reason_codes.is_empty()
            && audit.custom.is_empty()
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It passes.
    #[default]
    Allow,
    /// The host answers for itself.
    Block {
        /// With this status,
        status: u16,
        /// this body
        #[serde(default)]
        body: Option<String>,
        /// and these headers.
        #[serde(default, deserialize_with = "null_is_empty")]
        headers: BTreeMap<String, String>,
    },
    /// The client is sent elsewhere.
    Redirect {
        /// To this URL
        url: String,
        /// with this status.
        status: u16,
    },
    /// The client has to prove something.
    Challenge {
        /// What, such as `captcha`,
        challenge_type: String,
        /// and how.
        params: BTreeMap<String, String>,
    },
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A change to the headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are what they are called")]
pub enum HeaderOp {
    /// Replaces all values of a name.
    Set { name: String, value: String },
    /// Adds a value to a name.
    Add { name: String, value: String },
    /// Takes a name out.
    Remove { name: String },
}

/// What becomes of a chunk of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyMutation {
    /// The chunk.
    pub index: u32,
    /// `None` lets it pass, empty drops it, anything else takes its place.
    pub data: Option<Bytes>,
}

/// What becomes of a WebSocket frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebSocketDecision {
    /// It passes.
    #[default]
    Allow,
    /// It does not.
    Drop,
    /// The connection is closed (RFC 6455, 7.4).
    Close {
        /// With this code
        code: u16,
        /// and reason.
        reason: String,
    },
}

/// For records. The correlation id, which travels in `custom`, is not among these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Such as `sqli`.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The rules that matched.
    #[serde(default)]
    pub rule_ids: Vec<String>,
    /// How sure the agent is, 0 to 1.
    #[serde(default)]
    pub confidence: Option<f32>,
    /// Why, for programs.
    #[serde(default)]
    pub reason_codes: Vec<String>,
    /// Anything else.
    #[serde(default)]
    pub custom: BTreeMap<String, serde_json::Value>,
}
