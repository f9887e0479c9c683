//! Who is called: `agent@node`.
//!
//! A node is named by its key in z-base-32 (52 characters, as in ZRTP and pkarr), by a name that
//! it holds at a hub, or by a local alias. `agent` alone means local first, then trusted peers.
//! Names are lower case so that two people who read one aloud mean the same one.

use std::{fmt, str::FromStr};

use data_encoding::{Encoding, Specification};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits;

/// A node's Ed25519 public key, which is its name in the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId([u8; 32]);

impl NodeId {
    /// Length of the text form in characters.
    pub const TEXT_LEN: usize = 52;

    /// Wraps the 32 bytes of a public key. Whether they are a point on the curve is checked when a
    /// signature or a handshake uses them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the public key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first ten characters of the text form, for tables and logs. Not unique.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(10);
        text
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&zbase32().encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || AddressError::NodeId(shorten(text));
        if text.len() != Self::TEXT_LEN {
            return Err(bad());
        }
        let bytes = zbase32().decode(text.as_bytes()).map_err(|_| bad())?;
        bytes.try_into().map(Self).map_err(|_| bad())
    }
}

impl Serialize for NodeId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(serde::de::Error::custom)
        } else {
            let bytes = serde_bytes::ByteArray::<32>::deserialize(deserializer)?;
            Ok(Self(bytes.into_array()))
        }
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = AddressError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                check_name($what, text)?;
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = AddressError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

name! {
    /// The name of an agent: 1 to 64 characters of `a-z 0-9 . _ -`, beginning and ending with a
    /// letter or digit.
    AgentName, "agent"
}

name! {
    /// The name of a node, at a hub or as a local alias: the grammar of [`AgentName`], but never
    /// something that reads as a [`NodeId`].
    NodeName, "node"
}

name! {
    /// The name of a lease at a hub: the grammar of [`AgentName`].
    LeaseName, "lease"
}

/// Which node an address means.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeRef {
    /// By key.
    Id(NodeId),
    /// By a name held at a hub or by a local alias.
    Name(NodeName),
}

impl FromStr for NodeRef {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Most are names, and saying why a name is not a key would cost more than reading it.
        if text.len() == NodeId::TEXT_LEN
            && let Ok(id) = text.parse()
        {
            return Ok(Self::Id(id));
        }
        text.parse().map(Self::Name)
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Where a call goes: an agent, on a stated node or wherever it is found first.
///
/// Text form: `agent` or `agent@node`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The agent that is called.
    pub agent: AgentName,
    /// The node it lives on; `None` means local first, then trusted peers.
    pub node: Option<NodeRef>,
}

impl Address {
    /// An address on a stated node.
    #[must_use]
    pub fn at(agent: AgentName, node: NodeRef) -> Self {
        Self {
            agent,
            node: Some(node),
        }
    }
}

impl From<AgentName> for Address {
    fn from(agent: AgentName) -> Self {
        Self { agent, node: None }
    }
}

/// The agent and the node that an address names, unchecked; nothing where it names no node.
#[must_use]
pub fn split(address: &str) -> Option<(&str, &str)> {
    // For texts of a few bytes a search as `str` has it costs ten times this one.
    let at = address.bytes().position(|byte| byte == b'@')?;
    Some((&address[..at], &address[at + 1..]))
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match split(text) {
            None => Ok(Self {
                agent: text.parse()?,
                node: None,
            }),
            Some((agent, node)) => Ok(Self {
                agent: agent.parse()?,
                node: Some(node.parse()?),
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            None => self.agent.fmt(f),
            Some(node) => write!(f, "{}@{node}", self.agent),
        }
    }
}

/// Who calls, as `from` of a header says it.
///
/// Text form: empty, `agent`, and from a node to the program that serves also `agent@key` or `@key`.
/// The agent's name is what the caller says of itself. The key is the node's word for where the call
/// came from, so only a node may state it; without one the call is of the same machine. Nothing else
/// is a `from`: what cannot be read never passes for a call of the same machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallFrom {
    /// The calling agent, as it calls itself; `None` for an anonymous one.
    pub agent: Option<AgentName>,
    /// The node that the call came from; `None` for this machine.
    pub node: Option<NodeId>,
}

impl CallFrom {
    /// Whether it says nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.agent.is_none() && self.node.is_none()
    }

    /// The calling agent's name; empty for an anonymous one.
    #[must_use]
    pub fn agent_name(&self) -> &str {
        self.agent
            .as_ref()
            .map(AgentName::as_str)
            .unwrap_or_default()
    }
}

impl FromStr for CallFrom {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (agent, node) = match split(text) {
            None => (text, None),
            Some((agent, key)) => (agent, Some(key.parse()?)),
        };
        let agent = match agent {
            "" => None,
            name => Some(name.parse()?),
        };
        Ok(Self { agent, node })
    }
}

impl fmt::Display for CallFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.agent_name())?;
        match &self.node {
            None => Ok(()),
            Some(key) => write!(f, "@{key}"),
        }
    }
}

impl Serialize for CallFrom {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CallFrom {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The text is not 52 characters of z-base-32.
    #[error("`{0}` is not a node key: 52 characters of z-base-32 are expected")]
    NodeId(String),
    /// The text breaks the grammar of names.
    #[error(
        "`{text}` is not {what} name: 1 to 64 of a-z 0-9 . _ -, beginning and ending with a letter or digit"
    )]
    Name {
        /// What it should have named: `an agent`, `a node` or `a lease`.
        what: &'static str,
        /// The text, shortened.
        text: String,
    },
    /// A node name must not look like a key.
    #[error("`{0}` reads as a node key and cannot be a name")]
    NameIsKey(String),
}

fn check_name(what: &'static str, text: &str) -> Result<(), AddressError> {
    let inner =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let good = matches!(bytes.len(), 1..=limits::MAX_NAME)
        && bytes.iter().copied().all(inner)
        && bytes.first().copied().is_some_and(outer)
        && bytes.last().copied().is_some_and(outer);
    if !good {
        let what = match what {
            "agent" => "an agent",
            "lease" => "a lease",
            _ => "a node",
        };
        return Err(AddressError::Name {
            what,
            text: shorten(text),
        });
    }
    let may_be_key = what == "node" && text.len() == NodeId::TEXT_LEN;
    if may_be_key && text.parse::<NodeId>().is_ok() {
        return Err(AddressError::NameIsKey(shorten(text)));
    }
    Ok(())
}

/// At most 60 characters of a text that somebody else wrote, without control characters.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn zbase32() -> &'static Encoding {
    static ENCODING: std::sync::OnceLock<Encoding> = std::sync::OnceLock::new();
    ENCODING.get_or_init(|| {
        let mut spec = Specification::new();
        spec.symbols.push_str("ybndrfg8ejkmcpqxot1uwisza345h769");
        #[expect(
            clippy::expect_used,
            reason = "a constant alphabet of 32 distinct characters"
        )]
        spec.encoding().expect("valid alphabet")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let id = NodeId::from_bytes(std::array::from_fn(|i| (i * 37) as u8));
        let text = id.to_string();
        assert_eq!(text.len(), NodeId::TEXT_LEN);
        assert_eq!(text.parse::<NodeId>().unwrap(), id);
    }

    #[test]
    fn a_key_with_trailing_bits_is_refused() {
        let mut text = NodeId::from_bytes([0; 32]).to_string();
        text.pop();
        text.push('b');
        assert!(text.parse::<NodeId>().is_err());
    }

    #[test]
    fn names_keep_their_grammar() {
        for good in ["a", "word-count", "a.b_c-9", &"x".repeat(64)] {
            assert!(good.parse::<AgentName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "ä",
            "a b",
            "a@b",
            &"x".repeat(65),
            "a\n",
        ] {
            assert!(bad.parse::<AgentName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_node_name_never_reads_as_a_key() {
        let text = NodeId::from_bytes([7; 32]).to_string();
        assert!(text.parse::<NodeName>().is_err());
        assert!(matches!(text.parse::<NodeRef>(), Ok(NodeRef::Id(_))));
    }

    #[test]
    fn a_caller_is_an_agent_with_or_without_a_key_and_nothing_else() {
        let id = NodeId::from_bytes([9; 32]);
        for text in [
            String::new(),
            "editor".to_owned(),
            format!("editor@{id}"),
            format!("@{id}"),
        ] {
            assert_eq!(text.parse::<CallFrom>().unwrap().to_string(), text);
        }
        let key = id.to_string();
        for bad in [
            "admin@",
            "@",
            "@@",
            "admin@laptop",
            "Admin",
            "ad min",
            "admin\n",
            &format!("admin@{}", &key[1..]),
            &format!("admin@{key}@"),
            &format!("admin@@{key}"),
            &format!("admin@{key} "),
        ] {
            assert!(bad.parse::<CallFrom>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses_survive_their_text() {
        let id = NodeId::from_bytes([9; 32]);
        for text in [
            "grep".to_owned(),
            "grep@laptop".to_owned(),
            format!("grep@{id}"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert!("grep@".parse::<Address>().is_err());
        assert!("@laptop".parse::<Address>().is_err());
        assert!("a@b@c".parse::<Address>().is_err());
    }
}
