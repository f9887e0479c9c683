//! What waits to be written on a control stream: answers to pings, pings, GOING_AWAY, and the newest
//! list of offers.
//!
//! However slowly the far side reads, this holds at most [`MAX_PONGS`] answers, [`MAX_PINGS`] pings, one
//! GOING_AWAY, and two lists, both shared with the other sessions: the one that is being written and the
//! newest. A list in between is left out, so a slow reader gets the last one. A list that was begun is
//! finished, so one that reads slowly gets whole lists however often they change.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use hailwire_wire::{frame::FrameKind, header::AgentOffer, offers};
use tokio::sync::{Notify, oneshot};

/// Pings that wait to be written or answered; further ones fail at once.
const MAX_PINGS: usize = 64;

/// Answers to the far side's pings that wait to be written; the control stream is not read meanwhile.
const MAX_PONGS: usize = 16;

/// A frame of the control stream.
pub(super) type ControlFrame = (FrameKind, Bytes);

/// A list of offers as the frames that carry it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct OfferList(Arc<[ControlFrame]>);

impl OfferList {
    /// `number` is that of the list: higher in each later one of this node.
    pub(crate) fn new(agents: Vec<AgentOffer>, number: u64) -> Self {
        Self(offers::pages(agents, number).into())
    }
}

/// What is to be written on one control stream. Shared by whoever says something and the task that
/// writes it.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    queue: Mutex<ControlQueueState>,
    more: Notify,
    room: Notify,
}

#[derive(Debug, Default)]
struct ControlQueueState {
    pongs: VecDeque<Bytes>,
    pings: VecDeque<oneshot::Sender<()>>,
    /// Pings that were written, by the number in their payload.
    unanswered: HashMap<u64, oneshot::Sender<()>>,
    next_ping: u64,
    going_away: Option<Bytes>,
    /// What is left of the list that was begun.
    begun: VecDeque<ControlFrame>,
    newest: Option<OfferList>,
    ended: bool,
}

impl ControlQueue {
    /// Sends a PING; the receiver resolves when its PONG arrives and fails if it never will.
    pub(super) fn ping(&self) -> oneshot::Receiver<()> {
        let (done, answered) = oneshot::channel();
        // Where it is not taken, `done` is dropped: the receiver fails.
        self.lock().ping(done);
        self.more.notify_one();
        answered
    }

    /// The far side has answered a ping.
    pub(super) fn answered(&self, payload: &[u8]) {
        let number = payload.try_into().map(u64::from_be_bytes);
        let done = number
            .ok()
            .and_then(|number| self.lock().unanswered.remove(&number));
        if let Some(done) = done {
            // Whoever asked may have stopped waiting.
            let _ = done.send(());
        }
    }

    /// Answers a ping, once there is room.
    pub(super) async fn pong(&self, payload: Bytes) {
        while self.lock().pongs.len() >= MAX_PONGS {
            self.room.notified().await;
        }
        self.lock().pongs.push_back(payload);
        self.more.notify_one();
    }

    /// Says a list of offers, in place of one that has not been begun.
    pub(super) fn offers(&self, list: OfferList) {
        self.lock().newest = Some(list);
        self.more.notify_one();
    }

    pub(super) fn going_away(&self, payload: Bytes) {
        self.lock().going_away = Some(payload);
        self.more.notify_one();
    }

    /// The next frame to write, once there is one.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub(super) async fn next(&self) -> ControlFrame {
        loop {
            let next = self.lock().next();
            if let Some(frame) = next {
                if frame.0 == FrameKind::PONG {
                    self.room.notify_one();
                }
                return frame;
            }
            self.more.notified().await;
        }
    }

    /// Nothing is written any more: pings that wait fail.
    pub(super) fn end(&self) {
        *self.lock() = ControlQueueState {
            ended: true,
            ..ControlQueueState::default()
        };
    }

    fn lock(&self) -> MutexGuard<'_, ControlQueueState> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlQueueState {
    fn ping(&mut self, done: oneshot::Sender<()>) {
        self.pings.retain(|waiting| !waiting.is_closed());
        self.unanswered.retain(|_, waiting| !waiting.is_closed());
        if !self.ended && self.pings.len() + self.unanswered.len() < MAX_PINGS {
            self.pings.push_back(done);
        }
    }

    /// Small things go before pages, of which each may take a while.
    fn next(&mut self) -> Option<ControlFrame> {
        if let Some(payload) = self.pongs.pop_front() {
            return Some((FrameKind::PONG, payload));
        }
        if let Some(done) = self.pings.pop_front() {
            let number = self.next_ping;
            self.next_ping += 1;
            self.unanswered.insert(number, done);
            let payload = Bytes::copy_from_slice(&number.to_be_bytes());
            return Some((FrameKind::PING, payload));
        }
        if let Some(payload) = self.going_away.take() {
            return Some((FrameKind::GOING_AWAY, payload));
        }
        if self.begun.is_empty()
            && let Some(OfferList(frames)) = self.newest.take()
        {
            self.begun.extend(frames.iter().cloned());
        }
        self.begun.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use hailwire_wire::{header, header::AgentOffers, limits};

    use super::*;

    fn list(number: u64, agents: usize) -> OfferList {
        let offer = |index| AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: format!("agent-{index}").parse().unwrap(),
            description: "d".repeat(200),
            tags: Vec::new(),
            version: String::new(),
        };
        OfferList::new((0..agents).map(offer).collect(), number)
    }

    /// The numbers of the pages that are to be written.
    fn written(outgoing: &ControlQueue) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((_, payload)) = { outgoing.lock().next() } {
            let page: AgentOffers = header::decode(&payload).unwrap();
            numbers.push(page.number);
        }
        numbers
    }

    #[test]
    fn a_slow_reader_gets_the_list_that_was_begun_and_then_the_last_one() {
        let outgoing = ControlQueue::default();
        let pages = list(1, limits::MAX_AGENTS_PER_NODE).0.len();
        assert!(pages > 2);
        outgoing.offers(list(1, limits::MAX_AGENTS_PER_NODE));
        let (kind, _) = outgoing.lock().next().unwrap();
        assert_eq!(kind, FrameKind::OFFERS);
        for number in 2..=1000 {
            outgoing.offers(list(number, 1));
        }
        let mut expected = vec![1; pages - 1];
        expected.push(1000);
        assert_eq!(written(&outgoing), expected);
    }

    #[test]
    fn pings_and_the_farewell_overtake_pages_and_are_bounded() {
        let outgoing = ControlQueue::default();
        outgoing.offers(list(1, limits::MAX_AGENTS_PER_NODE));
        outgoing.lock().next().unwrap();
        outgoing.going_away(Bytes::new());
        let mut answers: Vec<_> = (0..=MAX_PINGS).map(|_| outgoing.ping()).collect();
        assert!(
            answers
                .pop()
                .unwrap()
                .try_recv()
                .is_err_and(|error| { error == oneshot::error::TryRecvError::Closed })
        );
        for number in 0..MAX_PINGS as u64 {
            let (kind, payload) = outgoing.lock().next().unwrap();
            assert_eq!(
                (kind, payload.as_ref()),
                (FrameKind::PING, &number.to_be_bytes()[..])
            );
        }
        let (kind, _) = outgoing.lock().next().unwrap();
        assert_eq!(kind, FrameKind::GOING_AWAY);
        outgoing.answered(&3_u64.to_be_bytes());
        assert!(answers[3].try_recv().is_ok());
        assert!(answers[4].try_recv().is_err());
        // One that nobody waits for makes room.
        answers.truncate(10);
        let mut again = outgoing.ping();
        outgoing.end();
        assert_eq!(again.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(outgoing.lock().next().is_none());
    }

    #[tokio::test]
    async fn answers_to_pings_wait_for_room() {
        let outgoing = ControlQueue::default();
        for _ in 0..MAX_PONGS {
            outgoing.pong(Bytes::new()).await;
        }
        let late = outgoing.pong(Bytes::from_static(b"late"));
        tokio::pin!(late);
        let waits = tokio::time::timeout(std::time::Duration::ZERO, &mut late).await;
        assert!(waits.is_err());
        outgoing.next().await;
        late.await;
        assert_eq!(outgoing.lock().pongs.len(), MAX_PONGS);
    }
}
