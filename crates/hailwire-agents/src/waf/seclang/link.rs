//! Rules and the links of chains, as directives say them.

use std::path::Path;

use super::{
    Comparison, Operator, Part, Rule, Selector, Sets, Targets, Variable, assignments,
    expression::{parse_operator, regex, simple_operator},
    is_default,
};
use crate::waf::{
    chain::{Constants, Judge, Source, Template, Then},
    transform::Transform,
};

/// A directive of a chain, or a rule that is none.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) arguments: Vec<String>,
    pub(super) actions: Vec<(String, String)>,
}

impl Link {
    pub(super) fn value(&self, wanted: &str) -> Option<&str> {
        let found = self.actions.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, wanted: &str) -> bool {
        self.value(wanted).is_some()
    }

    /// What it looks at, and how.
    fn looks(&self) -> Result<(&str, &str), String> {
        match &self.arguments[..] {
            [variables, operator, ..] => Ok((variables, operator)),
            _ => Err("it has no operator".to_owned()),
        }
    }

    /// Whether it does nothing but say what a variable is if nobody said.
    pub(super) fn sets_a_default(&self, constants: &Constants) -> bool {
        let sets = assignments(&self.actions);
        let default = |(variables, operator): (&str, &str)| {
            let own = |(name, _): &(String, String)| {
                is_default(variables, operator, name) && constants.value(name).is_ok()
            };
            !sets.is_empty() && sets.iter().all(own)
        };
        self.looks().is_ok_and(default)
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

    /// What it sets for links that follow; what only adds to a score is passed over.
    fn sets(&self) -> Vec<(String, String)> {
        let mut sets = assignments(&self.actions);
        sets.retain(|(_, value)| !value.starts_with(['+', '-']));
        sets
    }
}

/// A rule, or a part of a chain whose first link says what it does.
pub(super) fn rule(
    link: &Link,
    first: &Link,
    id: Option<u64>,
    directory: Option<&Path>,
    constants: &Constants,
) -> Result<Rule, String> {
    let (variables, operator) = link.looks()?;
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
    let (operator, negated, signs) = parse_operator(&constants.expand(operator), directory)?;
    // It grows while a body comes.
    let length = |(variable, _): &(Variable, Selector)| *variable == Variable::RequestBodyLength;
    let grows = matches!(
        operator,
        Operator::Number(Comparison::Gt | Comparison::Ge, _)
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
        signs: signs.filter(|_| !negated),
        capture: false,
        sets: Vec::new(),
        then: Vec::new(),
        part: None,
        score: if first.has("pass") { 0 } else { severity },
        deny,
        paranoia: paranoia.unwrap_or(1),
        message: first.value("msg").unwrap_or_default().to_owned(),
        tags,
    })
}

/// The parts of a chain; of several ways to match, each is a chain of its own.
pub(super) fn chained(
    links: &[Link],
    id: Option<u64>,
    directory: Option<&Path>,
    constants: &Constants,
    chains: &mut u32,
) -> Result<Vec<Rule>, String> {
    let [first, ..] = links else {
        return Ok(Vec::new());
    };
    // Whether any looks at what others set.
    let later = links.iter().any(|link| {
        link.looks()
            .is_ok_and(|(v, _)| v.to_ascii_uppercase().contains("TX:"))
    });
    let mut ways: Vec<Vec<Rule>> = vec![Vec::new()];
    // What the links since the last one that looks at the request set, and whether they capture.
    let (mut set, mut captured): (Vec<String>, bool) = (Vec::new(), false);
    for link in links {
        let (variables, operator) = link.looks()?;
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
            let part = Link {
                arguments: vec![text, operator.to_string()],
                actions: link.actions.clone(),
            };
            let mut part = rule(&part, first, id, directory, constants)?;
            part.capture = link.has("capture");
            part.sets.clone_from(&sets);
            more.extend(ways.iter().map(|way| [&way[..], &[part.clone()]].concat()));
        }
        if own.is_empty() {
            ways = more;
            set = names.collect();
            captured = link.has("capture");
            continue;
        }
        let then = follows(link, &own, &operator, (&set, captured), sets, directory)?;
        for way in &mut ways {
            let last = way
                .last_mut()
                .ok_or_else(|| format!("variable {}", own[0]))?;
            last.then.push(then.clone());
        }
        ways.extend(more);
        set.extend(names);
        captured |= link.has("capture");
    }
    for way in &mut ways {
        if way.is_empty() {
            return Err("it decides nothing: all its links are constant".to_owned());
        }
        let of = u8::try_from(way.len()).map_err(|_| "chain: too long")?;
        for (number, part) in (0..of).zip(way.iter_mut()) {
            part.part = Some(Part {
                chain: *chains,
                number,
                of,
            });
        }
        *chains += 1;
    }
    Ok(ways.concat())
}

/// Whether a variable is not the request's, but what links before found or set.
fn is_own(target: &str) -> bool {
    let upper = target.to_ascii_uppercase();
    let upper = upper.trim_start_matches(['&', '!']);
    upper.starts_with("TX:") || upper.starts_with("MATCHED_VAR")
}

/// Whether a link on a constant holds; `None` if it is on none.
fn constant(
    variable: &str,
    operator: &str,
    set: &[String],
    link: &Link,
    constants: &Constants,
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

fn templates(sets: &[(String, String)]) -> Result<Sets, String> {
    let template =
        |(name, value): &(String, String)| Ok((Template::new(name)?, Template::new(value)?));
    sets.iter().map(template).collect()
}

/// A link that looks at what those before it found.
fn follows(
    link: &Link,
    own: &[&str],
    operator: &str,
    (set, captured): (&[String], bool),
    sets: Sets,
    directory: Option<&Path>,
) -> Result<Then, String> {
    let known = |name: &str| match name.parse::<u8>() {
        Ok(_) => captured,
        Err(_) => set.iter().any(|own| own == name),
    };
    let source = |target: &&str| {
        let lower = target.to_ascii_lowercase();
        Ok(match lower.as_str() {
            "matched_var" | "matched_vars" => Source::Matched,
            "matched_var_name" | "matched_vars_names" => Source::MatchedName,
            _ => {
                let name = lower.strip_prefix("tx:").unwrap_or_default();
                match name
                    .strip_prefix('/')
                    .and_then(|name| name.strip_suffix('/'))
                {
                    Some(pattern) if !set.is_empty() => Source::Variables(regex(pattern)?.0),
                    None if known(name) => Source::Variable(name.to_owned()),
                    _ => return Err(format!("variable {}", target.to_ascii_uppercase())),
                }
            }
        })
    };
    let (negated, text) = match operator.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, operator),
    };
    let judge = if text.contains("%{") {
        let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let name = name.strip_prefix('@').ok_or("macro in an expression")?;
        let template = Template::new(argument.trim_start())?;
        if simple_operator(name, "0").is_none() {
            return Err(format!("macro in operator {name}"));
        }
        if let Some(name) = template.variables().find(|name| !known(name)) {
            return Err(format!("macro of TX: {name}"));
        }
        Judge::Made(name.to_owned(), template)
    } else {
        Judge::Fixed(parse_operator(text, directory)?.0)
    };
    Ok(Then {
        sources: own.iter().map(source).collect::<Result<_, String>>()?,
        transforms: link.transforms()?,
        judge,
        negated,
        capture: link.has("capture"),
        sets,
    })
}

pub(super) fn targets(text: &str) -> Result<(Targets, Targets, Vec<String>), String> {
    let (mut targets, mut except, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for part in split_targets(text) {
        let (sign, rest) = match part.as_bytes().first() {
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
                Selector::All
            }
            Some(pattern) => Selector::Matching(regex(pattern)?.0),
            None if upper == "XML" => return Err(format!("variable XML:{selector}")),
            None => Selector::Name(selector.to_owned()),
        };
        match (sign, selector) {
            ('&', Selector::Name(field)) if upper == "REQUEST_HEADERS" => counts.push(field),
            ('&', _) => return Err(format!("variable &{upper}")),
            ('!', selector) => except.extend(known.iter().map(|v| (*v, selector.clone()))),
            (_, selector) => targets.extend(known.iter().map(|v| (*v, selector.clone()))),
        }
    }
    Ok((targets, except, counts))
}

/// At `|` and `,`, but not in `/…/`.
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
