//! Measurements that anyone can rerun.
//!
//! A [`suite`] is a list of contests: one row of a table each, the same work for several subjects. A
//! [`run`] starts each party as a process of its own ([`subject`]), in hosts of the lab where a network is
//! asked for, lets the parties that load do the same [`work`] in turn, A B C A B C, checks every answer for
//! its content, and writes one JSON line per repeat ([`result`], [`folder`]). Ratios between subjects of
//! one run are what is published; absolute numbers carry the machine's name and date.
//!
//! | module | what it does |
//! |---|---|
//! | [`suite`] | smoke, coordination, overlay, callout: what is measured, as data |
//! | [`run`] | networks, processes, interleaved repeats, progress |
//! | [`subject`] | programs that serve and load: ours, and anybody's through the same lines |
//! | [`work`] | what a subject is asked, and what it answers |
//! | [`measure`] | open loop, histograms, spreads, memory and processor time of processes |
//! | [`folder`], [`result`] | what a run leaves behind |
//! | [`siege`] | a node and a hub under attack, with honest callers who must not notice |
//! | [`report`] | pages drawn from it, and two runs side by side |
//! | [`tables`], [`aims`] | names of rows, and what we set out to reach |

pub mod aims;
pub mod folder;
pub mod measure;
pub mod report;
pub mod result;
pub mod run;
pub mod siege;
pub mod subject;
pub mod suite;
pub mod tables;
pub mod work;

use thiserror::Error;

/// Why a measurement did not come about.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A process could not be started or spoken to, or a file not be written.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A party of the measurement failed.
    #[error("{part} failed: {reason}")]
    Part {
        /// Which.
        part: String,
        /// What it said.
        reason: String,
    },
    /// An answer was not what it had to be.
    #[error("a wrong answer: {0}")]
    Wrong(String),
    /// A party said itself why it cannot.
    #[error("{0}")]
    Told(String),
    /// The subject or the machine has no such thing.
    #[error("{0}")]
    Unsupported(&'static str),
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// With its cause, on one line.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Io { what, source } => format!("{what}: {source}"),
            other => other.to_string(),
        }
    }
}
