//! `hail callout serve`: the configured agents for proxies that do not speak the protocol.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use hailwire::{Code, config::LogLevel};
use hailwire_callout::{
    front::{ext_proc, spoe},
    host::reverse::ReverseOptions,
    inspect::{Action, Config, Inspector},
};
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::SignalKind,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{Places, load, metrics};
use crate::{
    commands::{
        Run, log,
        stop::{self, Stop},
    },
    failure::Failure,
};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

pub(in crate::commands) async fn run(run: &Run, path: PathBuf) -> Result<(), Failure> {
    log::start(run.log.unwrap_or(LogLevel::Info), run.output.colour_errors);
    let mut stop = Stop::new()?;
    let mut hang_up = stop::notice(SignalKind::hangup())?;

    let mut seen = stamp(&path);
    let config = load(&path)?;
    let places = Places::new(run);
    let inspector = Inspector::from_config(&config, &|agent, place| places.reach(agent, place))
        .map_err(|error| Failure::caused(Code::FailedPrecondition, &error))?;
    let inspector = Arc::new(inspector);
    let mut tasks = JoinSet::new();
    let listening = listen(&config, &inspector, &places, &mut tasks).await?;
    run.output.value(&listening, |listening| {
        format!("agents are served: {listening}\n")
    })?;

    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked;
        tokio::select! {
            asked = stop.asked() => return asked.end(),
            Some(ended) = tasks.join_next() => {
                let error = match ended {
                    Ok(Err(error)) => error,
                    _ => io::ErrorKind::Other.into(),
                };
                return Err(Failure::io("listening has ended", &error));
            }
            _ = hang_up.recv() => asked = true,
            _ = looks.tick() => asked = false,
        }
        let now = stamp(&path);
        if asked || now != seen {
            seen = now;
            reload(&path, &inspector, &places);
        }
    }
}

/// When a file was last changed, and how long it is.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Reads the file anew; a mistake changes nothing.
fn reload(path: &Path, inspector: &Inspector, places: &Places) {
    let read = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                hint = error.hint(),
                "the configuration stays as it was"
            );
            return;
        }
    };
    match inspector.reload(&read, &|agent, place| places.reach(agent, place)) {
        Ok(()) => tracing::info!(
            agents = read.agents.len(),
            "the configuration was read anew"
        ),
        Err(error) => tracing::warn!(%error, "the configuration stays as it was"),
    }
}

/// Opens everything that the configuration listens on, and says where.
async fn listen(
    config: &Config,
    inspector: &Arc<Inspector>,
    places: &Places,
    tasks: &mut JoinSet<io::Result<()>>,
) -> Result<serde_json::Value, Failure> {
    let listen = &config.listen;
    if let Some(path) = &listen.reverse {
        let options = ReverseOptions {
            shared_tokens: listen
                .tokens
                .iter()
                .map(|token| token.secret().to_owned())
                .collect(),
            anonymous: listen.tokens.is_empty(),
            ..ReverseOptions::default()
        };
        let (arrivals, path) = (places.arrivals.clone(), path.clone());
        tasks.spawn(async move { arrivals.listen(&path, options).await });
    }
    let mut at = json!({ "agents": config.agents.iter().map(|agent| &agent.name).collect::<Vec<_>>(), "metrics": null });
    let unseen = listen.unseen_body.unwrap_or(Action::Block(503));
    let mut addresses = Vec::new();
    for address in &listen.ext_proc {
        let (listener, address) = bind(*address).await?;
        addresses.push(address);
        let front = ext_proc::Front::new(Arc::clone(inspector), unseen);
        tasks.spawn(async move { front.serve_tcp(listener).await.map_err(io::Error::other) });
    }
    at["ext_proc"] = json!(addresses);
    addresses.clear();
    let front = Arc::clone(inspector);
    let front = Arc::new(spoe::Front::new(front, unseen, spoe::Limits::default()));
    for address in &listen.spoe {
        let (listener, address) = bind(*address).await?;
        addresses.push(address);
        tasks.spawn(Arc::clone(&front).serve(listener));
    }
    at["spoe"] = json!(addresses);
    if let Some(address) = listen.metrics {
        let (listener, address) = bind(address).await?;
        at["metrics"] = json!(address);
        tasks.spawn(metrics::serve(listener, Arc::clone(inspector)));
    }
    at["reverse"] = json!(listen.reverse);
    Ok(at)
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        io::Result::Ok((listener, address))
    };
    bound.await.map_err(|error| {
        Failure::caused(Code::Unavailable, &error)
            .hint(format!("another program may listen on {address}"))
    })
}
