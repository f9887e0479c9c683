//! The orchestrator at work: makes the calls that [`Dispatch`] asks for and tells it what came of
//! each.
//!
//! It is a program attached to the orchestrator's node, as any agent is: each call goes over the
//! local socket to that node, over its tunnel to the worker's, and to one of the agents there.

use std::time::{Duration, Instant};

use hailwire::{Client, Code, Status, admin, admin::method};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::{
    dispatch::{Answered, Dispatch, Errand, Next},
    documents::Document,
    house::{House, Worker},
    show::Show,
    summary::rows,
    work::{PATTERN, PATTERN_FIELD, Work},
};
use hailwire_terminal::failure::Failure;

/// Time for one call, after which another member is asked.
const DEADLINE: Duration = Duration::from_secs(2);

/// How often the view is renewed.
const FRAME: Duration = Duration::from_millis(100);

/// Frames between two looks at the tunnels.
const FRAMES_PER_LOOK: u32 = 5;

/// Time for one look.
const LOOK: Duration = Duration::from_secs(1);

/// What a call came to.
type Ended = (u64, Result<Answered, Status>);

/// A run under way.
pub(super) struct Orchestrator<'a> {
    pub(super) client: Client,
    pub(super) documents: &'a [Document],
    pub(super) house: &'a mut House,
    pub(super) show: &'a mut Show,
    pub(super) dispatch: Dispatch,
    /// How the tunnel to each worker goes; empty while there is none.
    pub(super) paths: Vec<String>,
    /// The worker that was killed.
    pub(super) killed: Option<usize>,
}

impl Orchestrator<'_> {
    /// Works until every piece is answered or lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the calls in flight.
    pub(super) async fn run(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        let mut calls: JoinSet<Ended> = JoinSet::new();
        let mut frame = tokio::time::interval(FRAME);
        frame.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut frames = 0_u32;
        let gone = self.client.clone();
        loop {
            let wake = match self.dispatch.next(start.elapsed()) {
                Next::Done => return Ok(()),
                Next::Call(errand) => {
                    calls.spawn(self.make(errand));
                    continue;
                }
                Next::Wait(until) => until,
            };
            let nap = wake.map_or(FRAME, |until| until.saturating_sub(start.elapsed()));
            tokio::select! {
                Some(ended) = calls.join_next() => {
                    let (id, result) = ended
                        .map_err(|error| Failure::general(format!("a call broke: {error}")))?;
                    self.ended(id, result, start.elapsed()).await?;
                }
                _ = frame.tick() => {
                    if frames.is_multiple_of(FRAMES_PER_LOOK) {
                        self.look().await;
                    }
                    frames += 1;
                    let (dispatch, house, paths) = (&self.dispatch, &self.house, &self.paths);
                    self.show.update(dispatch, || rows(dispatch, house.workers(), paths));
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
        result: Result<Answered, Status>,
        now: Duration,
    ) -> Result<(), Failure> {
        match result {
            Ok(answered) => self.dispatch.answered(id, &answered, now),
            Err(status) => {
                tracing::debug!(id, %status, "a call failed");
                self.dispatch.failed(id, status, now);
            }
        }
        if let Some(worker) = self.dispatch.whom_to_kill() {
            self.house.kill(worker)?;
            self.killed = Some(worker);
            self.show.note(&format!(
                "half-way: {} is killed with SIGKILL",
                self.house.workers()[worker].name
            ));
        }
        Ok(())
    }

    /// Asks the node how its tunnels go.
    pub(super) async fn look(&mut self) {
        let status = self.client.admin::<(), admin::Status>(method::STATUS, &());
        let Ok(Ok(status)) = tokio::time::timeout(LOOK, Box::pin(status)).await else {
            return;
        };
        for (number, Worker { id, .. }) in self.house.workers().iter().enumerate() {
            let Some(tunnel) = status.tunnels.iter().find(|tunnel| tunnel.peer == *id) else {
                continue;
            };
            let admin::Path {
                kind,
                remote,
                rtt_us,
            } = &tunnel.path;
            self.paths[number] = format!("{kind} {remote}");
            if *rtt_us > 0 {
                let rtt = Duration::from_micros(*rtt_us);
                self.dispatch.tally.saw_rtt(number, rtt);
            }
        }
    }

    fn make(&self, errand: Errand) -> impl Future<Output = Ended> + Send + 'static {
        let client = self.client.clone();
        let document = self.documents[errand.document].clone();
        let worker = &self.house.workers()[errand.worker].name;
        let to = format!("{}@{worker}", errand.work.name());
        let key = format!("{}/{}", errand.work.name(), errand.document);
        async move {
            let done = call(&client, to, key, errand.work, &document).await;
            (errand.id, done)
        }
    }
}

/// Makes one call and compares its answer as it arrives.
async fn call(
    client: &Client,
    to: String,
    key: String,
    work: Work,
    document: &Document,
) -> Result<Answered, Status> {
    let begun = Instant::now();
    let mut call = client
        .call(to)
        .deadline(DEADLINE)
        .idempotency_key(key)
        .content_type("text/plain")
        .body(document.bytes());
    if work == Work::Grep {
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
    // An answer cannot be right past this length, so no more of it is kept.
    let bound = document.len() * 9 + 1024;
    while let Some(chunk) = answer.chunk().await? {
        received += chunk.len();
        if received > bound {
            let what = "the answer is longer than any right one";
            return Err(Status::new(Code::DataLoss, what));
        }
        chunks.push(chunk);
    }
    let took = begun.elapsed();
    // Not in the time of the call: it is this program's own work.
    let right = chunks.concat() == work.expected(document.text());
    Ok(Answered {
        right,
        took,
        sent: document.len() as u64,
        received: received as u64,
        member,
    })
}
