//! What a running program occupies, and what is counted of an agent.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hailwire_wire::{Code, Status};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

/// What is counted of one agent, also across changes of it.
#[derive(Debug, Default)]
pub(crate) struct AgentCounters {
    pub(crate) calls: AtomicU64,
    /// Calls that run.
    pub(crate) running: AtomicU64,
    /// Programs that run, those included that are being ended.
    pub(crate) processes: AtomicU64,
    /// How often the program of an agent with `lines` was started again after it had ended by itself.
    pub(crate) restarts: AtomicU64,
    /// When it may be started again, and why not before.
    paused: Mutex<Option<(Instant, String)>>,
}

impl AgentCounters {
    /// The program is not started before `until`.
    pub(crate) fn pause(&self, until: Instant, why: String) {
        *self.lock() = Some((until, why));
    }

    /// The program may be started.
    pub(crate) fn resume(&self) {
        *self.lock() = None;
    }

    /// How long the program is not to be started yet, and why; `None` if it may be.
    pub(crate) fn paused(&self, now: Instant) -> Option<(Duration, String)> {
        let paused = self.lock();
        let (until, why) = paused.as_ref()?;
        let left = until.checked_duration_since(now)?;
        (!left.is_zero()).then(|| (left, why.clone()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Instant, String)>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many programs may run at once, of all agents together.
#[derive(Debug)]
pub(crate) struct ProgramLimit {
    max: AtomicUsize,
    running: AtomicUsize,
}

impl ProgramLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max: AtomicUsize::new(max),
            running: AtomicUsize::new(0),
        }
    }

    /// Changes the limit. What runs goes on.
    pub(crate) fn set(&self, max: usize) {
        self.max.store(max, Relaxed);
    }

    /// A slot for one more program of an agent.
    ///
    /// # Errors
    ///
    /// `resource_exhausted`: as many programs run as may.
    pub(crate) fn slot(
        self: &Arc<Self>,
        counters: &Arc<AgentCounters>,
        of_agent: Option<OwnedSemaphorePermit>,
    ) -> Result<ProgramSlot, Status> {
        let max = self.max.load(Relaxed);
        let more = |running: usize| (running < max).then_some(running + 1);
        if self.running.fetch_update(Relaxed, Relaxed, more).is_err() {
            let what = format!("all {max} programs that may run at once here do");
            return Err(Status::new(Code::ResourceExhausted, what).with_hint(
                "call again later; its operator can raise `max-programs` in the file of agents",
            ));
        }
        counters.processes.fetch_add(1, Relaxed);
        Ok(ProgramSlot {
            limit: self.clone(),
            counters: counters.clone(),
            _of_agent: of_agent,
        })
    }
}

/// The place of one running program; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ProgramSlot {
    limit: Arc<ProgramLimit>,
    counters: Arc<AgentCounters>,
    _of_agent: Option<OwnedSemaphorePermit>,
}

impl Drop for ProgramSlot {
    fn drop(&mut self) {
        self.limit.running.fetch_sub(1, Relaxed);
        self.counters.processes.fetch_sub(1, Relaxed);
    }
}

/// A call that runs, until this is dropped.
#[derive(Debug)]
pub(crate) struct CountedCall(Arc<AgentCounters>);

impl CountedCall {
    pub(crate) fn begin(counters: &Arc<AgentCounters>) -> Self {
        counters.calls.fetch_add(1, Relaxed);
        counters.running.fetch_add(1, Relaxed);
        Self(counters.clone())
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_programs_run_than_may_and_their_places_are_free_again() {
        let limit = Arc::new(ProgramLimit::new(2));
        let counters = Arc::new(AgentCounters::default());
        let slot = || limit.slot(&counters, None);
        let (first, _second) = (slot().unwrap(), slot().unwrap());
        assert_eq!(slot().unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(counters.processes.load(Relaxed), 2);
        drop(first);
        let _third = slot().unwrap();
        limit.set(1);
        assert!(slot().is_err());
        assert_eq!(counters.processes.load(Relaxed), 2);
    }

    #[test]
    fn a_pause_ends_by_itself() {
        let counters = AgentCounters::default();
        let now = Instant::now();
        assert_eq!(counters.paused(now), None);
        counters.pause(now + Duration::from_secs(3), "it ended".to_owned());
        let left = counters.paused(now + Duration::from_secs(1)).unwrap();
        assert_eq!(left, (Duration::from_secs(2), "it ended".to_owned()));
        assert_eq!(counters.paused(now + Duration::from_secs(3)), None);
        counters.resume();
        assert_eq!(counters.paused(now), None);
    }
}
