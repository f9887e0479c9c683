//! The smoke suite: a little of everything on loopback, without root, in under a minute.

use super::{Contest, Entry, Order, Reading, Step, entry};
use crate::{
    subject::{Carrier, Subject},
    tables::form,
    work::{Start, Work},
};

pub(super) fn steps(order: &Order) -> Vec<Step> {
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
                    let work = Work::Establish {
                        agents: 1,
                        connections: 0,
                        start: Start::Cold,
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
                &Work::Latency {
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
                &Work::Rate {
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
                &Work::Bulk {
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
                &Work::Dispatch {
                    agents: order.by_size(3, 50, 50),
                    connections: 1,
                    start: Start::Warm,
                    at_once: true,
                    bytes: 1_000,
                },
            ),
        ),
        loopback(
            order,
            "four priorities",
            order.same(
                &[Subject::Session(Carrier::Quic), Subject::RawIroh],
                form::WARM,
                &Work::Mix {
                    per_second: 50.0,
                    seconds,
                    bytes: 1_000,
                },
            ),
        ),
    ];
    let hold = Work::Hold {
        agents: order.by_size(3, 100, 100),
        connections: 1,
        bytes: 64,
    };
    let alone = Work::Hold {
        agents: order.by_size(3, 100, 100),
        connections: 0,
        bytes: 64,
    };
    let entries = [
        entry(Subject::Session(Carrier::Quic), form::POOLED, hold),
        entry(Subject::RawIroh, form::PER_AGENT, alone.clone()),
        entry(Subject::PlainH2, form::PER_AGENT, alone),
    ];
    contests.push(Contest {
        reading: Reading::Memory,
        ..loopback(order, "memory of 100 agents", entries.to_vec())
    });
    contests.into_iter().map(Step::Contest).collect()
}

fn loopback(order: &Order, row: &str, entries: Vec<Entry>) -> Contest {
    order.contest("smoke", row, "loopback", entries)
}
