//! Durable messages between nodes: batches of them, and receipts of how they ended (`spec/messages.md`).

use std::fmt;

use data_encoding::Encoding;
use serde::{Deserialize, Serialize};

use crate::{
    Status,
    header::{HeaderError, is_false, is_zero, is_zero_u64},
    limits, map_only,
    status::Code,
};

/// Where a durable message is in its life. Each has a number on the wire and a name for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MessageState {
    /// On disk at the sender's node.
    Stored = 0,
    /// On disk at the receiver's node.
    Delivered = 1,
    /// With the agent, which has not ended yet.
    Taken = 2,
    /// The agent has done it.
    Acknowledged = 3,
    /// The agent has done it, and its answer is kept.
    Answered = 4,
    /// Given up: the agent, or its node, refused it for good.
    Dead = 5,
    /// Its time was up before an agent took it.
    Expired = 6,
    /// It may have happened: whoever had it last was gone before it said so.
    Unknown = 7,
    /// Somebody at the receiver's node removed it.
    Dropped = 8,
    /// Its sender withdrew it before its agent had done it. Where an attempt was begun, the agent may have done a part.
    Cancelled = 9,
}

impl MessageState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Stored,
        Self::Delivered,
        Self::Taken,
        Self::Acknowledged,
        Self::Answered,
        Self::Dead,
        Self::Expired,
        Self::Unknown,
        Self::Dropped,
        Self::Cancelled,
    ];

    /// The word for people and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Delivered => "delivered",
            Self::Taken => "taken",
            Self::Acknowledged => "acknowledged",
            Self::Answered => "answered",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
            Self::Dropped => "dropped",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The state of a number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Stored | Self::Delivered | Self::Taken)
    }
}

impl Serialize for MessageState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

impl<'de> Deserialize<'de> for MessageState {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Self::from_number(number)
            .ok_or_else(|| serde::de::Error::custom("not the state of a message"))
    }
}

/// The identity of a durable message, given by its sender's node: milliseconds of its clock in 6 bytes, big endian, and 10 random ones. As
/// text 26 characters of base32 with the extended hex alphabet (RFC 4648, section 7), in lower case, which sort as the bytes do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageId(#[serde(with = "serde_bytes")] [u8; 16]);

impl MessageId {
    /// An identity of this time with these random bytes.
    #[must_use]
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&unix_ms.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&random);
        Self(bytes)
    }

    /// From its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

fn alphabet() -> &'static Encoding {
    static LOWER: std::sync::LazyLock<Encoding> = std::sync::LazyLock::new(|| {
        let mut specification = data_encoding::Specification::new();
        specification
            .symbols
            .push_str("0123456789abcdefghijklmnopqrstuv");
        #[expect(clippy::expect_used, reason = "a constant alphabet of 32 symbols")]
        specification.encoding().expect("an alphabet")
    });
    &LOWER
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&alphabet().encode(&self.0))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no [`MessageId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a message: those are 26 characters, as `hail send --durable` prints them")]
pub struct MessageIdError;

impl std::str::FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(text: &str) -> Result<Self, MessageIdError> {
        let bytes = alphabet().decode(text.as_bytes());
        let bytes = bytes.map_err(|_| MessageIdError)?;
        bytes.try_into().map(Self).map_err(|_| MessageIdError)
    }
}

/// One message as a sender's node hands it to a receiver's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedMessage {
    /// The sender's node gives each message one of its own.
    pub id: MessageId,
    /// Whether the agent's answer is wanted: a call, and no send.
    #[serde(default, skip_serializing_if = "is_false")]
    pub call: bool,
    /// The call header, as on a stream, with the agent's name in `to`; its `deadline_ms` is the time for which the message
    /// is worth anything, and its `durable` says whether it is handed over in order.
    #[serde(with = "serde_bytes")]
    pub header: Vec<u8>,
    /// The body, at most [`limits::MAX_SEND_BODY`] bytes.
    #[serde(with = "serde_bytes", default, skip_serializing_if = "Vec::is_empty")]
    pub body: Vec<u8>,
    /// How often an agent is handed it at most, up to [`limits::MAX_MESSAGE_ATTEMPTS`]; 0 for as often as the receiver's node says.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Higher than that of any message which its node sent to the same peer before. A copy that comes by way of a hub is taken only if its number is higher
    /// than all that the receiver has decided on.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub number: u64,
}

/// How a message ended, from the receiver's node to the sender's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageReceipt {
    /// Of which message.
    pub id: MessageId,
    /// A state that [is final](MessageState::is_final).
    pub state: MessageState,
    /// How often an agent was handed it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Why, where it did not succeed: a status, as in `END`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "map_only::optional"
    )]
    pub status: Option<Status>,
    /// The head of the answer, as in `HEAD`; empty for one that says nothing.
    #[serde(with = "serde_bytes", default, skip_serializing_if = "Vec::is_empty")]
    pub head: Vec<u8>,
    /// The answer of a call, at most [`limits::MAX_SEND_BODY`] bytes.
    #[serde(with = "serde_bytes", default, skip_serializing_if = "Vec::is_empty")]
    pub answer: Vec<u8>,
}

/// How far an agent is with a message that it has in hand, from the receiver's node to the sender's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageProgress {
    /// Of which message.
    pub id: MessageId,
    /// Of which attempt, from 1. What was said of an earlier one is over.
    pub attempt: u32,
    /// How much of [`MessageProgress::total`] is done, in units of the agent's own.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub done: u64,
    /// How much there is to do; 0 where the agent does not know.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub total: u64,
    /// What it is at, for people, at most [`limits::MAX_PROGRESS_TEXT`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Where in the answer [`MessageProgress::partial`] begins.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub offset: u64,
    /// A piece of the answer that the agent has given already. All of them together are at most [`limits::MAX_PARTIAL`] bytes.
    #[serde(with = "serde_bytes", default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<u8>,
}

/// What one node has for another: the body of a call of `messages` to its agent `node`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageBatch {
    /// In the order in which they were sent.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "map_only::list"
    )]
    pub messages: Vec<OfferedMessage>,
    /// Receipts of messages that came from the other node.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "map_only::list"
    )]
    pub receipts: Vec<MessageReceipt>,
    /// Messages that their sender has withdrawn, whether they arrived or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub withdrawals: Vec<MessageId>,
    /// How far agents are with messages that came from the other node.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "map_only::list"
    )]
    pub progress: Vec<MessageProgress>,
    /// The lowest number of a message that waits for the other node and is not in this batch although later ones are: the other node had no
    /// room for its sender or its agent. 0 where there is none.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub left_out: u64,
}

/// The answer to a [`MessageBatch`], written once all of it is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchAnswer {
    /// For each message in order: `ok` where it is kept, else why not. Where it is retryable, as
    /// [`Code::ResourceExhausted`] is, so are all that follow of the same sender to the same agent.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "map_only::list"
    )]
    pub messages: Vec<Status>,
    /// For each withdrawal in order: `ok` where it is written down; anything else, it is to be told again later.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "map_only::list"
    )]
    pub withdrawals: Vec<Status>,
}

/// Whether a sender offers a message again that was refused with this code; any other one is final.
#[must_use]
pub const fn is_offered_again(code: Code) -> bool {
    matches!(
        code,
        Code::ResourceExhausted | Code::Unavailable | Code::Internal | Code::DeadlineExceeded
    )
}

/// Decodes a batch and checks its bounds.
///
/// # Errors
///
/// [`HeaderError`].
pub fn decode_batch(payload: &[u8]) -> Result<MessageBatch, HeaderError> {
    let batch: MessageBatch = crate::header::decode(payload)?;
    let counts = [
        batch.messages.len(),
        batch.receipts.len(),
        batch.withdrawals.len(),
        batch.progress.len(),
    ];
    if counts.into_iter().any(|count| count > limits::MAX_BATCH) {
        return Err(HeaderError::Bound("number of messages"));
    }
    for told in &batch.progress {
        if told.text.len() > limits::MAX_PROGRESS_TEXT {
            return Err(HeaderError::Bound("text of a progress"));
        }
        let end = told.offset.saturating_add(told.partial.len() as u64);
        if end > limits::MAX_PARTIAL as u64 {
            return Err(HeaderError::Bound("partial answer"));
        }
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_as_bytes_and_as_text() {
        let ids = [1, 255, 1 << 20, 1_763_000_000_000, (1 << 48) - 1]
            .map(|ms| MessageId::new(ms, [7; 10]));
        let texts = ids.map(|id| id.to_string());
        assert!(ids.is_sorted() && texts.is_sorted());
        for (id, text) in ids.iter().zip(&texts) {
            assert_eq!(text.len(), 26);
            assert_eq!(text.parse(), Ok(*id));
        }
        assert_eq!("".parse::<MessageId>(), Err(MessageIdError));
        let other_bits = format!("{}v", &texts[0][..25]);
        assert_eq!(other_bits.parse::<MessageId>(), Err(MessageIdError));
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_and_one_that_is_too_long_is_refused() {
        let id = MessageId::new(5, [1; 10]);
        let message = OfferedMessage {
            id,
            call: true,
            header: vec![0x80],
            body: b"hi".to_vec(),
            attempts: 2,
            number: 1 << 40,
        };
        let receipt = MessageReceipt {
            id,
            state: MessageState::Dead,
            attempts: 2,
            status: Some(Status::new(Code::InvalidArgument, "no")),
            head: Vec::new(),
            answer: Vec::new(),
        };
        let mut batch = MessageBatch {
            messages: vec![message.clone()],
            receipts: vec![receipt],
            withdrawals: vec![id],
            progress: vec![told(id)],
            left_out: 7,
        };
        let bytes = crate::header::encode(&batch);
        assert_eq!(decode_batch(&bytes).unwrap(), batch);
        batch.messages = vec![message; limits::MAX_BATCH + 1];
        let bytes = crate::header::encode(&batch);
        assert!(matches!(decode_batch(&bytes), Err(HeaderError::Bound(_))));
    }

    fn told(id: MessageId) -> MessageProgress {
        MessageProgress {
            id,
            attempt: 1,
            done: 3,
            total: 10,
            text: "reading".to_owned(),
            offset: 4,
            partial: b"half".to_vec(),
        }
    }

    #[test]
    fn a_batch_with_too_much_of_anything_is_refused() {
        let id = MessageId::new(5, [1; 10]);
        let told = told(id);
        let progress = |told: MessageProgress| MessageBatch {
            progress: vec![told],
            ..MessageBatch::default()
        };
        let text = "x".repeat(limits::MAX_PROGRESS_TEXT);
        let most = progress(MessageProgress {
            text: text.clone(),
            offset: limits::MAX_PARTIAL as u64 - 4,
            ..told.clone()
        });
        assert_eq!(decode_batch(&crate::header::encode(&most)).unwrap(), most);
        for batch in [
            MessageBatch {
                withdrawals: vec![id; limits::MAX_BATCH + 1],
                ..MessageBatch::default()
            },
            MessageBatch {
                progress: vec![told.clone(); limits::MAX_BATCH + 1],
                ..MessageBatch::default()
            },
            progress(MessageProgress {
                text: text + "x",
                ..told.clone()
            }),
            progress(MessageProgress {
                offset: u64::MAX,
                ..told
            }),
        ] {
            let bytes = crate::header::encode(&batch);
            assert!(matches!(decode_batch(&bytes), Err(HeaderError::Bound(_))));
        }
    }

    #[test]
    fn a_state_that_nobody_knows_is_refused() {
        for state in MessageState::ALL {
            assert_eq!(MessageState::from_number(state as u64), Some(state));
        }
        assert_eq!(MessageState::from_number(10), None);
        let map = [0x81, 0xa5, b's', b't', b'a', b't', b'e', 10];
        #[derive(Debug, Deserialize)]
        struct OneState {
            #[expect(dead_code, reason = "it cannot be read")]
            state: MessageState,
        }
        assert!(crate::header::decode::<OneState>(&map).is_err());
    }
}
