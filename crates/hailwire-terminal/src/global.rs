//! The global options, and what follows from them and from the process's environment.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::FileTypeExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use tracing::Level;

use crate::{failure::CommandFailure, output::Output};

/// The global options.
#[derive(Debug, Clone, Args)]
pub struct GlobalArgs {
    /// Data folder of the node [env: HAIL_DATA] [default: ~/.local/share/hailwire]
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        help_heading = "Global options"
    )]
    pub data: Option<PathBuf>,
    /// Print JSON on stdout, and failures as JSON on stderr
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Log more to stderr; twice for debugging, three times for every packet
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "Global options")]
    pub verbose: u8,
    /// How to write logs: text, or json for one object on each line [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"], hide_possible_values = true, global = true, help_heading = "Global options")]
    pub log_format: Option<String>,
    /// Never use colours [env: NO_COLOR]
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_color: bool,
    /// Give up after this time, for example 250ms, 10s or 1h30m; for a call, its deadline
    #[arg(long, value_name = "D", value_parser = duration, global = true, help_heading = "Global options")]
    pub timeout: Option<Duration>,
}

/// The environment variables and standard streams of a run.
#[derive(Clone, Debug, Default)]
pub struct ProcessSurroundings {
    /// `HAIL_DATA`.
    pub hail_data: Option<OsString>,
    /// `XDG_DATA_HOME`.
    pub xdg_data_home: Option<OsString>,
    /// `XDG_CONFIG_HOME`.
    pub xdg_config_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
    /// `NO_COLOR`.
    pub no_color: Option<OsString>,
    /// `TERM`.
    pub term: Option<OsString>,
    /// Whether stdin is a terminal.
    pub stdin_is_terminal: bool,
    /// Whether stdin is a pipe or a file, so that somebody gave it to be read. Not a socket: programs that start others
    /// often leave them one that never ends.
    pub stdin_is_input: bool,
    /// Whether stdout is a terminal.
    pub stdout_is_terminal: bool,
    /// How many columns that terminal has, where it says so.
    pub stdout_width: Option<usize>,
    /// Whether stderr is a terminal.
    pub stderr_is_terminal: bool,
}

impl ProcessSurroundings {
    /// Those of this process. A variable that is empty counts as not set.
    #[must_use]
    pub fn of_process() -> Self {
        use std::io::IsTerminal as _;
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            hail_data: var("HAIL_DATA"),
            xdg_data_home: var("XDG_DATA_HOME"),
            xdg_config_home: var("XDG_CONFIG_HOME"),
            home: var("HOME"),
            no_color: var("NO_COLOR"),
            term: var("TERM"),
            stdin_is_terminal: std::io::stdin().is_terminal(),
            stdin_is_input: is_input(std::io::stdin().as_fd()),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            stdout_width: columns(std::io::stdout().as_fd()),
            stderr_is_terminal: std::io::stderr().is_terminal(),
        }
    }
}

/// The columns of a terminal; none where it is none, or says 0 as one without a window does.
fn columns(descriptor: BorrowedFd<'_>) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(descriptor).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Whether a descriptor is a pipe or a file.
fn is_input(descriptor: BorrowedFd<'_>) -> bool {
    let metadata = descriptor.try_clone_to_owned().map(File::from);
    let kind = metadata.and_then(|file| file.metadata().map(|metadata| metadata.file_type()));
    kind.is_ok_and(|kind| kind.is_file() || kind.is_fifo())
}

/// The global options of a run, decided.
#[derive(Clone, Debug)]
pub struct CommonOptions {
    /// How to print.
    pub output: Output,
    /// The least important event to log to stderr; `None` leaves it to the command.
    pub log: Option<Level>,
    /// Data folder of the node.
    pub data: PathBuf,
    /// Whether the data folder was given explicitly.
    pub data_named: bool,
    /// How long the command may take.
    pub timeout: Option<Duration>,
}

impl GlobalArgs {
    /// Decides what follows from the options.
    ///
    /// # Errors
    ///
    /// If no data folder is given and the user has no home folder.
    pub fn decide(&self, around: &ProcessSurroundings) -> Result<CommonOptions, CommandFailure> {
        let (data, data_named) = self.data_folder(around)?;
        Ok(CommonOptions {
            output: self.output(around),
            log: self.log(),
            data,
            data_named,
            timeout: self.timeout,
        })
    }

    /// How to print; this cannot fail.
    #[must_use]
    pub fn output(&self, around: &ProcessSurroundings) -> Output {
        let wanted = !self.no_color
            && !self.json
            && around.no_color.is_none()
            && around.term.as_deref() != Some(OsStr::new("dumb"));
        Output {
            json: self.json,
            colour: wanted && around.stdout_is_terminal,
            colour_errors: wanted && around.stderr_is_terminal,
            progress: !self.json && around.stderr_is_terminal,
            log_json: self.log_format.as_deref() == Some("json"),
            width: around.stdout_width,
        }
    }

    fn log(&self) -> Option<Level> {
        match self.verbose {
            0 => None,
            1 => Some(Level::INFO),
            2 => Some(Level::DEBUG),
            _ => Some(Level::TRACE),
        }
    }

    /// `--data`, else `$HAIL_DATA`, else the default folder of this user.
    fn data_folder(&self, around: &ProcessSurroundings) -> Result<(PathBuf, bool), CommandFailure> {
        let set = around.hail_data.clone().map(Into::into);
        if let Some(named) = self.data.clone().or(set) {
            return Ok((named, true));
        }
        let share = around.xdg_data_home.as_ref().map(PathBuf::from);
        let share = share.or_else(|| Some(Path::new(around.home.as_ref()?).join(".local/share")));
        match share {
            Some(share) => Ok((share.join("hailwire"), false)),
            None => Err(
                CommandFailure::usage("cannot find the data folder: HOME is not set")
                    .hint("give one with --data DIR or HAIL_DATA"),
            ),
        }
    }
}

/// Parses `10m`, `1h30m`, `250ms`: a number with its unit, or several in a row.
///
/// # Errors
///
/// What is wrong with the text, as a message for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) => Ok(duration),
        Err(_) if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() => {
            Err(format!("the unit is missing: {text}s or {text}ms"))
        }
        Err(_) => Err("expected for example 250ms, 10s, 5m or 1h30m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        global: GlobalArgs,
    }

    fn around() -> ProcessSurroundings {
        ProcessSurroundings {
            home: Some("/home/u".into()),
            ..ProcessSurroundings::default()
        }
    }

    fn decided(
        options: &[&str],
        around: &ProcessSurroundings,
    ) -> Result<CommonOptions, CommandFailure> {
        let line = ["hail"].iter().chain(options);
        Typed::try_parse_from(line).unwrap().global.decide(around)
    }

    #[test]
    fn a_pipe_and_a_file_are_input_and_a_socket_and_a_device_are_not() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        let (socket, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(is_input(pipe.as_fd()) && is_input(file.as_fd()));
        assert!(!is_input(socket.as_fd()));
        assert!(!is_input(File::open("/dev/null").unwrap().as_fd()));
    }

    #[test]
    fn the_data_folder_is_typed_or_set_or_of_the_user() {
        let mut around = around();
        let data = |options: &[&str], around: &ProcessSurroundings| {
            decided(options, around).map(|common| (common.data, common.data_named))
        };
        assert_eq!(
            data(&[], &around).unwrap(),
            ("/home/u/.local/share/hailwire".into(), false)
        );
        around.xdg_data_home = Some("/x".into());
        assert_eq!(data(&[], &around).unwrap(), ("/x/hailwire".into(), false));
        around.hail_data = Some("/env".into());
        assert_eq!(data(&[], &around).unwrap(), ("/env".into(), true));
        assert_eq!(
            data(&["--data", "/typed"], &around).unwrap(),
            ("/typed".into(), true)
        );
        let nowhere = data(&[], &ProcessSurroundings::default()).unwrap_err();
        assert_eq!(nowhere.exit(), 2);
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let colour = |options: &[&str], around: &ProcessSurroundings| {
            decided(options, around).unwrap().output.colour
        };
        let terminal = ProcessSurroundings {
            stdout_is_terminal: true,
            ..around()
        };
        assert!(colour(&[], &terminal));
        assert!(!colour(&[], &around()));
        assert!(!colour(&["--no-color"], &terminal));
        assert!(!colour(&["--json"], &terminal));
        let no_color = ProcessSurroundings {
            no_color: Some("1".into()),
            ..terminal.clone()
        };
        assert!(!colour(&[], &no_color));
        let dumb = ProcessSurroundings {
            term: Some("dumb".into()),
            ..terminal
        };
        assert!(!colour(&[], &dumb));
    }

    #[test]
    fn durations_are_numbers_with_units() {
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn a_bare_number_is_refused_with_the_unit_it_lacks() {
        assert_eq!(
            duration("10"),
            Err("the unit is missing: 10s or 10ms".to_owned())
        );
        for bad in ["", "-1s", "soon", "5 fortnights"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
