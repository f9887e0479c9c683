//! Bodies of the peer: the pattern, answers made of it, and pauses.

use std::time::{Duration, Instant};

use hailwire::{Body, BodySender, Code, Request, Response, Status};
use serde::Deserialize;
use tokio::time::sleep;

use crate::read_json;

/// So many bytes of the pattern, written as they are read.
pub(crate) async fn write_pattern(
    sender: BodySender,
    bytes: u64,
    chunk: usize,
    end: Option<Status>,
) {
    let period: Vec<u8> = (0..251 * 256_usize)
        .map(|i| ((i * 31 + (i >> 8)) % 251) as u8)
        .collect();
    let mut at = 0;
    while at < bytes {
        let mut part = Vec::with_capacity(chunk);
        while part.len() < chunk && at < bytes {
            let start = usize::try_from(at).unwrap_or_default() % period.len();
            let left = usize::try_from(bytes - at).unwrap_or(usize::MAX);
            let end = period.len().min(start + left.min(chunk - part.len()));
            part.extend_from_slice(&period[start..end]);
            at += (end - start) as u64;
        }
        if sender.send(part).await.is_err() {
            return;
        }
    }
    match end {
        Some(status) => sender.abort(status).await,
        None => {
            let _ = sender.finish().await;
        }
    }
}

#[derive(Deserialize)]
#[serde(default)]
struct Produce {
    bytes: u64,
    chunk: usize,
    r#type: String,
    headers: Vec<(String, String)>,
    status: Option<ProducedStatus>,
}

impl Default for Produce {
    fn default() -> Self {
        Self {
            bytes: 0,
            chunk: 65_536,
            r#type: String::new(),
            headers: Vec::new(),
            status: None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProducedStatus {
    code: u64,
    message: String,
    hint: String,
    details: String,
    retry_after_ms: u64,
}

pub(crate) async fn produce(request: Request) -> Result<Response, Status> {
    let asked: Produce = read_json(request).await?;
    let status = asked.status.map(|status| {
        Status::new(Code::from_number(status.code), status.message)
            .with_hint(status.hint)
            .with_details(status.details)
            .with_retry_after(Duration::from_millis(status.retry_after_ms))
    });
    let status = status.filter(|status| !status.is_ok());
    let (sender, body) = Body::channel(2);
    tokio::spawn(write_pattern(
        sender,
        asked.bytes,
        asked.chunk.max(1),
        status,
    ));
    let response = Response::new(body).content_type(asked.r#type);
    let fields = asked.headers.into_iter();
    Ok(fields.fold(response, |response, (name, value)| {
        response.header(name, value)
    }))
}

/// Pauses are saved up until they come to a millisecond, which is the least that a timer knows.
#[derive(Default)]
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) async fn add(&mut self, pause: Duration) {
        self.0 += pause;
        if self.0 >= Duration::from_millis(1) {
            let began = Instant::now();
            sleep(self.0).await;
            self.0 = self.0.saturating_sub(began.elapsed());
        }
    }
}
