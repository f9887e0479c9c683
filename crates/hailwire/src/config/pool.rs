//! How many connections stand beside each other to one peer.

use std::str::FromStr;

use serde::{Serialize, Serializer};

/// How many connections of one carrier a tunnel that this node dials consists of.
///
/// Each has its own handshake, memory and congestion control; new calls go to the one with the fewest
/// in flight. The side that dials decides; the far side takes up to
/// [`MAX_CONNECTIONS`](hailwire_wire::limits::MAX_CONNECTIONS), or as many as its own number where that is
/// larger. Default: one (decision 0017).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelPool {
    /// By the number of agents, as it is published for pools of HTTP/2 connections: 2 for up to 10, a
    /// tenth of them up to 100, a twentieth beyond, rounded up.
    Rule,
    /// So many, from 1 to [`TunnelPool::MAX`], whatever the peer offers.
    Fixed(u32),
}

impl Default for TunnelPool {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

impl TunnelPool {
    /// Most connections that may be asked for.
    pub const MAX: u32 = 1024;

    /// How many connections there should be to a peer that offers this node so many agents: pure.
    ///
    /// At least 1. A peer that offers none, or has not said yet what it offers, has 1 by the rule.
    #[must_use]
    pub fn size(self, agents: usize) -> usize {
        match self {
            Self::Fixed(number) => number.clamp(1, Self::MAX) as usize,
            Self::Rule => match agents {
                0 => 1,
                1..=10 => 2,
                11..=100 => agents.div_ceil(10),
                _ => agents.div_ceil(20),
            },
        }
    }
}

impl FromStr for TunnelPool {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok();
        match (text, number) {
            ("rule", _) => Ok(Self::Rule),
            (_, Some(number)) if (1..=Self::MAX).contains(&number) => Ok(Self::Fixed(number)),
            _ => Err("expected \"rule\" or a number from 1 to 1024"),
        }
    }
}

/// As the file writes it: a number, or the word in quotes.
impl std::fmt::Display for TunnelPool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rule => out.write_str("\"rule\""),
            Self::Fixed(number) => write!(out, "{number}"),
        }
    }
}

impl Serialize for TunnelPool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Rule => serializer.serialize_str("rule"),
            Self::Fixed(number) => serializer.serialize_u32(*number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_the_published_one() {
        let sizes = [1, 10, 11, 100, 101, 1_000].map(|agents| TunnelPool::Rule.size(agents));
        assert_eq!(sizes, [2, 2, 2, 10, 6, 50]);
        assert_eq!(TunnelPool::Rule.size(0), 1, "nobody to call");
    }

    #[test]
    fn a_number_holds_whatever_is_offered() {
        assert_eq!(
            [0, 7, 1_000].map(|agents| TunnelPool::Fixed(4).size(agents)),
            [4; 3]
        );
        assert_eq!(TunnelPool::Fixed(0).size(7), 1);
    }
}
