//! An agent in a process of its own, killed under load.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use hailwire_callout::{
    Agent, Response,
    agent::{self, ServeOptions},
    event::{BodyChunk, RequestHeaders},
    host,
    pool::{AgentPool, Backoff, PoolConfig, PoolError, connect_with},
};
use hailwire_pool::BreakerConfig;

use crate::house::{LONG, eventually, head, request_body};

const SOCKET: &str = "HAILWIRE_TEST_AGENT_SOCKET";

struct Plain;

impl Agent for Plain {
    fn name(&self) -> &str {
        "plain"
    }
    async fn request_headers(&self, _: RequestHeaders) -> Response {
        Response::allow()
    }
    async fn request_body(&self, _: BodyChunk) -> Response {
        Response::allow()
    }
}

/// Not a test, but the agent's process: this program, told by its environment where to listen.
#[tokio::test]
#[ignore = "the other tests start it"]
async fn the_agent_process() {
    let Ok(socket) = env::var(SOCKET) else {
        return;
    };
    let listener = agent::uds::Listener::bind(socket).unwrap();
    let options = ServeOptions::default();
    let _ = agent::uds::serve(Arc::new(Plain), listener, &options).await;
}

/// A process that is killed and waited for when it is dropped.
struct Process(Child);

impl Process {
    fn start(socket: &Path) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "killed::the_agent_process"])
            .env(SOCKET, socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pool(socket: PathBuf) -> Arc<AgentPool> {
    let connect = connect_with("a process", move |options| {
        let socket = socket.clone();
        Box::pin(async move { host::uds::connect(socket, &options).await })
    });
    let config = PoolConfig {
        reconnect: Backoff {
            first: Duration::from_millis(5),
            most: Duration::from_millis(20),
        },
        breaker: BreakerConfig {
            open: Duration::from_millis(20),
            ..BreakerConfig::default()
        },
        ..PoolConfig::default()
    };
    Arc::new(AgentPool::new("plain", Arc::new(connect), config))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_under_load_leaves_no_ask_without_an_end_and_the_pool_comes_back() {
    const DEADLINE: Duration = Duration::from_millis(500);
    const KILLS: usize = 10;

    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let mut process = Process::start(&socket);
    let pool = pool(socket.clone());
    assert!(pool.ready(LONG).await);

    let stop = Arc::new(AtomicBool::new(false));
    let (answers, failures) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let askers: Vec<_> = (0..32)
        .map(|asker| {
            let (pool, stop) = (Arc::clone(&pool), Arc::clone(&stop));
            let (answers, failures) = (Arc::clone(&answers), Arc::clone(&failures));
            tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                for request in 0_u32.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let id = format!("{asker}-{request}");
                    for event in [head(&id), request_body(&id, 0), request_body(&id, 1)] {
                        let started = Instant::now();
                        match pool.ask(event, DEADLINE).await {
                            Ok(response) => {
                                assert_eq!(response, Response::allow());
                                answers.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(PoolError::TooLarge) => panic!("nothing is large here"),
                            Err(_) => {
                                failures.fetch_add(1, Ordering::SeqCst);
                                tokio::task::yield_now().await;
                            }
                        }
                        longest = longest.max(started.elapsed());
                    }
                    pool.done(&id);
                }
                longest
            })
        })
        .collect();

    for _ in 0..KILLS {
        let before = answers.load(Ordering::SeqCst);
        eventually(|| answers.load(Ordering::SeqCst) > before + 500).await;
        drop(process);
        eventually(|| pool.able() == 0).await;
        process = Process::start(&socket);
        assert!(pool.ready(LONG).await);
    }
    stop.store(true, Ordering::SeqCst);
    for asker in askers {
        let longest = asker.await.unwrap();
        // The machine may be busy; an ask that was forgotten would never end.
        assert!(longest < DEADLINE + Duration::from_secs(5), "{longest:?}");
    }
    assert!(failures.load(Ordering::SeqCst) > 0, "the kills were felt");
    assert_eq!(pool.in_flight(), 0);
    assert!(pool.ready(LONG).await);
    eventually(|| pool.connections().iter().all(Option::is_some)).await;
    drop(process);
}
