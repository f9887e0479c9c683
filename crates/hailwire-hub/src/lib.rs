//! A hub: the server that nodes meet at, and that anyone can host.
//!
//! One process with one TCP port and one UDP port holds
//!
//! - the **directory** of signed records: who is a member, where it is, which agents it offers and
//!   which name it holds, on SQLite;
//! - the **relay**, iroh's, through which members reach each other while no direct path works;
//! - **address discovery**, iroh's, which tells a node how its packets look from outside.
//!
//! A hub can withhold, never forge or read: records carry their node's signature, which every
//! reader checks, and what is relayed is encrypted end to end. Strangers see that there is a hub
//! and nothing else; a ticket from the operator makes a node a member.
//!
//! The TCP port speaks TLS 1.3, by default with a certificate signed by the hub's own Ed25519 key,
//! which tickets carry and nodes pin. Plain HTTP is refused off loopback.
//!
//! # The rooms
//!
//! | module | does |
//! |---|---|
//! | `hub` | starts and stops the parts |
//! | `config` | what an operator decides, and the bounds |
//! | `identity` | the hub's key and certificate |
//! | `server` | the TCP port: TLS, HTTP, routes |
//! | `api` | reads a request, checks its permission, asks the directory |
//! | `queue` | the thread that owns the directory, and who asks it first |
//! | `quotas` | how often each member may ask |
//! | `directory` | the core: members, records, names, over SQLite, told the time |
//! | `relay` | the relay's access check, address discovery |
//! | `throttle` | how often somebody may do something |
//! | [`folder`] | what an operator does without the running hub |

mod api;
mod config;
mod directory;
pub mod folder;
mod hub;
mod identity;
mod queue;
mod quotas;
mod relay;
mod server;
mod throttle;

pub use config::{Bounds, Config, DEFAULT_PORT, Listing, Tls};
pub use directory::{Counts, DirectoryError};
pub use folder::InviteError;
pub use hailwire_wire::directory::Trust;
pub use hub::{Hub, StartError};
pub use identity::IdentityError;
