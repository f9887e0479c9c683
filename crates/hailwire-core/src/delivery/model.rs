//! Every order of events that a sender's node, a receiver's node, its agent and the network between them can meet, for two messages of
//! one sender: breadth first through all states, with a few crashes, losses, repetitions, withdrawals and full disks to spend.
//!
//! What is on disk are the states of [`super`]; what the model adds is what a crash forgets, and what waits in memory while a disk is full: then nothing is
//! written, and nobody is told what would have been.

use std::collections::{HashSet, VecDeque};

use super::*;

const MESSAGES: usize = 2;
const POLICY: DeliveryPolicy = DeliveryPolicy {
    max_attempts: 2,
    first_pause: Duration::ZERO,
    longest_pause: Duration::ZERO,
};

/// What is in flight between the nodes. A network may lose, repeat and reorder all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Packet {
    Offer(usize),
    Kept(usize),
    Receipt(usize, MessageState),
    Noted(usize),
    Withdraw(usize),
    WithdrawalNoted(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// On the sender's disk.
    sent: [MessageState; MESSAGES],
    /// In the sender's memory: a crash makes it suppose the worst.
    offered: [bool; MESSAGES],
    /// On the sender's disk: nobody wants it any more.
    unwanted: [bool; MESSAGES],
    /// On the sender's disk: the receiver has that written down.
    unwanted_told: [bool; MESSAGES],
    /// On the receiver's disk: withdrawn while it was with the agent.
    withdrawn: [bool; MESSAGES],
    /// On the receiver's disk: the state and how many attempts were begun.
    kept: [Option<(MessageState, u32)>; MESSAGES],
    /// On the receiver's disk: the sender has noted the receipt.
    told: [bool; MESSAGES],
    /// In the agent's hands; both end with the receiver's process.
    in_hand: Option<usize>,
    /// In the receiver's memory: how that attempt ended, which is not written down yet.
    unwritten: Option<AttemptOutcome>,
    /// Whether the disk of the sender has no room, and that of the receiver.
    full: [bool; 2],
    network: Vec<Packet>,
    /// What the agent has truly done, which nobody reads but the checks.
    effects: [u32; MESSAGES],
    begun: Vec<usize>,
    crashes: u8,
    faults: u8,
    withdrawals: u8,
    disks: u8,
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl World {
    fn start(crashes: u8, faults: u8, withdrawals: u8, disks: u8) -> Self {
        Self {
            sent: [MessageState::Stored; MESSAGES],
            offered: [false; MESSAGES],
            unwanted: [false; MESSAGES],
            unwanted_told: [false; MESSAGES],
            withdrawn: [false; MESSAGES],
            kept: [None; MESSAGES],
            told: [false; MESSAGES],
            in_hand: None,
            unwritten: None,
            full: [false; 2],
            network: Vec::new(),
            effects: [0; MESSAGES],
            begun: Vec::new(),
            crashes,
            faults,
            withdrawals,
            disks,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next.forget();
        next.network.sort_unstable();
        next
    }

    /// Leaves out what can make no difference any more: acknowledgements of what is known for good, and what is read of a message only while it
    /// has not left. Worlds that differ in nothing else are one.
    fn forget(&mut self) {
        let (sent, told, unwanted_told) = (self.sent, self.told, self.unwanted_told);
        self.network.retain(|packet| match packet {
            Packet::Kept(m) => sent[*m] == MessageState::Stored,
            Packet::Noted(m) => !told[*m],
            Packet::WithdrawalNoted(m) => !unwanted_told[*m] && !sent[*m].is_final(),
            Packet::Offer(_) | Packet::Receipt(..) | Packet::Withdraw(_) => true,
        });
        for (m, sent) in sent.into_iter().enumerate() {
            self.offered[m] |= sent != MessageState::Stored;
            self.unwanted_told[m] |= sent.is_final();
            let ended = self.kept[m].is_some_and(|(state, _)| state.is_final());
            self.withdrawn[m] |= ended;
        }
    }

    fn put(&mut self, packet: Packet) {
        // Each kind of packet once is enough: repetitions are faults of the network.
        if !self.network.contains(&packet) {
            self.network.push(packet);
        }
    }

    /// Everything that may happen next.
    fn successors(&self) -> Vec<Self> {
        let mut next = Vec::new();
        for m in 0..MESSAGES {
            // The sender offers the earliest message that is not kept yet: a batch goes when the one before it was answered.
            // What nobody wants any more is not offered, and what follows goes once the receiver knows: an offer that is still on its
            // way would come after it. In a batch withdrawals are read before messages.
            let first = (0..MESSAGES)
                .find(|m| self.sent[*m] == MessageState::Stored && !self.unwanted_told[*m]);
            if first == Some(m) && !self.unwanted[m] && !self.network.contains(&Packet::Offer(m)) {
                next.push(self.with(|w| {
                    w.offered[m] = true;
                    w.put(Packet::Offer(m));
                }));
            }
            self.withdraw(m, &mut next);
            let end = self.kept[m].map(|(state, _)| state);
            if let Some(end) = end.filter(|end| end.is_final() && !self.told[m]) {
                next.push(self.with(|w| w.put(Packet::Receipt(m, end))));
            }
        }
        // In order: the first that has no end yet, and only where no other is in hand.
        let head =
            (0..MESSAGES).find(|m| self.kept[*m].is_some_and(|(state, _)| !state.is_final()));
        if let (None, Some(m), false) = (self.in_hand, head, self.full[RECEIVER])
            && let Some((MessageState::Delivered, attempt)) = self.kept[m]
        {
            next.push(self.with(|w| {
                w.kept[m] = Some((MessageState::Taken, attempt + 1));
                w.in_hand = Some(m);
                w.begun.push(m);
            }));
        }
        if let (Some(m), None) = (self.in_hand, self.unwritten) {
            let ends = [
                (AttemptOutcome::Done { answered: false }, 1),
                (AttemptOutcome::Refused(Code::Aborted), 0),
                // The agent dies before it has done anything, or after.
                (AttemptOutcome::Lost, 0),
                (AttemptOutcome::Lost, 1),
            ];
            for (outcome, effect) in ends {
                next.push(self.with(|w| {
                    w.effects[m] += effect;
                    w.unwritten = Some(outcome);
                    w.settle();
                }));
            }
        }
        for disk in [SENDER, RECEIVER] {
            match self.full[disk] {
                // Somebody makes room.
                true => next.push(self.with(|w| {
                    w.full[disk] = false;
                    w.settle();
                })),
                false if self.disks > 0 => next.push(self.with(|w| {
                    w.disks -= 1;
                    w.full[disk] = true;
                })),
                false => {}
            }
        }
        for (at, packet) in self.network.iter().copied().enumerate() {
            next.push(self.with(|w| {
                w.network.remove(at);
                w.receive(packet);
            }));
            if self.faults > 0 {
                next.push(self.with(|w| {
                    w.faults -= 1;
                    w.network.remove(at);
                }));
                next.push(self.with(|w| {
                    w.faults -= 1;
                    w.receive(packet);
                }));
            }
        }
        if self.crashes > 0 {
            next.push(self.with(|w| {
                w.crashes -= 1;
                w.offered = [true; MESSAGES];
            }));
            // The agent may have done what it had in hand, and the node did not hear of it.
            for effect in 0..=u32::from(self.in_hand.is_some()) {
                next.push(self.with(|w| {
                    w.crashes -= 1;
                    // It starts once there is room for what it writes at its start.
                    w.full[RECEIVER] = false;
                    let unwritten = w.unwritten.take();
                    if let Some(m) = w.in_hand.take().filter(|_| unwritten.is_none()) {
                        w.effects[m] += effect;
                    }
                    for (kept, withdrawn) in w.kept.iter_mut().zip(w.withdrawn) {
                        if let Some(kept) = kept {
                            kept.0 = receiver_state_at_start(&POLICY, kept.0, kept.1, withdrawn);
                        }
                    }
                }));
            }
        }
        next
    }

    /// Writes down how an attempt ended, as soon as there is room for it.
    fn settle(&mut self) {
        if self.full[RECEIVER] {
            return;
        }
        let ended = self.in_hand.zip(self.unwritten);
        let Some((m, outcome)) = ended else { return };
        let Some((_, attempt)) = self.kept[m] else {
            return;
        };
        let state = match after_attempt(&POLICY, attempt, outcome, self.withdrawn[m]) {
            AfterAttempt::Final(end) => end,
            AfterAttempt::Again(_) => MessageState::Delivered,
        };
        self.kept[m] = Some((state, attempt));
        self.in_hand = None;
        self.unwritten = None;
    }

    /// The sender wants a message no more, and tells it until that is noted.
    fn withdraw(&self, m: usize, next: &mut Vec<Self>) {
        let may = self.withdrawals > 0 && !self.full[SENDER];
        if may && !self.unwanted[m] && !self.sent[m].is_final() {
            next.push(self.with(|w| {
                w.withdrawals -= 1;
                w.unwanted[m] = true;
                let offered = w.offered[m];
                w.learn(m, SenderNews::Withdrawn { offered });
            }));
        }
        let tells = self.unwanted[m] && !self.unwanted_told[m] && !self.sent[m].is_final();
        if tells && !self.network.contains(&Packet::Withdraw(m)) {
            next.push(self.with(|w| w.put(Packet::Withdraw(m))));
        }
    }

    fn receive_withdrawal(&mut self, m: usize) {
        match withdrawal(self.kept[m].map(|(state, _)| state)) {
            Withdrawal::Remember => self.kept[m] = Some((MessageState::Cancelled, 0)),
            Withdrawal::End => {
                if let Some(kept) = &mut self.kept[m] {
                    kept.0 = MessageState::Cancelled;
                }
            }
            // The attempt ends as any may: lost, or done a moment before.
            Withdrawal::Interrupt => self.withdrawn[m] = true,
            Withdrawal::TooLate => {}
        }
        self.put(Packet::WithdrawalNoted(m));
    }

    fn receive(&mut self, packet: Packet) {
        let reader = match packet {
            Packet::Offer(_) | Packet::Noted(_) | Packet::Withdraw(_) => RECEIVER,
            Packet::Kept(_) | Packet::Receipt(..) | Packet::WithdrawalNoted(_) => SENDER,
        };
        if self.full[reader] {
            // It is refused, or not answered, and comes again.
            return;
        }
        match packet {
            Packet::Offer(m) => {
                // A message that is known is kept already, whatever became of it. One whose receipt was noted is known to be over.
                if self.kept[m].is_none() {
                    self.kept[m] = Some((MessageState::Delivered, 0));
                }
                self.put(Packet::Kept(m));
            }
            Packet::Kept(m) => self.learn(m, SenderNews::Kept),
            Packet::Receipt(m, end) => {
                self.learn(m, SenderNews::Receipt(end));
                self.put(Packet::Noted(m));
            }
            Packet::Noted(m) => self.told[m] = true,
            Packet::Withdraw(m) => self.receive_withdrawal(m),
            Packet::WithdrawalNoted(m) => self.unwanted_told[m] = true,
        }
    }

    fn learn(&mut self, m: usize, news: SenderNews) {
        if let Some(state) = sender_state(self.sent[m], news) {
            self.sent[m] = state;
        }
    }

    fn check(&self) {
        for m in 0..MESSAGES {
            let kept = self.kept[m].map(|(state, _)| state);
            let attempts = self.kept[m].map_or(0, |(_, attempts)| attempts);
            // What the sender was told is so.
            match self.sent[m] {
                MessageState::Stored => {}
                MessageState::Delivered => assert!(kept.is_some(), "lost: {self:?}"),
                // It never left, and never comes.
                MessageState::Cancelled if kept.is_none() => {
                    assert!(!self.offered_ever(m), "{self:?}");
                }
                end => assert_eq!(kept, Some(end), "{self:?}"),
            }
            if kept == Some(MessageState::Acknowledged) {
                assert!(self.effects[m] > 0, "acknowledged by nobody: {self:?}");
            }
            if kept == Some(MessageState::Dead) {
                assert!(attempts == POLICY.max_attempts, "given up early: {self:?}");
            }
            if kept == Some(MessageState::Cancelled) {
                assert!(self.unwanted[m], "cancelled by nobody: {self:?}");
            }
            assert!(self.effects[m] <= attempts, "{self:?}");
            assert!(attempts <= POLICY.max_attempts, "{self:?}");
        }
        // The second is never begun before the first has an end.
        if let Some(second) = self.begun.iter().position(|m| *m == 1) {
            assert!(!self.begun[second..].contains(&0), "out of order: {self:?}");
        }
    }

    /// Whether a message is on its way. One that its sender supposes to have left after a restart may never have.
    fn offered_ever(&self, m: usize) -> bool {
        self.network.contains(&Packet::Offer(m))
    }

    fn is_over(&self) -> bool {
        (0..MESSAGES).all(|m| self.sent[m].is_final())
    }
}

/// Walks through everything that may follow a start: the ends of both messages that were seen, and how many states there are.
fn walk(start: World) -> (HashSet<[MessageState; MESSAGES]>, usize) {
    let mut seen: HashSet<World> = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([start]);
    let mut ends: HashSet<[MessageState; MESSAGES]> = HashSet::new();
    while let Some(world) = queue.pop_front() {
        world.check();
        if world.is_over() {
            ends.insert(world.sent);
        }
        let successors = world.successors();
        for next in &successors {
            // An end is an end: at the receiver for good, and no agent is handed the message again.
            for m in 0..MESSAGES {
                if let Some((end, attempts)) = world.kept[m].filter(|(state, _)| state.is_final()) {
                    assert_eq!(next.kept[m], Some((end, attempts)), "{world:?}");
                }
                if world.sent[m].is_final() {
                    assert_eq!(next.sent[m], world.sent[m], "{world:?}");
                }
            }
        }
        // Nothing gets stuck: while a message has no end at its sender, something can happen without a fault or a crash.
        assert!(
            world.is_over() || !successors.is_empty(),
            "stuck: {world:?}"
        );
        for next in successors {
            if seen.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    (ends, seen.len())
}

#[test]
fn in_every_order_of_events_no_message_is_lost_none_comes_again_after_its_end_and_the_order_is_kept()
 {
    let (ends, states) = walk(World::start(2, 2, 0, 0));
    assert!(states > 50_000, "{states} states");
    for end in [
        MessageState::Acknowledged,
        MessageState::Dead,
        MessageState::Unknown,
    ] {
        assert!(ends.contains(&[end; MESSAGES]), "{end:?} was never reached");
    }
}

#[test]
fn in_every_order_of_events_a_withdrawn_message_ends_once_and_is_handed_to_nobody_after_that() {
    let (ends, states) = walk(World::start(1, 1, 1, 0));
    assert!(states > 50_000, "{states} states");
    let cancelled = |m: usize| {
        ends.iter()
            .filter(move |end| end[m] == MessageState::Cancelled)
    };
    for m in 0..MESSAGES {
        let other: HashSet<MessageState> = cancelled(m).map(|end| end[1 - m]).collect();
        assert!(other.contains(&MessageState::Acknowledged), "{other:?}");
        assert!(other.contains(&MessageState::Dead), "{other:?}");
        assert!(
            !other.contains(&MessageState::Cancelled),
            "one is withdrawn"
        );
    }
}

#[test]
fn in_every_order_of_events_a_full_disk_loses_nothing_repeats_nothing_past_its_end_and_is_gone_on_from()
 {
    let (ends, states) = walk(World::start(1, 0, 0, 2));
    assert!(states > 10_000, "{states} states");
    let (_, states) = walk(World::start(0, 1, 0, 1));
    assert!(states > 5_000, "{states} states");
    for end in [
        MessageState::Acknowledged,
        MessageState::Dead,
        MessageState::Unknown,
    ] {
        assert!(ends.contains(&[end; MESSAGES]), "{end:?} was never reached");
    }
    // And with a withdrawal, which a full disk refuses.
    let (ends, _) = walk(World::start(0, 0, 1, 1));
    assert!(ends.iter().any(|ends| ends[1] == MessageState::Cancelled));
}
