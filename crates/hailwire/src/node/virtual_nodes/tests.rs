//! Systems of nodes in virtual time: what takes a day outside takes a moment here, and the same seed brings the
//! same day.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire_wire::{Code, Priority};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{VirtualNodes, befriend};
use crate::{Agent, Body, Client, Node, Request, Response, ServeHandle, Status};

/// 50 ms there and back, 1 % lost each way.
const WAN: &str = "delay \"25ms\"; loss \"1%\"";

/// Nodes that work, besides the one that gives them work.
const WORKERS: usize = 20;

const CALLS: u64 = 2000;

/// The time of day over which calls begin.
const DAY: Duration = Duration::from_secs(20);

/// Who is cut off in the middle of the day, when, and when it is back.
const VICTIM: usize = 7;
const CUT: Duration = Duration::from_secs(8);
const BACK: Duration = Duration::from_secs(15);

/// Handlers that began and that ended by themselves.
#[derive(Debug, Default)]
struct HandlerCounts {
    begun: AtomicU64,
    running: AtomicU64,
    done: AtomicU64,
}

/// Counts a handler for as long as it lives.
struct RunningHandler(Arc<HandlerCounts>);

impl RunningHandler {
    fn new(work: &Arc<HandlerCounts>) -> Self {
        work.begun.fetch_add(1, Ordering::Relaxed);
        work.running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(work))
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An agent that works for as many milliseconds as its method says, and answers with the body.
async fn serve_work(client: &Client, work: &Arc<HandlerCounts>) -> ServeHandle {
    let work = Arc::clone(work);
    let handler = move |request: Request| {
        let running = RunningHandler::new(&work);
        async move {
            let (header, _, body) = request.into_parts();
            sleep(Duration::from_millis(header.method.parse().unwrap_or(0))).await;
            running.0.done.fetch_add(1, Ordering::Relaxed);
            Ok(Response::new(body))
        }
    };
    let agent = Agent::new("work").unwrap();
    client.serve(agent, handler).await.unwrap()
}

/// An agent that answers with a chunk each 200 ms, twenty times.
async fn serve_slow(client: &Client) -> ServeHandle {
    let handler = |_: Request| async {
        let (sender, body) = Body::channel(1);
        tokio::spawn(async move {
            for _ in 0..20 {
                sleep(Duration::from_millis(200)).await;
                sender.send(Bytes::from_static(b"chunk")).await?;
            }
            sender.finish().await
        });
        Ok(Response::new(body))
    };
    let agent = Agent::new("slow").unwrap();
    client.serve(agent, handler).await.unwrap()
}

/// A node with its programs.
struct SystemNode {
    node: Node,
    _serving: [ServeHandle; 2],
}

/// An orchestrator and its workers, at the start of a day.
struct TestSystem {
    network: Arc<VirtualNodes>,
    folder: TempDir,
    boss: Node,
    workers: Vec<Option<SystemNode>>,
    work: Arc<HandlerCounts>,
}

fn name(worker: usize) -> String {
    format!("n{worker:02}")
}

impl TestSystem {
    async fn new(link: &str, workers: usize, seed: u64) -> Self {
        let network = VirtualNodes::new(link, seed);
        let folder = tempfile::tempdir().unwrap();
        let boss = network.start(&folder.path().join("boss"), "boss").await;
        let mut host = Self {
            network,
            folder,
            boss,
            workers: Vec::new(),
            work: Arc::default(),
        };
        for worker in 0..workers {
            let member = host.member(worker).await;
            befriend(&host.boss, &member.node);
            host.workers.push(Some(member));
            // One after the other, so that the pool lists them in an order that is always the same.
            let call = host.boss.client().call(format!("work@{}", name(worker)));
            call.method("0").send().await.unwrap();
        }
        host
    }

    async fn member(&self, worker: usize) -> SystemNode {
        let name = name(worker);
        let folder = self.folder.path().join(&name);
        let node = self.network.start(&folder, &name).await;
        let client = node.client();
        let serving = [
            serve_work(&client, &self.work).await,
            serve_slow(&client).await,
        ];
        SystemNode {
            node,
            _serving: serving,
        }
    }

    /// Cuts a worker off, and brings it back later.
    async fn cut(&mut self, worker: usize, back: Instant) {
        let member = self.workers[worker].take().unwrap();
        self.network.cut(member.node).await;
        sleep_until(back).await;
        self.workers[worker] = Some(self.member(worker).await);
    }
}

/// What became of a call, and how long it took in virtual time.
type CallOutcome = (Result<usize, Code>, Duration);

/// A call that is to be made.
#[derive(Clone, Copy, Debug)]
struct PlannedCall {
    after: Duration,
    worker: usize,
    kind: PlannedKind,
    priority: Priority,
    takes: u64,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlannedKind {
    /// To one node.
    Named,
    /// To whichever has room.
    Pooled,
    /// Given up by the caller after 60 ms.
    Cancelled,
    /// With 90 ms to go, for work of 200 ms.
    Late,
}

impl PlannedCall {
    /// The plan of a day follows from its seed (splitmix64).
    fn day(seed: u64) -> Vec<Self> {
        let mut state = seed;
        let mut draw = move |below: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below
        };
        let plan = |_| Self {
            after: Duration::from_millis(draw(DAY.as_millis() as u64)),
            worker: draw(WORKERS as u64) as usize,
            kind: match draw(10) {
                0 => PlannedKind::Cancelled,
                1 => PlannedKind::Late,
                2..5 => PlannedKind::Pooled,
                _ => PlannedKind::Named,
            },
            priority: [Priority::High, Priority::Medium, Priority::Low][draw(3) as usize],
            takes: 5 + draw(60),
            bytes: draw(20_000) as usize,
        };
        (0..CALLS).map(plan).collect()
    }

    async fn make(self, client: Client) -> CallOutcome {
        let begun = Instant::now();
        let to = match self.kind {
            PlannedKind::Pooled => "work".to_owned(),
            _ => format!("work@{}", name(self.worker)),
        };
        let (takes, deadline) = match self.kind {
            PlannedKind::Late => (200, Duration::from_millis(90)),
            PlannedKind::Cancelled => (200, Duration::from_secs(30)),
            PlannedKind::Named | PlannedKind::Pooled => (self.takes, Duration::from_secs(30)),
        };
        let call = client
            .call(to)
            .method(takes.to_string())
            .priority(self.priority)
            .deadline(deadline)
            .body(vec![7; self.bytes]);
        let call = async {
            let mut answer = call.send().await?;
            answer.bytes(1 << 20).await
        };
        let patience = match self.kind {
            PlannedKind::Cancelled => Duration::from_millis(60),
            _ => Duration::from_secs(60),
        };
        let outcome = match timeout(patience, call).await {
            Ok(Ok(body)) => Ok(body.len()),
            Ok(Err(Status { code, .. })) => Err(code),
            Err(_) => Err(Code::Cancelled),
        };
        (outcome, begun.elapsed())
    }
}

/// Reads a slow answer to its end: chunks that came, how it ended, and when.
async fn read_slowly(client: Client, worker: usize) -> (usize, Option<Code>, Duration) {
    let begun = Instant::now();
    let call = client.call(format!("slow@{}", name(worker)));
    let mut answer = call.send().await.unwrap();
    let mut chunks = 0;
    let end = loop {
        match answer.chunk().await {
            Ok(Some(_)) => chunks += 1,
            Ok(None) => break None,
            Err(status) => break Some(status.code),
        }
    };
    (chunks, end, begun.elapsed())
}

/// What has not ended after ten virtual minutes never does.
async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    let done = timeout(Duration::from_secs(600), future).await;
    done.unwrap_or_else(|_| panic!("without end: {what}"))
}

/// A day and what became of it.
#[derive(Debug, PartialEq)]
struct SimulatedDay {
    calls: Vec<CallOutcome>,
    cut_off: (usize, Option<Code>, Duration),
    whole: (usize, Option<Code>, Duration),
    begun: u64,
    done: u64,
    took: Duration,
}

async fn day(seed: u64) -> SimulatedDay {
    let mut host = TestSystem::new(WAN, WORKERS, seed).await;
    let client = host.boss.client();
    let morning = Instant::now();
    let mut calls = JoinSet::new();
    for (number, planned) in PlannedCall::day(seed).into_iter().enumerate() {
        let client = client.clone();
        calls.spawn(async move {
            sleep_until(morning + planned.after).await;
            (number, planned.make(client).await)
        });
    }
    let reading = [VICTIM, VICTIM + 1].map(|worker| {
        let client = client.clone();
        tokio::spawn(async move {
            sleep_until(morning + CUT - Duration::from_secs(2)).await;
            read_slowly(client, worker).await
        })
    });
    sleep_until(morning + CUT).await;
    in_time("the cut", host.cut(VICTIM, morning + BACK)).await;
    let mut outcomes = in_time("the calls", calls.join_all()).await;
    outcomes.sort_unstable_by_key(|(number, _)| *number);
    let [cut_off, whole] = reading;
    let cut_off = in_time("the answer cut off", cut_off).await.unwrap();
    let whole = in_time("the whole answer", whole).await.unwrap();
    let took = morning.elapsed();
    // What was cancelled last is told with the next packet.
    sleep(Duration::from_secs(1)).await;
    let work = &host.work;
    assert_eq!(work.running.load(Ordering::Relaxed), 0, "nobody works on");
    SimulatedDay {
        calls: outcomes.into_iter().map(|(_, outcome)| outcome).collect(),
        cut_off,
        whole,
        begun: work.begun.load(Ordering::Relaxed),
        done: work.done.load(Ordering::Relaxed),
        took,
    }
}

#[tokio::test(start_paused = true)]
async fn a_system_of_21_nodes_has_its_day_in_a_moment() {
    let real = std::time::Instant::now();
    let day = day(1).await;
    eprintln!(
        "{CALLS} calls among {} nodes: {:?} of virtual and {:?} of real time",
        WORKERS + 1,
        day.took,
        real.elapsed()
    );
    let planned = PlannedCall::day(1);
    let victim = |plan: &PlannedCall| plan.worker == VICTIM && plan.after + DAY / 10 > CUT;
    let mut answered = 0;
    for (plan, (outcome, took)) in planned.iter().zip(&day.calls) {
        let what = format!("{plan:?}: {outcome:?} after {took:?}");
        match (plan.kind, outcome) {
            (PlannedKind::Late, Err(Code::DeadlineExceeded)) => {
                assert_eq!(took.as_millis(), 90, "{what}");
            }
            (PlannedKind::Cancelled, Err(Code::Cancelled)) => {
                assert_eq!(took.as_millis(), 60, "{what}");
            }
            (PlannedKind::Named | PlannedKind::Pooled, Ok(bytes)) => {
                assert_eq!(*bytes, plan.bytes, "{what}");
                let least = Duration::from_millis(50 + plan.takes);
                assert!(*took >= least, "faster than light: {what}");
                answered += 1;
            }
            (PlannedKind::Named, Err(Code::Unavailable)) => assert!(victim(plan), "{what}"),
            (PlannedKind::Pooled, Err(Code::Unavailable)) => {}
            _ => panic!("{what}"),
        }
    }
    assert!(answered > 1400, "{answered}");
    // Its peer notices by the silence, in the time that it allows.
    let (chunks, end, took) = day.cut_off;
    assert!((7..10).contains(&chunks), "{chunks}");
    assert_eq!(end, Some(Code::Unavailable));
    assert!(
        took > Duration::from_secs(6) && took < Duration::from_secs(10),
        "{took:?}"
    );
    assert_eq!((day.whole.0, day.whole.1), (20, None));
    assert!(day.done < day.begun, "those given up were dropped");
}

/// Runs in a virtual time of its own.
fn anew<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

#[test]
fn the_same_seed_brings_the_same_day_and_another_one_another() {
    let first = anew(day(2));
    let again = anew(day(2));
    for (number, (one, other)) in first.calls.iter().zip(&again.calls).enumerate() {
        assert_eq!(one, other, "call {number}");
    }
    assert_eq!(first, again);
    assert_ne!(first.calls, anew(day(3)).calls);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_hours_is_kept_to_the_millisecond() {
    const HOUR: Duration = Duration::from_secs(3600);
    let host = TestSystem::new(WAN, 2, 4).await;
    let client = host.boss.client();
    let call = |worker: usize, hours: u32, deadline: u32| {
        let takes = (HOUR * hours).as_millis().to_string();
        let call = client.call(format!("work@{}", name(worker))).method(takes);
        call.deadline(HOUR * deadline).send()
    };
    let real = std::time::Instant::now();
    let begun = Instant::now();
    let patient = tokio::spawn(call(0, 2, 3));
    let status = call(1, 3, 2).await.unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    assert_eq!(begun.elapsed(), 2 * HOUR);
    patient.await.unwrap().unwrap();
    let late = begun.elapsed() - 2 * HOUR;
    assert!(late < Duration::from_secs(1), "{late:?}");
    eprintln!("two hours took {:?}", real.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_urgent_answer_overtakes_what_waits_on_a_slow_link() {
    // 10 MB take 40 s; a megabyte of them is on the way at any time, beyond anybody's reach.
    let host = TestSystem::new("delay \"25ms\"; rate \"2 Mbit/s\"; queue \"2 MB\"", 1, 5).await;
    let client = host.boss.client();
    let begun = Instant::now();
    let mut bulk = JoinSet::new();
    for _ in 0..20 {
        let call = client.call("work@n00").method("0").priority(Priority::Low);
        let call = call.body(vec![7; 500_000]);
        bulk.spawn(async move { call.send().await?.bytes(1 << 20).await });
    }
    sleep(Duration::from_secs(2)).await;
    let call = client.call("work@n00").method("0").priority(Priority::High);
    let mut answer = call.body("now").send().await.unwrap();
    assert_eq!(answer.bytes(8).await.unwrap(), "now");
    let urgent = begun.elapsed();
    let all = bulk.join_all().await;
    assert!(all.iter().all(Result::is_ok));
    let bulk = begun.elapsed();
    assert!(bulk > Duration::from_secs(40), "{bulk:?}");
    assert!(urgent < bulk / 4, "{urgent:?} of {bulk:?}");
}
