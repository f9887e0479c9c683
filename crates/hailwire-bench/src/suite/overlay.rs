//! The overlay suite: tables O1 to O6 at 85 ms of round trip, and the rows that were measured of another
//! overlay on a machine of this kind (P).

use super::{Contest, Entry, Order, Reading, Step, Suite, Who, entry, skip};
use crate::{
    subject::{Carrier, Subject},
    tables::{self, form, grouped, size},
    work::{Start, Work},
};

/// The network of O1 to O4.
const FAR: &str = "transatlantic-85ms";

const CROWD: &str = "fifty cold connections of one endpoint to another at once take three seconds and more: \
     only with --full";

pub(super) fn steps(order: &Order) -> Vec<Step> {
    let mut steps = Vec::new();
    connect(order, &mut steps);
    dispatch(order, &mut steps);
    messages(order, &mut steps);
    memory(order, &mut steps);
    behind_nat(order, &mut steps);
    processes(order, &mut steps);
    steps
}

fn few(order: &Order, count: u32) -> u32 {
    order.by_size(count.min(3), count, count)
}

fn connect(order: &Order, steps: &mut Vec<Step>) {
    let mut entries = Vec::new();
    for start in [Start::Cold, Start::Resumed, Start::ZeroRtt] {
        let work = Work::Establish {
            agents: 1,
            connections: 0,
            start,
            bytes: 1_000,
        };
        entries.extend(order.same(&order.subjects(), start.form(), &work));
    }
    let warm = Work::Dispatch {
        agents: 1,
        connections: 1,
        start: Start::Warm,
        at_once: true,
        bytes: 1_000,
    };
    entries.extend(order.same(&order.subjects(), form::WARM, &warm));
    steps.push(Step::Contest(order.contest(
        "O1",
        "first answer",
        FAR,
        entries,
    )));
    // Opening without an answer is a stream's number and nothing else: the same on every network.
    let opened = Work::Open {
        count: order.by_size(3, 5, 100),
    };
    let entries = order.same(&order.subjects(), form::WARM, &opened);
    steps.push(Step::Contest(order.contest("O1", "opened", FAR, entries)));
}

fn dispatch(order: &Order, steps: &mut Vec<Step>) {
    for at_once in [false, true] {
        let row = if at_once {
            tables::CONCURRENT
        } else {
            "50 agents, serial"
        };
        let mut entries = Vec::new();
        for subject in order.subjects() {
            let session = matches!(subject, Subject::Session(_));
            for start in [Start::Cold, Start::Warm] {
                let crowd = at_once && subject == Subject::RawIroh && start == Start::Cold;
                if crowd && order.size == super::Size::Quick {
                    steps.push(skip(
                        Suite::Overlay,
                        "O2",
                        row,
                        subject,
                        start.form(),
                        CROWD,
                    ));
                    continue;
                }
                let work = |agents, connections| Work::Dispatch {
                    agents,
                    connections,
                    start,
                    at_once,
                    bytes: 1_000,
                };
                // Warm: nodes share a tunnel, programs without one have a connection for each agent.
                let connections = u32::from(session && start == Start::Warm);
                entries.push(entry(
                    subject,
                    start.form(),
                    work(few(order, 50), connections),
                ));
            }
        }
        let mut contest = order.contest("O2", row, FAR, entries);
        // A turn is 50 dials already, and what is to be warm is so before the clock runs.
        contest.warm_up = order.size == super::Size::Full;
        if !at_once {
            contest.repeats = order.by_size(1, 1, contest.repeats);
        }
        steps.push(Step::Contest(contest));
    }
}

fn messages(order: &Order, steps: &mut Vec<Step>) {
    for (table, bytes) in [
        ("O3", 1_000),
        ("O3", 10_000),
        ("O3", 100_000),
        ("O4", 1_000_000),
    ] {
        let work = Work::Dispatch {
            agents: order.by_size(1, 2, 20),
            connections: 1,
            start: Start::Warm,
            at_once: false,
            bytes,
        };
        let entries = order.same(&order.subjects(), form::WARM, &work);
        steps.push(Step::Contest(order.contest(
            table,
            size(bytes),
            FAR,
            entries,
        )));
    }
}

fn memory(order: &Order, steps: &mut Vec<Step>) {
    for peers in [100, 1_000] {
        let row = format!("{} peers", grouped(peers.into()));
        let work = Work::Hold {
            agents: few(order, peers),
            connections: 0,
            bytes: 1_000,
        };
        let mut entries = Vec::new();
        for subject in order.subjects() {
            let session = matches!(subject, Subject::Session(_));
            let reason =
                "a thousand nodes in one loading process take minutes to start: only with --full";
            if session && peers > 100 && order.size != super::Size::Full {
                steps.push(skip(Suite::Overlay, "O5", &row, subject, "", reason));
            } else {
                entries.push(entry(subject, "", work.clone()));
            }
        }
        let mut contest = order.contest("O5", row, "loopback", entries);
        contest.reading = Reading::Memory;
        if peers > 100 {
            contest.repeats = order.by_size(1, 3, 3);
        }
        steps.push(Step::Contest(contest));
    }
}

/// One way to an agent behind NAT: its word, the network, who takes part through what.
type Way = (
    &'static str,
    &'static str,
    Vec<(Subject, &'static [&'static str], Option<Subject>)>,
);

fn behind_nat(order: &Order, steps: &mut Vec<Step>) {
    let quic = Subject::Session(Carrier::Quic);
    let ways: [Way; 4] = [
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
    let setup = Work::Establish {
        agents: 1,
        connections: 0,
        start: Start::Cold,
        bytes: 1_000,
    };
    let message = Work::Latency {
        per_second: order.by_size(20.0, 50.0, 50.0),
        seconds: order.by_size(0.1, 0.7, 20.0),
        bytes: 1_000,
        connections: 1,
    };
    let throughput = Work::Bulk {
        bytes: order.by_size(100_000, 1_000_000_000, 1_000_000_000),
        seconds: long,
    };
    for (what, work) in [
        ("setup", setup),
        ("message", message),
        ("throughput", throughput),
    ] {
        for (way, network, who) in &ways {
            let entries = who.iter().map(|(subject, options, helper)| Entry {
                who: Who::Ours(*subject, options.iter().map(ToString::to_string).collect()),
                helper: *helper,
                ..entry(*subject, "", work.clone())
            });
            let row = format!("{what}, {way}");
            let contest = order.contest("O6", row, network, entries.collect());
            steps.push(Step::Contest(contest));
        }
    }
}

/// The rows measured of another overlay, agent process to agent process through two nodes.
fn processes(order: &Order, steps: &mut Vec<Step>) {
    let subject = [Subject::Processes];
    let echo = |bytes, per_second, seconds| Work::Latency {
        per_second,
        seconds,
        bytes,
        connections: 1,
    };
    let rate = |in_flight, bytes| Work::Rate {
        in_flight: few(order, in_flight),
        seconds: order.by_size(0.02, 0.3, 10.0),
        bytes,
        agents: 1,
        connections: 1,
    };
    let bulk = |seconds| Work::Bulk {
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
        steps.push(Step::Contest(order.contest("P", row, network, entries)));
    }
    for (row, agents) in [("memory 100 connections", 100), ("memory idle", 1)] {
        let work = Work::Hold {
            agents: few(order, agents),
            connections: 1,
            bytes: 64,
        };
        let entries = order.same(&subject, form::POOLED, &work);
        steps.push(Step::Contest(Contest {
            reading: Reading::Memory,
            ..order.contest("P", row, "loopback", entries)
        }));
    }
}
