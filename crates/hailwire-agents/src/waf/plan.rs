//! For each variable, the transformations that its rules need, as a tree, and the byte classes without which a rule or a
//! whole branch can be skipped.

use std::collections::BTreeMap;

use super::{
    byte_classes::ByteClassSet, prefilter::PrefilterAtom, seclang::Rule, transform::Transform,
};

/// A set of rules by their indices, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleIndexSet(Vec<u64>);

impl RuleIndexSet {
    pub(super) fn none(rules: usize) -> Self {
        Self(vec![0; rules.div_ceil(64)])
    }

    pub(super) fn insert(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    /// Removes it; whether it was there.
    pub(super) fn take(&mut self, index: u32) -> bool {
        let there = self.contains(index);
        self.0[index as usize / 64] &= !(1 << (index % 64));
        there
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 != 0
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(own, other)| *own |= other);
    }

    /// Becomes a copy, without a new allocation.
    fn copy(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    /// Becomes empty, for this many rules.
    fn reset(&mut self, rules: usize) {
        self.0.clear();
        self.0.resize(rules.div_ceil(64), 0);
    }
}

/// Sets of byte classes; a text must contain something of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequiredClasses {
    classes: [ByteClassSet; 3],
    count: u8,
}

impl RequiredClasses {
    /// The first three of these sets.
    pub(super) fn new(some: &[ByteClassSet]) -> Self {
        let mut classes = [ByteClassSet::ALL; 3];
        classes
            .iter_mut()
            .zip(some)
            .for_each(|(own, class)| *own = *class);
        let count = some.len().min(classes.len()) as u8;
        Self { classes, count }
    }

    pub(super) fn met(&self, by: ByteClassSet) -> bool {
        let [one, two, three] = self.classes.map(|classes| by.any(classes));
        match self.count {
            0 => true,
            1 => one,
            2 => one && two,
            _ => one && two && three,
        }
    }
}

/// The transformations of one variable's rules.
#[derive(Debug)]
pub(super) struct TransformPlan {
    /// The tree; each step is stored after its parent.
    pub(super) steps: Vec<TransformStep>,
    /// Rules without a literal to search for, with the classes that they require.
    pub(super) unsearched: Vec<(u32, RequiredClasses)>,
    /// The literal group with the literals of these rules.
    pub(super) literals: usize,
    /// No step changes a value that contains none of these classes;
    pub(super) changes: ByteClassSet,
    /// these are then the rules to try on it, as it is or in lower case.
    pub(super) all: WantedRules,
}

#[derive(Clone, Debug)]
pub(super) struct TransformStep {
    pub(super) transform: Option<Transform>,
    pub(super) before: usize,
    /// The rules whose transformations end here.
    pub(super) wanted: WantedRules,
    /// The literal group with the literals of its own rules.
    pub(super) literals: usize,
    /// No rule at or below this step matches a value with none of these classes; all classes if one may match an empty value.
    pub(super) takes: ByteClassSet,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WantedRules {
    pub(super) plain: RuleIndexSet,
    /// Rules that are tried on the lower-case text.
    pub(super) lower: RuleIndexSet,
}

impl WantedRules {
    pub(super) fn none(rules: usize) -> Self {
        Self {
            plain: RuleIndexSet::none(rules),
            lower: RuleIndexSet::none(rules),
        }
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.plain.extend(&other.plain);
        self.lower.extend(&other.lower);
    }

    pub(super) fn is_empty(&self) -> bool {
        let none = |indices: &RuleIndexSet| indices.0.iter().all(|bits| *bits == 0);
        none(&self.plain) && none(&self.lower)
    }

    /// Becomes a copy, without a new allocation.
    pub(super) fn copy(&mut self, other: &Self) {
        self.plain.copy(&other.plain);
        self.lower.copy(&other.lower);
    }

    /// Becomes empty, for this many rules.
    pub(super) fn reset(&mut self, rules: usize) {
        self.plain.reset(rules);
        self.lower.reset(rules);
    }
}

impl TransformPlan {
    /// A plan for these rules, each with the transformation chains after which it is judged.
    pub(super) fn new(rules: &[Rule], chains: &BTreeMap<Vec<Transform>, Vec<u32>>) -> Self {
        let root = TransformStep {
            transform: None,
            before: 0,
            wanted: WantedRules::none(rules.len()),
            literals: 0,
            takes: ByteClassSet::NONE,
        };
        let mut steps = vec![root];
        let mut at: BTreeMap<&[Transform], usize> = BTreeMap::from([(&[][..], 0)]);
        let mut unsearched: BTreeMap<u32, Vec<RequiredClasses>> = BTreeMap::new();
        for (chain, indices) in chains {
            let (chain, lower) = match &chain[..] {
                [chain @ .., Transform::Lowercase] => (chain, true),
                chain => (chain, false),
            };
            for end in 1..=chain.len() {
                if !at.contains_key(&chain[..end]) {
                    steps.push(TransformStep {
                        transform: Some(chain[end - 1]),
                        before: at[&chain[..end - 1]],
                        wanted: WantedRules::none(rules.len()),
                        literals: 0,
                        takes: ByteClassSet::NONE,
                    });
                    at.insert(&chain[..end], steps.len() - 1);
                }
            }
            let own = at[chain];
            for index in indices {
                let wanted = &mut steps[own].wanted;
                let set = if lower {
                    &mut wanted.lower
                } else {
                    &mut wanted.plain
                };
                set.insert(*index);
                let mut takes = ByteClassSet::NONE;
                match &rules[*index as usize].atoms {
                    Some(atoms) => {
                        for atom in atoms {
                            takes = takes.or(rarest(atom));
                        }
                        let classes = atoms.iter().filter(|atom| atom.text.is_empty());
                        unsearched.entry(*index).or_insert_with(|| {
                            classes
                                .map(|atom| RequiredClasses::new(&atom.classes))
                                .collect()
                        });
                    }
                    None => {
                        takes = ByteClassSet::ALL;
                        unsearched.insert(*index, vec![RequiredClasses::new(&[])]);
                    }
                }
                steps[own].takes = steps[own].takes.or(takes);
            }
        }
        for step in (1..steps.len()).rev() {
            let TransformStep {
                transform,
                takes,
                before,
                ..
            } = steps[step];
            // Classes that the step can produce itself need not be in its input.
            let makes = transform.is_some_and(|t| t.leaves(ByteClassSet::NONE).any(takes));
            let needs = if makes { ByteClassSet::ALL } else { takes };
            steps[before].takes = steps[before].takes.or(needs);
        }
        let mut all = WantedRules::none(rules.len());
        let mut changes = ByteClassSet::NONE;
        for step in &steps {
            all.extend(&step.wanted);
            changes = step.transform.map_or(changes, |t| changes.or(t.changes()));
        }
        let each = |(index, atoms): (u32, Vec<RequiredClasses>)| {
            atoms.into_iter().map(move |classes| (index, classes))
        };
        Self {
            steps,
            unsearched: unsearched.into_iter().flat_map(each).collect(),
            literals: 0,
            changes,
            all,
        }
    }
}

/// Of the class sets that an atom requires, the one that a text is least likely to contain.
fn rarest(atom: &PrefilterAtom) -> ByteClassSet {
    atom.all_classes()
        .find(|classes| !classes.any(ByteClassSet::COMMON))
        .unwrap_or(ByteClassSet::ALL)
}
