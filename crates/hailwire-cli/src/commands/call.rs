//! `hail call`: the answer on stdout as it arrives.
//!
//! With `--json` the answer is a line of JSON per event: `{"head":…}`, then for each chunk
//! `{"text":…}` where it is UTF-8 and `{"base64":…}` where it is not, then `{"end":…}` with the
//! numbers of `--stats`. A failed call ends with the failure on stderr instead.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use data_encoding::BASE64;
use hailwire::{
    Answer, Client,
    admin::{ResolveAnswer, ResolveRequest, method},
    client::Call,
};
use hailwire_terminal::{
    failure::CommandFailure,
    output::{Output, stdout_failure},
    text,
};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncWriteExt as _, Stdout};

use super::{CommandContext, binary_to_terminal::BinaryToTerminal, body, connect, did_you_mean};
use crate::plan;

/// What `--stats` measures.
#[derive(Debug, Serialize)]
struct CallStats {
    /// The node that answered; absent if the address names none.
    #[serde(flatten)]
    route: Option<ResolveAnswer>,
    /// Microseconds from the request to the first byte or the end of the answer.
    first_byte_us: u64,
    /// Microseconds from the request to the end of the answer.
    total_us: u64,
    /// Bytes of the answer.
    bytes: u64,
}

pub(super) async fn run(
    run: &CommandContext,
    call: plan::CallPlan,
    stats: bool,
) -> Result<(), CommandFailure> {
    let source = match call.further.most_further() {
        0 => body::open(call.body.clone()).await?,
        // Whatever is made again is known whole.
        _ => {
            let what = "a call may have that is made again";
            let hint = "without --retry and --hedge-after it has any size";
            body::open_whole(call.body.clone(), what, hint)
                .await?
                .into()
        }
    };
    let client = connect::attach(run).await?;
    let route = match stats {
        true => Some(resolve(&client, &call).await?),
        false => None,
    };
    let begun = Instant::now();
    let to = call.to.clone();
    let sent = prepare(&client, call).body(source).send().await;
    let mut answer = did_you_mean::or(&client, &to, sent).await?;
    let mut printer = AnswerPrinter {
        output: run.output,
        stdout: tokio::io::stdout(),
        binary: BinaryToTerminal::new(
            std::io::stdout().is_terminal(),
            std::io::stdin().is_terminal(),
        ),
    };
    printer.head(&answer).await?;
    let mut first = None;
    let mut bytes = 0;
    while let Some(chunk) = answer.chunk().await? {
        first.get_or_insert_with(|| begun.elapsed());
        bytes += chunk.len() as u64;
        printer.chunk(&chunk).await?;
    }
    let total = begun.elapsed();
    let stats = stats.then(|| CallStats {
        route,
        first_byte_us: micros(first.unwrap_or(total)),
        total_us: micros(total),
        bytes,
    });
    printer.end(stats.as_ref()).await
}

/// A call without its body.
pub(super) fn prepare(client: &Client, call: plan::CallPlan) -> Call {
    let mut builder = client
        .call(call.to.to_string())
        .method(call.method)
        .priority(call.priority)
        .content_type(call.content_type)
        .carrier(call.carrier)
        .idempotency_key(call.idempotency_key)
        .affinity(call.affinity)
        .retries(call.further.retries);
    if let Some(slow) = call.further.hedge_after {
        builder = builder.hedge_after(slow);
    }
    if let Some(agent) = &call.from {
        builder = builder.from_agent(agent);
    }
    for (name, value) in call.headers {
        builder = builder.header(name, value);
    }
    match call.deadline {
        Some(left) => builder.deadline(left),
        None => builder,
    }
}

/// Finds the agent and brings the tunnel up, measured separately from the call.
pub(super) async fn resolve(
    client: &Client,
    call: &plan::CallPlan,
) -> Result<ResolveAnswer, CommandFailure> {
    let ask = ResolveRequest {
        who: call.to.to_string(),
        carrier: call.carrier.name().to_owned(),
    };
    let resolve = client.admin::<_, ResolveAnswer>(method::RESOLVE, &ask);
    match call.deadline {
        None => Ok(resolve.await?),
        Some(limit) => match tokio::time::timeout(limit, resolve).await {
            Ok(resolved) => Ok(resolved?),
            Err(_) => Err(CommandFailure::timed_out(limit)),
        },
    }
}

struct AnswerPrinter {
    output: Output,
    stdout: Stdout,
    binary: BinaryToTerminal,
}

impl AnswerPrinter {
    async fn head(&mut self, answer: &Answer) -> Result<(), CommandFailure> {
        match self.output.json {
            true => self.event(&json!({ "head": answer.head() })).await,
            false => Ok(()),
        }
    }

    async fn chunk(&mut self, chunk: &[u8]) -> Result<(), CommandFailure> {
        if !self.output.json {
            self.binary.check(chunk)?;
            return self.write(chunk).await;
        }
        let event = match std::str::from_utf8(chunk) {
            Ok(text) => json!({ "text": text }),
            Err(_) => json!({ "base64": BASE64.encode(chunk) }),
        };
        self.event(&event).await
    }

    /// Prints one line of JSON.
    async fn event(&mut self, event: &serde_json::Value) -> Result<(), CommandFailure> {
        let line = text::json(&event.to_string()) + "\n";
        self.write(line.as_bytes()).await
    }

    async fn end(&mut self, stats: Option<&CallStats>) -> Result<(), CommandFailure> {
        if self.output.json {
            let end = json!({ "end": { "code": "ok", "stats": stats } });
            return self.event(&end).await;
        }
        if let Some(stats) = stats {
            self.output.note(&stats.for_people());
        }
        Ok(())
    }

    /// Flushes after each chunk, so that a reader sees it as it arrives.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), CommandFailure> {
        let written = async {
            self.stdout.write_all(bytes).await?;
            self.stdout.flush().await
        };
        written.await.map_err(|error| stdout_failure(&error))
    }
}

impl CallStats {
    fn for_people(&self) -> String {
        let time = |us| text::time(Duration::from_micros(us));
        let mut lines = Vec::new();
        if let Some(route) = &self.route {
            let name = if route.name.is_empty() {
                route.node.short()
            } else {
                route.name.clone()
            };
            let (where_, path) = match route.local {
                true => ("this node".to_owned(), "none: the agent is here".to_owned()),
                false => (name, format!("{} {}", route.path.kind, route.path.remote)),
            };
            let connect = match (route.local, route.reused) {
                (true, _) => "on this machine".to_owned(),
                (false, true) => format!("{}, tunnel reused", time(route.connect_us)),
                (false, false) => format!("{}, a new tunnel", time(route.connect_us)),
            };
            lines.push(("node", where_));
            lines.push(("resolve", time(route.resolve_us)));
            lines.push(("connect", connect));
            lines.push(("path", path));
            if !route.local {
                lines.push(("carrier", route.carrier.clone()));
                lines.push(("RTT", time(route.path.rtt_us)));
            }
        }
        lines.push(("first byte", time(self.first_byte_us)));
        lines.push(("total", time(self.total_us)));
        lines.push(("answer", text::bytes(self.bytes)));
        let line =
            |(what, value): &(&str, String)| format!("{what:<10}  {}", text::one_line(value));
        lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
