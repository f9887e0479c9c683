//! `hail up -d`: the node as a process of its own.
//!
//! The program starts itself again with `--detached`, with its log in `hail.log`, and waits for the one line that a node prints
//! once its socket answers, or why it did not start. So nothing is polled, and a failed start is reported with the node's own
//! error.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use hailwire_terminal::failure::CommandFailure;
use tracing::Level;

use super::{CommandContext, up::StartedNode};
use crate::args::node::UpArgs;

/// A log larger than this is renamed to `hail.log.1` at the next start.
const MAX_LOG: u64 = 8 * 1024 * 1024;

/// Most bytes that are read of what a node says of its start.
const MAX_REPORT: u64 = 64 * 1024;

pub(super) fn run(run: &CommandContext, up: &UpArgs) -> Result<(), CommandFailure> {
    let failed = |what: &str, error: &io::Error| CommandFailure::io(what, error);
    run.data
        .create()
        .map_err(|error| failed("cannot use the data folder", &error))?;
    let path = run.data.log();
    let log = open_log(&path)
        .map_err(|e| CommandFailure::io(format!("cannot write {}", path.display()), &e))?;
    let program = std::env::current_exe()
        .map_err(|error| failed("cannot find the path of this program", &error))?;
    let mut child = Command::new(program)
        .args(arguments(run, up))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed("cannot start the node", &error))?;

    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout.take(MAX_REPORT)).read_line(&mut line);
    }
    if let Ok(started) = serde_json::from_str::<StartedNode>(&line) {
        return run
            .output
            .value(&started, |started| started.for_people("`hail down`"));
    }
    let exit = child
        .wait()
        .map_err(|error| failed("cannot wait for the node", &error))?;
    Err(CommandFailure::from_line(&line).unwrap_or_else(|| {
        CommandFailure::general(format!("the node did not start ({exit})"))
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

/// The arguments of the process in the background.
fn arguments(run: &CommandContext, up: &UpArgs) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec![
        "--data".into(),
        run.data.root().into(),
        "up".into(),
        "--detached".into(),
    ];
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
    if run.output.log_json {
        flag("--log-format", "json".to_owned());
    }
    match run.log {
        None | Some(Level::ERROR | Level::WARN) => {}
        Some(Level::INFO) => args.push("-v".into()),
        Some(Level::DEBUG) => args.push("-vv".into()),
        Some(Level::TRACE) => args.push("-vvv".into()),
    }
    args
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use hailwire::DataDir;
    use hailwire_terminal::output::Output;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn the_process_in_the_background_is_told_the_same() {
        let words = "hail up -d --name b --listen 127.0.0.1:9 --listen-tcp 127.0.0.1:7 --carrier h2 \
                     --hub https://x.y:1 --grace 1500ms";
        let Command::Up(up) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            panic!("not up");
        };
        let run = CommandContext {
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
        };
        let args = arguments(&run, &up);
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
}
