//! `hail join TICKET`.

use std::io::Read as _;

use hailwire::admin::{Join, Joined, method};
use hailwire_wire::limits;

use super::{Run, connect};
use crate::{failure::Failure, text};

pub(super) async fn run(run: &Run, ticket: Option<String>, alias: String) -> Result<(), Failure> {
    let ticket = match ticket {
        Some(ticket) => ticket,
        None => read_ticket()?,
    };
    let client = connect::attach(run).await?;
    let joined: Joined = client.admin(method::JOIN, &Join { ticket, alias }).await?;
    run.output.value(&joined, |joined| match joined {
        Joined::Node { id, name } if name.is_empty() => {
            format!("this node and {id} trust each other now\n")
        }
        Joined::Node { id, name } => format!("this node and {name} ({id}) trust each other now\n"),
        Joined::Hub { url, name, .. } if name.is_empty() => {
            format!("this node is a member of {url} now\n")
        }
        Joined::Hub { url, name, .. } => {
            format!("this node is a member of {url} now, where it is known as {name}\n")
        }
    })?;
    if let Joined::Hub { error, .. } = &joined
        && !error.is_empty()
    {
        run.output.note(&format!(
            "the hub has not listed it as it wished: {}; it is tried again, and `hail status` shows how it stands",
            text::one_line(error)
        ));
    }
    Ok(())
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
