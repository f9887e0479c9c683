//! Structures that are read from a map and from nothing else.
//!
//! What serde derives for a structure also reads a list, as the values of its fields in their order. On the wire a header is a map
//! (`spec/session.md`), and a list in its place is malformed.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A structure that came as a map.
pub(crate) struct MapOnly<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MapOnly<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = MapVisitor(PhantomData);
        deserializer.deserialize_map(visitor).map(Self)
    }
}

struct MapVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for MapVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Reads a field, for `#[serde(deserialize_with)]`.
pub(crate) fn one<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    MapOnly::deserialize(deserializer).map(|MapOnly(value)| value)
}

/// Reads a field that is a list of such structures.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let values = Vec::<MapOnly<T>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|MapOnly(value)| value).collect())
}

/// Reads a field that may be missing.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Option::<MapOnly<T>>::deserialize(deserializer)?;
    Ok(value.map(|MapOnly(value)| value))
}
