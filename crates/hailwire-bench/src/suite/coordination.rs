//! The coordination suite: tables Q1 to Q12, many agents over three carriers.

use super::{
    Contest, Contestant, FigureReading, Participant, Suite, SuiteOrder, SuiteSize, SuiteStep,
    entry, pool_of, skip,
};
use crate::{
    subject::{CongestionControl, SessionCarrier, Subject},
    tables::{self, RTTS, SCENARIOS, agents, establishment, form, scenario},
    work::{ConnectionStart, WorkRequest},
};

const TOO_MANY_NODES: &str = "a node dials another once, so new connections for each agent take a node for each: \
     that is measured for 10 agents, and for 100 with --full; cold, pooled has one tunnel for all";

const TOO_MANY_TCP_CONNECTIONS: &str = "a thousand connections of one session over TCP take a quarter of a minute to come up: \
     only with --full";

const TOO_MANY_COLD_DIALS: &str = "a thousand cold connections of one endpoint to another take a quarter of a minute: \
     only with --full";

const ONLY_FULL: &str = "only with --full";

pub(super) fn steps(order: &SuiteOrder) -> Vec<SuiteStep> {
    let mut steps = Vec::new();
    establish(order, &mut steps);
    throughput(order, &mut steps);
    chosen(order, &mut steps);
    streams(order, &mut steps);
    memory(order, &mut steps);
    latency(order, &mut steps);
    congestion(order, &mut steps);
    pools(order, &mut steps);
    buffers(order, &mut steps);
    priorities(order, &mut steps);
    profile(order, &mut steps);
    steps
}

/// Whether a scenario is measured in this size: one that was published is in every.
fn wanted(order: &SuiteOrder, published: bool) -> bool {
    order.size == SuiteSize::Full || published
}

fn is_session(subject: Subject) -> bool {
    matches!(subject, Subject::Session(_))
}

/// Up to how many agents each gets a node of its own where a connection between two nodes would do.
const MAX_NODES: u32 = 10;

/// Nodes that one loading process starts at most: each agent with a new connection of its own needs a node.
fn most_nodes(order: &SuiteOrder) -> u32 {
    order.by_size(100, 10, 100)
}

/// The number of agents, reduced in a test.
fn few(order: &SuiteOrder, count: u32) -> u32 {
    order.by_size(count.min(3), count, count)
}

fn establish(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    one_agent(order, steps);
    for (i, (count, _)) in SCENARIOS.into_iter().enumerate() {
        for (j, rtt) in RTTS.into_iter().enumerate() {
            let row = establishment(count, rtt);
            let mut entries = Vec::new();
            for subject in order.subjects() {
                for start in [
                    ConnectionStart::Cold,
                    ConnectionStart::Resumed,
                    ConnectionStart::ZeroRtt,
                ] {
                    let form = start.form();
                    match not_established(order, subject, start, count, i == j) {
                        Some(why) => {
                            steps.push(skip(Suite::Coordination, "Q1", &row, subject, form, why));
                        }
                        None => {
                            let work = cold(few(order, count), 0, start);
                            entries.push(entry(subject, form, work));
                        }
                    }
                }
                if wanted(order, i == j) {
                    let work = cold(few(order, count), pool_of(count), ConnectionStart::Cold);
                    entries.push(entry(subject, form::COLD_POOLED, work));
                }
            }
            if !entries.is_empty() {
                let mut contest = order.contest("Q1", row, SuiteOrder::network(rtt), entries);
                if count > 10 {
                    few_repeats(order, &mut contest);
                }
                steps.push(SuiteStep::Contest(contest));
            }
        }
    }
}

/// Why a subject does not connect that many agents at once.
fn not_established(
    order: &SuiteOrder,
    subject: Subject,
    start: ConnectionStart,
    count: u32,
    published: bool,
) -> Option<&'static str> {
    let again = start != ConnectionStart::Cold && count > 100;
    let crowd = subject == Subject::RawIroh && count > 100 && order.size == SuiteSize::Quick;
    if !wanted(order, published) || (again && order.size != SuiteSize::Full) {
        Some(ONLY_FULL)
    } else if crowd {
        Some(TOO_MANY_COLD_DIALS)
    } else if is_session(subject) && count > most_nodes(order) {
        Some(TOO_MANY_NODES)
    } else {
        None
    }
}

/// A quick suite has no time for five repeats of work that takes many seconds, nor for a warm-up.
fn few_repeats(order: &SuiteOrder, contest: &mut Contest) {
    if order.size == SuiteSize::Quick {
        contest.repeats = contest.repeats.min(3);
        contest.warm_up = false;
    }
}

fn cold(agents: u32, connections: u32, start: ConnectionStart) -> WorkRequest {
    WorkRequest::Establish {
        agents,
        connections,
        start,
        bytes: 1_000,
    }
}

fn one_agent(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let mut entries = Vec::new();
    for start in [
        ConnectionStart::Cold,
        ConnectionStart::Resumed,
        ConnectionStart::ZeroRtt,
    ] {
        entries.extend(order.same(&order.subjects(), start.form(), &cold(1, 0, start)));
    }
    let contest = order.contest("Q1", tables::ONE_AGENT, "wan-50ms", entries);
    steps.push(SuiteStep::Contest(contest));
}

/// Both forms of work that takes agents and connections. A connection for each agent is a node for
/// each in a session, as long as these are few; beyond, it is one of as many connections between two nodes.
fn both_forms(
    order: &SuiteOrder,
    steps: &mut Vec<SuiteStep>,
    cells: &[(&'static str, &str)],
    count: u32,
    work: impl Fn(u32) -> WorkRequest,
) -> Vec<Contestant> {
    let mut entries = order.same(&order.subjects(), form::POOLED, &work(pool_of(count)));
    for subject in order.subjects() {
        if takes_long(order, subject, count) {
            for (table, row) in cells {
                let form = form::PER_AGENT;
                steps.push(skip(
                    Suite::Coordination,
                    table,
                    row,
                    subject,
                    form,
                    TOO_MANY_TCP_CONNECTIONS,
                ));
            }
            continue;
        }
        entries.push(if is_session(subject) && count > MAX_NODES {
            on_connections(subject, form::PER_AGENT, few(order, count), &work)
        } else {
            entry(subject, form::PER_AGENT, work(0))
        });
    }
    entries
}

/// Whether a quick suite has no time for a connection for each agent.
fn takes_long(order: &SuiteOrder, subject: Subject, count: u32) -> bool {
    let quic = Subject::Session(SessionCarrier::Quic);
    order.size == SuiteSize::Quick && is_session(subject) && subject != quic && count > 100
}

/// A session between two nodes whose tunnel has a number of connections.
fn on_connections(
    subject: Subject,
    form: &str,
    count: u32,
    work: &impl Fn(u32) -> WorkRequest,
) -> Contestant {
    tuned(
        subject,
        "",
        &["--pool", &count.to_string()],
        form,
        &work(count),
    )
}

fn throughput(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let seconds = order.by_size(0.02, 0.15, 60.0);
    for (count, bytes) in SCENARIOS {
        for rtt in RTTS {
            let row = scenario(count, bytes, rtt);
            if !wanted(order, rtt == 0) {
                for subject in order.subjects() {
                    for form in [form::POOLED, form::PER_AGENT] {
                        steps.push(skip(
                            Suite::Coordination,
                            "Q2",
                            &row,
                            subject,
                            form,
                            ONLY_FULL,
                        ));
                    }
                }
                continue;
            }
            let work = |connections| WorkRequest::Rate {
                // A thousand messages of 100 KB at once would measure memory.
                in_flight: few(order, count.min(100)),
                seconds,
                bytes,
                agents: few(order, count),
                connections,
            };
            let cpu = agents(count);
            let mut cells = vec![("Q2", row.as_str())];
            if rtt == 0 {
                cells.push(("Q5", cpu.as_str()));
            }
            let entries = both_forms(order, steps, &cells, count, work);
            let mut contest = order.contest("Q2", row, SuiteOrder::network(rtt), entries);
            if rtt == 0 {
                contest.also.push(("Q5", agents(count)));
            }
            steps.push(SuiteStep::Contest(contest));
        }
    }
    let small = WorkRequest::Rate {
        in_flight: few(order, 64),
        seconds: order.by_size(0.02, 0.25, 60.0),
        bytes: 1_000,
        agents: 1,
        connections: 1,
    };
    let bulk = WorkRequest::Bulk {
        bytes: order.by_size(100_000, 50_000_000, 1_000_000_000),
        seconds: 0.0,
    };
    for (row, network, work) in [
        (tables::SMALL_CALLS, "loopback", &small),
        ("64 in flight × 1 KB, lan", "lan", &small),
        (tables::BULK, "loopback", &bulk),
        ("bulk, lan", "lan", &bulk),
    ] {
        let entries = order.same(&order.subjects(), form::POOLED, work);
        steps.push(SuiteStep::Contest(
            order.contest("Q2", row, network, entries),
        ));
    }
}

/// Bulk by a node that may choose its carrier, beside those that may not. The choice is made before it is
/// timed.
fn chosen(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let work = WorkRequest::Bulk {
        bytes: order.by_size(100_000, 200_000_000, 1_000_000_000),
        seconds: 0.0,
    };
    let auto = Subject::Session(SessionCarrier::Auto);
    let subjects = [
        auto,
        Subject::Session(SessionCarrier::Quic),
        Subject::Session(SessionCarrier::H2),
    ];
    for (row, network) in [
        (tables::BULK_CHOSEN, "loopback"),
        (tables::BULK_CHOSEN_LAN, "lan"),
    ] {
        // A test transfers too little for a choice.
        if !order.may_choose() || order.size == SuiteSize::Tiny {
            let reason = "it needs more bytes than a trial run transfers, and a session that may choose its carrier";
            steps.push(skip(
                Suite::Coordination,
                "Q2",
                row,
                auto,
                form::POOLED,
                reason,
            ));
            continue;
        }
        let entries = subjects.map(|subject| entry(subject, form::POOLED, work.clone()));
        steps.push(SuiteStep::Contest(order.contest(
            "Q2",
            row,
            network,
            entries.to_vec(),
        )));
    }
}

fn streams(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    for (count, _) in SCENARIOS {
        let work = WorkRequest::Rate {
            in_flight: few(order, count),
            seconds: order.by_size(0.02, 0.15, 60.0),
            bytes: 1,
            agents: few(order, count),
            connections: pool_of(count),
        };
        let entries = order.same(&order.subjects(), form::POOLED, &work);
        steps.push(SuiteStep::Contest(order.contest(
            "Q3",
            agents(count),
            "loopback",
            entries,
        )));
    }
    // Many small messages at once on one connection: with one ordered byte stream, a lost packet holds
    // up all behind it.
    let work = WorkRequest::Latency {
        per_second: order.by_size(100.0, 1_000.0, 1_000.0),
        seconds: order.by_size(0.05, 0.3, 60.0),
        bytes: 1_000,
        connections: 1,
    };
    let entries = order.same(&order.subjects(), form::POOLED, &work);
    let contest = order.contest("Q3", tables::HEAD_OF_LINE, "wan-50ms-loss1", entries);
    steps.push(SuiteStep::Contest(contest));
}

fn memory(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    for (count, _) in SCENARIOS {
        let row = agents(count);
        let work = |connections| WorkRequest::Hold {
            agents: few(order, count),
            connections,
            bytes: 1_000,
        };
        let entries = both_forms(order, steps, &[("Q4", row.as_str())], count, work);
        let mut contest = Contest {
            reading: FigureReading::Memory,
            ..order.contest("Q4", row, "loopback", entries)
        };
        if count > 100 {
            few_repeats(order, &mut contest);
        }
        steps.push(SuiteStep::Contest(contest));
    }
}

fn latency(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let work = |seconds| WorkRequest::Latency {
        per_second: order.by_size(100.0, 200.0, 200.0),
        seconds,
        bytes: 1_000,
        connections: 1,
    };
    let calm = order.by_size(0.05, 0.25, 60.0);
    let lossy = order.by_size(0.05, 2.0, 60.0);
    for (row, network, seconds) in [
        ("1 KB, 0 ms", "loopback", calm),
        ("1 KB, 50 ms", "wan-50ms", calm),
        ("1 KB, 100 ms", "wan-100ms", calm),
        (tables::UNDER_LOSS, "wan-50ms-loss1", lossy),
    ] {
        if !wanted(order, network != "wan-100ms") {
            for subject in order.subjects() {
                let form = form::POOLED;
                steps.push(skip(
                    Suite::Coordination,
                    "Q6",
                    row,
                    subject,
                    form,
                    ONLY_FULL,
                ));
            }
            continue;
        }
        let entries = order.same(&order.subjects(), form::POOLED, &work(seconds));
        steps.push(SuiteStep::Contest(
            order.contest("Q6", row, network, entries),
        ));
    }
}

/// A QUIC subject with options, under a name that says so.
fn tuned(
    subject: Subject,
    word: &str,
    options: &[&str],
    form: &str,
    work: &WorkRequest,
) -> Contestant {
    Contestant {
        participant: Participant::Ours(subject, options.iter().map(ToString::to_string).collect()),
        subject: format!("{} {word}", subject.cell_name()).trim().to_owned(),
        form: form.to_owned(),
        work: work.clone(),
        helper: None,
    }
}

fn congestion(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let work = WorkRequest::Bulk {
        bytes: order.by_size(100_000, 1_000_000_000, 4_000_000_000),
        seconds: order.by_size(0.3, 0.6, 60.0),
    };
    for (row, network) in [
        ("50 ms, 1 % loss", "wan-50ms-loss1"),
        ("100 ms, 200 Mbit/s", "longfat"),
    ] {
        let mut entries = Vec::new();
        for subject in [Subject::Session(SessionCarrier::Quic), Subject::RawIroh] {
            for congestion in [CongestionControl::Bbr, CongestionControl::Cubic] {
                let word = congestion.name();
                let options = ["--congestion", word];
                entries.push(tuned(subject, word, &options, form::POOLED, &work));
            }
        }
        entries.push(entry(Subject::PlainH2, form::POOLED, work.clone()));
        steps.push(SuiteStep::Contest(
            order.contest("Q7", row, network, entries),
        ));
    }
}

fn pools(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    for (count, _) in SCENARIOS {
        let work = |connections| WorkRequest::Rate {
            in_flight: few(order, count.min(100)),
            seconds: order.by_size(0.02, 0.15, 60.0),
            bytes: 1_000,
            agents: few(order, count),
            connections,
        };
        let pool = pool_of(count);
        let sessions = order.carriers().into_iter().map(Subject::Session);
        for subject in [Subject::RawIroh, Subject::PlainH2]
            .into_iter()
            .chain(sessions)
        {
            if takes_long(order, subject, count) {
                for form in [
                    form::PER_AGENT,
                    "1 connection",
                    &format!("{pool} connections"),
                ] {
                    let row = agents(count);
                    steps.push(skip(
                        Suite::Coordination,
                        "Q8",
                        &row,
                        subject,
                        form,
                        TOO_MANY_TCP_CONNECTIONS,
                    ));
                }
                continue;
            }
            // A connection for each agent comes first: gains are against it.
            let entries = [
                (0, form::PER_AGENT.to_owned()),
                (1, "1 connection".to_owned()),
                (pool, format!("{pool} connections")),
            ];
            let entries = entries.map(|(connections, form)| {
                let number = match connections {
                    0 => few(order, count),
                    pool => few(order, pool),
                };
                if is_session(subject) {
                    on_connections(subject, &form, number, &work)
                } else {
                    entry(subject, &form, work(connections))
                }
            });
            steps.push(SuiteStep::Contest(Contest {
                reading: FigureReading::Pools,
                ..order.contest("Q8", agents(count), "loopback", entries.to_vec())
            }));
        }
    }
}

/// The session over QUIC, and its baselines where a row is about one transport.
const BESIDE_QUIC: [Subject; 3] = [
    Subject::Session(SessionCarrier::Quic),
    Subject::RawIroh,
    Subject::PlainH2,
];

fn buffers(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    // The published four, and the smallest that a node allows.
    for kib in [64u32, 128, 256, 512, 2_048, 4_096, 8_192] {
        let window = (kib * 1024).to_string();
        let options = ["--window", window.as_str()];
        let work = WorkRequest::Rate {
            in_flight: few(order, 10),
            seconds: order.by_size(0.05, 0.15, 60.0),
            bytes: order.by_size(1_000, 100_000, 100_000),
            agents: 1,
            connections: 1,
        };
        let entries = BESIDE_QUIC.map(|subject| tuned(subject, "", &options, form::POOLED, &work));
        let row = if kib < 1_024 {
            format!("{kib} KB")
        } else {
            format!("{} MB", kib / 1_024)
        };
        steps.push(SuiteStep::Contest(order.contest(
            "Q9",
            row,
            "wan-50ms",
            entries.to_vec(),
        )));
    }
}

fn priorities(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let work = WorkRequest::Mix {
        per_second: order.by_size(20.0, 25.0, 25.0),
        seconds: order.by_size(0.2, 0.5, 60.0),
        bytes: 1_000,
    };
    let entries = order.same(&order.subjects(), form::POOLED, &work);
    let row = "four priorities, 20 Mbit/s, 20 ms";
    let mut contest = Contest {
        reading: FigureReading::Priorities,
        ..order.contest("Q10", row, "narrow", entries)
    };
    few_repeats(order, &mut contest);
    steps.push(SuiteStep::Contest(contest));
}

fn profile(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let work = WorkRequest::Rate {
        in_flight: few(order, 64),
        seconds: order.by_size(0.3, 2.0, 20.0),
        bytes: 1_000,
        agents: 1,
        connections: 1,
    };
    let entries = BESIDE_QUIC.map(|subject| entry(subject, form::POOLED, work.clone()));
    steps.push(SuiteStep::Contest(Contest {
        reading: FigureReading::Profile,
        repeats: 1,
        warm_up: false,
        ..order.contest("Q11", "64 in flight × 1 KB", "loopback", entries.to_vec())
    }));
}
