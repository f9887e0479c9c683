//! The arguments of publishing and subscribing: `hail pub`, `hail sub`, `hail topics`, `hail state`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};
use hailwire_wire::{
    AgentName,
    limits::MAX_REPLAY_LAST,
    topics::{Topic, TopicPattern},
};

use super::{HeaderField, duration};

/// Publish a message under a topic: whoever is subscribed now gets it, here and at trusted peers
#[derive(Debug, Args)]
pub(crate) struct PubArgs {
    /// Tokens with dots between, for example build.web.done
    #[arg(value_name = "TOPIC")]
    pub(crate) topic: Topic,
    /// The body, at most 1 MiB: text, @FILE for a file's content, or - for stdin; @@TEXT for a text that begins
    /// with @ [default: what is piped in, else empty]
    #[arg(value_name = "BODY")]
    pub(crate) body: Option<OsString>,
    /// Publish each line of stdin as a message of its own, as soon as it is there
    #[arg(long, conflicts_with = "body")]
    pub(crate) lines: bool,
    /// Media type of the body
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) content_type: Option<String>,
    /// Header field for subscribers; repeatable
    #[arg(short = 'H', long = "header", value_name = "K=V")]
    pub(crate) headers: Vec<HeaderField>,
    /// The agent that publishes it, as subscribers are told
    #[arg(long, value_name = "AGENT")]
    pub(crate) from: Option<AgentName>,
}

/// Subscribe to topics and print what is published, until Ctrl-C
///
/// With --since, --last, --from or --as it prints what nodes keep of these topics, from there on, and what follows: see `hail topics keep`.
#[derive(Debug, Args)]
pub(crate) struct SubArgs {
    /// Topics; in one, * stands for one token, and > at its end for one or more: 'build.*.done', 'build.>'
    #[arg(value_name = "PATTERN", required = true)]
    pub(crate) patterns: Vec<TopicPattern>,
    /// Stop after so many messages
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) most: Option<u64>,
    /// Print the topic and a tab ahead of each body
    #[arg(long)]
    pub(crate) topic: bool,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Read under this name, and go on after what was printed whenever a program reads under it again: each kept message is printed at least once
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<AgentName>,
}

/// Where a replay of kept messages starts.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct StartArgs {
    /// Begin with what was published no longer ago, for example 10m
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Begin with the last so many messages of each node, at most 100000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=MAX_REPLAY_LAST))]
    pub(crate) last: Option<u64>,
    /// Begin with the message of this number in the log of each node; 1 for all that is kept
    #[arg(long, value_name = "NUMBER")]
    pub(crate) from: Option<u64>,
}

/// List who is subscribed to what and what is kept, or keep topics on disk
#[derive(Debug, Args)]
pub(crate) struct TopicsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TopicsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopicsCommand {
    /// List patterns that programs here and peers are subscribed to, what is kept here, and named subscribers
    Ls,
    /// Keep what is published here under a pattern, on disk, for replay; again with other bounds to change them
    ///
    /// `hail pub` then ends once the message is on disk. The oldest messages go when a bound is reached.
    Keep {
        /// Topics, with wildcards as for `hail sub`; those of two kept patterns may not overlap
        #[arg(value_name = "PATTERN")]
        pattern: TopicPattern,
        /// Most bytes: a number, or one with KiB, MiB or GiB
        #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1GiB")]
        max_bytes: u64,
        /// Longest time [default: 7d, none with --last-per-topic]
        #[arg(long, value_name = "D", value_parser = duration)]
        max_age: Option<Duration>,
        /// Most messages [default: as many as fit]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        max_messages: Option<u64>,
        /// Keep only the last message of each topic; what would exceed a bound is then refused
        #[arg(long)]
        last_per_topic: bool,
    },
    /// Keep a pattern no more, and remove what is kept of it
    Unkeep {
        /// The pattern, as it is listed
        #[arg(value_name = "PATTERN")]
        pattern: TopicPattern,
    },
    /// Forget a named subscriber and how far it has come
    Forget {
        /// Its name, as it is listed
        #[arg(value_name = "NAME")]
        name: AgentName,
    },
}

/// Put, get and watch values that many share: the last one for each key, kept on disk
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    #[command(subcommand)]
    pub(crate) command: StateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Put a value under a key at this node, and print its revision
    Put {
        /// Tokens with dots between, for example build.web; it is the topic state.KEY
        #[arg(value_name = "KEY", value_parser = state_key)]
        key: Topic,
        /// The value, at most 1 MiB: text, @FILE for a file's content, or - for stdin; @@TEXT for a text that
        /// begins with @
        #[arg(value_name = "VALUE")]
        value: OsString,
        /// Only if the revision at this node is still this one; 0 for no value
        #[arg(long, value_name = "REVISION")]
        if_revision: Option<u64>,
        /// Media type of the value
        #[arg(long = "type", value_name = "TYPE")]
        content_type: Option<String>,
        /// The agent that puts it, as readers are told
        #[arg(long, value_name = "AGENT")]
        from: Option<AgentName>,
    },
    /// Print the value of a key: of those at this node and at trusted peers the one that was put last
    Get {
        /// The key
        #[arg(value_name = "KEY", value_parser = state_key)]
        key: Topic,
        #[command(flatten)]
        wait: PeerWaitArgs,
    },
    /// Print the values that stand, then each change, until Ctrl-C
    Watch {
        /// Keys, with wildcards as for `hail sub`
        #[arg(value_name = "PATTERN", value_parser = state_pattern, default_value = ">")]
        pattern: TopicPattern,
        /// Stop after so many values
        #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        most: Option<u64>,
    },
    /// Delete the value of a key
    Rm {
        /// The key
        #[arg(value_name = "KEY", value_parser = state_key)]
        key: Topic,
        /// Only if the revision at this node is still this one
        #[arg(long, value_name = "REVISION")]
        if_revision: Option<u64>,
    },
    /// List keys with their values
    Ls {
        /// Keys, with wildcards as for `hail sub`
        #[arg(value_name = "PATTERN", value_parser = state_pattern, default_value = ">")]
        pattern: TopicPattern,
        #[command(flatten)]
        wait: PeerWaitArgs,
    },
}

/// How long peers may take.
#[derive(Debug, Args)]
pub(crate) struct PeerWaitArgs {
    /// How long peers may take to answer, at most 60s
    #[arg(long, value_name = "D", value_parser = duration, default_value = "3s")]
    pub(crate) wait: Duration,
}

/// The topic of a key of state.
fn state_key(text: &str) -> Result<Topic, String> {
    format!("state.{text}")
        .parse()
        .map_err(|error| format!("{error}"))
}

fn state_pattern(text: &str) -> Result<TopicPattern, String> {
    format!("state.{text}")
        .parse()
        .map_err(|error| format!("{error}"))
}

/// Bytes, with or without a unit.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("B", 1),
    ];
    let unit = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let number = number.trim_end().parse::<u64>().ok();
    let size = number.and_then(|number| number.checked_mul(bytes));
    size.filter(|size| *size > 0).ok_or_else(|| {
        "expected a number of bytes, or one with its unit, for example 512KiB or 1GiB".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_bytes_with_or_without_a_unit() {
        for (text, bytes) in [
            ("1", 1),
            ("7B", 7),
            ("512KiB", 512 << 10),
            ("3 GiB", 3 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "GiB", "1.5MiB", "-1", "99999999999GiB", "1kb"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(state_key("a.b").unwrap().as_str(), "state.a.b");
        assert!(state_key("a.*").is_err() && state_key("").is_err());
        assert_eq!(state_pattern("*").unwrap().as_str(), "state.*");
    }
}
