//! Which carrier takes a peer's new calls.
//!
//! A peer may hold a tunnel over UDP (QUIC) and one over TCP (HTTP/2 or WebSocket) at a time. This
//! machine is told what was seen of both, several times a second while there is work, and says which
//! one takes new calls, whether the other is to be brought up, and whether both are to be asked (a
//! `PING`) so that there is something to compare. Calls in flight stay where they are.
//!
//! UDP is preferred: its streams do not hold one another up. TCP takes over
//!
//! - at once, where UDP is not up or is silent for [`UDP_SILENT_AFTER`] with calls waiting; UDP takes over again
//!   once it was heard for [`UDP_WELL_AFTER`];
//! - where UDP has no path but a relay's, for longer than [`PUNCHED_WITHIN`], and TCP reaches the peer directly; UDP takes over
//!   again once it has a direct path;
//! - where UDP loses packets and answers come sooner over TCP, compared for [`COMPARE_FOR`];
//! - where much is moved for [`BULK_BEFORE_TRIAL`] and TCP moves it faster, tried for [`TRIAL_LENGTH`]. Once there is
//!   little to move any more, UDP takes over again.
//!
//! Whoever takes over must be better by a margin, and a comparison that changed nothing is repeated
//! later and later, so that two carriers that are about as good do not take turns.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{Carrier, Transport, backoff::Backoff};

/// Silence with calls waiting after which UDP counts as blocked.
pub const UDP_SILENT_AFTER: Duration = Duration::from_secs(1);

/// How long UDP must be heard before it takes over again.
pub const UDP_WELL_AFTER: Duration = Duration::from_secs(2);

/// How long UDP may take from a relay to a direct path before TCP is tried for one.
pub const PUNCHED_WITHIN: Duration = Duration::from_secs(1);

/// How long answers are compared.
pub const COMPARE_FOR: Duration = Duration::from_secs(2);

/// How long much must have been moved before the other carrier is tried for it.
pub const BULK_BEFORE_TRIAL: Duration = Duration::from_secs(2);

/// How long the other carrier is tried.
pub const TRIAL_LENGTH: Duration = Duration::from_secs(3);

/// Bytes a second that count as much. Below, both carriers fill the networks that there are.
pub const BULK_BYTES_PER_SECOND: f64 = 20e6;

/// How long there is little to move before UDP takes over again.
const BULK_OVER_AFTER: Duration = Duration::from_secs(5);

/// How long a carrier that was found faster stays unquestioned.
const FASTER_HOLDS_FOR: Duration = Duration::from_secs(120);

/// Share of packets lost from which answers are compared.
const LOSS_TO_COMPARE: f64 = 0.03;

/// Share of packets lost up to which UDP counts as well again.
const LOSS_WHEN_WELL: f64 = 0.01;

/// Packets without which a share says nothing.
const MIN_PACKETS_FOR_LOSS: f64 = 30.0;

/// Bytes moved in a trial without which it says nothing.
const MIN_TRIAL_BYTES: u64 = 4_000_000;

/// Rate over rate from which the faster one takes over.
const MIN_RATE_RATIO: f64 = 1.15;

/// Time over time up to which the sooner one takes over.
const MAX_ANSWER_RATIO: f64 = 0.8;

/// First and longest pause between attempts that changed nothing.
const ATTEMPT_BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// First and longest pause between attempts to reach directly over TCP a peer that UDP reaches by a relay alone.
const DIRECT_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// First and longest pause between trials that changed nothing.
const TRIAL_BACKOFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// What was seen of one carrier since the time before.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarrierSample {
    /// A tunnel is up and takes new work.
    pub up: bool,
    /// Calls in flight on it.
    pub calls: u64,
    /// Bytes in both directions.
    pub moved: u64,
    /// Whether anything came in.
    pub heard: bool,
    /// Whether its path leads through a relay.
    pub relayed: bool,
    /// Packets sent, where the carrier counts them.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
    /// How long the last `PING` took, or takes by now; `None` where none was sent.
    pub answer: Option<Duration>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarrierAdvice {
    /// Who takes new calls.
    pub carry: Transport,
    /// Whom to bring up, if that is possible.
    pub bring_up: Option<Transport>,
    /// Whether to send both a `PING`.
    pub ask: bool,
}

/// ChoiceReason a carrier takes the new calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ChoiceReason {
    /// Nothing speaks against the preferred one.
    #[default]
    Preferred,
    /// The configuration says so.
    Configured,
    /// UDP is not up.
    NoUdp,
    /// UDP reaches the peer by a relay alone, and so does nothing else.
    OnlyRelay,
    /// UDP reaches the peer by a relay alone, TCP directly.
    Relayed,
    /// UDP gives no sign of life.
    Silent(Duration),
    /// UDP loses packets, and answers come sooner over TCP.
    Lossy {
        /// Share of packets that UDP loses.
        loss: f64,
        /// How long an answer takes over UDP.
        udp: Duration,
        /// How long an answer takes over TCP.
        tcp: Duration,
    },
    /// It is being tried for moving much.
    Trying(Transport),
    /// It moves more bytes a second.
    Faster {
        /// The faster one.
        transport: Transport,
        /// Its bytes a second.
        rate: f64,
        /// Those of the other.
        other: f64,
    },
    /// UDP is well again.
    Back,
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: &Duration| time.as_secs_f64() * 1e3;
        match self {
            Self::Preferred => f.write_str("UDP works"),
            Self::Configured => f.write_str("configured"),
            Self::NoUdp => f.write_str("udp is not up"),
            Self::OnlyRelay => f.write_str("by a relay, no direct path"),
            Self::Relayed => f.write_str("direct, udp goes by a relay"),
            Self::Silent(time) => write!(f, "udp silent for {} s", time.as_secs()),
            Self::Lossy { loss, udp, tcp } => write!(
                f,
                "udp loses {:.0} %, answers in {:.0} ms against {:.0} ms",
                loss * 100.0,
                millis(udp),
                millis(tcp)
            ),
            Self::Trying(transport) => write!(f, "trying {} for much data", transport.name()),
            Self::Faster {
                transport,
                rate,
                other,
            } => write!(
                f,
                "{} moves {:.0} MB/s, {} {:.0} MB/s",
                transport.name(),
                rate / 1e6,
                transport.other().name(),
                other / 1e6
            ),
            Self::Back => f.write_str("udp is well again"),
        }
    }
}

/// The choice for one peer.
#[derive(Debug)]
pub struct CarrierChoice {
    allowed: Carrier,
    carry: Transport,
    reason: ChoiceReason,
    last: Instant,
    /// When UDP was heard last, or needed not be heard.
    heard: Instant,
    /// Since when UDP is well, while TCP stands in for it.
    well_since: Option<Instant>,
    /// Packets sent and lost lately, fading.
    packets: (f64, f64),
    /// Since when UDP has no path but a relay's.
    relayed_since: Option<Instant>,
    /// Attempts to reach the peer directly over TCP meanwhile.
    direct_attempt: Backoff,
    /// Attempts to bring up the one that is missing.
    attempt: Backoff,
    /// Comparisons of answers, and of rates.
    comparison: Backoff,
    trial: Backoff,
    phase: ChoicePhase,
    /// Since when much is moved, and the best rate in that time.
    busy: Option<(Instant, f64)>,
    /// When much was moved last.
    busy_at: Instant,
}

#[derive(Debug)]
enum ChoicePhase {
    Settled,
    /// Answers are collected: sum and number, of UDP and TCP.
    Comparing {
        until: Option<Instant>,
        udp: (Duration, u32),
        tcp: (Duration, u32),
    },
    /// `transport` is being tried against the rate `base` of the other.
    Trying {
        transport: Transport,
        until: Instant,
        base: f64,
        best: f64,
        moved: u64,
    },
}

impl CarrierChoice {
    /// For a peer with which these carriers may be used.
    #[must_use]
    pub fn new(allowed: Carrier, now: Instant) -> Self {
        let carry = if allowed.takes_udp() {
            Transport::Udp
        } else {
            Transport::Tcp
        };
        let reason = if allowed == Carrier::Auto {
            ChoiceReason::Preferred
        } else {
            ChoiceReason::Configured
        };
        Self {
            allowed,
            carry,
            reason,
            last: now,
            heard: now,
            well_since: None,
            packets: (0.0, 0.0),
            relayed_since: None,
            direct_attempt: Backoff::new(DIRECT_BACKOFF),
            attempt: Backoff::new(ATTEMPT_BACKOFF),
            comparison: Backoff::new(ATTEMPT_BACKOFF),
            trial: Backoff::new(TRIAL_BACKOFF),
            phase: ChoicePhase::Settled,
            busy: None,
            busy_at: now,
        }
    }

    /// Why the carrier that takes new calls does.
    #[must_use]
    pub fn reason(&self) -> ChoiceReason {
        self.reason
    }

    /// Whether nothing has to be looked at while no call is in flight and no path changes.
    #[must_use]
    pub fn may_rest(&self) -> bool {
        if self.allowed != Carrier::Auto {
            return true;
        }
        if self.relayed_since.is_some() {
            // Once TCP was tried, the next attempt can wait for the next call.
            return !self.direct_attempt.is_untried();
        }
        self.carry == Transport::Udp && matches!(self.phase, ChoicePhase::Settled)
    }

    /// Takes in what was seen of UDP and TCP since the time before.
    pub fn tick(
        &mut self,
        now: Instant,
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> CarrierAdvice {
        let elapsed = now
            .saturating_duration_since(self.last)
            .as_secs_f64()
            .max(1e-3);
        if now.saturating_duration_since(self.last) > UDP_SILENT_AFTER {
            // Nobody looked for a while: nothing is known of that time.
            self.heard = now;
            self.packets = (0.0, 0.0);
            self.busy = None;
        }
        self.last = now;
        if self.allowed != Carrier::Auto || (!udp.up && !tcp.up) {
            return self.advice(None, false);
        }
        if !udp.up {
            return self.without_udp(now);
        }
        if let Some(advice) = self.silence(now, udp, tcp) {
            return advice;
        }
        if let Some(advice) = self.only_relayed(now, udp, tcp) {
            return advice;
        }
        self.packets.0 = self.packets.0 * 0.8 + udp.sent as f64;
        self.packets.1 = self.packets.1 * 0.8 + udp.lost as f64;
        if let Some(advice) = self.stands_in(now, udp, tcp) {
            return advice;
        }
        let rates = [udp, tcp].map(|seen| seen.moved as f64 / elapsed);
        match self.phase {
            ChoicePhase::Comparing { .. } => self.compare(now, udp, tcp),
            ChoicePhase::Trying { .. } => self.try_on(now, rates, udp, tcp),
            ChoicePhase::Settled => self.settled(now, rates, udp, tcp),
        }
    }

    fn advice(&self, bring_up: Option<Transport>, ask: bool) -> CarrierAdvice {
        CarrierAdvice {
            carry: self.carry,
            bring_up,
            ask,
        }
    }

    fn set(&mut self, carry: Transport, reason: ChoiceReason) {
        self.carry = carry;
        self.reason = reason;
        self.well_since = None;
        self.phase = ChoicePhase::Settled;
        self.busy = None;
    }

    /// Once in a while, whoever is missing is dialled.
    fn attempt(&mut self, now: Instant, transport: Transport) -> Option<Transport> {
        let due = self.attempt.is_over(now);
        if due {
            self.attempt.fail(now);
        }
        due.then_some(transport)
    }

    fn without_udp(&mut self, now: Instant) -> CarrierAdvice {
        if self.carry != Transport::Tcp {
            self.attempt.reset();
            self.set(Transport::Tcp, ChoiceReason::NoUdp);
            self.attempt.fail(now);
        }
        self.well_since = None;
        self.heard = now;
        let bring_up = self.attempt(now, Transport::Udp);
        self.advice(bring_up, false)
    }

    /// UDP that says nothing though it was asked.
    fn silence(
        &mut self,
        now: Instant,
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> Option<CarrierAdvice> {
        if udp.heard || (udp.calls == 0 && udp.answer.is_none()) {
            self.heard = now;
            return None;
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence < UDP_SILENT_AFTER {
            return None;
        }
        if tcp.up {
            self.set(Transport::Tcp, ChoiceReason::Silent(silence));
            return Some(self.advice(None, true));
        }
        let bring_up = self.attempt(now, Transport::Tcp);
        Some(self.advice(bring_up, true))
    }

    /// UDP that has no path but a relay's.
    fn only_relayed(
        &mut self,
        now: Instant,
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> Option<CarrierAdvice> {
        if !udp.relayed {
            if self.relayed_since.take().is_some() {
                self.direct_attempt.reset();
            }
            if self.reason == ChoiceReason::OnlyRelay {
                self.reason = ChoiceReason::Preferred;
            }
            return None;
        }
        let since = *self.relayed_since.get_or_insert(now);
        let patient = now.saturating_duration_since(since) < PUNCHED_WITHIN;
        if tcp.up && !(patient && self.carry == Transport::Udp) {
            if self.reason != ChoiceReason::Relayed {
                self.set(Transport::Tcp, ChoiceReason::Relayed);
            }
            return Some(self.advice(None, false));
        }
        if !tcp.up && (self.carry == Transport::Tcp || self.reason != ChoiceReason::OnlyRelay) {
            self.set(Transport::Udp, ChoiceReason::OnlyRelay);
        }
        let due = !tcp.up && !patient && self.direct_attempt.is_over(now);
        if due {
            self.direct_attempt.fail(now);
        }
        Some(self.advice(due.then_some(Transport::Tcp), false))
    }

    /// TCP that stands in for UDP, until UDP is well.
    fn stands_in(
        &mut self,
        now: Instant,
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> Option<CarrierAdvice> {
        if self.carry == Transport::Udp {
            return None;
        }
        let well = match self.reason {
            ChoiceReason::NoUdp | ChoiceReason::Silent(_) | ChoiceReason::Relayed => true,
            ChoiceReason::Lossy { .. } => {
                let (sent, lost) = self.packets;
                let sooner = udp
                    .answer
                    .zip(tcp.answer)
                    .is_none_or(|(udp, tcp)| udp <= tcp * 2);
                lost <= sent * LOSS_WHEN_WELL && sooner
            }
            _ => return None,
        };
        if !tcp.up || self.is_steady(now, well) {
            self.attempt.reset();
            self.set(Transport::Udp, ChoiceReason::Back);
        }
        Some(self.advice(None, true))
    }

    fn is_steady(&mut self, now: Instant, well: bool) -> bool {
        if !well {
            self.well_since = None;
            return false;
        }
        let since = *self.well_since.get_or_insert(now);
        now.saturating_duration_since(since) >= UDP_WELL_AFTER
    }

    fn settled(
        &mut self,
        now: Instant,
        [udp_rate, tcp_rate]: [f64; 2],
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> CarrierAdvice {
        if self.carry == Transport::Tcp && !tcp.up {
            self.set(Transport::Udp, ChoiceReason::Preferred);
        }
        let (sent, lost) = self.packets;
        let lossy = sent >= MIN_PACKETS_FOR_LOSS && lost >= sent * LOSS_TO_COMPARE;
        if self.carry == Transport::Udp && lossy && udp.calls > 0 && self.comparison.is_over(now) {
            self.comparison.fail(now);
            self.phase = ChoicePhase::Comparing {
                until: None,
                udp: (Duration::ZERO, 0),
                tcp: (Duration::ZERO, 0),
            };
            return self.compare(now, udp, tcp);
        }
        let rate = udp_rate + tcp_rate;
        if rate >= BULK_BYTES_PER_SECOND / 4.0 {
            self.busy_at = now;
        }
        if self.carry == Transport::Tcp
            && now.saturating_duration_since(self.busy_at) >= BULK_OVER_AFTER
        {
            self.set(Transport::Udp, ChoiceReason::Preferred);
        }
        self.watch_rate(now, rate, udp, tcp)
    }

    /// Tries the other carrier when much is moved for long enough.
    fn watch_rate(
        &mut self,
        now: Instant,
        rate: f64,
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> CarrierAdvice {
        if rate < BULK_BYTES_PER_SECOND {
            self.busy = None;
            return self.advice(None, false);
        }
        let (since, best) = self.busy.unwrap_or((now, 0.0));
        self.busy = Some((since, best.max(rate)));
        let long_enough = now.saturating_duration_since(since) >= BULK_BEFORE_TRIAL;
        if !long_enough || !self.trial.is_over(now) {
            return self.advice(None, false);
        }
        let transport = self.carry.other();
        let other = if transport == Transport::Tcp {
            tcp
        } else {
            udp
        };
        if !other.up {
            let bring_up = self.attempt(now, transport);
            return self.advice(bring_up, false);
        }
        let base = best.max(rate);
        self.set(transport, ChoiceReason::Trying(transport));
        self.phase = ChoicePhase::Trying {
            transport,
            until: now + TRIAL_LENGTH,
            base,
            best: 0.0,
            moved: 0,
        };
        self.advice(None, false)
    }

    fn try_on(
        &mut self,
        now: Instant,
        rates: [f64; 2],
        udp: &CarrierSample,
        tcp: &CarrierSample,
    ) -> CarrierAdvice {
        let ChoicePhase::Trying {
            transport,
            until,
            base,
            best,
            moved,
        } = &mut self.phase
        else {
            return self.advice(None, false);
        };
        let (seen, rate) = match transport {
            Transport::Udp => (udp, rates[0]),
            Transport::Tcp => (tcp, rates[1]),
        };
        *best = best.max(rate);
        *moved += seen.moved;
        let (transport, base, best, moved) = (*transport, *base, *best, *moved);
        if now < *until && seen.up {
            return self.advice(None, false);
        }
        self.busy_at = now;
        if moved >= MIN_TRIAL_BYTES && best >= base * MIN_RATE_RATIO {
            let reason = ChoiceReason::Faster {
                transport,
                rate: best,
                other: base,
            };
            self.set(transport, reason);
            self.trial = Backoff::new((FASTER_HOLDS_FOR, TRIAL_BACKOFF.1));
            self.trial.fail(now);
        } else {
            let reason = match transport {
                Transport::Tcp => ChoiceReason::Preferred,
                Transport::Udp => ChoiceReason::Faster {
                    transport: Transport::Tcp,
                    rate: base,
                    other: best,
                },
            };
            self.set(transport.other(), reason);
            self.trial.fail(now);
        }
        self.advice(None, false)
    }

    fn compare(
        &mut self,
        now: Instant,
        seen_udp: &CarrierSample,
        seen_tcp: &CarrierSample,
    ) -> CarrierAdvice {
        if !seen_tcp.up {
            let bring_up = self.attempt(now, Transport::Tcp);
            if bring_up.is_none() {
                self.phase = ChoicePhase::Settled;
            }
            return self.advice(bring_up, false);
        }
        let ChoicePhase::Comparing { until, udp, tcp } = &mut self.phase else {
            return self.advice(None, false);
        };
        let end = *until.get_or_insert(now + COMPARE_FOR);
        for (sum, answer) in [(&mut *udp, seen_udp.answer), (&mut *tcp, seen_tcp.answer)] {
            if let Some(answer) = answer {
                *sum = (sum.0 + answer, sum.1 + 1);
            }
        }
        if now < end {
            return self.advice(None, true);
        }
        let mean = |(sum, number): (Duration, u32)| sum.checked_div(number);
        let (udp, tcp) = (mean(*udp), mean(*tcp));
        self.phase = ChoicePhase::Settled;
        tracing::debug!(?udp, ?tcp, packets = ?self.packets, "answers compared");
        if let (Some(udp), Some(tcp)) = (udp, tcp)
            && tcp.as_secs_f64() <= udp.as_secs_f64() * MAX_ANSWER_RATIO
        {
            let loss = self.packets.1 / self.packets.0.max(1.0);
            self.set(Transport::Tcp, ChoiceReason::Lossy { loss, udp, tcp });
            self.comparison.reset();
        }
        self.advice(None, true)
    }
}

#[cfg(test)]
mod tests;
