//! The changes of a network, and what each may cost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkChange {
    /// The NAT of the node that reads forgets.
    RebindNear,
    /// The NAT of the node that is read from forgets.
    RebindFar,
    /// Both forget.
    RebindBoth,
    /// Both forget while nothing is in flight.
    RebindIdle,
    /// UDP is blocked from now on.
    UdpBlocked,
    /// The node that reads has another address.
    Move,
    /// Its interface is down for 3 s.
    #[value(name = "down-3s")]
    #[serde(rename = "down-3s")]
    Down3,
    /// Its interface is down for 10 s.
    #[value(name = "down-10s")]
    #[serde(rename = "down-10s")]
    Down10,
    /// It sleeps for 10 s.
    Sleep,
    /// The node that is read from is killed and starts again.
    Restart,
    /// The hub is killed, and starts again after 5 s.
    HubRestart,
    /// One of two hubs is killed.
    OneHubDown,
}

impl NetworkChange {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::RebindNear,
        Self::RebindFar,
        Self::RebindBoth,
        Self::RebindIdle,
        Self::UdpBlocked,
        Self::Move,
        Self::Down3,
        Self::Down10,
        Self::Sleep,
        Self::Restart,
        Self::HubRestart,
        Self::OneHubDown,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RebindNear => "rebind-near",
            Self::RebindFar => "rebind-far",
            Self::RebindBoth => "rebind-both",
            Self::RebindIdle => "rebind-idle",
            Self::UdpBlocked => "udp-blocked",
            Self::Move => "move",
            Self::Down3 => "down-3s",
            Self::Down10 => "down-10s",
            Self::Sleep => "sleep",
            Self::Restart => "restart",
            Self::HubRestart => "hub-restart",
            Self::OneHubDown => "one-hub-down",
        }
    }

    /// What it is, in one line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::RebindNear => "the reader's NAT forgets its mappings and gives other ports",
            Self::RebindFar => "the other node's NAT does",
            Self::RebindBoth => "both do",
            Self::RebindIdle => "both do, while nothing is in flight",
            Self::UdpBlocked => "a firewall drops UDP from now on",
            Self::Move => "the reader has another address from now on",
            Self::Down3 => "the reader's interface is down for 3 s",
            Self::Down10 => "the reader's interface is down for 10 s",
            Self::Sleep => "the reader's node is stopped for 10 s, as by a lid that closes",
            Self::Restart => "the other node is killed and starts again",
            Self::HubRestart => "the only hub is killed and starts again after 5 s",
            Self::OneHubDown => "one of two hubs is killed and stays away",
        }
    }

    /// Whether it changes nothing for who has no direct path.
    #[must_use]
    pub const fn needs_direct(self) -> bool {
        matches!(self, Self::UdpBlocked)
    }

    /// Whether the stream may end with it: what it was read from is gone, or nothing came for so long that the tunnel is given
    /// up with calls in flight (after 5 s).
    #[must_use]
    pub fn ends_streams(self, path: &str) -> bool {
        match self {
            Self::Restart | Self::Down10 | Self::Sleep => true,
            Self::HubRestart => path == "relay",
            _ => false,
        }
    }

    /// Whether the network is not whole for a time.
    pub(super) const fn lasts(self) -> bool {
        matches!(
            self,
            Self::Down3 | Self::Down10 | Self::Sleep | Self::Restart | Self::HubRestart
        )
    }

    /// How many hubs the nodes have joined.
    pub(super) const fn hubs(self) -> usize {
        match self {
            Self::OneHubDown => 2,
            _ => 1,
        }
    }

    /// How long the silence after the outage, and the first new call, may take.
    #[must_use]
    pub const fn aim(self) -> Duration {
        match self {
            Self::Move => Duration::from_secs(3),
            Self::Restart => Duration::from_secs(2),
            Self::HubRestart | Self::OneHubDown => Duration::from_secs(5),
            _ => Duration::from_secs(4),
        }
    }
}
