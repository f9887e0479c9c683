//! The headers that travel ahead of a body, as MessagePack maps with string keys.
//!
//! Keys are written in the order of the struct's fields; a field at its default is left out; a
//! reader takes any order and skips keys that it does not know. `spec/session.md` lists every key
//! with its type, and `spec/vectors/headers.json` holds the exact bytes.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{
    address::{AgentName, CallFrom},
    limits,
    map_only::{self, MapOnly},
};

/// The protocol's major version. Peers whose lists share none refuse each other, naming both.
pub const VERSION: u16 = 1;

/// How urgent a call is. On a saturated tunnel a higher priority overtakes what is queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Priority {
    /// Background work.
    Low = 0,
    /// The default.
    #[default]
    Medium = 1,
    /// Somebody waits.
    High = 2,
    /// Control, health and safety.
    Critical = 3,
}

impl Priority {
    /// All priorities, lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];

    /// The name, as typed on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl std::str::FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| "expected critical, high, medium or low".to_owned())
    }
}

impl Serialize for Priority {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

impl<'de> Deserialize<'de> for Priority {
    /// A number past the highest is read as the highest.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        let index = usize::try_from(number)
            .unwrap_or(usize::MAX)
            .min(Self::ALL.len() - 1);
        Ok(Self::ALL.get(index).copied().unwrap_or_default())
    }
}

/// Whether a call or send is kept on disk until its agent has done it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Durability {
    /// It is made once, now or never. The default.
    #[default]
    None = 0,
    /// It is kept, and handed over after what the same sender sent to the same agent before.
    InOrder = 1,
    /// It is kept, and handed over in any order.
    AnyOrder = 2,
}

impl Durability {
    /// Whether it is kept at all.
    #[must_use]
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::None)
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Serialize for Durability {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

impl<'de> Deserialize<'de> for Durability {
    /// A number that is not known asks for more than this version gives, and is refused.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            0 => Ok(Self::None),
            1 => Ok(Self::InOrder),
            2 => Ok(Self::AnyOrder),
            _ => Err(serde::de::Error::custom("not a kind of durability")),
        }
    }
}

/// One name and value of a header. Names may repeat; order is kept.
pub type HeaderField = (String, String);

/// Opens a call, a send or a raw stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallHeader {
    /// Whom to call: `agent@node` from an agent to its node, `agent` from node to node.
    pub to: String,
    /// What is asked of the agent; empty for an agent with one method.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Who calls. The key in it is only for a node to state, toward a program that serves; between
    /// nodes the tunnel proves it, and a node refuses a header that states one.
    #[serde(skip_serializing_if = "CallFrom::is_empty")]
    pub from: CallFrom,
    /// Media type of the body; empty for bytes.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// Time left in milliseconds, so that clocks need not agree; absent for no deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// How urgent.
    #[serde(skip_serializing_if = "Priority::is_default")]
    pub priority: Priority,
    /// Equal keys mean the same work, which then may be tried again; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub idempotency_key: String,
    /// W3C trace context `traceparent`; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
    /// W3C trace context `tracestate`; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tracestate: String,
    /// Carrier on which the first node is to pass the call to another one: `quic`, `h2` or `ws`;
    /// empty for the one that takes new calls. That node takes it out: it means nothing between nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub carrier: String,
    /// From a program to its node: whether it is kept on disk. Its deadline then says for how long it is worth anything.
    #[serde(skip_serializing_if = "Durability::is_default")]
    pub durable: Durability,
    /// Which member of the group takes it, by the number that its node gave it when it registered; 0 for
    /// whichever that node picks. Its node takes it out.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub member: u64,
    /// Calls of one group with equal keys go to the same member of it, as long as that can take them; at most
    /// [`limits::MAX_AFFINITY`] bytes, empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub affinity: String,
    /// The application's own fields, at most [`limits::MAX_HEADER_FIELDS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderField>,
}

impl CallHeader {
    /// The deadline as a duration, if there is one.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline_ms.map(Duration::from_millis)
    }

    /// Sets the time left, rounded up to a millisecond.
    pub fn set_deadline(&mut self, left: Duration) {
        let ms = left.as_micros().div_ceil(1000);
        self.deadline_ms = Some(u64::try_from(ms).unwrap_or(u64::MAX));
    }

    /// Whether every field but `to` is at its default. A field that is added has to be added here.
    fn says_only_whom(&self) -> bool {
        let Self {
            to: _,
            method,
            from,
            content_type,
            deadline_ms,
            priority,
            idempotency_key,
            traceparent,
            tracestate,
            carrier,
            durable,
            member,
            affinity,
            headers,
        } = self;
        deadline_ms.is_none()
            && durable.is_default()
            && *member == 0
            && priority.is_default()
            && headers.is_empty()
            && from.is_empty()
            && [
                method,
                content_type,
                idempotency_key,
                traceparent,
                tracestate,
                carrier,
                affinity,
            ]
            .iter()
            .all(|text| text.is_empty())
    }

    /// The first value of the application's field `name`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }
}

/// The head of an answer. Left out altogether when it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerHead {
    /// Media type of the answer; empty for bytes.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// The application's own fields, at most [`limits::MAX_HEADER_FIELDS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderField>,
}

/// The first frame of the control stream, in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// Major versions that the sender speaks.
    pub versions: Vec<u16>,
    /// The name that the sender would like to be known by; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Program and version, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub software: String,
    /// A number drawn at the sender's start. Another number from the same key means that it has
    /// restarted, and that connections made before are dead.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub instance: u64,
    /// Optional features that the sender understands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// This connection joins those that the two nodes have over this carrier, and replaces none. Only
    /// for a peer whose features hold [`ADDITIONAL_CONNECTIONS`], and only from the side that dials.
    #[serde(skip_serializing_if = "is_false")]
    pub additional: bool,
}

/// The feature of a node that takes several connections to one peer over one carrier
/// ([`Hello::additional`]).
pub const ADDITIONAL_CONNECTIONS: &str = "additional-connections";

/// Attaches an agent to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterHeader {
    /// The agent's name. Several attachments of one name form a group.
    pub name: AgentName,
    /// One line for people, at most [`limits::MAX_DESCRIPTION`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Words to find it by, at most [`limits::MAX_TAGS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The agent's own version; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Calls that it takes at once; further ones wait, as many as [`RegisterHeader::max_waiting`] says. 0 means no
    /// bound of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_concurrency: u32,
    /// An absolute path of at most [`limits::MAX_SOCKET_PATH`] bytes: the node may itself connect raw streams for this agent
    /// to the Unix socket there, instead of opening them toward the program. Empty for none; a node that does not know the
    /// key, or does not see what the program sees, opens them toward the program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// What methods the agent has, as a JSON text of at most [`limits::MAX_SCHEMA`] bytes; empty where it does not say. It stays at
    /// the agent's own node, which gives it to whoever may call the agent and asks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schema: String,
    /// It takes calls while no member with a lower number is in service and has room. 0, the default, is the lowest.
    #[serde(default, skip_serializing_if = "is_zero_u8")]
    pub priority: u8,
    /// It takes calls only while each of the others has so many under way; 0, the default, for always.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overflow: u32,
    /// Of members that say this one takes all calls, until it had none for so many milliseconds, is gone or out of service; 0, the default, for
    /// members that share them. At most [`limits::MAX_GROUP_MS`].
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub pinned_ms: u64,
    /// For how many milliseconds it gets fewer calls than the others after it has come, or come back; 0, the default, for none. At most
    /// [`limits::MAX_GROUP_MS`].
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub slow_start_ms: u64,
    /// Calls that may wait at the node until a member of the group takes another one; further ones are refused with `resource_exhausted`. 0 for none;
    /// absent for [`limits::DEFAULT_WAITING_CALLS`]. At most [`limits::MAX_WAITING_CALLS`]. Of several members the highest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u32>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
pub(crate) fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_zero_u8(n: &u8) -> bool {
    *n == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
pub(crate) fn is_false(yes: &bool) -> bool {
    !yes
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
pub(crate) fn is_zero_u64(n: &u64) -> bool {
    *n == 0
}

/// The agents that a node offers to the peer it speaks to: a whole list, or one page of it
/// ([`crate::offers`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOffers {
    /// At most [`limits::MAX_AGENTS_PER_NODE`] in all pages together.
    #[serde(deserialize_with = "map_only::list")]
    pub agents: Vec<AgentOffer>,
    /// Which list this is: a later one of the same start of the node has a higher number. 0 where the
    /// sender does not count its lists; such a list has one page.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub number: u64,
    /// Which page of the list this is, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub page: u32,
    /// How many pages the list has, at most [`limits::MAX_OFFER_PAGES`]; 0 means one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pages: u32,
}

/// One agent as others see it, in offers and in records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentOffer {
    /// The agent's name.
    pub name: AgentName,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The agent's own version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Its members on that node; nothing in records.
    #[serde(
        default,
        skip_serializing_if = "OfferedGroup::is_one",
        deserialize_with = "map_only::one"
    )]
    pub group: OfferedGroup,
}

/// The members of one name on the node that offers it, as far as others need to know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct OfferedGroup {
    /// How many there are, those that are overflow apart unless all are; 0 is read as 1. Of pinned ones one takes all calls, and counts.
    #[serde(skip_serializing_if = "is_zero")]
    pub members: u32,
    /// The lowest number of them.
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub priority: u8,
    /// Where all are overflow: the calls that each other member has when the first of them takes some; else 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub overflow: u32,
}

impl OfferedGroup {
    /// Whether it is what a reader takes for granted: one member that shares calls with those of other nodes.
    #[must_use]
    pub fn is_one(&self) -> bool {
        *self == Self::default()
    }
}

/// Says that no new work is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GoingAway {
    /// Why, for people.
    pub reason: String,
}

/// Why a header cannot be read.
#[derive(Debug, Error)]
pub enum HeaderError {
    /// Not the MessagePack map that belongs here.
    #[error("malformed header: {0}")]
    Malformed(#[from] rmp_serde::decode::Error),
    /// A bound of [`limits`] was passed.
    #[error("header exceeds a bound: {0}")]
    Bound(&'static str),
}

/// Encodes any header of this module.
///
/// # Panics
///
/// Never for the types of this crate: they hold only what MessagePack can say.
#[must_use]
pub fn encode<T: Serialize>(header: &T) -> Vec<u8> {
    #[expect(
        clippy::expect_used,
        reason = "writing to a Vec cannot fail for these types"
    )]
    rmp_serde::to_vec_named(header).expect("headers are plain data")
}

/// Decodes any header of this module; unknown keys are skipped.
///
/// # Errors
///
/// [`HeaderError::Malformed`], also for a list of the values of a header's fields, and for values that are nested deeper than
/// [`limits::MAX_HEADER_DEPTH`]: reading them takes stack.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, HeaderError> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
    // The reader counts the scalar inside the innermost one as a level of its own.
    reader.set_max_depth(limits::MAX_HEADER_DEPTH + 1);
    let MapOnly(header) = MapOnly::deserialize(&mut reader)?;
    Ok(header)
}

/// Decodes the opening of a call, send or stream and checks its bounds.
///
/// # Errors
///
/// [`HeaderError`].
pub fn decode_call(payload: &Bytes) -> Result<CallHeader, HeaderError> {
    if let Some(to) = only_name(payload) {
        return Ok(CallHeader {
            to: to.to_owned(),
            ..CallHeader::default()
        });
    }
    let header: CallHeader = decode(payload)?;
    if header.method.len() > limits::MAX_METHOD {
        return Err(HeaderError::Bound("method"));
    }
    if header.affinity.len() > limits::MAX_AFFINITY {
        return Err(HeaderError::Bound("affinity key"));
    }
    if header.headers.len() > limits::MAX_HEADER_FIELDS {
        return Err(HeaderError::Bound("number of fields"));
    }
    Ok(header)
}

/// A map of one key, `to`, with a text of up to 31 bytes, in the shortest form that MessagePack has for it:
/// what nearly every call between nodes carries.
const ONLY_NAME: [u8; 4] = *b"\x81\xa2to";

/// The first byte of a text of no bytes; of one of n bytes it is n more.
const SHORT_TEXT: u8 = 0xa0;

/// Longest text with its length in its first byte.
const SHORT_TEXT_MAX: usize = 31;

/// The name, where the header says no more than that; anything else is [`decode`]'s.
fn only_name(payload: &[u8]) -> Option<&str> {
    let (first, text) = payload.strip_prefix(&ONLY_NAME)?.split_first()?;
    let short = text.len() <= SHORT_TEXT_MAX && *first == SHORT_TEXT | text.len() as u8;
    std::str::from_utf8(short.then_some(text)?).ok()
}

/// Encodes the opening of a call, send or stream.
#[must_use]
pub fn encode_call(header: &CallHeader) -> Vec<u8> {
    let to = header.to.as_bytes();
    if to.is_empty() || to.len() > SHORT_TEXT_MAX || !header.says_only_whom() {
        return encode(header);
    }
    let mut out = Vec::with_capacity(ONLY_NAME.len() + 1 + to.len());
    out.extend_from_slice(&ONLY_NAME);
    out.push(SHORT_TEXT | to.len() as u8);
    out.extend_from_slice(to);
    out
}

/// Decodes the head of an answer and checks its bounds.
///
/// # Errors
///
/// [`HeaderError`].
pub fn decode_answer(payload: &[u8]) -> Result<AnswerHead, HeaderError> {
    let head: AnswerHead = decode(payload)?;
    if head.headers.len() > limits::MAX_HEADER_FIELDS {
        return Err(HeaderError::Bound("number of fields"));
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_left_out_and_come_back() {
        let header = CallHeader {
            to: "grep".into(),
            ..CallHeader::default()
        };
        let bytes = encode(&header);
        assert_eq!(bytes, b"\x81\xa2to\xa4grep");
        assert_eq!(decode::<CallHeader>(&bytes).unwrap(), header);
    }

    /// The general way is the oracle of the short one.
    #[test]
    fn a_call_by_name_alone_is_written_and_read_as_any_other() {
        let names = ["", "a", &"x".repeat(31), &"x".repeat(32), "ä", "a@b"];
        let mut headers: Vec<CallHeader> = Vec::new();
        for name in names {
            let plain = CallHeader {
                to: name.into(),
                ..CallHeader::default()
            };
            let mut urgent = plain.clone();
            urgent.priority = Priority::High;
            let mut asked = plain.clone();
            asked.method = "m".into();
            headers.extend([plain, urgent, asked]);
        }
        for header in headers {
            let bytes = encode(&header);
            assert_eq!(encode_call(&header), bytes);
            assert_eq!(decode_call(&bytes.into()).unwrap(), header);
        }
    }

    #[test]
    fn what_only_begins_like_a_call_by_name_is_read_the_general_way() {
        let cases: [&[u8]; 6] = [
            b"\x81\xa2to",
            b"\x81\xa2to\xa4gre",
            b"\x81\xa2to\xa4grep!",
            b"\x81\xa2to\xa2\xff\xfe",
            b"\x82\xa2to\xa4grep\xa6future\xc0",
            b"\x81\xa2to\xd9\x04grep",
        ];
        for bytes in cases {
            let payload = Bytes::from_static(bytes);
            let general = decode::<CallHeader>(bytes).ok();
            assert_eq!(decode_call(&payload).ok(), general, "{bytes:?}");
        }
    }

    #[test]
    fn a_key_from_the_future_is_skipped() {
        let bytes = b"\x82\xa2to\xa4grep\xa6future\x93\x01\x02\x03";
        assert_eq!(decode::<CallHeader>(bytes).unwrap().to, "grep");
    }

    #[test]
    fn a_deadline_is_rounded_up_so_that_none_is_lost() {
        let mut header = CallHeader::default();
        header.set_deadline(Duration::from_micros(1));
        assert_eq!(header.deadline_ms, Some(1));
    }

    #[test]
    fn too_many_fields_are_refused() {
        let header = CallHeader {
            headers: vec![(String::new(), String::new()); limits::MAX_HEADER_FIELDS + 1],
            ..CallHeader::default()
        };
        assert!(matches!(
            decode_call(&encode(&header).into()),
            Err(HeaderError::Bound(_))
        ));
        let head = AnswerHead {
            headers: header.headers,
            ..AnswerHead::default()
        };
        assert!(matches!(
            decode_answer(&encode(&head)),
            Err(HeaderError::Bound(_))
        ));
    }

    #[test]
    fn an_unknown_priority_is_read_as_the_highest() {
        let header: CallHeader = decode(b"\x82\xa2to\xa1a\xa8priority\x09").unwrap();
        assert_eq!(header.priority, Priority::Critical);
    }
}
