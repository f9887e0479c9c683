//! What to do, decided from what was typed, without doing any of it.

use std::path::{Path, PathBuf};

use hailwire_bench::{
    siege::{self, Kind},
    subject::{Options, Subject},
    suite::{Order, Size, Suite},
};
use hailwire_terminal::{
    failure::Failure,
    global::{Common, Surroundings},
    programs,
};

use crate::args::{Cli, Command, bench, lab, report};

/// Everything that a run needs to know.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) common: Common,
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    BenchRun {
        order: Order,
        out: PathBuf,
    },
    BenchSiege(siege::Order),
    /// The part that a process of a siege plays.
    BenchSiegePart(String),
    BenchReport(PathBuf),
    BenchCompare(report::Compare),
    BenchServe(Subject, Options),
    BenchLoad {
        subject: Subject,
        ready: String,
        options: Options,
    },
    LabList,
    LabShow(String),
    LabRun(lab::Run),
    LabCheck(String),
    Outline,
}

/// Decides what a run does.
pub(crate) fn plan(cli: Cli, around: &Surroundings) -> Result<Plan, Failure> {
    let common = cli.global.decide(around)?;
    let action = match cli.command {
        Command::Bench(bench) => plan_bench(bench.command)?,
        Command::Lab(lab::Lab { command }) => match command {
            lab::LabCommand::List => Action::LabList,
            lab::LabCommand::Show { topology } => Action::LabShow(topology),
            lab::LabCommand::Run(run) => Action::LabRun(run),
            lab::LabCommand::Check { topology } => Action::LabCheck(topology),
        },
        Command::Outline => Action::Outline,
    };
    Ok(Plan { common, action })
}

fn plan_bench(command: bench::BenchCommand) -> Result<Action, Failure> {
    match command {
        bench::BenchCommand::Run(run) => {
            // The table of arguments knows the names; this only turns one into a suite.
            let suite = Suite::named(&run.suite)
                .ok_or_else(|| Failure::usage(format!("there is no suite `{}`", run.suite)))?;
            let size = match (run.full, run.tiny) {
                (true, _) => Size::Full,
                (_, true) => Size::Tiny,
                _ => Size::Quick,
            };
            let out = run.out;
            let out = out.unwrap_or_else(|| Path::new("bench/results").join(suite.name()));
            let order = Order {
                suite,
                size,
                networks: run.network,
                carriers: run.carrier,
                repeats: run.repeats,
                foreign: run.subject,
                peer: hailwire_bench::suite::peer(),
            };
            Ok(Action::BenchRun { order, out })
        }
        bench::BenchCommand::Siege(siege) => plan_siege(siege),
        bench::BenchCommand::Report(report) => Ok(Action::BenchReport(report.dir)),
        bench::BenchCommand::Compare(compare) => Ok(Action::BenchCompare(compare)),
        bench::BenchCommand::Subject(bench::SubjectArgs { command }) => Ok(match command {
            bench::SubjectCommand::Serve { name, options } => {
                Action::BenchServe(name, subject_options(options))
            }
            bench::SubjectCommand::Load {
                name,
                ready,
                options,
            } => Action::BenchLoad {
                subject: name,
                ready,
                options: subject_options(options),
            },
        }),
    }
}

fn plan_siege(siege: bench::Siege) -> Result<Action, Failure> {
    if let Some(part) = siege.part {
        return Ok(Action::BenchSiegePart(part));
    }
    // The table of arguments knows the names.
    let only = siege.only.iter().filter_map(|name| Kind::named(name));
    let mut attackers: Vec<Kind> = only.collect();
    if attackers.is_empty() {
        attackers = Kind::ALL.to_vec();
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::io("this program cannot find itself", &error))?;
    let attacked = match siege.program {
        Some(attacked) => attacked,
        None => programs::HAIL.find()?,
    };
    let out = siege.out;
    Ok(Action::BenchSiege(siege::Order {
        attackers,
        one_by_one: siege.one_by_one,
        attack: siege.duration,
        quiet: siege.quiet,
        attacked,
        program,
        out: out.unwrap_or_else(|| PathBuf::from("bench/results/siege")),
    }))
}

fn subject_options(options: bench::SubjectOptions) -> Options {
    let bench::SubjectOptions {
        listen,
        congestion,
        window,
        through,
        peer,
        hub,
        path,
        pool,
        callout,
    } = options;
    Options {
        listen,
        congestion,
        window,
        through,
        peer,
        hub,
        path,
        pool,
        callout,
    }
}
