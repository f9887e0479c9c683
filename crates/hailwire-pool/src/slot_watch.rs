//! Who waits for a place in a group is told of each that becomes free.

use std::fmt;

/// Who is told of each place that becomes free in a group: a lease was given back, a member joined. Called on whatever thread that happens, perhaps
/// under locks of the pool, so it must be quick and must not use the pool. It is told after the place can be taken.
pub trait SlotWatch: fmt::Debug + Send + Sync {
    /// A place is free that was not.
    fn slot_freed(&self);
}
