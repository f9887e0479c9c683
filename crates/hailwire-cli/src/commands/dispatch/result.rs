//! The result of one input, as a line of JSON.

use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use hailwire::Status;
use hailwire_terminal::text;
use serde::Serialize;

/// Longest label of a line or a value, in characters.
const MAX_LABEL: usize = 60;

/// What came of one input.
#[derive(Debug)]
pub(in crate::commands) struct Outcome {
    pub(in crate::commands) index: u64,
    /// What the input is called, where there are several.
    pub(in crate::commands) label: Option<String>,
    /// The node that was called, where that is known.
    pub(in crate::commands) node: Option<String>,
    /// The member that was called, where it was one.
    pub(in crate::commands) member: Option<u64>,
    pub(in crate::commands) answer: Result<Bytes, Status>,
    /// How long the last call took.
    pub(in crate::commands) took: Duration,
    /// How many calls were made.
    pub(in crate::commands) calls: u32,
}

#[derive(Serialize)]
struct ResultLine<'a> {
    index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<u64>,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    hint: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
    calls: u32,
    ms: f64,
}

impl Outcome {
    /// The line, without its line feed.
    pub(in crate::commands) fn line(&self) -> String {
        let mut line = ResultLine {
            index: self.index,
            input: self.label.as_deref(),
            node: self.node.as_deref(),
            member: self.member,
            code: "ok",
            text: None,
            base64: None,
            message: "",
            hint: "",
            details: "",
            calls: self.calls,
            ms: (self.took.as_secs_f64() * 1e6).round() / 1e3,
        };
        match &self.answer {
            Ok(answer) => match std::str::from_utf8(answer) {
                Ok(answer) => line.text = Some(answer),
                Err(_) => line.base64 = Some(BASE64.encode(answer)),
            },
            Err(status) => {
                line.code = status.code.name();
                line.message = &status.message;
                line.hint = &status.hint;
                line.details = &status.details;
            }
        }
        // A structure of strings and numbers has no way to fail.
        text::json(&serde_json::to_string(&line).unwrap_or_default())
    }
}

/// The first characters of an input, for people to know it again.
pub(super) fn label(body: &[u8]) -> String {
    // A character has four bytes at most.
    let (start, rest) = body.split_at(body.len().min(4 * (MAX_LABEL + 1)));
    let start = String::from_utf8_lossy(start);
    let mut label: String = start.chars().take(MAX_LABEL).collect();
    if !rest.is_empty() || start.chars().nth(MAX_LABEL).is_some() {
        label.push('…');
    }
    label
}

#[cfg(test)]
mod tests {
    use hailwire::Code;

    use super::*;

    fn outcome(answer: Result<Bytes, Status>) -> Outcome {
        Outcome {
            index: 3,
            label: Some(label(b"a\tb")),
            node: None,
            member: None,
            answer,
            took: Duration::from_nanos(1_234_567),
            calls: 1,
        }
    }

    #[test]
    fn a_result_is_one_line_with_text_or_base64_or_what_went_wrong() {
        assert_eq!(
            outcome(Ok("x\n\u{9b}".into())).line(),
            r#"{"index":3,"input":"a\tb","code":"ok","text":"x\n\u009b","calls":1,"ms":1.235}"#
        );
        assert_eq!(
            outcome(Ok(Bytes::from_static(&[0xff]))).line(),
            r#"{"index":3,"input":"a\tb","code":"ok","base64":"/w==","calls":1,"ms":1.235}"#
        );
        let status = Status::new(Code::NotFound, "no").with_details("d");
        assert_eq!(
            outcome(Err(status)).line(),
            r#"{"index":3,"input":"a\tb","code":"not_found","message":"no","details":"d","calls":1,"ms":1.235}"#
        );
    }

    #[test]
    fn a_label_is_short_whatever_the_input_is() {
        assert_eq!(label("äb".as_bytes()), "äb");
        let long = "🦀".repeat(1000);
        assert_eq!(label(long.as_bytes()).chars().count(), MAX_LABEL + 1);
        let exact = "🦀".repeat(MAX_LABEL);
        assert_eq!(label(exact.as_bytes()), exact);
    }
}
