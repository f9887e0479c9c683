//! The foreign side of Agent Protocol v2: the published crate as agent, as proxy, and as the source of golden
//! vectors, so that ours is tried against the real thing.
//!
//! What it says are lines of JSON on stdout; the first line of a server is `{"ready":…}`.

mod agent;
mod bench;
mod drive;
mod events;
mod load;
mod operations;
mod vectors;

use std::{os::unix::process::CommandExt as _, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::Value;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every message in both encodings, as the crate's own client and server write them
    Vectors {
        /// Written as files into this directory, instead of lines on stdout
        #[arg(long)]
        into: Option<PathBuf>,
    },
    /// An agent that decides by what the uri says: block, redirect, challenge, mutate, sleep-N
    Serve {
        #[command(flatten)]
        at: At,
        /// The build without MessagePack, as stock proxies and agents have it
        #[arg(long)]
        json_only: bool,
    },
    /// A proxy that sends an event of each kind to an agent and prints the answers
    Drive {
        #[command(flatten)]
        at: At,
        #[arg(long, default_value = "msgpack")]
        encoding: Encoding,
        /// The uri of the request headers
        #[arg(long, default_value = "/")]
        uri: String,
        /// Milliseconds to wait for an answer
        #[arg(long, default_value_t = 5000)]
        timeout_ms: u64,
    },
    /// A proxy that waits for agents which dial it, and then sends each an event of the kinds that a pool sends
    ListenReverse {
        #[arg(long)]
        uds: PathBuf,
        /// The token that is asked for
        #[arg(long)]
        token: Option<String>,
        #[arg(long, default_value = "/")]
        uri: String,
        /// End after so many agents
        #[arg(long, default_value_t = 1)]
        agents: u32,
    },
    /// Requests as fast as answers come, over the crate's client
    Load(load::Load),
    /// The same through the crate's pool
    PoolLoad(load::Load),
    /// The agent, as a subject of `hail bench run callout`
    BenchServe(bench::Serve),
    /// The proxy, as a subject of `hail bench run callout`
    BenchLoad(bench::Load),
    /// Single operations, as a subject of `hail bench run callout`
    BenchOperations,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct At {
    /// A Unix socket
    #[arg(long)]
    uds: Option<PathBuf>,
    /// gRPC: an address to listen on (port 0 for any) or to dial
    #[arg(long)]
    grpc: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    Json,
    Msgpack,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = match &cli.command {
        Command::Serve { json_only, .. } => *json_only,
        Command::Drive { encoding, .. } => *encoding == Encoding::Json,
        Command::Load(load) | Command::PoolLoad(load) => load.encoding == Encoding::Json,
        Command::BenchServe(serve) => serve.wire.is_json(),
        Command::BenchLoad(load) => load.wire.is_json(),
        Command::Vectors { .. } | Command::ListenReverse { .. } | Command::BenchOperations => false,
    };
    let done = match with_json_only(json) {
        Ok(()) => run(cli.command).await,
        Err(failure) => Err(failure),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Vectors { into } => vectors::print(into.as_deref()).await,
        Command::Serve { at, .. } => agent::serve(&at).await,
        Command::Drive {
            at,
            uri,
            timeout_ms,
            ..
        } => drive::drive(&at, &uri, timeout_ms).await,
        Command::ListenReverse {
            uds,
            token,
            uri,
            agents,
        } => drive::listen_reverse(&uds, token, &uri, agents).await,
        Command::Load(load) => load::client(&load).await,
        Command::PoolLoad(load) => load::pool(&load).await,
        Command::BenchServe(serve) => bench::serve(&serve).await,
        Command::BenchLoad(load) => bench::load(&load).await,
        Command::BenchOperations => bench::operations().await,
    }
}

/// Becomes the build without MessagePack where that is asked for and this is the other.
fn with_json_only(json: bool) -> Result<(), Failure> {
    if !json || cfg!(not(feature = "msgpack")) {
        return Ok(());
    }
    let other = std::env::current_exe()?.with_file_name("zentinel-peer-json");
    let failure = std::process::Command::new(&other)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(format!("{}: {failure}", other.display()).into())
}

pub(crate) fn say(line: &Value) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    // A reader that has gone is no failure of ours.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
