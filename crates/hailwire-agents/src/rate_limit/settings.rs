//! The settings of the rate limiter, from flags, from a KDL file, or pushed by a host.
//!
//! ```kdl
//! limit "100/s burst 20 per client-ip"
//! limit "1000/m per header:x-api-key" name="plan"
//! keys 100000
//! status 429
//! headers #true
//! configure "deny"
//! ```

use std::{path::Path, str::FromStr};

use hailwire_kdl::{FileError, KdlIdentifier, KdlNode, Mistake, Seen};
use serde_json::Value;
use thiserror::Error;

use super::{Limit, LimitError};

/// What becomes of limits that a host pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// They are refused: the operator's hold, whoever may connect.
    Deny,
    /// They are counted besides the operator's, which stay.
    Tighten,
    /// They take the place of those that hold.
    Allow,
}

impl Pushed {
    /// All there are, with their names.
    pub const NAMES: [(&str, Self); 3] = [
        ("deny", Self::Deny),
        ("tighten", Self::Tighten),
        ("allow", Self::Allow),
    ];
}

/// The name of nothing that can become of pushed limits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is none of deny, tighten and allow")]
pub struct PushedError(String);

impl FromStr for Pushed {
    type Err = PushedError;

    fn from_str(text: &str) -> Result<Self, PushedError> {
        let named = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        named
            .map(|(_, pushed)| pushed)
            .ok_or_else(|| PushedError(text.to_owned()))
    }
}

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
    /// What becomes of limits that a host pushes. Default refused, or allowed where the operator set no limits.
    pub configure: Option<Pushed>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            keys: 100_000,
            status: 429,
            headers: true,
            configure: None,
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file cannot be read, or says something wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// A limit cannot be read.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A host may not set limits.
    #[error(
        "limits are the operator's to set: start the agent with `configure \"tighten\"` or `configure \"allow\"` to let hosts push them"
    )]
    Denied,
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

    /// From a KDL file.
    ///
    /// # Errors
    ///
    /// [`SettingsError`]; nothing unknown is passed over.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        Self::parse(&hailwire_kdl::read(path)?, path)
    }

    /// From a KDL text; `path` is only for messages.
    ///
    /// # Errors
    ///
    /// As [`Settings::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let read = || {
            let mut settings = Self::default();
            let mut seen = Seen::default();
            for node in hailwire_kdl::document(text)?.nodes() {
                settings.node(node, &mut seen)?;
            }
            Ok(settings)
        };
        read()
            .map_err(|mistake: Mistake| mistake.in_file(text, path))?
            .checked()
    }

    fn node(&mut self, node: &KdlNode, seen: &mut Seen) -> Result<(), Mistake> {
        if node.name().value() != "limit" {
            seen.once(node)?;
        }
        match node.name().value() {
            "limit" => self.limits.push(limit(node)?),
            "keys" => self.keys = hailwire_kdl::number(node, 16..=10_000_000)? as usize,
            "status" => {
                self.status = u16::try_from(hailwire_kdl::number(node, 400..=599)?).unwrap_or(429);
            }
            "headers" => self.headers = hailwire_kdl::yes(node)?,
            "configure" => self.configure = Some(hailwire_kdl::single(node)?),
            _ => {
                return Err(hailwire_kdl::unknown(
                    node,
                    "",
                    &["limit", "keys", "status", "headers", "configure"],
                ));
            }
        }
        Ok(())
    }

    /// These, changed as a host wants: `Ok(None)` where it names no limits, or those that `now` hold. These settings are the
    /// operator's, whatever was pushed before.
    ///
    /// # Errors
    ///
    /// [`SettingsError`].
    pub(super) fn pushed(
        &self,
        config: &Value,
        now: &[Limit],
    ) -> Result<Option<Self>, SettingsError> {
        let Some(limits) = config.get("limits") else {
            return Ok(None);
        };
        let wrong = || LimitError::Rate(limits.to_string());
        let texts = limits.as_array().ok_or_else(wrong)?;
        let texts: Option<Vec<&str>> = texts.iter().map(Value::as_str).collect();
        let limits = Self::of(texts.ok_or_else(wrong)?)?.limits;
        if limits == now {
            return Ok(None);
        }
        let none = self.limits.is_empty();
        let limits = match self.configure {
            Some(Pushed::Allow) => limits,
            None if none => limits,
            Some(Pushed::Tighten) => {
                let more = limits
                    .into_iter()
                    .filter(|limit| !self.limits.contains(limit));
                self.limits.iter().cloned().chain(more).collect()
            }
            Some(Pushed::Deny) | None => return Err(SettingsError::Denied),
        };
        let settings = Self {
            limits,
            ..self.clone()
        };
        settings.checked().map(Some)
    }

    fn checked(self) -> Result<Self, SettingsError> {
        match self.limits.len() {
            0..=MAX_LIMITS => Ok(self),
            many => Err(SettingsError::TooMany(many)),
        }
    }
}

/// `limit "100/s per client-ip" name="plan"`.
fn limit(node: &KdlNode) -> Result<Limit, Mistake> {
    let mut limit: Option<Limit> = None;
    let mut name = None;
    for entry in node.entries() {
        match entry.name().map(KdlIdentifier::value) {
            None if limit.is_none() => limit = Some(hailwire_kdl::value(node, entry)?),
            Some("name") => {
                let text = hailwire_kdl::text(node, entry)?;
                let plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
                if text.is_empty() || !text.bytes().all(plain) {
                    return Err(Mistake::in_value(
                        entry,
                        format!("\"{text}\" is no name for a limit"),
                    ));
                }
                name = Some(text.to_owned());
            }
            _ => return Err(Mistake::in_value(entry, "limit takes a text and a name")),
        }
    }
    if node.children().is_some() {
        return Err(Mistake::of(node, "limit has no braces"));
    }
    let mut limit = limit
        .ok_or_else(|| Mistake::of(node, "limit needs a text like \"100/s per client-ip\""))?;
    if let Some(name) = name {
        limit.name = name;
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_and_nothing_unknown_is_passed_over() {
        let text = "limit \"100/s burst 20 per client-ip\"\nlimit \"5/m\" name=\"login\"\nkeys 1000\nstatus 503\nheaders #false\nconfigure \"tighten\"\n";
        let settings = Settings::parse(text, Path::new("limits.kdl")).unwrap();
        assert_eq!((settings.limits.len(), settings.keys), (2, 1000));
        assert_eq!((settings.status, settings.headers), (503, false));
        assert_eq!(settings.limits[1].name, "login");
        assert_eq!(settings.configure, Some(Pushed::Tighten));
        for (text, message) in [
            ("keys 1000\n  limit \"1/s per moon\"", ":2:"),
            ("limits \"1/s\"", ":1:1: "),
            ("limit \"1/s\" nam=\"x\"", ":1:13: limit takes"),
            ("limit \"1/s\" \"2/s\"", ":1:13: limit takes"),
            ("limit", ":1:1: limit needs"),
            ("keys 1000\nkeys 1000", ":2:1"),
            ("status 200", ":1:"),
            ("configure \"perhaps\"", ":1:"),
            ("keys {", ":1:"),
        ] {
            let error = Settings::parse(text, Path::new(""))
                .unwrap_err()
                .to_string();
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
