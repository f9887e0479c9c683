//! Messages between two nodes that are killed again and again, and what became of each.

use std::{
    collections::{BTreeMap, HashMap},
    process::Command,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hailwire::{
    Agent, Client, Code, DataDir, Handler, Request, Response, Status,
    admin::{MessageDetail, MessageQuery, MessageRow, MessageSelector, method},
};
use hailwire_lab::power_loss::{PowerLossDisk, SyncPromise};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet};

use super::{MessageOptions, record::SurvivalRecord, rough_network::RoughNetwork};
use crate::{
    BenchError,
    tied_process::{self, TiedProcess},
};

/// The sender's node.
pub(super) const DESK: &str = "desk";

/// The receiver's.
pub(super) const LAPTOP: &str = "laptop";

/// The agent whose messages come in any order, and the one whose messages come in order.
const AGENTS: [&str; 2] = ["work", "ordered"];

/// Of how many messages one is in order.
const IN_ORDER_OF: u32 = 8;

/// Senders of messages in any order.
const SENDERS: u32 = 16;

/// Of how many messages the first attempt ends with its work done and nothing said.
const GONE_EVERY: u32 = 50;

/// How long after the last kill everything may take to have its end.
const PATIENCE: Duration = Duration::from_secs(300);

/// The same on a disk that lies, where much never has its end.
const PATIENCE_WITH_LIES: Duration = Duration::from_secs(5);

/// A node's disk whose power is cut. A loss of power must find something that waits to be written, not a disk that is full.
const DISK_BYTES: u64 = 256 * 1024 * 1024;

/// The data folder on a node's disk.
const ON_DISK: &str = "node";

/// The longest time between two kills, and the shortest.
const KILL_GAP_MS: (u64, u64) = (20, 320);

/// Two nodes that trust each other, in a folder of their own.
pub(super) struct TwoNodes {
    program: std::path::PathBuf,
    nodes: HashMap<&'static str, TiedProcess>,
    /// The network between them, where it is no loopback.
    network: Option<RoughNetwork>,
    /// Where a kill is a loss of power; after the nodes, so that they are gone before.
    disks: HashMap<&'static str, PowerLossDisk>,
    /// After all that is in it, so that it goes too.
    folder: TempDir,
}

impl TwoNodes {
    /// Starts them; `settings` is what is in their configuration.
    pub(super) async fn start(order: &MessageOptions, settings: &str) -> Result<Self, BenchError> {
        let folder = order.folder()?;
        let mut nodes = Self {
            folder,
            program: order.program.clone(),
            nodes: HashMap::new(),
            network: match order.rough_network {
                true => Some(RoughNetwork::up(order.seed)?),
                false => None,
            },
            disks: HashMap::new(),
        };
        for name in [DESK, LAPTOP] {
            if let Some(promise) = order.power_loss {
                let folder = nodes.folder.path().join(name);
                let disk = PowerLossDisk::new(&folder, DISK_BYTES, promise);
                let disk = disk.map_err(BenchError::io("making a disk whose power can be cut"))?;
                nodes.disks.insert(name, disk);
            }
            if !settings.is_empty() {
                let failed = BenchError::io("writing a node's configuration");
                let data = nodes.data(name);
                let written = std::fs::create_dir_all(&data);
                let written =
                    written.and_then(|()| std::fs::write(data.join("hail.kdl"), settings));
                written.map_err(failed)?;
            }
            nodes.up(name).await?;
        }
        let invited = nodes.ask(LAPTOP, &["invite"]).await?;
        let ticket = invited["ticket"].as_str().unwrap_or_default().to_owned();
        nodes.ask(DESK, &["join", "--yes", &ticket]).await?;
        for disk in nodes.disks.values() {
            // Who the nodes are is not what is tried.
            disk.sync().map_err(BenchError::io("syncing a disk"))?;
        }
        Ok(nodes)
    }

    async fn up(&mut self, name: &'static str) -> Result<(), BenchError> {
        let (mut shell, listen) = match &self.network {
            Some(network) => (network.shell(name)?, "0.0.0.0:0"),
            None => (Command::new("sh"), "127.0.0.1:0"),
        };
        shell.env("HOME", self.folder.path());
        let words = ["up", "--name", name, "--listen", listen];
        let args = tied_process::hail_args(&self.data(name), &words);
        let log = self.folder.path().join(format!("{name}.log"));
        let node = TiedProcess::start(name, shell, &self.program, &args, &log).await?;
        self.nodes.insert(name, node);
        Ok(())
    }

    /// Kills a node with SIGKILL, and starts it again once it is gone. Where it has a disk of its own, that loses power a moment before or
    /// after, as `draws` says.
    pub(super) async fn kill(
        &mut self,
        name: &'static str,
        draws: &mut Draws,
    ) -> Result<(), BenchError> {
        let disk = self.disks.get(name);
        let cut = || disk.map_or(Ok(()), PowerLossDisk::cut_power);
        let failed = BenchError::io("cutting the power of a disk");
        let running = draws.next().is_multiple_of(2);
        let mut lost = Ok(());
        if let Some(disk) = disk {
            lost = disk.write_back_some(ON_DISK, &mut || draws.next());
            if running {
                lost = lost.and_then(|()| cut());
            }
        }
        if let Some(node) = self.nodes.remove(name) {
            let pid = i32::try_from(node.pid()).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or(BenchError::Unsupported("the node has no process id"))?;
            let killed = kill_process(pid, Signal::KILL).map_err(std::io::Error::from);
            killed.map_err(BenchError::io("killing a node"))?;
            node.end().await;
        }
        if let Some(disk) = disk {
            if !running {
                lost = lost.and_then(|()| cut());
            }
            lost.and_then(|()| disk.power_on()).map_err(failed)?;
        }
        self.up(name).await
    }

    async fn ask(&self, data: &str, words: &[&str]) -> Result<serde_json::Value, BenchError> {
        let mut command = Command::new(&self.program);
        command
            .args(tied_process::hail_args(&self.data(data), words))
            .env("HOME", self.folder.path());
        tied_process::printed_json(command).await
    }

    /// The process of a node.
    pub(super) fn pid(&self, name: &str) -> Option<u32> {
        self.nodes.get(name).map(TiedProcess::pid)
    }

    pub(super) fn data(&self, name: &str) -> std::path::PathBuf {
        match self.disks.get(name) {
            Some(disk) => disk.root().join(ON_DISK),
            None => self.folder.path().join(name),
        }
    }

    pub(super) async fn attach(&self, name: &str) -> Result<Client, BenchError> {
        let attached = Client::attach(&DataDir::new(self.data(name))).await;
        attached.map_err(BenchError::failed("attaching to the node"))
    }

    pub(super) async fn end(mut self) {
        for (_, node) in self.nodes.drain() {
            node.end().await;
        }
    }
}

/// A program beside a node, which attaches again when the node is back.
pub(super) struct Program {
    data: DataDir,
    client: Option<Client>,
}

impl Program {
    pub(super) fn beside(nodes: &TwoNodes, name: &str) -> Self {
        Self {
            data: DataDir::new(nodes.data(name)),
            client: None,
        }
    }

    /// The node was not there: the next client is another one.
    pub(super) fn forget(&mut self) {
        self.client = None;
    }

    pub(super) async fn client(&mut self) -> Client {
        loop {
            if let Some(client) = &self.client {
                return client.clone();
            }
            match Client::attach(&self.data).await {
                Ok(client) => self.client = Some(client),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

impl Program {
    /// Serves an agent for ever, again whenever the node is back.
    pub(super) async fn serve(mut self, agent: &str, handler: impl Handler + Clone) {
        loop {
            let client = self.client().await;
            if let Ok(agent) = Agent::new(agent)
                && let Ok(mut served) = client.serve(agent, handler.clone()).await
            {
                served.closed().await;
            }
            self.forget();
        }
    }
}

/// When a message was handed over, and whether its work was done.
#[derive(Clone, Copy, Debug)]
struct HandedOver {
    message: u32,
    begun_ms: u64,
    done: bool,
}

type Noted = Arc<Mutex<Vec<HandedOver>>>;

pub(super) fn locked<T>(what: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A small generator (splitmix64): the same seed gives the same instants.
pub(super) struct Draws(pub(super) u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(super) async fn run(order: &MessageOptions) -> Result<SurvivalRecord, BenchError> {
    let mut nodes = TwoNodes::start(order, "").await?;
    let begun = Instant::now();
    let (kills_made, kills) = watch::channel(0_u32);
    let mut tasks = JoinSet::new();
    let noted = AGENTS.map(|_| Noted::default());
    for (agent, noted) in AGENTS.into_iter().zip(&noted) {
        let program = Program::beside(&nodes, LAPTOP);
        tasks.spawn(serve(program, agent, noted.clone()));
    }
    let again = Arc::new(AtomicU64::new(0));
    let next = Arc::new(AtomicU32::new(0));
    let in_order = order.messages / IN_ORDER_OF;
    let in_any_order = order.messages - in_order;
    let mut senders = JoinSet::new();
    for sender in 0..=SENDERS {
        let work = Sender {
            program: Program::beside(&nodes, DESK),
            again: again.clone(),
            kills: kills.clone(),
            order: order.clone(),
        };
        let next = next.clone();
        senders.spawn(async move {
            match sender {
                0 => work.send_all(AGENTS[1], in_order, &AtomicU32::new(0)).await,
                _ => work.send_all(AGENTS[0], in_any_order, &next).await,
            }
        });
    }
    let mut draws = Draws(order.seed);
    for made in 1..=order.kills {
        let gap = KILL_GAP_MS.0 + draws.next() % (KILL_GAP_MS.1 - KILL_GAP_MS.0);
        tokio::time::sleep(Duration::from_millis(gap)).await;
        let which = [DESK, LAPTOP][usize::from(draws.next().is_multiple_of(2))];
        if let Some(network) = &nodes.network {
            network.disturb(&mut || draws.next()).await?;
        }
        nodes.kill(which, &mut draws).await?;
        kills_made.send_replace(made);
    }
    let mut accepted: Vec<(usize, u32, String)> = Vec::new();
    while let Some(sent) = senders.join_next().await {
        accepted.extend(sent.map_err(BenchError::failed("a sender"))?);
    }
    let mut desk = Program::beside(&nodes, DESK);
    wait_for_ends(&mut desk, order).await?;
    let laptop = nodes.attach(LAPTOP).await?;
    let mut record = SurvivalRecord {
        seed: order.seed,
        kills: order.kills,
        power_loss: order.power_loss.is_some(),
        rough_network: order.rough_network,
        syncs_ignored: order.power_loss == Some(SyncPromise::Broken),
        accepted: u32::try_from(accepted.len()).unwrap_or(u32::MAX),
        sent_again: again.load(Ordering::Relaxed),
        took_s: begun.elapsed().as_secs_f64(),
        ..SurvivalRecord::default()
    };
    let desk = desk.client().await;
    tasks.abort_all();
    for (which, noted) in noted.iter().enumerate() {
        let handed_over = locked(noted).clone();
        let of_agent = accepted.iter().filter(|(agent, ..)| *agent == which);
        let of_agent: BTreeMap<u32, &str> = of_agent
            .map(|(_, number, id)| (*number, id.as_str()))
            .collect();
        judge(
            &mut record,
            &desk,
            &laptop,
            &of_agent,
            &handed_over,
            which == 1,
        )
        .await?;
    }
    nodes.end().await;
    Ok(record)
}

/// Serves an agent for ever: does what it is handed, and now and then fails first or takes its time.
async fn serve(program: Program, agent: &'static str, noted: Noted) {
    let handler = move |request: Request| {
        let noted = noted.clone();
        async move {
            let attempt = request.header().field("hail-message-attempt");
            let attempt = attempt.unwrap_or_default().to_owned();
            let body = request.into_body().bytes(64).await?;
            let text = String::from_utf8_lossy(&body).into_owned();
            let bad = |_| Status::new(Code::InvalidArgument, "not a number");
            let message: u32 = text.parse().map_err(bad)?;
            let at = {
                let mut noted = locked(&noted);
                noted.push(HandedOver {
                    message,
                    begun_ms: now_ms(),
                    done: false,
                });
                noted.len() - 1
            };
            // So that some are in hand whenever a node is killed.
            tokio::time::sleep(Duration::from_millis(u64::from(message % 13) * 3)).await;
            locked(&noted)[at].done = true;
            match message.is_multiple_of(GONE_EVERY) && attempt == "1" {
                true => Err(Status::new(Code::Unavailable, "gone before it said so")),
                false => Ok(Response::new("")),
            }
        }
    };
    program.serve(agent, handler).await;
}

struct Sender {
    program: Program,
    again: Arc<AtomicU64>,
    kills: watch::Receiver<u32>,
    order: MessageOptions,
}

impl Sender {
    /// Sends each number below `all` that nobody else sends, as the kills go on. Returns agent, number and id of each.
    async fn send_all(
        mut self,
        agent: &'static str,
        all: u32,
        next: &AtomicU32,
    ) -> Vec<(usize, u32, String)> {
        let which = usize::from(agent == AGENTS[1]);
        let to = format!("{agent}@{LAPTOP}");
        let mut accepted = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= all {
                return accepted;
            }
            let due = u64::from(number) * u64::from(self.order.kills) / u64::from(all.max(1));
            // Only the end of the run closes it.
            let _ = self
                .kills
                .wait_for(|made| u64::from(*made) + 1 >= due)
                .await;
            let id = loop {
                let client = self.program.client().await;
                let call = client.call(&to).body(number.to_string());
                let call = call.idempotency_key(format!("{agent}-{number}"));
                match call.durable(false, which == 1).await {
                    Ok(receipt) => break receipt.id,
                    Err(_) => {
                        self.again.fetch_add(1, Ordering::Relaxed);
                        self.program.client = None;
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
            };
            accepted.push((which, number, id));
        }
    }
}

/// Waits until nothing that was sent is without an end.
pub(super) async fn wait_for_ends(
    desk: &mut Program,
    order: &MessageOptions,
) -> Result<(), BenchError> {
    let patience = match order.power_loss {
        Some(SyncPromise::Broken) => PATIENCE_WITH_LIES,
        _ => PATIENCE,
    };
    let until = Instant::now() + patience;
    let open = MessageQuery {
        sent: true,
        states: ["stored", "delivered", "taken"]
            .map(ToOwned::to_owned)
            .to_vec(),
        most: 1,
        ..MessageQuery::default()
    };
    while Instant::now() < until {
        let client = desk.client().await;
        let rows: Result<Vec<MessageRow>, Status> = client.admin(method::MESSAGE_LIST, &open).await;
        match rows {
            Ok(rows) if rows.is_empty() => return Ok(()),
            Ok(_) => {}
            Err(_) => desk.client = None,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // What has no end is counted as lost.
    Ok(())
}

async fn judge(
    record: &mut SurvivalRecord,
    desk: &Client,
    laptop: &Client,
    accepted: &BTreeMap<u32, &str>,
    handed_over: &[HandedOver],
    in_order: bool,
) -> Result<(), BenchError> {
    let mut of_message: HashMap<u32, Vec<HandedOver>> = HashMap::new();
    for one in handed_over {
        of_message.entry(one.message).or_default().push(*one);
    }
    for (number, id) in accepted {
        let selector = MessageSelector {
            id: (*id).to_owned(),
        };
        let shown: Result<MessageDetail, Status> =
            desk.admin(method::MESSAGE_SHOW, &selector).await;
        let state = shown.map_or_else(|_| "nowhere".to_owned(), |detail| detail.row.state);
        *record.ends.entry(state.clone()).or_default() += 1;
        let nothing = Vec::new();
        let times = of_message.get(number).unwrap_or(&nothing);
        match state.as_str() {
            "acknowledged" if !times.iter().any(|one| one.done) => record.never_done += 1,
            "acknowledged" | "unknown" => {}
            _ => record.lost += 1,
        }
        record.handed_over_again += u32::from(times.len() > 1);
        // What the receiver's node does not know has not come to it, and is lost if it has no end at its sender's.
        let kept: Result<MessageDetail, Status> =
            laptop.admin(method::MESSAGE_SHOW, &selector).await;
        let end = kept.ok().and_then(|kept| kept.row.ended_at_ms);
        let late = |one: &HandedOver| end.is_some_and(|end| one.begun_ms > end);
        record.after_end += u32::from(times.iter().any(late));
    }
    if in_order {
        let mut highest = 0;
        for one in handed_over {
            record.out_of_order += u32::from(one.message < highest);
            highest = highest.max(one.message);
        }
    }
    Ok(())
}
