//! Agents and hosts in processes of their own: this program, told by its environment what to be.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use hailwire_callout::{
    Agent, Response,
    agent::{self, ServeOptions},
    event::{BodyChunk, RequestHeaders},
    response::HeaderOp,
};

/// Names the socket in the environment of a process.
const SOCKET: &str = "HAILWIRE_TEST_SOCKET";

/// What the agent's process writes when it listens.
pub(crate) const LISTENING: &str = "listening";

/// What the agent's process sets on everything that it has seen and lets pass.
pub(crate) const MARK: &str = "x-seen";

/// Blocks what is bad, and marks the rest.
struct Marking;

fn judged(bad: bool) -> Response {
    if bad {
        return Response::block(403);
    }
    Response {
        request_headers: vec![HeaderOp::Set {
            name: MARK.to_owned(),
            value: "1".to_owned(),
        }],
        ..Response::allow()
    }
}

impl Agent for Marking {
    fn name(&self) -> &str {
        "marking"
    }
    async fn request_headers(&self, event: RequestHeaders) -> Response {
        judged(event.uri() == "/bad")
    }
    async fn request_body(&self, event: BodyChunk) -> Response {
        judged(event.data == "bad")
    }
}

/// Not a test, but the agent's process.
#[tokio::test]
#[ignore = "the other tests start it"]
async fn the_agent() {
    let Some(socket) = socket() else { return };
    let listener = agent::uds::UdsListener::bind(socket).unwrap();
    let _ = writeln!(io::stdout(), "{LISTENING}");
    let options = ServeOptions::default();
    let _ = agent::uds::serve(Arc::new(Marking), listener, &options).await;
}

/// Where the agent listens, in a process that was started for it.
pub(crate) fn socket() -> Option<PathBuf> {
    env::var_os(SOCKET).map(PathBuf::from)
}

/// A process that is killed and waited for when it is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// The agent's.
    pub(crate) fn agent(socket: &Path) -> Self {
        Self::start("process::the_agent", socket, &[])
    }

    /// What a test of this program would do, with more in its environment.
    pub(crate) fn start(test: &str, socket: &Path, more: &[(&str, &str)]) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", test])
            .env(SOCKET, socket)
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it has written a line that ends so.
    pub(crate) fn has_said(&mut self, line: &str) {
        let said = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        assert!(said.map_while(Result::ok).any(|said| said.ends_with(line)));
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Until it has ended by itself; whether well.
    pub(crate) fn ended(mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
