//! Decodes the frames of HAProxy.

use bytes::{Buf as _, Bytes};

use super::{
    FIN, HAPROXY_DISCONNECT, HAPROXY_HELLO, HaproxyHello, MAX_FRAME, MAX_MESSAGES, MIN_FRAME,
    NOTIFY, NotifyFrame, SpoeMessage, SpopError, SpopFrame, SpopValue,
};

/// Reads a frame that [`cut`] took.
///
/// # Errors
///
/// What is wrong with it; the connection ends with that.
pub fn read(frame: Bytes) -> Result<SpopFrame, SpopError> {
    let mut rest = FrameReader(frame);
    let kind = rest.u8()?;
    let flags = rest.u32()?;
    if kind == 0 || flags & FIN == 0 {
        return Err(SpopError::Fragmented);
    }
    let (stream, frame) = (rest.varint()?, rest.varint()?);
    match kind {
        HAPROXY_HELLO => hello(rest).map(SpopFrame::Hello),
        HAPROXY_DISCONNECT => disconnect(rest),
        NOTIFY => Ok(SpopFrame::Notify(NotifyFrame {
            stream,
            frame,
            messages: messages(rest)?,
        })),
        other => Ok(SpopFrame::Other(other)),
    }
}

fn hello(mut rest: FrameReader) -> Result<HaproxyHello, SpopError> {
    let mut hello = HaproxyHello::default();
    let (mut version, mut max_frame, mut capabilities) = (None, None, None);
    while !rest.is_empty() {
        let (name, value) = rest.named()?;
        match &name[..] {
            b"supported-versions" => version = value.bytes().cloned(),
            b"max-frame-size" => max_frame = value.number(),
            b"capabilities" => capabilities = value.bytes().cloned(),
            b"healthcheck" => hello.healthcheck = value == SpopValue::Bool(true),
            b"engine-id" => hello.engine = value.bytes().cloned().unwrap_or_default(),
            _ => {}
        }
    }
    let listed =
        |list: &[u8], is: fn(&[u8]) -> bool| list.split(|b| *b == b',').any(|e| is(e.trim_ascii()));
    if !listed(&version.ok_or(SpopError::NoVersion)?, |v| {
        v.starts_with(b"2.")
    }) {
        return Err(SpopError::UnsupportedVersion);
    }
    let max_frame = max_frame.ok_or(SpopError::NoMaxFrameSize)?;
    hello.max_frame = u32::try_from(max_frame).unwrap_or(u32::MAX).min(MAX_FRAME);
    if hello.max_frame < MIN_FRAME {
        return Err(SpopError::BadFrameSize);
    }
    let capabilities = capabilities.ok_or(SpopError::NoCapabilities)?;
    hello.pipelining = listed(&capabilities, |c| c == b"pipelining");
    Ok(hello)
}

fn disconnect(mut rest: FrameReader) -> Result<SpopFrame, SpopError> {
    let (mut code, mut message) = (0, Bytes::new());
    while !rest.is_empty() {
        let (name, value) = rest.named()?;
        match &name[..] {
            b"status-code" => code = value.number().unwrap_or_default(),
            b"message" => message = value.bytes().cloned().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(SpopFrame::Disconnect { code, message })
}

fn messages(mut rest: FrameReader) -> Result<Vec<SpoeMessage>, SpopError> {
    let mut messages = Vec::new();
    while !rest.is_empty() {
        if messages.len() == MAX_MESSAGES {
            return Err(SpopError::TooBig);
        }
        let name = rest.text()?;
        let count = rest.u8()?;
        let args = (0..count)
            .map(|_| rest.named())
            .collect::<Result<Vec<_>, _>>()?;
        messages.push(SpoeMessage { name, args });
    }
    Ok(messages)
}

/// What is left of a frame.
#[derive(Debug)]
pub(in crate::front::spoe) struct FrameReader(pub(in crate::front::spoe) Bytes);

impl FrameReader {
    pub(in crate::front::spoe) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<Bytes, SpopError> {
        if self.0.len() < count {
            return Err(SpopError::Invalid);
        }
        Ok(self.0.split_to(count))
    }

    fn u8(&mut self) -> Result<u8, SpopError> {
        self.0.try_get_u8().map_err(|_| SpopError::Invalid)
    }

    fn u32(&mut self) -> Result<u32, SpopError> {
        self.0.try_get_u32().map_err(|_| SpopError::Invalid)
    }

    /// A number: below 240 one byte, else four bits there and seven in each byte that follows.
    pub(super) fn varint(&mut self) -> Result<u64, SpopError> {
        let first = self.u8()?;
        let mut value = u64::from(first);
        if first < 240 {
            return Ok(value);
        }
        for shift in (4..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte) << shift;
            if part >> shift != u64::from(byte) {
                return Err(SpopError::Invalid);
            }
            value = value.checked_add(part).ok_or(SpopError::Invalid)?;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(SpopError::Invalid)
    }

    pub(in crate::front::spoe) fn text(&mut self) -> Result<Bytes, SpopError> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| SpopError::Invalid)?)
    }

    fn named(&mut self) -> Result<(Bytes, SpopValue), SpopError> {
        Ok((self.text()?, self.value()?))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "a negative number is its two's complement, of 64 bits whatever its type"
    )]
    pub(super) fn value(&mut self) -> Result<SpopValue, SpopError> {
        let kind = self.u8()?;
        Ok(match kind & 0x0f {
            0 => SpopValue::Null,
            1 => SpopValue::Bool(kind & 0x10 != 0),
            2 => SpopValue::Int32(self.varint()? as i32),
            3 => SpopValue::Uint32(self.varint()?.try_into().map_err(|_| SpopError::Invalid)?),
            4 => SpopValue::Int64(self.varint()? as i64),
            5 => SpopValue::Uint64(self.varint()?),
            6 => SpopValue::V4(self.u32()?.into()),
            7 => {
                let bits = self.0.try_get_u128().map_err(|_| SpopError::Invalid)?;
                SpopValue::V6(bits.into())
            }
            8 => SpopValue::Text(self.text()?),
            9 => SpopValue::Binary(self.text()?),
            _ => return Err(SpopError::Invalid),
        })
    }
}
