//! The settings of the rate limiter, from flags, from a KDL file, or pushed by a host.
//!
//! ```kdl
//! limit "100/s burst 20 per client-ip"
//! limit "1000/m per header:x-api-key" name="plan"
//! keys 100000
//! status 429
//! headers #true
//! ```

use kdl::{KdlDocument, KdlError, KdlNode, KdlValue};
use serde_json::Value;
use thiserror::Error;

use super::{Limit, LimitError};

/// What the rate limiter does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The limits, all of which a request has to pass. At most 32.
    pub limits: Vec<Limit>,
    /// Keys that each limit counts at once. Default 100,000; see the module for what happens beyond.
    pub keys: usize,
    /// The status of a refusal. Default 429.
    pub status: u16,
    /// Whether responses carry `ratelimit` and `ratelimit-policy`. Default yes.
    pub headers: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            keys: 100_000,
            status: 429,
            headers: true,
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file is no KDL.
    #[error("line {line}, column {column}: {what}")]
    Kdl {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// A limit cannot be read.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// More than 32 limits.
    #[error("{0} limits: at most 32 are counted")]
    TooMany(usize),
}

/// Limits of one agent.
const MAX_LIMITS: usize = 32;

impl Settings {
    /// From limits as they are written, and else the defaults.
    ///
    /// # Errors
    ///
    /// [`SettingsError`].
    pub fn of<'a>(limits: impl IntoIterator<Item = &'a str>) -> Result<Self, SettingsError> {
        let limits = limits
            .into_iter()
            .map(str::parse)
            .collect::<Result<Vec<Limit>, _>>()?;
        Self {
            limits,
            ..Self::default()
        }
        .checked()
    }

    /// From a KDL text.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]; nothing unknown is passed over.
    pub fn from_kdl(text: &str) -> Result<Self, SettingsError> {
        let document: KdlDocument = text.parse().map_err(|error: KdlError| {
            let first = error.diagnostics.first();
            let what = first.and_then(|one| one.message.clone());
            let offset = first.map_or(0, |one| one.span.offset());
            at(
                text,
                offset,
                what.unwrap_or_else(|| "this is no KDL".to_owned()),
            )
        })?;
        let mut settings = Self::default();
        for node in document.nodes() {
            let wrong = |what: String| at(text, node.span().offset(), what);
            settings.node(node).map_err(wrong)?;
        }
        settings.checked()
    }

    fn node(&mut self, node: &KdlNode) -> Result<(), String> {
        let name = node.name().value();
        let value = node.get(0);
        let number = || value.and_then(KdlValue::as_integer);
        match name {
            "limit" => {
                let text = value.and_then(KdlValue::as_string);
                let text = text.ok_or("limit needs a text like \"100/s per client-ip\"")?;
                let mut limit: Limit = text.parse().map_err(|e: LimitError| e.to_string())?;
                if let Some(name) = node.get("name").and_then(KdlValue::as_string) {
                    let plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
                    if name.is_empty() || !name.bytes().all(plain) {
                        return Err(format!("\"{name}\" is no name for a limit"));
                    }
                    name.clone_into(&mut limit.name);
                }
                self.limits.push(limit);
            }
            "keys" => {
                let keys = number().and_then(|n| usize::try_from(n).ok());
                self.keys = keys
                    .filter(|n| (16..=10_000_000).contains(n))
                    .ok_or("keys needs a number from 16 to 10,000,000")?;
            }
            "status" => {
                let status = number().and_then(|n| u16::try_from(n).ok());
                self.status = status
                    .filter(|n| (400..=599).contains(n))
                    .ok_or("status needs a number from 400 to 599")?;
            }
            "headers" => {
                let flag = value.and_then(KdlValue::as_bool);
                self.headers = flag.ok_or("headers needs #true or #false")?;
            }
            _ => {
                return Err(format!(
                    "there is no \"{name}\": limit, keys, status and headers are"
                ));
            }
        }
        let known = |entry: &&kdl::KdlEntry| match entry.name() {
            Some(property) => name != "limit" || property.value() != "name",
            None => false,
        };
        match node.entries().iter().find(known) {
            Some(entry) => Err(format!("{name} has no {entry}")),
            None if node.entries().iter().filter(|e| e.name().is_none()).count() > 1 => {
                Err(format!("{name} takes one value"))
            }
            None if node.children().is_some() => Err(format!("{name} has no children")),
            None => Ok(()),
        }
    }

    /// These, changed as a host wants: `Ok(None)` where it names no limits.
    ///
    /// # Errors
    ///
    /// [`SettingsError`].
    pub(super) fn pushed(&self, config: &Value) -> Result<Option<Self>, SettingsError> {
        let Some(limits) = config.get("limits") else {
            return Ok(None);
        };
        let wrong = || LimitError::Rate(limits.to_string());
        let texts = limits.as_array().ok_or_else(wrong)?;
        let texts: Option<Vec<&str>> = texts.iter().map(Value::as_str).collect();
        let limits = Self::of(texts.ok_or_else(wrong)?)?.limits;
        Ok(Some(Self {
            limits,
            ..self.clone()
        }))
    }

    fn checked(self) -> Result<Self, SettingsError> {
        match self.limits.len() {
            0..=MAX_LIMITS => Ok(self),
            many => Err(SettingsError::TooMany(many)),
        }
    }
}

fn at(text: &str, offset: usize, what: String) -> SettingsError {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    SettingsError::Kdl { line, column, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_and_nothing_unknown_is_passed_over() {
        let text = "limit \"100/s burst 20 per client-ip\"\nlimit \"5/m\" name=\"login\"\nkeys 1000\nstatus 503\nheaders #false\n";
        let settings = Settings::from_kdl(text).unwrap();
        assert_eq!((settings.limits.len(), settings.keys), (2, 1000));
        assert_eq!((settings.status, settings.headers), (503, false));
        assert_eq!(settings.limits[1].name, "login");
        for (text, message) in [
            (
                "keys 1000\n  limit \"1/s per moon\"",
                "line 2, column 3: \"moon\" cannot",
            ),
            ("limits \"1/s\"", "line 1, column 1: there is no \"limits\""),
            ("limit \"1/s\" nam=\"x\"", "line 1, column 1: limit has no"),
            ("limit \"1/s\" \"2/s\"", "line 1, column 1: limit takes one"),
            ("status 200", "line 1, column 1: status needs"),
            ("keys {", "line 1, column"),
        ] {
            let error = Settings::from_kdl(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn more_than_32_limits_are_refused() {
        assert!(Settings::of(["1/s"; 32]).is_ok());
        assert!(matches!(
            Settings::of(["1/s"; 33]),
            Err(SettingsError::TooMany(33))
        ));
    }
}
