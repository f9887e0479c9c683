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

use hailwire_kdl::{FileError, KdlIdentifier, KdlNode, SeenNames, TextMistake};
use serde_json::Value;
use thiserror::Error;

use super::{RateLimit, RateLimitError};

/// What happens to limits that a host pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushPolicy {
    /// They are refused: only the operator's limits apply.
    Deny,
    /// They apply in addition to the operator's.
    Tighten,
    /// They replace the limits in force.
    Allow,
}

impl PushPolicy {
    /// All policies with their names.
    pub const NAMES: [(&str, Self); 3] = [
        ("deny", Self::Deny),
        ("tighten", Self::Tighten),
        ("allow", Self::Allow),
    ];
}

/// An unknown policy for pushed limits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{0}\" is not a valid policy; use deny, tighten or allow")]
pub struct PushPolicyError(String);

impl FromStr for PushPolicy {
    type Err = PushPolicyError;

    fn from_str(text: &str) -> Result<Self, PushPolicyError> {
        let named = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        named
            .map(|(_, pushed)| pushed)
            .ok_or_else(|| PushPolicyError(text.to_owned()))
    }
}

/// The settings of the rate limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitSettings {
    /// The limits; a request has to pass all of them. At most 32.
    pub limits: Vec<RateLimit>,
    /// Keys that each limit holds at once. Default 100,000; the module's documentation says what happens beyond.
    pub keys: usize,
    /// The status of a refusal. Default 429.
    pub status: u16,
    /// Whether responses carry `ratelimit` and `ratelimit-policy`. Default true.
    pub headers: bool,
    /// What happens to limits that a host pushes. By default they are refused, or allowed if the operator set no limits.
    pub configure: Option<PushPolicy>,
}

impl Default for RateLimitSettings {
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
pub enum RateLimitSettingsError {
    /// The file cannot be read or parsed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A limit cannot be parsed.
    #[error(transparent)]
    Limit(#[from] RateLimitError),
    /// The operator's settings do not let a host set limits.
    #[error(
        "hosts may not push limits; start the agent with `configure \"tighten\"` or `configure \"allow\"` to let them"
    )]
    Denied,
    /// More than 32 limits.
    #[error("too many limits: {0}, at most 32")]
    TooMany(usize),
}

/// Limits of one agent.
const MAX_LIMITS: usize = 32;

impl RateLimitSettings {
    /// Parses limits; all other settings have their defaults.
    ///
    /// # Errors
    ///
    /// [`RateLimitSettingsError`].
    pub fn of<'a>(
        limits: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, RateLimitSettingsError> {
        let limits = limits
            .into_iter()
            .map(str::parse)
            .collect::<Result<Vec<RateLimit>, _>>()?;
        Self {
            limits,
            ..Self::default()
        }
        .checked()
    }

    /// Reads a KDL file.
    ///
    /// # Errors
    ///
    /// [`RateLimitSettingsError`]; unknown settings are errors.
    pub fn load(path: &Path) -> Result<Self, RateLimitSettingsError> {
        Self::parse(&hailwire_kdl::read(path)?, path)
    }

    /// Parses KDL text; `path` is only used in messages.
    ///
    /// # Errors
    ///
    /// As [`RateLimitSettings::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, RateLimitSettingsError> {
        let read = || {
            let mut settings = Self::default();
            let mut seen = SeenNames::default();
            for node in hailwire_kdl::document(text)?.nodes() {
                settings.node(node, &mut seen)?;
            }
            Ok(settings)
        };
        read()
            .map_err(|mistake: TextMistake| mistake.in_file(text, path))?
            .checked()
    }

    fn node(&mut self, node: &KdlNode, seen: &mut SeenNames) -> Result<(), TextMistake> {
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

    /// These settings with the limits that a host pushes; `Ok(None)` if it names none, or the ones in force (`now`). `self`
    /// is what the operator configured, without earlier pushes.
    ///
    /// # Errors
    ///
    /// [`RateLimitSettingsError`].
    pub(super) fn pushed(
        &self,
        config: &Value,
        now: &[RateLimit],
    ) -> Result<Option<Self>, RateLimitSettingsError> {
        let Some(limits) = config.get("limits") else {
            return Ok(None);
        };
        let wrong = || RateLimitError::Rate(limits.to_string());
        let texts = limits.as_array().ok_or_else(wrong)?;
        let texts: Option<Vec<&str>> = texts.iter().map(Value::as_str).collect();
        let limits = Self::of(texts.ok_or_else(wrong)?)?.limits;
        if limits == now {
            return Ok(None);
        }
        let none = self.limits.is_empty();
        let limits = match self.configure {
            Some(PushPolicy::Allow) => limits,
            None if none => limits,
            Some(PushPolicy::Tighten) => {
                let more = limits
                    .into_iter()
                    .filter(|limit| !self.limits.contains(limit));
                self.limits.iter().cloned().chain(more).collect()
            }
            Some(PushPolicy::Deny) | None => return Err(RateLimitSettingsError::Denied),
        };
        let settings = Self {
            limits,
            ..self.clone()
        };
        settings.checked().map(Some)
    }

    fn checked(self) -> Result<Self, RateLimitSettingsError> {
        match self.limits.len() {
            0..=MAX_LIMITS => Ok(self),
            many => Err(RateLimitSettingsError::TooMany(many)),
        }
    }
}

/// `limit "100/s per client-ip" name="plan"`.
fn limit(node: &KdlNode) -> Result<RateLimit, TextMistake> {
    let mut limit: Option<RateLimit> = None;
    let mut name = None;
    for entry in node.entries() {
        match entry.name().map(KdlIdentifier::value) {
            None if limit.is_none() => limit = Some(hailwire_kdl::value(node, entry)?),
            Some("name") => {
                let text = hailwire_kdl::text(node, entry)?;
                let plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
                if text.is_empty() || !text.bytes().all(plain) {
                    return Err(TextMistake::in_value(
                        entry,
                        format!("\"{text}\" is not a valid name for a limit"),
                    ));
                }
                name = Some(text.to_owned());
            }
            _ => {
                return Err(TextMistake::in_value(
                    entry,
                    "limit takes one string and a name",
                ));
            }
        }
    }
    if node.children().is_some() {
        return Err(TextMistake::of(node, "limit has no children"));
    }
    let mut limit = limit.ok_or_else(|| {
        TextMistake::of(node, "limit needs a string like \"100/s per client-ip\"")
    })?;
    if let Some(name) = name {
        limit.name = name;
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_parsed_and_unknown_settings_are_errors() {
        let text = "limit \"100/s burst 20 per client-ip\"\nlimit \"5/m\" name=\"login\"\nkeys 1000\nstatus 503\nheaders #false\nconfigure \"tighten\"\n";
        let settings = RateLimitSettings::parse(text, Path::new("limits.kdl")).unwrap();
        assert_eq!((settings.limits.len(), settings.keys), (2, 1000));
        assert_eq!((settings.status, settings.headers), (503, false));
        assert_eq!(settings.limits[1].name, "login");
        assert_eq!(settings.configure, Some(PushPolicy::Tighten));
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
            let error = RateLimitSettings::parse(text, Path::new(""))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn more_than_32_limits_are_refused() {
        assert!(RateLimitSettings::of(["1/s"; 32]).is_ok());
        assert!(matches!(
            RateLimitSettings::of(["1/s"; 33]),
            Err(RateLimitSettingsError::TooMany(33))
        ));
    }
}
