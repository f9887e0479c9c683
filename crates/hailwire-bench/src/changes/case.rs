//! One change: the network, two nodes with a stream between them, and what becomes of it.

use std::{
    io,
    time::{Duration, Instant},
};

use hailwire_lab::{fabric::SiteChange, firewall::FirewallRule};
use rustix::process::{Pid, Signal, kill_process};

use super::{ChangesOptions, NetworkChange, record::ChangeRow, stream::NumberStream};
use crate::{
    BenchError,
    lab_nodes::{LabNode, LabStarter, TICK, call_count, path_kind},
    measure::millis,
    tied_process::TiedProcess,
};

/// The node that reads, and its site.
const NEAR: &str = "near";

/// The node that is read from, and its site.
const FAR: &str = "far";

/// The hubs' hosts.
const HUBS: [&str; 2] = ["hub", "hub-2"];

/// How long the path before the change may take to be as wanted.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The stream before the change, and after it until it counts as going on.
const STEADY: Duration = Duration::from_secs(1);

/// How long after the outage the stream and the calls are watched.
const WATCHED: Duration = Duration::from_secs(40);

/// Deadline of each new call; the next is made when one has failed.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// The time between two looks at what is waited for, and between two new calls.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long the hub is away.
const HUB_AWAY: Duration = Duration::from_secs(5);

/// How long the node sleeps.
const SLEEP: Duration = Duration::from_secs(10);

/// Measures one change.
pub(super) async fn measure(
    order: &ChangesOptions,
    change: NetworkChange,
    relayed: bool,
) -> Result<ChangeRow, BenchError> {
    let starter = LabStarter::new(&topology(relayed), "changes", &order.program)?;
    let mut case = ChangeCase::start(starter, change).await?;
    let mut row = ChangeRow {
        change,
        path: if relayed { "relay" } else { "direct" }.to_owned(),
        outage_ms: 0.0,
        gap_ms: None,
        lost: 0,
        twice: 0,
        broken: None,
        new_call_ms: None,
        failed_calls: 0,
        failed: None,
    };
    if let Err(reason) = case.observe(&mut row).await {
        row.failed = Some(reason.with_cause());
    }
    case.end().await;
    Ok(row)
}

/// The topology file of two homes and two hubs. The NATs are of the kind that holes can be punched through, done by the lab's model, which can be told to
/// forget.
fn topology(relayed: bool) -> String {
    let wall = if relayed { "firewall \"no-udp\";" } else { "" };
    let home = |name: &str| {
        format!(
            "site \"{name}\" {{ link {{ delay \"10ms\" }}; nat filtering=\"address-dependent\"; {wall}\
             host \"{name}\" addresses=2 }}\n"
        )
    };
    let hub = |name: &str| format!("host \"{name}\" {{ link {{ delay \"5ms\" }} }}\n");
    [home(NEAR), home(FAR), HUBS.map(hub).concat()].concat()
}

struct ChangeCase {
    change: NetworkChange,
    near: LabNode,
    far: Option<LabNode>,
    hubs: Vec<TiedProcess>,
    // Last, so that the processes are ended while they still have a network.
    starter: LabStarter,
}

impl ChangeCase {
    async fn start(starter: LabStarter, change: NetworkChange) -> Result<Self, BenchError> {
        let (mut hubs, mut tickets) = (Vec::new(), Vec::new());
        for hub in &HUBS[..change.hubs()] {
            hubs.push(starter.hub(hub).await?);
            tickets.push(starter.ticket(hub, 2).await?);
        }
        // The second address is for the move.
        for host in [NEAR, FAR] {
            starter.take_second_address(host)?;
        }
        Ok(Self {
            change,
            near: starter.node(NEAR, &[], &[], &tickets).await?,
            far: Some(starter.node(FAR, &[], &[], &tickets).await?),
            hubs,
            starter,
        })
    }

    async fn observe(&mut self, row: &mut ChangeRow) -> Result<(), BenchError> {
        self.until_path_is(&row.path).await?;
        let streams = self.change != NetworkChange::RebindIdle;
        let stream = streams.then(|| NumberStream::read(&self.near.client, FAR));
        tokio::time::sleep(STEADY).await;
        if let Some(stream) = &stream {
            stream.count().map_err(BenchError::Reported)?;
        }
        let begun = Instant::now();
        self.apply().await?;
        let whole = Instant::now();
        // What an instant change takes is the lab's own time.
        if self.change.lasts() {
            row.outage_ms = millis(whole - begun);
        }
        self.new_call(whole, row).await;
        if let Some(stream) = &stream {
            let steady = STEADY.as_millis() / TICK.as_millis();
            let wanted = stream
                .count()
                .map(|now| now + usize::try_from(steady).unwrap_or(0));
            while let (Ok(now), Ok(wanted)) = (stream.count(), &wanted) {
                if now >= *wanted || whole.elapsed() > WATCHED {
                    break;
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            let seen = stream.seen();
            row.gap_ms = Some(millis(seen.longest_silence(begun)));
            (row.lost, row.twice) = seen.lost_and_twice();
            row.broken = seen.ended;
        }
        Ok(())
    }

    async fn until_path_is(&self, wanted: &str) -> Result<(), BenchError> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < READY_TIMEOUT {
            match path_kind(&self.near.client, FAR).await {
                Ok(path) if path == wanted => return Ok(()),
                Ok(path) => last = path,
                Err(status) => last = status.to_string(),
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Err(BenchError::Failed {
            what: format!("waiting for a path that is {wanted}"),
            reason: last,
        })
    }

    /// Calls until one is answered.
    async fn new_call(&self, since: Instant, row: &mut ChangeRow) {
        while since.elapsed() < WATCHED {
            let called = call_count(&self.near.client, FAR, "x".into(), CALL_DEADLINE).await;
            if called.is_ok() {
                row.new_call_ms = Some(millis(since.elapsed()));
                return;
            }
            row.failed_calls += 1;
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Changes the network, and where that is for a time, waits until it is whole again.
    async fn apply(&mut self) -> Result<(), BenchError> {
        match self.change {
            NetworkChange::RebindNear => self.at(&[NEAR], &SiteChange::Rebind),
            NetworkChange::RebindFar => self.at(&[FAR], &SiteChange::Rebind),
            NetworkChange::RebindBoth | NetworkChange::RebindIdle => {
                self.at(&[NEAR, FAR], &SiteChange::Rebind)
            }
            NetworkChange::UdpBlocked => {
                self.at(&[NEAR], &SiteChange::Firewall(Some(FirewallRule::NoUdp)))
            }
            NetworkChange::Move => self.starter.move_host(NEAR, 0, 1),
            NetworkChange::Down3 => self.interface_down(Duration::from_secs(3)).await,
            NetworkChange::Down10 => self.interface_down(Duration::from_secs(10)).await,
            NetworkChange::Sleep => {
                signal(self.near.pid(), Signal::STOP)?;
                tokio::time::sleep(SLEEP).await;
                signal(self.near.pid(), Signal::CONT)
            }
            NetworkChange::Restart => {
                if let Some(far) = self.far.take() {
                    far.end().await;
                }
                self.far = Some(self.starter.node(FAR, &[], &[], &[]).await?);
                Ok(())
            }
            NetworkChange::HubRestart => {
                self.end_first_hub().await;
                tokio::time::sleep(HUB_AWAY).await;
                self.hubs.push(self.starter.hub(HUBS[0]).await?);
                Ok(())
            }
            NetworkChange::OneHubDown => {
                self.end_first_hub().await;
                Ok(())
            }
        }
    }

    async fn end_first_hub(&mut self) {
        if !self.hubs.is_empty() {
            self.hubs.remove(0).end().await;
        }
    }

    async fn interface_down(&self, time: Duration) -> Result<(), BenchError> {
        self.starter.ip(NEAR, |_| "link set eth0 down".to_owned())?;
        tokio::time::sleep(time).await;
        self.starter.ip(NEAR, |own| {
            format!(
                "link set eth0 up\nroute add default dev eth0 src {}",
                own[0]
            )
        })
    }

    fn at(&self, sites: &[&str], change: &SiteChange) -> Result<(), BenchError> {
        for site in sites {
            let changed = self.starter.network.change(site, change.clone());
            changed.map_err(BenchError::reported)?;
        }
        Ok(())
    }

    async fn end(self) {
        for node in std::iter::once(self.near).chain(self.far) {
            node.end().await;
        }
        for hub in self.hubs {
            hub.end().await;
        }
    }
}

fn signal(process: u32, signal: Signal) -> Result<(), BenchError> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(BenchError::Unsupported("the node has no process id"))?;
    kill_process(pid, signal)
        .map_err(io::Error::from)
        .map_err(BenchError::io("sending a signal"))
}
