//! Frames, and the two encodings of everything that travels in them.

mod answer;
pub mod control;
mod events;
pub mod frame;
pub(crate) mod grpc;
pub mod handshake;
pub(crate) mod head;
mod json;
mod pack;
pub mod plain;
pub mod raw;
pub mod salvage;
mod sink;
mod source;

pub use control::{
    decode_cancel, decode_notice, decode_ping, encode_cancel, encode_notice, encode_ping,
    notice_type,
};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use json::JsonSource;
use pack::PackSource;
use sink::{JsonSink, PackSink, ValueSink};
use source::ValueSource;

use crate::{
    Text,
    event::{Event, EventKind},
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
///
/// Toward every peer alike: data is base64, which agents of the published crate need also in MessagePack.
pub fn encode_event(event: &Event, encoding: Encoding, out: &mut BytesMut) {
    match event {
        Event::RequestHeaders(event) => head::encode_request(event, encoding, out),
        Event::RequestBody(chunk) => events::put_chunk(chunk, true, encoding, out),
        Event::ResponseHeaders(event) => head::encode_response(event, encoding, out),
        Event::ResponseBody(chunk) => events::put_chunk(chunk, false, encoding, out),
        other => match encoding {
            Encoding::Json => put_other(other, &mut JsonSink::new(out)),
            Encoding::MessagePack => put_other(other, &mut PackSink(out)),
        },
    }
}

fn put_other(event: &Event, sink: &mut impl ValueSink) {
    match event {
        Event::RequestComplete(event) => events::put_complete(event, sink),
        Event::WebSocketFrame(event) => events::put_websocket(event, sink),
        Event::Guardrail(event) => events::put_guardrail(event, sink),
        Event::Configure(event) => events::put_configure(event, sink),
        Event::RequestHeaders(_)
        | Event::RequestBody(_)
        | Event::ResponseHeaders(_)
        | Event::ResponseBody(_) => {}
    }
}

/// Reads the payload of an event's frame. What is read shares the payload's bytes where it can.
///
/// Maps and arrays, names in any order, names that nobody knows, data as bytes or as base64 are all read.
///
/// # Errors
///
/// [`DecodeError`]; whoever asked must be answered with a block, never an allow, and [`salvage::event_id`] may tell
/// who that is.
pub fn decode_event(
    kind: EventKind,
    payload: Bytes,
    encoding: Encoding,
) -> Result<Event, DecodeError> {
    match kind {
        EventKind::RequestHeaders => {
            head::decode_request(payload, encoding).map(Event::RequestHeaders)
        }
        EventKind::ResponseHeaders => {
            head::decode_response(payload, encoding).map(Event::ResponseHeaders)
        }
        kind => match encoding {
            Encoding::Json => {
                let mut source = JsonSource::new(&payload)?;
                let event = other(kind, &mut source, &payload)?;
                source.end()?;
                Ok(event)
            }
            Encoding::MessagePack => {
                let chunk = matches!(kind, EventKind::RequestBody | EventKind::ResponseBody)
                    .then(|| events::chunk_in_order(&payload))
                    .flatten();
                match (kind, chunk) {
                    (EventKind::RequestBody, Some(chunk)) => return Ok(Event::RequestBody(chunk)),
                    (EventKind::ResponseBody, Some(chunk)) => {
                        return Ok(Event::ResponseBody(chunk));
                    }
                    _ => {}
                }
                let mut source = PackSource::new(&payload);
                let event = other(kind, &mut source, &payload)?;
                source.end()?;
                Ok(event)
            }
        },
    }
}

fn other<'a>(
    kind: EventKind,
    source: &mut impl ValueSource<'a>,
    frame: &Bytes,
) -> source::ParseResult<Event> {
    Ok(match kind {
        EventKind::RequestBody => Event::RequestBody(events::chunk(source, frame)?),
        EventKind::ResponseBody => Event::ResponseBody(events::chunk(source, frame)?),
        EventKind::RequestComplete => Event::RequestComplete(events::complete(source, frame)?),
        EventKind::WebSocketFrame => Event::WebSocketFrame(events::websocket(source, frame)?),
        EventKind::Guardrail => Event::Guardrail(events::guardrail(source, frame)?),
        EventKind::Configure | EventKind::RequestHeaders | EventKind::ResponseHeaders => {
            Event::Configure(events::configure(source, frame)?)
        }
    })
}

/// Appends the payload of an answer's frame.
///
/// An allow that says no more is written without an allocation.
pub fn encode_response(id: &str, response: &Response, encoding: Encoding, out: &mut BytesMut) {
    answer::encode(id, response, encoding, out);
}

/// Reads the payload of an answer's frame: whose request it answers, and the answer.
///
/// An allow that says no more is read without an allocation; the id is a slice of the payload.
///
/// # Errors
///
/// [`DecodeError`], also where it does not say which request it answers.
#[expect(
    clippy::needless_pass_by_value,
    reason = "what is read may keep the payload"
)]
pub fn decode_response(
    payload: Bytes,
    encoding: Encoding,
) -> Result<(Text, Response), DecodeError> {
    if let Some(id) = answer::allowed(&payload, encoding) {
        return Ok((id, Response::allow()));
    }
    let (id, response) = match encoding {
        Encoding::Json => {
            let mut source = JsonSource::new(&payload)?;
            let answer = answer::decode(&mut source, &payload)?;
            source.end()?;
            answer
        }
        Encoding::MessagePack => {
            let mut source = PackSource::new(&payload);
            let answer = answer::decode(&mut source, &payload)?;
            source.end()?;
            answer
        }
    };
    match id {
        Some(id) => Ok((id, response)),
        None => Err(DecodeError("the answer has no correlation id".to_owned())),
    }
}
