//! The supported subset of SecLang.
//!
//! SecLang is the language of ModSecurity's and Coraza's rules, in which the OWASP Core Rule Set is written.
//!
//! ```text
//! SecRule VARIABLES "OPERATOR" "id:1,phase:2,block,t:none,t:lowercase,msg:'…',severity:'CRITICAL',tag:'…'"
//! ```
//!
//! A rule that needs more than is supported is skipped as a whole, with a reason, and never used in part: rules that count
//! arguments or sum up scores, that pass data to other rules, that inspect responses, or that only control other rules.
//! [`SkippedRule`] lists each.
//!
//! | element | supported |
//! |---|---|
//! | variables | those of [`Variable`], `VAR:name`, `VAR:/regex/`, `!VAR:name`, `&REQUEST_HEADERS:name` |
//! | variables in a chain | `TX:0` to `TX:9` and `TX:name` that the chain set, `MATCHED_VAR`, `MATCHED_VARS` and their names; `capture`, `setvar:tx.name=` |
//! | constants | `TX:name` in a chain and `%{tx.name}` where `SecAction`, or a rule that sets a default, defines it |
//! | macros | in a dependent link: `%{tx.name}`, `%{matched_var}`, `%{matched_var_name}`, `%{request_headers.name}` |
//! | operators | those of [`Operator`], and each with `!` |
//! | transformations | those of [`Transform`], and `none`; `multiMatch` |
//! | actions | `id`, `phase` 1 and 2, `block`, `deny`, `drop`, `pass`, `status`, `severity`, `tag`, `msg`; others that have no effect here are ignored |
//! | directives | `SecRule`; `SecAction` that sets constants; `SecRuleRemoveById` and `SecRuleUpdateTargetById` with numbers and ranges, the latter with exceptions only |

mod expression;
mod link;

use std::path::Path;

use regex::bytes::Regex;

use super::{
    chain::{DependentLink, LinkOperator, MacroTemplate, TransactionConstants},
    prefilter::PrefilterAtom,
    transform::Transform,
};
use link::RuleDirective;

pub(super) use expression::simple_operator;

/// A variable that rules inspect.
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
    /// The number of variables.
    pub(super) const COUNT: usize = Self::Xml as usize + 1;

    /// The variables that a SecLang name stands for.
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

/// Selects members of a collection.
#[derive(Clone, Debug)]
pub enum VariableSelector {
    /// All members.
    All,
    /// Members of this name, ignoring case.
    Name(String),
    /// Members whose name matches.
    Matching(Regex),
}

impl VariableSelector {
    /// Whether it selects the member of this name.
    #[must_use]
    pub fn takes(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Name(own) => own.as_bytes().eq_ignore_ascii_case(name),
            Self::Matching(regex) => regex.is_match(name),
        }
    }
}

/// An operator, which decides whether a value matches.
#[derive(Clone, Debug)]
pub enum Operator {
    /// The value matches a regular expression: `@rx`.
    Rx(Regex),
    /// The value contains one of these phrases, ignoring case: `@pm`, `@pmFromFile`.
    Pm(aho_corasick::AhoCorasick),
    /// `@contains`.
    Contains(Vec<u8>),
    /// `@beginsWith`.
    BeginsWith(Vec<u8>),
    /// `@endsWith`.
    EndsWith(Vec<u8>),
    /// `@streq`.
    Equals(Vec<u8>),
    /// The value is contained in this text: `@within`.
    Within(Vec<u8>),
    /// `@detectSQLi`.
    DetectSqli,
    /// `@detectXSS`.
    DetectXss,
    /// A byte is outside of this set: `@validateByteRange`.
    OutsideBytes(Box<[bool; 256]>),
    /// A percent sign is not followed by two hexadecimal digits: `@validateUrlEncoding`.
    BadUrlEncoding,
    /// The value as a number: `@eq`, `@ne`, `@gt`, `@ge`, `@lt`, `@le`.
    Number(NumberComparison, i64),
    /// Always matches.
    Unconditional,
}

/// How numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "SecLang's names")]
pub enum NumberComparison {
    Eq,
    Ge,
    Gt,
    Le,
    Lt,
}

/// Variables, each with the selected members.
pub type RuleTargets = Vec<(Variable, VariableSelector)>;

/// A rule as it is written.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its id.
    pub id: u64,
    /// The variables that it inspects.
    pub targets: RuleTargets,
    /// Exceptions from `targets`.
    pub except: RuleTargets,
    /// Header fields whose number it inspects.
    pub counts: Vec<String>,
    /// Transformations that are applied first.
    pub transforms: Vec<Transform>,
    /// Whether it is judged after each transformation, and not only after the last.
    pub multi_match: bool,
    /// Its operator.
    pub operator: Operator,
    /// Whether the operator is negated.
    pub negated: bool,
    /// Every match contains one of these.
    pub(super) atoms: Option<Vec<PrefilterAtom>>,
    /// Whether its captures are kept for dependent links, and the variables that it sets for them.
    pub(super) capture: bool,
    pub(super) sets: VariableAssignments,
    /// Links that look at what it found.
    pub(super) dependent_links: Vec<DependentLink>,
    /// Its position in a chain, if other links must match, too.
    pub(super) chain_position: Option<ChainPosition>,
    /// What it adds to the score of a request.
    pub score: u32,
    /// The status with which it blocks regardless of the score.
    pub deny: Option<u16>,
    /// The lowest paranoia level at which it applies, 1 to 4.
    pub paranoia: u8,
    /// Its message, for people.
    pub message: String,
    /// Such as `attack-sqli`.
    pub tags: Vec<String>,
}

/// Assignments to variables: names and values.
type VariableAssignments = Vec<(MacroTemplate, MacroTemplate)>;

/// The position of a link in a chain; the chain matches when all its links have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainPosition {
    /// The chain; numbered when all files are loaded.
    pub(super) chain: u32,
    /// The number of the link, and how many there are.
    pub(super) number: u8,
    pub(super) of: u8,
}

/// A rule that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedRule {
    /// Its id, if it has one.
    pub id: Option<u64>,
    /// The line of its file, from 1.
    pub line: usize,
    /// Why.
    pub reason: String,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub struct ParsedRules {
    /// The rules that are used.
    pub rules: Vec<Rule>,
    /// The rules that are not.
    pub skipped: Vec<SkippedRule>,
    /// Ranges of ids of rules that are removed, from and to.
    pub removed: Vec<(u64, u64)>,
    /// Further exceptions of rules: a range of ids, from and to, and the exceptions.
    pub excepted: Vec<(u64, u64, RuleTargets)>,
}

impl Rule {
    /// Header fields that its links refer to.
    pub(super) fn headers(&self) -> impl Iterator<Item = &str> {
        let judged = self
            .dependent_links
            .iter()
            .filter_map(|link| match &link.operator {
                LinkOperator::Expanded(_, template) => Some(template),
                LinkOperator::Fixed(_) => None,
            });
        let sets = self
            .sets
            .iter()
            .chain(self.dependent_links.iter().flat_map(|link| &link.sets));
        let templates = judged.chain(sets.map(|(_, value)| value));
        templates.flat_map(MacroTemplate::headers)
    }

    /// The numbers of transformations after which it is judged.
    pub(super) fn judged_after(&self) -> std::ops::RangeInclusive<usize> {
        let first = if self.multi_match {
            0
        } else {
            self.transforms.len()
        };
        first..=self.transforms.len()
    }
}

/// Parses the text of a file; `@pmFromFile` is relative to its directory.
#[must_use]
pub fn parse(text: &str, directory: Option<&Path>) -> ParsedRules {
    let mut constants = TransactionConstants::default();
    learn(text, &mut constants);
    parse_with(text, directory, &constants)
}

/// Collects the transaction variables that are constants.
pub(super) fn learn(text: &str, constants: &mut TransactionConstants) {
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

/// Whether a rule that sets a variable only sets its default.
fn is_default(variables: &str, operator: &str, name: &str) -> bool {
    let variable = variables.to_ascii_lowercase();
    let same = variable
        .strip_prefix("&tx:")
        .is_some_and(|own| own == name.to_ascii_lowercase());
    same && operator == "@eq 0"
}

/// The transaction variables that actions set, and their values.
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
/// Parses the text of a file with the constants of all files.
pub(super) fn parse_with(
    text: &str,
    directory: Option<&Path>,
    constants: &TransactionConstants,
) -> ParsedRules {
    let mut parsed = ParsedRules::default();
    let mut links: Vec<RuleDirective> = Vec::new();
    let mut begun = 0;
    let mut chains = 0;
    for (line, directive) in directives(text) {
        let words = words(&directive);
        let Some((name, arguments)) = words.split_first() else {
            continue;
        };
        let skip = |id, reason: String| SkippedRule { id, line, reason };
        match name.to_ascii_lowercase().as_str() {
            "secrule" => {
                if links.is_empty() {
                    begun = line;
                }
                let actions = arguments.get(2).map(|text| actions(text));
                links.push(RuleDirective {
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
                    [only] => {
                        link::rule(only, only, id, directory, constants).map(|rule| vec![rule])
                    }
                    all => link::chained(all, id, directory, constants, &mut chains),
                };
                match rules {
                    Ok(rules) => parsed.rules.extend(rules),
                    Err(reason) => parsed.skipped.push(SkippedRule {
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
                let more = arguments.get(1).map(|text| link::targets(text));
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
            // They have no effect here.
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

/// Each directive with the number of its first line; a backslash at the end of a line continues it.
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

/// Splits into words, and strings in double quotes in which `\"` is a quote.
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

/// Parses actions and their values, without the single quotes.
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

#[cfg(test)]
mod tests {
    use super::{expression::from_pcre, *};

    #[test]
    fn a_rule_is_parsed_with_its_variables_operator_and_actions() {
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
    fn an_unsupported_rule_is_skipped_as_a_whole_with_a_reason() {
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
            (r"[\x7f-\x{ff}]\x{b}", r"[\x7f-\xff]\x0b"),
        ] {
            assert_eq!(from_pcre(pattern), expected);
        }
    }
}
