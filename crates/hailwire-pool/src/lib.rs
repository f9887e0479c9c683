//! Who gets the next call.
//!
//! Several agents under one name form a group, and a [`Pool`] picks one of them: the healthy before
//! the suspect, the local before the remote, the idle before the busy, and among equals the one
//! whose turn it is. The pick is a [`Lease`]. It counts as one call in flight until it is finished
//! with an [`Outcome`] or dropped, and the outcome decides how the member fares next time.
//!
//! The crate performs no I/O, starts no thread and reads no clock. Every function that needs the
//! time takes `now`, a [`Duration`](std::time::Duration) since an origin that the caller chooses
//! once and that never runs backwards; tests therefore run in virtual time. It has no dependency.
//!
//! Picking allocates nothing and waits only while the list of members is being exchanged, which is
//! rare. All that changes per call lies in atomics of the member, so that any number of threads may
//! pick, finish and look at the same time.
//!
//! # A member's health
//!
//! ```text
//!            failure                 the Nth failure in a row
//! healthy ───────────▶ suspect ─────────────────────────────▶ down ◀──┐
//!    ▲                    │                                    │      │ the probe fails:
//!    │      success       │            back-off passes: one    │      │ the back-off doubles,
//!    ├────────────────────┘            call is let through     ▼      │ up to its bound
//!    └───────────────────────────────────────────────────── probe ────┘
//!                         success
//! ```
//!
//! A suspect member is passed over for one base back-off while a healthy one can serve, in whatever
//! tier, and then takes its turns again. A member that is down gets no call but the probe.
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`pool`] | the members of one group, and the pick |
//! | [`member`] | one member: what it is, and what it has in flight |
//! | [`lease`] | one call's hold on a member |
//! | [`health`] | the machine drawn above, in one atomic word |
//! | [`outlier`] | which members fail far more often than the others, and are ejected |
//! | [`priority`] | when a member takes calls beside the others: prioritised, overflow, pinned |
//! | [`slots`] | a fixed set of slots, such as the connections to one agent, and the choice among them |
//! | [`breaker`] | a circuit breaker, in one atomic word |
//! | [`affinity`] | which slot a request has |
//! | [`rendezvous`] | which member a key has its calls go to |
//!
//! Members and slots share what is the same for both: [`Strategy`], [`Availability`], [`Outcome`], the count of calls within a bound,
//! and [`LastSeen`].

pub mod affinity;
mod availability;
pub mod breaker;
mod call_count;
mod clock;
pub mod health;
mod last_seen;
pub mod lease;
pub mod member;
mod outcome;
pub mod outlier;
pub mod pool;
pub mod priority;
pub mod rendezvous;
mod scramble;
mod slot_watch;
pub mod slots;
mod strategy;
mod weight;

pub use affinity::{AffinityConfig, AffinityTable};
pub use availability::Availability;
pub use breaker::{BreakerConfig, BreakerPermit, BreakerState, CircuitBreaker};
pub use health::{HealthConfig, MemberHealth};
pub use last_seen::LastSeen;
pub use lease::Lease;
pub use member::{Member, MemberConfig, MemberState, Tier};
pub use outcome::Outcome;
pub use outlier::OutlierConfig;
pub use pool::{NoMember, Pool, PoolConfig};
pub use priority::PriorityPolicy;
pub use rendezvous::{AffinityKey, MemberPlace};
pub use slot_watch::SlotWatch;
pub use slots::{NoSlot, SlotSet, SlotView};
pub use strategy::Strategy;
