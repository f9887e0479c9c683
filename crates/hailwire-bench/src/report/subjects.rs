//! Which subjects are ours, and which baselines each of them is compared with.

use crate::tables::callout::{
    FAR, NEAR, OURS, OURS_OURS, OURS_THEIRS, RAW, SELDOM, THEIRS, THEIRS_OURS, THEIRS_THEIRS, UDP,
};
use crate::tables::subject::{AUTO, H2, PLAIN_H2, PLAIN_WS, PROCESSES, QUIC, RAW_IROH, WS};

/// In the order in which columns and plots show them.
const ORDER: &[&str] = &[
    AUTO,
    QUIC,
    RAW_IROH,
    PLAIN_H2,
    H2,
    PLAIN_WS,
    WS,
    "embedded",
    PROCESSES,
    OURS,
    THEIRS,
    OURS_OURS,
    THEIRS_THEIRS,
    OURS_THEIRS,
    THEIRS_OURS,
    RAW,
    FAR,
    NEAR,
    SELDOM,
    UDP,
];

/// How many of them are carriers, which come first; the others take part in callouts.
pub(crate) const CARRIERS: usize = 9;

/// How many are known.
pub(crate) const KNOWN: usize = ORDER.len();

/// The position of a subject among others; unknown ones come last.
#[must_use]
pub(crate) fn order(subject: &str) -> usize {
    let cell_key = ORDER.iter().position(|known| *known == subject);
    cell_key.unwrap_or(KNOWN)
}

/// Whether a subject is Hailwire in one of its forms; all others are baselines.
#[must_use]
pub(crate) fn is_ours(subject: &str) -> bool {
    let ours = [QUIC, H2, WS, PROCESSES, "embedded", AUTO, OURS, OURS_OURS];
    // `quic bbr` is `quic` in a variant.
    ours.iter().any(|name| {
        let rest = subject.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// The baselines of one of our subjects, the one that a table prints first. A carrier is compared
/// with the plain program of its protocol; QUIC, which a node prefers, with all of them.
#[must_use]
pub(crate) fn baselines(subject: &str) -> &'static [&'static str] {
    match subject {
        H2 => &[PLAIN_H2],
        OURS => &[THEIRS],
        OURS_OURS => &[THEIRS_THEIRS, RAW],
        WS => &[PLAIN_WS],
        _ if subject.starts_with(QUIC) || subject == AUTO => &[PLAIN_H2, RAW_IROH, PLAIN_WS],
        _ if is_ours(subject) => &[RAW_IROH, PLAIN_H2, PLAIN_WS],
        _ => &[],
    }
}

/// Whether the two are compared: a baseline of the first, or an unknown program.
#[must_use]
pub(crate) fn compared(ours: &str, other: &str) -> bool {
    if !is_ours(ours) || is_ours(other) {
        return false;
    }
    let (base, variant) = variant(other);
    let same = variant.is_empty() || ours.ends_with(variant);
    (baselines(ours).contains(&base) && same) || order(base) == KNOWN
}

/// `raw iroh` and ` bbr` of `raw iroh bbr`.
fn variant(subject: &str) -> (&str, &str) {
    let known = ORDER.iter().find(|name| {
        let rest = subject.strip_prefix(**name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    subject.split_at(known.map_or(subject.len(), |name| name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_is_set_beside_its_own_protocol_and_quic_beside_all() {
        assert!(compared("h2", "plain h2") && !compared("h2", "raw iroh"));
        assert!(compared("quic", "plain ws") && compared("quic bbr", "raw iroh"));
        assert!(compared("process to process", "raw iroh"));
        assert!(!compared("quic", "h2") && !compared("plain h2", "plain ws"));
        assert!(compared("quic bbr", "raw iroh bbr") && !compared("quic bbr", "raw iroh cubic"));
    }

    #[test]
    fn a_foreign_program_is_set_beside_all_of_ours() {
        assert!(compared("ws", "pilot") && compared("quic", "pilot"));
        assert!(!is_ours("quickly") && !is_ours("plain h2"));
    }
}
