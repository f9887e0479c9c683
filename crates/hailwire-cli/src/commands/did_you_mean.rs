//! When a name is not known: the nearest one that is.
//!
//! Only this program's own user is told which names there are, so it asks its node; a far node that does not know an agent says
//! no more than that.

use hailwire::{
    Client, Code, Status,
    admin::{AgentRow, AgentsQuery, TrustedPeer, method},
};
use hailwire_terminal::failure::CommandFailure;
use hailwire_wire::Address;

/// Names that are compared at most.
const MAX_NAMES: usize = 10_000;

/// What came of a call; where there is no such agent or node, with the nearest name that there is.
pub(super) async fn or<T>(
    client: &Client,
    to: &Address,
    done: Result<T, Status>,
) -> Result<T, CommandFailure> {
    match done {
        Ok(done) => Ok(done),
        Err(status) if status.code == Code::NotFound => Err(suggested(client, to, status).await),
        Err(status) => Err(status.into()),
    }
}

async fn suggested(client: &Client, to: &Address, status: Status) -> CommandFailure {
    let typed = to.to_string();
    let nearest = match client
        .admin::<_, Vec<AgentRow>>(method::AGENTS, &AgentsQuery::default())
        .await
    {
        Ok(rows) => nearest(&typed, addresses(&rows, to.node.is_some())),
        Err(_) => None,
    };
    with_nearest(status, nearest)
}

/// The same for a request about a peer.
pub(super) async fn or_peer<T>(
    client: &Client,
    who: &str,
    done: Result<T, Status>,
) -> Result<T, CommandFailure> {
    match done {
        Ok(done) => Ok(done),
        Err(status) if status.code == Code::NotFound => {
            Err(suggested_peer(client, who, status).await)
        }
        Err(status) => Err(status.into()),
    }
}

async fn suggested_peer(client: &Client, who: &str, status: Status) -> CommandFailure {
    let nearest = match client
        .admin::<_, Vec<TrustedPeer>>(method::TRUST_LIST, &())
        .await
    {
        Ok(rows) => nearest(who, rows.into_iter().map(|row| row.alias)),
        Err(_) => None,
    };
    with_nearest(status, nearest)
}

fn with_nearest(status: Status, nearest: Option<String>) -> CommandFailure {
    let hint = match nearest {
        None => return status.into(),
        Some(name) if status.hint.is_empty() => format!("did you mean `{name}`?"),
        Some(name) => format!("did you mean `{name}`? {}", status.hint),
    };
    CommandFailure::from(status).hint(hint)
}

/// What may be typed to reach these agents: with their node, or without.
fn addresses(rows: &[AgentRow], with_node: bool) -> impl Iterator<Item = String> {
    rows.iter()
        .filter_map(move |row| match (with_node, row.node_name.is_empty()) {
            (false, _) => Some(row.name.clone()),
            (true, false) => Some(format!("{}@{}", row.name, row.node_name)),
            (true, true) => None,
        })
}

/// The name that is most like the one that was typed, where one is like it at all.
fn nearest(typed: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let known: Vec<String> = names.take(MAX_NAMES).filter(|name| name != typed).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    hailwire_kdl::nearest(typed, &known).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_given_before_what_else_to_do() {
        let names = || ["word-count", "grep"].map(str::to_owned).into_iter();
        assert_eq!(nearest("wordcount", names()).as_deref(), Some("word-count"));
        assert_eq!(nearest("translate", names()), None);
        assert_eq!(
            nearest("grep", names()),
            None,
            "it is known, so it is not missing"
        );

        let status = Status::new(Code::NotFound, "no").with_hint("list them");
        let failure = with_nearest(status.clone(), Some("grep".into()));
        assert_eq!(failure.status.hint, "did you mean `grep`? list them");
        assert_eq!(with_nearest(status, None).status.hint, "list them");
    }
}
