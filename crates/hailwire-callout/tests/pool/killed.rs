//! An agent in a process of its own, killed again and again under load.

use std::{
    fs,
    ops::AddAssign,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire_callout::{
    Decision, EventKind, Response, Text,
    event::{BodyChunk, Metadata, RequestHeaders},
    host,
    inspect::{
        AgentClient, AgentCounters, AgentFault, AgentRule, Checkpoint, FallbackAction, Inspector,
        Verdict,
    },
    pool::{AgentPool, Backoff, PoolConfig, connect_with},
    response::HeaderOp,
};
use hailwire_pool::BreakerConfig;
use tokio::{sync::watch, time::timeout};

use crate::{
    process::{MARK, Process},
    system::LONG,
};

const KILLS: usize = 1_000;
const ASKERS: u64 = 32;

/// Requests that the agent decides between two kills, at least.
const BETWEEN: u64 = 20;

/// A pool that tries again at once.
fn pool(socket: PathBuf) -> Arc<AgentPool> {
    let connect = connect_with("a process", move |options| {
        let socket = socket.clone();
        Box::pin(async move { host::uds::connect(socket, &options).await })
    });
    let config = PoolConfig {
        reconnect: Backoff {
            first: Duration::from_millis(1),
            most: Duration::from_millis(2),
        },
        breaker: BreakerConfig {
            open: Duration::from_millis(5),
            ..BreakerConfig::default()
        },
        ..PoolConfig::default()
    };
    Arc::new(AgentPool::new("marking", Arc::new(connect), config))
}

/// Heads are blocked while the agent does not answer; pieces of bodies pass.
fn inspector(pool: &Arc<AgentPool>) -> Arc<Inspector> {
    let mut rule = AgentRule {
        events: Some(
            [EventKind::RequestHeaders, EventKind::RequestBody]
                .into_iter()
                .collect(),
        ),
        ..AgentRule::default()
    };
    for phase in &mut rule.phases {
        phase.timeout = LONG;
    }
    rule.phase_mut(EventKind::RequestHeaders).unwrap().on = [FallbackAction::Block(599); 4];
    rule.phase_mut(EventKind::RequestHeaders).unwrap().on[AgentFault::Error as usize] =
        FallbackAction::Block(503);
    rule.phase_mut(EventKind::RequestBody).unwrap().on[AgentFault::Error as usize] =
        FallbackAction::Allow;
    Arc::new(Inspector::new(vec![Checkpoint {
        name: Text::from("marking"),
        rule,
        endpoints: vec![Arc::clone(pool) as Arc<dyn AgentClient>],
    }]))
}

/// What became of events, by whoever asked about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// The agent let them pass.
    marked: u64,
    /// The agent blocked them.
    stopped: u64,
    /// Blocked, since the agent did not answer.
    blocked: u64,
    /// Passed, although it did not.
    bypassed: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.marked += other.marked;
        self.stopped += other.stopped;
        self.blocked += other.blocked;
        self.bypassed += other.bypassed;
    }
}

impl Count {
    /// What the inspector counted.
    fn of(counters: &AgentCounters, kind: EventKind) -> Self {
        let stopped = counters.stopped(kind);
        let blocked = counters.blocked(kind, AgentFault::Error);
        let bypassed = counters.bypassed(kind, AgentFault::Error);
        for fault in [
            AgentFault::Timeout,
            AgentFault::Overload,
            AgentFault::BodyTooLarge,
        ] {
            assert_eq!(counters.blocked(kind, fault), 0, "{fault:?}");
            assert_eq!(counters.bypassed(kind, fault), 0, "{fault:?}");
        }
        Self {
            marked: counters.asked(kind) - stopped - blocked - bypassed,
            stopped,
            blocked,
            bypassed,
        }
    }

    /// Adds one event, which was bad or not.
    fn add(&mut self, verdict: &Verdict, bad: bool) {
        let marked = verdict.request_headers.iter().any(|op| match op {
            HeaderOp::Set { name, .. } => name == MARK,
            _ => false,
        });
        match &verdict.decision {
            Decision::Allow if marked => {
                assert!(!bad, "the agent lets nothing pass that is bad");
                self.marked += 1;
            }
            Decision::Allow => self.bypassed += 1,
            decision if *decision == Response::block(403).decision => {
                assert!(bad, "the agent blocks only what is bad");
                self.stopped += 1;
            }
            decision => {
                assert_eq!(*decision, Response::block(503).decision);
                self.blocked += 1;
            }
        }
    }
}

/// Asks about requests, one after the other, until it is told to stop. Gives what became of heads and of pieces, and
/// how long the longest answer took.
async fn asks(
    asker: u64,
    inspector: Arc<Inspector>,
    stop: Arc<AtomicBool>,
    decided: watch::Sender<u64>,
) -> (Count, Count, Duration) {
    let (mut heads, mut pieces, mut longest) = (Count::default(), Count::default(), Duration::ZERO);
    for request in asker.. {
        if stop.load(SeqCst) {
            break;
        }
        let id = format!("{asker}-{request}");
        let mut exchange = inspector.exchange();
        let bad = request % 4 == 0;
        let started = Instant::now();
        let verdict = exchange.request_headers(head(&id, bad)).await;
        longest = longest.max(started.elapsed());
        let blocked = heads.blocked;
        heads.add(&verdict, bad);
        if heads.blocked == blocked {
            decided.send_modify(|decided| *decided += 1);
        } else {
            tokio::task::yield_now().await;
        }
        for index in 0..3 {
            if exchange.stopped().is_some() || !exchange.wants(EventKind::RequestBody) {
                break;
            }
            let bad = index == 2 && request % 4 == 1;
            let data = Bytes::from_static(if bad { b"bad" } else { b"good" });
            let started = Instant::now();
            let shown = exchange.request_body(chunk(&id, index, &data)).await;
            longest = longest.max(started.elapsed());
            pieces.add(&shown.verdict, bad);
            if shown.verdict.passes() {
                assert_eq!(shown.data, data, "what passes is whole");
            }
        }
    }
    (heads, pieces, longest)
}

fn head(id: &str, bad: bool) -> RequestHeaders {
    let metadata = Metadata {
        correlation_id: id,
        ..Metadata::default()
    };
    let uri = if bad { "/bad" } else { "/" };
    RequestHeaders::new(&metadata, "GET", uri, [("host", "a")])
}

fn chunk(id: &str, index: u32, data: &Bytes) -> BodyChunk {
    BodyChunk {
        correlation_id: id.into(),
        data: data.clone(),
        is_last: index == 2,
        total_size: None,
        index,
        transferred: 4 * u64::from(index + 1),
    }
}

/// Whether a process is still there, be it only to be waited for, that we started.
fn is_left(id: u32) -> bool {
    let ours = format!(" {} ", std::process::id());
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // `ID (NAME) STATE PARENT …`
    let parent = stat.rsplit(") ").next().unwrap_or_default();
    parent.get(1..).is_some_and(|rest| rest.starts_with(&ours))
}

/// Kills the agent and starts it again, and again. Gives the processes that there were.
async fn kills(socket: &Path, pool: &AgentPool, decided: &watch::Sender<u64>) -> Vec<u32> {
    let mut process = Process::agent(socket);
    let mut started = vec![process.id()];
    for _ in 0..KILLS {
        assert!(pool.ready(LONG).await);
        let mut decided = decided.subscribe();
        let enough = *decided.borrow() + BETWEEN;
        let decided = timeout(LONG, decided.wait_for(|decided| *decided >= enough));
        decided.await.unwrap().unwrap();
        drop(process);
        process = Process::agent(socket);
        started.push(process.id());
    }
    drop(process);
    started
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_a_thousand_times_under_load_leaves_each_event_answered_as_configured() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let pool = pool(socket.clone());
    let inspector = inspector(&pool);
    let stop = Arc::new(AtomicBool::new(false));
    let decided = watch::Sender::new(0);
    let askers: Vec<_> = (0..ASKERS)
        .map(|asker| {
            let (stop, decided) = (Arc::clone(&stop), decided.clone());
            tokio::spawn(asks(asker, Arc::clone(&inspector), stop, decided))
        })
        .collect();
    let begin = Instant::now();
    let started = kills(&socket, &pool, &decided).await;
    println!("{KILLS} kills in {:?}", begin.elapsed());
    stop.store(true, SeqCst);

    let (mut heads, mut pieces) = (Count::default(), Count::default());
    for asker in askers {
        let (of_heads, of_pieces, longest) = asker.await.unwrap();
        heads += of_heads;
        pieces += of_pieces;
        // The machine may be busy; an ask that was forgotten would never end.
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
    println!("heads: {heads:?}; pieces of bodies: {pieces:?}");
    let tally = inspector.counters("marking").unwrap();
    assert_eq!(heads, Count::of(&tally, EventKind::RequestHeaders));
    assert_eq!(pieces, Count::of(&tally, EventKind::RequestBody));
    assert_eq!((heads.bypassed, pieces.blocked), (0, 0));
    assert!(heads.marked + heads.stopped >= KILLS as u64 * BETWEEN);
    assert!(
        heads.blocked > 0 && pieces.bypassed > 0,
        "the kills were felt"
    );
    assert_eq!(pool.in_flight(), 0);
    assert_eq!(started.len(), KILLS + 1);
    let left = started.into_iter().filter(|id| is_left(*id));
    assert_eq!(left.count(), 0, "no process is left");

    let process = Process::agent(&socket);
    let all_open = pool.wait_until(|pool| pool.connections().iter().all(Option::is_some));
    timeout(LONG, all_open).await.unwrap();
    drop(process);
}
