//! Frames, and the two encodings of everything that travels in them.

pub mod control;
pub mod frame;
pub(crate) mod grpc;
pub mod handshake;
pub mod plain;
pub mod raw;
pub mod salvage;

pub use control::{
    decode_cancel, decode_notice, decode_ping, encode_cancel, encode_notice, encode_ping,
    notice_type,
};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    Text,
    event::{Event, Kind},
    response::Response,
};

/// How events and answers are written, as the handshake settles it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Encoding {
    /// JSON, which every peer speaks.
    #[default]
    #[serde(rename = "json")]
    Json,
    /// MessagePack.
    #[serde(rename = "msgpack")]
    MessagePack,
}

/// Bytes that are not what they should be.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct DecodeError(pub(crate) String);

/// Appends the payload of an event's frame.
pub fn encode_event(event: &Event, encoding: Encoding, out: &mut BytesMut) {
    plain::encode_event(event, encoding, out);
}

/// Reads the payload of an event's frame.
///
/// # Errors
///
/// [`DecodeError`]; whoever asked must be answered with a block, never an allow.
pub fn decode_event(kind: Kind, payload: Bytes, encoding: Encoding) -> Result<Event, DecodeError> {
    plain::decode_event(kind, &payload, encoding)
}

/// Appends the payload of an answer's frame.
pub fn encode_response(id: &str, response: &Response, encoding: Encoding, out: &mut BytesMut) {
    plain::encode_response(id, response, encoding, out);
}

/// Reads the payload of an answer's frame: whose request it answers, and the answer.
///
/// # Errors
///
/// [`DecodeError`], also where it does not say which request it answers.
pub fn decode_response(
    payload: Bytes,
    encoding: Encoding,
) -> Result<(Text, Response), DecodeError> {
    plain::decode_response(&payload, encoding)
}
