//! What Hailwire puts on the wire, and nothing else.
//!
//! This crate holds the vocabulary that every other part shares: addresses, call headers, status
//! codes, frames, the multiplexer, signed records and tickets. It performs no I/O, reads no clock
//! and knows no async runtime; a test reads the dependency tree to prove it. Whoever implements
//! Hailwire in another language reproduces this crate; `spec/` is its prose and
//! `spec/vectors/` its proof.
//!
//! # The rooms
//!
//! | module | holds |
//! |---|---|
//! | [`address`] | node keys, node names, agent names, `agent@node` |
//! | [`status`] | the outcome of a call: a gRPC code, a message, details |
//! | [`header`] | what travels ahead of a body: call, answer and greeting headers |
//! | [`frame`] | the frames of a session stream and their incremental decoder |
//! | [`mux`] | many streams over one ordered byte stream |
//! | [`limits`] | every bound, in one place |

pub mod address;
pub mod frame;
pub mod header;
pub mod limits;
pub mod mux;
pub mod status;

pub use address::{Address, AgentName, NodeId, NodeName};
pub use header::{CallHeader, Priority};
pub use status::{Code, Status};
