//! Which rules are worth trying on a value, found in few passes over it.
//!
//! A value goes down the tree of its variable's [`Plan`]; a step that cannot change it, by its [`Kinds`], costs nothing,
//! and all rules whose chains come out at the same bytes share one search over these for the literals of all rules. In
//! that search letters have no case and white space is one space, so lower case at the end of a chain is only made for a
//! rule that is tried, and compressed white space needs no search of its own.
//!
//! What is left out here is only what could not match; [`super::rules::RuleSet::judge_plainly`] leaves out nothing, and
//! tests compare the two.

use std::{borrow::Cow, cell::RefCell, collections::BTreeMap};

use aho_corasick::BuildError;

use super::{
    automaton::{Automaton, fold},
    kinds::{Kinds, is_word},
    literals::Edge,
    plan::{Needed, Places, Plan, Wanted},
    seclang::Rule,
    transform::Transform,
};

/// The literals of rules.
pub(super) struct Search {
    /// First those of all rules, then those of some where these are few.
    literals: Vec<Literals>,
    rules: usize,
}

/// Literals that are searched for at once.
#[derive(Default)]
struct Literals {
    automata: Vec<Automaton>,
    /// For each literal its length and the rules that it is one of.
    hooks: Vec<(usize, Vec<Hook>)>,
}

#[derive(PartialEq)]
struct Hook {
    place: u32,
    before: Edge,
    after: Edge,
    kinds: Needed,
}

/// As much of a literal is searched for; the rest hardly makes it rarer.
const LITERAL: usize = 7;
/// Bytes of literals up to which some rules have a search of their own, which stays in the cache.
const OWN: usize = 512;

impl Search {
    /// One for these rules; the plans are told where their rules' literals are.
    pub(super) fn new(rules: &[Rule], plans: &mut [Plan]) -> Result<Self, BuildError> {
        let mut all = Places::none(rules.len());
        for (place, _) in (0_u32..).zip(rules) {
            all.insert(place);
        }
        let mut literals = vec![Literals::new(rules, &all)?.0];
        let mut known: BTreeMap<Places, usize> = BTreeMap::new();
        let mut of = |wanted: &Wanted| {
            let mut places = wanted.plain.clone();
            places.extend(&wanted.lower);
            if let Some(known) = known.get(&places) {
                return Ok(*known);
            }
            let (some, bytes) = Literals::new(rules, &places)?;
            let own = if bytes <= OWN {
                literals.push(some);
                literals.len() - 1
            } else {
                0
            };
            known.insert(places, own);
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

    /// Calls with every rule that may match, and the bytes that it is to be tried on.
    pub(super) fn each(&self, plan: &Plan, value: &[u8], attempt: &mut impl FnMut(u32, &[u8])) {
        SCRATCH.with_borrow_mut(|scratch| {
            let kinds = Kinds::of(value);
            scratch.begin(kinds, self.rules);
            if kinds.any(plan.changes) {
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
            // What is long is not kept.
            scratch.texts.clear();
        });
    }

    /// The rules for a text, and for those that are searched like it.
    fn candidates(
        &self,
        plan: &Plan,
        first: usize,
        value: &[u8],
        scratch: &mut Scratch,
        attempt: &mut impl FnMut(u32, &[u8]),
    ) {
        let Scratch {
            texts,
            wanted,
            lower,
            ..
        } = scratch;
        let texts = &texts[..];
        // What some of them have.
        let like = texts.iter().filter(|text| text.like == first);
        let kinds = like.fold(Kinds::NONE, |kinds, text| kinds.or(text.kinds));
        let mut tried = |place: u32, needed: &Needed| {
            for (at, text) in texts.iter().enumerate().skip(first) {
                if text.like != first || !needed.met(text.kinds) {
                    continue;
                }
                if wanted[at].plain.take(place) {
                    attempt(place, text.bytes(value));
                }
                if wanted[at].lower.take(place) {
                    if text.kinds.any(Kinds::UPPER) {
                        let make = || text.bytes(value).to_ascii_lowercase();
                        attempt(place, lower[at].get_or_insert_with(make));
                    } else {
                        attempt(place, text.bytes(value));
                    }
                }
            }
        };
        for (place, needed) in &plan.unsearched {
            if needed.met(kinds) {
                tried(*place, needed);
            }
        }
        let Some(literals) = texts[first].literals.map(|at| &self.literals[at]) else {
            return;
        };
        let bytes = texts[first].bytes(value);
        let mut found = |literal: u32, end: usize| {
            let (length, hooks) = &literals.hooks[literal as usize];
            for hook in hooks {
                if edge(hook.before, bytes, end - length) && edge(hook.after, bytes, end) {
                    tried(hook.place, &hook.kinds);
                }
            }
        };
        // Only where another text has its white space compressed is it to be read as if it were.
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

impl Literals {
    /// Those of some rules, and how many bytes they are.
    fn new(rules: &[Rule], places: &Places) -> Result<(Self, usize), BuildError> {
        let mut literals: BTreeMap<Vec<u8>, Vec<Hook>> = BTreeMap::new();
        let some = (0_u32..)
            .zip(rules)
            .filter(|(place, _)| places.contains(*place));
        for (place, rule) in some {
            let signs = rule.signs.iter().flatten();
            for sign in signs.filter(|sign| !sign.text.is_empty()) {
                let (literal, whole) = searched(&sign.text);
                let last = literal.len() - 1;
                // White space may be longer where it is found, so that edges beyond it are elsewhere.
                let within = literal[..last].contains(&b' ');
                let hook = Hook {
                    place,
                    before: if within { Edge::Anything } else { sign.before },
                    after: if !whole || literal[last] == b' ' {
                        Edge::Anything
                    } else {
                        sign.after
                    },
                    kinds: Needed::new(&sign.kinds),
                };
                let hooks = literals.entry(literal).or_default();
                if !hooks.contains(&hook) {
                    hooks.push(hook);
                }
            }
        }
        let bytes = literals.keys().map(Vec::len).sum();
        let (texts, hooks): (Vec<Vec<u8>>, Vec<Vec<Hook>>) = literals.into_iter().unzip();
        let literals = Self {
            automata: Automaton::build(&texts)?,
            hooks: texts.iter().map(Vec::len).zip(hooks).collect(),
        };
        Ok((literals, bytes))
    }
}

/// What is searched for in place of a literal, and whether that is all of it.
fn searched(literal: &[u8]) -> (Vec<u8>, bool) {
    let folded = literal.iter().map(|byte| fold(*byte));
    let folded: Vec<u8> = folded.take(LITERAL).collect();
    // As far as there is no white space after white space.
    let end = folded.windows(2).position(|pair| pair == b"  ");
    let end = end.map_or(folded.len(), |at| at + 1);
    (folded[..end].to_vec(), end == literal.len())
}

/// Whether there is such an edge at this place.
fn edge(edge: Edge, bytes: &[u8], at: usize) -> bool {
    let word = |at: Option<usize>| {
        let byte = at.and_then(|at| bytes.get(at));
        byte.is_some_and(|byte| is_word(*byte))
    };
    match edge {
        Edge::Anything => true,
        Edge::Word => word(at.checked_sub(1)) != word(Some(at)),
        Edge::Value => at == 0 || at == bytes.len(),
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What is used again from value to value.
#[derive(Default)]
struct Scratch {
    /// The value and what came of it.
    texts: Vec<Text>,
    /// For each text, the rules, and the text in lower case if it was needed.
    wanted: Vec<Wanted>,
    lower: Vec<Option<Vec<u8>>>,
    /// For each step of the plan, the text that comes out.
    at: Vec<Option<usize>>,
    /// Which text came of which by what.
    made: Vec<(usize, Transform, usize)>,
}

/// A text that came of a value.
struct Text {
    /// `None`: the value itself.
    changed: Option<Vec<u8>>,
    kinds: Kinds,
    /// The text that is searched in its place; mostly itself.
    like: usize,
    /// Where to search for the literals of its rules, if it has some.
    literals: Option<usize>,
}

impl Text {
    fn bytes<'a>(&'a self, value: &'a [u8]) -> &'a [u8] {
        self.changed.as_deref().unwrap_or(value)
    }
}

impl Scratch {
    fn begin(&mut self, kinds: Kinds, rules: usize) {
        self.texts.clear();
        self.lower.clear();
        self.at.clear();
        self.made.clear();
        self.add(None, kinds, None, rules);
    }

    fn add(&mut self, changed: Option<Vec<u8>>, kinds: Kinds, like: Option<usize>, rules: usize) {
        let at = self.texts.len();
        self.texts.push(Text {
            changed,
            kinds,
            like: like.unwrap_or(at),
            literals: None,
        });
        self.lower.push(None);
        if self.wanted.len() == at {
            self.wanted.push(Wanted::default());
        }
        self.wanted[at].reset(rules);
    }

    /// Takes the value through the tree: the texts that come out, each with the rules for it.
    fn transform(&mut self, plan: &Plan, value: &[u8], rules: usize) {
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

    /// The text that comes of one; `None` where nothing could match it.
    fn change(
        &mut self,
        text: usize,
        transform: Transform,
        takes: Kinds,
        value: &[u8],
        rules: usize,
    ) -> Option<usize> {
        let from = &self.texts[text];
        if !from.kinds.any(transform.changes()) {
            return Some(text);
        }
        // All is taken where a rule may match an empty text.
        if takes != Kinds::ALL && !transform.leaves(from.kinds).any(takes) {
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
                let kinds = Kinds::of(&changed);
                let like = (transform == Transform::CompressWhitespace).then_some(from.like);
                self.add(Some(changed), kinds, like, rules);
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
    fn what_is_searched_for_in_place_of_a_literal_is_found_wherever_that_is() {
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
