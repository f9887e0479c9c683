//! The machines of a page: one network, and for each prompt a home and a shell.
//!
//! All of them are in network, mount and process namespaces of the page, made by `unshare`: every port is free, no other test is
//! seen, and nothing outlives the page. Where the test itself ends, so do they, because their first process reads from it.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::page::{self, Block};
use crate::companion_programs;

/// How long a command may take, or one that stays to be ready.
const PATIENCE: Duration = Duration::from_secs(90);

/// Run by the first process in the namespaces. The page's machines have these addresses. They see the repository, and cannot
/// change it.
const SETUP: &str = "set -e
    ip link set lo up
    ip link add lan type veth peer name far
    ip link set lan up
    ip link set far up
    for address in 192.168.1.10 192.168.1.20 192.168.1.30 203.0.113.7; do
        ip addr add $address/24 dev lan
    done
    mount --bind \"$1\" /etc/hosts
    mount --bind \"$2\" \"$3\"
    mount -o remount,bind,ro \"$3\"
    echo ready
    exec cat";

/// Gives a machine its name, and becomes its shell.
const NAMED: &str = "echo \"$1\" >/proc/sys/kernel/hostname; shift; exec \"$@\"";

const HOSTS: &str = "127.0.0.1 localhost\n192.168.1.10 hub.example.org\n";

/// What is found under a name in `PATH`, besides what the system has.
type Programs = BTreeMap<&'static str, PathBuf>;

/// Whether namespaces can be made here; else why not.
pub(super) fn available() -> Result<(), String> {
    let tried = Command::new("unshare")
        .args(namespaces())
        .args(["ip", "link", "set", "lo", "up"])
        .output();
    match tried {
        Ok(tried) if tried.status.success() => Ok(()),
        Ok(tried) => Err(format!(
            "pages are followed in namespaces: {}",
            String::from_utf8_lossy(&tried.stderr)
        )),
        Err(error) => Err(format!("unshare (util-linux): {error}")),
    }
}

fn namespaces() -> Vec<&'static str> {
    let mut options = vec!["--net", "--mount", "--pid", "--fork", "--kill-child"];
    options.push("--mount-proc");
    if !rustix::process::geteuid().is_root() {
        options.extend(["--user", "--map-root-user"]);
    }
    options
}

/// The programs that the commands of some blocks name.
///
/// # Errors
///
/// One that is not installed.
pub(super) fn programs(blocks: &[&Block]) -> Result<Programs, String> {
    let hail = companion_programs::hail();
    let mut programs = Programs::new();
    for name in ["hail", "hail-bench", "hail-inspection"] {
        programs.insert(name, hail.with_file_name(name));
    }
    let console = blocks.iter().filter(|block| block.language == "console");
    let steps = console.flat_map(|block| page::steps(block).unwrap_or_default());
    let commands: Vec<String> = steps.map(|step| step.command).collect();
    for (name, variable, installed) in FOREIGN {
        let used = |command: &String| {
            command
                .split([' ', '\n', ';', '|'])
                .any(|word| word == name)
        };
        if !commands.iter().any(used) {
            continue;
        }
        let named = std::env::var_os(variable).filter(|path| !path.is_empty());
        let places = named.map(PathBuf::from).into_iter();
        let target = hail.parent().and_then(Path::parent).unwrap();
        let installed = installed.iter().map(|path| target.join(path));
        let found = places.chain(installed).find(|path| path.exists());
        let found = found.or_else(|| in_path(name));
        programs.insert(
            name,
            found.ok_or_else(|| format!("{name} is not installed"))?,
        );
    }
    Ok(programs)
}

/// Programs that pages use: their names, the variables in which `./x test` names them, and where it installs them.
const FOREIGN: [(&str, &str, &[&str]); 6] = [
    ("envoy", "HAILWIRE_ENVOY", &["peers/envoy-1.40.0/bin/envoy"]),
    ("haproxy", "HAILWIRE_HAPROXY", &["/usr/sbin/haproxy"]),
    ("node", "", &[]),
    ("python3", "", &[]),
    ("curl", "", &[]),
    ("cargo", "", &[]),
];

/// The path of a program of this machine; of an interpreter not that of a script that chooses one by the home folder.
fn in_path(name: &str) -> Option<PathBuf> {
    if name == "python3" {
        let mut asked = Command::new(name);
        asked.args(["-c", "import sys; print(sys.executable)"]);
        let mut asked = asked.output().ok()?.stdout;
        asked.pop();
        return Some(PathBuf::from(String::from_utf8(asked).ok()?));
    }
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|path| path.exists())
}

pub(super) struct Machines {
    folder: TempDir,
    /// `unshare`, with which everything ends.
    init: Child,
    /// The first process in the namespaces.
    inside: u32,
    shells: BTreeMap<String, Shell>,
    commands: usize,
}

/// A command that has ended.
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) out: String,
}

impl Machines {
    pub(super) fn new(programs: &Programs, root: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["bin", "home", "out", "repository"] {
            fs::create_dir(at(name)).unwrap();
        }
        for (name, path) in programs {
            symlink(path, at("bin").join(name)).unwrap();
        }
        fs::write(at("hosts"), HOSTS).unwrap();
        let mut init = Command::new("unshare")
            .args(namespaces())
            .args(["sh", "-c", SETUP, "sh"])
            .args([&at("hosts"), root, &at("repository")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ready = crate::test_nodes::first_line(&mut init);
        assert_eq!(ready, "ready\n");
        let outside = init.id();
        let children = fs::read_to_string(format!("/proc/{outside}/task/{outside}/children"));
        let inside = children.unwrap().trim().parse().unwrap();
        Self {
            folder,
            init,
            inside,
            shells: BTreeMap::new(),
            commands: 0,
        }
    }

    /// Runs a command to its end.
    pub(super) fn run(&mut self, machine: &str, command: &str) -> Result<Ran, String> {
        let out = self.out();
        let done = format!(
            "{} >{} 2>&1 </dev/null; code=$?; (exit $code)",
            grouped(command),
            out.display()
        );
        let shell = self.shell(machine);
        let code = shell.does(&done, Instant::now() + PATIENCE);
        let out = self.printed(&out);
        match code {
            Some(code) => Ok(Ran { code, out }),
            None => Err(format!("it does not end, and printed:\n{out}")),
        }
    }

    /// Starts a command, waits until it has printed what is wanted, and returns what that was.
    pub(super) fn start(
        &mut self,
        machine: &str,
        command: &str,
        mut compare: impl FnMut(&str) -> Result<(), String>,
    ) -> Result<String, String> {
        let out = self.out();
        let begun = format!("{} >{} 2>&1 </dev/null &", grouped(command), out.display());
        let end = Instant::now() + PATIENCE;
        let shell = self.shell(machine);
        shell.does(&begun, end).ok_or("the shell is gone")?;
        // Nothing tells that a process of another has written, so this looks again and again.
        loop {
            let printed = self.printed(&out);
            let wrong = match compare(&printed) {
                Ok(()) => return Ok(printed),
                Err(wrong) => wrong,
            };
            let runs = self.shell(machine).does("kill -0 $! 2>/dev/null", end);
            if runs != Some(0) || Instant::now() > end {
                // What it printed at its end counts as well.
                let printed = self.printed(&out);
                return compare(&printed)
                    .and_then(|()| Err("it does not go on".to_owned()))
                    .map_err(|_| format!("{wrong}\nit printed:\n{printed}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes a snippet into a file, where the machine's shell is.
    pub(super) fn write(&mut self, file: &str, text: &str) {
        let (machine, name) = file.split_once(':').unwrap_or(("", file));
        let from = self.out();
        fs::write(&from, text).unwrap();
        let copied = format!("mkdir -p $(dirname {name}) && cp {} {name}", from.display());
        let ran = self.run(machine, &copied).unwrap();
        assert_eq!(ran.code, 0, "{name}: {}", ran.out);
    }

    /// Has `cargo run` run a program that was built with the tests.
    pub(super) fn cargo_runs(&mut self, program: &Path) {
        let cargo = in_path("cargo").unwrap();
        let script = format!(
            "#!/bin/sh\ncase $1 in\nrun) exec {} ;;\n*) exec {} \"$@\" ;;\nesac\n",
            program.display(),
            cargo.display()
        );
        let path = self.folder.path().join("bin/cargo");
        let _ = fs::remove_file(&path);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A file for what a command prints.
    fn out(&mut self) -> PathBuf {
        self.commands += 1;
        let name = format!("out/{}", self.commands);
        self.folder.path().join(name)
    }

    /// What a command printed, with the home that pages show.
    fn printed(&self, out: &Path) -> String {
        let text = String::from_utf8_lossy(&fs::read(out).unwrap_or_default()).into_owned();
        let home = self.folder.path().join("home");
        let mut text = text;
        for machine in self.shells.keys() {
            let home = home.join(home_of(machine));
            text = text.replace(&*home.to_string_lossy(), "/home/ann");
        }
        text
    }

    fn shell(&mut self, machine: &str) -> &mut Shell {
        let (folder, inside) = (self.folder.path(), self.inside);
        let shells = &mut self.shells;
        shells
            .entry(machine.to_owned())
            .or_insert_with(|| Shell::start(machine, folder, inside))
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
        for shell in self.shells.values_mut() {
            let _ = shell.child.kill();
            let _ = shell.child.wait();
        }
    }
}

/// The name of a machine, and of its folder.
fn home_of(machine: &str) -> &str {
    if machine.is_empty() { "desk" } else { machine }
}

/// A command as one that the shell itself runs, so that folder and variables last, with the exit code of the one before.
fn grouped(command: &str) -> String {
    format!("{{ (exit ${{code:-0}})\n{command}\n}}")
}

/// A machine's shell. It reads commands, and prints the exit code of each.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    codes: Receiver<i32>,
}

impl Shell {
    fn start(machine: &str, folder: &Path, inside: u32) -> Self {
        let home = folder.join("home").join(home_of(machine));
        fs::create_dir(&home).unwrap();
        symlink(folder.join("repository"), home.join("hailwire")).unwrap();
        // As an installation of the packages leaves them.
        let modules = home.join("node_modules");
        fs::create_dir(&modules).unwrap();
        symlink(
            folder.join("repository/sdk/typescript"),
            modules.join("hailwire"),
        )
        .unwrap();
        let path = std::env::var("PATH").unwrap();
        let kept = |name: &str, folder: &str| {
            let of_home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(folder));
            std::env::var_os(name).map(PathBuf::from).or_else(of_home)
        };
        let mut command = Command::new("nsenter");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command
            .args(["--net", "--mount", "--pid", "--target", &inside.to_string()])
            .args([
                "unshare",
                "--uts",
                "sh",
                "-c",
                NAMED,
                "sh",
                home_of(machine),
            ])
            .args(["bash", "--noprofile", "--norc"])
            .env_clear()
            .env("PATH", format!("{}:{path}", folder.join("bin").display()))
            .env("HOME", &home)
            .env("USER", "ann")
            .env("LANG", "C.UTF-8")
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONPATH", home.join("hailwire/sdk/python/src"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            command.envs(kept(name, folder).map(|value| (name, value)));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let (told, codes) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Ok(code) = line.parse() {
                    let _ = told.send(code);
                }
            }
        });
        let stdin = child.stdin.take().unwrap();
        let mut shell = Self {
            child,
            stdin,
            codes,
        };
        // `nsenter` begins in the root of the namespace.
        let home = shell.does("cd \"$HOME\" || exit", Instant::now() + PATIENCE);
        assert_eq!(home, Some(0));
        shell
    }

    /// Has a command done, and returns its exit code. `None` where it does not end in time, or the shell is gone.
    fn does(&mut self, command: &str, end: Instant) -> Option<i32> {
        let line = format!("{command}\necho $?\n");
        self.stdin.write_all(line.as_bytes()).ok()?;
        let left = end.saturating_duration_since(Instant::now());
        self.codes.recv_timeout(left).ok()
    }
}
