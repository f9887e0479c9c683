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
    failure::Failure,
    log,
    stop::{self, Stop},
};
use serde_json::json;
use tokio::{
    signal::unix::SignalKind,
    time::{MissedTickBehavior, interval},
};
use tracing::Level;

use super::{
    Places,
    listening::{Listening, Unopened},
    load,
};
use crate::commands::Run;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

pub(in crate::commands) async fn run(run: &Run, path: PathBuf) -> Result<(), Failure> {
    log::start(run.log.unwrap_or(Level::INFO), run.output.colour_errors);
    let mut stop = Stop::new()?;
    let mut hang_up = stop::notice(SignalKind::hangup())?;

    let mut seen = stamp(&path);
    let config = load(&path)?;
    let places = Places::new(run);
    let inspector = Inspector::from_config(&config, &|agent, place| places.reach(agent, place))
        .map_err(|error| Failure::caused(Code::FailedPrecondition, &error))?;
    let inspector = Arc::new(inspector);
    let mut listening = Listening::new(Arc::clone(&inspector), places.arrivals.clone());
    let plan = listening.plan(&config.listen).await?;
    listening.change(plan);
    say(run, &config, &listening)?;

    let mut last = seen;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked;
        tokio::select! {
            asked = stop.asked() => return asked.end(),
            failed = listening.failed() => return Err(failed),
            _ = hang_up.recv() => asked = true,
            _ = looks.tick() => asked = false,
        }
        let now = stamp(&path);
        // A file that is being written is left until it stays as it is.
        let settled = now == last;
        last = now;
        if asked || (settled && now != seen) {
            seen = now;
            if let Some(config) = reload(&path, &inspector, &places, &mut listening).await {
                say(run, &config, &listening)?;
            }
        }
    }
}

/// Where everything is.
fn say(run: &Run, config: &Config, listening: &Listening) -> Result<(), Failure> {
    let mut at = listening.at();
    let agents = config.agents.iter().map(|agent| &agent.name);
    at["agents"] = json!(agents.collect::<Vec<_>>());
    run.output
        .value(&at, |at| format!("agents are served: {at}\n"))
}

/// When a file was last changed, and how long it is.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Reads the file anew; a mistake changes nothing. Gives what it says where something else is listened on now.
async fn reload(
    path: &Path,
    inspector: &Inspector,
    places: &Places,
    listening: &mut Listening,
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
            stays(&error, Some(Unopened::HINT));
            return None;
        }
    };
    if let Err(error) = inspector.reload(&read, &|agent, place| places.reach(agent, place)) {
        stays(&error, None);
        return None;
    }
    let changed = listening.change(plan);
    tracing::info!(
        agents = read.agents.len(),
        "the configuration was read anew"
    );
    changed.then_some(read)
}

fn stays(error: &(dyn std::error::Error + 'static), hint: Option<&str>) {
    tracing::warn!(error, hint, "the configuration stays as it was");
}
