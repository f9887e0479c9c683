//! Leases: which of several programs is to do something, for a stated time, with a number that shows who came later.
//!
//! A hub keeps them for its members, beside its directory and asked in the same way ([`crate::directory`]). `spec/records.md` has an
//! example of each:
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/lease` | [`LeaseRequest`] | [`LeaseAnswer`]; taken, renewed, or held by another |
//! | `POST /v1/lease/release` | [`LeaseRelease`] | [`LeaseReleased`] |
//! | `GET /v1/leases` | | [`LeaseList`] |
//!
//! Who asks is the node whose key signed the request, and of its programs the one that [`CandidateId`] stands for.

use std::time::Duration;

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    address::{LeaseName, NodeId},
    limits,
};

/// The paths of leases at a hub.
pub mod path {
    /// [`super::LeaseRequest`].
    pub const LEASE: &str = "/v1/lease";
    /// [`super::LeaseRelease`].
    pub const RELEASE: &str = "/v1/lease/release";
    /// [`super::LeaseList`].
    pub const LEASES: &str = "/v1/leases";
}

/// One program that wants a lease: 16 random bytes that it draws once, so that two programs of a node are two candidates. Base64
/// in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CandidateId([u8; 16]);

impl CandidateId {
    /// From bytes that the caller drew at random.
    #[must_use]
    pub const fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Serialize for CandidateId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for CandidateId {
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

/// Asks for a lease, or for more time on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// Of what.
    pub name: LeaseName,
    /// For whom, among the programs of the node that asks.
    pub candidate: CandidateId,
    /// For how long from the hub's reading of this on, in milliseconds: from [`limits::MIN_LEASE_MS`] to [`limits::MAX_LEASE_MS`].
    pub ttl_ms: u64,
    /// The fencing token of the lease that is to be renewed. Absent: whoever holds the lease keeps it, and nobody's is given to the
    /// asker. With it, nothing but this lease is wanted, so a candidate whose lease has run out does not get another unawares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

impl LeaseRequest {
    /// How long the lease is to last; `None` outside the bounds of [`limits`].
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        let bounds = limits::MIN_LEASE_MS..=limits::MAX_LEASE_MS;
        bounds
            .contains(&self.ttl_ms)
            .then(|| Duration::from_millis(self.ttl_ms))
    }
}

/// Who holds the lease now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Whether it is the candidate that asked.
    pub held: bool,
    /// The lease; absent where nobody holds it, as when one that was to be renewed has run out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRow>,
}

/// A lease that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRow {
    /// Of what.
    pub name: LeaseName,
    /// The node whose program holds it.
    pub node: NodeId,
    /// The fencing token: higher than that of every lease that this hub gave before, of whatever name.
    pub token: u64,
    /// For how many milliseconds more, unless it is renewed.
    pub left_ms: u64,
}

/// Gives a lease back before it has run out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRelease {
    /// Of what.
    pub name: LeaseName,
    /// Who held it.
    pub candidate: CandidateId,
    /// Its fencing token.
    pub token: u64,
}

/// The lease is not the candidate's any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReleased {
    /// Whether it was until now.
    pub released: bool,
}

/// The leases that are held, in the order of their names; at most [`limits::MAX_LEASES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseList {
    /// All of them.
    pub leases: Vec<LeaseRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_bounds_in_time_name_and_candidate() {
        let read = |ttl: u64, name: &str, candidate: &str| {
            let text = format!(r#"{{"name":"{name}","candidate":"{candidate}","ttl_ms":{ttl}}}"#);
            serde_json::from_str::<LeaseRequest>(&text)
        };
        let candidate = "AAAAAAAAAAAAAAAAAAAAAA==";
        let ttl = |ms| read(ms, "nightly", candidate).unwrap().ttl();
        assert_eq!(ttl(limits::MIN_LEASE_MS), Some(Duration::from_secs(1)));
        assert_eq!(ttl(limits::MAX_LEASE_MS), Some(Duration::from_secs(600)));
        assert_eq!(ttl(limits::MIN_LEASE_MS - 1), None);
        assert_eq!(ttl(limits::MAX_LEASE_MS + 1), None);
        assert_eq!(ttl(0), None);
        assert_eq!(ttl(u64::MAX), None);
        assert!(read(1000, "Nightly", candidate).is_err());
        assert!(read(1000, &"n".repeat(limits::MAX_NAME + 1), candidate).is_err());
        assert!(read(1000, "nightly", "AAAA").is_err());
        assert!(read(1000, "nightly", &"A".repeat(1000)).is_err());
    }
}
