//! The id of a message that cannot be read as a whole, so that whoever waits is told.
//!
//! It is found wherever it comes before what is no MessagePack or JSON at all: fields of the wrong kind, bytes where
//! texts should be and an end that is missing do not hide it.

use super::{
    Encoding,
    json::JsonSource,
    pack::PackSource,
    source::{ValueShape, ValueSource},
};
use crate::Text;

/// The request that an answer is for, if it says.
#[must_use]
pub fn answer_id(payload: &[u8], encoding: Encoding) -> Option<Text> {
    match encoding {
        Encoding::Json => of_answer(&mut JsonSource::new(payload).ok()?),
        Encoding::MessagePack => of_answer(&mut PackSource::new(payload)),
    }
}

/// The request that an event belongs to, if it says.
#[must_use]
pub fn event_id(payload: &[u8], encoding: Encoding) -> Option<Text> {
    match encoding {
        Encoding::Json => of_event(&mut JsonSource::new(payload).ok()?),
        Encoding::MessagePack => of_event(&mut PackSource::new(payload)),
    }
}

fn of_event<'a>(source: &mut impl ValueSource<'a>) -> Option<Text> {
    let mut found: Option<Text> = None;
    // Whatever ends the reading, what was found before counts.
    let _ = source.map(|key, source| match key {
        "correlation_id" if source.shape()? == ValueShape::Text => {
            let text = source.text()?;
            if found.is_none() && !text.is_empty() {
                found = Some(text.as_ref().into());
            }
            Ok(())
        }
        "metadata" if source.shape()? == ValueShape::Map => source.map(|key, source| {
            if key != "correlation_id" || source.shape()? != ValueShape::Text {
                return source.skip();
            }
            let text = source.text()?;
            if !text.is_empty() {
                found = Some(text.as_ref().into());
            }
            Ok(())
        }),
        "metadata" if source.shape()? == ValueShape::Seq => source.seq(|index, source| {
            if index == 0 && found.is_none() && source.shape()? == ValueShape::Text {
                found = Some(source.text()?.as_ref().into());
                return Ok(());
            }
            source.skip()
        }),
        _ => source.skip(),
    });
    found
}

fn of_answer<'a>(source: &mut impl ValueSource<'a>) -> Option<Text> {
    let mut found: Option<Text> = None;
    let _ = source.fields(&["audit"], |_, source| {
        source.fields(&["custom"], |_, source| {
            source.map(|key, source| {
                if key == "correlation_id" && source.shape()? == ValueShape::Text {
                    found = Some(source.text()?.as_ref().into());
                    return Ok(());
                }
                source.skip()
            })
        })
    });
    found
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
