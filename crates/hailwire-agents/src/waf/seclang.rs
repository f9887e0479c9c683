//! The part of SecLang that is understood.
//!
//! SecLang is the language of ModSecurity's and Coraza's rules, in which the OWASP Core Rule Set is written.
//!
//! ```text
//! SecRule VARIABLES "OPERATOR" "id:1,phase:2,block,t:none,t:lowercase,msg:'…',severity:'CRITICAL',tag:'…'"
//! ```
//!
//! A rule that needs more than is understood here is passed over whole, with a reason, and never half used: chains,
//! transaction variables and macros, rules on responses, what only steers other rules. [`Skipped`] lists each.
//!
//! | part | understood |
//! |---|---|
//! | variables | those of [`Variable`], `VAR:name`, `VAR:/regex/`, `!VAR:name`, `&REQUEST_HEADERS:name` |
//! | operators | those of [`Operator`], and each with `!` |
//! | transformations | those of [`Transform`], and `none`; `multiMatch` |
//! | actions | `id`, `phase` 1 and 2, `block`, `deny`, `drop`, `pass`, `status`, `severity`, `tag`, `msg`; others that change nothing here are passed over |
//! | directives | `SecRule`; `SecRuleRemoveById` and `SecRuleUpdateTargetById` with numbers and ranges, the latter with exceptions only |

use std::path::Path;

use regex::bytes::{Regex, RegexBuilder};

use super::{
    chain::{Constants, Judge, Source, Template, Then},
    kinds::Kinds,
    literals::{Edge, Sign},
    transform::Transform,
};

/// What a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "SecLang's names")]
#[repr(u8)]
pub enum Variable {
    ArgsGet,
    ArgsGetNames,
    ArgsPost,
    ArgsPostNames,
    Files,
    FilesNames,
    FilesTmpContent,
    MultipartPartHeaders,
    QueryString,
    RemoteAddr,
    ReqbodyError,
    RequestBasename,
    RequestBody,
    RequestBodyLength,
    RequestCookies,
    RequestCookiesNames,
    RequestFilename,
    RequestHeaders,
    RequestHeadersNames,
    RequestLine,
    RequestMethod,
    RequestProtocol,
    RequestUri,
    RequestUriRaw,
    Xml,
}

impl Variable {
    /// How many there are.
    pub(super) const COUNT: usize = Self::Xml as usize + 1;

    /// Those that a name stands for.
    fn named(name: &str) -> Option<&'static [Self]> {
        Some(match name {
            "ARGS" => &[Self::ArgsGet, Self::ArgsPost],
            "ARGS_NAMES" => &[Self::ArgsGetNames, Self::ArgsPostNames],
            "ARGS_GET" => &[Self::ArgsGet],
            "ARGS_GET_NAMES" => &[Self::ArgsGetNames],
            "ARGS_POST" => &[Self::ArgsPost],
            "ARGS_POST_NAMES" => &[Self::ArgsPostNames],
            "FILES" => &[Self::Files],
            "FILES_NAMES" => &[Self::FilesNames],
            "FILES_TMP_CONTENT" => &[Self::FilesTmpContent],
            "MULTIPART_PART_HEADERS" => &[Self::MultipartPartHeaders],
            "QUERY_STRING" => &[Self::QueryString],
            "REMOTE_ADDR" => &[Self::RemoteAddr],
            "REQBODY_ERROR" => &[Self::ReqbodyError],
            "REQUEST_BASENAME" => &[Self::RequestBasename],
            "REQUEST_BODY" => &[Self::RequestBody],
            "REQUEST_BODY_LENGTH" => &[Self::RequestBodyLength],
            "REQUEST_COOKIES" => &[Self::RequestCookies],
            "REQUEST_COOKIES_NAMES" => &[Self::RequestCookiesNames],
            "REQUEST_FILENAME" => &[Self::RequestFilename],
            "REQUEST_HEADERS" => &[Self::RequestHeaders],
            "REQUEST_HEADERS_NAMES" => &[Self::RequestHeadersNames],
            "REQUEST_LINE" => &[Self::RequestLine],
            "REQUEST_METHOD" => &[Self::RequestMethod],
            "REQUEST_PROTOCOL" => &[Self::RequestProtocol],
            "REQUEST_URI" => &[Self::RequestUri],
            "REQUEST_URI_RAW" => &[Self::RequestUriRaw],
            "XML" => &[Self::Xml],
            _ => return None,
        })
    }
}

/// Which members of a collection are meant.
#[derive(Clone, Debug)]
pub enum Selector {
    /// All.
    All,
    /// Those of this name, whatever its case.
    Name(String),
    /// Those whose name matches.
    Matching(Regex),
}

impl Selector {
    /// Whether a member is among them.
    #[must_use]
    pub fn takes(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Name(own) => own.as_bytes().eq_ignore_ascii_case(name),
            Self::Matching(regex) => regex.is_match(name),
        }
    }
}

/// How a value is judged.
#[derive(Clone, Debug)]
pub enum Operator {
    /// By a regular expression: `@rx`.
    Rx(Regex),
    /// It holds one of these, whatever the case: `@pm`, `@pmFromFile`.
    Pm(aho_corasick::AhoCorasick),
    /// `@contains`.
    Contains(Vec<u8>),
    /// `@beginsWith`.
    BeginsWith(Vec<u8>),
    /// `@endsWith`.
    EndsWith(Vec<u8>),
    /// `@streq`.
    Equals(Vec<u8>),
    /// It is part of this text: `@within`.
    Within(Vec<u8>),
    /// `@detectSQLi`.
    DetectSqli,
    /// `@detectXSS`.
    DetectXss,
    /// A byte is outside of this set: `@validateByteRange`.
    OutsideBytes(Box<[bool; 256]>),
    /// A percent sign is not followed by two hexadecimal digits: `@validateUrlEncoding`.
    BadUrlEncoding,
    /// As a number: `@eq`, `@ne`, `@gt`, `@ge`, `@lt`, `@le`.
    Number(Comparison, i64),
    /// Always.
    Unconditional,
}

/// How numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "SecLang's names")]
pub enum Comparison {
    Eq,
    Ge,
    Gt,
    Le,
    Lt,
}

/// Variables, each with the members that are meant.
pub type Targets = Vec<(Variable, Selector)>;

/// A rule as written.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its number.
    pub id: u64,
    /// What it looks at,
    pub targets: Targets,
    /// but not at these.
    pub except: Targets,
    /// Header fields whose number it looks at.
    pub counts: Vec<String>,
    /// What is done to a value first.
    pub transforms: Vec<Transform>,
    /// Whether it is judged after each of them, and not only after the last.
    pub multi_match: bool,
    /// How it is judged.
    pub operator: Operator,
    /// Whether the opposite is meant.
    pub negated: bool,
    /// Of these a value shows one, or the rule does not match.
    pub(super) signs: Option<Vec<Sign>>,
    /// Whether its captures are kept, and what it sets, for the links of its chain that follow.
    pub(super) capture: bool,
    pub(super) sets: Sets,
    /// Links that look at what it found.
    pub(super) then: Vec<Then>,
    /// What it is part of, if others must match besides.
    pub(super) part: Option<Part>,
    /// What it adds to the score of a request.
    pub score: u32,
    /// The status with which it blocks by itself.
    pub deny: Option<u16>,
    /// 1 for everyone, up to 4 for those who accept more false alarms.
    pub paranoia: u8,
    /// For people.
    pub message: String,
    /// Such as `attack-sqli`.
    pub tags: Vec<String>,
}

/// What sets variables: their names and values.
type Sets = Vec<(Template, Template)>;

/// A part of a chain: the chain matches when all its parts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Which chain; numbers are given when all files are read.
    pub(super) chain: u32,
    /// Which part of it, of how many.
    pub(super) number: u8,
    pub(super) of: u8,
}

/// A rule that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its number, if it has one.
    pub id: Option<u64>,
    /// The line of its file, from 1.
    pub line: usize,
    /// Why.
    pub reason: String,
}

/// What a file holds.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The rules that are used.
    pub rules: Vec<Rule>,
    /// The rules that are not.
    pub skipped: Vec<Skipped>,
    /// Numbers of rules that are taken out again, from and to.
    pub removed: Vec<(u64, u64)>,
    /// What rules do not look at besides: their numbers, from and to, and where.
    pub excepted: Vec<(u64, u64, Targets)>,
}

impl Rule {
    /// Header fields that links of it compare with.
    pub(super) fn headers(&self) -> impl Iterator<Item = &str> {
        let judged = self.then.iter().filter_map(|link| match &link.judge {
            Judge::Made(_, template) => Some(template),
            Judge::Fixed(_) => None,
        });
        let sets = self
            .sets
            .iter()
            .chain(self.then.iter().flat_map(|link| &link.sets));
        let templates = judged.chain(sets.map(|(_, value)| value));
        templates.flat_map(Template::headers)
    }

    /// After how many of its transformations it is judged.
    pub(super) fn judged_after(&self) -> std::ops::RangeInclusive<usize> {
        let first = if self.multi_match {
            0
        } else {
            self.transforms.len()
        };
        first..=self.transforms.len()
    }
}

/// Reads a file's text; `@pmFromFile` is looked up in its directory.
#[must_use]
pub fn parse(text: &str, directory: Option<&Path>) -> Parsed {
    let mut constants = Constants::default();
    learn(text, &mut constants);
    parse_with(text, directory, &constants)
}

/// Learns which transaction variables are constants.
pub(super) fn learn(text: &str, constants: &mut Constants) {
    for (_, directive) in directives(text) {
        let words = words(&directive);
        let lower = words.first().map(|name| name.to_ascii_lowercase());
        match (lower.as_deref(), &words[..]) {
            (Some("secaction"), [_, text, ..]) => {
                for (name, value) in assignments(&actions(text)) {
                    constants.set(&name, &value);
                }
            }
            (Some("secrule"), [_, variables, operator, text, ..]) => {
                for (name, value) in assignments(&actions(text)) {
                    if is_default(variables, operator, &name) && !value.contains("%{") {
                        constants.set_default(&name, &value);
                    } else {
                        constants.vary(&name);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether a rule that sets a variable sets its default.
fn is_default(variables: &str, operator: &str, name: &str) -> bool {
    let variable = variables.to_ascii_lowercase();
    let same = variable
        .strip_prefix("&tx:")
        .is_some_and(|own| own == name.to_ascii_lowercase());
    same && operator == "@eq 0"
}

/// The transaction variables that actions set, and to what.
fn assignments(actions: &[(String, String)]) -> Vec<(String, String)> {
    let set = |(name, value): &(String, String)| {
        let target = value.trim_start_matches('!');
        let tx = target
            .get(..3)
            .is_some_and(|tx| tx.eq_ignore_ascii_case("tx."));
        (name == "setvar" && tx).then(|| {
            let (name, value) = target[3..].split_once('=').unwrap_or((&target[3..], "+1"));
            (name.to_owned(), value.to_owned())
        })
    };
    actions.iter().filter_map(set).collect()
}

/// Reads a file's text with what is known of all files.
pub(super) fn parse_with(text: &str, directory: Option<&Path>, constants: &Constants) -> Parsed {
    let mut parsed = Parsed::default();
    let mut links: Vec<Link> = Vec::new();
    let mut begun = 0;
    let mut chains = 0;
    for (line, directive) in directives(text) {
        let words = words(&directive);
        let Some((name, arguments)) = words.split_first() else {
            continue;
        };
        let skip = |id, reason: String| Skipped { id, line, reason };
        match name.to_ascii_lowercase().as_str() {
            "secrule" => {
                if links.is_empty() {
                    begun = line;
                }
                let actions = arguments.get(2).map(|text| actions(text));
                links.push(Link {
                    arguments: arguments.to_vec(),
                    actions: actions.unwrap_or_default(),
                });
                if links.last().is_some_and(|link| link.has("chain")) {
                    continue;
                }
                let chain = std::mem::take(&mut links);
                let id = chain[0].value("id").and_then(|id| id.parse().ok());
                let rules = match &chain[..] {
                    [only] if only.sets_a_default(constants) => continue,
                    [only] => rule(only, only, id, directory, constants).map(|rule| vec![rule]),
                    all => chained(all, id, directory, constants, &mut chains),
                };
                match rules {
                    Ok(rules) => parsed.rules.extend(rules),
                    Err(reason) => parsed.skipped.push(Skipped {
                        id,
                        line: begun,
                        reason,
                    }),
                }
            }
            "secaction" => {
                let sets = arguments.first().map(|text| assignments(&actions(text)));
                let sets = sets.unwrap_or_default();
                let constant = |(name, _): &(String, String)| constants.value(name).is_ok();
                if sets.is_empty() || !sets.iter().all(constant) {
                    parsed.skipped.push(skip(
                        None,
                        format!("directive {}", name.to_ascii_lowercase()),
                    ));
                }
            }
            "secruleremovebyid" => {
                let ranges = arguments.iter().flat_map(|word| word.split([' ', ',']));
                parsed.removed.extend(ranges.filter_map(range));
            }
            "secruleupdatetargetbyid" => {
                let of = arguments.first().and_then(|word| range(word));
                let more = arguments.get(1).map(|text| targets(text));
                match (of, more) {
                    (Some((from, to)), Some(Ok((added, except, counts))))
                        if added.is_empty() && counts.is_empty() =>
                    {
                        parsed.excepted.push((from, to, except));
                    }
                    (Some((id, _)), Some(Err(reason))) => {
                        parsed.skipped.push(skip(Some(id), reason));
                    }
                    _ => parsed.skipped.push(skip(None, format!("directive {name}"))),
                }
            }
            // They name, mark or set up what is fixed here.
            "secmarker" | "seccomponentsignature" | "seccollectiontimeout" => {}
            other => parsed
                .skipped
                .push(skip(None, format!("directive {other}"))),
        }
    }
    parsed
}

/// One number, or two with a hyphen between.
fn range(word: &str) -> Option<(u64, u64)> {
    let (from, to) = word.split_once('-').unwrap_or((word, word));
    Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
}

/// Each directive with the number of its first line; a backslash at the end of a line joins the next one.
fn directives(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut joined: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if joined.is_none() && (trimmed.is_empty() || trimmed.starts_with('#')) {
            continue;
        }
        let (number, mut whole) = joined.take().unwrap_or((index + 1, String::new()));
        match trimmed.strip_suffix('\\') {
            Some(part) => {
                whole.push_str(part);
                joined = Some((number, whole));
            }
            None => {
                whole.push_str(trimmed);
                found.push((number, whole));
            }
        }
    }
    found.extend(joined);
    found
}

/// Words, and texts in double quotes in which `\"` is a quote.
fn words(directive: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = directive.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_whitespace() {
            continue;
        }
        let mut word = String::new();
        if first == '"' {
            while let Some(c) = chars.next() {
                match c {
                    '"' => break,
                    '\\' if chars.peek() == Some(&'"') => word.extend(chars.next()),
                    _ => word.push(c),
                }
            }
        } else {
            word.push(first);
            while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                word.push(c);
            }
        }
        words.push(word);
    }
    words
}

/// The actions with their values, without the single quotes around these.
fn actions(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut quoted = false;
    let bytes = text.as_bytes();
    for at in 0..=bytes.len() {
        match bytes.get(at) {
            Some(b'\'') if at == 0 || bytes[at - 1] != b'\\' => quoted = !quoted,
            None | Some(b',') if !quoted || at == bytes.len() => {
                let action = text[start..at].trim();
                let (name, value) = action.split_once(':').unwrap_or((action, ""));
                let value = value.trim();
                let inner = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\''));
                if !name.is_empty() {
                    let name = name.trim().to_ascii_lowercase();
                    found.push((name, inner.unwrap_or(value).to_owned()));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// A directive of a chain, or a rule that is none.
#[derive(Debug)]
struct Link {
    arguments: Vec<String>,
    actions: Vec<(String, String)>,
}

impl Link {
    fn value(&self, wanted: &str) -> Option<&str> {
        let found = self.actions.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    }

    fn has(&self, wanted: &str) -> bool {
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
    fn sets_a_default(&self, constants: &Constants) -> bool {
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
fn rule(
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
fn chained(
    links: &[Link],
    id: Option<u64>,
    directory: Option<&Path>,
    constants: &Constants,
    chains: &mut u32,
) -> Result<Vec<Rule>, String> {
    let [first, ..] = links else {
        return Ok(Vec::new());
    };
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
        let later = links.iter().any(|link| {
            link.looks()
                .is_ok_and(|(v, _)| v.to_ascii_uppercase().contains("TX:"))
        });
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

/// An operator that takes a plain text or a number.
pub(super) fn simple_operator(name: &str, argument: &str) -> Option<Operator> {
    let bytes = argument.as_bytes().to_vec();
    let number = |how| Some(Operator::Number(how, argument.trim().parse().ok()?));
    match name.to_ascii_lowercase().as_str() {
        "contains" => Some(Operator::Contains(bytes)),
        "beginswith" => Some(Operator::BeginsWith(bytes)),
        "endswith" => Some(Operator::EndsWith(bytes)),
        "streq" => Some(Operator::Equals(bytes)),
        "within" => Some(Operator::Within(bytes)),
        "eq" => number(Comparison::Eq),
        "ge" => number(Comparison::Ge),
        "gt" => number(Comparison::Gt),
        "le" => number(Comparison::Le),
        "lt" => number(Comparison::Lt),
        _ => None,
    }
}

fn targets(text: &str) -> Result<(Targets, Targets, Vec<String>), String> {
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
fn split_targets(text: &str) -> Vec<&str> {
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

/// Of these each match shows one, where there are such.
type Signs = Option<Vec<Sign>>;

type Judged = (Operator, bool, Signs);

fn parse_operator(text: &str, directory: Option<&Path>) -> Result<Judged, String> {
    let text = text.trim();
    let (negated, text) = match text.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (name, argument) = match text.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        None => ("rx", text),
    };
    let argument = argument.trim_start();
    if argument.contains("%{") {
        return Err("macro in the operator".to_owned());
    }
    let bytes = argument.as_bytes().to_vec();
    let own = |before, after| {
        let sign = sign(argument.as_bytes())?;
        Some(vec![Sign {
            before,
            after,
            ..sign
        }])
    };
    let kinds = |kinds| Some(vec![Sign::kinds(kinds)]);
    let number = |how| {
        argument
            .trim()
            .parse()
            .map(|n| Operator::Number(how, n))
            .map_err(|_| format!("\"{argument}\" is no number"))
    };
    let lower = name.to_ascii_lowercase();
    let (operator, signs) = match lower.as_str() {
        "rx" => {
            let (regex, signs) = regex(argument)?;
            (Operator::Rx(regex), signs)
        }
        "pm" => {
            let words: Vec<String> = argument.split_whitespace().map(str::to_owned).collect();
            phrases(&words)?
        }
        "pmfromfile" | "pmf" => phrases(&phrase_files(argument, directory)?)?,
        "contains" => (
            Operator::Contains(bytes),
            own(Edge::Anything, Edge::Anything),
        ),
        "beginswith" => (
            Operator::BeginsWith(bytes),
            own(Edge::Value, Edge::Anything),
        ),
        "endswith" => (Operator::EndsWith(bytes), own(Edge::Anything, Edge::Value)),
        "streq" => (Operator::Equals(bytes), own(Edge::Value, Edge::Value)),
        "within" => (Operator::Within(bytes), None),
        // A word alone is no SQL, and all scripts that libinjection knows have one of these.
        "detectsqli" => (Operator::DetectSqli, kinds(Kinds::ALL.without(Kinds::WORD))),
        "detectxss" => (Operator::DetectXss, kinds(Kinds::bytes(b"<=`"))),
        "validatebyterange" => {
            let allowed = byte_set(argument)?;
            let outside: Vec<u8> = (0..=255).filter(|b| !allowed[usize::from(*b)]).collect();
            (
                Operator::OutsideBytes(allowed),
                kinds(Kinds::bytes(&outside)),
            )
        }
        "validateurlencoding" => (Operator::BadUrlEncoding, kinds(Kinds::byte(b'%'))),
        "unconditionalmatch" => (Operator::Unconditional, None),
        "eq" => (number(Comparison::Eq)?, None),
        "ge" => (number(Comparison::Ge)?, None),
        "gt" => (number(Comparison::Gt)?, None),
        "le" => (number(Comparison::Le)?, None),
        "lt" => (number(Comparison::Lt)?, None),
        _ => return Err(format!("operator {name}")),
    };
    Ok((operator, negated, signs))
}

/// A text as a sign; `None` for an empty one, which is everywhere.
fn sign(text: &[u8]) -> Option<Sign> {
    match text {
        [] => None,
        // Its kind, whatever its case.
        [byte] => Some(Sign::kinds(Kinds::byte(byte.to_ascii_lowercase()))),
        text => Some(Sign::text(text)),
    }
}

/// A set of bytes: numbers and ranges, with commas between.
fn byte_set(text: &str) -> Result<Box<[bool; 256]>, String> {
    let mut allowed = Box::new([false; 256]);
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (Ok(from), Ok(to)) = (from.trim().parse::<u8>(), to.trim().parse::<u8>()) else {
            return Err(format!("\"{text}\" is no set of bytes"));
        };
        for byte in from..=to {
            allowed[usize::from(byte)] = true;
        }
    }
    Ok(allowed)
}

fn phrase_files(names: &str, directory: Option<&Path>) -> Result<Vec<String>, String> {
    let directory = directory.ok_or("a file in rules that have no directory")?;
    let mut phrases = Vec::new();
    for name in names.split_whitespace() {
        let text = std::fs::read_to_string(directory.join(name))
            .map_err(|error| format!("file {name}: {error}"))?;
        let line = |line: &str| {
            let line = line.trim();
            (!line.is_empty() && !line.starts_with('#')).then(|| line.to_owned())
        };
        phrases.extend(text.lines().filter_map(line));
    }
    Ok(phrases)
}

fn phrases(phrases: &[String]) -> Result<(Operator, Signs), String> {
    let search = aho_corasick::AhoCorasickBuilder::new()
        .ascii_case_insensitive(true)
        .build(phrases)
        .map_err(|error| error.to_string())?;
    let signs = phrases
        .iter()
        .map(|phrase| sign(phrase.as_bytes()))
        .collect();
    Ok((Operator::Pm(search), signs))
}

/// Memory of one compiled expression.
const REGEX_SIZE: usize = 64 << 20;

/// A regular expression over bytes in which `.` is any byte and `$` the very end, with its signs.
fn regex(pattern: &str) -> Result<(Regex, Signs), String> {
    let pattern = from_pcre(pattern);
    let first = |error: String| {
        let line = error.lines().last().unwrap_or_default();
        format!("expression: {}", line.trim_start_matches("error: "))
    };
    let hir = regex_syntax::ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .dot_matches_new_line(true)
        .build()
        .parse(&pattern)
        .map_err(|error| first(error.to_string()))?;
    let regex = RegexBuilder::new(&pattern)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(REGEX_SIZE)
        .build()
        .map_err(|error| first(error.to_string()))?;
    Ok((regex, super::literals::required(&hir)))
}

/// In classes `[`, `&` and `~`, and elsewhere a brace that begins no repetition, stand for themselves in PCRE.
fn from_pcre(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut in_class = false;
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        match c {
            '\\' => {
                out.push(c);
                if let Some(escaped) = after.chars().next() {
                    out.push(escaped);
                    rest = &after[escaped.len_utf8()..];
                }
            }
            '[' if in_class && !after.starts_with(':') => out.push_str("\\["),
            '[' if in_class => {
                // A named class: `[:alpha:]`.
                let end = after.find(":]").map_or(0, |end| end + 2);
                out.push(c);
                out.push_str(&after[..end]);
                rest = &after[end..];
            }
            '[' => {
                in_class = true;
                out.push(c);
                for first in ["^]", "]", "^"] {
                    if let Some(tail) = after.strip_prefix(first) {
                        out.push_str(&first.replace(']', "\\]"));
                        rest = tail;
                        break;
                    }
                }
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '{' if !in_class && !repetition(after) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    out
}

/// Whether what follows a brace makes it a repetition: `3}`, `3,}` or `3,5}`.
fn repetition(after: &str) -> bool {
    after.split_once('}').is_some_and(|(inside, _)| {
        let (from, to) = inside.split_once(',').unwrap_or((inside, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        !from.is_empty() && digits(from) && digits(to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_with_its_variables_operator_and_actions() {
        let parsed = parse(
            "# a comment\nSecRule ARGS|!ARGS:/^q,\\d|/|REQUEST_HEADERS:User-Agent|XML:/* \\\n  \"@rx (?i)a\\\"b[[{]{2}\" \\\n  \"id:7,phase:2,block,t:none,t:urlDecodeUni,t:lowercase,msg:'a, b',severity:'CRITICAL',\\\n  tag:'attack-x',tag:'paranoia-level/2',setvar:'tx.a=+%{tx.b}'\"\n",
            None,
        );
        assert_eq!(parsed.skipped, []);
        let [rule] = &parsed.rules[..] else {
            panic!("{parsed:?}");
        };
        assert_eq!((rule.id, rule.score, rule.paranoia), (7, 5, 2));
        assert_eq!(rule.message, "a, b");
        assert_eq!(
            rule.transforms,
            [Transform::UrlDecodeUni, Transform::Lowercase]
        );
        assert_eq!((rule.targets.len(), rule.except.len()), (4, 2));
        assert!(matches!(&rule.operator, Operator::Rx(regex) if regex.is_match(b"A\"B[{")));
    }

    #[test]
    fn what_is_not_understood_is_passed_over_whole_with_a_reason() {
        for (text, reason) in [
            (
                "SecRule ARGS \"@rx a\" \"id:1,deny,chain\"\nSecRule TX:1 \"@rx b\" \"t:none\"",
                "variable TX:1",
            ),
            (
                "SecRule ARGS \"@rx a\" \"id:1,deny,chain\"\nSecRule &ARGS \"@gt 5\" \"t:none\"",
                "variable &ARGS",
            ),
            (
                "SecRule &TX:MOST \"@eq 1\" \"id:1,deny,chain\"\nSecRule ARGS \"@rx b\" \"t:none\"",
                "never",
            ),
            (
                "SecRule ARGS \"@rx a\" \"id:1,deny,chain,setvar:'tx.a=%{ARGS.b}'\"\nSecRule TX:a \"@rx b\" \"\"",
                "macro %{ARGS.b}",
            ),
            ("SecRule TX:X \"@rx a\" \"id:1,deny\"", "variable TX"),
            ("SecRule &ARGS \"@gt 3\" \"id:1,deny\"", "variable &ARGS"),
            (
                "SecRule ARGS \"@rx a(?=b)\" \"id:1,deny\"",
                "expression: look-around",
            ),
            (
                "SecRule ARGS \"@geoLookup\" \"id:1,deny\"",
                "operator geoLookup",
            ),
            (
                "SecRule ARGS \"@rx a\" \"id:1,deny,t:sha1\"",
                "transformation sha1",
            ),
            ("SecRule ARGS \"@rx a\" \"id:1,deny,phase:4\"", "phase 4"),
            (
                "SecRule ARGS \"@rx a\" \"id:1,pass,nolog\"",
                "it decides nothing",
            ),
            ("SecRule ARGS \"@streq %{tx.a}\" \"id:1,deny\"", "macro"),
            ("SecRule ARGS \"@rx a\" \"deny\"", "it has no id"),
            (
                "SecRule ARGS \"@pmFromFile x.data\" \"id:1,deny\"",
                "a file in rules",
            ),
            ("SecAction \"id:1,pass\"", "directive secaction"),
        ] {
            let parsed = parse(text, None);
            assert!(parsed.rules.is_empty(), "{text}");
            let [skipped] = &parsed.skipped[..] else {
                panic!("{text}: {parsed:?}");
            };
            assert!(skipped.reason.starts_with(reason), "{skipped:?}");
        }
    }

    #[test]
    fn what_is_literal_in_pcre_stays_literal() {
        for (pattern, expected) in [
            (r"${a}{2,}", r"$\{a}{2,}"),
            (r"[^]a&&b]", r"[^\]a\&\&b]"),
            (r"[[:alpha:][]", r"[[:alpha:]\[]"),
            (r"\{\[x", r"\{\[x"),
        ] {
            assert_eq!(from_pcre(pattern), expected);
        }
    }
}
