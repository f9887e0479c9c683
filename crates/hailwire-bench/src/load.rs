//! The work that subjects are compared by, and the three subjects.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hailwire::{Agent, Client, Request, Response, Serving, Status};
use hdrhistogram::Histogram;
use iroh::endpoint::Connection;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{BenchError, cpu_time};

/// Size of the chunks in which a large answer is made.
const CHUNK: usize = 256 * 1024;

/// What a subject is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Echo `bytes` `count` times, one after the other, each timed.
    Latency {
        /// How often.
        count: u32,
        /// Size of each message.
        bytes: usize,
    },
    /// Echo `bytes` `count` times with `in_flight` at once.
    Rate {
        /// How often.
        count: u32,
        /// Size of each message.
        bytes: usize,
        /// How many at once.
        in_flight: u32,
    },
    /// Stream an answer of `bytes` once.
    Bulk {
        /// Size of the answer.
        bytes: u64,
    },
}

/// What came of it, as one subject measured it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Wall time of all of it, in seconds.
    pub seconds: f64,
    /// User and system time of the loading process, in seconds (resolution 10 ms).
    pub cpu_seconds: f64,
    /// Messages, or answers streamed.
    pub count: u64,
    /// Body bytes received.
    pub bytes: u64,
    /// Latency in microseconds; only for [`Work::Latency`].
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// Largest.
    pub max_us: Option<f64>,
}

impl Measured {
    /// Messages a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// Megabytes (10⁶) a second.
    #[must_use]
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// A way to reach the echo on the far side.
#[derive(Clone, Debug)]
pub enum Subject {
    /// One QUIC stream per message on a bare iroh connection.
    Iroh(Connection),
    /// A call through a node, embedded or attached.
    Hailwire {
        /// The caller's side.
        client: Client,
        /// Address of the agent that echoes.
        echo: String,
        /// Address of the agent that streams.
        bulk: String,
    },
}

impl Subject {
    /// The agents of [`serve_agents`] at a node.
    #[must_use]
    pub fn hailwire(client: Client, node: &str) -> Self {
        Self::Hailwire {
            client,
            echo: format!("echo@{node}"),
            bulk: format!("bulk@{node}"),
        }
    }

    async fn echo(&self, body: Bytes) -> Result<Bytes, BenchError> {
        match self {
            Self::Iroh(connection) => {
                let (mut send, mut recv) = connection.open_bi().await.map_err(wrong)?;
                send.write_chunk(body.clone()).await.map_err(wrong)?;
                send.finish().map_err(wrong)?;
                let first = recv
                    .read_chunk(usize::MAX)
                    .await
                    .map_err(wrong)?
                    .unwrap_or_default();
                if first.len() == body.len() {
                    return Ok(first);
                }
                let mut all = first.to_vec();
                all.extend(recv.read_to_end(body.len()).await.map_err(wrong)?);
                Ok(all.into())
            }
            Self::Hailwire { client, echo, .. } => {
                let limit = body.len();
                let call = client.call(echo.clone()).body(body);
                call.send()
                    .await
                    .map_err(wrong)?
                    .bytes(limit)
                    .await
                    .map_err(wrong)
            }
        }
    }

    /// Receives `bytes` of a counting pattern and checks it.
    async fn bulk(&self, bytes: u64) -> Result<u64, BenchError> {
        let mut got = 0;
        match self {
            Self::Iroh(connection) => {
                let (mut send, mut recv) = connection.open_bi().await.map_err(wrong)?;
                let ask = Bytes::from([b"bulk".as_slice(), &bytes.to_be_bytes()].concat());
                send.write_chunk(ask).await.map_err(wrong)?;
                send.finish().map_err(wrong)?;
                while let Some(chunk) = recv.read_chunk(CHUNK).await.map_err(wrong)? {
                    got = check_pattern(got, &chunk)?;
                }
            }
            Self::Hailwire { client, bulk, .. } => {
                let call = client.call(bulk.clone());
                let mut answer = call.body(bytes.to_string()).send().await.map_err(wrong)?;
                while let Some(chunk) = answer.chunk().await.map_err(wrong)? {
                    got = check_pattern(got, &chunk)?;
                }
            }
        }
        Ok(got)
    }
}

/// Does one piece of work on one subject.
///
/// # Errors
///
/// [`BenchError::Wrong`] for an answer that is not what was sent, or none.
pub async fn run(subject: &Subject, work: Work) -> Result<Measured, BenchError> {
    let (begun, cpu) = (Instant::now(), cpu_time());
    let mut measured = match work {
        Work::Latency { count, bytes } => latency(subject, count, bytes).await?,
        Work::Rate {
            count,
            bytes,
            in_flight,
        } => rate(subject, count, bytes, in_flight).await?,
        Work::Bulk { bytes } => {
            let got = subject.bulk(bytes).await?;
            if got != bytes {
                return Err(BenchError::Wrong(format!("{got} bytes instead of {bytes}")));
            }
            Measured {
                count: 1,
                bytes,
                ..Measured::default()
            }
        }
    };
    measured.seconds = begun.elapsed().as_secs_f64();
    measured.cpu_seconds = cpu_time().saturating_sub(cpu).as_secs_f64();
    Ok(measured)
}

async fn latency(subject: &Subject, count: u32, bytes: usize) -> Result<Measured, BenchError> {
    let body = message(bytes);
    let mut times = histogram();
    for _ in 0..count {
        let begun = Instant::now();
        check_echo(&body, &subject.echo(body.clone()).await?)?;
        times.saturating_record(nanos(begun.elapsed()));
    }
    let quantile = |q: f64| Some(times.value_at_quantile(q) as f64 / 1e3);
    Ok(Measured {
        count: u64::from(count),
        bytes: u64::from(count) * bytes as u64,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        max_us: Some(times.max() as f64 / 1e3),
        ..Measured::default()
    })
}

async fn rate(
    subject: &Subject,
    count: u32,
    bytes: usize,
    in_flight: u32,
) -> Result<Measured, BenchError> {
    let body = message(bytes);
    let left = Arc::new(std::sync::atomic::AtomicI64::new(i64::from(count)));
    let mut workers = JoinSet::new();
    for _ in 0..in_flight {
        let (subject, body, left) = (subject.clone(), body.clone(), left.clone());
        workers.spawn(async move {
            while left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 {
                check_echo(&body, &subject.echo(body.clone()).await?)?;
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(done) = workers.join_next().await {
        done.map_err(wrong)??;
    }
    let bytes = u64::from(count) * bytes as u64;
    Ok(Measured {
        count: u64::from(count),
        bytes,
        ..Measured::default()
    })
}

/// Serves the far side of [`Subject::Iroh`] on one connection.
pub async fn serve_iroh(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        tokio::spawn(async move {
            let Ok(Some(first)) = recv.read_chunk(usize::MAX).await else {
                return;
            };
            if let Some(count) = first.strip_prefix(b"bulk")
                && let Ok(count) = count.try_into().map(u64::from_be_bytes)
            {
                for chunk in pattern(count) {
                    if send.write_chunk(chunk).await.is_err() {
                        return;
                    }
                }
            } else {
                let _ = send.write_chunk(first).await;
                while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
                    let _ = send.write_chunk(chunk).await;
                }
            }
            let _ = send.finish();
        });
    }
}

/// Serves the agents `echo` and `bulk`, the far side of [`Subject::Hailwire`].
///
/// # Errors
///
/// The node refused an agent.
pub async fn serve_agents(client: &Client) -> Result<[Serving; 2], Status> {
    let agent = |name: &str| {
        Agent::new(name).map_err(|e| Status::new(hailwire::Code::Internal, e.to_string()))
    };
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    let bulk = |mut request: Request| async move {
        let asked = request.body_mut().bytes(64).await?;
        let count = std::str::from_utf8(&asked)
            .ok()
            .and_then(|text| text.parse().ok());
        let count = count
            .ok_or_else(|| Status::new(hailwire::Code::InvalidArgument, "expected a number"))?;
        let (sender, body) = hailwire::Body::channel(4);
        tokio::spawn(async move {
            for chunk in pattern(count) {
                sender.send(chunk).await?;
            }
            sender.finish().await
        });
        Ok(Response::new(body))
    };
    Ok([
        client.serve(agent("echo")?, echo).await?,
        client.serve(agent("bulk")?, bulk).await?,
    ])
}

/// `count` bytes, each its own position modulo 251.
fn pattern(count: u64) -> impl Iterator<Item = Bytes> {
    // One period longer than a chunk, so that every chunk is a slice without a copy.
    let source: Bytes = (0..CHUNK + 251)
        .map(|i| (i % 251) as u8)
        .collect::<Vec<_>>()
        .into();
    (0..count).step_by(CHUNK).map(move |at| {
        let len = (count - at).min(CHUNK as u64) as usize;
        let phase = (at % 251) as usize;
        source.slice(phase..phase + len)
    })
}

/// Checks a chunk that begins at `at`, at its ends and in its middle, and returns where it ends.
fn check_pattern(at: u64, chunk: &[u8]) -> Result<u64, BenchError> {
    let wrong_at = |i: usize| {
        chunk
            .get(i)
            .is_some_and(|b| *b != ((at + i as u64) % 251) as u8)
    };
    if [0, chunk.len() / 2, chunk.len().saturating_sub(1)]
        .into_iter()
        .any(wrong_at)
    {
        return Err(BenchError::Wrong(format!(
            "the stream is damaged near byte {at}"
        )));
    }
    Ok(at + chunk.len() as u64)
}

fn check_echo(sent: &Bytes, got: &Bytes) -> Result<(), BenchError> {
    if sent == got {
        Ok(())
    } else {
        Err(BenchError::Wrong("an echo differs from its message".into()))
    }
}

fn message(bytes: usize) -> Bytes {
    (0..bytes)
        .map(|i| (i % 253) as u8)
        .collect::<Vec<_>>()
        .into()
}

fn histogram() -> Histogram<u64> {
    #[expect(clippy::expect_used, reason = "constant bounds that the crate accepts")]
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn wrong(error: impl std::fmt::Display) -> BenchError {
    BenchError::Wrong(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_whole_and_damage_is_seen() {
        let count = 3 * CHUNK as u64 + 17;
        let mut at = 0;
        for chunk in pattern(count) {
            at = check_pattern(at, &chunk).unwrap();
        }
        assert_eq!(at, count);
        assert!(check_pattern(1, &[0, 1, 2]).is_err());
    }
}
