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
//! | [`offers`] | lists of agents that take more than one frame |
//! | [`frame`] | the frames of a session stream and their incremental decoder |
//! | [`messages`] | durable messages between nodes, and their receipts |
//! | [`topics`] | what is published, patterns of topics, and the records of messages |
//! | [`mux`] | many streams over one ordered byte stream |
//! | [`capsule`] | what the control stream of an HTTP/2 connection carries |
//! | [`signed`] | envelopes: key, signature and the bytes that were signed |
//! | [`record`] | where a node is and what it offers, signed and expiring |
//! | [`ticket`] | secrets that let a node join, and the inviter's book of them |
//! | [`latest_time`] | the latest time seen, by which tickets expire |
//! | [`hub_url`] | where a hub is, in canonical form |
//! | [`directory`] | requests to a hub, their answers and their permission |
//! | [`lease`] | which of several programs leads: requests to a hub and their answers |
//! | [`stun`] | how a hub tells what a NAT does |
//! | [`priority_shares`] | which priority is served next where several wait |
//! | [`shown`] | foreign text, made fit to be shown |
//! | [`limits`] | every bound, in one place |

pub mod address;
pub mod capsule;
pub mod directory;
pub mod frame;
pub mod header;
pub mod held;
pub mod hub_url;
pub mod latest_time;
pub mod lease;
pub mod limits;
mod map_only;
pub mod messages;
pub mod mux;
pub mod offers;
pub mod priority_shares;
pub mod record;
pub mod shown;
pub mod signed;
pub mod status;
pub mod stun;
pub mod ticket;
pub mod topics;

pub use address::{Address, AgentName, NodeId, NodeName};
pub use header::{CallHeader, Priority};
pub use hub_url::HubUrl;
pub use status::{Code, Status};
