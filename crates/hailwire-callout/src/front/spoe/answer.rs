//! The answers to HAProxy: variables, which the rules of its configuration act upon.
//!
//! The answer to a request sets variables of the transaction (`txn.PREFIX.NAME`), that to a response those of the
//! response (`res.PREFIX.NAME`):
//!
//! | variable | holds |
//! |---|---|
//! | `decision` | `allow`, `block`, `redirect` or `challenge`; always there |
//! | `status` | the status that the client gets; where it does not pass |
//! | `body` | the text that the client gets; where it blocks with one |
//! | `location` | where the client is sent; where it redirects |
//! | `reply_NAME` | a header field of what the client gets |
//! | `req_set_NAME`, `req_add_NAME`, `req_del_NAME` | a change to the request's header fields |
//! | `res_set_NAME`, `res_add_NAME`, `res_del_NAME` | a change to the response's; also in the answer to the request |
//! | `meta_NAME` | routing metadata |
//!
//! NAME is the field's, in lower case, with `_` for what a variable cannot have in its name. HAProxy drops a
//! variable that its configuration does not mention: agents can set no header that the operator did not list. Of two
//! values that are set the later counts; of such as are added, all, with a comma between them.

use bytes::Bytes;

use super::frame::{SetVar, SpopValue, VarScope};
use crate::{Decision, front::ClientResponse, inspect::Verdict, response::HeaderOp};

/// Variables in one answer, as far as agents determine them.
pub const MAX_VARIABLES: usize = 256;

/// The variables that say what becomes of a request or response.
#[must_use]
pub fn variables(verdict: &Verdict, scope: VarScope) -> Vec<SetVar> {
    let mut vars = decided(&verdict.decision, scope);
    let mut changes = Vec::new();
    if scope == VarScope::Transaction {
        ops(&mut changes, "req", &verdict.request_headers);
    }
    ops(&mut changes, "res", &verdict.response_headers);
    for (name, value) in &verdict.routing_metadata {
        changes.push((variable("meta", name), value.clone()));
    }
    if vars.len() + changes.len() > MAX_VARIABLES {
        tracing::warn!(
            count = changes.len(),
            "too many variables for one answer to HAProxy; blocked"
        );
        return refused(scope);
    }
    vars.extend(
        changes
            .into_iter()
            .map(|(name, value)| set(scope, name, value)),
    );
    vars
}

/// The variables of a request or response that does not pass because we cannot say what we should.
#[must_use]
pub fn refused(scope: VarScope) -> Vec<SetVar> {
    blocked(scope, 500)
}

/// The variables of a block.
#[must_use]
pub fn blocked(scope: VarScope, status: u16) -> Vec<SetVar> {
    let decision = Decision::Block {
        status,
        body: None,
        headers: std::collections::BTreeMap::new(),
    };
    decided(&decision, scope)
}

fn decided(decision: &Decision, scope: VarScope) -> Vec<SetVar> {
    let word = match decision {
        Decision::Allow => "allow",
        Decision::Block { .. } => "block",
        Decision::Redirect { .. } => "redirect",
        Decision::Challenge { .. } => "challenge",
    };
    let mut vars = vec![set(scope, "decision".into(), word.into())];
    let Some(reply) = ClientResponse::to(decision) else {
        return vars;
    };
    vars.push(SetVar {
        scope,
        name: "status".into(),
        value: SpopValue::Uint32(reply.status.into()),
    });
    if !reply.body.is_empty() {
        vars.push(set(scope, "body".into(), reply.body));
    }
    for (name, value) in reply.headers {
        let name = match decision {
            Decision::Redirect { .. } => name,
            _ => variable("reply", &name),
        };
        vars.push(set(scope, name, value));
    }
    vars
}

fn ops(vars: &mut Vec<(String, String)>, of: &str, ops: &[HeaderOp]) {
    for op in ops {
        let (verb, name, value) = match op {
            HeaderOp::Set { name, value } => ("set", name, value.as_str()),
            HeaderOp::Add { name, value } => ("add", name, value.as_str()),
            HeaderOp::Remove { name } => ("del", name, "1"),
        };
        let name = variable(&format!("{of}_{verb}"), name);
        match vars.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) if verb == "add" => *known = format!("{known}, {value}"),
            Some((_, known)) => value.clone_into(known),
            None => vars.push((name, value.to_owned())),
        }
    }
}

fn variable(of: &str, name: &str) -> String {
    let name = name.bytes().map(|b| match b.to_ascii_lowercase() {
        b @ (b'a'..=b'z' | b'0'..=b'9') => char::from(b),
        _ => '_',
    });
    format!("{of}_") + &name.collect::<String>()
}

fn set(scope: VarScope, name: String, value: String) -> SetVar {
    SetVar {
        scope,
        name,
        value: SpopValue::Text(Bytes::from(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(vars: &[SetVar]) -> Vec<String> {
        let one = |var: &SetVar| match &var.value {
            SpopValue::Text(text) => format!("{}={}", var.name, String::from_utf8_lossy(text)),
            value => format!("{}={}", var.name, value.number().unwrap()),
        };
        vars.iter().map(one).collect()
    }

    fn op(verb: &str, name: &str, value: &str) -> HeaderOp {
        let (name, value) = (name.to_owned(), value.to_owned());
        match verb {
            "set" => HeaderOp::Set { name, value },
            "add" => HeaderOp::Add { name, value },
            _ => HeaderOp::Remove { name },
        }
    }

    #[test]
    fn changes_to_headers_are_variables_named_after_them() {
        let verdict = Verdict {
            request_headers: vec![
                op("set", "X-Score", "1"),
                op("set", "x-score", "2"),
                op("add", "Via", "a"),
                op("add", "via", "b"),
                op("del", "cookie", ""),
            ],
            response_headers: vec![op("set", "Server", "none")],
            ..Verdict::default()
        };
        let expected = [
            "decision=allow",
            "req_set_x_score=2",
            "req_add_via=a, b",
            "req_del_cookie=1",
        ];
        let response = "res_set_server=none";
        let request = told(&variables(&verdict, VarScope::Transaction));
        assert_eq!(request, [&expected[..], &[response]].concat());
        assert_eq!(
            told(&variables(&verdict, VarScope::Response)),
            ["decision=allow", response]
        );
    }

    #[test]
    fn a_block_and_a_redirect_have_what_the_client_gets() {
        let block = Decision::Block {
            status: 429,
            body: Some("later".to_owned()),
            headers: [("Retry-After".to_owned(), "9".to_owned())].into(),
        };
        let expected = [
            "decision=block",
            "status=429",
            "body=later",
            "reply_retry_after=9",
        ];
        assert_eq!(told(&decided(&block, VarScope::Transaction)), expected);
        let redirect = Decision::Redirect {
            url: "/login".to_owned(),
            status: 302,
        };
        let expected = ["decision=redirect", "status=302", "location=/login"];
        assert_eq!(told(&decided(&redirect, VarScope::Transaction)), expected);
    }

    #[test]
    fn an_answer_of_more_variables_than_the_bound_blocks() {
        let ops = (0..=MAX_VARIABLES).map(|n| op("set", &format!("x-{n}"), ""));
        let verdict = Verdict {
            request_headers: ops.collect(),
            ..Verdict::default()
        };
        let vars = variables(&verdict, VarScope::Transaction);
        assert_eq!(told(&vars), ["decision=block", "status=500"]);
    }
}
