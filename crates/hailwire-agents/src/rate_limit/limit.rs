//! Limits as an operator writes them: `100/s burst 20 per client-ip`.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use governor::Quota;
use thiserror::Error;

/// One limit: a number of requests in a time window, for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Its name in responses. Default `by-` and the source of its keys.
    pub name: String,
    /// Requests in a window.
    pub count: NonZeroU32,
    /// The length of the window; requests are admitted at an even rate over it.
    pub window: Duration,
    /// Requests that may arrive at once. Default `count`.
    pub burst: NonZeroU32,
    /// What a request's key is taken from.
    pub per: KeySource,
}

/// What the key of a request is taken from; requests with the same key are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The client's IPv4 address, or its IPv6 network with a prefix of this many bits. Default 64, the usual assignment to
    /// one customer.
    ClientIp(u8),
    /// The value of a header field in canonical form: see [`key`](super::key). Requests without the field share one key.
    Header(String),
    /// The value of a header field, byte for byte except for white space around it.
    ExactHeader(String),
    /// The route.
    Route,
    /// One key for all requests.
    Everyone,
}

/// A limit that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RateLimitError {
    /// It does not begin with a count and a window.
    #[error("\"{0}\" is not a valid rate; use one like 100/s, 5/10s or 1000/h")]
    Rate(String),
    /// The burst is not a number from 1.
    #[error("\"{0}\" is not a valid burst; use a number from 1")]
    Burst(String),
    /// The source of keys is unknown.
    #[error(
        "\"{0}\" is not a valid key; use client-ip, client-ip/BITS, header:NAME, exact-header:NAME, route or global"
    )]
    KeySource(String),
    /// An unexpected word.
    #[error("unexpected \"{0}\"; a limit is RATE [burst N] [per WHAT]")]
    Word(String),
}

impl RateLimit {
    /// The limit in terms of GCRA.
    #[must_use]
    pub fn quota(&self) -> Quota {
        let pace = (self.window / self.count.get()).max(Duration::from_nanos(1));
        match Quota::with_period(pace) {
            Some(quota) => quota.allow_burst(self.burst),
            // The period is never zero.
            None => Quota::per_second(self.count).allow_burst(self.burst),
        }
    }
}

impl FromStr for RateLimit {
    type Err = RateLimitError;

    fn from_str(text: &str) -> Result<Self, RateLimitError> {
        let mut words = text.split_whitespace();
        let rate = words.next().unwrap_or_default();
        let (count, window) = rate
            .split_once('/')
            .and_then(|(count, unit)| Some((count.parse().ok()?, window(unit)?)))
            .ok_or_else(|| RateLimitError::Rate(rate.to_owned()))?;
        let mut limit = Self {
            name: String::new(),
            count,
            window,
            burst: count,
            per: KeySource::Everyone,
        };
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            match word {
                "burst" => {
                    let wrong = |_| RateLimitError::Burst(value.to_owned());
                    limit.burst = value.parse().map_err(wrong)?;
                }
                "per" => limit.per = value.parse()?,
                _ => return Err(RateLimitError::Word(word.to_owned())),
            }
        }
        limit.name = format!("by-{}", limit.per).replace([':', '/'], "-");
        Ok(limit)
    }
}

/// `s`, `m`, `h` or `d`, or a multiple such as `10s`.
fn window(unit: &str) -> Option<Duration> {
    let letter = unit.find(|c: char| !c.is_ascii_digit())?;
    let (several, unit) = unit.split_at(letter);
    let several: u32 = if several.is_empty() {
        1
    } else {
        several.parse().ok().filter(|n| (1..=10_000).contains(n))?
    };
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(seconds) * several)
}

impl FromStr for KeySource {
    type Err = RateLimitError;

    fn from_str(text: &str) -> Result<Self, RateLimitError> {
        Ok(match text {
            "client-ip" => Self::ClientIp(Self::DEFAULT_IPV6_PREFIX),
            "route" => Self::Route,
            "global" => Self::Everyone,
            _ => Self::named(text).ok_or_else(|| RateLimitError::KeySource(text.to_owned()))?,
        })
    }
}

impl KeySource {
    /// Bits of an IPv6 address that identify one client.
    pub(super) const DEFAULT_IPV6_PREFIX: u8 = 64;

    /// A source with an argument.
    fn named(text: &str) -> Option<Self> {
        if let Some(bits) = text.strip_prefix("client-ip/") {
            let bits = bits.parse().ok().filter(|bits| (1..=128).contains(bits));
            return bits.map(Self::ClientIp);
        }
        let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty())?;
        let name = name.to_ascii_lowercase();
        match kind {
            "header" => Some(Self::Header(name)),
            "exact-header" => Some(Self::ExactHeader(name)),
            _ => None,
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp(Self::DEFAULT_IPV6_PREFIX) => f.write_str("client-ip"),
            Self::ClientIp(bits) => write!(f, "client-ip/{bits}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::ExactHeader(name) => write!(f, "exact-header:{name}"),
            Self::Route => f.write_str("route"),
            Self::Everyone => f.write_str("global"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_parsed() {
        let limit: RateLimit = "100/s burst 20 per client-ip".parse().unwrap();
        assert_eq!((limit.count.get(), limit.burst.get()), (100, 20));
        assert_eq!(
            (limit.window, limit.per),
            (Duration::from_secs(1), KeySource::ClientIp(64))
        );
        let limit: RateLimit = "5/10m per header:X-Api-Key".parse().unwrap();
        assert_eq!(
            (limit.burst.get(), limit.window),
            (5, Duration::from_secs(600))
        );
        assert_eq!(limit.per, KeySource::Header("x-api-key".to_owned()));
        assert_eq!(limit.name, "by-header-x-api-key");
        for per in [
            "client-ip",
            "client-ip/48",
            "exact-header:x-key",
            "route",
            "global",
        ] {
            assert_eq!(per.parse::<KeySource>().unwrap().to_string(), per);
        }
    }

    #[test]
    fn an_invalid_limit_is_refused_with_the_wrong_word() {
        let wrong = |text: &str| text.parse::<RateLimit>().unwrap_err();
        for rate in ["", "100", "0/s", "x/s", "1/y", "1/0s", "1/s/s"] {
            assert_eq!(wrong(rate), RateLimitError::Rate(rate.to_owned()));
        }
        assert_eq!(wrong("1/s burst 0"), RateLimitError::Burst("0".to_owned()));
        assert_eq!(
            wrong("1/s per moon"),
            RateLimitError::KeySource("moon".to_owned())
        );
        assert_eq!(
            wrong("1/s per client-ip/129"),
            RateLimitError::KeySource("client-ip/129".to_owned())
        );
        assert_eq!(
            wrong("1/s per header:"),
            RateLimitError::KeySource("header:".to_owned())
        );
        assert_eq!(
            wrong("1/s each ip"),
            RateLimitError::Word("each".to_owned())
        );
    }
}
