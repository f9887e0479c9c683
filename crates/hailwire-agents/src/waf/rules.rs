//! The rules in force, prepared for searching, and their findings.
//!
//! A value goes through the transformations that the rules for its variable need. One search over the results
//! ([`super::search`]) finds the literals that rules cannot match without ([`super::prefilter`]); only rules with such a
//! literal, and the few that have none, are tried one by one.
//!
//! A rule counts once in a request, however often it matches: so the score does not depend on how a long value is divided
//! into windows.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    chain::{self, TransactionConstants},
    plan::TransformPlan,
    search::RuleSearch,
    seclang::{self, ChainPosition, Operator, Rule, SkippedRule, Variable},
    transform::Transform,
    unread::UnreadSet,
};

/// A value to be judged.
#[derive(Clone, Copy, Debug)]
pub struct InspectedValue<'a> {
    /// The variable that it belongs to.
    pub variable: Variable,
    /// Its name in a collection.
    pub name: &'a [u8],
    /// Its bytes, or a window of them.
    pub bytes: &'a [u8],
    /// Whether these are the first bytes of the value.
    pub first: bool,
}

/// What was found in a request so far.
#[derive(Clone, Debug, Default)]
pub struct RequestFindings {
    /// The sum of the rules' scores.
    pub score: u32,
    /// The status of a rule that blocks by itself.
    pub deny: Option<u16>,
    /// Indices of the rules that matched, in the order of their matches.
    pub matched: Vec<u32>,
    /// Kinds of unread content.
    pub unread: UnreadSet,
    /// Chains of which some links matched, with these links as bits.
    chains: Vec<(u32, u64)>,
    /// Header fields that rules refer to.
    headers: Vec<(String, String)>,
}

/// The rules in force.
pub struct RuleSet {
    rules: Vec<Rule>,
    /// The plan of each variable.
    plans: Vec<TransformPlan>,
    search: RuleSearch,
    /// Indices of rules on the number of header fields.
    counts: Vec<u32>,
    /// For each chain, the index of the rule that it counts as.
    chains: Vec<u32>,
    /// Header fields that rules refer to, in lower case.
    headers: BTreeSet<String>,
    report: RulesReport,
}

/// Which rules are in use and which were skipped.
#[derive(Clone, Debug, Default)]
pub struct RulesReport {
    /// Rules in force.
    pub used: usize,
    /// Rules above the configured paranoia level.
    pub above_paranoia: usize,
    /// Rules that are not supported, with their file.
    pub skipped: Vec<(String, SkippedRule)>,
}

impl RulesReport {
    /// How many rules were skipped for each kind of reason.
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
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No rule can be used.
    #[error("{path}: no usable rule ({skipped} are not supported)")]
    Empty {
        /// Where.
        path: PathBuf,
        /// How many rules were skipped.
        skipped: usize,
    },
    /// The search for the rules' literals cannot be built.
    #[error("cannot build a search for the rules: {0}")]
    Search(String),
}

/// The built-in rules.
const BUILT_IN_RULES: &str = include_str!("rules.conf");

impl RuleSet {
    /// The built-in rules, up to this paranoia level.
    ///
    /// # Errors
    ///
    /// [`RulesError::Search`], which the built-in rules do not cause.
    pub fn built_in(paranoia: u8) -> Result<Self, RulesError> {
        let mut report = RulesReport::default();
        let rules = select(
            vec![(
                "rules.conf".to_owned(),
                seclang::parse(BUILT_IN_RULES, None),
            )],
            paranoia,
            &mut report,
        );
        Self::build(rules, report)
    }

    /// The rules of a directory's `*.conf`, in the order of their names, or of one file, up to this paranoia level.
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
        let mut constants = TransactionConstants::default();
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
        let mut report = RulesReport::default();
        let rules = select(parsed, paranoia, &mut report);
        if rules.is_empty() {
            return Err(RulesError::Empty {
                path: path.to_owned(),
                skipped: report.skipped.len(),
            });
        }
        Self::build(rules, report)
    }

    /// Which rules are in use and which were skipped.
    #[must_use]
    pub fn report(&self) -> &RulesReport {
        &self.report
    }

    /// A rule by its index in [`RequestFindings::matched`].
    #[must_use]
    pub fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize)
    }

    fn build(rules: Vec<Rule>, report: RulesReport) -> Result<Self, RulesError> {
        let plan = |variable| {
            let mut chains: BTreeMap<Vec<Transform>, Vec<u32>> = BTreeMap::new();
            for (index, rule) in (0_u32..).zip(&rules) {
                if rule.targets.iter().any(|(v, _)| *v as usize == variable) {
                    for end in rule.judged_after() {
                        let chain = rule.transforms[..end].to_vec();
                        chains.entry(chain).or_default().push(index);
                    }
                }
            }
            TransformPlan::new(&rules, &chains)
        };
        // A chain counts as the first rule with its id.
        let mut chains = Vec::new();
        let mut firsts: BTreeMap<u64, u32> = BTreeMap::new();
        let mut headers = BTreeSet::new();
        for (index, rule) in (0_u32..).zip(&rules) {
            if let Some(ChainPosition { chain, .. }) = rule.chain_position {
                let first = *firsts.entry(rule.id).or_insert(index);
                if chains.len() <= chain as usize {
                    chains.resize(chain as usize + 1, first);
                }
                chains[chain as usize] = first;
            }
            headers.extend(rule.headers().map(str::to_owned));
        }
        let mut plans: Vec<TransformPlan> = (0..Variable::COUNT).map(plan).collect();
        let search = RuleSearch::new(&rules, &mut plans)
            .map_err(|error| RulesError::Search(error.to_string()))?;
        let counts = (0_u32..)
            .zip(&rules)
            .filter(|(_, rule)| !rule.counts.is_empty());
        let counts = counts.map(|(index, _)| index).collect();
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
    pub fn judge(&self, value: &InspectedValue<'_>, findings: &mut RequestFindings) {
        if let Some(plan) = self.plans.get(value.variable as usize) {
            let mut attempt = |index, bytes: &[u8]| {
                self.attempt(index, value, bytes, Operator::matches, findings);
            };
            self.search.each(plan, value.bytes, &mut attempt);
        }
    }

    /// Judges a value by every rule, without shortcuts: slow, and the reference for [`RuleSet::judge`].
    #[doc(hidden)]
    pub fn judge_without_shortcuts(
        &self,
        value: &InspectedValue<'_>,
        findings: &mut RequestFindings,
    ) {
        for (index, rule) in (0_u32..).zip(&self.rules) {
            for end in rule.judged_after() {
                let mut bytes = Cow::Borrowed(value.bytes);
                for transform in &rule.transforms[..end] {
                    bytes = Cow::Owned(transform.apply(&bytes).into_owned());
                }
                self.attempt(
                    index,
                    value,
                    &bytes,
                    Operator::matches_without_shortcuts,
                    findings,
                );
            }
        }
    }

    /// Judges the number of header fields by rules that count them.
    pub fn judge_counts(&self, count: impl Fn(&str) -> usize, findings: &mut RequestFindings) {
        for index in &self.counts {
            let Some(rule) = self.rule(*index) else {
                continue;
            };
            let hit = rule.counts.iter().any(|field| {
                let number = count(field).to_string();
                rule.operator.matches(number.as_bytes(), true) != rule.negated
            });
            if hit && !findings.has(*index, rule) {
                self.found(*index, rule, findings);
            }
        }
    }

    fn attempt(
        &self,
        index: u32,
        value: &InspectedValue<'_>,
        bytes: &[u8],
        matches: fn(&Operator, &[u8], bool) -> bool,
        findings: &mut RequestFindings,
    ) {
        let Some(rule) = self.rule(index) else {
            return;
        };
        if findings.has(index, rule) {
            return;
        }
        let meant = |(variable, selector): &(Variable, seclang::VariableSelector)| {
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
                &rule.dependent_links,
                judged,
                &rule.sets,
                value,
                bytes,
                &findings.headers,
            )
        };
        if rule.dependent_links.is_empty() || follows() {
            self.found(index, rule, findings);
        }
    }

    /// Records that a rule, or a link of a chain, matched.
    fn found(&self, index: u32, rule: &Rule, findings: &mut RequestFindings) {
        let index = match rule.chain_position {
            None => index,
            Some(position) if findings.complete(position) => self.chains[position.chain as usize],
            Some(_) => return,
        };
        findings.add(index, rule);
    }

    /// Keeps the header fields of a request that rules refer to.
    pub fn keep_headers<'a>(
        &self,
        get: impl Fn(&str) -> Option<&'a str>,
        findings: &mut RequestFindings,
    ) {
        for name in &self.headers {
            if let Some(value) = get(name) {
                let most = value.floor_char_boundary(MAX_KEPT_HEADER);
                findings
                    .headers
                    .push((name.clone(), value[..most].to_owned()));
            }
        }
    }

    /// The ids and messages of the rules that matched, for logs.
    #[must_use]
    pub fn explain(&self, findings: &RequestFindings) -> String {
        let mut text = String::new();
        for rule in findings
            .matched
            .iter()
            .filter_map(|index| self.rule(*index))
        {
            let comma = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{comma}{} {}", rule.id, rule.message);
        }
        text
    }
}

/// The rules that are not removed and not above the paranoia level.
fn select(
    files: Vec<(String, seclang::ParsedRules)>,
    paranoia: u8,
    report: &mut RulesReport,
) -> Vec<Rule> {
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
            .filter_map(|rule: &Rule| rule.chain_position)
            .map(|position| position.chain + 1)
            .max();
        rules.extend(parsed.rules.into_iter().map(|mut rule| {
            if let Some(position) = &mut rule.chain_position {
                position.chain += chains.unwrap_or(0);
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
            // Of a chain, only the first link.
            .filter(|rule| {
                rule.chain_position
                    .is_none_or(|position| position.number == 0)
            })
        {
            rule.except.extend(except.iter().cloned());
        }
    }
    // The links of a chain are one rule.
    let count = |rules: &[Rule]| {
        let (parts, whole): (Vec<&Rule>, Vec<&Rule>) =
            rules.iter().partition(|r| r.chain_position.is_some());
        whole.len()
            + parts
                .iter()
                .map(|position| position.id)
                .collect::<BTreeSet<_>>()
                .len()
    };
    let all = count(&rules);
    rules.retain(|rule| rule.paranoia <= paranoia);
    report.used = count(&rules);
    report.above_paranoia = all - report.used;
    rules
}

/// The most bytes of a header field that are kept.
const MAX_KEPT_HEADER: usize = 256;

impl RequestFindings {
    /// Whether a rule, or this link of a chain, matched already.
    fn has(&self, index: u32, rule: &Rule) -> bool {
        match rule.chain_position {
            None => self.matched.contains(&index),
            Some(position) => {
                let known = self
                    .chains
                    .iter()
                    .find(|(chain, _)| *chain == position.chain);
                known.is_some_and(|(_, parts)| parts >> position.number & 1 != 0)
            }
        }
    }

    /// Records a link of a chain; returns whether all links have matched now.
    fn complete(&mut self, position: ChainPosition) -> bool {
        let at = self
            .chains
            .iter()
            .position(|(chain, _)| *chain == position.chain);
        let at = at.unwrap_or_else(|| {
            self.chains.push((position.chain, 0));
            self.chains.len() - 1
        });
        let parts = &mut self.chains[at].1;
        *parts |= 1 << position.number;
        parts.count_ones() == u32::from(position.of)
    }

    fn add(&mut self, index: u32, rule: &Rule) {
        if self.matched.contains(&index) {
            return;
        }
        self.matched.push(index);
        self.score = self.score.saturating_add(rule.score);
        self.deny = self.deny.or(rule.deny);
    }
}
