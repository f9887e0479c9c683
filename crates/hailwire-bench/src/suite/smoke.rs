//! The smoke suite: a little of everything on loopback, without root, in under a minute.

use super::{Contest, Contestant, FigureReading, SuiteOrder, SuiteStep, entry};
use crate::{
    subject::{SessionCarrier, Subject},
    tables::form,
    work::{ConnectionStart, WorkRequest},
};

pub(super) fn steps(order: &SuiteOrder) -> Vec<SuiteStep> {
    let mut all = order.subjects();
    all.push(Subject::Processes);
    let seconds = order.by_size(0.02, 0.2, 1.0);
    let mut contests = vec![
        loopback(
            order,
            "new connection",
            order
                .subjects()
                .iter()
                .map(|subject| {
                    let work = WorkRequest::Establish {
                        agents: 1,
                        connections: 0,
                        start: ConnectionStart::Cold,
                        bytes: 1_000,
                    };
                    entry(*subject, form::COLD, work)
                })
                .collect(),
        ),
        loopback(
            order,
            "echo 1 KB, 200 a second",
            order.same(
                &all,
                form::WARM,
                &WorkRequest::Latency {
                    per_second: 200.0,
                    seconds,
                    bytes: 1_000,
                    connections: 1,
                },
            ),
        ),
        loopback(
            order,
            "echo 1 KB, 64 in flight",
            order.same(
                &all,
                form::WARM,
                &WorkRequest::Rate {
                    in_flight: order.by_size(4, 64, 64),
                    seconds,
                    bytes: 1_000,
                    agents: 1,
                    connections: 1,
                },
            ),
        ),
        loopback(
            order,
            "stream 50 MB",
            order.same(
                &all,
                form::WARM,
                &WorkRequest::Bulk {
                    bytes: order.by_size(100_000, 50_000_000, 500_000_000),
                    seconds: 0.0,
                },
            ),
        ),
        loopback(
            order,
            "dispatch to 50 agents",
            order.same(
                &all,
                form::WARM,
                &WorkRequest::Dispatch {
                    agents: order.by_size(3, 50, 50),
                    connections: 1,
                    start: ConnectionStart::Warm,
                    at_once: true,
                    bytes: 1_000,
                },
            ),
        ),
        loopback(
            order,
            "four priorities",
            order.same(
                &[Subject::Session(SessionCarrier::Quic), Subject::RawIroh],
                form::WARM,
                &WorkRequest::Mix {
                    per_second: 50.0,
                    seconds,
                    bytes: 1_000,
                },
            ),
        ),
    ];
    let hold = WorkRequest::Hold {
        agents: order.by_size(3, 100, 100),
        connections: 1,
        bytes: 64,
    };
    let alone = WorkRequest::Hold {
        agents: order.by_size(3, 100, 100),
        connections: 0,
        bytes: 64,
    };
    let entries = [
        entry(Subject::Session(SessionCarrier::Quic), form::POOLED, hold),
        entry(Subject::RawIroh, form::PER_AGENT, alone.clone()),
        entry(Subject::PlainH2, form::PER_AGENT, alone),
    ];
    contests.push(Contest {
        reading: FigureReading::Memory,
        ..loopback(order, "memory of 100 agents", entries.to_vec())
    });
    contests.into_iter().map(SuiteStep::Contest).collect()
}

fn loopback(order: &SuiteOrder, row: &str, entries: Vec<Contestant>) -> Contest {
    order.contest("smoke", row, "loopback", entries)
}
