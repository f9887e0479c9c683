//! Parsers of single values.

use std::{str::FromStr, time::Duration};

/// `10m`, `1h30m`, `250ms`: a number with its unit, or several in a row.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) => Ok(duration),
        Err(_) if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() => {
            Err(format!("a unit is missing: {text}s or {text}ms"))
        }
        Err(_) => Err("expected for example 250ms, 10s, 5m or 1h30m".to_owned()),
    }
}

/// A header field, typed as `name=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for Field {
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
    fn durations_are_numbers_with_units() {
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn a_bare_number_is_refused_with_the_unit_it_lacks() {
        assert_eq!(
            duration("10"),
            Err("a unit is missing: 10s or 10ms".to_owned())
        );
        for bad in ["", "-1s", "soon", "5 fortnights"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_field_is_split_at_its_first_equals_sign() {
        let field: Field = "query=a=b".parse().unwrap();
        assert_eq!(
            (field.name.as_str(), field.value.as_str()),
            ("query", "a=b")
        );
        assert!("=x".parse::<Field>().is_err());
        assert!("x".parse::<Field>().is_err());
    }
}
