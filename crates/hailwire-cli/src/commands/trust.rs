//! `hail trust ls | add | rm | pending | approve`.

use std::time::{Duration, SystemTime};

use hailwire::admin::{PeerSelector, TrustAdd, TrustedPeer, UntrustedPeer, method};
use hailwire_terminal::{failure::CommandFailure, table::TextTable};
use serde_json::json;

use super::{CommandContext, connect, did_you_mean};

pub(super) async fn list(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let rows: Vec<TrustedPeer> = client.admin(method::TRUST_LIST, &()).await?;
    let table = |rows: &[TrustedPeer]| {
        let mut table = TextTable::new([
            "NAME",
            "NAMED BY",
            "ID",
            "VIA",
            "SINCE",
            "MAY CALL",
            "BARE CALLS",
            "CONNECTED",
        ]);
        for TrustedPeer {
            id,
            alias,
            named_by,
            allow,
            offer,
            via,
            since,
            connected,
        } in rows
        {
            table.row([
                alias.clone(),
                named_by.clone(),
                id.to_string(),
                via.clone(),
                when(*since),
                if allow.is_empty() {
                    "all".to_owned()
                } else {
                    allow.join(",")
                },
                match (offer.is_empty(), allow.is_empty()) {
                    (true, true) => "all".to_owned(),
                    (true, false) => "none".to_owned(),
                    (false, _) => offer.join(","),
                },
                if *connected { "yes" } else { "no" }.to_owned(),
            ]);
        }
        table
    };
    run.output.rows(
        &rows,
        table,
        "no trusted peers; see `hail invite` and `hail join`",
    )
}

pub(super) async fn add(run: &CommandContext, request: TrustAdd) -> Result<(), CommandFailure> {
    change(run, method::TRUST_ADD, &request).await
}

pub(super) async fn approve(run: &CommandContext, request: TrustAdd) -> Result<(), CommandFailure> {
    change(run, method::TRUST_APPROVE, &request).await
}

pub(super) async fn remove(
    run: &CommandContext,
    request: PeerSelector,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let removed = client.admin::<_, ()>(method::TRUST_REMOVE, &request).await;
    did_you_mean::or_peer(&client, &request.who, removed).await?;
    let value = json!({ "removed": request.who });
    run.output.value(&value, |_| {
        format!("{} is no longer trusted\n", request.who)
    })
}

pub(super) async fn pending(run: &CommandContext) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let rows: Vec<UntrustedPeer> = client.admin(method::TRUST_PENDING, &()).await?;
    let table = |rows: &[UntrustedPeer]| {
        let mut table = TextTable::new(["ID", "CLAIMS TO BE", "FROM", "LAST TRY", ">TRIES"]);
        for UntrustedPeer {
            id,
            claims,
            from,
            at,
            attempts,
        } in rows
        {
            table.row([
                id.to_string(),
                claimed(claims),
                from.clone(),
                when(*at),
                attempts.to_string(),
            ]);
        }
        table
    };
    run.output.rows(&rows, table, "no pending requests")
}

/// The name that an untrusted peer gives itself, shown as a claim.
fn claimed(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!("claims to be \"{name}\""),
    }
}

async fn change(
    run: &CommandContext,
    method: &str,
    request: &TrustAdd,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let trusted: TrustedPeer = client.admin(method, request).await?;
    run.output.value(&trusted, |trusted| {
        let TrustedPeer { id, alias, .. } = trusted;
        let (who, named) = match alias.as_str() {
            "" => (id.short(), id.to_string()),
            alias => (alias.to_owned(), format!("{alias} ({id})")),
        };
        let may_call = may_call(&who, &trusted.allow);
        format!("{named} is trusted now\n{may_call}\n")
    })?;
    run.output
        .note("the other side must trust this node too before either can call");
    Ok(())
}

/// A time in unix seconds, in UTC.
pub(super) fn when(unix: u64) -> String {
    match SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(unix)) {
        // A year after 9999 cannot be written in RFC 3339.
        Some(time) if unix < 253_402_300_800 => humantime::format_rfc3339_seconds(time).to_string(),
        _ => String::new(),
    }
}

/// What a peer may call here, as text.
pub(super) fn may_call(who: &str, allow: &[String]) -> String {
    match allow {
        [] => format!("{who} may call: every agent of this node"),
        names => format!("{who} may call: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_and_never_panic() {
        assert_eq!(when(0), "1970-01-01T00:00:00Z");
        assert_eq!(when(253_402_300_799), "9999-12-31T23:59:59Z");
        assert_eq!(when(u64::MAX), "");
    }
}
