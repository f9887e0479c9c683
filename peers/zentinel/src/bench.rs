//! A subject of `hail bench run callout`: work in, figures out, a line of JSON each
//! (`docs/reference/bench-subjects.md`).

use std::{
    collections::BTreeMap,
    io::BufRead as _,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::json;

use crate::{
    At, Failure, agent,
    load::{self, Client},
    operations, say,
};

/// How events travel.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    Json,
    Msgpack,
    Grpc,
}

impl Wire {
    pub(crate) fn is_json(self) -> bool {
        self == Self::Json
    }
}

#[derive(Args)]
pub(crate) struct Serve {
    #[arg(long, default_value = "msgpack")]
    pub(crate) wire: Wire,
}

#[derive(Args)]
pub(crate) struct Load {
    #[arg(long, default_value = "msgpack")]
    pub(crate) wire: Wire,
    /// What the serving side said
    address: String,
}

/// Serves until standard input ends.
pub(crate) async fn serve(serve: &Serve) -> Result<(), Failure> {
    let folder = PathBuf::from(format!("/tmp/zentinel-peer-{}", std::process::id()));
    let at = if serve.wire == Wire::Grpc {
        At {
            uds: None,
            grpc: Some("127.0.0.1:0".to_owned()),
        }
    } else {
        std::fs::create_dir_all(&folder)?;
        At {
            uds: Some(folder.join("agent.sock")),
            grpc: None,
        }
    };
    let ended = tokio::task::spawn_blocking(|| {
        std::io::stdin().lock().lines().for_each(drop);
    });
    let done = tokio::select! {
        done = agent::serve_as(&at, |address| json!({"ready": {"address": address}})) => done,
        _ = ended => Ok(()),
    };
    let _ = std::fs::remove_dir_all(folder);
    done
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Work {
    Rate {
        in_flight: usize,
        seconds: f64,
        bytes: usize,
        connections: usize,
    },
    Operation {
        name: String,
        threads: usize,
        seconds: f64,
    },
}

/// Does the work of each line.
pub(crate) async fn load(load: &Load) -> Result<(), Failure> {
    let at = if load.wire == Wire::Grpc {
        At {
            uds: None,
            grpc: Some(load.address.clone()),
        }
    } else {
        At {
            uds: Some(Path::new(&load.address).to_owned()),
            grpc: None,
        }
    };
    let mut clients: BTreeMap<usize, Vec<std::sync::Arc<Client>>> = BTreeMap::new();
    say(&json!({"ready": {}}));
    for line in std::io::stdin().lines() {
        let work: Work = serde_json::from_str(&line?)?;
        let Work::Rate {
            in_flight,
            seconds,
            bytes,
            connections,
        } = work
        else {
            say(&json!({"failed": "this subject does no operations"}));
            continue;
        };
        if !clients.contains_key(&connections) {
            // Several connections are what its pool is for.
            let made = if connections > 1 {
                load::pooled(&at, connections).await?
            } else {
                load::clients(&at, connections).await?
            };
            clients.insert(connections, made);
        }
        let clients = &clients[&connections];
        let measured = load::measure(clients, in_flight, seconds, (bytes, 64 << 10)).await?;
        let per_second = measured.per_second();
        let moved = per_second * bytes as f64;
        if measured.failed > 0 {
            let reason = format!("{} requests were not answered", measured.failed);
            say(&json!({"failed": reason}));
            continue;
        }
        let mut figures = json!({
            "count": measured.took.len(),
            "seconds": measured.seconds,
            "messages_per_s": per_second,
            "megabits_per_s": moved * 8.0 / 1e6,
            "p50_us": measured.at(0.5),
            "p99_us": measured.at(0.99),
        });
        if bytes > 0 {
            figures["gibibytes_per_s"] = json!(moved / f64::from(1 << 30));
        }
        say(&json!({ "figures": figures }));
    }
    Ok(())
}

/// Does the operation of each line.
pub(crate) async fn operations() -> Result<(), Failure> {
    say(&json!({"ready": {}}));
    for line in std::io::stdin().lines() {
        let work: Work = serde_json::from_str(&line?)?;
        let Work::Operation {
            name,
            threads,
            seconds,
        } = work
        else {
            say(&json!({"failed": "this subject does operations only"}));
            continue;
        };
        if let Some(size) = operations::size(&name).await {
            say(&json!({ "figures": size? }));
            continue;
        }
        match operations::run(&name, threads, seconds) {
            Some(figures) => say(&json!({ "figures": figures })),
            None => say(&json!({"failed": format!("the crate has no public `{name}`")})),
        }
    }
    Ok(())
}
