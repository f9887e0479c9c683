//! Reading either encoding, value by value, without a tree.
//!
//! A message is read by one function for both encodings and for both forms of a structure: a map of names, in any
//! order, or an array in the order in which the protocol declares its fields. Names that nobody knows are
//! passed over, however deep they are up to [`MAX_DEPTH`]; of names that come twice the last counts; `null` is as good as
//! nothing where something is optional.

use std::borrow::Cow;

use bytes::Bytes;

use super::DecodeError;
use crate::Text;

/// How deep values may lie in each other.
pub(super) const MAX_DEPTH: u8 = 128;

/// Why something cannot be read. Building one costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParseError {
    what: &'static str,
    field: &'static str,
    at: usize,
}

impl ParseError {
    #[cold]
    pub(super) const fn new(what: &'static str, at: usize) -> Self {
        Self {
            what,
            field: "",
            at,
        }
    }

    /// The innermost name stays.
    #[cold]
    pub(super) const fn of(mut self, field: &'static str) -> Self {
        if self.field.is_empty() {
            self.field = field;
        }
        self
    }

    #[cold]
    pub(super) const fn missing(field: &'static str) -> Self {
        Self {
            what: "missing",
            field,
            at: 0,
        }
    }
}

impl From<ParseError> for DecodeError {
    fn from(ParseError { what, field, at }: ParseError) -> Self {
        Self(match (field, what) {
            (field, "missing") => format!("missing field {field}"),
            ("", what) => format!("{what} at byte {at}"),
            (field, what) => format!("{what} at byte {at}, in {field}"),
        })
    }
}

pub(super) type ParseResult<T> = Result<T, ParseError>;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueShape {
    Null,
    Bool,
    Number,
    Text,
    Bytes,
    Map,
    Seq,
}

/// One of the encodings.
pub(super) trait ValueSource<'a>: Sized {
    /// What comes next.
    fn shape(&mut self) -> ParseResult<ValueShape>;
    /// Takes a `null`, if that is what comes.
    fn null(&mut self) -> ParseResult<bool>;
    /// Takes a truth value.
    fn bool(&mut self) -> ParseResult<bool>;
    /// Takes an integer that is not negative.
    fn u64(&mut self) -> ParseResult<u64>;
    /// Takes a number.
    fn f32(&mut self) -> ParseResult<f32>;
    /// Takes a text.
    fn text(&mut self) -> ParseResult<Cow<'a, str>>;
    /// Takes bytes, or the base64 of some.
    fn data(&mut self, frame: &Bytes) -> ParseResult<Bytes>;
    /// Takes whatever comes.
    fn skip(&mut self) -> ParseResult<()>;
    /// Takes whatever comes, as a tree.
    fn value(&mut self) -> ParseResult<serde_json::Value>;
    /// Takes a map; `each` takes the value of each key.
    fn map(&mut self, each: impl FnMut(&str, &mut Self) -> ParseResult<()>) -> ParseResult<()>;
    /// Takes an array; `each` takes each of its values.
    fn seq(&mut self, each: impl FnMut(usize, &mut Self) -> ParseResult<()>) -> ParseResult<()>;
    /// Where this is, in bytes.
    fn at(&self) -> usize;

    /// Takes a structure: `each` takes the value of each of `fields`, known by its index.
    #[inline]
    fn fields<const N: usize>(
        &mut self,
        fields: &'static [&'static str; N],
        mut each: impl FnMut(usize, &mut Self) -> ParseResult<()>,
    ) -> ParseResult<()> {
        if self.shape()? == ValueShape::Seq {
            return self.seq(|index, source| match fields.get(index) {
                Some(field) => each(index, source).map_err(|fault| fault.of(field)),
                None => source.skip(),
            });
        }
        // Who writes the fields in their order is read without a search.
        let mut next = 0;
        self.map(|key, source| {
            let index = match fields.get(next) {
                Some(field) if *field == key => Some(next),
                _ => fields.iter().position(|field| *field == key),
            };
            let Some(index) = index else {
                return source.skip();
            };
            next = index + 1;
            each(index, source).map_err(|fault| fault.of(fields[index]))
        })
    }

    /// Takes what may be missing.
    #[inline]
    fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> ParseResult<T>,
    ) -> ParseResult<Option<T>> {
        if self.null()? {
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// Takes an integer that fits.
    #[inline]
    fn uint<T: TryFrom<u64>>(&mut self) -> ParseResult<T> {
        let at = self.at();
        let number = self.u64()?;
        T::try_from(number).map_err(|_| ParseError::new("number out of range", at))
    }

    /// Takes a text of one's own.
    fn string(&mut self) -> ParseResult<String> {
        self.text().map(Cow::into_owned)
    }

    /// Takes a text as a slice of the frame, where it stands there as it is.
    #[inline]
    fn shared(&mut self, frame: &Bytes) -> ParseResult<Text> {
        let at = self.at();
        match self.text()? {
            Cow::Borrowed(text) => slice_of(frame, text.as_bytes())
                .and_then(|bytes| Text::try_from(bytes).ok())
                .ok_or(ParseError::new("text is not UTF-8", at)),
            Cow::Owned(text) => Ok(text.into()),
        }
    }

    /// Takes an array of texts.
    fn strings(&mut self) -> ParseResult<Vec<String>> {
        let mut out = Vec::new();
        self.seq(|_, source| {
            out.push(source.string()?);
            Ok(())
        })?;
        Ok(out)
    }

    /// Takes a map of texts; `null` is as good as an empty one.
    fn pairs(&mut self) -> ParseResult<std::collections::BTreeMap<String, String>> {
        let mut out = std::collections::BTreeMap::new();
        if self.null()? {
            return Ok(out);
        }
        self.map(|key, source| {
            out.insert(key.to_owned(), source.string()?);
            Ok(())
        })?;
        Ok(out)
    }
}

/// The part of a frame that `part` is, without copying it.
pub(super) fn slice_of(frame: &Bytes, part: &[u8]) -> Option<Bytes> {
    if part.is_empty() {
        return Some(Bytes::new());
    }
    let start = (part.as_ptr() as usize).checked_sub(frame.as_ptr() as usize)?;
    let end = start.checked_add(part.len())?;
    (end <= frame.len()).then(|| frame.slice(start..end))
}

/// The bytes that a base64 text stands for.
pub(super) fn from_base64(text: &[u8], at: usize) -> ParseResult<Bytes> {
    if text.is_empty() {
        return Ok(Bytes::new());
    }
    base64_simd::STANDARD
        .decode_to_vec(text)
        .map(Bytes::from)
        .map_err(|_| ParseError::new("invalid base64", at))
}
