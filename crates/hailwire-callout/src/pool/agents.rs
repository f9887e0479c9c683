//! The pools of all agents, by name.
//!
//! Look-ups read a snapshot that is exchanged whole when an agent comes or goes, so that they never wait; decision 0023
//! has the figures.

use std::{collections::HashMap, sync::Arc};

use arc_swap::{ArcSwap, Cache, Guard};
use foldhash::fast::RandomState;

use super::AgentPool;

/// The pools, by the names of their agents.
#[derive(Debug, Default)]
pub struct AgentPools {
    pools: ArcSwap<PoolMap>,
}

type PoolMap = HashMap<Box<str>, Arc<AgentPool>, RandomState>;

impl AgentPools {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The pools as they are now, to be looked at for a moment: half as dear as to take one of them along, and no
    /// dearer while others look too.
    #[inline]
    #[must_use]
    pub fn now(&self) -> PoolSnapshot {
        PoolSnapshot(self.pools.load())
    }

    /// A look at the pools for one thread, which keeps what it saw last.
    #[must_use]
    pub fn reader(&self) -> PoolReader<'_> {
        PoolReader(Cache::new(&self.pools))
    }

    /// The pool of an agent.
    #[inline]
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<AgentPool>> {
        self.pools.load().get(name).cloned()
    }

    /// Adds a pool under its name, and returns the one that had it.
    ///
    /// Cost: the table is copied, which is meant for changes that are rare beside look-ups.
    pub fn insert(&self, pool: &Arc<AgentPool>) -> Option<Arc<AgentPool>> {
        let name: Box<str> = pool.name().into();
        let before = self.pools.rcu(|pools| {
            let mut pools = PoolMap::clone(pools);
            pools.insert(name.clone(), Arc::clone(pool));
            pools
        });
        before.get(&name).cloned()
    }

    /// Removes a pool and returns it; it lives on while somebody has it.
    pub fn remove(&self, name: &str) -> Option<Arc<AgentPool>> {
        let before = self.pools.rcu(|pools| {
            let mut pools = PoolMap::clone(pools);
            pools.remove(name);
            pools
        });
        before.get(name).cloned()
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<AgentPool>> {
        let mut all: Vec<_> = self.pools.load().values().cloned().collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }
}

/// The pools at one moment.
#[derive(Debug)]
pub struct PoolSnapshot(Guard<Arc<PoolMap>>);

impl PoolSnapshot {
    /// The pool of an agent.
    #[inline]
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&AgentPool> {
        self.0.get(name).map(|pool| &**pool)
    }
}

/// The pools, for a thread that reads often: while no agent comes or goes, a look costs one load.
///
/// A pool that was removed lives until the next look.
#[derive(Clone, Debug)]
pub struct PoolReader<'a>(Cache<&'a ArcSwap<PoolMap>, Arc<PoolMap>>);

impl PoolReader<'_> {
    /// The pool of an agent.
    #[inline]
    #[must_use]
    pub fn named(&mut self, name: &str) -> Option<&AgentPool> {
        self.0.load().get(name).map(|pool| &**pool)
    }
}
