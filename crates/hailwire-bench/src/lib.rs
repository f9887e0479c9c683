//! Measurements that anyone can rerun.
//!
//! A suite starts each party of a measurement as a process of its own ([`part`]), lets the parties
//! that load do the same work in turn, A B C A B C, checks every answer for its content, and writes
//! one JSON line per repeat beside a summary ([`report`]). Ratios between subjects of one run are
//! what is published; absolute numbers carry the machine's name and date.
//!
//! [`smoke`] is the suite that runs anywhere in under a minute, without root: raw iroh, an embedded
//! node, and agent process to agent process through two nodes, side by side on loopback.

pub mod aims;
pub mod load;
pub mod measure;
pub mod part;
pub mod report;
pub mod result;
pub mod smoke;
pub mod tables;

use std::time::Duration;

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
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// User and system time that this process has used, from `/proc/self/stat`.
pub(crate) fn cpu_time() -> Duration {
    // Fields 14 and 15, counted after the command in parentheses; in ticks of 10 ms on Linux.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
