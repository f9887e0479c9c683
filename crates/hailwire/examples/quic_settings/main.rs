//! Measures what the settings of `quic { … }` do, to choose their defaults.
//!
//! Two nodes in processes of their own; one asks, the other answers with as many bytes as it is told.
//! Every line of output is one repeat, in JSON; variants are interleaved.
//!
//! ```sh
//! # Time of answers by their size, with the delay that an acknowledgement may have:
//! cargo run --release -p hailwire --example quic_settings -- answers
//! # Bytes a second of one long answer, by congestion control:
//! cargo run --release -p hailwire --example quic_settings -- bulk
//! ```
//!
//! On an emulated network, as root:
//!
//! ```sh
//! hail lab run wan-50ms-loss1 -- quic_settings compare bulk 'congestion "cubic"' 'congestion "bbr"'
//! ```
//!
//! `serve KDL` in one place prints a ticket for `load KDL TICKET WORK` in another. The defaults were chosen by
//! these (`compare WORK KDL…`):
//!
//! | work | measures | for |
//! |---|---|---|
//! | `answers`, `paced`, `echoes` | times by size | `ack-delay`, `ack-every`, `gso`, `mtu-discovery` |
//! | `bulk` | bytes a second, four answers of 1 MB at a time | `congestion`, `ack-every`, `mtu-max`, `cipher` |
//! | `one`, `sixteen` | bytes a second of endless answers | `stream-window`, `window`, `send-window`, `socket-buffer` |
//! | `calls`, `many-calls` | answers of 1 KB a second, 64 and 512 at a time | `streams` |
//! | `peers` | memory of a peer at rest | `streams`, `uni-streams`, `max-paths`, `sessions` |
//! | `rest` | packets of a tunnel at rest | `keep-alive` |
//! | `gone` | how long a peer that vanished at rest is believed in | `idle-timeout` |
//!
//! `seal` measures the ciphers themselves, packet by packet, without a network.

mod rates;
mod rest;
mod seal;
mod times;

use std::{
    error::Error,
    io::{BufRead, Write},
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Duration,
};

use hailwire::{
    Agent, Body, Client, Config, DataDir, Node, Request, Response, Status, admin, admin::method,
};
use serde_json::json;

type Failure = Box<dyn Error + Send + Sync>;

/// Repeats that count.
const REPEATS: usize = 5;

/// Bytes of one chunk of an endless answer.
const CHUNK: usize = 256 * 1024;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match words.as_slice() {
        ["answers"] => compare(
            "answers",
            &[
                "ack-frequency #false",
                "ack-delay \"25ms\"",
                "ack-delay \"5ms\"",
                "ack-delay \"1ms\"",
                "congestion \"bbr\"",
            ],
        ),
        ["bulk"] => compare(
            "bulk",
            &["congestion \"cubic\"", "congestion \"bbr\"", "gso #false"],
        ),
        ["compare", work, variants @ ..] => compare(work, variants),
        ["seal"] => seal::measure(),
        ["serve", kdl] => runtime.block_on(Box::pin(serve(kdl, 1))),
        ["crowd", kdl] => runtime.block_on(Box::pin(serve(kdl, rest::CROWD))),
        ["load", kdl, ticket, work] => runtime.block_on(Box::pin(load(kdl, ticket, work))),
        _ => Err(
            "usage: answers | bulk | seal | compare WORK KDL… | serve KDL | load KDL TICKET WORK"
                .into(),
        ),
    }
}

/// Runs each variant in turn, and all of them again, each time with fresh processes.
fn compare(work: &str, variants: &[&str]) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let repeats = std::env::var("REPEATS").ok();
    let repeats = repeats.and_then(|n| n.parse().ok()).unwrap_or(REPEATS);
    let role = match work {
        "peers" => "crowd",
        _ => "serve",
    };
    for repeat in 0..repeats {
        for variant in variants {
            // A variant is of the settings of `quic`, or it has sections of its own.
            let kdl = match variant.contains('{') {
                true => (*variant).to_owned(),
                false => format!("quic {{ {variant} }}"),
            };
            let mut server = far(&program)
                .args([role, &kdl])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let out = server.stdout.take().ok_or("no output")?;
            let ticket = std::io::BufReader::new(out)
                .lines()
                .next()
                .ok_or("no ticket")??;
            let loaded = Command::new(&program)
                .args(["load", &kdl, &ticket, work])
                .output();
            // Its standard input ends here, and with it the server.
            drop(server.stdin.take());
            server.wait()?;
            let loaded = loaded?;
            if !loaded.status.success() {
                return Err(String::from_utf8_lossy(&loaded.stderr).into_owned().into());
            }
            for line in String::from_utf8(loaded.stdout)?.lines() {
                let mut line: serde_json::Value = serde_json::from_str(line)?;
                line["settings"] = json!(variant);
                line["network"] = json!(std::env::var("LAB_TOPOLOGY").unwrap_or("loopback".into()));
                line["repeat"] = json!(repeat);
                println!("{line}");
            }
        }
    }
    Ok(())
}

/// The far program: in the lab's host `b` where this one runs in a lab.
fn far(program: &std::path::Path) -> Command {
    match std::env::var("LAB_NS_B") {
        Ok(namespace) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={namespace}")).arg(program);
            command
        }
        Err(_) => Command::new(program),
    }
}

async fn start(kdl: &str) -> Result<(Node, tempfile::TempDir), Failure> {
    let folder = tempfile::tempdir()?;
    let mut config = Config::parse(kdl, "settings".as_ref())?;
    if !kdl.contains("listen") {
        let in_lab = std::env::var_os("LAB_NS_B").is_some();
        let address = if in_lab {
            Ipv4Addr::UNSPECIFIED
        } else {
            Ipv4Addr::LOCALHOST
        };
        config.listen.udp = vec![(address, 0).into()];
    }
    let node = Node::builder()
        .data_dir(DataDir::new(folder.path()))
        .config(config)
        .start()
        .await?;
    Ok((node, folder))
}

/// Starts so many nodes and prints a ticket of each.
async fn serve(kdl: &str, nodes: usize) -> Result<(), Failure> {
    let mut all = Vec::new();
    let mut tickets = Vec::new();
    for _ in 0..nodes {
        let (node, folder) = start(kdl).await?;
        let client = node.client();
        let serving = client.serve(Agent::new("bytes")?, answer).await?;
        let invite = admin::InviteRequest {
            uses: 100,
            expires_s: 3600,
            allow: Vec::new(),
            offer: Vec::new(),
        };
        let invited: admin::InviteAnswer = client.admin(method::INVITE, &invite).await?;
        tickets.push(invited.ticket);
        all.push((node, folder, serving));
    }
    println!("{}", tickets.join(","));
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
    for (node, _folder, _serving) in all {
        node.shutdown(Duration::ZERO).await;
    }
    Ok(())
}

/// Answers with as many bytes as the method says, without end, or not again.
async fn answer(request: Request) -> Result<Response, Status> {
    match request.header().method.as_str() {
        "endless" => {
            let (send, body) = Body::channel(4);
            tokio::spawn(async move {
                let chunk = bytes::Bytes::from(vec![7; CHUNK]);
                while send.send(chunk.clone()).await.is_ok() {}
            });
            Ok(Response::new(body))
        }
        "vanish" => {
            std::thread::spawn(|| {
                // The answer and its acknowledgement are on their way.
                std::thread::sleep(Duration::from_millis(300));
                std::process::exit(0);
            });
            Ok(Response::new(""))
        }
        size => Ok(Response::new(vec![7; size.parse().unwrap_or(0)])),
    }
}

async fn load(kdl: &str, tickets: &str, work: &str) -> Result<(), Failure> {
    let (node, _folder) = start(kdl).await?;
    let client = node.client();
    if work == "peers" {
        rest::peers(&client, tickets).await?;
    } else {
        join(&client, tickets, "far").await?;
        match work {
            "answers" | "paced" | "echoes" => times::measure(&client, work).await?,
            "rest" => rest::packets(&client).await?,
            "gone" => rest::gone(&client).await?,
            _ => rates::measure(&client, work).await?,
        }
    }
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

async fn join(client: &Client, ticket: &str, alias: &str) -> Result<(), Failure> {
    let join = admin::JoinRequest {
        ticket: ticket.to_owned(),
        alias: alias.to_owned(),
        ..admin::JoinRequest::default()
    };
    let _: admin::JoinAnswer = client.admin(method::JOIN, &join).await?;
    Ok(())
}

async fn ask(client: &Client, size: usize, with: usize) -> Result<(), Failure> {
    let mut answer = client
        .call("bytes@far")
        .method(size.to_string())
        .body(vec![7; with])
        .send()
        .await?;
    let bytes = answer.bytes(size).await?;
    if bytes.len() == size {
        Ok(())
    } else {
        Err("a short answer".into())
    }
}

async fn counters(client: &Client) -> Result<admin::TunnelStatus, Failure> {
    let status: admin::NodeStatus = client.admin(method::STATUS, &()).await?;
    let mut tunnels = status.tunnels.into_iter();
    Ok(tunnels.find(|tunnel| tunnel.carries).ok_or("no tunnel")?)
}
