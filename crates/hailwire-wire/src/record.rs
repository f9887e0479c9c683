//! Records: where a node is and which agents it offers, signed and expiring.
//!
//! A node writes one record, signs it with its key and hands it to its hub. Whoever looks the node
//! up gets the very same bytes and checks them again, so a hub can withhold a record but never
//! forge one. A record supersedes those with a lower `sequence`; it is believed from an hour
//! before `issued` (clocks differ) until `expires`.
//!
//! Layout: the envelope of [`crate::signed`] around a MessagePack map. The node's key stands in
//! the envelope only. Keys in the order in which they are written; one at its default is left out;
//! unknown ones are skipped:
//!
//! | key | type | meaning |
//! |---|---|---|
//! | `name` | string | the name that the node asks to hold at the hub |
//! | `addresses` | array of strings | socket addresses, `192.0.2.1:7440` or `[2001:db8::1]:7440` |
//! | `tcp` | array of strings | socket addresses for carriers over TCP; absent where it listens on none |
//! | `relay` | string | URL of the relay through which the node can be reached |
//! | `agents` | array of maps | [`AgentOffer`] |
//! | `sequence` | integer | higher than in every earlier record of this key |
//! | `issued`, `expires` | integer | unix seconds |

use std::net::SocketAddr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    address::{NodeId, NodeName},
    header::{self, AgentOffer},
    limits,
    signed::{self, KeyPair, SignatureDomain, SignatureError},
};

/// What a node says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRecord {
    /// The name that the node asks to hold at the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// Where it may be reached directly, at most [`limits::MAX_ADDRESSES`].
    #[serde(with = "addresses", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
    /// Where it listens for carriers over TCP; with `addresses` at most
    /// [`limits::MAX_ADDRESSES`]. A reader that does not know the field dials over UDP.
    #[serde(with = "addresses", skip_serializing_if = "Vec::is_empty")]
    pub tcp: Vec<SocketAddr>,
    /// URL of the relay through which it can be reached, at most [`limits::MAX_URL`] bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// The agents that it offers, at most [`limits::MAX_AGENTS_PER_NODE`].
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::map_only::list"
    )]
    pub agents: Vec<AgentOffer>,
    /// Higher than in every earlier record of the same key. Unix milliseconds serve well.
    pub sequence: u64,
    /// Unix seconds at which it was made, by the node's clock.
    pub issued: u64,
    /// Unix seconds from which on it is no longer believed; at most
    /// [`limits::MAX_RECORD_LIFETIME_S`] after `issued`. Two hours or more leave room for a clock
    /// that is an hour off.
    pub expires: u64,
}

impl NodeRecord {
    /// Signs the record.
    ///
    /// # Errors
    ///
    /// [`RecordError::Bound`] and [`RecordError::TooLarge`].
    pub fn sign(self, key: &KeyPair) -> Result<SignedRecord, RecordError> {
        self.check_bounds()?;
        let bytes = Bytes::from(key.seal(SignatureDomain::Record, &header::encode(&self)));
        if bytes.len() > limits::MAX_RECORD {
            return Err(RecordError::TooLarge(bytes.len()));
        }
        Ok(SignedRecord {
            node: key.id(),
            record: self,
            bytes,
        })
    }

    fn check_bounds(&self) -> Result<(), RecordError> {
        let bound = |good: bool, what| {
            if good {
                Ok(())
            } else {
                Err(RecordError::Bound(what))
            }
        };
        bound(
            self.addresses.len() + self.tcp.len() <= limits::MAX_ADDRESSES,
            "number of addresses",
        )?;
        let relay = self.relay.as_deref().unwrap_or_default();
        bound(relay.len() <= limits::MAX_URL, "length of the relay URL")?;
        bound(
            self.agents.len() <= limits::MAX_AGENTS_PER_NODE,
            "number of agents",
        )?;
        for agent in &self.agents {
            check_offer(agent).map_err(RecordError::Bound)?;
        }
        let lifetime = self.expires.saturating_sub(self.issued);
        bound(lifetime <= limits::MAX_RECORD_LIFETIME_S, "lifetime")
    }
}

/// Checks the bounds of one offered agent.
///
/// # Errors
///
/// Names the bound that was passed.
pub fn check_offer(offer: &AgentOffer) -> Result<(), &'static str> {
    if offer.description.len() > limits::MAX_DESCRIPTION {
        return Err("length of a description");
    }
    if offer.tags.len() > limits::MAX_TAGS {
        return Err("number of tags");
    }
    if offer.tags.iter().any(|tag| tag.len() > limits::MAX_NAME) {
        return Err("length of a tag");
    }
    if offer.version.len() > limits::MAX_NAME {
        return Err("length of a version");
    }
    Ok(())
}

/// A record whose signature, bounds and time were checked, with the bytes that prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRecord {
    node: NodeId,
    record: NodeRecord,
    bytes: Bytes,
}

impl SignedRecord {
    /// Reads and checks a record. `now_unix` is the reader's clock in unix seconds.
    ///
    /// Costs one signature check, about 50 µs, and memory in proportion to the length of `bytes`,
    /// of which more than [`limits::MAX_RECORD`] are refused unread.
    ///
    /// # Errors
    ///
    /// [`RecordError`].
    pub fn parse(bytes: Bytes, now_unix: u64) -> Result<Self, RecordError> {
        if bytes.len() > limits::MAX_RECORD {
            return Err(RecordError::TooLarge(bytes.len()));
        }
        let (node, body) =
            signed::open(SignatureDomain::Record, &bytes).map_err(|error| match error {
                SignatureError::Truncated => RecordError::Malformed,
                SignatureError::Forged => RecordError::BadSignature,
            })?;
        let record: NodeRecord = header::decode(body).map_err(|_| RecordError::Malformed)?;
        record.check_bounds()?;
        if record.expires <= now_unix {
            return Err(RecordError::Expired {
                seconds: now_unix - record.expires,
            });
        }
        let ahead = record.issued.saturating_sub(now_unix);
        if ahead > limits::CLOCK_TOLERANCE_S {
            return Err(RecordError::NotYetValid { seconds: ahead });
        }
        Ok(Self {
            node,
            record,
            bytes,
        })
    }

    /// The key that signed it.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What it says.
    #[must_use]
    pub fn record(&self) -> &NodeRecord {
        &self.record
    }

    /// The signed bytes, to hand on unchanged.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether it may take the place of a record with the sequence number `known` of the same key.
    ///
    /// # Errors
    ///
    /// [`OutOfOrder`] for an older or equal number, so that an old record played again is refused.
    pub fn supersedes(&self, known: u64) -> Result<(), OutOfOrder> {
        let offered = self.record.sequence;
        if offered > known {
            Ok(())
        } else {
            Err(OutOfOrder { offered, known })
        }
    }
}

/// Why bytes are not a record to believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// More than [`limits::MAX_RECORD`] bytes.
    #[error("a record of {0} bytes exceeds {max}", max = limits::MAX_RECORD)]
    TooLarge(usize),
    /// Not the envelope and map that belong here.
    #[error("malformed record")]
    Malformed,
    /// The key did not sign it.
    #[error("the record's signature does not match")]
    BadSignature,
    /// Its time has passed.
    #[error("the record expired {seconds} s ago")]
    Expired {
        /// For how long.
        seconds: u64,
    },
    /// It comes from further in the future than clocks may differ.
    #[error("the record was issued {seconds} s in the future")]
    NotYetValid {
        /// By how much.
        seconds: u64,
    },
    /// A bound of [`limits`] was passed.
    #[error("the record exceeds a bound: {0}")]
    Bound(&'static str),
}

/// A record does not come after the one that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("sequence {offered} does not follow {known}")]
pub struct OutOfOrder {
    /// The number of the offered record.
    pub offered: u64,
    /// The number of the known one.
    pub known: u64,
}

/// Socket addresses as text, which every language reads, in MessagePack too.
pub(crate) mod addresses {
    use std::net::SocketAddr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(
        addresses: &[SocketAddr],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(addresses.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        Vec::<String>::deserialize(deserializer)?
            .into_iter()
            .map(|text| text.parse().map_err(D::Error::custom))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key() -> KeyPair {
        KeyPair::from_seed(&[7; 32])
    }

    fn record() -> NodeRecord {
        NodeRecord {
            name: Some("laptop".parse().unwrap()),
            addresses: vec![
                "192.0.2.1:7440".parse().unwrap(),
                "[2001:db8::1]:7440".parse().unwrap(),
            ],
            tcp: vec!["192.0.2.1:443".parse().unwrap()],
            relay: Some("https://hub.example:7443/".into()),
            agents: vec![offer("grep")],
            sequence: 1,
            issued: NOW,
            expires: NOW + 7200,
        }
    }

    fn offer(name: &str) -> AgentOffer {
        AgentOffer {
            group: crate::header::OfferedGroup::default(),
            name: name.parse().unwrap(),
            description: "finds lines".into(),
            tags: vec!["text".into()],
            version: "1".into(),
        }
    }

    fn parse(record: &NodeRecord, now: u64) -> Result<SignedRecord, RecordError> {
        SignedRecord::parse(
            Bytes::from(key().seal(SignatureDomain::Record, &header::encode(&record))),
            now,
        )
    }

    #[test]
    fn a_record_survives_its_bytes() {
        let signed = record().sign(&key()).unwrap();
        let read = SignedRecord::parse(signed.bytes().clone(), NOW).unwrap();
        assert_eq!(read, signed);
        assert_eq!(read.node(), key().id());
        assert_eq!(read.record(), &record());
    }

    #[test]
    fn a_record_of_another_key_is_forged() {
        let mut bytes = record().sign(&key()).unwrap().bytes().to_vec();
        bytes[..32].copy_from_slice(KeyPair::from_seed(&[8; 32]).id().as_bytes());
        assert_eq!(
            SignedRecord::parse(bytes.into(), NOW),
            Err(RecordError::BadSignature)
        );
    }

    #[test]
    fn an_expired_record_is_refused_to_the_second() {
        assert!(parse(&record(), NOW + 7199).is_ok());
        assert_eq!(
            parse(&record(), NOW + 7200),
            Err(RecordError::Expired { seconds: 0 })
        );
        assert!(parse(&record(), u64::MAX).is_err());
    }

    #[test]
    fn a_clock_that_is_an_hour_off_is_tolerated_and_no_more() {
        assert!(parse(&record(), NOW - 3600).is_ok());
        let early = parse(&record(), NOW - limits::CLOCK_TOLERANCE_S - 1);
        assert!(matches!(early, Err(RecordError::NotYetValid { .. })));
    }

    #[test]
    fn only_a_higher_sequence_supersedes() {
        let signed = NodeRecord {
            sequence: 5,
            ..record()
        }
        .sign(&key())
        .unwrap();
        assert_eq!(signed.supersedes(4), Ok(()));
        assert_eq!(
            signed.supersedes(5),
            Err(OutOfOrder {
                offered: 5,
                known: 5
            })
        );
        assert!(signed.supersedes(6).is_err());
    }

    #[test]
    fn every_bound_is_reached() {
        let address = "192.0.2.1:1".parse().unwrap();
        let long = "x".repeat(limits::MAX_DESCRIPTION + 1);
        let agents = |offer: AgentOffer| NodeRecord {
            agents: vec![offer],
            ..record()
        };
        for (record, bound) in [
            (
                NodeRecord {
                    addresses: vec![address; limits::MAX_ADDRESSES + 1],
                    ..record()
                },
                "number of addresses",
            ),
            (
                NodeRecord {
                    relay: Some("x".repeat(limits::MAX_URL + 1)),
                    ..record()
                },
                "length of the relay URL",
            ),
            (
                NodeRecord {
                    agents: vec![
                        AgentOffer {
                            description: String::new(),
                            tags: vec![],
                            version: String::new(),
                            ..offer("a")
                        };
                        limits::MAX_AGENTS_PER_NODE + 1
                    ],
                    ..record()
                },
                "number of agents",
            ),
            (
                agents(AgentOffer {
                    description: long,
                    ..offer("a")
                }),
                "length of a description",
            ),
            (
                agents(AgentOffer {
                    tags: vec![String::new(); limits::MAX_TAGS + 1],
                    ..offer("a")
                }),
                "number of tags",
            ),
            (
                agents(AgentOffer {
                    tags: vec!["x".repeat(65)],
                    ..offer("a")
                }),
                "length of a tag",
            ),
            (
                agents(AgentOffer {
                    version: "x".repeat(65),
                    ..offer("a")
                }),
                "length of a version",
            ),
            (
                NodeRecord {
                    expires: NOW + limits::MAX_RECORD_LIFETIME_S + 1,
                    ..record()
                },
                "lifetime",
            ),
        ] {
            assert_eq!(
                record.clone().sign(&key()).map(drop),
                Err(RecordError::Bound(bound))
            );
            assert_eq!(
                parse(&record, NOW).map(drop),
                Err(RecordError::Bound(bound))
            );
        }
    }

    #[test]
    fn an_oversized_record_is_refused_unread_and_never_made() {
        let bytes = Bytes::from(vec![0; limits::MAX_RECORD + 1]);
        let size = bytes.len();
        assert_eq!(
            SignedRecord::parse(bytes, NOW),
            Err(RecordError::TooLarge(size))
        );
        let fat = AgentOffer {
            description: "x".repeat(limits::MAX_DESCRIPTION),
            ..offer("a")
        };
        let record = NodeRecord {
            agents: vec![fat; limits::MAX_AGENTS_PER_NODE],
            ..record()
        };
        assert!(matches!(record.sign(&key()), Err(RecordError::TooLarge(_))));
    }

    #[test]
    fn a_field_from_the_future_is_skipped_and_kept() {
        #[derive(Serialize)]
        struct NewerRecord {
            colour: &'static str,
            sequence: u64,
            issued: u64,
            expires: u64,
        }
        let body = header::encode(&NewerRecord {
            colour: "red",
            sequence: 1,
            issued: NOW,
            expires: NOW + 9,
        });
        let bytes = Bytes::from(key().seal(SignatureDomain::Record, &body));
        assert_eq!(
            SignedRecord::parse(bytes.clone(), NOW).unwrap().bytes(),
            &bytes
        );
    }

    #[test]
    fn a_signed_body_that_is_no_map_is_malformed() {
        for body in [b"".as_slice(), b"\xc1", b"\xa1x", &[0x91; 5000]] {
            let bytes = Bytes::from(key().seal(SignatureDomain::Record, body));
            assert_eq!(SignedRecord::parse(bytes, NOW), Err(RecordError::Malformed));
        }
    }
}
