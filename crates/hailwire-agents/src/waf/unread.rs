//! Content that the firewall cannot read, and which kinds of it an operator accepts.
//!
//! Every decision on a request with unread content names its kinds: `unread:MAX_NAME` in its tags, `UNREAD_NAME` in its reason
//! codes, and [`Waf::unread`](super::Waf::unread) counts it.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A kind of content that the firewall does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnreadKind {
    /// A body that is compressed, by `Content-Encoding` or `Transfer-Encoding`.
    ContentEncoding,
    /// Text in a character set that is not UTF-8 or UTF-16 and is not a superset of ASCII.
    Charset,
    /// More than one content type, or an ambiguous one.
    ContentType,
    /// A part of a multipart body in base64, quoted-printable or an unknown encoding, or one that is multipart itself.
    PartEncoding,
    /// Declarations in the DTD of an XML document.
    XmlDtd,
    /// XML that is nested so deeply that the joined text of some elements was not inspected.
    XmlNesting,
    /// A body that is not text: rules see its bytes, but nothing inside it.
    Binary,
}

impl UnreadKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::ContentEncoding,
        Self::Charset,
        Self::ContentType,
        Self::PartEncoding,
        Self::XmlDtd,
        Self::XmlNesting,
        Self::Binary,
    ];

    /// Its name in tags and settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContentEncoding => "content-encoding",
            Self::Charset => "charset",
            Self::ContentType => "content-type",
            Self::PartEncoding => "part-encoding",
            Self::XmlDtd => "xml-dtd",
            Self::XmlNesting => "xml-nesting",
            Self::Binary => "binary",
        }
    }
}

/// An unknown kind of unread content.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is not a valid kind of unread content; use content-encoding, charset, content-type, part-encoding, xml-dtd, xml-nesting or binary"
)]
pub struct UnreadKindError(String);

impl FromStr for UnreadKind {
    type Err = UnreadKindError;

    fn from_str(text: &str) -> Result<Self, UnreadKindError> {
        let named = Self::ALL.into_iter().find(|unread| unread.name() == text);
        named.ok_or_else(|| UnreadKindError(text.to_owned()))
    }
}

impl fmt::Display for UnreadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of kinds of unread content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreadSet(u8);

impl UnreadSet {
    /// The kinds that are accepted by default: most services accept images.
    pub const OPAQUE: Self = Self(1 << UnreadKind::Binary as u8);
    /// All kinds.
    pub const ALL: Self = Self((1 << UnreadKind::ALL.len()) - 1);

    /// Adds one.
    pub fn add(&mut self, unread: UnreadKind) {
        self.0 |= 1 << unread as u8;
    }

    /// The union.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The difference.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it contains this kind.
    #[must_use]
    pub const fn has(self, unread: UnreadKind) -> bool {
        self.0 >> unread as u8 & 1 != 0
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the kinds.
    pub fn iter(self) -> impl Iterator<Item = UnreadKind> {
        UnreadKind::ALL
            .into_iter()
            .filter(move |unread| self.has(*unread))
    }
}

impl FromIterator<UnreadKind> for UnreadSet {
    fn from_iter<I: IntoIterator<Item = UnreadKind>>(some: I) -> Self {
        let mut set = Self::default();
        some.into_iter().for_each(|unread| set.add(unread));
        set
    }
}
