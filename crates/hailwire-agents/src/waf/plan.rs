//! For each variable, the chains of transformations that its rules want, as a tree, and what tells that a rule or a whole
//! branch is not worth it.

use std::collections::BTreeMap;

use super::{kinds::Kinds, literals::Sign, seclang::Rule, transform::Transform};

/// Places of rules, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Places(Vec<u64>);

impl Places {
    pub(super) fn none(rules: usize) -> Self {
        Self(vec![0; rules.div_ceil(64)])
    }

    pub(super) fn insert(&mut self, place: u32) {
        self.0[place as usize / 64] |= 1 << (place % 64);
    }

    /// Takes it out; whether it was there.
    pub(super) fn take(&mut self, place: u32) -> bool {
        let there = self.contains(place);
        self.0[place as usize / 64] &= !(1 << (place % 64));
        there
    }

    pub(super) fn contains(&self, place: u32) -> bool {
        self.0[place as usize / 64] >> (place % 64) & 1 != 0
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(own, other)| *own |= other);
    }

    /// Becomes the same, in the room that it has.
    fn copy(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    /// Becomes none of so many.
    fn reset(&mut self, rules: usize) {
        self.0.clear();
        self.0.resize(rules.div_ceil(64), 0);
    }
}

/// Kinds of each of which something must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    kinds: [Kinds; 3],
    count: u8,
}

impl Needed {
    /// The first of these; the more there are the less is tried.
    pub(super) fn new(some: &[Kinds]) -> Self {
        let mut kinds = [Kinds::ALL; 3];
        kinds
            .iter_mut()
            .zip(some)
            .for_each(|(own, kind)| *own = *kind);
        let count = some.len().min(kinds.len()) as u8;
        Self { kinds, count }
    }

    pub(super) fn met(&self, by: Kinds) -> bool {
        let [one, two, three] = self.kinds.map(|kinds| by.any(kinds));
        match self.count {
            0 => true,
            1 => one,
            2 => one && two,
            _ => one && two && three,
        }
    }
}

/// The chains of one variable's rules.
#[derive(Debug)]
pub(super) struct Plan {
    /// The tree; a step comes after the one before it.
    pub(super) steps: Vec<Step>,
    /// Rules that no literal stands for, with the kinds that they take.
    pub(super) unsearched: Vec<(u32, Needed)>,
    /// Where the literals of these rules are found.
    pub(super) literals: usize,
    /// Without one of these in a value every step leaves it as it is,
    pub(super) changes: Kinds,
    /// and these are then the rules: for the value, and for it in lower case.
    pub(super) all: Wanted,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) transform: Option<Transform>,
    pub(super) before: usize,
    /// The rules whose chain ends here.
    pub(super) wanted: Wanted,
    /// Where the literals of its own rules are found.
    pub(super) literals: usize,
    /// Without one of these in a value no rule from here on matches; all, where one may match an empty one.
    pub(super) takes: Kinds,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) plain: Places,
    /// Those that want it in lower case.
    pub(super) lower: Places,
}

impl Wanted {
    pub(super) fn none(rules: usize) -> Self {
        Self {
            plain: Places::none(rules),
            lower: Places::none(rules),
        }
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.plain.extend(&other.plain);
        self.lower.extend(&other.lower);
    }

    pub(super) fn is_empty(&self) -> bool {
        let none = |places: &Places| places.0.iter().all(|bits| *bits == 0);
        none(&self.plain) && none(&self.lower)
    }

    /// Becomes the same, in the room that it has.
    pub(super) fn copy(&mut self, other: &Self) {
        self.plain.copy(&other.plain);
        self.lower.copy(&other.lower);
    }

    /// Becomes none of so many.
    pub(super) fn reset(&mut self, rules: usize) {
        self.plain.reset(rules);
        self.lower.reset(rules);
    }
}

impl Plan {
    /// One for these of the rules, each with the chains at whose ends it is judged.
    pub(super) fn new(rules: &[Rule], chains: &BTreeMap<Vec<Transform>, Vec<u32>>) -> Self {
        let root = Step {
            transform: None,
            before: 0,
            wanted: Wanted::none(rules.len()),
            literals: 0,
            takes: Kinds::NONE,
        };
        let mut steps = vec![root];
        let mut at: BTreeMap<&[Transform], usize> = BTreeMap::from([(&[][..], 0)]);
        let mut unsearched: BTreeMap<u32, Vec<Needed>> = BTreeMap::new();
        for (chain, places) in chains {
            let (chain, lower) = match &chain[..] {
                [chain @ .., Transform::Lowercase] => (chain, true),
                chain => (chain, false),
            };
            for end in 1..=chain.len() {
                if !at.contains_key(&chain[..end]) {
                    steps.push(Step {
                        transform: Some(chain[end - 1]),
                        before: at[&chain[..end - 1]],
                        wanted: Wanted::none(rules.len()),
                        literals: 0,
                        takes: Kinds::NONE,
                    });
                    at.insert(&chain[..end], steps.len() - 1);
                }
            }
            let own = at[chain];
            for place in places {
                let wanted = &mut steps[own].wanted;
                let set = if lower {
                    &mut wanted.lower
                } else {
                    &mut wanted.plain
                };
                set.insert(*place);
                let mut takes = Kinds::NONE;
                match &rules[*place as usize].signs {
                    Some(signs) => {
                        for sign in signs {
                            takes = takes.or(rarest(sign));
                        }
                        let kinds = signs.iter().filter(|sign| sign.text.is_empty());
                        unsearched.entry(*place).or_insert_with(|| {
                            kinds.map(|sign| Needed::new(&sign.kinds)).collect()
                        });
                    }
                    None => {
                        takes = Kinds::ALL;
                        unsearched.insert(*place, vec![Needed::new(&[])]);
                    }
                }
                steps[own].takes = steps[own].takes.or(takes);
            }
        }
        for step in (1..steps.len()).rev() {
            let Step {
                transform,
                takes,
                before,
                ..
            } = steps[step];
            // What a step can make of anything need not be there before it.
            let makes = transform.is_some_and(|t| t.leaves(Kinds::NONE).any(takes));
            let needs = if makes { Kinds::ALL } else { takes };
            steps[before].takes = steps[before].takes.or(needs);
        }
        let mut all = Wanted::none(rules.len());
        let mut changes = Kinds::NONE;
        for step in &steps {
            all.extend(&step.wanted);
            changes = step.transform.map_or(changes, |t| changes.or(t.changes()));
        }
        let each =
            |(place, signs): (u32, Vec<Needed>)| signs.into_iter().map(move |kinds| (place, kinds));
        Self {
            steps,
            unsearched: unsearched.into_iter().flat_map(each).collect(),
            literals: 0,
            changes,
            all,
        }
    }
}

/// Of the kinds that a sign takes, those of which a text is least likely to have something.
fn rarest(sign: &Sign) -> Kinds {
    sign.all_kinds()
        .find(|kinds| !kinds.any(Kinds::COMMON))
        .unwrap_or(Kinds::ALL)
}
