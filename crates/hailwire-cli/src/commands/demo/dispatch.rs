//! Decides which document goes to which worker, what is retried, and when half the work is done.
//!
//! The orchestrator's decisions without its I/O: it is told the result of each call and returns what
//! to do next. Each agent name is a group with one member per worker, in a [`Pool`], which prefers
//! the healthy and idle. A call that ends with `unavailable`, `deadline_exceeded` or another code
//! that is the member's fault goes to a member that it has not been to yet, ahead of new work. Once
//! half the answers are in, the worker with most calls in flight is to be killed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use hailwire::{Code, Status};
use hailwire_pool::{Lease, MemberConfig, NoMember, Outcome, Pool, Tier};

use super::{call_counters::CallCounters, work::WorkKind};

/// How many times a task is tried before it counts as lost.
const MAX_ATTEMPTS: usize = 8;

/// The state of a run.
#[derive(Debug)]
pub(super) struct DocumentDispatch {
    total: usize,
    concurrency: usize,
    waiting: VecDeque<DocumentTask>,
    flights: HashMap<u64, TaskInFlight>,
    next_id: u64,
    groups: [Pool<usize, ()>; WorkKind::ALL.len()],
    /// Whether a worker has answered since its last failure, which shows that its tunnel is up.
    connected: Vec<bool>,
    killed: bool,
    members_heard: HashSet<(usize, WorkKind, String)>,
    pub(super) counts: DispatchCounts,
    pub(super) counters: CallCounters,
}

/// One document for one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DocumentTask {
    document: usize,
    work: WorkKind,
    attempts: usize,
    /// Workers that failed it since all had been tried.
    tried: Vec<usize>,
}

#[derive(Debug)]
struct TaskInFlight {
    task: DocumentTask,
    lease: Lease<usize, ()>,
    reused: bool,
}

/// A call to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkerCall {
    pub(super) id: u64,
    pub(super) document: usize,
    pub(super) work: WorkKind,
    pub(super) worker: usize,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DispatchAction {
    Call(WorkerCall),
    /// Wait until a call ends or, if no member can serve, until this time.
    Wait(Option<Duration>),
    /// Every task is answered or lost.
    Done,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub(super) struct CompletedAnswer {
    /// Whether it equals what the orchestrator computed itself.
    pub(super) right: bool,
    pub(super) took: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Which of the worker's agents of that name it was.
    pub(super) member: String,
}

/// What has happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DispatchCounts {
    /// Calls begun.
    pub(super) calls: u64,
    /// Correct answers.
    pub(super) verified: u64,
    /// Wrong answers.
    pub(super) wrong: u64,
    /// Retries of failed calls.
    pub(super) redispatched: u64,
    /// Tasks that were given up.
    pub(super) lost: u64,
    /// Calls begun while their tunnel was known to be up.
    pub(super) reused: u64,
    /// The error of the last failed call.
    pub(super) last_failure: Option<Status>,
}

impl DocumentDispatch {
    /// A run over `documents`, each to every kind of work, on `workers` that serve every kind.
    pub(super) fn new(documents: usize, workers: usize, concurrency: usize) -> Self {
        let waiting: VecDeque<DocumentTask> = (0..documents)
            .flat_map(|document| WorkKind::ALL.map(|work| DocumentTask::new(document, work)))
            .collect();
        let groups = WorkKind::ALL.map(|_| {
            let pool = Pool::default();
            let config = MemberConfig {
                tier: Tier::Remote,
                max_concurrency: 0,
                ..MemberConfig::default()
            };
            for worker in 0..workers {
                pool.insert(worker, (), config);
            }
            pool
        });
        Self {
            total: waiting.len(),
            concurrency,
            waiting,
            flights: HashMap::new(),
            next_id: 0,
            groups,
            connected: vec![false; workers],
            killed: false,
            members_heard: HashSet::new(),
            counts: DispatchCounts::default(),
            counters: CallCounters::new(workers),
        }
    }

    /// Number of tasks.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Tasks that are answered, correctly or not, or lost.
    pub(super) fn settled(&self) -> u64 {
        self.counts.verified + self.counts.wrong + self.counts.lost
    }

    /// Whether every task has its correct answer.
    pub(super) fn is_complete(&self) -> bool {
        self.counts.verified == self.total as u64
    }

    /// Different agents that have answered.
    pub(super) fn agents_heard(&self) -> usize {
        self.members_heard.len()
    }

    /// What to do next; to be called again after each [`DispatchAction::Call`].
    pub(super) fn next(&mut self, now: Duration) -> DispatchAction {
        if self.flights.len() >= self.concurrency {
            return DispatchAction::Wait(None);
        }
        while let Some(mut task) = self.waiting.pop_front() {
            match self.pick(&mut task, now) {
                Ok(lease) => return DispatchAction::Call(self.begin(task, lease)),
                Err(NoMember::Down { until }) => {
                    self.waiting.push_front(task);
                    return DispatchAction::Wait(Some(until));
                }
                Err(NoMember::Empty | NoMember::Full) => self.counts.lost += 1,
            }
        }
        match self.flights.is_empty() {
            true => DispatchAction::Done,
            false => DispatchAction::Wait(None),
        }
    }

    /// Picks a member that has not failed this task, or any if all have.
    fn pick(&self, task: &mut DocumentTask, now: Duration) -> Result<Lease<usize, ()>, NoMember> {
        let group = &self.groups[task.work as usize];
        match group.pick_excluding(now, &task.tried) {
            Err(NoMember::Empty) if !task.tried.is_empty() => {
                task.tried.clear();
                group.pick(now)
            }
            picked => picked,
        }
    }

    fn begin(&mut self, mut task: DocumentTask, lease: Lease<usize, ()>) -> WorkerCall {
        let worker = *lease.key();
        let call = WorkerCall {
            id: self.next_id,
            document: task.document,
            work: task.work,
            worker,
        };
        self.next_id += 1;
        self.counts.calls += 1;
        self.counts.redispatched += u64::from(task.attempts > 0);
        task.attempts += 1;
        let reused = self.connected[worker];
        self.counts.reused += u64::from(reused);
        let flight = TaskInFlight {
            task,
            lease,
            reused,
        };
        self.flights.insert(call.id, flight);
        call
    }

    /// Records an answered call.
    pub(super) fn answered(&mut self, id: u64, answered: &CompletedAnswer, now: Duration) {
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        let (worker, work) = (*flight.lease.key(), flight.task.work);
        flight.lease.finish(Outcome::Success, now);
        self.connected[worker] = true;
        match answered.right {
            true => self.counts.verified += 1,
            false => self.counts.wrong += 1,
        }
        self.members_heard
            .insert((worker, work, answered.member.clone()));
        self.counters
            .answered(work, worker, answered, flight.reused);
    }

    /// Records a failed call. It is retried at another member if that may help.
    pub(super) fn failed(&mut self, id: u64, status: Status, now: Duration) {
        let Some(TaskInFlight {
            mut task, lease, ..
        }) = self.flights.remove(&id)
        else {
            return;
        };
        let worker = *lease.key();
        let again = may_go_elsewhere(status.code);
        let outcome = match again {
            true => Outcome::Failure,
            false => Outcome::Success,
        };
        lease.finish(outcome, now);
        self.connected[worker] = false;
        self.counters.failed(task.work, worker);
        self.counts.last_failure = Some(status);
        if again && task.attempts < MAX_ATTEMPTS {
            task.tried.push(worker);
            self.waiting.push_front(task);
        } else {
            self.counts.lost += 1;
        }
    }

    /// The worker to kill, returned once, when half the work is done: the one with most calls in
    /// flight, so that the loss has an effect.
    pub(super) fn worker_to_kill(&mut self) -> Option<usize> {
        if self.killed || self.settled() * 2 < self.total as u64 {
            return None;
        }
        self.killed = true;
        let in_flight = |worker: usize| {
            let calls = self.flights.values();
            calls.filter(|flight| *flight.lease.key() == worker).count()
        };
        (0..self.connected.len()).max_by_key(|worker| in_flight(*worker))
    }
}

impl DocumentTask {
    fn new(document: usize, work: WorkKind) -> Self {
        Self {
            document,
            work,
            attempts: 0,
            tried: Vec::new(),
        }
    }
}

/// Whether another member may succeed where one ended with this code.
fn may_go_elsewhere(code: Code) -> bool {
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Cancelled
        | Code::Aborted => true,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1);

    fn answer() -> CompletedAnswer {
        CompletedAnswer {
            right: true,
            took: Duration::from_millis(1),
            sent: 10,
            received: 1,
            member: "1".into(),
        }
    }

    fn gone() -> Status {
        Status::new(Code::Unavailable, "gone")
    }

    /// All calls that may begin now.
    fn calls(dispatch: &mut DocumentDispatch, now: Duration) -> Vec<WorkerCall> {
        let mut calls = Vec::new();
        while let DispatchAction::Call(call) = dispatch.next(now) {
            calls.push(call);
        }
        calls
    }

    /// Runs in virtual time; workers in `dead` fail every call after two seconds.
    fn finish(dispatch: &mut DocumentDispatch, dead: &mut Vec<usize>, kills: bool) {
        let mut now = START;
        for _ in 0..10_000 {
            let begun = calls(dispatch, now);
            if begun.is_empty() {
                match dispatch.next(now) {
                    DispatchAction::Done => return,
                    DispatchAction::Wait(Some(until)) => now = until,
                    next => panic!("stuck with {next:?}"),
                }
            }
            let (gone_ones, well): (Vec<_>, Vec<_>) =
                begun.into_iter().partition(|e| dead.contains(&e.worker));
            for call in well {
                dispatch.answered(call.id, &answer(), now);
            }
            now += Duration::from_secs(2);
            for call in gone_ones {
                dispatch.failed(call.id, gone(), now);
            }
            if kills && let Some(worker) = dispatch.worker_to_kill() {
                dead.push(worker);
            }
        }
        panic!("no end");
    }

    #[test]
    fn every_document_goes_to_every_agent_once() {
        let mut dispatch = DocumentDispatch::new(7, 5, 4);
        finish(&mut dispatch, &mut Vec::new(), false);
        assert!(dispatch.is_complete());
        let DispatchCounts { calls, lost, .. } = dispatch.counts;
        assert_eq!((calls, lost, dispatch.counts.redispatched), (21, 0, 0));
    }

    #[test]
    fn no_more_calls_than_allowed_are_in_flight() {
        let mut dispatch = DocumentDispatch::new(100, 5, 16);
        assert_eq!(calls(&mut dispatch, START).len(), 16);
        assert_eq!(dispatch.next(START), DispatchAction::Wait(None));
    }

    #[test]
    fn calls_spread_over_all_workers() {
        let mut dispatch = DocumentDispatch::new(100, 5, 15);
        let mut workers: Vec<usize> = calls(&mut dispatch, START)
            .iter()
            .map(|e| e.worker)
            .collect();
        workers.sort_unstable();
        assert_eq!(workers, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
    }

    #[test]
    fn a_failed_call_goes_to_another_member_before_new_work() {
        let mut dispatch = DocumentDispatch::new(100, 3, 1);
        let first = calls(&mut dispatch, START)[0];
        dispatch.failed(first.id, gone(), START);
        let second = calls(&mut dispatch, START)[0];
        assert_eq!((second.document, second.work), (first.document, first.work));
        assert_ne!(second.worker, first.worker);
        assert_eq!(dispatch.counts.redispatched, 1);
    }

    #[test]
    fn a_failure_that_every_member_would_repeat_is_not_sent_again() {
        let mut dispatch = DocumentDispatch::new(1, 3, 1);
        let first = calls(&mut dispatch, START)[0];
        let status = Status::new(Code::PermissionDenied, "no");
        dispatch.failed(first.id, status, START);
        assert_eq!(dispatch.counts.lost, 1);
        finish(&mut dispatch, &mut Vec::new(), false);
        assert!(!dispatch.is_complete());
    }

    #[test]
    fn a_worker_is_killed_once_at_half_and_everything_is_finished() {
        let mut dispatch = DocumentDispatch::new(50, 5, 16);
        let mut dead = Vec::new();
        finish(&mut dispatch, &mut dead, true);
        assert_eq!(dead.len(), 1);
        assert!(dispatch.is_complete(), "{:?}", dispatch.counts);
        assert!(dispatch.counts.redispatched > 0);
        let calls = 150 + dispatch.counts.redispatched;
        assert_eq!(dispatch.counts.calls, calls);
    }

    #[test]
    fn the_worker_with_most_calls_in_flight_is_killed() {
        let mut dispatch = DocumentDispatch::new(2, 3, 6);
        let begun = calls(&mut dispatch, START);
        let spared = begun.last().map(|e| e.worker).unwrap();
        let mut done = begun.iter().filter(|e| e.worker != spared);
        for call in done.by_ref().take(2) {
            assert_eq!(dispatch.worker_to_kill(), None);
            dispatch.answered(call.id, &answer(), START);
        }
        let third = done.next().unwrap();
        dispatch.answered(third.id, &answer(), START);
        assert_eq!(dispatch.worker_to_kill(), Some(spared));
        assert_eq!(dispatch.worker_to_kill(), None);
    }

    #[test]
    fn work_that_nobody_answers_is_given_up_in_the_end() {
        let mut dispatch = DocumentDispatch::new(1, 2, 4);
        finish(&mut dispatch, &mut vec![0, 1], false);
        assert_eq!(dispatch.counts.lost, 3);
        assert_eq!(dispatch.counts.calls, 3 * MAX_ATTEMPTS as u64);
    }

    #[test]
    fn a_tunnel_counts_as_reused_from_its_first_answer_to_its_next_failure() {
        let mut dispatch = DocumentDispatch::new(10, 1, 1);
        for (fails, reused) in [(false, 0), (true, 1), (false, 1), (false, 2)] {
            let now = START + Duration::from_secs(60) * dispatch.counts.calls as u32;
            let call = calls(&mut dispatch, now)[0];
            assert_eq!(dispatch.counts.reused, reused);
            match fails {
                true => dispatch.failed(call.id, gone(), now),
                false => dispatch.answered(call.id, &answer(), now),
            }
        }
    }

    #[test]
    fn a_wrong_answer_is_never_a_complete_run() {
        let mut dispatch = DocumentDispatch::new(1, 1, 3);
        let wrong = CompletedAnswer {
            right: false,
            ..answer()
        };
        for call in calls(&mut dispatch, START) {
            dispatch.answered(call.id, &wrong, START);
        }
        assert_eq!(dispatch.next(START), DispatchAction::Done);
        assert_eq!((dispatch.counts.wrong, dispatch.is_complete()), (3, false));
    }
}
