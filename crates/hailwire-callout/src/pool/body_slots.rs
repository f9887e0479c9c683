//! Which bodies have chunks in flight. The chunks of one body hold one slot on their connection together, as they do at the agent.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::fast::RandomState;

use crate::event::EventKind;

/// How many locks there are.
const LOCKS: usize = 16;

/// One direction of a request's body, on one connection slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BodyKey {
    request: u64,
    slot_id: u16,
    kind: EventKind,
}

/// How many chunks each body has under way.
#[derive(Default)]
pub(super) struct BodySlots {
    under_way: [Mutex<HashMap<BodyKey, u32, RandomState>>; LOCKS],
}

impl BodySlots {
    /// A chunk of a body is sent: its body's key, and whether it is the first in flight and so takes a slot. `None` for an
    /// event that is not a body chunk.
    #[inline]
    pub(super) fn join(
        &self,
        request: u64,
        slot_id: u16,
        kind: EventKind,
    ) -> Option<(BodyKey, bool)> {
        if !matches!(kind, EventKind::RequestBody | EventKind::ResponseBody) {
            return None;
        }
        let body = BodyKey {
            request,
            slot_id,
            kind,
        };
        let mut under_way = self.lock(body);
        let count = under_way.entry(body).or_default();
        *count += 1;
        Some((body, *count == 1))
    }

    /// A chunk is no longer in flight. True if it was the last, and the slot is free again.
    pub(super) fn leave(&self, body: BodyKey) -> bool {
        let mut under_way = self.lock(body);
        let Some(count) = under_way.get_mut(&body) else {
            return false;
        };
        *count -= 1;
        let last = *count == 0;
        if last {
            under_way.remove(&body);
        }
        last
    }

    fn lock(&self, body: BodyKey) -> MutexGuard<'_, HashMap<BodyKey, u32, RandomState>> {
        let lock = &self.under_way[body.request as usize % LOCKS];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_body_take_one_place_until_none_is_under_way() {
        let bodies = BodySlots::default();
        let join = |slot_id, kind| bodies.join(7, slot_id, kind).unwrap();
        let (body, first) = join(1, EventKind::RequestBody);
        assert!(first);
        for (slot_id, kind, first) in [
            (1, EventKind::RequestBody, false),
            (1, EventKind::ResponseBody, true),
            (2, EventKind::RequestBody, true),
        ] {
            assert_eq!(join(slot_id, kind).1, first);
        }
        assert!(!bodies.leave(body));
        assert!(!join(1, EventKind::RequestBody).1, "another is under way");
        assert!(!bodies.leave(body) && bodies.leave(body));
        assert!(!bodies.leave(body), "there is none");
        assert!(join(1, EventKind::RequestBody).1);
        assert_eq!(bodies.join(7, 1, EventKind::RequestHeaders), None);
    }
}
