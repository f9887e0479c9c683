//! Measurements that anyone can rerun.
//!
//! A [`suite`] is a list of contests: one row of a table each, the same work for several subjects. A
//! [`run`] starts each program that takes part as a process of its own ([`subject`]), in hosts of the lab where a network is
//! asked for, has the loading programs do the same [`work`] in turn, A B C A B C, checks the content of
//! every answer, and writes one JSON line per repeat ([`result`], [`run_folder`]). Ratios between subjects of
//! one run are what is published; absolute numbers carry the machine's name and date.
//!
//! | module | what it does |
//! |---|---|
//! | [`suite`] | smoke, coordination, overlay, callout: what is measured, as data |
//! | [`run`] | networks, processes, interleaved repeats, progress |
//! | [`subject`] | programs that serve and load: ours, and anybody's through the same lines |
//! | [`work`] | the requests to a subject, and its answers |
//! | [`measure`] | open loop, histograms, spreads, memory and processor time of processes |
//! | [`run_folder`], [`result`] | the files that a run of a suite writes |
//! | [`recorded_run`] | the files that other runs write |
//! | [`reach`] | who reaches whom: every pair of the networks that people have |
//! | [`changes`] | what a change of the network costs a stream and the calls after it |
//! | [`messages`] | durable messages: how many a second, and whether any is lost while nodes are killed |
//! | [`topologies`] | agents that work together, a dispatch, and priorities on a full line |
//! | [`soak`] | half an hour on the move: no call lost, memory flat |
//! | [`siege`] | a node and a hub under attack, with honest callers who must not notice |
//! | [`agent_load`] | load on an agent of one's own |
//! | [`report`] | pages drawn from it, and two runs side by side |
//! | [`tables`], [`targets`] | names of rows, and the performance targets |

pub mod agent_load;
pub mod changes;
#[cfg(test)]
mod kept_page;
mod lab_nodes;
pub mod measure;
pub mod messages;
pub mod reach;
pub mod recorded_run;
pub mod report;
pub mod result;
pub mod run;
pub mod run_folder;
pub mod siege;
pub mod soak;
pub mod subject;
pub mod suite;
pub mod tables;
pub mod targets;
mod tied_process;
pub mod topologies;
pub mod work;

use thiserror::Error;

/// Why a measurement failed.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A process could not be started or communicated with, or a file could not be written.
    #[error("{what}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A process of the measurement failed.
    #[error("{what} failed: {reason}")]
    Failed {
        /// Its name, or the step that failed.
        what: String,
        /// The reason that it reported.
        reason: String,
    },
    /// An answer was not valid.
    #[error("invalid answer: {0}")]
    Invalid(String),
    /// A process reported why it failed.
    #[error("{0}")]
    Reported(String),
    /// The subject or the machine does not support this.
    #[error("{0}")]
    Unsupported(&'static str),
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// A step that failed, by what its error says.
    pub(crate) fn failed<E: std::fmt::Display>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |error| Self::Failed {
            what,
            reason: error.to_string(),
        }
    }

    /// As another error says it.
    pub(crate) fn reported(error: impl std::fmt::Display) -> Self {
        Self::Reported(error.to_string())
    }

    /// With its cause, on one line.
    #[must_use]
    pub fn with_cause(&self) -> String {
        match self {
            Self::Io { what, source } => format!("{what}: {source}"),
            other => other.to_string(),
        }
    }
}
