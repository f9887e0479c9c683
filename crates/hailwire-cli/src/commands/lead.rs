//! `hail lead NAME -- CMD` and `hail leases`.
//!
//! Whoever leads for a program must be able to stop it. So it runs guarded ([`process_guard`]): however this process ends, nothing that
//! the program started goes on.

use std::{process::ExitStatus, time::Duration};

use hailwire::{
    Code, NodeId, Status,
    admin::{LeaseQuery, method},
    coordination::{LeadError, Tenure, lead},
};
use hailwire_terminal::{child, failure::CommandFailure, table::TextTable, text};
use hailwire_wire::lease::LeaseRow;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::{CommandContext, connect, process_guard};
use crate::plan::LeadPlan;

/// The variable with the fencing token, for the program that runs.
const TOKEN: &str = "HAIL_LEASE_TOKEN";

/// The part of a lease's time that a program has to stop in once the lease is lost. The hub gives it to nobody for an eighth more.
const STOP_SHARE: u32 = 16;

pub(super) async fn run(run: &CommandContext, plan: LeadPlan) -> Result<(), CommandFailure> {
    process_guard::run(run.output, None, async |_| {
        let status = led(run, &plan).await?;
        child::passed_on(status)
    })
    .await
}

async fn led(run: &CommandContext, plan: &LeadPlan) -> Result<ExitStatus, CommandFailure> {
    let client = connect::attach(run).await?;
    let mut program: Option<Child> = None;
    let slot = &mut program;
    let candidacy = lead(&client, plan.name.as_str())
        .ttl(plan.ttl)
        .hub(plan.hub.as_str());
    let work = async move |tenure: Tenure| {
        run.output
            .note(&format!("leads {} with token {}", plan.name, tenure.token));
        let started = start(plan, tenure)?;
        child::wait(slot.insert(started)).await
    };
    match candidacy.run(work).await {
        Ok(ended) => ended,
        Err(LeadError::Refused(status)) => Err(status.into()),
        Err(LeadError::Lost { .. }) => {
            if let Some(program) = &mut program {
                stop(program, plan.ttl / STOP_SHARE).await;
            }
            let lost = format!(
                "the lease of {} was lost; the program was stopped",
                plan.name
            );
            let hint = "see whether the hub answers with `hail status`; a longer --ttl outlasts a longer silence";
            Err(Status::new(Code::Aborted, lost).with_hint(hint).into())
        }
    }
}

fn start(plan: &LeadPlan, tenure: Tenure) -> Result<Child, CommandFailure> {
    let [program, arguments @ ..] = plan.command.as_slice() else {
        return Err(CommandFailure::usage("no program is named"));
    };
    let started = Command::new(program)
        .args(arguments)
        .env(TOKEN, tenure.token.to_string())
        .kill_on_drop(true)
        .spawn();
    started.map_err(|error| {
        let what = format!("cannot start {}", program.to_string_lossy());
        CommandFailure::io(what, &error)
    })
}

/// Asks the program to end, and ends it where it does not.
async fn stop(program: &mut Child, grace: Duration) {
    let pid = program.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // It fails only for a program that has ended.
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(grace, program.wait()).await.is_err() {
        // As above.
        let _ = program.kill().await;
    }
}

pub(super) async fn list(run: &CommandContext, query: LeaseQuery) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let leases: Vec<LeaseRow> = client.admin(method::LEASE_LIST, &query).await?;
    let table = |rows: &[LeaseRow]| {
        let mut table = TextTable::new(["NAME", "NODE", ">TOKEN", ">LEFT"]);
        for row in rows {
            table.row([
                row.name.to_string(),
                NodeId::short(&row.node),
                row.token.to_string(),
                text::age(Duration::from_millis(row.left_ms)),
            ]);
        }
        table
    };
    run.output.rows(&leases, table, "no lease is held")
}
