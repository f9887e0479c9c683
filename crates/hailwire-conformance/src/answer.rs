//! Answers of the peer, read as strictly as `spec/session.md` lets a callee write them.

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Status,
    frame::FrameKind,
    header::{self, AnswerHead},
    limits,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    failure::{Failure, Outcome, same},
    link::{Link, StreamEvent},
};

/// An answer, read to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Its head, where it has one.
    pub(crate) head: Option<AnswerHead>,
    /// How many heads it has.
    pub(crate) heads: usize,
    /// Its body.
    pub(crate) body: Bytes,
    /// How it ended.
    pub(crate) end: AnswerEnd,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    /// With END, then FIN.
    Status(Status),
    /// With RESET.
    Reset(Code),
}

impl Default for AnswerEnd {
    fn default() -> Self {
        Self::Status(Status::ok())
    }
}

impl Answered {
    /// The code with which the call ends.
    pub(crate) fn code(&self) -> Code {
        match &self.end {
            AnswerEnd::Status(status) => status.code,
            AnswerEnd::Reset(Code::Ok) => Code::Cancelled,
            AnswerEnd::Reset(code) => *code,
        }
    }

    /// The status of END; a reset fails the case.
    pub(crate) fn status(&self) -> Outcome<&Status> {
        match &self.end {
            AnswerEnd::Status(status) => Ok(status),
            AnswerEnd::Reset(code) => Err(Failure::new("END", format_args!("RESET with {code}"))),
        }
    }

    /// The body of an answer that ended well.
    pub(crate) fn success(&self) -> Outcome<&Bytes> {
        match self.status()? {
            status if status.is_ok() => Ok(&self.body),
            status => Err(Failure::new(
                "END with ok",
                format_args!("END with {status}"),
            )),
        }
    }

    /// Fails unless it ended with END and this code.
    pub(crate) fn ended_with(&self, code: Code) -> Outcome {
        match self.status()? {
            status if status.code == code => Ok(()),
            status => Err(Failure::new(
                format_args!("END with {code}"),
                format_args!("END with {} ({})", status.code, status.message),
            )),
        }
    }

    /// Fails unless it ended with one of these codes, by END or RESET.
    pub(crate) fn failed_with(&self, codes: &[Code]) -> Outcome {
        match codes.contains(&self.code()) {
            true => Ok(()),
            false => {
                let names: Vec<&str> = codes.iter().map(|code| code.name()).collect();
                let expected = format!("the answer to end with {}", names.join(" or "));
                Err(Failure::new(expected, format_args!("{:?}", self.end)))
            }
        }
    }
}

/// Reads a header of the peer's, which has to be written as the tables of `spec/session.md` say.
pub(crate) fn canonical<T: Serialize + DeserializeOwned>(what: &str, payload: &[u8]) -> Outcome<T> {
    let broken = |error| Failure::rule(format_args!("{what}: {error}"));
    let decoded: T = header::decode(payload).map_err(broken)?;
    let again = header::encode(&decoded);
    same(
        &format!("the canonical bytes of {what}"),
        hex(&again),
        hex(payload),
    )?;
    Ok(decoded)
}

/// Bytes as hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// The status of an END, within the bounds that its writer keeps.
pub(crate) fn end_status(payload: &[u8]) -> Outcome<Status> {
    if payload.is_empty() {
        return Ok(Status::ok());
    }
    let status: Status = canonical("END", payload)?;
    let bounds = [
        ("message", &status.message, limits::MAX_STATUS_MESSAGE),
        ("hint", &status.hint, limits::MAX_STATUS_MESSAGE),
        ("details", &status.details, limits::MAX_STATUS_DETAILS),
    ];
    for (name, text, most) in bounds {
        if text.len() > most {
            let len = text.len();
            let what = format_args!("a status whose {name} has {len} bytes, {most} at most");
            return Err(Failure::rule(what));
        }
    }
    Ok(status)
}

impl Link {
    /// Reads an answer to its end, and what must follow the end.
    pub(crate) async fn answer(&mut self, id: u64) -> Outcome<Answered> {
        let (mut head, mut heads, mut body, mut end) = (None, 0, BytesMut::new(), None);
        loop {
            let event = self.event(id).await?;
            if end.is_some() && event != StreamEvent::Finished {
                return Err(Failure::new("FIN after END", format_args!("{event:?}")));
            }
            match event {
                StreamEvent::Frame(FrameKind::HEAD, payload) => {
                    if !body.is_empty() {
                        return Err(Failure::rule("HEAD after DATA of an answer"));
                    }
                    heads += 1;
                    head = Some(canonical("HEAD", &payload)?);
                }
                StreamEvent::Frame(FrameKind::END, payload) => end = Some(end_status(&payload)?),
                StreamEvent::Frame(kind, _) => {
                    return Err(Failure::rule(format_args!("{kind:?} in an answer")));
                }
                StreamEvent::Data(bytes) => body.extend_from_slice(&bytes),
                StreamEvent::Finished => {
                    let Some(status) = end else {
                        return Err(Failure::new("END", "FIN without it"));
                    };
                    let (body, end) = (body.freeze(), AnswerEnd::Status(status));
                    return Ok(Answered {
                        head,
                        heads,
                        body,
                        end,
                    });
                }
                StreamEvent::Reset(code) => {
                    let (body, end) = (body.freeze(), AnswerEnd::Reset(code));
                    return Ok(Answered {
                        head,
                        heads,
                        body,
                        end,
                    });
                }
            }
        }
    }
}
