//! `hail up -d` and `hail hub -d`: a node or a hub as a process of its own.
//!
//! The program starts itself again with `--detached`, with its log in the data folder, and waits for the one line that a node
//! prints once its socket answers, or why it did not start; a hub does the same. So nothing is polled, and a failed start is
//! reported with the process's own error.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use clap::{ValueEnum as _, builder::PossibleValue};
use hailwire_terminal::failure::CommandFailure;
use serde::de::DeserializeOwned;
use tracing::Level;

use super::{CommandContext, hub::StartedHub, up::StartedNode};
use crate::args::{node::UpArgs, other::HubRunArgs};

/// A log larger than this is renamed to `hail.log.1` at the next start.
const MAX_LOG: u64 = 8 * 1024 * 1024;

/// Most bytes that are read of what a node says of its start.
const MAX_REPORT: u64 = 64 * 1024;

/// Starts a node.
pub(super) fn node(run: &CommandContext, up: &UpArgs) -> Result<(), CommandFailure> {
    let log = run.data.log();
    let started: StartedNode = start(run, "node", &log, node_arguments(run, up))?;
    run.output
        .value(&started, |started| started.for_people("`hail down`"))
}

/// Starts a hub.
pub(super) fn hub(run: &CommandContext, hub: &HubRunArgs) -> Result<(), CommandFailure> {
    let log = run.data.root().join("hub.log");
    let started: StartedHub = start(run, "hub", &log, hub_arguments(run, hub))?;
    run.output
        .value(&started, |started| started.for_people("`hail hub down`"))
}

/// What runs in a process of its own, from the first line of its output to stdout; `what` names it.
///
/// A process that has once been told of runs on when this one ends. It fails only if this process leads a session already, which
/// is as good.
pub(super) async fn detached(
    run: &CommandContext,
    work: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    let _ = rustix::process::setsid();
    let done = work.await;
    if let Err(failure) = &done {
        // Nobody reads it once it has started.
        let _ = run.output.text(&(failure.for_programs() + "\n"));
    }
    done
}

/// Starts this program again with other arguments, and returns what it says of its start.
fn start<S: DeserializeOwned>(
    run: &CommandContext,
    what: &str,
    path: &Path,
    arguments: Vec<OsString>,
) -> Result<S, CommandFailure> {
    let failed = |what: &str, error: &io::Error| CommandFailure::io(what, error);
    run.data
        .create()
        .map_err(|error| failed("cannot use the data folder", &error))?;
    let log = open_log(path)
        .map_err(|e| CommandFailure::io(format!("cannot write {}", path.display()), &e))?;
    let program = std::env::current_exe()
        .map_err(|error| failed("cannot find the path of this program", &error))?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed(&format!("cannot start the {what}"), &error))?;

    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout.take(MAX_REPORT)).read_line(&mut line);
    }
    if let Ok(started) = serde_json::from_str(&line) {
        return Ok(started);
    }
    let exit = child
        .wait()
        .map_err(|error| failed(&format!("cannot wait for the {what}"), &error))?;
    Err(CommandFailure::from_line(&line).unwrap_or_else(|| {
        CommandFailure::general(format!("the {what} did not start ({exit})"))
            .hint(format!("see {}", path.display()))
    }))
}

/// Opens the log for appending.
fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_LOG) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

/// The arguments of a node in the background.
fn node_arguments(run: &CommandContext, up: &UpArgs) -> Vec<OsString> {
    let mut args = common_arguments(run, "up");
    let mut flag = |name: &str, value: String| args.extend([name.into(), OsString::from(value)]);
    if let Some(name) = &up.name {
        flag("--name", name.to_string());
    }
    for address in &up.listen {
        flag("--listen", address.to_string());
    }
    for address in &up.listen_tcp {
        flag("--listen-tcp", address.to_string());
    }
    if let Some(carrier) = up.carrier {
        flag("--carrier", carrier.name().to_owned());
    }
    for hub in &up.hub {
        flag("--hub", hub.to_string());
    }
    if let Some(grace) = up.grace {
        flag("--grace", format!("{}ms", grace.as_millis()));
    }
    args
}

/// The arguments of a hub in the background.
fn hub_arguments(run: &CommandContext, hub: &HubRunArgs) -> Vec<OsString> {
    let mut args = common_arguments(run, "hub");
    let mut flag = |name: &str, value: OsString| args.extend([name.into(), value]);
    let word = |value: &dyn ToString| OsString::from(value.to_string());
    let name = |value: &dyn Fn() -> Option<PossibleValue>| {
        let value = value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    };
    flag("--listen", word(&hub.listen));
    flag("--trust", name(&|| hub.trust.to_possible_value()).into());
    if let Some(port) = hub.udp_port {
        flag("--udp-port", word(&port));
    }
    if let Some(url) = &hub.url {
        flag("--url", word(url));
    }
    if let Some(file) = &hub.tls_cert {
        flag("--tls-cert", file.into());
    }
    if let Some(file) = &hub.tls_key {
        flag("--tls-key", file.into());
    }
    if let Some(listing) = hub.listing {
        flag("--listing", name(&|| listing.to_possible_value()).into());
    }
    if let Some(rate) = hub.relay_rate {
        flag("--relay-rate", word(&rate));
    }
    if let Some(rate) = hub.relay_rate_each {
        flag("--relay-rate-each", word(&rate));
    }
    flag("--hold", word(&hub.hold));
    if let Some(address) = hub.metrics {
        flag("--metrics", word(&address));
    }
    if hub.plain {
        args.push("--plain".into());
    }
    args
}

/// What every process in the background is told.
fn common_arguments(run: &CommandContext, command: &str) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--data".into(), run.data.root().into()];
    if run.output.log_json {
        args.extend(["--log-format".into(), "json".into()]);
    }
    match run.log {
        None | Some(Level::ERROR | Level::WARN) => {}
        Some(Level::INFO) => args.push("-v".into()),
        Some(Level::DEBUG) => args.push("-vv".into()),
        Some(Level::TRACE) => args.push("-vvv".into()),
    }
    args.extend([command.into(), "--detached".into()]);
    args
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use hailwire::DataDir;
    use hailwire_terminal::output::Output;

    use super::*;
    use crate::args::{Cli, Command};

    fn run() -> CommandContext {
        CommandContext {
            output: Output {
                json: false,
                colour: false,
                colour_errors: false,
                progress: false,
                log_json: true,
                width: None,
            },
            data: DataDir::new("/d"),
            timeout: None,
            log: Some(Level::DEBUG),
        }
    }

    #[test]
    fn the_process_in_the_background_is_told_the_same() {
        let words = "hail up -d --name b --listen 127.0.0.1:9 --listen-tcp 127.0.0.1:7 --carrier h2 \
                     --hub https://x.y:1 --grace 1500ms";
        let Command::Up(up) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            panic!("not up");
        };
        let run = run();
        let args = node_arguments(&run, &up);
        let again = Cli::try_parse_from([OsString::from("hail")].into_iter().chain(args)).unwrap();
        assert_eq!(again.global.log_format.as_deref(), Some("json"));
        assert_eq!(
            (again.global.verbose, again.global.data.unwrap()),
            (2, "/d".into())
        );
        let Command::Up(again) = again.command else {
            panic!("not up")
        };
        assert!(again.detached && !again.detach);
        assert_eq!(
            (
                again.name,
                again.listen,
                again.listen_tcp,
                again.carrier,
                again.hub
            ),
            (up.name, up.listen, up.listen_tcp, up.carrier, up.hub)
        );
        assert_eq!(again.grace, up.grace);
    }

    #[test]
    fn a_hub_in_the_background_is_told_the_same() {
        for words in [
            "hail hub -d --listen 127.0.0.1:9 --udp-port 8 --url https://x.y:1 --tls-cert c --tls-key k \
             --trust members --listing trusted --metrics 127.0.0.1:7",
            "hail hub -d --listen 127.0.0.1:9 --plain",
        ] {
            let told = |words: Vec<OsString>| {
                let Command::Hub(hub) = Cli::try_parse_from(words).unwrap().command else {
                    panic!("not hub");
                };
                hub.run
            };
            let hub = told(words.split(' ').map(OsString::from).collect());
            let args = hub_arguments(&run(), &hub);
            let again = told([OsString::from("hail")].into_iter().chain(args).collect());
            let expected = HubRunArgs {
                detach: false,
                detached: true,
                ..hub
            };
            assert_eq!(format!("{again:?}"), format!("{expected:?}"));
        }
    }
}
