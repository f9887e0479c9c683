//! Hailwire, the network for software agents.
//!
//! A [`Node`] gives every agent on a machine a name, a key-backed identity and one encrypted UDP
//! tunnel to each peer machine, through NATs. An agent calls another by name, wherever it runs, and
//! gets a streamed answer, a deadline that holds and a cancel that arrives.
//!
//! A program either embeds a node or attaches to the one that runs on its machine (`hail up`);
//! both give a [`Client`], on which everything else is done.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use hailwire::{Agent, Client, DataDir, Request, Response};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let data = DataDir::from_env().ok_or("no home")?;
//! let client = Client::attach(&data).await?;
//!
//! // Offer an agent.
//! let shout = |mut request: Request| async move {
//!     let text = request.body_mut().bytes(1 << 20).await?;
//!     Ok(Response::new(text.to_ascii_uppercase()))
//! };
//! let _serving = client.serve(Agent::new("shout")?, shout).await?;
//!
//! // Call one.
//! let mut answer =
//!     client.call("shout@laptop").body("hail").deadline(Duration::from_secs(5)).send().await?;
//! while let Some(chunk) = answer.chunk().await? {
//!     println!("{chunk:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The rooms
//!
//! | module | holds |
//! |---|---|
//! | [`client`] | calls, sends, streams, and serving agents |
//! | [`coordination`] | many calls together, and who leads |
//! | [`agent`] | agents, requests, responses, handlers |
//! | [`agent_schema`] | what an agent says of its methods |
//! | [`body`] | bodies as chunks, with back-pressure |
//! | [`admin`] | what can be asked of a node |
//! | [`node`] | the node itself |
//! | [`carrier`] | what moves a session's streams: QUIC, Unix socket, memory |
//! | [`config`], [`key`], [`paths`] | `hail.kdl`, the node's key, the data folder |
//! | [`hub`] | the directory's client |

pub mod admin;
mod admission;
pub mod agent;
pub mod agent_schema;
mod attempt_race;
pub mod body;
pub mod carrier;
pub mod client;
mod clock;
pub mod config;
pub mod coordination;
mod frame_reader;
pub mod hub;
pub mod key;
pub mod node;
mod outbound_tcp;
mod panics;
pub mod paths;
mod session;

pub use agent::{Agent, Caller, Handler, Request, RequestKind, Response};
pub use agent_schema::AgentSchema;
pub use body::{Body, BodySender};
pub use client::{
    AttachError, Call, Client, Publication, Publisher, RawStream, ReplayStart, ServeHandle,
    StateEvent, StateValue, StateWatch, StreamBuilder, StreamIo, Subscription, TopicEvent,
    TopicMessage,
};
pub use config::Config;
pub use hailwire_wire::{Address, AgentName, CallHeader, Code, NodeId, NodeName, Priority, Status};
pub use node::{Node, NodeBuilder, StartError};
pub use paths::DataDir;
pub use session::Answer;
