//! How a subject is set up, and what one that serves says of itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Wire, failed};
use crate::BenchError;

/// How a subject is to be set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to serve at. Default: 127.0.0.1.
    pub listen: IpAddr,
    /// QUIC's congestion control. Default: the subject's own.
    pub congestion: Option<Congestion>,
    /// Bytes of one stream that may be unread; a connection has 16 times that. Default: 2 MiB.
    pub window: Option<u32>,
    /// What the two sides find each other through: a relay proxy for plain HTTP/2, instead of listening; for
    /// [`Subject::RawUdp`] another one of it.
    pub through: Option<SocketAddr>,
    /// What the far node said of itself, in JSON. Only [`Subject::Node`].
    pub peer: Option<String>,
    /// A ticket of the hub at which nodes find each other. Only sessions.
    pub hub: Option<String>,
    /// On which path work is done; it is waited for. Only sessions at a hub.
    pub path: Option<Path>,
    /// Connections of a warm tunnel that is shared, from 1 to [`Pool::MAX`](hailwire::config::Pool::MAX); work
    /// begins when all are up. Default: the node's own, not waited for. Only sessions.
    pub pool: Option<u32>,
    /// How callouts travel. Default: in MessagePack over a Unix socket. Only [`Subject::Callout`].
    pub callout: Wire,
}

/// How two nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// From address to address.
    Direct,
    /// Through the hub's relay.
    Relay,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: Ipv4Addr::LOCALHOST.into(),
            congestion: None,
            window: None,
            through: None,
            peer: None,
            hub: None,
            path: None,
            pool: None,
            callout: Wire::default(),
        }
    }
}

/// QUIC congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// BBR version 3.
    Bbr,
    /// CUBIC (RFC 9438).
    Cubic,
}

impl Congestion {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }
}

/// What a program that serves says of itself. A program of somebody else's gives an address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ready {
    /// Where to reach it: `ip:port`.
    pub address: String,
    /// Its key, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its certificate in hex, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// From which the keys of the nodes that it trusts are drawn.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seed: String,
    /// The data folder of its node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// Where it can be reached over TCP, where that is another address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tcp: String,
    /// A ticket, where it is a hub.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ticket: String,
}

impl Ready {
    pub(super) fn socket(&self) -> Result<SocketAddr, BenchError> {
        self.address.parse().map_err(failed("the address"))
    }
}
