//! A hub: the rendezvous server of nodes, which anyone can host.
//!
//! One process with one TCP port and one UDP port holds
//!
//! - the **directory** of signed records: who is a member, where it is, which agents it offers and
//!   which name it holds, on SQLite;
//! - the **relay**, iroh's, through which members reach each other while no direct path works;
//! - **address discovery**, iroh's, which tells a node its public address.
//!
//! A hub can withhold, never forge or read: records carry their node's signature, which every
//! reader checks, and relayed packets are encrypted end to end. A node that is not a member can see
//! that there is a hub, and nothing else; a ticket from the operator makes it a member.
//!
//! The TCP port speaks TLS 1.3, by default with a certificate signed by the hub's own Ed25519 key,
//! which tickets carry and nodes pin. Plain HTTP is refused off loopback.
//!
//! # Modules
//!
//! | module | does |
//! |---|---|
//! | `hub` | starts and stops the other modules |
//! | `config` | the operator's settings and bounds |
//! | `identity` | the hub's key and certificate |
//! | `server` | the TCP port: TLS, HTTP, routes |
//! | `api` | reads a request, checks its permission, asks the directory |
//! | `queue` | the thread that owns the directory, and the order of requests to it |
//! | `quotas` | rate limits of each member |
//! | `directory` | the core: members, records, names, over SQLite, told the time |
//! | `held` | sealed messages for members that are away, over SQLite, told the time |
//! | `nat_discovery` | STUN at two ports, which tells what a NAT does |
//! | `relay` | the relay's connections: access check, fair share; address discovery |
//! | `throttle` | token buckets by key |
//! | [`folder`] | operations on the data folder without the running hub |

mod api;
mod config;
mod directory;
pub mod folder;
mod held;
mod hub;
mod identity;
mod metrics;
mod nat_discovery;
mod queue;
mod quotas;
mod relay;
mod server;
mod throttle;

pub use config::{AgentVisibility, DEFAULT_PORT, HoldBounds, HubBounds, HubConfig, TlsMode};
pub use directory::{DirectoryError, HubCounts, OpenTicket};
pub use folder::{HubFolderStatus, InviteError};
pub use hailwire_core::relay_share::RelayRates;
pub use hailwire_wire::directory::MemberTrust;
pub use held::HeldCounts;
pub use hub::{Hub, StartError};
pub use identity::IdentityError;
pub use metrics::METRICS_CONTENT_TYPE;
