//! `hail callout waf` and `hail callout rate-limit`: the agents that come with the house.

use hailwire::{Code, config::LogLevel};
use hailwire_agents::{
    Listen, Places,
    rate_limit::{self, RateLimit, SettingsError},
    waf::{self, Waf},
};
use hailwire_callout::Agent;
use serde_json::json;
use std::sync::Arc;

use crate::{
    args::callout::ServedAt,
    commands::{Run, log, stop::Stop},
    failure::Failure,
    plan::Limits,
};

/// Runs the firewall.
pub(in crate::commands) async fn waf(
    run: &Run,
    at: ServedAt,
    settings: waf::Settings,
) -> Result<(), Failure> {
    let agent = Waf::new(settings).map_err(|error| {
        Failure::caused(Code::InvalidArgument, &error).hint("check the folder of --rules")
    })?;
    serve(run, at, agent).await
}

/// Runs the rate limiter.
pub(in crate::commands) async fn rate_limit(
    run: &Run,
    at: ServedAt,
    limits: Limits,
) -> Result<(), Failure> {
    let settings = match limits {
        Limits::Typed(settings) => settings,
        Limits::File(path, configure) => {
            let read = rate_limit::Settings::load(&path);
            let settings = read.map_err(|error| match &error {
                SettingsError::File(error) => Failure::file(error),
                _ => Failure::caused(Code::InvalidArgument, &error),
            })?;
            let configure = configure.or(settings.configure);
            rate_limit::Settings {
                configure,
                ..settings
            }
        }
    };
    serve(run, at, RateLimit::new(settings)).await
}

async fn serve(run: &Run, at: ServedAt, agent: impl Agent) -> Result<(), Failure> {
    log::start(run.log.unwrap_or(LogLevel::Info), run.output.colour_errors);
    let mut stop = Stop::new()?;
    let failed = |error: &dyn std::error::Error| Failure::caused(Code::Unavailable, error);
    let places = Places::take(at.listen)
        .await
        .map_err(|error| failed(&error))?;
    let listening: Vec<String> = places.at().map(|at: Listen| at.to_string()).collect();
    let value = json!({ "agent": agent.name(), "listen": listening });
    run.output.value(&value, |_| {
        format!("{} listens: {}\n", agent.name(), listening.join(", "))
    })?;
    let stopped = async {
        stop.asked().await;
    };
    let served = places.run(Arc::new(agent), at.token, stopped).await;
    served.map_err(|error| failed(&error))
}
