//! A house for one test: a temporary folder, and every process of the test in it. Whatever still
//! runs at the end is stopped.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

use crate::companion_programs;

pub(crate) struct TestNodes {
    folder: tempfile::TempDir,
    nodes: Vec<&'static str>,
    children: Vec<Child>,
}

impl TestNodes {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            folder,
            nodes: Vec::new(),
            children: Vec::new(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `hail` on the data folder of `node`.
    pub(crate) fn hail(&self, node: &str, args: &[&str]) -> Command {
        let mut command = Command::new(companion_programs::hail());
        command
            .env_remove("HAIL_DATA")
            .env("HOME", self.folder.path());
        command
            .arg("--data")
            .arg(self.path(node))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, node: &str, args: &[&str]) -> Ran {
        Ran::from(self.hail(node, args).output().unwrap())
    }

    /// Runs a command with something on its stdin.
    pub(crate) fn feed(&self, node: &str, args: &[&str], input: &str) -> Ran {
        let mut command = self.hail(node, args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let written = child.stdin.take().unwrap().write_all(input.as_bytes());
        // One that refuses its arguments ends without reading any of it, and what it printed tells.
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        }
        Ran::from(child.wait_with_output().unwrap())
    }

    /// Starts a node in the background on loopback.
    pub(crate) fn up(&mut self, node: &'static str) -> Value {
        let args = [
            "--json",
            "up",
            "-d",
            "--name",
            node,
            "--listen",
            "127.0.0.1:0",
        ];
        let started = self.run(node, &args).ok().json();
        self.nodes.push(node);
        started
    }

    /// Has a node that was started in another way stopped at the end of the test.
    pub(crate) fn adopt(&mut self, node: &'static str) {
        self.nodes.push(node);
    }

    /// Starts two nodes that trust each other.
    pub(crate) fn trusted_pair(&mut self, one: &'static str, other: &'static str) {
        self.up(one);
        self.up(other);
        let ticket = self.run(one, &["--json", "invite"]).ok().json();
        self.run(other, &["join", ticket["ticket"].as_str().unwrap()])
            .ok();
    }

    /// Offers a shell script as an agent and returns once it can be called.
    pub(crate) fn serve(&mut self, node: &str, name: &str, script: &str) {
        self.serve_with(node, &[name, "--", "sh", "-c", script]);
    }

    pub(crate) fn serve_with(&mut self, node: &str, args: &[&str]) {
        let mut command = self.hail(node, &["--json", "serve"]);
        let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
        let first = first_line(&mut child);
        self.children.push(child);
        assert!(first.contains("serving"), "{first}");
    }

    /// Keeps a process to be stopped at the end of the test.
    pub(crate) fn keep(&mut self, child: Child) {
        self.children.push(child);
    }
}

impl Drop for TestNodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
        for node in &self.nodes {
            let _ = self.hail(node, &["down", "--grace", "0s"]).output();
        }
    }
}

/// The first line that a process prints.
pub(crate) fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout.by_ref())
        .read_line(&mut line)
        .unwrap();
    line
}

/// A command that ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Makes a named pipe, by which a test and a program wait for each other.
#[track_caller]
pub(crate) fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}
