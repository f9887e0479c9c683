//! The arguments of `hail task`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hailwire_core::task_state::TaskState;
use hailwire_wire::{Address, messages::MessageId};

use super::{agent::CallHeaderArgs, duration, inbox::attempts};
use crate::known_names;

/// Submit work that may take its time, follow it, and withdraw it
///
/// A task is a durable call: kept on disk from before its id is printed, through restarts of every node on its way, until its end is known. Of one
/// that was submitted from here, `hail inbox` knows the same.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    #[command(subcommand)]
    pub(crate) command: TaskCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Have an agent do something, and print the id of the task once it is on disk
    Submit(Box<TaskSubmitArgs>),
    /// Show where a task is: its times, attempts, progress, and what is known of its result
    Status {
        /// Its id, as `hail task submit` prints it
        #[arg(value_name = "ID")]
        id: MessageId,
    },
    /// Wait for the end of a task; its result goes to stdout as far as it is known, its progress to stderr
    Wait {
        /// Its id
        #[arg(value_name = "ID")]
        id: MessageId,
    },
    /// Withdraw a task: the call of the agent that has it in hand is cancelled
    Cancel {
        /// Its id
        #[arg(value_name = "ID")]
        id: MessageId,
    },
    /// List the tasks that were submitted from here, newest first
    List {
        /// In this state alone: submitted, working, completed, failed, cancelled or rejected; repeatable [default: all]
        #[arg(long, value_name = "STATE", value_parser = state)]
        state: Vec<TaskState>,
    },
    /// Say how far this program is with the task that it was handed, for one that `hail serve` starts
    Progress {
        /// How much is done
        #[arg(long, value_name = "N", default_value = "0")]
        done: u64,
        /// How much there is to do; 0 where that is not known
        #[arg(long, value_name = "N", default_value = "0")]
        total: u64,
        /// What it is at; 256 bytes of it are kept
        #[arg(long, value_name = "TEXT", default_value = "")]
        text: String,
        /// Which task [default: HAIL_HEADER_HAIL_MESSAGE_ID]
        #[arg(long, value_name = "ID")]
        id: Option<MessageId>,
    },
}

/// What a task is.
#[derive(Debug, Args)]
pub(crate) struct TaskSubmitArgs {
    /// AGENT (on this node first, then on trusted peers) or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]", add = ArgValueCompleter::new(known_names::agents))]
    pub(crate) to: Address,
    /// The input, at most 16 MiB: text, @FILE for a file's content, or - for stdin; @@TEXT for a text that begins with @
    /// [default: what is piped in, else empty]
    #[arg(value_name = "INPUT")]
    pub(crate) input: Option<OsString>,
    /// How long it is worth anything: the deadline of the agent, and of what it calls in turn
    #[arg(long, visible_alias = "deadline", value_name = "D", value_parser = duration, default_value = "7d")]
    pub(crate) expires: Duration,
    /// For how long it is kept after its end, 30 days at most
    #[arg(long, value_name = "D", value_parser = duration, default_value = "7d")]
    pub(crate) keep: Duration,
    /// How often it is handed to the agent at most [default: as the agent's node says, 5 times]
    #[arg(long, value_name = "N", value_parser = attempts())]
    pub(crate) attempts: Option<u32>,
    /// Need not come after what was sent to the same agent before, so that several are worked on at once
    #[arg(long)]
    pub(crate) any_order: bool,
    /// Wait for its end, as `hail task wait` does
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) envelope: CallHeaderArgs,
}

fn state(text: &str) -> Result<TaskState, String> {
    TaskState::from_name(text).ok_or_else(|| {
        format!(
            "expected one of {}",
            TaskState::ALL.map(TaskState::name).join(", ")
        )
    })
}
