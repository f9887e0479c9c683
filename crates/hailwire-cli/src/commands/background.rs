//! `hail up -d`: the node as a process of its own.
//!
//! The program starts itself again with `--detached --json`, with its log in `hail.log`, and waits
//! for the one line that a node prints once its socket answers. So nothing is polled, and a failed
//! start is reported with the node's own error.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
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

/// Most bytes of the log that are read to find why the node did not start.
const MAX_REPORT: u64 = 64 * 1024;

pub(super) fn run(run: &CommandContext, up: &UpArgs) -> Result<(), CommandFailure> {
    let failed = |what: &str, error: &io::Error| CommandFailure::io(what, error);
    run.data
        .create()
        .map_err(|error| failed("cannot use the data folder", &error))?;
    let path = run.data.log();
    let (log, start) = open_log(&path)
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
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if let Ok(started) = serde_json::from_str::<StartedNode>(&line) {
        return run
            .output
            .value(&started, |started| started.for_people("`hail down`"));
    }
    let exit = child
        .wait()
        .map_err(|error| failed("cannot wait for the node", &error))?;
    Err(reported(&path, start).unwrap_or_else(|| {
        CommandFailure::general(format!("the node did not start ({exit})"))
            .hint(format!("see {}", path.display()))
    }))
}

/// Opens the log for appending, and returns the offset at which this start begins.
fn open_log(path: &Path) -> io::Result<(File, u64)> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_LOG) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    let log = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    let start = log.metadata()?.len();
    Ok((log, start))
}

/// The failure that the node wrote as its last JSON line.
fn reported(log: &Path, start: u64) -> Option<CommandFailure> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut text = Vec::new();
    file.take(MAX_REPORT).read_to_end(&mut text).ok()?;
    String::from_utf8_lossy(&text)
        .lines()
        .rev()
        .find_map(CommandFailure::from_line)
}

/// The arguments of the process in the background.
fn arguments(run: &CommandContext, up: &UpArgs) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec![
        "--data".into(),
        run.data.root().into(),
        "--json".into(),
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
                log_json: false,
                width: None,
            },
            data: DataDir::new("/d"),
            timeout: None,
            log: Some(Level::DEBUG),
        };
        let args = arguments(&run, &up);
        let again = Cli::try_parse_from([OsString::from("hail")].into_iter().chain(args)).unwrap();
        assert!(again.global.json);
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
    fn a_failed_start_is_told_with_the_nodes_own_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hail.log");
        fs::write(
            &path,
            "{\"error\":{\"code\":\"internal\",\"message\":\"old\"}}\n",
        )
        .unwrap();
        let (_, start) = open_log(&path).unwrap();
        assert!(reported(&path, start).is_none());
        let failure = CommandFailure::usage("new").hint("try");
        let text = format!(
            "{}a line\n{}\n",
            fs::read_to_string(&path).unwrap(),
            failure.for_programs()
        );
        fs::write(&path, text).unwrap();
        let told = reported(&path, start).unwrap();
        assert_eq!(told.exit(), failure.exit());
        assert_eq!(told.status, failure.status);
    }
}
