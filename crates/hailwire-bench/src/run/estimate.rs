//! How long a run is expected to take, from what its steps ask for. Pure.
//!
//! The constants were measured on two cores (the `timing` lines of a run have such figures). [`super::RunProgress`] corrects the estimate of
//! a run that takes longer.

use std::collections::BTreeSet;

use super::network;
use crate::{
    result::{PhaseSeconds, RunPhase},
    subject::Subject,
    suite::{Contest, Contestant, FigureReading, Participant, SuiteStep},
    work::{ConnectionStart, WorkRequest},
};

/// Expected seconds to start the two programs of a plain subject.
const START_S: f64 = 0.02;

/// The same where they are nodes.
const START_NODES_S: f64 = 0.06;

/// The same where each side has a node in a process of its own, or joins a hub.
const START_HUB_NODES_S: f64 = 0.25;

/// Expected seconds to end two programs.
const STOP_S: f64 = 0.03;

/// Expected seconds to start one more node in a loading process.
const NODE_S: f64 = 0.015;

/// Expected seconds for each of many new connections of raw iroh at once, and for all at most: 100 take 10 s,
/// 1,000 take 15.
const CROWDED_S: (f64, f64) = (0.1, 15.0);

/// Expected seconds around each repeat, in which counters are read.
const REPEAT_S: f64 = 0.005;

/// Expected seconds for the connections of a session's tunnel, by the square of their number.
const CONNECTIONS_S: f64 = 3e-6;

/// Expected seconds until a node that may choose its carrier has tried both.
const CHOOSING_S: f64 = 6.0;

/// The expected time of some steps, with the networks that they need.
pub(super) fn of_all(steps: &[SuiteStep]) -> PhaseSeconds {
    let networks: BTreeSet<&str> = steps.iter().filter_map(SuiteStep::network).collect();
    let mut all = PhaseSeconds {
        network_s: networks.into_iter().map(of_network).sum(),
        ..PhaseSeconds::default()
    };
    for step in steps {
        if let SuiteStep::Contest(contest) = step {
            all.add_all(&of(contest));
        }
    }
    all
}

/// The expected time of a row once its network is up.
pub(super) fn of(contest: &Contest) -> PhaseSeconds {
    let rtt = network::rtt_s(contest.network);
    let repeats = f64::from(contest.repeats);
    let mut all = PhaseSeconds::default();
    for entry in &contest.entries {
        let (start, stop) = (of_start(entry), STOP_S);
        let turn = of_repeat(entry, &entry.work, rtt);
        let pairs = match contest.reading {
            FigureReading::Memory => repeats,
            _ => 1.0,
        };
        all.add(RunPhase::Start, start * pairs);
        all.add(RunPhase::Stop, stop * pairs);
        all.add(RunPhase::Work, turn * repeats);
        if contest.warm_up && contest.reading != FigureReading::Memory {
            all.add(
                RunPhase::WarmUp,
                of_repeat(entry, &entry.work.warm_up(), rtt),
            );
        }
        if may_choose(entry) {
            all.add(RunPhase::WarmUp, CHOOSING_S);
        }
        // The first repeat of a pair waits for the connections of its tunnel.
        let first = match (contest.reading, contest.warm_up) {
            (FigureReading::Memory, _) | (_, false) => RunPhase::Work,
            _ => RunPhase::WarmUp,
        };
        all.add(first, connections(entry).powi(2) * CONNECTIONS_S * pairs);
    }
    all
}

/// Connections that the options ask of a session.
fn connections(entry: &Contestant) -> f64 {
    let Participant::Ours(_, options) = &entry.participant else {
        return 0.0;
    };
    let mut rest = options.iter().skip_while(|word| *word != "--pool").skip(1);
    let number = rest.next().and_then(|number| number.parse().ok());
    number.unwrap_or(0.0)
}

fn may_choose(entry: &Contestant) -> bool {
    matches!(entry.participant, Participant::Ours(Subject::Session(carrier), _) if carrier.may_choose())
        && matches!(entry.work, WorkRequest::Bulk { .. })
}

/// Expected seconds to start a pair.
pub(super) fn of_start(entry: &Contestant) -> f64 {
    match entry.participant {
        _ if entry.helper.is_some() => START_HUB_NODES_S,
        Participant::Ours(Subject::Processes | Subject::RemoteCallout, _)
        | Participant::Attached(_) => START_HUB_NODES_S,
        Participant::Ours(Subject::Session(_), _) => START_NODES_S,
        _ => START_S,
    }
}

/// Expected seconds to end a pair.
pub(super) const fn of_stop() -> f64 {
    STOP_S
}

/// Expected seconds of one repeat, with what is prepared before it is timed.
pub(super) fn of_repeat(entry: &Contestant, work: &WorkRequest, rtt: f64) -> f64 {
    let node = match entry.participant {
        Participant::Ours(Subject::Session(_), _) => NODE_S,
        _ => 0.0,
    };
    // Simultaneous connections from one endpoint to one other wait for each other.
    let is_crowd = |count: f64| {
        let iroh = matches!(entry.participant, Participant::Ours(Subject::RawIroh, _));
        iroh && rtt > 0.0 && count > 10.0
    };
    let prepared = match *work {
        WorkRequest::Establish {
            agents,
            connections,
            start,
            ..
        } => {
            let count = f64::from(if connections == 0 { agents } else { 1 });
            // A resumed connection needs one before it, and an endpoint of its own.
            let before = match start {
                ConnectionStart::Cold if is_crowd(count) => (count * CROWDED_S.0).min(CROWDED_S.1),
                ConnectionStart::Cold => 0.0,
                _ => 2.0 * rtt + count * 0.001,
            };
            count * node + before
        }
        WorkRequest::Dispatch { agents, start, .. } if start != ConnectionStart::Warm => {
            f64::from(agents) * node
        }
        WorkRequest::Hold {
            agents,
            connections: 0,
            ..
        } => f64::from(agents) * (node + 3.0 * rtt),
        _ => 0.0,
    };
    REPEAT_S + prepared + work.estimate_s(rtt)
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
    use crate::suite::{SdkLaunchers, Suite, SuiteOrder, SuiteSize, steps, tests::order};

    fn expected(suite: Suite, size: SuiteSize) -> f64 {
        let launcher = Some("launcher".to_owned());
        let steps = steps(&SuiteOrder {
            sdk: SdkLaunchers {
                python: launcher.clone(),
                typescript: launcher,
            },
            ..order(suite, size)
        });
        for step in &steps {
            if let SuiteStep::Contest(contest) = step {
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
        assert!(expected(Suite::Smoke, SuiteSize::Quick) < 60.0);
        assert!(expected(Suite::Coordination, SuiteSize::Quick) < 600.0);
        assert!(expected(Suite::Overlay, SuiteSize::Quick) < 600.0);
        assert!(expected(Suite::Callout, SuiteSize::Quick) < 600.0);
        assert!(expected(Suite::Sdk, SuiteSize::Quick) < 600.0);
    }

    #[test]
    fn a_full_suite_is_told_to_take_hours() {
        assert!(expected(Suite::Coordination, SuiteSize::Full) > 3_600.0);
    }
}
