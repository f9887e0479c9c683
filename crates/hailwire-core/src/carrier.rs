//! Carriers by name, and the transport protocols beneath them.

use std::str::FromStr;

use serde::Serialize;

/// Which carriers tunnels use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Whichever measures better: QUIC first, TCP where it helps.
    #[default]
    Auto,
    /// QUIC over UDP only.
    Quic,
    /// HTTP/2 over TCP only.
    H2,
    /// WebSocket over TCP only.
    Ws,
}

impl Carrier {
    /// The name, as written in the file and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Quic => "quic",
            Self::H2 => "h2",
            Self::Ws => "ws",
        }
    }

    /// Whether tunnels may go over UDP.
    #[must_use]
    pub const fn takes_udp(self) -> bool {
        matches!(self, Self::Auto | Self::Quic)
    }

    /// Whether tunnels may go over TCP.
    #[must_use]
    pub const fn takes_tcp(self) -> bool {
        !matches!(self, Self::Quic)
    }
}

impl FromStr for Carrier {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Quic, Self::H2, Self::Ws]
            .into_iter()
            .find(|carrier| carrier.name() == text)
            .ok_or("expected auto, quic, h2 or ws")
    }
}

/// Which transport protocol a tunnel stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// UDP: the carrier is QUIC.
    Udp,
    /// TCP: the carrier is HTTP/2 or WebSocket.
    Tcp,
}

impl Transport {
    /// UDP first.
    pub const BOTH: [Self; 2] = [Self::Udp, Self::Tcp];

    /// That of a carrier; `None` where both are open.
    #[must_use]
    pub const fn of(carrier: Carrier) -> Option<Self> {
        match carrier {
            Carrier::Auto => None,
            Carrier::Quic => Some(Self::Udp),
            Carrier::H2 | Carrier::Ws => Some(Self::Tcp),
        }
    }

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Udp => Self::Tcp,
            Self::Tcp => Self::Udp,
        }
    }

    /// Its name, as logs and reasons have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Carrier; 4] = [Carrier::Auto, Carrier::Quic, Carrier::H2, Carrier::Ws];

    #[test]
    fn a_carrier_is_written_as_it_is_read() {
        let names = ALL.map(Carrier::name);
        assert_eq!(names, ["auto", "quic", "h2", "ws"]);
        for carrier in ALL {
            assert_eq!(carrier.name().parse(), Ok(carrier));
            assert_eq!(Carrier::default() == carrier, carrier == Carrier::Auto);
        }
        for other in ["", "QUIC", "tcp", "h2 "] {
            let refused = other.parse::<Carrier>();
            assert_eq!(refused, Err("expected auto, quic, h2 or ws"), "{other}");
        }
    }

    #[test]
    fn quic_goes_over_udp_the_others_over_tcp_and_auto_over_both() {
        for (carrier, udp, tcp) in [
            (Carrier::Auto, true, true),
            (Carrier::Quic, true, false),
            (Carrier::H2, false, true),
            (Carrier::Ws, false, true),
        ] {
            assert_eq!((carrier.takes_udp(), carrier.takes_tcp()), (udp, tcp));
            let only = Transport::of(carrier);
            assert_eq!(only == Some(Transport::Udp), udp && !tcp, "{carrier:?}");
            assert_eq!(only == Some(Transport::Tcp), tcp && !udp, "{carrier:?}");
        }
    }

    #[test]
    fn there_are_two_transports_and_each_is_the_others_other() {
        assert_eq!(Transport::BOTH.map(Transport::name), ["udp", "tcp"]);
        for transport in Transport::BOTH {
            assert_ne!(transport.other(), transport);
            assert_eq!(transport.other().other(), transport);
        }
    }
}
