//! Doing what was planned: one file per command.
//!
//! A command that talks to the node runs on a single-threaded runtime, so that it starts at once.
//! So does the node itself: calls are small and pass through many tasks, and moving those between
//! threads costs more than it gives. The hub and the demonstration get all cores. Ctrl-C ends every command with exit code
//! 130; dropping a command's future is how its call is cancelled.

mod again;
mod agents;
mod background;
mod bench;
mod body;
mod call;
mod callout;
mod completions;
mod config;
mod connect;
mod demo;
mod down;
pub(crate) mod guarded;
mod hub;
mod id;
mod invite;
mod join;
mod lab;
mod log;
mod man;
mod offered;
mod peers;
mod ping;
mod program;
mod report;
mod send;
mod serve;
mod service;
mod siege;
mod status;
mod stop;
mod stream;
mod trust;
mod up;

use std::{future::Future, path::PathBuf, time::Duration};

use hailwire::{DataDir, config::LogLevel};
use tokio::runtime::{Builder, Runtime};

use crate::{
    failure::Failure,
    output::Output,
    plan::{Action, Plan},
};

/// What every command is given.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) output: Output,
    pub(crate) data: DataDir,
    pub(crate) timeout: Option<Duration>,
    /// The least important event to log; `None` leaves it to the configuration.
    pub(crate) log: Option<LogLevel>,
}

/// Carries a plan out.
pub(crate) fn run(plan: Plan) -> Result<(), Failure> {
    let Plan {
        output,
        log,
        data,
        data_named,
        timeout,
        action,
    } = plan;
    let named: Option<PathBuf> = data_named.then(|| data.clone());
    let data = DataDir::new(data);
    let run = &Run {
        output,
        data,
        timeout,
        log,
    };
    match action {
        Action::ConfigShow { effective } => short(run, config::show(run, effective)),
        Action::ConfigPath => config::path(run),
        Action::ConfigCheck => config::check(run),
        Action::ServiceInstall { enable, unit } => {
            service::install(output, &unit, named.as_deref(), enable)
        }
        Action::ServiceUninstall { disable, unit } => service::uninstall(output, &unit, disable),
        Action::LabList => lab::list(run),
        Action::LabShow(topology) => lab::show(run, &topology),
        Action::LabRun(program) => on_one_core(run, lab::run(program)),
        Action::LabCheck(topology) => long(run, lab::check(run, topology)),
        Action::Completions(shell) => completions::print(output, shell),
        Action::Man(dir) => man::run(output, dir.as_deref()),
        Action::Id => id::run(run),
        Action::Up(up) if up.detach => background::run(run, &up),
        Action::Up(up) => on_one_core(run, up::run(run, up)),
        Action::Down(request) => short(run, down::run(run, request)),
        Action::Status => short(run, status::run(run)),
        Action::Invite(request) => short(run, invite::run(run, request)),
        Action::Join(join) => short(run, join::run(run, join)),
        Action::TrustList => short(run, trust::list(run)),
        Action::TrustAdd(request) => short(run, trust::add(run, request)),
        Action::TrustRemove(request) => short(run, trust::remove(run, request)),
        Action::TrustPending => short(run, trust::pending(run)),
        Action::TrustApprove(request) => short(run, trust::approve(run, request)),
        Action::Peers => short(run, peers::run(run)),
        Action::Agents(query) => short(run, agents::run(run, query)),
        Action::Ping {
            who,
            count,
            interval,
        } => long(run, ping::run(run, who, count, interval)),
        Action::Call { call, stats } => long(run, call::run(run, call, stats)),
        Action::Send(call) => short(run, send::run(run, call)),
        Action::Stream(call) => long(run, stream::run(run, call)),
        Action::Serve(serve) => on_one_core(run, serve::run(run, serve)),
        Action::CalloutServe(config) => on_all_cores(callout::serve::run(run, config)),
        Action::CalloutAgent { name, at } => on_one_core(run, callout::attach::run(run, name, at)),
        Action::CalloutTest { config, small } => {
            on_all_cores(callout::test::run(run, config, small))
        }
        Action::CalloutWaf(at, settings) => on_all_cores(callout::own::waf(run, at, settings)),
        Action::CalloutRateLimit(at, limits) => {
            on_all_cores(callout::own::rate_limit(run, at, limits))
        }
        Action::HubRun(config) => on_all_cores(hub::run(run, *config)),
        Action::HubInvite { uses, expires } => hub::invite(run, uses, expires),
        Action::Demo(demo) if demo.part => on_all_cores(demo::part::run(run)),
        Action::Demo(demo) => on_all_cores(demo::run(run, &demo)),
        Action::BenchRun { order, out } => on_one_core(run, bench::run(run, order, out)),
        Action::BenchSiege(order) => on_one_core(run, siege::run(run, order)),
        Action::BenchSiegePart(part) => on_one_core(run, siege::part(run, part)),
        Action::BenchReport(dir) => report::draw(output, &dir),
        Action::BenchCompare(compare) => report::compare(output, &compare),
        Action::BenchServe(subject, options) => on_one_core(run, bench::serve(subject, options)),
        Action::BenchLoad {
            subject,
            ready,
            options,
        } => on_one_core(run, bench::load(subject, ready, options)),
    }
}

/// Runs a command that asks and prints, within `--timeout` and until Ctrl-C.
fn short(run: &Run, command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    long(run, async {
        match run.timeout {
            None => command.await,
            Some(limit) => match tokio::time::timeout(limit, command).await {
                Ok(done) => done,
                Err(_) => Err(Failure::timed_out(limit)),
            },
        }
    })
}

/// Runs a command until it ends or Ctrl-C.
fn long(run: &Run, command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let interruptible = async {
        tokio::select! {
            done = command => done,
            signal = tokio::signal::ctrl_c() => match signal {
                Ok(()) => Err(Failure::interrupted()),
                Err(error) => Err(Failure::io("Ctrl-C cannot be noticed", &error)),
            },
        }
    };
    on_one_core(run, interruptible)
}

/// Runs a small command that minds signals itself.
fn on_one_core(
    run: &Run,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    if let Some(level) = run.log {
        log::start(level, run.output.colour_errors);
    }
    block_on(Builder::new_current_thread(), command)
}

/// Runs a large command that minds signals itself.
fn on_all_cores(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    block_on(Builder::new_multi_thread(), command)
}

fn block_on(
    mut builder: Builder,
    command: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let runtime: Runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::io("the runtime cannot start", &error))?;
    let done = runtime.block_on(command);
    // A read of stdin that nobody waits for any more must not keep the process.
    runtime.shutdown_background();
    done
}
