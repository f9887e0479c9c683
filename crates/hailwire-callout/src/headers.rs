//! The fields of a request or response, in the order in which they came.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap as _};

/// Header fields. A name may occur several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    fields: Vec<(String, Vec<String>)>,
}

impl Headers {
    /// From names and values. Those of one name, whatever its case, are put together.
    #[must_use]
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut headers = Self::default();
        for (name, value) in fields {
            let same = |(known, _): &&mut (String, Vec<String>)| known.eq_ignore_ascii_case(name);
            match headers.fields.iter_mut().find(same) {
                Some((_, values)) => values.push(value.to_owned()),
                None => headers
                    .fields
                    .push((name.to_owned(), vec![value.to_owned()])),
            }
        }
        headers
    }

    /// Every value with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields
            .iter()
            .flat_map(|(name, values)| values.iter().map(move |v| (name.as_str(), v.as_str())))
    }

    /// The first value of a name, whatever its case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    /// Every value of a name, whatever its case.
    pub fn get_all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// How many names there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, values) in &self.fields {
            map.serialize_entry(name, values)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> de::Visitor<'de> for Map {
            type Value = Headers;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of names to lists of values")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Headers { fields })
            }
        }
        deserializer.deserialize_map(Map)
    }
}
