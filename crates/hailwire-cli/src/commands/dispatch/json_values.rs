//! Cuts JSON values out of bytes as they arrive: those of a stream, or the items of one array.
//!
//! A file that begins with `[` is one array, and nothing may follow it. The bytes of each value stay as they were written. What
//! is held is one value of [`MAX_DISPATCH_BODY`] bytes at most; a larger one is passed over and told.

use bytes::Bytes;
use hailwire_core::dispatch_plan::MAX_DISPATCH_BODY;
use serde::de::IgnoredAny;
use thiserror::Error;

/// Why a text is no stream of JSON values.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum JsonCutError {
    /// A byte that cannot stand there.
    #[error("{} cannot stand at byte {at}", shown(*byte))]
    Unexpected { byte: u8, at: u64 },
    /// A value that is not valid.
    #[error("the value that ends at byte {at} is not JSON: {why}")]
    Invalid { at: u64, why: String },
    /// It ends within a value or an array.
    #[error("the JSON ends in the middle, after {at} bytes")]
    Incomplete { at: u64 },
}

/// A value that was cut out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CutValue {
    Whole(Bytes),
    TooLarge,
}

/// What may come next between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// A value or `[`: nothing has come yet.
    Start,
    /// A value of a stream.
    Stream,
    /// A value of the array, or its end where it is empty.
    FirstItem,
    Item,
    /// A comma, or the end of the array.
    AfterItem,
    /// White space.
    End,
}

/// The value that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    /// A number, or a word such as `true`.
    Scalar,
    /// A string, or an array or object whose brackets are open so many times.
    Nested {
        depth: u64,
        in_string: bool,
        escaped: bool,
    },
}

/// Cuts values out of bytes.
#[derive(Debug)]
pub(super) struct JsonCutter {
    between: Between,
    within: Option<Within>,
    value: Vec<u8>,
    too_large: bool,
    at: u64,
}

impl JsonCutter {
    pub(super) fn new() -> Self {
        Self {
            between: Between::Start,
            within: None,
            value: Vec::new(),
            too_large: false,
            at: 0,
        }
    }

    /// Takes bytes up to the end of a value; how many it took, and the value if one ended.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<CutValue>), JsonCutError> {
        for (taken, byte) in bytes.iter().enumerate() {
            let value = self.push(*byte)?;
            self.at += 1;
            if value.is_some() {
                return Ok((taken + 1, value));
            }
        }
        Ok((bytes.len(), None))
    }

    /// There are no more bytes; the last value, if it ends here.
    pub(super) fn end(&mut self) -> Result<Option<CutValue>, JsonCutError> {
        let value = match self.within {
            Some(Within::Scalar) => Some(self.cut()?),
            Some(Within::Nested { .. }) => return Err(JsonCutError::Incomplete { at: self.at }),
            None => None,
        };
        match self.between {
            Between::Start | Between::Stream | Between::End => Ok(value),
            Between::FirstItem | Between::Item | Between::AfterItem => {
                Err(JsonCutError::Incomplete { at: self.at })
            }
        }
    }

    fn push(&mut self, byte: u8) -> Result<Option<CutValue>, JsonCutError> {
        match self.within {
            None => self.step_between(byte).map(|()| None),
            Some(Within::Scalar) if ends_scalar(byte) => {
                let value = self.cut()?;
                // Nothing that a byte begins ends with it.
                self.step_between(byte)?;
                Ok(Some(value))
            }
            Some(Within::Scalar) => {
                self.keep(byte);
                Ok(None)
            }
            Some(Within::Nested {
                depth,
                in_string,
                escaped,
            }) => {
                self.keep(byte);
                let (depth, in_string, escaped) = match (in_string, escaped, byte) {
                    (true, true, _) => (depth, true, false),
                    (true, false, b'\\') => (depth, true, true),
                    (in_string, _, b'"') => (depth, !in_string, false),
                    (true, _, _) => (depth, true, false),
                    (false, _, b'[' | b'{') => (depth + 1, false, false),
                    (false, _, b']' | b'}') => (depth.saturating_sub(1), false, false),
                    (false, _, _) => (depth, false, false),
                };
                if depth == 0 && !in_string {
                    return self.cut().map(Some);
                }
                self.within = Some(Within::Nested {
                    depth,
                    in_string,
                    escaped,
                });
                Ok(None)
            }
        }
    }

    /// A byte that is in no value yet.
    fn step_between(&mut self, byte: u8) -> Result<(), JsonCutError> {
        if is_space(byte) {
            return Ok(());
        }
        self.between = match (self.between, byte) {
            (Between::Start, b'[') => Between::FirstItem,
            (Between::FirstItem | Between::AfterItem, b']') => Between::End,
            (Between::AfterItem, b',') => Between::Item,
            (Between::Start | Between::Stream, _) if begins_value(byte) => {
                self.begin(byte);
                Between::Stream
            }
            (Between::FirstItem | Between::Item, _) if begins_value(byte) => {
                self.begin(byte);
                Between::AfterItem
            }
            _ => return Err(JsonCutError::Unexpected { byte, at: self.at }),
        };
        Ok(())
    }

    fn begin(&mut self, byte: u8) {
        self.within = Some(match byte {
            b'"' => Within::Nested {
                depth: 0,
                in_string: true,
                escaped: false,
            },
            b'[' | b'{' => Within::Nested {
                depth: 1,
                in_string: false,
                escaped: false,
            },
            _ => Within::Scalar,
        });
        self.keep(byte);
    }

    fn keep(&mut self, byte: u8) {
        if self.value.len() == MAX_DISPATCH_BODY {
            self.too_large = true;
        }
        if !self.too_large {
            self.value.push(byte);
        }
    }

    fn cut(&mut self) -> Result<CutValue, JsonCutError> {
        self.within = None;
        let value = std::mem::take(&mut self.value);
        if std::mem::take(&mut self.too_large) {
            return Ok(CutValue::TooLarge);
        }
        let invalid = |why: String| JsonCutError::Invalid { at: self.at, why };
        std::str::from_utf8(&value).map_err(|error| invalid(error.to_string()))?;
        serde_json::from_slice::<IgnoredAny>(&value).map_err(|error| invalid(error.to_string()))?;
        Ok(CutValue::Whole(value.into()))
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn ends_scalar(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b']' | b'}' | b'[' | b'{' | b'"')
}

fn begins_value(byte: u8) -> bool {
    matches!(byte, b'"' | b'[' | b'{' | b'-' | b'0'..=b'9' | b'a'..=b'z')
}

fn shown(byte: u8) -> String {
    match byte.is_ascii_graphic() {
        true => format!("`{}`", char::from(byte)),
        false => format!("the byte {byte:#04x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a text that arrives in parts of `part` bytes.
    fn cut(text: &str, part: usize) -> Result<Vec<String>, JsonCutError> {
        let mut cutter = JsonCutter::new();
        let mut values = Vec::new();
        for mut bytes in text.as_bytes().chunks(part) {
            while !bytes.is_empty() {
                let (taken, value) = cutter.take(bytes)?;
                bytes = &bytes[taken..];
                values.extend(value);
            }
        }
        values.extend(cutter.end()?);
        let text = |value| match value {
            CutValue::Whole(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            CutValue::TooLarge => "too large".to_owned(),
        };
        Ok(values.into_iter().map(text).collect())
    }

    #[test]
    fn values_of_a_stream_and_items_of_an_array_are_the_same_however_they_arrive() {
        let values = [
            r#"{"a":[1,{"b":"]}\""}]}"#,
            "-1.5e3",
            "true",
            r#""a\\""#,
            r#"[1, [2]]"#,
            "null",
        ];
        let stream = format!("{}\n", values.join("\n"));
        let array = format!(" [ {} ]\n", values.join(" , "));
        for part in [1, 2, 3, 7, 1000] {
            assert_eq!(cut(&stream, part).unwrap(), values);
            assert_eq!(cut(&array, part).unwrap(), values);
            assert_eq!(cut(r#"{"a":1}{"a":2}3"#, part).unwrap().len(), 3);
            for empty in ["", " \n", "[]", "[ ]\n"] {
                assert_eq!(cut(empty, part).unwrap().len(), 0, "{empty}");
            }
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        let unexpected = |byte, at| JsonCutError::Unexpected { byte, at };
        assert_eq!(cut("1 , 2", 9), Err(unexpected(b',', 2)));
        assert_eq!(cut("[1] 2", 9), Err(unexpected(b'2', 4)));
        assert_eq!(cut("[1 2]", 9), Err(unexpected(b'2', 3)));
        assert_eq!(cut("[1,]", 9), Err(unexpected(b']', 3)));
        for cut_off in ["[1", "[1,", "[", "{\"a\"", "\"a"] {
            let error = cut(cut_off, 9).unwrap_err();
            assert!(
                matches!(error, JsonCutError::Incomplete { .. }),
                "{cut_off}"
            );
        }
        for invalid in ["{a}", "nul ", "01 ", "[{]}]", "1}"] {
            assert!(cut(invalid, 9).is_err(), "{invalid}");
        }
        let text = cut("x", 1).unwrap_err().to_string();
        assert!(text.starts_with("the value that ends at byte 1"), "{text}");
    }

    #[test]
    fn a_value_that_is_too_large_is_passed_over() {
        let large = format!("\"{}\" 2", "x".repeat(MAX_DISPATCH_BODY - 1));
        assert_eq!(cut(&large, 1 << 16).unwrap(), ["too large", "2"]);
        let whole = format!("\"{}\" 2", "x".repeat(MAX_DISPATCH_BODY - 2));
        assert_eq!(cut(&whole, 1 << 16).unwrap()[0].len(), MAX_DISPATCH_BODY);
    }
}
