//! Options that every command takes, and what follows from them and from the process's surroundings.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use tracing::Level;

use crate::{failure::Failure, output::Output};

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
pub struct Global {
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
    /// Say more on stderr; twice for debugging, three times for every packet
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = "Global options")]
    pub verbose: u8,
    /// Never use colours [env: NO_COLOR]
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_color: bool,
    /// Give up after this time, for example 250ms, 10s or 1h30m; for a call, its deadline
    #[arg(long, value_name = "D", value_parser = duration, global = true, help_heading = "Global options")]
    pub timeout: Option<Duration>,
}

/// What surrounds a run: environment and standard streams.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
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
    /// Whether stdout is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether stderr is a terminal.
    pub stderr_is_terminal: bool,
}

impl Surroundings {
    /// Those of this process. A variable that is set to nothing counts as not set.
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
            stdout_is_terminal: std::io::stdout().is_terminal(),
            stderr_is_terminal: std::io::stderr().is_terminal(),
        }
    }
}

/// The global options of a run, decided.
#[derive(Clone, Debug)]
pub struct Common {
    /// How to print.
    pub output: Output,
    /// The least important event to log to stderr; `None` leaves it to the command.
    pub log: Option<Level>,
    /// Data folder of the node.
    pub data: PathBuf,
    /// Whether the data folder was named and is not just the default.
    pub data_named: bool,
    /// How long the command may take.
    pub timeout: Option<Duration>,
}

impl Global {
    /// Decides what follows from the options.
    ///
    /// # Errors
    ///
    /// Where no data folder is named and the user has no home.
    pub fn decide(&self, around: &Surroundings) -> Result<Common, Failure> {
        let (data, data_named) = self.data_folder(around)?;
        Ok(Common {
            output: self.output(around),
            log: self.log(),
            data,
            data_named,
            timeout: self.timeout,
        })
    }

    /// How to print, also where the rest cannot be decided.
    #[must_use]
    pub fn output(&self, around: &Surroundings) -> Output {
        let wanted = !self.no_color
            && !self.json
            && around.no_color.is_none()
            && around.term.as_deref() != Some(OsStr::new("dumb"));
        Output {
            json: self.json,
            colour: wanted && around.stdout_is_terminal,
            colour_errors: wanted && around.stderr_is_terminal,
            progress: !self.json && around.stderr_is_terminal,
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
    fn data_folder(&self, around: &Surroundings) -> Result<(PathBuf, bool), Failure> {
        let set = around.hail_data.clone().map(Into::into);
        if let Some(named) = self.data.clone().or(set) {
            return Ok((named, true));
        }
        let share = around.xdg_data_home.as_ref().map(PathBuf::from);
        let share = share.or_else(|| Some(Path::new(around.home.as_ref()?).join(".local/share")));
        match share {
            Some(share) => Ok((share.join("hailwire"), false)),
            None => Err(Failure::usage("no data folder is known: HOME is not set")
                .hint("name one with --data DIR or HAIL_DATA")),
        }
    }
}

/// Parses `10m`, `1h30m`, `250ms`: a number with its unit, or several in a row.
///
/// # Errors
///
/// What is wrong with the text, for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) => Ok(duration),
        Err(_) if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() => {
            Err(format!("a unit is missing: {text}s or {text}ms"))
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
        global: Global,
    }

    fn around() -> Surroundings {
        Surroundings {
            home: Some("/home/u".into()),
            ..Surroundings::default()
        }
    }

    fn decided(options: &[&str], around: &Surroundings) -> Result<Common, Failure> {
        let line = ["hail"].iter().chain(options);
        Typed::try_parse_from(line).unwrap().global.decide(around)
    }

    #[test]
    fn the_data_folder_is_typed_or_set_or_of_the_user() {
        let mut around = around();
        let data = |options: &[&str], around: &Surroundings| {
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
        let nowhere = data(&[], &Surroundings::default()).unwrap_err();
        assert_eq!(nowhere.exit(), 2);
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let colour = |options: &[&str], around: &Surroundings| {
            decided(options, around).unwrap().output.colour
        };
        let terminal = Surroundings {
            stdout_is_terminal: true,
            ..around()
        };
        assert!(colour(&[], &terminal));
        assert!(!colour(&[], &around()));
        assert!(!colour(&["--no-color"], &terminal));
        assert!(!colour(&["--json"], &terminal));
        let no_color = Surroundings {
            no_color: Some("1".into()),
            ..terminal.clone()
        };
        assert!(!colour(&[], &no_color));
        let dumb = Surroundings {
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
            Err("a unit is missing: 10s or 10ms".to_owned())
        );
        for bad in ["", "-1s", "soon", "5 fortnights"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
