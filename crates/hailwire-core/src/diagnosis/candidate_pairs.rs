//! Both ends' candidates put together: where each looked for the other, and which of these belong to one path.
//!
//! Neither end knows the other's half of a path, so only what follows from both reports is paired: the two that are in use, the only
//! two of a kind and family that answered besides, and a relay that both name. Of all others the other half stays open: no packet came back
//! whichever address it was sent to, or several could be meant.

/// Where one end looked for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriedCandidate<'a> {
    /// How: `udp`, `tcp`, `relay`.
    pub kind: &'a str,
    /// A socket address or a relay's URL.
    pub address: &'a str,
    /// Whether a path there is open.
    pub answered: bool,
    /// Whether new calls take it.
    pub used: bool,
}

/// A pair of addresses, one of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidatePair<'a> {
    /// How.
    pub kind: &'a str,
    /// Where the peer looked for this node; nothing where that may be any.
    pub near: Option<&'a str>,
    /// Where this node looked for the peer; nothing where that may be any.
    pub far: Option<&'a str>,
    /// What came back.
    pub outcome: PairOutcome,
}

/// What came back of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PairOutcome {
    /// A path, which new calls take.
    Used,
    /// A path.
    Answered,
    /// Nothing.
    Silent,
}

impl PairOutcome {
    /// Its name in `--json`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Answered => "answered",
            Self::Silent => "no-answer",
        }
    }

    fn of(tried: TriedCandidate<'_>) -> Self {
        match (tried.used, tried.answered) {
            (true, _) => Self::Used,
            (false, true) => Self::Answered,
            (false, false) => Self::Silent,
        }
    }
}

/// What can be told to belong together, in this order.
const TOGETHER: [PairOutcome; 2] = [PairOutcome::Used, PairOutcome::Answered];

/// Pairs where this node looked for a peer with where the peer looked for this node; what is in use comes first, then what answered.
#[must_use]
pub fn candidate_pairs<'a>(
    here: &[TriedCandidate<'a>],
    there: &[TriedCandidate<'a>],
) -> Vec<CandidatePair<'a>> {
    let (mut here, mut there) = (here.to_vec(), there.to_vec());
    let mut pairs = Vec::new();
    let kinds = [("udp", false), ("udp", true), ("tcp", false), ("tcp", true)];
    for (kind, together) in kinds
        .into_iter()
        .flat_map(|kind| TOGETHER.map(|it| (kind, it)))
    {
        let of_here = only(&here, kind, together);
        let of_there = only(&there, kind, together);
        if let (Some(at), Some(from)) = (of_here, of_there) {
            let (far, near) = (here.remove(at), there.remove(from));
            pairs.push(paired(near, far, together));
        }
    }
    // A relay has the same name at both ends.
    while let Some((at, from)) = same_relay(&here, &there) {
        let (far, near) = (here.remove(at), there.remove(from));
        let outcome = PairOutcome::of(far).min(PairOutcome::of(near));
        pairs.push(paired(near, far, outcome));
    }
    pairs.extend(here.into_iter().map(|far| CandidatePair {
        kind: far.kind,
        near: None,
        far: Some(far.address),
        outcome: PairOutcome::of(far),
    }));
    pairs.extend(there.into_iter().map(|near| CandidatePair {
        kind: near.kind,
        near: Some(near.address),
        far: None,
        outcome: PairOutcome::of(near),
    }));
    pairs.sort_by_key(|pair| pair.outcome);
    pairs
}

/// The only candidate of a kind, over IPv6 or not, of which this came.
fn only(tried: &[TriedCandidate<'_>], kind: (&str, bool), outcome: PairOutcome) -> Option<usize> {
    let mut such = tried.iter().enumerate().filter(|(_, one)| {
        (one.kind, one.address.starts_with('[')) == kind && PairOutcome::of(**one) == outcome
    });
    let first = such.next()?.0;
    such.next().is_none().then_some(first)
}

fn same_relay(here: &[TriedCandidate<'_>], there: &[TriedCandidate<'_>]) -> Option<(usize, usize)> {
    here.iter().enumerate().find_map(|(at, one)| {
        let same = |other: &TriedCandidate<'_>| {
            one.kind == "relay" && other.kind == "relay" && one.address == other.address
        };
        Some((at, there.iter().position(same)?))
    })
}

fn paired<'a>(
    near: TriedCandidate<'a>,
    far: TriedCandidate<'a>,
    outcome: PairOutcome,
) -> CandidatePair<'a> {
    CandidatePair {
        kind: far.kind,
        near: Some(near.address),
        far: Some(far.address),
        outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        PairOutcome::{Answered, Silent, Used},
        *,
    };

    fn tried(
        kind: &'static str,
        address: &'static str,
        outcome: PairOutcome,
    ) -> TriedCandidate<'static> {
        TriedCandidate {
            kind,
            address,
            answered: outcome != Silent,
            used: outcome == Used,
        }
    }

    fn told(
        here: &[TriedCandidate<'static>],
        there: &[TriedCandidate<'static>],
    ) -> Vec<(&'static str, &'static str, &'static str, PairOutcome)> {
        let pairs = candidate_pairs(here, there);
        let pairs = pairs.iter().map(|pair| {
            let (near, far) = (pair.near.unwrap_or("-"), pair.far.unwrap_or("-"));
            (pair.kind, near, far, pair.outcome)
        });
        pairs.collect()
    }

    #[test]
    fn what_both_ends_use_is_one_path_and_a_relay_that_both_name_another() {
        let here = [
            tried("udp", "b-home", Silent),
            tried("udp", "b-public", Used),
            tried("relay", "hub", Answered),
        ];
        let there = [
            tried("relay", "hub", Answered),
            tried("udp", "a-public", Used),
            tried("udp", "a-home", Silent),
        ];
        assert_eq!(
            told(&here, &there),
            [
                ("udp", "a-public", "b-public", Used),
                ("relay", "hub", "hub", Answered),
                ("udp", "-", "b-home", Silent),
                ("udp", "a-home", "-", Silent),
            ]
        );
    }

    #[test]
    fn a_relay_that_one_end_uses_is_used() {
        for (here, there) in [(Used, Answered), (Answered, Used), (Silent, Used)] {
            let relay = |outcome| [tried("relay", "hub", outcome)];
            let pairs = told(&relay(here), &relay(there));
            assert_eq!(pairs, [("relay", "hub", "hub", Used)]);
        }
        let here = [tried("relay", "hub", Used)];
        let there = [tried("relay", "hub-2", Silent)];
        assert_eq!(
            told(&here, &there),
            [("relay", "-", "hub", Used), ("relay", "hub-2", "-", Silent)]
        );
    }

    #[test]
    fn the_only_two_that_answered_are_a_pair_and_of_several_none_is_guessed() {
        let here = [
            tried("udp", "b-1", Answered),
            tried("tcp", "b-2", Used),
            tried("udp", "b-3", Silent),
        ];
        let there = [tried("udp", "a-1", Answered)];
        assert_eq!(
            told(&here, &there),
            [
                ("tcp", "-", "b-2", Used),
                ("udp", "a-1", "b-1", Answered),
                ("udp", "-", "b-3", Silent),
            ]
        );
        let several = [tried("udp", "a-1", Answered), tried("udp", "a-2", Answered)];
        assert_eq!(
            told(&here[..1], &several),
            [
                ("udp", "-", "b-1", Answered),
                ("udp", "a-1", "-", Answered),
                ("udp", "a-2", "-", Answered),
            ]
        );
    }

    #[test]
    fn families_are_not_mixed() {
        let here = [tried("udp", "b", Used), tried("udp", "[b]", Answered)];
        let there = [tried("udp", "[a]", Used), tried("udp", "a", Answered)];
        assert_eq!(
            told(&here, &there),
            [
                ("udp", "-", "b", Used),
                ("udp", "[a]", "-", Used),
                ("udp", "-", "[b]", Answered),
                ("udp", "a", "-", Answered),
            ]
        );
        let there = [tried("udp", "[a]", Answered), tried("udp", "a", Used)];
        assert_eq!(
            told(&here, &there),
            [("udp", "a", "b", Used), ("udp", "[a]", "[b]", Answered)]
        );
    }

    #[test]
    fn without_a_report_of_the_other_end_its_half_stays_open() {
        let here = [tried("udp", "b-1", Silent), tried("relay", "hub", Used)];
        let all = [("relay", "-", "hub", Used), ("udp", "-", "b-1", Silent)];
        assert_eq!(told(&here, &[]), all);
        assert_eq!(told(&[], &[]), []);
    }
}
