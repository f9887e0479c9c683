//! What is in force, and why: the configuration with its origins, and what nobody can choose.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Config, LimitSettings, MessageSettings, QuicSettings, SETTINGS, quic::has_aes};

/// One setting with the value in force: a row of `hail config show --effective`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Where it stands, for example `quic.window`.
    pub setting: String,
    /// The value as written in the file; `none` where there is none.
    pub value: String,
    /// `default`, `host`, `file`, `flag`, or `engine: …` with what fixes it.
    pub why: String,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Nobody chose it.
    #[default]
    Default,
    /// Nobody chose it, so it follows the machine: the name of the host.
    Host,
    /// `hail.kdl`.
    File,
    /// The command line.
    Flag,
}

impl ValueOrigin {
    const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Host => "host",
            Self::File => "file",
            Self::Flag => "flag",
        }
    }
}

/// Where the values of a configuration come from. Two configurations that say the same are equal
/// whoever said it.
#[derive(Clone, Debug, Default)]
pub struct ValueOrigins(BTreeMap<&'static str, ValueOrigin>);

impl PartialEq for ValueOrigins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ValueOrigins {}

impl ValueOrigins {
    /// Notes where the value of a setting comes from; an unknown setting is ignored.
    pub fn note(&mut self, path: &str, origin: ValueOrigin) {
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.path == path) {
            self.0.insert(setting.path, origin);
        }
    }

    pub(super) fn of(&self, path: &str) -> ValueOrigin {
        self.0.get(path).copied().unwrap_or_default()
    }
}

impl Config {
    /// Every setting with the value in force and where it comes from, then what the engine fixes.
    #[must_use]
    pub fn in_force(&self) -> Vec<InForce> {
        let values = self.values();
        let mut rows = Vec::new();
        for setting in SETTINGS {
            let of_setting: Vec<&str> = values
                .iter()
                .filter(|(path, _)| *path == setting.path)
                .map(|(_, value)| value.as_str())
                .collect();
            let value = match of_setting.as_slice() {
                [] => "none".to_owned(),
                values => values.join(" "),
            };
            rows.push(InForce {
                setting: setting.path.to_owned(),
                value,
                why: self.origins.of(setting.path).name().to_owned(),
            });
        }
        rows.extend(fixed(&self.quic));
        rows
    }

    /// Each setting that has a value, as the file writes it, in the file's order.
    pub(super) fn values(&self) -> Vec<(&'static str, String)> {
        let mut values = Vec::new();
        let text = |text: &dyn std::fmt::Display| format!("\"{text}\"");
        let addresses = |addresses: &[std::net::SocketAddr]| {
            let texts: Vec<String> = addresses.iter().map(|a| text(a)).collect();
            texts.join(" ")
        };
        if let Some(name) = &self.node.name {
            values.push(("node.name", text(name)));
        }
        values.push(("listen.udp", addresses(&self.listen.udp)));
        if !self.listen.tcp.is_empty() {
            values.push(("listen.tcp", addresses(&self.listen.tcp)));
        }
        values.push((
            "listen.port-mapping",
            format!("#{}", self.listen.port_mapping),
        ));
        values.extend(self.hubs.iter().map(|hub| ("hub", text(hub))));
        values.push(("carrier", text(&self.carrier.name())));
        let connection_attempt_delay = humantime::format_duration(self.connection_attempt_delay);
        values.push(("connection-attempt-delay", text(&connection_attempt_delay)));
        values.extend(self.peers.iter().map(|peer| {
            let carrier = peer.carrier.name();
            (
                "peer",
                format!("\"{}\" {{ carrier \"{carrier}\" }}", peer.who),
            )
        }));
        values.push(("pool", self.pool.to_string()));
        let LimitSettings {
            max_tunnels,
            grace,
            spin,
        } = &self.limits;
        values.push(("limits.max-tunnels", max_tunnels.to_string()));
        values.push(("limits.grace", text(&humantime::format_duration(*grace))));
        values.push(("limits.spin", text(&humantime::format_duration(*spin))));
        let MessageSettings {
            attempts,
            pause,
            longest_pause,
            keep,
            sender_quota,
            agent_quota,
            peer_quota,
            total_quota,
        } = &self.messages;
        values.push(("messages.attempts", attempts.to_string()));
        let pause = humantime::format_duration(*pause);
        values.push(("messages.pause", text(&pause)));
        let longest_pause = humantime::format_duration(*longest_pause);
        values.push(("messages.longest-pause", text(&longest_pause)));
        let keep = humantime::format_duration(*keep);
        values.push(("messages.keep", text(&keep)));
        for (path, quota) in [
            ("messages.sender-quota", sender_quota),
            ("messages.agent-quota", agent_quota),
            ("messages.peer-quota", peer_quota),
            ("messages.total-quota", total_quota),
        ] {
            values.push((path, quota.to_string()));
        }
        values.extend(self.quic.values());
        values.push(("log.level", text(&self.log.level.name())));
        values.push(("log.format", text(&self.log.format.name())));
        values
    }
}

/// What no setting changes, and what fixes it.
fn fixed(quic: &QuicSettings) -> Vec<InForce> {
    let aes = match has_aes() {
        true => "with",
        false => "without",
    };
    let (_, first) = quic.cipher.suite();
    [
        (
            "quic.gro",
            "on".to_owned(),
            "engine: on wherever the kernel has it",
        ),
        (
            "quic.migration",
            "on".to_owned(),
            "engine: a tunnel outlives a change of address (RFC 9000, 9)",
        ),
        (
            "quic.path-idle-timeout",
            "\"15s\"".to_owned(),
            "engine: a path that is silent for longer is closed",
        ),
        (
            "quic.max-paths-least",
            "8".to_owned(),
            "engine: fewer would leave hole punching no room",
        ),
        (
            "quic.segments",
            "10".to_owned(),
            "engine: most packets in one GSO call",
        ),
        (
            "quic.crypto",
            format!("ring, {aes} AES instructions of this processor; {first} is offered first"),
            "built in: TLS 1.3 with the node's key (RFC 7250); a node dialled by another takes what \
             that one offers first",
        ),
    ]
    .into_iter()
    .map(|(setting, value, why)| InForce {
        setting: setting.to_owned(),
        value,
        why: why.to_owned(),
    })
    .collect()
}
