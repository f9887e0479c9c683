//! Builds rules and chains from directives.

use std::path::Path;

use super::{
    ChainPosition, NumberComparison, Operator, Rule, RuleTargets, Variable, VariableAssignments,
    VariableSelector, assignments,
    expression::{parse_operator, regex, simple_operator},
    is_default,
};
use crate::waf::{
    chain::{DependentLink, LinkOperator, LinkSource, MacroTemplate, TransactionConstants},
    transform::Transform,
};

/// A `SecRule` directive: a rule of its own, or a link of a chain.
#[derive(Debug)]
pub(super) struct RuleDirective {
    pub(super) arguments: Vec<String>,
    pub(super) actions: Vec<(String, String)>,
}

impl RuleDirective {
    pub(super) fn value(&self, wanted: &str) -> Option<&str> {
        let found = self.actions.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, wanted: &str) -> bool {
        self.value(wanted).is_some()
    }

    /// Its variables and its operator.
    fn variables_and_operator(&self) -> Result<(&str, &str), String> {
        match &self.arguments[..] {
            [variables, operator, ..] => Ok((variables, operator)),
            _ => Err("it has no operator".to_owned()),
        }
    }

    /// Whether it only sets defaults of variables.
    pub(super) fn sets_a_default(&self, constants: &TransactionConstants) -> bool {
        let sets = assignments(&self.actions);
        let default = |(variables, operator): (&str, &str)| {
            let own = |(name, _): &(String, String)| {
                is_default(variables, operator, name) && constants.value(name).is_ok()
            };
            !sets.is_empty() && sets.iter().all(own)
        };
        self.variables_and_operator().is_ok_and(default)
    }

    fn transforms(&self) -> Result<Vec<Transform>, String> {
        let mut transforms = Vec::new();
        for (_, name) in self.actions.iter().filter(|(name, _)| name == "t") {
            match name.as_str() {
                "none" => transforms.clear(),
                _ => transforms
                    .push(Transform::named(name).ok_or_else(|| format!("transformation {name}"))?),
            }
        }
        Ok(transforms)
    }

    /// The variables that it sets for later links; additions to scores are ignored.
    fn sets(&self) -> Vec<(String, String)> {
        let mut sets = assignments(&self.actions);
        sets.retain(|(_, value)| !value.starts_with(['+', '-']));
        sets
    }
}

/// Builds a rule, or a link of a chain whose actions are those of its first link.
pub(super) fn rule(
    link: &RuleDirective,
    first: &RuleDirective,
    id: Option<u64>,
    directory: Option<&Path>,
    constants: &TransactionConstants,
) -> Result<Rule, String> {
    let (variables, operator) = link.variables_and_operator()?;
    let id = id.ok_or("it has no id")?;
    match first.value("phase") {
        Some("1" | "2" | "request") | None => {}
        Some(phase) => return Err(format!("phase {phase}")),
    }
    let severity = match first
        .value("severity")
        .map(str::to_ascii_uppercase)
        .as_deref()
    {
        Some("CRITICAL" | "2" | "1" | "0" | "ALERT" | "EMERGENCY") => 5,
        Some("ERROR" | "3") => 4,
        Some("WARNING" | "4") => 3,
        Some("NOTICE" | "5") => 2,
        Some(_) => 0,
        None => 0,
    };
    let deny = (first.has("deny") || first.has("drop")).then(|| {
        first
            .value("status")
            .and_then(|s| s.parse().ok())
            .unwrap_or(403)
    });
    if deny.is_none() && severity == 0 {
        return Err("it decides nothing: no severity, no deny".to_owned());
    }
    let (targets, except, counts) = targets(variables)?;
    let (operator, negated, atoms) = parse_operator(&constants.expand(operator), directory)?;
    // It grows while a body arrives.
    let length =
        |(variable, _): &(Variable, VariableSelector)| *variable == Variable::RequestBodyLength;
    let grows = matches!(
        operator,
        Operator::Number(NumberComparison::Gt | NumberComparison::Ge, _)
    );
    if targets.iter().any(length) && (negated || !grows) {
        return Err("variable REQUEST_BODY_LENGTH: only known in the end".to_owned());
    }
    let tags = first.actions.iter().filter(|(name, _)| name == "tag");
    let tags: Vec<String> = tags.map(|(_, tag)| tag.clone()).collect();
    let paranoia = tags
        .iter()
        .find_map(|tag| tag.strip_prefix("paranoia-level/")?.parse().ok());
    Ok(Rule {
        id,
        targets,
        except,
        counts,
        transforms: link.transforms()?,
        multi_match: link.has("multimatch"),
        operator,
        negated,
        atoms: atoms.filter(|_| !negated),
        capture: false,
        sets: Vec::new(),
        dependent_links: Vec::new(),
        chain_position: None,
        score: if first.has("pass") { 0 } else { severity },
        deny,
        paranoia: paranoia.unwrap_or(1),
        message: first.value("msg").unwrap_or_default().to_owned(),
        tags,
    })
}

/// Builds the rules of a chain; each alternative way to match is a chain of its own.
pub(super) fn chained(
    links: &[RuleDirective],
    id: Option<u64>,
    directory: Option<&Path>,
    constants: &TransactionConstants,
    chains: &mut u32,
) -> Result<Vec<Rule>, String> {
    let [first, ..] = links else {
        return Ok(Vec::new());
    };
    // Whether any link looks at variables that others set.
    let later = links.iter().any(|link| {
        link.variables_and_operator()
            .is_ok_and(|(v, _)| v.to_ascii_uppercase().contains("TX:"))
    });
    let mut alternatives: Vec<Vec<Rule>> = vec![Vec::new()];
    // What the links since the last one on the request set, and whether they capture.
    let (mut set, mut captured): (Vec<String>, bool) = (Vec::new(), false);
    for link in links {
        let (variables, operator) = link.variables_and_operator()?;
        let operator = constants.expand(operator);
        let all = split_targets(variables);
        let (own, request): (Vec<&str>, Vec<&str>) = all.into_iter().partition(|part| is_own(part));
        if let [variable] = own[..]
            && request.is_empty()
            && let Some(holds) = constant(variable, &operator, &set, link, constants)?
        {
            if !holds {
                return Err(format!("never: {variable} is not so"));
            }
            continue;
        }
        let sets = if later {
            templates(&link.sets())?
        } else {
            Vec::new()
        };
        let names = link
            .sets()
            .into_iter()
            .map(|(name, _)| name.to_ascii_lowercase());
        let mut more = Vec::new();
        if !request.is_empty() {
            let text = request.join("|");
            let part = RuleDirective {
                arguments: vec![text, operator.to_string()],
                actions: link.actions.clone(),
            };
            let mut part = rule(&part, first, id, directory, constants)?;
            part.capture = link.has("capture");
            part.sets.clone_from(&sets);
            more.extend(
                alternatives
                    .iter()
                    .map(|alternative| [&alternative[..], &[part.clone()]].concat()),
            );
        }
        if own.is_empty() {
            alternatives = more;
            set = names.collect();
            captured = link.has("capture");
            continue;
        }
        let then = follows(link, &own, &operator, (&set, captured), sets, directory)?;
        for alternative in &mut alternatives {
            let last = alternative
                .last_mut()
                .ok_or_else(|| format!("variable {}", own[0]))?;
            last.dependent_links.push(then.clone());
        }
        alternatives.extend(more);
        set.extend(names);
        captured |= link.has("capture");
    }
    for alternative in &mut alternatives {
        if alternative.is_empty() {
            return Err("it decides nothing: all its links are constant".to_owned());
        }
        let of = u8::try_from(alternative.len()).map_err(|_| "chain: too long")?;
        for (number, part) in (0..of).zip(alternative.iter_mut()) {
            part.chain_position = Some(ChainPosition {
                chain: *chains,
                number,
                of,
            });
        }
        *chains += 1;
    }
    Ok(alternatives.concat())
}

/// Whether a variable is not one of the request, but found or set by earlier links.
fn is_own(target: &str) -> bool {
    let upper = target.to_ascii_uppercase();
    let upper = upper.trim_start_matches(['&', '!']);
    upper.starts_with("TX:") || upper.starts_with("MATCHED_VAR")
}

/// Whether a link on a constant matches; `None` if it is not on a constant.
fn constant(
    variable: &str,
    operator: &str,
    set: &[String],
    link: &RuleDirective,
    constants: &TransactionConstants,
) -> Result<Option<bool>, String> {
    let lower = variable.to_ascii_lowercase();
    let (counted, name) = match lower.strip_prefix("&tx:") {
        Some(name) => (true, name),
        None => match lower.strip_prefix("tx:") {
            Some(name) => (false, name),
            None => return Ok(None),
        },
    };
    if name.starts_with('/') || name.parse::<u8>().is_ok() || set.iter().any(|own| own == name) {
        return Ok(None);
    }
    let value = constants.value(name)?;
    let value = match (counted, value) {
        (true, value) => u8::from(value.is_some()).to_string(),
        (false, Some(value)) => value.to_owned(),
        (false, None) => return Ok(Some(false)),
    };
    if operator.contains("%{") {
        return Err("macro in the operator".to_owned());
    }
    let mut value = value.into_bytes();
    for transform in link.transforms()? {
        value = transform.apply(&value).into_owned();
    }
    let (operator, negated, _) = parse_operator(operator, None)?;
    Ok(Some(operator.matches(&value, true) != negated))
}

fn templates(sets: &[(String, String)]) -> Result<VariableAssignments, String> {
    let template = |(name, value): &(String, String)| {
        Ok((MacroTemplate::new(name)?, MacroTemplate::new(value)?))
    };
    sets.iter().map(template).collect()
}

/// Builds a link that looks at what earlier links found.
fn follows(
    link: &RuleDirective,
    own: &[&str],
    operator: &str,
    (set, captured): (&[String], bool),
    sets: VariableAssignments,
    directory: Option<&Path>,
) -> Result<DependentLink, String> {
    let known = |name: &str| match name.parse::<u8>() {
        Ok(_) => captured,
        Err(_) => set.iter().any(|own| own == name),
    };
    let source = |target: &&str| {
        let lower = target.to_ascii_lowercase();
        Ok(match lower.as_str() {
            "matched_var" | "matched_vars" => LinkSource::Matched,
            "matched_var_name" | "matched_vars_names" => LinkSource::MatchedName,
            _ => {
                let name = lower.strip_prefix("tx:").unwrap_or_default();
                match name
                    .strip_prefix('/')
                    .and_then(|name| name.strip_suffix('/'))
                {
                    Some(pattern) if !set.is_empty() => LinkSource::Variables(regex(pattern)?.0),
                    None if known(name) => LinkSource::Variable(name.to_owned()),
                    _ => return Err(format!("variable {}", target.to_ascii_uppercase())),
                }
            }
        })
    };
    let (negated, text) = match operator.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, operator),
    };
    let operator = if text.contains("%{") {
        let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let name = name.strip_prefix('@').ok_or("macro in an expression")?;
        let template = MacroTemplate::new(argument.trim_start())?;
        if simple_operator(name, "0").is_none() {
            return Err(format!("macro in operator {name}"));
        }
        if let Some(name) = template.variables().find(|name| !known(name)) {
            return Err(format!("macro of TX: {name}"));
        }
        LinkOperator::Expanded(name.to_owned(), template)
    } else {
        LinkOperator::Fixed(parse_operator(text, directory)?.0)
    };
    Ok(DependentLink {
        sources: own.iter().map(source).collect::<Result<_, String>>()?,
        transforms: link.transforms()?,
        operator,
        negated,
        capture: link.has("capture"),
        sets,
    })
}

pub(super) fn targets(text: &str) -> Result<(RuleTargets, RuleTargets, Vec<String>), String> {
    let (mut targets, mut except, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for part in split_targets(text) {
        let (atom, rest) = match part.as_bytes().first() {
            Some(b'!') => ('!', &part[1..]),
            Some(b'&') => ('&', &part[1..]),
            _ => (' ', part),
        };
        let (name, selector) = rest.split_once(':').unwrap_or((rest, ""));
        let upper = name.to_ascii_uppercase();
        let known = Variable::named(&upper).ok_or_else(|| format!("variable {upper}"))?;
        let selector = selector.trim_matches('\'');
        let selector = match selector.strip_prefix('/').and_then(|s| s.strip_suffix('/')) {
            Some("" | "*") | None if matches!(selector, "" | "/*" | "//*" | "//@*") => {
                VariableSelector::All
            }
            Some(pattern) => VariableSelector::Matching(regex(pattern)?.0),
            None if upper == "XML" => return Err(format!("variable XML:{selector}")),
            None => VariableSelector::Name(selector.to_owned()),
        };
        match (atom, selector) {
            ('&', VariableSelector::Name(field)) if upper == "REQUEST_HEADERS" => {
                counts.push(field);
            }
            ('&', _) => return Err(format!("variable &{upper}")),
            ('!', selector) => except.extend(known.iter().map(|v| (*v, selector.clone()))),
            (_, selector) => targets.extend(known.iter().map(|v| (*v, selector.clone()))),
        }
    }
    Ok((targets, except, counts))
}

/// Splits at `|` and `,`, but not within `/…/`.
pub(super) fn split_targets(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut in_regex) = (0, false);
    let bytes = text.as_bytes();
    for at in 0..bytes.len() {
        match bytes[at] {
            b'/' if at > 0 && bytes[at - 1] == b':' => in_regex = true,
            b'/' if in_regex && bytes[at - 1] != b'\\' => in_regex = false,
            // `XML:/*`
            b'*' if at > 0 && bytes[at - 1] == b'/' => in_regex = false,
            b'|' | b',' if !in_regex => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}
