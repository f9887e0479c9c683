//! The orchestrator at work: makes the calls that [`DocumentDispatch`] decides and reports their results to
//! it.
//!
//! It is a program attached to the orchestrator's node, as any agent is: each call goes over the
//! local socket to that node, over its tunnel to the worker's, and to one of the agents there.

use std::time::{Duration, Instant};

use hailwire::{Client, Code, Status, admin, admin::method};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::{
    dispatch::{CompletedAnswer, DispatchAction, DocumentDispatch, WorkerCall},
    documents::DemoDocument,
    processes::{DemoProcesses, WorkerNode},
    show::LiveView,
    summary::rows,
    work::{PATTERN, PATTERN_FIELD, WorkKind},
};
use hailwire_terminal::failure::CommandFailure;

/// Deadline of one call, after which another member is tried.
const DEADLINE: Duration = Duration::from_secs(2);

/// How often the view is redrawn.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// Frames between two requests for the state of the tunnels.
const FRAMES_PER_STATUS: u32 = 5;

/// Timeout of such a request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a call.
type CallOutcome = (u64, Result<CompletedAnswer, Status>);

/// A run under way.
pub(super) struct DemoOrchestrator<'a> {
    pub(super) client: Client,
    pub(super) documents: &'a [DemoDocument],
    pub(super) processes: &'a mut DemoProcesses,
    pub(super) show: &'a mut LiveView,
    pub(super) dispatch: DocumentDispatch,
    /// The path of the tunnel to each worker; empty while there is none.
    pub(super) paths: Vec<String>,
    /// The worker that was killed.
    pub(super) killed: Option<usize>,
}

impl DemoOrchestrator<'_> {
    /// Runs until every task is answered or lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the calls in flight.
    pub(super) async fn run(&mut self) -> Result<(), CommandFailure> {
        let start = Instant::now();
        let mut calls: JoinSet<CallOutcome> = JoinSet::new();
        let mut frame = tokio::time::interval(FRAME_INTERVAL);
        frame.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut frames = 0_u32;
        let gone = self.client.clone();
        loop {
            let wake = match self.dispatch.next(start.elapsed()) {
                DispatchAction::Done => return Ok(()),
                DispatchAction::Call(call) => {
                    calls.spawn(self.started(call));
                    continue;
                }
                DispatchAction::Wait(until) => until,
            };
            let nap = wake.map_or(FRAME_INTERVAL, |until| {
                until.saturating_sub(start.elapsed())
            });
            tokio::select! {
                Some(ended) = calls.join_next() => {
                    let (id, result) = ended
                        .map_err(|error| CommandFailure::general(format!("a call panicked: {error}")))?;
                    self.ended(id, result, start.elapsed()).await?;
                }
                _ = frame.tick() => {
                    if frames.is_multiple_of(FRAMES_PER_STATUS) {
                        self.read_status().await;
                    }
                    frames += 1;
                    let (dispatch, processes, paths) = (&self.dispatch, &self.processes, &self.paths);
                    self.show.update(dispatch, || rows(dispatch, processes.workers(), paths));
                }
                () = tokio::time::sleep(nap), if wake.is_some() => {}
                status = gone.closed() => {
                    let status = status.with_hint("the orchestrator's node ended");
                    return Err(status.into());
                }
            }
        }
    }

    async fn ended(
        &mut self,
        id: u64,
        result: Result<CompletedAnswer, Status>,
        now: Duration,
    ) -> Result<(), CommandFailure> {
        match result {
            Ok(answered) => self.dispatch.answered(id, &answered, now),
            Err(status) => {
                tracing::debug!(id, %status, "a call failed");
                self.dispatch.failed(id, status, now);
            }
        }
        if let Some(worker) = self.dispatch.worker_to_kill() {
            self.processes.kill(worker)?;
            self.killed = Some(worker);
            self.show.note(&format!(
                "half-way: killing {} with SIGKILL",
                self.processes.workers()[worker].name
            ));
        }
        Ok(())
    }

    /// Requests the state of the node's tunnels.
    pub(super) async fn read_status(&mut self) {
        let status = self
            .client
            .admin::<(), admin::NodeStatus>(method::STATUS, &());
        let Ok(Ok(status)) = tokio::time::timeout(STATUS_TIMEOUT, Box::pin(status)).await else {
            return;
        };
        for (number, WorkerNode { id, .. }) in self.processes.workers().iter().enumerate() {
            let Some(tunnel) = status.tunnels.iter().find(|tunnel| tunnel.peer == *id) else {
                continue;
            };
            let admin::PathStatus {
                kind,
                remote,
                rtt_us,
                ..
            } = &tunnel.path;
            self.paths[number] = format!("{kind} {remote}");
            if *rtt_us > 0 {
                let rtt = Duration::from_micros(*rtt_us);
                self.dispatch.counters.saw_rtt(number, rtt);
            }
        }
    }

    fn started(&self, call: WorkerCall) -> impl Future<Output = CallOutcome> + Send + 'static {
        let client = self.client.clone();
        let document = self.documents[call.document].clone();
        let worker = &self.processes.workers()[call.worker].name;
        let to = format!("{}@{worker}", call.work.name());
        let key = format!("{}/{}", call.work.name(), call.document);
        async move {
            let done = make_call(&client, to, key, call.work, &document).await;
            (call.id, done)
        }
    }
}

/// Makes one call and compares its answer as it arrives.
async fn make_call(
    client: &Client,
    to: String,
    key: String,
    work: WorkKind,
    document: &DemoDocument,
) -> Result<CompletedAnswer, Status> {
    let begun = Instant::now();
    let mut call = client
        .call(to)
        .deadline(DEADLINE)
        .idempotency_key(key)
        .content_type("text/plain")
        .body(document.bytes());
    if work == WorkKind::Grep {
        call = call.header(PATTERN_FIELD, PATTERN);
    }
    let mut answer = Box::pin(call.send()).await?;
    let member = answer
        .head()
        .headers
        .iter()
        .find(|(name, _)| name == "member");
    let member = member.map(|(_, value)| value.clone()).unwrap_or_default();
    let mut chunks = Vec::new();
    let mut received = 0;
    // An answer longer than this cannot be correct, so no more of it is kept.
    let bound = document.len() * 9 + 1024;
    while let Some(chunk) = answer.chunk().await? {
        received += chunk.len();
        if received > bound {
            let what = "the answer is longer than any correct one";
            return Err(Status::new(Code::DataLoss, what));
        }
        chunks.push(chunk);
    }
    let took = begun.elapsed();
    // Not counted as time of the call: it is this program's own work.
    let right = chunks.concat() == work.expected(document.text());
    Ok(CompletedAnswer {
        right,
        took,
        sent: document.len() as u64,
        received: received as u64,
        member,
    })
}
