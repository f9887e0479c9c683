//! Patterns by their tokens, so that a topic is compared with those alone that may match it.

use foldhash::{HashMap, HashMapExt};
use hailwire_wire::topics::{Topic, TopicPattern};

/// Patterns, each with values.
#[derive(Debug)]
pub(super) struct PatternTrie<V> {
    tokens: HashMap<Box<str>, PatternTrie<V>>,
    /// After `*`.
    any: Option<Box<PatternTrie<V>>>,
    /// Of patterns that end here.
    here: Vec<V>,
    /// Of patterns that end with `>` here.
    rest: Vec<V>,
}

impl<V> Default for PatternTrie<V> {
    fn default() -> Self {
        Self {
            tokens: HashMap::new(),
            any: None,
            here: Vec::new(),
            rest: Vec::new(),
        }
    }
}

impl<V: PartialEq> PatternTrie<V> {
    pub(super) fn insert(&mut self, pattern: &TopicPattern, value: V) {
        let mut node = self;
        for token in pattern.tokens() {
            node = match token {
                ">" => return node.rest.push(value),
                "*" => node.any.get_or_insert_default(),
                token => node.tokens.entry(token.into()).or_default(),
            };
        }
        node.here.push(value);
    }

    /// Removes a value of a pattern, and what is empty then.
    pub(super) fn remove(&mut self, pattern: &TopicPattern, value: &V) {
        let tokens: Vec<&str> = pattern.tokens().collect();
        self.remove_below(&tokens, value);
    }

    fn remove_below(&mut self, tokens: &[&str], value: &V) {
        match tokens {
            [] => self.here.retain(|other| other != value),
            [">"] => self.rest.retain(|other| other != value),
            ["*", below @ ..] => {
                if let Some(any) = &mut self.any {
                    any.remove_below(below, value);
                    if any.is_empty() {
                        self.any = None;
                    }
                }
            }
            [token, below @ ..] => {
                if let Some(next) = self.tokens.get_mut(*token) {
                    next.remove_below(below, value);
                    if next.is_empty() {
                        self.tokens.remove(*token);
                    }
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.any.is_none() && self.here.is_empty() && self.rest.is_empty()
    }

    /// Gives the values of all patterns that match. It looks at each part of a pattern at most once.
    pub(super) fn for_each_match(&self, topic: &Topic, mut found: impl FnMut(&V)) {
        let tokens: Vec<&str> = topic.tokens().collect();
        self.match_below(&tokens, &mut found);
    }

    fn match_below(&self, tokens: &[&str], found: &mut impl FnMut(&V)) {
        let [token, below @ ..] = tokens else {
            return self.here.iter().for_each(found);
        };
        self.rest.iter().for_each(&mut *found);
        if let Some(any) = &self.any {
            any.match_below(below, found);
        }
        if let Some(next) = self.tokens.get(*token) {
            next.match_below(below, found);
        }
    }
}
