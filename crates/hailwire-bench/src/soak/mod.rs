//! A soak: a phone on the move calls a server and is called by it for half an hour, over a link with jitter and one percent of loss,
//! while its address changes every twenty seconds.
//!
//! The phone is behind a carrier's NAT which has a new port for each destination. At each change its own address becomes another
//! one and the NAT forgets every mapping. Calls are due at a fixed rate, whatever becomes of earlier ones. No call may be lost,
//! and the memory of the nodes and the hub must be flat. Each period between two changes is a line of the results.

pub mod record;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hailwire::Client;
use hailwire_lab::fabric::SiteChange;
use record::{SoakMemory, SoakPeriod};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, interval_at},
};

use crate::{
    BenchError,
    lab_nodes::{LabNode, LabStarter, call_count, path_kind},
    measure::{millis, process::usage},
    recorded_run::{RecordedOutcome, RecordedRun},
    tied_process::TiedProcess,
};

/// The host on the move, and its site.
const PHONE: &str = "phone";

/// The host that stays.
const SERVER: &str = "server";

/// The hub's host.
const HUB: &str = "hub";

/// The time between two changes of the phone's address.
pub const CHANGE_INTERVAL: Duration = Duration::from_secs(20);

/// The time between two calls of the phone, and of the server.
const CALL_INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(250)];

/// A call that is not answered by then is lost.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Bytes of a call's body.
const BODY: usize = 1_000;

/// The topology: the ready one `mobile` with a loss of 1 %. Hairpinning has the lab's model do the NAT, which can be told to forget.
const TOPOLOGY: &str = r#"
about "a phone on the move and a server, 1 % lost each way"
site "phone" {
    link {
        delay "30ms"
        jitter "10ms"
        loss "1%"
        up { rate "10 Mbit/s" }
        down { rate "40 Mbit/s" }
    }
    nat mapping="address-and-port-dependent" ports="random" timeout="1m" hairpin=#true
    host "phone" addresses=2
}
host "server"
host "hub" { link { delay "5ms" } }
"#;

/// How the soak is to be.
#[derive(Clone, Debug)]
pub struct SoakOptions {
    /// For how long.
    pub length: Duration,
    /// The `hail` of the hub and the nodes.
    pub program: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// What became of the calls of one period.
#[derive(Debug, Default)]
struct SoakCalls {
    times: Vec<Duration>,
    lost: Vec<String>,
}

/// Soaks. `tell` is called with each line. When `stop` resolves, the results so far are kept.
///
/// # Errors
///
/// The network cannot be made, a process cannot be started, or the folder cannot be written. A lost call is no error but in
/// [`RecordedOutcome::missed`].
pub async fn run(
    order: &SoakOptions,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&str),
) -> Result<RecordedOutcome, BenchError> {
    let mut kept = RecordedRun::create(&order.out, record::FILE)?;
    let soak = Soak::start(LabStarter::new(TOPOLOGY, "soak", &order.program)?).await?;
    let calls = Arc::new(Mutex::new(SoakCalls::default()));
    let mut callers = JoinSet::new();
    for ((node, to), every) in [(&soak.phone, SERVER), (&soak.server, PHONE)]
        .into_iter()
        .zip(CALL_INTERVALS)
    {
        callers.spawn(call_on(node.client.clone(), to, every, Arc::clone(&calls)));
    }
    let mut stop = std::pin::pin!(stop);
    let (begun, mut interrupted) = (Instant::now(), false);
    let mut changes = interval_at(begun + CHANGE_INTERVAL, CHANGE_INTERVAL);
    let mut at = 0;
    loop {
        tokio::select! {
            biased;
            () = &mut stop => interrupted = true,
            _ = changes.tick() => {}
        }
        let seen = std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner));
        let period = soak.period(begun.elapsed(), seen).await;
        tell(&period.line());
        kept.keep(period)?;
        if interrupted || begun.elapsed() >= order.length {
            break;
        }
        at = 1 - at;
        soak.change_address(at)?;
    }
    // What is in flight has no answer yet, and counts as neither.
    callers.abort_all();
    while callers.join_next().await.is_some() {}
    soak.end().await;
    kept.finish(interrupted, record::text, record::missed)
}

/// Calls at a rate until it is aborted.
async fn call_on(client: Client, to: &'static str, every: Duration, seen: Arc<Mutex<SoakCalls>>) {
    let mut due = interval(every);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    loop {
        due.tick().await;
        while under_way.try_join_next().is_some() {}
        let (client, seen) = (client.clone(), Arc::clone(&seen));
        under_way.spawn(async move {
            let body = Bytes::from_static(&[7; BODY]);
            let called = call_count(&client, to, body, CALL_DEADLINE).await;
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match called {
                Ok(took) => seen.times.push(took),
                Err(reason) => seen.lost.push(format!("to {to}: {reason}")),
            }
        });
    }
}

struct Soak {
    phone: LabNode,
    server: LabNode,
    hub: TiedProcess,
    // Last, so that the processes are ended while they still have a network.
    starter: LabStarter,
}

impl Soak {
    async fn start(starter: LabStarter) -> Result<Self, BenchError> {
        let hub = starter.hub(HUB).await?;
        let tickets = [starter.ticket(HUB, 2).await?];
        // The second address is for later.
        starter.take_second_address(PHONE)?;
        Ok(Self {
            phone: starter.node(PHONE, &[], &[], &tickets).await?,
            server: starter.node(SERVER, &[], &[], &tickets).await?,
            hub,
            starter,
        })
    }

    /// The phone has its address of this number from now on, and its NAT knows nothing.
    fn change_address(&self, at: usize) -> Result<(), BenchError> {
        self.starter.move_host(PHONE, 1 - at, at)?;
        let changed = self.starter.network.change(PHONE, SiteChange::Rebind);
        changed.map_err(BenchError::reported)
    }

    async fn period(&self, since: Duration, mut calls: SoakCalls) -> SoakPeriod {
        calls.times.sort_unstable();
        let at = |share: usize| calls.times.get(calls.times.len() * share / 100);
        let rss = |pid| usage(pid).rss_bytes;
        SoakPeriod {
            at_s: since.as_secs(),
            answered: calls.times.len() as u64,
            lost: calls.lost.len() as u64,
            reasons: calls.lost.into_iter().take(3).collect(),
            median_ms: at(50).copied().map(millis),
            slowest_ms: calls.times.last().copied().map(millis),
            path: path_kind(&self.phone.client, SERVER)
                .await
                .unwrap_or_default(),
            memory: SoakMemory {
                phone: rss(self.phone.pid()),
                server: rss(self.server.pid()),
                hub: rss(self.hub.pid()),
            },
        }
    }

    async fn end(self) {
        self.phone.end().await;
        self.server.end().await;
        self.hub.end().await;
    }
}
