//! Requests to a hub's directory, their answers, and the permission that each request carries.
//!
//! The directory speaks HTTP/1.1 with JSON bodies, so that `curl` reads it; a signed record
//! travels in them as base64 of its unchanged bytes. `spec/records.md` has an example of each:
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/health` | | [`HubHealth`]; the only one that an untrusted peer may ask |
//! | `POST /v1/join` | [`JoinHubRequest`] | [`JoinHubAnswer`]; the ticket's secret proves the invitation |
//! | `DELETE /v1/membership` | | [`LeaveHubAnswer`] |
//! | `PUT /v1/record` | [`PublishRequest`] | [`PublishAnswer`] |
//! | `GET /v1/nodes/{key or name}` | | [`LookupAnswer`] |
//! | `POST /v1/search` | [`SearchRequest`] | [`SearchPage`] |
//! | `GET /v1/members` `?after=key` | | [`HubMembers`] |
//!
//! Every other status than 200 comes with a [`HubRefusal`].
//!
//! # Permission
//!
//! A request is signed by the node's key: `authorization: Hailwire TOKEN`, where the token is
//! base64url (no padding) of a [`crate::signed`] envelope around a [`RequestPermit`]. It names the hub, the
//! method, the path with its query and the digest of the body, and is good for a minute. So
//! whoever gets hold of one can do nothing with it elsewhere or for another request.

use std::{fmt, str::FromStr as _, time::Duration};

use bytes::Bytes;
use data_encoding::{BASE64, BASE64URL_NOPAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::{
    address::{NodeId, NodeName},
    header::{self, AgentOffer},
    limits,
    signed::{self, KeyPair, SignatureDomain},
    status::{Code, Status},
    ticket::TicketSecret,
};

pub use crate::ticket::MemberTrust;

/// The paths of the directory.
pub mod path {
    /// [`super::HubHealth`].
    pub const HEALTH: &str = "/v1/health";
    /// [`super::JoinHubRequest`].
    pub const JOIN: &str = "/v1/join";
    /// [`super::LeaveHubAnswer`].
    pub const MEMBERSHIP: &str = "/v1/membership";
    /// [`super::PublishRequest`].
    pub const RECORD: &str = "/v1/record";
    /// Ahead of a key or a name: [`super::LookupAnswer`].
    pub const NODES: &str = "/v1/nodes/";
    /// [`super::SearchRequest`].
    pub const SEARCH: &str = "/v1/search";
    /// [`super::HubMembers`].
    pub const MEMBERS: &str = "/v1/members";
    /// [`super::HoldRequest`] with `PUT`, [`super::HeldAnswer`] with `GET`, [`super::HeldTaken`] with `DELETE`.
    pub const HELD: &str = "/v1/held";
}

/// The scheme of the `authorization` field.
pub const SCHEME: &str = "Hailwire";

/// Seconds for which a [`RequestPermit`] is good.
pub const PERMIT_LIFETIME_S: u64 = 60;

/// What an untrusted peer may know of a hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubHealth {
    /// The hub's key.
    pub hub: NodeId,
    /// Program and version.
    pub software: String,
    /// The hub's clock in unix seconds.
    pub now: u64,
    /// The two UDP ports at which it answers STUN ([`crate::stun`]); none of an older hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stun_ports: Vec<u16>,
}

/// Asks for membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinHubRequest {
    /// The secret of the hub's ticket.
    pub secret: TicketSecret,
}

/// The node is a member. Joining again is harmless and takes no use of the ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinHubAnswer {
    /// The hub's key.
    pub hub: NodeId,
    /// Whom the hub's network says that members trust.
    pub trust: MemberTrust,
    /// URL of the hub's relay.
    pub relay: String,
    /// UDP port of its QUIC address discovery; 0 for none.
    pub discovery_port: u16,
    /// Seconds for which a name stays bound to its holder's key after the last record.
    pub name_hold_s: u64,
}

/// Publishes a record in place of the node's earlier one.
///
/// A record is signed, so a hub cannot leave its agents out for those who are not to see them. A node
/// therefore says where it is a second time, without its agents, and names those to whom it shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishRequest {
    /// The signed record.
    pub record: RecordBytes,
    /// The same record signed without its agents, for members that are not shown them. Where it is
    /// absent, every member that asks for the node gets `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whereabouts: Option<RecordBytes>,
    /// The members that see the agents at a hub that lists by trust, at most
    /// [`limits::MAX_SHOWN_TO`]. Only the hub sees this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown_to: Vec<ShownTo>,
}

impl PublishRequest {
    /// A record for every member.
    #[must_use]
    pub fn to_all(record: Bytes) -> Self {
        Self {
            record: RecordBytes(record),
            whereabouts: None,
            shown_to: Vec::new(),
        }
    }
}

/// A node to which another shows its agents: 16 bytes of a digest of its key, so that the hub learns of
/// nodes that it knows and not of others. Base64 in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShownTo([u8; 16]);

impl ShownTo {
    /// Stands for a node.
    #[must_use]
    pub fn of(node: NodeId) -> Self {
        let digest = Sha256::new()
            .chain_update(b"hailwire shown v1\0")
            .chain_update(node.as_bytes());
        let mut short = [0; 16];
        short.copy_from_slice(&digest.finalize()[..16]);
        Self(short)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Serialize for ShownTo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for ShownTo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64.decode(text.as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or_else(|| D::Error::custom("not 16 bytes in base64"))
    }
}

/// The record is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishAnswer {
    /// Its sequence number.
    pub sequence: u64,
    /// Unix seconds, by the hub's clock, until which the name is held; absent without a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_held_until: Option<u64>,
}

/// The record that was looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupAnswer {
    /// The signed record, for the asker to check.
    pub record: RecordBytes,
}

/// Asks for nodes that offer matching agents. The empty search matches every node, with agents or
/// without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SearchRequest {
    /// Every tag must be there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Every word must occur in name, description or tags, without regard to case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Goes on behind this key, from [`SearchPage::next`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<NodeId>,
}

impl SearchRequest {
    /// Whether nothing is asked for in particular.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.words.is_empty()
    }

    /// Whether an agent matches.
    #[must_use]
    pub fn matches(&self, offer: &AgentOffer) -> bool {
        let occurs = |text: &str, word: &str| text.to_lowercase().contains(word);
        self.tags.iter().all(|tag| offer.tags.contains(tag))
            && self
                .words
                .iter()
                .map(|word| word.to_lowercase())
                .all(|word| {
                    occurs(offer.name.as_str(), &word)
                        || occurs(&offer.description, &word)
                        || offer.tags.iter().any(|tag| occurs(tag, &word))
                })
    }

    /// Checks the bounds of [`limits`].
    ///
    /// # Errors
    ///
    /// Names the bound that was passed.
    pub fn check_bounds(&self) -> Result<(), &'static str> {
        if self.tags.len() + self.words.len() > limits::MAX_SEARCH_TERMS {
            return Err("number of words and tags");
        }
        let long = |term: &String| term.len() > limits::MAX_DESCRIPTION;
        if self.tags.iter().any(long) || self.words.iter().any(long) {
            return Err("length of a word or tag");
        }
        Ok(())
    }
}

/// Records that matched, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchPage {
    /// Signed records, for the asker to check.
    pub records: Vec<RecordBytes>,
    /// Where to go on ([`SearchRequest::after`]); absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NodeId>,
}

/// Leaves a sealed batch ([`crate::held`]) at the hub, in place of the sender's earlier one for the same node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRequest {
    /// For which member.
    pub to: NodeId,
    /// At most [`limits::MAX_HELD`] bytes; base64 in JSON.
    pub sealed: RecordBytes,
}

/// The hub has a batch on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldAnswer {
    /// The unix second until which it is held.
    pub until: u64,
}

/// A batch that a hub holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBatch {
    /// The hub gives each batch one of its own; later ones are higher.
    pub number: u64,
    /// Whose it is, as the hub says.
    pub from: NodeId,
    /// What it is; base64 in JSON.
    pub sealed: RecordBytes,
}

/// The first batch for the node that asks whose number is above the one in the query (`after=`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldAnswer {
    /// Absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldBatch>,
}

/// The batch of this number was taken, or is of no use: the hub deletes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTaken {
    /// [`HeldBatch::number`].
    pub number: u64,
}

/// Whether a batch was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDeleted {
    /// False where a newer one had taken its place already.
    pub deleted: bool,
}

/// The node whose key signed the request is no member any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveHubAnswer {
    /// Whether the node was a member until now.
    pub left: bool,
}

/// Members, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubMembers {
    /// One page of them.
    pub members: Vec<HubMember>,
    /// Where to go on (`?after=`); absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NodeId>,
}

/// One member of a hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubMember {
    /// Its key.
    pub id: NodeId,
    /// The name that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// Unix seconds at which it joined, by the hub's clock.
    pub joined: u64,
    /// Unix seconds at which it last published a record; absent for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// Whether its record is in force now.
    pub live: bool,
}

/// A signed record's bytes; base64 in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordBytes(pub Bytes);

impl Serialize for RecordBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for RecordBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64
            .decode(text.as_bytes())
            .map_err(|_| D::Error::custom("not base64"))?;
        Ok(Self(bytes.into()))
    }
}

/// Why a hub refuses a request. Each has one [`Code`] and one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    missing_docs,
    reason = "the table of `Reason::row` says what each means"
)]
pub enum RefusalReason {
    Malformed,
    TooLarge,
    NoSuchPath,
    Unsigned,
    Forged,
    Elsewhere,
    Clock,
    NotAMember,
    TicketUnknown,
    TicketExpired,
    TicketUsedUp,
    TooOften,
    Full,
    NotFound,
    Away,
    NotYours,
    Replayed,
    Expired,
    NameTaken,
    ShuttingDown,
    Internal,
    /// A reason from a newer hub.
    #[serde(other)]
    Other,
}

impl RefusalReason {
    /// Every reason of this version.
    pub const ALL: [Self; 21] = [
        Self::Malformed,
        Self::TooLarge,
        Self::NoSuchPath,
        Self::Unsigned,
        Self::Forged,
        Self::Elsewhere,
        Self::Clock,
        Self::NotAMember,
        Self::TicketUnknown,
        Self::TicketExpired,
        Self::TicketUsedUp,
        Self::TooOften,
        Self::Full,
        Self::NotFound,
        Self::Away,
        Self::NotYours,
        Self::Replayed,
        Self::Expired,
        Self::NameTaken,
        Self::ShuttingDown,
        Self::Internal,
    ];

    /// The stable code.
    #[must_use]
    pub const fn code(self) -> Code {
        self.row().0
    }

    /// The HTTP status.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        self.row().1
    }

    /// What to try next; empty where there is nothing sensible to say.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        self.row().2
    }

    const fn row(self) -> (Code, u16, &'static str) {
        match self {
            Self::Malformed => (Code::InvalidArgument, 400, ""),
            Self::TooLarge => (Code::ResourceExhausted, 413, "offer fewer agents per node"),
            Self::NoSuchPath => (
                Code::Unimplemented,
                404,
                "the hub may be of another version",
            ),
            Self::Unsigned => (Code::Unauthenticated, 401, ""),
            Self::Forged => (Code::Unauthenticated, 401, ""),
            Self::Elsewhere => (
                Code::Unauthenticated,
                401,
                "address the hub as its ticket does, with its key",
            ),
            Self::Clock => (Code::FailedPrecondition, 412, "set this machine's clock"),
            Self::NotAMember => (
                Code::PermissionDenied,
                403,
                "ask the hub's operator for a ticket and join with it",
            ),
            Self::TicketUnknown | Self::TicketExpired | Self::TicketUsedUp => (
                Code::PermissionDenied,
                403,
                "ask the hub's operator for a new ticket",
            ),
            Self::TooOften => (Code::ResourceExhausted, 429, "wait a minute and try again"),
            Self::Full => (
                Code::ResourceExhausted,
                507,
                "ask the hub's operator to make room",
            ),
            Self::NotFound => (
                Code::NotFound,
                404,
                "the node may be offline or the name misspelt",
            ),
            Self::Away => (
                Code::NotFound,
                404,
                "the node is offline; its name stays bound to its key",
            ),
            Self::NotYours => (
                Code::PermissionDenied,
                403,
                "publish the record of your own key",
            ),
            Self::Replayed => (Code::Aborted, 409, "publish again with a higher sequence"),
            Self::Expired => (Code::InvalidArgument, 400, "check this machine's clock"),
            Self::NameTaken => (Code::AlreadyExists, 409, "choose another name"),
            Self::ShuttingDown => (Code::Unavailable, 503, "try again shortly"),
            Self::Internal => (Code::Internal, 500, "see the hub's log"),
            Self::Other => (Code::Unknown, 500, ""),
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubRefusal {
    /// The name of the [`Code`], so that a reader of another version understands too.
    pub code: String,
    /// Which refusal it is.
    pub reason: RefusalReason,
    /// What happened, lower case, no full stop.
    pub message: String,
    /// What to try next; empty where there is nothing sensible to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// The hub's clock in unix seconds, so that a node whose clock is wrong can allow for it.
    pub now: u64,
}

impl HubRefusal {
    /// A refusal with the code and hint of its reason.
    #[must_use]
    pub fn new(reason: RefusalReason, message: impl fmt::Display, now_unix: u64) -> Self {
        Self {
            code: reason.code().name().to_owned(),
            reason,
            message: message.to_string(),
            hint: reason.hint().to_owned(),
            now: now_unix,
        }
    }
}

impl From<HubRefusal> for Status {
    fn from(refusal: HubRefusal) -> Self {
        let code = Code::ALL
            .into_iter()
            .find(|code| code.name() == refusal.code);
        // A refusal that calls itself a success would be taken for one.
        let code = code
            .filter(|code| *code != Code::Ok)
            .unwrap_or(refusal.reason.code());
        let status = Self::new(code, refusal.message).with_hint(refusal.hint);
        match refusal.reason {
            // By which time a whole rate is there again.
            RefusalReason::TooOften => status.with_retry_after(Duration::from_secs(60)),
            _ => status,
        }
    }
}

/// One request, as its permission describes it.
#[derive(Clone, Copy, Debug)]
pub struct SignedRequest<'a> {
    /// The hub's key in text form; its URL where the asker does not know the key.
    pub hub: &'a str,
    /// `GET`, `POST` or `PUT`.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// The body; empty for none.
    pub body: &'a [u8],
}

/// Permission for one request, good for [`PERMIT_LIFETIME_S`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestPermit {
    hub: String,
    method: String,
    path: String,
    #[serde(with = "serde_bytes")]
    body: [u8; 32],
    expires: u64,
}

impl RequestPermit {
    /// Permission for `asked`, at `now_unix` by the hub's clock as far as it is known.
    #[must_use]
    pub fn new(asked: &SignedRequest<'_>, now_unix: u64) -> Self {
        Self {
            hub: asked.hub.to_owned(),
            method: asked.method.to_owned(),
            path: asked.path.to_owned(),
            body: Sha256::digest(asked.body).into(),
            expires: now_unix.saturating_add(PERMIT_LIFETIME_S),
        }
    }

    /// The value of the `authorization` field.
    #[must_use]
    pub fn sign(&self, key: &KeyPair) -> String {
        let token = key.seal(SignatureDomain::Request, &header::encode(self));
        format!("{SCHEME} {}", BASE64URL_NOPAD.encode(&token))
    }

    /// Checks the value of an `authorization` field against the request that carries it, and gives
    /// the key that signed it. `hub_names` are the names to which the hub listens.
    ///
    /// # Errors
    ///
    /// [`PermitError`].
    pub fn verify(
        authorization: &str,
        asked: &SignedRequest<'_>,
        hub_names: &[&str],
        now_unix: u64,
    ) -> Result<NodeId, PermitError> {
        let token = authorization
            .strip_prefix(SCHEME)
            .ok_or(PermitError::Unsigned)?;
        if token.len() > limits::MAX_TICKET {
            return Err(PermitError::Malformed);
        }
        let token = BASE64URL_NOPAD.decode(token.trim().as_bytes());
        let token = token.map_err(|_| PermitError::Malformed)?;
        let (key, body) = signed::open(SignatureDomain::Request, &token)
            .map_err(|_| PermitError::BadSignature)?;
        let permit: Self = header::decode(body).map_err(|_| PermitError::Malformed)?;
        if !hub_names.contains(&permit.hub.as_str()) {
            return Err(PermitError::OtherHub);
        }
        // Twice its lifetime leaves room for clocks that differ by less than a minute.
        let latest = now_unix.saturating_add(2 * PERMIT_LIFETIME_S);
        if permit.expires <= now_unix || permit.expires > latest {
            return Err(PermitError::Clock);
        }
        let expected = Self {
            expires: permit.expires,
            hub: permit.hub.clone(),
            ..Self::new(asked, 0)
        };
        if permit == expected {
            Ok(key)
        } else {
            Err(PermitError::OtherRequest)
        }
    }
}

/// Why a request is not believed to come from whom it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PermitError {
    /// No permission of this scheme.
    #[error("the request is not signed")]
    Unsigned,
    /// Not the token that belongs here.
    #[error("the request's permission cannot be read")]
    Malformed,
    /// The key did not sign it.
    #[error("the signature of the request's permission does not match")]
    BadSignature,
    /// Signed for another hub.
    #[error("the request was signed for another hub")]
    OtherHub,
    /// Signed for another method, path or body.
    #[error("the request is not the one that was signed")]
    OtherRequest,
    /// Expired, or from the future.
    #[error("the request was signed too long ago, or the clocks differ")]
    Clock,
}

impl PermitError {
    /// The reason that a hub answers with.
    #[must_use]
    pub const fn reason(self) -> RefusalReason {
        match self {
            Self::Unsigned => RefusalReason::Unsigned,
            Self::Malformed => RefusalReason::Malformed,
            Self::BadSignature | Self::OtherRequest => RefusalReason::Forged,
            Self::OtherHub => RefusalReason::Elsewhere,
            Self::Clock => RefusalReason::Clock,
        }
    }
}

/// Reads the `?after=` of a request for members.
///
/// # Errors
///
/// `()` for anything but one key.
#[expect(clippy::result_unit_err, reason = "there is one way to be wrong")]
pub fn parse_after(query: Option<&str>) -> Result<Option<NodeId>, ()> {
    let Some(query) = query.filter(|query| !query.is_empty()) else {
        return Ok(None);
    };
    let key = query.strip_prefix("after=").ok_or(())?;
    NodeId::from_str(key).map(Some).map_err(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key() -> KeyPair {
        KeyPair::from_seed(&[7; 32])
    }

    fn asked() -> SignedRequest<'static> {
        SignedRequest {
            hub: "hub",
            method: "PUT",
            path: path::RECORD,
            body: b"{}",
        }
    }

    fn verify(
        authorization: &str,
        asked: &SignedRequest<'_>,
        now: u64,
    ) -> Result<NodeId, PermitError> {
        RequestPermit::verify(authorization, asked, &["hub", "https://hub.example"], now)
    }

    #[test]
    fn a_permit_is_good_for_its_own_request_only() {
        let token = RequestPermit::new(&asked(), NOW).sign(&key());
        assert_eq!(verify(&token, &asked(), NOW), Ok(key().id()));
        for other in [
            SignedRequest {
                method: "POST",
                ..asked()
            },
            SignedRequest {
                path: path::JOIN,
                ..asked()
            },
            SignedRequest {
                body: b"{ }",
                ..asked()
            },
        ] {
            assert_eq!(verify(&token, &other, NOW), Err(PermitError::OtherRequest));
        }
        let elsewhere = RequestPermit::verify(&token, &asked(), &["another"], NOW);
        assert_eq!(elsewhere, Err(PermitError::OtherHub));
    }

    #[test]
    fn a_permit_is_good_for_a_minute() {
        let token = RequestPermit::new(&asked(), NOW).sign(&key());
        assert!(verify(&token, &asked(), NOW + 59).is_ok());
        assert_eq!(verify(&token, &asked(), NOW + 60), Err(PermitError::Clock));
        assert!(verify(&token, &asked(), NOW - 60).is_ok());
        assert_eq!(verify(&token, &asked(), NOW - 61), Err(PermitError::Clock));
    }

    #[test]
    fn what_is_no_permit_is_refused_with_its_reason() {
        assert_eq!(
            verify("Bearer x", &asked(), NOW),
            Err(PermitError::Unsigned)
        );
        assert_eq!(verify("", &asked(), NOW), Err(PermitError::Unsigned));
        assert_eq!(
            verify("Hailwire !", &asked(), NOW),
            Err(PermitError::Malformed)
        );
        assert_eq!(
            verify("Hailwire AAAA", &asked(), NOW),
            Err(PermitError::BadSignature)
        );
        let long = format!("Hailwire {}", "A".repeat(limits::MAX_TICKET));
        assert_eq!(verify(&long, &asked(), NOW), Err(PermitError::Malformed));
        let record = key().seal(
            SignatureDomain::Record,
            &header::encode(&RequestPermit::new(&asked(), NOW)),
        );
        let record = format!("Hailwire {}", BASE64URL_NOPAD.encode(&record));
        assert_eq!(
            verify(&record, &asked(), NOW),
            Err(PermitError::BadSignature)
        );
    }

    #[test]
    fn a_search_finds_words_anywhere_and_tags_exactly() {
        let offer = AgentOffer {
            group: crate::header::OfferedGroup::default(),
            name: "word-count".parse().unwrap(),
            description: "Counts Lines".into(),
            tags: vec!["text".into()],
            version: String::new(),
        };
        let search = |tags: &[&str], words: &[&str]| {
            let own = |terms: &[&str]| terms.iter().map(|t| (*t).to_owned()).collect();
            SearchRequest {
                tags: own(tags),
                words: own(words),
                after: None,
            }
            .matches(&offer)
        };
        assert!(search(&[], &[]));
        assert!(search(&["text"], &["LINES", "word"]));
        assert!(search(&[], &["tex"]));
        assert!(!search(&["tex"], &[]));
        assert!(!search(&[], &["lines", "absent"]));
    }

    #[test]
    fn every_reason_survives_json_and_an_unknown_one_keeps_its_code() {
        for reason in RefusalReason::ALL {
            let refusal = HubRefusal::new(reason, "x", NOW);
            let text = serde_json::to_string(&refusal).unwrap();
            assert_eq!(serde_json::from_str::<HubRefusal>(&text).unwrap(), refusal);
            assert_eq!(Status::from(refusal).code, reason.code());
            assert!(reason.http_status() >= 400);
        }
        let newer = r#"{"code":"aborted","reason":"new_one","message":"m","now":1}"#;
        let refusal: HubRefusal = serde_json::from_str(newer).unwrap();
        assert_eq!(refusal.reason, RefusalReason::Other);
        assert_eq!(Status::from(refusal).code, Code::Aborted);
        let lie = r#"{"code":"ok","reason":"full","message":"m","now":1}"#;
        let refusal: HubRefusal = serde_json::from_str(lie).unwrap();
        assert_eq!(Status::from(refusal).code, Code::ResourceExhausted);
    }

    #[test]
    fn only_a_key_may_follow_after() {
        let key = NodeId::from_bytes([9; 32]);
        assert_eq!(parse_after(None), Ok(None));
        assert_eq!(parse_after(Some(&format!("after={key}"))), Ok(Some(key)));
        assert_eq!(parse_after(Some("after=laptop")), Err(()));
        assert_eq!(parse_after(Some("x=1")), Err(()));
    }
}
