//! Frames that only Hailwire speaks, after both sides have said so in the handshake.
//!
//! An event says a number, and its answer says the same: an answer finds its request without being decoded, one request
//! may have several under way, and an answer that comes too late finds nobody. A chunk of a body is bytes as
//! they are. `spec/callout-extensions.md` has the layouts; all numbers are big-endian.
//!
//! ```text
//! 0x50 event          u64 number, u8 type (0x10 to 0x17), payload
//! 0x51 answer         u64 number, payload; an empty one allows and says no more
//! 0x52 chunk          u64 number, u8 flags, u32 index, u64 transferred, u64 total size, u16 length, id, data
//! 0x53 answer, data   u64 number, u8 flags, u32 index, u32 length, payload, data
//! ```
//!
//! Payloads are in the connection's encoding. Flags: 1 of a response, 2 the last, 4 the total size is known; others
//! are zero, and whoever reads another refuses the frame.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::{DecodeError, Encoding, decode_response, encode_response, frame::FrameType};
use crate::{
    Text,
    event::{BodyChunk, Event, EventKind},
    response::{BodyMutation, Response},
};

/// The type of an event with a number.
pub const EVENT: u8 = 0x50;
/// The type of its answer.
pub const ANSWER: u8 = 0x51;
/// The type of a chunk of a body.
pub const CHUNK: u8 = 0x52;
/// The type of an answer with what takes the place of a chunk.
pub const ANSWER_DATA: u8 = 0x53;

/// The longest correlation id that a chunk can carry, in bytes.
pub const MAX_ID: usize = u16::MAX as usize;

const OF_RESPONSE: u8 = 1;
const LAST: u8 = 2;
const SIZED: u8 = 4;

/// Appends what comes before the payload of an event with a number.
pub fn put_event_head(number: u64, kind: EventKind, out: &mut BytesMut) {
    out.put_u64(number);
    out.put_u8(FrameType::Event(kind).code());
}

/// Takes an event with a number apart: the number, the kind, the payload.
///
/// # Errors
///
/// [`DecodeError`]; the number, where there is one, has to be answered with a block.
pub fn take_event_head(mut frame: Bytes) -> Result<(u64, EventKind, Bytes), DecodeError> {
    let number = frame.try_get_u64().map_err(short)?;
    let code = frame.try_get_u8().map_err(short)?;
    match FrameType::from_code(code) {
        Some(FrameType::Event(kind)) => Ok((number, kind, frame)),
        _ => Err(DecodeError(format!("unknown event code {code:#04x}"))),
    }
}

/// Appends everything of a chunk but its data, which follows. An id beyond [`MAX_ID`] is cut.
pub fn put_chunk_head(number: u64, kind: EventKind, chunk: &BodyChunk, out: &mut BytesMut) {
    let of_response = if kind == EventKind::ResponseBody {
        OF_RESPONSE
    } else {
        0
    };
    let last = if chunk.is_last { LAST } else { 0 };
    let sized = if chunk.total_size.is_some() { SIZED } else { 0 };
    let id = chunk.correlation_id.as_bytes();
    let id = id.get(..MAX_ID).unwrap_or(id);
    out.reserve(32 + id.len());
    out.put_u64(number);
    out.put_u8(of_response | last | sized);
    out.put_u32(chunk.index);
    out.put_u64(chunk.transferred);
    out.put_u64(chunk.total_size.unwrap_or(0));
    out.put_u16(id.len() as u16);
    out.put_slice(id);
}

/// Reads a chunk. Its data is a slice of the frame.
///
/// # Errors
///
/// [`DecodeError`], as [`take_event_head`].
pub fn take_chunk(mut frame: Bytes) -> Result<(u64, Event), DecodeError> {
    let number = frame.try_get_u64().map_err(short)?;
    let flags = frame.try_get_u8().map_err(short)?;
    if flags & !(OF_RESPONSE | LAST | SIZED) != 0 {
        return Err(DecodeError(format!("unknown flags {flags:#04x}")));
    }
    let index = frame.try_get_u32().map_err(short)?;
    let transferred = frame.try_get_u64().map_err(short)?;
    let total = frame.try_get_u64().map_err(short)?;
    let length = usize::from(frame.try_get_u16().map_err(short)?);
    if frame.len() < length {
        return Err(DecodeError("truncated id".to_owned()));
    }
    let id = Text::try_from(frame.split_to(length))
        .map_err(|_| DecodeError("id is not UTF-8".to_owned()))?;
    let chunk = BodyChunk {
        correlation_id: id,
        data: frame,
        is_last: flags & LAST != 0,
        total_size: (flags & SIZED != 0).then_some(total),
        index,
        transferred,
    };
    let event = if flags & OF_RESPONSE == 0 {
        Event::RequestBody(chunk)
    } else {
        Event::ResponseBody(chunk)
    };
    Ok((number, event))
}

/// What an answer's data is, where it is of the kind that travels as it is: the mutation of one direction.
#[must_use]
pub fn answer_data(response: &Response) -> Option<(EventKind, u32, Bytes)> {
    let (kind, mutation) = match (&response.request_body, &response.response_body) {
        (Some(mutation), None) => (EventKind::RequestBody, mutation),
        (None, Some(mutation)) => (EventKind::ResponseBody, mutation),
        _ => return None,
    };
    let data = mutation.data.clone()?;
    Some((kind, mutation.index, data))
}

/// Appends an answer without data.
pub fn put_answer(
    number: u64,
    id: &str,
    response: &Response,
    encoding: Encoding,
    out: &mut BytesMut,
) {
    out.put_u64(number);
    if !response.says_nothing() {
        encode_response(id, response, encoding, out);
    }
}

/// Appends everything of an answer with data but the data, which follows. `response` is without its mutation.
pub fn put_answer_head(
    number: u64,
    (kind, index): (EventKind, u32),
    id: &str,
    response: &Response,
    encoding: Encoding,
    out: &mut BytesMut,
) {
    out.put_u64(number);
    out.put_u8(u8::from(kind == EventKind::ResponseBody) * OF_RESPONSE);
    out.put_u32(index);
    let at = out.len();
    out.put_u32(0);
    if !response.says_nothing() {
        encode_response(id, response, encoding, out);
    }
    let length = (out.len() - at - 4) as u32;
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Reads the number of any answer; what follows is for [`take_answer`] and [`take_answer_data`].
///
/// # Errors
///
/// [`DecodeError`]: whose answer it is cannot be known.
pub fn take_number(frame: &mut Bytes) -> Result<u64, DecodeError> {
    frame.try_get_u64().map_err(short)
}

/// Reads an answer without data.
///
/// # Errors
///
/// [`DecodeError`].
pub fn take_answer(frame: Bytes, encoding: Encoding) -> Result<Response, DecodeError> {
    if frame.is_empty() {
        return Ok(Response::allow());
    }
    decode_response(frame, encoding).map(|(_, response)| response)
}

/// Reads an answer with data. The data is a slice of the frame.
///
/// # Errors
///
/// [`DecodeError`].
pub fn take_answer_data(mut frame: Bytes, encoding: Encoding) -> Result<Response, DecodeError> {
    let flags = frame.try_get_u8().map_err(short)?;
    let index = frame.try_get_u32().map_err(short)?;
    let length = frame.try_get_u32().map_err(short)? as usize;
    if flags & !OF_RESPONSE != 0 || frame.len() < length {
        return Err(DecodeError("truncated answer".to_owned()));
    }
    let mut response = take_answer(frame.split_to(length), encoding)?;
    let mutation = Some(BodyMutation {
        index,
        data: Some(frame),
    });
    if flags & OF_RESPONSE == 0 {
        response.request_body = mutation;
    } else {
        response.response_body = mutation;
    }
    Ok(response)
}

fn short<E>(_: E) -> DecodeError {
    DecodeError("truncated frame".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> BodyChunk {
        BodyChunk {
            correlation_id: "c1".into(),
            data: Bytes::from_static(b"\xff\x00"),
            is_last: true,
            total_size: Some(9),
            index: 3,
            transferred: 7,
        }
    }

    #[test]
    fn a_piece_is_read_as_it_was_written_and_not_copied() {
        for (kind, event) in [
            (EventKind::RequestBody, Event::RequestBody(chunk())),
            (EventKind::ResponseBody, Event::ResponseBody(chunk())),
        ] {
            let mut out = BytesMut::new();
            put_chunk_head(7, kind, &chunk(), &mut out);
            out.put_slice(&chunk().data);
            let frame = out.freeze();
            let data = frame.slice(frame.len() - 2..);
            let (number, read) = take_chunk(frame.clone()).unwrap();
            assert_eq!((number, &read), (7, &event));
            let (Event::RequestBody(chunk) | Event::ResponseBody(chunk)) = read else {
                unreachable!()
            };
            assert_eq!(chunk.data.as_ptr(), data.as_ptr());
            for length in 0..frame.len() - 2 {
                assert!(take_chunk(frame.slice(..length)).is_err(), "{length}");
            }
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let mut out = BytesMut::new();
            put_answer(7, "c1", &Response::allow(), encoding, &mut out);
            assert_eq!(out.len(), 8);
            let mut out = BytesMut::new();
            put_answer(7, "c1", &Response::block(403), encoding, &mut out);
            let mut frame = out.freeze();
            assert_eq!(take_number(&mut frame).unwrap(), 7);
            assert_eq!(take_answer(frame, encoding).unwrap(), Response::block(403));

            let mut out = BytesMut::new();
            let at = (EventKind::ResponseBody, 4);
            put_answer_head(7, at, "c1", &Response::allow(), encoding, &mut out);
            out.put_slice(b"new");
            let mut frame = out.freeze();
            assert_eq!(take_number(&mut frame).unwrap(), 7);
            let read = take_answer_data(frame, encoding).unwrap();
            let mutation = BodyMutation {
                index: 4,
                data: Some(Bytes::from_static(b"new")),
            };
            assert_eq!(read.response_body, Some(mutation));
        }
    }
}
