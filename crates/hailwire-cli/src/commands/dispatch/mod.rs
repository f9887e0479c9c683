//! `hail dispatch`: one call for each input, many at a time, a result of each as a line of JSON.
//!
//! What is read, called, recorded and printed when is decided by [`DispatchPlan`]; here it is done.
//!
//! | module | holds |
//! |---|---|
//! | `inputs` | lines, files or JSON values, read as they are asked for |
//! | `json_values` | cuts values out of bytes |
//! | `journal` | what was answered, on disk |
//! | `result` | the result of one input as a line |
//! | `tally` | the progress bar, the summary, and how the command ends |

mod inputs;
mod journal;
mod json_values;
mod result;
mod tally;

pub(super) use self::result::Outcome;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    io,
    pin::{Pin, pin},
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use hailwire::{Answer, Client, Code, Status};
use hailwire_core::{
    dispatch_journal::{InputInJournal, JournalLineAt},
    dispatch_plan::{
        AnswerRoom, DispatchAction, DispatchInput, DispatchOutcome, DispatchPlan, MAX_DISPATCH_BODY,
    },
};
use hailwire_terminal::{failure::CommandFailure, output::stdout_failure, text};
use tokio::{
    io::{AsyncWriteExt as _, Stdout},
    sync::Notify,
    task::JoinHandle,
    time::MissedTickBehavior,
};

use self::{
    inputs::{Input, InputReader},
    journal::Journal,
    tally::Tally,
};
use super::{CommandContext, call, connect, did_you_mean};
use crate::plan::{CallPlan, DispatchPlanned};

/// The time between two syncs of a journal, and the most that a power loss takes of it.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Bytes of results that are written at once where there are as many.
const PRINTED_AT_ONCE: usize = 64 * 1024;

/// Finished calls that are looked at before what they answered is written.
const BATCH: usize = 256;

pub(super) async fn run(run: &CommandContext, plan: DispatchPlanned) -> Result<(), CommandFailure> {
    let mut journal = match &plan.journal {
        Some(path) => Some(Journal::open(path, &plan)?),
        None => None,
    };
    let inputs = InputReader::open(plan.inputs.clone()).await?;
    let tally = Tally::new(run.output, inputs.total, plan.journal.is_some());
    let mut dispatch = Dispatch {
        client: connect::attach(run).await?,
        call: plan.call,
        inputs,
        plan: Rc::new(RefCell::new(DispatchPlan::new(plan.limits))),
        room: Rc::new(Notify::new()),
        bodies: BTreeMap::new(),
        results: BTreeMap::new(),
        calls: FuturesUnordered::new(),
        reading: false,
        broken_input: None,
        resolved: false,
        stdout: tokio::io::stdout(),
        tally,
    };
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    let ended = dispatch.drive(&mut journal, interrupt.as_mut()).await;
    // What runs is cancelled.
    dispatch.calls.clear();
    let synced = match &mut journal {
        Some(journal) => sync(journal),
        None => Ok(()),
    };
    dispatch.tally.end(ended.is_err());
    ended.and(synced)?;
    match dispatch.broken_input {
        Some(failure) => Err(failure),
        None => dispatch.tally.outcome(),
    }
}

/// A call with its answer, which is finished when the answer is whole.
type CallFuture = Pin<Box<dyn Future<Output = Outcome>>>;

/// One run.
struct Dispatch {
    client: Client,
    call: CallPlan,
    inputs: InputReader,
    plan: Rc<RefCell<DispatchPlan>>,
    /// Wakes answers that wait for room.
    room: Rc<Notify>,
    /// Inputs that are called for.
    bodies: BTreeMap<u64, Input>,
    /// Results that are not printed yet.
    results: BTreeMap<u64, HeldResult>,
    calls: FuturesUnordered<CallFuture>,
    /// Whether an input is asked for.
    reading: bool,
    /// Why they could not be read to their end.
    broken_input: Option<CommandFailure>,
    /// Whether it was looked whether there is such an agent.
    resolved: bool,
    stdout: Stdout,
    tally: Tally,
}

/// A result until it is printed.
enum HeldResult {
    Here(Outcome),
    InJournal(JournalLineAt),
}

impl Dispatch {
    async fn drive(
        &mut self,
        journal: &mut Option<Journal>,
        mut interrupt: Pin<&mut impl Future<Output = io::Result<()>>>,
    ) -> Result<(), CommandFailure> {
        let mut tick = tokio::time::interval(SYNC_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut syncing: Option<JoinHandle<io::Result<()>>> = None;
        loop {
            tokio::select! {
                biased;
                signal = &mut interrupt => return Err(self.interrupted(signal)),
                acted = self.act(journal) => acted?,
            }
            if self.plan.borrow().is_done() {
                if let Some(syncing) = syncing {
                    synced(journal.as_ref(), syncing.await)?;
                }
                return Ok(());
            }
            let timeout = self.plan.borrow().poll_timeout();
            let wait = async {
                match timeout {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let sync = async {
                match &mut syncing {
                    Some(syncing) => syncing.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                signal = &mut interrupt => return Err(self.interrupted(signal)),
                done = sync => {
                    syncing = None;
                    synced(journal.as_ref(), done)?;
                }
                Some(outcome) = self.calls.next() => self.finish_batch(outcome),
                input = self.inputs.next(), if self.reading => self.handle_read(input, journal)?,
                () = wait => self.plan.borrow_mut().handle_timeout(Instant::now()),
                _ = tick.tick() => {
                    self.tally.tick(&self.plan.borrow());
                    if syncing.is_none() && let Some(journal) = journal {
                        syncing = begin_sync(journal)?;
                    }
                }
            }
        }
    }

    /// Does what the plan says, and prints what is to be printed.
    async fn act(&mut self, journal: &mut Option<Journal>) -> Result<(), CommandFailure> {
        let mut printed = String::new();
        loop {
            let action = self.plan.borrow_mut().poll_action();
            match action {
                None if self.reading && printed.len() < PRINTED_AT_ONCE => {
                    // Inputs of the journal come one after another; their results go out together.
                    tokio::task::yield_now().await;
                    match self.inputs.next().now_or_never() {
                        Some(input) => self.handle_read(input, journal)?,
                        None => break,
                    }
                }
                None => break,
                Some(DispatchAction::Read) => self.reading = true,
                Some(DispatchAction::Call { index, retry }) => {
                    if !self.resolved {
                        self.resolve().await?;
                    }
                    self.begin(index, retry);
                }
                Some(DispatchAction::Record(index)) => self.record(index, journal.as_mut())?,
                Some(DispatchAction::Print(index)) => {
                    self.print(index, journal.as_ref(), &mut printed)?;
                    // A few large answers are not joined to one that is larger.
                    if printed.len() > MAX_DISPATCH_BODY {
                        self.write(&std::mem::take(&mut printed)).await?;
                    }
                }
            }
        }
        if !printed.is_empty() {
            self.write(&printed).await?;
        }
        self.room.notify_waiters();
        Ok(())
    }

    /// Looks once whether there is such an agent, so that a mistyped name is one error and not as many as there are inputs.
    async fn resolve(&mut self) -> Result<(), CommandFailure> {
        self.resolved = true;
        match call::resolve(&self.client, &self.call).await {
            Err(failure) if failure.status.code == Code::NotFound => {
                did_you_mean::or(&self.client, &self.call.to, Err(failure.status)).await
            }
            // Whatever else is wrong is said of each call.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn begin(&mut self, index: u64, retry: u32) {
        let Some(input) = self.bodies.get(&index) else {
            return;
        };
        let Ok(body) = input.body.clone() else {
            return;
        };
        let mut call = self.call.clone();
        if !call.idempotency_key.is_empty() {
            call.idempotency_key = format!("{}:{index}", call.idempotency_key);
        }
        let node = call.to.node.as_ref().map(ToString::to_string);
        let label = input.label.clone();
        let sent = call::prepare(&self.client, call).body(body).send();
        let (plan, room) = (self.plan.clone(), self.room.clone());
        self.calls.push(Box::pin(async move {
            let begun = Instant::now();
            let answer = match sent.await {
                Ok(answer) => collect(answer, index, &plan, &room).await,
                Err(status) => Err(status),
            };
            Outcome {
                index,
                label: Some(label),
                node,
                member: None,
                answer,
                took: begun.elapsed(),
                calls: retry + 1,
            }
        }));
    }

    fn take_input(
        &mut self,
        input: Option<Input>,
        journal: &mut Option<Journal>,
    ) -> Result<(), CommandFailure> {
        self.reading = false;
        let mut plan = self.plan.borrow_mut();
        let index = plan.read();
        let Some(input) = input else {
            plan.handle_end();
            return match journal {
                Some(journal) => journal.check_end(index),
                None => Ok(()),
            };
        };
        let body = match &input.body {
            Ok(body) => body,
            Err(status) => {
                let outcome = Outcome {
                    index,
                    label: Some(input.label),
                    node: None,
                    member: None,
                    answer: Err(status.clone()),
                    took: Duration::ZERO,
                    calls: 0,
                };
                self.results.insert(index, HeldResult::Here(outcome));
                plan.handle_input(DispatchInput::Unusable);
                return Ok(());
            }
        };
        let found = match journal {
            Some(journal) => journal.look_up(index, body)?,
            None => InputInJournal::Unanswered,
        };
        if let InputInJournal::Answered(at) = found {
            self.results.insert(index, HeldResult::InJournal(at));
            plan.handle_input(DispatchInput::Recorded);
        } else {
            let bytes = body.len();
            self.bodies.insert(index, input);
            plan.handle_input(DispatchInput::New { bytes });
        }
        Ok(())
    }

    fn handle_read(
        &mut self,
        read: Result<Option<Input>, CommandFailure>,
        journal: &mut Option<Journal>,
    ) -> Result<(), CommandFailure> {
        match read {
            Ok(input) => self.take_input(input, journal),
            Err(failure) => {
                // What was called for is finished before it is told.
                self.broken_input = Some(failure);
                self.reading = false;
                self.plan.borrow_mut().handle_end();
                Ok(())
            }
        }
    }

    /// Takes a finished call, and others that are finished too.
    fn finish_batch(&mut self, first: Outcome) {
        self.finish(first);
        for _ in 1..BATCH {
            match self.calls.next().now_or_never() {
                Some(Some(outcome)) => self.finish(outcome),
                Some(None) | None => return,
            }
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        let index = outcome.index;
        let ended = match &outcome.answer {
            Ok(_) => DispatchOutcome::Answered,
            Err(status) if is_too_large(status) => DispatchOutcome::Unusable,
            Err(status) => DispatchOutcome::Failed(status.code, status.retry_after()),
        };
        self.results.insert(index, HeldResult::Here(outcome));
        let mut plan = self.plan.borrow_mut();
        plan.handle_outcome(Instant::now(), index, ended);
    }

    fn record(&mut self, index: u64, journal: Option<&mut Journal>) -> Result<(), CommandFailure> {
        let Some(journal) = journal else {
            return Ok(());
        };
        let body = self.bodies.get(&index).map(|input| &input.body);
        if let (Some(Ok(body)), Some(HeldResult::Here(outcome))) = (body, self.results.get(&index))
        {
            journal.write(body, &outcome.line())?;
        }
        Ok(())
    }

    fn print(
        &mut self,
        index: u64,
        journal: Option<&Journal>,
        printed: &mut String,
    ) -> Result<(), CommandFailure> {
        self.bodies.remove(&index);
        match (self.results.remove(&index), journal) {
            (Some(HeldResult::Here(outcome)), _) => {
                self.tally.count(
                    outcome
                        .answer
                        .as_ref()
                        .map(|_| ())
                        .map_err(|status| status.code),
                );
                printed.push_str(&outcome.line());
            }
            (Some(HeldResult::InJournal(at)), Some(journal)) => {
                self.tally.count_recorded();
                printed.push_str(&journal.result(at)?);
            }
            (Some(HeldResult::InJournal(_)) | None, _) => return Ok(()),
        }
        printed.push('\n');
        Ok(())
    }

    fn interrupted(&self, signal: io::Result<()>) -> CommandFailure {
        match signal {
            Ok(()) => self.tally.interrupted(),
            Err(error) => CommandFailure::io("cannot handle Ctrl-C", &error),
        }
    }

    async fn write(&mut self, text: &str) -> Result<(), CommandFailure> {
        let written = async {
            self.stdout.write_all(text.as_bytes()).await?;
            self.stdout.flush().await
        };
        written.await.map_err(|error| stdout_failure(&error))
    }
}

/// Reads an answer as far as there is room.
pub(super) async fn collect(
    mut answer: Answer,
    index: u64,
    plan: &RefCell<DispatchPlan>,
    room: &Notify,
) -> Result<Bytes, Status> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = answer.chunk().await? {
        loop {
            let freed = room.notified();
            let taken = plan.borrow_mut().take_answer_bytes(index, chunk.len());
            match taken {
                AnswerRoom::Taken => break,
                AnswerRoom::Wait => freed.await,
                AnswerRoom::TooLarge => return Err(answer_too_large()),
            }
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

fn answer_too_large() -> Status {
    let most = text::bytes(MAX_DISPATCH_BODY as u64);
    let message = format!("{TOO_LARGE} {most}, which is the most that `hail dispatch` takes");
    Status::new(Code::ResourceExhausted, message)
        .with_hint("`hail call` streams an answer of any size")
}

const TOO_LARGE: &str = "the answer is larger than";

fn is_too_large(status: &Status) -> bool {
    *status == answer_too_large()
}

/// Has what was written put on disk, beside the calls.
fn begin_sync(journal: &mut Journal) -> Result<Option<JoinHandle<io::Result<()>>>, CommandFailure> {
    match journal.take_unsynced() {
        None => Ok(None),
        Some(Ok(file)) => Ok(Some(tokio::task::spawn_blocking(move || file.sync_data()))),
        Some(Err(error)) => Err(journal.wrong(&error)),
    }
}

fn synced(
    journal: Option<&Journal>,
    done: Result<io::Result<()>, tokio::task::JoinError>,
) -> Result<(), CommandFailure> {
    let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
    match (done, journal) {
        (Err(error), Some(journal)) => Err(journal.wrong(&error)),
        _ => Ok(()),
    }
}

/// Has all that was written put on disk, at the end.
fn sync(journal: &mut Journal) -> Result<(), CommandFailure> {
    let done = match journal.take_unsynced() {
        None => return Ok(()),
        Some(file) => file.and_then(|file| file.sync_data()),
    };
    done.map_err(|error| journal.wrong(&error))
}
