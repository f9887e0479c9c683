//! Honest calls: due at a stated rate whatever becomes of those before, every answer checked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::{Client, NodeId, carrier::tcp::Identity, hub::HubClient};
use hailwire_wire::{
    address::NodeRef,
    ticket::{SHOWN_AGAIN, Secret},
};
use iroh::Endpoint;
use tokio::{sync::watch, task::JoinSet};

use super::{
    Kind,
    house::{DESK, House, NEWCOMERS, SHELF, VICTIM},
    metronome,
    peer::{self, Place, Seed, failed},
    record::{Calls, Phase},
};
use crate::{BenchError, measure::Times};

/// A call that has no answer by then is lost.
const DEADLINE: Duration = Duration::from_secs(10);

/// Bytes of the body of an echo.
const BODY: usize = 1_000;

/// Different reasons that are kept.
const MOST_REASONS: usize = 12;

/// What honest callers do, and how often a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// A program on the machine of the attacked node.
    Local,
    /// A node over QUIC.
    Quic,
    /// A node over HTTP/2.
    Http2,
    /// An agent that is a program kept for all calls.
    Lines,
    /// An agent that is a program started for each call.
    Program,
    /// A new connection over QUIC, and a call on it.
    NewQuic,
    /// A new connection over TCP, and a call on it.
    NewTcp,
    /// A stranger that redeems a ticket.
    Join,
    /// A member that looks the node up at the hub.
    Lookup,
}

impl Flow {
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

    /// 200 a second in all.
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

/// Who calls.
pub(super) struct Honest {
    ways: Arc<Ways>,
}

struct Ways {
    local: Client,
    desk: Client,
    shelf: Client,
    victim: Place,
    secret: Secret,
    newcomers: Vec<Endpoint>,
    newcomers_tcp: Vec<Identity>,
    member: HubClient,
}

impl Honest {
    /// Everything that is done before the first call.
    pub(super) async fn new(house: &House) -> Result<Self, BenchError> {
        let (by_quic, others) = house.newcomers.split_at(NEWCOMERS);
        let Some((member, by_tcp)) = others.split_first() else {
            return Err(BenchError::Unsupported("newcomers are needed"));
        };
        let mut newcomers = Vec::new();
        for seed in by_quic {
            newcomers.push(seed.endpoint().await?);
        }
        let ticket = house.hub.read()?;
        let pins = hailwire::hub::tls::Pins::default();
        let member = HubClient::new(ticket.url, ticket.key, member.pair(), &pins);
        let member = member.map_err(failed("the hub"))?;
        member
            .join(ticket.secret)
            .await
            .map_err(failed("joining the hub"))?;
        let ways = Ways {
            local: house.attach(VICTIM).await?,
            desk: house.attach(DESK).await?,
            shelf: house.attach(SHELF).await?,
            victim: house.victim,
            secret: house.secret.clone(),
            newcomers,
            newcomers_tcp: by_tcp
                .iter()
                .map(Seed::identity)
                .collect::<Result<_, _>>()?,
            member,
        };
        let honest = Self {
            ways: Arc::new(ways),
        };
        // Each once, so that tunnels are up and programs started.
        for (number, flow) in Flow::ALL.into_iter().enumerate() {
            let called = honest.ways.call(flow, number as u64).await;
            called.map_err(|error| BenchError::Part {
                part: flow.name().to_owned(),
                reason: error.told(),
            })?;
        }
        Ok(honest)
    }

    /// Calls for a time or until it is over, and gives what became of it once every call has ended.
    pub(super) async fn run(
        &self,
        attackers: &[Kind],
        phase: Phase,
        time: Duration,
        mut over: watch::Receiver<bool>,
    ) -> Vec<Calls> {
        let rates = Flow::ALL.map(Flow::per_second);
        let mut due = metronome::start(&rates, time);
        let tallies: Arc<Vec<Mutex<Tally>>> =
            Arc::new(Flow::ALL.iter().map(|_| Mutex::default()).collect());
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                next = due.recv() => {
                    let Some(next) = next else { break };
                    let Some(flow) = Flow::ALL.get(next.flow).copied() else { continue };
                    let (ways, tallies) = (self.ways.clone(), tallies.clone());
                    calls.spawn(async move {
                        let left = DEADLINE.saturating_sub(next.at.elapsed());
                        let called = tokio::time::timeout(left, ways.call(flow, next.number)).await;
                        let took = next.at.elapsed();
                        let mut tally = lock(&tallies[next.flow]);
                        tally.took(called.map_err(|_| BenchError::Unsupported("no answer in time")), took);
                    });
                }
                Some(_) = calls.join_next() => {}
                _ = over.wait_for(|over| *over) => break,
            }
        }
        drop(due);
        while calls.join_next().await.is_some() {}
        Flow::ALL
            .iter()
            .zip(tallies.iter())
            .map(|(flow, tally)| lock(tally).calls(attackers, phase, *flow))
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of the calls of one flow.
#[derive(Default)]
struct Tally {
    sent: u64,
    answered: u64,
    wrong: u64,
    lost: BTreeMap<String, u64>,
    times: Times,
}

impl Tally {
    fn took(&mut self, called: Result<Result<(), BenchError>, BenchError>, took: Duration) {
        self.sent += 1;
        match called.and_then(|called| called) {
            Ok(()) => {
                self.answered += 1;
                self.times.record(took);
            }
            Err(error) => {
                if matches!(error, BenchError::Wrong(_)) {
                    self.wrong += 1;
                }
                let mut reason = error.told();
                if self.lost.len() >= MOST_REASONS && !self.lost.contains_key(&reason) {
                    reason = "another reason".to_owned();
                }
                *self.lost.entry(reason).or_default() += 1;
            }
        }
    }

    fn calls(&self, attackers: &[Kind], phase: Phase, flow: Flow) -> Calls {
        let measured = self.times.measured();
        let us = |share| {
            if self.times.count() == 0 {
                0.0
            } else {
                self.times.quantile_us(share)
            }
        };
        Calls {
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

impl Ways {
    async fn call(&self, flow: Flow, number: u64) -> Result<(), BenchError> {
        match flow {
            Flow::Local => echo(&self.local, "echo", body(number)).await,
            Flow::Quic => echo(&self.desk, "echo@victim", body(number)).await,
            Flow::Http2 => echo(&self.shelf, "echo@victim", body(number)).await,
            Flow::Lines => echo(&self.desk, "lines@victim", line(number)).await,
            Flow::Program => echo(&self.desk, "program@victim", body(number)).await,
            Flow::NewQuic => {
                let connection = self.victim.quic(in_turn(&self.newcomers, number)?).await?;
                call_once(connection, body(number)).await
            }
            Flow::NewTcp => {
                let connection = self
                    .victim
                    .ws(in_turn(&self.newcomers_tcp, number)?)
                    .await?;
                call_once(connection, body(number)).await
            }
            Flow::Join => self.join().await,
            Flow::Lookup => self.look_up(self.victim.node).await,
        }
    }

    async fn join(&self) -> Result<(), BenchError> {
        let endpoint = Seed::draw()?.endpoint().await?;
        let mut joined = self.shown(&endpoint).await;
        // As `hail join` does: whoever stands behind the address of a flood may be put out before it has
        // shown its ticket.
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

    /// Dials the victim and shows it a ticket's secret.
    async fn shown(&self, endpoint: &Endpoint) -> Result<(), BenchError> {
        let connection = self.victim.quic(endpoint).await?;
        let _control = peer::greet(&connection).await?;
        peer::redeem(&connection, self.secret.clone()).await?;
        connection.close(hailwire::Code::Ok, "joined");
        Ok(())
    }

    async fn look_up(&self, node: NodeId) -> Result<(), BenchError> {
        let found = self.member.lookup(&NodeRef::Id(node)).await;
        match found.map_err(failed("the hub"))? {
            Some(record) if record.node() == node => Ok(()),
            _ => Err(BenchError::Wrong("the hub does not know the node".into())),
        }
    }
}

fn in_turn<T>(all: &[T], number: u64) -> Result<&T, BenchError> {
    let one = all.get(number as usize % all.len().max(1));
    one.ok_or(BenchError::Unsupported("newcomers are needed"))
}

async fn echo(client: &Client, to: &str, body: Bytes) -> Result<(), BenchError> {
    let call = client.call(to).body(body.clone()).deadline(DEADLINE);
    let mut answer = call.send().await.map_err(failed("the call"))?;
    let limit = 2 * body.len();
    let answer = answer.bytes(limit).await.map_err(failed("the answer"))?;
    is_same(&answer, &body)
}

/// One call on a connection of its own.
async fn call_once(
    connection: hailwire::carrier::Connection,
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
        Err(BenchError::Wrong(
            "another answer than was asked for".into(),
        ))
    }
}

/// A body that no other call has.
fn body(number: u64) -> Bytes {
    let mut body = format!("{number}:{:?}:", Instant::now()).into_bytes();
    let mut next = number as u8;
    body.resize_with(BODY, || {
        next = next.wrapping_mul(31).wrapping_add(7);
        next
    });
    body.into()
}

/// A line that no other call has.
fn line(number: u64) -> Bytes {
    format!("{number}:{:?}\n", Instant::now()).into()
}
