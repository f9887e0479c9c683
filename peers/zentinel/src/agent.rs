//! The crate's agent server around an agent that does what it is told by the uri, the body or the configuration.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use zentinel_agent_protocol::{
    AgentResponse, AuditMetadata, BodyMutation, Decision, EventType, HeaderOp,
    RequestBodyChunkEvent, RequestCompleteEvent, RequestHeadersEvent, ResponseBodyChunkEvent,
    ResponseHeadersEvent, WebSocketFrameEvent,
    v2::{AgentCapabilities, AgentFeatures, AgentHandlerV2, GrpcAgentServerV2, UdsAgentServerV2},
};

use crate::{At, Failure, say};

pub(crate) async fn serve(at: &At) -> Result<(), Failure> {
    serve_as(at, |address| json!({"ready": address})).await
}

/// Serves, and says so in the words of `ready` once it can be reached.
pub(crate) async fn serve_as(at: &At, ready: impl Fn(String) -> Value) -> Result<(), Failure> {
    match (&at.uds, &at.grpc) {
        (Some(path), _) => {
            let server = UdsAgentServerV2::new("peer", path, Box::new(Peer::default()));
            let announce = async {
                while tokio::net::UnixStream::connect(path).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                say(&ready(path.display().to_string()));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                done = server.run() => done?,
                () = announce => {}
            }
        }
        (None, Some(address)) => {
            let listener = tokio::net::TcpListener::bind(address).await?;
            say(&ready(listener.local_addr()?.to_string()));
            let incoming =
                tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
            let service = GrpcAgentServerV2::new("peer", Box::new(Peer::default())).into_service();
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await?;
        }
        (None, None) => {}
    }
    Ok(())
}

/// Remembers of each request what its uri asked for, since body chunks do not say it again.
#[derive(Default)]
struct Peer {
    wishes: Mutex<HashMap<String, String>>,
}

impl Peer {
    fn wish(&self, id: &str) -> String {
        self.wishes
            .lock()
            .map(|wishes| wishes.get(id).cloned().unwrap_or_default())
            .unwrap_or_default()
    }
}

pub(crate) fn capabilities() -> AgentCapabilities {
    AgentCapabilities::new("peer", "Peer", "1.2.3")
        .with_event(EventType::RequestBodyChunk)
        .with_event(EventType::ResponseHeaders)
        .with_event(EventType::ResponseBodyChunk)
        .with_event(EventType::RequestComplete)
        .with_event(EventType::WebSocketFrame)
        .with_event(EventType::Configure)
        .with_features(AgentFeatures::full())
}

#[async_trait]
impl AgentHandlerV2 for Peer {
    fn capabilities(&self) -> AgentCapabilities {
        capabilities()
    }

    async fn on_request_headers(&self, event: RequestHeadersEvent) -> AgentResponse {
        let uri = event.uri.as_str();
        if let Some(ms) = uri.split("sleep-").nth(1) {
            let digits: String = ms.chars().take_while(char::is_ascii_digit).collect();
            tokio::time::sleep(Duration::from_millis(digits.parse().unwrap_or(0))).await;
        }
        if uri.contains("mutate") || uri.contains("drop-body") || uri.contains("late-block") {
            if let Ok(mut wishes) = self.wishes.lock() {
                wishes.insert(event.metadata.correlation_id.clone(), uri.to_owned());
            }
        }
        let mut response = if uri.contains("late-block") {
            AgentResponse::needs_more_data()
        } else if uri.contains("block") {
            AgentResponse {
                decision: Decision::Block {
                    status: 403,
                    body: Some("blocked".to_owned()),
                    headers: Some(crate::events::map(&[("x-why", "uri".to_owned())])),
                },
                ..AgentResponse::default_allow()
            }
        } else if uri.contains("redirect") {
            AgentResponse::redirect("https://example.com/login".to_owned(), 302)
        } else if uri.contains("challenge") {
            AgentResponse {
                decision: Decision::Challenge {
                    challenge_type: "captcha".to_owned(),
                    params: crate::events::map(&[("key", "k1".to_owned())]),
                },
                ..AgentResponse::default_allow()
            }
        } else {
            AgentResponse::default_allow()
        };
        if uri.contains("headers") {
            response = response
                .add_request_header(HeaderOp::Set {
                    name: "x-seen".to_owned(),
                    value: event.method.clone(),
                })
                .add_request_header(HeaderOp::Add {
                    name: "x-uri".to_owned(),
                    value: event.uri.clone(),
                })
                .add_request_header(HeaderOp::Remove {
                    name: "cookie".to_owned(),
                });
        }
        if uri.contains("audit") {
            response = response.with_audit(AuditMetadata {
                tags: vec!["seen".to_owned()],
                rule_ids: vec!["1001".to_owned()],
                confidence: Some(0.5),
                reason_codes: vec!["BECAUSE".to_owned()],
                custom: [("headers".to_owned(), json!(event.headers.len()))].into(),
            });
        }
        response
    }

    async fn on_request_body_chunk(&self, event: RequestBodyChunkEvent) -> AgentResponse {
        let wish = self.wish(&event.correlation_id);
        if event.is_last {
            if let Ok(mut wishes) = self.wishes.lock() {
                wishes.remove(&event.correlation_id);
            }
        }
        if wish.contains("late-block") && event.is_last {
            return AgentResponse::block(413, None);
        }
        let response = AgentResponse::default_allow().set_needs_more(!event.is_last);
        match mutation(&wish, &event.data, event.chunk_index) {
            Some(mutation) => response.with_request_body_mutation(mutation),
            None => response,
        }
    }

    async fn on_response_headers(&self, event: ResponseHeadersEvent) -> AgentResponse {
        AgentResponse::default_allow().add_response_header(HeaderOp::Set {
            name: "x-status".to_owned(),
            value: event.status.to_string(),
        })
    }

    async fn on_response_body_chunk(&self, event: ResponseBodyChunkEvent) -> AgentResponse {
        let response = AgentResponse::default_allow().set_needs_more(!event.is_last);
        match mutation(
            &self.wish(&event.correlation_id),
            &event.data,
            event.chunk_index,
        ) {
            Some(mutation) => response.with_response_body_mutation(mutation),
            None => response,
        }
    }

    async fn on_request_complete(&self, event: RequestCompleteEvent) -> AgentResponse {
        if let Ok(mut wishes) = self.wishes.lock() {
            wishes.remove(&event.correlation_id);
        }
        AgentResponse::default_allow()
    }

    async fn on_websocket_frame(&self, event: WebSocketFrameEvent) -> AgentResponse {
        let data = STANDARD.decode(&event.data).unwrap_or_default();
        match data.as_slice() {
            b"drop" => AgentResponse::websocket_drop(),
            b"close" => AgentResponse::websocket_close(1008, "policy".to_owned()),
            _ => AgentResponse::websocket_allow(),
        }
    }

    async fn on_configure(&self, config: Value, _: Option<String>) -> bool {
        config.get("refuse").is_none()
    }
}

/// Bytes in upper case for `mutate`, none for `drop-body`.
fn mutation(wish: &str, data: &str, index: u32) -> Option<BodyMutation> {
    if wish.contains("drop-body") {
        return Some(BodyMutation::drop_chunk(index));
    }
    wish.contains("mutate").then(|| {
        let data = STANDARD.decode(data).unwrap_or_default();
        BodyMutation::replace(index, STANDARD.encode(data.to_ascii_uppercase()))
    })
}
