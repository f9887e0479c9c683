//! The environment variables that describe its call to a program.
//!
//! | variable | holds |
//! |---|---|
//! | `HAIL_METHOD` | the method; empty for none |
//! | `HAIL_FROM` | the name that the calling agent gives itself; empty for an anonymous one |
//! | `HAIL_NODE` | the key of the calling node; empty for this machine |
//! | `HAIL_TYPE` | media type of the body |
//! | `HAIL_PRIORITY` | `critical`, `high`, `medium` or `low` |
//! | `HAIL_DEADLINE_MS` | milliseconds left when the call arrived; unset for no deadline |
//! | `HAIL_IDEMPOTENCY_KEY` | equal for retries of the same work |
//! | `HAIL_AFFINITY` | the affinity key; empty for none |
//! | `HAIL_TRACEPARENT` | W3C trace context |
//! | `HAIL_DATA` | the data folder of the node that serves it, so that `hail` speaks with that node (`command_agent.rs`) |
//! | `HAIL_HEADER_NAME` | the header field `name`: letters in upper case, all but letters and digits as `_` |
//! | `HAIL_CALL` | the call that this process belongs to, for `hail serve` itself (`processes.rs`) |
//!
//! A caller chooses values and what follows `HAIL_HEADER_`, never another variable. Of fields whose
//! names become equal the first wins. A value with a zero byte cannot be a variable, so the call is refused.

use hailwire_wire::{CallHeader, Code, NodeId, Status};

/// The variables for one call.
///
/// # Errors
///
/// `invalid_argument`: a value holds a zero byte.
pub(crate) fn variables(
    header: &CallHeader,
    node: Option<NodeId>,
) -> Result<Vec<(String, String)>, Status> {
    let mut variables = vec![
        ("HAIL_METHOD".to_owned(), header.method.clone()),
        ("HAIL_FROM".to_owned(), header.from.agent_name().to_owned()),
        (
            "HAIL_NODE".to_owned(),
            node.map(|id| id.to_string()).unwrap_or_default(),
        ),
        ("HAIL_TYPE".to_owned(), header.content_type.clone()),
        (
            "HAIL_PRIORITY".to_owned(),
            header.priority.name().to_owned(),
        ),
        (
            "HAIL_IDEMPOTENCY_KEY".to_owned(),
            header.idempotency_key.clone(),
        ),
        ("HAIL_AFFINITY".to_owned(), header.affinity.clone()),
        ("HAIL_TRACEPARENT".to_owned(), header.traceparent.clone()),
    ];
    if let Some(ms) = header.deadline_ms {
        variables.push(("HAIL_DEADLINE_MS".to_owned(), ms.to_string()));
    }
    for (name, value) in &header.headers {
        let name = variable_name(name);
        if variables.iter().all(|(taken, _)| *taken != name) {
            variables.push((name, value.clone()));
        }
    }
    match variables.iter().find(|(_, value)| value.contains('\0')) {
        Some((name, _)) => {
            let message = format!("the call's field for {name} holds a zero byte");
            Err(Status::new(Code::InvalidArgument, message))
        }
        None => Ok(variables),
    }
}

/// The variable in which a program finds a header field.
pub(crate) fn variable_name(field: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    format!(
        "HAIL_HEADER_{}",
        field.chars().map(plain).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
        variables
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_call_is_told_in_variables() {
        let header = CallHeader {
            method: "find".into(),
            from: "editor".parse().unwrap(),
            deadline_ms: Some(1500),
            affinity: "user-7".into(),
            headers: vec![
                ("content-lang".into(), "en".into()),
                ("Content_Lang".into(), "de".into()),
            ],
            ..CallHeader::default()
        };
        let id = NodeId::from_bytes([7; 32]);
        let variables = variables(&header, Some(id)).unwrap();
        assert_eq!(find(&variables, "HAIL_METHOD"), Some("find"));
        assert_eq!(find(&variables, "HAIL_FROM"), Some("editor"));
        assert_eq!(find(&variables, "HAIL_NODE"), Some(id.to_string().as_str()));
        assert_eq!(find(&variables, "HAIL_DEADLINE_MS"), Some("1500"));
        assert_eq!(find(&variables, "HAIL_AFFINITY"), Some("user-7"));
        assert_eq!(find(&variables, "HAIL_HEADER_CONTENT_LANG"), Some("en"));
    }

    #[test]
    fn a_caller_reaches_no_variable_but_its_own() {
        let names = ["PATH", "LD_PRELOAD", "A=B", "ä\0", ""];
        let headers = names.map(|name| (name.to_owned(), "x".to_owned())).to_vec();
        let header = CallHeader {
            headers,
            ..CallHeader::default()
        };
        for (name, _) in variables(&header, None).unwrap() {
            assert!(name.starts_with("HAIL_"), "{name}");
            assert!(
                name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
                "{name}"
            );
        }
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let header = CallHeader {
            method: "a\0b".into(),
            ..CallHeader::default()
        };
        assert_eq!(
            variables(&header, None).unwrap_err().code,
            Code::InvalidArgument
        );
    }
}
