//! The agents that the scenes call: one that greets, one that works without end, one that tells when that began and
//! stopped, and one that inspects the requests of a proxy.

use std::sync::Arc;

use hailwire::{Agent, Body, Client, Code, Request, Response, ServeHandle, Status};
use hailwire_callout::event::RequestHeaders;
use hailwire_terminal::failure::CommandFailure;
use tokio::sync::broadcast;

use crate::commands::callout::remote_agent;

/// Greets.
pub(super) const HELLO: &str = "hello";

/// Works until its caller cancels.
pub(super) const ENDLESS: &str = "endless";

/// Streams [`WATCHING`], and then [`BEGAN`] and [`STOPPED`], a line each, as `endless` does.
pub(super) const WATCH: &str = "watch";

/// Inspects the requests of proxies.
pub(super) const INSPECT: &str = "inspect";

/// The first line, which says that nothing will be missed: an answer is on its way only once there is something in it.
pub(super) const WATCHING: &str = "watching\n";

/// The line of a call of [`ENDLESS`] that has begun.
pub(super) const BEGAN: &str = "began\n";

/// The line of a call of [`ENDLESS`] that was stopped.
pub(super) const STOPPED: &str = "stopped\n";

/// Lines that wait for a slow watcher.
const QUEUED_LINES: usize = 16;

/// Serves them for as long as the handles are kept.
pub(super) async fn serve(client: &Client) -> Result<Vec<ServeHandle>, CommandFailure> {
    let (lines, _) = broadcast::channel(QUEUED_LINES);
    let watched = lines.clone();
    Ok(vec![
        client.serve(agent(HELLO)?, hello).await?,
        client
            .serve(agent(ENDLESS)?, move |_: Request| endless(lines.clone()))
            .await?,
        client
            .serve(agent(WATCH)?, move |_: Request| watch(watched.subscribe()))
            .await?,
        client.serve(agent(INSPECT)?, inspect).await?,
    ])
}

fn agent(name: &str) -> Result<Agent, CommandFailure> {
    let agent = Agent::new(name).map_err(|error| CommandFailure::general(error.to_string()))?;
    Ok(agent.tag("demo"))
}

async fn hello(_: Request) -> Result<Response, Status> {
    Ok(Response::new("hello"))
}

async fn endless(lines: broadcast::Sender<&'static str>) -> Result<Response, Status> {
    let _work = EndlessWork::begin(lines);
    std::future::pending().await
}

/// Work that tells when it begins and when it is dropped.
struct EndlessWork(broadcast::Sender<&'static str>);

impl EndlessWork {
    fn begin(lines: broadcast::Sender<&'static str>) -> Self {
        // Nobody has to watch.
        let _ = lines.send(BEGAN);
        Self(lines)
    }
}

impl Drop for EndlessWork {
    fn drop(&mut self) {
        let _ = self.0.send(STOPPED);
    }
}

async fn watch(mut lines: broadcast::Receiver<&'static str>) -> Result<Response, Status> {
    let (sender, body) = Body::channel(QUEUED_LINES);
    tokio::spawn(async move {
        if sender.send(WATCHING).await.is_err() {
            return;
        }
        while let Ok(line) = lines.recv().await {
            if sender.send(line).await.is_err() {
                return;
            }
        }
        let status = Status::new(Code::ResourceExhausted, "the watcher reads too slowly");
        sender.abort(status).await;
    });
    Ok(Response::new(body))
}

async fn inspect(request: Request) -> Result<Response, Status> {
    remote_agent::answered_by(Arc::new(NoUnionSelect), request)
}

/// Blocks requests with the commonest SQL injection in their URI; the firewall of `hail callout waf` knows the others.
struct NoUnionSelect;

impl hailwire_callout::Agent for NoUnionSelect {
    fn name(&self) -> &str {
        INSPECT
    }

    async fn request_headers(&self, event: RequestHeaders) -> hailwire_callout::Response {
        let uri = event.uri().to_ascii_lowercase().replace("%20", " ");
        match uri.contains("union select") {
            true => hailwire_callout::Response::block(403),
            false => hailwire_callout::Response::allow(),
        }
    }
}
