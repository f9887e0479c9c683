//! What to do, decided from the command line without side effects.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use hailwire_bench::{
    agent_load::{AgentLoad, LoadShape},
    changes::ChangesOptions,
    messages::MessageOptions,
    reach::ReachOptions,
    siege::{self, AttackerKind},
    soak::SoakOptions,
    subject::{Subject, SubjectSetup},
    suite::{SdkLaunchers, Suite, SuiteOrder, SuiteSize},
    topologies::TopologiesOptions,
};
use hailwire_lab::power_loss::SyncPromise;
use hailwire_terminal::{
    failure::CommandFailure,
    global::{CommonOptions, ProcessSurroundings},
    programs,
};

use crate::args::{Cli, Command, bench, lab, report};

/// The decided command with its global options.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) common: CommonOptions,
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    BenchRun {
        order: SuiteOrder,
        out: PathBuf,
        /// What is measured after it, in a folder within.
        then: Option<TopologiesOptions>,
    },
    /// `hail bench run messaging`.
    BenchMessaging {
        messages: MessageOptions,
        topologies: TopologiesOptions,
    },
    BenchCall(AgentLoad),
    BenchSiege(siege::SiegeOptions),
    /// `hail bench changes`.
    BenchChanges(ChangesOptions),
    BenchTopologies(TopologiesOptions),
    /// `hail bench messages`.
    BenchMessages(MessageOptions),
    /// `hail bench soak`.
    BenchSoak(SoakOptions),
    /// `hail bench reach`.
    BenchReach(ReachOptions),
    /// A child process of a siege.
    BenchSiegeProcess(siege::SiegeProcessRole),
    BenchReport(PathBuf),
    BenchCompare(report::CompareArgs),
    BenchServe(Subject, SubjectSetup),
    BenchLoad {
        subject: Subject,
        ready: String,
        options: SubjectSetup,
    },
    LabList,
    LabShow(String),
    LabRun(lab::LabRunArgs),
    LabCheck(String),
    Outline,
}

/// Decides what to do.
pub(crate) fn plan(cli: Cli, around: &ProcessSurroundings) -> Result<Plan, CommandFailure> {
    let common = cli.global.decide(around)?;
    let action = match cli.command {
        Command::Bench(bench) => plan_bench(bench.command)?,
        Command::Lab(lab::LabArgs { command }) => match command {
            lab::LabCommand::List => Action::LabList,
            lab::LabCommand::Show { topology } => Action::LabShow(topology),
            lab::LabCommand::Run(run) => Action::LabRun(run),
            lab::LabCommand::Check { topology } => Action::LabCheck(topology),
        },
        Command::Outline => Action::Outline,
    };
    Ok(Plan { common, action })
}

fn plan_bench(command: bench::BenchCommand) -> Result<Action, CommandFailure> {
    match command {
        bench::BenchCommand::Run(run) => plan_run(run),
        bench::BenchCommand::Call(call) => Ok(Action::BenchCall(plan_call(call)?)),
        bench::BenchCommand::Siege(siege) => plan_siege(siege),
        bench::BenchCommand::Changes(changes) => plan_changes(changes),
        bench::BenchCommand::Topologies(topologies) => plan_topologies(topologies),
        bench::BenchCommand::Soak(soak) => plan_soak(soak),
        bench::BenchCommand::Messages(messages) => plan_messages(messages),
        bench::BenchCommand::Reach(reach) => plan_reach(reach),
        bench::BenchCommand::Report(report) => Ok(Action::BenchReport(report.dir)),
        bench::BenchCommand::Compare(compare) => Ok(Action::BenchCompare(compare)),
        bench::BenchCommand::Subject(bench::SubjectArgs { command }) => Ok(match command {
            bench::SubjectCommand::Serve { name, options } => Action::BenchServe(name, options),
            bench::SubjectCommand::Load {
                name,
                ready,
                options,
            } => Action::BenchLoad {
                subject: name,
                ready,
                options,
            },
        }),
    }
}

fn plan_run(run: bench::BenchRunArgs) -> Result<Action, CommandFailure> {
    let size = match (run.full, run.tiny) {
        (true, _) => SuiteSize::Full,
        (_, true) => SuiteSize::Tiny,
        _ => SuiteSize::Quick,
    };
    let narrowed = !run.network.is_empty() || !run.carrier.is_empty();
    let suite = match run.suite {
        bench::RunnableSuite::Cells(suite) => suite,
        bench::RunnableSuite::Messaging
            if narrowed || run.repeats.is_some() || !run.subject.is_empty() =>
        {
            return Err(CommandFailure::usage(
                "messaging has no networks, carriers, repeats or subjects to choose: see `hail bench messages --help`",
            ));
        }
        bench::RunnableSuite::Messaging => return plan_messaging(size, run.out),
    };
    let out = run.out;
    let out = out.unwrap_or_else(|| Path::new("bench/results").join(suite.name()));
    let whole = suite == Suite::Coordination && size != SuiteSize::Tiny && !narrowed;
    let then = whole.then(|| topologies_of(size, &out)).transpose()?;
    let order = SuiteOrder {
        suite,
        size,
        networks: run.network,
        carriers: run.carrier,
        repeats: run.repeats,
        foreign: run.subject,
        peer: hailwire_bench::suite::peer(),
        sdk: SdkLaunchers::installed(),
    };
    Ok(Action::BenchRun { order, out, then })
}

/// Topologies as part of a longer run.
fn topologies_of(size: SuiteSize, out: &Path) -> Result<TopologiesOptions, CommandFailure> {
    let (rounds, seconds, most_agents) = match size {
        SuiteSize::Tiny => (1, 1, Some(10)),
        SuiteSize::Quick => (5, 5, None),
        SuiteSize::Full => (20, 10, None),
    };
    Ok(TopologiesOptions {
        rounds,
        seconds,
        most_agents,
        program: measured_program(None)?,
        out: out.join("topologies"),
    })
}

/// A delivery costs so much less than a durable send that rows of both take about as long.
const DELIVERIES_OF_SEND: u32 = 4;

fn plan_messaging(size: SuiteSize, out: Option<PathBuf>) -> Result<Action, CommandFailure> {
    let out = out.unwrap_or_else(|| Path::new("bench/results").join(bench::MESSAGING));
    let (sends, messages, kills) = match size {
        SuiteSize::Tiny => (512, 50, 2),
        SuiteSize::Quick => (20_000, 5_000, 50),
        SuiteSize::Full => (50_000, 100_000, 1_000),
    };
    Ok(Action::BenchMessaging {
        messages: MessageOptions {
            sends,
            deliveries: sends.saturating_mul(DELIVERIES_OF_SEND),
            messages,
            kills,
            rough_network: false,
            soak: None,
            power_loss: None,
            seed: seed_from_time(),
            program: measured_program(None)?,
            disk: None,
            out: out.join("messages"),
        },
        topologies: topologies_of(size, &out)?,
    })
}

/// A seed that nobody chose; the results print it.
fn seed_from_time() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.map_or(0, |since| since.as_secs())
}

fn plan_call(call: bench::BenchCallArgs) -> Result<AgentLoad, CommandFailure> {
    let shape = match (call.rate, call.callers) {
        (Some(rate), _) => LoadShape::Rate(f64::from(rate)),
        (None, callers) => LoadShape::Callers(callers),
    };
    if call.duration.is_zero() {
        return Err(CommandFailure::usage(
            "the duration must be longer than nothing",
        ));
    }
    let body = match (call.body, call.size) {
        (Some(text), _) => text.into(),
        (None, Some(size)) => vec![b'x'; usize::try_from(size).unwrap_or(0)].into(),
        (None, None) => Bytes::new(),
    };
    Ok(AgentLoad {
        to: call.to.to_string(),
        method: call.method.unwrap_or_default(),
        body,
        shape,
        duration: call.duration,
        warm_up: call.warm_up,
        timeout: call.call_timeout,
    })
}

/// The `hail` whose hubs and nodes are measured: the one that was named, else the one beside this program.
fn measured_program(named: Option<PathBuf>) -> Result<PathBuf, CommandFailure> {
    named.map_or_else(|| Ok(programs::HAIL.find()?), Ok)
}

fn plan_soak(soak: bench::SoakArgs) -> Result<Action, CommandFailure> {
    let out = soak.out;
    Ok(Action::BenchSoak(SoakOptions {
        length: soak.duration,
        program: measured_program(soak.program)?,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/soak")),
    }))
}

fn plan_messages(messages: bench::MessagesArgs) -> Result<Action, CommandFailure> {
    let out = messages.out;
    Ok(Action::BenchMessages(MessageOptions {
        sends: messages.sends,
        deliveries: (messages.deliveries)
            .unwrap_or_else(|| messages.sends.saturating_mul(DELIVERIES_OF_SEND)),
        messages: messages.messages,
        kills: messages.kills,
        rough_network: messages.rough_network,
        soak: messages.soak,
        power_loss: messages.power_loss.then_some(match messages.ignore_syncs {
            true => SyncPromise::Broken,
            false => SyncPromise::Kept,
        }),
        seed: messages.seed.unwrap_or_else(seed_from_time),
        program: measured_program(messages.program)?,
        disk: messages.disk,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/messages")),
    }))
}

fn plan_changes(changes: bench::ChangesArgs) -> Result<Action, CommandFailure> {
    let out = changes.out;
    Ok(Action::BenchChanges(ChangesOptions {
        changes: changes.only,
        program: measured_program(changes.program)?,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/changes")),
    }))
}

fn plan_topologies(topologies: bench::TopologiesArgs) -> Result<Action, CommandFailure> {
    let out = topologies.out;
    Ok(Action::BenchTopologies(TopologiesOptions {
        rounds: topologies.rounds,
        seconds: topologies.seconds,
        most_agents: topologies.agents,
        program: measured_program(topologies.program)?,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/topologies")),
    }))
}

fn plan_reach(reach: bench::ReachArgs) -> Result<Action, CommandFailure> {
    let out = reach.out;
    Ok(Action::BenchReach(ReachOptions {
        networks: reach.only,
        costs: !reach.quick,
        program: measured_program(reach.program)?,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/reach")),
    }))
}

fn plan_siege(siege: bench::SiegeArgs) -> Result<Action, CommandFailure> {
    if let Some(role) = siege.part {
        return Ok(Action::BenchSiegeProcess(role));
    }
    let mut attackers = siege.only;
    if attackers.is_empty() {
        attackers = AttackerKind::ALL.to_vec();
    }
    let program = std::env::current_exe()
        .map_err(|error| CommandFailure::io("cannot find the path of this program", &error))?;
    let attacked = measured_program(siege.program)?;
    let out = siege.out;
    Ok(Action::BenchSiege(siege::SiegeOptions {
        attackers,
        one_by_one: siege.one_by_one,
        attack: siege.duration,
        quiet: siege.quiet,
        attacked,
        program,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/siege")),
    }))
}
