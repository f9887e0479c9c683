//! Parsers of single values.

use std::str::FromStr;

/// A header field, typed as `name=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderField {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for HeaderField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some(("", _)) => Err("the name before `=` is empty".to_owned()),
            Some((name, value)) => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            None => Err("expected name=value".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_split_at_its_first_equals_sign() {
        let field: HeaderField = "query=a=b".parse().unwrap();
        assert_eq!(
            (field.name.as_str(), field.value.as_str()),
            ("query", "a=b")
        );
        assert!("=x".parse::<HeaderField>().is_err());
        assert!("x".parse::<HeaderField>().is_err());
    }
}
