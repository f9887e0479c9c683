//! Topics: what messages are published under, patterns of them, and the records that carry messages (`spec/topics.md`).
//!
//! A topic is 1 to 16 tokens with dots between, 256 bytes at most: `build.web.done`. A token is 1 to 64 of `a-z 0-9 _ -`, beginning and
//! ending with a letter or digit, as the name of an agent without dots. In a pattern the token `*` stands for any one token, and `>`, which is
//! the last, for one or more: `build.*.done`, `build.>`.
//!
//! A record is its length in 4 bytes, big endian, and a MessagePack map of so many bytes; records follow each other in a body.

use std::{fmt, str::FromStr};

use bytes::{Buf as _, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    AgentName, NodeId,
    header::{self, HeaderError, is_false, is_zero_u64},
    limits::{MAX_NAME, MAX_TOPIC, MAX_TOPIC_BODY, MAX_TOPIC_RECORD, MAX_TOPIC_TOKENS},
};

/// Bytes ahead of a record that say how long it is.
const LENGTH: usize = 4;

/// What a message is published under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Box<str>);

impl Topic {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its tokens in order, at least one.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// Its first token, by which it is granted: as an agent of this name.
    ///
    /// # Panics
    ///
    /// Never: a token is the name of an agent.
    #[must_use]
    pub fn first(&self) -> AgentName {
        first(&self.0)
    }
}

/// Which topics a subscriber wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPattern(Box<str>);

impl TopicPattern {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its tokens in order, at least one.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// Its first token, by which it is granted as an agent of this name; none where that is a wildcard.
    ///
    /// # Panics
    ///
    /// Never: a token that is no wildcard is the name of an agent.
    #[must_use]
    pub fn first(&self) -> Option<AgentName> {
        let is_any = self.0.starts_with(['*', '>']);
        (!is_any).then(|| first(&self.0))
    }

    /// Whether it matches a topic.
    #[must_use]
    pub fn matches(&self, topic: &Topic) -> bool {
        let mut tokens = topic.tokens();
        for wanted in self.tokens() {
            match (wanted, tokens.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (wanted, Some(token)) if wanted == token => {}
                _ => return false,
            }
        }
        tokens.next().is_none()
    }

    /// Whether there is a topic that both match.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (mut these, mut those) = (self.tokens(), other.tokens());
        loop {
            match (these.next(), those.next()) {
                (None, None) => return true,
                (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
                (Some(one), Some(two)) if one == "*" || two == "*" || one == two => {}
                _ => return false,
            }
        }
    }
}

fn first(text: &str) -> AgentName {
    let token = text.split('.').next().unwrap_or_default();
    #[expect(
        clippy::expect_used,
        reason = "a token is checked by the grammar of names"
    )]
    token.parse().expect("the name of an agent")
}

/// Why a text is neither topic nor pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// It is too long.
    #[error("a topic has at most {MAX_TOPIC} bytes and {MAX_TOPIC_TOKENS} tokens")]
    TooLong,
    /// A token is none.
    #[error(
        "`{0}` is not a token of a topic: 1 to 64 of a-z 0-9 _ -, beginning and ending with a letter or digit"
    )]
    Token(String),
    /// A wildcard where none may be.
    #[error("a message is published under one topic, without wildcards")]
    Wildcard,
    /// `>` before the end.
    #[error("`>` stands for all tokens that follow, so it is the last one of a pattern")]
    NotLast,
}

impl FromStr for Topic {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        check_length(text)?;
        for token in text.split('.') {
            if matches!(token, "*" | ">") {
                return Err(TopicError::Wildcard);
            }
            check_token(token)?;
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for TopicPattern {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        check_length(text)?;
        let mut tokens = text.split('.');
        while let Some(token) = tokens.next() {
            match token {
                "*" => {}
                ">" if tokens.next().is_some() => return Err(TopicError::NotLast),
                ">" => {}
                token => check_token(token)?,
            }
        }
        Ok(Self(text.into()))
    }
}

fn check_length(text: &str) -> Result<(), TopicError> {
    match text.len() <= MAX_TOPIC && text.split('.').count() <= MAX_TOPIC_TOKENS {
        true => Ok(()),
        false => Err(TopicError::TooLong),
    }
}

fn check_token(token: &str) -> Result<(), TopicError> {
    // A token has no dot, so it is the name of an agent exactly where it is a token.
    match token.parse::<AgentName>() {
        Ok(_) => Ok(()),
        Err(_) => {
            let fit = token.chars().filter(|c| !c.is_control());
            Err(TopicError::Token(fit.take(MAX_NAME).collect()))
        }
    }
}

macro_rules! texts {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

texts!(Topic, TopicPattern);

/// One record of a stream of messages: a message where it has a topic, else news of the stream itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicRecord {
    /// What it is published under; a text that is no [`Topic`] is refused where it is read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topic: String,
    /// The node that it was published at, where that is not the one that says this: only a node says it to programs of its machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The agent that published it, as it calls itself; empty for a program without name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// The media type of the body; empty, meaning bytes, by default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// Fields of the application's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The message, at most [`MAX_TOPIC_BODY`] bytes.
    #[serde(with = "serde_bytes", skip_serializing_if = "Vec::is_empty")]
    pub body: Vec<u8>,
    /// Counted by the node that it was published at, from 1 at its start, over all that is published there.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub sequence: u64,
    /// When it was published, by that node's clock: milliseconds since 1970.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub at_ms: u64,
    /// To a program: so many messages that it wanted were lost before this, because it read too slowly or its node did.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub missed: u64,
    /// To a node: how many messages it missed of each of its patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missed_of: Vec<(String, u64)>,
    /// To a node: patterns that it may not subscribe to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// The number of a message in the log of the node that keeps it, from 1; 0 where it is not kept.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub kept: u64,
    /// The value under this topic is deleted: of topics that keep their last message alone.
    #[serde(skip_serializing_if = "is_false")]
    pub deleted: bool,
    /// From a program: publish only if the newest message that is kept under this topic has this number; 0 for none, or a deleted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_kept: Option<u64>,
    /// News: the log that the messages which follow are kept in. A node whose files are lost begins another.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub log: u64,
    /// News: all has come that was kept when it was asked for.
    #[serde(skip_serializing_if = "is_false")]
    pub reached: bool,
    /// News for a program: why what `node` keeps does not come now.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub away: String,
    /// News for a program: every node has said `reached` or `away`, or has had its time.
    #[serde(skip_serializing_if = "is_false")]
    pub settled: bool,
}

/// What a node asks for of the messages that a peer keeps. Where several starts are said, the first of `log`, `from`, `last` and `since_ms` counts;
/// where none is, it starts with what is kept from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicReplay {
    /// At least one, at most [`MAX_REPLAY_PATTERNS`](crate::limits::MAX_REPLAY_PATTERNS).
    pub patterns: Vec<String>,
    /// Messages after number `after` of this log; from the first that is kept where the node has another log.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub log: u64,
    /// See `log`.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub after: u64,
    /// Messages from this number on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The newest so many messages, at most [`MAX_REPLAY_LAST`](crate::limits::MAX_REPLAY_LAST), and what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// What was published no longer ago, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
}

impl TopicRecord {
    /// Checks the bounds of a message, and gives its topic.
    ///
    /// # Errors
    ///
    /// Which bound it exceeds, or why its topic is none.
    pub fn check(&self) -> Result<Topic, String> {
        let topic: Topic = self
            .topic
            .parse()
            .map_err(|error: TopicError| error.to_string())?;
        if self.body.len() > MAX_TOPIC_BODY {
            return Err(format!(
                "a message under a topic has at most {MAX_TOPIC_BODY} bytes"
            ));
        }
        Ok(topic)
    }
}

/// All patterns that a node, or a program, wants from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicInterest {
    /// At most [`MAX_TOPIC_PATTERNS`](crate::limits::MAX_TOPIC_PATTERNS).
    pub patterns: Vec<String>,
}

/// Appends a record to a body.
///
/// # Panics
///
/// Never: a record of this crate's types is shorter than 4 GiB.
pub fn put_record<T: Serialize>(out: &mut BytesMut, record: &T) {
    let encoded = header::encode(record);
    #[expect(clippy::expect_used, reason = "nothing holds 4 GiB of one record")]
    let length = u32::try_from(encoded.len()).expect("a record of less than 4 GiB");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&encoded);
}

/// Takes records out of a body that comes in chunks. Holds one record at most, and what came with it.
#[derive(Debug, Default)]
pub struct RecordReader {
    unread: BytesMut,
}

impl RecordReader {
    /// Takes what came.
    pub fn handle_chunk(&mut self, chunk: &[u8]) {
        self.unread.extend_from_slice(chunk);
    }

    /// The next record that is whole.
    ///
    /// # Errors
    ///
    /// [`HeaderError`]: it is longer than [`MAX_TOPIC_RECORD`], which is told as soon as its length is there, or no such record. What
    /// follows cannot be read.
    pub fn poll_record<T: DeserializeOwned>(&mut self) -> Result<Option<T>, HeaderError> {
        let Some(length) = self.unread.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_TOPIC_RECORD {
            return Err(HeaderError::Bound("length of a record"));
        }
        if self.unread.len() < LENGTH + length {
            return Ok(None);
        }
        self.unread.advance(LENGTH);
        let record = self.unread.split_to(length);
        header::decode(&record).map(Some)
    }

    /// Whether a record has begun that is not whole.
    #[must_use]
    pub fn is_amid_record(&self) -> bool {
        !self.unread.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_patterns_keep_their_grammar() {
        let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(64), "b".repeat(61));
        assert_eq!(longest.len(), MAX_TOPIC);
        let deepest = ["a"; MAX_TOPIC_TOKENS].join(".");
        for good in ["a", "build.web.done", "a-b.c_d.9", &longest, &deepest] {
            assert!(good.parse::<Topic>().is_ok(), "{good}");
            assert!(good.parse::<TopicPattern>().is_ok(), "{good}");
        }
        for good in ["*", ">", "build.*", "*.done", "build.>", "*.*.>"] {
            assert_eq!(good.parse::<Topic>(), Err(TopicError::Wildcard), "{good}");
            assert!(good.parse::<TopicPattern>().is_ok(), "{good}");
        }
        assert_eq!(">.a".parse::<TopicPattern>(), Err(TopicError::NotLast));
        let long = format!("{longest}b");
        let deep = format!("{deepest}.a");
        for text in [&long, &deep] {
            assert_eq!(text.parse::<Topic>(), Err(TopicError::TooLong));
            assert_eq!(text.parse::<TopicPattern>(), Err(TopicError::TooLong));
        }
        let many = "x".repeat(65);
        for bad in [
            "", ".", "a.", ".a", "a..b", "A", "a b", "a.b*", "a.>b", "-a", "ä", "a\n", &many,
        ] {
            assert!(bad.parse::<Topic>().is_err(), "{bad}");
            assert!(bad.parse::<TopicPattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_matches_the_topics_that_it_says() {
        let table = [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "a.b", false),
            ("a.b", "a", false),
            ("*", "a", true),
            ("*", "a.b", false),
            (">", "a", true),
            (">", "a.b.c", true),
            ("a.>", "a", false),
            ("a.>", "a.b", true),
            ("a.>", "b.b", false),
            ("build.*.done", "build.web.done", true),
            ("build.*.done", "build.done", false),
            ("build.*.done", "build.web.api.done", false),
            ("*.*.>", "a.b", false),
            ("*.*.>", "a.b.c.d", true),
        ];
        for (pattern, topic, expected) in table {
            let pattern: TopicPattern = pattern.parse().unwrap();
            let topic: Topic = topic.parse().unwrap();
            assert_eq!(pattern.matches(&topic), expected, "{pattern} {topic}");
        }
    }

    #[test]
    fn patterns_overlap_exactly_where_a_topic_matches_both() {
        let all = |tokens: &[&str]| -> Vec<String> {
            let mut all: Vec<String> = tokens.iter().map(ToString::to_string).collect();
            for _ in 0..2 {
                let longer = all
                    .iter()
                    .flat_map(|text| tokens.iter().map(move |token| format!("{text}.{token}")));
                all.extend(longer.collect::<Vec<_>>());
            }
            all.sort_unstable();
            all.dedup();
            all
        };
        let topics: Vec<Topic> = all(&["a", "b"])
            .iter()
            .map(|t| t.parse().unwrap())
            .collect();
        let patterns: Vec<TopicPattern> = all(&["a", "b", "*", ">"])
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect();
        for one in &patterns {
            for two in &patterns {
                let both = topics.iter().any(|t| one.matches(t) && two.matches(t));
                // A topic of more tokens than these decides nothing that these do not, up to three tokens.
                let short = one.tokens().count().max(two.tokens().count()) <= 3;
                if short {
                    assert_eq!(one.overlaps(two), both, "{one} {two}");
                }
            }
        }
    }

    #[test]
    fn records_are_read_from_chunks_however_they_are_cut() {
        let records: Vec<TopicRecord> = (0..4)
            .map(|n| TopicRecord {
                topic: format!("a.b{n}"),
                node: (n == 2).then(|| NodeId::from_bytes([7; 32])),
                headers: vec![("k".to_owned(), "v".to_owned())],
                body: vec![b'x'; n * 100],
                sequence: n as u64,
                missed_of: vec![("a.>".to_owned(), 3)],
                ..TopicRecord::default()
            })
            .collect();
        let mut body = BytesMut::new();
        for record in &records {
            put_record(&mut body, record);
        }
        for size in [1, 3, 7, 100, body.len()] {
            let mut reader = RecordReader::default();
            let mut read = Vec::new();
            for chunk in body.chunks(size) {
                reader.handle_chunk(chunk);
                while let Some(record) = reader.poll_record::<TopicRecord>().unwrap() {
                    read.push(record);
                }
            }
            assert_eq!(read, records);
            assert!(!reader.is_amid_record());
        }
    }

    #[test]
    fn a_record_that_is_too_long_is_refused_before_it_is_there() {
        let mut reader = RecordReader::default();
        let length = u32::try_from(MAX_TOPIC_RECORD).unwrap();
        reader.handle_chunk(&length.to_be_bytes());
        assert_eq!(reader.poll_record::<TopicRecord>().unwrap(), None);
        assert!(reader.is_amid_record());
        let mut reader = RecordReader::default();
        reader.handle_chunk(&(length + 1).to_be_bytes());
        assert!(reader.poll_record::<TopicRecord>().is_err());
        let mut record = TopicRecord {
            topic: "a".to_owned(),
            body: vec![0; MAX_TOPIC_BODY],
            ..TopicRecord::default()
        };
        assert!(record.check().is_ok());
        record.body.push(0);
        assert!(record.check().is_err());
    }

    #[test]
    fn what_is_granted_is_the_first_token() {
        let first = |pattern: &str| pattern.parse::<TopicPattern>().unwrap().first();
        assert_eq!(first("build.*").unwrap().as_str(), "build");
        assert_eq!(first("*.done"), None);
        assert_eq!(first(">"), None);
        let topic: Topic = "build.web".parse().unwrap();
        assert_eq!(topic.first().as_str(), "build");
    }
}
