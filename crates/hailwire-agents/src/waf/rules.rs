//! The rules in force, arranged for search, and what they find.
//!
//! A value goes through each chain of transformations that some rule for its variable wants, once. One search over
//! the outcome finds the literals that rules cannot match without ([`super::literals`]); only rules whose literal
//! is there, and the few that have none, are tried one by one.
//!
//! A rule counts once in a request, however often it matches: so the score does not depend on how a long value
//! is cut into windows.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};
use thiserror::Error;

use super::{
    seclang::{self, Comparison, Operator, Rule, Skipped, Variable},
    transform::Transform,
};

/// A value to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// What it is.
    pub variable: Variable,
    /// Which member of a collection.
    pub name: &'a [u8],
    /// Its bytes, or a window of them.
    pub bytes: &'a [u8],
    /// Whether these are its first bytes.
    pub first: bool,
}

/// What was found in a request so far.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The sum of the rules' scores.
    pub score: u32,
    /// The status of a rule that blocks by itself.
    pub deny: Option<u16>,
    /// The rules that matched, in the order in which they did.
    pub matched: Vec<u32>,
}

/// The rules in force.
pub struct RuleSet {
    rules: Vec<Rule>,
    /// For each variable.
    plans: Vec<Vec<Arc<Group>>>,
    /// Rules on the number of header fields.
    counts: Vec<u32>,
    report: Report,
}

/// What became of the rules that were read.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Rules in force.
    pub used: usize,
    /// Rules of a higher paranoia than is set.
    pub above_paranoia: usize,
    /// Rules that are not understood, with their file.
    pub skipped: Vec<(String, Skipped)>,
}

impl Report {
    /// How many rules are skipped for each kind of reason.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<String, usize> {
        let mut reasons = BTreeMap::new();
        for (_, skipped) in &self.skipped {
            let kind = skipped.reason.split(':').next().unwrap_or_default();
            *reasons.entry(kind.to_owned()).or_default() += 1;
        }
        reasons
    }
}

/// Rules that cannot be loaded.
#[derive(Debug, Error)]
pub enum RulesError {
    /// A directory or file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no rule to use.
    #[error("{path}: no rule there can be used ({skipped} are not understood)")]
    Empty {
        /// Where.
        path: PathBuf,
        /// How many were passed over.
        skipped: usize,
    },
    /// Literals that no search can be built for.
    #[error("the rules' literals: {0}")]
    Search(String),
}

/// Rules for one variable with the same transformations.
struct Group {
    transforms: Vec<Transform>,
    /// Those that are always tried.
    always: Vec<u32>,
    search: Option<Search>,
}

struct Search {
    automaton: AhoCorasick,
    /// For each literal, the rules that it is one of.
    rules: Vec<Vec<u32>>,
}

/// The rules that come with the house.
const OWN: &str = include_str!("rules.conf");

impl RuleSet {
    /// The rules that come with the house, up to this paranoia.
    ///
    /// # Errors
    ///
    /// [`RulesError::Search`], which they do not cause.
    pub fn own(paranoia: u8) -> Result<Self, RulesError> {
        let mut report = Report::default();
        let rules = select(
            vec![("rules.conf".to_owned(), seclang::parse(OWN, None))],
            paranoia,
            &mut report,
        );
        Self::build(rules, report)
    }

    /// The rules of a directory's `*.conf`, in the order of their names, or of one file, up to this paranoia.
    ///
    /// # Errors
    ///
    /// [`RulesError`].
    pub fn load(path: &Path, paranoia: u8) -> Result<Self, RulesError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| RulesError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let mut files = Vec::new();
        if path.is_dir() {
            let unreadable = |source| RulesError::Read {
                path: path.to_owned(),
                source,
            };
            for entry in std::fs::read_dir(path).map_err(unreadable)? {
                let file = entry.map_err(unreadable)?.path();
                if file
                    .extension()
                    .is_some_and(|extension| extension == "conf")
                {
                    files.push(file);
                }
            }
            files.sort();
        } else {
            files.push(path.to_owned());
        }
        let mut parsed = Vec::new();
        for file in &files {
            let name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            parsed.push((name, seclang::parse(&read(file)?, file.parent())));
        }
        let mut report = Report::default();
        let rules = select(parsed, paranoia, &mut report);
        if rules.is_empty() {
            return Err(RulesError::Empty {
                path: path.to_owned(),
                skipped: report.skipped.len(),
            });
        }
        Self::build(rules, report)
    }

    /// What became of the rules that were read.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// A rule by its place in [`Findings::matched`].
    #[must_use]
    pub fn rule(&self, place: u32) -> Option<&Rule> {
        self.rules.get(place as usize)
    }

    fn build(rules: Vec<Rule>, report: Report) -> Result<Self, RulesError> {
        let mut plans = Vec::with_capacity(Variable::COUNT);
        let mut known: BTreeMap<(Vec<Transform>, Vec<u32>), Arc<Group>> = BTreeMap::new();
        for variable in 0..Variable::COUNT {
            let mut chains: BTreeMap<Vec<Transform>, Vec<u32>> = BTreeMap::new();
            for (place, rule) in (0_u32..).zip(&rules) {
                if rule.targets.iter().any(|(v, _)| *v as usize == variable) {
                    let steps = if rule.multi_match {
                        0
                    } else {
                        rule.transforms.len()
                    };
                    for end in steps..=rule.transforms.len() {
                        chains
                            .entry(rule.transforms[..end].to_vec())
                            .or_default()
                            .push(place);
                    }
                }
            }
            let mut groups = Vec::new();
            for (transforms, places) in chains {
                let group = match known.get(&(transforms.clone(), places.clone())) {
                    Some(group) => Arc::clone(group),
                    None => {
                        let group = Arc::new(Group::build(&rules, transforms.clone(), &places)?);
                        known.insert((transforms, places), Arc::clone(&group));
                        group
                    }
                };
                groups.push(group);
            }
            plans.push(groups);
        }
        let counts = (0_u32..)
            .zip(&rules)
            .filter(|(_, rule)| !rule.counts.is_empty());
        let counts = counts.map(|(place, _)| place).collect();
        Ok(Self {
            rules,
            plans,
            counts,
            report,
        })
    }

    /// Judges a value.
    pub fn judge(&self, value: &Value<'_>, findings: &mut Findings) {
        let Some(groups) = self.plans.get(value.variable as usize) else {
            return;
        };
        // The last chain's outcomes, step by step: chains come in order, so the next one begins mostly alike.
        let mut done: Vec<(Transform, Option<Vec<u8>>)> = Vec::new();
        let mut tried = Vec::new();
        for group in groups {
            let same = done
                .iter()
                .zip(&group.transforms)
                .take_while(|(a, b)| a.0 == **b)
                .count();
            done.truncate(same);
            for transform in &group.transforms[same..] {
                let after = match transform.apply(latest(&done, value.bytes)) {
                    Cow::Borrowed(part) if part.len() == latest(&done, value.bytes).len() => None,
                    changed => Some(changed.into_owned()),
                };
                done.push((*transform, after));
            }
            let bytes = latest(&done, value.bytes);
            tried.clear();
            group.candidates(bytes, &mut tried);
            for place in &tried {
                self.attempt(*place, value, bytes, findings);
            }
        }
    }

    /// Judges how many header fields of a name there are.
    pub fn judge_counts(&self, count: impl Fn(&str) -> usize, findings: &mut Findings) {
        for place in &self.counts {
            let Some(rule) = self.rule(*place) else {
                continue;
            };
            let hit = rule.counts.iter().any(|field| {
                let number = count(field).to_string();
                rule.operator.matches(number.as_bytes(), true) != rule.negated
            });
            if hit {
                findings.add(*place, rule);
            }
        }
    }

    fn attempt(&self, place: u32, value: &Value<'_>, bytes: &[u8], findings: &mut Findings) {
        let Some(rule) = self.rule(place) else {
            return;
        };
        if findings.matched.contains(&place) {
            return;
        }
        let meant = |(variable, selector): &(Variable, seclang::Selector)| {
            *variable == value.variable && selector.takes(value.name)
        };
        if !rule.targets.iter().any(meant) || rule.except.iter().any(meant) {
            return;
        }
        if rule.operator.matches(bytes, value.first) != rule.negated {
            findings.add(place, rule);
        }
    }

    /// In words, for logs: the ids and messages of what matched.
    #[must_use]
    pub fn explain(&self, findings: &Findings) -> String {
        let mut text = String::new();
        for rule in findings
            .matched
            .iter()
            .filter_map(|place| self.rule(*place))
        {
            let comma = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{comma}{} {}", rule.id, rule.message);
        }
        text
    }
}

/// The value after the last transformation that changed something.
fn latest<'a>(done: &'a [(Transform, Option<Vec<u8>>)], value: &'a [u8]) -> &'a [u8] {
    done.iter()
        .rev()
        .find_map(|(_, after)| after.as_deref())
        .unwrap_or(value)
}

/// Those that are not removed and not above the paranoia.
fn select(files: Vec<(String, seclang::Parsed)>, paranoia: u8, report: &mut Report) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut removed = Vec::new();
    let mut excepted = Vec::new();
    for (name, parsed) in files {
        report.skipped.extend(
            parsed
                .skipped
                .into_iter()
                .map(|skipped| (name.clone(), skipped)),
        );
        removed.extend(parsed.removed);
        excepted.extend(parsed.excepted);
        rules.extend(parsed.rules);
    }
    rules.retain(|rule| {
        !removed
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&rule.id))
    });
    for (from, to, except) in excepted {
        for rule in rules
            .iter_mut()
            .filter(|rule: &&mut Rule| (from..=to).contains(&rule.id))
        {
            rule.except.extend(except.iter().cloned());
        }
    }
    let all = rules.len();
    rules.retain(|rule| rule.paranoia <= paranoia);
    report.above_paranoia = all - rules.len();
    report.used = rules.len();
    rules
}

impl Findings {
    fn add(&mut self, place: u32, rule: &Rule) {
        if self.matched.contains(&place) {
            return;
        }
        self.matched.push(place);
        self.score = self.score.saturating_add(rule.score);
        self.deny = self.deny.or(rule.deny);
    }
}

impl Group {
    fn build(
        rules: &[Rule],
        transforms: Vec<Transform>,
        places: &[u32],
    ) -> Result<Self, RulesError> {
        let mut always = Vec::new();
        let mut literals: BTreeMap<&[u8], Vec<u32>> = BTreeMap::new();
        for place in places {
            match rules
                .get(*place as usize)
                .and_then(|rule| rule.literals.as_ref())
            {
                Some(own) => {
                    for literal in own {
                        literals.entry(literal).or_default().push(*place);
                    }
                }
                None => always.push(*place),
            }
        }
        let search = if literals.is_empty() {
            None
        } else {
            let automaton = AhoCorasickBuilder::new()
                .ascii_case_insensitive(true)
                .match_kind(MatchKind::Standard)
                .build(literals.keys())
                .map_err(|error| RulesError::Search(error.to_string()))?;
            Some(Search {
                automaton,
                rules: literals.into_values().collect(),
            })
        };
        Ok(Self {
            transforms,
            always,
            search,
        })
    }

    /// The rules that are worth trying.
    fn candidates(&self, bytes: &[u8], tried: &mut Vec<u32>) {
        tried.extend_from_slice(&self.always);
        let Some(search) = &self.search else {
            return;
        };
        for found in search.automaton.find_overlapping_iter(bytes) {
            if let Some(places) = search.rules.get(found.pattern().as_usize()) {
                for place in places {
                    if !tried.contains(place) {
                        tried.push(*place);
                    }
                }
            }
        }
    }
}

impl Operator {
    /// Whether a value, or a window of one, matches.
    fn matches(&self, value: &[u8], first: bool) -> bool {
        match self {
            Self::Rx(regex) => regex.is_match(value),
            Self::Pm(search) => search.is_match(value),
            Self::Contains(part) => memchr::memmem::find(value, part).is_some(),
            Self::BeginsWith(part) => first && value.starts_with(part),
            Self::EndsWith(part) => value.ends_with(part),
            Self::Equals(whole) => first && value == &whole[..],
            Self::Within(text) => memchr::memmem::find(text, value).is_some(),
            Self::DetectSqli => first && sqli(value),
            Self::DetectXss => xss(value),
            Self::OutsideBytes(allowed) => value.iter().any(|byte| !allowed[usize::from(*byte)]),
            Self::BadUrlEncoding => bad_url_encoding(value),
            Self::Number(how, wanted) => {
                let text = String::from_utf8_lossy(value);
                let number = text.trim().parse::<i64>().unwrap_or(0);
                match how {
                    Comparison::Eq => number == *wanted,
                    Comparison::Ge => number >= *wanted,
                    Comparison::Gt => number > *wanted,
                    Comparison::Le => number <= *wanted,
                    Comparison::Lt => number < *wanted,
                }
            }
            Self::Unconditional => true,
        }
    }
}

/// libinjection judges the first few tokens of a value. A value of one word cannot be an injection.
fn sqli(value: &[u8]) -> bool {
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    !value.iter().all(word) && guarded(|| libinjectionrs::detect_sqli(value).is_injection())
}

fn xss(value: &[u8]) -> bool {
    // Every form that it knows has one of these.
    memchr::memchr3(b'<', b'=', b'`', value).is_some()
        && guarded(|| libinjectionrs::detect_xss(value).is_injection())
}

/// A detector that breaks on a value has not found it harmless.
pub(super) fn guarded(detect: impl Fn() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(detect)).unwrap_or(true)
}

fn bad_url_encoding(value: &[u8]) -> bool {
    memchr::memchr_iter(b'%', value).any(|at| {
        let digits = value.get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}
