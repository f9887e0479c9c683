//! How often somebody may do something: token buckets, told the time.
//!
//! A bucket holds a minute's worth and fills up evenly. A full bucket is the same as none, so only
//! those who did something lately take up memory, and at most [`MAX_BUCKETS`] of them. Beyond that the
//! fullest are forgotten: those who spent least, so many newcomers neither shut others out nor give back
//! what somebody has spent.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    time::Instant,
};

/// Most keys that are remembered.
const MAX_BUCKETS: usize = 8192;

/// Bounds how often each key may do something.
#[derive(Debug)]
pub(crate) struct Throttle<K> {
    per_minute: f64,
    buckets: HashMap<K, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl<K: Eq + Hash> Throttle<K> {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            per_minute: f64::from(per_minute),
            buckets: HashMap::new(),
        }
    }

    /// Whether the key may do it now. Takes nothing.
    pub(crate) fn allows(&mut self, key: &K, now: Instant) -> bool {
        match self.buckets.get(key) {
            Some(bucket) => bucket.filled(self.per_minute, now) >= 1.0,
            None => self.per_minute >= 1.0,
        }
    }

    /// Counts one time.
    pub(crate) fn charge(&mut self, key: K, now: Instant) {
        let per_minute = self.per_minute;
        if !self.buckets.contains_key(&key) {
            self.make_room(now);
        }
        let bucket = self.buckets.entry(key).or_insert(Bucket {
            tokens: per_minute,
            at: now,
        });
        *bucket = Bucket {
            tokens: bucket.filled(per_minute, now) - 1.0,
            at: now,
        };
    }

    /// Counts one time if the key may do it now.
    pub(crate) fn admit(&mut self, key: K, now: Instant) -> bool {
        let allowed = self.allows(&key, now);
        if allowed {
            self.charge(key, now);
        }
        allowed
    }

    /// Forgets full buckets, and where that is not enough the fullest eighth.
    fn make_room(&mut self, now: Instant) {
        let full = self.per_minute;
        if self.buckets.len() < MAX_BUCKETS {
            return;
        }
        self.buckets
            .retain(|_, bucket| bucket.filled(full, now) < full);
        if self.buckets.len() < MAX_BUCKETS {
            return;
        }
        let mut levels: Vec<f64> = self.buckets.values().map(|b| b.filled(full, now)).collect();
        levels.sort_unstable_by(|a, b| b.total_cmp(a));
        let Some(level) = levels.get(MAX_BUCKETS / 8).copied() else {
            return;
        };
        // Of those at the level itself some have to go too, where all are alike.
        let mut left = MAX_BUCKETS / 8;
        self.buckets.retain(|_, bucket| {
            let goes = left > 0 && bucket.filled(full, now) >= level;
            left -= usize::from(goes);
            !goes
        });
    }
}

impl Bucket {
    fn filled(self, per_minute: f64, now: Instant) -> f64 {
        let minutes = now.saturating_duration_since(self.at).as_secs_f64() / 60.0;
        (self.tokens + minutes * per_minute).min(per_minute)
    }
}

/// What counts as one address: an IPv4 address, or the /64 of an IPv6 one, which one host commands.
pub(crate) fn one_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_minutes_worth_may_be_spent_at_once_and_comes_back_evenly() {
        let start = Instant::now();
        let mut throttle = Throttle::new(6);
        for _ in 0..6 {
            assert!(throttle.admit("a", start));
        }
        assert!(!throttle.admit("a", start));
        assert!(throttle.admit("b", start));
        assert!(!throttle.admit("a", start + Duration::from_secs(9)));
        assert!(throttle.admit("a", start + Duration::from_secs(10)));
        assert!(!throttle.admit("a", start + Duration::from_secs(10)));
    }

    #[test]
    fn memory_is_bounded_and_a_full_table_shuts_nobody_out() {
        let start = Instant::now();
        let mut throttle = Throttle::new(2);
        let greedy = usize::MAX;
        assert!(throttle.admit(greedy, start) && throttle.admit(greedy, start));
        for key in 0..4 * MAX_BUCKETS {
            assert!(throttle.admit(key, start), "a newcomer is shut out");
            assert!(throttle.buckets.len() <= MAX_BUCKETS);
        }
        assert!(
            !throttle.admit(greedy, start),
            "newcomers give nothing back"
        );
        // Full ones are forgotten first.
        assert!(throttle.admit(greedy, start + Duration::from_secs(61)));
        throttle.make_room(start + Duration::from_secs(61));
        for key in 0..MAX_BUCKETS {
            throttle.charge(key, start + Duration::from_secs(61));
        }
        assert!(throttle.buckets.len() <= MAX_BUCKETS);
    }

    #[test]
    fn an_ipv6_host_counts_as_its_network() {
        let of = |text: &str| one_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
