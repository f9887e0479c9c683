//! What the sections of the configuration say, as types with their defaults.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use hailwire_core::{
    Carrier,
    delivery::DeliveryPolicy,
    message_quotas::{MessageRoom, QuotaBounds},
};
use hailwire_wire::{NodeName, address::NodeRef};
use serde::{Serialize, Serializer};

use super::quic::ByteSize;

/// Who the node says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeSettings {
    /// The name that the node offers to peers and hubs. Default: none; it is then known by its key
    /// and by the aliases that others give it.
    pub name: Option<NodeName>,
}

/// Where the node listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ListenSettings {
    /// UDP socket addresses. Port 0 lets the system choose. Default: `0.0.0.0:0` and `[::]:0`. At
    /// most [`Config::MAX_LISTEN`](super::Config::MAX_LISTEN).
    pub udp: Vec<SocketAddr>,
    /// TCP socket addresses, for HTTP/2 and WebSocket. Port 0 lets the system choose. Default: none.
    /// At most [`Config::MAX_LISTEN`](super::Config::MAX_LISTEN).
    pub tcp: Vec<SocketAddr>,
    /// Whether the router before this machine is asked for a UDP port that leads here (UPnP IGD, NAT-PMP, PCP). Default: yes.
    pub port_mapping: bool,
}

impl Default for ListenSettings {
    fn default() -> Self {
        Self {
            udp: vec![
                SocketAddr::from(([0, 0, 0, 0], 0)),
                SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], 0)),
            ],
            tcp: Vec::new(),
            port_mapping: true,
        }
    }
}

/// What holds for one peer and no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerSettings {
    /// Whom it is about: its key, or the alias that this node keeps for it.
    #[serde(serialize_with = "shown")]
    pub who: NodeRef,
    /// Which carriers tunnels to it use, in place of the node's own setting.
    pub carrier: Carrier,
}

/// How durable messages for agents of this node are tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MessageSettings {
    /// How often one is handed to its agent before it is given up, unless it says otherwise. Default: 5; from 1 to
    /// [`MAX_MESSAGE_ATTEMPTS`](hailwire_wire::limits::MAX_MESSAGE_ATTEMPTS).
    pub attempts: u32,
    /// Between the first attempt and the second; it doubles from then on. Default: 1 s; from 10 ms to an hour.
    #[serde(serialize_with = "as_text")]
    pub pause: Duration,
    /// Longest pause between two attempts. Default: 60 s; from 10 ms to a day.
    #[serde(serialize_with = "as_text")]
    pub longest_pause: Duration,
    /// For how long the rows of what has its end are kept, of messages that came and, where their sender does not say, of those that were sent. Default:
    /// 7 days; from 1 s to 30 days.
    #[serde(serialize_with = "as_text")]
    pub keep: Duration,
    /// What may wait of one sender, in each direction: an agent, or all programs of a node that have no name. Default: 50,000 messages
    /// and 512 MiB.
    pub sender_quota: MessageQuota,
    /// What may wait for one agent. Default: 100,000 messages and 1 GiB.
    pub agent_quota: MessageQuota,
    /// What may wait of one other node here, or to leave for it. Default: 100,000 messages and 1 GiB.
    pub peer_quota: MessageQuota,
    /// What may wait in all, in each direction. Default: 400,000 messages and 4 GiB.
    pub total_quota: MessageQuota,
}

/// How many durable messages may wait of or for one, written `messages=50000 bytes="512MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MessageQuota {
    /// How many; at least 1.
    pub messages: u32,
    /// How large their bodies may be together; at least 1 KiB.
    pub bytes: ByteSize,
}

impl MessageQuota {
    const fn room(self) -> MessageRoom {
        MessageRoom {
            messages: self.messages as u64,
            bytes: self.bytes.bytes(),
        }
    }
}

impl fmt::Display for MessageQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "messages={} bytes=\"{}\"", self.messages, self.bytes)
    }
}

impl Default for MessageSettings {
    fn default() -> Self {
        let DeliveryPolicy {
            max_attempts,
            first_pause,
            longest_pause,
        } = DeliveryPolicy::default();
        let quota = |messages, bytes| MessageQuota { messages, bytes };
        Self {
            attempts: max_attempts,
            pause: first_pause,
            longest_pause,
            keep: Duration::from_secs(7 * 24 * 3600),
            sender_quota: quota(50_000, ByteSize::mib(512)),
            agent_quota: quota(100_000, ByteSize::gib(1)),
            peer_quota: quota(100_000, ByteSize::gib(1)),
            total_quota: quota(400_000, ByteSize::gib(4)),
        }
    }
}

impl MessageSettings {
    /// As what decides about messages reads it.
    pub(crate) const fn policy(&self) -> DeliveryPolicy {
        DeliveryPolicy {
            max_attempts: self.attempts,
            first_pause: self.pause,
            longest_pause: self.longest_pause,
        }
    }

    /// As what counts messages reads it.
    pub(crate) const fn quotas(&self) -> QuotaBounds {
        QuotaBounds {
            sender: self.sender_quota.room(),
            agent: self.agent_quota.room(),
            peer: self.peer_quota.room(),
            total: self.total_quota.room(),
        }
    }
}

/// Bounds that the operator chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LimitSettings {
    /// Most peers with a tunnel at once; a further one is refused. Default: 1024. Each connection of a tunnel
    /// costs about 0.1 MB.
    pub max_tunnels: u32,
    /// Time that calls in flight may take to finish when the node stops. Default: 10 s.
    #[serde(serialize_with = "as_text")]
    pub grace: Duration,
    /// How long the node looks for more traffic after some before it sleeps. Default: 100 µs.
    /// Wake-ups are most of what a small call between two machines costs; looking again spares them
    /// for a little processor time while there is traffic. Zero for not at all; at most 10 ms.
    #[serde(serialize_with = "as_text")]
    pub spin: Duration,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            max_tunnels: 1024,
            grace: Duration::from_secs(10),
            spin: Duration::from_micros(100),
        }
    }
}

/// What the node writes about its own doing, on stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LogSettings {
    /// The least important event that is written. Default: `info`. `-v` raises it.
    pub level: LogLevel,
    /// How events are written. Default: `text`. `--log-format json` goes before it.
    pub format: LogFormat,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object on each line.
    Json,
}

impl LogFormat {
    /// The name, as written in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("expected text or json"),
        }
    }
}

/// How important an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For tonight.
    Error,
    /// For tomorrow.
    Warn,
    /// Per lasting change.
    #[default]
    Info,
    /// Per decision.
    Debug,
    /// Per packet.
    Trace,
}

impl LogLevel {
    /// All levels, the most important first.
    pub const ALL: [Self; 5] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// The name, as written in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| "expected error, warn, info, debug or trace".to_owned())
    }
}

pub(super) fn as_text<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

fn shown<S: Serializer>(who: &NodeRef, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(who)
}
