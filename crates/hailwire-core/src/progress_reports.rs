//! When a receiver's node tells a sender's how far an agent is with a message that it has in hand.
//!
//! An agent may say so as often as it likes, and its answer may come in many small chunks: of each message one report goes in [`PACE`]
//! at most, with the last that was said and as much of the answer as is not told yet. An attempt that is over within [`PACE`] is
//! not reported at all, since its receipt follows; one that takes longer is told to have begun. Of an answer the first
//! [`MAX_PARTIAL`] bytes are told before it is whole.
//!
//! A report that is on its way is not repeated, and goes again where it was not noted. Nothing of this outlasts a restart, as no attempt does.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use hailwire_wire::{NodeId, limits::MAX_PARTIAL};

use crate::inbox_schedule::MessageNumber;

/// Between two reports of one message.
pub const PACE: Duration = Duration::from_secs(1);

/// What an agent says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaidProgress {
    /// How much is done, in units of its own.
    pub done: u64,
    /// How much there is to do; 0 where it does not know.
    pub total: u64,
    /// What it is at.
    pub text: String,
}

/// What a sender's node is told of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressReport {
    /// Of which message.
    pub number: MessageNumber,
    /// The last that the agent said.
    pub said: SaidProgress,
    /// Where in the answer the piece begins.
    pub offset: usize,
    /// A piece of the answer.
    pub partial: Vec<u8>,
}

/// The messages that are with their agents.
#[derive(Debug, Default)]
pub struct ProgressReports {
    attempts: HashMap<MessageNumber, ReportedAttempt>,
    /// Those of which there is something to tell, and when.
    due: BTreeSet<(Instant, MessageNumber)>,
    /// Those whose time has come, by the node that is to be told.
    ready: BTreeSet<(NodeId, MessageNumber)>,
}

#[derive(Debug)]
struct ReportedAttempt {
    origin: NodeId,
    said: SaidProgress,
    /// The answer's beginning.
    partial: Vec<u8>,
    /// How much of it the sender's node has noted, and how much is on its way.
    noted: usize,
    on_the_way: Option<usize>,
    /// There is something that no report has said.
    news: bool,
    /// The earliest time of the next report.
    not_before: Instant,
}

impl ProgressReports {
    /// An attempt has begun with a message from `origin`.
    pub fn handle_begun(&mut self, now: Instant, number: MessageNumber, origin: NodeId) {
        self.handle_ended(number);
        let not_before = now + PACE;
        let attempt = ReportedAttempt {
            origin,
            said: SaidProgress::default(),
            partial: Vec::new(),
            noted: 0,
            on_the_way: None,
            news: true,
            not_before,
        };
        self.attempts.insert(number, attempt);
        self.due.insert((not_before, number));
    }

    /// The agent says how far it is. Returns whether it has the message in hand.
    pub fn handle_said(&mut self, number: MessageNumber, said: SaidProgress) -> bool {
        let Some(attempt) = self.attempts.get_mut(&number) else {
            return false;
        };
        attempt.said = said;
        self.tell(number);
        true
    }

    /// The agent gives a piece of its answer.
    pub fn handle_piece(&mut self, number: MessageNumber, piece: &[u8]) {
        let Some(attempt) = self.attempts.get_mut(&number) else {
            return;
        };
        let room = MAX_PARTIAL.saturating_sub(attempt.partial.len());
        let taken = piece.get(..room).unwrap_or(piece);
        if !taken.is_empty() {
            attempt.partial.extend_from_slice(taken);
            self.tell(number);
        }
    }

    fn tell(&mut self, number: MessageNumber) {
        if let Some(attempt) = self.attempts.get_mut(&number) {
            attempt.news = true;
            let waits = self.ready.contains(&(attempt.origin, number));
            if attempt.on_the_way.is_none() && !waits {
                self.due.insert((attempt.not_before, number));
            }
        }
    }

    /// The attempt is over: its receipt, or the next attempt, says the rest.
    pub fn handle_ended(&mut self, number: MessageNumber) {
        if let Some(attempt) = self.attempts.remove(&number) {
            self.due.remove(&(attempt.not_before, number));
            self.ready.remove(&(attempt.origin, number));
        }
    }

    /// The next node that is to be told something, if its time has come.
    pub fn poll_peer(&mut self, now: Instant) -> Option<NodeId> {
        let (due, number) = *self.due.first()?;
        if due > now {
            return None;
        }
        self.due.pop_first();
        let origin = self.attempts.get(&number)?.origin;
        self.ready.insert((origin, number));
        Some(origin)
    }

    /// When [`ProgressReports::poll_peer`] has something that it has not now.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// What goes to a node now: `most` reports, with `room` bytes of answers. Each is to be followed by
    /// [`ProgressReports::handle_outcome`].
    pub fn take(
        &mut self,
        now: Instant,
        peer: NodeId,
        most: usize,
        mut room: usize,
    ) -> Vec<ProgressReport> {
        let ready = self.ready.range((peer, 0)..=(peer, MessageNumber::MAX));
        let numbers: Vec<MessageNumber> = ready.map(|(_, number)| *number).take(most).collect();
        let mut reports = Vec::with_capacity(numbers.len());
        for number in numbers {
            self.ready.remove(&(peer, number));
            let Some(attempt) = self.attempts.get_mut(&number) else {
                continue;
            };
            let rest = &attempt.partial[attempt.noted..];
            let piece = &rest[..rest.len().min(room)];
            room -= piece.len();
            attempt.on_the_way = Some(piece.len());
            attempt.news = piece.len() < rest.len();
            attempt.not_before = now + PACE;
            reports.push(ProgressReport {
                number,
                said: attempt.said.clone(),
                offset: attempt.noted,
                partial: piece.to_vec(),
            });
        }
        reports
    }

    /// What became of a report: the sender's node has `noted` it, or may have not.
    pub fn handle_outcome(&mut self, number: MessageNumber, noted: bool) {
        let Some(attempt) = self.attempts.get_mut(&number) else {
            return;
        };
        // A report of an attempt before this one is nobody's.
        let Some(sent) = attempt.on_the_way.take() else {
            return;
        };
        match noted {
            true => attempt.noted += sent,
            false => attempt.news = true,
        }
        if attempt.news {
            self.due.insert((attempt.not_before, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, node, start};

    fn said(done: u64) -> SaidProgress {
        SaidProgress {
            done,
            ..SaidProgress::default()
        }
    }

    #[test]
    fn an_attempt_that_ends_soon_is_not_reported_and_one_that_goes_on_is_told_to_have_begun() {
        let (now, mut reports) = (start(), ProgressReports::default());
        reports.handle_begun(now, 1, node(1));
        reports.handle_begun(now, 2, node(1));
        reports.handle_ended(1);
        assert_eq!(reports.poll_peer(now), None);
        let later = now + PACE;
        assert_eq!(reports.poll_timeout(), Some(later));
        assert_eq!(reports.poll_peer(later), Some(node(1)));
        assert_eq!(reports.poll_peer(later), None);
        let told = reports.take(later, node(1), 10, 100);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].number, &told[0].said), (2, &said(0)));
        reports.handle_outcome(2, true);
        assert_eq!(reports.poll_timeout(), None, "nothing more to say");
        assert!(!reports.handle_said(1, said(1)), "nobody has it in hand");
    }

    #[test]
    fn the_last_word_wins_and_a_report_that_was_lost_goes_again_whole() {
        let (now, mut reports) = (start(), ProgressReports::default());
        reports.handle_begun(now, 1, node(1));
        for done in 0..1000 {
            assert!(reports.handle_said(1, said(done)));
        }
        reports.handle_piece(1, b"abc");
        let later = now + PACE;
        reports.poll_peer(later).unwrap();
        let first = reports.take(later, node(1), 10, 2);
        assert_eq!(
            (first[0].said.done, first[0].partial.as_slice()),
            (999, &b"ab"[..])
        );
        reports.handle_outcome(1, false);
        let again = later + PACE;
        assert_eq!(reports.poll_peer(again), Some(node(1)));
        let second = reports.take(again, node(1), 10, 100);
        assert_eq!(
            (second[0].offset, second[0].partial.as_slice()),
            (0, &b"abc"[..])
        );
    }

    /// Whatever happens: one report in a second for each message, the pieces make up the answer's beginning, and all of it is told in the end.
    fn follow(seed: u64) {
        let mut below = draws(seed, 6);
        let (mut now, mut reports) = (start(), ProgressReports::default());
        let mut answers: [Vec<u8>; 3] = Default::default();
        let mut noted: [Vec<u8>; 3] = Default::default();
        let mut last: [Option<Instant>; 3] = [None; 3];
        let mut words = [0; 3];
        let mut heard = [0; 3];
        for m in 0..3 {
            reports.handle_begun(now, m, node((m % 2) as u8));
        }
        let mut step = |now: Instant, reports: &mut ProgressReports, fail: bool, room: usize| {
            while let Some(peer) = reports.poll_peer(now) {
                for report in reports.take(now, peer, 2, room) {
                    let m = report.number as usize;
                    assert!(last[m].is_none_or(|last| now >= last + PACE), "too often");
                    last[m] = Some(now);
                    assert_eq!(report.offset, noted[m].len());
                    if !fail {
                        noted[m].extend(&report.partial);
                        heard[m] = report.said.done;
                    }
                    reports.handle_outcome(report.number, !fail);
                }
            }
            (noted.clone(), heard)
        };
        for _ in 0..200 {
            let m = below(3) as usize;
            match below(4) {
                0 => {
                    words[m] += 1;
                    reports.handle_said(m as u64, said(words[m]));
                }
                1 => {
                    let piece = vec![below(256) as u8; below(40) as usize];
                    reports.handle_piece(m as u64, &piece);
                    answers[m].extend(piece);
                }
                2 => {
                    step(now, &mut reports, below(3) == 0, below(50) as usize);
                }
                _ => now += Duration::from_millis(u64::from(below(1500))),
            }
        }
        let mut told = step(now, &mut reports, false, 1 << 20);
        while let Some(due) = reports.poll_timeout() {
            now = now.max(due);
            told = step(now, &mut reports, false, 1 << 20);
        }
        assert_eq!(told, (answers, words));
    }

    #[test]
    fn reports_keep_their_pace_and_leave_nothing_out_whatever_happens() {
        for_each_seed(&[], 5_000, follow);
    }

    #[test]
    fn an_answer_past_the_bound_is_told_up_to_it() {
        let (now, mut reports) = (start(), ProgressReports::default());
        reports.handle_begun(now, 1, node(1));
        for _ in 0..3 {
            reports.handle_piece(1, &vec![7; MAX_PARTIAL / 2 + 1]);
        }
        reports.poll_peer(now + PACE).unwrap();
        let told = reports.take(now + PACE, node(1), 1, usize::MAX);
        assert_eq!(told[0].partial.len(), MAX_PARTIAL);
    }
}
