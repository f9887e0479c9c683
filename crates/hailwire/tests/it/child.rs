//! Other processes to test with: the test binary again, in another role.
//!
//! A role is a test of this binary that does nothing unless the environment names it. It says
//! `@@ ready` once it runs, and ends when its standard input does, so that none is left behind.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use hailwire::{Agent, Body, Client, DataDir, Request, Response};

use crate::test_node;

const ROLE: &str = "HAIL_TEST_ROLE";
const DIR: &str = "HAIL_TEST_DIR";
const NAME: &str = "HAIL_TEST_NAME";

/// Marks a line as the role's own among what the test runner prints.
const MARK: &str = "@@ ";

/// What a child process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A node.
    Node,
    /// A node that listens on TCP too, and serves `echo`.
    TcpNode,
    /// A node that serves `middle`, which passes what it is asked on to `hold@last`.
    MiddleNode,
    /// A program that serves the agent `half`, which begins an answer and never ends it.
    HalfAgent,
    /// A program that tries to attach and says how that went.
    Visitor,
}

impl Role {
    const ALL: [Self; 5] = [
        Self::Node,
        Self::TcpNode,
        Self::MiddleNode,
        Self::HalfAgent,
        Self::Visitor,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::TcpNode => "tcp-node",
            Self::MiddleNode => "middle-node",
            Self::HalfAgent => "half-agent",
            Self::Visitor => "visitor",
        }
    }
}

/// A process that is killed with its owner, and by [`Helper::kill`] before.
pub(crate) struct Helper {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Helper {
    /// Starts a process; returns once it is ready.
    pub(crate) fn start(role: Role, dir: &Path, name: &str) -> Self {
        let mut helper = Self::spawn(role, dir, name, |_| {});
        assert_eq!(helper.line(), "ready");
        helper
    }

    /// Starts a process whose command `adjust` may still change.
    pub(crate) fn spawn(
        role: Role,
        dir: &Path,
        name: &str,
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["child::role", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role.word())
            .env(DIR, dir)
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        adjust(&mut command);
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// The next line that the role itself prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the process ended without a word");
    }

    /// SIGKILL. Returns when the process is gone.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Most memory that the process ever held, in bytes.
    pub(crate) fn peak_rss(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test: what a child process runs.
#[test]
fn role() {
    let Ok(word) = std::env::var(ROLE) else {
        return;
    };
    let role = Role::ALL.into_iter().find(|role| role.word() == word);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(play(role.unwrap()));
}

async fn play(role: Role) {
    let dir = std::env::var(DIR).unwrap();
    let data = DataDir::new(&dir);
    match role {
        Role::Node => {
            let name = std::env::var(NAME).unwrap();
            let _node = test_node::start(Path::new(&dir), &name).await.unwrap();
            println!("{MARK}ready");
            std::future::pending::<()>().await;
        }
        Role::TcpNode => {
            let name = std::env::var(NAME).unwrap();
            let mut config = test_node::config(&name);
            config.listen.tcp = vec![([127, 0, 0, 1], 0).into()];
            let builder = hailwire::Node::builder().data_dir(data).config(config);
            let node = builder.start().await.unwrap();
            let _echo = test_node::serve_echo(&node.client(), "echo").await;
            println!("{MARK}ready");
            std::future::pending::<()>().await;
        }
        Role::MiddleNode => {
            let name = std::env::var(NAME).unwrap();
            let node = test_node::start(Path::new(&dir), &name).await.unwrap();
            let _middle = crate::nested::serve_middle(&node.client(), "hold@last").await;
            println!("{MARK}ready");
            std::future::pending::<()>().await;
        }
        Role::HalfAgent => {
            let client = Client::attach(&data).await.unwrap();
            let half = |_: Request| async {
                let (sender, body) = Body::channel(1);
                sender.send("half").await?;
                tokio::spawn(async move {
                    let _kept = sender;
                    std::future::pending::<()>().await;
                });
                Ok(Response::new(body))
            };
            let _serving = client
                .serve(Agent::new("half").unwrap(), half)
                .await
                .unwrap();
            println!("{MARK}ready");
            std::future::pending::<()>().await;
        }
        Role::Visitor => {
            let by_the_library = match Client::attach(&data).await {
                Ok(_) => "attached".to_owned(),
                Err(error) => format!("{error:?}"),
            };
            println!(
                "{MARK}{by_the_library}; {}",
                past_the_library(&data.socket())
            );
        }
    }
}

/// What becomes of a program of one's own making, which does not look whose node it is.
fn past_the_library(socket: &Path) -> String {
    match std::os::unix::net::UnixStream::connect(socket) {
        Err(error) => format!("not let in: {:?}", error.kind()),
        // Whoever is admitted is greeted.
        Ok(mut stream) => match stream.read(&mut [0]) {
            Ok(1) => "greeted".to_owned(),
            Ok(_) | Err(_) => "turned away".to_owned(),
        },
    }
}
