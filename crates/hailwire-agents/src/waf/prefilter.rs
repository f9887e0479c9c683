//! Text that every match of a regular expression must contain.
//!
//! A parsed expression yields [`PrefilterAtom`]s; each match contains at least one of them: a lower-case text, perhaps
//! with a word boundary beside it, and classes of bytes that must be present in addition. One search for the texts of all
//! rules then finds the few rules that are worth trying, as RE2's `FilteredRE2` does.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::byte_classes::ByteClassSet;

/// Atoms of one expression.
const MAX_ATOMS: usize = 4_000;
/// Texts made by concatenating shorter ones.
const MAX_EXACT_TEXTS: usize = 64;
/// Class sets of one atom.
const MAX_CLASSES_PER_ATOM: usize = 3;

/// Something that a match contains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PrefilterAtom {
    /// A text in lower case; if empty, only the classes are required.
    pub(super) text: Vec<u8>,
    /// What must be just before the text, and just after it.
    pub(super) before: AtomBoundary,
    pub(super) after: AtomBoundary,
    /// The value contains something of each of these sets.
    pub(super) classes: Vec<ByteClassSet>,
}

/// What must be beside a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AtomBoundary {
    #[default]
    Anything,
    /// A word boundary, as `\b`.
    Word,
    /// The beginning or the end of the value.
    Value,
}

impl AtomBoundary {
    fn factor(self) -> f64 {
        match self {
            Self::Anything => 1.0,
            Self::Word => 0.3,
            Self::Value => 0.05,
        }
    }
}

impl PrefilterAtom {
    /// An atom of text only.
    pub(super) fn text(text: &[u8]) -> Self {
        Self {
            text: text.to_ascii_lowercase(),
            before: AtomBoundary::Anything,
            after: AtomBoundary::Anything,
            classes: Vec::new(),
        }
    }

    /// An atom of byte classes only.
    pub(super) fn classes(classes: ByteClassSet) -> Self {
        Self {
            classes: vec![classes],
            ..Self::text(b"")
        }
    }

    /// How often ordinary text contains it, without a unit.
    fn cost(&self) -> f64 {
        let text: f64 = match self.text.len() {
            // Not found by the search: the rule is tried wherever the classes are present.
            0 => 0.5,
            _ => self.text.iter().map(|byte| chance(*byte)).product(),
        };
        let classes: f64 = self
            .classes
            .iter()
            .map(|classes| rarity(*classes))
            .product();
        // Each atom costs something to search for, however rare it is.
        text * classes * self.before.factor() * self.after.factor() + 1e-6
    }

    /// The class sets that it requires, including those of its text: the value contains something of each.
    pub(super) fn all_classes(&self) -> impl Iterator<Item = ByteClassSet> {
        let text = self.text.iter().map(|byte| fold(ByteClassSet::byte(*byte)));
        self.classes.iter().copied().chain(text)
    }
}

/// The probability that a byte is this one.
fn chance(byte: u8) -> f64 {
    match byte {
        b' ' => 0.15,
        b'a'..=b'z' => 0.05,
        b'0'..=b'9' => 0.03,
        b'.' | b',' | b'-' | b'/' | b':' | b'_' | b'=' | b'"' => 0.01,
        33..=127 => 0.003,
        _ => 0.001,
    }
}

/// The probability that a short value contains one of these classes.
fn rarity(classes: ByteClassSet) -> f64 {
    if classes.any(ByteClassSet::COMMON) {
        1.0
    } else if classes.any(ByteClassSet::bytes(b".,-/:_\n")) {
        0.6
    } else if classes.any(ByteClassSet::bytes(b"='\"()?&+#@!%")) {
        0.3
    } else {
        0.05
    }
}

/// Letters without their case.
fn fold(classes: ByteClassSet) -> ByteClassSet {
    classes.without(ByteClassSet::UPPER)
}

/// The atoms of an expression; `None` if a match may contain none worth searching for.
pub(super) fn required(hir: &Hir) -> Option<Vec<PrefilterAtom>> {
    let mut atoms = of(hir).best()?;
    atoms.sort();
    atoms.dedup();
    // An empty atom is in every text.
    let says = |atom: &PrefilterAtom| !atom.text.is_empty() || !atom.classes.is_empty();
    atoms.iter().all(says).then_some(atoms)
}

type LiteralTexts = Vec<Vec<u8>>;
type AtomList = Vec<PrefilterAtom>;

/// What is known about the matches of a subexpression.
#[derive(Clone, Default)]
struct ExpressionInfo {
    /// All texts that it can match.
    exact: Option<LiteralTexts>,
    /// Each match begins with one of `first` and ends with one of `last`; none of these is empty.
    first: Option<LiteralTexts>,
    last: Option<LiteralTexts>,
    /// Each match contains one of these.
    needed: Option<AtomList>,
    /// A match contains something of each of these.
    classes: Vec<ByteClassSet>,
}

impl ExpressionInfo {
    fn exactly(texts: LiteralTexts) -> Self {
        let whole = Some(texts.clone()).filter(spelled);
        let mut classes = Vec::new();
        // The classes of all texts, if there is one text or all of them are single bytes.
        if let [text] = &texts[..] {
            classes.extend(text.iter().map(|byte| fold(ByteClassSet::byte(*byte))));
        } else if texts.iter().all(|text| text.len() == 1) && !texts.is_empty() {
            let all = |classes: ByteClassSet, text: &Vec<u8>| {
                classes.or(fold(ByteClassSet::byte(text[0])))
            };
            classes.push(texts.iter().fold(ByteClassSet::NONE, all));
        }
        Self {
            exact: Some(texts),
            first: whole.clone(),
            last: whole,
            needed: None,
            classes: few(classes),
        }
    }

    fn best(self) -> Option<AtomList> {
        let texts = self
            .exact
            .and_then(|texts| atoms(&texts, AtomBoundary::Anything, AtomBoundary::Anything));
        let best = better(texts, self.needed);
        match best {
            Some(mut atoms) => {
                for atom in &mut atoms {
                    atom.classes.extend(&self.classes);
                    atom.classes = few(std::mem::take(&mut atom.classes));
                }
                Some(atoms)
            }
            None if self.classes.is_empty() => None,
            None => Some(vec![PrefilterAtom {
                classes: self.classes,
                ..PrefilterAtom::text(b"")
            }]),
        }
    }
}

/// Whether there are texts and none is empty.
fn spelled(texts: &LiteralTexts) -> bool {
    !texts.is_empty() && texts.iter().all(|text| !text.is_empty())
}

/// Texts as atoms, if none is empty. A single byte becomes its class.
fn atoms(texts: &LiteralTexts, before: AtomBoundary, after: AtomBoundary) -> Option<AtomList> {
    let atom = |text: &Vec<u8>| match text[..] {
        [byte] => PrefilterAtom::classes(fold(ByteClassSet::byte(byte))),
        _ => PrefilterAtom {
            before,
            after,
            ..PrefilterAtom::text(text)
        },
    };
    (spelled(texts) && texts.len() <= MAX_ATOMS).then(|| texts.iter().map(atom).collect())
}

/// The set that ordinary text contains less often.
fn better(one: Option<AtomList>, other: Option<AtomList>) -> Option<AtomList> {
    let cost = |atoms: &AtomList| atoms.iter().map(PrefilterAtom::cost).sum::<f64>();
    match (one, other) {
        (Some(one), Some(other)) => Some(if cost(&one) <= cost(&other) {
            one
        } else {
            other
        }),
        (one, other) => one.or(other),
    }
}

/// The rarest class sets, each once.
fn few(mut classes: Vec<ByteClassSet>) -> Vec<ByteClassSet> {
    classes.retain(|classes| rarity(*classes) < 1.0);
    classes.sort_by(|a, b| rarity(*a).total_cmp(&rarity(*b)).then(a.cmp(b)));
    classes.dedup();
    classes.truncate(MAX_CLASSES_PER_ATOM);
    classes
}

fn of(hir: &Hir) -> ExpressionInfo {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => ExpressionInfo::exactly(vec![Vec::new()]),
        HirKind::Literal(literal) => ExpressionInfo::exactly(vec![literal.0.to_ascii_lowercase()]),
        HirKind::Class(class) => match letters(class) {
            Some(texts) => ExpressionInfo::exactly(texts),
            None => ExpressionInfo {
                classes: few(vec![classes_of(class)]),
                ..ExpressionInfo::default()
            },
        },
        HirKind::Capture(capture) => of(&capture.sub),
        HirKind::Repetition(repetition) => {
            let sub = of(&repetition.sub);
            match (repetition.min, repetition.max) {
                (1, Some(1)) => sub,
                (0, Some(1)) => match sub.exact {
                    Some(mut texts) => {
                        texts.push(Vec::new());
                        ExpressionInfo::exactly(texts)
                    }
                    None => ExpressionInfo::default(),
                },
                (0, _) => ExpressionInfo::default(),
                _ => ExpressionInfo {
                    exact: None,
                    first: sub.first.clone(),
                    last: sub.last.clone(),
                    classes: sub.classes.clone(),
                    needed: sub.best(),
                },
            }
        }
        HirKind::Concat(parts) => concat(parts),
        HirKind::Alternation(parts) => alternation(parts),
    }
}

/// Each head followed by each tail, if that is not too many.
fn joined(heads: &LiteralTexts, tails: &LiteralTexts) -> Option<LiteralTexts> {
    (heads.len() * tails.len() <= MAX_EXACT_TEXTS).then(|| {
        let all = heads
            .iter()
            .flat_map(|head| tails.iter().map(move |tail| [&head[..], tail].concat()));
        all.collect()
    })
}

fn concat(parts: &[Hir]) -> ExpressionInfo {
    // The texts that end here, and the boundary before them.
    let mut run: LiteralTexts = vec![Vec::new()];
    let mut before = AtomBoundary::Anything;
    let mut whole = true;
    let mut first = None;
    let mut needed = None;
    let mut classes = Vec::new();
    for part in parts {
        if let HirKind::Look(look) = part.kind() {
            let edge = match look {
                Look::WordAscii => AtomBoundary::Word,
                Look::Start | Look::End => AtomBoundary::Value,
                _ => continue,
            };
            if run.iter().all(Vec::is_empty) {
                before = if *look == Look::End {
                    AtomBoundary::Anything
                } else {
                    edge
                };
            } else if *look != Look::Start {
                needed = better(needed, atoms(&run, before, edge));
            }
            continue;
        }
        let known = of(part);
        classes.extend(&known.classes);
        if let Some(longer) = known.exact.as_ref().and_then(|texts| joined(&run, texts)) {
            // An optional subexpression may be empty, so that the boundary is beside what follows it.
            run = longer;
            continue;
        }
        // The run ends here, perhaps continued by the beginnings of this subexpression.
        if whole && spelled(&run) {
            first = Some(run.clone());
        }
        needed = better(needed, atoms(&run, before, AtomBoundary::Anything));
        let opening = known
            .first
            .as_ref()
            .filter(|texts| texts.len() <= MAX_EXACT_TEXTS);
        if let Some(longer) = opening.and_then(|texts| joined(&run, texts)) {
            needed = better(needed, atoms(&longer, before, AtomBoundary::Anything));
            if whole && first.is_none() {
                first = Some(longer);
            }
        }
        whole = false;
        needed = better(
            needed,
            known
                .exact
                .and_then(|texts| atoms(&texts, AtomBoundary::Anything, AtomBoundary::Anything)),
        );
        needed = better(needed, known.needed);
        let closing = known.last.filter(|texts| texts.len() <= MAX_EXACT_TEXTS);
        run = closing.unwrap_or_else(|| vec![Vec::new()]);
        before = AtomBoundary::Anything;
    }
    let last = Some(run.clone()).filter(spelled);
    needed = better(needed, atoms(&run, before, AtomBoundary::Anything));
    let classes = few(classes);
    if whole {
        ExpressionInfo {
            needed,
            classes,
            ..ExpressionInfo::exactly(run)
        }
    } else {
        ExpressionInfo {
            exact: None,
            first,
            last,
            needed,
            classes,
        }
    }
}

fn alternation(parts: &[Hir]) -> ExpressionInfo {
    let known: Vec<ExpressionInfo> = parts.iter().map(of).collect();
    let every = |pick: fn(&ExpressionInfo) -> &Option<LiteralTexts>| {
        let texts: Option<Vec<&LiteralTexts>> =
            known.iter().map(|part| pick(part).as_ref()).collect();
        let texts = texts.map(|sets| {
            sets.into_iter()
                .flatten()
                .cloned()
                .collect::<LiteralTexts>()
        });
        texts.filter(|texts| texts.len() <= MAX_ATOMS)
    };
    let (exact, first, last) = (every(|k| &k.exact), every(|k| &k.first), every(|k| &k.last));
    // If all branches have a class, the union of these.
    let classes: Option<Vec<ByteClassSet>> = known
        .iter()
        .map(|part| part.classes.first().copied())
        .collect();
    let classes = classes.map(|classes| {
        classes
            .into_iter()
            .fold(ByteClassSet::NONE, ByteClassSet::or)
    });
    let needed: Option<Vec<AtomList>> = known.into_iter().map(ExpressionInfo::best).collect();
    let needed = needed
        .map(|sets| sets.concat())
        .filter(|atoms| atoms.len() <= MAX_ATOMS);
    ExpressionInfo {
        exact,
        first,
        last,
        needed,
        classes: few(classes.into_iter().collect()),
    }
}

/// The characters of a small class, in lower case and without duplicates.
fn letters(class: &Class) -> Option<LiteralTexts> {
    let ranges = ranges(class)?;
    let few = ranges
        .iter()
        .map(|(from, to)| usize::from(to - from) + 1)
        .sum::<usize>()
        <= 12;
    let mut bytes: Vec<u8> =
        few.then(|| ranges.iter().flat_map(|(from, to)| *from..=*to).collect())?;
    bytes
        .iter_mut()
        .for_each(|byte| *byte = byte.to_ascii_lowercase());
    bytes.sort_unstable();
    bytes.dedup();
    Some(bytes.into_iter().map(|byte| vec![byte]).collect())
}

/// The byte classes of a character class.
fn classes_of(class: &Class) -> ByteClassSet {
    let Some(ranges) = ranges(class) else {
        return ByteClassSet::ALL;
    };
    let bytes = ranges.into_iter().flat_map(|(from, to)| from..=to);
    bytes.fold(ByteClassSet::NONE, |classes, byte| {
        classes.or(fold(ByteClassSet::byte(byte)))
    })
}

/// The bytes of a character class, if all of its characters are single bytes.
fn ranges(class: &Class) -> Option<Vec<(u8, u8)>> {
    match class {
        Class::Bytes(class) => Some(
            class
                .ranges()
                .iter()
                .map(|r| (r.start(), r.end()))
                .collect(),
        ),
        Class::Unicode(class) => {
            let byte = |c: char| c as u8;
            let all = || {
                class
                    .ranges()
                    .iter()
                    .map(|r| (byte(r.start()), byte(r.end())))
            };
            class.is_ascii().then(|| all().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pattern: &str) -> Option<Vec<String>> {
        let hir = regex_syntax::ParserBuilder::new()
            .unicode(false)
            .utf8(false)
            .build()
            .parse(pattern)
            .unwrap();
        let text = |atom: &PrefilterAtom| {
            let edge = |edge| match edge {
                AtomBoundary::Anything => "",
                AtomBoundary::Word => "\\b",
                AtomBoundary::Value => "|",
            };
            let text = atom.text.escape_ascii();
            let classes = "&".repeat(atom.classes.len());
            format!("{}{text}{}{classes}", edge(atom.before), edge(atom.after))
        };
        Some(required(&hir)?.iter().map(text).collect())
    }

    #[test]
    fn atoms_are_found_in_what_every_match_contains() {
        let set = |texts: &[&str]| Some(texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        for (pattern, expected) in [
            (r"(?i)union\s+select", &["union"][..]),
            (
                r"(?i)\b(?:etc/passwd|win\.ini)\b",
                &["\\betc/passwd\\b&", "\\bwin.ini\\b&"],
            ),
            (r"(?:foobar)+x?", &["foobar"]),
            (r"gr[ae]y", &["gray", "grey"]),
            (r"colou?r", &["color", "colour"]),
            (r"^(?:ftp|file)://", &["|file://&&", "|ftp://&&"]),
            // Only the classes of `<` and `>` remain.
            (r"<[^>]*>", &["&&"]),
        ] {
            let found = of(pattern);
            assert_eq!(found, set(expected), "{pattern}");
        }
        assert_eq!(of(r"a.*b"), None);
        assert_eq!(of(r"(?:foo|b.*)"), None);
    }
}
