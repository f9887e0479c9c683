//! What a regular expression cannot match without.
//!
//! From a parsed expression come [`Sign`]s, of which each match shows at least one: a lower-case text, perhaps with the border
//! of a word beside it, and kinds of bytes that must be there besides. One search for the texts of all
//! rules then finds the few rules that are worth trying: what RE2 calls a filtered set.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::kinds::Kinds;

/// Signs in a set.
const MOST: usize = 4_000;
/// Texts that are spelled out of short pieces.
const MOST_EXACT: usize = 64;
/// Sets of kinds with a sign.
const MOST_KINDS: usize = 3;

/// Something that a match shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sign {
    /// A text in lower case; if empty, the kinds say all.
    pub(super) text: Vec<u8>,
    /// What is just before the text, and just after it.
    pub(super) before: Edge,
    pub(super) after: Edge,
    /// Of each of these, something is in the value.
    pub(super) kinds: Vec<Kinds>,
}

/// What is beside a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Edge {
    #[default]
    Anything,
    /// The border of a word, as `\b` has it.
    Word,
    /// The begin or the end of the value.
    Value,
}

impl Edge {
    fn factor(self) -> f64 {
        match self {
            Self::Anything => 1.0,
            Self::Word => 0.3,
            Self::Value => 0.05,
        }
    }
}

impl Sign {
    /// Just a text.
    pub(super) fn text(text: &[u8]) -> Self {
        Self {
            text: text.to_ascii_lowercase(),
            before: Edge::Anything,
            after: Edge::Anything,
            kinds: Vec::new(),
        }
    }

    /// Just a kind of byte.
    pub(super) fn kinds(kinds: Kinds) -> Self {
        Self {
            kinds: vec![kinds],
            ..Self::text(b"")
        }
    }

    /// How often everyday text shows it, in no unit.
    fn cost(&self) -> f64 {
        let text: f64 = match self.text.len() {
            // Not found by a search, so that the rule is tried wherever the kinds are.
            0 => 0.5,
            _ => self.text.iter().map(|byte| chance(*byte)).product(),
        };
        let kinds: f64 = self.kinds.iter().map(|kinds| rarity(*kinds)).product();
        // Each is something to search for, however rare.
        text * kinds * self.before.factor() * self.after.factor() + 1e-6
    }

    /// The kinds that it takes, those of its text included: each set says of what one must be there.
    pub(super) fn all_kinds(&self) -> impl Iterator<Item = Kinds> {
        let text = self.text.iter().map(|byte| fold(Kinds::byte(*byte)));
        self.kinds.iter().copied().chain(text)
    }
}

/// How often a byte is this one.
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

/// How often a short value has one of these.
fn rarity(kinds: Kinds) -> f64 {
    if kinds.any(Kinds::COMMON) {
        1.0
    } else if kinds.any(Kinds::bytes(b".,-/:_\n")) {
        0.6
    } else if kinds.any(Kinds::bytes(b"='\"()?&+#@!%")) {
        0.3
    } else {
        0.05
    }
}

/// Letters without their case.
fn fold(kinds: Kinds) -> Kinds {
    kinds.without(Kinds::UPPER)
}

/// The signs; `None` where a match may show none that would be worth a look.
pub(super) fn required(hir: &Hir) -> Option<Vec<Sign>> {
    let mut signs = of(hir).best()?;
    signs.sort();
    signs.dedup();
    // One that says nothing is in everything.
    let says = |sign: &Sign| !sign.text.is_empty() || !sign.kinds.is_empty();
    signs.iter().all(says).then_some(signs)
}

type Texts = Vec<Vec<u8>>;
type Signs = Vec<Sign>;

/// What is known of a part.
#[derive(Clone, Default)]
struct Known {
    /// Everything that it can match, whole.
    exact: Option<Texts>,
    /// Each match begins with one of these, and ends with one of those; none is empty.
    first: Option<Texts>,
    last: Option<Texts>,
    /// Of these each match shows one.
    needed: Option<Signs>,
    /// Of each of these a match has something.
    kinds: Vec<Kinds>,
}

impl Known {
    fn exactly(texts: Texts) -> Self {
        let whole = Some(texts.clone()).filter(spelled);
        let mut kinds = Vec::new();
        // What is in all of them, as far as it can be one byte's kind: a mark at the same place.
        if let [text] = &texts[..] {
            kinds.extend(text.iter().map(|byte| fold(Kinds::byte(*byte))));
        } else if texts.iter().all(|text| text.len() == 1) && !texts.is_empty() {
            let all = |kinds: Kinds, text: &Vec<u8>| kinds.or(fold(Kinds::byte(text[0])));
            kinds.push(texts.iter().fold(Kinds::NONE, all));
        }
        Self {
            exact: Some(texts),
            first: whole.clone(),
            last: whole,
            needed: None,
            kinds: few(kinds),
        }
    }

    fn best(self) -> Option<Signs> {
        let texts = self
            .exact
            .and_then(|texts| signs(&texts, Edge::Anything, Edge::Anything));
        let best = better(texts, self.needed);
        match best {
            Some(mut signs) => {
                for sign in &mut signs {
                    sign.kinds.extend(&self.kinds);
                    sign.kinds = few(std::mem::take(&mut sign.kinds));
                }
                Some(signs)
            }
            None if self.kinds.is_empty() => None,
            None => Some(vec![Sign {
                kinds: self.kinds,
                ..Sign::text(b"")
            }]),
        }
    }
}

/// Whether there is one and none is empty.
fn spelled(texts: &Texts) -> bool {
    !texts.is_empty() && texts.iter().all(|text| !text.is_empty())
}

/// Texts as signs, if each says something. A single byte is told by its kind.
fn signs(texts: &Texts, before: Edge, after: Edge) -> Option<Signs> {
    let sign = |text: &Vec<u8>| match text[..] {
        [byte] => Sign::kinds(fold(Kinds::byte(byte))),
        _ => Sign {
            before,
            after,
            ..Sign::text(text)
        },
    };
    (spelled(texts) && texts.len() <= MOST).then(|| texts.iter().map(sign).collect())
}

/// The set that everyday text shows less often.
fn better(one: Option<Signs>, other: Option<Signs>) -> Option<Signs> {
    let cost = |signs: &Signs| signs.iter().map(Sign::cost).sum::<f64>();
    match (one, other) {
        (Some(one), Some(other)) => Some(if cost(&one) <= cost(&other) {
            one
        } else {
            other
        }),
        (one, other) => one.or(other),
    }
}

/// The rarest, each once.
fn few(mut kinds: Vec<Kinds>) -> Vec<Kinds> {
    kinds.retain(|kinds| rarity(*kinds) < 1.0);
    kinds.sort_by(|a, b| rarity(*a).total_cmp(&rarity(*b)).then(a.cmp(b)));
    kinds.dedup();
    kinds.truncate(MOST_KINDS);
    kinds
}

fn of(hir: &Hir) -> Known {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Known::exactly(vec![Vec::new()]),
        HirKind::Literal(literal) => Known::exactly(vec![literal.0.to_ascii_lowercase()]),
        HirKind::Class(class) => match letters(class) {
            Some(texts) => Known::exactly(texts),
            None => Known {
                kinds: few(vec![class_kinds(class)]),
                ..Known::default()
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
                        Known::exactly(texts)
                    }
                    None => Known::default(),
                },
                (0, _) => Known::default(),
                _ => Known {
                    exact: None,
                    first: sub.first.clone(),
                    last: sub.last.clone(),
                    kinds: sub.kinds.clone(),
                    needed: sub.best(),
                },
            }
        }
        HirKind::Concat(parts) => concat(parts),
        HirKind::Alternation(parts) => alternation(parts),
    }
}

/// Each of some texts followed by each of others, where that is not too much.
fn joined(heads: &Texts, tails: &Texts) -> Option<Texts> {
    (heads.len() * tails.len() <= MOST_EXACT).then(|| {
        let all = heads
            .iter()
            .flat_map(|head| tails.iter().map(move |tail| [&head[..], tail].concat()));
        all.collect()
    })
}

fn concat(parts: &[Hir]) -> Known {
    // What is spelled out up to here, and since where.
    let mut run: Texts = vec![Vec::new()];
    let mut before = Edge::Anything;
    let mut whole = true;
    let mut first = None;
    let mut needed = None;
    let mut kinds = Vec::new();
    for part in parts {
        if let HirKind::Look(look) = part.kind() {
            let edge = match look {
                Look::WordAscii => Edge::Word,
                Look::Start | Look::End => Edge::Value,
                _ => continue,
            };
            if run.iter().all(Vec::is_empty) {
                before = if *look == Look::End {
                    Edge::Anything
                } else {
                    edge
                };
            } else if *look != Look::Start {
                needed = better(needed, signs(&run, before, edge));
            }
            continue;
        }
        let known = of(part);
        kinds.extend(&known.kinds);
        if let Some(longer) = known.exact.as_ref().and_then(|texts| joined(&run, texts)) {
            // An optional part may leave nothing between an edge and what comes next; that is then still beside it.
            run = longer;
            continue;
        }
        // The run ends here; it may go on for a bit.
        if whole && spelled(&run) {
            first = Some(run.clone());
        }
        needed = better(needed, signs(&run, before, Edge::Anything));
        let opening = known
            .first
            .as_ref()
            .filter(|texts| texts.len() <= MOST_EXACT);
        if let Some(longer) = opening.and_then(|texts| joined(&run, texts)) {
            needed = better(needed, signs(&longer, before, Edge::Anything));
            if whole && first.is_none() {
                first = Some(longer);
            }
        }
        whole = false;
        needed = better(
            needed,
            known
                .exact
                .and_then(|texts| signs(&texts, Edge::Anything, Edge::Anything)),
        );
        needed = better(needed, known.needed);
        let closing = known.last.filter(|texts| texts.len() <= MOST_EXACT);
        run = closing.unwrap_or_else(|| vec![Vec::new()]);
        before = Edge::Anything;
    }
    let last = Some(run.clone()).filter(spelled);
    needed = better(needed, signs(&run, before, Edge::Anything));
    let kinds = few(kinds);
    if whole {
        Known {
            needed,
            kinds,
            ..Known::exactly(run)
        }
    } else {
        Known {
            exact: None,
            first,
            last,
            needed,
            kinds,
        }
    }
}

fn alternation(parts: &[Hir]) -> Known {
    let known: Vec<Known> = parts.iter().map(of).collect();
    let every = |pick: fn(&Known) -> &Option<Texts>| {
        let texts: Option<Vec<&Texts>> = known.iter().map(|part| pick(part).as_ref()).collect();
        let texts = texts.map(|sets| sets.into_iter().flatten().cloned().collect::<Texts>());
        texts.filter(|texts| texts.len() <= MOST)
    };
    let (exact, first, last) = (every(|k| &k.exact), every(|k| &k.first), every(|k| &k.last));
    // What all branches have a kind for, together.
    let kinds: Option<Vec<Kinds>> = known
        .iter()
        .map(|part| part.kinds.first().copied())
        .collect();
    let kinds = kinds.map(|kinds| kinds.into_iter().fold(Kinds::NONE, Kinds::or));
    let needed: Option<Vec<Signs>> = known.into_iter().map(Known::best).collect();
    let needed = needed
        .map(|sets| sets.concat())
        .filter(|signs| signs.len() <= MOST);
    Known {
        exact,
        first,
        last,
        needed,
        kinds: few(kinds.into_iter().collect()),
    }
}

/// The few characters of a class, in lower case; one whose letters differ in case only is one.
fn letters(class: &Class) -> Option<Texts> {
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

/// What a class takes, as kinds.
fn class_kinds(class: &Class) -> Kinds {
    let Some(ranges) = ranges(class) else {
        return Kinds::ALL;
    };
    let bytes = ranges.into_iter().flat_map(|(from, to)| from..=to);
    bytes.fold(Kinds::NONE, |kinds, byte| kinds.or(fold(Kinds::byte(byte))))
}

/// The bytes of a class, where each of its characters is one.
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
        let text = |sign: &Sign| {
            let edge = |edge| match edge {
                Edge::Anything => "",
                Edge::Word => "\\b",
                Edge::Value => "|",
            };
            let text = sign.text.escape_ascii();
            let kinds = "&".repeat(sign.kinds.len());
            format!("{}{text}{}{kinds}", edge(sign.before), edge(sign.after))
        };
        Some(required(&hir)?.iter().map(text).collect())
    }

    #[test]
    fn signs_are_found_in_what_must_be_there() {
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
            // Only the kinds of `<` and `>` remain.
            (r"<[^>]*>", &["&&"]),
        ] {
            let found = of(pattern);
            assert_eq!(found, set(expected), "{pattern}");
        }
        assert_eq!(of(r"a.*b"), None);
        assert_eq!(of(r"(?:foo|b.*)"), None);
    }
}
