//! From bytes to messages: what has come and is not whole yet. It does no I/O and is told the time.

use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    Error, Role, Terms,
    allowance::Allowance,
    frame::{Header, MAX_HEADER, Opcode, apply_mask},
};

/// Bytes that a read asks for at first, and at most where reads bring all that they ask for.
const READ: (usize, usize) = (16 * 1024 + MAX_HEADER, 64 * 1024);

/// Messages up to this length are copied, so that a small one does not hold a whole read.
const SMALL: usize = 2048;

/// What a frame meant.
#[derive(Debug)]
pub(crate) enum Event {
    Message(Bytes),
    Ping(Bytes),
    /// With the two bytes of its code, or none.
    Close(Bytes),
}

#[derive(Debug)]
pub(crate) struct Incoming {
    role: Role,
    max: usize,
    buffer: BytesMut,
    /// What has come of a message in several frames.
    partial: Option<BytesMut>,
    allowance: Allowance,
    /// Bytes that the next read asks for.
    ask: usize,
}

impl Incoming {
    /// `buffer` holds what came after the upgrade's head.
    pub(crate) fn new(role: Role, terms: Terms, buffer: BytesMut) -> Self {
        Self {
            role,
            max: terms.max_message,
            buffer,
            partial: None,
            allowance: Allowance::new(terms.control_burst, terms.control_rate),
            ask: READ.0,
        }
    }

    /// Where a read puts its bytes. There is room.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        let missing = self.missing();
        self.buffer.reserve(missing.unwrap_or(self.ask));
        &mut self.buffer
    }

    /// A read brought so many bytes.
    pub(crate) fn came(&mut self) {
        let filled = self.buffer.len() == self.buffer.capacity();
        self.ask = if filled { READ.1 } else { READ.0 };
    }

    /// Nothing comes for now.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Bytes of memory for what has come.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.buffer.capacity() + self.partial.as_ref().map_or(0, BytesMut::capacity)
    }

    /// Bytes that the frame at the front still lacks, where its header has come and was allowed.
    fn missing(&self) -> Option<usize> {
        let header = Header::parse(&self.buffer).ok()??;
        let whole = header.size + usize::try_from(header.len).ok()?;
        Some(whole.saturating_sub(self.buffer.len()).max(MAX_HEADER))
    }

    /// The next thing that happened, or none before more has been read.
    pub(crate) fn next(&mut self, now: impl Fn() -> Instant) -> Result<Option<Event>, Error> {
        while let Some(header) = Header::parse(&self.buffer)? {
            self.check(&header)?;
            let Some(payload) = self.payload(&header) else {
                return Ok(None);
            };
            let brings_nothing = header.len == 0 && header.opcode != Opcode::Close;
            if (brings_nothing || matches!(header.opcode, Opcode::Ping | Opcode::Pong))
                && !self.allowance.take(now())
            {
                return Err(Error::Flood);
            }
            if let Some(event) = self.take(&header, payload)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn check(&self, header: &Header) -> Result<(), Error> {
        if header.mask.is_some() != (self.role == Role::Server) {
            return Err(Error::Protocol(
                "a frame is masked where it must not be, or the reverse",
            ));
        }
        let begun = self.partial.as_ref().map(BytesMut::len);
        match (header.opcode, begun) {
            (Opcode::Text, _) => return Err(Error::Text),
            (Opcode::Continuation, None) | (Opcode::Binary, Some(_)) => {
                return Err(Error::Protocol("the parts of a message are out of order"));
            }
            _ => {}
        }
        let len = header.len.saturating_add(begun.unwrap_or(0) as u64);
        if !header.opcode.is_control() && len > self.max as u64 {
            return Err(Error::TooLong { len, max: self.max });
        }
        Ok(())
    }

    /// The payload of a frame, once it has come.
    fn payload(&mut self, header: &Header) -> Option<Bytes> {
        let len = usize::try_from(header.len).ok()?;
        let payload = self.buffer.get_mut(header.size..header.size + len)?;
        if let Some(mask) = header.mask {
            apply_mask(mask, payload);
        }
        let copy = (len <= SMALL).then(|| Bytes::copy_from_slice(payload));
        self.buffer.advance(header.size);
        Some(match copy {
            Some(payload) => {
                self.buffer.advance(len);
                payload
            }
            None => self.buffer.split_to(len).freeze(),
        })
    }

    fn take(&mut self, header: &Header, payload: Bytes) -> Result<Option<Event>, Error> {
        Ok(match header.opcode {
            Opcode::Ping => Some(Event::Ping(payload)),
            Opcode::Close if payload.len() == 1 => {
                return Err(Error::Protocol("a close has half a code"));
            }
            Opcode::Close => Some(Event::Close(payload.slice(..payload.len().min(2)))),
            Opcode::Binary if header.fin => Some(Event::Message(payload)),
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
                whole.map(|message| Event::Message(message.freeze()))
            }
            // Nobody asked, or it was refused before.
            Opcode::Pong | Opcode::Text => None,
        })
    }
}
