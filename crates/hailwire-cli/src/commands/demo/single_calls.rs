//! Scenes of single calls: one that is cancelled, one of a stranger, and two requests that a proxy has inspected.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use hailwire::{
    Client, Code, DataDir, NodeId, Status,
    admin::{TrustAdd, TrustedPeer, method},
};
use hailwire_callout::{
    Decision,
    event::{Metadata, RequestHeaders},
    inspect::{Config, Inspector},
};
use hailwire_terminal::{failure::CommandFailure, text};

use super::{
    process::ProcessReady,
    processes::NEIGHBOUR,
    scene_agents::{BEGAN, ENDLESS, HELLO, INSPECT, STOPPED, WATCH, WATCHING},
};
use crate::commands::callout::EndpointConnectors;

/// Deadline of a call, and of what follows from it.
const DEADLINE: Duration = Duration::from_secs(5);

/// A request that does no harm.
const HARMLESS: &str = "/articles?id=42";

/// SQL injection.
const ATTACK: &str = "/articles?id=1%27%20UNION%20SELECT%20name,password%20FROM%20users--";

/// A call without end is cancelled, and the program at the other end stops.
pub(super) async fn cancel(client: &Client) -> Result<String, CommandFailure> {
    let watch = client.call(format!("{WATCH}@{NEIGHBOUR}"));
    let mut lines = Box::pin(watch.send()).await?;
    line(&mut lines, WATCHING).await?;
    let endless = client.call(format!("{ENDLESS}@{NEIGHBOUR}"));
    let call = tokio::spawn(async move { endless.send().await.map(drop) });
    line(&mut lines, BEGAN).await?;
    let cancelled = Instant::now();
    call.abort();
    line(&mut lines, STOPPED).await?;
    Ok(format!(
        "a call is cancelled, and the program at the other end has stopped {} later",
        text::time(cancelled.elapsed())
    ))
}

async fn line(lines: &mut hailwire::Answer, expected: &str) -> Result<(), CommandFailure> {
    let read = tokio::time::timeout(DEADLINE, lines.chunk());
    let late = |_| {
        let what = format!("no `{}` within {} s", expected.trim(), DEADLINE.as_secs());
        Status::new(Code::DeadlineExceeded, what)
    };
    match read.await.map_err(late)?? {
        Some(chunk) if chunk == expected => Ok(()),
        other => {
            let what = format!("{other:?} came, not `{}`", expected.trim());
            Err(Status::new(Code::DataLoss, what).into())
        }
    }
}

/// A node that nobody trusts calls an agent, and is refused.
pub(super) async fn stranger(
    stranger: &Client,
    neighbour: &ProcessReady,
) -> Result<String, CommandFailure> {
    knows(stranger, neighbour.id, &neighbour.addresses).await?;
    let begun = Instant::now();
    let call = stranger.call(format!("{HELLO}@{NEIGHBOUR}"));
    match Box::pin(call.deadline(DEADLINE).send()).await {
        Err(status) if status.code == Code::PermissionDenied => Ok(format!(
            "a stranger, who knows key and address, is refused after {}: {}",
            text::time(begun.elapsed()),
            status.message
        )),
        Err(status) => Err(status.into()),
        Ok(_) => Err(Status::new(Code::Internal, "a stranger was answered").into()),
    }
}

/// Tells a node of another, which is not told of it.
async fn knows(
    stranger: &Client,
    id: NodeId,
    addresses: &[String],
) -> Result<TrustedPeer, CommandFailure> {
    let add = TrustAdd {
        id,
        alias: NEIGHBOUR.to_owned(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: addresses.to_vec(),
        tcp: Vec::new(),
    };
    Ok(Box::pin(stranger.admin(method::TRUST_ADD, &add)).await?)
}

/// A proxy asks an agent on another node about two requests.
pub(super) async fn proxy(
    node: DataDir,
    agent_at: &str,
    place: &str,
) -> Result<String, CommandFailure> {
    let config = format!(
        "agents {{ agent \"{INSPECT}\" type=\"waf\" {{ hail \"{INSPECT}@{agent_at}\"; events \
         \"request_headers\"; timeout-ms 3000; on-timeout \"block\" 503; on-error \"block\" 503 }} }}"
    );
    let config = Config::parse(&config, Path::new("demo.kdl"))
        .map_err(|error| CommandFailure::caused(Code::Internal, &error))?;
    let connectors = EndpointConnectors::of_node(node);
    let inspector = Inspector::from_config(&config, &|agent, place| connectors.reach(agent, place))
        .map_err(|error| CommandFailure::caused(Code::Internal, &error))?;
    if !inspector.ready(DEADLINE).await {
        let what = format!("the inspection agent `{INSPECT}@{agent_at}` does not answer");
        return Err(Status::new(Code::Unavailable, what).into());
    }
    let begun = Instant::now();
    decided(&inspector, HARMLESS, |decision| {
        matches!(decision, Decision::Allow)
    })
    .await?;
    let passed = begun.elapsed();
    let begun = Instant::now();
    decided(&inspector, ATTACK, |decision| {
        matches!(decision, Decision::Block { status: 403, .. })
    })
    .await?;
    Ok(format!(
        "a proxy asks an agent {place}: a harmless request passes ({}), SQL injection gets 403 ({})",
        text::time(passed),
        text::time(begun.elapsed())
    ))
}

async fn decided(
    inspector: &Inspector,
    uri: &str,
    expected: impl Fn(&Decision) -> bool,
) -> Result<(), CommandFailure> {
    let metadata = Metadata {
        correlation_id: uri,
        request_id: uri,
        client_ip: "192.0.2.1",
        client_port: 4711,
        protocol: "HTTP/1.1",
        timestamp: "1970-01-01T00:00:00Z",
        ..Metadata::default()
    };
    let head = RequestHeaders::new(&metadata, "GET", uri, [("host", "www.example.org")]);
    let verdict = inspector.exchange().request_headers(head).await;
    if expected(&verdict.decision) {
        return Ok(());
    }
    let what = format!("the decision about {uri} was {:?}", verdict.decision);
    Err(Status::new(Code::Internal, what).into())
}
