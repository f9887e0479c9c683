//! The options of a subject, and what a serving one reports when it is ready.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hailwire::config::TunnelPool;
use serde::{Deserialize, Serialize};

use super::{CalloutWire, failed};
use crate::BenchError;

/// The options of a subject. They are command-line options too, so that each is described in one place.
#[derive(Clone, Debug, clap::Args)]
pub struct SubjectSetup {
    /// Address to serve at
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub listen: IpAddr,
    /// QUIC congestion control [default: the subject's own]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<CongestionControl>,
    /// Bytes of one stream that may be unread; a connection has 16 times that [default: the subject's own]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..))]
    pub window: Option<u32>,
    /// What both sides find each other through: a relay proxy for plain-h2, another udp-echo for udp-echo
    #[arg(long, value_name = "IP:PORT")]
    pub through: Option<SocketAddr>,
    /// What the serving node printed when it was ready, in JSON; only node
    #[arg(long, value_name = "READY", hide = true)]
    pub peer: Option<String>,
    /// A ticket of the hub that both nodes join, instead of knowing each other's address; only sessions
    #[arg(long, value_name = "TICKET")]
    pub hub: Option<String>,
    /// Measure only on this path, which is waited for; only sessions at a hub
    #[arg(long, value_name = "PATH")]
    pub path: Option<NodePath>,
    /// Connections of a warm tunnel, waited for before work begins; only sessions [default: the node's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(TunnelPool::MAX)))]
    pub pool: Option<u32>,
    /// How callouts travel; only callout
    #[arg(long, value_name = "WIRE", value_enum, default_value_t)]
    pub callout: CalloutWire,
}

/// How two nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NodePath {
    /// Directly, from address to address.
    Direct,
    /// Through the hub's relay.
    Relay,
}

impl Default for SubjectSetup {
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
            callout: CalloutWire::default(),
        }
    }
}

/// QUIC congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// BBR version 3.
    Bbr,
    /// CUBIC (RFC 9438).
    Cubic,
}

impl CongestionControl {
    /// Its name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }
}

/// What a serving program reports when it is ready. A foreign program gives an address only.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadyAddress {
    /// Where to reach it: `ip:port`.
    pub address: String,
    /// Its key, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its certificate in hex, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// The seed from which the keys of the nodes that it trusts are derived.
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

impl ReadyAddress {
    pub(super) fn socket(&self) -> Result<SocketAddr, BenchError> {
        self.address.parse().map_err(failed("parsing the address"))
    }
}
