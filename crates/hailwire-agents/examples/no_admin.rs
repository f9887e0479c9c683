//! The agent of docs/guide/agents.md: it blocks `/admin`, and lets everything else pass.

use std::{error::Error, sync::Arc};

use hailwire_agents::BoundListeners;
use hailwire_callout::{Agent, Response, event::RequestHeaders};

struct NoAdmin;

impl Agent for NoAdmin {
    fn name(&self) -> &str {
        "no-admin"
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        if event.uri().starts_with("/admin") {
            Response::block(403)
        } else {
            Response::allow()
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listeners = BoundListeners::bind(vec!["unix:agent.sock".parse()?]).await?;
    println!("ready");
    let stopped = std::future::pending();
    Ok(listeners.run(Arc::new(NoAdmin), None, stopped).await?)
}
