//! `hail callout waf` and `hail callout rate-limit`: the agents that come with Hailwire.

use hailwire_agents::{
    BoundListeners, ListenAddress,
    rate_limit::{self, RateLimitAgent, RateLimitSettingsError},
    waf::{self, Waf},
};
use hailwire_callout::Agent;
use hailwire_terminal::{failure::Failure, global::Common, log, stop::Stop};
use hailwire_wire::Code;
use serde_json::json;
use std::sync::Arc;
use tracing::Level;

use crate::{args::ServedAt, plan::Limits};

/// Runs the firewall.
pub(crate) async fn waf(
    common: &Common,
    at: ServedAt,
    settings: waf::WafSettings,
) -> Result<(), Failure> {
    let agent = Waf::new(settings).map_err(|error| {
        Failure::caused(Code::InvalidArgument, &error).hint("check the folder of --rules")
    })?;
    serve(common, at, agent).await
}

/// Runs the rate limiter.
pub(crate) async fn rate_limit(
    common: &Common,
    at: ServedAt,
    limits: Limits,
) -> Result<(), Failure> {
    let settings = match limits {
        Limits::Typed(settings) => settings,
        Limits::File(path, configure) => {
            let read = rate_limit::RateLimitSettings::load(&path);
            let settings = read.map_err(|error| match &error {
                RateLimitSettingsError::File(error) => Failure::file(error),
                _ => Failure::caused(Code::InvalidArgument, &error),
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

async fn serve(common: &Common, at: ServedAt, agent: impl Agent) -> Result<(), Failure> {
    log::start(
        common.log.unwrap_or(Level::INFO),
        common.output.colour_errors,
    );
    let mut stop = Stop::new()?;
    let failed = |error: &dyn std::error::Error| Failure::caused(Code::Unavailable, error);
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
