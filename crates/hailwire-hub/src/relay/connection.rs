//! A connection that becomes one of the relay: the upgrade, the proof of the key, the access check.
//!
//! As iroh-relay's own service does it, but that what a member sends passes [`MemberStream`] before the relay reads it. That
//! service takes its own type of connection only.

use std::sync::Arc;

use hailwire_websocket::{Role, WebSocket, WebSocketError, WebSocketLimits, upgrade_answer};
use hailwire_wire::NodeId;
use http::{HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use iroh_relay::{
    http::{CLIENT_AUTH_HEADER, ProtocolVersion},
    protos::handshake::{self, serverside},
    server::{
        ClientRequest,
        client::Config as ClientConfig,
        http_server::BytesBody,
        streams::{MaybeTlsStream, RelayedStream},
    },
};
use thiserror::Error;

use super::{Relay, member_stream::MemberStream};

/// Longest message that a member may send, as in iroh-relay.
const MAX_MESSAGE: usize = 1 << 20;

/// Why a connection did not become one of the relay.
#[derive(Debug, Error)]
enum UpgradeError {
    #[error("the upgrade failed")]
    Http(#[source] hyper::Error),
    #[error("something was sent before the upgrade was answered")]
    TooSoon,
    #[error("it was not admitted")]
    Handshake(#[source] handshake::Error),
}

impl Relay {
    /// Answers a request for the relay, and takes its connection over in a task of its own.
    ///
    /// # Errors
    ///
    /// It asks for something else.
    pub(crate) fn upgrade(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<BytesBody>, WebSocketError> {
        let accept = upgrade_answer(&request)?;
        let version = protocol_version(&request)
            .ok_or_else(|| WebSocketError::Upgrade("no known version of the relay".into()))?;
        let accept = HeaderValue::try_from(accept)
            .map_err(|error| WebSocketError::Upgrade(error.to_string()))?;
        let mut response = Response::new(Box::new(Full::default()) as BytesBody);
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let fields = response.headers_mut();
        fields.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        fields.insert(header::SEC_WEBSOCKET_PROTOCOL, version.to_header_value());
        let relay = self.clone();
        // It ends with the connection, which the hub's server shuts down unless it is admitted in time.
        tokio::spawn(async move {
            if let Err(error) = relay.take_over(request, version).await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "no relay connection"
                );
            }
        });
        Ok(response)
    }

    async fn take_over(
        &self,
        mut request: Request<Incoming>,
        version: ProtocolVersion,
    ) -> Result<(), UpgradeError> {
        let upgraded = hyper::upgrade::on(&mut request).await;
        let io = connection(upgraded.map_err(UpgradeError::Http)?)?;
        let (parts, _) = request.into_parts();
        self.admit(io, parts, version)
            .await
            .map_err(UpgradeError::Handshake)
    }

    async fn admit(
        &self,
        io: MaybeTlsStream,
        request: Parts,
        version: ProtocolVersion,
    ) -> Result<(), handshake::Error> {
        let limits = WebSocketLimits {
            max_message: MAX_MESSAGE,
            ..WebSocketLimits::default()
        };
        let mut stream = MemberStream::new(WebSocket::over(io, Role::Server, limits));
        let proof = request.headers.get(CLIENT_AUTH_HEADER).cloned();
        let proved = serverside(&mut stream, proof).await?;
        let member = NodeId::from_bytes(*proved.client_key.as_bytes());
        let request = ClientRequest::new(proved.client_key, version, request);
        let guard = proved
            .authorize_with(&request, &self.access, &mut stream)
            .await?;
        if let Some(share) = &self.share {
            stream.limit(member, Arc::clone(share), Arc::clone(&self.over_rate));
        }
        let stream = RelayedStream::new(stream, self.keys.clone());
        let client = ClientConfig::new(guard, stream, version);
        self.service
            .clients()
            .register(client, Arc::clone(&self.counters));
        Ok(())
    }
}

/// The connection beneath HTTP.
fn connection(upgraded: Upgraded) -> Result<MaybeTlsStream, UpgradeError> {
    let parts = upgraded.downcast::<TokioIo<MaybeTlsStream>>();
    let parts = parts.map_err(|_| UpgradeError::TooSoon)?;
    if !parts.read_buf.is_empty() {
        return Err(UpgradeError::TooSoon);
    }
    Ok(parts.io.into_inner())
}

/// The newest version of the relay's protocol that the client knows too.
fn protocol_version(request: &Request<Incoming>) -> Option<ProtocolVersion> {
    let asked = request.headers().get(header::SEC_WEBSOCKET_PROTOCOL)?;
    let names = asked.to_str().ok()?.split(',').map(str::trim);
    names.filter_map(ProtocolVersion::match_from_str).max()
}
