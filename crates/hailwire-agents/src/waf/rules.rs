//! The rules in force, arranged for search, and what they find.
//!
//! A value goes through the chains of transformations that rules for its variable want. One search over what comes
//! out ([`super::search`]) finds the literals that rules cannot match without ([`super::literals`]); only rules whose
//! literal is there, and the few that have none, are tried one by one.
//!
//! A rule counts once in a request, however often it matches: so the score does not depend on how a long value
//! is cut into windows.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    chain::{self, Constants},
    plan::Plan,
    search::Search,
    seclang::{self, Operator, Part, Rule, Skipped, Variable},
    transform::Transform,
    unread::UnreadSet,
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
    /// What is not read.
    pub unread: UnreadSet,
    /// Chains of which some parts matched: which, as bits.
    parts: Vec<(u32, u64)>,
    /// Header fields that rules compare with.
    headers: Vec<(String, String)>,
}

/// The rules in force.
pub struct RuleSet {
    rules: Vec<Rule>,
    /// For each variable.
    plans: Vec<Plan>,
    search: Search,
    /// Rules on the number of header fields.
    counts: Vec<u32>,
    /// For each chain, the rule that it counts as.
    chains: Vec<u32>,
    /// Header fields that rules compare with, in lower case.
    headers: BTreeSet<String>,
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
        let texts = files
            .iter()
            .map(|file| read(file))
            .collect::<Result<Vec<_>, _>>()?;
        let mut constants = Constants::default();
        texts
            .iter()
            .for_each(|text| seclang::learn(text, &mut constants));
        let mut parsed = Vec::new();
        for (file, text) in files.iter().zip(&texts) {
            let name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            parsed.push((name, seclang::parse_with(text, file.parent(), &constants)));
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
        let plan = |variable| {
            let mut chains: BTreeMap<Vec<Transform>, Vec<u32>> = BTreeMap::new();
            for (place, rule) in (0_u32..).zip(&rules) {
                if rule.targets.iter().any(|(v, _)| *v as usize == variable) {
                    for end in rule.judged_after() {
                        let chain = rule.transforms[..end].to_vec();
                        chains.entry(chain).or_default().push(place);
                    }
                }
            }
            Plan::new(&rules, &chains)
        };
        // The first with a number stands for all of them.
        let mut chains = Vec::new();
        let mut firsts: BTreeMap<u64, u32> = BTreeMap::new();
        let mut headers = BTreeSet::new();
        for (place, rule) in (0_u32..).zip(&rules) {
            if let Some(Part { chain, .. }) = rule.part {
                let first = *firsts.entry(rule.id).or_insert(place);
                if chains.len() <= chain as usize {
                    chains.resize(chain as usize + 1, first);
                }
                chains[chain as usize] = first;
            }
            headers.extend(rule.headers().map(str::to_owned));
        }
        let mut plans: Vec<Plan> = (0..Variable::COUNT).map(plan).collect();
        let search = Search::new(&rules, &mut plans)
            .map_err(|error| RulesError::Search(error.to_string()))?;
        let counts = (0_u32..)
            .zip(&rules)
            .filter(|(_, rule)| !rule.counts.is_empty());
        let counts = counts.map(|(place, _)| place).collect();
        Ok(Self {
            rules,
            plans,
            search,
            counts,
            chains,
            headers,
            report,
        })
    }

    /// Judges a value.
    pub fn judge(&self, value: &Value<'_>, findings: &mut Findings) {
        if let Some(plan) = self.plans.get(value.variable as usize) {
            let mut attempt = |place, bytes: &[u8]| {
                self.attempt(place, value, bytes, Operator::matches, findings);
            };
            self.search.each(plan, value.bytes, &mut attempt);
        }
    }

    /// Judges a value by every rule, with no short cut: slow, and what [`RuleSet::judge`] has to agree with.
    #[doc(hidden)]
    pub fn judge_plainly(&self, value: &Value<'_>, findings: &mut Findings) {
        for (place, rule) in (0_u32..).zip(&self.rules) {
            for end in rule.judged_after() {
                let mut bytes = Cow::Borrowed(value.bytes);
                for transform in &rule.transforms[..end] {
                    bytes = Cow::Owned(transform.apply(&bytes).into_owned());
                }
                self.attempt(place, value, &bytes, Operator::matches_plainly, findings);
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
            if hit && !findings.has(*place, rule) {
                self.found(*place, rule, findings);
            }
        }
    }

    fn attempt(
        &self,
        place: u32,
        value: &Value<'_>,
        bytes: &[u8],
        matches: fn(&Operator, &[u8], bool) -> bool,
        findings: &mut Findings,
    ) {
        let Some(rule) = self.rule(place) else {
            return;
        };
        if findings.has(place, rule) {
            return;
        }
        let meant = |(variable, selector): &(Variable, seclang::Selector)| {
            *variable == value.variable && selector.takes(value.name)
        };
        if !rule.targets.iter().any(meant) || rule.except.iter().any(meant) {
            return;
        }
        if matches(&rule.operator, bytes, value.first) == rule.negated {
            return;
        }
        let judged = (&rule.operator, rule.negated, rule.capture);
        let follows = || {
            chain::follow(
                &rule.then,
                judged,
                &rule.sets,
                value,
                bytes,
                &findings.headers,
            )
        };
        if rule.then.is_empty() || follows() {
            self.found(place, rule, findings);
        }
    }

    /// A rule matched, or a part of one.
    fn found(&self, place: u32, rule: &Rule, findings: &mut Findings) {
        let place = match rule.part {
            None => place,
            Some(part) if findings.complete(part) => self.chains[part.chain as usize],
            Some(_) => return,
        };
        findings.add(place, rule);
    }

    /// Keeps the header fields of a request that rules compare with.
    pub fn keep_headers<'a>(&self, get: impl Fn(&str) -> Option<&'a str>, findings: &mut Findings) {
        for name in &self.headers {
            if let Some(value) = get(name) {
                let most = value.floor_char_boundary(HEADER);
                findings
                    .headers
                    .push((name.clone(), value[..most].to_owned()));
            }
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
        // Each file numbers its chains from 0.
        let chains = rules
            .iter()
            .filter_map(|rule: &Rule| rule.part)
            .map(|part| part.chain + 1)
            .max();
        rules.extend(parsed.rules.into_iter().map(|mut rule| {
            if let Some(part) = &mut rule.part {
                part.chain += chains.unwrap_or(0);
            }
            rule
        }));
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
            // Of a chain the first link is meant.
            .filter(|rule| rule.part.is_none_or(|part| part.number == 0))
        {
            rule.except.extend(except.iter().cloned());
        }
    }
    // The parts of a chain are one rule.
    let count = |rules: &[Rule]| {
        let (parts, whole): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|r| r.part.is_some());
        whole.len()
            + parts
                .iter()
                .map(|part| part.id)
                .collect::<BTreeSet<_>>()
                .len()
    };
    let all = count(&rules);
    rules.retain(|rule| rule.paranoia <= paranoia);
    report.used = count(&rules);
    report.above_paranoia = all - report.used;
    rules
}

/// How much of a header field is kept.
const HEADER: usize = 256;

impl Findings {
    /// Whether a rule or this part of it matched already.
    fn has(&self, place: u32, rule: &Rule) -> bool {
        match rule.part {
            None => self.matched.contains(&place),
            Some(part) => {
                let known = self.parts.iter().find(|(chain, _)| *chain == part.chain);
                known.is_some_and(|(_, parts)| parts >> part.number & 1 != 0)
            }
        }
    }

    /// Notes a part of a chain; whether all are there now.
    fn complete(&mut self, part: Part) -> bool {
        let at = self
            .parts
            .iter()
            .position(|(chain, _)| *chain == part.chain);
        let at = at.unwrap_or_else(|| {
            self.parts.push((part.chain, 0));
            self.parts.len() - 1
        });
        let parts = &mut self.parts[at].1;
        *parts |= 1 << part.number;
        parts.count_ones() == u32::from(part.of)
    }

    fn add(&mut self, place: u32, rule: &Rule) {
        if self.matched.contains(&place) {
            return;
        }
        self.matched.push(place);
        self.score = self.score.saturating_add(rule.score);
        self.deny = self.deny.or(rule.deny);
    }
}
