//! The companion programs of `hail`, found as git finds its own: in the folder of the running program first, then in `PATH`.
//!
//! A user types `hail bench …`; `hail` executes `hail-bench` in its place with all its arguments, so the process id,
//! the streams and the exit code stay the same. In turn `hail-bench` finds `hail` when it needs nodes.

use std::{
    env,
    ffi::OsStr,
    fmt,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use hailwire_wire::{Code, Status};
use thiserror::Error;

use crate::failure::CommandFailure;

/// A program of Hailwire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompanionProgram {
    /// The name of its file.
    pub name: &'static str,
    /// The package to install it from.
    pub package: &'static str,
    /// The commands of `hail` that it executes.
    pub commands: &'static [ForwardedCommand],
}

/// A command of `hail` that another program executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedCommand {
    /// Its words after `hail`.
    pub path: &'static [&'static str],
    /// Its line in the list of commands.
    pub about: &'static str,
}

/// The program on every machine.
pub const HAIL: CompanionProgram = CompanionProgram {
    name: "hail",
    package: "hailwire-cli",
    commands: &[],
};

/// Measurements, and networks to test in.
pub const BENCH: CompanionProgram = CompanionProgram {
    name: "hail-bench",
    package: "hailwire-bench",
    commands: &[BENCH_COMMAND, LAB_COMMAND],
};

/// `hail bench`.
pub const BENCH_COMMAND: ForwardedCommand = ForwardedCommand {
    path: &["bench"],
    about: "Measure Hailwire on this machine",
};

/// `hail lab`.
pub const LAB_COMMAND: ForwardedCommand = ForwardedCommand {
    path: &["lab"],
    about: "Networks to test in: delay, loss, rates, NATs and firewalls, for any program",
};

/// The inspection agents that come with Hailwire.
pub const INSPECTION: CompanionProgram = CompanionProgram {
    name: "hail-inspection",
    package: "hailwire-agents",
    commands: &[WAF_COMMAND, RATE_LIMIT_COMMAND],
};

/// `hail callout waf`.
pub const WAF_COMMAND: ForwardedCommand = ForwardedCommand {
    path: &["callout", "waf"],
    about: "Run the web application firewall that comes with hail, as an inspection agent",
};

/// `hail callout rate-limit`.
pub const RATE_LIMIT_COMMAND: ForwardedCommand = ForwardedCommand {
    path: &["callout", "rate-limit"],
    about: "Run the rate limiter that comes with hail, as an inspection agent",
};

/// The programs that execute commands of `hail`.
pub const ALL: [CompanionProgram; 2] = [BENCH, INSPECTION];

/// The program was not found.
#[derive(Debug, Error)]
#[error("the program {name} was not found: it is neither in the folder of {running} nor in PATH")]
pub struct MissingProgram {
    name: &'static str,
    package: &'static str,
    running: PathBuf,
}

impl MissingProgram {
    /// The hint for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        format!(
            "install it with `cargo install {}`; in a checkout, `./x build` builds every program",
            self.package
        )
    }
}

impl From<MissingProgram> for CommandFailure {
    fn from(missing: MissingProgram) -> Self {
        Status::new(Code::NotFound, missing.to_string())
            .with_hint(missing.hint())
            .into()
    }
}

impl CompanionProgram {
    /// The path of the program.
    ///
    /// # Errors
    ///
    /// If it is neither in the folder of this program nor in `PATH`.
    pub fn find(&self) -> Result<PathBuf, MissingProgram> {
        let running = env::current_exe().unwrap_or_else(|_| PathBuf::from("this program"));
        // If this program was started through a link, the folder of its target counts.
        let running = running.canonicalize().unwrap_or(running);
        let path = env::var_os("PATH").unwrap_or_default();
        let found = candidates(self.name, &running, &path).find(|file| can_be_run(file));
        found.ok_or(MissingProgram {
            name: self.name,
            package: self.package,
            running,
        })
    }

    /// Replaces this process by the program, with the arguments of this one. Returns only on failure.
    #[must_use]
    pub fn replace_this(&self) -> CommandFailure {
        let program = match self.find() {
            Ok(program) => program,
            Err(missing) => return missing.into(),
        };
        let error = Command::new(&program).args(env::args_os().skip(1)).exec();
        CommandFailure::io(format!("cannot start {}", program.display()), &error)
    }
}

impl fmt::Display for ForwardedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hail {}", self.path.join(" "))
    }
}

/// The paths at which a program may be, in the order in which they are tried.
fn candidates(name: &str, running: &Path, path: &OsStr) -> impl Iterator<Item = PathBuf> {
    let beside = running.parent().map(Path::to_path_buf);
    // An empty entry would mean the current folder, which is never intended.
    let named = env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty());
    let folders: Vec<PathBuf> = beside.into_iter().chain(named).collect();
    folders.into_iter().map(move |folder| folder.join(name))
}

fn can_be_run(file: &Path) -> bool {
    let meta = file.metadata();
    meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_beside_the_running_one_and_then_in_path() {
        let path = OsStr::new("/usr/local/bin::/usr/bin");
        let found: Vec<PathBuf> =
            candidates("hail-bench", Path::new("/opt/hail/hail"), path).collect();
        let expected = [
            "/opt/hail/hail-bench",
            "/usr/local/bin/hail-bench",
            "/usr/bin/hail-bench",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn a_missing_program_is_named_with_where_it_was_looked_for_and_how_to_get_it() {
        let missing = MissingProgram {
            name: BENCH.name,
            package: BENCH.package,
            running: "/opt/hail/hail".into(),
        };
        let told = CommandFailure::from(missing).for_people(false);
        assert_eq!(
            told,
            "error: the program hail-bench was not found: it is neither in the folder of /opt/hail/hail nor in PATH \
             (not_found)\nhint: install it with `cargo install hailwire-bench`; in a checkout, `./x build` \
             builds every program"
        );
    }

    #[test]
    fn a_file_that_cannot_be_run_is_no_program() {
        assert!(can_be_run(&env::current_exe().unwrap()));
        assert!(!can_be_run(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/Cargo.toml"
        ))));
        assert!(!can_be_run(Path::new("/")));
    }
}
