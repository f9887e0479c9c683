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
    let mut parsed = Parsed::default();
    let mut in_chain = false;
    for (line, directive) in directives(text) {
        let words = words(&directive);
        let Some((name, arguments)) = words.split_first() else {
            continue;
        };
        let skip = |id, reason: String| Skipped { id, line, reason };
        match name.to_ascii_lowercase().as_str() {
            "secrule" => {
                let actions = arguments
                    .get(2)
                    .map(|text| actions(text))
                    .unwrap_or_default();
                let chained = actions.iter().any(|(name, _)| name == "chain");
                let id = actions.iter().find(|(name, _)| name == "id");
                let id = id.and_then(|(_, id)| id.parse().ok());
                let begun = std::mem::replace(&mut in_chain, chained);
                if begun {
                    continue;
                }
                if chained {
                    parsed.skipped.push(skip(id, "chain".to_owned()));
                    continue;
                }
                match rule(arguments, &actions, id, directory) {
                    Ok(rule) => parsed.rules.push(rule),
                    Err(reason) => parsed.skipped.push(skip(id, reason)),
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

fn rule(
    arguments: &[String],
    actions: &[(String, String)],
    id: Option<u64>,
    directory: Option<&Path>,
) -> Result<Rule, String> {
    let [variables, operator, ..] = arguments else {
        return Err("it has no operator".to_owned());
    };
    let id = id.ok_or("it has no id")?;
    let value = |wanted: &str| {
        actions
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    };
    let has = |wanted: &str| value(wanted).is_some();
    match value("phase") {
        Some("1" | "2" | "request") | None => {}
        Some(phase) => return Err(format!("phase {phase}")),
    }
    let severity = match value("severity").map(str::to_ascii_uppercase).as_deref() {
        Some("CRITICAL" | "2" | "1" | "0" | "ALERT" | "EMERGENCY") => 5,
        Some("ERROR" | "3") => 4,
        Some("WARNING" | "4") => 3,
        Some("NOTICE" | "5") => 2,
        Some(_) => 0,
        None => 0,
    };
    let deny = (has("deny") || has("drop"))
        .then(|| value("status").and_then(|s| s.parse().ok()).unwrap_or(403));
    if deny.is_none() && severity == 0 {
        return Err("it decides nothing: no severity, no deny".to_owned());
    }
    let (targets, except, counts) = targets(variables)?;
    let (operator, negated, signs) = parse_operator(operator, directory)?;
    let mut transforms = Vec::new();
    for (_, name) in actions.iter().filter(|(name, _)| name == "t") {
        match name.as_str() {
            "none" => transforms.clear(),
            _ => transforms
                .push(Transform::named(name).ok_or_else(|| format!("transformation {name}"))?),
        }
    }
    let tags: Vec<String> = actions
        .iter()
        .filter(|(name, _)| name == "tag")
        .map(|(_, tag)| tag.clone())
        .collect();
    let paranoia = tags
        .iter()
        .find_map(|tag| tag.strip_prefix("paranoia-level/")?.parse().ok());
    Ok(Rule {
        id,
        targets,
        except,
        counts,
        transforms,
        multi_match: has("multimatch"),
        operator,
        negated,
        signs: signs.filter(|_| !negated),
        score: if has("pass") { 0 } else { severity },
        deny,
        paranoia: paranoia.unwrap_or(1),
        message: value("msg").unwrap_or_default().to_owned(),
        tags,
    })
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
                "SecRule ARGS \"@rx a\" \"id:1,deny,chain\"\nSecRule ARGS \"@rx b\" \"t:none\"",
                "chain",
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
