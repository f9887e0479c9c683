//! What slow requests cost in memory: a window each, in the process of the host and in that of the agent.

use std::{path::Path, process::Stdio, sync::Arc, time::Duration};

use hailwire_callout::{
    Event, EventKind,
    agent::{self, ServeOptions},
    inspect::{Config, Inspector},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::support::{LONG, Told, head, piece};

/// The variable that makes this program one of the two: `agent PATH` or `host PATH`.
const ROLE: &str = "HAILWIRE_TEST_CALLOUT_MEMORY";

/// Requests that are not answered.
const SLOW: usize = 100;

/// What each may have under way.
const WINDOW: usize = 512 << 10;

/// What a process may hold beside the windows: its own buffers, and the one request that is served.
const BESIDE: usize = 16 << 20;

/// Bytes of a piece.
const PIECE: usize = 64 << 10;

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::one_of_the_two_processes", "--nocapture"])
            .env(ROLE, format!("{role} {}", path.display()))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until it says this.
    async fn says(&mut self, what: &str) {
        let saying = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                // The name of the test may stand before it.
                if line.ends_with(what) {
                    return;
                }
            }
            panic!("it ended before it said {what}");
        };
        tokio::time::timeout(LONG, saying).await.expect(what);
    }

    /// The most that it has held so far, in bytes.
    fn most(&self) -> usize {
        let path = format!("/proc/{}/status", self.child.id().unwrap());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<usize>().unwrap() << 10
    }
}

#[tokio::test]
async fn slow_requests_hold_a_window_each_and_another_is_served_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    let mut agent = Process::start("agent", &path);
    agent.says("listening").await;
    let mut host = Process::start("host", &path);
    host.says("connected").await;
    let before = [agent.most(), host.most()];
    host.says("served").await;
    for ((process, before), what) in [agent, host].iter().zip(before).zip(["agent", "host"]) {
        let held = process.most() - before;
        println!(
            "{what}: {} KiB before, {} KiB more",
            before >> 10,
            held >> 10
        );
        assert!(held <= SLOW * WINDOW + BESIDE, "{what} {held}");
        // They are under way, and not only promised.
        assert!(held >= SLOW * WINDOW / 2, "{what} {held}");
    }
}

/// Nothing, unless another test has started this program to be one of them.
#[tokio::test]
async fn one_of_the_two_processes() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let running = async {
        match role.split_once(' ').unwrap() {
            ("agent", path) => be_agent(path.as_ref()).await,
            (_, path) => be_host(path.as_ref()).await,
        }
    };
    let _ = tokio::time::timeout(LONG, running).await;
}

async fn be_agent(path: &Path) {
    let listener = agent::uds::UdsListener::bind(path).unwrap();
    println!("listening");
    let (mut told, _seen) = Told::new();
    told.limits.max_body_size = 1 << 30;
    told.decides = true;
    told.limits.max_concurrency = 2 * SLOW as u32;
    let options = ServeOptions::default();
    let serving = agent::uds::serve(Arc::new(told), listener, &options);
    serving.await.unwrap();
}

async fn be_host(path: &Path) {
    let text = format!(
        "agents {{ agent \"told\" {{ binary-uds {path:?}; timeout-ms 60000; \
         pool {{ connections 1; max-in-flight 200 }} }} }}"
    );
    let config = Config::parse(&text, "callout.kdl".as_ref()).unwrap();
    let inspector = Inspector::from_config(&config, &|_, _| None).unwrap();
    assert!(inspector.ready(LONG).await);
    println!("connected");
    let mut slow = Vec::new();
    for n in 0..SLOW {
        let (id, mut exchange) = (format!("slow-{n}"), inspector.exchange());
        let Event::RequestHeaders(head) = head(&id, "/") else {
            unreachable!()
        };
        assert!(exchange.request_headers(head).await.passes());
        let mut index = 0;
        while exchange.has_room(EventKind::RequestBody) {
            let whole = vec![index as u8; PIECE];
            exchange.show_request_body(piece(&id, index, whole, false));
            index += 1;
        }
        slow.push(exchange);
    }
    // Behind all of them, on the same connection.
    let mut exchange = inspector.exchange();
    let mut passed = 0;
    for index in 0..160 {
        let next = piece("same", index, vec![1; PIECE], index == 159);
        let out = tokio::time::timeout(Duration::from_secs(5), exchange.request_body(next)).await;
        passed += out.unwrap().data.len();
    }
    assert_eq!(passed, 160 * PIECE);
    println!("served");
    std::future::pending::<()>().await;
}
