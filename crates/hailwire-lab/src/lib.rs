//! Networks to test in: links with delay, jitter, loss and rate, NATs as RFC 4787 sorts them, and
//! firewalls, in two tiers with one model.
//!
//! A [`Topology`] says what there is: sites on one internet, each with a link, perhaps a NAT and a
//! firewall, and hosts behind them. It is a KDL file, and some come with the crate. [`fabric::Fabric`]
//! is the model: a machine that is told the time and decides what becomes of each packet. The tiers
//! carry that out:
//!
//! - [`virtual_net`]: sockets in memory, in one process and in virtual time; the same seed gives the
//!   same packets. For tests of whole systems in milliseconds.
//! - [`real`]: Linux network namespaces for any program, TCP and UDP alike. For measurements, and for
//!   tests with real kernels.
//!
//! An emulated network is believed only after it was measured: [`check()`] sets its round trip, loss
//! and rate beside the label, and [`discover`] finds from inside what kind of NAT stands before a
//! host.
//!
//! ```
//! use hailwire_lab::Topology;
//!
//! let topology = Topology::named("transatlantic-85ms")?;
//! let label = topology.expected("a", "b").expect("both are hosts of it");
//! assert_eq!(label.rtt.as_millis(), 85);
//! # Ok::<(), hailwire_lab::TopologyError>(())
//! ```
//!
//! # The rooms
//!
//! | module | holds |
//! |---|---|
//! | [`topology`] | the file: what there is |
//! | [`link`] | one direction of a link: what happens to each packet |
//! | [`nat`] | mapping and filtering |
//! | [`firewall`] | what may pass |
//! | [`packet`] | what the model knows of a packet |
//! | [`fabric`] | all of it at once |
//! | [`power_loss`] | a disk that forgets what was not synced |
//! | [`real`], [`virtual_net`] | the tiers |
//! | [`check`](mod@check), [`discover`] | the probes |

pub mod check;
pub mod discover;
pub mod fabric;
pub mod firewall;
pub mod link;
pub mod nat;
pub mod packet;
pub mod power_loss;
pub mod real;
pub mod topology;
pub mod virtual_net;

pub use check::{NetworkReport, check};
pub use topology::{Topology, TopologyError};
