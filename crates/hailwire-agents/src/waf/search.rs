//! Finds the rules that are worth trying on a value, in few passes over it.
//!
//! A value goes down the tree of its variable's [`TransformPlan`]; a step that cannot change it, by its [`ByteClassSet`], costs
//! nothing, and all rules whose transformations produce the same bytes share one search for the literals of all rules. That
//! search ignores case and the amount of white space, so lower-case text is only made for a rule that is tried, and
//! compressed white space needs no search of its own.
//!
//! Only rules that cannot match are skipped; [`super::rules::RuleSet::judge_without_shortcuts`] skips none, and tests
//! compare the two.

use std::{borrow::Cow, cell::RefCell, collections::BTreeMap};

use aho_corasick::BuildError;

use super::{
    automaton::{LiteralAutomaton, fold},
    byte_classes::{ByteClassSet, is_word},
    plan::{RequiredClasses, RuleIndexSet, TransformPlan, WantedRules},
    prefilter::AtomBoundary,
    seclang::Rule,
    transform::Transform,
};

/// A search for the literals of all rules.
pub(super) struct RuleSearch {
    /// First the literals of all rules, then groups of few rules.
    literals: Vec<LiteralGroup>,
    rules: usize,
}

/// Literals that are searched for in one pass.
#[derive(Default)]
struct LiteralGroup {
    automata: Vec<LiteralAutomaton>,
    /// For each literal, its length and the rules that it belongs to.
    candidates: Vec<(usize, Vec<CandidateRule>)>,
}

#[derive(PartialEq)]
struct CandidateRule {
    index: u32,
    before: AtomBoundary,
    after: AtomBoundary,
    classes: RequiredClasses,
}

/// Bytes of a literal that are searched for; more would hardly make it rarer.
const MAX_SEARCHED_BYTES: usize = 7;
/// Bytes of literals up to which a set of rules gets a group of its own, whose automaton stays in the cache.
const MAX_OWN_SEARCH_BYTES: usize = 512;

impl RuleSearch {
    /// A search for these rules; sets the literal groups of the plans.
    pub(super) fn new(rules: &[Rule], plans: &mut [TransformPlan]) -> Result<Self, BuildError> {
        let mut all = RuleIndexSet::none(rules.len());
        for (index, _) in (0_u32..).zip(rules) {
            all.insert(index);
        }
        let mut literals = vec![LiteralGroup::new(rules, &all)?.0];
        let mut known: BTreeMap<RuleIndexSet, usize> = BTreeMap::new();
        let mut of = |wanted: &WantedRules| {
            let mut indices = wanted.plain.clone();
            indices.extend(&wanted.lower);
            if let Some(known) = known.get(&indices) {
                return Ok(*known);
            }
            let (some, bytes) = LiteralGroup::new(rules, &indices)?;
            let own = if bytes <= MAX_OWN_SEARCH_BYTES {
                literals.push(some);
                literals.len() - 1
            } else {
                0
            };
            known.insert(indices, own);
            Ok(own)
        };
        for plan in plans {
            plan.literals = of(&plan.all)?;
            for step in &mut plan.steps {
                step.literals = of(&step.wanted)?;
            }
        }
        let rules = rules.len();
        Ok(Self { literals, rules })
    }

    /// Calls `attempt` with every rule that may match, and the bytes to try it on.
    pub(super) fn each(
        &self,
        plan: &TransformPlan,
        value: &[u8],
        attempt: &mut impl FnMut(u32, &[u8]),
    ) {
        SCRATCH.with_borrow_mut(|scratch| {
            let classes = ByteClassSet::of(value);
            scratch.begin(classes, self.rules);
            if classes.any(plan.changes) {
                scratch.transform(plan, value, self.rules);
            } else {
                scratch.texts[0].literals = Some(plan.literals);
                scratch.wanted[0].copy(&plan.all);
            }
            for text in 0..scratch.texts.len() {
                if scratch.texts[text].like == text {
                    self.candidates(plan, text, value, scratch, attempt);
                }
            }
            // Long texts are not kept.
            scratch.texts.clear();
        });
    }

    /// The rules for a text, and for the texts that share its search.
    fn candidates(
        &self,
        plan: &TransformPlan,
        first: usize,
        value: &[u8],
        scratch: &mut SearchScratch,
        attempt: &mut impl FnMut(u32, &[u8]),
    ) {
        let SearchScratch {
            texts,
            wanted,
            lower,
            ..
        } = scratch;
        let texts = &texts[..];
        // The classes in any of them.
        let like = texts.iter().filter(|text| text.like == first);
        let classes = like.fold(ByteClassSet::NONE, |classes, text| classes.or(text.classes));
        let mut tried = |index: u32, needed: &RequiredClasses| {
            for (at, text) in texts.iter().enumerate().skip(first) {
                if text.like != first || !needed.met(text.classes) {
                    continue;
                }
                if wanted[at].plain.take(index) {
                    attempt(index, text.bytes(value));
                }
                if wanted[at].lower.take(index) {
                    if text.classes.any(ByteClassSet::UPPER) {
                        let make = || text.bytes(value).to_ascii_lowercase();
                        attempt(index, lower[at].get_or_insert_with(make));
                    } else {
                        attempt(index, text.bytes(value));
                    }
                }
            }
        };
        for (index, needed) in &plan.unsearched {
            if needed.met(classes) {
                tried(*index, needed);
            }
        }
        let Some(literals) = texts[first].literals.map(|at| &self.literals[at]) else {
            return;
        };
        let bytes = texts[first].bytes(value);
        let mut found = |literal: u32, end: usize| {
            let (length, candidates) = &literals.candidates[literal as usize];
            for candidate in candidates {
                if edge(candidate.before, bytes, end - length) && edge(candidate.after, bytes, end)
                {
                    tried(candidate.index, &candidate.classes);
                }
            }
        };
        // White space is only treated as compressed if another text that shares the search has it compressed.
        let compress = texts.iter().skip(first + 1).any(|text| text.like == first);
        for automaton in &literals.automata {
            if compress {
                automaton.find::<true>(bytes, &mut found);
            } else {
                automaton.find::<false>(bytes, &mut found);
            }
        }
    }
}

impl LiteralGroup {
    /// The literals of some rules, and how many bytes they have.
    fn new(rules: &[Rule], indices: &RuleIndexSet) -> Result<(Self, usize), BuildError> {
        let mut literals: BTreeMap<Vec<u8>, Vec<CandidateRule>> = BTreeMap::new();
        let some = (0_u32..)
            .zip(rules)
            .filter(|(index, _)| indices.contains(*index));
        for (index, rule) in some {
            let atoms = rule.atoms.iter().flatten();
            for atom in atoms.filter(|atom| !atom.text.is_empty()) {
                let (literal, whole) = searched(&atom.text);
                let last = literal.len() - 1;
                // White space may be longer in the text, so boundaries beyond it are at other positions.
                let within = literal[..last].contains(&b' ');
                let candidate = CandidateRule {
                    index,
                    before: if within {
                        AtomBoundary::Anything
                    } else {
                        atom.before
                    },
                    after: if !whole || literal[last] == b' ' {
                        AtomBoundary::Anything
                    } else {
                        atom.after
                    },
                    classes: RequiredClasses::new(&atom.classes),
                };
                let candidates = literals.entry(literal).or_default();
                if !candidates.contains(&candidate) {
                    candidates.push(candidate);
                }
            }
        }
        let bytes = literals.keys().map(Vec::len).sum();
        let (texts, candidates): (Vec<Vec<u8>>, Vec<Vec<CandidateRule>>) =
            literals.into_iter().unzip();
        let literals = Self {
            automata: LiteralAutomaton::build(&texts)?,
            candidates: texts.iter().map(Vec::len).zip(candidates).collect(),
        };
        Ok((literals, bytes))
    }
}

/// The prefix of a literal that is searched for, and whether it is the whole literal.
fn searched(literal: &[u8]) -> (Vec<u8>, bool) {
    let folded = literal.iter().map(|byte| fold(*byte));
    let folded: Vec<u8> = folded.take(MAX_SEARCHED_BYTES).collect();
    // Up to the first repeated white space.
    let end = folded.windows(2).position(|pair| pair == b"  ");
    let end = end.map_or(folded.len(), |at| at + 1);
    (folded[..end].to_vec(), end == literal.len())
}

/// Whether there is such a boundary at this position.
fn edge(edge: AtomBoundary, bytes: &[u8], at: usize) -> bool {
    let word = |at: Option<usize>| {
        let byte = at.and_then(|at| bytes.get(at));
        byte.is_some_and(|byte| is_word(*byte))
    };
    match edge {
        AtomBoundary::Anything => true,
        AtomBoundary::Word => word(at.checked_sub(1)) != word(Some(at)),
        AtomBoundary::Value => at == 0 || at == bytes.len(),
    }
}

thread_local! {
    static SCRATCH: RefCell<SearchScratch> = RefCell::default();
}

/// Buffers that are reused from value to value.
#[derive(Default)]
struct SearchScratch {
    /// The value and its transformed texts.
    texts: Vec<TransformedText>,
    /// For each text, the rules to try, and its lower-case form if it was needed.
    wanted: Vec<WantedRules>,
    lower: Vec<Option<Vec<u8>>>,
    /// For each step of the plan, the resulting text.
    at: Vec<Option<usize>>,
    /// Input text, transformation and resulting text.
    made: Vec<(usize, Transform, usize)>,
}

/// A value after some transformations.
struct TransformedText {
    /// `None` if it is the value itself.
    changed: Option<Vec<u8>>,
    classes: ByteClassSet,
    /// The text whose search it shares; usually itself.
    like: usize,
    /// The literal group to search for, if any rule needs it.
    literals: Option<usize>,
}

impl TransformedText {
    fn bytes<'a>(&'a self, value: &'a [u8]) -> &'a [u8] {
        self.changed.as_deref().unwrap_or(value)
    }
}

impl SearchScratch {
    fn begin(&mut self, classes: ByteClassSet, rules: usize) {
        self.texts.clear();
        self.lower.clear();
        self.at.clear();
        self.made.clear();
        self.add(None, classes, None, rules);
    }

    fn add(
        &mut self,
        changed: Option<Vec<u8>>,
        classes: ByteClassSet,
        like: Option<usize>,
        rules: usize,
    ) {
        let at = self.texts.len();
        self.texts.push(TransformedText {
            changed,
            classes,
            like: like.unwrap_or(at),
            literals: None,
        });
        self.lower.push(None);
        if self.wanted.len() == at {
            self.wanted.push(WantedRules::default());
        }
        self.wanted[at].reset(rules);
    }

    /// Runs the value through the tree: the resulting texts, each with the rules to try on it.
    fn transform(&mut self, plan: &TransformPlan, value: &[u8], rules: usize) {
        for step in &plan.steps {
            let before = match step.transform {
                None => Some(0),
                Some(_) => self.at[step.before],
            };
            let after = match (before, step.transform) {
                (Some(text), Some(transform)) => {
                    self.change(text, transform, step.takes, value, rules)
                }
                (before, _) => before,
            };
            self.at.push(after);
            if let (Some(text), false) = (after, step.wanted.is_empty()) {
                self.wanted[text].extend(&step.wanted);
                let searched = self.texts[text].like;
                let literals = &mut self.texts[searched].literals;
                *literals = Some(literals.map_or(step.literals, |_| plan.literals));
            }
        }
    }

    /// The text after a transformation; `None` if no rule could match it.
    fn change(
        &mut self,
        text: usize,
        transform: Transform,
        takes: ByteClassSet,
        value: &[u8],
        rules: usize,
    ) -> Option<usize> {
        let from = &self.texts[text];
        if !from.classes.any(transform.changes()) {
            return Some(text);
        }
        // All classes means that a rule may match an empty text.
        if takes != ByteClassSet::ALL && !transform.leaves(from.classes).any(takes) {
            return None;
        }
        let known = |made: &&(usize, Transform, usize)| (made.0, made.1) == (text, transform);
        if let Some((_, _, to)) = self.made.iter().find(known) {
            return Some(*to);
        }
        let bytes = from.bytes(value);
        let changed = match transform.apply(bytes) {
            Cow::Borrowed(part) if part.len() == bytes.len() => None,
            changed => Some(changed.into_owned()),
        };
        let to = match changed {
            None => text,
            Some(changed) => {
                let classes = ByteClassSet::of(&changed);
                let like = (transform == Transform::CompressWhitespace).then_some(from.like);
                self.add(Some(changed), classes, like, rules);
                self.texts.len() - 1
            }
        };
        self.made.push((text, transform, to));
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_searched_prefix_of_a_literal_is_found_wherever_the_literal_is() {
        for (literal, expected, whole) in [
            ("or\t", "or ", true),
            ("information_schema", "informa", false),
            ("a \n b", "a ", false),
            ("x'y", "x'y", true),
        ] {
            let literal = literal.replace("\\t", "\t").replace("\\n", "\n");
            let (text, all) = searched(literal.as_bytes());
            assert_eq!((&text[..], all), (expected.as_bytes(), whole));
        }
    }
}
