//! The requests whose heads an agent has seen over a connection: what belongs to an unknown request is refused here.
//!
//! The kits keep what they know of requests in memory. One that has started anew knows nothing, and *allows* a body, or a response,
//! whose request it has not seen. The pool connects again by itself, so that nothing but this stands between.

use std::collections::{HashSet, VecDeque};

use crate::{Text, event::EventKind, host::RequestError};

/// How many requests' heads are remembered; the oldest is forgotten.
const MAX_HEADS: usize = 1 << 16;

/// The requests whose heads the agent has seen over this connection.
#[derive(Default)]
pub(super) struct KnownHeads {
    known: HashSet<Text>,
    order: VecDeque<Text>,
}

impl KnownHeads {
    /// Whether the agent can make anything of the event.
    pub(super) fn admit(&mut self, kind: EventKind, id: &Text) -> Result<(), RequestError> {
        match kind {
            EventKind::RequestHeaders => {
                if self.known.insert(id.clone()) {
                    self.order.push_back(id.clone());
                }
                if self.order.len() > MAX_HEADS
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.known.remove(&oldest);
                }
                Ok(())
            }
            EventKind::RequestComplete => {
                self.known.remove(id);
                // Their order is kept for the rest, so the list may hold names of some that have ended: twice as
                // many as there are, at most.
                if self.order.len() > 2 * self.known.len() + 16 {
                    let known = &self.known;
                    self.order.retain(|id| known.contains(id));
                }
                Ok(())
            }
            EventKind::RequestBody | EventKind::ResponseHeaders | EventKind::ResponseBody
                if !self.known.contains(id) =>
            {
                let why = "this connection has not sent the request's head to the agent, which would allow anything";
                Err(RequestError::Refused(why.to_owned()))
            }
            EventKind::RequestBody
            | EventKind::ResponseHeaders
            | EventKind::ResponseBody
            | EventKind::WebSocketFrame
            | EventKind::Guardrail
            | EventKind::Configure => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_head_that_was_not_shown_is_refused() {
        let mut heads = KnownHeads::default();
        let id = Text::from("c1");
        for kind in [
            EventKind::RequestBody,
            EventKind::ResponseHeaders,
            EventKind::ResponseBody,
        ] {
            assert!(heads.admit(kind, &id).is_err(), "{kind:?}");
        }
        heads.admit(EventKind::RequestHeaders, &id).unwrap();
        heads.admit(EventKind::RequestBody, &id).unwrap();
        heads.admit(EventKind::RequestComplete, &id).unwrap();
        assert!(heads.admit(EventKind::ResponseBody, &id).is_err());
    }

    #[test]
    fn heads_that_never_end_are_forgotten_in_their_order() {
        let mut heads = KnownHeads::default();
        let id = |n: usize| Text::from(n.to_string());
        for n in 0..=MAX_HEADS {
            heads.admit(EventKind::RequestHeaders, &id(n)).unwrap();
        }
        assert_eq!(heads.known.len(), MAX_HEADS);
        assert!(heads.admit(EventKind::RequestBody, &id(0)).is_err());
        heads.admit(EventKind::RequestBody, &id(1)).unwrap();
        for n in 0..=MAX_HEADS {
            heads.admit(EventKind::RequestComplete, &id(n)).unwrap();
        }
        assert!(heads.order.len() <= 16, "{}", heads.order.len());
    }
}
