//! The callout suite: tables C1 to C12, in one process, CE, from a host to an agent over a socket, and CF, to one on
//! another node.
//!
//! Every row of CE has our programs and the foreign crate's own client and server (`peers/zentinel`) in four
//! combinations. Where that program is not built, its cells say so.

use super::{Contestant, ForeignProgram, Participant, Suite, SuiteOrder, SuiteSize, SuiteStep};
use crate::{
    result::CellId,
    subject::Subject,
    tables::callout::{
        ALONE, BETWEEN, BLOCKING, BODY, CONTENDED, EVENTED, FAR, FAR_BODY, GRPC, MANY, NEAR, ONE,
        OPERATIONS, OURS, OURS_OURS, OURS_THEIRS, RAW, SELDOM, THEIRS, THEIRS_OURS, THEIRS_THEIRS,
        UDP,
    },
    work::WorkRequest,
};

/// Why the foreign program's cells are empty where it is missing.
const NOT_BUILT: &str = "the foreign program is not built: peers/zentinel/build";

pub(super) fn steps(order: &SuiteOrder) -> Vec<SuiteStep> {
    let mut steps = Vec::new();
    for (table, row) in OPERATIONS {
        operation(order, table, row, &mut steps);
    }
    for (row, asked) in rows(order) {
        end_to_end(order, row, &asked, &mut steps);
    }
    remote_agents(order, &mut steps);
    steps
}

/// One operation of both crates, alone and contended.
fn operation(order: &SuiteOrder, table: &'static str, row: &str, steps: &mut Vec<SuiteStep>) {
    let mut entries = Vec::new();
    // A size does not depend on the number of threads.
    let forms: &[(&str, u32)] = if table == "C6" {
        &[(ALONE, 1)]
    } else {
        &[(ALONE, 1), (CONTENDED, 2)]
    };
    for (form, threads) in forms {
        let work = WorkRequest::Operation {
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
    steps.push(SuiteStep::Contest(
        order.contest(table, row, "loopback", entries),
    ));
}

/// The parameters of a row of CE.
struct HostRow {
    /// How events travel, in the forms of the row.
    wires: &'static [&'static str],
    work: WorkRequest,
    one_cpu: bool,
    raw: RawBaseline,
}

/// The raw-socket baseline of a row.
#[derive(Clone, Copy)]
enum RawBaseline {
    None,
    Blocking,
    /// On an event loop as well.
    Both,
}

fn rows(order: &SuiteOrder) -> Vec<(&'static str, HostRow)> {
    let seconds = order.by_size(0.02, 0.6, 5.0);
    let rate = |in_flight, connections, bytes| WorkRequest::Rate {
        in_flight,
        seconds,
        bytes,
        agents: 1,
        connections,
    };
    let asked = |wires, work: WorkRequest, one_cpu| HostRow {
        wires,
        raw: match work {
            WorkRequest::Rate { bytes, .. } if bytes >= 64 << 10 => RawBaseline::Blocking,
            _ if one_cpu => RawBaseline::Both,
            _ => RawBaseline::None,
        },
        work,
        one_cpu,
    };
    let both: &[&str] = &["json", "msgpack"];
    let tiny = order.size == SuiteSize::Tiny;
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
fn end_to_end(order: &SuiteOrder, row: &'static str, asked: &HostRow, steps: &mut Vec<SuiteStep>) {
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
        RawBaseline::None => &[],
        RawBaseline::Blocking => &[(BLOCKING, "raw-socket")],
        RawBaseline::Both => &[(BLOCKING, "raw-socket"), (EVENTED, "raw-socket-evented")],
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
    steps.push(SuiteStep::Contest(
        order.contest("CE", row, "loopback", entries),
    ));
}

/// Table CF: an agent on another node, beside one on this machine and the round trip of the network.
fn remote_agents(order: &SuiteOrder, steps: &mut Vec<SuiteStep>) {
    let rate = |network, in_flight, connections, bytes| WorkRequest::Rate {
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
        steps.push(SuiteStep::Contest(contest));
    };
    let all = |subjects: &[&str], network: &str, work: &WorkRequest| -> Vec<Contestant> {
        let ends = |subject: &&str| ends(subject, network, work);
        subjects.iter().map(ends).collect()
    };
    for (network, one, many) in BETWEEN {
        let mut entries = all(&[UDP, NEAR, FAR], network, &rate(network, 1, 1, 0));
        if network != "loopback" {
            let seldom = WorkRequest::Latency {
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

/// The two ends of table CF. Between two homes they need a third process through which they find each other.
fn ends(subject: &str, network: &str, work: &WorkRequest) -> Contestant {
    let (participant, options, helper): (_, &[&str], _) = match (subject, network) {
        (UDP, "home-to-home") => (
            Subject::RawUdp,
            &["--through", "{helper}"],
            Some(Subject::RawUdp),
        ),
        (UDP, _) => (Subject::RawUdp, &[], None),
        (FAR, "home-to-home") => (
            Subject::RemoteCallout,
            &["--hub", "{helper}", "--path", "direct"],
            Some(Subject::Hub),
        ),
        (FAR, _) => (Subject::RemoteCallout, &[], None),
        _ => (Subject::Callout, &[], None),
    };
    Contestant {
        participant: Participant::Ours(
            participant,
            options.iter().map(ToString::to_string).collect(),
        ),
        subject: subject.to_owned(),
        form: "msgpack".to_owned(),
        work: work.clone(),
        helper,
    }
}

/// A program that serves and one that loads, each ours or foreign.
fn pair(
    (subject, form): (&str, &str),
    serve: String,
    load: String,
    work: WorkRequest,
) -> Contestant {
    let words = |command: String| command.split(' ').map(str::to_owned).collect();
    Contestant {
        participant: Participant::Foreign(ForeignProgram {
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

fn skip(table: &str, row: &str, (subject, form): (&str, &str)) -> SuiteStep {
    let cell = CellId {
        suite: Suite::Callout.name().to_owned(),
        table: table.to_owned(),
        row: row.to_owned(),
        subject: subject.to_owned(),
        form: form.to_owned(),
    };
    SuiteStep::Skip(cell, NOT_BUILT.to_owned())
}
