//! The kinds of attackers.

use serde::{Deserialize, Serialize};

/// A kind of attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttackerKind {
    /// Datagrams.
    Tokens,
    /// QUIC handshakes.
    Initials,
    /// TCP connections.
    Silent,
    /// WebSockets.
    Pings,
    /// HTTP/2.
    Http2,
    /// Tickets.
    #[serde(rename = "strangers")]
    UntrustedPeers,
    /// Bodies.
    Bodies,
    /// Lists of agents.
    Offers,
    /// A member of the hub.
    Member,
    /// A program on the machine.
    Local,
    /// Questions to a program.
    Lines,
}

impl AttackerKind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Tokens,
        Self::Initials,
        Self::Silent,
        Self::Pings,
        Self::Http2,
        Self::UntrustedPeers,
        Self::Bodies,
        Self::Offers,
        Self::Member,
        Self::Local,
        Self::Lines,
    ];

    /// Its name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Initials => "initials",
            Self::Silent => "silent",
            Self::Pings => "pings",
            Self::Http2 => "http2",
            Self::UntrustedPeers => "strangers",
            Self::Bodies => "bodies",
            Self::Offers => "offers",
            Self::Member => "member",
            Self::Local => "local",
            Self::Lines => "lines",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What it does, in a sentence.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Tokens => "forged and mutated QUIC datagrams, with tokens, 200 a second",
            Self::Initials => "QUIC handshakes begun and abandoned, 40 a second",
            Self::Silent => "300 TCP connections that say nothing, at the node and at the hub",
            Self::Pings => "WebSocket pings whose pongs are not read, at the node and at the relay",
            Self::Http2 => {
                "HTTP/2 resets, CONTINUATION, SETTINGS, PING, empty DATA, 2,000 a second"
            }
            Self::UntrustedPeers => "untrusted peers with wrong tickets, 8 a second, 48 at a time",
            Self::Bodies => "4 peers with endless bodies to `node`, and answers that nobody reads",
            Self::Offers => "a peer that sends a new list of its agents 400 times a second",
            Self::Member => "a member that searches, looks up and floods the relay",
            Self::Local => "a program with thousands of streams and malformed frames",
            Self::Lines => {
                "a peer that sends invalid lines to a program, and cancels calls half-way"
            }
        }
    }

    /// How many of its keys the attacked node trusts.
    #[must_use]
    pub(super) fn peers(self) -> usize {
        match self {
            Self::Bodies => 4,
            Self::Offers | Self::Lines => 1,
            _ => 0,
        }
    }

    /// The agents that those keys may call.
    #[must_use]
    pub(super) fn grant(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            // No agent has this name: they may only call the node's own agent.
            _ => "nothing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in AttackerKind::ALL {
            assert_eq!(AttackerKind::named(kind.name()), Some(kind));
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.name());
        }
        assert_eq!(AttackerKind::named("nobody"), None);
    }
}
