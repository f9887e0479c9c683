//! The frames of SPOP 2.0, as bytes.
//!
//! ```text
//! u32 BE   length of what follows
//! u8       type: 1 HAPROXY-HELLO, 2 HAPROXY-DISCONNECT, 3 NOTIFY, 101 AGENT-HELLO, 102 AGENT-DISCONNECT, 103 ACK
//! u32 BE   flags: 1 the frame is whole, 2 aborted
//! varint   stream, varint frame
//! bytes    HELLO, DISCONNECT: names with values; NOTIFY: messages; ACK: actions
//! ```
//!
//! A value is one byte, its type in the low and flags in the high half, and then what that type holds. Texts
//! and bodies that are read are slices of the frame. A frame that is not whole is refused: we do not announce
//! that we can put fragments together, and HAProxy no longer makes any.
//!
//! Our own code and not the crate `spop`, which reads texts with loss (an agent would see other bytes than the
//! server), copies every body, and boxes each frame; what would be ours anyway, the sessions, their bounds and
//! the meaning of the messages, is the larger part. HAProxy's `doc/SPOE.txt`, chapter 3, is what this follows.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Bytes of a frame that are taken at most; HAProxy proposes its buffer's size, 16 KiB by default.
pub const MAX_FRAME: u32 = 1 << 20;

/// Every peer takes frames of this size.
pub const MIN_FRAME: u32 = 256;

/// Messages in one NOTIFY.
pub const MAX_MESSAGES: usize = 32;

const FIN: u32 = 1;

const HAPROXY_HELLO: u8 = 1;
const HAPROXY_DISCONNECT: u8 = 2;
const NOTIFY: u8 = 3;
const AGENT_HELLO: u8 = 101;
const AGENT_DISCONNECT: u8 = 102;
const ACK: u8 = 103;

/// Why a connection ends, with the numbers of SPOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is")]
pub enum Fault {
    #[error("normal")]
    Normal = 0,
    #[error("input or output failed")]
    Io = 1,
    #[error("the frame is too big")]
    TooBig = 3,
    #[error("the frame is invalid")]
    Invalid = 4,
    #[error("the supported versions are missing")]
    NoVersion = 5,
    #[error("the maximum frame size is missing")]
    NoMaxFrameSize = 6,
    #[error("the capabilities are missing")]
    NoCapabilities = 7,
    #[error("no supported version")]
    UnsupportedVersion = 8,
    #[error("the maximum frame size is too small")]
    BadFrameSize = 9,
    #[error("fragments are not taken")]
    Fragmented = 10,
}

/// What HAProxy sends.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "each is named as in SPOP, or after what it holds"
)]
pub enum Frame {
    Hello(Hello),
    Notify(Notify),
    Disconnect {
        code: u64,
        message: Bytes,
    },
    /// Of a type that is not known, and skipped.
    Other(u8),
}

/// What HAProxy proposes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Bytes of a frame.
    pub max_frame: u32,
    /// Answers need not come in the order of the questions.
    pub pipelining: bool,
    /// The connection ends after the answer.
    pub healthcheck: bool,
    /// Which engine of which process this is; empty where it does not say.
    pub engine: Bytes,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Notify {
    /// The stream of HAProxy that it is about: one HTTP request.
    pub stream: u64,
    /// Which question of that stream.
    pub frame: u64,
    /// What it tells.
    pub messages: Vec<Message>,
}

/// A message: one `spoe-message` of HAProxy's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its name there.
    pub name: Bytes,
    /// Its arguments.
    pub args: Vec<(Bytes, Value)>,
}

impl Message {
    /// The first argument of a name.
    #[must_use]
    pub fn arg(&self, name: &str) -> Option<&Value> {
        self.args
            .iter()
            .find(|(known, _)| known == name.as_bytes())
            .map(|(_, value)| value)
    }
}

/// A value with its type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types of SPOP")]
pub enum Value {
    Null,
    Bool(bool),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Text(Bytes),
    Binary(Bytes),
}

impl Value {
    /// The bytes of a text or of binary data.
    #[must_use]
    pub const fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A number that is not negative.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match *self {
            Self::Int32(n) => n.try_into().ok(),
            Self::Uint32(n) => Some(n.into()),
            Self::Int64(n) => n.try_into().ok(),
            Self::Uint64(n) => Some(n),
            _ => None,
        }
    }
}

/// Whose variable an action sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Of a request and its response, `txn.`
    Transaction = 2,
    /// Of a response, `res.`
    Response = 4,
}

/// A variable that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetVar {
    /// Whose it is.
    pub scope: Scope,
    /// Its name, without what HAProxy puts before it.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// Takes the next frame, without its length, out of what came in; `None` until all of it is there.
///
/// # Errors
///
/// [`Fault::TooBig`] as soon as a length beyond `max` is read.
pub fn cut(input: &mut BytesMut, max: u32) -> Result<Option<Bytes>, Fault> {
    let Some(length) = input.first_chunk::<4>().copied() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(length);
    if length > max {
        return Err(Fault::TooBig);
    }
    if input.len() - 4 < length as usize {
        return Ok(None);
    }
    input.advance(4);
    Ok(Some(input.split_to(length as usize).freeze()))
}

/// Reads a frame that [`cut`] took.
///
/// # Errors
///
/// What is wrong with it; the connection ends with that.
pub fn read(frame: Bytes) -> Result<Frame, Fault> {
    let mut rest = Reader(frame);
    let kind = rest.u8()?;
    let flags = rest.u32()?;
    if kind == 0 || flags & FIN == 0 {
        return Err(Fault::Fragmented);
    }
    let (stream, frame) = (rest.varint()?, rest.varint()?);
    match kind {
        HAPROXY_HELLO => hello(rest).map(Frame::Hello),
        HAPROXY_DISCONNECT => disconnect(rest),
        NOTIFY => Ok(Frame::Notify(Notify {
            stream,
            frame,
            messages: messages(rest)?,
        })),
        other => Ok(Frame::Other(other)),
    }
}

fn hello(mut rest: Reader) -> Result<Hello, Fault> {
    let mut hello = Hello::default();
    let (mut version, mut max_frame, mut capabilities) = (None, None, None);
    while !rest.is_empty() {
        let (name, value) = rest.named()?;
        match &name[..] {
            b"supported-versions" => version = value.bytes().cloned(),
            b"max-frame-size" => max_frame = value.number(),
            b"capabilities" => capabilities = value.bytes().cloned(),
            b"healthcheck" => hello.healthcheck = value == Value::Bool(true),
            b"engine-id" => hello.engine = value.bytes().cloned().unwrap_or_default(),
            _ => {}
        }
    }
    let listed =
        |list: &[u8], is: fn(&[u8]) -> bool| list.split(|b| *b == b',').any(|e| is(e.trim_ascii()));
    if !listed(&version.ok_or(Fault::NoVersion)?, |v| v.starts_with(b"2.")) {
        return Err(Fault::UnsupportedVersion);
    }
    let max_frame = max_frame.ok_or(Fault::NoMaxFrameSize)?;
    hello.max_frame = u32::try_from(max_frame).unwrap_or(u32::MAX).min(MAX_FRAME);
    if hello.max_frame < MIN_FRAME {
        return Err(Fault::BadFrameSize);
    }
    let capabilities = capabilities.ok_or(Fault::NoCapabilities)?;
    hello.pipelining = listed(&capabilities, |c| c == b"pipelining");
    Ok(hello)
}

fn disconnect(mut rest: Reader) -> Result<Frame, Fault> {
    let (mut code, mut message) = (0, Bytes::new());
    while !rest.is_empty() {
        let (name, value) = rest.named()?;
        match &name[..] {
            b"status-code" => code = value.number().unwrap_or_default(),
            b"message" => message = value.bytes().cloned().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Frame::Disconnect { code, message })
}

fn messages(mut rest: Reader) -> Result<Vec<Message>, Fault> {
    let mut messages = Vec::new();
    while !rest.is_empty() {
        if messages.len() == MAX_MESSAGES {
            return Err(Fault::TooBig);
        }
        let name = rest.text()?;
        let count = rest.u8()?;
        let args = (0..count)
            .map(|_| rest.named())
            .collect::<Result<Vec<_>, _>>()?;
        messages.push(Message { name, args });
    }
    Ok(messages)
}

/// What is left of a frame.
#[derive(Debug)]
pub(super) struct Reader(pub(super) Bytes);

impl Reader {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<Bytes, Fault> {
        if self.0.len() < count {
            return Err(Fault::Invalid);
        }
        Ok(self.0.split_to(count))
    }

    fn u8(&mut self) -> Result<u8, Fault> {
        self.0.try_get_u8().map_err(|_| Fault::Invalid)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        self.0.try_get_u32().map_err(|_| Fault::Invalid)
    }

    /// A number: below 240 one byte, else four bits there and seven in each byte that follows.
    fn varint(&mut self) -> Result<u64, Fault> {
        let first = self.u8()?;
        let mut value = u64::from(first);
        if first < 240 {
            return Ok(value);
        }
        for shift in (4..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte) << shift;
            if part >> shift != u64::from(byte) {
                return Err(Fault::Invalid);
            }
            value = value.checked_add(part).ok_or(Fault::Invalid)?;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(Fault::Invalid)
    }

    pub(super) fn text(&mut self) -> Result<Bytes, Fault> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| Fault::Invalid)?)
    }

    fn named(&mut self) -> Result<(Bytes, Value), Fault> {
        Ok((self.text()?, self.value()?))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "a negative number is its two's complement, of 64 bits whatever its type"
    )]
    fn value(&mut self) -> Result<Value, Fault> {
        let kind = self.u8()?;
        Ok(match kind & 0x0f {
            0 => Value::Null,
            1 => Value::Bool(kind & 0x10 != 0),
            2 => Value::Int32(self.varint()? as i32),
            3 => Value::Uint32(self.varint()?.try_into().map_err(|_| Fault::Invalid)?),
            4 => Value::Int64(self.varint()? as i64),
            5 => Value::Uint64(self.varint()?),
            6 => Value::V4(self.u32()?.into()),
            7 => {
                let bits = self.0.try_get_u128().map_err(|_| Fault::Invalid)?;
                Value::V6(bits.into())
            }
            8 => Value::Text(self.text()?),
            9 => Value::Binary(self.text()?),
            _ => return Err(Fault::Invalid),
        })
    }
}

/// The answer to a [`Hello`].
pub fn write_hello(output: &mut BytesMut, max_frame: u32, pipelining: bool) {
    let capabilities = if pipelining { "pipelining" } else { "" };
    write(output, AGENT_HELLO, 0, 0, |payload| {
        write_named(payload, "version", &Value::Text("2.0".into()));
        write_named(payload, "max-frame-size", &Value::Uint32(max_frame));
        write_named(payload, "capabilities", &Value::Text(capabilities.into()));
    });
}

/// The end of a connection.
pub fn write_disconnect(output: &mut BytesMut, fault: Fault) {
    write(output, AGENT_DISCONNECT, 0, 0, |payload| {
        write_named(payload, "status-code", &Value::Uint32(fault as u32));
        write_named(payload, "message", &Value::Text(fault.to_string().into()));
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

fn write_varint(output: &mut BytesMut, mut value: u64) {
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

fn write_named(output: &mut BytesMut, name: &str, value: &Value) {
    write_text(output, name.as_bytes());
    write_value(output, value);
}

#[expect(
    clippy::cast_sign_loss,
    reason = "a negative number is its two's complement"
)]
fn write_value(output: &mut BytesMut, value: &Value) {
    let number = |output: &mut BytesMut, kind, value| {
        output.put_u8(kind);
        write_varint(output, value);
    };
    match value {
        Value::Null => output.put_u8(0),
        Value::Bool(value) => output.put_u8(if *value { 0x11 } else { 1 }),
        Value::Int32(value) => number(output, 2, i64::from(*value) as u64),
        Value::Uint32(value) => number(output, 3, u64::from(*value)),
        Value::Int64(value) => number(output, 4, *value as u64),
        Value::Uint64(value) => number(output, 5, *value),
        Value::V4(address) => {
            output.put_u8(6);
            output.put_slice(&address.octets());
        }
        Value::V6(address) => {
            output.put_u8(7);
            output.put_slice(&address.octets());
        }
        Value::Text(text) => {
            output.put_u8(8);
            write_text(output, text);
        }
        Value::Binary(bytes) => {
            output.put_u8(9);
            write_text(output, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::{Pcg64, rand_core::Rng as _};

    use super::*;

    #[test]
    fn numbers_survive_a_round_trip_at_every_border_of_their_length() {
        let borders = [
            0,
            239,
            240,
            2287,
            2288,
            264_431,
            264_432,
            33_818_864,
            u64::MAX,
        ];
        for value in borders.into_iter().flat_map(|n| [n.saturating_sub(1), n]) {
            let mut bytes = BytesMut::new();
            write_varint(&mut bytes, value);
            let mut rest = Reader(bytes.freeze());
            assert_eq!(rest.varint(), Ok(value));
            assert!(rest.is_empty());
        }
        let mut bytes = BytesMut::new();
        write_varint(&mut bytes, 2288);
        assert_eq!(&bytes[..], [0xf0, 0x80, 0x00]);
    }

    /// What `spec/vectors/callout/spop.json` has, in its order.
    fn vectors() -> Vec<BytesMut> {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../spec/vectors/callout/spop.json"
        );
        let vectors = std::fs::read(file).unwrap();
        let vectors: serde_json::Value = serde_json::from_slice(&vectors).unwrap();
        let bytes = vectors["frames"].as_array().unwrap().iter().map(|frame| {
            let hex = frame["bytes"].as_str().unwrap().as_bytes();
            let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16);
            hex.chunks(2).map(|two| byte(two).unwrap()).collect()
        });
        bytes.collect()
    }

    fn frame(bytes: &BytesMut) -> Frame {
        let mut bytes = bytes.clone();
        let frame = cut(&mut bytes, MAX_FRAME).unwrap().unwrap();
        assert!(bytes.is_empty());
        read(frame).unwrap()
    }

    #[test]
    fn what_haproxy_said_is_read_and_what_it_took_is_written() {
        let vectors = vectors();
        let Frame::Hello(hello) = frame(&vectors[0]) else {
            panic!("no greeting");
        };
        assert_eq!((hello.max_frame, hello.pipelining), (16380, true));
        assert!(!hello.engine.is_empty() && !hello.healthcheck);
        let mut output = BytesMut::new();
        write_hello(&mut output, hello.max_frame, hello.pipelining);
        assert_eq!(output, vectors[1]);

        let answers = [
            (2, "method", Scope::Transaction),
            (4, "status", Scope::Response),
        ];
        for (n, arg, scope) in answers {
            let Frame::Notify(notify) = frame(&vectors[n]) else {
                panic!("no question");
            };
            assert!(notify.messages[0].arg(arg).is_some());
            let allow = SetVar {
                scope,
                name: "decision".to_owned(),
                value: Value::Text("allow".into()),
            };
            let mut output = BytesMut::new();
            let (stream, frame) = (notify.stream, notify.frame);
            assert!(write_ack(&mut output, stream, frame, &[allow], 16380));
            assert_eq!(output, vectors[n + 1]);
        }
        let Frame::Notify(request) = frame(&vectors[2]) else {
            panic!("no question");
        };
        let message = &request.messages[0];
        assert_eq!(message.name, "hail-request");
        assert_eq!(message.arg("src"), Some(&Value::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(message.arg("sni"), Some(&Value::Null));
        assert_eq!(message.arg("body").unwrap().bytes().unwrap(), "hello");
    }

    #[test]
    fn a_number_beyond_64_bits_is_refused() {
        let endless = Bytes::from(vec![0xff; 32]);
        assert_eq!(Reader(endless).varint(), Err(Fault::Invalid));
    }

    #[test]
    fn values_of_every_type_survive_a_round_trip() {
        let values = [
            Value::Null,
            Value::Bool(true),
            Value::Bool(false),
            Value::Int32(-5),
            Value::Uint32(u32::MAX),
            Value::Int64(i64::MIN),
            Value::Uint64(u64::MAX),
            Value::V4(Ipv4Addr::new(192, 0, 2, 1)),
            Value::V6(Ipv6Addr::LOCALHOST),
            Value::Text("text".into()),
            Value::Binary(Bytes::from_static(&[0, 255])),
        ];
        for value in values {
            let mut bytes = BytesMut::new();
            write_value(&mut bytes, &value);
            let mut rest = Reader(bytes.freeze());
            assert_eq!(rest.value(), Ok(value));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn a_frame_is_taken_only_when_it_is_whole_and_not_too_big() {
        let mut input = BytesMut::from(&[0, 0, 0, 3, 1, 2][..]);
        assert_eq!(cut(&mut input, 3), Ok(None));
        input.put_slice(&[3, 9]);
        assert_eq!(cut(&mut input, 3), Ok(Some(Bytes::from_static(&[1, 2, 3]))));
        assert_eq!(&input[..], [9]);
        let mut input = BytesMut::from(&[0, 0, 0, 4][..]);
        assert_eq!(cut(&mut input, 3), Err(Fault::TooBig));
    }

    #[test]
    fn fragments_are_refused() {
        let fragment = Bytes::from_static(&[NOTIFY, 0, 0, 0, 0, 1, 1]);
        assert_eq!(read(fragment), Err(Fault::Fragmented));
        let rest = Bytes::from_static(&[0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(read(rest), Err(Fault::Fragmented));
    }

    #[test]
    fn more_messages_than_the_bound_are_refused() {
        let mut frame = vec![NOTIFY, 0, 0, 0, 1, 1, 1];
        frame.extend([1, b'm', 0].repeat(MAX_MESSAGES));
        assert!(read(frame.clone().into()).is_ok());
        frame.extend([1, b'm', 0]);
        assert_eq!(read(frame.into()), Err(Fault::TooBig));
    }

    #[test]
    fn an_answer_larger_than_the_frame_is_not_written() {
        let var = SetVar {
            scope: Scope::Transaction,
            name: "body".into(),
            value: Value::Text("x".repeat(300).into()),
        };
        let mut output = BytesMut::from("before");
        assert!(!write_ack(&mut output, 1, 1, &[var], MIN_FRAME));
        assert_eq!(&output[..], b"before");
    }

    /// Any bytes are a frame or a fault; damaged frames that begin well reach further than noise does.
    #[test]
    fn any_bytes_give_a_frame_or_a_fault() {
        let mut rng = Pcg64::new(0x5b0e, 1);
        let whole: Vec<_> = vectors().iter().map(|frame| frame[4..].to_vec()).collect();
        for _ in 0..20_000 {
            let mut bytes = if rng.next_u32().is_multiple_of(2) {
                whole[rng.next_u32() as usize % whole.len()].clone()
            } else {
                vec![0; (rng.next_u32() % 64) as usize]
            };
            for _ in 0..rng.next_u32() % 8 {
                if let Some(at) = (rng.next_u32() as usize).checked_rem(bytes.len()) {
                    bytes[at] = rng.next_u32().to_le_bytes()[0];
                }
            }
            bytes.truncate(bytes.len() - rng.next_u32() as usize % (bytes.len() + 1) / 4);
            let _ = read(bytes.into());
        }
    }
}
