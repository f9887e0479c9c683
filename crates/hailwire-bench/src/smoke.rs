//! The smoke suite: raw iroh, an embedded node, and process to process, side by side.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    BenchError,
    load::{Measured, Work},
    part::{Part, Ready},
    report::{Line, Memory, Results},
};

/// How much to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Program and arguments that play a [`Part`], given as one more argument in JSON.
    pub part_command: Vec<String>,
    /// Where the results go.
    pub out: PathBuf,
    /// Counted repeats, after one warm-up. Default 5.
    pub repeats: u32,
    /// Share of the full amount of work, for tests: 1.0 is the whole, about 40 s.
    pub scale: f64,
    /// Numbers of connected peers at which a node's memory is read.
    pub peers: Vec<u32>,
}

/// Runs the suite and returns its summary. `progress` is told what is being done, with how much of
/// the whole (0 to 1) is behind.
///
/// # Errors
///
/// [`BenchError`]; what was measured until then is kept.
pub async fn run(
    plan: &Plan,
    mut progress: impl FnMut(&str, f64) + Send,
) -> Result<String, BenchError> {
    let mut results = Results::create(&plan.out)?;
    let folder = tempfile::tempdir().map_err(BenchError::io("a temporary folder"))?;
    compare(plan, folder.path(), &mut results, &mut progress).await?;
    memory(plan, folder.path(), &mut results, &mut progress).await?;
    results.finish()
}

fn rows(scale: f64) -> [(&'static str, Work); 3] {
    let some = |full: u32| ((f64::from(full) * scale) as u32).max(10);
    [
        (
            "echo 1 KiB, 1 in flight",
            Work::Latency {
                count: some(4_000),
                bytes: 1024,
            },
        ),
        (
            "echo 1 KiB, 64 in flight",
            Work::Rate {
                count: some(40_000),
                bytes: 1024,
                in_flight: 64,
            },
        ),
        (
            "stream 100 MiB",
            Work::Bulk {
                bytes: u64::from(some(100 << 20)),
            },
        ),
    ]
}

async fn compare(
    plan: &Plan,
    folder: &Path,
    results: &mut Results,
    progress: &mut (impl FnMut(&str, f64) + Send),
) -> Result<(), BenchError> {
    let data = |name: &str| folder.join(name);
    let start = |part: Part| Running::start(plan, part);
    progress("starting the parties", 0.0);

    let (_iroh_server, target) = start(Part::IrohServe).await?;
    let (iroh, _) = start(Part::IrohLoad { target }).await?;

    let (_embedded_server, far) = start(Part::EmbeddedServe { data: data("es") }).await?;
    let (embedded, _) = start(Part::EmbeddedLoad {
        data: data("el"),
        join: far.ticket,
    })
    .await?;

    let (_node_b, far) = start(Part::Node {
        data: data("b"),
        join: None,
    })
    .await?;
    let (_node_a, _) = start(Part::Node {
        data: data("a"),
        join: Some(far.ticket),
    })
    .await?;
    let (_agents, _) = start(Part::AttachedServe { data: data("b") }).await?;
    let (attached, _) = start(Part::AttachedLoad { data: data("a") }).await?;

    let mut subjects = [
        ("raw iroh", iroh),
        ("embedded", embedded),
        ("process to process", attached),
    ];
    let rows = rows(plan.scale);
    let whole = f64::from(plan.repeats + 1) * (rows.len() * subjects.len()) as f64;
    let mut done = 0.0;
    for (row, work) in rows {
        for repeat in 0..=plan.repeats {
            for (subject, running) in &mut subjects {
                progress(&format!("{row}: {subject}"), done / whole * 0.8);
                let measured: Measured = running.ask(&work).await?;
                done += 1.0;
                results.keep(Line {
                    row: row.to_owned(),
                    subject: (*subject).to_owned(),
                    repeat,
                    work: Some(work),
                    measured,
                })?;
            }
        }
    }
    Ok(())
}

/// Reads the memory of one node as peers connect to it.
async fn memory(
    plan: &Plan,
    folder: &Path,
    results: &mut Results,
    progress: &mut (impl FnMut(&str, f64) + Send),
) -> Result<(), BenchError> {
    let (node, ready) = Running::start(
        plan,
        Part::Node {
            data: folder.join("m"),
            join: None,
        },
    )
    .await?;
    results.keep_memory(node.memory(0)?)?;
    let (mut connected, mut crowds) = (0, Vec::new());
    for peers in &plan.peers {
        progress(&format!("memory with {peers} peers"), 0.9);
        let crowd = Part::Crowd {
            data: folder.join(format!("crowd-{peers}")),
            join: ready.ticket.clone(),
            count: peers.saturating_sub(connected),
        };
        crowds.push(Running::start(plan, crowd).await?);
        connected = *peers;
        results.keep_memory(node.memory(connected)?)?;
    }
    Ok(())
}

/// A part that runs. Dropping it kills the process.
#[derive(Debug)]
struct Running {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Running {
    async fn start(plan: &Plan, part: Part) -> Result<(Self, Ready), BenchError> {
        let argument =
            serde_json::to_string(&part).map_err(|e| BenchError::Wrong(e.to_string()))?;
        let name = argument.chars().take(60).collect::<String>();
        let (program, arguments) = plan
            .part_command
            .split_first()
            .ok_or_else(|| BenchError::Wrong("no command for parts".into()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .arg(&argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io(format!("starting {program}")))?;
        let gone = || BenchError::Part {
            part: name.clone(),
            reason: "it has no pipes".into(),
        };
        let orders = child.stdin.take().ok_or_else(gone)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(gone)?).lines();
        let mut running = Self {
            name,
            child,
            orders,
            answers,
        };
        let ready = running.answer().await?;
        Ok((running, ready))
    }

    async fn ask(&mut self, work: &Work) -> Result<Measured, BenchError> {
        let line = serde_json::to_string(work).map_err(|e| BenchError::Wrong(e.to_string()))?;
        let written = self.orders.write_all(format!("{line}\n").as_bytes()).await;
        written.map_err(BenchError::io(self.name.clone()))?;
        self.answer().await
    }

    async fn answer<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let failed = |reason: String| BenchError::Part {
            part: self.name.clone(),
            reason,
        };
        let line = self
            .answers
            .next_line()
            .await
            .map_err(BenchError::io(self.name.clone()))?;
        let line = line.ok_or_else(|| failed("it ended".into()))?;
        serde_json::from_str(&line).map_err(|error| failed(format!("{error}: {line}")))
    }

    /// Resident memory of the process now and at most, from its `/proc/PID/status`.
    fn memory(&self, peers: u32) -> Result<Memory, BenchError> {
        let pid = self.child.id().unwrap_or_default();
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path).map_err(BenchError::io(path))?;
        let kib = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        };
        let bytes = |field: &str| kib(field).unwrap_or_default() * 1024;
        Ok(Memory {
            peers,
            rss_bytes: bytes("VmRSS:"),
            peak_bytes: bytes("VmHWM:"),
        })
    }
}
