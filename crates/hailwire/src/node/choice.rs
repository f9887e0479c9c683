//! Which carrier takes a peer's new calls.
//!
//! A peer may hold a tunnel over UDP (QUIC) and one over TCP (HTTP/2 or WebSocket) at a time. This
//! machine is told what was seen of both, several times a second while there is work, and says which
//! one takes new calls, whether the other is to be brought up, and whether both are to be asked (a
//! `PING`) so that there is something to compare. Calls in flight stay where they are.
//!
//! UDP is preferred: its streams do not hold one another up. TCP takes over
//!
//! - at once, where UDP is not up or is silent for [`SILENT`] with calls waiting; UDP takes over again
//!   once it was heard for [`STEADY`];
//! - where UDP loses packets and answers come sooner over TCP, compared for [`COMPARE`];
//! - where much is moved for [`SATURATED`] and TCP moves it faster, tried for [`TRIAL`]. Once there is
//!   little to move any more, UDP takes over again.
//!
//! Whoever takes over must be better by a margin, and a comparison that changed nothing is repeated
//! later and later, so that two carriers that are about as good do not take turns.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use crate::config::Carrier;

/// Silence with calls waiting after which UDP counts as blocked.
pub(super) const SILENT: Duration = Duration::from_secs(1);

/// How long UDP must be heard before it takes over again.
pub(super) const STEADY: Duration = Duration::from_secs(2);

/// How long answers are compared.
pub(super) const COMPARE: Duration = Duration::from_secs(2);

/// How long much must have been moved before the other carrier is tried for it.
pub(super) const SATURATED: Duration = Duration::from_secs(2);

/// How long the other carrier is tried.
pub(super) const TRIAL: Duration = Duration::from_secs(3);

/// Bytes a second that count as much. Below, both carriers fill the networks that there are.
pub(super) const MUCH: f64 = 20e6;

/// How long there is little to move before UDP takes over again.
const QUIET: Duration = Duration::from_secs(5);

/// How long a carrier that was found faster stays unquestioned.
const RECHECK: Duration = Duration::from_secs(120);

/// Share of packets lost from which answers are compared.
const LOSSY: f64 = 0.03;

/// Share of packets lost up to which UDP counts as well again.
const WELL: f64 = 0.01;

/// Packets without which a share says nothing.
const ENOUGH_PACKETS: f64 = 30.0;

/// Bytes moved in a trial without which it says nothing.
const ENOUGH_BYTES: u64 = 4_000_000;

/// Rate over rate from which the faster one takes over.
const FASTER: f64 = 1.15;

/// Time over time up to which the sooner one takes over.
const SOONER: f64 = 0.8;

/// First and longest pause between attempts that changed nothing.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// First and longest pause between trials that changed nothing.
const TRIAL_PAUSE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Which transport protocol a tunnel stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Udp,
    Tcp,
}

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::Udp, Self::Tcp];

    /// The way of a carrier; `None` where both are open.
    pub(crate) const fn of(carrier: Carrier) -> Option<Self> {
        match carrier {
            Carrier::Auto => None,
            Carrier::Quic => Some(Self::Udp),
            Carrier::H2 | Carrier::Ws => Some(Self::Tcp),
        }
    }

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Udp => Self::Tcp,
            Self::Tcp => Self::Udp,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// What was seen of one carrier since the time before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// A tunnel is up and takes new work.
    pub(crate) up: bool,
    /// Calls in flight on it.
    pub(crate) calls: u64,
    /// Bytes in both directions.
    pub(crate) moved: u64,
    /// Whether anything came in.
    pub(crate) heard: bool,
    /// Packets sent, where the carrier counts them.
    pub(crate) sent: u64,
    /// Packets lost.
    pub(crate) lost: u64,
    /// How long the last `PING` took, or takes by now; `None` where none was sent.
    pub(crate) answer: Option<Duration>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Who takes new calls.
    pub(crate) carry: Way,
    /// Whom to bring up, if that is possible.
    pub(crate) bring_up: Option<Way>,
    /// Whether to send both a `PING`.
    pub(crate) ask: bool,
}

/// Why a carrier takes the new calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Why {
    /// Nothing speaks against the preferred one.
    #[default]
    Preferred,
    /// The configuration says so.
    Configured,
    /// UDP is not up.
    NoUdp,
    /// UDP gives no sign of life.
    Silent(Duration),
    /// UDP loses packets, and answers come sooner over TCP.
    Lossy {
        loss: f64,
        udp: Duration,
        tcp: Duration,
    },
    /// It is being tried for moving much.
    Trying(Way),
    /// It moves more bytes a second.
    Faster { way: Way, rate: f64, other: f64 },
    /// UDP is well again.
    Back,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: &Duration| time.as_secs_f64() * 1e3;
        match self {
            Self::Preferred => f.write_str("udp answers"),
            Self::Configured => f.write_str("configured"),
            Self::NoUdp => f.write_str("udp is not up"),
            Self::Silent(time) => write!(f, "udp silent for {} s", time.as_secs()),
            Self::Lossy { loss, udp, tcp } => write!(
                f,
                "udp loses {:.0} %, answers in {:.0} ms against {:.0} ms",
                loss * 100.0,
                millis(udp),
                millis(tcp)
            ),
            Self::Trying(way) => write!(f, "trying {} for much data", way.name()),
            Self::Faster { way, rate, other } => write!(
                f,
                "{} moves {:.0} MB/s, {} {:.0} MB/s",
                way.name(),
                rate / 1e6,
                way.other().name(),
                other / 1e6
            ),
            Self::Back => f.write_str("udp is well again"),
        }
    }
}

/// The choice for one peer.
#[derive(Debug)]
pub(crate) struct Choice {
    allowed: Carrier,
    carry: Way,
    why: Why,
    last: Instant,
    /// When UDP was heard last, or needed not be heard.
    heard: Instant,
    /// Since when UDP is well, while TCP stands in for it.
    well_since: Option<Instant>,
    /// Packets sent and lost lately, fading.
    packets: (f64, f64),
    /// Attempts to bring up the one that is missing.
    attempt: Pause,
    /// Comparisons of answers, and of rates.
    comparison: Pause,
    trial: Pause,
    phase: Phase,
    /// Since when much is moved, and the best rate in that time.
    busy: Option<(Instant, f64)>,
    /// When much was moved last.
    busy_at: Instant,
}

#[derive(Debug)]
enum Phase {
    Settled,
    /// Answers are collected: sum and number, of UDP and TCP.
    Comparing {
        until: Option<Instant>,
        udp: (Duration, u32),
        tcp: (Duration, u32),
    },
    /// `way` is being tried against the rate `base` of the other.
    Trying {
        way: Way,
        until: Instant,
        base: f64,
        best: f64,
        moved: u64,
    },
}

/// A time until which to wait, longer each time.
#[derive(Debug)]
struct Pause {
    until: Option<Instant>,
    length: Duration,
    range: (Duration, Duration),
}

impl Pause {
    const fn new(range: (Duration, Duration)) -> Self {
        Self {
            until: None,
            length: range.0,
            range,
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    fn begin(&mut self, now: Instant) {
        self.until = Some(now + self.length);
        self.length = (self.length * 2).min(self.range.1);
    }

    fn reset(&mut self) {
        *self = Self::new(self.range);
    }
}

impl Choice {
    pub(crate) fn new(allowed: Carrier, now: Instant) -> Self {
        let carry = if allowed.takes_udp() {
            Way::Udp
        } else {
            Way::Tcp
        };
        let why = if allowed == Carrier::Auto {
            Why::Preferred
        } else {
            Why::Configured
        };
        Self {
            allowed,
            carry,
            why,
            last: now,
            heard: now,
            well_since: None,
            packets: (0.0, 0.0),
            attempt: Pause::new(PAUSE),
            comparison: Pause::new(PAUSE),
            trial: Pause::new(TRIAL_PAUSE),
            phase: Phase::Settled,
            busy: None,
            busy_at: now,
        }
    }

    pub(crate) fn why(&self) -> Why {
        self.why
    }

    /// Whether nothing has to be looked at while no call is in flight.
    pub(crate) fn may_rest(&self) -> bool {
        self.allowed != Carrier::Auto
            || (self.carry == Way::Udp && matches!(self.phase, Phase::Settled))
    }

    /// Takes in what was seen of UDP and TCP since the time before.
    pub(crate) fn tick(&mut self, now: Instant, udp: &Seen, tcp: &Seen) -> Wish {
        let elapsed = now
            .saturating_duration_since(self.last)
            .as_secs_f64()
            .max(1e-3);
        if now.saturating_duration_since(self.last) > SILENT {
            // Nobody looked for a while: nothing is known of that time.
            self.heard = now;
            self.packets = (0.0, 0.0);
            self.busy = None;
        }
        self.last = now;
        if self.allowed != Carrier::Auto || (!udp.up && !tcp.up) {
            return self.wish(None, false);
        }
        if !udp.up {
            return self.without_udp(now);
        }
        if let Some(wish) = self.silence(now, udp, tcp) {
            return wish;
        }
        self.packets.0 = self.packets.0 * 0.8 + udp.sent as f64;
        self.packets.1 = self.packets.1 * 0.8 + udp.lost as f64;
        if let Some(wish) = self.stands_in(now, udp, tcp) {
            return wish;
        }
        let rates = [udp, tcp].map(|seen| seen.moved as f64 / elapsed);
        match self.phase {
            Phase::Comparing { .. } => self.compare(now, udp, tcp),
            Phase::Trying { .. } => self.try_on(now, rates, udp, tcp),
            Phase::Settled => self.settled(now, rates, udp, tcp),
        }
    }

    fn wish(&self, bring_up: Option<Way>, ask: bool) -> Wish {
        Wish {
            carry: self.carry,
            bring_up,
            ask,
        }
    }

    fn set(&mut self, carry: Way, why: Why) {
        self.carry = carry;
        self.why = why;
        self.well_since = None;
        self.phase = Phase::Settled;
        self.busy = None;
    }

    /// Once in a while, whoever is missing is dialled.
    fn attempt(&mut self, now: Instant, way: Way) -> Option<Way> {
        let due = self.attempt.is_over(now);
        if due {
            self.attempt.begin(now);
        }
        due.then_some(way)
    }

    fn without_udp(&mut self, now: Instant) -> Wish {
        if self.carry != Way::Tcp {
            self.attempt.reset();
            self.set(Way::Tcp, Why::NoUdp);
            self.attempt.begin(now);
        }
        self.well_since = None;
        self.heard = now;
        let bring_up = self.attempt(now, Way::Udp);
        self.wish(bring_up, false)
    }

    /// UDP that says nothing though it was asked.
    fn silence(&mut self, now: Instant, udp: &Seen, tcp: &Seen) -> Option<Wish> {
        if udp.heard || (udp.calls == 0 && udp.answer.is_none()) {
            self.heard = now;
            return None;
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence < SILENT {
            return None;
        }
        if tcp.up {
            self.set(Way::Tcp, Why::Silent(silence));
            return Some(self.wish(None, true));
        }
        let bring_up = self.attempt(now, Way::Tcp);
        Some(self.wish(bring_up, true))
    }

    /// TCP that stands in for UDP, until UDP is well.
    fn stands_in(&mut self, now: Instant, udp: &Seen, tcp: &Seen) -> Option<Wish> {
        if self.carry == Way::Udp {
            return None;
        }
        let well = match self.why {
            Why::NoUdp | Why::Silent(_) => true,
            Why::Lossy { .. } => {
                let (sent, lost) = self.packets;
                let sooner = udp
                    .answer
                    .zip(tcp.answer)
                    .is_none_or(|(udp, tcp)| udp <= tcp * 2);
                lost <= sent * WELL && sooner
            }
            _ => return None,
        };
        if !tcp.up || self.is_steady(now, well) {
            self.attempt.reset();
            self.set(Way::Udp, Why::Back);
        }
        Some(self.wish(None, true))
    }

    fn is_steady(&mut self, now: Instant, well: bool) -> bool {
        if !well {
            self.well_since = None;
            return false;
        }
        let since = *self.well_since.get_or_insert(now);
        now.saturating_duration_since(since) >= STEADY
    }

    fn settled(
        &mut self,
        now: Instant,
        [udp_rate, tcp_rate]: [f64; 2],
        udp: &Seen,
        tcp: &Seen,
    ) -> Wish {
        if self.carry == Way::Tcp && !tcp.up {
            self.set(Way::Udp, Why::Preferred);
        }
        let (sent, lost) = self.packets;
        let lossy = sent >= ENOUGH_PACKETS && lost >= sent * LOSSY;
        if self.carry == Way::Udp && lossy && udp.calls > 0 && self.comparison.is_over(now) {
            self.comparison.begin(now);
            self.phase = Phase::Comparing {
                until: None,
                udp: (Duration::ZERO, 0),
                tcp: (Duration::ZERO, 0),
            };
            return self.compare(now, udp, tcp);
        }
        let rate = udp_rate + tcp_rate;
        if rate >= MUCH / 4.0 {
            self.busy_at = now;
        }
        if self.carry == Way::Tcp && now.saturating_duration_since(self.busy_at) >= QUIET {
            self.set(Way::Udp, Why::Preferred);
        }
        self.watch_rate(now, rate, udp, tcp)
    }

    /// Tries the other carrier when much is moved for long enough.
    fn watch_rate(&mut self, now: Instant, rate: f64, udp: &Seen, tcp: &Seen) -> Wish {
        if rate < MUCH {
            self.busy = None;
            return self.wish(None, false);
        }
        let (since, best) = self.busy.unwrap_or((now, 0.0));
        self.busy = Some((since, best.max(rate)));
        let long_enough = now.saturating_duration_since(since) >= SATURATED;
        if !long_enough || !self.trial.is_over(now) {
            return self.wish(None, false);
        }
        let way = self.carry.other();
        let other = if way == Way::Tcp { tcp } else { udp };
        if !other.up {
            let bring_up = self.attempt(now, way);
            return self.wish(bring_up, false);
        }
        let base = best.max(rate);
        self.set(way, Why::Trying(way));
        self.phase = Phase::Trying {
            way,
            until: now + TRIAL,
            base,
            best: 0.0,
            moved: 0,
        };
        self.wish(None, false)
    }

    fn try_on(&mut self, now: Instant, rates: [f64; 2], udp: &Seen, tcp: &Seen) -> Wish {
        let Phase::Trying {
            way,
            until,
            base,
            best,
            moved,
        } = &mut self.phase
        else {
            return self.wish(None, false);
        };
        let (seen, rate) = match way {
            Way::Udp => (udp, rates[0]),
            Way::Tcp => (tcp, rates[1]),
        };
        *best = best.max(rate);
        *moved += seen.moved;
        let (way, base, best, moved) = (*way, *base, *best, *moved);
        if now < *until && seen.up {
            return self.wish(None, false);
        }
        self.busy_at = now;
        if moved >= ENOUGH_BYTES && best >= base * FASTER {
            let why = Why::Faster {
                way,
                rate: best,
                other: base,
            };
            self.set(way, why);
            self.trial = Pause::new((RECHECK, RECHECK));
            self.trial.begin(now);
            self.trial.range = TRIAL_PAUSE;
        } else {
            let why = match way {
                Way::Tcp => Why::Preferred,
                Way::Udp => Why::Faster {
                    way: Way::Tcp,
                    rate: base,
                    other: best,
                },
            };
            self.set(way.other(), why);
            self.trial.begin(now);
        }
        self.wish(None, false)
    }

    fn compare(&mut self, now: Instant, seen_udp: &Seen, seen_tcp: &Seen) -> Wish {
        if !seen_tcp.up {
            let bring_up = self.attempt(now, Way::Tcp);
            if bring_up.is_none() {
                self.phase = Phase::Settled;
            }
            return self.wish(bring_up, false);
        }
        let Phase::Comparing { until, udp, tcp } = &mut self.phase else {
            return self.wish(None, false);
        };
        let end = *until.get_or_insert(now + COMPARE);
        for (sum, answer) in [(&mut *udp, seen_udp.answer), (&mut *tcp, seen_tcp.answer)] {
            if let Some(answer) = answer {
                *sum = (sum.0 + answer, sum.1 + 1);
            }
        }
        if now < end {
            return self.wish(None, true);
        }
        let mean = |(sum, number): (Duration, u32)| sum.checked_div(number);
        let (udp, tcp) = (mean(*udp), mean(*tcp));
        self.phase = Phase::Settled;
        tracing::debug!(?udp, ?tcp, packets = ?self.packets, "answers compared");
        if let (Some(udp), Some(tcp)) = (udp, tcp)
            && tcp.as_secs_f64() <= udp.as_secs_f64() * SOONER
        {
            let loss = self.packets.1 / self.packets.0.max(1.0);
            self.set(Way::Tcp, Why::Lossy { loss, udp, tcp });
            self.comparison.reset();
        }
        self.wish(None, true)
    }
}

#[cfg(test)]
mod tests;
