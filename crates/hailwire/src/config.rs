//! The configuration file, `hail.kdl` in the data folder.
//!
//! Every setting has a default, so that the file may be missing or empty. The file is
//! [KDL 2](https://kdl.dev); what it says wrongly is refused with line and column, and an unknown
//! name is answered with the nearest known one, because a setting that is silently ignored is worse
//! than a node that does not start.
//!
//! ```kdl
//! node { name "desk" }
//! listen { udp "0.0.0.0:4242" "[::]:4242" }
//! hub "https://hub.example.org"
//! limits { max-tunnels 1024; grace "10s"; spin "100us" }
//! log { level "info" }
//! ```
//!
//! [`SETTINGS`] lists every setting with its unit and default; `docs/reference/config.md` is held
//! to it by a test.

use std::{
    fmt::{self, Write as _},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use hailwire_wire::{HubUrl, NodeName};
use kdl::{KdlDocument, KdlEntry, KdlNode};
use serde::{Serialize, Serializer};
use thiserror::Error;

/// The file's name in the data folder.
pub const FILE_NAME: &str = "hail.kdl";

/// Largest configuration file in bytes.
pub const MAX_FILE: u64 = 256 * 1024;

/// What a node is told at its start.
///
/// [`Config::default`] is a node without a name or hub, on two UDP ports chosen by the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// `node { name }`.
    pub node: NodeSettings,
    /// `listen { udp }`.
    pub listen: Listen,
    /// `hub`: URLs of hubs to register at, in addition to those joined by ticket. `https`, or
    /// `http` on loopback only. Default: none. At most [`Config::MAX_HUBS`].
    pub hubs: Vec<HubUrl>,
    /// `limits { … }`.
    pub limits: Limits,
    /// `log { level }`.
    pub log: Log,
}

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
pub struct Listen {
    /// UDP socket addresses. Port 0 lets the system choose. Default: `0.0.0.0:0` and `[::]:0`. At
    /// most [`Config::MAX_LISTEN`].
    pub udp: Vec<SocketAddr>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            udp: vec![
                SocketAddr::from(([0, 0, 0, 0], 0)),
                SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], 0)),
            ],
        }
    }
}

/// Bounds that the operator chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Most tunnels at once; a further one is refused. Default: 1024. Each costs about 0.1 MB.
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

impl Default for Limits {
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
pub struct Log {
    /// The least important event that is written. Default: `info`. `-v` raises it.
    pub level: LogLevel,
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

/// One setting, for documents and for `hail config`.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Where it stands, for example `limits.grace`.
    pub path: &'static str,
    /// Type and unit.
    pub value: &'static str,
    /// The default as written in the file.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// Every setting.
pub const SETTINGS: [Setting; 7] = [
    Setting {
        path: "node.name",
        value: "name: 1 to 64 of a-z 0-9 . _ -",
        default: "none",
        about: "name that the node offers to peers and hubs",
    },
    Setting {
        path: "listen.udp",
        value: "socket addresses, at most 8; port 0 lets the system choose",
        default: "\"0.0.0.0:0\" \"[::]:0\"",
        about: "where the node listens",
    },
    Setting {
        path: "hub",
        value: "URL; repeatable, at most 8; https, or http on loopback",
        default: "none",
        about: "hub to register at, in addition to those joined by ticket",
    },
    Setting {
        path: "limits.max-tunnels",
        value: "number, at least 1",
        default: "1024",
        about: "most tunnels at once; a further one is refused",
    },
    Setting {
        path: "limits.grace",
        value: "duration, for example \"250ms\", \"10s\" or \"1h30m\"",
        default: "\"10s\"",
        about: "time that calls in flight may take to finish when the node stops",
    },
    Setting {
        path: "limits.spin",
        value: "duration, for example \"100us\"; \"0s\" for none",
        default: "\"100us\"",
        about: "time that the node looks for more traffic after some before it sleeps",
    },
    Setting {
        path: "log.level",
        value: "error, warn, info, debug or trace",
        default: "\"info\"",
        about: "least important event that is written to stderr",
    },
];

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file exists and cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file says something that is not a configuration.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong, lower case, no full stop.
        what: String,
        /// What to write instead; empty where there is nothing sensible to say.
        hint: String,
    },
}

impl ConfigError {
    /// What to try next; empty where there is nothing sensible to say.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Read { .. } => "check the file's owner and mode",
            Self::Invalid { hint, .. } => hint,
        }
    }
}

impl Config {
    /// Most addresses of `listen.udp`.
    pub const MAX_LISTEN: usize = 8;
    /// Most `hub` lines.
    pub const MAX_HUBS: usize = 8;

    /// Reads the file at `path`; a missing file is the default configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the file cannot be read, is larger than [`MAX_FILE`], or is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read = || -> io::Result<Option<String>> {
            match std::fs::metadata(path) {
                Ok(meta) if meta.len() > MAX_FILE => Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    "larger than 256 KiB",
                )),
                Ok(_) => std::fs::read_to_string(path).map(Some),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            }
        };
        match read() {
            Ok(Some(text)) => Self::parse(&text, path),
            Ok(None) => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Parses the text of a file; `path` is only for messages.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for the first mistake.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        parse(text).map_err(|mistake| {
            let (line, column) = position(text, mistake.offset);
            let Mistake { what, hint, .. } = mistake;
            ConfigError::Invalid {
                path: path.to_owned(),
                line,
                column,
                what,
                hint,
            }
        })
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
        if let Some(name) = &self.node.name {
            writeln!(out, "node {{\n    name \"{name}\"\n}}")?;
        }
        write!(out, "listen {{\n    udp")?;
        for address in &self.listen.udp {
            write!(out, " \"{address}\"")?;
        }
        writeln!(out, "\n}}")?;
        for hub in &self.hubs {
            writeln!(out, "hub \"{hub}\"")?;
        }
        let Limits {
            max_tunnels,
            grace,
            spin,
        } = &self.limits;
        let (grace, spin) = (
            humantime::format_duration(*grace),
            humantime::format_duration(*spin),
        );
        writeln!(
            out,
            "limits {{\n    max-tunnels {max_tunnels}\n    grace \"{grace}\"\n    spin \"{spin}\"\n}}"
        )?;
        writeln!(out, "log {{\n    level \"{}\"\n}}", self.log.level.name())
    }
}

/// A mistake at a byte offset of the text.
struct Mistake {
    offset: usize,
    what: String,
    hint: String,
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

fn parse(text: &str) -> Result<Config, Mistake> {
    let document = KdlDocument::parse_v2(text).map_err(|error| syntax(&error))?;
    let mut config = Config::default();
    let mut seen = Seen::default();
    for node in document.nodes() {
        match node.name().value() {
            "node" => section(node, "node", &["name"], |inner| {
                config.node.name = Some(single(inner)?);
                Ok(())
            })?,
            "listen" => section(node, "listen", &["udp"], |inner| {
                config.listen.udp = several(inner, Config::MAX_LISTEN)?;
                Ok(())
            })?,
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
                return Err(unknown(
                    node,
                    "",
                    &["node", "listen", "hub", "limits", "log"],
                ));
            }
        }
        seen.once(node)?;
    }
    Ok(config)
}

/// Walks the settings of a section: only known ones, each once, no arguments of its own.
fn section(
    node: &KdlNode,
    name: &str,
    known: &[&str],
    mut set: impl FnMut(&KdlNode) -> Result<(), Mistake>,
) -> Result<(), Mistake> {
    if let Some(entry) = node.entries().first() {
        let what = format!("`{name}` takes its settings in braces");
        let hint = format!(
            "write: {name} {{ {} … }}",
            known.first().copied().unwrap_or_default()
        );
        return Err(Mistake::at(entry.span().offset(), what).hint(hint));
    }
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
    let entry = only(node)?;
    let number = entry
        .value()
        .as_integer()
        .and_then(|n| u32::try_from(n).ok());
    number.filter(|n| *n > 0).ok_or_else(|| {
        let what = format!("`{}` is a whole number of at least 1", node.name().value());
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
fn position(text: &str, offset: usize) -> (usize, usize) {
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

fn as_text<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> (usize, usize, String, String) {
        match Config::parse(text, Path::new("hail.kdl")) {
            Err(ConfigError::Invalid {
                line,
                column,
                what,
                hint,
                ..
            }) => (line, column, what, hint),
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    fn good(text: &str) -> Config {
        Config::parse(text, Path::new("hail.kdl")).unwrap()
    }

    #[test]
    fn a_missing_file_is_the_default() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            Config::load(&folder.path().join(FILE_NAME)).unwrap(),
            Config::default()
        );
        assert_eq!(good(""), Config::default());
    }

    #[test]
    fn every_setting_is_read() {
        let config = good(
            "node { name \"desk\" }\nlisten { udp \"0.0.0.0:4242\" \"[::]:4242\" }\n\
             hub \"https://hub.example.org\"\nhub \"http://127.0.0.1:8470\"\n\
             limits { max-tunnels 7; grace \"1m30s\"; spin \"0s\" }\nlog { level \"debug\" }\n",
        );
        assert_eq!(config.node.name.unwrap().as_str(), "desk");
        assert_eq!(
            config.listen.udp,
            ["0.0.0.0:4242", "[::]:4242"].map(|a| a.parse().unwrap())
        );
        let hubs: Vec<String> = config.hubs.iter().map(ToString::to_string).collect();
        assert_eq!(
            hubs,
            ["https://hub.example.org:443", "http://127.0.0.1:8470"]
        );
        assert_eq!(config.limits.max_tunnels, 7);
        assert_eq!(config.limits.grace, Duration::from_secs(90));
        assert_eq!(config.limits.spin, Duration::ZERO);
        assert_eq!(config.log.level, LogLevel::Debug);
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for text in [
            "",
            "node { name \"desk\" }\nhub \"https://a.b\"\nlimits { grace \"1h30m\" }",
        ] {
            let config = good(text);
            assert_eq!(good(&config.to_kdl()), config);
        }
    }

    #[test]
    fn an_unknown_setting_is_answered_with_its_place_and_the_nearest_one() {
        let (line, column, what, hint) = mistake("node {\n    nmae \"desk\"\n}");
        assert_eq!((line, column), (2, 5));
        assert_eq!(what, "`nmae` is not a setting of `node`");
        assert_eq!(hint, "did you mean `name`?");
        assert_eq!(mistake("hubs \"https://x\"").3, "did you mean `hub`?");
        assert!(mistake("zzz").3.starts_with("known here: node, listen"));
    }

    #[test]
    fn the_place_counts_characters_and_not_bytes() {
        let (line, column, ..) = mistake("// öäü\n/* é */ zzz");
        assert_eq!((line, column), (2, 9));
    }

    #[test]
    fn wrong_values_say_what_was_expected() {
        for (text, part) in [
            ("node { name \"Big Desk\" }", "not a node name"),
            ("node { name 7 }", "`name` takes a text"),
            ("node \"desk\"", "takes its settings in braces"),
            ("listen { udp \"here\" }", "`udp`"),
            ("listen { udp }", "takes 1 to 8 values"),
            ("hub \"ftp://x\"", "URL is expected"),
            ("hub \"http://hub.example.org\"", "for loopback only"),
            ("hub", "exactly one value"),
            ("limits { max-tunnels 0 }", "at least 1"),
            ("limits { grace \"10\" }", "with its unit"),
            ("limits { grace \"1s\"; grace \"2s\" }", "set twice"),
            ("log { level \"loud\" }", "expected error, warn"),
            ("log { level a=\"info\" }", "no properties"),
            ("log {}\nlog {}", "set twice"),
            ("node {", "not KDL"),
        ] {
            let (_, _, what, _) = mistake(text);
            assert!(what.contains(part), "{text}: {what}");
        }
    }

    #[test]
    fn more_than_eight_hubs_are_refused() {
        let text = "hub \"https://a.b\"\n".repeat(Config::MAX_HUBS + 1);
        assert_eq!(mistake(&text).0, Config::MAX_HUBS + 1);
    }

    #[test]
    fn a_file_past_its_bound_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        std::fs::write(&path, " ".repeat(MAX_FILE as usize + 1)).unwrap();
        assert!(matches!(Config::load(&path), Err(ConfigError::Read { .. })));
    }

    #[test]
    fn the_list_of_settings_states_the_true_defaults() {
        let text = Config::default().to_kdl();
        for setting in SETTINGS.iter().filter(|s| s.default != "none") {
            let name = setting.path.rsplit('.').next().unwrap();
            let line = format!("    {name} {}\n", setting.default);
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }

    #[test]
    fn the_reference_lists_every_setting_with_its_default() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/config.md"
        );
        let text = std::fs::read_to_string(path).unwrap();
        for Setting {
            path,
            value,
            default,
            about,
        } in SETTINGS
        {
            let row = format!("| `{path}` | {value} | `{default}` | {about} |");
            assert!(text.contains(&row), "{row} is missing");
        }
    }
}
