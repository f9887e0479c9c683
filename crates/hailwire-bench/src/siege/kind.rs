//! Who attacks.

use serde::{Deserialize, Serialize};

/// A kind of attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
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
    Strangers,
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

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Tokens,
        Self::Initials,
        Self::Silent,
        Self::Pings,
        Self::Http2,
        Self::Strangers,
        Self::Bodies,
        Self::Offers,
        Self::Member,
        Self::Local,
        Self::Lines,
    ];

    /// Its word on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Initials => "initials",
            Self::Silent => "silent",
            Self::Pings => "pings",
            Self::Http2 => "http2",
            Self::Strangers => "strangers",
            Self::Bodies => "bodies",
            Self::Offers => "offers",
            Self::Member => "member",
            Self::Local => "local",
            Self::Lines => "lines",
        }
    }

    /// By its word.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What it does, in a sentence.
    #[must_use]
    pub fn story(self) -> &'static str {
        match self {
            Self::Tokens => "forged and mutated QUIC datagrams, with tokens, 200 a second",
            Self::Initials => "QUIC handshakes begun and abandoned, 40 a second",
            Self::Silent => "300 TCP connections that say nothing, at the node and at the hub",
            Self::Pings => "WebSocket pings whose pongs are not read, at the node and at the relay",
            Self::Http2 => {
                "HTTP/2 resets, CONTINUATION, SETTINGS, PING, empty DATA, 2,000 a second"
            }
            Self::Strangers => "strangers with wrong tickets, 8 a second, 48 at a time",
            Self::Bodies => "4 peers with endless bodies to `node`, and answers that nobody reads",
            Self::Offers => "a peer that lists its agents anew 400 times a second",
            Self::Member => "a member that searches, looks up and floods the relay",
            Self::Local => "a program with thousands of streams and malformed frames",
            Self::Lines => "a peer that asks a kept program what is no line, and gives up half-way",
        }
    }

    /// How many keys the node trusts for it.
    #[must_use]
    pub(super) fn peers(self) -> usize {
        match self {
            Self::Bodies => 4,
            Self::Offers | Self::Lines => 1,
            _ => 0,
        }
    }

    /// What those may call at the node.
    #[must_use]
    pub(super) fn grant(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            // There is no such agent: they may call nothing but what the node itself answers.
            _ => "nothing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(kind));
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.name());
        }
        assert_eq!(Kind::named("nobody"), None);
    }
}
