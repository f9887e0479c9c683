//! Assembles messages from received bytes. It does no I/O and is told the time.

use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    Role, WebSocketError, WebSocketLimits,
    frame::{FrameHeader, MAX_HEADER, Opcode, apply_mask},
    token_bucket::TokenBucket,
};

/// The size of a read at first, and the largest size, used while reads fill their buffer.
const READ_SIZES: (usize, usize) = (16 * 1024 + MAX_HEADER, 64 * 1024);

/// Messages up to this length are copied, so that a small one does not keep a whole read buffer alive.
const MAX_COPIED: usize = 2048;

/// What was received.
#[derive(Debug)]
pub(crate) enum IncomingEvent {
    Message(Bytes),
    Ping(Bytes),
    /// With the two bytes of its status code, if it has one.
    Close(Bytes),
}

#[derive(Debug)]
pub(crate) struct IncomingFrames {
    role: Role,
    max: usize,
    buffer: BytesMut,
    /// The part of a fragmented message that has been received.
    partial: Option<BytesMut>,
    control_frames: TokenBucket,
    /// The size of the next read.
    ask: usize,
}

impl IncomingFrames {
    /// `buffer` contains what was received after the upgrade's head.
    pub(crate) fn new(role: Role, limits: WebSocketLimits, buffer: BytesMut) -> Self {
        Self {
            role,
            max: limits.max_message,
            buffer,
            partial: None,
            control_frames: TokenBucket::new(limits.control_burst, limits.control_rate),
            ask: READ_SIZES.0,
        }
    }

    /// The buffer for the next read, with enough capacity.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        let missing = self.missing();
        self.buffer.reserve(missing.unwrap_or(self.ask));
        &mut self.buffer
    }

    /// Adapts the read size after a read.
    pub(crate) fn filled(&mut self) {
        let filled = self.buffer.len() == self.buffer.capacity();
        self.ask = if filled { READ_SIZES.1 } else { READ_SIZES.0 };
    }

    /// No data is available; frees an empty buffer.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Bytes of memory for received data.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.buffer.capacity() + self.partial.as_ref().map_or(0, BytesMut::capacity)
    }

    /// Bytes that the first frame still lacks, if its header is complete.
    fn missing(&self) -> Option<usize> {
        let header = FrameHeader::parse(&self.buffer).ok()??;
        let whole = header.size + usize::try_from(header.len).ok()?;
        Some(whole.saturating_sub(self.buffer.len()).max(MAX_HEADER))
    }

    /// The next event, or `None` if more has to be read.
    pub(crate) fn next(
        &mut self,
        now: impl Fn() -> Instant,
    ) -> Result<Option<IncomingEvent>, WebSocketError> {
        while let Some(header) = FrameHeader::parse(&self.buffer)? {
            self.check(&header)?;
            let Some(payload) = self.payload(&header) else {
                return Ok(None);
            };
            let is_empty = header.len == 0 && header.opcode != Opcode::Close;
            if (is_empty || matches!(header.opcode, Opcode::Ping | Opcode::Pong))
                && !self.control_frames.take(now())
            {
                return Err(WebSocketError::Flood);
            }
            if let Some(event) = self.take(&header, payload)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn check(&self, header: &FrameHeader) -> Result<(), WebSocketError> {
        if header.mask.is_some() != (self.role == Role::Server) {
            return Err(WebSocketError::Protocol(
                "a frame of a client is not masked, or one of a server is",
            ));
        }
        let begun = self.partial.as_ref().map(BytesMut::len);
        match (header.opcode, begun) {
            (Opcode::Text, _) => return Err(WebSocketError::Text),
            (Opcode::Continuation, None) | (Opcode::Binary, Some(_)) => {
                return Err(WebSocketError::Protocol(
                    "the fragments of a message are out of order",
                ));
            }
            _ => {}
        }
        let len = header.len.saturating_add(begun.unwrap_or(0) as u64);
        if !header.opcode.is_control() && len > self.max as u64 {
            return Err(WebSocketError::TooLong { len, max: self.max });
        }
        Ok(())
    }

    /// The payload of a frame, once it is complete.
    fn payload(&mut self, header: &FrameHeader) -> Option<Bytes> {
        let len = usize::try_from(header.len).ok()?;
        let payload = self.buffer.get_mut(header.size..header.size + len)?;
        if let Some(mask) = header.mask {
            apply_mask(mask, payload);
        }
        let copy = (len <= MAX_COPIED).then(|| Bytes::copy_from_slice(payload));
        self.buffer.advance(header.size);
        Some(match copy {
            Some(payload) => {
                self.buffer.advance(len);
                payload
            }
            None => self.buffer.split_to(len).freeze(),
        })
    }

    fn take(
        &mut self,
        header: &FrameHeader,
        payload: Bytes,
    ) -> Result<Option<IncomingEvent>, WebSocketError> {
        Ok(match header.opcode {
            Opcode::Ping => Some(IncomingEvent::Ping(payload)),
            Opcode::Close if payload.len() == 1 => {
                return Err(WebSocketError::Protocol(
                    "a close frame has half a status code",
                ));
            }
            Opcode::Close => Some(IncomingEvent::Close(payload.slice(..payload.len().min(2)))),
            Opcode::Binary if header.fin => Some(IncomingEvent::Message(payload)),
            Opcode::Binary => {
                self.partial = Some(BytesMut::from(payload));
                None
            }
            Opcode::Continuation => {
                let partial = self.partial.get_or_insert_default();
                partial.extend_from_slice(&payload);
                let whole = if header.fin {
                    self.partial.take()
                } else {
                    None
                };
                whole.map(|message| IncomingEvent::Message(message.freeze()))
            }
            // Unsolicited pongs are ignored; text was refused before.
            Opcode::Pong | Opcode::Text => None,
        })
    }
}
