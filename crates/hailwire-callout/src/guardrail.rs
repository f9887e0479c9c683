//! What an agent finds in a text for or from a language model.
//!
//! The wire has no field for it: it travels as JSON in the answer's routing metadata, under [`FINDINGS_KEY`]. An answer without
//! it says by its decision alone whether something was found.

use serde::{Deserialize, Serialize};

use crate::Response;

/// Where in the routing metadata of an answer findings stand.
pub const FINDINGS_KEY: &str = "guardrail_response";

/// What an agent found in a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Whether there is anything.
    pub detected: bool,
    /// How sure the agent is, 0 to 1.
    #[serde(default)]
    pub confidence: f64,
    /// One by one.
    #[serde(default, rename = "detections")]
    pub findings: Vec<Finding>,
    /// The text without what was found.
    #[serde(
        default,
        rename = "redacted_content",
        skip_serializing_if = "Option::is_none"
    )]
    pub redacted: Option<String>,
}

/// One thing that an agent found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Such as `prompt_injection`, `ssn` or `credit_card`.
    pub category: String,
    /// For people.
    pub description: String,
    /// How bad it is.
    #[serde(default)]
    pub severity: Severity,
    /// How sure the agent is, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Where in the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<TextSpan>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the words of the protocol")]
pub enum Severity {
    Low,
    #[default]
    Medium,
    High,
    Critical,
}

/// A stretch of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextSpan {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Findings {
    /// As an answer that allows: what was found decides ([`crate::inspect::Exchange::guardrail`]).
    #[must_use]
    pub fn answer(&self) -> Response {
        let mut response = Response::allow();
        // Nothing in it can fail to be JSON.
        if let Ok(text) = serde_json::to_string(self) {
            response
                .routing_metadata
                .insert(FINDINGS_KEY.to_owned(), text);
        }
        response
    }

    /// Takes what was found out of an answer; `None` where it does not say.
    ///
    /// # Errors
    ///
    /// What stands there is something else.
    pub fn take(response: &mut Response) -> Result<Option<Self>, serde_json::Error> {
        let text = response.routing_metadata.remove(FINDINGS_KEY);
        text.map(|text| serde_json::from_str(&text)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_read_as_the_protocol_has_them() {
        let text = r#"{"detected":true,"confidence":0.9,"detections":[{"category":"ssn","description":"a number",
            "severity":"high","span":{"start":3,"end":9}}],"redacted_content":"my *"}"#;
        let mut response = Response::allow();
        response
            .routing_metadata
            .insert(FINDINGS_KEY.to_owned(), text.to_owned());
        let found = Findings::take(&mut response).unwrap().unwrap();
        assert_eq!(response, Response::allow());
        assert_eq!(found.redacted.as_deref(), Some("my *"));
        assert_eq!(found.findings[0].severity, Severity::High);
        assert_eq!(found.findings[0].span, Some(TextSpan { start: 3, end: 9 }));
        let again = Findings::take(&mut found.answer()).unwrap();
        assert_eq!(again, Some(found));
        assert_eq!(Findings::take(&mut response).unwrap(), None);
        let lie = FINDINGS_KEY.to_owned();
        response.routing_metadata.insert(lie, "{}".to_owned());
        assert!(Findings::take(&mut response).is_err());
    }
}
