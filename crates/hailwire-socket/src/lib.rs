//! Sockets as nodes, hubs and callouts open them.
//!
//! | module | holds |
//! |---|---|
//! | [`unix`] | a Unix socket whose programs are woken for what comes, and not for what has left |
//! | [`tcp`] | TCP listeners whose connections fit through narrow links |

pub mod tcp;
pub mod unix;

pub use unix::{SocketReader, SocketWriter, split};
