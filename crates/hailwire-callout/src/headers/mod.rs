//! The fields of a request or response, kept as they travel.
//!
//! They are one stretch of MessagePack, a map of names to arrays of values, within the bytes of the event that they came
//! in. Nothing is looked up or copied before somebody asks; a name is found by reading past those before it,
//! which for the few dozen that a request has beats a hash. What is kept has been checked once, when it was built
//! or read: every text is UTF-8, and no name occurs twice, whatever its case.
//!
//! A single short field that somebody built has no event to lie in, and lies in the [`Headers`] themselves ([`short`]).

mod inline_field;
mod writer;

use std::iter;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use inline_field::InlineField;
pub(crate) use writer::{DuplicateFilter, HeaderWriter, has_twice, write};

/// Header fields. A name may have several values.
///
/// A clone shares the bytes.
#[derive(Clone)]
pub struct Headers(HeaderStorage);

#[derive(Clone)]
enum HeaderStorage {
    /// In the bytes of an event, or in bytes of their own.
    Within(Bytes, MapExtent),
    /// Here: one field.
    Short(InlineField),
}

/// Where headers lie, and how many they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapExtent {
    /// Where the map begins.
    pub(crate) start: u32,
    /// Where it ends.
    pub(crate) end: u32,
    /// Names in it.
    pub(crate) names: u32,
    /// Values of all of them.
    pub(crate) values: u32,
}

impl Default for Headers {
    fn default() -> Self {
        Self::within(Bytes::new(), MapExtent::default())
    }
}

impl Headers {
    /// From names and values. Those of one name, whatever its case, are put together.
    ///
    /// A single one of a few dozen bytes allocates nothing.
    #[must_use]
    #[inline]
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut fields = fields.into_iter();
        if fields.size_hint().1 != Some(1) {
            return Self::several(fields);
        }
        match (fields.next(), fields.next()) {
            (None, _) => Self::default(),
            (Some(only), None) => Self::one(only),
            // The hint was wrong.
            (Some(first), Some(second)) => Self::several([first, second].into_iter().chain(fields)),
        }
    }

    fn one(field: (&str, &str)) -> Self {
        match InlineField::new(field.0.as_bytes(), field.1.as_bytes()) {
            Some(short) => Self(HeaderStorage::Short(short)),
            None => Self::several(iter::once(field)),
        }
    }

    fn several<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut out = Vec::with_capacity(8 + 48 * fields.size_hint().0);
        let at = write(fields, &mut out);
        Self::within(out.into(), at)
    }

    /// Those that lie within some bytes, which were checked.
    pub(crate) const fn within(arena: Bytes, at: MapExtent) -> Self {
        Self(HeaderStorage::Within(arena, at))
    }

    /// The bytes of the event that these lie in.
    #[inline]
    pub(crate) const fn arena(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match &self.0 {
            HeaderStorage::Within(arena, _) => arena,
            HeaderStorage::Short(_) => &NONE,
        }
    }

    /// The map, as MessagePack.
    #[inline]
    pub(crate) fn packed(&self) -> &[u8] {
        let map = match &self.0 {
            HeaderStorage::Within(arena, at) => arena.get(at.start as usize..at.end as usize),
            HeaderStorage::Short(short) => Some(short.packed()),
        };
        match map {
            Some(map) if !map.is_empty() => map,
            _ => &[0x80],
        }
    }

    /// Every value with its name.
    #[must_use]
    pub fn iter(&self) -> HeaderIter<'_> {
        let mut rest = self.packed();
        map_length(&mut rest);
        HeaderIter {
            left: self.iter_len(),
            name: &[],
            values: HeaderValues { left: 0, rest },
        }
    }

    /// Every name with its values.
    pub fn names(&self) -> impl Iterator<Item = (&str, HeaderValues<'_>)> {
        self.packed_names()
            .map(|(name, values)| (text(name), values))
    }

    /// The first value of a name, whatever its case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    /// Every value of a name, whatever its case.
    pub fn get_all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let name = name.as_bytes();
        self.packed_names()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map_or(HeaderValues::NONE, |(_, values)| values)
    }

    /// How many names there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.0 {
            HeaderStorage::Within(_, at) => at.names as usize,
            HeaderStorage::Short(_) => 1,
        }
    }

    /// Whether there is no field.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many values there are, of all names.
    pub(crate) const fn iter_len(&self) -> usize {
        match &self.0 {
            HeaderStorage::Within(_, at) => at.values as usize,
            HeaderStorage::Short(_) => 1,
        }
    }

    /// The names that have values.
    fn fields(&self) -> impl Iterator<Item = (&[u8], HeaderValues<'_>)> {
        self.packed_names().filter(|(_, values)| values.len() > 0)
    }

    pub(crate) fn packed_names(&self) -> impl Iterator<Item = (&[u8], HeaderValues<'_>)> {
        groups(self.packed())
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        if self.packed() == other.packed() {
            return true;
        }
        // A name without a value is no field.
        let (mut mine, mut theirs) = (self.fields(), other.fields());
        loop {
            let same = match (mine.next(), theirs.next()) {
                (None, None) => return true,
                (Some(mine), Some(theirs)) => mine.0 == theirs.0 && mine.1.eq(theirs.1),
                _ => false,
            };
            if !same {
                return false;
            }
        }
    }
}

impl Eq for Headers {}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// As a map of names to lists of values.
impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.names())
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = (&'a str, &'a str);
    type IntoIter = HeaderIter<'a>;

    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

/// Every value with its name.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    left: usize,
    name: &'a [u8],
    /// Those of this name; behind them the other names.
    values: HeaderValues<'a>,
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        while self.values.left == 0 {
            self.name = take_text(&mut self.values.rest);
            self.values.left = seq_length(&mut self.values.rest);
            if self.values.rest.is_empty() {
                return None;
            }
        }
        Some((text(self.name), self.values.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }

    fn count(self) -> usize {
        self.left
    }
}

impl ExactSizeIterator for HeaderIter<'_> {}

/// The values of one name.
#[derive(Clone, Debug)]
pub struct HeaderValues<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> HeaderValues<'a> {
    const NONE: Self = Self { left: 0, rest: &[] };

    /// The next, as the bytes that were checked.
    pub(crate) fn next_bytes(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        Some(take_text(&mut self.rest))
    }
}

impl<'a> Iterator for HeaderValues<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.next_bytes().map(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for HeaderValues<'_> {}

impl Serialize for HeaderValues<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.clone())
    }
}

/// The names of a checked map with their values.
fn groups(mut rest: &[u8]) -> impl Iterator<Item = (&[u8], HeaderValues<'_>)> {
    let mut left = map_length(&mut rest);
    iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let name = take_text(&mut rest);
        let count = seq_length(&mut rest);
        let values = HeaderValues { left: count, rest };
        for _ in 0..count {
            take_text(&mut rest);
        }
        Some((name, values))
    })
}

/// Takes a text. What was checked always has one.
fn take_text<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let length = match take_marker(rest) {
        marker @ 0xa0..=0xbf => usize::from(marker & 0x1f),
        0xd9 => big_endian::<1>(rest),
        0xda => big_endian::<2>(rest),
        _ => big_endian::<4>(rest),
    };
    let (taken, left) = rest.split_at_checked(length).unwrap_or_default();
    *rest = left;
    taken
}

fn map_length(rest: &mut &[u8]) -> usize {
    match take_marker(rest) {
        marker @ 0x80..=0x8f => usize::from(marker & 0x0f),
        0xde => big_endian::<2>(rest),
        _ => big_endian::<4>(rest),
    }
}

fn seq_length(rest: &mut &[u8]) -> usize {
    match take_marker(rest) {
        marker @ 0x90..=0x9f => usize::from(marker & 0x0f),
        0xdc => big_endian::<2>(rest),
        _ => big_endian::<4>(rest),
    }
}

fn take_marker(rest: &mut &[u8]) -> u8 {
    let (marker, left) = rest.split_first().unwrap_or((&0x80, &[]));
    *rest = left;
    *marker
}

fn big_endian<const N: usize>(rest: &mut &[u8]) -> usize {
    let (bytes, left) = rest.split_at_checked(N).unwrap_or_default();
    *rest = left;
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// What was checked to be UTF-8, and is looked at again for the type's sake.
pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// An offset within an event. None is larger than a frame, which has 24 bits of length.
pub(crate) fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_value_is_no_field() {
        let read = |map: &'static [u8], names, values| {
            let end = map.len() as u32;
            let at = MapExtent {
                start: 0,
                end,
                names,
                values,
            };
            Headers::within(Bytes::from_static(map), at)
        };
        let with = read(b"\x82\xa1a\x91\xa1b\xa1c\x90", 2, 1);
        let without = read(b"\x81\xa1a\x91\xa1b", 1, 1);
        assert_eq!(with, without);
        assert_eq!(without, with);
        assert_ne!(with, Headers::new([("a", "c")]));
        assert_ne!(with, Headers::default());
    }

    #[test]
    fn names_are_found_whatever_their_case_and_values_of_one_stay_together() {
        let headers = Headers::new([
            ("Host", "a"),
            ("Set-Cookie", "1"),
            ("accept", ""),
            ("set-cookie", "2"),
            ("SET-COOKIE", "3"),
        ]);
        assert_eq!(headers.len(), 3);
        assert_eq!(headers.get("host"), Some("a"));
        assert_eq!(headers.get("ACCEPT"), Some(""));
        assert_eq!(headers.get("hos"), None);
        let cookies: Vec<_> = headers.get_all("set-cookie").collect();
        assert_eq!(cookies, ["1", "2", "3"]);
        let names: Vec<_> = headers.names().map(|(name, _)| name).collect();
        assert_eq!(names, ["Host", "Set-Cookie", "accept"]);
    }

    #[test]
    fn none_are_none() {
        for headers in [Headers::default(), Headers::new([])] {
            assert!(headers.is_empty());
            assert_eq!(headers.iter().count(), 0);
            assert_eq!(headers.get("a"), None);
            assert_eq!(headers, Headers::default());
        }
    }

    #[test]
    fn a_single_field_is_the_same_wherever_it_lies() {
        for (name, value) in [("a", ""), ("content-type", "application/json")] {
            let (short, long) = (
                Headers::new([(name, value)]),
                Headers::several(iter::once((name, value))),
            );
            assert!(
                matches!(short.0, HeaderStorage::Short(_))
                    && matches!(long.0, HeaderStorage::Within(..))
            );
            assert_eq!(short, long);
            assert_eq!(short.packed(), long.packed());
            assert_eq!(
                (short.len(), short.iter_len(), short.iter().count()),
                (1, 1, 1)
            );
            assert_eq!(short.get(&name.to_uppercase()), Some(value));
        }
        for length in 0..80 {
            let value = "v".repeat(length);
            let headers = Headers::new([("name", value.as_str())]);
            assert_eq!(headers.get("name"), Some(value.as_str()), "{length}");
            assert_eq!(
                headers,
                Headers::several(iter::once(("name", value.as_str())))
            );
        }
    }

    #[test]
    fn a_hint_of_one_that_is_wrong_loses_nothing() {
        struct Lying(u8);
        impl Iterator for Lying {
            type Item = (&'static str, &'static str);
            fn next(&mut self) -> Option<Self::Item> {
                self.0 = self.0.checked_sub(1)?;
                Some(("a", "b"))
            }
            fn size_hint(&self) -> (usize, Option<usize>) {
                (0, Some(1))
            }
        }
        for count in 0..4 {
            assert_eq!(
                Headers::new(Lying(count)).iter().count(),
                usize::from(count)
            );
        }
    }

    #[test]
    fn very_many_and_very_long_ones_are_kept() {
        let long = "v".repeat(70_000);
        let names: Vec<String> = (0..70_000).map(|n| format!("n{n}")).collect();
        let fields = names.iter().map(|name| (name.as_str(), "x"));
        let headers = Headers::new(fields.chain([("long", long.as_str())]));
        assert_eq!(headers.len(), 70_001);
        assert_eq!(headers.get("n69999"), Some("x"));
        assert_eq!(headers.get("long").map(str::len), Some(70_000));
        let same = Headers::new((0..70_000).map(|_| ("a", "b")));
        assert_eq!((same.len(), same.get_all("A").count()), (1, 70_000));
        // A hint that is wrong costs nothing but a move.
        let lying = Headers::new(
            names
                .iter()
                .take(40)
                .map(|n| (n.as_str(), ""))
                .filter(|_| true),
        );
        assert_eq!(lying.len(), 40);
    }
}
