//! Rate limits by key: token buckets, told the time.
//!
//! A bucket holds the tokens of one minute and refills evenly. A full bucket is equivalent to none, so only
//! recently active keys take up memory, and at most [`MAX_BUCKETS`] of them. Beyond that the fullest buckets are
//! evicted, those that spent least: so many new keys neither lock others out nor reset a key that has spent its tokens.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    time::Instant,
};

/// Most keys that have a bucket.
const MAX_BUCKETS: usize = 8192;

/// Limits how often each key may do something.
#[derive(Debug)]
pub(crate) struct KeyedThrottle<K> {
    per_minute: f64,
    buckets: HashMap<K, TokenBucket>,
}

#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    at: Instant,
}

impl<K: Eq + Hash> KeyedThrottle<K> {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self {
            per_minute: f64::from(per_minute),
            buckets: HashMap::new(),
        }
    }

    /// Whether the key has a token now. Takes none.
    pub(crate) fn allows(&mut self, key: &K, now: Instant) -> bool {
        match self.buckets.get(key) {
            Some(bucket) => bucket.filled(self.per_minute, now) >= 1.0,
            None => self.per_minute >= 1.0,
        }
    }

    /// Takes a token, also if there is none.
    pub(crate) fn charge(&mut self, key: K, now: Instant) {
        let per_minute = self.per_minute;
        if !self.buckets.contains_key(&key) {
            self.evict(now);
        }
        let bucket = self.buckets.entry(key).or_insert(TokenBucket {
            tokens: per_minute,
            at: now,
        });
        *bucket = TokenBucket {
            tokens: bucket.filled(per_minute, now) - 1.0,
            at: now,
        };
    }

    /// Takes a token if there is one; returns whether there was.
    pub(crate) fn admit(&mut self, key: K, now: Instant) -> bool {
        let allowed = self.allows(&key, now);
        if allowed {
            self.charge(key, now);
        }
        allowed
    }

    /// Evicts full buckets, and if that is not enough the fullest eighth.
    fn evict(&mut self, now: Instant) {
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
        // Some of those exactly at the level have to go too, if all are alike.
        let mut left = MAX_BUCKETS / 8;
        self.buckets.retain(|_, bucket| {
            let goes = left > 0 && bucket.filled(full, now) >= level;
            left -= usize::from(goes);
            !goes
        });
    }
}

impl TokenBucket {
    fn filled(self, per_minute: f64, now: Instant) -> f64 {
        let minutes = now.saturating_duration_since(self.at).as_secs_f64() / 60.0;
        (self.tokens + minutes * per_minute).min(per_minute)
    }
}

/// What counts as one client: an IPv4 address, or the /64 of an IPv6 address, which one host controls.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
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
    fn the_tokens_of_a_minute_may_be_spent_at_once_and_refill_evenly() {
        let start = Instant::now();
        let mut throttle = KeyedThrottle::new(6);
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
    fn memory_is_bounded_and_a_full_table_locks_nobody_out() {
        let start = Instant::now();
        let mut throttle = KeyedThrottle::new(2);
        let greedy = usize::MAX;
        assert!(throttle.admit(greedy, start) && throttle.admit(greedy, start));
        for key in 0..4 * MAX_BUCKETS {
            assert!(throttle.admit(key, start), "a new key is locked out");
            assert!(throttle.buckets.len() <= MAX_BUCKETS);
        }
        assert!(!throttle.admit(greedy, start), "new keys reset nothing");
        // Full buckets are evicted first.
        assert!(throttle.admit(greedy, start + Duration::from_secs(61)));
        throttle.evict(start + Duration::from_secs(61));
        for key in 0..MAX_BUCKETS {
            throttle.charge(key, start + Duration::from_secs(61));
        }
        assert!(throttle.buckets.len() <= MAX_BUCKETS);
    }

    #[test]
    fn an_ipv6_host_counts_as_its_network() {
        let of = |text: &str| client_network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
