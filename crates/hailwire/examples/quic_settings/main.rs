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
//! `serve KDL` in one place prints a ticket for `load KDL TICKET WORK` in another; `WORK` is `answers`,
//! `paced`, `echoes` or `bulk`.

use std::{
    error::Error,
    io::{BufRead, Write},
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use hailwire::{
    Agent, Client, Config, DataDir, Node, Request, Response, Status, admin, admin::method,
};
use serde_json::json;

type Failure = Box<dyn Error + Send + Sync>;

/// Bytes of an answer in the first measurement.
const SIZES: [usize; 5] = [1_000, 64_000, 128_000, 256_000, 1_000_000];

/// Answers of each size in one repeat.
const ANSWERS: usize = 300;

/// Pause before each question of the paced measurement.
const PACE: Duration = Duration::from_millis(5);

/// How long the second measurement takes in one repeat.
const BULK: Duration = Duration::from_secs(5);

/// Repeats that count.
const REPEATS: usize = 5;

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
        ["serve", kdl] => runtime.block_on(Box::pin(serve(kdl))),
        ["load", kdl, ticket, work] => runtime.block_on(Box::pin(load(kdl, ticket, work))),
        _ => Err(
            "usage: answers | bulk | compare WORK KDL… | serve KDL | load KDL TICKET WORK".into(),
        ),
    }
}

/// Runs each variant in turn, and all of them again, each time with fresh processes.
fn compare(work: &str, variants: &[&str]) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    for repeat in 0..REPEATS {
        for variant in variants {
            let kdl = format!("quic {{ {variant} }}");
            let mut server = far(&program)
                .args(["serve", &kdl])
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

async fn serve(kdl: &str) -> Result<(), Failure> {
    let (node, _folder) = start(kdl).await?;
    let client = node.client();
    let _serving = client.serve(Agent::new("bytes")?, answer).await?;
    let invite = admin::Invite {
        uses: 100,
        expires_s: 3600,
        allow: Vec::new(),
    };
    let invited: admin::Invited = client.admin(method::INVITE, &invite).await?;
    println!("{}", invited.ticket);
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Answers with as many bytes as the method says.
async fn answer(request: Request) -> Result<Response, Status> {
    let size = request.header().method.parse().unwrap_or(0);
    Ok(Response::new(vec![7; size]))
}

async fn load(kdl: &str, ticket: &str, work: &str) -> Result<(), Failure> {
    let (node, _folder) = start(kdl).await?;
    let client = node.client();
    let join = admin::Join {
        ticket: ticket.to_owned(),
        alias: "far".to_owned(),
    };
    let _: admin::Joined = client.admin(method::JOIN, &join).await?;
    match work {
        "answers" => {
            for size in SIZES {
                answers(&client, size, 0, Duration::ZERO).await?;
            }
        }
        "paced" => {
            for size in SIZES {
                answers(&client, size, 0, PACE).await?;
            }
        }
        "echoes" => {
            for size in SIZES {
                answers(&client, size, size, Duration::ZERO).await?;
            }
        }
        _ => bulk(&client).await?,
    }
    node.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Asks again and again, one at a time, with so many bytes and a pause before each.
async fn answers(
    client: &Client,
    size: usize,
    asked_with: usize,
    pause: Duration,
) -> Result<(), Failure> {
    ask(client, size, asked_with).await?;
    let before = counters(client).await?;
    let mut times = Vec::new();
    for _ in 0..ANSWERS {
        tokio::time::sleep(pause).await;
        let start = Instant::now();
        ask(client, size, asked_with).await?;
        times.push(start.elapsed());
    }
    let after = counters(client).await?;
    times.sort();
    let at = |share: f64| {
        let index = (share * (times.len() - 1) as f64).round() as usize;
        times.get(index).map(|time| time.as_micros())
    };
    let line = json!({
        "work": "answers",
        "pause_us": pause.as_micros(),
        "asked_with": asked_with,
        "bytes": size,
        "answers": times.len(),
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "max_us": at(1.0),
        "slower_than_20_ms": times.iter().filter(|time| time.as_millis() >= 20).count(),
        "sent_packets": after.sent_packets - before.sent_packets,
        "lost_packets": after.lost_packets - before.lost_packets,
        "received_bytes": after.received_bytes - before.received_bytes,
    });
    println!("{line}");
    Ok(())
}

/// Four questions at a time, each for so much.
async fn bulk(client: &Client) -> Result<(), Failure> {
    const SIZE: usize = 1_000_000;
    ask(client, SIZE, 0).await?;
    let start = Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        asking.spawn(async move {
            let mut bytes = 0;
            while start.elapsed() < BULK {
                ask(&client, SIZE, 0).await?;
                bytes += SIZE;
            }
            Ok::<usize, Failure>(bytes)
        });
    }
    let mut bytes = 0;
    while let Some(asked) = asking.join_next().await {
        bytes += asked??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let tunnel = counters(client).await?;
    println!(
        "{}",
        json!({
            "work": "bulk",
            "bytes_per_second": (bytes as f64 / seconds).round(),
            "rtt_us": tunnel.path.rtt_us,
        })
    );
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

async fn counters(client: &Client) -> Result<admin::Tunnel, Failure> {
    let status: admin::Status = client.admin(method::STATUS, &()).await?;
    Ok(status.tunnels.into_iter().next().ok_or("no tunnel")?)
}
