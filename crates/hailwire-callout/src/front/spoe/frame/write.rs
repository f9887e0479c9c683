//! Encodes the frames for HAProxy.

use bytes::{BufMut as _, BytesMut};

use super::{ACK, AGENT_DISCONNECT, AGENT_HELLO, FIN, SetVar, SpopError, SpopValue};

/// The answer to a [`Hello`].
pub fn write_hello(output: &mut BytesMut, max_frame: u32, pipelining: bool) {
    let capabilities = if pipelining { "pipelining" } else { "" };
    write(output, AGENT_HELLO, 0, 0, |payload| {
        write_named(payload, "version", &SpopValue::Text("2.0".into()));
        write_named(payload, "max-frame-size", &SpopValue::Uint32(max_frame));
        write_named(
            payload,
            "capabilities",
            &SpopValue::Text(capabilities.into()),
        );
    });
}

/// The end of a connection.
pub fn write_disconnect(output: &mut BytesMut, fault: SpopError) {
    write(output, AGENT_DISCONNECT, 0, 0, |payload| {
        write_named(payload, "status-code", &SpopValue::Uint32(fault as u32));
        write_named(
            payload,
            "message",
            &SpopValue::Text(fault.to_string().into()),
        );
    });
}

/// The answer to a [`Notify`]. False, and nothing is written, if it is larger than `max`.
pub fn write_ack(
    output: &mut BytesMut,
    stream: u64,
    frame: u64,
    vars: &[SetVar],
    max: u32,
) -> bool {
    let start = output.len();
    write(output, ACK, stream, frame, |payload| {
        for var in vars {
            payload.put_slice(&[1, 3, var.scope as u8]);
            write_text(payload, var.name.as_bytes());
            write_value(payload, &var.value);
        }
    });
    let fits = output.len() - start - 4 <= max as usize;
    if !fits {
        output.truncate(start);
    }
    fits
}

fn write(
    output: &mut BytesMut,
    kind: u8,
    stream: u64,
    frame: u64,
    payload: impl FnOnce(&mut BytesMut),
) {
    let start = output.len();
    output.put_u32(0);
    output.put_u8(kind);
    output.put_u32(FIN);
    write_varint(output, stream);
    write_varint(output, frame);
    payload(output);
    let length = u32::try_from(output.len() - start - 4).unwrap_or(u32::MAX);
    output[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

pub(super) fn write_varint(output: &mut BytesMut, mut value: u64) {
    let low = |value: u64| value.to_le_bytes()[0];
    if value < 240 {
        return output.put_u8(low(value));
    }
    output.put_u8(low(value) | 240);
    value = (value - 240) >> 4;
    while value >= 128 {
        output.put_u8(low(value) | 128);
        value = (value - 128) >> 7;
    }
    output.put_u8(low(value));
}

fn write_text(output: &mut BytesMut, text: &[u8]) {
    write_varint(output, text.len() as u64);
    output.put_slice(text);
}

fn write_named(output: &mut BytesMut, name: &str, value: &SpopValue) {
    write_text(output, name.as_bytes());
    write_value(output, value);
}

#[expect(
    clippy::cast_sign_loss,
    reason = "a negative number is its two's complement"
)]
pub(super) fn write_value(output: &mut BytesMut, value: &SpopValue) {
    let number = |output: &mut BytesMut, kind, value| {
        output.put_u8(kind);
        write_varint(output, value);
    };
    match value {
        SpopValue::Null => output.put_u8(0),
        SpopValue::Bool(value) => output.put_u8(if *value { 0x11 } else { 1 }),
        SpopValue::Int32(value) => number(output, 2, i64::from(*value) as u64),
        SpopValue::Uint32(value) => number(output, 3, u64::from(*value)),
        SpopValue::Int64(value) => number(output, 4, *value as u64),
        SpopValue::Uint64(value) => number(output, 5, *value),
        SpopValue::V4(address) => {
            output.put_u8(6);
            output.put_slice(&address.octets());
        }
        SpopValue::V6(address) => {
            output.put_u8(7);
            output.put_slice(&address.octets());
        }
        SpopValue::Text(text) => {
            output.put_u8(8);
            write_text(output, text);
        }
        SpopValue::Binary(bytes) => {
            output.put_u8(9);
            write_text(output, bytes);
        }
    }
}
