//! Honest calls: due at a stated rate, whether or not earlier ones were answered; every answer is checked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::{Client, NodeId, carrier::tcp::TlsIdentity, hub::HubClient};
use hailwire_wire::{
    address::NodeRef,
    ticket::{SHOWN_AGAIN, TicketSecret},
};
use iroh::Endpoint;
use tokio::{sync::watch, task::JoinSet};

use super::{
    AttackerKind, call_schedule,
    peer::{self, KeySeed, NodeAddress},
    processes::{DESK, NEWCOMERS, SHELF, SiegeProcesses, VICTIM},
    record::{PhaseCalls, SiegePhase},
};
use crate::{BenchError, measure::TimeHistogram};

/// A call that has no answer by then is lost.
const DEADLINE: Duration = Duration::from_secs(10);

/// Bytes of the body of an echo.
const ECHO_BODY_BYTES: usize = 1_000;

/// The most reasons that are counted one by one.
const MAX_REASONS: usize = 12;

/// A kind of honest call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HonestFlow {
    /// A program on the machine of the attacked node.
    Local,
    /// A node over QUIC.
    Quic,
    /// A node over HTTP/2.
    Http2,
    /// An agent that is one program for all calls (`--lines`).
    Lines,
    /// An agent that is a program started for each call.
    Program,
    /// A new connection over QUIC, and a call on it.
    NewQuic,
    /// A new connection over TCP, and a call on it.
    NewTcp,
    /// An untrusted peer that redeems a ticket.
    Join,
    /// A member that looks the node up at the hub.
    Lookup,
}

impl HonestFlow {
    const ALL: [Self; 9] = [
        Self::Local,
        Self::Quic,
        Self::Http2,
        Self::Lines,
        Self::Program,
        Self::NewQuic,
        Self::NewTcp,
        Self::Join,
        Self::Lookup,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local socket",
            Self::Quic => "tunnel over quic",
            Self::Http2 => "tunnel over h2",
            Self::Lines => "serve --lines",
            Self::Program => "serve",
            Self::NewQuic => "new connection, quic",
            Self::NewTcp => "new connection, ws",
            Self::Join => "join",
            Self::Lookup => "look-up at the hub",
        }
    }

    /// Calls a second; 200 in all.
    const fn per_second(self) -> f64 {
        match self {
            Self::Local | Self::Quic | Self::Http2 => 60.0,
            Self::Lines => 10.0,
            Self::Program => 4.0,
            Self::NewQuic | Self::NewTcp => 2.0,
            Self::Join => 0.5,
            Self::Lookup => 1.5,
        }
    }
}

/// The honest callers.
pub(super) struct HonestCallers {
    clients: Arc<HonestClients>,
}

struct HonestClients {
    local: Client,
    desk: Client,
    shelf: Client,
    victim: NodeAddress,
    secret: TicketSecret,
    newcomers: Vec<Endpoint>,
    newcomers_tcp: Vec<TlsIdentity>,
    member: HubClient,
}

impl HonestCallers {
    /// Connects all callers.
    pub(super) async fn new(processes: &SiegeProcesses) -> Result<Self, BenchError> {
        let (by_quic, others) = processes.newcomers.split_at(NEWCOMERS);
        let Some((member, by_tcp)) = others.split_first() else {
            return Err(BenchError::Unsupported("keys of new peers are missing"));
        };
        let mut newcomers = Vec::new();
        for seed in by_quic {
            newcomers.push(seed.endpoint().await?);
        }
        let ticket = processes.hub.read()?;
        let pins = hailwire::hub::tls::HubPins::default();
        let member = HubClient::new(ticket.url, ticket.key, member.pair(), &pins);
        let member = member.map_err(BenchError::failed("reaching the hub"))?;
        member
            .join(ticket.secret)
            .await
            .map_err(BenchError::failed("joining the hub"))?;
        let clients = HonestClients {
            local: processes.attach(VICTIM).await?,
            desk: processes.attach(DESK).await?,
            shelf: processes.attach(SHELF).await?,
            victim: processes.victim,
            secret: processes.secret.clone(),
            newcomers,
            newcomers_tcp: by_tcp
                .iter()
                .map(KeySeed::identity)
                .collect::<Result<_, _>>()?,
            member,
        };
        let honest = Self {
            clients: Arc::new(clients),
        };
        // One call of each flow, so that tunnels are up and programs started.
        for (number, flow) in HonestFlow::ALL.into_iter().enumerate() {
            let called = honest.clients.call(flow, number as u64).await;
            called.map_err(|error| BenchError::Failed {
                what: flow.name().to_owned(),
                reason: error.with_cause(),
            })?;
        }
        Ok(honest)
    }

    /// Calls for a time or until `over`, and returns the outcome once every call has ended.
    pub(super) async fn run(
        &self,
        attackers: &[AttackerKind],
        phase: SiegePhase,
        time: Duration,
        mut over: watch::Receiver<bool>,
    ) -> Vec<PhaseCalls> {
        let rates = HonestFlow::ALL.map(HonestFlow::per_second);
        let mut due = call_schedule::start(&rates, time);
        let tallies: Arc<Vec<Mutex<FlowCounters>>> =
            Arc::new(HonestFlow::ALL.iter().map(|_| Mutex::default()).collect());
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                next = due.recv() => {
                    let Some(next) = next else { break };
                    let Some(flow) = HonestFlow::ALL.get(next.flow).copied() else { continue };
                    let (clients, tallies) = (self.clients.clone(), tallies.clone());
                    calls.spawn(async move {
                        let left = DEADLINE.saturating_sub(next.at.elapsed());
                        let called = tokio::time::timeout(left, clients.call(flow, next.number)).await;
                        let took = next.at.elapsed();
                        let mut counters = lock(&tallies[next.flow]);
                        counters.took(called.map_err(|_| BenchError::Unsupported("no answer in time")), took);
                    });
                }
                Some(_) = calls.join_next() => {}
                _ = over.wait_for(|over| *over) => break,
            }
        }
        drop(due);
        while calls.join_next().await.is_some() {}
        HonestFlow::ALL
            .iter()
            .zip(tallies.iter())
            .map(|(flow, counters)| lock(counters).calls(attackers, phase, *flow))
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of the calls of one flow.
#[derive(Default)]
struct FlowCounters {
    sent: u64,
    answered: u64,
    wrong: u64,
    lost: BTreeMap<String, u64>,
    times: TimeHistogram,
}

impl FlowCounters {
    fn took(&mut self, called: Result<Result<(), BenchError>, BenchError>, took: Duration) {
        self.sent += 1;
        match called.and_then(|called| called) {
            Ok(()) => {
                self.answered += 1;
                self.times.record(took);
            }
            Err(error) => {
                if matches!(error, BenchError::Invalid(_)) {
                    self.wrong += 1;
                }
                let mut reason = error.with_cause();
                if self.lost.len() >= MAX_REASONS && !self.lost.contains_key(&reason) {
                    reason = "another reason".to_owned();
                }
                *self.lost.entry(reason).or_default() += 1;
            }
        }
    }

    fn calls(&self, attackers: &[AttackerKind], phase: SiegePhase, flow: HonestFlow) -> PhaseCalls {
        let measured = self.times.measured();
        let us = |share| {
            if self.times.count() == 0 {
                0.0
            } else {
                self.times.quantile_us(share)
            }
        };
        PhaseCalls {
            attackers: attackers.to_vec(),
            phase: Some(phase),
            flow: flow.name().to_owned(),
            per_second: flow.per_second(),
            sent: self.sent,
            answered: self.answered,
            wrong: self.wrong,
            lost: self.lost.clone(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            max_us: us(1.0),
            distribution: measured.distribution,
        }
    }
}

impl HonestClients {
    async fn call(&self, flow: HonestFlow, number: u64) -> Result<(), BenchError> {
        match flow {
            HonestFlow::Local => echo(&self.local, "echo", body(number)).await,
            HonestFlow::Quic => echo(&self.desk, "echo@victim", body(number)).await,
            HonestFlow::Http2 => echo(&self.shelf, "echo@victim", body(number)).await,
            HonestFlow::Lines => echo(&self.desk, "lines@victim", line(number)).await,
            HonestFlow::Program => echo(&self.desk, "program@victim", body(number)).await,
            HonestFlow::NewQuic => {
                let connection = self.victim.quic(in_turn(&self.newcomers, number)?).await?;
                call_once(connection, body(number)).await
            }
            HonestFlow::NewTcp => {
                let connection = self
                    .victim
                    .ws(in_turn(&self.newcomers_tcp, number)?)
                    .await?;
                call_once(connection, body(number)).await
            }
            HonestFlow::Join => self.join().await,
            HonestFlow::Lookup => self.look_up(self.victim.node).await,
        }
    }

    async fn join(&self) -> Result<(), BenchError> {
        let endpoint = KeySeed::draw()?.endpoint().await?;
        let mut joined = self.shown(&endpoint).await;
        // As `hail join` does: a caller behind the same address as a flood may be disconnected before it has
        // presented its ticket.
        for pause in SHOWN_AGAIN {
            if joined.is_ok() {
                break;
            }
            tokio::time::sleep(pause).await;
            joined = self.shown(&endpoint).await;
        }
        tokio::spawn(async move { endpoint.close().await });
        joined
    }

    /// Dials the victim and presents a ticket's secret.
    async fn shown(&self, endpoint: &Endpoint) -> Result<(), BenchError> {
        let connection = self.victim.quic(endpoint).await?;
        let _control = peer::greet(&connection).await?;
        peer::redeem(&connection, self.secret.clone()).await?;
        connection.close(hailwire::Code::Ok, "joined");
        Ok(())
    }

    async fn look_up(&self, node: NodeId) -> Result<(), BenchError> {
        let found = self.member.lookup(&NodeRef::Id(node)).await;
        match found.map_err(BenchError::failed("reaching the hub"))? {
            Some(record) if record.node() == node => Ok(()),
            _ => Err(BenchError::Invalid("the hub does not know the node".into())),
        }
    }
}

fn in_turn<T>(all: &[T], number: u64) -> Result<&T, BenchError> {
    let one = all.get(number as usize % all.len().max(1));
    one.ok_or(BenchError::Unsupported("keys of new peers are missing"))
}

async fn echo(client: &Client, to: &str, body: Bytes) -> Result<(), BenchError> {
    let call = client.call(to).body(body.clone()).deadline(DEADLINE);
    let mut answer = call.send().await.map_err(BenchError::failed("the call"))?;
    let limit = 2 * body.len();
    let answer = answer
        .bytes(limit)
        .await
        .map_err(BenchError::failed("reading the answer"))?;
    is_same(&answer, &body)
}

/// One call on a connection of its own.
async fn call_once(
    connection: hailwire::carrier::CarrierConnection,
    body: Bytes,
) -> Result<(), BenchError> {
    let _control = peer::greet(&connection).await?;
    let answer = peer::ask(&connection, "echo", "", body.clone()).await;
    connection.close(hailwire::Code::Ok, "enough");
    is_same(&answer?, &body)
}

fn is_same(answer: &Bytes, body: &Bytes) -> Result<(), BenchError> {
    if answer == body {
        Ok(())
    } else {
        Err(BenchError::Invalid(
            "the answer differs from the request".into(),
        ))
    }
}

/// A body that no other call has.
fn body(number: u64) -> Bytes {
    let mut body = format!("{number}:{:?}:", Instant::now()).into_bytes();
    let mut next = number as u8;
    body.resize_with(ECHO_BODY_BYTES, || {
        next = next.wrapping_mul(31).wrapping_add(7);
        next
    });
    body.into()
}

/// A line that no other call has.
fn line(number: u64) -> Bytes {
    format!("{number}:{:?}\n", Instant::now()).into()
}
