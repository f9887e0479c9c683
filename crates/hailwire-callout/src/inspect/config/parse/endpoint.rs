//! Parses the endpoint of an agent.

use std::path::PathBuf;

use hailwire_kdl::{
    KdlEntry, KdlNode, TextMistake, argument, plain_entries, properties, property, settings,
    single, text,
};

use super::{
    super::{AgentEndpoint, TlsFiles},
    name,
};

/// What the braces of `grpc` may say.
pub(super) const GRPC: [&str; 4] = ["ca-cert", "client-cert", "client-key", "server-name"];

pub(super) fn endpoint(node: &KdlNode, agent: &str) -> Result<AgentEndpoint, TextMistake> {
    if node.name().value() != "grpc"
        && let Some(inner) = node.iter_children().next()
    {
        let what = format!("`{}` has no settings of its own", node.name().value());
        return Err(TextMistake::of(inner, what));
    }
    let path = || -> Result<PathBuf, TextMistake> {
        let entry = value_or(node, "path")?;
        match text(node, entry)? {
            // A socket's address has room for 107 bytes.
            path if (1..=107).contains(&path.len()) => Ok(path.into()),
            _ => Err(TextMistake::in_value(
                entry,
                "invalid socket path; use 1 to 107 bytes",
            )),
        }
    };
    Ok(match node.name().value() {
        "unix-socket" => AgentEndpoint::UnixSocket(path()?),
        "binary-uds" => AgentEndpoint::BinaryUds(path()?),
        "grpc" => {
            let entry = value_or(node, "address")?;
            let given = text(node, entry)?;
            let address = given.strip_prefix("http://").unwrap_or(given);
            match address.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {}
                _ => {
                    let hint = "write for example: grpc \"127.0.0.1:50051\"";
                    return Err(
                        TextMistake::in_value(entry, "invalid address; use HOST:PORT").hint(hint),
                    );
                }
            }
            AgentEndpoint::Grpc {
                address: address.to_owned(),
                tls: tls(node)?,
            }
        }
        "reverse" => match plain_entries(node)? {
            [] => AgentEndpoint::Reverse(agent.to_owned()),
            [id] => AgentEndpoint::Reverse(name(node, id)?),
            _ => return Err(TextMistake::of(node, "`reverse` takes at most one value")),
        },
        _ => {
            let entry = argument(node, &[])?;
            match text(node, entry)?.split_once('@') {
                Some((agent, node)) if !agent.is_empty() && !node.is_empty() => {
                    AgentEndpoint::Hail {
                        agent: agent.to_owned(),
                        node: node.to_owned(),
                    }
                }
                _ => {
                    let hint = "write for example: hail \"waf@edge-2\"";
                    return Err(
                        TextMistake::in_value(entry, "invalid address; use AGENT@NODE").hint(hint),
                    );
                }
            }
        }
    })
}

/// What `grpc` says in its braces.
fn tls(node: &KdlNode) -> Result<Option<TlsFiles>, TextMistake> {
    if node.children().is_none() {
        return Ok(None);
    }
    let (mut ca, mut cert, mut key, mut name) = (None, None, None, None);
    settings(node, "grpc", &GRPC, |inner| {
        match inner.name().value() {
            "ca-cert" => ca = Some(single(inner)?),
            "client-cert" => cert = Some(single(inner)?),
            "client-key" => key = Some(single(inner)?),
            _ => name = Some(single(inner)?),
        }
        Ok(())
    })?;
    let missing = |what: &str| TextMistake::of(node, format!("`grpc` lacks `{what}`"));
    Ok(Some(TlsFiles {
        ca: ca.ok_or_else(|| missing("ca-cert"))?,
        identity: match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (None, Some(_)) => return Err(missing("client-cert")),
            (Some(_), None) => return Err(missing("client-key")),
        },
        name,
    }))
}

/// The only value of a node, which may be written as a property.
fn value_or<'a>(node: &'a KdlNode, name: &str) -> Result<&'a KdlEntry, TextMistake> {
    properties(node, &[name])?;
    match (node.entries(), property(node, name)) {
        ([only], _) => Ok(only),
        _ => {
            let what = format!("`{}` takes exactly one value", node.name().value());
            Err(TextMistake::of(node, what))
        }
    }
}
