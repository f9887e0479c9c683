//! From the text of `hail.kdl` to a [`Config`], or to the first mistake and its place.

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

use kdl::{KdlDocument, KdlEntry, KdlNode};

use super::{Config, Origin, PeerSettings, Pool, Quic, Size};

/// A mistake at a byte offset of the text.
pub(super) struct Mistake {
    pub(super) offset: usize,
    pub(super) what: String,
    pub(super) hint: String,
}

impl Mistake {
    fn at(offset: usize, what: impl Into<String>) -> Self {
        Self {
            offset,
            what: what.into(),
            hint: String::new(),
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

pub(super) fn parse(text: &str) -> Result<Config, Mistake> {
    let document = KdlDocument::parse_v2(text).map_err(|error| syntax(&error))?;
    let mut config = Config::default();
    let mut seen = Seen::default();
    for node in document.nodes() {
        match node.name().value() {
            "node" => section(node, "node", &["name"], |inner| {
                config.node.name = Some(single(inner)?);
                Ok(())
            })?,
            "listen" => section(node, "listen", &["udp", "tcp"], |inner| {
                let addresses = several(inner, Config::MAX_LISTEN)?;
                match inner.name().value() {
                    "udp" => config.listen.udp = addresses,
                    _ => config.listen.tcp = addresses,
                }
                Ok(())
            })?,
            "carrier" => config.carrier = single(node)?,
            "head-start" => {
                let range = Duration::from_millis(10)..=Duration::from_secs(2);
                let given = single::<Span>(node)?.0;
                config.head_start = within(node, given, range, written_time)?;
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
                    return Err(Mistake::at(node.span().offset(), what));
                }
                config.hubs.push(url);
                continue;
            }
            "limits" => section(node, "limits", &["max-tunnels", "grace", "spin"], |inner| {
                match inner.name().value() {
                    "max-tunnels" => config.limits.max_tunnels = count(inner)?,
                    "grace" => config.limits.grace = single::<Span>(inner)?.0,
                    _ => config.limits.spin = single::<Span>(inner)?.0,
                }
                Ok(())
            })?,
            "log" => section(node, "log", &["level"], |inner| {
                config.log.level = single(inner)?;
                Ok(())
            })?,
            _ => {
                let known = [
                    "node",
                    "listen",
                    "hub",
                    "carrier",
                    "head-start",
                    "pool",
                    "peer",
                    "limits",
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
        config.origins.note(name, Origin::File);
        for inner in node.iter_children() {
            let path = format!("{name}.{}", inner.name().value());
            config.origins.note(&path, Origin::File);
        }
    }
}

/// `peer "…" { … }`.
fn peer(node: &KdlNode, peers: &mut Vec<PeerSettings>) -> Result<(), Mistake> {
    let at = |what: String| Mistake::at(node.span().offset(), what);
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
fn quic(node: &KdlNode, quic: &mut Quic) -> Result<(), Mistake> {
    const MOST: u32 = 1 << 16;
    const MOST_BYTES: Size = Size::mib(1024);
    let known = Quic::default()
        .values()
        .map(|(path, _)| path.trim_start_matches("quic."));
    section(node, "quic", &known, |inner| {
        let time = |from: u64, to: u64| {
            let range = Duration::from_millis(from)..=Duration::from_millis(to);
            let given = single::<Span>(inner)?.0;
            within(inner, given, range, written_time)
        };
        match inner.name().value() {
            "congestion" => quic.congestion = single(inner)?,
            "streams" => quic.streams = number(inner, 100..=MOST)?,
            "uni-streams" => quic.uni_streams = number(inner, 0..=MOST)?,
            "stream-window" => quic.stream_window = size(inner, Size::mib(2)..=MOST_BYTES)?,
            "window" => quic.window = size(inner, Size::mib(8)..=MOST_BYTES)?,
            "send-window" => quic.send_window = size(inner, Size::mib(1)..=MOST_BYTES)?,
            "initial-window" => quic.initial_window = size(inner, Size::ZERO..=Size::mib(1))?,
            "idle-timeout" => quic.idle_timeout = time(1_000, 600_000)?,
            "keep-alive" => quic.keep_alive = time(100, 5_000)?,
            "socket-buffer" => {
                let range = Size::kib(64)..=Size::mib(1024);
                quic.socket_buffer = within(inner, single(inner)?, range, Size::to_string)?;
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
    if quic.window.bytes() / 4 < quic.stream_window.bytes() {
        let what = "`window` is less than four times `stream-window`";
        let hint = "a few readers that stall would hold up everybody else";
        return Err(Mistake::at(node.span().offset(), what).hint(hint));
    }
    Ok(())
}

/// `pool "rule"` or `pool N`.
fn pool(node: &KdlNode) -> Result<Pool, Mistake> {
    if only(node)?.value().is_string() {
        return single(node);
    }
    whole(node, 1..=Pool::MAX, |name| {
        format!(
            "`{name}` is \"rule\" or a whole number from 1 to {}",
            Pool::MAX
        )
    })
    .map(Pool::Fixed)
}

/// Walks the settings of a section: only known ones, each once, no arguments of its own.
fn section(
    node: &KdlNode,
    name: &str,
    known: &[&str],
    set: impl FnMut(&KdlNode) -> Result<(), Mistake>,
) -> Result<(), Mistake> {
    if let Some(entry) = node.entries().first() {
        let what = format!("`{name}` takes its settings in braces");
        let hint = format!(
            "write: {name} {{ {} … }}",
            known.first().copied().unwrap_or_default()
        );
        return Err(Mistake::at(entry.span().offset(), what).hint(hint));
    }
    settings(node, name, known, set)
}

/// Walks what stands in a section's braces.
fn settings(
    node: &KdlNode,
    name: &str,
    known: &[&str],
    mut set: impl FnMut(&KdlNode) -> Result<(), Mistake>,
) -> Result<(), Mistake> {
    let mut seen = Seen::default();
    for inner in node.iter_children() {
        if !known.contains(&inner.name().value()) {
            return Err(unknown(inner, name, known));
        }
        seen.once(inner)?;
        set(inner)?;
    }
    Ok(())
}

/// Names that may stand only once.
#[derive(Default)]
struct Seen(Vec<String>);

impl Seen {
    fn once(&mut self, node: &KdlNode) -> Result<(), Mistake> {
        let name = node.name().value();
        if self.0.iter().any(|seen| seen == name) {
            return Err(Mistake::at(
                node.span().offset(),
                format!("`{name}` is set twice"),
            ));
        }
        self.0.push(name.to_owned());
        Ok(())
    }
}

/// The single value of a setting, from a text.
fn single<T>(node: &KdlNode) -> Result<T, Mistake>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    value(node, only(node)?)
}

/// The values of a setting, from texts: at least one, at most `max`.
fn several<T>(node: &KdlNode, max: usize) -> Result<Vec<T>, Mistake>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let entries = plain_entries(node)?;
    if entries.is_empty() || entries.len() > max {
        let what = format!("`{}` takes 1 to {max} values", node.name().value());
        return Err(Mistake::at(node.span().offset(), what));
    }
    entries.iter().map(|entry| value(node, entry)).collect()
}

/// A whole number of at least 1.
fn count(node: &KdlNode) -> Result<u32, Mistake> {
    let what = |name: &str| format!("`{name}` is a whole number of at least 1");
    whole(node, 1..=u32::MAX, what)
}

/// A whole number within a range.
fn number(node: &KdlNode, range: RangeInclusive<u32>) -> Result<u32, Mistake> {
    let (least, most) = (*range.start(), *range.end());
    whole(node, range, |name| {
        format!("`{name}` is a whole number from {least} to {most}")
    })
}

fn whole(
    node: &KdlNode,
    range: RangeInclusive<u32>,
    what: impl FnOnce(&str) -> String,
) -> Result<u32, Mistake> {
    let entry = only(node)?;
    let number = entry
        .value()
        .as_integer()
        .and_then(|n| u32::try_from(n).ok());
    number
        .filter(|n| range.contains(n))
        .ok_or_else(|| Mistake::at(entry.span().offset(), what(node.name().value())))
}

/// A size of at least so many mebibytes.
fn size(node: &KdlNode, range: RangeInclusive<Size>) -> Result<Size, Mistake> {
    within(node, single(node)?, range, Size::to_string)
}

fn within<T: PartialOrd>(
    node: &KdlNode,
    given: T,
    range: RangeInclusive<T>,
    written: impl Fn(&T) -> String,
) -> Result<T, Mistake> {
    if range.contains(&given) {
        return Ok(given);
    }
    let (name, least, most) = (
        node.name().value(),
        written(range.start()),
        written(range.end()),
    );
    let what = format!("`{name}` is from \"{least}\" to \"{most}\"");
    Err(Mistake::at(node.span().offset(), what))
}

fn written_time(time: &Duration) -> String {
    humantime::format_duration(*time).to_string()
}

/// A yes or no.
fn yes(node: &KdlNode) -> Result<bool, Mistake> {
    let entry = only(node)?;
    entry.value().as_bool().ok_or_else(|| {
        let what = format!("`{}` is #true or #false", node.name().value());
        Mistake::at(entry.span().offset(), what)
    })
}

fn value<T>(node: &KdlNode, entry: &KdlEntry) -> Result<T, Mistake>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let name = node.name().value();
    let at = entry.span().offset();
    let text = entry.value().as_string().ok_or_else(|| {
        Mistake::at(at, format!("`{name}` takes a text")).hint(format!("write: {name} \"…\""))
    })?;
    text.parse()
        .map_err(|error: T::Err| Mistake::at(at, format!("`{name}`: {error}")))
}

fn only(node: &KdlNode) -> Result<&KdlEntry, Mistake> {
    match plain_entries(node)? {
        [entry] => Ok(entry),
        _ => {
            let what = format!("`{}` takes exactly one value", node.name().value());
            Err(Mistake::at(node.span().offset(), what))
        }
    }
}

/// The values of a setting, which has neither properties nor braces.
fn plain_entries(node: &KdlNode) -> Result<&[KdlEntry], Mistake> {
    let name = node.name().value();
    if let Some(property) = node.entries().iter().find(|entry| entry.name().is_some()) {
        let what = format!("`{name}` has no properties");
        return Err(Mistake::at(property.span().offset(), what));
    }
    if let Some(inner) = node.iter_children().next() {
        let what = format!("`{name}` has no settings of its own");
        return Err(Mistake::at(inner.span().offset(), what));
    }
    Ok(node.entries())
}

fn unknown(node: &KdlNode, section: &str, known: &[&str]) -> Mistake {
    let name = node.name().value();
    let what = match section {
        "" => format!("`{name}` is not a setting"),
        _ => format!("`{name}` is not a setting of `{section}`"),
    };
    let nearest = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match nearest {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => format!("known here: {}", known.join(", ")),
    };
    Mistake::at(node.name().span().offset(), what).hint(hint)
}

/// The first thing that the KDL parser complains about.
fn syntax(error: &kdl::KdlError) -> Mistake {
    let Some(first) = error.diagnostics.first() else {
        return Mistake::at(0, "not a KDL document");
    };
    let label = first
        .label
        .as_deref()
        .or(first.message.as_deref())
        .unwrap_or("unexpected text");
    let what = format!("not KDL: {}", label.trim_end_matches('.').to_lowercase());
    let hint = first
        .help
        .clone()
        .unwrap_or_else(|| "see https://kdl.dev".to_owned());
    Mistake::at(first.span.offset(), what).hint(hint)
}

/// Line and column, both from 1, of a byte offset.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = text.get(..end).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    (
        line,
        before.get(line_start..).unwrap_or_default().chars().count() + 1,
    )
}

/// A duration as it stands in the file.
struct Span(Duration);

impl FromStr for Span {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self).map_err(
            |_| "expected a number with its unit, for example \"250ms\", \"10s\" or \"1h30m\"",
        )
    }
}
