//! The callout suite: tables C1 to C12, in one process, CE, from a host to an agent over a socket, and CF, to one on
//! another node.
//!
//! Ours and the foreign crate's own client and server (`peers/zentinel`) stand in every row of CE in four
//! combinations. Where that program is not built, its cells say so.

use super::{Entry, Foreign, Order, Size, Step, Suite, Who};
use crate::{
    result::Cell,
    subject::Subject,
    tables::callout::{
        ALONE, BETWEEN, BLOCKING, BODY, CONTENDED, EVENTED, FAR, FAR_BODY, GRPC, MANY, NEAR, ONE,
        OPERATIONS, OURS, OURS_OURS, OURS_THEIRS, RAW, SELDOM, THEIRS, THEIRS_OURS, THEIRS_THEIRS,
        UDP,
    },
    work::Work,
};

/// Why the foreign program's cells are empty where it is not there.
const NOT_BUILT: &str = "the foreign program is not built: peers/zentinel/build";

pub(super) fn steps(order: &Order) -> Vec<Step> {
    let mut steps = Vec::new();
    for (table, row) in OPERATIONS {
        operation(order, table, row, &mut steps);
    }
    for (row, asked) in rows(order) {
        end_to_end(order, row, &asked, &mut steps);
    }
    far(order, &mut steps);
    steps
}

/// One operation of both crates, alone and contended.
fn operation(order: &Order, table: &'static str, row: &str, steps: &mut Vec<Step>) {
    let mut entries = Vec::new();
    // A size is what it is.
    let forms: &[(&str, u32)] = if table == "C6" {
        &[(ALONE, 1)]
    } else {
        &[(ALONE, 1), (CONTENDED, 2)]
    };
    for (form, threads) in forms {
        let work = Work::Operation {
            name: row.to_owned(),
            threads: *threads,
            seconds: order.by_size(0.005, 0.05, 0.5),
        };
        let mut add = |subject: &str, serve: &str, load: &str| {
            let parts = (subject, *form);
            entries.push(pair(parts, serve.to_owned(), load.to_owned(), work.clone()));
        };
        let ours = "bench subject";
        add(
            OURS,
            &format!("{{hail}} {ours} serve operations"),
            &format!("{{hail}} {ours} load operations {{ready}}"),
        );
        match &order.peer {
            Some(peer) => add(
                THEIRS,
                &format!("{{hail}} {ours} serve operations"),
                &format!("{peer} bench-operations"),
            ),
            None => steps.push(skip(table, row, (THEIRS, form))),
        }
    }
    steps.push(Step::Contest(
        order.contest(table, row, "loopback", entries),
    ));
}

/// What is asked of a row of CE.
struct Asked {
    /// How events travel, in the forms of the row.
    wires: &'static [&'static str],
    work: Work,
    one_cpu: bool,
    raw: Raw,
}

/// How bytes alone stand beside it.
#[derive(Clone, Copy)]
enum Raw {
    None,
    Blocking,
    /// On an event loop as well.
    Both,
}

fn rows(order: &Order) -> Vec<(&'static str, Asked)> {
    let seconds = order.by_size(0.02, 0.6, 5.0);
    let rate = |in_flight, connections, bytes| Work::Rate {
        in_flight,
        seconds,
        bytes,
        agents: 1,
        connections,
    };
    let asked = |wires, work: Work, one_cpu| Asked {
        wires,
        raw: match work {
            Work::Rate { bytes, .. } if bytes >= 64 << 10 => Raw::Blocking,
            _ if one_cpu => Raw::Both,
            _ => Raw::None,
        },
        work,
        one_cpu,
    };
    let both: &[&str] = &["json", "msgpack"];
    let tiny = order.size == Size::Tiny;
    vec![
        (ONE, asked(both, rate(1, 1, 0), true)),
        (
            "headers, 64 in flight, 1 connection",
            asked(both, rate(64, 1, 0), false),
        ),
        (MANY, asked(both, rate(64, 4, 0), false)),
        (GRPC, asked(&["grpc"], rate(64, 1, 0), false)),
        (
            "1 KiB body, 64 in flight",
            asked(both, rate(64, 4, 1 << 10), false),
        ),
        (BODY[0], asked(both, rate(64, 4, 64 << 10), false)),
        (
            BODY[1],
            asked(
                both,
                rate(1, 1, if tiny { 1 << 16 } else { 10 << 20 }),
                false,
            ),
        ),
    ]
}

/// One row of CE: four combinations, in each encoding, and bytes alone.
fn end_to_end(order: &Order, row: &'static str, asked: &Asked, steps: &mut Vec<Step>) {
    let mut entries = Vec::new();
    let pin = if asked.one_cpu { "taskset -c 0 " } else { "" };
    for wire in asked.wires {
        let ours = |part: &str| format!("{pin}{{hail}} bench subject {part} --callout {wire}");
        let our_load = ours("load callout {ready}");
        let our_serve = ours("serve callout");
        entries.push(pair(
            (OURS_OURS, wire),
            our_serve.clone(),
            our_load.clone(),
            asked.work.clone(),
        ));
        let Some(peer) = &order.peer else {
            for subject in [OURS_THEIRS, THEIRS_OURS, THEIRS_THEIRS] {
                steps.push(skip("CE", row, (subject, wire)));
            }
            continue;
        };
        let their_serve = format!("{pin}{peer} bench-serve --wire {wire}");
        let their_load = format!("{pin}{peer} bench-load --wire {wire} {{address}}");
        for (subject, serve, load) in [
            (OURS_THEIRS, &their_serve, &our_load),
            (THEIRS_OURS, &our_serve, &their_load),
            (THEIRS_THEIRS, &their_serve, &their_load),
        ] {
            let parts = (subject, *wire);
            entries.push(pair(parts, serve.clone(), load.clone(), asked.work.clone()));
        }
    }
    let raw: &[(&str, &str)] = match asked.raw {
        Raw::None => &[],
        Raw::Blocking => &[(BLOCKING, "raw-socket")],
        Raw::Both => &[(BLOCKING, "raw-socket"), (EVENTED, "raw-socket-evented")],
    };
    for (form, subject) in raw {
        let raw = |part: String| format!("{pin}{{hail}} bench subject {part}");
        entries.push(pair(
            (RAW, form),
            raw(format!("serve {subject}")),
            raw(format!("load {subject} {{ready}}")),
            asked.work.clone(),
        ));
    }
    steps.push(Step::Contest(order.contest("CE", row, "loopback", entries)));
}

/// Table CF: an agent on another node, beside one on this machine and the round trip of the network.
fn far(order: &Order, steps: &mut Vec<Step>) {
    let rate = |network, in_flight, connections, bytes| Work::Rate {
        in_flight,
        // A round trip of 50 ms gives twenty answers a second.
        seconds: match network {
            "loopback" => order.by_size(0.02, 0.6, 5.0),
            _ => order.by_size(0.1, 2.0, 20.0),
        },
        bytes,
        agents: 1,
        connections,
    };
    let mut contest = |row, network, entries| {
        let contest = order.contest("CF", row, network, entries);
        steps.push(Step::Contest(contest));
    };
    let all = |subjects: &[&str], network: &str, work: &Work| -> Vec<Entry> {
        let ends = |subject: &&str| ends(subject, network, work);
        subjects.iter().map(ends).collect()
    };
    for (network, one, many) in BETWEEN {
        let mut entries = all(&[UDP, NEAR, FAR], network, &rate(network, 1, 1, 0));
        if network != "loopback" {
            let seldom = Work::Latency {
                per_second: 20.0,
                seconds: order.by_size(0.1, 2.0, 20.0),
                bytes: 0,
                connections: 1,
            };
            entries.push(ends(SELDOM, network, &seldom));
        }
        contest(one, network, entries);
        contest(
            many,
            network,
            all(&[NEAR, FAR], network, &rate(network, 64, 4, 0)),
        );
    }
    let network = "loopback";
    let bodies = rate(network, 64, 4, 64 << 10);
    contest(FAR_BODY, network, all(&[NEAR, FAR], network, &bodies));
}

/// Two ends of table CF. Between two homes they need somebody through whom they meet.
fn ends(subject: &str, network: &str, work: &Work) -> Entry {
    let (who, options, helper): (_, &[&str], _) = match (subject, network) {
        (UDP, "home-to-home") => (
            Subject::RawUdp,
            &["--through", "{helper}"],
            Some(Subject::RawUdp),
        ),
        (UDP, _) => (Subject::RawUdp, &[], None),
        (FAR, "home-to-home") => (
            Subject::FarCallout,
            &["--hub", "{helper}", "--path", "direct"],
            Some(Subject::Hub),
        ),
        (FAR, _) => (Subject::FarCallout, &[], None),
        _ => (Subject::Callout, &[], None),
    };
    Entry {
        who: Who::Ours(who, options.iter().map(ToString::to_string).collect()),
        subject: subject.to_owned(),
        form: "msgpack".to_owned(),
        work: work.clone(),
        helper,
    }
}

/// A program that serves and one that loads, each of whosever.
fn pair((subject, form): (&str, &str), serve: String, load: String, work: Work) -> Entry {
    let words = |command: String| command.split(' ').map(str::to_owned).collect();
    Entry {
        who: Who::Foreign(Foreign {
            name: subject.to_owned(),
            serve: words(serve),
            load: words(load),
        }),
        subject: subject.to_owned(),
        form: form.to_owned(),
        work,
        helper: None,
    }
}

fn skip(table: &str, row: &str, (subject, form): (&str, &str)) -> Step {
    let cell = Cell {
        suite: Suite::Callout.name().to_owned(),
        table: table.to_owned(),
        row: row.to_owned(),
        subject: subject.to_owned(),
        form: form.to_owned(),
    };
    Step::Skip(cell, NOT_BUILT.to_owned())
}
