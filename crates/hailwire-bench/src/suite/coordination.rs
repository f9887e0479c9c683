//! The coordination suite: tables Q1 to Q12, many agents over three carriers.

use super::{Contest, Entry, Order, Reading, Size, Step, Suite, Who, entry, pool_of, skip};
use crate::{
    subject::{Carrier, Congestion, Subject},
    tables::{self, RTTS, SCENARIOS, agents, establishment, form, scenario},
    work::{Start, Work},
};

const TOO_MANY_NODES: &str = "a node dials another once, so new connections for each agent take a node for each: \
     that is measured for 10 agents, and for 100 with --full; cold, pooled has one tunnel for all";

const LONG: &str = "a thousand connections of one session over TCP take a quarter of a minute to come up: \
     only with --full";

const CROWD: &str = "a thousand cold connections of one endpoint to another take a quarter of a minute: \
     only with --full";

const ONLY_FULL: &str = "only with --full";

pub(super) fn steps(order: &Order) -> Vec<Step> {
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
fn wanted(order: &Order, published: bool) -> bool {
    order.size == Size::Full || published
}

fn is_session(subject: Subject) -> bool {
    matches!(subject, Subject::Session(_))
}

/// Most agents of which each has a node of its own, where a connection between two nodes would do.
const MOST_NODES: u32 = 10;

/// Nodes that one loading process starts at most: each agent with a new connection of its own needs a node.
fn most_nodes(order: &Order) -> u32 {
    order.by_size(100, 10, 100)
}

/// Agents of a test are few.
fn few(order: &Order, count: u32) -> u32 {
    order.by_size(count.min(3), count, count)
}

fn establish(order: &Order, steps: &mut Vec<Step>) {
    one_agent(order, steps);
    for (i, (count, _)) in SCENARIOS.into_iter().enumerate() {
        for (j, rtt) in RTTS.into_iter().enumerate() {
            let row = establishment(count, rtt);
            let mut entries = Vec::new();
            for subject in order.subjects() {
                for start in [Start::Cold, Start::Resumed, Start::ZeroRtt] {
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
                    let work = cold(few(order, count), pool_of(count), Start::Cold);
                    entries.push(entry(subject, form::COLD_POOLED, work));
                }
            }
            if !entries.is_empty() {
                let mut contest = order.contest("Q1", row, Order::network(rtt), entries);
                if count > 10 {
                    few_repeats(order, &mut contest);
                }
                steps.push(Step::Contest(contest));
            }
        }
    }
}

/// Why a subject does not connect so many agents at once.
fn not_established(
    order: &Order,
    subject: Subject,
    start: Start,
    count: u32,
    published: bool,
) -> Option<&'static str> {
    let again = start != Start::Cold && count > 100;
    let crowd = subject == Subject::RawIroh && count > 100 && order.size == Size::Quick;
    if !wanted(order, published) || (again && order.size != Size::Full) {
        Some(ONLY_FULL)
    } else if crowd {
        Some(CROWD)
    } else if is_session(subject) && count > most_nodes(order) {
        Some(TOO_MANY_NODES)
    } else {
        None
    }
}

/// A quick suite has no time for five turns of what takes many seconds, nor for one that does not count.
fn few_repeats(order: &Order, contest: &mut Contest) {
    if order.size == Size::Quick {
        contest.repeats = contest.repeats.min(3);
        contest.warm_up = false;
    }
}

fn cold(agents: u32, connections: u32, start: Start) -> Work {
    Work::Establish {
        agents,
        connections,
        start,
        bytes: 1_000,
    }
}

fn one_agent(order: &Order, steps: &mut Vec<Step>) {
    let mut entries = Vec::new();
    for start in [Start::Cold, Start::Resumed, Start::ZeroRtt] {
        entries.extend(order.same(&order.subjects(), start.form(), &cold(1, 0, start)));
    }
    let contest = order.contest("Q1", tables::ONE_AGENT, "wan-50ms", entries);
    steps.push(Step::Contest(contest));
}

/// Both forms of a piece of work that takes agents and connections. A connection for each agent is a node for
/// each in a session, as long as these are few; beyond, it is one of as many connections between two nodes.
fn both_forms(
    order: &Order,
    steps: &mut Vec<Step>,
    cells: &[(&'static str, &str)],
    count: u32,
    work: impl Fn(u32) -> Work,
) -> Vec<Entry> {
    let mut entries = order.same(&order.subjects(), form::POOLED, &work(pool_of(count)));
    for subject in order.subjects() {
        if takes_long(order, subject, count) {
            for (table, row) in cells {
                let form = form::PER_AGENT;
                steps.push(skip(Suite::Coordination, table, row, subject, form, LONG));
            }
            continue;
        }
        entries.push(if is_session(subject) && count > MOST_NODES {
            on_connections(subject, form::PER_AGENT, few(order, count), &work)
        } else {
            entry(subject, form::PER_AGENT, work(0))
        });
    }
    entries
}

/// Whether a quick suite has no time for a connection for each agent.
fn takes_long(order: &Order, subject: Subject, count: u32) -> bool {
    let quic = Subject::Session(Carrier::Quic);
    order.size == Size::Quick && is_session(subject) && subject != quic && count > 100
}

/// A session between two nodes whose tunnel has so many connections.
fn on_connections(subject: Subject, form: &str, count: u32, work: &impl Fn(u32) -> Work) -> Entry {
    tuned(
        subject,
        "",
        &["--pool", &count.to_string()],
        form,
        &work(count),
    )
}

fn throughput(order: &Order, steps: &mut Vec<Step>) {
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
            let work = |connections| Work::Rate {
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
            let mut contest = order.contest("Q2", row, Order::network(rtt), entries);
            if rtt == 0 {
                contest.also.push(("Q5", agents(count)));
            }
            steps.push(Step::Contest(contest));
        }
    }
    let small = Work::Rate {
        in_flight: few(order, 64),
        seconds: order.by_size(0.02, 0.25, 60.0),
        bytes: 1_000,
        agents: 1,
        connections: 1,
    };
    let bulk = Work::Bulk {
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
        steps.push(Step::Contest(order.contest("Q2", row, network, entries)));
    }
}

/// Bulk by a node that may choose its carrier, beside those that may not. The choice is made before the clock
/// runs.
fn chosen(order: &Order, steps: &mut Vec<Step>) {
    let work = Work::Bulk {
        bytes: order.by_size(100_000, 200_000_000, 1_000_000_000),
        seconds: 0.0,
    };
    let auto = Subject::Session(Carrier::Auto);
    let subjects = [
        auto,
        Subject::Session(Carrier::Quic),
        Subject::Session(Carrier::H2),
    ];
    for (row, network) in [
        (tables::BULK_CHOSEN, "loopback"),
        (tables::BULK_CHOSEN_LAN, "lan"),
    ] {
        // A test moves too little for a choice.
        if !order.may_choose() || order.size == Size::Tiny {
            let reason =
                "it takes more bytes than a trial run moves, and a session that may choose";
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
        steps.push(Step::Contest(order.contest(
            "Q2",
            row,
            network,
            entries.to_vec(),
        )));
    }
}

fn streams(order: &Order, steps: &mut Vec<Step>) {
    for (count, _) in SCENARIOS {
        let work = Work::Rate {
            in_flight: few(order, count),
            seconds: order.by_size(0.02, 0.15, 60.0),
            bytes: 1,
            agents: few(order, count),
            connections: pool_of(count),
        };
        let entries = order.same(&order.subjects(), form::POOLED, &work);
        steps.push(Step::Contest(order.contest(
            "Q3",
            agents(count),
            "loopback",
            entries,
        )));
    }
    // Many small messages at once on one connection: with one ordered byte stream, a lost packet holds
    // up all behind it.
    let work = Work::Latency {
        per_second: order.by_size(100.0, 1_000.0, 1_000.0),
        seconds: order.by_size(0.05, 0.3, 60.0),
        bytes: 1_000,
        connections: 1,
    };
    let entries = order.same(&order.subjects(), form::POOLED, &work);
    let contest = order.contest("Q3", tables::HEAD_OF_LINE, "wan-50ms-loss1", entries);
    steps.push(Step::Contest(contest));
}

fn memory(order: &Order, steps: &mut Vec<Step>) {
    for (count, _) in SCENARIOS {
        let row = agents(count);
        let work = |connections| Work::Hold {
            agents: few(order, count),
            connections,
            bytes: 1_000,
        };
        let entries = both_forms(order, steps, &[("Q4", row.as_str())], count, work);
        let mut contest = Contest {
            reading: Reading::Memory,
            ..order.contest("Q4", row, "loopback", entries)
        };
        if count > 100 {
            few_repeats(order, &mut contest);
        }
        steps.push(Step::Contest(contest));
    }
}

fn latency(order: &Order, steps: &mut Vec<Step>) {
    let work = |seconds| Work::Latency {
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
        steps.push(Step::Contest(order.contest("Q6", row, network, entries)));
    }
}

/// A QUIC subject with options, under a name that says so.
fn tuned(subject: Subject, word: &str, options: &[&str], form: &str, work: &Work) -> Entry {
    Entry {
        who: Who::Ours(subject, options.iter().map(ToString::to_string).collect()),
        subject: format!("{} {word}", subject.word()).trim().to_owned(),
        form: form.to_owned(),
        work: work.clone(),
        helper: None,
    }
}

fn congestion(order: &Order, steps: &mut Vec<Step>) {
    let work = Work::Bulk {
        bytes: order.by_size(100_000, 1_000_000_000, 4_000_000_000),
        seconds: order.by_size(0.3, 0.6, 60.0),
    };
    for (row, network) in [
        ("50 ms, 1 % loss", "wan-50ms-loss1"),
        ("100 ms, 200 Mbit/s", "longfat"),
    ] {
        let mut entries = Vec::new();
        for subject in [Subject::Session(Carrier::Quic), Subject::RawIroh] {
            for congestion in [Congestion::Bbr, Congestion::Cubic] {
                let word = congestion.word();
                let options = ["--congestion", word];
                entries.push(tuned(subject, word, &options, form::POOLED, &work));
            }
        }
        entries.push(entry(Subject::PlainH2, form::POOLED, work.clone()));
        steps.push(Step::Contest(order.contest("Q7", row, network, entries)));
    }
}

fn pools(order: &Order, steps: &mut Vec<Step>) {
    for (count, _) in SCENARIOS {
        let work = |connections| Work::Rate {
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
                    steps.push(skip(Suite::Coordination, "Q8", &row, subject, form, LONG));
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
            steps.push(Step::Contest(Contest {
                reading: Reading::Pools,
                ..order.contest("Q8", agents(count), "loopback", entries.to_vec())
            }));
        }
    }
}

/// The session over QUIC, and what it is set beside where a row is about one transport.
const BESIDE_QUIC: [Subject; 3] = [
    Subject::Session(Carrier::Quic),
    Subject::RawIroh,
    Subject::PlainH2,
];

fn buffers(order: &Order, steps: &mut Vec<Step>) {
    // The published four, and those that a node allows.
    for kib in [64u32, 128, 256, 512, 2_048, 4_096, 8_192] {
        let window = (kib * 1024).to_string();
        let options = ["--window", window.as_str()];
        let work = Work::Rate {
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
        steps.push(Step::Contest(order.contest(
            "Q9",
            row,
            "wan-50ms",
            entries.to_vec(),
        )));
    }
}

fn priorities(order: &Order, steps: &mut Vec<Step>) {
    let work = Work::Mix {
        per_second: order.by_size(20.0, 25.0, 25.0),
        seconds: order.by_size(0.2, 0.5, 60.0),
        bytes: 1_000,
    };
    let entries = order.same(&order.subjects(), form::POOLED, &work);
    let row = "four priorities, 20 Mbit/s, 20 ms";
    let mut contest = Contest {
        reading: Reading::Priorities,
        ..order.contest("Q10", row, "narrow", entries)
    };
    few_repeats(order, &mut contest);
    steps.push(Step::Contest(contest));
}

fn profile(order: &Order, steps: &mut Vec<Step>) {
    let work = Work::Rate {
        in_flight: few(order, 64),
        seconds: order.by_size(0.3, 2.0, 20.0),
        bytes: 1_000,
        agents: 1,
        connections: 1,
    };
    let entries = BESIDE_QUIC.map(|subject| entry(subject, form::POOLED, work.clone()));
    steps.push(Step::Contest(Contest {
        reading: Reading::Profile,
        repeats: 1,
        warm_up: false,
        ..order.contest("Q11", "64 in flight × 1 KB", "loopback", entries.to_vec())
    }));
}
