//! Counters for each agent on each worker: calls, bytes, times.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{dispatch::CompletedAnswer, work::WorkKind};

/// The longest time that is recorded as it is, in microseconds.
const MAX_TIME_US: u64 = 60_000_000;

/// Times of calls in microseconds, to three digits.
pub(super) type TimeHistogram = Histogram<u64>;

/// Counters by kind of work and worker.
#[derive(Debug)]
pub(super) struct CallCounters {
    cells: Vec<WorkerCounters>,
    workers: usize,
    /// The shortest round trip measured to each worker.
    rtt: Vec<Option<Duration>>,
}

/// The counters of one kind of work on one worker.
#[derive(Debug)]
pub(super) struct WorkerCounters {
    pub(super) work: WorkKind,
    pub(super) worker: usize,
    pub(super) answers: u64,
    pub(super) failures: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Times of all answered calls.
    pub(super) times: TimeHistogram,
    /// Times of those whose tunnel was up when they began.
    warm: TimeHistogram,
}

/// Two points of a distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct TimePercentiles {
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
}

impl TimePercentiles {
    pub(super) fn of(times: &TimeHistogram) -> Self {
        Self {
            p50_us: times.value_at_quantile(0.5),
            p99_us: times.value_at_quantile(0.99),
        }
    }
}

impl CallCounters {
    pub(super) fn new(workers: usize) -> Self {
        let cell = |work, worker| WorkerCounters {
            work,
            worker,
            answers: 0,
            failures: 0,
            sent: 0,
            received: 0,
            times: times(),
            warm: times(),
        };
        let cells = WorkKind::ALL
            .into_iter()
            .flat_map(|work| (0..workers).map(move |worker| cell(work, worker)))
            .collect();
        Self {
            cells,
            workers,
            rtt: vec![None; workers],
        }
    }

    /// All counters, by kind of work and then by worker.
    pub(super) fn cells(&self) -> &[WorkerCounters] {
        &self.cells
    }

    pub(super) fn answered(
        &mut self,
        work: WorkKind,
        worker: usize,
        answered: &CompletedAnswer,
        warm: bool,
    ) {
        let cell = self.cell(work, worker);
        cell.answers += 1;
        cell.sent += answered.sent;
        cell.received += answered.received;
        let us = micros(answered.took);
        cell.times.saturating_record(us);
        if warm {
            cell.warm.saturating_record(us);
        }
    }

    pub(super) fn failed(&mut self, work: WorkKind, worker: usize) {
        self.cell(work, worker).failures += 1;
    }

    /// Records a round trip measured to a worker.
    pub(super) fn saw_rtt(&mut self, worker: usize, rtt: Duration) {
        let known = &mut self.rtt[worker];
        *known = Some(known.map_or(rtt, |known| known.min(rtt)));
    }

    /// The shortest round trip to any worker.
    pub(super) fn shortest_rtt(&self) -> Option<Duration> {
        self.rtt.iter().flatten().min().copied()
    }

    /// Times of all answered calls.
    pub(super) fn all_times(&self) -> TimeHistogram {
        let mut all = times();
        for cell in &self.cells {
            // Equal bounds make this infallible.
            let _ = all.add(&cell.times);
        }
        all
    }

    /// Times of the calls over a tunnel that was up, less the shortest round trip to their worker:
    /// the cost of the calls without the network.
    pub(super) fn times_above_rtt(&self) -> TimeHistogram {
        let mut above = times();
        for cell in &self.cells {
            let rtt = self.rtt[cell.worker].map_or(0, micros);
            for point in cell.warm.iter_recorded() {
                let us = point.value_iterated_to().saturating_sub(rtt);
                above.saturating_record_n(us.max(1), point.count_at_value());
            }
        }
        above
    }

    fn cell(&mut self, work: WorkKind, worker: usize) -> &mut WorkerCounters {
        &mut self.cells[work as usize * self.workers + worker]
    }
}

fn times() -> TimeHistogram {
    #[expect(clippy::expect_used, reason = "the bounds are constants that fit")]
    Histogram::new_with_bounds(1, MAX_TIME_US, 3).expect("bounds that fit")
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros())
        .unwrap_or(u64::MAX)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(us: u64) -> CompletedAnswer {
        CompletedAnswer {
            right: true,
            took: Duration::from_micros(us),
            sent: 7,
            received: 3,
            member: String::new(),
        }
    }

    #[test]
    fn calls_are_counted_for_their_agent_and_worker() {
        let mut counters = CallCounters::new(2);
        counters.answered(WorkKind::Grep, 1, &took(100), true);
        counters.answered(WorkKind::Grep, 1, &took(300), true);
        counters.failed(WorkKind::Sha256, 0);
        let grep = counters
            .cells()
            .iter()
            .find(|cell| (cell.work, cell.worker) == (WorkKind::Grep, 1))
            .unwrap();
        assert_eq!((grep.answers, grep.sent, grep.received), (2, 14, 6));
        assert_eq!(TimePercentiles::of(&grep.times).p50_us, 100);
        assert_eq!(counters.cells().iter().map(|c| c.failures).sum::<u64>(), 1);
        assert_eq!(counters.all_times().len(), 2);
    }

    #[test]
    fn the_network_is_taken_off_and_cold_calls_are_left_out() {
        let mut counters = CallCounters::new(1);
        counters.saw_rtt(0, Duration::from_micros(150));
        counters.saw_rtt(0, Duration::from_micros(90));
        counters.saw_rtt(0, Duration::from_micros(200));
        counters.answered(WorkKind::Grep, 0, &took(1000), false);
        counters.answered(WorkKind::Grep, 0, &took(190), true);
        let above = counters.times_above_rtt();
        assert_eq!((above.len(), above.max()), (1, 100));
        assert_eq!(counters.shortest_rtt(), Some(Duration::from_micros(90)));
    }
}
