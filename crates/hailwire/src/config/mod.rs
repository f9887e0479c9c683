//! The configuration file, `hail.kdl` in the data folder.
//!
//! Every setting has a default, so that the file may be missing or empty. The file is
//! [KDL 2](https://kdl.dev); what it says wrongly is refused with line and column, and an unknown
//! name is answered with the nearest known one, because a setting that is silently ignored is worse
//! than a node that does not start.
//!
//! ```kdl
//! node { name "desk" }
//! listen { udp "0.0.0.0:4242" "[::]:4242"; tcp "0.0.0.0:4242" }
//! hub "https://hub.example.org"
//! carrier "auto"
//! connection-attempt-delay "250ms"
//! peer "laptop" { carrier "h2" }
//! pool 1
//! limits { max-tunnels 1024; grace "10s"; spin "100us" }
//! messages { attempts 5; pause "1s"; longest-pause "60s" }
//! quic { congestion "auto"; window "128MiB" }
//! log { level "info" }
//! ```
//!
//! [`SETTINGS`] lists every setting with its unit and default; `docs/reference/config.md` is held
//! to it by a test.

mod effective;
mod parse;
mod pool;
mod quic;
mod sections;
mod settings;
#[cfg(test)]
mod tests;
mod written;

use std::{
    fmt::{self, Write as _},
    io,
    path::Path,
    time::Duration,
};

use hailwire_wire::HubUrl;
use serde::Serialize;

pub use effective::{InForce, ValueOrigin, ValueOrigins};
pub use hailwire_core::Carrier;
pub use pool::TunnelPool;
pub use quic::{ByteSize, CongestionControl, QuicSettings, TlsCipher};
pub use sections::{
    LimitSettings, ListenSettings, LogFormat, LogLevel, LogSettings, MessageQuota, MessageSettings,
    NodeSettings, PeerSettings,
};
pub use settings::SETTINGS;
pub use written::WrittenSettings;

pub use hailwire_kdl::{FileError as ConfigError, MAX_FILE, SettingRow};

use parse::parse;

/// The file's name in the data folder.
pub const FILE_NAME: &str = "hail.kdl";

/// What a node is told at its start.
///
/// [`Config::default`] is a node without a name or hub, on two UDP ports chosen by the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// `node { name }`.
    pub node: NodeSettings,
    /// `listen { udp }`.
    pub listen: ListenSettings,
    /// `hub`: URLs of hubs to register at, in addition to those joined by ticket. `https`, or
    /// `http` on loopback only. Default: none. At most [`Config::MAX_HUBS`].
    pub hubs: Vec<HubUrl>,
    /// `carrier`: which carriers tunnels use.
    pub carrier: Carrier,
    /// `connection-attempt-delay`: how long the first carrier of a dial runs alone. Default: 250 ms; from 10 ms to
    /// 2 s (RFC 8305, 8).
    #[serde(serialize_with = "sections::as_text")]
    pub connection_attempt_delay: Duration,
    /// `peer "…" { carrier }`: what holds for single peers. Default: none. At most
    /// [`Config::MAX_PEERS`], the first that is about a peer counts.
    pub peers: Vec<PeerSettings>,
    /// `pool`: how many connections a tunnel consists of.
    pub pool: TunnelPool,
    /// `limits { … }`.
    pub limits: LimitSettings,
    /// `messages { … }`.
    pub messages: MessageSettings,
    /// `quic { … }`.
    pub quic: QuicSettings,
    /// `log { level }`.
    pub log: LogSettings,
    /// Where each value comes from.
    #[serde(skip)]
    pub origins: ValueOrigins,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: NodeSettings::default(),
            listen: ListenSettings::default(),
            hubs: Vec::new(),
            carrier: Carrier::default(),
            connection_attempt_delay: Duration::from_millis(250),
            peers: Vec::new(),
            pool: TunnelPool::default(),
            limits: LimitSettings::default(),
            messages: MessageSettings::default(),
            quic: QuicSettings::default(),
            log: LogSettings::default(),
            origins: ValueOrigins::default(),
        }
    }
}

impl Config {
    /// Most addresses of `listen.udp`.
    pub const MAX_LISTEN: usize = 8;
    /// Most `hub` lines.
    pub const MAX_HUBS: usize = 8;
    /// Most `peer` lines.
    pub const MAX_PEERS: usize = 64;

    /// Reads the file at `path`; a missing file is the default configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the file cannot be read, is larger than [`MAX_FILE`], or is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match hailwire_kdl::read(path) {
            Ok(text) => Self::parse(&text, path),
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Parses the text of a file; `path` is only for messages.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for the first mistake.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        parse(text).map_err(|mistake| mistake.in_file(text, path))
    }

    /// The configuration as a file that sets everything; reading it back gives the same.
    #[must_use]
    pub fn to_kdl(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_kdl(&mut out);
        out
    }

    fn write_kdl(&self, out: &mut String) -> fmt::Result {
        let mut open = "";
        for (path, value) in self.values() {
            let (section, name) = path.split_once('.').unwrap_or(("", path));
            if section != open {
                if !open.is_empty() {
                    writeln!(out, "}}")?;
                }
                if !section.is_empty() {
                    writeln!(out, "{section} {{")?;
                }
                open = section;
            }
            let indent = if section.is_empty() { "" } else { "    " };
            writeln!(out, "{indent}{name} {value}")?;
        }
        if open.is_empty() {
            return Ok(());
        }
        writeln!(out, "}}")
    }
}
