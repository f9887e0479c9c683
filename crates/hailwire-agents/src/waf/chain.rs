//! Chains of rules, and the variables of a transaction as far as they are plain.
//!
//! A chain matches when each of its links does. Links that look at the request are *parts*: each matches when some value does,
//! whenever that comes. A link that looks at what the one before it found (`MATCHED_VAR`, `TX:1`, a
//! variable that the chain itself set from these) is judged at once, on that value: so each value goes with its own captures, where
//! ModSecurity keeps the last one's. All of this can be judged while a request comes; what counts all arguments or sums
//! up scores cannot, and is not understood.
//!
//! Transaction variables that are set once, by `SecAction` or as a default (`SecRule &TX:x "@eq 0" "…,setvar:'tx.x=5'"`), are
//! constants: they stand in for `%{tx.x}`, and a link on one of them is decided when the rules are read.

use std::{borrow::Cow, collections::BTreeMap};

use regex::bytes::Regex;

use super::{
    rules::Value,
    seclang::{Operator, simple_operator},
    transform::Transform,
};

/// Transaction variables that have one value, by their names in lower case.
#[derive(Clone, Debug, Default)]
pub(super) struct Constants {
    values: BTreeMap<String, String>,
    defaults: BTreeMap<String, String>,
    /// Those that change.
    variable: Vec<String>,
}

impl Constants {
    /// Learns what an action sets.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        if value.contains("%{") || value.starts_with(['+', '-']) {
            self.vary(name);
        } else {
            self.values
                .insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }

    /// Learns a default; the first one holds.
    pub(super) fn set_default(&mut self, name: &str, value: &str) {
        let defaults = &mut self.defaults;
        defaults
            .entry(name.to_ascii_lowercase())
            .or_insert_with(|| value.to_owned());
    }

    /// Learns that a rule sets it while a request goes on.
    pub(super) fn vary(&mut self, name: &str) {
        self.variable.push(name.to_ascii_lowercase());
    }

    /// Its value; a variable that changes is an error, one that nobody sets is none.
    pub(super) fn value(&self, name: &str) -> Result<Option<&str>, String> {
        let name = name.to_ascii_lowercase();
        if self.variable.contains(&name) {
            return Err(format!("variable TX: {name} changes"));
        }
        let value = self.values.get(&name).or_else(|| self.defaults.get(&name));
        Ok(value.map(String::as_str))
    }

    /// A text in which constants stand for their macros.
    pub(super) fn expand<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, name, after)) = next_macro(rest) {
            out.push_str(before);
            let lower = name.to_ascii_lowercase();
            let constant = lower
                .strip_prefix("tx.")
                .and_then(|name| self.value(name).ok()?);
            match constant {
                // One constant may be another.
                Some(value) if !value.contains("%{") => out.push_str(value),
                _ => out.push_str(&format!("%{{{name}}}")),
            }
            rest = after;
        }
        if out.is_empty() && rest == text {
            return Cow::Borrowed(text);
        }
        out.push_str(rest);
        Cow::Owned(out)
    }
}

/// What is before the first `%{…}`, its name, and what is after it.
fn next_macro(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("%{")?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// A text with macros that are known once a value matched.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Matched,
    MatchedName,
    Variable(String),
    Header(String),
}

impl Template {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, name, after)) = next_macro(rest) {
            pieces.push(Piece::Text(before.to_owned()));
            let lower = name.to_ascii_lowercase();
            pieces.push(match lower.as_str() {
                "matched_var" => Piece::Matched,
                "matched_var_name" => Piece::MatchedName,
                _ => match lower.split_once('.') {
                    Some(("tx", name)) => Piece::Variable(name.to_owned()),
                    Some(("request_headers", name)) => Piece::Header(name.to_owned()),
                    _ => return Err(format!("macro %{{{name}}}")),
                },
            });
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// Header fields that it needs.
    pub(super) fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Variables that it needs.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Variable(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The text; `None` where a variable is not set, or a header field not there.
    fn expand(&self, found: &Found<'_>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Matched => out.extend_from_slice(&found.matched),
                Piece::MatchedName => out.extend_from_slice(&found.name),
                Piece::Variable(name) => {
                    let (_, value) = found.variables.iter().find(|(own, _)| own == name)?;
                    out.extend_from_slice(value);
                }
                Piece::Header(name) => {
                    let (_, value) = found.headers.iter().find(|(own, _)| own == name)?;
                    out.extend_from_slice(value.as_bytes());
                }
            }
        }
        Some(out)
    }
}

/// What a link that follows looks at.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Matched,
    MatchedName,
    Variable(String),
    Variables(Regex),
}

/// How a link that follows judges.
#[derive(Clone, Debug)]
pub(super) enum Judge {
    Fixed(Operator),
    /// An operator's name, and what it is made with.
    Made(String, Template),
}

/// A link that looks at what the one before it found.
#[derive(Clone, Debug)]
pub(super) struct Then {
    pub(super) sources: Vec<Source>,
    pub(super) transforms: Vec<Transform>,
    pub(super) judge: Judge,
    pub(super) negated: bool,
    pub(super) capture: bool,
    pub(super) sets: Vec<(Template, Template)>,
}

/// What is known after a link matched.
struct Found<'a> {
    name: Cow<'a, [u8]>,
    matched: Vec<u8>,
    variables: Vec<(String, Vec<u8>)>,
    headers: &'a [(String, String)],
}

/// Whether the links that follow match, after an operator did on these bytes of a value.
pub(super) fn follow(
    links: &[Then],
    (operator, negated, capture): (&Operator, bool, bool),
    sets: &[(Template, Template)],
    value: &Value<'_>,
    bytes: &[u8],
    headers: &[(String, String)],
) -> bool {
    let mut found = Found {
        name: Cow::Borrowed(value.name),
        matched: bytes.to_vec(),
        variables: Vec::new(),
        headers,
    };
    found.learn(operator, negated, capture, sets);
    links.iter().all(|link| link.matches(&mut found))
}

impl Found<'_> {
    /// The values of variables with such names.
    fn values(&self, such: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
        let some = self.variables.iter().filter(|(name, _)| such(name));
        some.map(|(_, value)| value.clone()).collect()
    }

    /// Takes what an operator captured of what it matched, and sets variables.
    fn learn(
        &mut self,
        operator: &Operator,
        negated: bool,
        capture: bool,
        sets: &[(Template, Template)],
    ) {
        if capture && !negated {
            self.variables.retain(|(name, _)| name.len() != 1);
            for (number, text) in (0..10).zip(operator.captures(&self.matched)) {
                if let Some(text) = text {
                    self.variables.push((format!("{number}"), text));
                }
            }
        }
        for (name, value) in sets {
            if let (Some(name), Some(value)) = (name.expand(self), value.expand(self)) {
                let name = String::from_utf8_lossy(&name).to_ascii_lowercase();
                self.variables.retain(|(own, _)| *own != name);
                self.variables.push((name, value));
            }
        }
    }
}

impl Then {
    fn matches(&self, found: &mut Found<'_>) -> bool {
        let operator = match &self.judge {
            Judge::Fixed(operator) => Cow::Borrowed(operator),
            Judge::Made(name, template) => {
                let text = template.expand(found);
                let text = text.as_deref().map(String::from_utf8_lossy);
                match text.and_then(|text| simple_operator(name, &text)) {
                    Some(operator) => Cow::Owned(operator),
                    None => return false,
                }
            }
        };
        for source in &self.sources {
            let values: Vec<Vec<u8>> = match source {
                Source::Matched => vec![found.matched.clone()],
                Source::MatchedName => vec![found.name.to_vec()],
                Source::Variable(name) => found.values(|own| own == name),
                Source::Variables(regex) => found.values(|own| regex.is_match(own.as_bytes())),
            };
            for mut value in values {
                for transform in &self.transforms {
                    value = transform.apply(&value).into_owned();
                }
                if operator.matches(&value, true) != self.negated {
                    found.matched = value;
                    found.learn(&operator, self.negated, self.capture, &self.sets);
                    return true;
                }
            }
        }
        false
    }
}
