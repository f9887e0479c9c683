//! What HAProxy sends, read.

use bytes::{Buf as _, Bytes};

use super::{
    FIN, Fault, Frame, HAPROXY_DISCONNECT, HAPROXY_HELLO, Hello, MAX_FRAME, MAX_MESSAGES,
    MIN_FRAME, Message, NOTIFY, Notify, Value,
};

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
pub(in crate::front::spoe) struct Reader(pub(in crate::front::spoe) Bytes);

impl Reader {
    pub(in crate::front::spoe) fn is_empty(&self) -> bool {
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
    pub(super) fn varint(&mut self) -> Result<u64, Fault> {
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

    pub(in crate::front::spoe) fn text(&mut self) -> Result<Bytes, Fault> {
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
    pub(super) fn value(&mut self) -> Result<Value, Fault> {
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
