//! The commands: one file each.
//!
//! A command that talks to the node runs on a single-threaded runtime, so that it starts at once.
//! So does the node itself: calls are small and pass through many tasks, and moving those between
//! threads costs more than it gains. The hub and the demonstration get all cores. Ctrl-C ends every command with exit code
//! 130; dropping a command's future is how its call is cancelled.

mod agents;
mod background;
mod binary_to_terminal;
mod body;
mod call;
mod callout;
pub(crate) mod completions;
mod config;
mod connect;
mod demo;
mod describe;
mod did_you_mean;
mod dispatch;
mod doctor;
mod down;
mod gather;
mod help;
mod hub;
mod hub_folder;
mod id;
mod inbox;
mod invite;
mod join;
mod kept_agents;
mod kept_settings;
mod lead;
mod leave;
mod logs;
mod man;
mod metrics;
mod offered_agent;
mod peers;
mod ping;
pub(crate) mod process_guard;
mod restart;
mod schema_summary;
mod send;
mod serve;
mod service;
mod state;
mod status;
mod stream;
mod task;
mod top;
mod topics;
mod trust;
mod up;

use std::time::Duration;

use hailwire::DataDir;
use hailwire_terminal::{
    failure::CommandFailure,
    global::CommonOptions,
    output::Output,
    runtime::{long, on_all_cores, on_one_core, short},
};
use tracing::Level;

use crate::plan::{Action, Plan};

/// The context of every command.
#[derive(Clone, Debug)]
pub(crate) struct CommandContext {
    pub(crate) output: Output,
    pub(crate) data: DataDir,
    pub(crate) timeout: Option<Duration>,
    /// The least important event to log; `None` leaves it to the configuration.
    pub(crate) log: Option<Level>,
}

/// Runs the command of a plan.
pub(crate) fn run(plan: Plan) -> Result<(), CommandFailure> {
    let Plan { common, action } = plan;
    let common = &common;
    let CommonOptions { output, .. } = *common;
    let run = &CommandContext {
        output,
        data: DataDir::new(common.data.clone()),
        timeout: common.timeout,
        log: common.log,
    };
    match action {
        Action::ConfigShow { effective } => short(common, config::show(run, effective)),
        Action::ConfigPath => config::path(run),
        Action::ConfigCheck => config::check(run),
        Action::ServiceInstall { enable, unit } => service::install(output, &unit, enable),
        Action::ServiceShow(unit) => service::show(output, &unit),
        Action::ServiceUninstall { disable, unit } => service::uninstall(output, &unit, disable),
        Action::Forwarded(program) => Err(program.replace_this()),
        Action::Completions(shell) => completions::print(output, shell),
        Action::Man(dir) => man::run(output, dir.as_deref()),
        Action::Help(command) => Err(help::replace_this(command)),
        Action::Version => help::version(output),
        Action::Id => id::run(run),
        Action::Up(up) if up.detach => background::node(run, &up),
        Action::Up(up) => on_one_core(common, up::run(run, up)),
        Action::Down(request) => short(common, down::run(run, request)),
        Action::Status => short(common, status::run(run)),
        Action::Top => on_one_core(common, top::run(run)),
        Action::Logs { lines, follow } => on_one_core(common, logs::run(run, lines, follow)),
        Action::Invite(request) => short(common, invite::run(run, request)),
        Action::Join(join) => short(common, join::run(run, join)),
        Action::TrustList => short(common, trust::list(run)),
        Action::TrustAdd(request) => short(common, trust::add(run, request)),
        Action::TrustRemove(request) => short(common, trust::remove(run, request)),
        Action::TrustPending => short(common, trust::pending(run)),
        Action::TrustApprove(request) => short(common, trust::approve(run, request)),
        Action::Peers { watch: false } => short(common, peers::list(run)),
        Action::Peers { watch: true } => on_one_core(common, peers::watch(run)),
        Action::Agents(query) => short(common, agents::run(run, query)),
        Action::Describe(agent) => short(common, describe::run(run, &agent)),
        Action::Doctor(request) => short(common, doctor::run(run, request)),
        Action::Ping { who, pings } => long(common, ping::run(run, who, pings)),
        Action::Call { call, stats } => long(common, call::run(run, call, stats)),
        Action::Gather { call, replies } => long(common, gather::run(run, call, replies)),
        Action::Dispatch(plan) => on_one_core(common, dispatch::run(run, *plan)),
        Action::Send(call) => short(common, send::run(run, call)),
        Action::SendDurable { call, durable } => long(common, inbox::send(run, call, &durable)),
        Action::InboxList(query) => short(common, inbox::list(run, query)),
        Action::InboxShow(id) => short(common, inbox::show(run, id)),
        Action::InboxWait { id, until } => long(common, inbox::wait_for(run, id, until)),
        Action::InboxRetry(id) => short(common, inbox::retry(run, id)),
        Action::InboxDrop(id) => short(common, inbox::drop(run, id)),
        Action::InboxTake { agent, most, lease } => {
            short(common, inbox::take(run, agent, most, lease))
        }
        Action::InboxAck(verdict) => short(common, inbox::ack(run, verdict)),
        Action::TaskSubmit { call, durable } => long(common, task::submit(run, call, &durable)),
        Action::TaskStatus(id) => short(common, task::status(run, id)),
        Action::TaskWait(id) => long(common, task::wait_for(run, id)),
        Action::TaskCancel(id) => short(common, task::cancel(run, id)),
        Action::TaskList(query) => short(common, task::list(run, query)),
        Action::TaskProgress(report) => short(common, task::progress(run, report)),
        Action::Publish(publish) => short(common, topics::publish(run, publish)),
        Action::Lead(lead) => on_one_core(common, lead::run(run, lead)),
        Action::Leases(query) => short(common, lead::list(run, query)),
        Action::Subscribe(plan) => short(common, topics::subscribe(run, plan)),
        Action::TopicList => short(common, topics::list::list(run)),
        Action::TopicKeep(request) => short(common, topics::list::keep(run, request)),
        Action::TopicUnkeep(pattern) => short(common, topics::list::unkeep(run, pattern)),
        Action::TopicForget(name) => short(common, topics::list::forget(run, name)),
        Action::StatePut(put) => short(common, state::put(run, put)),
        Action::StateGet { key, wait } => short(common, state::get(run, key, wait)),
        Action::StateWatch { pattern, most } => short(common, state::watch(run, pattern, most)),
        Action::StateList { pattern, wait } => short(common, state::list(run, pattern, wait)),
        Action::Stream(call) => long(common, stream::run(run, call)),
        Action::Serve { agent, drain } => on_one_core(common, serve::one(run, agent, drain)),
        Action::ServeFile {
            file,
            drain,
            beside_node,
        } => on_one_core(common, serve::file(run, &file, beside_node, drain)),
        Action::ServeKeep { file, agent } => short(common, serve::keep::add(run, &file, agent)),
        Action::ServeRemove { name, file } => short(common, serve::keep::remove(run, &file, &name)),
        Action::ServeList(file) => short(common, serve::manage::list(run, &file)),
        Action::ServeRestart { name, file } => {
            short(common, serve::manage::restart(run, &file, name))
        }
        Action::ServeLogs { name, follow, file } => {
            long(common, serve::manage::logs(run, &file, name, follow))
        }
        Action::CalloutServe(config) => on_all_cores(callout::serve::run(run, config)),
        Action::CalloutAgent { name, at } => {
            on_one_core(common, callout::attach::run(run, name, at))
        }
        Action::CalloutTest { config, small } => {
            on_all_cores(callout::test::run(run, config, small))
        }
        Action::HubRun(plan) => on_all_cores(hub::run(run, *plan)),
        Action::HubDetach(hub) => background::hub(run, &hub),
        Action::HubDown => hub::down(run),
        Action::HubStatus => hub_folder::status(run),
        Action::HubMembers => hub_folder::members(run),
        Action::HubMemberRemove(who) => hub_folder::remove_member(run, &who),
        Action::HubTickets => hub_folder::tickets(run),
        Action::HubTicketRevoke(id) => hub_folder::revoke(run, &id),
        Action::Leave(request) => short(common, leave::run(run, request)),
        Action::HubInvite { uses, expires } => hub::invite(run, uses, expires),
        Action::Demo(demo) if demo.part => on_all_cores(demo::process::run(run)),
        Action::Demo(demo) => on_all_cores(demo::run(run, &demo)),
    }
}
