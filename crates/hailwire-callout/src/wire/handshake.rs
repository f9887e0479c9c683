//! How a connection begins: always JSON, whatever comes after.
//!
//! Whoever opens a connection to an agent says [`HandshakeRequest`], the agent answers with a [`HandshakeResponse`]; an agent that dials
//! its host says [`RegistrationRequest`] and is answered with [`RegistrationResponse`]. Each takes two more things than the protocol
//! knows: the key `x_hailwire`, in which two of ours find each other ([`WireExtensions`]) and which others ignore, and
//! names of encodings that nobody has heard of, which are passed over rather than the end of the connection.

use bytes::{BufMut as _, BytesMut};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{DecodeError, Encoding};
use crate::{
    VERSION,
    capabilities::{AgentLimits, Capabilities, EventKinds, Features},
    event::EventKind,
};

/// What a host says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandshakeRequest {
    /// The versions that it speaks.
    pub supported_versions: Vec<u32>,
    /// Which host this is.
    pub proxy_id: String,
    /// Its version.
    pub proxy_version: String,
    /// The agent's configuration; null for none.
    #[serde(default)]
    pub config: Value,
    /// The encodings that it speaks, the best first; none means JSON.
    #[serde(default, deserialize_with = "known_encodings")]
    pub supported_encodings: Vec<Encoding>,
    /// For another of ours.
    #[serde(
        default,
        rename = "x_hailwire",
        skip_serializing_if = "Option::is_none"
    )]
    pub extensions: Option<WireExtensions>,
}

impl Default for HandshakeRequest {
    fn default() -> Self {
        Self {
            supported_versions: vec![VERSION],
            proxy_id: String::new(),
            proxy_version: String::new(),
            config: Value::Null,
            supported_encodings: Vec::new(),
            extensions: None,
        }
    }
}

/// What an agent answers to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandshakeResponse {
    /// The version that is spoken.
    pub protocol_version: u32,
    /// What the agent is; also where it refuses.
    #[serde(with = "on_the_wire")]
    pub capabilities: Capabilities,
    /// Whether it wants the connection.
    pub success: bool,
    /// Why not.
    #[serde(default)]
    pub error: Option<String>,
    /// The encoding of everything that follows. Default JSON.
    #[serde(default)]
    pub encoding: Encoding,
    /// For another of ours.
    #[serde(
        default,
        rename = "x_hailwire",
        skip_serializing_if = "Option::is_none"
    )]
    pub extensions: Option<WireExtensions>,
}

impl Default for HandshakeResponse {
    fn default() -> Self {
        Self {
            protocol_version: VERSION,
            capabilities: Capabilities::default(),
            success: true,
            error: None,
            encoding: Encoding::Json,
            extensions: None,
        }
    }
}

/// What an agent says first that dials its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegistrationRequest {
    /// The version that is spoken.
    pub protocol_version: u32,
    /// Which agent this is.
    pub agent_id: String,
    /// What it is.
    #[serde(with = "on_the_wire")]
    pub capabilities: Capabilities,
    /// What shows that it may.
    #[serde(default)]
    pub auth_token: Option<String>,
    /// Anything else.
    #[serde(default)]
    pub metadata: Value,
    /// For another of ours.
    #[serde(
        default,
        rename = "x_hailwire",
        skip_serializing_if = "Option::is_none"
    )]
    pub extensions: Option<WireExtensions>,
}

impl Default for RegistrationRequest {
    fn default() -> Self {
        Self {
            protocol_version: VERSION,
            agent_id: String::new(),
            capabilities: Capabilities::default(),
            auth_token: None,
            metadata: Value::Null,
            extensions: None,
        }
    }
}

/// What the host answers to it. Events follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationResponse {
    /// Whether it wants the connection.
    pub success: bool,
    /// Why not.
    #[serde(default)]
    pub error: Option<String>,
    /// Which host this is.
    #[serde(default)]
    pub proxy_id: String,
    /// Its version.
    #[serde(default)]
    pub proxy_version: String,
    /// What the host calls the connection.
    #[serde(default)]
    pub connection_id: String,
    /// For another of ours.
    #[serde(
        default,
        rename = "x_hailwire",
        skip_serializing_if = "Option::is_none"
    )]
    pub extensions: Option<WireExtensions>,
}

/// What two Hailwire peers agree on beyond the protocol. The opener says what it can, the other what of it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireExtensions {
    /// Chunks of bodies travel in frames of their own, as they are: [`super::raw`].
    pub raw_bodies: bool,
    /// Bytes of bodies that may be on their way, of each request and direction; 0 for one chunk at a time.
    pub window: u32,
    /// On a connection that an agent opened: the encodings that it speaks, the best first; in the answer the one
    /// that is used. None means JSON.
    #[serde(
        deserialize_with = "known_encodings",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub encodings: Vec<Encoding>,
}

/// Appends the payload of any of them.
pub fn encode(message: &impl Serialize, out: &mut BytesMut) {
    let written = serde_json::to_writer(out.writer(), message);
    debug_assert!(written.is_ok(), "memory takes everything: {written:?}");
}

/// Reads the payload of any of them.
///
/// # Errors
///
/// [`DecodeError`].
pub fn decode<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(payload).map_err(|e| DecodeError(e.to_string()))
}

fn known_encodings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Encoding>, D::Error> {
    let names = Option::<Vec<String>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(names
        .iter()
        .filter_map(|name| match name.as_str() {
            "json" => Some(Encoding::Json),
            "msgpack" => Some(Encoding::MessagePack),
            _ => None,
        })
        .collect())
}

/// Capabilities, whose events are numbers.
mod on_the_wire {
    use serde::Serializer;

    use super::{
        AgentLimits, Capabilities, Deserialize, Deserializer, EventKind, EventKinds, Features,
        Serialize,
    };

    #[derive(Serialize, Deserialize)]
    struct CapabilitiesMessage {
        agent_id: String,
        #[serde(default)]
        name: String,
        #[serde(default)]
        version: String,
        #[serde(default)]
        supported_events: Vec<i32>,
        #[serde(default)]
        features: Features,
        #[serde(default)]
        limits: AgentLimits,
    }

    pub(super) fn serialize<S: Serializer>(of: &Capabilities, to: S) -> Result<S::Ok, S::Error> {
        CapabilitiesMessage {
            agent_id: of.agent_id.clone(),
            name: of.name.clone(),
            version: of.version.clone(),
            supported_events: of.events.iter().map(number).collect(),
            features: of.features,
            limits: of.limits,
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Capabilities, D::Error> {
        let wire = CapabilitiesMessage::deserialize(from)?;
        let events: EventKinds = wire.supported_events.into_iter().filter_map(kind).collect();
        Ok(Capabilities {
            agent_id: wire.agent_id,
            name: wire.name,
            version: wire.version,
            events,
            features: wire.features,
            limits: wire.limits,
        })
    }

    fn number(kind: EventKind) -> i32 {
        kind as i32 + 1
    }

    /// Some write 8 for the last and read 0.
    fn kind(number: i32) -> Option<EventKind> {
        let index = if number == 0 { 7 } else { number - 1 };
        EventKind::ALL.get(usize::try_from(index).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_heard_of_is_passed_over() {
        let hello: HandshakeRequest = decode(
            br#"{"supported_versions":[99],"proxy_id":"p","proxy_version":"1","config":null,
                "supported_encodings":["cbor","msgpack","json"],"x_other":1}"#,
        )
        .unwrap();
        assert_eq!(
            hello.supported_encodings,
            [Encoding::MessagePack, Encoding::Json]
        );
        assert_eq!(hello.extensions, None);
    }

    #[test]
    fn what_is_said_is_heard() {
        let welcome = HandshakeResponse {
            capabilities: Capabilities {
                agent_id: "waf".to_owned(),
                events: EventKind::ALL.into_iter().collect(),
                ..Capabilities::default()
            },
            extensions: Some(WireExtensions {
                raw_bodies: true,
                window: 65536,
                ..WireExtensions::default()
            }),
            ..HandshakeResponse::default()
        };
        let mut out = BytesMut::new();
        encode(&welcome, &mut out);
        assert!(
            out.windows(17).any(|w| w == b"[1,2,3,4,5,6,7,8]"),
            "{out:?}"
        );
        assert_eq!(decode::<HandshakeResponse>(&out).unwrap(), welcome);
    }
}
