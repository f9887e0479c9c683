//! An agent of one's own: blocks `/admin`, names itself to the upstream, and stops bodies that carry a secret.
//!
//!     cargo run -p hailwire-agents --example no_secrets -- unix:/tmp/agent.sock

use std::{error::Error, sync::Arc};

use hailwire_agents::BoundListeners;
use hailwire_callout::{
    Agent, Response,
    event::{BodyChunk, RequestHeaders},
    response::HeaderOp,
};

struct NoSecrets;

impl Agent for NoSecrets {
    fn name(&self) -> &str {
        "no-secrets"
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        if event.uri().starts_with("/admin") {
            let mut response = Response::block(403);
            response.audit.reason_codes = vec!["ADMIN_PATH".to_owned()];
            return response;
        }
        let (name, value) = ("x-checked-by".to_owned(), self.name().to_owned());
        Response {
            request_headers: vec![HeaderOp::Set { name, value }],
            ..Response::allow()
        }
    }

    async fn request_body(&self, event: BodyChunk) -> Response {
        let secret = b"BEGIN PRIVATE KEY";
        if event
            .data
            .windows(secret.len())
            .any(|window| window == secret)
        {
            return Response::block(422);
        }
        Response {
            needs_more: !event.is_last,
            ..Response::allow()
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listen = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "unix:agent.sock".to_owned());
    let listeners = BoundListeners::bind(vec![listen.parse()?]).await?;
    println!("ready");
    let shutdown = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(listeners.run(Arc::new(NoSecrets), None, shutdown).await?)
}
