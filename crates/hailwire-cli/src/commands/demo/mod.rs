//! `hail demo`: the whole system at work on this machine, in scenes of a line each.
//!
//! Hubs and nodes run as processes of their own, each with a data folder under one temporary folder.
//! Where this machine may make networks, the first of them stand in a network of the lab: two homes
//! behind NAT and an office that lets no UDP out. The others are on loopback: the orchestrator's node,
//! its neighbour and the workers, members of one hub whose members trust each other. Every document
//! goes to `word-count`, `grep` and `sha256` of the workers, half-way one worker is killed, and each answer
//! is checked against a computation of the orchestrator's own.
//!
//! | file | holds |
//! |---|---|
//! | [`dispatch`] | which document is sent where, what is retried, when half the work is done (no I/O) |
//! | [`call_counters`], [`summary`] | counters and the summary (no I/O) |
//! | [`work`] | the three kinds of work, and their checks (no I/O) |
//! | [`documents`] | the documents |
//! | [`process`] | one of the processes |
//! | [`processes`] | all of them, and their folder |
//! | [`scenes`] | the lines, and what they say (no I/O but printing) |
//! | [`homes`] | the scenes in the lab's network |
//! | [`orchestrate`] | the scene of the workers |
//! | [`single_calls`] | a cancelled call, a stranger, a proxy |
//! | [`scene_agents`] | the agents that these call |
//! | [`samples`] | documents that are in the program |
//! | [`html`] | the page |
//! | [`show`] | the live table |

mod call_counters;
mod dispatch;
mod documents;
mod homes;
mod html;
mod orchestrate;
pub(super) mod process;
mod processes;
mod samples;
mod scene_agents;
mod scenes;
mod show;
mod single_calls;
mod summary;
mod work;

use std::time::{Duration, Instant};

use hailwire::{Client, Code, Status};
use tokio::signal::unix::{SignalKind, signal};

use self::{
    dispatch::DocumentDispatch,
    documents::{DemoDocument, DocumentSet},
    homes::HomeNetwork,
    orchestrate::DemoOrchestrator,
    process::{NodeRole, ProcessRole},
    processes::{DemoProcesses, LOOPBACK, node_name},
    scenes::SceneList,
    show::LiveView,
    summary::{DemoSummary, rows},
};
use hailwire_terminal::{failure::CommandFailure, log, text};
use tracing::Level;

use super::{CommandContext, connect};
use crate::args::other::DemoArgs;

/// The node that nobody trusts.
const STRANGER: &str = "stranger";

/// Calls in flight at once.
const CONCURRENCY: usize = 16;

/// Runs the demonstration until it is done, interrupted or out of time.
pub(super) async fn run(run: &CommandContext, demo: &DemoArgs) -> Result<(), CommandFailure> {
    log::start(run.log.unwrap_or(Level::ERROR), run.output.log_style());
    let documents = documents::collect(demo.input.as_deref())?;
    let mut stage = DemoStage {
        begun: Instant::now(),
        demo,
        documents: &documents,
        processes: DemoProcesses::new(run.log)?,
        show: LiveView::new(run.output, demo.details),
        scenes: SceneList::new(run.output),
        summary: DemoSummary {
            workers: demo.workers as usize,
            agents: demo.agents as usize,
            ..DemoSummary::default()
        },
        homes: None,
    };
    let done = tokio::select! {
        done = stage.perform() => done,
        interrupted = interruption() => Err(interrupted),
        late = out_of_time(run.timeout) => Err(late),
    };
    stage.show.end();
    // In every case no process and no folder is left.
    let kept = stage.processes.close(demo.keep).await;
    if let Some(folder) = &kept {
        run.output
            .note(&format!("data folders: {}", folder.display()));
    }
    done?;
    let mut summary = stage.summary;
    summary.scenes = stage.scenes.reports;
    summary.data_dir = kept.map_or_else(String::new, |folder| folder.display().to_string());
    if let Some(path) = &demo.html {
        let wrong = |e| CommandFailure::io(format!("cannot write {}", path.display()), &e);
        std::fs::write(path, html::page(&summary)).map_err(wrong)?;
    }
    run.output
        .value(&summary, |summary| for_people(run, demo, summary))?;
    stage.scenes.failure.map_or(Ok(()), Err)
}

/// What follows the lines of the scenes.
fn for_people(run: &CommandContext, demo: &DemoArgs, summary: &DemoSummary) -> String {
    let mut out = String::new();
    if demo.details {
        out = format!("\n{}", summary.details(run.output));
    }
    let wall = Duration::from_millis(summary.wall_ms);
    out.push_str(&format!("\n{} in all", text::time(wall)));
    match (&demo.html, demo.details) {
        (Some(path), _) => out.push_str(&format!("; the page is {}\n", path.display())),
        (None, false) => out.push_str("; --details shows more, --html FILE writes a page\n"),
        (None, true) => out.push('\n'),
    }
    out.push_str(NEXT);
    out
}

/// What to type next.
const NEXT: &str = "
Next, on two machines (./x install puts `hail` on the path):
  both         hail up -d
  the first    hail serve word-count -- wc -w &
               hail invite
  the second   hail join TICKET
               echo one two three | hail call word-count
";

/// A demonstration under way.
struct DemoStage<'a> {
    begun: Instant,
    demo: &'a DemoArgs,
    documents: &'a DocumentSet,
    processes: DemoProcesses,
    show: LiveView,
    scenes: SceneList,
    summary: DemoSummary,
    /// Kept up until the end, where this machine can.
    homes: Option<HomeNetwork>,
}

impl DemoStage<'_> {
    /// Plays every scene.
    ///
    /// # Errors
    ///
    /// What makes it pointless to go on; a scene that fails does not.
    async fn perform(&mut self) -> Result<(), CommandFailure> {
        let far = self.homes().await?;
        self.show.note(&format!(
            "starting a hub, an orchestrator, its neighbour and {} workers with {} agents",
            self.demo.workers, self.demo.agents
        ));
        let (workers, agents) = (self.summary.workers, self.summary.agents);
        let starting = Instant::now();
        self.processes.fill(workers, agents).await?;
        self.summary.start_ms = millis(starting.elapsed());
        let client = self.attach(processes::ORCHESTRATOR).await?;
        self.work(client.clone()).await?;
        self.scenes
            .play("cancel", single_calls::cancel(&client))
            .await?;
        self.stranger().await?;
        let (node, agent_at, place) = match far {
            true => (homes::HOME, homes::CABIN, "in the other home"),
            false => (
                processes::ORCHESTRATOR,
                processes::NEIGHBOUR,
                "on another node",
            ),
        };
        let proxy = single_calls::proxy(self.processes.data(node), agent_at, place);
        self.scenes.play("proxy", proxy).await?;
        self.summary.processes = self.processes.processes();
        self.summary.wall_ms = millis(self.begun.elapsed());
        Ok(())
    }

    /// The scenes in a network of the lab; returns whether they were played, so that its nodes are there.
    async fn homes(&mut self) -> Result<bool, CommandFailure> {
        let made = tokio::task::spawn_blocking(homes::make).await;
        let made = made.map_err(|error| CommandFailure::general(error.to_string()))?;
        let network = match made {
            Ok(network) => network,
            Err(why) => {
                let what = "two homes behind NAT, and an office that lets no UDP out";
                self.scenes.leave_out("homes", what, &why)?;
                return Ok(false);
            }
        };
        self.show
            .note("starting a hub and three nodes in a network with NAT");
        let homes = HomeNetwork::start(network, &mut self.processes).await?;
        self.scenes.play("homes", homes.meet()).await?;
        self.scenes.play("office", homes.without_udp()).await?;
        self.homes = Some(homes);
        Ok(true)
    }

    /// The agents at work, of which some are killed.
    async fn work(&mut self, client: Client) -> Result<(), CommandFailure> {
        let dispatch =
            DocumentDispatch::new(self.documents.list.len(), self.summary.workers, CONCURRENCY);
        self.show.note(&format!(
            "{} documents for word-count, grep and sha256: {} calls, {CONCURRENCY} at once",
            self.documents.list.len(),
            dispatch.total(),
        ));
        self.show.begin(dispatch.total());
        let Self {
            documents,
            processes,
            show,
            scenes,
            summary,
            ..
        } = self;
        let mut orchestrator = DemoOrchestrator {
            client,
            documents: &documents.list,
            processes,
            show,
            dispatch,
            paths: vec![String::new(); summary.workers],
            killed: None,
        };
        let begun = Instant::now();
        orchestrator.run().await?;
        summary.run_ms = millis(begun.elapsed());
        orchestrator.read_status().await;
        let DemoOrchestrator {
            processes,
            show,
            dispatch,
            paths,
            killed,
            ..
        } = orchestrator;
        show.end();
        let killed = killed.map(|worker| processes.workers()[worker].name.clone());
        summary.killed = killed.unwrap_or_default();
        summary.documents = documents.list.len();
        summary.document_bytes = documents.list.iter().map(DemoDocument::len).sum();
        summary.skipped = documents.skipped;
        summary.rows = rows(&dispatch, processes.workers(), &paths);
        summary.count(&dispatch);
        let shown = verdict(&dispatch).map_or_else(|| Ok(summary.sentence()), Err);
        scenes.over("agents", begun.elapsed(), shown)
    }

    async fn stranger(&mut self) -> Result<(), CommandFailure> {
        let role = ProcessRole::Node(Box::new(NodeRole {
            name: node_name(STRANGER)?,
            ticket: String::new(),
            listen: LOOPBACK,
            work: Vec::new(),
            scenes: false,
        }));
        self.processes.add(STRANGER, role, None).await?;
        let client = self.attach(STRANGER).await?;
        let Some(neighbour) = self.processes.neighbour() else {
            return Ok(());
        };
        let refused = single_calls::stranger(&client, neighbour);
        self.scenes.play("stranger", refused).await
    }

    async fn attach(&self, name: &str) -> Result<Client, CommandFailure> {
        let attached = Client::attach(&self.processes.data(name)).await;
        attached.map_err(connect::failure)
    }
}

/// The error of a run, if it failed.
fn verdict(dispatch: &DocumentDispatch) -> Option<CommandFailure> {
    if dispatch.is_complete() {
        return None;
    }
    let counts = &dispatch.counts;
    let code = if counts.wrong > 0 {
        Code::DataLoss
    } else {
        Code::Unavailable
    };
    let what = format!(
        "{} of {} answers were verified; {} were wrong, {} are missing",
        counts.verified,
        dispatch.total(),
        counts.wrong,
        counts.lost
    );
    let mut status = Status::new(code, what);
    if let Some(last) = &counts.last_failure {
        status = status.with_details(format!("the last call that failed: {last}"));
    }
    Some(CommandFailure::from(status).hint("run it again with -vv to see each failed call"))
}

/// Resolves at SIGINT and the other signals that ask a program to end.
async fn interruption() -> CommandFailure {
    let signals = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = signals.map(signal) else {
        return CommandFailure::general("cannot handle signals");
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    CommandFailure::interrupted()
}

async fn out_of_time(limit: Option<Duration>) -> CommandFailure {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            CommandFailure::timed_out(limit)
        }
        None => std::future::pending().await,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
