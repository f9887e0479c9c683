//! The settings of a hub.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use hailwire_core::relay_share::RelayRates;
use hailwire_wire::{HubUrl, directory::MemberTrust};

/// The TCP port that a hub listens on by default.
pub const DEFAULT_PORT: u16 = 7443;

/// The settings of a hub. [`HubConfig::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The folder of the key and the database; created with mode 0700 if missing.
    pub data_dir: PathBuf,
    /// TCP address of directory and relay. Default `0.0.0.0:7443`; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// UDP port of address discovery, on the same IP address. Default: the number of the TCP port;
    /// when the system chose that one, the system chooses this one too.
    pub udp_port: Option<u16>,
    /// The URL at which nodes reach the hub, as written into tickets. Default: derived from `listen`; for an
    /// unspecified address, the address from which this machine would reach the Internet.
    pub url: Option<HubUrl>,
    /// How connections are protected. Default [`TlsMode::OwnKey`].
    pub tls: TlsMode,
    /// Whom members trust because of their membership. Default [`MemberTrust::Nobody`].
    pub trust: MemberTrust,
    /// Which agents members see. Default: [`AgentVisibility::for_trust`] by `trust`.
    pub listing: Option<AgentVisibility>,
    /// How long a name stays bound to its holder's key after the last record. Default 30 days.
    pub name_hold: Duration,
    /// What the hub holds of sealed messages.
    pub hold: HoldBounds,
    /// Bounds on the hub's memory and work.
    pub bounds: HubBounds,
    /// The clock, in unix seconds. Default: the system's.
    pub clock: fn() -> u64,
}

impl HubConfig {
    /// The defaults, for a data folder.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: (Ipv4Addr::UNSPECIFIED, DEFAULT_PORT).into(),
            udp_port: None,
            url: None,
            tls: TlsMode::OwnKey,
            trust: MemberTrust::Nobody,
            listing: None,
            name_hold: Duration::from_secs(30 * 24 * 3600),
            hold: HoldBounds::default(),
            bounds: HubBounds::default(),
            clock: system_clock,
        }
    }
}

/// What is held at most, in bytes of sealed batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldBounds {
    /// In all. Default 256 MiB; 0 holds nothing.
    pub bytes: u64,
    /// From one sender, and as much for one receiver. Default 16 MiB.
    pub bytes_of_one: u64,
    /// How long a batch is held. Default 6 days, which is as long as a receiver takes it.
    pub seconds: u64,
}

impl Default for HoldBounds {
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            bytes_of_one: 16 << 20,
            seconds: hailwire_wire::limits::MAX_HELD_AGE_S,
        }
    }
}

/// Which agents members can see. Names and keys can be looked up in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentVisibility {
    /// The agents of all members.
    Members,
    /// Its own agents, and those that other members show to it.
    Trusted,
}

impl AgentVisibility {
    /// The default for a hub's trust setting: a member that may not call an agent does not see it.
    #[must_use]
    pub fn for_trust(trust: MemberTrust) -> Self {
        match trust {
            MemberTrust::Members => Self::Members,
            MemberTrust::Nobody => Self::Trusted,
        }
    }
}

/// How the TCP port is protected. Address discovery on UDP always uses TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS 1.3 with a certificate that the hub signs with its own key, which tickets name.
    #[default]
    OwnKey,
    /// TLS 1.3 with a public certificate; tickets name no key.
    Files {
        /// PEM file with the certificate chain, the hub's own certificate first.
        certificate: PathBuf,
        /// PEM file with its private key.
        key: PathBuf,
    },
    /// Plain HTTP, on loopback only: for tests, or behind a reverse proxy on the same machine.
    Plain,
}

/// Bounds on the hub's memory and work.
#[derive(Clone, Debug)]
pub struct HubBounds {
    /// Most members. Default 10,000. Each costs at most two copies of its record on disk, and 1,024 rows for the
    /// nodes that it shows its agents to.
    pub members: u32,
    /// Most connections that are not yet an established relay connection. Default 1,024.
    pub connections: usize,
    /// Most of those connections from one address (one /64 in IPv6). Default 128.
    pub connections_per_address: usize,
    /// Time for each step of connection setup: the TLS handshake, a request's header, the
    /// proof of a key to the relay. Default 10 s.
    pub handshake: Duration,
    /// Wrong tickets that one address may present per minute. Default 10.
    pub bad_tickets_per_minute: u32,
    /// Records that one member may publish per minute. Default 60.
    pub records_per_minute: u32,
    /// Look-ups, and pages of members, that one member may ask for per minute. Default 600.
    pub lookups_per_minute: u32,
    /// Requests for leases that one member may make per minute: each renewal is one. Default 1,200.
    pub lease_requests_per_minute: u32,
    /// Pages of searches that one member may ask for per minute. Default 240.
    pub searches_per_minute: u32,
    /// Searches of one member under way at once. Default 2.
    pub searches_at_once: usize,
    /// Relay connections of one member. Default 8.
    pub relay_connections_per_member: usize,
    /// What the relay carries in all, which the members that send share fairly, and for each of them. Default unlimited.
    pub relay_rates: RelayRates,
}

impl Default for HubBounds {
    fn default() -> Self {
        Self {
            members: 10_000,
            connections: 1024,
            connections_per_address: 128,
            handshake: Duration::from_secs(10),
            bad_tickets_per_minute: 10,
            records_per_minute: 60,
            lookups_per_minute: 600,
            lease_requests_per_minute: 1200,
            searches_per_minute: 240,
            searches_at_once: 2,
            relay_connections_per_member: 8,
            relay_rates: RelayRates::default(),
        }
    }
}

/// The system's clock in unix seconds; 0 before 1970.
pub(crate) fn system_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
