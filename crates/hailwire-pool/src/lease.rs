//! One call's hold on a member.

use std::{fmt, mem, sync::Arc, time::Duration};

use crate::{health::ProbeClaim, member::Member, outcome::Outcome};

/// A picked member, counted as one call in flight until the lease is finished or dropped.
///
/// Dropping it gives the slot back and says nothing about health; a probe that is dropped is due
/// again at once.
#[must_use = "the slot is given back when the lease is dropped"]
pub struct Lease<K, V> {
    member: Arc<Member<K, V>>,
    probe: Option<ProbeClaim>,
}

impl<K, V> Lease<K, V> {
    pub(crate) fn new(member: Arc<Member<K, V>>, probe: Option<ProbeClaim>) -> Self {
        Self { member, probe }
    }

    /// The member.
    #[must_use]
    pub fn member(&self) -> &Arc<Member<K, V>> {
        &self.member
    }

    /// The member's key.
    #[must_use]
    pub fn key(&self) -> &K {
        self.member.key()
    }

    /// The member's value.
    #[must_use]
    pub fn value(&self) -> &V {
        self.member.value()
    }

    /// Whether this call is the probe of a member that is down. A caller that may not repeat its
    /// work can drop such a lease and exclude the member.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Gives the slot back and reports how the call went.
    pub fn finish(mut self, outcome: Outcome, now: Duration) {
        self.report(outcome, now);
    }

    /// Reports how the call goes; its slot is taken until the lease is dropped. Reported once, since each report counts for
    /// itself.
    pub fn report(&mut self, outcome: Outcome, now: Duration) {
        let probe = mem::take(&mut self.probe).is_some();
        self.member.settle(outcome, probe, now);
    }
}

impl<K, V> Drop for Lease<K, V> {
    fn drop(&mut self) {
        if let Some(probe) = self.probe {
            self.member.abandon(probe);
        }
        self.member.give_slot_back();
    }
}

impl<K: fmt::Debug, V> fmt::Debug for Lease<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("is_probe", &self.is_probe())
            .finish_non_exhaustive()
    }
}
