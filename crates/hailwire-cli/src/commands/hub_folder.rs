//! `hail hub status | members | tickets`: what its operator asks of a hub, whether it runs or not.

use std::time::Duration;

use hailwire::Code;
use hailwire_hub::{HubFolderStatus, InviteError, MemberTrust, OpenTicket, folder};
use hailwire_terminal::{failure::CommandFailure, table::TextTable, text};
use hailwire_wire::{address::NodeRef, directory::HubMember};
use serde_json::json;

use super::CommandContext;

pub(super) fn status(run: &CommandContext) -> Result<(), CommandFailure> {
    let status = folder::status(run.data.root()).map_err(|error| failure(&error))?;
    let members_trusted = status.trust == MemberTrust::Members;
    let value = json!({
        "running": status.running, "pid": status.process, "url": status.url, "id": status.key,
        "members": status.counts.members, "records": status.counts.records,
        "names": status.counts.names, "tickets": status.tickets,
        "held": { "batches": status.held.batches, "bytes": status.held.bytes },
        "members_trust_each_other": members_trusted, "data_dir": run.data.root(),
    });
    run.output.value(&value, |_| for_people(run, &status))
}

fn for_people(run: &CommandContext, status: &HubFolderStatus) -> String {
    let runs = match (status.running, status.process) {
        (true, Some(process)) => format!("yes, process {process}"),
        (true, None) => "yes".to_owned(),
        (false, _) => "no: start it with `hail hub` on this data folder".to_owned(),
    };
    let key = match status.key {
        Some(key) => key.to_string(),
        None => "none in tickets: it has a public certificate".to_owned(),
    };
    let trust = match status.trust {
        MemberTrust::Members => "each other",
        MemberTrust::Nobody => "nobody for being members",
    };
    format!(
        "runs      {runs}\nurl       {}\nid        {key}\nmembers   {}, {} of them published now, {} names\ntrust     \
         members trust {trust}\ntickets   {} open\nholds     {}\ndata      {}\n",
        status.url,
        status.counts.members,
        status.counts.records,
        status.counts.names,
        status.tickets,
        holds(status),
        run.data.root().display(),
    )
}

/// What it holds for members that are away.
fn holds(status: &HubFolderStatus) -> String {
    match status.held.batches {
        0 => "no messages for members that are away".to_owned(),
        batches => format!(
            "{batches} sealed batches of messages for members that are away, {}",
            text::bytes(status.held.bytes)
        ),
    }
}

pub(super) fn members(run: &CommandContext) -> Result<(), CommandFailure> {
    let mut members = folder::members(run.data.root()).map_err(|error| failure(&error))?;
    // By name, those without one at the end.
    members.sort_by_key(|member| (member.name.is_none(), member.name.clone(), member.id));
    let table = |members: &[HubMember]| {
        let mut table = TextTable::new(["NAME", "ID", "JOINED", "SEEN", "LISTED"]);
        for member in members {
            let name = member.name.as_ref();
            table.row([
                name.map(ToString::to_string).unwrap_or_default(),
                member.id.to_string(),
                ago(member.joined),
                member.seen.map(ago).unwrap_or_default(),
                if member.live { "yes" } else { "no" }.to_owned(),
            ]);
        }
        table
    };
    let empty = "no members yet; `hail hub invite` prints a ticket";
    run.output.rows(&members, table, empty)
}

pub(super) fn remove_member(run: &CommandContext, who: &NodeRef) -> Result<(), CommandFailure> {
    let removed = folder::remove_member(run.data.root(), who);
    let removed = removed.map_err(|error| failure(&error))?;
    run.output.value(&removed, |removed| {
        let name = removed.name.as_ref();
        let name = name.map_or_else(|| removed.id.short(), ToString::to_string);
        format!("{name} is no member any more\n")
    })?;
    run.output.note(
        "its requests are refused from now on; a connection to the relay that is open lasts until the node ends it",
    );
    Ok(())
}

pub(super) fn tickets(run: &CommandContext) -> Result<(), CommandFailure> {
    let tickets = folder::tickets(run.data.root()).map_err(|error| failure(&error))?;
    let table = |tickets: &[OpenTicket]| {
        let mut table = TextTable::new(["ID", ">USES LEFT", ">EXPIRES IN"]);
        for ticket in tickets {
            table.row([
                ticket.id.clone(),
                ticket.uses_left.to_string(),
                text::age(Duration::from_secs(ticket.expires.saturating_sub(now()))),
            ]);
        }
        table
    };
    run.output.rows(
        &tickets,
        table,
        "no open tickets; `hail hub invite` prints one",
    )
}

pub(super) fn revoke(run: &CommandContext, id: &str) -> Result<(), CommandFailure> {
    let revoked = folder::revoke(run.data.root(), id).map_err(|error| failure(&error))?;
    run.output.value(&revoked, |revoked| {
        format!("nobody can join with ticket {} any more\n", revoked.id)
    })
}

fn failure(error: &InviteError) -> CommandFailure {
    match error {
        InviteError::NeverStarted => CommandFailure::caused(Code::FailedPrecondition, error)
            .hint("start it with `hail hub` and the same --data folder"),
        InviteError::NoSuchMember(_) => {
            CommandFailure::caused(Code::NotFound, error).hint("`hail hub members` lists them")
        }
        InviteError::NoSuchTicket(_) => {
            CommandFailure::caused(Code::NotFound, error).hint("`hail hub tickets` lists them")
        }
        _ => CommandFailure::caused(Code::Internal, error),
    }
}

fn ago(unix: u64) -> String {
    format!(
        "{} ago",
        text::age(Duration::from_secs(now().saturating_sub(unix)))
    )
}

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
