//! The arguments of publishing and subscribing: `hail pub`, `hail sub`, `hail topics`.

use std::ffi::OsString;

use clap::Args;
use hailwire_wire::{
    AgentName,
    topics::{Topic, TopicPattern},
};

use super::HeaderField;

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
}

/// List patterns that programs here and peers are subscribed to, with what came of messages
#[derive(Debug, Args)]
pub(crate) struct TopicsArgs {}
