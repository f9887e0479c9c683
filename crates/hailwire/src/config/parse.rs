//! From the text of `hail.kdl` to a [`Config`], or to the first mistake and its place.

use std::{ops::RangeInclusive, time::Duration};

use hailwire_kdl::{
    DurationText, KdlDocument, KdlIdentifier, KdlNode, SeenNames, TextMistake, document, number,
    only, section, settings, several, single, unknown, value, whole, within, written_time, yes,
};

use hailwire_wire::limits;

use super::{
    ByteSize, Config, MessageQuota, MessageSettings, PeerSettings, QuicSettings, TunnelPool,
    ValueOrigin,
};

pub(super) fn parse(text: &str) -> Result<Config, TextMistake> {
    let document = document(text)?;
    let mut config = Config::default();
    let mut seen = SeenNames::default();
    for node in document.nodes() {
        match node.name().value() {
            "node" => section(node, "node", &["name"], |inner| {
                config.node.name = Some(single(inner)?);
                Ok(())
            })?,
            "listen" => section(node, "listen", &["udp", "tcp", "port-mapping"], |inner| {
                match inner.name().value() {
                    "udp" => config.listen.udp = several(inner, Config::MAX_LISTEN)?,
                    "tcp" => config.listen.tcp = several(inner, Config::MAX_LISTEN)?,
                    _ => config.listen.port_mapping = yes(inner)?,
                }
                Ok(())
            })?,
            "carrier" => config.carrier = single(node)?,
            "connection-attempt-delay" => {
                let range = Duration::from_millis(10)..=Duration::from_secs(2);
                let given = single::<DurationText>(node)?.0;
                config.connection_attempt_delay = within(node, given, range, written_time)?;
            }
            "peer" => {
                peer(node, &mut config.peers)?;
                continue;
            }
            "pool" => config.pool = pool(node)?,
            "quic" => quic(node, &mut config.quic)?,
            "hub" => {
                let url = single(node)?;
                if config.hubs.len() == Config::MAX_HUBS {
                    let what = format!("more than {} hubs", Config::MAX_HUBS);
                    return Err(TextMistake::of(node, what));
                }
                config.hubs.push(url);
                continue;
            }
            "limits" => section(node, "limits", &["max-tunnels", "grace", "spin"], |inner| {
                match inner.name().value() {
                    "max-tunnels" => config.limits.max_tunnels = count(inner)?,
                    "grace" => config.limits.grace = single::<DurationText>(inner)?.0,
                    _ => config.limits.spin = single::<DurationText>(inner)?.0,
                }
                Ok(())
            })?,
            "messages" => messages(node, &mut config.messages)?,
            "log" => section(node, "log", &["level", "format"], |inner| {
                match inner.name().value() {
                    "level" => config.log.level = single(inner)?,
                    _ => config.log.format = single(inner)?,
                }
                Ok(())
            })?,
            _ => {
                let known = [
                    "node",
                    "listen",
                    "hub",
                    "carrier",
                    "connection-attempt-delay",
                    "pool",
                    "peer",
                    "limits",
                    "messages",
                    "quic",
                    "log",
                ];
                return Err(unknown(node, "", &known));
            }
        }
        seen.once(node)?;
    }
    note_origins(&document, &mut config);
    Ok(config)
}

/// Notes what the file sets.
fn note_origins(document: &KdlDocument, config: &mut Config) {
    for node in document.nodes() {
        let name = node.name().value();
        config.origins.note(name, ValueOrigin::File);
        for inner in node.iter_children() {
            let path = format!("{name}.{}", inner.name().value());
            config.origins.note(&path, ValueOrigin::File);
        }
    }
}

/// `peer "…" { … }`.
fn peer(node: &KdlNode, peers: &mut Vec<PeerSettings>) -> Result<(), TextMistake> {
    let at = |what: String| TextMistake::of(node, what);
    let [who] = node.entries() else {
        let hint = "write: peer \"laptop\" { carrier \"h2\" }";
        return Err(at("`peer` takes a key or an alias".into()).hint(hint));
    };
    if who.name().is_some() {
        return Err(at("`peer` has no properties".into()));
    }
    let who = value(node, who)?;
    if peers.iter().any(|peer| peer.who == who) {
        return Err(at(format!("`peer` is set twice for {who}")));
    }
    if peers.len() == Config::MAX_PEERS {
        return Err(at(format!("more than {} peers", Config::MAX_PEERS)));
    }
    let mut carrier = None;
    settings(node, "peer", &["carrier"], |inner| {
        carrier = Some(single(inner)?);
        Ok(())
    })?;
    let Some(carrier) = carrier else {
        let hint = format!("write: peer \"{who}\" {{ carrier \"h2\" }}");
        return Err(at("`peer` says nothing about it".into()).hint(hint));
    };
    peers.push(PeerSettings { who, carrier });
    Ok(())
}

/// `quic { … }`.
fn quic(node: &KdlNode, quic: &mut QuicSettings) -> Result<(), TextMistake> {
    const MOST: u32 = 1 << 16;
    const MOST_BYTES: ByteSize = ByteSize::mib(1024);
    let known = QuicSettings::default()
        .values()
        .map(|(path, _)| path.trim_start_matches("quic."));
    section(node, "quic", &known, |inner| {
        let time = |from: u64, to: u64| {
            let range = Duration::from_millis(from)..=Duration::from_millis(to);
            let given = single::<DurationText>(inner)?.0;
            within(inner, given, range, written_time)
        };
        match inner.name().value() {
            "congestion" => quic.congestion = single(inner)?,
            "streams" => quic.streams = number(inner, 100..=MOST)?,
            "uni-streams" => quic.uni_streams = number(inner, 0..=MOST)?,
            "stream-window" => quic.stream_window = size(inner, ByteSize::mib(2)..=MOST_BYTES)?,
            "window" => quic.window = size(inner, ByteSize::mib(8)..=MOST_BYTES)?,
            "send-window" => quic.send_window = size(inner, ByteSize::mib(1)..=MOST_BYTES)?,
            "initial-window" => {
                quic.initial_window = size(inner, ByteSize::ZERO..=ByteSize::mib(1))?;
            }
            "idle-timeout" => quic.idle_timeout = time(1_000, 600_000)?,
            "path-silence" => quic.path_silence = time(1_000, 15_000)?,
            "keep-alive" => quic.keep_alive = time(100, 5_000)?,
            "socket-buffer" => {
                let range = ByteSize::kib(64)..=ByteSize::mib(1024);
                quic.socket_buffer = within(inner, single(inner)?, range, ByteSize::to_string)?;
            }
            "cipher" => quic.cipher = single(inner)?,
            "ack-frequency" => quic.ack_frequency = yes(inner)?,
            "ack-delay" => quic.ack_delay = time(1, 25)?,
            "ack-every" => quic.ack_every = number(inner, 1..=64)?,
            "gso" => quic.gso = yes(inner)?,
            "mtu-discovery" => quic.mtu_discovery = yes(inner)?,
            "mtu-max" => quic.mtu_max = number(inner, 1200..=65527)?,
            "max-paths" => quic.max_paths = number(inner, 8..=64)?,
            "zero-rtt" => quic.zero_rtt = yes(inner)?,
            _ => quic.sessions = number(inner, 1..=MOST)?,
        }
        Ok(())
    })?;
    if quic.window.bytes_u32() / 4 < quic.stream_window.bytes_u32() {
        let what = "`window` is less than four times `stream-window`";
        let hint = "a few readers that stall would hold up everybody else";
        return Err(TextMistake::of(node, what).hint(hint));
    }
    Ok(())
}

/// `pool "rule"` or `pool N`.
fn pool(node: &KdlNode) -> Result<TunnelPool, TextMistake> {
    if only(node)?.value().is_string() {
        return single(node);
    }
    whole(only(node)?, 1..=TunnelPool::MAX, || {
        let (name, most) = (node.name().value(), TunnelPool::MAX);
        format!("`{name}` is \"rule\" or a whole number from 1 to {most}")
    })
    .map(TunnelPool::Fixed)
}

fn messages(node: &KdlNode, settings: &mut MessageSettings) -> Result<(), TextMistake> {
    const LEAST_PAUSE: Duration = Duration::from_millis(10);
    let pause = |inner: &KdlNode, most: Duration| {
        let given = single::<DurationText>(inner)?.0;
        within(inner, given, LEAST_PAUSE..=most, written_time)
    };
    let known = [
        "attempts",
        "pause",
        "longest-pause",
        "keep",
        "sender-quota",
        "agent-quota",
        "peer-quota",
        "total-quota",
    ];
    section(node, "messages", &known, |inner| {
        match inner.name().value() {
            "attempts" => {
                settings.attempts = number(inner, 1..=limits::MAX_MESSAGE_ATTEMPTS)?;
            }
            "pause" => settings.pause = pause(inner, Duration::from_secs(3600))?,
            "keep" => {
                let given = single::<DurationText>(inner)?.0;
                let range = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 3600);
                settings.keep = within(inner, given, range, written_time)?;
            }
            "sender-quota" => quota(inner, &mut settings.sender_quota)?,
            "agent-quota" => quota(inner, &mut settings.agent_quota)?,
            "peer-quota" => quota(inner, &mut settings.peer_quota)?,
            "total-quota" => quota(inner, &mut settings.total_quota)?,
            _ => settings.longest_pause = pause(inner, Duration::from_secs(24 * 3600))?,
        }
        Ok(())
    })
}

/// What may wait, as properties; one that is not named stays as it is.
fn quota(node: &KdlNode, quota: &mut MessageQuota) -> Result<(), TextMistake> {
    const LEAST_BYTES: ByteSize = ByteSize::kib(1);
    const MOST_BYTES: ByteSize = ByteSize::gib(1024);
    let what = || {
        let name = node.name().value();
        format!("`{name}` is messages=, a whole number of at least 1, and bytes=, a size")
    };
    if node.entries().is_empty() || node.children().is_some() {
        return Err(TextMistake::of(node, what()));
    }
    for entry in node.entries() {
        match entry.name().map(KdlIdentifier::value) {
            Some("messages") => quota.messages = whole(entry, 1.., what)?,
            Some("bytes") => {
                let given = value(node, entry)?;
                quota.bytes = within(node, given, LEAST_BYTES..=MOST_BYTES, ByteSize::to_string)?;
            }
            _ => return Err(TextMistake::in_value(entry, what())),
        }
    }
    Ok(())
}

/// A whole number of at least 1.
fn count(node: &KdlNode) -> Result<u32, TextMistake> {
    let what = || format!("`{}` is a whole number of at least 1", node.name().value());
    whole(only(node)?, 1.., what)
}

/// A size within a range.
fn size(node: &KdlNode, range: RangeInclusive<ByteSize>) -> Result<ByteSize, TextMistake> {
    within(node, single(node)?, range, ByteSize::to_string)
}
