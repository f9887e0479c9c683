//! Tickets: secrets that let one node join another, or a hub; and the inviter's book of them.
//!
//! Text form: `hail1` and lower-case base32 (RFC 4648 alphabet, no padding) of
//!
//! ```text
//!  0        1                                        n         n + 4
//! +--------+----------------------------------------+-------------+
//! |  kind  |  body: MessagePack map                 |  checksum   |
//! +--------+----------------------------------------+-------------+
//! ```
//!
//! `kind` is 1 for a node's ticket and 2 for a hub's. The checksum is the first four bytes of
//! SHA-256 over `hail1 ‖ kind ‖ body`: it protects no secret, it only tells a ticket that was
//! damaged on its way from one that the inviter does not know. A reader takes upper case, and
//! drops white space, since mail and terminals wrap lines.
//!
//! A ticket is a password: whoever reads it first may use it. So it expires, its uses are counted
//! by the inviter, who keeps only a digest, and no `Debug` output shows it.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use crate::{
    address::{AgentName, NodeId, NodeName},
    header,
    hub_url::HubUrl,
    limits,
    record::addresses,
};

/// Whom members of a hub trust by its membership alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberTrust {
    /// Each other.
    Members,
    /// Nobody: they only see each other's records.
    #[default]
    #[serde(other)]
    Nobody,
}

impl MemberTrust {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde asks for"
    )]
    pub(crate) fn is_nobody(&self) -> bool {
        *self == Self::Nobody
    }
}

/// Pauses after which a joiner shows its ticket again to an inviter whose places for untrusted peers were taken: who
/// comes from behind the same address as a flood may be put out before it has shown it.
pub const SHOWN_AGAIN: [Duration; 7] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];

/// What every ticket begins with.
pub const PREFIX: &str = "hail1";

const CHECKSUM: usize = 4;
const KIND_NODE: u8 = 1;
const KIND_HUB: u8 = 2;

/// The secret of a ticket: 16 random bytes, which the caller draws. Never printed.
#[derive(Clone)]
pub struct TicketSecret([u8; 16]);

impl TicketSecret {
    /// Wraps 16 bytes from the operating system's random source.
    #[must_use]
    pub const fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// SHA-256 of the secret, which is all that an inviter keeps.
    #[must_use]
    pub fn digest(&self) -> SecretDigest {
        SecretDigest(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl PartialEq for TicketSecret {
    /// Takes the same time wherever the difference is.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TicketSecret {}

impl Serialize for TicketSecret {
    /// Bytes in MessagePack, base32 as in a ticket in JSON.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&BASE32_NOPAD.encode(&self.0).to_ascii_lowercase())
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for TicketSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?.to_ascii_uppercase();
            let bytes = BASE32_NOPAD.decode(text.as_bytes()).ok();
            let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
            bytes
                .map(Self)
                .ok_or_else(|| D::Error::custom("a secret is 26 characters of base32"))
        } else {
            let bytes = serde_bytes::ByteArray::<16>::deserialize(deserializer)?;
            Ok(Self(bytes.into_array()))
        }
    }
}

/// SHA-256 of a [`TicketSecret`]. Safe to store; compared in constant time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SecretDigest(#[serde(with = "serde_bytes")] [u8; 32]);

impl SecretDigest {
    /// Wraps a stored digest.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes, to store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for SecretDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretDigest {}

/// What somebody hands over so that another may join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// Lets a node join a node; afterwards both trust each other.
    Node(NodeTicket),
    /// Lets a node become a member of a hub.
    Hub(HubTicket),
}

/// A node's invitation to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTicket {
    /// The inviter's key.
    pub node: NodeId,
    /// What proves the invitation.
    pub secret: TicketSecret,
    /// Unix seconds, by the inviter's clock, from which on it is refused.
    pub expires: u64,
    /// The name that the inviter goes by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// Where the inviter may be reached directly, at most [`limits::MAX_ADDRESSES`].
    #[serde(default, with = "addresses", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
    /// Where the inviter listens for carriers over TCP; with `addresses` at most
    /// [`limits::MAX_ADDRESSES`].
    #[serde(default, with = "addresses", skip_serializing_if = "Vec::is_empty")]
    pub tcp: Vec<SocketAddr>,
    /// URL of the relay through which the inviter can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// The Ed25519 key of the hub behind `relay`, where no public certificate serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_key: Option<NodeId>,
}

/// A hub's invitation to become a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubTicket {
    /// Where the hub is.
    pub url: HubUrl,
    /// The hub's Ed25519 key; absent where a public certificate serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<NodeId>,
    /// What proves the invitation.
    pub secret: TicketSecret,
    /// Unix seconds, by the hub's clock, from which on it is refused.
    pub expires: u64,
    /// Whom members trust by their membership, so that whoever joins knows beforehand.
    #[serde(default, skip_serializing_if = "MemberTrust::is_nobody")]
    pub trust: MemberTrust,
}

impl Ticket {
    /// The text to hand over: a secret, at most [`limits::MAX_TICKET`] characters.
    ///
    /// There is no `Display`, so that no log prints it by accident.
    ///
    /// # Errors
    ///
    /// [`TicketError::Bound`].
    pub fn to_text(&self) -> Result<String, TicketError> {
        self.check_bounds()?;
        let (kind, body) = match self {
            Self::Node(ticket) => (KIND_NODE, header::encode(ticket)),
            Self::Hub(ticket) => (KIND_HUB, header::encode(ticket)),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&checksum(&bytes));
        let text = format!(
            "{PREFIX}{}",
            BASE32_NOPAD.encode(&bytes).to_ascii_lowercase()
        );
        if text.len() > limits::MAX_TICKET {
            return Err(TicketError::Bound("length"));
        }
        Ok(text)
    }

    /// Unix seconds, by the inviter's clock, from which on the ticket is refused.
    #[must_use]
    pub fn expires(&self) -> u64 {
        match self {
            Self::Node(ticket) => ticket.expires,
            Self::Hub(ticket) => ticket.expires,
        }
    }

    fn check_bounds(&self) -> Result<(), TicketError> {
        let Self::Node(ticket) = self else {
            return Ok(());
        };
        if ticket.addresses.len() + ticket.tcp.len() > limits::MAX_ADDRESSES {
            return Err(TicketError::Bound("number of addresses"));
        }
        if ticket
            .relay
            .as_ref()
            .is_some_and(|url| url.len() > limits::MAX_URL)
        {
            return Err(TicketError::Bound("length of the URL"));
        }
        Ok(())
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // White space may double the length; anything beyond is no ticket and not worth reading.
        if text.len() > 2 * limits::MAX_TICKET {
            return Err(TicketError::Bound("length"));
        }
        let text: String = text
            .chars()
            .filter(|c| !c.is_ascii_whitespace())
            .map(|c| c.to_ascii_uppercase())
            .collect();
        let encoded = text
            .strip_prefix(&PREFIX.to_ascii_uppercase())
            .ok_or(TicketError::NotATicket)?;
        if text.len() > limits::MAX_TICKET {
            return Err(TicketError::Bound("length"));
        }
        let bytes = BASE32_NOPAD
            .decode(encoded.as_bytes())
            .map_err(|_| TicketError::Damaged)?;
        let (content, sum) = bytes
            .split_last_chunk::<CHECKSUM>()
            .ok_or(TicketError::Damaged)?;
        if checksum(content) != *sum {
            return Err(TicketError::Damaged);
        }
        let (kind, body) = content.split_first().ok_or(TicketError::Damaged)?;
        let ticket = match *kind {
            KIND_NODE => header::decode(body).map(Self::Node),
            KIND_HUB => header::decode(body).map(Self::Hub),
            kind => return Err(TicketError::UnknownKind(kind)),
        };
        let ticket = ticket.map_err(|_| TicketError::Malformed)?;
        ticket.check_bounds()?;
        Ok(ticket)
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM] {
    let digest = Sha256::new()
        .chain_update(PREFIX)
        .chain_update(content)
        .finalize();
    std::array::from_fn(|i| digest.get(i).copied().unwrap_or_default())
}

/// Why a text is not a ticket. None of these shows any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TicketError {
    /// It does not begin as tickets do.
    #[error("this is not a ticket: tickets begin with `{PREFIX}`")]
    NotATicket,
    /// A character was lost or altered.
    #[error("the ticket is damaged: a character was lost or altered")]
    Damaged,
    /// A kind that this version does not know.
    #[error("the ticket is of kind {0}, which this version does not know")]
    UnknownKind(u8),
    /// Whole, but its content is not what belongs there.
    #[error("the ticket's content cannot be read")]
    Malformed,
    /// A bound of [`limits`] was passed.
    #[error("the ticket exceeds a bound: {0}")]
    Bound(&'static str),
}

/// What an inviter keeps of one ticket: enough to honour it, not enough to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Digest of the secret.
    pub digest: SecretDigest,
    /// How often it may still be used.
    pub uses_left: u32,
    /// Unix seconds from which on it is refused.
    pub expires: u64,
    /// Agents that the joining node may call; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AgentName>,
    /// Agents of the joining node that may take calls which name no node; empty for all where it may
    /// call all, else none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offer: Vec<AgentName>,
}

impl Invitation {
    /// Takes one use.
    ///
    /// # Errors
    ///
    /// [`RedeemError::Expired`] and [`RedeemError::UsedUp`]; then nothing changes.
    pub fn redeem(&mut self, now_unix: u64) -> Result<(), RedeemError> {
        if self.expires <= now_unix {
            return Err(RedeemError::Expired);
        }
        self.uses_left = self.uses_left.checked_sub(1).ok_or(RedeemError::UsedUp)?;
        Ok(())
    }
}

/// All invitations of one inviter. Holds at most [`limits::MAX_INVITATIONS`], about 100 bytes
/// each; one that was used up is kept until it expires, so that its reason can be told.
#[derive(Clone, Debug, Default)]
pub struct InvitationTable(Vec<Invitation>);

impl InvitationTable {
    /// Takes back what [`InvitationTable::iter`] gave to a store.
    #[must_use]
    pub fn restore(stored: impl IntoIterator<Item = Invitation>) -> Self {
        Self(stored.into_iter().take(limits::MAX_INVITATIONS).collect())
    }

    /// All that are kept, to store.
    pub fn iter(&self) -> impl Iterator<Item = &Invitation> {
        self.0.iter()
    }

    /// Enters a new ticket; those that expired are forgotten.
    ///
    /// # Errors
    ///
    /// [`TooManyInvitations`].
    pub fn issue(
        &mut self,
        invitation: Invitation,
        now_unix: u64,
    ) -> Result<(), TooManyInvitations> {
        if self.0.len() >= limits::MAX_INVITATIONS {
            self.0.retain(|kept| kept.expires > now_unix);
        }
        if self.0.len() >= limits::MAX_INVITATIONS {
            return Err(TooManyInvitations);
        }
        self.0.push(invitation);
        Ok(())
    }

    /// Takes one use of the ticket with this secret and gives what it allows.
    ///
    /// Looks at every entry in constant time, so that time tells nothing about a near miss.
    ///
    /// # Errors
    ///
    /// [`RedeemError`]; then nothing changes.
    pub fn redeem(
        &mut self,
        secret: &TicketSecret,
        now_unix: u64,
    ) -> Result<&Invitation, RedeemError> {
        let digest = secret.digest();
        let mut found = None;
        for kept in &mut self.0 {
            if kept.digest == digest {
                found = Some(kept);
            }
        }
        let invitation = found.ok_or(RedeemError::Unknown)?;
        invitation.redeem(now_unix)?;
        Ok(invitation)
    }
}

/// Why a ticket is not honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RedeemError {
    /// The inviter never issued it, or has forgotten it since it expired.
    #[error("the ticket is unknown here")]
    Unknown,
    /// Its time has passed.
    #[error("the ticket has expired")]
    Expired,
    /// It was used as often as it may be.
    #[error("the ticket has been used up")]
    UsedUp,
}

/// The bound on open invitations is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{max} invitations are open already", max = limits::MAX_INVITATIONS)]
pub struct TooManyInvitations;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn secret(byte: u8) -> TicketSecret {
        TicketSecret::from_random([byte; 16])
    }

    fn node_ticket() -> NodeTicket {
        NodeTicket {
            node: NodeId::from_bytes([3; 32]),
            secret: secret(0x5a),
            expires: NOW + 600,
            name: Some("laptop".parse().unwrap()),
            addresses: vec!["192.0.2.1:7440".parse().unwrap()],
            tcp: vec!["192.0.2.1:443".parse().unwrap()],
            relay: Some("https://hub.example:7443/".into()),
            hub_key: Some(NodeId::from_bytes([4; 32])),
        }
    }

    fn hub_ticket() -> HubTicket {
        HubTicket {
            url: "https://hub.example:7443".parse().unwrap(),
            key: None,
            secret: secret(1),
            expires: NOW + 600,
            trust: MemberTrust::Nobody,
        }
    }

    fn invitation(byte: u8, uses_left: u32) -> Invitation {
        Invitation {
            digest: secret(byte).digest(),
            uses_left,
            expires: NOW + 600,
            allow: vec!["grep".parse().unwrap()],
            offer: Vec::new(),
        }
    }

    #[test]
    fn both_kinds_survive_their_text() {
        for ticket in [Ticket::Node(node_ticket()), Ticket::Hub(hub_ticket())] {
            let text = ticket.to_text().unwrap();
            assert!(text.starts_with(PREFIX));
            assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
            assert_eq!(text.to_uppercase().parse::<Ticket>().unwrap(), ticket);
            let wrapped = format!(" {}\n  {}\r\n", &text[..40], &text[40..]);
            assert_eq!(wrapped.parse::<Ticket>().unwrap(), ticket);
        }
    }

    #[test]
    fn every_altered_or_lost_character_is_damage() {
        let text = Ticket::Hub(hub_ticket()).to_text().unwrap();
        for index in PREFIX.len()..text.len() {
            for other in ["a", "7", "0", "é"] {
                if &text[index..=index] != other {
                    let altered = format!("{}{other}{}", &text[..index], &text[index + 1..]);
                    let error = altered.parse::<Ticket>().unwrap_err();
                    assert_eq!(error, TicketError::Damaged, "{index}");
                }
            }
            let lost = format!("{}{}", &text[..index], &text[index + 1..]);
            assert_eq!(lost.parse::<Ticket>().unwrap_err(), TicketError::Damaged);
        }
        assert!(
            TicketError::Damaged
                .to_string()
                .starts_with("the ticket is damaged")
        );
    }

    #[test]
    fn what_is_no_ticket_is_told_apart() {
        assert_eq!(
            "laptop".parse::<Ticket>().unwrap_err(),
            TicketError::NotATicket
        );
        assert_eq!("".parse::<Ticket>().unwrap_err(), TicketError::NotATicket);
        assert_eq!("hail1".parse::<Ticket>().unwrap_err(), TicketError::Damaged);
        let sealed = |content: &[u8]| {
            let bytes = [content, &checksum(content)].concat();
            format!("{PREFIX}{}", BASE32_NOPAD.encode(&bytes))
        };
        assert_eq!(
            sealed(&[9]).parse::<Ticket>().unwrap_err(),
            TicketError::UnknownKind(9)
        );
        assert_eq!(
            sealed(&[1, 0xc1]).parse::<Ticket>().unwrap_err(),
            TicketError::Malformed
        );
        assert_eq!(
            sealed(&[]).parse::<Ticket>().unwrap_err(),
            TicketError::Damaged
        );
    }

    #[test]
    fn every_bound_is_reached() {
        let long = "hail1".to_owned() + &"a".repeat(limits::MAX_TICKET);
        assert_eq!(
            long.parse::<Ticket>().unwrap_err(),
            TicketError::Bound("length")
        );
        let spaces = " ".repeat(2 * limits::MAX_TICKET + 1);
        assert_eq!(
            spaces.parse::<Ticket>().unwrap_err(),
            TicketError::Bound("length")
        );
        let mut many = node_ticket();
        many.tcp.clear();
        many.addresses = vec![many.addresses[0]; limits::MAX_ADDRESSES + 1];
        let error = Ticket::Node(many).to_text().unwrap_err();
        assert_eq!(error, TicketError::Bound("number of addresses"));
        let far = NodeTicket {
            relay: Some("x".repeat(limits::MAX_URL + 1)),
            ..node_ticket()
        };
        let error = Ticket::Node(far).to_text().unwrap_err();
        assert_eq!(error, TicketError::Bound("length of the URL"));
    }

    #[test]
    fn the_largest_ticket_fits_its_bound() {
        let mut ticket = node_ticket();
        ticket.name = Some("n".repeat(limits::MAX_NAME).parse().unwrap());
        ticket.relay = Some("u".repeat(limits::MAX_URL));
        let address = "[1111:2222:3333:4444:5555:6666:7777:8888]:65535"
            .parse()
            .unwrap();
        ticket.addresses = vec![address; limits::MAX_ADDRESSES / 2];
        ticket.tcp = vec![address; limits::MAX_ADDRESSES / 2];
        let ticket = Ticket::Node(ticket);
        assert_eq!(ticket.to_text().unwrap().parse::<Ticket>().unwrap(), ticket);
    }

    #[test]
    fn no_debug_output_shows_the_secret() {
        let text = format!("{:?}", Ticket::Node(node_ticket()));
        assert!(text.contains("hidden"));
        for shape in ["90, 90", "5a5a", "ZZZZ", "likbkl"] {
            assert!(
                !text.to_lowercase().contains(&shape.to_lowercase()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_ticket_is_honoured_as_often_as_it_says() {
        let mut book = InvitationTable::default();
        book.issue(invitation(1, 2), NOW).unwrap();
        assert_eq!(
            book.redeem(&secret(1), NOW).unwrap().allow[0].as_str(),
            "grep"
        );
        assert!(book.redeem(&secret(1), NOW).is_ok());
        assert_eq!(book.redeem(&secret(1), NOW), Err(RedeemError::UsedUp));
        assert_eq!(book.redeem(&secret(2), NOW), Err(RedeemError::Unknown));
    }

    #[test]
    fn an_expired_ticket_says_so_and_keeps_its_uses() {
        let mut book = InvitationTable::default();
        book.issue(invitation(1, 1), NOW).unwrap();
        assert_eq!(
            book.redeem(&secret(1), NOW + 600),
            Err(RedeemError::Expired)
        );
        assert!(book.redeem(&secret(1), NOW + 599).is_ok());
    }

    #[test]
    fn the_book_survives_a_store() {
        let mut book = InvitationTable::default();
        book.issue(invitation(1, 1), NOW).unwrap();
        let stored: Vec<u8> = header::encode(&book.iter().collect::<Vec<_>>());
        let mut book =
            InvitationTable::restore(rmp_serde::from_slice::<Vec<Invitation>>(&stored).unwrap());
        assert!(book.redeem(&secret(1), NOW).is_ok());
    }

    #[test]
    fn a_full_book_forgets_what_expired_and_then_refuses() {
        let mut book = InvitationTable::default();
        for _ in 0..limits::MAX_INVITATIONS {
            book.issue(invitation(1, 1), NOW).unwrap();
        }
        assert_eq!(book.issue(invitation(2, 1), NOW), Err(TooManyInvitations));
        book.issue(
            Invitation {
                expires: NOW + 900,
                ..invitation(2, 1)
            },
            NOW + 600,
        )
        .unwrap();
        assert_eq!(book.iter().count(), 1);
    }
}
