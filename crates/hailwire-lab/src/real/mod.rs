//! The real tier: Linux network namespaces for programs that know nothing of the lab, TCP and UDP
//! alike.
//!
//! ```text
//!  ┌ host a ────┐                             ┌ router of home ┐   ┌ host c ────┐
//!  │ program    │        ┌───────────┐        │ nftables       │   │ program    │
//!  │ eth0 (TUN) │◀──────▶│  router   │◀──────▶│ wan (TUN)  c ◀─┼───┼▶ eth0      │
//!  └────────────┘        │  (model)  │        └────────────────┘   └──(veth)────┘
//!                        └───────────┘
//! ```
//!
//! Every host is a namespace whose `eth0` is a TUN device, and one thread of this process, the
//! router, carries packets between them as [`crate::fabric`] says. A NAT that nftables can be is
//! a namespace of its own with nftables, and its hosts hang on it by veth; any other kind of
//! RFC 4787 is the model's own. Large buffers pass whole where the links allow it
//! (segmentation offload), so that a router does more than a gigabit on one core.
//!
//! Namespaces have no names, so that nothing outlives the process: see `namespace.rs`; programs
//! that must not outlive it either run in an [`ProcessEnclosure`]. Making them
//! needs root, or a user namespace in which one is root; [`available`] says what is missing. The lab
//! is IPv4 only.

mod enclosure;
mod frame;
mod namespace;
mod network;
mod router;

pub use enclosure::{EnclosureHandle, ProcessEnclosure};
pub use network::{LabError, NamespaceNetwork, available, in_user_namespace};

/// Timers to the nanosecond, and before ordinary threads, for the calling thread; both as far as
/// the system lets. What emulates or measures a network must not be late itself.
///
/// Real-time turns where `chrt` (util-linux) may give them, because a niceness alone leaves a thread
/// waiting for its turn by milliseconds on a busy machine.
pub(crate) fn hurry() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let turns = std::process::Command::new("chrt")
        .args(["--rr", "--pid", "1", &thread])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    if turns.is_ok_and(|status| status.success()) {
        return;
    }
    // For Linux a priority belongs to a thread, whatever POSIX says.
    if let Err(error) = rustix::process::setpriority_process(None, -20) {
        tracing::debug!(%error, "a thread of the lab runs at ordinary priority");
    }
}
