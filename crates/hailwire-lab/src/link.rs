//! One direction of a link: what happens to each packet that enters it.
//!
//! A packet meets, in this order: the queue before the wire, which is bounded and drops at its tail
//! (RFC 7567 calls that tail drop); the wire's rate; loss; delay with jitter; and perhaps a second
//! copy. A lost packet has used the wire, as it would on a real one. The delay wanders within its
//! jitter, so slowly that no packet overtakes another, as where it comes from queues on the way; if
//! reordering is asked for, the share that is picked is held back and the ones behind pass it.
//!
//! [`Link::pass`] decides at once and remembers only one instant, so that a link costs the same
//! however much is in flight on it. It takes `now`, a [`Duration`] since an origin that never runs
//! backwards, and draws chance from a seed: the same packets at the same instants meet the same fate.

use std::time::Duration;

use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng as _, SeedableRng as _},
};
use serde::{Deserialize, Serialize};

/// The largest IPv4 packet of an ordinary link, in bytes.
pub const MTU: u16 = 1500;

/// Smallest queue that a link with a rate gets when the file names none: 32 full packets.
pub const MIN_QUEUE: u64 = 32 * MTU as u64;

/// Time for which the queue of a link holds data when the file names none.
const DEFAULT_QUEUE_TIME: Duration = Duration::from_millis(50);

/// How far a picked packet falls behind when the file does not say.
const DEFAULT_REORDER_BY: Duration = Duration::from_millis(2);

/// What one direction of a link does. The default does nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkShape {
    /// Time from one end to the other.
    pub delay: Duration,
    /// The delay wanders within `delay ± jitter`, from one random level to the next in four times this
    /// time; at most `delay`.
    pub jitter: Duration,
    /// Share of packets that are lost on the wire, 0 to 1, each by itself.
    pub loss: f64,
    /// Share of packets that are held back so that later ones overtake them, 0 to 1.
    pub reorder: f64,
    /// How long those are held back. Default: 2 ms.
    pub reorder_by: Duration,
    /// Share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// Bits of IP packets a second; `None` for no bound.
    pub rate: Option<u64>,
    /// Bytes that may wait for the wire. `None` with a rate: what 50 ms carry, at least
    /// [`MIN_QUEUE`]. Without a rate nothing waits.
    pub queue: Option<u64>,
    /// Largest IP packet in bytes; a larger one does not pass.
    pub mtu: u16,
    /// Whether the sender of a larger packet is told so (ICMP). Default: yes.
    pub mtu_told: bool,
}

impl Default for LinkShape {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: DEFAULT_REORDER_BY,
            duplicate: 0.0,
            rate: None,
            queue: None,
            mtu: MTU,
            mtu_told: true,
        }
    }
}

impl LinkShape {
    /// Bytes that may wait for the wire.
    #[must_use]
    pub fn queue_bytes(&self) -> u64 {
        match (self.queue, self.rate) {
            (Some(bytes), _) => bytes,
            (None, Some(rate)) => {
                let bytes = u128::from(rate) * DEFAULT_QUEUE_TIME.as_nanos() / 8 / 1_000_000_000;
                u64::try_from(bytes).unwrap_or(u64::MAX).max(MIN_QUEUE)
            }
            (None, None) => u64::MAX,
        }
    }
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// Chance, as the shape's `loss` says.
    Lost,
    /// The queue was full.
    Queue,
    /// It is larger than the link's MTU.
    TooLarge,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOutcome {
    /// It arrives.
    Arrives {
        /// When its last byte arrives.
        at: Duration,
        /// When its second copy arrives, if there is one.
        again: Option<Duration>,
    },
    /// It does not.
    Dropped(DropReason),
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    shape: LinkShape,
    random: Pcg64Mcg,
    /// When the wire has sent all that waits for it.
    free: Duration,
    /// What the levels of the delay follow from.
    delay_seed: u64,
}

impl Link {
    /// A link with nothing on it.
    #[must_use]
    pub fn new(shape: LinkShape, seed: u64) -> Self {
        Self {
            shape,
            random: Pcg64Mcg::seed_from_u64(seed),
            free: Duration::ZERO,
            delay_seed: seed,
        }
    }

    /// What it does.
    #[must_use]
    pub fn shape(&self) -> &LinkShape {
        &self.shape
    }

    /// Sends a packet of `bytes` (IP header included) into the link.
    pub fn pass(&mut self, now: Duration, bytes: u32) -> PacketOutcome {
        if bytes > u32::from(self.shape.mtu) {
            return PacketOutcome::Dropped(DropReason::TooLarge);
        }
        let Some(sent) = self.send(now, bytes) else {
            return PacketOutcome::Dropped(DropReason::Queue);
        };
        if self.happens(self.shape.loss) {
            return PacketOutcome::Dropped(DropReason::Lost);
        }
        let at = self.arrival(sent);
        let again = self.happens(self.shape.duplicate).then_some(at);
        PacketOutcome::Arrives { at, again }
    }

    /// When the last byte has left, or `None` where the queue has no room.
    fn send(&mut self, now: Duration, bytes: u32) -> Option<Duration> {
        let Some(rate) = self.shape.rate else {
            return Some(now);
        };
        let waiting = self.free.saturating_sub(now);
        let waiting_bytes = waiting.as_nanos() * u128::from(rate) / 8 / 1_000_000_000;
        if waiting_bytes + u128::from(bytes) > u128::from(self.shape.queue_bytes()) {
            return None;
        }
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free = self.free.max(now) + takes;
        Some(self.free)
    }

    fn arrival(&mut self, sent: Duration) -> Duration {
        let in_order = sent + self.delay(sent);
        match self.happens(self.shape.reorder) {
            true => in_order + self.shape.reorder_by,
            false => in_order,
        }
    }

    /// The delay at an instant. Between two levels it changes by at most half of the time that
    /// passes, so that what is sent later arrives later.
    fn delay(&self, at: Duration) -> Duration {
        let jitter = self.shape.jitter;
        if jitter.is_zero() {
            return self.shape.delay;
        }
        let stride = (4 * jitter).as_nanos();
        let (number, within) = (at.as_nanos() / stride, at.as_nanos() % stride);
        let level = |number: u128| {
            let mut random = Pcg64Mcg::seed_from_u64(self.delay_seed ^ ((number as u64) << 8));
            share(&mut random)
        };
        let (from, to) = (level(number), level(number + 1));
        let level = from + (to - from) * (within as f64 / stride as f64);
        (self.shape.delay + (2 * jitter).mul_f64(level)).saturating_sub(jitter)
    }

    /// Whether something of this likelihood happens. Draws nothing where there is nothing to decide,
    /// so that adding a feature to one link does not change the chance of another shape.
    fn happens(&mut self, likelihood: f64) -> bool {
        likelihood > 0.0 && share(&mut self.random) < likelihood
    }
}

/// Evenly from 0 up to, not including, 1.
fn share(random: &mut Pcg64Mcg) -> f64 {
    /// 2⁵³: as many steps as a float holds exactly.
    const STEPS: f64 = 9_007_199_254_740_992.0;
    (random.next_u64() >> 11) as f64 / STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn link(change: impl FnOnce(&mut LinkShape)) -> Link {
        let mut shape = LinkShape::default();
        change(&mut shape);
        Link::new(shape, 7)
    }

    fn arrival(outcome: PacketOutcome) -> Duration {
        match outcome {
            PacketOutcome::Arrives { at, .. } => at,
            PacketOutcome::Dropped(why) => panic!("dropped: {why:?}"),
        }
    }

    #[test]
    fn a_packet_arrives_after_exactly_the_delay() {
        let mut link = link(|s| s.delay = 25 * MS);
        assert_eq!(arrival(link.pass(3 * MS, 1500)), 28 * MS);
        assert_eq!(arrival(link.pass(4 * MS, 60)), 29 * MS);
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_keeps_order_and_median() {
        let mut link = link(|s| {
            s.delay = 30 * MS;
            s.jitter = 30 * MS;
        });
        // A packet each 0.1 ms for 100 s.
        let pace = MS / 10;
        let arrivals: Vec<_> = (0..1_000_000)
            .map(|i| arrival(link.pass(pace * i, 100)))
            .collect();
        assert!(arrivals.is_sorted());
        let mut delays: Vec<_> = (0..).zip(&arrivals).map(|(i, at)| *at - pace * i).collect();
        delays.sort();
        let (least, median, most) = (delays[0], delays[500_000], delays[999_999]);
        assert!(least < 2 * MS, "the least delay was {least:?}");
        assert!(
            most <= 60 * MS && most > 58 * MS,
            "the most delay was {most:?}"
        );
        assert!(
            median > 28 * MS && median < 32 * MS,
            "the median was {median:?}"
        );
    }

    #[test]
    fn loss_lies_within_four_deviations_of_its_share() {
        let mut link = link(|s| s.loss = 0.01);
        let sent = 100_000;
        let lost = (0..sent)
            .filter(|_| link.pass(MS, 100) == PacketOutcome::Dropped(DropReason::Lost))
            .count() as f64;
        let deviation = (f64::from(sent) * 0.01 * 0.99).sqrt();
        assert!((lost - 1000.0).abs() < 4.0 * deviation, "{lost} were lost");
    }

    #[test]
    fn the_rate_spaces_packets_and_a_full_queue_drops_the_newest() {
        let mut link = link(|s| {
            s.rate = Some(12_000_000);
            s.queue = Some(4500);
        });
        let fates: Vec<_> = (0..5).map(|_| link.pass(Duration::ZERO, 1500)).collect();
        let arrivals: Vec<_> = fates[..3].iter().map(|f| arrival(*f)).collect();
        assert_eq!(arrivals, [MS, 2 * MS, 3 * MS]);
        assert_eq!(fates[3..], [PacketOutcome::Dropped(DropReason::Queue); 2]);
        assert_eq!(
            arrival(link.pass(MS, 1500)),
            4 * MS,
            "room again after one has left"
        );
    }

    #[test]
    fn a_lost_packet_has_used_the_wire() {
        let mut link = link(|s| {
            s.rate = Some(12_000_000);
            s.loss = 0.5;
        });
        let arrivals: Vec<_> = (0..20)
            .filter_map(|_| match link.pass(Duration::ZERO, 1500) {
                PacketOutcome::Arrives { at, .. } => Some(at),
                PacketOutcome::Dropped(_) => None,
            })
            .collect();
        assert!(arrivals.len() < 20);
        assert!(
            arrivals
                .last()
                .is_some_and(|at| *at > MS * arrivals.len() as u32)
        );
    }

    #[test]
    fn reordered_packets_are_overtaken_by_those_behind() {
        let mut link = link(|s| {
            s.delay = 10 * MS;
            s.reorder = 0.1;
            s.reorder_by = 5 * MS;
        });
        let arrivals: Vec<_> = (0..1000).map(|i| arrival(link.pass(MS * i, 100))).collect();
        let held = arrivals
            .iter()
            .zip(0..)
            .filter(|(at, i)| **at == MS * *i + 15 * MS)
            .count();
        let overtaken = arrivals.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((70..130).contains(&held), "{held} were held back");
        assert!(overtaken > 60, "{overtaken} were overtaken");
    }

    #[test]
    fn duplicates_arrive_twice_and_only_as_often_as_asked() {
        let mut link = link(|s| s.duplicate = 0.2);
        let twice = (0..1000)
            .filter(|_| {
                matches!(
                    link.pass(MS, 100),
                    PacketOutcome::Arrives { again: Some(_), .. }
                )
            })
            .count();
        assert!((150..250).contains(&twice), "{twice} came twice");
    }

    #[test]
    fn what_exceeds_the_mtu_does_not_pass() {
        let mut link = link(|s| s.mtu = 1280);
        assert_eq!(
            link.pass(Duration::ZERO, 1281),
            PacketOutcome::Dropped(DropReason::TooLarge)
        );
        assert_eq!(arrival(link.pass(Duration::ZERO, 1280)), Duration::ZERO);
    }

    #[test]
    fn the_same_seed_gives_the_same_fates() {
        let shape = LinkShape {
            delay: 20 * MS,
            jitter: 5 * MS,
            loss: 0.1,
            reorder: 0.1,
            duplicate: 0.1,
            ..LinkShape::default()
        };
        let fates = |seed| {
            let mut link = Link::new(shape.clone(), seed);
            (0..200).map(|i| link.pass(MS * i, 500)).collect::<Vec<_>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
    }

    #[test]
    fn a_queue_that_nobody_named_holds_fifty_milliseconds() {
        let rate = |rate| LinkShape {
            rate: Some(rate),
            ..LinkShape::default()
        };
        assert_eq!(rate(200_000_000).queue_bytes(), 1_250_000);
        assert_eq!(rate(1_000_000).queue_bytes(), MIN_QUEUE);
    }
}
