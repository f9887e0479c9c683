//! Which literals a regular expression cannot match without.
//!
//! From a parsed expression comes a set of lower-case texts of which each match holds at least one, or nothing
//! where there is no such set. One search for the literals of all rules then finds the few rules that are worth
//! trying: what RE2 calls a filtered set.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Texts in a set.
const MOST: usize = 4_000;
/// Texts that are spelled out of short pieces.
const MOST_EXACT: usize = 48;
/// A shorter literal is in everything.
const SHORTEST: usize = 2;

/// The texts; `None` where a match may hold none that would be worth a search.
pub(super) fn required(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    let mut best = of(hir).best()?;
    best.sort();
    best.dedup();
    Some(best)
}

type Set = Vec<Vec<u8>>;

/// What is known of a part.
#[derive(Default)]
struct Known {
    /// Everything that it can match, whole.
    exact: Option<Set>,
    /// Of these each match holds one.
    needed: Option<Set>,
}

impl Known {
    fn best(self) -> Option<Set> {
        better(self.exact.and_then(usable), self.needed)
    }
}

/// A set that is worth a search.
fn usable(set: Set) -> Option<Set> {
    let long = !set.is_empty() && set.len() <= MOST && set.iter().all(|t| t.len() >= SHORTEST);
    long.then_some(set)
}

/// The one whose shortest text is longer, or which is smaller.
fn better(one: Option<Set>, other: Option<Set>) -> Option<Set> {
    let worth = |set: &Set| {
        let shortest = set.iter().map(Vec::len).min().unwrap_or(0).min(5);
        (shortest, usize::MAX - set.len())
    };
    match (one, other) {
        (Some(one), Some(other)) => Some(if worth(&one) >= worth(&other) {
            one
        } else {
            other
        }),
        (one, other) => one.or(other),
    }
}

fn of(hir: &Hir) -> Known {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Known {
            exact: Some(vec![Vec::new()]),
            needed: None,
        },
        HirKind::Literal(literal) => Known {
            exact: Some(vec![literal.0.to_ascii_lowercase()]),
            needed: None,
        },
        HirKind::Class(class) => Known {
            exact: letters(class),
            needed: None,
        },
        HirKind::Capture(capture) => of(&capture.sub),
        HirKind::Repetition(repetition) => {
            let sub = of(&repetition.sub);
            match (repetition.min, repetition.max) {
                (1, Some(1)) => sub,
                (0, Some(1)) => {
                    let mut exact = sub.exact;
                    if let Some(set) = &mut exact {
                        set.push(Vec::new());
                    }
                    Known {
                        exact,
                        needed: None,
                    }
                }
                (0, _) => Known::default(),
                _ => Known {
                    exact: None,
                    needed: sub.best(),
                },
            }
        }
        HirKind::Concat(parts) => concat(parts),
        HirKind::Alternation(parts) => alternation(parts),
    }
}

fn concat(parts: &[Hir]) -> Known {
    let mut run: Set = vec![Vec::new()];
    let mut needed = None;
    let mut whole = true;
    for part in parts {
        let known = of(part);
        match known.exact {
            Some(set) if run.len() * set.len() <= MOST_EXACT => {
                let joined = |head: &Vec<u8>| {
                    let head = head.clone();
                    set.iter()
                        .map(move |tail| [&head[..], tail].concat())
                        .collect::<Vec<_>>()
                };
                run = run.iter().flat_map(joined).collect();
            }
            exact => {
                whole = false;
                needed = better(
                    needed,
                    usable(std::mem::replace(&mut run, vec![Vec::new()])),
                );
                match exact {
                    Some(set) if set.len() <= MOST_EXACT => run = set,
                    Some(set) => needed = better(needed, usable(set)),
                    None => needed = better(needed, known.needed),
                }
            }
        }
    }
    if whole {
        Known {
            exact: Some(run),
            needed,
        }
    } else {
        Known {
            exact: None,
            needed: better(needed, usable(run)),
        }
    }
}

fn alternation(parts: &[Hir]) -> Known {
    let known: Vec<Known> = parts.iter().map(of).collect();
    let exact = known
        .iter()
        .map(|part| part.exact.clone())
        .collect::<Option<Vec<Set>>>();
    let exact = exact
        .map(|sets| sets.concat())
        .filter(|set| set.len() <= MOST);
    let needed = known
        .into_iter()
        .map(Known::best)
        .collect::<Option<Vec<Set>>>();
    let needed = needed.map(|sets| sets.concat()).and_then(usable);
    Known { exact, needed }
}

/// The few characters of a class, in lower case; one whose letters differ in case only is one.
fn letters(class: &Class) -> Option<Set> {
    let mut set: Vec<u8> = match class {
        Class::Bytes(class) => {
            let few = class.ranges().iter().map(|r| r.len()).sum::<usize>() <= 12;
            few.then(|| {
                class
                    .ranges()
                    .iter()
                    .flat_map(|r| r.start()..=r.end())
                    .collect()
            })?
        }
        Class::Unicode(class) => {
            let ascii = class.is_ascii();
            let few = class.ranges().iter().map(|r| r.len()).sum::<usize>() <= 12;
            let byte = |c: char| c as u8;
            (ascii && few).then(|| {
                class
                    .ranges()
                    .iter()
                    .flat_map(|r| byte(r.start())..=byte(r.end()))
                    .collect()
            })?
        }
    };
    set.iter_mut()
        .for_each(|byte| *byte = byte.to_ascii_lowercase());
    set.sort_unstable();
    set.dedup();
    Some(set.into_iter().map(|byte| vec![byte]).collect())
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
        let texts = required(&hir)?;
        Some(
            texts
                .into_iter()
                .map(|t| String::from_utf8(t).unwrap())
                .collect(),
        )
    }

    #[test]
    fn literals_are_found_in_what_must_be_there() {
        let set = |texts: &[&str]| Some(texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(r"(?i)union\s+select"), set(&["union"]));
        assert_eq!(
            of(r"(?i)\b(?:etc/passwd|win\.ini)\b"),
            set(&["etc/passwd", "win.ini"])
        );
        assert_eq!(of(r"a.*b"), None);
        assert_eq!(of(r"(?:foo|b.*)"), None);
        assert_eq!(of(r"(?:foobar)+x?"), set(&["foobar"]));
        assert_eq!(of(r"gr[ae]y"), set(&["gray", "grey"]));
        assert_eq!(of(r"colou?r"), set(&["color", "colour"]));
    }
}
