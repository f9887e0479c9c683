//! The crate's client and its reverse listener, each sending an event of every kind that it can send.

use std::{collections::HashSet, future::Future, path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};
use zentinel_agent_protocol::{
    AgentProtocolError, AgentResponse,
    v2::{
        AgentClientV2, AgentClientV2Uds, AgentPool, CancelReason, ReverseConnectionConfig,
        ReverseConnectionListener,
    },
};

use crate::{At, Failure, events, say};

type Answer = Result<AgentResponse, AgentProtocolError>;

pub(crate) async fn drive(at: &At, uri: &str, timeout_ms: u64) -> Result<(), Failure> {
    let timeout = Duration::from_millis(timeout_ms);
    if let Some(path) = &at.uds {
        let client = AgentClientV2Uds::new("peer", path.to_string_lossy(), timeout).await?;
        client.connect().await?;
        say(&json!({
            "connected": path,
            "encoding": client.encoding().await,
            "capabilities": client.capabilities().await,
        }));
        uds(&client, uri).await;
        client.close().await?;
    } else if let Some(address) = &at.grpc {
        let client = AgentClientV2::new("peer", format!("http://{address}"), timeout).await?;
        client.connect().await?;
        say(&json!({"connected": address, "capabilities": client.capabilities().await}));
        grpc(&client, uri).await;
        client.close().await?;
    }
    Ok(())
}

async fn uds(client: &AgentClientV2Uds, uri: &str) {
    let config = json!({"config": {"mode": "strict"}, "config_version": "7"});
    told("configure", client.send_configure("d-0", &config)).await;
    told(
        "request_headers",
        client.send_request_headers("d-1", &events::request_headers("d-1", uri)),
    )
    .await;
    told(
        "request_body_chunk",
        client.send_request_body_chunk("d-1", &events::request_body("d-1", b"hello ", 0, false)),
    )
    .await;
    told(
        "request_body_chunk",
        client.send_request_body_chunk("d-1", &events::request_body("d-1", b"world", 1, true)),
    )
    .await;
    told(
        "response_headers",
        client.send_response_headers("d-1", &events::response_headers("d-1", 200)),
    )
    .await;
    told(
        "response_body_chunk",
        client.send_response_body_chunk("d-1", &events::response_body("d-1", b"answer", 0, true)),
    )
    .await;
    told(
        "websocket_frame",
        client.send_websocket_frame("d-1", &events::websocket("d-1", "text", b"frame")),
    )
    .await;
    told(
        "request_complete",
        client.send_request_complete("d-1", &events::request_complete("d-1", None)),
    )
    .await;
    told(
        "guardrail_inspect",
        client.send_guardrail_inspect("d-1", &events::guardrail("d-1", true)),
    )
    .await;
    let pinged = client.ping().await;
    say(&json!({"sent": "ping", "error": pinged.err().map(|e| e.to_string())}));
    let cancelled = client.cancel_request("d-1", CancelReason::Timeout).await;
    say(&json!({"sent": "cancel", "error": cancelled.err().map(|e| e.to_string())}));
    // Whoever reads the two that have no answer must have read them before this is answered.
    told(
        "request_headers",
        client.send_request_headers("d-2", &events::request_headers("d-2", uri)),
    )
    .await;
}

async fn grpc(client: &AgentClientV2, uri: &str) {
    told(
        "request_headers",
        client.send_request_headers("d-1", &events::request_headers("d-1", uri)),
    )
    .await;
    told(
        "request_body_chunk",
        client.send_request_body_chunk("d-1", &events::request_body("d-1", b"hello ", 0, false)),
    )
    .await;
    told(
        "request_body_chunk",
        client.send_request_body_chunk("d-1", &events::request_body("d-1", b"world", 1, true)),
    )
    .await;
    told(
        "response_headers",
        client.send_response_headers("d-1", &events::response_headers("d-1", 200)),
    )
    .await;
    told(
        "response_body_chunk",
        client.send_response_body_chunk("d-1", &events::response_body("d-1", b"answer", 0, true)),
    )
    .await;
    let pinged = client.ping().await;
    say(&json!({"sent": "ping", "error": pinged.err().map(|e| e.to_string())}));
    let cancelled = client.cancel_request("d-1", CancelReason::Timeout).await;
    say(&json!({"sent": "cancel", "error": cancelled.err().map(|e| e.to_string())}));
    told(
        "request_headers",
        client.send_request_headers("d-2", &events::request_headers("d-2", uri)),
    )
    .await;
}

pub(crate) async fn listen_reverse(
    path: &Path,
    token: Option<String>,
    uri: &str,
    agents: u32,
) -> Result<(), Failure> {
    let config = ReverseConnectionConfig {
        require_auth: token.is_some(),
        auth_tokens: token.into_iter().collect::<HashSet<String>>(),
        ..ReverseConnectionConfig::default()
    };
    let listener = ReverseConnectionListener::bind_uds(path, config).await?;
    let pool = Arc::new(AgentPool::new());
    say(&json!({"ready": path}));
    let mut left = agents;
    while left > 0 {
        let id = match listener.accept_one(&pool).await {
            Ok(id) => id,
            Err(failure) => {
                say(&json!({"refused": failure.to_string()}));
                continue;
            }
        };
        left -= 1;
        say(&json!({"registered": id, "capabilities": pool.agent_capabilities(&id).await}));
        told(
            "request_headers",
            pool.send_request_headers(&id, "v-1", &events::request_headers("v-1", uri)),
        )
        .await;
        told(
            "request_body_chunk",
            pool.send_request_body_chunk(
                &id,
                "v-1",
                &events::request_body("v-1", b"hello", 0, true),
            ),
        )
        .await;
        told(
            "response_headers",
            pool.send_response_headers(&id, "v-1", &events::response_headers("v-1", 200)),
        )
        .await;
        told(
            "response_body_chunk",
            pool.send_response_body_chunk(
                &id,
                "v-1",
                &events::response_body("v-1", b"answer", 0, true),
            ),
        )
        .await;
    }
    Ok(())
}

async fn told(sent: &str, answer: impl Future<Output = Answer>) {
    let started = std::time::Instant::now();
    let mut line = match answer.await {
        Ok(response) => json!({"sent": sent, "answer": response}),
        Err(failure) => json!({"sent": sent, "error": failure.to_string()}),
    };
    line["us"] = Value::from(u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX));
    say(&line);
}
