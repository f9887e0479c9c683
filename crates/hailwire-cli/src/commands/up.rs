//! `hail up`: the node in the foreground.

use std::time::Duration;

use hailwire::{
    Code, Config, Node, StartError,
    config::{LimitSettings, LogFormat, LogLevel, ValueOrigin},
};
use hailwire_terminal::{
    failure::CommandFailure,
    log::{self, LogStyle},
    output::Output,
    stop::StopSignals,
    text,
};
use hailwire_wire::{NodeName, limits};
use serde::Serialize;
use tracing::Level;

use super::{CommandContext, background, config, kept_agents::KeptAgents, kept_settings, restart};
use crate::args::node::UpArgs;

/// What `hail up` prints once the node runs.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) struct StartedNode {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) sockets: Vec<String>,
    pub(super) data_dir: String,
    pub(super) pid: u32,
    /// Settings that flags changed in `hail.kdl`, for the next start too.
    #[serde(default)]
    pub(super) kept: Vec<String>,
}

impl StartedNode {
    pub(super) fn for_people(&self, how_to_stop: &str) -> String {
        let name = if self.name.is_empty() {
            "the node"
        } else {
            &self.name
        };
        let kept = match self.kept.as_slice() {
            [] => String::new(),
            kept => format!(
                "  kept     {}, in hail.kdl for the next start\n",
                kept.join(", ")
            ),
        };
        format!(
            "{name} is up\n  id       {}\n  sockets  {}\n  data     {}\n  process  {}\n{kept}  stop     \
             {how_to_stop}\n",
            self.id,
            self.sockets.join(", "),
            self.data_dir,
            self.pid,
        )
    }
}

/// Runs the node until SIGTERM, Ctrl-C or `hail down`. In the background, whoever started it reads on stdout in one line of JSON
/// what came of the start; stderr is the log.
pub(super) async fn run(run: &CommandContext, up: UpArgs) -> Result<(), CommandFailure> {
    if !up.detached {
        return until_stopped(run, up).await;
    }
    background::detached(run, until_stopped(run, up)).await
}

async fn until_stopped(run: &CommandContext, up: UpArgs) -> Result<(), CommandFailure> {
    let config = effective(config::load(run)?, &up, host_name());
    let style = match config.log.format {
        LogFormat::Json => LogStyle::Json,
        LogFormat::Text => run.output.log_style(),
    };
    log::start(run.log.unwrap_or(level(config.log.level)), style);
    let LimitSettings { grace, .. } = config.limits;

    let mut stop = StopSignals::new()?;
    restart::restart_instead_of_aborting();

    let mut node = start(run, config.clone()).await?;
    // Only what a node started with is kept.
    let kept = kept_settings::keep(run, &config);
    let mut agents = KeptAgents::start(run);
    agents.started().await;
    let started = StartedNode {
        id: node.id().to_string(),
        name: node.name().map(String::from).unwrap_or_default(),
        sockets: node.sockets().iter().map(ToString::to_string).collect(),
        data_dir: run.data.root().display().to_string(),
        pid: std::process::id(),
        kept,
    };
    let output = Output {
        json: run.output.json || up.detached,
        ..run.output
    };
    output.value(&started, |started| {
        started.for_people("Ctrl-C or `hail down`")
    })?;

    let grace = loop {
        tokio::select! {
            _ = stop.asked() => break grace,
            asked = node.stop_requested() => break asked,
            () = node.deaf() => {}
        }
        node.shutdown(Duration::ZERO).await;
        node = start(run, config.clone()).await?;
    };
    if !up.detached {
        run.output.note(&format!(
            "stopping; calls in flight may take {} (again Ctrl-C to stop at once)",
            text::age(grace)
        ));
    }
    let done = tokio::select! {
        () = node.shutdown(grace) => Ok(()),
        failure = stop.interrupted() => Err(failure),
    };
    agents.finish().await;
    done
}

async fn start(run: &CommandContext, config: Config) -> Result<Node, CommandFailure> {
    let node = Node::builder().data_dir(run.data.clone()).config(config);
    node.start().await.map_err(|error| failure(&error))
}

/// The least important level that the configuration logs.
fn level(configured: LogLevel) -> Level {
    match configured {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

/// The host's name as a node's name: the first label of it in lower case, with `-` for what a name may not have. `None` where
/// the host has none of its own.
fn host_name() -> Option<NodeName> {
    named_after(&rustix::system::uname().nodename().to_string_lossy())
}

fn named_after(host: &str) -> Option<NodeName> {
    let label = host.split('.').next().unwrap_or_default();
    let name: String = label
        .to_lowercase()
        .chars()
        .map(|c| match c {
            'a'..='z' | '0'..='9' | '_' | '-' => c,
            _ => '-',
        })
        .take(limits::MAX_NAME)
        .collect();
    let name = name.trim_matches('-');
    match name {
        "localhost" | "(none)" => None,
        name => name.parse().ok(),
    }
}

/// The configuration, with flags in place of settings of the file. A node that nobody named goes by the host's name.
fn effective(mut config: Config, up: &UpArgs, host: Option<NodeName>) -> Config {
    if config.node.name.is_none() && up.name.is_none() && host.is_some() {
        config.origins.note("node.name", ValueOrigin::Host);
        config.node.name = host;
    }
    let mut flag = |path| config.origins.note(path, ValueOrigin::Flag);
    if let Some(name) = &up.name {
        flag("node.name");
        config.node.name = Some(name.clone());
    }
    if !up.listen.is_empty() {
        flag("listen.udp");
        config.listen.udp.clone_from(&up.listen);
    }
    if !up.listen_tcp.is_empty() {
        flag("listen.tcp");
        config.listen.tcp.clone_from(&up.listen_tcp);
    }
    if let Some(carrier) = up.carrier {
        flag("carrier");
        config.carrier = carrier;
    }
    for hub in &up.hub {
        flag("hub");
        if !config.hubs.contains(hub) {
            config.hubs.push(hub.clone());
        }
    }
    if let Some(grace) = up.grace {
        flag("limits.grace");
        config.limits.grace = grace;
    }
    config
}

fn failure(error: &StartError) -> CommandFailure {
    let (code, hint) = match error {
        StartError::AlreadyRunning { .. } => (
            Code::AlreadyExists,
            "show it with `hail status`, or start another with --data DIR",
        ),
        StartError::Bind(_) => (
            Code::Unavailable,
            "another program may use the port; choose another with --listen, or leave it to the \
             system with port 0",
        ),
        StartError::NoDataDir => (
            Code::InvalidArgument,
            "give one with --data DIR or HAIL_DATA",
        ),
        StartError::DataDir { source, .. } | StartError::Socket { source, .. } => (
            CommandFailure::code_of_io(source.kind()).unwrap_or(Code::FailedPrecondition),
            "check owner, mode and free space of the data folder",
        ),
        StartError::Key(_) | StartError::Store(_) | StartError::Messages(_) => (
            Code::FailedPrecondition,
            "check the data folder, or use a new one with --data DIR",
        ),
    };
    CommandFailure::caused(code, error).hint(hint)
}

/// How much longer than its grace period a stopping node is waited for.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn what_is_typed_goes_before_what_the_file_says() {
        let words = "hail up --name b --listen 127.0.0.1:9 --hub https://x.y --grace 3s \
                     --listen-tcp 127.0.0.1:7 --carrier h2";
        let Command::Up(up) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            panic!("not up");
        };
        let file = "node { name \"a\" }\nhub \"https://x.y\"\nlog { level \"warn\" }";
        let config = effective(Config::parse(file, "hail.kdl".as_ref()).unwrap(), &up, None);
        assert_eq!(config.node.name.as_ref().unwrap().as_str(), "b");
        assert_eq!(config.listen.udp, ["127.0.0.1:9".parse().unwrap()]);
        assert_eq!(config.listen.tcp, ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(config.carrier.name(), "h2");
        let why = |path: &str| {
            let rows = config.in_force();
            rows.into_iter()
                .find(|row| row.setting == path)
                .unwrap()
                .why
        };
        assert_eq!([why("carrier"), why("log.level")], ["flag", "file"]);
        assert_eq!(config.hubs.len(), 1);
        assert_eq!(config.limits.grace, Duration::from_secs(3));
        assert_eq!(config.log.level.name(), "warn");
    }

    #[test]
    fn a_node_that_nobody_named_goes_by_the_hosts_name() {
        let name = |host: &str| named_after(host).map(String::from);
        assert_eq!(name("Desk.example.org").as_deref(), Some("desk"));
        assert_eq!(name("Annes MacBook").as_deref(), Some("annes-macbook"));
        assert_eq!(
            name(&"x".repeat(300)).map(|name| name.len()),
            Some(limits::MAX_NAME)
        );
        for none in ["", "localhost", "localhost.localdomain", "...", "äöü"] {
            assert_eq!(name(none), None, "{none}");
        }

        let Command::Up(up) = Cli::try_parse_from(["hail", "up"]).unwrap().command else {
            panic!("not up");
        };
        let named = |text: &str| {
            let file = Config::parse(text, "hail.kdl".as_ref()).unwrap();
            let config = effective(file, &up, named_after("desk"));
            let row = config.in_force().remove(0);
            (row.value, row.why)
        };
        assert_eq!(named(""), ("\"desk\"".into(), "host".into()));
        assert_eq!(
            named("node { name \"a\" }"),
            ("\"a\"".into(), "file".into())
        );
    }
}
