//! `hail join TICKET`.

use std::io::Read as _;

use hailwire::{
    Code, Status,
    admin::{JoinAnswer, JoinRequest, method},
};
use hailwire_terminal::{confirm::confirm, failure::CommandFailure, text};
use hailwire_wire::limits;

use super::{CommandContext, connect};
use crate::plan::{self, JoinAgreement, plan_agreement};

pub(super) async fn run(run: &CommandContext, join: plan::JoinPlan) -> Result<(), CommandFailure> {
    let plan::JoinPlan {
        ticket,
        mut request,
        can_ask,
    } = join;
    request.ticket = match ticket {
        Some(ticket) => ticket,
        None => read_ticket()?,
    };
    match plan_agreement(&request.ticket, request.yes, can_ask)? {
        JoinAgreement::Given => {}
        JoinAgreement::Ask(hub) => {
            let agreed = confirm(&format!(
                "the members of {hub} trust each other: each could call every agent of this node, \
                 and be called by it\njoin?"
            ))?;
            if !agreed {
                return Err(Status::new(Code::Cancelled, "not joined").into());
            }
            request.yes = true;
        }
    }
    use_ticket(run, request).await
}

async fn use_ticket(run: &CommandContext, request: JoinRequest) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let joined: JoinAnswer = client.admin(method::JOIN, &request).await?;
    run.output.value(&joined, shown)?;
    if let JoinAnswer::Hub { error, .. } = &joined
        && !error.is_empty()
    {
        run.output.note(&format!(
            "the hub has not registered it as requested: {}; this is retried, and `hail status` shows the state",
            text::one_line(error)
        ));
    }
    if let JoinAnswer::Hub {
        members: true,
        trusted: false,
        ..
    } = joined
    {
        run.output.note(
            "the hub says that its members trust each other, which its ticket did not: \
             this node trusts none of them for it",
        );
    }
    Ok(())
}

fn shown(joined: &JoinAnswer) -> String {
    match joined {
        JoinAnswer::Node { id, name, allow } => {
            let (who, named) = match name.as_str() {
                "" => (id.short(), id.to_string()),
                name => (name.to_owned(), format!("{name} ({id})")),
            };
            let may_call = super::trust::may_call(&who, allow);
            format!("this node and {named} trust each other now\n{may_call}\n")
        }
        JoinAnswer::Hub {
            url, name, trusted, ..
        } => {
            let named = match name.as_str() {
                "" => String::new(),
                name => format!(", where it is known as {name}"),
            };
            let members = match trusted {
                true => "its members may call every agent of this node\n",
                false => "",
            };
            format!("this node is a member of {url} now{named}\n{members}")
        }
    }
}

/// A ticket from stdin, of bounded length.
fn read_ticket() -> Result<String, CommandFailure> {
    let mut text = String::new();
    let longest = u64::try_from(limits::MAX_TICKET)
        .unwrap_or(u64::MAX)
        .saturating_add(2);
    std::io::stdin()
        .lock()
        .take(longest)
        .read_to_string(&mut text)
        .map_err(|error| CommandFailure::io("cannot read the ticket from stdin", &error))?;
    let ticket = text.trim();
    match ticket.len() {
        0 => Err(CommandFailure::usage("there is no ticket on stdin")),
        1..=limits::MAX_TICKET => Ok(ticket.to_owned()),
        _ => Err(CommandFailure::usage("the input is too long for a ticket")),
    }
}
