//! What was measured as peers and people are told it, and read from a peer.

use hailwire_core::diagnosis::{self, ProbeOutcome, ReachSummary};

use crate::admin;

pub(super) fn finding(found: diagnosis::Finding) -> admin::DiagnosisFinding {
    admin::DiagnosisFinding {
        code: found.code.to_owned(),
        level: found.level.name().to_owned(),
        cause: found.cause,
        cure: found.cure,
    }
}

const OUTCOMES: [(ProbeOutcome, &str); 3] = [
    (ProbeOutcome::NotTried, "not-tried"),
    (ProbeOutcome::Silent, "silent"),
    (ProbeOutcome::Answered, "answered"),
];

const MAPPINGS: [(diagnosis::MappingKind, &str); 3] = [
    (diagnosis::MappingKind::None, "none"),
    (
        diagnosis::MappingKind::EndpointIndependent,
        "endpoint-independent",
    ),
    (
        diagnosis::MappingKind::EndpointDependent,
        "endpoint-dependent",
    ),
];

pub(super) fn reach(summary: &ReachSummary) -> admin::ReachReport {
    let outcome = |of: ProbeOutcome| {
        let mut all = OUTCOMES.iter();
        let found = all.find(|(outcome, _)| *outcome == of);
        found.map_or("", |(_, word)| word).to_owned()
    };
    let mapping = |of: diagnosis::MappingKind| {
        let mut all = MAPPINGS.iter();
        all.find(|(mapping, _)| *mapping == of)
            .map(|(_, word)| (*word).to_owned())
    };
    admin::ReachReport {
        udp4: outcome(summary.udp4),
        udp6: outcome(summary.udp6),
        mapping: summary.mapping.and_then(mapping),
        lets_other_ports_in: summary.lets_other_ports_in,
        is_mapped: summary.is_mapped,
        listens_tcp: summary.listens_tcp,
    }
}

pub(super) fn summary(report: &admin::ReachReport) -> ReachSummary {
    let outcome = |word: &str| {
        let mut all = OUTCOMES.iter();
        let found = all.find(|(_, own)| *own == word);
        found.map_or(ProbeOutcome::NotTried, |(outcome, _)| *outcome)
    };
    let mapping = |word: &String| {
        let mut all = MAPPINGS.iter();
        all.find(|(_, own)| own == word)
            .map(|(mapping, _)| *mapping)
    };
    ReachSummary {
        udp4: outcome(&report.udp4),
        udp6: outcome(&report.udp6),
        mapping: report.mapping.as_ref().and_then(mapping),
        lets_other_ports_in: report.lets_other_ports_in,
        is_mapped: report.is_mapped,
        listens_tcp: report.listens_tcp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_is_read_as_it_was_meant_and_nonsense_is_nothing() {
        let said = ReachSummary {
            udp4: ProbeOutcome::Answered,
            udp6: ProbeOutcome::Silent,
            mapping: Some(diagnosis::MappingKind::EndpointDependent),
            lets_other_ports_in: Some(true),
            is_mapped: true,
            listens_tcp: true,
        };
        assert_eq!(summary(&reach(&said)), said);
        let nonsense = admin::ReachReport {
            udp4: "always".to_owned(),
            mapping: Some("new".to_owned()),
            ..admin::ReachReport::default()
        };
        assert_eq!(summary(&nonsense), ReachSummary::default());
    }
}
