//! The commands: one file each.

mod bench;
mod call;
mod changes;
mod lab;
mod messages;
mod reach;
mod recorded;
mod report;
mod siege;
mod soak;
mod topologies;

use clap::CommandFactory as _;
use hailwire_terminal::{
    failure::CommandFailure,
    outline, programs,
    runtime::{long, on_one_core},
};

use crate::{
    args::Cli,
    plan::{Action, Plan},
};

/// Runs the command of a plan.
pub(crate) fn run(plan: Plan) -> Result<(), CommandFailure> {
    let Plan { common, action } = plan;
    let (common, output) = (&common, common.output);
    match action {
        Action::BenchRun { order, out, then } => on_one_core(common, async move {
            bench::run(output, order, out).await?;
            match then {
                Some(then) => topologies::run(output, then).await,
                None => Ok(()),
            }
        }),
        Action::BenchMessaging {
            messages: order,
            topologies: then,
        } => on_one_core(common, async move {
            let whole = messages::run(output, order).await;
            if whole.as_ref().is_err_and(CommandFailure::is_interrupted) {
                return whole;
            }
            // What is missed in the first is said at the end, and keeps nobody from the second.
            topologies::run(output, then).await.and(whole)
        }),
        Action::BenchCall(load) => long(common, call::run(common, load)),
        Action::BenchSiege(order) => on_one_core(common, siege::run(output, order)),
        Action::BenchSiegeProcess(role) => {
            on_one_core(common, siege::run_process(&common.data, role))
        }
        Action::BenchChanges(order) => on_one_core(common, changes::run(output, order)),
        Action::BenchMessages(order) => on_one_core(common, messages::run(output, order)),
        Action::BenchTopologies(order) => on_one_core(common, topologies::run(output, order)),
        Action::BenchSoak(order) => on_one_core(common, soak::run(output, order)),
        Action::BenchReach(order) => on_one_core(common, reach::run(output, order)),
        Action::BenchReport(dir) => report::draw(output, &dir),
        Action::BenchCompare(compare) => report::compare(output, &compare),
        Action::BenchServe(subject, options) => on_one_core(common, bench::serve(subject, options)),
        Action::BenchLoad {
            subject,
            ready,
            options,
        } => on_one_core(common, bench::load(subject, ready, options)),
        Action::LabList => lab::list(output),
        Action::LabShow(topology) => lab::show(output, &topology),
        Action::LabRun(program) => on_one_core(common, lab::run(program)),
        Action::LabCheck(topology) => long(common, lab::check(output, topology)),
        Action::Outline => outline::print(&programs::BENCH, &mut Cli::command(), output),
    }
}
