//! Parses the rule of an agent: which events it gets, and what happens when it does not answer.

use hailwire_kdl::{
    KdlEntry, KdlNode, TextMistake, argument, plain_entries, settings, text, unknown,
};

use super::{AGENT, one_of, time};
use crate::{
    EventKind,
    capabilities::EventKinds,
    inspect::{AgentFault, AgentRule, BodyMode, BodyRule, FallbackAction, PhaseRule},
};

pub(super) fn phase(
    node: &KdlNode,
    rule: &mut AgentRule,
    seen: &mut EventKinds,
) -> Result<(), TextMistake> {
    let entry = argument(node, &[])?;
    let kind = kind(entry, text(node, entry)?)?;
    if seen.contains(kind) {
        let what = format!("`phase` is set twice for {}", kind.name());
        return Err(TextMistake::of(node, what));
    }
    *seen = seen.with(kind);
    let Some(phase) = rule.phase_mut(kind) else {
        return Ok(());
    };
    let known = [
        "timeout-ms",
        "on-timeout",
        "on-error",
        "on-overload",
        "on-body-too-large",
    ];
    settings(node, "phase", &known, |inner| {
        match inner.name().value() {
            "timeout-ms" => phase.timeout = time(inner)?,
            _ => on(inner, phase)?,
        }
        Ok(())
    })
}

/// `on-… "allow"` or `on-… "block" [STATUS]`, in a phase.
pub(super) fn on(node: &KdlNode, phase: &mut PhaseRule) -> Result<(), TextMistake> {
    let name = node.name().value();
    let fault = AgentFault::ALL
        .into_iter()
        .find(|fault| name.strip_prefix("on-") == Some(fault.name()));
    let Some(fault) = fault else {
        return Err(unknown(node, "agent", &AGENT));
    };
    let action = action(node, fault.status())?;
    if let Some(on) = phase.on.get_mut(fault as usize) {
        *on = action;
    }
    Ok(())
}

/// `"allow"`, or `"block"` with a status or this one.
pub(super) fn action(node: &KdlNode, status: u16) -> Result<FallbackAction, TextMistake> {
    let said = |entry: &KdlEntry, word| entry.value().as_string() == Some(word);
    match plain_entries(node)? {
        [allow] if said(allow, "allow") => Ok(FallbackAction::Allow),
        [block] if said(block, "block") => Ok(FallbackAction::Block(status)),
        [block, other] if said(block, "block") => {
            let what = || "invalid status; use 400 to 599".to_owned();
            let other = hailwire_kdl::whole(other, 400..=599, what)?;
            Ok(FallbackAction::Block(
                u16::try_from(other).unwrap_or(status),
            ))
        }
        _ => {
            let name = node.name().value();
            let what = format!("`{name}` is \"allow\" or \"block\" with a status");
            let hint = format!("write: {name} \"block\" {status}");
            Err(TextMistake::of(node, what).hint(hint))
        }
    }
}

pub(super) fn events(node: &KdlNode) -> Result<EventKinds, TextMistake> {
    let entries = plain_entries(node)?;
    if entries.is_empty() {
        let hint = "write for example: events \"request_headers\" \"request_body\"";
        return Err(TextMistake::of(node, "`events` takes at least one value").hint(hint));
    }
    let kinds = entries.iter().map(|entry| kind(entry, text(node, entry)?));
    kinds.collect()
}

/// A kind of event by its name, or by the shorter ones that operators write.
fn kind(entry: &KdlEntry, name: &str) -> Result<EventKind, TextMistake> {
    let long = match name {
        "request_body" => "request_body_chunk",
        "response_body" => "response_body_chunk",
        "websocket" => "websocket_frame",
        "guardrail" => "guardrail_inspect",
        "log" => "request_complete",
        name => name,
    };
    let found = EventKind::ALL
        .into_iter()
        .find(|kind| *kind != EventKind::Configure && kind.name() == long);
    found.ok_or_else(|| {
        let known = [
            "request_headers",
            "request_body",
            "response_headers",
            "response_body",
            "request_complete",
            "websocket_frame",
            "guardrail_inspect",
        ];
        TextMistake::in_value(entry, format!("`{name}` is not an event"))
            .hint(hailwire_kdl::suggestion(name, &known))
    })
}

pub(super) fn mode(node: &KdlNode) -> Result<BodyMode, TextMistake> {
    let modes = [BodyMode::Stream, BodyMode::Buffer].map(|mode| (mode.name(), mode));
    one_of(node, &modes)
}

pub(super) fn most(node: &KdlNode, body: &mut BodyRule) -> Result<(), TextMistake> {
    let entry = hailwire_kdl::only(node)?;
    let bytes = entry.value().as_integer();
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    body.max = Some(bytes.ok_or_else(|| {
        let what = format!("`{}` is a number of bytes", node.name().value());
        TextMistake::in_value(entry, what)
    })?);
    Ok(())
}
