//! `hail join TICKET`.

use std::io::{BufRead as _, Read as _, Write as _};

use hailwire::{
    Code, Status,
    admin::{Join, Joined, method},
};
use hailwire_terminal::{failure::Failure, text};
use hailwire_wire::limits;

use super::{Run, connect};
use crate::plan::{self, Agreement, plan_agreement};

/// Longest answer to a question that is read.
const ANSWER: u64 = 16;

pub(super) async fn run(run: &Run, join: plan::Join) -> Result<(), Failure> {
    let plan::Join {
        ticket,
        mut request,
        can_ask,
    } = join;
    request.ticket = match ticket {
        Some(ticket) => ticket,
        None => read_ticket()?,
    };
    match plan_agreement(&request.ticket, request.yes, can_ask)? {
        Agreement::Given => {}
        Agreement::Ask(hub) => {
            ask(&format!(
                "the members of {hub} trust each other: each could call every agent of this node, \
                 and be called by it"
            ))?;
            request.yes = true;
        }
    }
    use_ticket(run, request).await
}

async fn use_ticket(run: &Run, request: Join) -> Result<(), Failure> {
    let client = connect::attach(run).await?;
    let joined: Joined = client.admin(method::JOIN, &request).await?;
    run.output.value(&joined, shown)?;
    if let Joined::Hub { error, .. } = &joined
        && !error.is_empty()
    {
        run.output.note(&format!(
            "the hub has not listed it as it wished: {}; it is tried again, and `hail status` shows how it stands",
            text::one_line(error)
        ));
    }
    if let Joined::Hub {
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

fn shown(joined: &Joined) -> String {
    match joined {
        Joined::Node { id, name, allow } => {
            let (who, named) = match name.as_str() {
                "" => (id.short(), id.to_string()),
                name => (name.to_owned(), format!("{name} ({id})")),
            };
            let may_call = super::trust::may_call(&who, allow);
            format!("this node and {named} trust each other now\n{may_call}\n")
        }
        Joined::Hub {
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

/// Asks on the terminal; anything but a yes is a no.
fn ask(what: &str) -> Result<(), Failure> {
    let failed = |error| Failure::io("the question cannot be asked", &error);
    let mut stderr = std::io::stderr();
    write!(stderr, "{what}\njoin? [y/N] ").map_err(failed)?;
    stderr.flush().map_err(failed)?;
    let mut answer = String::new();
    let mut stdin = std::io::stdin().lock().take(ANSWER);
    stdin.read_line(&mut answer).map_err(failed)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Status::new(Code::Cancelled, "not joined").into()),
    }
}

/// A ticket from stdin, of bounded length.
fn read_ticket() -> Result<String, Failure> {
    let mut text = String::new();
    let longest = u64::try_from(limits::MAX_TICKET)
        .unwrap_or(u64::MAX)
        .saturating_add(2);
    std::io::stdin()
        .lock()
        .take(longest)
        .read_to_string(&mut text)
        .map_err(|error| Failure::io("cannot read the ticket from stdin", &error))?;
    let ticket = text.trim();
    match ticket.len() {
        0 => Err(Failure::usage("stdin holds no ticket")),
        1..=limits::MAX_TICKET => Ok(ticket.to_owned()),
        _ => Err(Failure::usage("this is too long for a ticket")),
    }
}
