//! Where the programs of agents write on stderr to, and how it is read while it grows.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use hailwire_wire::AgentName;
use tokio::sync::watch;

use super::program_log::{LineCutter, LogPage, ProgramLog};

/// The log of all agents of a supervisor. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SharedLog {
    log: Arc<Mutex<ProgramLog>>,
    /// The number of the next line, for those who wait for it.
    next: Arc<watch::Sender<u64>>,
}

impl SharedLog {
    pub(crate) fn new() -> Self {
        Self {
            log: Arc::default(),
            next: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Where the programs of one agent write to.
    pub(crate) fn of(&self, agent: AgentName) -> AgentLog {
        AgentLog {
            log: self.clone(),
            agent,
        }
    }

    pub(crate) fn forget(&self, agent: &AgentName) {
        self.lock().forget(agent);
    }

    pub(crate) fn page(&self, from: u64, agent: Option<&AgentName>, most: usize) -> LogPage {
        self.lock().page(from, agent, most)
    }

    /// Resolves once the line with this number has been written. Cancel safe.
    pub(crate) async fn written(&self, number: u64) {
        let mut next = self.next.subscribe();
        // The sender lives as long as this.
        let _ = next.wait_for(|next| *next > number).await;
    }

    fn lock(&self) -> MutexGuard<'_, ProgramLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the programs of one agent write to.
#[derive(Clone, Debug)]
pub(crate) struct AgentLog {
    log: SharedLog,
    agent: AgentName,
}

impl AgentLog {
    /// Takes what one program has written, through the cutter of that program.
    pub(crate) fn push(&self, cutter: &mut LineCutter, chunk: &[u8]) {
        self.write(|line| cutter.push(chunk, line));
    }

    /// A program has closed its stderr.
    pub(crate) fn finish(&self, cutter: LineCutter) {
        self.write(|line| cutter.finish(line));
    }

    /// One line of `hail` itself about the program.
    pub(crate) fn note(&self, text: &str) {
        self.write(|line| line(&format!("hail: {text}")));
    }

    fn write(&self, write: impl FnOnce(&mut dyn FnMut(&str))) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_ms = u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        let mut log = self.log.lock();
        write(&mut |line| log.push(&self.agent, line, at_ms));
        let next = log.next();
        drop(log);
        self.log.next.send_if_modified(|seen| {
            let more = *seen < next;
            *seen = next.max(*seen);
            more
        });
    }
}
