//! Which bodies have pieces under way: together they hold one place on their connection, as they do at the agent.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::fast::RandomState;

use crate::event::EventKind;

/// How many locks there are.
const LOCKS: usize = 16;

/// A body of a request at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BodyKey {
    request: u64,
    place: u16,
    kind: EventKind,
}

/// How many pieces each body has under way.
#[derive(Default)]
pub(super) struct BodySlots {
    under_way: [Mutex<HashMap<BodyKey, u32, RandomState>>; LOCKS],
}

impl BodySlots {
    /// A piece of a body is asked about: its lane, and whether it takes a place for all that follow until none is under
    /// way. `None` for an event that is no piece of a body.
    #[inline]
    pub(super) fn join(
        &self,
        request: u64,
        place: u16,
        kind: EventKind,
    ) -> Option<(BodyKey, bool)> {
        if !matches!(kind, EventKind::RequestBody | EventKind::ResponseBody) {
            return None;
        }
        let lane = BodyKey {
            request,
            place,
            kind,
        };
        let mut under_way = self.lock(lane);
        let count = under_way.entry(lane).or_default();
        *count += 1;
        Some((lane, *count == 1))
    }

    /// A piece is asked about no more. Whether it was the last, and gives the place back.
    pub(super) fn part(&self, lane: BodyKey) -> bool {
        let mut under_way = self.lock(lane);
        let Some(count) = under_way.get_mut(&lane) else {
            return false;
        };
        *count -= 1;
        let last = *count == 0;
        if last {
            under_way.remove(&lane);
        }
        last
    }

    fn lock(&self, lane: BodyKey) -> MutexGuard<'_, HashMap<BodyKey, u32, RandomState>> {
        let lock = &self.under_way[lane.request as usize % LOCKS];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_body_take_one_place_until_none_is_under_way() {
        let lanes = BodySlots::default();
        let join = |place, kind| lanes.join(7, place, kind).unwrap();
        let (lane, first) = join(1, EventKind::RequestBody);
        assert!(first);
        for (place, kind, first) in [
            (1, EventKind::RequestBody, false),
            (1, EventKind::ResponseBody, true),
            (2, EventKind::RequestBody, true),
        ] {
            assert_eq!(join(place, kind).1, first);
        }
        assert!(!lanes.part(lane));
        assert!(!join(1, EventKind::RequestBody).1, "another is under way");
        assert!(!lanes.part(lane) && lanes.part(lane));
        assert!(!lanes.part(lane), "there is none");
        assert!(join(1, EventKind::RequestBody).1);
        assert_eq!(lanes.join(7, 1, EventKind::RequestHeaders), None);
    }
}
