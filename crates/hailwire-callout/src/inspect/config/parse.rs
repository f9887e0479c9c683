//! From the text of a file to a [`Config`], or to the first mistake and its position.

mod endpoint;
mod json;
mod rule;

use std::{str::FromStr, time::Duration};

use hailwire_kdl::{
    KdlEntry, KdlNode, SeenNames, TextMistake, argument, document, number, property, section,
    several, single, text, unknown,
};
use hailwire_pool::Strategy;

#[cfg(test)]
use self::endpoint::GRPC;
use self::{
    endpoint::endpoint,
    json::json,
    rule::{action, events, mode, most, on, phase},
};
use super::{AgentConfig, AgentEndpoint, BreakerSettings, Config, ListenConfig, PoolSettings};
use crate::{
    EventKind,
    capabilities::EventKinds,
    host::dialect::Dialect,
    inspect::{AgentRule, FallbackAction},
};

/// Most of a body that may be held back: it is shown in one chunk then.
const MAX_BUFFER: u32 = 8 << 20;

/// Longest time that can be set, in milliseconds.
const MAX_MS: u32 = 600_000;

pub(super) fn config(text: &str) -> Result<Config, TextMistake> {
    let mut config = Config::default();
    let mut seen = SeenNames::default();
    for node in document(text)?.nodes() {
        seen.once(node)?;
        match node.name().value() {
            "agents" => agents(node, &mut config.agents)?,
            "listen" => listen(node, &mut config.listen)?,
            _ => return Err(unknown(node, "", &["agents", "listen"])),
        }
    }
    needs_listener(&document(text)?, &config)?;
    Ok(config)
}

/// An agent that connects needs an endpoint to connect to.
fn needs_listener(
    document: &hailwire_kdl::KdlDocument,
    config: &Config,
) -> Result<(), TextMistake> {
    let waits = |endpoint: &AgentEndpoint| matches!(endpoint, AgentEndpoint::Reverse(_));
    let lost = config
        .agents
        .iter()
        .find(|agent| agent.endpoints.iter().any(waits));
    let (Some(agent), None) = (lost, &config.listen.reverse) else {
        return Ok(());
    };
    let nodes = document.nodes().iter().flat_map(KdlNode::iter_children);
    let at = nodes
        .flat_map(KdlNode::iter_children)
        .find(|node| node.name().value() == "reverse")
        .map_or(0, |node| node.name().span().offset());
    let what = format!(
        "`{}` uses `reverse`, but `listen.reverse` is not set",
        agent.name
    );
    Err(TextMistake::at(at, what).hint("write: listen { reverse \"/run/hail/agents.sock\" }"))
}

fn agents(node: &KdlNode, agents: &mut Vec<AgentConfig>) -> Result<(), TextMistake> {
    if let Some(entry) = node.entries().first() {
        let hint = "write: agents { agent \"waf\" { … } }";
        return Err(TextMistake::in_value(entry, "`agents` takes its agents in braces").hint(hint));
    }
    for inner in node.iter_children() {
        if inner.name().value() != "agent" {
            return Err(unknown(inner, "agents", &["agent"]));
        }
        let agent = agent(inner)?;
        if agents.iter().any(|known| known.name == agent.name) {
            let what = format!("two agents are called `{}`", agent.name);
            return Err(TextMistake::of(inner, what));
        }
        if agents.len() == Config::MAX_AGENTS {
            let what = format!("more than {} agents", Config::MAX_AGENTS);
            return Err(TextMistake::of(inner, what));
        }
        agents.push(agent);
    }
    Ok(())
}

/// What an agent's braces may say; the first five may be repeated.
const AGENT: [&str; 26] = [
    "unix-socket",
    "binary-uds",
    "grpc",
    "reverse",
    "hail",
    "phase",
    "events",
    "mode",
    "timeout-ms",
    "failure-mode",
    "on-timeout",
    "on-error",
    "on-overload",
    "on-body-too-large",
    "buffer-size",
    "request-body-mode",
    "response-body-mode",
    "max-request-body-bytes",
    "max-response-body-bytes",
    "chunk-timeout-ms",
    "connect-timeout-ms",
    "max-concurrent-calls",
    "dialect",
    "pool",
    "circuit-breaker",
    "config",
];

const REPEATED: usize = 6;

/// What a pool's braces may say.
const POOL: [&str; 6] = [
    "preset",
    "strategy",
    "connections",
    "max-in-flight",
    "max-timeout-multiplier",
    "drain-timeout-ms",
];

/// What a breaker's braces may say.
const BREAKER: [&str; 4] = [
    "failure-threshold",
    "success-threshold",
    "timeout-seconds",
    "half-open-max-requests",
];

/// What the listeners' braces may say.
const LISTEN: [&str; 6] = [
    "ext-proc",
    "spoe",
    "reverse",
    "token",
    "on-unseen-body",
    "metrics",
];

/// Every name that can be set, with its section.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of =
        |section, names: &'static [&'static str]| names.iter().map(move |name| (section, *name));
    of("agent", &AGENT)
        .chain(of("grpc", &GRPC))
        .chain(of("pool", &POOL))
        .chain(of("circuit-breaker", &BREAKER))
        .chain(of("listen", &LISTEN))
}

fn agent(node: &KdlNode) -> Result<AgentConfig, TextMistake> {
    let mut agent = AgentConfig {
        name: name(node, argument(node, &["type"])?)?,
        kind: match property(node, "type") {
            Some(kind) => Some(text(node, kind)?.to_owned()),
            None => None,
        },
        endpoints: Vec::new(),
        rule: AgentRule::default(),
        dialect: None,
        connect_timeout: Duration::from_secs(5),
        pool: PoolSettings::default(),
        breaker: BreakerSettings::default(),
        config: None,
    };
    let mut seen = SeenNames::default();
    for inner in node.iter_children() {
        let known = AGENT.iter().position(|name| *name == inner.name().value());
        match known {
            None => return Err(unknown(inner, "agent", &AGENT)),
            Some(0..REPEATED) => {}
            Some(_) => seen.once(inner)?,
        }
    }
    // What holds for all phases, then what holds for one.
    let rank = |node: &KdlNode| match node.name().value() {
        "failure-mode" | "timeout-ms" => 0,
        "phase" => 2,
        _ => 1,
    };
    let mut inner: Vec<&KdlNode> = node.iter_children().collect();
    inner.sort_by_key(|node| rank(node));
    let mut phases = EventKinds::default();
    for inner in inner {
        setting(inner, &mut agent, &mut phases)?;
    }
    if agent.endpoints.is_empty() {
        let what = format!("agent `{}` has no endpoint", agent.name);
        let hint = "write for example: binary-uds \"/run/hail/waf.sock\"";
        return Err(TextMistake::of(node, what).hint(hint));
    }
    Ok(agent)
}

fn setting(
    node: &KdlNode,
    agent: &mut AgentConfig,
    phases: &mut EventKinds,
) -> Result<(), TextMistake> {
    let rule = &mut agent.rule;
    match node.name().value() {
        "unix-socket" | "binary-uds" | "grpc" | "reverse" | "hail" => {
            if agent.endpoints.len() == Config::MAX_ENDPOINTS {
                let what = format!("more than {} endpoints", Config::MAX_ENDPOINTS);
                return Err(TextMistake::of(node, what));
            }
            agent.endpoints.push(endpoint(node, &agent.name)?);
        }
        "events" => rule.events = Some(events(node)?),
        "mode" => rule.observe = one_of(node, &[("enforce", false), ("observe", true)])?,
        "timeout-ms" => {
            let timeout = time(node)?;
            for phase in &mut rule.phases {
                phase.timeout = timeout;
            }
        }
        "chunk-timeout-ms" => {
            let timeout = time(node)?;
            for kind in [EventKind::RequestBody, EventKind::ResponseBody] {
                if let Some(phase) = rule.phase_mut(kind) {
                    phase.timeout = timeout;
                }
            }
        }
        "failure-mode" => {
            if one_of(node, &[("open", true), ("closed", false)])? {
                for phase in &mut rule.phases {
                    phase.on = [FallbackAction::Allow; 4];
                }
            }
        }
        "phase" => phase(node, rule, phases)?,
        "buffer-size" => rule.buffer_size = number(node, 1..=MAX_BUFFER)? as usize,
        "request-body-mode" => rule.request_body.mode = mode(node)?,
        "response-body-mode" => rule.response_body.mode = mode(node)?,
        "max-request-body-bytes" => most(node, &mut rule.request_body)?,
        "max-response-body-bytes" => most(node, &mut rule.response_body)?,
        "connect-timeout-ms" => agent.connect_timeout = time(node)?,
        "max-concurrent-calls" => agent.pool.max_in_flight = Some(number(node, 1..=65536)?),
        "dialect" => {
            let known = Dialect::ALL.map(|dialect| (dialect.name(), Some(dialect)));
            let [ours, documented, v1] = known;
            agent.dialect = one_of(node, &[("auto", None), ours, documented, v1])?;
        }
        "pool" => pool(node, &mut agent.pool)?,
        "circuit-breaker" => breaker(node, &mut agent.breaker)?,
        "config" => {
            plain(node)?;
            agent.config = Some(json(node));
        }
        _ => {
            for phase in &mut rule.phases {
                on(node, phase)?;
            }
        }
    }
    Ok(())
}

/// The strategies by the names that operators write.
const STRATEGIES: [(&str, Strategy); 5] = [
    ("round_robin", Strategy::RoundRobin),
    ("least_connections", Strategy::LeastLoaded),
    ("health_weighted", Strategy::HealthWeighted),
    ("random", Strategy::Random),
    ("two_choices", Strategy::TwoChoices),
];

fn pool(node: &KdlNode, pool: &mut PoolSettings) -> Result<(), TextMistake> {
    section(node, "pool", &POOL, |inner| {
        match inner.name().value() {
            "preset" => pool.preset = single(inner)?,
            "strategy" => pool.strategy = Some(one_of(inner, &STRATEGIES)?),
            "connections" => pool.connections = Some(number(inner, 1..=64)?),
            "max-in-flight" => pool.max_in_flight = Some(number(inner, 1..=65536)?),
            "max-timeout-multiplier" => pool.stretch = u8::try_from(number(inner, 1..=10)?).ok(),
            _ => pool.drain_timeout = Some(time(inner)?),
        }
        Ok(())
    })
}

fn breaker(node: &KdlNode, breaker: &mut BreakerSettings) -> Result<(), TextMistake> {
    let count = |node: &KdlNode, most: u8| -> Result<Option<u8>, TextMistake> {
        Ok(u8::try_from(number(node, 1..=most.into())?).ok())
    };
    section(node, "circuit-breaker", &BREAKER, |inner| {
        match inner.name().value() {
            "failure-threshold" => breaker.failures = count(inner, u8::MAX)?,
            "success-threshold" => breaker.successes = count(inner, u8::MAX)?,
            "timeout-seconds" => {
                let seconds = number(inner, 1..=3600)?;
                breaker.open_for = Some(Duration::from_secs(seconds.into()));
            }
            _ => breaker.trials = count(inner, 63)?,
        }
        Ok(())
    })
}

fn listen(node: &KdlNode, listen: &mut ListenConfig) -> Result<(), TextMistake> {
    section(node, "listen", &LISTEN, |inner| {
        match inner.name().value() {
            "ext-proc" => listen.ext_proc = several(inner, Config::MAX_LISTEN)?,
            "spoe" => listen.spoe = several(inner, Config::MAX_LISTEN)?,
            "reverse" => listen.reverse = Some(single(inner)?),
            "on-unseen-body" => listen.unseen_body = Some(action(inner, 503)?),
            "token" => listen.tokens = several(inner, Config::MAX_LISTEN)?,
            _ => listen.metrics = Some(single(inner)?),
        }
        Ok(())
    })
}

/// A name of an agent.
fn name(node: &KdlNode, entry: &KdlEntry) -> Result<String, TextMistake> {
    let name = text(node, entry)?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    match (1..=64).contains(&name.len()) && name.bytes().all(fits) {
        true => Ok(name.to_owned()),
        false => {
            let what = "invalid agent name; use 1 to 64 letters, digits and -_.";
            Err(TextMistake::in_value(entry, what))
        }
    }
}

fn one_of<T: Copy>(node: &KdlNode, known: &[(&str, T)]) -> Result<T, TextMistake> {
    let word: SettingWord = single(node)?;
    let found = known.iter().find(|(name, _)| *name == word.0);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let what = format!("`{}` is {}", node.name().value(), names.join(" or "));
        TextMistake::of(node, what).hint(hailwire_kdl::suggestion(&word.0, &names))
    })
}

struct SettingWord(String);

impl FromStr for SettingWord {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

fn time(node: &KdlNode) -> Result<Duration, TextMistake> {
    let ms = number(node, 1..=MAX_MS)?;
    Ok(Duration::from_millis(ms.into()))
}

fn plain(node: &KdlNode) -> Result<(), TextMistake> {
    match node.entries().first() {
        None => Ok(()),
        Some(entry) => {
            let what = format!("`{}` takes its settings in braces", node.name().value());
            Err(TextMistake::in_value(entry, what))
        }
    }
}
