//! Agent Protocol v2: a proxy calls its inspection agents, near and far.
//!
//! A proxy (the *host*) shows an *agent* each request and response that passes, as *events*: headers,
//! chunks of a body, WebSocket frames. The agent *answers* each with a decision: let it pass, block it, send it
//! elsewhere, change its headers or its body. The wire is that of Zentinel's Agent Protocol, version 2, over a
//! Unix socket, gRPC, or a connection that the agent opens ("reverse"); `spec/callout.md` has its bytes.
//!
//! Nothing here needs a running node: a connection is any pair of byte streams.
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`event`] | events: what a host sends an agent |
//! | [`headers`] | the fields of a request or response |
//! | [`response`] | responses: what an agent answers |
//! | [`guardrail`] | what an agent finds in a text for or from a language model |
//! | [`control`] | control messages: health, metrics, flow control, cancels |
//! | [`capabilities`] | the capabilities of an agent; the handshake |
//! | [`wire`] | frames, and the two encodings of all of these |
//! | [`agent`] | the agent's side: the trait, and serving it |
//! | [`host`] | the proxy's side: one connection to an agent |
//! | [`inspect`] | which agents a proxy consults, and what happens when one does not answer |
//! | [`pool`] | the connections to one agent, and which of them an event goes to |
//! | [`exposition`] | what was counted, as OpenMetrics text |
//! | [`front`] | front ends for proxies that do not speak the protocol: Envoy and HAProxy |

pub mod agent;
pub mod capabilities;
pub mod control;
pub mod event;
pub mod exposition;
pub mod front;
mod guarded_io;
pub mod guardrail;
pub mod headers;
pub mod host;
pub mod inspect;
pub mod pool;
pub mod response;
mod stream;
pub mod wire;

pub use agent::Agent;
pub use event::{Event, EventKind};
pub use response::{Decision, Response};

/// The version of the protocol that is spoken.
pub const VERSION: u32 = 2;

/// A text that is shared and not changed: a slice of the frame that it came in, or a constant.
pub type Text = bytestring::ByteString;
