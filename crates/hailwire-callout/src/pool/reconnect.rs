//! Keeps a slot's connection open: one task for each slot.
//!
//! It opens the connection, updates the slot's availability whenever the agent says so, and opens it again when it has ended,
//! for ever. A connection that ended soon counts as a failure to connect, so that an agent that accepts and closes is not
//! asked all the time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use hailwire_pool::Availability;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::{PausedPolicy, PoolConfig, PoolShared, clock};
use crate::{
    control::{FlowControl, HealthState, Notice},
    host::{ConnectError, ConnectOptions, Connection, ConnectionState, OverloadPolicy},
};

/// Notices that may wait for the reconnect task. What finds no room is lost, but not what the connection says of
/// itself: it is looked at after every notice, and so after the last that found room.
const MAX_NOTICES: usize = 256;

/// The options that the pool opens connections with.
pub(super) fn options(config: &PoolConfig) -> ConnectOptions {
    ConnectOptions {
        overload: match config.paused {
            PausedPolicy::Fail => OverloadPolicy::Fail,
            PausedPolicy::Wait => OverloadPolicy::Wait,
        },
        ..config.connect.clone()
    }
}

pub(super) async fn run(shared: Arc<PoolShared>, slot: usize) {
    let mut failures = 0;
    while !shared.stopping.load(Ordering::Acquire) {
        let (notices, incoming) = mpsc::channel(MAX_NOTICES);
        match connect(&shared, notices).await {
            Ok(connection) => {
                let since = Instant::now();
                serve(&shared, slot, connection, incoming).await;
                if since.elapsed() > shared.config.reconnect.most {
                    failures = 0;
                }
            }
            Err(error) => {
                shared.metrics.connect_failed.increment();
                tracing::debug!(agent = &*shared.name, slot, %error, "no connection");
            }
        }
        shared.attempted.store(true, Ordering::Release);
        shared.changed.notify_waiters();
        failures += 1;
        let lot = shared.hash(format!("{slot} {failures} {:?}", clock::coarse()).as_bytes());
        sleep(shared.config.reconnect.delay(failures, lot)).await;
    }
}

async fn connect(
    shared: &PoolShared,
    notices: mpsc::Sender<Notice>,
) -> Result<Connection, ConnectError> {
    let mut options = ConnectOptions::clone(&shared.options.load());
    options.notices = Some(notices);
    let within = options.connect_timeout;
    let patience = within.saturating_add(Duration::from_secs(1));
    timeout(patience, shared.connect.connect(&options))
        .await
        .unwrap_or(Err(ConnectError::Timeout(within)))
}

/// Until the connection has ended.
async fn serve(
    shared: &PoolShared,
    slot: usize,
    connection: Connection,
    mut notices: mpsc::Receiver<Notice>,
) {
    let _open_slot = OpenSlot::new(shared, slot, &connection);
    let mut ticks = interval(shared.config.ping.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            notice = notices.recv() => {
                match notice {
                    Some(notice) => handle_notice(shared, slot, notice),
                    None => return connection.closed().await,
                }
                shared.slots.set_availability(slot, availability(&connection));
                shared.changed.notify_waiters();
            }
            () = connection.closed() => return,
            _ = ticks.tick() => {
                // An agent that serves one event after the other answers late, which is no failure.
                if let Ok(Ok(_)) = timeout(shared.config.ping, connection.ping()).await {
                    shared.slots.seen(slot, clock::coarse());
                }
            }
        }
    }
}

/// What an agent says beside its answers.
fn handle_notice(shared: &PoolShared, slot: usize, notice: Notice) {
    let agent = &*shared.name;
    match notice {
        Notice::Health(health) => {
            tracing::debug!(agent, slot, state = ?health.state, message = health.message, "health");
        }
        Notice::Flow(FlowControl::Pause(_)) => shared.metrics.paused.increment(),
        Notice::Flow(FlowControl::Resume(_)) => shared.metrics.resumed.increment(),
        Notice::Metrics(report) => shared.reports.record(report, clock::coarse()),
        Notice::ConfigUpdate(update) => {
            tracing::info!(agent, ?update, "agent requests a configuration change");
        }
        Notice::Log(line) => match line.level {
            ..=1 => tracing::debug!(agent, request = line.correlation_id, "{}", line.message),
            2 => tracing::info!(agent, request = line.correlation_id, "{}", line.message),
            _ => tracing::warn!(agent, request = line.correlation_id, "{}", line.message),
        },
    }
}

fn availability(connection: &Connection) -> Availability {
    match connection.state() {
        ConnectionState::Open { paused: true, .. }
        | ConnectionState::Draining
        | ConnectionState::Closed => Availability::Unavailable,
        ConnectionState::Open { health, .. } => match health {
            HealthState::Healthy => Availability::Available,
            HealthState::Degraded => Availability::Degraded,
            HealthState::Draining | HealthState::Unhealthy => Availability::Unavailable,
        },
    }
}

/// A connection in its slot. It leaves the slot with this, also when the reconnect task is aborted.
struct OpenSlot<'a> {
    shared: &'a PoolShared,
    slot: usize,
}

impl<'a> OpenSlot<'a> {
    fn new(shared: &'a PoolShared, slot: usize, connection: &Connection) -> Self {
        if let Some(link) = shared.connections.get(slot) {
            link.set(connection.clone());
        }
        let stated = connection.capabilities().limits.max_concurrency;
        let max = [shared.config.max_concurrent, stated];
        let max = max.into_iter().filter(|max| *max > 0).min();
        shared.slots.set_max(slot, max.unwrap_or(0));
        shared.slots.renew(slot);
        shared.slots.seen(slot, clock::coarse());
        shared
            .slots
            .set_availability(slot, availability(connection));
        shared.metrics.connected.increment();
        shared.metrics.open.add(1);
        shared.attempted.store(true, Ordering::Release);
        shared.changed.notify_waiters();
        if shared.metrics.open.value() == 1 {
            tracing::info!(agent = &*shared.name, "connected");
        }
        Self { shared, slot }
    }
}

impl Drop for OpenSlot<'_> {
    fn drop(&mut self) {
        let Self { shared, slot } = *self;
        shared
            .slots
            .set_availability(slot, Availability::Unavailable);
        if let Some(link) = shared.connections.get(slot) {
            link.clear();
        }
        shared.metrics.disconnected.increment();
        shared.metrics.open.add(-1);
        shared.changed.notify_waiters();
        if shared.metrics.open.value() == 0 && !shared.stopping.load(Ordering::Acquire) {
            tracing::warn!(agent = &*shared.name, "no connection left");
        }
    }
}
