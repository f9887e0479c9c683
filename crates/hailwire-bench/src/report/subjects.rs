//! Which subjects are ours, which baselines each of them is compared with, and what people read instead of their ids.

use crate::tables::callout::{
    FAR, NEAR, OURS, OURS_OURS, OURS_THEIRS, RAW, SELDOM, THEIRS, THEIRS_OURS, THEIRS_THEIRS, UDP,
};
use crate::tables::sdk::{
    AIOHTTP, GRPC_AIO, GRPC_JS, NATS_JS, NATS_PY, PYTHON, TYPESCRIPT, UNDICI,
};
use crate::tables::subject::{AUTO, H2, PLAIN_H2, PLAIN_WS, PROCESSES, QUIC, RAW_IROH, WS};

/// A node in the calling program itself.
const EMBEDDED: &str = "embedded";

/// In the order in which columns and plots show them.
const ORDER: &[&str] = &[
    AUTO,
    QUIC,
    RAW_IROH,
    PLAIN_H2,
    H2,
    PLAIN_WS,
    WS,
    EMBEDDED,
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
    PYTHON,
    TYPESCRIPT,
    GRPC_AIO,
    GRPC_JS,
    NATS_PY,
    NATS_JS,
    AIOHTTP,
    UNDICI,
];

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
    let ours = [QUIC, H2, WS, PROCESSES, EMBEDDED, AUTO, OURS, OURS_OURS];
    let ours = ours.iter().chain(&[PYTHON, TYPESCRIPT]);
    // `quic bbr` is `quic` in a variant.
    ours.into_iter().any(|name| {
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
        PYTHON => &[GRPC_AIO, NATS_PY, AIOHTTP],
        TYPESCRIPT => &[GRPC_JS, NATS_JS, UNDICI],
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

/// Whether Hailwire does the work, in any of its forms: ours, and callouts to agents on other nodes, which have no
/// baseline of their own.
#[must_use]
pub(crate) fn is_hailwire(subject: &str) -> bool {
    is_ours(subject) || [FAR, NEAR, SELDOM].contains(&subject)
}

/// A subject for people; data files and the command line have its id. An unknown one is called as it calls itself.
#[must_use]
pub(crate) fn words(subject: &str) -> String {
    let (base, rest) = variant(subject);
    let name = match base {
        QUIC => "Hailwire over QUIC",
        H2 => "Hailwire over HTTP/2",
        WS => "Hailwire over WebSocket",
        AUTO => "Hailwire over the carrier that it chooses",
        EMBEDDED => "Hailwire embedded in the caller",
        PROCESSES => "Hailwire from process to process",
        PLAIN_H2 => "plain HTTP/2",
        PLAIN_WS => "plain WebSocket",
        OURS => "Hailwire callout",
        OURS_OURS => "Hailwire to Hailwire",
        OURS_THEIRS => "Hailwire to zentinel",
        THEIRS_OURS => "zentinel to Hailwire",
        THEIRS => "zentinel-agent-protocol",
        THEIRS_THEIRS => "zentinel to zentinel",
        NEAR => "Hailwire to a near agent",
        SELDOM => "Hailwire to a near agent that is asked as seldom",
        FAR => "Hailwire to a far agent",
        RAW => "bytes over a Unix socket",
        UDP => "UDP back and forth",
        PYTHON => "Hailwire's SDK for Python",
        TYPESCRIPT => "Hailwire's SDK for TypeScript",
        other => other,
    };
    match rest.trim() {
        "" => name.to_owned(),
        congestion @ ("bbr" | "cubic") => format!("{name}, {}", congestion.to_uppercase()),
        other => format!("{name}, {other}"),
    }
}

/// `raw iroh` and ` bbr` of `raw iroh bbr`.
pub(crate) fn variant(subject: &str) -> (&str, &str) {
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
    fn people_read_words_and_each_subject_has_words_of_its_own() {
        assert_eq!(words("quic"), "Hailwire over QUIC");
        assert_eq!(words("quic bbr"), "Hailwire over QUIC, BBR");
        assert_eq!(words("plain h2"), "plain HTTP/2");
        assert_eq!(words("pilot"), "pilot");
        let all: std::collections::BTreeSet<String> = ORDER.iter().map(|id| words(id)).collect();
        assert_eq!(all.len(), KNOWN);
        for id in ORDER {
            let named = words(id).starts_with("Hailwire") && *id != OURS_THEIRS;
            assert_eq!(is_hailwire(id), named, "{id}");
        }
    }

    #[test]
    fn an_sdk_is_set_beside_the_libraries_of_its_language() {
        assert!(compared(PYTHON, NATS_PY) && !compared(PYTHON, NATS_JS));
        assert!(compared(TYPESCRIPT, UNDICI) && !compared(TYPESCRIPT, PYTHON));
        assert!(!is_ours("python") && !compared("quic", GRPC_AIO));
    }

    #[test]
    fn a_foreign_program_is_set_beside_all_of_ours() {
        assert!(compared("ws", "pilot") && compared("quic", "pilot"));
        assert!(!is_ours("quickly") && !is_ours("plain h2"));
    }
}
