//! What a node decides, without I/O, clock or runtime.
//!
//! Each module is one decision: a function, or a state machine that is told the time and what happened, and answers
//! with what is to be done. Nothing here waits, locks, opens a socket or reads a clock; `clippy.toml` and a test of the
//! dependency tree hold it to that. The crate `hailwire` drives these machines: it owns one, calls
//! `handle_…(now, …)` when something happens, carries out what `poll_action()` gives until it gives nothing, and calls
//! `handle_timeout(now)` at the time that `poll_timeout()` names. So each of them is tested in virtual time, with
//! thousands of seeded orders of events in a second.
//!
//! | module | decides |
//! |---|---|
//! | [`carrier_choice`] | which carrier takes a peer's new calls |
//! | [`receive_window`], [`first_flight`] | how much a peer may send unread; how much may leave at once after quiet |
//! | [`dial_race`], [`additional_connections`] | which attempts to connect start when; how many connections a tunnel gets |
//! | [`dial_patience`] | how long a caller waits for a peer that did not answer a moment ago |
//! | [`routing`] | where a call goes: delivered, carried on, searched for, refused |
//! | [`peer_table`] | which connections to peers there are, and which takes a call |
//! | [`liveness`] | whether a peer still lives |
//! | [`path_history`] | what is said when a connection changes its path, and the sums of that |
//! | [`path_silence`] | how long a path may be silent before another takes its place |
//! | [`diagnosis`] | what keeps a node from being reached, and what to do |
//! | [`dial_address`] | which addresses this node lets itself be sent to |
//! | [`names`] | which node a name means |
//! | [`grants`] | what a peer may call here |
//! | [`admission`], [`pending`] | who gets a slot that nobody knows yet, and who waits for approval |
//! | [`offer_capacity`] | how much local agents may take in a list of offers |
//! | [`offer_queue`] | which peer's list of offers is entered when |
//! | [`held_copies`] | when a node leaves a sealed copy of what waits at a hub |
//! | [`hub_registration`] | when a node publishes its record at a hub |
//! | [`hub_record`] | what a record at a hub leaves out, and to whom its agents are shown |
//! | [`port_mapping`] | when a router is asked for a port |
//! | [`delivery`] | what becomes of a durable message after an attempt, some news or a restart |
//! | [`inbox_schedule`], [`message_exchange`] | which message is handed to which agent next; when a peer is sent a batch of them |
//! | [`wake_schedule`] | when a program that sleeps is started for what waits, and ended again |
//! | [`progress_reports`], [`task_state`] | when a sender is told how far an agent is with its message; what a durable call is called as a task |
//! | [`topics`] | who gets what is published, and what those lose who read too slowly |
//! | [`kept_topics`], [`state_values`] | which messages a node keeps and which go, and what a named subscriber has confirmed; which node's value of a key counts |
//! | [`relay_share`] | whose bytes a hub's relay carries when |
//! | [`dispatch_plan`], [`dispatch_journal`] | which of many inputs is called for when, and what of them was answered before |
//! | [`lease_table`], [`lease_candidate`] | who holds a lease at a hub, and how long a holder may think so |
//! | [`call_attempts`], [`retry_budget`] | when a call is made again, or beside one that is slow, and whose result counts |
//! | [`quorum`] | whether enough of many have agreed, or no longer can |
//! | [`rate_limit`], [`backoff`] | how often something may be done, and when it is tried again |

pub mod additional_connections;
pub mod admission;
pub mod backoff;
pub mod call_attempts;
pub mod call_queue;
mod carrier;
pub mod carrier_choice;
pub mod delivery;
pub mod diagnosis;
pub mod dial_address;
pub mod dial_patience;
pub mod dial_race;
pub mod dispatch_journal;
pub mod dispatch_plan;
pub mod first_flight;
pub mod grants;
pub mod held_copies;
pub mod hub_record;
pub mod hub_registration;
pub mod inbox_schedule;
pub mod kept_topics;
pub mod lease_candidate;
pub mod lease_table;
pub mod liveness;
pub mod message_exchange;
pub mod message_quotas;
pub mod names;
pub mod offer_capacity;
pub mod offer_queue;
pub mod path_history;
pub mod path_silence;
pub mod peer_table;
pub mod pending;
pub mod port_mapping;
pub mod progress_reports;
pub mod quorum;
pub mod rate_limit;
pub mod receive_window;
pub mod relay_share;
mod remote;
pub mod retry_budget;
pub mod routing;
pub mod state_values;
pub mod task_state;
#[cfg(test)]
mod testing;
pub mod topics;
pub mod wake_schedule;

pub use carrier::{Carrier, Transport};
pub use remote::{RemoteSource, SourceNetwork};
