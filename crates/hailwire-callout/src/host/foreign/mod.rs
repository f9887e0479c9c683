//! Wires that others speak and we do not: each file is one of them, as the side that asks.
//!
//! | file | whose it is |
//! |---|---|
//! | `documented` | the wire that the documentation of Agent Protocol v2 describes; the `v2` package of the Go kit speaks it |
//! | `v1` | the framing before version 2; the kits for Python and TypeScript and the root package of the Go kit speak it |
//! | `answer` | decodes the answers of both, which the kits write alike |
//! | `heads` | refuses what these kits would allow unseen; both ask it |
//!
//! Our own wire, which the published crate of the protocol speaks too, is `host/stream.rs`; [`super::dialect`] finds out which of
//! the three an agent speaks. An agent of these gets no extension of ours: one event of a request at a time, no window.

mod answer;
pub(crate) mod documented;
mod heads;
pub(super) mod v1;
