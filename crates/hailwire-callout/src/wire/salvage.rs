//! The id of a message that cannot be read, so that whoever waits is told.
//!
//! This builds a tree and is not fast. It is for what should not happen.

use serde_json::Value;

use super::Encoding;
use crate::Text;

/// The request that an answer is for, if it says.
#[must_use]
pub fn answer_id(payload: &[u8], encoding: Encoding) -> Option<Text> {
    let answer = tree(payload, encoding)?;
    text(answer.get("audit")?.get("custom")?.get("correlation_id")?)
}

/// The request that an event belongs to, if it says.
#[must_use]
pub fn event_id(payload: &[u8], encoding: Encoding) -> Option<Text> {
    let event = tree(payload, encoding)?;
    let id = |of: &Value| of.get("correlation_id").and_then(text);
    event.get("metadata").and_then(id).or_else(|| id(&event))
}

fn tree(payload: &[u8], encoding: Encoding) -> Option<Value> {
    match encoding {
        Encoding::Json => serde_json::from_slice(payload).ok(),
        Encoding::MessagePack => rmp_serde::from_slice(payload).ok(),
    }
}

fn text(value: &Value) -> Option<Text> {
    value.as_str().map(Text::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_in_what_is_wrong_elsewhere() {
        let answer = br#"{"decision":"maybe","audit":{"custom":{"correlation_id":"c1"}}}"#;
        assert_eq!(answer_id(answer, Encoding::Json).as_deref(), Some("c1"));
        let head = br#"{"metadata":{"correlation_id":"c2"}}"#;
        assert_eq!(event_id(head, Encoding::Json).as_deref(), Some("c2"));
        assert_eq!(event_id(b"{", Encoding::Json), None);
    }
}
