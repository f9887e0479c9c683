//! Which endpoint of an agent answers an event: one after the other is asked, within one deadline.
//!
//! The endpoint that was used before is asked first, then the others in their order. The next one is asked where one is full,
//! down or fails; a timeout is final, since the deadline is one for all of them.

use std::time::{Duration, Instant};

use crate::{Event, inspect::CallError};

/// Whatever is later than this need not be told apart.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How long an endpoint may be late before its call is given up on without it.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// The search for the endpoint that answers an event.
#[derive(Debug)]
pub(super) struct EndpointSearch {
    /// Kept as long as another endpoint may be asked.
    event: Option<Event>,
    first: usize,
    current: usize,
    tried: usize,
    endpoints: usize,
    begun: Instant,
    deadline: Duration,
}

impl EndpointSearch {
    /// A search that begins with the endpoint that was used before.
    pub(super) fn new(
        now: Instant,
        event: &Event,
        used: Option<usize>,
        endpoints: usize,
        deadline: Duration,
    ) -> Self {
        let first = used.unwrap_or(0);
        Self {
            event: (endpoints > 1).then(|| event.clone()),
            first,
            current: first,
            tried: 1,
            endpoints,
            begun: now,
            deadline,
        }
    }

    /// The endpoint that is asked.
    pub(super) const fn current(&self) -> usize {
        self.current
    }

    /// The endpoint has no answer: what the next one is asked, and how long it may take. `None` where this is the answer.
    pub(super) fn next(&mut self, now: Instant, error: &CallError) -> Option<(Event, Duration)> {
        match error {
            CallError::Overload | CallError::Down | CallError::Failed(_) => {}
            CallError::Timeout | CallError::TooLarge => return None,
        }
        if self.tried >= self.endpoints {
            return None;
        }
        // The first one is left out of the row of the others.
        self.current = self.tried - usize::from(self.tried <= self.first);
        self.tried += 1;
        let event = match self.tried < self.endpoints {
            true => self.event.clone(),
            false => self.event.take(),
        };
        let left = self
            .deadline
            .saturating_sub(now.saturating_duration_since(self.begun));
        Some((event?, left))
    }
}

/// When a call is given up on whose endpoint answers within so much time, if it keeps its word.
pub(super) fn due(now: Instant, longest: Duration) -> Instant {
    now + longest.min(FAR) + GRACE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::RequestComplete, inspect::core::tests::start};

    const DEADLINE: Duration = Duration::from_millis(100);

    fn search(used: Option<usize>, endpoints: usize) -> EndpointSearch {
        let event = Event::RequestComplete(RequestComplete::default());
        EndpointSearch::new(start(), &event, used, endpoints, DEADLINE)
    }

    /// The endpoints that are asked when each is down.
    fn asked(used: Option<usize>, endpoints: usize) -> Vec<usize> {
        let mut search = search(used, endpoints);
        let mut asked = vec![search.current()];
        while search.next(start(), &CallError::Down).is_some() {
            asked.push(search.current());
        }
        asked
    }

    #[test]
    fn the_endpoint_that_was_used_is_asked_first_and_each_other_one_once_in_order() {
        assert_eq!(asked(None, 3), [0, 1, 2]);
        assert_eq!(asked(Some(0), 3), [0, 1, 2]);
        assert_eq!(asked(Some(1), 3), [1, 0, 2]);
        assert_eq!(asked(Some(2), 3), [2, 0, 1]);
        assert_eq!(asked(None, 1), [0]);
        assert_eq!(asked(None, 0), [0], "which there is not");
    }

    #[test]
    fn the_next_endpoint_is_asked_where_one_is_full_down_or_fails_and_not_after_a_timeout() {
        let failed = CallError::Failed("gone".to_owned());
        for error in [CallError::Down, CallError::Overload, failed] {
            assert!(search(None, 2).next(start(), &error).is_some(), "{error}");
        }
        for error in [CallError::Timeout, CallError::TooLarge] {
            assert!(search(None, 2).next(start(), &error).is_none(), "{error}");
        }
    }

    #[test]
    fn all_endpoints_have_one_deadline_together() {
        let mut search = search(None, 4);
        let at = |ms| start() + Duration::from_millis(ms);
        let mut left = |ms| search.next(at(ms), &CallError::Down).map(|(_, left)| left);
        assert_eq!(left(30), Some(Duration::from_millis(70)));
        assert_eq!(left(90), Some(Duration::from_millis(10)));
        assert_eq!(left(150), Some(Duration::ZERO));
        assert_eq!(left(151), None);
    }

    #[test]
    fn a_call_without_end_is_given_up_on_all_the_same() {
        assert_eq!(due(start(), DEADLINE), start() + DEADLINE + GRACE);
        assert_eq!(due(start(), Duration::MAX), start() + FAR + GRACE);
    }
}
