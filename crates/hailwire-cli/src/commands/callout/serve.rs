//! `hail callout serve`: the configured agents for proxies that do not speak the protocol.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use hailwire::Code;
use hailwire_callout::inspect::{Config, Inspector};
use hailwire_terminal::{
    failure::CommandFailure,
    log,
    stop::{self, StopSignals},
};
use serde_json::{Value, json};
use tokio::{
    signal::unix::SignalKind,
    time::{MissedTickBehavior, interval},
};
use tracing::Level;

use super::{
    EndpointConnectors,
    listeners::{CalloutListeners, ListenError},
    load,
};
use crate::commands::CommandContext;

/// How often the file is checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

pub(in crate::commands) async fn run(
    run: &CommandContext,
    path: PathBuf,
) -> Result<(), CommandFailure> {
    log::start(run.log.unwrap_or(Level::INFO), run.output.log_style());
    let mut stop = StopSignals::new()?;
    let mut hang_up = stop::notice(SignalKind::hangup())?;

    let mut seen = stamp(&path);
    let config = load(&path)?;
    let connectors = EndpointConnectors::new(run);
    let inspector = Inspector::from_config(&config, &|agent, place| connectors.reach(agent, place))
        .map_err(|error| CommandFailure::caused(Code::FailedPrecondition, &error))?;
    let inspector = Arc::new(inspector);
    let mut listening = CalloutListeners::new(Arc::clone(&inspector), connectors.arrivals.clone());
    let plan = listening.plan(&config.listen).await?;
    listening.change(plan);
    say(run, &config, &listening)?;

    let mut last = seen;
    let mut looks = interval(RELOAD_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked;
        tokio::select! {
            _ = stop.asked() => return Ok(()),
            failed = listening.failed() => return Err(failed),
            _ = hang_up.recv() => asked = true,
            _ = looks.tick() => asked = false,
        }
        let now = stamp(&path);
        // A file that is being written is not read until it stops changing.
        let settled = now == last;
        last = now;
        if asked || (settled && now != seen) {
            seen = now;
            if let Some(config) = reload(&path, &inspector, &connectors, &mut listening).await {
                say(run, &config, &listening)?;
            }
        }
    }
}

/// The addresses of all listeners.
fn say(
    run: &CommandContext,
    config: &Config,
    listening: &CalloutListeners,
) -> Result<(), CommandFailure> {
    let mut at = listening.at();
    let agents = config.agents.iter().map(|agent| &agent.name);
    at["agents"] = json!(agents.collect::<Vec<_>>());
    run.output.value(&at, told)
}

/// The agents, and a line for each address.
fn told(at: &Value) -> String {
    let texts = |of: &Value| -> Vec<String> {
        let of = of
            .as_array()
            .map_or(std::slice::from_ref(of), Vec::as_slice);
        of.iter()
            .filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    };
    let mut out = format!("serving agents: {}\n", texts(&at["agents"]).join(", "));
    for (key, name) in [
        ("ext_proc", "ext-proc"),
        ("spoe", "spoe"),
        ("reverse", "reverse"),
        ("metrics", "metrics"),
    ] {
        for address in texts(&at[key]) {
            out += &format!("  {name:<9} {address}\n");
        }
    }
    out
}

/// The modification time and the length of a file.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Reloads the file; a mistake changes nothing. Returns the addresses if the listeners have changed.
async fn reload(
    path: &Path,
    inspector: &Inspector,
    connectors: &EndpointConnectors,
    listening: &mut CalloutListeners,
) -> Option<Config> {
    let read = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            stays(&error, Some(error.hint()));
            return None;
        }
    };
    let plan = match listening.plan(&read.listen).await {
        Ok(plan) => plan,
        Err(error) => {
            stays(&error, Some(ListenError::HINT));
            return None;
        }
    };
    if let Err(error) = inspector.reload(&read, &|agent, place| connectors.reach(agent, place)) {
        stays(&error, None);
        return None;
    }
    let changed = listening.change(plan);
    tracing::info!(agents = read.agents.len(), "the configuration was reloaded");
    changed.then_some(read)
}

fn stays(error: &(dyn std::error::Error + 'static), hint: Option<&str>) {
    tracing::warn!(error, hint, "the configuration was not changed");
}
