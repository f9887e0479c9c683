//! Ready patterns of coordination: many calls together, and one program of many that leads.
//!
//! Each is made of calls and nothing else, so what holds of a call holds here: deadlines, priorities, cancels that arrive. None starts a
//! task: what is dropped is cancelled, and what is not polled does not go on.
//!
//! | pattern | here |
//! |---|---|
//! | fan-out and gather | [`gather`], then [`Gather::all`] or [`Gather::next`] |
//! | broadcast with quorum | [`gather`], then [`Gather::quorum`] |
//! | map with back-pressure | [`map`] |
//! | pipeline | [`pipeline`] of [`Stage`]s |
//! | leader by lease | [`lead`], then [`Lead::run`] |
//!
//! Topologies are compositions of them. A **star** is a [`gather`]; a **hierarchy** a [`gather`] of agents that gather in their turn; a
//! **ring** a [`pipeline`] whose last stage is the first one's neighbour; a **mesh** agents that each [`gather`] all others.

mod gather;
mod lead;
mod map;
mod pipeline;

pub use gather::{Agreed, Gather, QuorumMissed, gather};
pub use lead::{Lead, LeadError, Tenure, lead};
pub use map::{MapLimits, Replies, Reply, map};
pub use pipeline::{Piped, PipelineItem, Stage, StageFailure, pipeline};

/// Largest answer to one call that is taken, unless it is said otherwise: 16 MiB.
pub const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Most calls of one pattern in flight.
pub const MAX_IN_FLIGHT: usize = 1024;
