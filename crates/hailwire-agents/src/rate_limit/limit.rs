//! What an operator writes: `100/s burst 20 per client-ip`.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use governor::Quota;
use thiserror::Error;

/// One limit: so many requests in so long, for each of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What it is called in answers. Default `by-` and what it counts.
    pub name: String,
    /// So many requests
    pub count: NonZeroU32,
    /// in this time, at an even pace.
    pub window: Duration,
    /// So many may come at once. Default as many as in a window.
    pub burst: NonZeroU32,
    /// Whose requests are counted together.
    pub per: Per,
}

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Per {
    /// Those from one IPv4 address or one IPv6 network of so many bits. Default 64, which is what one customer gets.
    ClientIp(u8),
    /// Those with the same value in a header field, however it is written: see [`key`](super::key). Requests without the
    /// field are counted together.
    Header(String),
    /// Those with the same value in a header field, byte for byte but for blanks around it.
    ExactHeader(String),
    /// Those of one route.
    Route,
    /// All.
    Everyone,
}

/// A limit that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// It does not begin with a count and a unit.
    #[error("\"{0}\" is no rate: write one like 100/s, 5/10s or 1000/h")]
    Rate(String),
    /// The burst is no number from 1.
    #[error("\"{0}\" is no burst: write a number from 1")]
    Burst(String),
    /// What is counted is unknown.
    #[error(
        "\"{0}\" cannot be counted by: client-ip, client-ip/BITS, header:NAME, exact-header:NAME, route and global can"
    )]
    Per(String),
    /// A word that is not expected there.
    #[error("\"{0}\" is not expected: a limit is RATE [burst N] [per WHAT]")]
    Word(String),
}

impl Limit {
    /// The limit as GCRA counts it.
    #[must_use]
    pub fn quota(&self) -> Quota {
        let pace = (self.window / self.count.get()).max(Duration::from_nanos(1));
        match Quota::with_period(pace) {
            Some(quota) => quota.allow_burst(self.burst),
            // A pace is never zero.
            None => Quota::per_second(self.count).allow_burst(self.burst),
        }
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let mut words = text.split_whitespace();
        let rate = words.next().unwrap_or_default();
        let (count, window) = rate
            .split_once('/')
            .and_then(|(count, unit)| Some((count.parse().ok()?, window(unit)?)))
            .ok_or_else(|| LimitError::Rate(rate.to_owned()))?;
        let mut limit = Self {
            name: String::new(),
            count,
            window,
            burst: count,
            per: Per::Everyone,
        };
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            match word {
                "burst" => {
                    let wrong = |_| LimitError::Burst(value.to_owned());
                    limit.burst = value.parse().map_err(wrong)?;
                }
                "per" => limit.per = value.parse()?,
                _ => return Err(LimitError::Word(word.to_owned())),
            }
        }
        limit.name = format!("by-{}", limit.per).replace([':', '/'], "-");
        Ok(limit)
    }
}

/// `s`, `m`, `h` or `d`, or several of them.
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

impl FromStr for Per {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        Ok(match text {
            "client-ip" => Self::ClientIp(Self::NETWORK),
            "route" => Self::Route,
            "global" => Self::Everyone,
            _ => Self::named(text).ok_or_else(|| LimitError::Per(text.to_owned()))?,
        })
    }
}

impl Per {
    /// Bits of an IPv6 address that are one client's.
    pub(super) const NETWORK: u8 = 64;

    /// One that names something.
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

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp(Self::NETWORK) => f.write_str("client-ip"),
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
    fn a_limit_is_read_as_it_is_written() {
        let limit: Limit = "100/s burst 20 per client-ip".parse().unwrap();
        assert_eq!((limit.count.get(), limit.burst.get()), (100, 20));
        assert_eq!(
            (limit.window, limit.per),
            (Duration::from_secs(1), Per::ClientIp(64))
        );
        let limit: Limit = "5/10m per header:X-Api-Key".parse().unwrap();
        assert_eq!(
            (limit.burst.get(), limit.window),
            (5, Duration::from_secs(600))
        );
        assert_eq!(limit.per, Per::Header("x-api-key".to_owned()));
        assert_eq!(limit.name, "by-header-x-api-key");
        for per in [
            "client-ip",
            "client-ip/48",
            "exact-header:x-key",
            "route",
            "global",
        ] {
            assert_eq!(per.parse::<Per>().unwrap().to_string(), per);
        }
    }

    #[test]
    fn what_is_no_limit_is_refused_with_the_word_that_is_wrong() {
        let wrong = |text: &str| text.parse::<Limit>().unwrap_err();
        for rate in ["", "100", "0/s", "x/s", "1/y", "1/0s", "1/s/s"] {
            assert_eq!(wrong(rate), LimitError::Rate(rate.to_owned()));
        }
        assert_eq!(wrong("1/s burst 0"), LimitError::Burst("0".to_owned()));
        assert_eq!(wrong("1/s per moon"), LimitError::Per("moon".to_owned()));
        assert_eq!(
            wrong("1/s per client-ip/129"),
            LimitError::Per("client-ip/129".to_owned())
        );
        assert_eq!(
            wrong("1/s per header:"),
            LimitError::Per("header:".to_owned())
        );
        assert_eq!(wrong("1/s each ip"), LimitError::Word("each".to_owned()));
    }
}
