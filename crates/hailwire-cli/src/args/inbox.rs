//! The arguments of durable messages: `hail inbox`, and what `hail call` and `hail send` take for them.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hailwire_wire::{
    Address, AgentName, limits,
    messages::{MessageId, MessageState},
};

use super::duration;
use crate::known_names;

/// Keeping a call or a send on disk.
#[derive(Debug, Args)]
pub(crate) struct DurableArgs {
    /// Keep it on disk until the agent has done it, and print its id: the agent, its node and this one may sleep or be restarted meanwhile
    #[arg(long)]
    pub(crate) durable: bool,
    /// How long it is worth anything
    #[arg(long, value_name = "D", value_parser = duration, default_value = "7d", requires = "durable")]
    pub(crate) expires: Duration,
    /// Need not come after what was sent to the same agent before, so that several are worked on at once
    #[arg(long, requires = "durable")]
    pub(crate) any_order: bool,
    /// For how long this node keeps it after its end, 30 days at most
    #[arg(long, value_name = "D", value_parser = duration, default_value = "7d", requires = "durable")]
    pub(crate) keep: Duration,
    /// How often it is handed to the agent at most [default: as the agent's node says, 5 times]
    #[arg(long, value_name = "N", value_parser = attempts(), requires = "durable")]
    pub(crate) attempts: Option<u32>,
    /// Wait for its end, which may take days; an answer goes to stdout
    #[arg(long, requires = "durable")]
    pub(crate) wait: bool,
}

/// Show and handle durable messages: those that came, and those that were sent from here
#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    #[command(subcommand)]
    pub(crate) command: InboxCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InboxCommand {
    /// List messages that came, in their order
    Ls {
        /// Of this agent alone
        #[arg(value_name = "AGENT")]
        agent: Option<AgentName>,
        /// In this state alone: delivered, taken, acknowledged, answered, dead, expired, unknown, dropped or cancelled; repeatable [default: all that have no end yet]
        #[arg(long, value_name = "STATE", value_parser = state)]
        state: Vec<MessageState>,
        /// In any state
        #[arg(long, conflicts_with = "state")]
        all: bool,
    },
    /// List messages that were sent from here, newest first, with what became of them
    Sent {
        /// To this address alone, as it was written when they were sent
        #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
        to: Option<Address>,
        /// In this state alone; repeatable [default: all]
        #[arg(long, value_name = "STATE", value_parser = state)]
        state: Vec<MessageState>,
    },
    /// List messages that were given up, with the reason
    Dead {
        /// Of this agent alone
        #[arg(value_name = "AGENT")]
        agent: Option<AgentName>,
    },
    /// Show one message: its state, its times, what it says and what was answered
    Show {
        /// Its id, as `hail send --durable` prints it
        #[arg(value_name = "ID")]
        id: MessageId,
    },
    /// Wait for the end of a message that was sent from here; an answer goes to stdout
    Wait {
        /// Its id
        #[arg(value_name = "ID")]
        id: MessageId,
        /// Wait until it is at least so far, for example delivered [default: its end]
        #[arg(long, value_name = "STATE", value_parser = state)]
        until: Option<MessageState>,
    },
    /// Have a message that was given up tried again
    Retry {
        /// Its id
        #[arg(value_name = "ID")]
        id: MessageId,
    },
    /// Remove a message that waits or was given up here, or that was sent from here and has not left
    Drop {
        /// Its id
        #[arg(value_name = "ID")]
        id: MessageId,
    },
    /// Take messages of an agent by hand, in place of a program that serves it
    Take {
        /// The agent
        #[arg(value_name = "AGENT")]
        agent: AgentName,
        /// At most so many
        #[arg(short = 'n', long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
        most: u32,
        /// For so long; after that they are handed over again
        #[arg(long, value_name = "D", value_parser = duration, default_value = "1m")]
        lease: Duration,
    },
    /// Say that a message that was taken by hand is done, or failed
    Ack {
        /// Its id
        #[arg(value_name = "ID")]
        id: MessageId,
        /// The answer, for a message that wants one: text
        #[arg(value_name = "ANSWER", conflicts_with = "failed")]
        answer: Option<OsString>,
        /// It failed, for this reason, and is given up
        #[arg(long, value_name = "REASON")]
        failed: Option<String>,
        /// With --failed: hand it over again
        #[arg(long, requires = "failed")]
        retry: bool,
    },
}

/// How often a message may be tried.
pub(super) fn attempts() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(limits::MAX_MESSAGE_ATTEMPTS))
}

fn state(text: &str) -> Result<MessageState, String> {
    MessageState::from_name(text).ok_or_else(|| {
        format!(
            "expected one of {}",
            MessageState::ALL.map(MessageState::name).join(", ")
        )
    })
}
