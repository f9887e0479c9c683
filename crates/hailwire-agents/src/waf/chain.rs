//! Chained rules, and transaction variables (`TX`) as far as they are constant.
//!
//! A chain matches when all of its links do. A link on the request matches when any value does, whenever that value arrives.
//! A *dependent* link, on what the link before it found (`MATCHED_VAR`, `TX:1`, a variable that the chain itself set from
//! these), is judged at once, on that value: so each value has its own captures, whereas ModSecurity keeps the last ones.
//! All of this can be judged while a request arrives; rules that count all arguments or sum up scores cannot, and are not
//! supported.
//!
//! Transaction variables that are set once, by `SecAction` or as a default (`SecRule &TX:x "@eq 0" "…,setvar:'tx.x=5'"`), are
//! constants: they replace `%{tx.x}`, and a link on a constant is evaluated when the rules are loaded.

use std::{borrow::Cow, collections::BTreeMap};

use regex::bytes::Regex;

use super::{
    rules::InspectedValue,
    seclang::{Operator, simple_operator},
    transform::Transform,
};

/// Transaction variables that are constant, by their names in lower case.
#[derive(Clone, Debug, Default)]
pub(super) struct TransactionConstants {
    values: BTreeMap<String, String>,
    defaults: BTreeMap<String, String>,
    /// Variables that are not constant.
    variable: Vec<String>,
}

impl TransactionConstants {
    /// Records what an action sets.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        if value.contains("%{") || value.starts_with(['+', '-']) {
            self.vary(name);
        } else {
            self.values
                .insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }

    /// Records a default; the first one wins.
    pub(super) fn set_default(&mut self, name: &str, value: &str) {
        let defaults = &mut self.defaults;
        defaults
            .entry(name.to_ascii_lowercase())
            .or_insert_with(|| value.to_owned());
    }

    /// Records that a rule sets it during a request.
    pub(super) fn vary(&mut self, name: &str) {
        self.variable.push(name.to_ascii_lowercase());
    }

    /// Its value, or `None` if nothing sets it; a variable that is not constant is an error.
    pub(super) fn value(&self, name: &str) -> Result<Option<&str>, String> {
        let name = name.to_ascii_lowercase();
        if self.variable.contains(&name) {
            return Err(format!("variable TX: {name} changes"));
        }
        let value = self.values.get(&name).or_else(|| self.defaults.get(&name));
        Ok(value.map(String::as_str))
    }

    /// A text with the macros of constants expanded.
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
                // A constant may refer to another one.
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

/// The text before the first `%{…}`, its name, and the text after it.
fn next_macro(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("%{")?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// A text with macros that are expanded after a value matched.
#[derive(Clone, Debug)]
pub(super) struct MacroTemplate(Vec<TemplateSegment>);

#[derive(Clone, Debug)]
enum TemplateSegment {
    Text(String),
    Matched,
    MatchedName,
    Variable(String),
    Header(String),
}

impl MacroTemplate {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some((before, name, after)) = next_macro(rest) {
            segments.push(TemplateSegment::Text(before.to_owned()));
            let lower = name.to_ascii_lowercase();
            segments.push(match lower.as_str() {
                "matched_var" => TemplateSegment::Matched,
                "matched_var_name" => TemplateSegment::MatchedName,
                _ => match lower.split_once('.') {
                    Some(("tx", name)) => TemplateSegment::Variable(name.to_owned()),
                    Some(("request_headers", name)) => TemplateSegment::Header(name.to_owned()),
                    _ => return Err(format!("macro %{{{name}}}")),
                },
            });
            rest = after;
        }
        segments.push(TemplateSegment::Text(rest.to_owned()));
        Ok(Self(segments))
    }

    /// Header fields that it refers to.
    pub(super) fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|segment| match segment {
            TemplateSegment::Header(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Variables that it refers to.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|segment| match segment {
            TemplateSegment::Variable(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The expanded text; `None` if a variable or header field is missing.
    fn expand(&self, context: &ChainContext<'_>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for segment in &self.0 {
            match segment {
                TemplateSegment::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplateSegment::Matched => out.extend_from_slice(&context.matched),
                TemplateSegment::MatchedName => out.extend_from_slice(&context.name),
                TemplateSegment::Variable(name) => {
                    let (_, value) = context.variables.iter().find(|(own, _)| own == name)?;
                    out.extend_from_slice(value);
                }
                TemplateSegment::Header(name) => {
                    let (_, value) = context.headers.iter().find(|(own, _)| own == name)?;
                    out.extend_from_slice(value.as_bytes());
                }
            }
        }
        Some(out)
    }
}

/// What a dependent link looks at.
#[derive(Clone, Debug)]
pub(super) enum LinkSource {
    Matched,
    MatchedName,
    Variable(String),
    Variables(Regex),
}

/// The operator of a dependent link.
#[derive(Clone, Debug)]
pub(super) enum LinkOperator {
    Fixed(Operator),
    /// An operator's name, and its argument with macros.
    Expanded(String, MacroTemplate),
}

/// A link that looks at what the link before it found.
#[derive(Clone, Debug)]
pub(super) struct DependentLink {
    pub(super) sources: Vec<LinkSource>,
    pub(super) transforms: Vec<Transform>,
    pub(super) operator: LinkOperator,
    pub(super) negated: bool,
    pub(super) capture: bool,
    pub(super) sets: Vec<(MacroTemplate, MacroTemplate)>,
}

/// The matched value, captures and variables after a link matched.
struct ChainContext<'a> {
    name: Cow<'a, [u8]>,
    matched: Vec<u8>,
    variables: Vec<(String, Vec<u8>)>,
    headers: &'a [(String, String)],
}

/// Whether the dependent links match, after an operator matched these bytes of a value.
pub(super) fn follow(
    links: &[DependentLink],
    (operator, negated, capture): (&Operator, bool, bool),
    sets: &[(MacroTemplate, MacroTemplate)],
    value: &InspectedValue<'_>,
    bytes: &[u8],
    headers: &[(String, String)],
) -> bool {
    let mut context = ChainContext {
        name: Cow::Borrowed(value.name),
        matched: bytes.to_vec(),
        variables: Vec::new(),
        headers,
    };
    context.learn(operator, negated, capture, sets);
    links.iter().all(|link| link.matches(&mut context))
}

impl ChainContext<'_> {
    /// The values of variables whose names match.
    fn values(&self, such: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
        let some = self.variables.iter().filter(|(name, _)| such(name));
        some.map(|(_, value)| value.clone()).collect()
    }

    /// Records what an operator captured, and sets variables.
    fn learn(
        &mut self,
        operator: &Operator,
        negated: bool,
        capture: bool,
        sets: &[(MacroTemplate, MacroTemplate)],
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

impl DependentLink {
    fn matches(&self, context: &mut ChainContext<'_>) -> bool {
        let operator = match &self.operator {
            LinkOperator::Fixed(operator) => Cow::Borrowed(operator),
            LinkOperator::Expanded(name, template) => {
                let text = template.expand(context);
                let text = text.as_deref().map(String::from_utf8_lossy);
                match text.and_then(|text| simple_operator(name, &text)) {
                    Some(operator) => Cow::Owned(operator),
                    None => return false,
                }
            }
        };
        for source in &self.sources {
            let values: Vec<Vec<u8>> = match source {
                LinkSource::Matched => vec![context.matched.clone()],
                LinkSource::MatchedName => vec![context.name.to_vec()],
                LinkSource::Variable(name) => context.values(|own| own == name),
                LinkSource::Variables(regex) => {
                    context.values(|own| regex.is_match(own.as_bytes()))
                }
            };
            for mut value in values {
                for transform in &self.transforms {
                    value = transform.apply(&value).into_owned();
                }
                if operator.matches(&value, true) != self.negated {
                    context.matched = value;
                    context.learn(&operator, self.negated, self.capture, &self.sets);
                    return true;
                }
            }
        }
        false
    }
}
