//! The outcome of a call.
//!
//! Codes are gRPC's (<https://grpc.io/docs/guides/status-codes/>), with the same numbers, because
//! callers already know what to retry by them. One table serves three places: the end of an
//! answer, the reset of a stream and the close of a connection all carry a [`Code`].

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{header::is_zero_u64, limits};

/// A gRPC status code.
///
/// Unknown numbers from a newer peer are read as [`Code::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The caller gave up.
    Cancelled = 1,
    /// An error that fits no other code.
    Unknown = 2,
    /// The request can never succeed as it stands.
    InvalidArgument = 3,
    /// Time ran out before the answer was whole.
    DeadlineExceeded = 4,
    /// No such agent, node or name.
    NotFound = 5,
    /// The thing to be made exists already.
    AlreadyExists = 6,
    /// The caller is known and may not do this.
    PermissionDenied = 7,
    /// A bound was reached: concurrency, memory, rate or quota.
    ResourceExhausted = 8,
    /// The system is not in the state that the operation needs.
    FailedPrecondition = 9,
    /// The operation was given up, often after a conflict; it may be tried again as a whole.
    Aborted = 10,
    /// Past the end of what exists.
    OutOfRange = 11,
    /// The method or feature does not exist here.
    Unimplemented = 12,
    /// An invariant broke: a defect.
    Internal = 13,
    /// The agent or its node cannot be reached now; trying again may help.
    Unavailable = 14,
    /// Data was lost for good.
    DataLoss = 15,
    /// The caller has not proved who it is.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code with this number; [`Code::Unknown`] where there is none.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|index| Self::ALL.get(index).copied())
            .unwrap_or(Self::Unknown)
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The stable lower-case name, as printed and as SDKs spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from_number)
    }
}

/// How a call ended: a code, what happened in words, and optional details.
///
/// As an error it reads `what happened (code)`; [`Status::hint`] is what to try next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The stable code.
    pub code: Code,
    /// What happened, lower case, no full stop. At most [`limits::MAX_STATUS_MESSAGE`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What to try next; empty where there is nothing sensible to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// Free details, for example the tail of a program's stderr. At most
    /// [`limits::MAX_STATUS_DETAILS`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
    /// After how many milliseconds another try may help; 0 where whoever refused does not know.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub retry_after_ms: u64,
}

impl Status {
    /// A status with a message, no hint and no details.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: cut(message.into(), limits::MAX_STATUS_MESSAGE),
            hint: String::new(),
            details: String::new(),
            retry_after_ms: 0,
        }
    }

    /// The status of success.
    #[must_use]
    pub fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    /// The same status with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = cut(hint.into(), limits::MAX_STATUS_MESSAGE);
        self
    }

    /// The same status with details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = cut(details.into(), limits::MAX_STATUS_DETAILS);
        self
    }

    /// The same status, which says after which time another try may help; a part of a millisecond counts as a whole one.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after_ms = u64::try_from(after.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        self
    }

    /// After which time another try may help, where it is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after_ms > 0).then(|| Duration::from_millis(self.retry_after_ms))
    }

    /// Whether the call succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.code == Code::Ok
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            write!(f, "{}", self.code)
        } else {
            write!(f, "{} ({})", self.message, self.code)
        }
    }
}

impl std::error::Error for Status {}

/// Cuts `text` to at most `max` bytes, on a character boundary.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let mut end = max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_number() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(u64::from(code.number())), code);
        }
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(u64::MAX), Code::Unknown);
    }

    #[test]
    fn a_long_message_is_cut_on_a_character_boundary() {
        let status = Status::new(Code::Internal, "é".repeat(limits::MAX_STATUS_MESSAGE));
        assert!(status.message.len() <= limits::MAX_STATUS_MESSAGE);
        assert!(status.message.chars().all(|c| c == 'é'));
    }
}
