//! How long a run is expected to take, from what its steps ask for. Pure.
//!
//! The constants are what the parts took on two cores (`timing` lines of a run say what they take); a run
//! that takes longer is told so by [`super::Progress`], which learns.

use std::collections::BTreeSet;

use super::network;
use crate::{
    result::{Part, Spent},
    subject::Subject,
    suite::{Contest, Entry, Reading, Step, Who},
    work::{Start, Work},
};

/// Expected seconds to start the two programs of a plain subject.
const START_S: f64 = 0.02;

/// The same where they are nodes.
const START_NODES_S: f64 = 0.06;

/// The same where a node has a node beside it, or joins a hub.
const START_HOUSE_S: f64 = 0.25;

/// Expected seconds to end two programs.
const STOP_S: f64 = 0.03;

/// Expected seconds to start one more node in a loading process.
const NODE_S: f64 = 0.015;

/// Expected seconds for each of many new connections of raw iroh at once, and for all at most: 100 take 10 s,
/// 1,000 take 15.
const CROWDED_S: (f64, f64) = (0.1, 15.0);

/// Expected seconds around each turn, in which counters are read.
const TURN_S: f64 = 0.005;

/// Expected seconds for the connections of a session's tunnel, by the square of their number.
const CONNECTIONS_S: f64 = 3e-6;

/// Expected seconds until a node that may choose its carrier has tried both.
const CHOOSING_S: f64 = 6.0;

/// What some steps are expected to take, with the networks that they need.
pub(super) fn of_all(steps: &[Step]) -> Spent {
    let networks: BTreeSet<&str> = steps.iter().filter_map(Step::network).collect();
    let mut all = Spent {
        network_s: networks.into_iter().map(of_network).sum(),
        ..Spent::default()
    };
    for step in steps {
        if let Step::Contest(contest) = step {
            all.add_all(&of(contest));
        }
    }
    all
}

/// What a row is expected to take once its network is up.
pub(super) fn of(contest: &Contest) -> Spent {
    let rtt = network::rtt_s(contest.network);
    let repeats = f64::from(contest.repeats);
    let mut all = Spent::default();
    for entry in &contest.entries {
        let (start, stop) = (of_start(entry), STOP_S);
        let turn = of_turn(entry, &entry.work, rtt);
        let pairs = match contest.reading {
            Reading::Memory => repeats,
            _ => 1.0,
        };
        all.add(Part::Start, start * pairs);
        all.add(Part::Stop, stop * pairs);
        all.add(Part::Work, turn * repeats);
        if contest.warm_up && contest.reading != Reading::Memory {
            all.add(Part::WarmUp, of_turn(entry, &entry.work.warm_up(), rtt));
        }
        if may_choose(entry) {
            all.add(Part::WarmUp, CHOOSING_S);
        }
        // The first turn of a pair waits for the connections of its tunnel.
        let first = match (contest.reading, contest.warm_up) {
            (Reading::Memory, _) | (_, false) => Part::Work,
            _ => Part::WarmUp,
        };
        all.add(first, connections(entry).powi(2) * CONNECTIONS_S * pairs);
    }
    all
}

/// Connections that a session is told to have.
fn connections(entry: &Entry) -> f64 {
    let Who::Ours(_, options) = &entry.who else {
        return 0.0;
    };
    let mut rest = options.iter().skip_while(|word| *word != "--pool").skip(1);
    let number = rest.next().and_then(|number| number.parse().ok());
    number.unwrap_or(0.0)
}

fn may_choose(entry: &Entry) -> bool {
    matches!(entry.who, Who::Ours(Subject::Session(carrier), _) if carrier.may_choose())
        && matches!(entry.work, Work::Bulk { .. })
}

/// Expected seconds to start a pair.
pub(super) fn of_start(entry: &Entry) -> f64 {
    match entry.who {
        _ if entry.helper.is_some() => START_HOUSE_S,
        Who::Ours(Subject::Processes | Subject::FarCallout, _) => START_HOUSE_S,
        Who::Ours(Subject::Session(_), _) => START_NODES_S,
        _ => START_S,
    }
}

/// Expected seconds to end a pair.
pub(super) const fn of_stop() -> f64 {
    STOP_S
}

/// Expected seconds of one turn, with what is prepared before the clock runs.
pub(super) fn of_turn(entry: &Entry, work: &Work, rtt: f64) -> f64 {
    let node = match entry.who {
        Who::Ours(Subject::Session(_), _) => NODE_S,
        _ => 0.0,
    };
    // Its connections at once from one endpoint to one other wait for each other.
    let is_crowd = |count: f64| {
        let iroh = matches!(entry.who, Who::Ours(Subject::RawIroh, _));
        iroh && rtt > 0.0 && count > 10.0
    };
    let prepared = match *work {
        Work::Establish {
            agents,
            connections,
            start,
            ..
        } => {
            let count = f64::from(if connections == 0 { agents } else { 1 });
            // What is to be resumed has to have met before, and has an endpoint of its own.
            let before = match start {
                Start::Cold if is_crowd(count) => (count * CROWDED_S.0).min(CROWDED_S.1),
                Start::Cold => 0.0,
                _ => 2.0 * rtt + count * 0.001,
            };
            count * node + before
        }
        Work::Dispatch { agents, start, .. } if start != Start::Warm => f64::from(agents) * node,
        Work::Hold {
            agents,
            connections: 0,
            ..
        } => f64::from(agents) * (node + 3.0 * rtt),
        _ => 0.0,
    };
    TURN_S + prepared + work.estimate_s(rtt)
}

/// Expected seconds until a network is up.
pub(super) fn of_network(name: &str) -> f64 {
    if name == "loopback" {
        0.0
    } else {
        network::up_s(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Size, Suite, steps, tests::order};

    fn expected(suite: Suite, size: Size) -> f64 {
        let steps = steps(&order(suite, size));
        for step in &steps {
            if let Step::Contest(contest) = step {
                let seconds = of(contest).sum();
                println!("{} {}: {seconds:.1} s", contest.table, contest.row);
            }
        }
        let all = of_all(&steps);
        println!("{suite:?}: {:.0} s, {all:?}", all.sum());
        all.sum()
    }

    #[test]
    fn quick_suites_are_expected_to_take_under_ten_minutes_and_smoke_under_one() {
        assert!(expected(Suite::Smoke, Size::Quick) < 60.0);
        assert!(expected(Suite::Coordination, Size::Quick) < 600.0);
        assert!(expected(Suite::Overlay, Size::Quick) < 600.0);
        assert!(expected(Suite::Callout, Size::Quick) < 600.0);
    }

    #[test]
    fn a_full_suite_is_told_to_take_hours() {
        assert!(expected(Suite::Coordination, Size::Full) > 3_600.0);
    }
}
