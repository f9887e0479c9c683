//! The overlay suite: tables O1 to O6 at 85 ms of round trip, and the rows that were measured of another
//! overlay on a machine of this kind (P).

use super::{
    Contest, Contestant, FigureReading, Participant, Suite, SuiteOrder, SuiteStep, entry, skip,
};
use crate::{
    subject::{SessionCarrier, Subject},
    tables::{self, form, grouped, size},
    work::{ConnectionStart, WorkRequest},
};

/// The network of O1 to O4.
const TRANSATLANTIC: &str = "transatlantic-85ms";

const TOO_MANY_COLD_DIALS: &str = "fifty cold connections of one endpoint to another at once take three seconds and more: \
     only with --full";

pub(super) fn steps(order: &SuiteOrder) -> Vec<SuiteStep> {
    let mut steps = Vec::new();
    connect(order, &mut steps);
    dispatch(order, &mut steps);
    messages(order, &mut steps);
    memory(order, &mut steps);
    behind_nat(order, &mut steps);
    processes(order, &mut steps);
    steps
}

fn few(order: &SuiteOrder, count: u32) -> u32 {
    order.by_size(count.min(3), count, count)
}

fn connect(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let mut entries = Vec::new();
    for start in [
        ConnectionStart::Cold,
        ConnectionStart::Resumed,
        ConnectionStart::ZeroRtt,
    ] {
        let work = WorkRequest::Establish {
            agents: 1,
            connections: 0,
            start,
            bytes: 1_000,
        };
        entries.extend(order.same(&order.subjects(), start.form(), &work));
    }
    let warm = WorkRequest::Dispatch {
        agents: 1,
        connections: 1,
        start: ConnectionStart::Warm,
        at_once: true,
        bytes: 1_000,
    };
    entries.extend(order.same(&order.subjects(), form::WARM, &warm));
    steps.push(SuiteStep::Contest(order.contest(
        "O1",
        "first answer",
        TRANSATLANTIC,
        entries,
    )));
    // Opening without an answer is a stream's number and nothing else: the same on every network.
    let opened = WorkRequest::Open {
        count: order.by_size(3, 5, 100),
    };
    let entries = order.same(&order.subjects(), form::WARM, &opened);
    steps.push(SuiteStep::Contest(order.contest(
        "O1",
        "opened",
        TRANSATLANTIC,
        entries,
    )));
}

fn dispatch(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    for at_once in [false, true] {
        let row = if at_once {
            tables::CONCURRENT
        } else {
            "50 agents, serial"
        };
        let mut entries = Vec::new();
        for subject in order.subjects() {
            let session = matches!(subject, Subject::Session(_));
            for start in [ConnectionStart::Cold, ConnectionStart::Warm] {
                let crowd =
                    at_once && subject == Subject::RawIroh && start == ConnectionStart::Cold;
                if crowd && order.size == super::SuiteSize::Quick {
                    steps.push(skip(
                        Suite::Overlay,
                        "O2",
                        row,
                        subject,
                        start.form(),
                        TOO_MANY_COLD_DIALS,
                    ));
                    continue;
                }
                let work = |agents, connections| WorkRequest::Dispatch {
                    agents,
                    connections,
                    start,
                    at_once,
                    bytes: 1_000,
                };
                // Warm: nodes share a tunnel, programs without one have a connection for each agent.
                let connections = u32::from(session && start == ConnectionStart::Warm);
                entries.push(entry(
                    subject,
                    start.form(),
                    work(few(order, 50), connections),
                ));
            }
        }
        let mut contest = order.contest("O2", row, TRANSATLANTIC, entries);
        // A repeat has 50 dials already, and warm connections are made before it is timed.
        contest.warm_up = order.size == super::SuiteSize::Full;
        if !at_once {
            contest.repeats = order.by_size(1, 1, contest.repeats);
        }
        steps.push(SuiteStep::Contest(contest));
    }
}

fn messages(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    for (table, bytes) in [
        ("O3", 1_000),
        ("O3", 10_000),
        ("O3", 100_000),
        ("O4", 1_000_000),
    ] {
        let work = WorkRequest::Dispatch {
            agents: order.by_size(1, 2, 20),
            connections: 1,
            start: ConnectionStart::Warm,
            at_once: false,
            bytes,
        };
        let entries = order.same(&order.subjects(), form::WARM, &work);
        steps.push(SuiteStep::Contest(order.contest(
            table,
            size(bytes),
            TRANSATLANTIC,
            entries,
        )));
    }
}

fn memory(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    for peers in [100, 1_000] {
        let row = format!("{} peers", grouped(peers.into()));
        let work = WorkRequest::Hold {
            agents: few(order, peers),
            connections: 0,
            bytes: 1_000,
        };
        let mut entries = Vec::new();
        for subject in order.subjects() {
            let session = matches!(subject, Subject::Session(_));
            let reason =
                "a thousand nodes in one loading process take minutes to start: only with --full";
            if session && peers > 100 && order.size != super::SuiteSize::Full {
                steps.push(skip(Suite::Overlay, "O5", &row, subject, "", reason));
            } else {
                entries.push(entry(subject, "", work.clone()));
            }
        }
        let mut contest = order.contest("O5", row, "loopback", entries);
        contest.reading = FigureReading::Memory;
        if peers > 100 {
            contest.repeats = order.by_size(1, 3, 3);
        }
        steps.push(SuiteStep::Contest(contest));
    }
}

/// A scenario of an agent behind NAT: its name, the network, and who takes part through which helper.
type NatScenario = (
    &'static str,
    &'static str,
    Vec<(Subject, &'static [&'static str], Option<Subject>)>,
);

fn behind_nat(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let quic = Subject::Session(SessionCarrier::Quic);
    let scenarios: [NatScenario; 4] = [
        (
            "direct",
            "home-open",
            vec![(quic, &[], None), (Subject::PlainH2, &[], None)],
        ),
        (
            "punched",
            "home-to-home",
            vec![(
                quic,
                &["--hub", "{helper}", "--path", "direct"],
                Some(Subject::Hub),
            )],
        ),
        (
            "relayed",
            "nat-hard",
            vec![(
                quic,
                &["--hub", "{helper}", "--path", "relay"],
                Some(Subject::Hub),
            )],
        ),
        (
            "relay proxy",
            "home-to-home",
            vec![(
                Subject::PlainH2,
                &["--through", "{helper}"],
                Some(Subject::Proxy),
            )],
        ),
    ];
    let long = order.by_size(0.3, 1.0, 10.0);
    let setup = WorkRequest::Establish {
        agents: 1,
        connections: 0,
        start: ConnectionStart::Cold,
        bytes: 1_000,
    };
    let message = WorkRequest::Latency {
        per_second: order.by_size(20.0, 50.0, 50.0),
        seconds: order.by_size(0.1, 0.7, 20.0),
        bytes: 1_000,
        connections: 1,
    };
    let throughput = WorkRequest::Bulk {
        bytes: order.by_size(100_000, 1_000_000_000, 1_000_000_000),
        seconds: long,
    };
    for (what, work) in [
        ("setup", setup),
        ("message", message),
        ("throughput", throughput),
    ] {
        for (scenario, network, participant) in &scenarios {
            let entries = participant
                .iter()
                .map(|(subject, options, helper)| Contestant {
                    participant: Participant::Ours(
                        *subject,
                        options.iter().map(ToString::to_string).collect(),
                    ),
                    helper: *helper,
                    ..entry(*subject, "", work.clone())
                });
            let row = format!("{what}, {scenario}");
            let contest = order.contest("O6", row, network, entries.collect());
            steps.push(SuiteStep::Contest(contest));
        }
    }
}

/// The rows measured of another overlay, agent process to agent process through two nodes.
fn processes(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let subject = [Subject::Processes];
    let echo = |bytes, per_second, seconds| WorkRequest::Latency {
        per_second,
        seconds,
        bytes,
        connections: 1,
    };
    let rate = |in_flight, bytes| WorkRequest::Rate {
        in_flight: few(order, in_flight),
        seconds: order.by_size(0.02, 0.3, 10.0),
        bytes,
        agents: 1,
        connections: 1,
    };
    let bulk = |seconds| WorkRequest::Bulk {
        bytes: order.by_size(100_000, 100_000_000, 100_000_000),
        seconds,
    };
    let some = order.by_size(0.05, 0.3, 10.0);
    let long = order.by_size(0.3, 1.0, 20.0);
    for (row, network, work) in [
        ("open live tunnel", "loopback", echo(64, 500.0, some)),
        ("echo 1 KB", "loopback", echo(1_000, 500.0, some)),
        ("echo 10 KB", "loopback", echo(10_000, 500.0, some)),
        ("echo 100 KB", "loopback", echo(100_000, 100.0, some)),
        ("echo 1 MB", "loopback", echo(1_000_000, 10.0, some)),
        ("bulk 100 MB", "loopback", bulk(0.0)),
        ("answered, 100 B", "loopback", rate(64, 100)),
        ("answered, 1 KB", "loopback", rate(64, 1_000)),
        ("ping-pong 64 B", "loopback", rate(50, 64)),
        ("bulk, 20 ms", "wan-20ms", bulk(long)),
        ("bulk, 20 ms, 1 % loss", "wan-20ms-loss1", bulk(long)),
        ("echo 1 MB, 20 ms", "wan-20ms", echo(1_000_000, 2.0, long)),
        (
            "echo 1 KB, 20 ms, 1 % loss",
            "wan-20ms-loss1",
            echo(1_000, 200.0, long),
        ),
        ("bulk, 40 ms, 6.25 MB/s", "narrow-40ms", bulk(long)),
    ] {
        let entries = order.same(&subject, form::WARM, &work);
        steps.push(SuiteStep::Contest(
            order.contest("P", row, network, entries),
        ));
    }
    for (row, agents) in [("memory 100 connections", 100), ("memory idle", 1)] {
        let work = WorkRequest::Hold {
            agents: few(order, agents),
            connections: 1,
            bytes: 64,
        };
        let entries = order.same(&subject, form::POOLED, &work);
        steps.push(SuiteStep::Contest(Contest {
            reading: FigureReading::Memory,
            ..order.contest("P", row, "loopback", entries)
        }));
    }
}
