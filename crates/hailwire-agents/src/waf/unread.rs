//! What of a request is not read, and what an operator wants done about it.
//!
//! Every decision on a request with something unread says what: `unread:NAME` in its tags, `UNREAD_NAME` in its reason
//! codes, and [`Waf::unread`](super::Waf::unread) counts it.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// Something that the firewall does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unread {
    /// A body that is compressed, by `Content-Encoding` or `Transfer-Encoding`.
    ContentEncoding,
    /// Text in a character set that is neither UTF-8 nor UTF-16 and of which ASCII is no part.
    Charset,
    /// More than one content type, or one that can be read in several ways.
    ContentType,
    /// A part of a multipart body in base64, quoted-printable or something unknown, or one that has parts itself.
    PartEncoding,
    /// What the DTD of an XML document declares.
    XmlDtd,
    /// XML whose elements are within one another so often that their text was not given whole each time.
    XmlNesting,
    /// A body that is no text: rules see its bytes and nothing within it.
    Binary,
}

impl Unread {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::ContentEncoding,
        Self::Charset,
        Self::ContentType,
        Self::PartEncoding,
        Self::XmlDtd,
        Self::XmlNesting,
        Self::Binary,
    ];

    /// What it is called in tags and settings.
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

/// A name of nothing that is unread.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is nothing that is left unread: content-encoding, charset, content-type, part-encoding, xml-dtd, xml-nesting and binary are"
)]
pub struct UnreadError(String);

impl FromStr for Unread {
    type Err = UnreadError;

    fn from_str(text: &str) -> Result<Self, UnreadError> {
        let named = Self::ALL.into_iter().find(|unread| unread.name() == text);
        named.ok_or_else(|| UnreadError(text.to_owned()))
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Some of what is not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreadSet(u8);

impl UnreadSet {
    /// What is not read by default without being blocked: hardly a service takes no pictures.
    pub const OPAQUE: Self = Self(1 << Unread::Binary as u8);
    /// All of it.
    pub const ALL: Self = Self((1 << Unread::ALL.len()) - 1);

    /// Adds one.
    pub fn add(&mut self, unread: Unread) {
        self.0 |= 1 << unread as u8;
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not among others.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn has(self, unread: Unread) -> bool {
        self.0 >> unread as u8 & 1 != 0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Unread> {
        Unread::ALL
            .into_iter()
            .filter(move |unread| self.has(*unread))
    }
}

impl FromIterator<Unread> for UnreadSet {
    fn from_iter<I: IntoIterator<Item = Unread>>(some: I) -> Self {
        let mut set = Self::default();
        some.into_iter().for_each(|unread| set.add(unread));
        set
    }
}
