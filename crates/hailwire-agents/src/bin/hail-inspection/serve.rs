//! `hail callout waf` and `hail callout rate-limit`: the agents that come with Hailwire.

use hailwire_agents::{
    BoundListeners, ListenAddress,
    rate_limit::{self, RateLimitAgent, RateLimitSettingsError},
    waf::{self, Waf},
};
use hailwire_callout::Agent;
use hailwire_terminal::{failure::CommandFailure, global::CommonOptions, log, stop::StopSignals};
use hailwire_wire::Code;
use serde_json::json;
use std::sync::Arc;
use tracing::Level;

use crate::{args::ServedAt, plan::Limits};

/// Runs the firewall.
pub(crate) async fn waf(
    common: &CommonOptions,
    at: ServedAt,
    settings: waf::WafSettings,
) -> Result<(), CommandFailure> {
    let agent = Waf::new(settings).map_err(|error| {
        CommandFailure::caused(Code::InvalidArgument, &error).hint("check the folder of --rules")
    })?;
    serve(common, at, agent).await
}

/// Runs the rate limiter.
pub(crate) async fn rate_limit(
    common: &CommonOptions,
    at: ServedAt,
    limits: Limits,
) -> Result<(), CommandFailure> {
    let settings = match limits {
        Limits::Typed(settings) => settings,
        Limits::File(path, configure) => {
            let read = rate_limit::RateLimitSettings::load(&path);
            let settings = read.map_err(|error| match &error {
                RateLimitSettingsError::File(error) => CommandFailure::file(error),
                _ => CommandFailure::caused(Code::InvalidArgument, &error),
            })?;
            let configure = configure.or(settings.configure);
            rate_limit::RateLimitSettings {
                configure,
                ..settings
            }
        }
    };
    serve(common, at, RateLimitAgent::new(settings)).await
}

async fn serve(
    common: &CommonOptions,
    at: ServedAt,
    agent: impl Agent,
) -> Result<(), CommandFailure> {
    log::start(common.log.unwrap_or(Level::INFO), common.output.log_style());
    let mut stop = StopSignals::new()?;
    let failed = |error: &dyn std::error::Error| CommandFailure::caused(Code::Unavailable, error);
    let listeners = BoundListeners::bind(at.listen)
        .await
        .map_err(|error| failed(&error))?;
    let listening: Vec<String> = listeners
        .addresses()
        .map(|at: ListenAddress| at.to_string())
        .collect();
    let value = json!({ "agent": agent.name(), "listen": listening });
    common.output.value(&value, |_| {
        format!("{} listens: {}\n", agent.name(), listening.join(", "))
    })?;
    let stopped = async {
        stop.asked().await;
    };
    let served = listeners.run(Arc::new(agent), at.token, stopped).await;
    served.map_err(|error| failed(&error))
}
