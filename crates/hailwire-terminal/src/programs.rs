//! The programs beside `hail`, found as git finds its own: in the folder of the running program first, then in `PATH`.
//!
//! A user types `hail bench …`; `hail` becomes `hail-bench` with the same arguments, all of them, so the process id,
//! the streams and the exit code are those that the user sees. The other way round `hail-bench` finds `hail` where it
//! needs nodes.

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

use crate::failure::Failure;

/// A program of Hailwire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its file's name.
    pub name: &'static str,
    /// The package to install it from.
    pub package: &'static str,
    /// The commands of `hail` that it carries out.
    pub commands: &'static [Carried],
}

/// A command of `hail` that another program carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Its words behind `hail`.
    pub path: &'static [&'static str],
    /// The line that stands for it in the list of commands.
    pub about: &'static str,
}

/// What runs on every machine.
pub const HAIL: Program = Program {
    name: "hail",
    package: "hailwire-cli",
    commands: &[],
};

/// Measurements, and networks to test in.
pub const BENCH: Program = Program {
    name: "hail-bench",
    package: "hailwire-bench",
    commands: &[BENCH_COMMAND, LAB_COMMAND],
};

/// `hail bench`.
pub const BENCH_COMMAND: Carried = Carried {
    path: &["bench"],
    about: "Measure Hailwire on this machine",
};

/// `hail lab`.
pub const LAB_COMMAND: Carried = Carried {
    path: &["lab"],
    about: "Networks to test in: delay, loss, rates, NATs and firewalls, for any program",
};

/// The inspection agents that come with Hailwire.
pub const INSPECTION: Program = Program {
    name: "hail-inspection",
    package: "hailwire-agents",
    commands: &[WAF_COMMAND, RATE_LIMIT_COMMAND],
};

/// `hail callout waf`.
pub const WAF_COMMAND: Carried = Carried {
    path: &["callout", "waf"],
    about: "Run the web application firewall that comes with hail, as an inspection agent",
};

/// `hail callout rate-limit`.
pub const RATE_LIMIT_COMMAND: Carried = Carried {
    path: &["callout", "rate-limit"],
    about: "Run the rate limiter that comes with hail, as an inspection agent",
};

/// The programs that carry out commands of `hail`.
pub const ALL: [Program; 2] = [BENCH, INSPECTION];

/// The program is not on this machine, or not where it is looked for.
#[derive(Debug, Error)]
#[error("the program {name} is missing: it is neither beside {running} nor in PATH")]
pub struct Missing {
    name: &'static str,
    package: &'static str,
    running: PathBuf,
}

impl Missing {
    /// What to try.
    #[must_use]
    pub fn hint(&self) -> String {
        format!(
            "install it with `cargo install {}`; in a checkout, `./x build` builds every program",
            self.package
        )
    }
}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Self {
        Status::new(Code::NotFound, missing.to_string())
            .with_hint(missing.hint())
            .into()
    }
}

impl Program {
    /// Where the program is.
    ///
    /// # Errors
    ///
    /// Where it is neither beside this program nor in `PATH`.
    pub fn find(&self) -> Result<PathBuf, Missing> {
        let running = env::current_exe().unwrap_or_else(|_| PathBuf::from("this program"));
        // A link in another folder leads to the folder of the file itself.
        let running = running.canonicalize().unwrap_or(running);
        let path = env::var_os("PATH").unwrap_or_default();
        let found = candidates(self.name, &running, &path).find(|file| can_be_run(file));
        found.ok_or(Missing {
            name: self.name,
            package: self.package,
            running,
        })
    }

    /// Replaces this process by the program, with the arguments of this one. Returns only where that fails.
    #[must_use]
    pub fn replace_this(&self) -> Failure {
        let program = match self.find() {
            Ok(program) => program,
            Err(missing) => return missing.into(),
        };
        let error = Command::new(&program).args(env::args_os().skip(1)).exec();
        Failure::io(format!("cannot start {}", program.display()), &error)
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hail {}", self.path.join(" "))
    }
}

/// Where a program may be, in the order in which it is looked for.
fn candidates(name: &str, running: &Path, path: &OsStr) -> impl Iterator<Item = PathBuf> {
    let beside = running.parent().map(Path::to_path_buf);
    // An empty entry stands for the current folder, which nobody means.
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
        let missing = Missing {
            name: BENCH.name,
            package: BENCH.package,
            running: "/opt/hail/hail".into(),
        };
        let told = Failure::from(missing).for_people(false);
        assert_eq!(
            told,
            "error: the program hail-bench is missing: it is neither beside /opt/hail/hail nor in PATH \
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
